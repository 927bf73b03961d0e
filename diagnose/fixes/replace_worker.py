"""Replace slow workers: drain their hosts, restart on healthy ones, and let everybody have the pace of its peers.

The fault adds work; the replay gives the culprits the times of their peers. A restart costs time once: it pays off after so many
steps.
"""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from diagnose.errors import UsageError, name_some
from diagnose.fixes.frameworks import choose_how
from diagnose.fixes.places import (
    count_workers,
    labels_of,
    mask_hosts,
    mask_workers,
    name_workers,
    read_number,
    read_worker,
)
from diagnose.model.analysis import MANY_WORKERS, Analysis
from diagnose.model.change import Remove
from diagnose.model.place import Worker
from diagnose.model.remedy import FaultLocation, Refusal, Remedy
from diagnose.model.trace import Bools, Trace
from diagnose.numerics.figures import write_steps

NAME = "replace-worker"
TITLE = "drain slow workers and restart on healthy ones"
SETTINGS = {
    "dp": "dp rank of the worker; all of the stage where left out",
    "pp": "stage of the worker; all of the dp rank where left out",
    "host": "all slow workers of this host",
    "restart_s": "seconds that a restart takes away from training, 600 where not given",
}
#: What a restart of a large job costs besides the work since its last checkpoint: scheduling, start-up, loading. A guess to be
#: replaced by the user's own figure.
RESTART_S = 600.0
#: Breakdown that sit on single workers because their hardware is slow.
_COMPONENTS = ("worker",)
_HOW = {
    "any": "Confirm first: clocks_event_reasons in nvidia-smi -q (0x4 power cap, 0x20 and 0x40 thermal, 0x80 power brake), dcgmi "
    "diag -r 3, PCIe link width and generation, ECC and remapped rows, other processes on the host; then take the host out of the "
    "scheduler (cordon or drain it) and restart from the last checkpoint",
    "megatron": "--log-straggler names it in the log, and --gpu-sniff-test-interval burns in",
}


def propose(analysis: Analysis, place: FaultLocation, settings: Mapping[str, str]) -> Remedy | Refusal:
    """Replace the workers that are named, or those that the place names, or all that are slow."""
    trace, slow = analysis.trace, _list_slow(analysis)
    chosen = _choose(analysis, place, settings)
    if not chosen.any():
        return Refusal("no worker is slower than its peers")
    if slow.all() and slow.size > 1 and not place.where.workers and settings.keys() <= {"restart_s"}:
        return Refusal("all workers are slow at some time, and nobody is at fault alone")
    if not (chosen & slow).any():
        return Refusal(f"{name_workers(labels_of(trace, chosen))} is not slower than its peers")
    restart_s = read_number(settings, "restart_s", NAME) if "restart_s" in settings else RESTART_S
    hosts = sorted({host for dp, stage in np.argwhere(chosen) for host in _hosts(trace, place, int(dp), int(stage))})
    theirs = mask_hosts(trace, hosts)
    drained = bool(hosts) and not theirs.all()
    good = int((theirs & ~slow).sum()) if drained else 0
    workers = _worst_first(analysis, place, chosen)
    summary = (
        f"replace {_name_rank(place, chosen, trace)} at {name_workers(workers)}"
        if chosen.sum() == 1
        else f"replace {count_workers(workers, trace)}"
    )
    if hosts and not drained:
        summary += f"; first look on {', '.join(hosts[:3])}, where the whole job runs"
    elif drained:
        summary += f"; drain {name_some(hosts, 3)}"
    risks = [f"the host also runs {good} good workers, which go with it"] if good else []
    if _are_over(analysis, chosen):
        summary = f"nothing now, it is over; should it come back, {summary}"
    resolved = {"restart_s": f"{restart_s:g}"}
    if chosen.sum() == 1:
        ((dp, stage),) = labels_of(trace, chosen)
        resolved |= {"dp": str(dp), "pp": str(stage)}
    return Remedy(
        summary=summary,
        how=choose_how(_HOW, trace.job),
        changes=tuple(Remove(name, chosen) for name in _COMPONENTS),
        settings=resolved,
        assumptions=("the new worker is as fast as its peers on the stage",),
        risks=(*risks, "what was trained since the last checkpoint is trained again"),
        figures={"workers": float(chosen.sum()), "good_workers_drained": float(good), "restart_s": restart_s},
    )


def weigh(analysis: Analysis, remedy: Remedy, gain_s: float) -> Remedy:
    """Say after how many steps a restart has paid off, and whether the job runs that long."""
    restart_s = remedy.figures["restart_s"] or RESTART_S
    steps = math.ceil(restart_s / gain_s) if gain_s > 0 else None
    total = analysis.trace.job.steps_total
    left = None if total is None else max(total - int(analysis.breakdown.steps.max()) - 1, 0)
    figures = {**remedy.figures, "break_even_steps": steps, "steps_left": left}
    over = any(isinstance(change, Remove) and _are_over(analysis, change.workers) for change in remedy.changes)
    if steps is None or left is None or left >= steps or over:
        return dataclasses.replace(remedy, figures=figures)
    until = "" if left == 0 else "let it finish; "
    after = write_steps(steps, analysis.gains.replayed_s - gain_s)
    ends = "the trace goes to the job's end" if left == 0 else f"{left:,} steps are left"
    return dataclasses.replace(
        remedy,
        summary=f"{until}before the next job {remedy.summary}",
        figures=figures,
        risks=(*remedy.risks[:-1], f"{ends}, and a restart pays off after {after}"),  # nothing is trained again
    )


def _list_slow(analysis: Analysis) -> Bools:
    """Mark the workers that compute slowly, or that stall or have long optimizers as slow ones do, shape (n_dp, n_stages)."""
    blamed = [analysis.gains.blame_s[name] > 0 for name in _COMPONENTS if name in analysis.gains.blame_s]
    return np.asarray(np.any([analysis.breakdown.slow_workers, *blamed], axis=0))


def _choose(analysis: Analysis, place: FaultLocation, settings: Mapping[str, str]) -> Bools:
    """Mark the workers to be replaced: of several those that have not recovered."""
    trace, slow = analysis.trace, _list_slow(analysis)
    if "host" in settings:
        if settings["host"] not in (trace.hosts or ()):
            raise UsageError(f"--fix {NAME}: the trace has no host {settings['host']!r}")
        return mask_hosts(trace, [settings["host"]]) & slow
    if named := read_worker(settings, trace, NAME):
        return mask_workers(trace, named)
    chosen = mask_workers(trace, [(w.dp, w.pp) for w in place.where.workers]) if place.where.workers else slow.copy()
    turns = analysis.find_turns([(int(dp), int(stage)) for dp, stage in np.argwhere(chosen)])
    recovered = [worker for worker, when in turns.items() if when.is_past]
    for worker in recovered if len(recovered) < len(turns) else ():
        chosen[worker] = False
    return chosen


def _are_over(analysis: Analysis, chosen: Bools | None) -> bool:
    """Say whether all of a few workers have recovered."""
    workers = [] if chosen is None else [(int(dp), int(stage)) for dp, stage in np.argwhere(chosen)]
    return 0 < len(workers) <= MANY_WORKERS and all(analysis.date_worker(worker).is_past for worker in workers)


def _find_named(trace: Trace, place: FaultLocation, dp: int, stage: int) -> Worker | None:
    """Give a worker, by indices, as the place names it; None where it does not."""
    labels = (int(trace.dp_labels[dp]), int(trace.stage_labels[stage]))
    return next((worker for worker in place.where.workers if (worker.dp, worker.pp) == labels), None)


def _hosts(trace: Trace, place: FaultLocation, dp: int, stage: int) -> tuple[str, ...]:
    """List the hosts to be drained for a worker: the one that the place names, else those of all its members."""
    named = _find_named(trace, place, dp, stage)
    if named is not None and named.host:
        return (named.host,)
    if trace.members is not None and trace.members.hosts is not None:
        return trace.members.hosts_of(dp, stage)
    host = trace.host_of(dp, stage)
    return (host,) if host else ()


def _name_rank(place: FaultLocation, chosen: Bools, trace: Trace) -> str:
    """Say what is replaced of the one chosen worker: all of it, or the rank of one member."""
    ((dp, stage),) = np.argwhere(chosen)
    named = _find_named(trace, place, int(dp), int(stage))
    if named is None or (named.tp is None and named.cp is None):
        return "the worker"
    labels = [("rank", named.rank), ("tp", named.tp), ("cp", named.cp)]
    return " ".join(f"{label} {value}" for label, value in labels if value is not None) + " of the worker"


def _worst_first(analysis: Analysis, place: FaultLocation, chosen: Bools) -> list[tuple[int, int]]:
    """List the chosen workers in the order of the place, then by label."""
    labels = labels_of(analysis.trace, chosen)
    order = {(worker.dp, worker.pp): i for i, worker in enumerate(place.where.workers)}
    return sorted(labels, key=lambda pair: (order.get(pair, len(order)), pair))
