"""A real S3 server, moto's, on loopback: what users of S3, MinIO and Ceph do."""

import contextlib
import datetime as dt
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import dump, environment, start, triage

#: As a user sets them; moto believes any.
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "s3cret-of-mine", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """Start the server, and give its URL."""
    for package in ("moto", "flask", "s3fs"):
        pytest.importorskip(package)
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    env, pipe = environment(PYTHONUNBUFFERED="1"), subprocess.PIPE
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=pipe, text=True)
    try:
        said = ""
        for line in process.stderr:
            said += line
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                yield found[0]
                return
        pytest.fail(f"moto's server does not start: {said}")
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def bucket(endpoint: str) -> Iterator[tuple[Any, str]]:
    """Give a client of the server, and the name of an empty bucket there."""
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
    )
    with contextlib.closing(client):
        name = f"traces-{time.time_ns()}"
        client.create_bucket(Bucket=name)
        yield client, name


def test_a_prefix_of_jobs(endpoint: str, bucket, small_jobs: list[Path], tmp_path: Path) -> None:
    """All of a prefix and nothing beside it; corrupt and archived objects are rows; the next runs do what is new or changed."""
    client, name = bucket
    for i in range(16):
        client.put_object(Bucket=name, Key=f"jobs/{i // 4}/job-{i:02}.parquet", Body=small_jobs[i % 4].read_bytes())
    client.put_object(Bucket=name, Key="jobs/0/job-01.yaml", Body=b"owner: somebody\n")
    client.put_object(Bucket=name, Key="jobs/corrupt.parquet", Body=small_jobs[0].read_bytes()[:1000])
    client.put_object(Bucket=name, Key="jobs/archived.parquet", Body=b"far away", StorageClass="GLACIER")
    client.put_object(Bucket=name, Key="elsewhere/job.parquet", Body=b"not asked for")
    env = CREDENTIALS | {"AWS_ENDPOINT_URL_S3": endpoint}
    url = f"sqlite:///{tmp_path}/a.db"
    options = (f"s3://{name}/jobs", "--store", url, "--workers", "2")
    found = triage(*options, rc=5, **env)
    assert (found["n_found"], found["n_diagnosed"], found["n_failed"]) == (18, 16, 2)
    kinds = {failed["location"]: (failed["failure"], failed["reason"]) for failed in found["failed"]}
    kind, reason = kinds[f"s3://{name}/jobs/corrupt.parquet"]
    assert kind == "input" and reason.startswith(f"s3://{name}/jobs/corrupt.parquet: ")
    kind, reason = kinds[f"s3://{name}/jobs/archived.parquet"]
    assert kind == "unreadable" and "storage class" in reason
    rows = {row["location"]: row for row in dump(url)["jobs"]}
    assert len(rows) == 18 and rows[f"s3://{name}/jobs/0/job-01.parquet"]["owner"] == "somebody"
    assert [row["top_cause"] for row in rows.values()].count("network-fault") == 4

    found = triage(*options, rc=5, **env)
    assert (found["n_diagnosed"], found["n_failed"], found["n_known_by_time"]) == (0, 1, 17)
    moment = dt.datetime.now(dt.UTC).replace(microsecond=0) + dt.timedelta(seconds=1)
    while dt.datetime.now(dt.UTC) < moment + dt.timedelta(seconds=0.1):
        time.sleep(0.05)
    client.put_object(Bucket=name, Key="jobs/0/job-00.parquet", Body=small_jobs[1].read_bytes())
    client.put_object(Bucket=name, Key="jobs/archived.parquet", Body=small_jobs[2].read_bytes())
    found = triage(*options, "--since", moment.isoformat(), **env)
    assert (found["n_diagnosed"], found["n_failed"], found["n_older"]) == (2, 0, 16)
    changed = {row["location"]: row for row in dump(url)["jobs"]}[f"s3://{name}/jobs/0/job-00.parquet"]
    assert rows[changed["location"]]["verdict"] == "healthy" and changed["top_cause"] == "worker-fault"


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_an_endpoint_of_ones_own(variable: str, endpoint: str, bucket, small_jobs: list[Path], tmp_path: Path) -> None:
    """Either variable that AWS's own tools read leads to a server of one's own; one object can be named alone."""
    client, name = bucket
    client.put_object(Bucket=name, Key="a.parquet", Body=small_jobs[0].read_bytes())
    env = CREDENTIALS | {variable: endpoint}
    assert triage(f"s3://{name}/a.parquet", "--store", f"sqlite:///{tmp_path}/a.db", **env)["n_diagnosed"] == 1


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("AWS_ACCESS_KEY_ID", "credentials"),
        ("bucket", "bucket does not exist"),
        ("server", "Could not connect to the endpoint"),
    ],
)
def test_what_is_missing_is_one_line(missing: str, said: str, endpoint: str, bucket, tmp_path: Path) -> None:
    """No credentials, no such bucket, nobody who answers: one line says which, and no secret."""
    address = "http://127.0.0.1:9" if missing == "server" else endpoint
    env = CREDENTIALS | {"AWS_ENDPOINT_URL": address, "AWS_EC2_METADATA_DISABLED": "true", "AWS_MAX_ATTEMPTS": "1"}
    env |= {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"), "AWS_CONFIG_FILE": str(tmp_path / "none")}
    env = {key: value for key, value in env.items() if key != missing}
    name = "no-such-bucket" if missing == "bucket" else bucket[1]
    process = start("triage", f"s3://{name}/jobs", "--store", f"sqlite:///{tmp_path}/a.db", **env)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 2 and out == ""
    assert said in err and err.count("\n") == 1 and CREDENTIALS["AWS_SECRET_ACCESS_KEY"] not in err
