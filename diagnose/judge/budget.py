"""Say where the GPU-seconds of a step go: the clean step by what workers do in it, and the lost time by cause.

Enters: an `Analysis`, the rules, causes and their ledger. Leaves: a `Budget`, whose parts sum to 1.

What planned work, input and saves take is no part of the clean step, as replays without them show it; where no cause claims their
share of the ledger, it stands under their own names and not as lost.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from diagnose.judge.rest import describe_more_work
from diagnose.judge.rule import Rule
from diagnose.judge.unknown import UNKNOWN
from diagnose.judge.worth import measure_planned_collections
from diagnose.model.analysis import Analysis
from diagnose.model.budget import UNEXPLAINED, Budget, CleanStep
from diagnose.model.cause import Cause
from diagnose.model.diagnosis_document import Ledger
from diagnose.model.members import GROUP_PREFIXES
from diagnose.model.optype import COMPUTE, P2P, Op

#: The part that a component is where no cause claims it.
OWN = {"input-delay": "input", "evaluation": "evaluation", "launch-delay": "host", "between-steps": "between_steps"}
#: Components in which saves show.
SAVING = ("between-steps", "end-delay", "start-delay")


def share_out(analysis: Analysis, rules: Sequence[Rule], causes: Sequence[Cause], ledger: Ledger | None) -> Budget:
    """Share the recorded time out among what workers do and what is lost."""
    gains, clean = analysis.gains, analysis.split_clean()
    lost = max(1.0 - gains.clean_s / gains.recorded_s, 0.0)
    by_cause = {name: max(share, 0.0) for name, share in ledger.causes.items()} if ledger else {}
    total = max(sum(by_cause.values()), 1.0)
    by_cause = {name: lost * share / total for name, share in by_cause.items()}
    parts = _parts_of(analysis, clean, 1.0 - lost)
    left = max(lost - sum(by_cause.values()), 0.0)
    claimed = _claimed(rules, causes)
    own = _own_parts(analysis, claimed, lost)
    scale = min(1.0, left / max(sum(own.values()), 1e-12))
    for name, share in own.items():
        parts[name] += share * scale
        left -= share * scale
    lacking = _list_lacking(analysis, parts, claimed)
    _add_host_time(analysis, parts)
    # The clean step counts collections of all workers at a planned place as late launches.
    _move(parts, "host", "evaluation", min(measure_planned_collections(analysis), parts["host"]))
    host = analysis.trace.recording.host if analysis.trace.recording else None
    return Budget(
        **{name: None if name in lacking else parts[name] for name in Budget.PARTS},
        lost={**by_cause, UNEXPLAINED: max(left, 0.0)},
        not_measured=lacking,
        host_wait=host.wait if host else None,
    )


def _parts_of(analysis: Analysis, clean: CleanStep, share: float) -> dict[str, float]:
    """Give the parts of the clean step, which is so much of the recorded one."""
    each = share / clean.step_s if clean.step_s > 0 else 0.0
    parts = dict.fromkeys(Budget.PARTS, 0.0) | {
        "compute": clean.compute_s * each if each else share,
        "bubble": clean.bubble_s * each,
        "exposed_p2p": clean.transfers_s * each,
        "exposed_collectives": clean.collectives_s * each,
        "other_work": clean.others_s * each,
        "host": clean.host_s * each,
        "between_steps": clean.between_s * each,
    }
    _take_members(analysis, parts)
    return parts


def _take_members(analysis: Analysis, parts: dict[str, float]) -> None:
    """Move what the collectives of a worker's members take, in place: inside computes, and beside them."""
    busy = {work.name: float(work.busy_s.mean()) for work in analysis.others}
    beside_s = sum(seconds for name, seconds in busy.items() if name.startswith(GROUP_PREFIXES))
    if beside_s > 0:
        _move(parts, "other_work", "exposed_members", parts["other_work"] * beside_s / sum(busy.values()))
    members, compute_s = analysis.trace.members, analysis.breakdown.compute_s
    if members is None or members.wait_s is None:
        return
    wait_s = members.wait_s[np.isin(members.steps, analysis.breakdown.steps)]
    n_workers = compute_s.shape[3] * compute_s.shape[4] * analysis.trace.n_stages
    computed_s = float(np.nansum(compute_s)) / n_workers
    if np.isfinite(wait_s).any() and computed_s > 0:
        inside_s = max(float(np.nanmean(wait_s)) - beside_s, 0.0)
        _move(parts, "compute", "exposed_members", parts["compute"] * min(inside_s / computed_s, 1.0))


def _move(parts: dict[str, float], source: str, to: str, share: float) -> None:
    """Move a share from one part to another, in place."""
    parts[source] -= share
    parts[to] += share


def _claimed(rules: Sequence[Rule], causes: Sequence[Cause]) -> set[str]:
    """Name the components that a cause that was found stands for."""
    found = {cause.cause for cause in causes}
    claimed = {name for rule in rules if rule.id in found for name in rule.components}
    for cause in causes:
        if cause.cause == UNKNOWN:
            claimed |= {key.removeprefix("gain.") for item in cause.evidence for key in item.values}
    return claimed


def _own_parts(analysis: Analysis, claimed: set[str], lost: float) -> dict[str, float]:
    """Give what goes to planned work, input, saves and late launches and no cause claims: parts of the recorded time."""
    gains = analysis.gains

    def cost(name: str) -> float:
        share = lost * gains.share[name] if name in gains.share else gains.recoverable(name)
        return 0.0 if name in claimed else max(share, 0.0)

    found = dict.fromkeys(Budget.PARTS, 0.0)
    saves = min(_measure_rows(analysis, Op.CHECKPOINT), sum(cost(name) for name in SAVING))
    found["checkpoint"] = saves
    for name, part in OWN.items():
        found[part] += cost(name)
    if describe_more_work(analysis):
        found["compute"] += cost("step")
    found["between_steps"] -= min(saves, found["between_steps"])
    if _has_host_time(analysis):  # rows of planned work are what the host does between kernels
        _move(found, "evaluation", "host", found["evaluation"] * (1.0 - _share_of_evaluation(analysis)))
    return {name: share for name, share in found.items() if share > 0}


def _share_of_evaluation(analysis: Analysis) -> float:
    """Say which part of the rows of planned work is evaluation."""
    seconds = [_measure_rows(analysis, op) for op in (Op.EVAL, Op.LOG)]
    return seconds[0] / sum(seconds) if sum(seconds) > 0 else 1.0


def _measure_rows(analysis: Analysis, op: Op) -> float:
    """Say which part of the recorded time rows of a type take on the worker that has most of them."""
    rows, trace, steps = analysis.trace.evidence, analysis.trace, analysis.breakdown.steps
    at = np.flatnonzero((rows.op == op) & np.isin(rows.step, steps))
    worker = rows.dp[at] * trace.n_stages + rows.stage[at]
    seconds = np.bincount(worker, rows.end_s[at] - rows.start_s[at])
    return float(seconds.max(initial=0.0)) / (analysis.gains.recorded_s * len(steps))


def _has_host_time(analysis: Analysis) -> bool:
    """Say whether the recording says how long GPUs waited for their hosts."""
    return analysis.trace.recording is not None and analysis.trace.recording.host is not None


def _add_host_time(analysis: Analysis, parts: dict[str, float]) -> None:
    """Move, in place, what the host was late with inside of computes, where kernels tell."""
    host = analysis.trace.recording.host if analysis.trace.recording else None
    if host is not None:
        _move(parts, "compute", "host", min(max(host.share - parts["host"], 0.0), parts["compute"]))


def _list_lacking(analysis: Analysis, parts: Mapping[str, float], claimed: set[str]) -> dict[str, str]:
    """Say which parts were not measured, which are 0 then, why, and where their time is instead.

    What a cause claims was measured.
    """
    trace, job = analysis.trace, analysis.trace.job
    there = {op for block in trace.blocks for op in np.unique(block.nodes.op).tolist()}
    rows = set(np.unique(trace.evidence.op).tolist())
    entries = trace.recording.unobserved if trace.recording else ()
    said = {word: f"{entry.what}: {entry.reason}" for entry in entries for word in entry.lacks}
    found: dict[str, str] = {}
    if trace.n_stages > 1 and not there & set(P2P):
        found["exposed_p2p"] = "no rows of transfers between stages; waits for them count as host"
    if job.has_dp and not there - {*COMPUTE, *P2P}:
        found["exposed_collectives"] = "no rows of collectives; they count as host, or between steps"
    if job.tp_size * job.cp_size > 1 and not parts["exposed_members"]:
        found["exposed_members"] = "no rows of tp and cp collectives; they count as computing"
    if "input-delay" not in claimed and Op.DATA_LOAD not in rows and job.reads_input is not False:
        found["input"] = said.get("input", "no data-load rows; short waits count as host")
    if claimed.isdisjoint(SAVING) and Op.CHECKPOINT not in rows and job.saves is not False:
        found["checkpoint"] = "no checkpoint rows"
    if trace.step_origin_s is None or "between-steps" in said:
        reason = "times count from the start of each step"
        found["between_steps"] = said.get("between-steps", reason)
    return {name: reason for name, reason in found.items() if not parts[name]}
