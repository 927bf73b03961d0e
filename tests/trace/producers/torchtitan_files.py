"""Write structured logs as torchtitan does."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

BEGAN_S = 1_780_000_000.0
#: Seconds that a rank takes for something in a step.
Wait = Callable[[int, int], float]


def nothing(rank: int, step: int) -> float:
    """Take no time."""
    return 0.0


def write_logs(
    folder: Path,
    *,
    n_ranks: int = 8,
    steps: range = range(1, 61),
    fetch: Wait = nothing,
    collect: Wait = nothing,
    save: Wait = nothing,
    evaluate: Wait = nothing,
    compute: Wait = nothing,
    meets: bool = True,
    waits_in_compute: bool = True,
    skew_s: float = 0.0,
    n_computes: int = 2,
    seed: int = 0,
    attempt: int = 0,
) -> Path:
    """Write one file a rank: all wait for the last for the count of tokens (if they meet), in computes (or not), and in optim."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    lines: list[list[str]] = [[] for _ in range(n_ranks)]
    now = np.full(n_ranks, BEGAN_S + attempt * 1e5)
    clock = skew_s * (np.arange(n_ranks) // 4)  # ranks of a host have one clock

    def add(rank: int, step: int, name: str, start_s: float, end_s: float) -> None:
        same = {"rank": rank, "global_rank": rank, "source": "trainer", "host_name": f"node{rank // 4}", "step": step}
        for end, at_s, value in (("start", start_s, {}), ("end", end_s, {"value": (end_s - start_s) * 1e3})):
            record = {"time_us": int((at_s + clock[rank]) * 1e6), "log_type": "event", "log_type_name": f"{name}_{end}"}
            lines[rank].append(json.dumps(same | record | value))

    ranks = range(n_ranks)
    for step in steps:
        began = now.copy()

        def span(name: str, seconds: list[float], step: int = step) -> None:
            for rank in ranks:
                add(rank, step, name, now[rank], now[rank] + seconds[rank])
                now[rank] += seconds[rank]

        def noise(seconds: float) -> float:
            return float(seconds * rng.lognormal(0, 0.02))

        span("gc_collect", [1e-5 + collect(rank, step) for rank in ranks])
        for _ in range(n_computes):
            span("fetching_batch", [noise(0.004) + fetch(rank, step) for rank in ranks])
        for rank in ranks:
            same = {"rank": rank, "step": step, "time_us": int(now[rank] * 1e6), "log_type_name": "metric_value"}
            lines[rank].append(json.dumps(same | {"event_name": "local_valid_tokens", "value": 8192.0}))
        if meets:
            now[:] = now.max() + 2e-4
        for _ in range(n_computes):
            seconds = np.array([noise(0.4) + compute(rank, step) for rank in ranks])
            ends = (now + seconds).max() if waits_in_compute else now + seconds
            span("fwd_bwd", (ends - now - np.array([noise(1e-4) for _ in ranks])).tolist())
        ends = max(now[rank] + noise(0.05) for rank in ranks)
        span("optim", [ends - now[rank] for rank in ranks])
        span("checkpoint_save", [5e-5 + save(rank, step) for rank in ranks])
        if any(evaluate(rank, step) for rank in ranks):
            span("eval", [evaluate(rank, step) for rank in ranks])
        for rank in ranks:
            add(rank, step, "step", began[rank], now[rank])
    for rank in ranks:
        (folder / f"trainer.global_rank_{rank}.20260101-0{attempt}0000-ABCDEF.jsonl").write_text(
            "\n".join(lines[rank]) + "\n"
        )
    return folder
