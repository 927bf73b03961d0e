"""A scheduler that switches between modes, each of which counts its iterations anew, is one job in order of time."""

from pathlib import Path

import numpy as np
import pytest

from diagnose.errors import TraceError
from diagnose.model.request import Request
from diagnose.pipeline import diagnose_job
from diagnose.trace.load import load_trace
from diagnose.trace.producers.switching import Iterations, order_iterations
from tests.trace.producers.switching_logs import MODES, Scheduler, draw_scheduler, write_logs

EXAMPLES = Path(__file__).resolve().parents[4] / "shared" / "formats" / "pipemorph-zb"


def named(folder: Path) -> tuple[set[tuple[int, ...]], str | None, int | None]:
    """Give the links that are named, each by its stages in order, with pattern and onset; nothing else may be a cause."""
    (cause,) = diagnose_job(Request(folder)).causes
    assert cause.cause == "network-fault" and cause.where.workers == ()
    links = {tuple(sorted(end.pp for end in link.ends)) for link in cause.where.links}
    return links, cause.when.pattern, cause.when.onset_step


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(2))
def test_healthy_jobs_are_healthy(mode: str, seed: int, tmp_path: Path) -> None:
    """No mode has a fault by itself."""
    assert diagnose_job(Request(write_logs(tmp_path, Scheduler(mode, seed=seed)))).causes == ()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("slow", "since"), [((0,), 9), ((0,), 6), ((0, 2), 9)])
def test_slow_links_are_named(mode: str, slow: tuple[int, ...], since: int, tmp_path: Path) -> None:
    """One and two slow links under each mode: the links, since when, and no worker."""
    folder = write_logs(tmp_path, Scheduler(mode, delays_s={since: dict.fromkeys(slow, 0.06)}))
    links, pattern, onset = named(folder)
    assert links == {(link, link + 1) for link in slow}
    # A schedule is made anew an iteration after the link got slow.
    assert pattern == "onset" and onset in {since, since + mode.endswith("ReSchedule")}


@pytest.mark.parametrize(
    ("mode", "n_stages", "n_microbatches", "slow"),
    [("ZB", 5, 6, 2), ("ZB", 3, 10, 1), ("ZB", 6, 9, 1), ("1F1B", 8, 24, 1), ("1F1B", 6, 10, 2)],
)
def test_a_link_is_named_and_no_card(mode: str, n_stages: int, n_microbatches: int, slow: int, tmp_path: Path) -> None:
    """A worker that is held up by what it sends asks late for what it receives: the link before the slow one is not slow."""
    job = Scheduler(mode, n_stages=n_stages, n_microbatches=n_microbatches, delays_s={8: {slow: 0.05}})
    assert named(write_logs(tmp_path, job))[0] == {(slow, slow + 1)}


def test_messages_that_are_waited_for_are_no_slow_ones(tmp_path: Path) -> None:
    """Most messages are there before they are asked for; where others are waited for a link is as quick as its equals."""
    job = Scheduler("ZB", n_stages=8, n_microbatches=24, message_s=0.003, forward_s=0.048, delays_s={7: {6: 0.02}})
    assert named(write_logs(tmp_path, job))[0] == {(6, 7)}


@pytest.mark.parametrize("part", range(8))
def test_no_link_is_named_that_is_not_slow(part: int, tmp_path: Path) -> None:
    """Three jobs of any shape: links that are slow, or the worker that two of them share, and that most are found."""
    for seed in range(3 * part, 3 * part + 3):
        job = draw_scheduler(seed)
        slow = {link for links in job.delays_s.values() for link in links}
        causes = diagnose_job(Request(write_logs(tmp_path / str(seed), job))).causes
        for where in (cause.where for cause in causes if cause.cause == "network-fault"):
            assert {min(end.pp for end in link.ends) for link in where.links} <= slow
            assert all({worker.pp - 1, worker.pp} <= slow for worker in where.workers)


@pytest.mark.parametrize("mode", MODES)
def test_a_link_that_varies_is_named(mode: str, tmp_path: Path) -> None:
    """A link is slow, then slower, then mended: the job switches twice, and the slow stretch is told."""
    folder = write_logs(tmp_path, Scheduler(mode, delays_s={5: {1: 0.03}, 9: {1: 0.08}, 12: {}}))
    links, pattern, onset = named(folder)
    assert (links, pattern, onset) == ({(1, 2)}, "transient", 9)


@pytest.mark.parametrize("n_stages", [3, 4])
@pytest.mark.parametrize("mode", MODES)
def test_links_that_take_turns_are_named(mode: str, n_stages: int, tmp_path: Path) -> None:
    """One link is slow, and after it another one, so that most or all links of a short pipeline lose much: both, and no card."""
    job = Scheduler(mode, n_stages=n_stages, delays_s={4: {0: 0.06}, 8: {}, 10: {1: 0.06}, 14: {}})
    links, _, onset = named(write_logs(tmp_path, job))
    assert links == {(0, 1), (1, 2)}
    assert onset in {4, 4 + mode.endswith("ReSchedule")}


@pytest.mark.parametrize("mode", ["ZB-CPU", "ZB-CPU-ReSchedule"])
def test_iterations_are_in_order_of_time(mode: str, tmp_path: Path) -> None:
    """The training log beside says which mode ran when; without it that is told, and nothing is lost."""
    delays = {6: {1: 0.05}, 11: {}}
    job = Scheduler(mode, delays_s=delays)
    lengths = [max(span[2] for spans in stages for span in spans) for stages in job.run()]
    trace = load_trace(write_logs(tmp_path / "with", job))
    found = {
        int(step): float(np.nanmax(block.end_s[:, i])) for block in trace.blocks for i, step in enumerate(block.steps)
    }
    assert [found[step] for step in range(1, 16)] == pytest.approx(lengths, abs=0.02)
    assert not any("in which order" in warning for warning in trace.warnings)
    alone = load_trace(write_logs(tmp_path / "without", job, with_log=False))
    assert sorted(np.concatenate([block.steps for block in alone.blocks]).tolist()) == list(range(1, 16))
    assert any("in which order the iterations of the two logs of a rank ran" in warning for warning in alone.warnings)


def test_on_one_clock_time_says_the_order() -> None:
    """Where the times of all iterations are of one clock, nothing else is asked."""
    first = Iterations(np.array([2.0, 3.0, 6.0]), np.array([2.9, 3.9, 6.9]))
    second = Iterations(np.array([1.0, 4.0, 5.0]), np.array([1.9, 4.9, 5.9]))
    (a, b), warning = order_iterations([first, second], None)
    assert (a.tolist(), b.tolist(), warning) == ([2, 3, 6], [1, 4, 5], None)


def test_two_runs_of_a_scheduler_are_refused(tmp_path: Path) -> None:
    """Logs of two runs in two folders are no two modes."""
    for run in ("a", "b"):
        write_logs(tmp_path / run, Scheduler("ZB-CPU"))
    with pytest.raises(TraceError, match=r"has iteration 1 of rank 0, as .* has; expected the logs of one job"):
        load_trace(tmp_path)


@pytest.mark.skipif(not EXAMPLES.exists(), reason="no examples of other formats here")
def test_the_example_over_the_cpu() -> None:
    """The link of stages 0 and 1 is slow from iteration 9 on, when the job sends over the CPU."""
    causes = {cause.cause: cause for cause in diagnose_job(Request(EXAMPLES / "ZB-CPU-0_1-0.06")).causes}
    found = causes["network-fault"]
    assert {tuple(sorted(end.pp for end in link.ends)) for link in found.where.links} == {(0, 1)}
    assert found.when.onset_step == 9 and found.where.workers == ()
    assert not causes.keys() & {"worker-fault", "allocator-stall", "data-loading", "unknown"}


@pytest.mark.skipif(not EXAMPLES.exists(), reason="no examples of other formats here")
def test_the_example_within_the_stream() -> None:
    """Where messages hold up their worker the link of stages 0 and 1 alone is named, from iteration 9 on, and no worker."""
    found = diagnose_job(Request(EXAMPLES / "ZB-0_1-0.06")).causes[0]
    assert found.cause == "network-fault" and found.where.workers == ()
    assert [{end.pp for end in link.ends} for link in found.where.links] == [{0, 1}]
    # The iterations with it take 1.8 times as long as those before.
    assert found.recoverable > 0.1
    assert found.when.onset_step == 9
