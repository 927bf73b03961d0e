"""Say of each suspect whether the tests confirm or clear it, and put that into the diagnosis.

Enters: a diagnosis, or an answer of `diagnose machines`, as JSON, its plan, and the results. Leaves: the same with the key
`confirmed`, more evidence, and a confidence that follows. A suspect is compared with the controls; where these are too few, or fail
alike, nobody can tell.
"""

import statistics
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from diagnose.confirm.catalogue import TESTS, Test, decisive_of, tests_of
from diagnose.confirm.pairs import Sent, find_slow_links, judge_pairs, read_pairs
from diagnose.errors import TraceError
from diagnose.model.cause import EvidenceItem
from diagnose.model.confirmation import (
    Confirmation,
    HostConfirmation,
    HostResult,
    Measured,
    Outcome,
    Suspect,
    Tested,
    TestedCause,
    TestPlan,
)
from diagnose.model.plain import to_plain
from diagnose.numerics.robust import MAD_TO_SIGMA

#: Controls without which no figure is compared: of two nobody knows which is odd.
_FEWEST = 2
#: A suspect must lie further from the median than this many times the controls' own middle deviation, as normal noise has it.
_DEVIATIONS: Final = 4.0
#: How much likelier a result is with the fault than without: a test that is slow on a sound machine only by chance (1 in 50, of 4
#: in 5 on a faulty one), and one that finds nothing though the fault is there, as with faults that come and go, or show in training
#: alone (1 in 4). Assumed, and to be counted: no study of such tests is known.
_ODDS: Final[dict[Outcome, float]] = {"confirmed": 40.0, "cleared": 0.25, "unclear": 1.0}
#: Nobody is surer than this.
_SUREST: Final = 0.99
_MOST_NAMED = 5
#: In one sentence of evidence.
_MOST_SENTENCES = 3


def apply_results(entry: dict[str, Any], plan: TestPlan, results: Sequence[HostResult]) -> dict[str, Any]:
    """Put what the tests say into a diagnosis, or into an answer of `diagnose machines`.

    Parameters
    ----------
    entry : dict
        Either as JSON; it is not changed.
    plan : TestPlan
        Made of the same document.
    results : sequence of HostResult

    Returns
    -------
    dict
        The same with `confirmed` and `confidence` of each cause that a tested machine is blamed for, or of each machine; of a cause
        with `evidence` besides.

    Raises
    ------
    TraceError
        The results are of another job, or of other machines.
    """
    _check(plan, results)
    by_host = {result.host: result for result in results}
    blamed = {one.host for one in plan.suspects}
    controls = [result for result in results if result.role == "control" and result.host not in blamed]
    pairs = read_pairs(results)
    links = find_slow_links(pairs)

    def judge(blamed: dict[str, Any], cause: str, host: str | None = None) -> dict[str, Any]:
        hosts = tuple(
            _judge_host(suspect, by_host.get(suspect.host), controls, cause, pairs)
            for suspect in plan.suspects
            if cause in suspect.causes and host in (None, suspect.host)
        )
        return _confirm(blamed, cause, hosts, links) if hosts else blamed

    if "machines" in entry:
        return {**entry, "machines": [judge(one, one["kind"], one["host"]) for one in entry["machines"]]}
    return {**entry, "causes": [judge(one, one["cause"]) for one in entry["causes"]]}


def list_tested(entry: dict[str, Any]) -> list[TestedCause]:
    """List the causes of a diagnosis, or the machines of an answer about them, that tests said something of."""
    blamed = [(one["kind"], one) for one in entry["machines"]] if "machines" in entry else []
    blamed += [(one["cause"], one) for one in entry.get("causes", ())]
    return [
        TestedCause(cause, one["confidence"], msgspec.convert(one["confirmed"], Confirmation))
        for cause, one in blamed
        if "confirmed" in one
    ]


def _check(plan: TestPlan, results: Sequence[HostResult]) -> None:
    """Refuse results that are of something else."""
    if odd := next((result for result in results if result.job != plan.job), None):
        raise TraceError(
            f"the result of {odd.host} is of job {odd.job!r}, and the diagnosis of {plan.job!r}; give the diagnosis that the tests "
            "were made for"
        )
    if not {result.host for result in results} & {one.host for one in plan.suspects}:
        have = ", ".join(result.host for result in results[:_MOST_NAMED])
        want = ", ".join(one.host for one in plan.suspects[:_MOST_NAMED])
        raise TraceError(f"the results are of {have}, and the diagnosis blames {want}; give --suspect as for the tests")


def _judge_host(
    suspect: Suspect, result: HostResult | None, controls: Sequence[HostResult], cause: str, pairs: Sequence[Sent]
) -> HostConfirmation:
    """Say what the tests say of one suspect."""
    if result is None:
        return HostConfirmation(host=suspect.host, outcome="unclear", tested_s=None, tests=())
    tests = [
        *judge_pairs(suspect.host, pairs),
        *_judge_counts(result, controls),
        *(_judge_figure(one, controls) for one in result.measured if one.test != "network"),
    ]
    relevant = tests_of(cause)
    named = {str(card) for card in suspect.cards}
    tests = sorted(
        (_note_card(one, named) for one in tests if one.test in relevant),
        key=lambda one: (_ORDER.index(one.outcome), one.of not in named),
    )
    return HostConfirmation(
        host=suspect.host,
        outcome=_sum_up(tests, cause),
        tested_s=result.ended_s,
        tests=tuple(tests),
        skipped=result.skipped,
    )


def _note_card(one: Tested, named: set[str]) -> Tested:
    """Say of a bad card that it is not the one that the trace names, where it names one."""
    if one.outcome != "confirmed" or not named or not one.of.isdigit() or one.of in named:
        return one
    cards = ", ".join(sorted(named))
    text = f"{one.text}; by the order of ranks the trace names card {cards}"
    return msgspec.structs.replace(one, text=text)


_ORDER: Final[tuple[Outcome, ...]] = ("confirmed", "unclear", "cleared")


def _sum_up(tests: Sequence[Tested], cause: str) -> Outcome:
    """Say one word of all tests: one that is slow confirms; all must be sound, and the decisive ones there, to clear."""
    if any(one.outcome == "confirmed" for one in tests):
        return "confirmed"
    sound = {one.test for one in tests if one.outcome == "cleared"}
    return "cleared" if decisive_of(cause) <= sound and all(one.outcome == "cleared" for one in tests) else "unclear"


def _judge_figure(one: Measured, controls: Sequence[HostResult]) -> Tested:
    """Compare one figure with those of the controls: of all their cards where it is of a card."""
    test = TESTS[one.test]
    peers = [each for control in controls for each in control.measured if each.test == one.test]
    if one.value is None:
        return _judge_passed(one, peers, len(controls))
    # A control's own median stands for it, so that one with many cards does not outvote the others.
    values = [
        statistics.median(figures)
        for control in controls
        if (figures := [each.value for each in control.measured if each.test == one.test and each.value is not None])
    ]
    if len(values) < _FEWEST:
        what = f"{_name(one)} {_write(one.value, test)}; {len(values)} of the controls measured it, and {_FEWEST} are needed"
        return _tested(one, "unclear", None, len(values), what)
    middle = statistics.median(values)
    return _tested(one, _weigh(one.value, values, test), middle, len(values), _describe(one, middle, len(values), test))


def _judge_passed(one: Measured, peers: Sequence[Measured], n_controls: int) -> Tested:
    """Judge a test that has no figure: one that fails on half of the controls as well is no test."""
    n_failed = sum(each.passed is False for each in peers)
    says = one.note or ("passed" if one.passed else "failed")
    text = f"{_name(one)}: {says}"
    if one.passed:
        return _tested(one, "cleared", None, n_controls, text)
    if n_controls and 2 * n_failed >= n_controls:
        return _tested(one, "unclear", None, n_controls, f"{text}; so it is on {n_failed} of {n_controls} controls")
    return _tested(one, "confirmed", None, n_controls, f"{text}; not so on the controls" if n_controls else text)


def _weigh(value: float, controls: Sequence[float], test: Test) -> Outcome:
    """Say whether a figure is worse than the controls' by more than they differ, as good, or neither."""
    middle = statistics.median(controls)
    spread = MAD_TO_SIGMA * statistics.median(abs(each - middle) for each in controls)
    worse = value - middle if test.better == "less" else middle - value
    scale = 1.0 if test.unit in ("part", "a core") else middle
    if scale <= 0:
        return "unclear"
    # Of a few, a middle deviation may be small by chance: a quarter of the controls may be as bad, which may be faulty themselves.
    n_as_bad = sum(each >= value if test.better == "less" else each <= value for each in controls)
    if worse >= test.slow * scale and worse > _DEVIATIONS * spread and 4 * n_as_bad <= len(controls):
        return "confirmed"
    return "cleared" if worse <= test.sound * scale else "unclear"


def _judge_counts(result: HostResult, controls: Sequence[HostResult]) -> list[Tested]:
    """Notice cards that are on every control and do not answer here."""
    own, counts = _count_cards(result), [_count_cards(control) for control in controls]
    if len(counts) < _FEWEST or own >= min(counts) or any(one.test in ("gemm", "gpu") for one in result.skipped):
        return []
    text = f"{own} cards can be burnt, and {min(counts)} or more on each of {len(counts)} controls"
    return [_tested(Measured("gemm", "cards", passed=False), "confirmed", None, len(counts), text)]


def _count_cards(result: HostResult) -> int:
    """Count the cards that multiplied matrices."""
    return len({one.of for one in result.measured if one.test == "gemm" and one.of and one.value is not None})


def _confirm(
    blamed: dict[str, Any], cause: str, hosts: tuple[HostConfirmation, ...], links: Sequence[Sent]
) -> dict[str, Any]:
    """Put into what is blamed, a cause or a machine, what the tests say of its machines."""
    names = {one.host for one in hosts}
    bad = tuple(" - ".join(sorted((one.server, one.client))) for one in links if names & {one.server, one.client})
    outcomes = {one.outcome for one in hosts}
    outcome: Outcome = "unclear"
    if "confirmed" in outcomes or bad:
        outcome = "confirmed"
    elif outcomes == {"cleared"}:
        outcome = "cleared"
    before = float(blamed["confidence"])
    said = Confirmation(outcome=outcome, confidence_before=before, hosts=hosts, links=bad)
    told = {**blamed, "confidence": round(_move(before, outcome), 4), "confirmed": to_plain(said)}
    if "evidence" in blamed:
        told["evidence"] = [*blamed["evidence"], *map(to_plain, _list_evidence(cause, said))]
    return told


def _move(confidence: float, outcome: Outcome) -> float:
    """Weigh what was known with what the tests say, by odds; nobody gets less sure by what confirms.

    >>> round(_move(0.8, "confirmed"), 3), round(_move(0.8, "cleared"), 3), _move(0.8, "unclear")
    (0.99, 0.5, 0.8)
    """
    if outcome == "unclear" or confidence >= 1.0:
        return confidence
    odds = _ODDS[outcome] * confidence / (1.0 - confidence)
    moved = odds / (1.0 + odds)
    return max(confidence, min(moved, _SUREST)) if outcome == "confirmed" else moved


def _list_evidence(cause: str, said: Confirmation) -> list[EvidenceItem]:
    """Make an item of each machine, and of each link."""
    items = []
    for one in said.hosts:
        told = [test for test in one.tests if test.outcome == one.outcome] or list(one.tests)
        why = "; ".join(test.text for test in told[:_MOST_SENTENCES]) or (
            "no result came back" if one.tested_s is None else "; ".join(each.reason for each in one.skipped[:1])
        )
        values = {
            f"{test.test}{f'.{test.of}' if test.of else ''}": test.value
            for test in told[:_MOST_SENTENCES]
            if test.value is not None
        }
        text = f"{one.host} {_SAID[one.outcome]} by tests: {why or 'nothing was measured'}"
        items.append(EvidenceItem("confirm", f"{cause}/confirm/{one.host}", text, dict(values)))
    for link in said.links:
        text = f"the link {link} is slow, and both machines are sound with others: a cable, a port or a switch between them"
        items.append(EvidenceItem("confirm", f"{cause}/confirm/link", text, {}))
    return items


_SAID: Final[dict[Outcome, str]] = {
    "confirmed": "is confirmed",
    "cleared": "is cleared",
    "unclear": "is neither confirmed nor cleared",
}


def _name(one: Measured) -> str:
    """Name a figure: what is measured, and of what."""
    words = TESTS[one.test].words
    if one.test in ("gemm", "card-memory", "pcie", "allocation") and one.of:
        return f"{words} on card {one.of}"
    return f"{words} {one.of}" if one.of and one.test not in ("disk", "data") else words


def _write(value: float, test: Test) -> str:
    """Write a figure with its unit.

    >>> _write(0.043, TESTS["steal"]), _write(612.4, TESTS["gemm"])
    ('4.3%', '612 TFLOP/s')
    """
    return f"{100 * value:.3g}%" if test.unit == "part" else f"{value:.3g} {test.unit}"


def _describe(one: Measured, middle: float, n: int, test: Test) -> str:
    """Say how a figure lies beside the controls'."""
    assert one.value is not None
    text = f"{_name(one)} {_write(one.value, test)}, and {_write(middle, test)} on {n} controls"
    if test.unit in ("part", "a core") or middle <= 0:
        return text
    return f"{text} ({round(100 * (one.value / middle - 1)):+d}%)"


def _tested(one: Measured, outcome: Outcome, controls: float | None, n_controls: int, text: str) -> Tested:
    """Make the entry of one figure."""
    return Tested(
        test=one.test, of=one.of, outcome=outcome, value=one.value, controls=controls, n_controls=n_controls, text=text
    )
