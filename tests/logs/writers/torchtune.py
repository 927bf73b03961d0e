"""What torchtune writes: the lines of its loggers for disk and console, and its bar.

Source: pytorch/torchtune, torchtune/training/metric_logging.py (`DiskLogger`, `StdoutLogger`),
recipes/full_finetune_distributed.py.
"""

from tests.logs.runs import LoggedRun
from tests.logs.writers.moments import attempt_at, logged
from tests.logs.writers.tqdm_bars import Bar


def write_disk_log(run: LoggedRun) -> bytes:
    """Write the file of the DiskLogger: the rate of each logged step alone, and no time."""
    lines = []
    for i in logged(run):
        rate = run.tokens[i] / run.world_size / run.step_s[i]
        iteration = int(run.iteration[i])
        lines.append(
            f"Step {iteration} | loss:{2.0 / iteration**0.1} lr:2e-05 tokens_per_second_per_gpu:{float(rate)} "
            "peak_memory_active:14.2 "
        )
    return "\n".join([*lines, ""]).encode()


def write_torchtune(run: LoggedRun, *, epoch: int | None = None, old: bool = False) -> bytes:
    """Write the console: a bar an epoch, named after epoch, step and loss."""
    ends_s = run.ends_s()
    epoch = epoch or run.total
    text = ["INFO:torchtune.utils._logging:Running FullFinetuneRecipeDistributed with resolved config:\n"]
    bar = Bar(epoch, run.began_s)
    for i, iteration in enumerate(run.iteration.tolist()):
        number, n = divmod(iteration - 1, epoch)
        if attempt_at(run, i) is not None or n == 0:
            bar = Bar(epoch, ends_s[i] - run.step_s[i])
            bar.n = bar.painted_n = n
            text.append(("\n" if i else "") + bar.paint(bar.began_s))
        text.append(bar.update(ends_s[i]))
        bar.name = f"{number + 1}|{iteration}|Loss: {2.0 / iteration**0.1}"
        text.append(bar.paint(ends_s[i]) if not old else "")
    return "".join([*text, "\n"]).encode()
