"""The console of MosaicML Composer, and its metrics as JSON Lines.

Source: mosaicml/composer, composer/loggers/console_logger.py, composer/callbacks/speed_monitor.py; the names of before 2023 are
`trainer/global_step` and `wall_clock/train`.
"""

import json

import numpy as np

from tests.logs.runs import LoggedRun
from tests.logs.writers.moments import attempt_at, between_after, logged


def write_composer(run: LoggedRun, *, window: int = 10, old: bool = False, monitor: bool = True) -> bytes:
    """Write the console: a block for each logged batch; `monitor` is the SpeedMonitor with a window of so many batches."""
    lines = ["*" * 30, "Config:", f"console_log_interval: {run.interval}ba"]
    if "save" in run.intervals:
        lines.append(f"save_interval: {run.intervals['save']}ba")
    if "evaluation" in run.intervals:
        lines.append(f"eval_interval: {run.intervals['evaluation']}ba")
    lines.append("*" * 30)
    marks = set(logged(run, first=True))
    for i, iteration in enumerate(run.iteration.tolist()):
        if attempt_at(run, i) is not None and i:
            lines.append("Loading checkpoint from file: latest-rank0.pt")
        if i in marks:
            lines.append(f"[batch={iteration}/{run.total}]:")
            lines += [f"\t Train {name}: {_value(value)}" for name, value in _metrics(run, i, window, old, monitor)]
        for event in between_after(run, i):
            if event.kind == "evaluation":
                lines += [f"[Eval batch={n}/20] Eval on eval data" for n in (1, 10)]
                lines += ["[Eval batch=20/20] Eval on eval data:", "\t Eval metrics/eval/LanguageCrossEntropy: 2.5000"]
    return "\n".join([*lines, ""]).encode()


def write_composer_jsonl(run: LoggedRun, *, window: int = 10) -> bytes:
    """Write the metrics of each logged batch as an object a line."""
    rows = [json.dumps(dict(_metrics(run, i, window, False, True))) for i in logged(run, first=True)]
    return "\n".join([*rows, ""]).encode()


def _metrics(run: LoggedRun, i: int, window: int, old: bool, monitor: bool) -> list[tuple[str, int | float]]:
    """Give what is logged after a step."""
    ends_s = run.ends_s()
    begins = max(attempt.at for attempt in run.attempts if attempt.at <= i)
    iteration = int(run.iteration[i])
    said: list[tuple[str, int | float]] = [("epoch" if old else "time/epoch", 0)]
    said.append(("trainer/global_step" if old else "time/batch", iteration - 1))
    said.append(("trainer/device_train_microbatch_size", 4))
    said.append(("loss/train/total", 12.0 / iteration**0.2))
    if monitor:
        if i - begins >= window:
            took_s = ends_s[i] - ends_s[i - window]
            tokens = float(run.tokens[i - window + 1 : i + 1].sum())
            said += [
                ("throughput/batches_per_sec", window / took_s),
                ("throughput/samples_per_sec", float(run.batch_size[i]) * window / took_s),
                ("throughput/tokens_per_sec", tokens / took_s),
                ("throughput/device/tokens_per_sec", tokens / took_s / run.world_size),
            ]
        # the clock of the run itself: it goes on from the checkpoint, and starting up is not in it
        total_s = float(run.step_s[begins : i + 1].sum() + sum(e.seconds for e in run.between if begins <= e.at < i))
        total_s += 1.3 * float(run.iteration[begins] - 1)
        evaluated_s = sum(e.seconds for e in run.between if e.kind == "evaluation" and begins <= e.at < i)
        unit = 1.0 if old else 3600.0
        name = "wall_clock" if old else "time"
        said += [
            (f"{name}/train", (total_s - evaluated_s) / unit),
            (f"{name}/val", evaluated_s / unit),
            (f"{name}/total", total_s / unit),
        ]
    return said


def _value(value: float) -> str:
    """Write a value as the console does."""
    return f"{value:.4f}" if isinstance(value, float | np.floating) else str(value)
