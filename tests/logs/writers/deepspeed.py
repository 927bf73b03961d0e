"""What DeepSpeed logs.

Source: deepspeedai/DeepSpeed, deepspeed/utils/timer.py (`ThroughputTimer`, `SynchronizedWallClockTimer`),
deepspeed/runtime/engine.py (`_report_progress`, `step`), deepspeed/runtime/config.py, deepspeed/launcher/launch.py.
"""

from tests.logs.runs import LoggedRun
from tests.logs.writers.moments import attempt_at, between_after, stamp

_TIMERS = {"forward": "fwd", "backward": "bwd_inner", "communication": "bwd_allreduce", "optimizer": "step"}


def write_deepspeed(run: LoggedRun, *, breakdown: bool = False, old: bool = False) -> bytes:
    """Write what rank 0 logs; with `breakdown` the parts of every step, `old` as versions of 2021 do."""
    lines: list[str] = []
    ends_s = run.ends_s()
    batch = int(run.batch_size[0])
    elapsed_s, counted = 0.0, 0

    def say_of_0(seconds: float, text: str) -> None:
        say(seconds, "logging.py:96:log_dist", f"[Rank 0] {text}")

    def say(seconds: float, where: str, text: str, level: str = "INFO") -> None:
        lines.append(f"[{stamp(seconds)}] [{level}] [{where}] {text}")

    for i, (iteration, step_s) in enumerate(zip(run.iteration.tolist(), run.step_s.tolist(), strict=True)):
        attempt = attempt_at(run, i)
        if attempt is not None:
            began_s = ends_s[i] - step_s
            hosts = {host: list(range(8)) for host in attempt.hosts or ("localhost",)}
            say(began_s - 9, "launch.py:145:main", f"WORLD INFO DICT: {hosts}")
            say(began_s - 5, "config.py:1000:print", f"  steps_per_print .............. {run.interval}")
            say(began_s - 5, "config.py:1000:print", f"  train_batch_size ............. {batch}")
            elapsed_s, counted = 0.0, 0
        elapsed_s, counted = elapsed_s + step_s, counted + 1
        if iteration % run.interval == 0:
            say_of_0(
                ends_s[i],
                f"step={iteration}, skipped=0, lr=[5e-05], mom=[[0.9, 0.999]]",
            )
            mean, now = batch * counted / elapsed_s, batch / step_s
            told = f"0/{iteration}, SamplesPerSec={mean}"
            if not old:
                told = f"epoch=0/micro_step={iteration}/global_step={iteration}"
                told += f", RunningAvgSamplesPerSec={mean}, CurrSamplesPerSec={now}"
            say(ends_s[i], "timer.py:199:stop", f"{told}, MemAllocated=59.65GB, MaxMemAllocated=63.31GB")
        if breakdown:
            parts = {_TIMERS[part]: values[i] for part, values in run.parts.items() if part in _TIMERS}
            parts["bwd"] = parts["bwd_inner"] + parts["bwd_allreduce"]
            names = ("fwd", "bwd", "bwd_inner", "bwd_allreduce", "step")
            for end in ("_microstep", ""):
                told = " | ".join(f"{name}{end}: {parts[name] * 1e3:.2f}" for name in names)
                say_of_0(ends_s[i], f"time (ms) | {told}")
        for event in between_after(run, i):
            if event.kind == "save":
                say_of_0(
                    ends_s[i],
                    f"[Torch] Checkpoint global_step{iteration} is about to be saved!",
                )
                saved = f"[Torch] Checkpoint global_step{iteration} is ready now!"
                say(ends_s[i] + event.seconds, "torch_checkpoint_engine.py:33:commit", saved)
            if event.kind == "cache-flush":
                said = (
                    "1 pytorch allocator cache flushes since last step. this happens when there is high memory pressure"
                )
                say(ends_s[i], "stage3.py:2236:step", said, "WARNING")
    return "\n".join([*lines, ""]).encode()
