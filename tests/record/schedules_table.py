"""How often the causes of real torch pipelines are named, in a table: `python -m tests.record.schedules_table OUT [RUNS]`.

Each schedule of `torch.distributed.pipelining` runs as a job of four processes, or eight where a rank is slow, recorded and
profiled at once: healthy, with a slow rank, a slow last stage, a slow link. Right is a healthy job of which no cause is named, or
one whose first named cause is the fault, in its place. The slow link of these jobs is slow outside of what the profiler sees, so
that of profiles nothing is asked there. Needs torch; a run takes some 20 seconds, and what OUT has of an earlier call is kept.
"""

import subprocess
import sys
from pathlib import Path

import diagnose
from diagnose.errors import DiagnoseError
from diagnose.model.cause import Cause
from diagnose.report import words

PIPELINE = Path(__file__).resolve().parents[1] / "torch_jobs" / "pipeline.py"
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble", "zbv", "dualpipev")
#: What is done to a job, with the options that it takes; the slow rank is dp 1, stage 1, the slow link is from stage 1 to stage 2.
FAULTS = {
    "healthy": (),
    "slow rank": ("--fault", "slow-worker", "--place", "3", "--ranks", "8", "--dp", "2"),
    "slow last stage": ("--fault", "long-loss"),
    "slow link": ("--fault", "slow-link", "--place", "1"),
}
N_STEPS = 8
HOW = ("recorded", "profiled")


def is_right(schedule: str, fault: str, causes: tuple[Cause, ...]) -> bool:
    """Say whether what is said of a job is what was done to it."""
    named = [cause for cause in causes if cause.cause != "unknown"]
    if fault == "healthy" or not named:
        return fault == "healthy" and not named
    first = max(named, key=lambda cause: cause.recoverable)
    workers = {(worker.dp, worker.pp) for worker in first.where.workers}
    if fault == "slow rank":
        return first.cause == "worker-fault" and workers == {(1, 1)}
    if fault == "slow last stage":
        last = 0 if schedule in ("zbv", "dualpipev") else 3  # a V ends where it began
        return first.cause == "stage-imbalance" and first.where.stages == (last,)
    ends = {(end.dp, end.pp) for link in first.where.links for end in link.ends} | workers
    return first.cause == "network-fault" and bool(ends) and ends <= {(0, 1), (0, 2)}


def run(folder: Path, schedule: str, fault: str) -> None:
    """Run one job, recorded and profiled, unless it was."""
    if (folder / "done").exists():
        return
    command = [sys.executable, str(PIPELINE), str(folder / "recorded"), "--schedule", schedule, "--steps", str(N_STEPS)]
    done = subprocess.run(
        [*command, "--profile", str(folder / "profiled"), *FAULTS[fault]], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    (folder / "done").touch()


def judge(path: Path, schedule: str, fault: str) -> tuple[bool, str]:
    """Say whether what is said of a job is right, and what that is."""
    try:
        causes = diagnose.diagnose(path).causes
    except DiagnoseError as error:
        return False, str(error)
    said = "; ".join(f"{c.cause} {c.confidence:.2f} {c.recoverable:.2f} {words.place(c.where)}" for c in causes)
    return is_right(schedule, fault, causes), said


def main() -> None:
    """Run what is not there yet, print what is wrong, and the table."""
    out, n_runs = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 5
    folders = {
        (n, schedule, fault): out / f"{n}-{schedule}-{fault.replace(' ', '-')}"
        for n in range(n_runs)
        for schedule in SCHEDULES
        for fault in FAULTS
    }
    right: dict[tuple[str, str, str], list[bool]] = {}
    for (n, schedule, fault), folder in folders.items():
        run(folder, schedule, fault)
        for how in HOW if fault != "slow link" else HOW[:1]:
            is_so, said = judge(folder / how, schedule, fault)
            right.setdefault((how, schedule, fault), []).append(is_so)
            if not is_so:
                print(f"{n} {schedule}, {fault}, {how}: {said or 'nothing'}", flush=True)
    print("| schedule |", " | ".join(FAULTS), "|")
    print("|---" * (1 + len(FAULTS)) + "|")
    for schedule in SCHEDULES:
        cells = [[right.get((how, schedule, fault)) for how in HOW] for fault in FAULTS]
        print(
            f"| {schedule} |",
            " | ".join(", ".join(f"{sum(c)}/{len(c)}" if c else "-" for c in cell) for cell in cells),
            "|",
        )


if __name__ == "__main__":
    main()
