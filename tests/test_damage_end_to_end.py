"""Traces as they come: rows lost, workers silent, timestamps that shake, hosts that dawdle, clocks that differ."""

import itertools
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from diagnose.model.diagnosis import Diagnosis
from diagnose.model.request import Request
from diagnose.pipeline import diagnose_job
from tests.jobs import to_file
from tests.judge.cases import causes

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
FAULTY = ("worker-fault", "stage-imbalance")
#: What is added to every step, and what lies between steps, seconds.
LATE_S, BETWEEN_S = 0.8, 3.0


@cache
def _read(path: Path) -> pd.DataFrame:
    frame: pd.DataFrame = pq.read_table(path).to_pandas()
    return frame.assign(optype=frame.optype.astype(str), start_ts=frame.start_ts.astype(float))


def rows_of(name: str) -> pd.DataFrame:
    """Read a fixture, its times in double precision."""
    return _read(FIXTURES / f"{name}.parquet").copy()


def diagnose_rows(rows: pd.DataFrame) -> Diagnosis:
    """Diagnose rows as if they came from a file without metadata."""
    return diagnose_job(Request(to_file(rows), name="job.parquet"))


@cache
def undamaged(name: str) -> Diagnosis:
    """Diagnose a fixture as it is, once."""
    return diagnose_rows(rows_of(name))


def absolute(rows: pd.DataFrame, *, between_s: float = 0.0) -> pd.DataFrame:
    """Number the steps from 0 and put them on one clock, each beginning a constant time after the end of the one before."""
    end_s = (rows.start_ts + rows.duration).groupby(rows.step).max()
    origin_s = dict(zip(end_s.index, 1000.0 + np.cumsum([0.0, *(end_s + between_s)[:-1]]), strict=True))
    number = {step: i for i, step in enumerate(end_s.index)}
    return rows.assign(start_ts=rows.start_ts + rows.step.map(origin_s), step=rows.step.map(number))


def skewed(rows: pd.DataFrame, size_s: float) -> pd.DataFrame:
    """Let each worker's clock be off by up to a size."""
    late = np.random.default_rng(7).uniform(-size_s, size_s, size=(rows.dp_rank.max() + 1, rows.stage.max() + 1))
    return rows.assign(start_ts=rows.start_ts + late[rows.dp_rank, rows.stage])


def lose(rows: pd.DataFrame, share: float, seed: int = 0) -> pd.DataFrame:
    """Lose a share of the rows."""
    return rows[np.random.default_rng(seed).random(len(rows)) >= share]


def place(diagnosis: Diagnosis) -> tuple[str, list[tuple[int, int]], tuple[int, ...]]:
    """Name the first cause, its workers and its stages."""
    first = diagnosis.causes[0]
    return first.cause, [(worker.dp, worker.pp) for worker in first.where.workers], first.where.stages


def assert_nearly_same(found: Diagnosis, whole: Diagnosis, *, recoverable: float) -> None:
    """Check that the first cause, its place, what it costs and the step time are those of the whole trace."""
    assert place(found) == place(whole)
    assert found.causes[0].recoverable == pytest.approx(whole.causes[0].recoverable, abs=recoverable)
    assert found.step_time.recorded == pytest.approx(whole.step_time.recorded, rel=0.005)
    assert found.fidelity.replay_error < 0.01


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("share", [0.02, 0.05])
@pytest.mark.parametrize("name", FAULTY)
def test_lost_rows_leave_cause_place_and_gain(name: str, share: float, seed: int) -> None:
    """A trace that lost one row in twenty says the same first cause, place, step time and, to 3 points, gain."""
    assert_nearly_same(diagnose_rows(lose(rows_of(name), share, seed)), undamaged(name), recoverable=0.03)


@pytest.mark.parametrize("name", FAULTY)
def test_confidence_falls_with_lost_rows(name: str) -> None:
    """The more rows are lost, the less sure the first cause."""
    sure = [undamaged(name), *(diagnose_rows(lose(rows_of(name), share)) for share in (0.02, 0.05, 0.1))]
    confidence = [diagnosis.causes[0].confidence for diagnosis in sure]
    assert all(more > less for more, less in itertools.pairwise(confidence))


@pytest.mark.parametrize("share", [0.02, 0.05])
def test_lost_rows_of_a_real_job(shared: Path, share: float) -> None:
    """A throttled real worker is found, and its gain to 3 points, where one row in twenty is lost."""
    rows = _read(shared / "real" / "worker-quota.parquet")
    assert_nearly_same(diagnose_rows(lose(rows, share)), diagnose_rows(rows), recoverable=0.03)


def test_lost_rows_of_a_large_real_job(shared: Path) -> None:
    """The production job that lost one row in twenty is still slow for the same reason at the same workers."""
    rows = _read(shared / "artifact" / "trace-AR.parquet")
    assert place(diagnose_rows(lose(rows, 0.05))) == place(diagnose_rows(rows))


@pytest.mark.parametrize("name", FAULTY)
def test_shaking_timestamps(name: str) -> None:
    """Noise of 100 us on every start and end changes no gain by a point."""
    rows, rng = rows_of(name), np.random.default_rng(0)
    start_s = rows.start_ts + rng.uniform(-1e-4, 1e-4, len(rows))
    end_s = rows.start_ts + rows.duration + rng.uniform(-1e-4, 1e-4, len(rows))
    shaken = rows.assign(start_ts=start_s, duration=np.maximum(end_s - start_s, 0.0))
    assert_nearly_same(diagnose_rows(shaken), undamaged(name), recoverable=0.01)


@pytest.mark.parametrize("name", FAULTY)
def test_tensor_parallel_members_that_start_apart(name: str) -> None:
    """Four tensor-parallel members recorded up to 100 us apart are one worker each, and no gain changes by a point."""
    rows, rng = rows_of(name), np.random.default_rng(0)
    members = [
        rows.assign(start_ts=rows.start_ts + rng.uniform(0.0, 1e-4, len(rows)), tp_rank=rank) for rank in range(4)
    ]
    assert_nearly_same(diagnose_rows(pd.concat(members)), undamaged(name), recoverable=0.01)


@pytest.mark.parametrize("silent", [(0, 1), (1, 3), (0, 0), (3, 3), (2, 2)])
def test_a_worker_without_rows(silent: tuple[int, int]) -> None:
    """A worker that recorded nothing is named in a warning and never blamed; the true cause is less sure, or nothing is said."""
    rows, whole = rows_of("worker-fault"), undamaged("worker-fault")
    found = diagnose_rows(rows[(rows.dp_rank != silent[0]) | (rows.stage != silent[1])])
    named = f"dp index {silent[0]}, stage index {silent[1]} has no row"
    assert any(named in warning for warning in found.warnings)
    blamed = {(worker.dp, worker.pp) for cause in found.causes for worker in cause.where.workers}
    assert silent not in blamed
    assert found.step_time.recorded == pytest.approx(whole.step_time.recorded, rel=0.01)
    if found.verdict != "inconclusive":
        assert place(found) == place(whole)
        assert found.causes[0].confidence < whole.causes[0].confidence


def _late_before(optype: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Delay one type of operation, and all after it, on every worker of every step."""

    def delay(rows: pd.DataFrame) -> pd.DataFrame:
        first_s = rows.start_ts.where(rows.optype == optype)
        first_s = first_s.groupby([rows.step, rows.dp_rank, rows.stage]).transform("min")
        return rows.assign(start_ts=rows.start_ts + np.where(rows.start_ts >= first_s - 1e-9, LATE_S, 0.0))

    return delay


@pytest.mark.parametrize(
    ("hold", "seconds", "components"),
    [
        (_late_before("optimizer"), LATE_S, {"end-delay"}),
        (_late_before("params-all-gather"), LATE_S, {"launch-delay", "start-delay"}),
        (lambda rows: absolute(rows, between_s=BETWEEN_S), BETWEEN_S, {"between-steps"}),
    ],
    ids=["before the optimizer", "before the all-gather", "between steps"],
)
def test_time_in_which_nobody_works(
    hold: Callable[[pd.DataFrame], pd.DataFrame], seconds: float, components: set[str]
) -> None:
    """Time that the host takes out of every step is lost, for an unknown cause, and the ledger says where it went."""
    healthy = undamaged("healthy")
    assert healthy.verdict == "healthy"
    found = diagnose_rows(hold(rows_of("healthy")))
    assert found.verdict != "healthy"
    assert causes(found) == ["unknown"]
    assert found.ledger is not None
    assert max(found.ledger.components, key=lambda name: found.ledger.components[name]) in components  # type: ignore[union-attr]
    assert sum(found.ledger.components.get(name, 0.0) for name in components) > 0.9
    recorded_s = found.step_time.recorded
    assert recorded_s == pytest.approx(healthy.step_time.recorded + seconds, rel=0.08)  # no gap before the first step
    assert found.causes[0].recoverable * recorded_s == pytest.approx(seconds, rel=0.1)


@pytest.mark.parametrize("size_s", [5e-3, 1.0])
@pytest.mark.parametrize("name", FAULTY)
def test_clocks_that_differ_on_absolute_times(name: str, size_s: float) -> None:
    """Absolute times on clocks that differ by up to a second give the same step time, and the gain to 2 points."""
    rows = absolute(rows_of(name))
    whole, found = diagnose_rows(rows), diagnose_rows(skewed(rows, size_s))
    assert found.step_time.recorded == pytest.approx(whole.step_time.recorded, rel=0.01)
    assert place(found) == place(whole)
    assert found.causes[0].recoverable == pytest.approx(whole.causes[0].recoverable, abs=0.02)
    assert any("clocks differ" in warning for warning in found.warnings)


@pytest.mark.parametrize("on_one_clock", [False, True])
def test_collections_on_clocks_that_differ(shared: Path, on_one_clock: bool) -> None:
    """Recorded collections stay on the pauses they explain when the clocks of the workers are a second apart."""
    rows = _read(shared / "real" / "gc-rows.parquet")
    rows = absolute(rows) if on_one_clock else rows
    whole, found = diagnose_rows(rows), diagnose_rows(skewed(rows, 1.0))
    assert causes(found)[0] == causes(whole)[0] == "garbage-collection"
    share = whole.features["collection.recorded_share"]
    assert share is not None
    assert found.features["collection.recorded_share"] == pytest.approx(share, abs=0.05)
