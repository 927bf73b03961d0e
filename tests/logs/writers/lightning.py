"""What Lightning shows: the bars of tqdm and of rich, and `metrics.csv` of its CSVLogger.

Source: Lightning-AI/pytorch-lightning, src/lightning/pytorch/callbacks/progress/tqdm_progress.py and rich_progress.py,
src/lightning/fabric/loggers/csv_logs.py.
"""

from tests.logs.runs import LoggedRun
from tests.logs.writers.moments import attempt_at, between_after, windows
from tests.logs.writers.tqdm_bars import Bar


def write_bar(run: LoggedRun, *, epoch: int | None = None, returns: bool = True, refresh: int = 1) -> bytes:
    """Write the bar of each epoch of so many batches (all of the run where left out), and that of each validation."""
    ends_s, text = run.ends_s(), ["Sanity Checking DataLoader 0: 100%|██████████| 2/2 [00:00<00:00, 12.31it/s]\r"]
    epoch = epoch or run.total
    bar = Bar(epoch, run.began_s)
    for i, iteration in enumerate(run.iteration.tolist()):
        number, n = divmod(iteration - 1, epoch)
        if attempt_at(run, i) is not None or n == 0:
            # reset() restarts the clock of the bar: the epoch begins as the batch before ended
            began_s = ends_s[i] - run.step_s[i] if attempt_at(run, i) is not None else ends_s[i - 1]
            bar = Bar(epoch, began_s, name=f"Epoch {number}", smoothing=0)
            text.append(bar.paint(began_s))
        bar.n = n + 1
        if bar.n % refresh == 0 or bar.n == epoch:
            text.append(bar.paint(ends_s[i]))
            text.append(bar.paint(ends_s[i], f"v_num=0, train_loss={3.0 / iteration:.3f}"))
        at_s = ends_s[i]
        for event in between_after(run, i):
            if event.kind == "evaluation":
                inner = Bar(20, at_s, name="Validation DataLoader 0")
                text += [inner.update(at_s + event.seconds * k / 20) + "\x1b[A" for k in range(1, 21)]
            at_s += event.seconds
    whole = "".join(text)
    return (whole if returns else whole.replace("\r", "\n")).encode()


def write_rich_bar(run: LoggedRun, *, epoch: int | None = None) -> bytes:
    """Write the bar that rich draws, as a file or a notebook keeps it: a line for each refresh."""
    ends_s, lines = run.ends_s(), []
    epoch = epoch or run.total
    began_s = run.began_s
    for i, iteration in enumerate(run.iteration.tolist()):
        number, n = divmod(iteration - 1, epoch)
        if attempt_at(run, i) is not None or n == 0:
            began_s = ends_s[i] - run.step_s[i]
        elapsed_s = ends_s[i] - began_s
        rate = (n + 1) / elapsed_s
        left = int((epoch - n - 1) / rate)
        lines.append(
            f"Epoch {number}/9 ━━━━━━╸━━━━━━━━━ {n + 1}/{epoch} {_hms(elapsed_s)} • {_hms(left)} {rate:.2f}it/s v_num: 0.000"
        )
    return "\n".join([*lines, ""]).encode()


def write_metrics_csv(run: LoggedRun, *, timed: bool = True) -> bytes:
    """Write `metrics.csv`; `timed` where the module logs its own `step_time`, which CSVLogger does not."""
    rows = ["epoch,step,train_loss,val_loss" + (",step_time" if timed else "")]
    for first, last, seconds in windows(run):
        iteration = int(run.iteration[last])
        mean_s = seconds / (last + 1 - first)
        # `step` is global_step, which counts from 0 at the first batch
        rows.append(f"0,{iteration - 1},{3.0 / iteration:.6f}," + (f",{mean_s:.6f}" if timed else ""))
        rows += [
            f"0,{iteration - 1},,2.5" + ("," if timed else "")
            for e in between_after(run, last)
            if e.kind == "evaluation"
        ]
    return "\n".join([*rows, ""]).encode()


def _hms(seconds: float) -> str:
    """Write seconds as rich does."""
    minutes, s = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{s:02d}"
