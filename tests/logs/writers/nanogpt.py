"""Write a run as nanoGPT prints it.

Enters: a `LoggedRun`. Leaves: the bytes of its console.

Every `log_interval` iterations a line with the time of that iteration alone; nothing of restarts, dates or batches.
Source: karpathy/nanoGPT, train.py.
"""

from tests.logs.runs import LoggedRun


def write(run: LoggedRun) -> bytes:
    """Write the console."""
    starts = {attempt.at for attempt in run.attempts}
    evaluations = {event.at: event for event in run.between if event.kind == "evaluation"}
    tokens = int(run.tokens[0])
    lines = []
    for n, (iteration, step_s) in enumerate(zip(run.iteration.tolist(), run.step_s.tolist(), strict=True)):
        if n in starts:
            lines += [f"tokens per iteration will be: {tokens:,}", "number of parameters: 123.59M"]
        if iteration % run.interval == 0:
            lines.append(f"iter {iteration}: loss 2.{iteration % 9999:04d}, time {step_s * 1e3:.2f}ms, mfu 30.12%")
        if n in evaluations:
            lines += [f"step {iteration}: train loss 2.1000, val loss 2.2000", "saving checkpoint to out"]
    return "\n".join([*lines, ""]).encode()
