"""Reports on slow ranks: scores of NVIDIA's resiliency extension, and the summary of TraceML.

Source: NVIDIA/nvidia-resiliency-ext, ptl_resiliency/straggler_det_callback.py (`_format_gpu_scores`) and straggler/reporting.py;
NVIDIA-NeMo/Megatron-Bridge pull request 2114; traceopt-ai/traceml, tests/step_time/golden/step_time_public_schema.json.
"""

import json

import numpy as np
from numpy.typing import NDArray

#: Ranks printed at each end.
PRINTED = 3


def write_nvrx(scores: NDArray[np.float64]) -> bytes:
    """Write one report: how fast each rank is beside the fastest; `scores` has shape (n_ranks,)."""
    return f"\nGPU relative performance:\n{_list(scores)}Straggler report processing time: 0.042 sec.\n".encode()


def _list(scores: NDArray[np.float64]) -> str:
    order = np.argsort(scores)
    rank = [f"  Rank={r} Node=node{r // 8:03d} Score={scores[r]:.2f}\n" for r in range(len(scores))]
    if len(scores) <= 2 * PRINTED:
        return "".join(rank[r] for r in order)
    worst, best = order[:PRINTED], order[::-1][:PRINTED]
    return (
        f" Worst performing {PRINTED}/{len(scores)} ranks:\n{''.join(rank[r] for r in worst)}"
        f" Best performing {PRINTED}/{len(scores)} ranks:\n{''.join(rank[r] for r in best)}"
    )


def write_traceml(forward_s: NDArray[np.float64], input_s: NDArray[np.float64], *, steps: int = 300) -> bytes:
    """Write `final_summary.json` of a data-parallel job: backwards end together, so who is slow waits least in them.

    Parameters
    ----------
    forward_s, input_s : ndarray of float64, shape (n_ranks,)
        Seconds of a step in forwards, and of waiting for input.
    """
    busy_s = forward_s + input_s
    backward_s = busy_s.max() - busy_s + 2 * np.median(forward_s)
    rows, world = {}, len(forward_s)
    for rank in range(world):
        identity = {
            "global_rank": rank,
            "local_rank": rank % 8,
            "hostname": f"node{rank // 8:03d}",
            "world_size": world,
        }
        metrics = {
            "input_wait_ms": 1e3 * input_s[rank],
            "h2d_ms": None,
            "forward_ms": 1e3 * forward_s[rank],
            "backward_ms": 1e3 * backward_s[rank],
            "optimizer_ms": 4.0,
            "step_time_ms": 1e3 * (forward_s[rank] + backward_s[rank]) + 4.0,
        }
        rows[str(rank)] = {"identity": identity, "metrics": metrics}
    average = {
        "input_wait_ms": 1e3 * float(input_s.mean()),
        "step_time_ms": 1e3 * float((forward_s + backward_s).mean()) + 4.0,
    }
    section = {
        "metadata": {"mode": "ddp", "training_latest_step": steps},
        "diagnosis": {"kind": "BALANCED"},
        "global": {"average": average, "window": {"start_step": steps - 99, "end_step": steps, "steps_analyzed": 100}},
        "groups": {"by": "global_rank", "rows": rows},
        "units": {"time": "ms"},
    }
    return json.dumps({"schema_version": "1.6", "step_time": section}, indent=2).encode()
