"""Write the rows of a trace as ndtimeline does: Chrome events a host, and raw log lines."""

import json
from pathlib import Path
from typing import Any

import pandas as pd

#: Types that ndtimeline has no timer for.
UNTIMED = ("gc", "cuda-malloc", "data-load", "checkpoint")
#: The job began here; seconds in unix time.
BEGAN_S = 1_710_332_816.25


def timed(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep what ndtimeline times, on the clock of the job: steps one after the other."""
    rows = rows[~rows.optype.astype(str).isin(UNTIMED)].assign(optype=lambda r: r.optype.astype(str))
    ends = (rows.start_ts.astype(float) + rows.duration.astype(float)).groupby(rows.step).max()
    begins = BEGAN_S + ends.cumsum() - ends
    return rows.assign(start_ts=rows.start_ts.astype(float) + rows.step.map(begins).astype(float))


def write_events(folder: Path, rows: pd.DataFrame, *, tp_size: int = 1, ranks_per_host: int = 8) -> Path:
    """Write one file of events a host; every tensor-parallel member is there, the later ones a little later."""
    folder.mkdir(parents=True, exist_ok=True)
    hosts: dict[int, list[dict[str, Any]]] = {}
    first, last = int(rows.step.min()), int(rows.step.max())
    for row in rows.itertuples():
        for tp in range(tp_size):
            rank = int(row.rank) * tp_size + tp
            hosts.setdefault(rank // ranks_per_host, []).append(
                {
                    "name": row.optype,
                    "cat": row.optype,
                    "pid": 77,
                    "tid": 5,
                    "args": {"rank": rank, "step": int(row.step), "tp": tp, "pp": int(row.stage)},
                    "ts": row.start_ts * 1e6 + tp,
                    "dur": float(row.duration) * 1e6,
                    "ph": "X",
                }
            )
    for host, events in hosts.items():
        names = [{"name": "process_sort_index", "pid": 77, "ph": "M", "args": {"sort_index": 77}}]
        path = folder / f"host{host}" / f"trace_step{first}_{last}"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps([*events, *names]))
    return folder


def raw_lines(rows: pd.DataFrame, *, stepped: bool = True) -> list[str]:
    """Write one raw line a worker and type; `stepped` says whether each operation names its step."""
    n_dp, n_stages = rows.dp_rank.nunique(), rows.stage.nunique()
    first, last = int(rows.step.min()), int(rows.step.max())
    lines = []
    workers = rows.sort_values(["step", "start_ts"], kind="stable").groupby(["rank", "dp_rank", "stage", "optype"])
    for (rank, dp, stage, optype), group in workers:
        tags = [{"_inner_global_step": int(step)} if stepped else {} for step in group.step]
        elapsed = [float(value) for value in group.duration]
        place = f"rank={rank}, dp_rank={dp}, ddp_rank=0, tp_rank=0, pp_rank={stage}, local_rank={int(rank) % 8}"
        sizes = f"dp_size={n_dp}, ddp_size=1, tp_size=1, pp_size={n_stages}, world_size={n_dp * n_stages}"
        parts = [
            f"2024-03-13 12:27:14,{int(rank):03d} - metric_name: {optype}",
            f"elapsed: {sum(elapsed)}",
            f"recent_elapsed_raw_parts: {elapsed}",
            f"recent_since_start_raw_parts: {[float(value) for value in group.start_ts]}",
            f"tags: {tags}",
            f"step_range: range({first}, {last + 1})",
            f"world_info: WorldInfo: TopoInfo({place}, ip='10.0.0.{int(rank) // 8}', {sizes})",
        ]
        lines.append(", ".join(parts) + " TrainingInfo(role_id=0, trial_id=0, run_id=0) {}")
    return lines
