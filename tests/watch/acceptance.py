"""Twenty jobs that are watched by a real process while they are written: what was told of them, when, and at what cost.

    python -m tests.watch.acceptance --jobs 20 --windows 500 --seed 5000
    python -m tests.watch.acceptance --jobs 64 --windows 10 --interval 1 --idle 60

Prints a line a job and the figures of all together. Faults of each kind, with onset and recovery or none, and sound jobs. Jobs are
written as fast as they are diagnosed: nothing of what is measured here depends on how long their steps take.
"""

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow.parquet as pq

from diagnose.faults.fault import Fault
from diagnose.faults.generate import generate, list_causes
from diagnose.faults.inputs import draw_inputs
from diagnose.faults.simulate import simulate
from diagnose.faults.spec import JobSpec
from diagnose.model.request import Request
from diagnose.pipeline import diagnose_job
from diagnose.triage.store import Store
from diagnose.triage.watched import list_watched, read_watched
from diagnose.watch.job import JobState
from tests.watch.recorded import RecordedJob

WINDOW_STEPS = 20
SHAPES = ({"pp": 1, "dp": 4, "microbatches": 2}, {"pp": 2, "dp": 2, "microbatches": 4})
#: A fault that costs less is not looked for here.
LEAST_GAIN = 0.05
#: Steps of the short job that says what a fault costs while it is there.
TRIAL_STEPS = 240


@dataclasses.dataclass
class Case:
    """One job, and what is true of it: windows of the first step that its fault lengthens, and of the first one after the last."""

    name: str
    fault: str
    gain: float
    onset: int | None
    #: That of the first step from which on a window costs what is looked for, where the fault grows.
    dear: int | None
    recovery: int | None
    job: RecordedJob


def draw_case(number: int, seed: int, n_windows: int, folder: Path) -> Case:
    """Draw a job: every sixth is sound, one in five faults never ends."""
    rng = np.random.default_rng([seed, number])
    n_steps = n_windows * WINDOW_STEPS
    spec = JobSpec(
        **SHAPES[number % len(SHAPES)],
        steps=n_steps,
        contiguous=True,
        absolute_times=True,
        workers_per_host=1,
        seed=seed + number,
        job_id=f"job-{number:02}",
        noise=float(rng.choice([0.5, 1.0, 2.0])),
    )
    causes = sorted(list_causes())
    fault, gain = None, 0.0
    if number % 6 != 5:
        first = int(rng.integers(n_windows // 5, n_windows // 2))
        last = first + int(rng.integers(n_windows // 10, n_windows // 3))
        ends = rng.random() < 0.8
        fault, gain = _draw_fault(causes[(number * 7) % len(causes)], spec, rng)
        if fault is not None:
            within = int(rng.integers(WINDOW_STEPS))
            onset, recovery = first * WINDOW_STEPS + within, last * WINDOW_STEPS + within if ends else None
            fault = dataclasses.replace(fault, onset=onset, recovery=recovery)
    trace = generate(spec, [fault] if fault else []).trace
    slow, dear = (np.zeros(0, dtype=np.int64), 0) if fault is None else list_slow(spec, fault)
    ends = fault is not None and fault.recovery is not None
    return Case(
        spec.name,
        fault.full_kind if fault else "sound",
        gain,
        int(slow[0]) // WINDOW_STEPS if len(slow) else None,
        dear // WINDOW_STEPS if len(slow) else None,
        (int(slow[-1]) + 1) // WINDOW_STEPS if len(slow) and ends else None,
        RecordedJob(trace, folder / spec.name),
    )


def list_slow(spec: JobSpec, fault: Fault) -> tuple[np.ndarray, int]:
    """List the steps that a fault lengthens by a hundredth and more: what comes seldom begins later than it could.

    Beside them the first from which on the steps of a window cost as much as is looked for.
    """
    sound = draw_inputs(spec)
    without_s, with_s = (simulate(inputs).step_s for inputs in (sound, fault.apply(sound)))
    slow = np.flatnonzero(with_s > 1.01 * without_s)
    of_window = np.ones(WINDOW_STEPS)
    lost_s, all_s = (np.convolve(of_step, of_window)[WINDOW_STEPS - 1 :] for of_step in (with_s - without_s, with_s))
    dear = np.flatnonzero(lost_s >= LEAST_GAIN * all_s)
    return slow, int(slow[slow >= dear[0]][0]) if len(dear) and len(slow) else 0


def _draw_fault(cause: str, spec: JobSpec, rng: np.random.Generator) -> tuple[Fault | None, float]:
    """Draw a fault that can be told and costs enough while it is there."""
    trial = dataclasses.replace(spec, steps=TRIAL_STEPS)
    first, last = TRIAL_STEPS // 4, 3 * TRIAL_STEPS // 4
    for _ in range(60):
        fault = list_causes()[cause](trial, rng, onset=first)
        if fault is None:
            continue
        fault = dataclasses.replace(fault, onset=first, recovery=last)
        truth = generate(trial, [fault]).truth
        lost_s = (truth.step_time_s - truth.step_time_without_any_s) * TRIAL_STEPS / (last - first)
        gain = lost_s / (truth.step_time_without_any_s + lost_s)
        if gain >= LEAST_GAIN and truth.faults[0].tellable:
            return fault, gain
    return None, 0.0


@dataclasses.dataclass
class Told:
    """What was printed of one job."""

    windows: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    episodes: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    over: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    #: Number of the window after which each episode was told, and was told to be over.
    began: list[int] = dataclasses.field(default_factory=list)
    ended: dict[str, int] = dataclasses.field(default_factory=dict)
    n_grown: int = 0
    #: What each episode is called at the end of the job.
    causes: dict[str, str] = dataclasses.field(default_factory=dict)

    def take(self, event: dict[str, Any]) -> None:
        """Take a line."""
        match event["event"]:
            case "window":
                self.windows.append(event["window"])
            case "began":
                self.episodes.append(event["episode"])
                self.began.append(int(event["episode"]["name"].rpartition("-")[2]))
            case "recovered":
                self.over[event["episode"]["name"]] = event["episode"]
                self.ended[event["episode"]["name"]] = next(
                    window["number"]
                    for window in self.windows
                    if window["seen_s"] + window["took_s"] >= event["episode"]["recovered_s"]
                )
            case "grew":
                self.n_grown += 1


def watch(
    cases: list[Case], folder: Path, store: Path, per_flush: int, interval_s: float = 0.2, idle_s: float = 20.0
) -> tuple[dict[str, Told], dict[str, Any]]:
    """Write the jobs flush by flush, each once the watch has diagnosed what was there; give what it printed, and its costs."""
    n_windows = len(cases[0].job.steps) // WINDOW_STEPS
    told: dict[str, Told] = defaultdict(Told)
    memory: dict[int, int] = {}
    first_s = used_s = 0.0
    for case in cases:
        case.job.write(int(case.job.steps[per_flush * WINDOW_STEPS - 1]))
    command = [
        sys.executable,
        "-m",
        "diagnose",
        "watch",
        str(folder),
        "--format",
        "json",
        "--interval",
        str(interval_s),
    ]
    log = (folder.parent / "stderr.txt").open("w+")
    with subprocess.Popen(
        [*command, "--store", f"sqlite:///{store}"], stdout=subprocess.PIPE, stderr=log, text=True
    ) as run:
        assert run.stdout is not None
        try:
            for done in range(per_flush, n_windows + 1, per_flush):
                while any(len(told[case.name].windows) < done for case in cases):
                    line = run.stdout.readline()
                    assert line, "it has ended"
                    event = json.loads(line)
                    told[event["name"]].take(event)
                memory[done], used_s = _resident_kb(run.pid), _used_s(run.pid)
                first_s = first_s or used_s
                if done + per_flush <= n_windows:
                    for case in cases:
                        case.job.write(int(case.job.steps[(done + per_flush) * WINDOW_STEPS - 1]))
            time.sleep(3.0)
            idle = _idle_share(run.pid, idle_s)
        finally:
            run.terminate()
            for line in run.stdout:  # what was told of the last windows
                event = json.loads(line)
                told[event["name"]].take(event)
    _read_causes(store, told)
    log.seek(0)
    n_timed = len(cases) * (n_windows // per_flush - 1) * per_flush
    return told, {
        "memory_kb": memory,
        "window_s": (used_s - first_s) / max(n_timed, 1),
        "idle_share": idle,
        "complaints": log.read().splitlines(),
    }


def _read_causes(store: Path, told: dict[str, Told]) -> None:
    """Read what the episodes of each job are called by now."""
    kept = Store(f"sqlite:///{store}")
    for location in list_watched(kept):
        state = msgspec.json.decode(read_watched(kept, location) or "{}", type=JobState)
        told[state.name].causes = {episode.name: episode.cause for episode in state.episodes.list_all()}
    kept.close()


def _resident_kb(pid: int) -> int:
    """Say how much memory a process holds."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


def _used_s(pid: int) -> float:
    """Say how much CPU time a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _idle_share(pid: int, seconds: float) -> float:
    """Say which part of a core a process takes while nothing happens."""
    before = _used_s(pid)
    time.sleep(seconds)
    return (_used_s(pid) - before) / seconds


def compare_alone(case: Case, windows: list[dict[str, Any]], folder: Path) -> list[tuple[float, bool]]:
    """Diagnose the rows of some windows alone: seconds of CPU, and whether the verdict is the watch's."""
    found = []
    for window in windows:
        alone = folder / f"alone-{case.name}-{window['number']}" / case.name
        alone.mkdir(parents=True)
        for file in case.job.folder.iterdir():
            table = pq.read_table(file)
            steps = table["step"].to_numpy()
            kept = table.filter((steps >= window["first_step"]) & (steps <= window["last_step"]))
            pq.write_table(kept, alone / file.name)
        began_s = time.process_time()
        diagnosis = diagnose_job(Request(alone, location=str(case.job.folder.parent)))
        took_s = time.process_time() - began_s
        same = (diagnosis.verdict, diagnosis.what_if.slowdown) == (window["verdict"], window["slowdown"])
        found.append((took_s, same))
    return found


@dataclasses.dataclass
class Figures:
    """All jobs together."""

    n_expected: int = 0
    n_told_once: int = 0
    n_missed: int = 0
    n_twice: int = 0
    n_named: int = 0
    n_named_at_last: int = 0
    n_over: int = 0
    n_false: int = 0
    n_windows: int = 0
    delays: list[int] = dataclasses.field(default_factory=list)
    over_delays: list[int] = dataclasses.field(default_factory=list)


def judge(case: Case, told: Told, figures: Figures) -> str:
    """Compare what was told of a job with what is true; give a line."""
    figures.n_windows += len(told.windows)
    n_windows = len(told.windows)
    onset = n_windows if case.onset is None else case.onset
    recovery = n_windows if case.recovery is None else case.recovery
    during = [i for i, at in enumerate(told.began) if onset <= at <= recovery + 1]
    n_false = len(told.began) - len(during)
    figures.n_false += n_false
    said = f"{case.name} {case.fault:36} gain {case.gain:.2f}"
    if case.onset is not None:
        figures.n_expected += 1
        figures.n_missed += not during
        figures.n_twice += len(during) > 1
        figures.n_told_once += len(during) == 1
        if during:
            first = told.episodes[during[0]]
            figures.delays.append(max(told.began[during[0]] - (case.dear or onset), 0))
            cause = case.fault.partition("/")[0]
            last = [told.causes.get(told.episodes[i]["name"], "") for i in during]
            figures.n_named += told.episodes[during[0]]["cause"] == cause
            figures.n_named_at_last += cause in last
            said += f"  told after {figures.delays[-1]} as {', '.join(told.episodes[i]['cause'] for i in during)}"
            said += f", at last {', '.join(last)}"
            over = [told.ended[told.episodes[i]["name"]] for i in during if told.episodes[i]["name"] in told.ended]
            if case.recovery is not None:
                is_over = len(over) == len(during)
                figures.n_over += is_over
                figures.over_delays += [max(over) - recovery] if is_over else []
                said += f", over after {max(over) - recovery}" if is_over else ", NOT OVER"
            elif over:
                said += f", OVER TOO EARLY ({first['first_step']})"
        else:
            said += "  MISSED"
    return said + (f"  false: {n_false}" if n_false else "") + (f"  grew {told.n_grown}" if told.n_grown else "")


def main() -> None:
    """Run it and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("jobs", 20), ("windows", 500), ("seed", 5000), ("flush", 10)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--interval", type=float, default=0.2, help="seconds between two looks of the watch")
    parser.add_argument("--idle", type=float, default=20.0, help="seconds over which its CPU is measured at the end")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="watch-") as place:
        folder = Path(place, "traces")
        cases = [draw_case(number, asked.seed, asked.windows, folder) for number in range(asked.jobs)]
        told, costs = watch(cases, folder, Path(place, "store.db"), asked.flush, asked.interval, asked.idle)
        figures = Figures()
        for case in cases:
            print(judge(case, told[case.name], figures), flush=True)
        rows = []
        for case in cases:
            rows += compare_alone(case, told[case.name].windows[:: max(asked.windows // 5, 1)][:5], Path(place))
    print({key: value for key, value in dataclasses.asdict(figures).items() if not key.endswith("delays")})
    if figures.delays:
        print(f"delay: median {statistics.median(figures.delays)}, worst {max(figures.delays)} windows")
    if figures.over_delays:
        print(f"recovery: median {statistics.median(figures.over_delays)}, worst {max(figures.over_delays)} windows")
    alone_s = statistics.median(took_s for took_s, _ in rows)
    print(
        f"CPU of a window with its pages and store {costs['window_s']:.3f} s, of its rows alone {alone_s:.3f} s: "
        f"less 50 ms {(costs['window_s'] - 0.05) / alone_s:.2f}"
    )
    print(f"equal to the offline verdict: {sum(same for _, same in rows)} of {len(rows)}")
    memory = costs["memory_kb"]
    print("memory in MB by window:", {done: kb // 1024 for done, kb in memory.items() if done % 50 == 0 or done < 50})
    print(f"idle: {costs['idle_share']:.2%} of a core; complaints: {costs['complaints'][:3]}")


if __name__ == "__main__":
    main()
