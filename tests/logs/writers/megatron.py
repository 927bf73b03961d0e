"""What Megatron-LM and Megatron-DeepSpeed print.

The time of a step leaves out evaluations and saves. Source: NVIDIA/Megatron-LM, megatron/training/training.py (`training_log`),
arguments.py, checkpointing.py, megatron/core/timers.py; microsoft/Megatron-DeepSpeed, megatron/training.py.
"""

import datetime as dt

from tests.logs.runs import LoggedRun
from tests.logs.writers.moments import attempt_at, between_after

_INTERVALS = {
    "log": "log_interval",
    "save": "save_interval",
    "evaluation": "eval_interval",
    "collection": "manual_gc_interval",
    "loader-workers": "num_workers",
}
_TIMERS = {
    "data": "batch-generator",
    "forward": "forward-compute",
    "backward": "backward-compute",
    "communication": "all-grads-sync",
    "optimizer": "optimizer",
}


def write_megatron(run: LoggedRun, *, seconds: bool = False, deepspeed: bool = False, stamped: bool = True) -> bytes:
    """Write what the last rank and the first print; `seconds` as BigScience's fork does, `deepspeed` with sequence lengths."""
    lines: list[str] = []
    ends_s = run.ends_s()
    begins = 0
    for i, iteration in enumerate(run.iteration.tolist()):
        attempt = attempt_at(run, i)
        if attempt is not None:
            begins = i
            lines += [
                f"{host}:811:811 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.{n}<0>"
                for n, host in enumerate(attempt.hosts)
            ]
            lines += _arguments(run)
        if iteration % run.interval == 0:
            mean_s = float(run.step_s[begins : i + 1].mean())
            lines.append(_line(run, i, mean_s, ends_s[i] if stamped else None, seconds=seconds, deepspeed=deepspeed))
            if run.parts:
                lines.append("(min, max) time across ranks (ms):")
                for part, values in run.parts.items():
                    part_ms = float(values[begins : i + 1].mean()) * 1e3
                    lines.append(f"    {(_TIMERS[part] + ' ').ljust(48, '.')}: ({part_ms - 0.5:.2f}, {part_ms:.2f})")
            begins = i + 1
        for event in between_after(run, i):
            if event.kind == "save":
                lines.append(f"saving checkpoint at iteration {iteration:7d} to /ckpt in torch_dist format")
                lines.append(f"  successfully saved checkpoint from iteration {iteration:7d} to /ckpt")
                lines += _timer("save-checkpoint", event.seconds)
            if event.kind == "evaluation":
                lines += _timer("evaluate", event.seconds)
                said = f" validation loss at iteration {iteration} | lm loss value: 2.1 | lm loss PPL: 8.2 | "
                lines += ["-" * len(said), said, "-" * len(said)]
    return "\n".join([*lines, ""]).encode()


def _timer(name: str, seconds: float) -> list[str]:
    """Write a timer of all ranks."""
    return [
        "(min, max) time across ranks (ms):",
        f"    {(name + ' ').ljust(48, '.')}: ({seconds * 1e3 - 0.1:.2f}, {seconds * 1e3:.2f})",
    ]


def _arguments(run: LoggedRun) -> list[str]:
    """Write the arguments."""
    told: dict[str, object] = {_INTERVALS[kind]: n for kind, n in run.intervals.items() if kind in _INTERVALS}
    told |= {
        "world_size": run.world_size,
        "tensor_model_parallel_size": run.tp_size,
        "pipeline_model_parallel_size": run.pp_size,
    }
    told |= {
        "seq_length": int(run.tokens[0] / run.batch_size[0]),
        "save": "/ckpt",
        "manual_gc": "collection" in run.intervals,
    }
    listed = [f"  {key} {'.' * (48 - len(key))} {value}" for key, value in sorted(told.items())]
    return [
        f"using world size: {run.world_size}, data-parallel size: 1",
        "------------------------ arguments ------------------------",
        *listed,
        "-------------------- end of arguments ---------------------",
        "time to initialize megatron (seconds): 12.345",
    ]


def _line(run: LoggedRun, i: int, mean_s: float, end_s: float | None, *, seconds: bool, deepspeed: bool) -> str:
    """Write the line of a step."""
    stamp = "" if end_s is None else dt.datetime.fromtimestamp(end_s, dt.UTC).strftime(" [%Y-%m-%d %H:%M:%S.%f]")
    time = f"(s): {mean_s:.2f}" if seconds else f"(ms): {mean_s * 1e3:.1f}"
    parts = [
        f"{stamp} iteration {run.iteration[i]:8d}/{run.total:8d}",
        f"consumed samples: {int(run.batch_size[: i + 1].sum()):12d}",
        f"elapsed time per iteration {time}",
        "learning rate: 3.000000E-04",
        f"global batch size: {run.batch_size[i]:5d}",
        "lm loss: 2.345678E+00 | loss scale: 1.0 | grad norm: 0.123",
        *([f"actual seqlen: {int(run.tokens[i] / run.batch_size[i]):5d}"] if deepspeed else []),
        "number of skipped iterations:   0 | number of nan iterations:   0",
        *([f"samples per second: {run.batch_size[i] / mean_s:.3f} | TFLOPs: 52.10"] if deepspeed else []),
    ]
    return " | ".join(parts) + " |"
