"""What the product must show: on production traces, on real jobs with real faults, and on a hundred healthy jobs."""

import json
from pathlib import Path

import numpy as np
import pytest

from diagnose.faults.generate import generate
from diagnose.faults.spec import random_spec
from diagnose.model.diagnosis import Diagnosis
from tests.judge.cases import causes, culprits, diagnose_table, measured_file
from tests.whatif.test_observed import REAL

#: Shapes and seeds of healthy jobs, and how many of them may be called anything else.
N_HEALTHY, N_FALSE_ALARMS = 100, 2


def diagnosed(shared: Path, name: str) -> Diagnosis:
    """Diagnose a production trace or a real job."""
    folder, name = ("artifact", f"trace-{name}") if name in ("AR", "ST") else ("real", name)
    return measured_file(shared / folder / f"{name}.parquet").diagnosis


def test_the_slowed_worker_of_ar_is_named(shared: Path) -> None:
    """AR's worker at dp 0, stage 0, slowed down on purpose, is named first, alone, since ever, and costs half of the step."""
    found = diagnosed(shared, "AR")
    assert (found.verdict, causes(found)[0]) == ("straggling", "worker-fault")
    assert culprits(found, "worker-fault") == [(0, 0)]
    assert 0.45 < found.causes[0].recoverable < 0.55
    assert found.causes[0].when.pattern == "constant"
    assert found.causes[0].confidence > 0.9


def test_the_long_stage_of_st_is_named(shared: Path) -> None:
    """ST's last stage is named first, and no worker is."""
    found = diagnosed(shared, "ST")
    assert (found.verdict, causes(found)[0]) == ("straggling", "stage-imbalance")
    assert found.causes[0].where.stages == (3,)
    assert "worker-fault" not in causes(found)


@pytest.mark.parametrize("name", REAL)
def test_real_jobs_are_replayed_within_a_hundredth(shared: Path, name: str) -> None:
    """Replay with launch delays gives the recorded step time."""
    found = diagnosed(shared, name)
    assert found.fidelity.replay_error < 0.01
    assert found.fidelity.ok
    assert found.verdict != "inconclusive"


@pytest.mark.parametrize("name", ["healthy-pp2dp4-b", "healthy-pp4dp2-b"])
def test_healthy_real_jobs_are_healthy(shared: Path, name: str) -> None:
    """A job to which nothing was done has no cause."""
    found = diagnosed(shared, name)
    assert (found.verdict, found.causes, found.ledger) == ("healthy", (), None)


def test_the_worker_with_a_quota_is_named(shared: Path) -> None:
    """A CPU quota on dp 1, stage 2 is a slow worker there, first, and since ever."""
    found = diagnosed(shared, "worker-quota")
    assert causes(found)[0] == "worker-fault"
    assert culprits(found, "worker-fault") == [(1, 2)]
    assert found.causes[0].when.pattern == "constant"


def test_the_stage_with_the_vocabulary_is_named(shared: Path) -> None:
    """A large vocabulary makes stage 3 long: first, and no worker is blamed."""
    found = diagnosed(shared, "stage-vocab")
    assert causes(found)[0] == "stage-imbalance"
    assert found.causes[0].where.stages == (3,)
    assert "worker-fault" not in causes(found)


@pytest.mark.parametrize(
    ("name", "components"), [("data-gap", {"input-delay"}), ("checkpoint", {"start-delay", "between-steps"})]
)
def test_time_outside_operations_is_in_the_ledger(shared: Path, name: str, components: set[str]) -> None:
    """Waiting for input, or for a checkpoint, is most of the ledger where it is, and not unexplained."""
    found = diagnosed(shared, name)
    assert found.ledger is not None
    assert sum(share for key, share in found.ledger.components.items() if key in components) > 0.5
    assert found.ledger.unexplained < 0.5
    assert "worker-fault" not in causes(found)


@pytest.mark.parametrize("name", ["gc-rows", "net-nic", "data-gap", "checkpoint", "stage-vocab"])
def test_no_worker_is_blamed_for_what_it_did_not_do(shared: Path, name: str) -> None:
    """Where no worker computed slowly, none is said to."""
    assert "worker-fault" not in causes(diagnosed(shared, name))


@pytest.mark.parametrize("name", [*REAL, "noise", "replica-onset"])
def test_each_real_job_gets_its_cause_alone(shared: Path, name: str) -> None:
    """What was done to a job is said, in its place and from its step on, and nothing else; of the others nothing is said."""
    truth = json.loads((shared / "real" / "truth.json").read_text())[name]
    found = diagnosed(shared, name)
    assert causes(found) == ([] if truth["cause"] == "none" else [truth["cause"]])
    place, onset = truth["location"] or {}, truth["onset_step"]
    workers = culprits(found, truth["cause"]) if found.causes else []
    if "dp_rank" in place:
        assert {dp for dp, _ in workers} == {place["dp_rank"]}
    if "stage" in place:
        assert workers == [(place["dp_rank"], place["stage"])]
    if onset:
        assert (found.causes[0].when.pattern, found.causes[0].when.onset_step) == ("onset", onset)


@pytest.mark.parametrize("name", ["AR", "ST", *REAL])
def test_the_gain_agrees_with_what_is_known(shared: Path, name: str) -> None:
    """No cause promises more than the step is long, and the clean step is no longer than the recorded one."""
    found = diagnosed(shared, name)
    for cause in found.causes:
        assert 0.0 < cause.recoverable < 1.0
    assert 0.0 < found.step_time.clean <= found.step_time.recorded


def test_a_hundred_healthy_jobs() -> None:
    """Of a hundred generated healthy jobs of all shapes, at least 98 are called healthy."""
    alarms = {}
    for seed in range(N_HEALTHY):
        spec = random_spec(np.random.default_rng(seed))
        found = diagnose_table(generate(spec).trace)
        if found.verdict != "healthy":
            alarms[seed] = (found.verdict, causes(found), spec)
    assert len(alarms) <= N_FALSE_ALARMS, alarms
