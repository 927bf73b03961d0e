"""Jobs of a list are told apart by their paths; the id of each stays what it is."""

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from diagnose.cli.main import main
from diagnose.model.job_names import id_of_path, name_of_job, stable_part, tell_apart


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        ([("/x/fig17/ZB/0_1", "0_1"), ("/x/fig14/ZB/0_1", "0_1")], ["fig17/ZB/0_1", "fig14/ZB/0_1"]),
        ([("/x/a/0.06", "0.06"), ("/x/b/0.06", "0.06"), ("/x/b/0.12", "0.12")], ["a/0.06", "b/0.06", "0.12"]),
        ([("/r1/t.parquet", "llama"), ("/r2/t.parquet", "llama")], ["llama (r1/t)", "llama (r2/t)"]),
        ([("s3://b/1/t.parquet", "t"), ("s3://b/2/t.parquet", "t")], ["1/t", "2/t"]),
        ([("/a/a", "a"), ("/a", "a")], ["a/a", "/a"]),
        ([("/a", ""), ("/b", "")], ["/a", "/b"]),
        ([("/a", "a"), ("/a", "a")], ["a"]),
        ([], []),
    ],
)
def test_each_name_is_another(jobs: list[tuple[str, str]], expected: list[str]) -> None:
    """As much of the path as tells jobs of one id apart, and no more."""
    assert list(tell_apart(jobs).values()) == expected


def test_a_folder_without_a_name_of_its_own_has_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a job is given as the working folder it is called as that is."""
    (tmp_path / "run-7").mkdir()
    monkeypatch.chdir(tmp_path / "run-7")
    assert id_of_path(Path()) == "run-7" and id_of_path(Path("/")) == "job"


def test_a_list_of_jobs_on_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Pages of several jobs name them apart; their JSON has the id that each has alone."""
    table = pq.read_table("fixtures/healthy.parquet")
    job = json.loads(table.schema.metadata[b"diagnose.job"])
    del job["job_id"]
    paths = [tmp_path / folder / "ZB" / "trace.parquet" for folder in ("fig14", "fig17")]
    for path in paths:
        path.parent.mkdir(parents=True)
        pq.write_table(table.replace_schema_metadata({"diagnose.job": json.dumps(job)}), path)
    named = tmp_path / "named.parquet"
    shutil.copy("fixtures/healthy.parquet", named)
    given = [str(path) for path in (*paths, named)]
    assert main([*given, "--format", "markdown"]) == 0
    titles = [line for line in capsys.readouterr().out.splitlines() if line.startswith("## ")]
    assert [title.split(":")[0] for title in titles[:-1]] == [
        "## `fig14/ZB/trace`",
        "## `fig17/ZB/trace`",
        "## `healthy`",
    ]
    assert main([*given, "--format", "json"]) == 0
    ids = [json.loads(line)["job"]["job_id"] for line in capsys.readouterr().out.splitlines()]
    assert ids == ["trace", "trace", "healthy"]


@pytest.mark.parametrize(
    ("text", "stable"),
    [
        ("llama-70b", "llama-70b"),
        ("llama-70b-20261122", "llama-70b"),
        ("llama-70b-2026-11-22-02-00", "llama-70b"),
        ("llama-70b.2026-11-22T02:00:00+01:00", "llama-70b"),
        ("2026_11_22_llama-70b", "llama-70b"),
        ("llama-1763792400", "llama"),
        ("llama-start-02:00:05.123", "llama"),
        ("start-2026-11-22T020000Z", ""),
        ("started_20261122", ""),
        ("run12", ""),
        ("night-3", ""),
        ("AR-attempt-2", "AR"),
        ("restart-4-llama", "llama"),
        ("slurm-4242137", "slurm"),
        ("llama-0007", "llama"),
        ("7f3c2a9-llama", "llama"),
        ("0b6fe1a2-52f4-4c38-9f5e-0d8a3c2b1e11", ""),
        ("4711", ""),
        ("0_1", ""),
        ("exp-2", "exp-2"),
        ("ctx-131072", "ctx-131072"),
        ("kickstart-7", "kickstart-7"),
        ("llama3.1-8x7b-pp4dp2", "llama3.1-8x7b-pp4dp2"),
        ("tr\u00e4ning-20261122", "tr\u00e4ning"),
        ("a\nb <b>c</b>", "a b <b>c</b>"),
        ("", ""),
    ],
)
def test_what_differs_from_run_to_run_is_left_out(text: str, stable: str) -> None:
    """Dates, times, hashes, and numbers of runs and schedulers go; sizes, and numbers that tell experiments apart, stay."""
    assert stable_part(text) == stable


@pytest.mark.parametrize(
    ("name", "job_id", "location", "expected"),
    [
        ("llama", "run-7", "/traces/x.parquet", "llama"),
        ("42", None, "/traces/x.parquet", "42"),
        ("  a\n b ", None, "/x", "a b"),
        (" ", "AR", "/x", "AR"),
        (None, "llama-4242137", "/traces/x.parquet", "llama"),
        (None, "4242137", "/traces/team/llama/4242137", "4242137"),
        (None, "run-7", "s3://bucket/run-7.parquet", "run-7"),
        (None, "2026-11-22", "/nightly/traces/a.parquet", "2026-11-22"),
        (None, None, "/scratch/alice/traces/4242137", "4242137"),
        (None, None, "/nightly/llama/7f3c2a9.parquet", "7f3c2a9"),
        (None, None, "/traces/llama/attempt-2", "llama"),
        (None, None, "/traces/llama/2026-11-22/rank.parquet", "llama/rank"),
        (None, None, "/traces/team-a/train.parquet", "team-a/train"),
        (None, None, "/traces/team-b/train.parquet", "team-b/train"),
        (None, None, "s3://bucket/llama/start-1763792400/", "bucket/llama"),
        (None, None, "/traces/slurm-4242137.parquet", "slurm-4242137"),
        (None, "4711", "/123/456.parquet", "4711"),
        (None, None, "/123/456.parquet", "456"),
        (None, None, "/", "/"),
    ],
)
def test_names(name: str | None, job_id: str | None, location: str, expected: str) -> None:
    """Runs of one job share its name; where nothing of it stays the same, the id is better than a name that strangers share."""
    assert name_of_job(name=name, job_id=job_id, location=location) == expected


@pytest.mark.parametrize("folder", ["start-2026-11-22T02:00:00", "start-2026-11-23T02:00:00"])
def test_a_diagnosis_says_the_name(tmp_path: Path, capsys: pytest.CaptureFixture[str], folder: str) -> None:
    """Also where the path alone gives it; metadata sets it."""
    table = pq.read_table("fixtures/healthy.parquet")
    path = tmp_path / "llama-70b" / folder / "ranks.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(table.replace_schema_metadata({}), path)
    assert main([str(path), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["job"]["name"] == "llama-70b/ranks"
    path.with_suffix(".yaml").write_text("name: our llama\n")
    assert main([str(path), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["job"]["name"] == "our llama"
