"""Write a log as Megatron-LM does."""

import datetime as dt
from collections.abc import Iterable, Sequence

import numpy as np

BEGAN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def iteration_line(
    iteration: int, step_s: float, *, total: int = 10_000, at_s: float = 0.0, batch_size: int = 512
) -> str:
    """Write the line of one iteration."""
    stamp = (BEGAN + dt.timedelta(seconds=at_s)).strftime("%Y-%m-%d %H:%M:%S.%f")
    parts = [
        f" [{stamp}] iteration {iteration:8d}/{total:8d}",
        f"consumed samples: {iteration * batch_size:12d}",
        f"elapsed time per iteration (ms): {step_s * 1e3:.1f}",
        "throughput per GPU (TFLOP/s/GPU): 400.1",
        "learning rate: 3.000000E-04",
        f"global batch size: {batch_size:5d}",
        "lm loss: 2.345678E+00 | loss scale: 1.0 | grad norm: 0.123",
        "number of skipped iterations:   0 | number of nan iterations:   0 |",
    ]
    return " | ".join(parts)


def timer_lines(timer: str, seconds: Sequence[float]) -> list[str]:
    """Write one timer of all ranks."""
    return [
        "times across ranks (ms):",
        f"  {timer}:",
        *(f"     rank {n:2d}: {s * 1e3:.2f}" for n, s in enumerate(seconds)),
    ]


def detector_line(*, slowest: int, throttled: int, clock: float = 1410.0) -> str:
    """Write a report of the straggler detector."""
    parts = [
        " 0: INFO:megatron.core.utils:[2024-03-14 23:07:56]",
        f"MnRtt/Rnk: 3453.08ms/8 | MxRtt/Rnk: 4468.20ms/{slowest}",
        "MnPwr/Rnk: 601796W/8 | MxPwr/Rnk: 683801W/18",
        f"MnTmp/Rnk: 52C/0 | MxTmp/Rnk: 86C/{throttled}",
        "MnUtl/Rnk: 97%/8 | MxUtl/Rnk: 100%/6",
        f"MnClk/Rnk: {clock:g}MHz/{throttled} | MxClk/Rnk: 1980MHz/0",
        "MnDRtt/Rnk: 14.27ms/23 | MxDRtt/Rnk: 34.65ms/3 | MnEtpt/Rnk: 296.02TF/0 | MxEtpt/Rnk: 297.32TF/8",
    ]
    return " | ".join(parts)


def argument_lines(**sizes: int) -> list[str]:
    """Write the arguments that tell how ranks are laid out."""
    listed = [f"  {key} {'.' * (48 - len(key))} {value}" for key, value in sizes.items()]
    return [
        "------------------------ arguments ------------------------",
        *listed,
        "-------------------- end of arguments ---------------------",
    ]


def run(iterations: Iterable[int], step_s: Iterable[float]) -> list[str]:
    """Write the lines of a run, each at its time."""
    lines, at_s = [], 0.0
    for iteration, seconds in zip(iterations, step_s, strict=True):
        at_s += seconds
        lines.append(iteration_line(iteration, seconds, at_s=at_s))
    return lines


def noisy(levels: Sequence[tuple[int, float]], *, noise: float = 0.01, seed: int = 0) -> list[float]:
    """Draw step times: so many of each pace, with noise as a part of them."""
    rng = np.random.default_rng(seed)
    return [float(pace * (1 + rng.normal(0, noise))) for n, pace in levels for _ in range(n)]
