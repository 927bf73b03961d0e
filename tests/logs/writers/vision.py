"""Logs with the times of a batch and of its data: open_clip, timm, the ImageNet example of PyTorch, torchvision.

Source: mlfoundations/open_clip, src/open_clip_train/train.py and main.py; huggingface/pytorch-image-models, train.py;
pytorch/examples, imagenet/main.py (`ProgressMeter`).
"""

import numpy as np

from tests.logs.runs import LoggedRun
from tests.logs.writers.moments import attempt_at, between_after, stamp


def _data_s(run: LoggedRun) -> np.ndarray:
    return run.parts.get("data", np.full(len(run.step_s), 0.01))


def write_open_clip(run: LoggedRun, *, epoch: int = 1000, old: bool = False) -> bytes:
    """Write the log of open_clip: means since the line before, at batch 0, interval, 2 x interval, .. of each epoch."""
    ends_s, lines = run.ends_s(), []
    data_s = _data_s(run)
    batch = int(run.batch_size[0])
    samples = epoch * batch
    digits = len(str(samples))

    def say(seconds: float, text: str) -> None:
        lines.append(f"{stamp(seconds, '%Y-%m-%d,%H:%M:%S')} | INFO | {text}")

    begins = 0
    for i, iteration in enumerate(run.iteration.tolist()):
        number, n = divmod(iteration - 1, epoch)
        if attempt_at(run, i) is not None:
            say(ends_s[i] - run.step_s[i], "Params:")
            for key, value in (
                ("batch_size", batch // run.world_size),
                ("log_every_n_steps", run.interval),
                ("workers", run.intervals.get("loader-workers", 4)),
                ("world_size", run.world_size),
            ):
                say(ends_s[i] - run.step_s[i], f"  {key}: {value}")
            begins = i
        if n == 0 or attempt_at(run, i) is not None:
            say(ends_s[i] - run.step_s[i], f"Start epoch {number}")
            begins = i
        if n % run.interval == 0 or n + 1 == epoch:
            mean_s, own_s = run.step_s[begins : i + 1].mean(), run.step_s[i]
            data = data_s[begins : i + 1].mean()
            rate = f"{batch / own_s:#g}/s"
            rate += "" if old else f", {batch / run.world_size / own_s:#g}/s/gpu"
            loss = "Contrastive_loss: 2.6678 (2.6251) Loss: 2.6678 (2.6251)"
            say(
                ends_s[i],
                f"Train Epoch: {number} [{(n + 1) * batch:>{digits}}/{samples} ({100 * (n + 1) / epoch:.0f}%)] "
                + ("Loss: 2.6678 (2.625) " if old else "")
                + f"Data (t): {data:.3f} Batch (t): {mean_s:.3f}, {rate} LR: 0.000057 Logit Scale: 14.286 "
                + ("" if old else loss),
            )
            begins = i + 1
        for event in between_after(run, i):
            if event.kind == "evaluation":
                say(ends_s[i] + event.seconds, f"Eval Epoch: {number} [256 / 50000]\tClip Loss: 1.234567\t")
    return "\n".join([*lines, ""]).encode()


def write_imagenet(run: LoggedRun, *, epoch: int = 1000, tabs: bool = True) -> bytes:
    """Write the console of PyTorch's ImageNet example: the batch itself, and the mean since the epoch began in brackets."""
    lines, data_s = [], _data_s(run)
    begins, digits = 0, len(str(epoch))
    for i, iteration in enumerate(run.iteration.tolist()):
        number, n = divmod(iteration - 1, epoch)
        if n == 0 or attempt_at(run, i) is not None:
            begins = i
        if n % run.interval == 0:
            own = (run.step_s[i], data_s[i])
            mean = (run.step_s[begins : i + 1].mean(), data_s[begins : i + 1].mean())
            fields = [
                f"Epoch: [{number}][{n + 1:{digits}d}/{epoch}]" if tabs else f"Epoch: [{number}][{n}/{epoch}]",
                f"Time {own[0]:6.3f} ({mean[0]:6.3f})" if tabs else f"Time {own[0]:.3f} ({mean[0]:.3f})",
                f"Data {own[1]:6.3f} ({mean[1]:6.3f})" if tabs else f"Data {own[1]:.3f} ({mean[1]:.3f})",
                "Loss 6.9074e+00 (6.9080e+00)",
                "Acc@1   0.39 (  0.21)",
            ]
            lines.append("\t".join(fields))
        for event in between_after(run, i):
            if event.kind == "evaluation":
                lines += [f"Test: [{k:3d}/196]\tTime  0.213 ( 0.310)\tLoss 5.1" for k in (1, 11, 21)]
    return "\n".join([*lines, ""]).encode()


def write_timm(run: LoggedRun, *, epoch: int = 1000) -> bytes:
    """Write the console of timm's train.py."""
    lines, data_s = [], _data_s(run)
    begins = 0
    for i, iteration in enumerate(run.iteration.tolist()):
        number, n = divmod(iteration - 1, epoch)
        if n == 0 or attempt_at(run, i) is not None:
            begins = i
        if n % run.interval == 0 or n + 1 == epoch:
            own_s, mean_s = run.step_s[i], run.step_s[begins : i + 1].mean()
            rate, mean_rate = run.batch_size[i] / own_s, run.batch_size[i] / mean_s
            lines.append(
                f"Train: {number} [{n:>4d}/{epoch} ({100 * n / max(epoch - 1, 1):>3.0f}%)]  Loss: 6.951 (6.95)  "
                f"Time: {own_s:.3f}s, {rate:>7.2f}/s  ({mean_s:.3f}s, {mean_rate:>7.2f}/s)  LR: 1.000e-04  "
                f"Data: {data_s[i]:.3f} ({data_s[begins : i + 1].mean():.3f})"
            )
    return "\n".join([*lines, ""]).encode()


#: Batches that a MetricLogger takes the mean of.
WINDOW = 20


def write_torchvision(run: LoggedRun, *, epoch: int = 1000) -> bytes:
    """Write the console of torchvision's references: means of the last 20 batches of the epoch, at batch 0, interval, .."""
    lines, data_s = [], _data_s(run)
    begins, digits = 0, len(str(epoch))
    for i, iteration in enumerate(run.iteration.tolist()):
        number, n = divmod(iteration - 1, epoch)
        if n == 0 or attempt_at(run, i) is not None:
            begins = i
        if n % run.interval == 0:
            since = max(begins, i + 1 - WINDOW)
            left = int(run.step_s[begins : i + 1].mean() * (epoch - n))
            lines.append(
                f"Epoch: [{number}]  [{n:{digits}d}/{epoch}]  eta: {left // 3600}:{left // 60 % 60:02d}:{left % 60:02d}  "
                f"lr: 0.1  loss: 6.9451 (6.9802)  acc1: 0.0000 (0.1953)  time: {run.step_s[since : i + 1].mean():.4f}  "
                f"data: {data_s[since : i + 1].mean():.4f}  max mem: 5123"
            )
        for event in between_after(run, i):
            if event.kind == "evaluation":
                lines += [
                    f"Test:   [{k:3d}/391]  eta: 0:01:10  loss: 5.1 (5.1)  time: 0.2130  data: 0.1" for k in (0, 100)
                ]
    return "\n".join([*lines, ""]).encode()
