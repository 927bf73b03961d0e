"""The console of torchtitan.

Source: pytorch/torchtitan, torchtitan/components/metrics.py (`MetricsProcessor.log`), train.py, components/checkpoint.py,
tools/utils.py (`GarbageCollection`, `Color`), tools/logging.py.
"""

import json

from tests.logs.runs import LoggedRun
from tests.logs.writers.moments import attempt_at, between_after, stamp, windows

_COLOURS = {"step": 31, "loss": 32, "grad_norm": 33, "memory": 36, "tps": 34, "tflops": 36, "mfu": 35}


def write_torchtitan(
    run: LoggedRun,
    *,
    rank: int | None = 0,
    coloured: bool = False,
    config: str = "json",
    old: bool = False,
    stamped: bool = True,
) -> bytes:
    """Write what one rank prints; `config` is how its settings are printed: `json`, `lines` or not at all (``""``)."""
    lines: list[str] = []
    rank_says = f"[rank{rank}]:" if rank is not None else ""

    def say(seconds: float, text: str, level: str = "INFO") -> None:
        at = f"[titan] {stamp(seconds)} - root - {level} - " if stamped else ""
        lines.extend(rank_says + line for line in f"{at}{text}".split("\n"))

    ends_s = run.ends_s()
    others = run.tp_size * run.pp_size
    n_dp = run.world_size // others
    printed = {last: (first, seconds) for first, last, seconds in windows(run, first=True)}
    for i, iteration in enumerate(run.iteration.tolist()):
        attempt = attempt_at(run, i)
        if attempt is not None:
            begins_s = ends_s[i] - run.step_s[i] - 5.0
            say(begins_s, "Starting job: pre-training")
            if config:
                text = json.dumps(_settings(run), indent=2 if config == "lines" else None)
                say(begins_s, f"Running with {'configs' if config == 'lines' else 'args'}: {text}")
            say(begins_s, _mesh(run, n_dp))
            say(begins_s, "[GC] Initial GC collection. 0.00 seconds.")
            seq_len = int(run.tokens[0] / run.batch_size[0])
            if not old:
                say(
                    begins_s,
                    f"Trainer is initialized with local batch size {int(run.batch_size[0]) // n_dp}, global batch size "
                    f"{int(run.batch_size[0])}, gradient accumulation steps 1, sequence length {seq_len}, total steps {run.total} "
                    "(warmup 200).",
                )
            if i:
                say(begins_s, f"Loading the checkpoint at step {iteration - 1}.")
            say(
                begins_s + 4,
                f"Training starts at step {iteration}." if not old else f"Training starts at step {iteration}, with",
            )
        every = run.intervals.get("collection")
        if every and iteration > 1 and iteration % every == 0:
            say(ends_s[i] - run.step_s[i], "[GC] Peforming periodical GC collection. 0.06 seconds.")
        if i in printed:
            first, seconds = printed[i]
            for event in run.between:  # a validation starts the clock and the count of tokens anew
                if event.kind == "evaluation" and first - 1 <= event.at < i:
                    first, seconds = event.at + 1, float(run.step_s[event.at + 1 : i + 1].sum())
            tps = run.tokens[first : i + 1].sum() / n_dp / (seconds * others)
            values = {
                "step": f"{iteration:2}",
                "loss": f"{12.0 / iteration**0.1:7.4f}",
                "grad_norm": f"{1.5:7.4f}",
                "memory": f"{40.25:5.2f}GiB(50.81%)",
                "tps": f"{round(tps):,}",
                "tflops": f"{tps * 5.8e-2:,.2f}",
                "mfu": f"{tps * 5.8e-3:.2f}%",
            }
            if old:
                del values["grad_norm"], values["tflops"]
            text = "  ".join(
                (f"\x1b[{_COLOURS[key]}m" if coloured else "") + f"{key}: {value}" for key, value in values.items()
            )
            say(ends_s[i], text + ("\x1b[39m" if coloured else ""))
        at_s = ends_s[i]
        for event in between_after(run, i):
            if event.kind == "save":
                say(at_s, "Saving the checkpoint (or staging if async is enabled).")
                say(
                    at_s + event.seconds,
                    f"Finished saving the checkpoint (or staging if async is enabled)in {event.seconds:.2f} seconds.",
                )
            elif event.kind == "evaluation":
                say(
                    at_s + event.seconds,
                    f"validate step: {iteration:2}  loss:  3.2100  memory: 40.25GiB(50.81%)  tps: 9,876",
                )
            at_s += event.seconds
    return "\n".join([*lines, ""]).encode()


def _settings(run: LoggedRun) -> dict[str, dict[str, object]]:
    """Give the settings that a job prints."""
    save, evaluation, profile = (run.intervals.get(key, 0) for key in ("save", "evaluation", "profile"))
    return {
        "job": {"description": "pre-training", "dump_folder": "./outputs", "print_args": True},
        "profiling": {"enable_profiling": bool(profile), "profile_freq": profile or 100},
        "metrics": {"log_freq": run.interval, "enable_tensorboard": False},
        "training": {
            "seq_len": int(run.tokens[0] / run.batch_size[0]),
            "steps": run.total,
            "gc_freq": run.intervals.get("collection", 50),
        },
        "parallelism": {
            "tensor_parallel_degree": run.tp_size,
            "pipeline_parallel_degree": run.pp_size,
            "context_parallel_degree": 1,
        },
        "checkpoint": {"enable_checkpoint": bool(save), "folder": "checkpoint", "interval": save or 500},
        "validation": {"enabled": bool(evaluation), "freq": evaluation or 10},
    }


def _mesh(run: LoggedRun, n_dp: int) -> str:
    """Say how ranks are laid out."""
    dims = {"pp": run.pp_size, "dp_shard": n_dp, "tp": run.tp_size}
    dims = {name: size for name, size in dims.items() if size > 1}
    return f"Building {len(dims)}-D device mesh with {list(dims)}, {list(dims.values())}"
