"""Real recordings with faults grafted on: what the recording gives stays, and what happens to it is found."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from diagnose.errors import UsageError
from diagnose.model.optype import Op
from tests.recorded.score import JOBS
from tests.scoring.grafted import judge_grafted, read_inputs

REAL = Path(__file__).parents[3] / "shared" / "real"


def find(name: str) -> Path:
    """Find a recording, or skip the test."""
    path = REAL / f"{name}.parquet" if (REAL / f"{name}.parquet").exists() else JOBS / f"{name}.parquet"
    if not path.exists():
        pytest.skip(f"needs {path.name} of ../shared/real")
    return path


@pytest.mark.parametrize("name", ["healthy-d4", "healthy-p42", "noise"])
def test_a_recording_keeps_its_steps_and_times(name: str) -> None:
    """Its steps and its computes are those that were recorded."""
    inputs = read_inputs(find(name))
    rows = pq.read_table(find(name)).to_pandas()
    computes = rows[rows["optype"].astype(str).isin(["forward-compute", "backward-compute"])]
    assert inputs.work_s.sum() - inputs.work_s[inputs.programme.is_op(Op.OPTIMIZER)].sum() == pytest.approx(
        float(computes["duration"].sum()), rel=1e-5
    )
    assert (inputs.spec.steps, inputs.spec.dp) == (rows["step"].nunique(), rows["dp_rank"].max() + 1)


def test_a_schedule_that_nobody_can_lay_down_is_refused() -> None:
    """Interleaved 1F1B is recorded as that, and not read as a plain one."""
    with pytest.raises(UsageError, match=r"no row of|off by"):
        read_inputs(JOBS / "healthy-i22.parquet")


@pytest.mark.parametrize("name", ["noise", "healthy-pp4dp2-b", "healthy-p42", "healthy-p24"])
def test_documents_are_found_in_the_noise_of_a_busy_host(name: str) -> None:
    """What stages share is told from what computes have by themselves, however much that is: long documents are priced whole."""
    for i in range(2):
        row = judge_grafted(find(name), 26112404, i, causes=("sequence-imbalance",), decoys=False)
        assert not row.error
        (true,) = row.truth
        if true.recoverable >= 0.04:
            (said,) = [one for one in row.said if one.cause == "sequence-imbalance"]
            assert said.recoverable == pytest.approx(true.recoverable, abs=0.02)
        assert [one.cause for one in row.named() if one.confidence > 0.5] in (["sequence-imbalance"], [])


def test_a_replica_that_gets_slower_and_recovers_is_found() -> None:
    """A ramp over nine steps, on a busy host, and as fast as before after it: its workers are named, and its window."""
    row = judge_grafted(find("healthy-p42"), 26112604, 129, for_a_while=True)
    assert not row.error
    (true,), (said,) = row.truth, row.named()
    assert (true.kind, said.cause) == ("worker-fault/replica-ramp", "worker-fault")
    assert set(said.workers) == set(true.workers)
    assert said.recoverable == pytest.approx(true.recoverable, abs=0.02)
