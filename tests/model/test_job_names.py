"""Jobs of a list are told apart by their paths; the id of each stays what it is."""

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from diagnose.cli.main import main
from diagnose.model.job_names import id_of_path, tell_apart


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
    assert [title.split(":")[0] for title in titles] == ["## `fig14/ZB/trace`", "## `fig17/ZB/trace`", "## `healthy`"]
    assert main([*given, "--format", "json"]) == 0
    ids = [json.loads(line)["job"]["job_id"] for line in capsys.readouterr().out.splitlines()]
    assert ids == ["trace", "trace", "healthy"]
