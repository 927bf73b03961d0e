"""Consoles that no format describes: what is read of them, and where nothing is said because the log does not say it."""

from pathlib import Path

import pytest

from diagnose.errors import TraceError
from diagnose.model.request import Request
from diagnose.pipeline import diagnose_job
from diagnose.trace.find_log import find_log
from tests.trace.logs.reading import read_content

TITLE = "a console that counts steps and tells their time"
#: Lines as several programs print them, numbers of steps, seconds of each, and what they are said to be read from.
CASES: dict[str, tuple[list[str], list[int], list[float], str]] = {
    "glog, one kind of line of two": (
        [
            f"I0627 17:29:{s} 13757 {what}.cpp:106] Iteration {n}, {told}"
            for n, s in ((240, "44.190858"), (260, "49.413265"), (280, "54.601680"), (300, "59.808818"))
            for what, told in (("solver", "loss = 51.5"), ("sgd_solver", "lr = 0.001"))
        ],
        [260, 280, 300],
        [0.2611, 0.2594, 0.2604],
        "stamps",
    ),
    "seconds since the line before, and stamps": (
        [
            f"[2017-02-12 11:{clock}] Ep. 1 : Up. {n} : Sen. 12800 : Cost 238.80 : Time {s}s : 4419.09 words/s"
            for n, clock, s in ((100, "22:46", 72.8), (200, "23:21", 34.9), (300, "23:56", 35.3), (400, "24:31", 35.1))
        ],
        [200, 300, 400],
        [0.35, 0.35, 0.35],
        "stamps",
    ),
    "stamps that pass midnight": (
        [
            f"[31/12/22 {clock}][x] - Epoch {n}: loss 4.8e-01"
            for n, clock in ((7, "23:58:30"), (8, "23:59:30"), (9, "00:00:30"))
        ],
        [8, 9],
        [60.0, 60.0],
        "stamps",
    ),
    "seconds and steps of epochs": (
        [
            f"Epoch: [{epoch}/100] step: [{n}/3] time: {30 + epoch + n / 10:.3f}s, mse: 0.587"
            for epoch in range(2)
            for n in range(3)
        ],
        [0, 1, 2, 3, 4, 5],
        [30.0, 30.1, 30.2, 31.0, 31.1, 31.2],
        "seconds",
    ),
    "a unit with a step": (
        [
            f"INFO:root:Step {n:06d}, model loss 0.99, {90 + n}.00 seconds/step, 0.09 examples/second"
            for n in (0, 10, 20)
        ],
        [0, 10, 20],
        [90.0, 100.0, 110.0],
        "seconds a step",
    ),
    "a line an epoch": (
        [
            f"Epoch {n:02d} loss 75.6 | train {2 + n / 10:.1f}s" + " | Acc 9.3% | infer 4.4s" * (n == 2)
            for n in (1, 2, 3)
        ],
        [1, 2, 3],
        [2.1, 2.2, 2.3],
        "seconds",
    ),
    "a clock since the begin": (
        [
            f"Epoch  1, {n:5d}/  156 batches; perplexity: 14303.51; 3002 tokens/s; {n * 0.5:6.0f} s elapsed"
            for n in (50, 100, 150)
        ],
        [100, 150],
        [0.5, 0.5],
        "seconds since the begin, from line to line",
    ),
    "one rank of several, and numbers with commas": (
        [
            f"iter {n:,}, rank {rank}, loss 5.2, {1.2 + rank / 10} sec/step"
            for n in (999, 1000, 1001)
            for rank in (0, 1)
        ],
        [999, 1000, 1001],
        [1.2, 1.2, 1.2],
        "seconds a step",
    ),
    "an epoch, and steps in it": (
        [
            f"Epoch  1, {n:5d}/37527; acc:   3.99; xent:   9.46; 3438 src tok/s; 3517 tgt tok/s; {n * 0.7:6.0f} s elapsed"
            for n in (50, 100, 150)
        ],
        [100, 150],
        [0.7, 0.7],
        "seconds since the begin, from line to line",
    ),
    "a mean since the begin": (
        [f"Step {n:<7} [{(190 + 5 * n) / n:.3f} sec/step, loss=1.03379, avg_loss=1.03379]" for n in range(1, 9)],
        [2, 3, 4, 5, 6, 7, 8],
        [5.0] * 7,
        "means since the begin, taken apart",
    ),
}


#: A record of several lines, as programs of reinforcement learning and others print them, where {n} is a step and {s} its seconds.
RECORDS = {
    "rsl_rl": "####\n  \x1b[1m Learning iteration {n}/1500 \x1b[0m \n\n  Computation: 97 steps/s (collection: 0.7s, ..)\n"
    "  Mean reward: 7.91\n----\n  Total timesteps: 9{n}\n  Iteration time: {s:.2f}s\n  Total time: 12.30s\n  ETA: 1500.5s\n\n",
    "RLlib": "== Status ==\nMemory usage on this node: 18.8/405.7 GB\n - PPO_env_0:\tRUNNING [pid=86], 1053 s, 20 iter\n\n"
    "Result for PPO_env_0:\n  custom_metrics: {{}}\n  episodes_this_iter: 76\n  info:\n    learner: {{}}\n    grad_time_ms: 2.449\n"
    "  iterations_since_restore: {n}\n  time_this_iter_s: {s}\n  timesteps_this_iter: 4000\n  training_iteration: {n}\n\n",
    "a table of two columns": "+------+------+\n| Iteration      | {n:6d} |\n| Iter time (ms) | {ms:6.2f} |\n+------+------+\n",
    "a table that is drawn": "╭──────╮\n│ step │ {n} │\n│ reward/mean │ 0.51 │\n│ step_time │ {s:.3f} │\n╰──────╯\n",
    "a dict below each other": "{{'epoch': 0,\n 'loss': 3.1,\n 'step': {n},\n 'step_time': {s:.4f},\n 'tokens': 8192}}\n",
    "YAML": "---\nstep: {n}\nloss: 3.1\nseconds_per_step: {s:.3f}\ngrad_norm: 1.3\n",
}


@pytest.mark.parametrize("name", RECORDS)
def test_records_of_several_lines(name: str, tmp_path: Path) -> None:
    """Numbers and times that stand below each other are of one step."""
    seconds = [2.0 + n / 4 for n in range(6)]
    text = "".join(RECORDS[name].format(n=n + 7, s=s, ms=1e3 * s) for n, s in enumerate(seconds))
    log = read_content(tmp_path, text.encode())
    assert (log.format, log.iteration.tolist()) == (TITLE, list(range(7, 13)))
    assert log.step_s == pytest.approx(seconds, rel=1e-2)


def test_records_with_a_clock(tmp_path: Path) -> None:
    """A table of Stable-Baselines3 tells what passed since the begin, in whole seconds."""
    table = "---\n| time/ |   |\n|   fps          | {fps} |\n|   iterations   | {n} |\n|   time_elapsed | {s} |\n----\n"
    text = "".join(table.format(n=n, fps=512 // 19, s=19 * n) for n in range(1, 30))
    log = read_content(tmp_path, text.encode())
    assert log.reads == "seconds since the begin, from line to line"
    assert log.step_s == pytest.approx([19.0] * len(log.step_s))


@pytest.mark.parametrize(
    "record",
    [
        "step: 100\nseconds_per_step: 1.5\n",  # no number that counts
        "step: {n}\nloss: 1.5\n",
        "| step | {n} | 1.5 |\n| step_time | {n} | 2.5 |\n",  # a table of other columns
        "name: x\nstep: {n}\neta: 12.5 s\n",
    ],
)
def test_records_that_tell_no_time_of_a_step(record: str, tmp_path: Path) -> None:
    """What counts no steps, or tells no time, is no log."""
    path = tmp_path / "job.out"
    path.write_text("".join(record.format(n=n) for n in range(10, 40)))
    assert find_log(path) is None


@pytest.mark.parametrize("name", CASES)
def test_steps_are_as_the_lines_say(name: str, tmp_path: Path) -> None:
    """The numbers and the times of a few lines, and what they are taken for."""
    lines, numbers, seconds, reads = CASES[name]
    log = read_content(tmp_path, ("\n".join(lines) + "\n").encode())
    assert (log.format, log.iteration.tolist(), log.restarts, log.of) == (TITLE, numbers, (), "")
    assert log.step_s == pytest.approx(seconds, rel=1e-2)
    assert log.reads.startswith(reads)


def test_seconds_of_nobody_knows_what_are_no_seconds_of_a_step(tmp_path: Path) -> None:
    """Where lines are 100 steps apart and seconds may be of one or of all of them, times are compared and not told."""
    log = read_content(
        tmp_path, "".join(f"(epoch: 3, iters: {n}, time: 0.078) G: 18.2\n" for n in range(100, 900, 100)).encode()
    )
    assert log.of == "one iteration, or 100: the log does not say which"


@pytest.mark.parametrize(
    "line",
    [
        "train | step: {n} | steps/sec: 0.1",  # rounded to half of it
        "Train Epoch: 17 [{n}/84843 (51%)]\tLoss: 0.699907",
        "step {n}: loss 3.1, eta 12.5 s",
        "Learning iteration {n}/10, validation time: 3.25 s",
        "2026-01-01 00:00:{n:02d} INFO request {n} took 3.25 s",
        "worker 3: batch 32, took 3.2{n} s",  # a number that does not count
    ],
)
def test_nothing_is_read_of_what_tells_no_time_of_a_step(line: str, tmp_path: Path) -> None:
    """Rounded rates, times of something else, and texts that count nothing."""
    path = tmp_path / "job.out"
    path.write_text("".join(line.format(n=n) + "\n" for n in range(10, 40)))
    assert find_log(path) is None


def test_evaluations_and_saves_are_seen_between_the_lines(tmp_path: Path) -> None:
    """What a line says between two steps is told with the step before it, and explains the long one."""
    lines, clock_s = [], 0.0
    for n in range(1, 61):
        clock_s += 20.0 + 100.0 * (n % 10 == 1 and n > 1)
        minute, second = divmod(clock_s, 60.0)
        lines.append(
            f"03-04 {int(minute) // 60:02d}:{int(minute) % 60:02d}:{second:06.3f} [train] iter {n * 10}, loss 3.1"
        )
        lines += ["# Validation # PSNR: 17.7", "Saving models and training states."] * (n % 10 == 0)
    path = tmp_path / "job.out"
    path.write_text("\n".join(lines))
    log = diagnose_job(Request(path)).log
    assert log is not None
    assert [(spikes.period, spikes.told) for spikes in log.spikes] == [(100, True)]
    assert set(log.spikes[0].matches) <= {"evaluation", "save"}


def test_an_error_says_what_would_be_read(tmp_path: Path) -> None:
    """A text of another kind is still named, and not half read."""
    path = tmp_path / "job.out"
    path.write_text("".join(f"step {n}: loss {n / 7:.3f}\n" for n in range(30)))
    with pytest.raises(TraceError, match="give the log that the trainer printed"):
        diagnose_job(Request(path))
