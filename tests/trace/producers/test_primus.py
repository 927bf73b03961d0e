"""Primus dumps: the public example, and pipelines with other faults."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from diagnose.errors import TraceError
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.optype import Op
from diagnose.model.request import Request
from diagnose.pipeline import diagnose_job
from diagnose.trace.input_files import list_input_files
from diagnose.trace.load import load_trace
from diagnose.trace.producers import primus
from tests.trace.producers.pipelines import Pipeline, write_primus

EXAMPLE = Path(__file__).resolve().parents[4] / "shared" / "formats" / "primus" / "pp8"
example = pytest.mark.skipif(not EXAMPLE.exists(), reason="no examples of other formats here")


def stalls(diagnosis: Diagnosis) -> dict[tuple[int, int, int], tuple[float, float]]:
    """Give the collections that are told: (stage, step, microbatch) -> seconds of the pause, and seconds the step lost."""
    (cause,) = [cause for cause in diagnosis.causes if cause.cause == "garbage-collection"]
    found = [item.values for item in cause.evidence if item.id.endswith("/stall")]
    return {
        (int(v["stage"] or 0), int(v["step"] or 0), int(v["microbatch"] or 0)): (
            v["pause_s"] or 0.0,
            v["step_lost_s"] or 0.0,
        )
        for v in found
    }


@example
def test_the_example_has_collections_and_what_each_cost_its_step() -> None:
    """Four forward-only pauses are collections; two cost their step what the bubble did not hide, two nothing.

    The job they cost 0.7%: who asks for no less than the usual 2% is not told.
    """
    assert "garbage-collection" not in [cause.cause for cause in diagnose_job(Request(EXAMPLE)).causes]
    found = stalls(diagnose_job(Request(EXAMPLE, min_speedup=1.005)))
    assert {place: round(1e3 * lost) for place, (_, lost) in found.items() if lost > 0.010}.keys() == {
        (2, 16, 8),
        (3, 18, 10),
    }
    assert found.keys() == {(0, 11, 7), (1, 15, 4), (2, 16, 8), (3, 18, 10)}
    assert found[2, 16, 8][1] == pytest.approx(0.212, abs=0.010)
    assert found[3, 18, 10][1] == pytest.approx(0.241, abs=0.010)
    assert all(0.240 <= pause <= 0.290 for pause, _ in found.values())


@example
def test_the_example_without_its_pauses_has_no_collection(tmp_path: Path) -> None:
    """Taking the pauses out of the files takes the cause out of the diagnosis: it comes from nothing else."""
    shutil.copytree(EXAMPLE, tmp_path / "job")
    for stage, step, microbatch in ((0, 11, 7), (1, 15, 4), (2, 16, 8), (3, 18, 10)):
        file = tmp_path / "job" / f"pp_rank_{stage}.json"
        file.chmod(0o644)
        content = json.loads(file.read_text())
        iteration = content[str(step)]
        iteration["fwd_start"][microbatch] = iteration["fwd_end"][microbatch] - 59.0
        file.write_text(json.dumps(content))
    assert "garbage-collection" not in {cause.cause for cause in diagnose_job(Request(tmp_path / "job")).causes}


@example
def test_names_of_files_are_not_what_tells(tmp_path: Path) -> None:
    """Renamed files are read as well; without a number in their names they are taken in order, with a warning."""
    for n, file in enumerate(sorted(EXAMPLE.glob("pp_rank_*.json"))):
        shutil.copy(file, tmp_path / f"{'abcdefgh'[n]}.dat")
    trace = load_trace(tmp_path)
    assert any("do not number the pipeline ranks" in warning for warning in trace.warnings)
    assert trace.n_stages == 8


def test_a_healthy_pipeline_is_healthy(tmp_path: Path) -> None:
    """Nothing is said of even stages with ordinary variation."""
    assert diagnose_job(Request(write_primus(tmp_path, Pipeline(n_steps=16).run()))).verdict == "healthy"


@pytest.mark.parametrize(("link", "since"), [(0, 5), (1, 9), (2, 1)])
def test_a_slow_link_is_found_in_its_place(tmp_path: Path, link: int, since: int) -> None:
    """A link that is slow from some iteration on is named, no worker, and the iteration."""
    spans = Pipeline(slow_link=link, since=since, link_delay_s=0.04, seed=link).run()
    (cause,) = diagnose_job(Request(write_primus(tmp_path, spans))).causes
    assert cause.cause == "network-fault"
    assert [tuple(end.pp for end in link.ends) for link in cause.where.links] == [(link, link + 1)]
    assert cause.where.workers == ()
    assert cause.when.onset_step == (None if since == 1 else since)


def test_pauses_elsewhere_are_found(tmp_path: Path) -> None:
    """Collections of other ranks in other iterations are told with what each cost, to the millisecond of a run without them."""
    pauses = {(4, 3, 2): 0.25, (9, 1, 5): 0.28, (13, 0, 6): 0.30}
    with_pauses, without = Pipeline(pauses=pauses, n_steps=16).run(), Pipeline(n_steps=16).run()
    found = stalls(diagnose_job(Request(write_primus(tmp_path, with_pauses))))
    assert {(stage, step, microbatch) for step, stage, microbatch in pauses} == found.keys()
    for (_, step, _), (_, lost_s) in found.items():
        took = [
            max(s.end_s for s in spans if s.step == step) - min(s.start_s for s in spans if s.step == step)
            for spans in (with_pauses, without)
        ]
        assert lost_s == pytest.approx(took[0] - took[1], abs=0.010)


def test_each_rank_may_have_a_clock_of_its_own(tmp_path: Path) -> None:
    """Offsets that differ from rank to rank and from iteration to iteration change no verdict and no step time."""
    spans = Pipeline(slow_worker=1, slow_since=8, slow_ratio=1.5).run()
    shift = np.random.default_rng(3).normal(0.0, 2.0, (4, 15))
    one = diagnose_job(Request(write_primus(tmp_path / "one", spans)))
    own = diagnose_job(Request(write_primus(tmp_path / "own", spans, lambda stage, step: float(shift[stage, step]))))
    assert [(c.cause, c.where, c.when) for c in own.causes] == [(c.cause, c.where, c.when) for c in one.causes]
    assert own.step_time.recorded == pytest.approx(one.step_time.recorded, rel=0.01)
    assert own.to_dict()["recording"]["offsets"]
    assert any("clocks of 4 aligned by schedule" in warning for warning in own.warnings)


@pytest.mark.parametrize("last_of_all", [False, True])
def test_weight_gradients(tmp_path: Path, last_of_all: bool) -> None:
    """W are rows of their own, wherever they stand, and nothing is left out or cannot be told for them."""
    write_primus(tmp_path, Pipeline(n_steps=3).run())
    for file in tmp_path.glob("pp_rank_*.json"):
        content = json.loads(file.read_text())
        for iteration in content.values():
            at = [max(iteration["bwd_end"])] * 8 if last_of_all else iteration["bwd_end"]
            iteration["wgrad_start"] = [t + 0.1 + 2.0 * n * last_of_all for n, t in enumerate(at)]
            iteration["wgrad_end"] = [t + 1.0 for t in iteration["wgrad_start"]]
            iteration["fwd_minibatch"] = iteration["bwd_minibatch"] = iteration["wgrad_minibatch"] = list(range(8))
        file.write_text(json.dumps(content))
    recording = primus.read(list_input_files(tmp_path, name="job"), name="job", report=str)
    assert recording.dropped == ()
    assert int((recording.op == Op.WEIGHT).sum()) == 3 * 4 * 8
    assert np.bincount(recording.microbatch[recording.op == Op.WEIGHT]).tolist() == [3 * 4] * 8
    assert not any("weight" in entry.what for entry in recording.unobserved)


def test_lists_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """Starts without ends are told with file, iteration and what was expected."""
    write_primus(tmp_path, Pipeline(n_steps=3).run())
    file = tmp_path / "pp_rank_2.json"
    content = json.loads(file.read_text())
    content["2"]["bwd_end"].pop()
    file.write_text(json.dumps(content))
    with pytest.raises(
        TraceError, match=r"job/pp_rank_2\.json: iteration 2: bwd: has 8 starts and 7 ends; expected as many"
    ):
        load_trace(tmp_path, name="job")


@pytest.mark.parametrize(
    ("stage", "unseen"), [(0, set()), (2, {"network-fault"}), (5, {"allocator-stall", "network-fault"})]
)
def test_what_waits_for_a_missing_rank_is_not_blamed(tmp_path: Path, stage: int, unseen: set[str]) -> None:
    """The time that a missing stage computes is no slow link between its neighbours."""
    folder = write_primus(tmp_path, Pipeline(n_stages=6, n_microbatches=12).run())
    (folder / f"pp_rank_{stage}.json").unlink()
    found = diagnose_job(Request(folder))
    assert found.causes == ()
    assert {e.cause for e in found.not_checked if e.reason.startswith("missing pipeline ranks")} == unseen


def test_a_slow_worker_is_named_beside_a_missing_rank(tmp_path: Path) -> None:
    """A worker that slows down is found though another's file is not there."""
    folder = write_primus(tmp_path, Pipeline(n_stages=6, slow_worker=4, slow_since=8, slow_ratio=1.5).run())
    (folder / "pp_rank_2.json").unlink()
    (cause,) = diagnose_job(Request(folder)).causes
    assert (cause.cause, [worker.pp for worker in cause.where.workers]) == ("worker-fault", [4])


def test_two_dumps_in_one_folder_are_refused(tmp_path: Path) -> None:
    """Files of one name in two folders are of two jobs, and both are named."""
    for run in ("a", "b"):
        write_primus(tmp_path / run, Pipeline(n_steps=3).run())
    with pytest.raises(TraceError, match=r"b/pp_rank_0\.json: has the name of .*a/pp_rank_0\.json"):
        load_trace(tmp_path)
