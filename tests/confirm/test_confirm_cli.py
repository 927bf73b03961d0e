"""`diagnose confirm` as users run it: what it refuses, and what it reads."""

import dataclasses
import json
from pathlib import Path

import msgspec.json
import msgspec.structs
import pytest

from diagnose.cli.main import main
from diagnose.confirm import catalogue
from diagnose.confirm.plan import make_plan
from diagnose.machines.find import find_machines
from diagnose.machines.rules import read_machine_rules
from diagnose.model.machines import MachinesDocument
from diagnose.model.plain import to_json
from tests.clusters.ranges import TUNED
from tests.clusters.render import render
from tests.clusters.worlds import draw_world
from tests.confirm.stands import document, machine
from tests.report.examples import healthy

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def job(tmp_path: Path) -> str:
    """Save a diagnosis with a slow worker on node-3."""
    (tmp_path / "job.json").write_text(to_json(document()) + "\n")
    return str(tmp_path / "job.json")


def refuse(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    """Give the one line of an error."""
    assert main(["confirm", *arguments]) == code
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("diagnose: error: ")
    return err


def test_what_is_refused(job: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each in one line, with what to do."""
    assert "give the trace itself" in refuse(capsys, str(ROOT / "fixtures/worker-fault.parquet"))
    (tmp_path / "healthy.json").write_text(to_json(healthy().to_document()))
    assert "blames no machine" in refuse(capsys, str(tmp_path / "healthy.json"))
    assert "needs --image" in refuse(capsys, job, "--as", "kubernetes")
    assert "--image is for" in refuse(capsys, job, "--image", "x")
    assert "does not exist" in refuse(capsys, job, "--read", str(tmp_path / "none"))
    assert "no name of a folder" in refuse(capsys, job, "--data", "a\nb")
    assert "is no name of a machine" in refuse(capsys, job, "--suspect", "a;b", code=3)


def test_a_script_is_the_same_each_time(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The same diagnosis gives the same bytes, and too few controls are told."""
    said = []
    for _ in range(2):
        assert main(["confirm", job]) == 0
        said.append(capsys.readouterr())
    assert said[0] == said[1] and said[0].err == "" and said[0].out.startswith("#!/bin/bash\n")
    assert main(["confirm", job, "--controls", "1"]) == 0
    assert "two sound machines are needed to compare with, and there is 1" in capsys.readouterr().err


def test_results_in_one_file(job: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What `kubectl logs` gives is read: results among other lines; a machine that was tested by hand counts as a suspect."""
    results = [
        machine("node-3", "suspect"),
        machine("node-8", "suspect"),
        *(machine(f"node-{n}") for n in (1, 5, 9, 13)),
    ]
    lines = ["a warning of torch", *(msgspec.json.encode(one).decode() for one in results), ""]
    (tmp_path / "logs").write_text("\n".join(lines))
    assert main(["confirm", job, "--read", str(tmp_path / "logs")]) == 0
    page = capsys.readouterr().out
    assert "2 machines cleared" in page and "sure 0.50 (before: 0.80)" in page and "scontrol" not in page


def test_machines_that_telemetry_blames(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An answer of `diagnose machines` is tested as a diagnosis is, and gets its results back; who is affected is no control."""
    cluster = dataclasses.replace(TUNED, n_hosts=(24, 24), n_cards=(2, 2))
    world = next(w for i in range(1, 99, 2) if "slow-gpu" in (w := draw_world(31, i, ranges=cluster)).faulty.values())
    found = find_machines(render(world.cluster))
    (blamed,) = found.machines
    sound = next(host for role in found.roles for host in role if host not in (blamed.host, *found.affected))
    found = msgspec.structs.replace(found, affected=(sound,))
    answer = tmp_path / "machines.json"
    answer.write_text(to_json(found) + "\n")
    assert blamed.kind == "slow-gpu"
    plan = make_plan(found)
    assert [(one.host, one.causes) for one in plan.suspects] == [(blamed.host, ("slow-gpu",))]
    assert plan.suspects[0].cards == tuple(map(int, blamed.devices))
    assert len(plan.controls) == 4 and not {sound, blamed.host} & set(plan.controls)
    assert main(["confirm", str(answer)]) == 0
    assert blamed.host in capsys.readouterr().out
    slow = machine(blamed.host, "suspect", gemm=300.0, job=plan.job)
    lines = [slow, machine("aside", "suspect", job=plan.job), *(machine(one, job=plan.job) for one in plan.controls)]
    (tmp_path / "results").write_bytes(b"\n".join(map(msgspec.json.encode, lines)))
    assert main(["confirm", str(answer), "--read", str(tmp_path / "results")]) == 0
    page, told = capsys.readouterr()
    assert "slow-gpu confirmed" in page and f"scontrol update nodename={blamed.host}" in page
    assert "aside: nothing blames it" in told
    again = str(tmp_path / "again.json")
    assert main(["confirm", str(answer), "--read", str(tmp_path / "results"), "--format", "json", "-o", again]) == 0
    read = msgspec.json.decode(Path(again).read_bytes(), type=MachinesDocument)
    (judged,) = read.machines
    assert judged.confirmed.outcome == "confirmed" and judged.confidence >= blamed.confidence
    answer.write_text(answer.read_text().replace('"n_machines":', '"n":'))
    assert "no answer about machines" in refuse(capsys, str(answer), code=3)


def test_every_kind_of_a_faulty_machine_has_its_tests() -> None:
    """What is tested of each kind is said by name, but where nobody knows what is wrong with the machine."""
    kinds = {rule.id for rule in read_machine_rules()[0]}
    unnamed = catalogue.groups_of("whatever")
    assert {kind for kind in kinds if catalogue.groups_of(kind) == unnamed} == {
        "process-died",
        "unreachable",
    }
    for kind in kinds:
        assert catalogue.decisive_of(kind) <= set(catalogue.tests_of(kind)), kind


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b'{"schema": "diagnose/2"}',
        b"{}\n" * 3,
        b"\xff\xfe{",
        b'{"schema": "diagnose-confirm/1", "job": 1}',
        b"[" * 100000,
        b'{"a":' * 100000,
    ],
)
def test_damaged_results(content: bytes, job: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is no result is refused in one line that names the file."""
    (tmp_path / "out.json").write_bytes(content)
    assert "out.json" in refuse(capsys, job, "--read", str(tmp_path / "out.json"), code=3)


def test_figures_that_are_none(job: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Infinite, negative and endless figures are refused; nothing is said of them."""
    good = json.loads(msgspec.json.encode(machine("node-3", "suspect")))
    for value in ("1e999", "-1", "NaN", '"x"'):
        text = json.dumps(good | {"measured": [{"test": "gemm", "of": "0", "value": "HERE"}]}).replace('"HERE"', value)
        (tmp_path / "bad.json").write_text(text)
        refuse(capsys, job, "--read", str(tmp_path / "bad.json"), code=3)


def test_the_diagnosis_that_was_written_is_read_again(
    job: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what was confirmed in it, a diagnosis is compared as any other."""
    (tmp_path / "r").mkdir()
    for one in (machine("node-3", "suspect", dcgm=False), machine("node-1"), machine("node-5")):
        (tmp_path / f"r/{one.host}.json").write_bytes(msgspec.json.encode(one))
    after = str(tmp_path / "after.json")
    assert main(["confirm", job, "--read", str(tmp_path / "r"), "--format", "json", "-o", after]) == 0
    assert main(["compare", job, after, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["changes"][0]["change"] == "same"
