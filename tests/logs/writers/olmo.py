"""What OLMo prints.

Source: allenai/OLMo, olmo/train.py (`log_metrics_to_console`, `SpeedMonitor`); allenai/OLMo-core, console_logger.py.
"""

from tests.logs.runs import LoggedRun
from tests.logs.writers.moments import logged, stamp


def write_olmo(run: LoggedRun, *, core: bool = False) -> bytes:
    """Write what rank 0 prints; `core` as OLMo-core does."""
    lines: list[str] = []
    ends_s = run.ends_s()
    total = run.tokens.cumsum()
    for i in logged(run):
        at = stamp(ends_s[i], "%Y-%m-%d %H:%M:%S.{ms:03d}")
        where = "olmo_core.train.callbacks.console_logger:128" if core else "olmo.train:908"
        epoch = ",epoch=1,eta=1:02:03" if core else ",epoch=0"
        lines.append(f"{at}\tnode-1:0\t{where}\tINFO\t[step={run.iteration[i]}/{run.total}{epoch}]")
        lines.append(f"    train/{'CE loss' if core else 'CrossEntropyLoss'}=2.345")
        lines.append(f"    throughput/{'total tokens' if core else 'total_tokens'}={int(total[i]):,d}")
        if core and "data" in run.parts:
            lines.append(f"    throughput/device/data loading (s)={run.parts['data'][i]:.4f}")
        lines.append(f"    throughput/device/{'BPS' if core else 'batches_per_second'}={1 / run.step_s[i]:.4f}")
    return "\n".join([*lines, ""]).encode()
