"""Event-timer logs of zero-bubble and PipeMorph: the public example, and pipelines with other faults."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from diagnose.errors import TraceError
from diagnose.model.optype import Op
from diagnose.model.request import Request
from diagnose.pipeline import diagnose_job
from diagnose.trace.input_files import list_input_files
from diagnose.trace.load import load_trace
from diagnose.trace.producers import event_timer
from tests.trace.producers.pipelines import Pipeline, write_event_timer

EXAMPLES = Path(__file__).resolve().parents[4] / "shared" / "formats" / "pipemorph"
example = pytest.mark.skipif(not EXAMPLES.exists(), reason="no examples of other formats here")
FOLDERS = ("2_3_0.02", "2_3_0.06", "2_3_0.12")


@example
@pytest.mark.parametrize("folder", FOLDERS)
def test_the_slow_link_of_the_example_is_named(folder: str) -> None:
    """The link of stages 2 and 3 is slow from iteration 9 on; no worker, and no link that waits for stage 2, is guilty."""
    causes = {cause.cause: cause for cause in diagnose_job(Request(EXAMPLES / folder)).causes}
    found = causes["network-fault"]
    assert [tuple(end.pp for end in link.ends) for link in found.where.links] == [(2, 3)]
    assert found.where.workers == ()
    assert (found.when.pattern, found.when.onset_step) == ("onset", 9)
    assert not causes.keys() & {"worker-fault", "allocator-stall", "garbage-collection", "data-loading", "unknown"}
    assert found.recoverable == max(cause.recoverable for cause in causes.values())


@example
@pytest.mark.parametrize("folder", FOLDERS)
def test_the_steps_before_the_fault_are_healthy_but_for_the_layout(folder: str) -> None:
    """Iterations 1 to 8, of which 5 to 8 are 6% slower without a fault, have no network fault and no slow worker."""
    causes = {cause.cause for cause in diagnose_job(Request(EXAMPLES / folder, steps=np.arange(1, 9))).causes}
    assert causes <= {"stage-imbalance"}


@example
def test_the_example_from_another_iteration_on(tmp_path: Path) -> None:
    """With iterations 2 to 8 left out but for two, the fault begins where it does in that file."""
    for file in (EXAMPLES / "2_3_0.06").glob("GPU*.log"):
        parts = re.split(r"(?m)^(?=\[RANK\d+\] Iteration )", file.read_text())
        kept = [part for part in parts if not re.match(r"\[RANK\d+\] Iteration [2-6]\n", part)]
        (tmp_path / file.name).write_text("".join(kept))
    (found,) = [cause for cause in diagnose_job(Request(tmp_path)).causes if cause.cause == "network-fault"]
    assert [tuple(end.pp for end in link.ends) for link in found.where.links] == [(2, 3)]
    assert found.when.onset_step == 9


@pytest.mark.parametrize("blocks_all", [False, True])
@pytest.mark.parametrize(("link", "since", "delay_s"), [(0, 9, 0.02), (1, 5, 0.06), (2, 5, 0.03), (1, 7, 0.015)])
def test_any_slow_link_is_named(tmp_path: Path, link: int, since: int, delay_s: float, blocks_all: bool) -> None:
    """Whichever link is slow from whichever iteration on is named, also where its workers block in all that they send."""
    spans = Pipeline(slow_link=link, since=since, link_delay_s=delay_s, blocks_all=blocks_all, seed=link).run()
    (cause,) = diagnose_job(Request(write_event_timer(tmp_path, spans))).causes
    assert cause.cause == "network-fault"
    assert [tuple(end.pp for end in link.ends) for link in cause.where.links] == [(link, link + 1)]
    assert cause.where.workers == ()
    assert cause.when.onset_step == since


def test_a_slow_link_of_a_longer_pipeline_is_named(tmp_path: Path) -> None:
    """Eight stages, sixteen microbatches: the same."""
    spans = Pipeline(8, 16, slow_link=4, since=8, link_delay_s=0.05, blocks_all=True).run()
    (cause,) = diagnose_job(Request(write_event_timer(tmp_path, spans))).causes
    assert (cause.cause, [tuple(end.pp for end in link.ends) for link in cause.where.links]) == (
        "network-fault",
        [(4, 5)],
    )


def test_a_slow_link_that_was_always_slow_is_named(tmp_path: Path) -> None:
    """Without any healthy iteration the other links say what is ordinary."""
    (cause,) = diagnose_job(Request(write_event_timer(tmp_path, Pipeline(slow_link=2, link_delay_s=0.04).run()))).causes
    assert (cause.cause, [tuple(end.pp for end in link.ends) for link in cause.where.links]) == (
        "network-fault",
        [(2, 3)],
    )


@pytest.mark.parametrize("seed", range(3))
def test_a_healthy_pipeline_is_healthy(tmp_path: Path, seed: int) -> None:
    """Nothing is said of even stages, also where the time between steps, which no line tells of, is long."""
    assert diagnose_job(Request(write_event_timer(tmp_path, Pipeline(seed=seed).run()))).causes == ()


def test_a_slow_worker_is_no_slow_link(tmp_path: Path) -> None:
    """Others wait for a worker that slows down; it is blamed, not the links to it."""
    spans = Pipeline(slow_worker=2, slow_since=6, slow_ratio=1.4).run()
    (cause,) = diagnose_job(Request(write_event_timer(tmp_path, spans))).causes
    assert (cause.cause, [worker.pp for worker in cause.where.workers]) == ("worker-fault", [2])


def test_clocks_of_several_hosts_are_aligned(tmp_path: Path) -> None:
    """Seconds between the clocks of the ranks change nothing in what is said."""
    ahead_s = (0.0, 3.0, -7.5, 0.4)
    spans = Pipeline(slow_link=1, since=6, link_delay_s=0.04).run()
    found = diagnose_job(Request(write_event_timer(tmp_path, spans, lambda stage: ahead_s[stage])))
    (cause,) = found.causes
    assert (cause.cause, [tuple(end.pp for end in link.ends) for link in cause.where.links]) == (
        "network-fault",
        [(1, 2)],
    )
    assert found.recording is not None
    by_rank = {offset.of: offset.offset_s for offset in found.recording.offsets}
    assert by_rank["rank 2"] - by_rank["rank 1"] == pytest.approx(-10.5, abs=0.02)


def test_all_ranks_may_share_a_log(tmp_path: Path) -> None:
    """Lines of all ranks in one file, mixed with others, give the same."""
    folder = write_event_timer(tmp_path / "job", Pipeline(n_steps=4).run())
    lines = [["something else", *file.read_text().splitlines()] for file in sorted(folder.iterdir())]
    mixed = [line for lines_at in zip(*lines, strict=False) for line in lines_at]
    (tmp_path / "all.txt").write_text("\n".join(mixed) + "\n")
    one, all_in_one = load_trace(folder), load_trace(tmp_path / "all.txt")
    assert np.array_equal(one.blocks[0].start_s, all_in_one.blocks[0].start_s)


def test_weight_gradients_and_strangers(tmp_path: Path) -> None:
    """W is read, `3W` as three in a row, each as long as the device says; what nobody knows, or is of no iteration, is counted."""
    log = """[RANK0] F @ 5 (ms) to 6 (ms)
[RANK0] Iteration 1
[RANK0] F @ 1000.5 (ms) to 1030 (ms), cudaEventElapsed = 29.1 (ms)
[RANK0] B @ 1030 (ms) to 1070 (ms), cudaEventElapsed = 39.5 (ms)
[RANK0] W @ 1070.25 (ms) to 1090 (ms), cudaEventElapsed = 19.5 (ms)
[RANK0] F @ 1091 (ms) to 1120 (ms)
[RANK0] 3W @ 1121 (ms) to 1151 (ms)
[RANK0] X @ 1151 (ms) to 1152 (ms)
"""
    (tmp_path / "log").write_text(log)
    recording = event_timer.read(list_input_files(tmp_path / "log", name="log"), name="log", report=str)
    assert recording.op.tolist() == [Op.FORWARD, Op.BACKWARD, Op.WEIGHT, Op.FORWARD, *[Op.WEIGHT] * 3]
    assert recording.duration_s.tolist() == pytest.approx([0.0291, 0.0395, 0.0195, 0.029, 0.010, 0.010, 0.010])
    assert np.diff(recording.start_s[4:]).tolist() == pytest.approx([0.010, 0.010])
    assert {dropped.what: dropped.n for dropped in recording.dropped} == {
        "X": 1,
        "operations before the first iteration": 1,
    }


def test_a_log_without_iterations_is_refused(tmp_path: Path) -> None:
    """What cannot be placed in steps is refused with what was expected."""
    (tmp_path / "log").write_text("[RANK0] F @ 5 (ms) to 6 (ms)\n")
    with pytest.raises(TraceError, match="has no operation after a line `Iteration`"):
        load_trace(tmp_path / "log")


@example
def test_unpacked_and_packed_are_the_same(tmp_path: Path) -> None:
    """A copy of the example without its other log gives the same rows."""
    for file in (EXAMPLES / "2_3_0.02").glob("GPU*.log"):
        shutil.copy(file, tmp_path)
    first, second = load_trace(EXAMPLES / "2_3_0.02"), load_trace(tmp_path)
    assert first.n_ops == second.n_ops


def test_a_restart_into_the_same_log_counts_once(tmp_path: Path) -> None:
    """Of iterations that were run again the last attempt is analysed, and the pause before it is no time of the job."""
    whole = write_event_timer(tmp_path / "whole", Pipeline().run())
    expected = diagnose_job(Request(whole))
    (tmp_path / "again").mkdir()
    for file in whole.glob("*.log"):
        parts = re.split(r"(?m)^(?=\[RANK\d+\] Iteration )", file.read_text())
        later, n = re.subn(r"@ 175|to 175", lambda found: found[0][:-1] + "6", "".join(parts[5:]))
        assert n > 0
        (tmp_path / "again" / file.name).write_text("".join(parts[:8]) + later)
    found = diagnose_job(Request(tmp_path / "again"))
    assert found.causes == expected.causes == ()
    assert found.step_time.recorded == pytest.approx(expected.step_time.recorded, rel=0.02)
    account = load_trace(tmp_path / "again").recording
    assert account is not None
    assert [(entry.what, entry.n) for entry in account.dropped] == [("operations", 3 * 4 * 16)]


def test_two_runs_in_one_folder_are_refused(tmp_path: Path) -> None:
    """Logs that have the same iteration of the same rank are of two jobs, and both are named."""
    for run in ("a", "b"):
        write_event_timer(tmp_path / run, Pipeline(n_steps=3).run())
    with pytest.raises(TraceError, match=r"b/GPU0\.log: has iteration 1 of rank 0, as .*a/GPU0\.log has"):
        load_trace(tmp_path)


@pytest.mark.parametrize(("rank", "unseen"), [(0, "data-loading"), (1, "network-fault"), (3, "allocator-stall")])
def test_what_waits_for_a_missing_rank_is_not_blamed(tmp_path: Path, rank: int, unseen: str) -> None:
    """Without the log of one rank nobody is blamed for what its neighbours wait, and what cannot be told is said."""
    folder = write_event_timer(tmp_path, Pipeline().run())
    (folder / f"GPU{rank}.log").unlink()
    found = diagnose_job(Request(folder))
    assert found.causes == ()
    assert unseen in {e.cause for e in found.not_checked if e.reason.startswith("missing pipeline ranks")}
