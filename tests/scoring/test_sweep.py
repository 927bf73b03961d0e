"""Sweeps: a fault loses what it is to lose, and the tables say what was made of it."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from diagnose.faults.inputs import draw_inputs
from diagnose.faults.sequence_imbalance import SequenceImbalance
from diagnose.faults.spec import JobSpec, count_rows
from diagnose.faults.worker_fault import WorkerFault
from tests.scoring import sweep as program
from tests.scoring.judged import JudgedJob, SaidCause, TrueCause
from tests.scoring.losing import find_losing, lost_share
from tests.scoring.sweep import list_kinds, list_points, sweep
from tests.scoring.sweep_tables import list_worst, table_of_decoys, table_of_faults
from tests.scoring.swept import MAX_ROWS, Point, SweptJob, draw_fault_losing

SPEC = JobSpec(pp=3, dp=3, microbatches=4, steps=6, seed=11)
POINT = Point("worker-fault/worker", 0.06)
TRUE = TrueCause("worker-fault", ((1, 2),), (), None, 0.06, 0.06, kind="worker-fault/worker")


def judged(*said: SaidCause, truth: tuple[TrueCause, ...] = (TRUE,), error: str = "") -> JudgedJob:
    """Make a row."""
    return JudgedJob("job", dp=3, pp=3, steps=(1, 2), truth=truth, said=said, error=error, world=("gpipe",))


def say(cause: str, confidence: float, *workers: tuple[int, int]) -> SaidCause:
    """Say a cause."""
    return SaidCause(cause, confidence, 0.5, 0.05, workers=workers)


@pytest.mark.parametrize("lost", [0.03, 0.3])
@pytest.mark.parametrize("onset", [None, 3])
def test_a_fault_loses_what_it_is_to_lose(lost: float, onset: int | None) -> None:
    """Over the whole job, with its noise, and also where it begins late."""
    fault, reached = find_losing(SPEC, lambda s: WorkerFault(places=((1, 2),), slowdown=s, onset=onset), lost)
    assert reached == pytest.approx(lost_share(draw_inputs(SPEC), fault)) == pytest.approx(lost, rel=0.05)
    assert fault.onset == onset


def test_what_cannot_cost_as_much_costs_what_it_can() -> None:
    """Documents whose whole cost is attention lose a share that no more of it exceeds."""
    _, reached = find_losing(SPEC, lambda s: SequenceImbalance(quadratic_share=min(s, 1.0)), 0.9)
    assert 0.2 < reached < 0.9


@pytest.mark.parametrize("kind", list_kinds())
def test_jobs_of_every_kind_are_found(kind: str) -> None:
    """A small job is drawn that loses about what is asked for, the same one each time, and of the kind asked for."""
    spec, fault, reached = draw_fault_losing(1, 0, kind, 0.05)
    assert (fault.full_kind, count_rows(spec) <= MAX_ROWS) == (kind, True)
    assert reached == pytest.approx(0.05, rel=0.15)
    assert draw_fault_losing(1, 0, kind, 0.05)[:2] == (spec, fault)


def test_points_are_kinds_and_decoys_by_strength() -> None:
    """A cause stands for all its kinds; with nothing named all kinds are swept, and no decoy."""
    given = {"seed": 3, "no_evidence": True, "world": None}
    points = list_points(["worker-fault"], ["evaluation"], [0.1, 0.2], **given)
    assert {p.name for p in points} == {*list_kinds(["worker-fault"]), "evaluation"}
    assert points[-1] == Point("evaluation", 0.2, is_decoy=True, seed=3, evidence=False)
    assert [p.name for p in list_points([], [], [0.1], **given)] == list_kinds()


def test_rows_are_kept_and_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep goes on where it stopped, and reads back what it wrote; a line that is half written is made again."""
    made: list[int] = []

    def make(point: Point, i: int) -> SweptJob:
        made.append(i)
        links = (((0, 1), (0, 2)),)
        return SweptJob(point, i, 0.06, judged(dataclasses.replace(say("network-fault", 0.7), links=links)))

    monkeypatch.setattr(program, "sweep_one", make)
    rows = tmp_path / "rows.jsonl"
    first = sweep([POINT], 2, path=rows)
    with rows.open("a") as file:
        file.write('{"point": ')
    assert sweep([POINT], 2, path=rows) == first
    assert made == [0, 1]
    sweep([POINT, dataclasses.replace(POINT, seed=1)], 2, path=rows)
    assert made == [0, 1, 0, 1]


def test_table_of_faults() -> None:
    """Found, alone, in its place, and what else was said; a sure other cause is counted apart."""
    jobs = [
        judged(say("worker-fault", 0.9, (1, 2))),
        judged(say("worker-fault", 0.7, (1, 2), (0, 0)), say("allocator-stall", 0.85)),
        judged(say("worker-fault", 0.8, (0, 0)), say("unknown", 0.5)),
        judged(error="ValueError: no"),
    ]
    _, cells = table_of_faults([SweptJob(POINT, i, 0.06, row) for i, row in enumerate(jobs)])
    row = dict(zip(cells[0], cells[1], strict=True))
    assert row["jobs"] == "4 (1 failed)"
    assert [row[name] for name in ("found", "alone", "unknown", "other", "at 0.8")] == ["3", "1", "1", "1", "1"]
    assert (row["place"], row["all of it"]) == ("2 of 3", "1 of 3")
    assert (row["confidence"], row["gain off"]) == ("0.80", "0.0100")
    worst = list_worst([SweptJob(POINT, i, 0.06, job) for i, job in enumerate(jobs)], 1)
    assert len(worst) == 1
    assert "job 1" in worst[0] and "allocator-stall 0.050 @0.85" in worst[0] and worst[0].endswith("gpipe")


def test_table_of_decoys() -> None:
    """A healthy job is one of which nothing is said; `unknown` is no cause."""
    point = Point("longer-computes", 0.3, is_decoy=True)
    jobs = [judged(truth=()), judged(say("unknown", 0.5), truth=()), judged(say("allocator-stall", 0.9), truth=())]
    _, cells = table_of_decoys([SweptJob(point, i, 0.0, row) for i, row in enumerate(jobs)])
    assert cells[1] == ["longer-computes", "0.3", "3", "1", "1", "1", "1", "allocator-stall 0.90"]


def test_the_program(tmp_path: Path) -> None:
    """One job of a kind and one with a decoy are diagnosed and shown; a kind that does not exist is refused."""
    options = ["--lost", "0.2", "--jobs", "1", "--rows", str(tmp_path / "rows.jsonl")]
    result = CliRunner().invoke(program.main, ["--kind", "worker-fault/worker", "--decoy", "evaluation", *options])
    assert result.exit_code == 0, result.output
    assert "worker-fault/worker" in result.output and "evaluation" in result.output
    assert np.isclose(float(result.output.splitlines()[2].split()[3]), 0.2, atol=0.01)
    result = CliRunner().invoke(program.main, ["--kind", "gremlins"])
    assert (result.exit_code, "worker-fault/worker" in result.output) == (2, True)
