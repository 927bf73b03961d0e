"""A watch that is killed at any moment loses no episode and tells none under two names."""

import json
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.tickets.conftest import SECRET, Receiver, kill, start
from tests.watch.recorded import RecordedJob
from tests.watch.watching import make_trace, slow_worker


def write_jobs(folder: Path, n_windows: int) -> Path:
    """Write two jobs, one with a fault that ends and one with a fault that stays."""
    n_steps = 20 * n_windows
    for name, recovery in (("a", n_steps // 2), ("b", None)):
        job = RecordedJob(make_trace(n_steps, slow_worker(n_steps, 50, recovery)), folder / name)
        job.write(int(job.steps[-1]))
    return folder


def run(traces: Path, store: Path, receiver: Receiver):
    """Start the real program."""
    return start(
        *("watch", str(traces), "--once", "--send", "--format", "json", "--store", f"sqlite:///{store}"),
        DIAGNOSE_WEBHOOK_URL=receiver.url,
        DIAGNOSE_WEBHOOK_SECRET=SECRET,
    )


def tickets(receiver: Receiver) -> Counter:
    """Count the messages that came, by job and event, each key once."""
    return Counter((bodies[0]["jobs"][0]["location"], bodies[0]["event"]) for bodies in receiver.bodies.values())


@pytest.mark.parametrize("n_kills", [10, pytest.param(100, marks=pytest.mark.benchmark)])
def test_kills(tmp_path: Path, receiver: Receiver, n_kills: int) -> None:
    """Killed again and again, a moment after it said something, or when a message has just arrived: each arrives, under one key."""
    rng = random.Random(11)
    traces = write_jobs(tmp_path / "traces", 12 + 2 * n_kills)  # enough that few of them come when all is done
    n_killed = 0
    windows: Counter = Counter()
    printed: Counter = Counter()
    for i in range(n_kills):
        process = run(traces, tmp_path / "store.db", receiver)
        if i % 4 == 3:
            receiver.before_answer = lambda process=process: kill(process)
        lines = [process.stdout.readline() for _ in range(rng.randint(1, 3))]
        time.sleep(rng.uniform(0.0, 0.15))
        kill(process)
        lines += process.stdout.readlines()  # `communicate` does not see what `readline` read ahead
        process.communicate(timeout=120)
        n_killed += process.returncode == -9
        receiver.before_answer = lambda: None
        note(lines, windows, printed)
    process = run(traces, tmp_path / "store.db", receiver)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    note(out.splitlines(), windows, printed)
    came = tickets(receiver)
    again = sum(len(bodies) - 1 for bodies in receiver.bodies.values())
    print(
        f"\n{n_killed} of {n_kills} killed at work; {came.total()} messages, {again} came once more under the same key"
    )
    assert n_killed > n_kills // 2
    assert sorted(came.values()) == [1, 1, 1] and Counter(event for _, event in came) == {"opened": 2, "fixed": 1}
    assert set(windows.values()) == {1}, "no window is told twice"
    assert len(printed) == 3 and set(printed.values()) <= {1, 2}, (
        "a line may come again where it was printed, and not yet noted"
    )


def note(lines: list[str], windows: Counter, printed: Counter) -> None:
    """Count what was printed; the last line of a process that was killed may be cut off."""
    for line in lines:
        if not line.rstrip().endswith("}"):
            continue
        event = json.loads(line)
        if event["event"] == "window":
            windows[event["name"], event["window"]["number"]] += 1
        elif event["episode"] is not None:
            printed[event["episode"]["name"], event["event"]] += 1
