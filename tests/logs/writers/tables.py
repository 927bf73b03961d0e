"""Tables of metrics: CSV, TSV and JSON Lines that people write, and what trackers export.

Source: the columns of W&B's history (`_step`, `_runtime`, `_timestamp`) and of its chart export; TensorBoard's CSV download
(`Wall time,Step,Value`); MLflow's file store (`timestamp value step`, a file a metric).
"""

import json

import numpy as np

from tests.logs.runs import LoggedRun
from tests.logs.writers.moments import logged, windows

UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


def write_csv(
    run: LoggedRun, *, step: str = "step", time: str = "step_time_ms", unit: str = "ms", separator: str = ","
) -> bytes:
    """Write a table with a step and the mean time of a step."""
    rows = [separator.join((step, "loss", time))]
    for first, last, seconds in windows(run):
        mean_s = seconds / (last + 1 - first)
        value = mean_s / UNITS[unit] if unit in UNITS else 1.0 / mean_s
        rows.append(separator.join((str(int(run.iteration[last])), f"{3.0:.4f}", f"{value:.6g}")))
    return "\n".join([*rows, ""]).encode()


def write_jsonl(run: LoggedRun, *, tokens: bool = True) -> bytes:
    """Write an object a line: tokens seen so far, and tokens a second."""
    rows, seen = [], 0.0
    for first, last, seconds in windows(run):
        worked = float(run.tokens[first : last + 1].sum())
        seen += worked
        row = {"step": int(run.iteration[last]), "loss": 2.5, "tokens_per_sec": worked / seconds}
        rows.append(json.dumps(row | ({"tokens_seen": seen} if tokens else {})))
    return "\n".join([*rows, ""]).encode()


def write_wandb_csv(run: LoggedRun) -> bytes:
    """Write the history of a run as W&B exports it."""
    ends_s = run.ends_s()
    rows = ['"_step","_runtime","_timestamp","train/loss"']
    rows += [f"{int(run.iteration[i])},{ends_s[i] - run.began_s:.6f},{ends_s[i]:.6f},2.5" for i in logged(run)]
    return "\n".join([*rows, ""]).encode()


def write_wandb_chart(run: LoggedRun) -> bytes:
    """Write what the button of a W&B chart exports: one metric, here tokens a second of a GPU."""
    name = "lucky-sun-7 - throughput(tps)"
    rows = [f'"Step","{name}","{name}__MIN","{name}__MAX"']
    for first, last, seconds in windows(run):
        rate = float(run.tokens[first : last + 1].sum()) / seconds / run.world_size
        rows.append(f"{int(run.iteration[last])},{rate},{rate},{rate}")
    return "\n".join([*rows, ""]).encode()


def write_tensorboard_csv(run: LoggedRun) -> bytes:
    """Write what TensorBoard lets people download of a loss."""
    ends_s = run.ends_s()
    rows = [f"{ends_s[i]},{int(run.iteration[i])},{np.float32(2.5)}" for i in logged(run)]
    return "\n".join(["Wall time,Step,Value", *rows, ""]).encode()


def write_mlflow(run: LoggedRun) -> bytes:
    """Write a metric file of MLflow's file store."""
    ends_s = run.ends_s()
    return "".join(f"{round(1000 * ends_s[i])} 2.5 {int(run.iteration[i])}\n" for i in logged(run)).encode()
