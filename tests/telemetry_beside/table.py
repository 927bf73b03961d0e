"""How good telemetry beside a trace is: `python -m tests.telemetry_beside.table SEED N [PURPOSE]`.

Three questions, N jobs each: is the sub-cause right, is a false suspect weakened, is a sound finding left alone? The misses are
listed, by kind. A job counts for the sub-cause where the trace blames the fault, on one of its machines at least: where it does
not, nobody asks those counters.
"""

import dataclasses
import sys
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from diagnose.faults.stage_imbalance import StageImbalance
from diagnose.judge.rules import load_rules
from diagnose.model.cause import Cause, When
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.place import Where
from diagnose.model.request import Request
from diagnose.pipeline import diagnose_job
from diagnose.telemetry_beside import Times, add_telemetry
from tests.telemetry_beside.cases import PURPOSES, Case, Purpose, draw_case


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """What became of one case.

    Attributes
    ----------
    purpose, cause : str
    sub_cause : str
        The true one; empty for none.
    said : str
        The one that was said; empty for none.
    state : str
        See `judge_case`.
    before, after : float
        Confidence of the finding, or of the false suspect.
    is_stock : bool
        As of the case.
    """

    i: int
    purpose: Purpose
    cause: str
    sub_cause: str
    said: str
    state: str
    before: float
    after: float
    is_stock: bool

    @property
    def counts(self) -> bool:
        """False where the trace found nothing to ask counters about."""
        return self.state not in ("not found", "elsewhere")

    @property
    def is_miss(self) -> bool:
        """True where telemetry said what it should not, or did not say what it should."""
        good = {"veto": ("weakened",), "sound": ("right", "vague", "wrong", "nothing"), "sub-cause": ("right",)}
        return self.counts and self.state not in good[self.purpose]


def judge_case(seed: int, i: int, purpose: Purpose) -> Row:
    """Diagnose one case with its telemetry.

    The state is `not found` or `elsewhere` where the trace does not blame the fault, or not its machines. Where it does it is
    `right`, `wrong` (another sub-cause), `vague` (a clock is held back, not by what), `wrong machine`, `nothing` or `weakened`.
    For a false suspect it is `weakened`, `accused` (a sub-cause was said of it) or `left`.
    """
    case = draw_case(seed, i, purpose)
    if purpose == "veto":
        return _judge_false(case, seed, i)
    found = diagnose_job(Request(case.write_trace(), name=f"case-{i}", telemetry=case.beside.telemetry))
    cause = next((one for one in found.causes if one.cause == case.faults[0].cause), None)
    state, said = ("not found", "") if cause is None else _judge_true(case, found, cause)
    before, after = (0.0, 0.0) if cause is None else (_confidence_before(cause), cause.confidence)
    return Row(i, purpose, case.faults[0].cause, case.sub_cause or "", said, state, before, after, case.is_stock)


def _judge_true(case: Case, found: Diagnosis, cause: Cause) -> tuple[str, str]:
    """Say what became of a fault that telemetry shows."""
    (reason, *_) = case.beside.reasons
    blamed = _hosts_of(found, cause)
    said = getattr(cause.subcause, "kind", "")
    if blamed and not blamed & set(reason.hosts):
        return "elsewhere", said
    if is_weakened(cause):
        return "weakened", said
    if not said:
        return "nothing", said
    if not set(cause.subcause.hosts) & set(reason.hosts):
        return "wrong machine", said
    if said == "clock-low" and case.sub_cause in ("thermal", "power-cap", "clock-locked"):
        return "vague", said
    return ("right" if said == case.sub_cause else "wrong"), said


def _judge_false(case: Case, seed: int, i: int) -> Row:
    """Blame a sound worker of the long stage, as a person might, and ask its counters."""
    rng = np.random.default_rng([seed, i, 7])
    found = diagnose_job(Request(case.write_trace(), name=f"case-{i}"))
    stages = [
        stage
        for fault in case.faults
        if isinstance(fault, StageImbalance)
        for stage in fault.stages(case.job.truth.spec)
    ]
    stage = int(rng.choice(stages)) if stages else int(rng.integers(len(found.stage_labels)))
    worker = found.worker(int(rng.integers(len(found.dp_labels))), stage)
    before = round(float(rng.uniform(0.6, 0.95)), 4)
    cause = Cause(
        cause="worker-fault",
        title="slow worker",
        severity="high",
        confidence=before,
        share=1.0,
        recoverable=0.1,
        recoverable_after_others=None,
        where=Where(workers=(worker,)),
        when=When(pattern="constant"),
        evidence=(),
        fixes=(),
        fingerprint="0" * 16,
    )
    # Whoever takes the stage for the worker sees the stage's own slowness.
    ratio = max((fault.forward_slowdown for fault in case.faults if isinstance(fault, StageImbalance)), default=1.3)
    features = {**found.features, "worker.ratio": ratio}
    blamed = dataclasses.replace(found, verdict="straggling", causes=(cause,), features=features)
    joined = add_telemetry(blamed, case.beside.telemetry, times_of(case), severities=load_rules().severities)
    (after,) = joined.causes
    said = getattr(after.subcause, "kind", "")
    state = "accused" if said else "weakened" if is_weakened(after) else "left"
    return Row(i, "veto", "worker-fault", "", said, state, before, after.confidence, case.is_stock)


def times_of(case: Case) -> Times:
    """Say when each step began, by the trace."""
    table = case.trace
    step, start_s = table["step"].to_numpy(), table["start_ts"].to_numpy()
    steps = np.unique(step)
    first_s = np.full(len(steps), np.inf)
    np.minimum.at(first_s, np.searchsorted(steps, step), start_s)
    return Times.of(steps, first_s, case.job.truth.step_time_s)


def _hosts_of(found: Diagnosis, cause: Cause) -> set[str]:
    """List the machines that a cause names."""
    where = cause.where
    named = {*where.hosts, *(worker.host or "" for worker in where.workers)}
    dp = {int(label): n for n, label in enumerate(found.dp_labels)}
    stage = {int(label): n for n, label in enumerate(found.stage_labels)}
    for link in where.links:
        named |= {found.worker(dp[end.dp], stage[end.pp]).host or "" for end in link.ends}
    return named - {""}


def is_weakened(cause: Cause) -> bool:
    """Say whether counters spoke against a cause."""
    return any(item.source == "telemetry" and item.id.endswith("/no-sign") for item in cause.evidence)


def _confidence_before(cause: Cause) -> float:
    """Give the confidence before counters spoke against it."""
    for item in cause.evidence:
        if item.source == "telemetry" and item.id.endswith("/no-sign"):
            return float(item.values["confidence_before"] or 0.0)
    return cause.confidence


def judge_many(seed: int, n: int, purposes: Sequence[Purpose] = PURPOSES) -> Iterator[Row]:
    """Judge so many cases of each purpose."""
    for purpose in purposes:
        for i in range(n):
            yield judge_case(seed, i, purpose)


def share(rows: Sequence[Row], *states: str) -> float:
    """Say which part of the cases that count is in one of some states."""
    counted = [row for row in rows if row.counts]
    return sum(row.state in states for row in counted) / max(len(counted), 1)


def render(rows: Sequence[Row]) -> str:
    """Write the table."""
    lines = []
    for purpose in PURPOSES:
        mine = [row for row in rows if row.purpose == purpose]
        if not mine:
            continue
        lines += [f"{purpose}: {len(mine)} cases, {sum(row.counts for row in mine)} count", _states(mine)]
        if purpose == "veto":
            lines += [f"  weakened {share(mine, 'weakened'):.1%}"]
        elif purpose == "sound":
            lines += [f"  not weakened {1 - share(mine, 'weakened'):.1%}"]
        else:
            lines += [f"  right {share(mine, 'right'):.1%}"]
            for name in sorted({row.sub_cause for row in mine}):
                own = [row for row in mine if row.sub_cause == name]
                lines.append(
                    f"    {name:16} {share(own, 'right'):6.1%} of {sum(row.counts for row in own):3}  {_states(own).strip()}"
                )
            for is_stock in (False, True):
                own = [row for row in mine if row.is_stock == is_stock]
                lines.append(f"    {'stock exporter' if is_stock else 'all metrics':16} {share(own, 'right'):6.1%}")
        lines += [
            f"  miss {row.i}: {row.cause} {row.sub_cause or '-'} said {row.said or '-'}: {row.state}"
            f" ({row.before:.2f} -> {row.after:.2f}){' stock' if row.is_stock else ''}"
            for row in mine
            if row.is_miss
        ]
    return "\n".join(lines) + "\n"


def _states(rows: Sequence[Row]) -> str:
    """Count the states."""
    return "  " + ", ".join(f"{state} {n}" for state, n in Counter(row.state for row in rows).most_common())


def main(seed: int, n: int, purposes: Sequence[Purpose]) -> None:
    """Print each miss when it comes, and the table at the end."""
    rows = []
    for row in judge_many(seed, n, purposes):
        rows.append(row)
        if row.is_miss:
            print(row, file=sys.stderr, flush=True)
    print(render(rows), end="")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), [name for name in PURPOSES if name in sys.argv[3:]] or PURPOSES)
