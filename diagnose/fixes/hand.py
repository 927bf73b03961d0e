"""Price what a user gives by hand: fixes with settings, and own times scaled.

Enters: a measured job, and `--fix` and `--set` texts. Leaves: `HandPrices`. Costs two replays an entry, and what fixes that
search ask for.
"""

import re
from collections.abc import Sequence

import numpy as np

from diagnose.errors import UsageError
from diagnose.fixes.catalogue import check_settings, find_fix
from diagnose.fixes.plan import Priced, predict, price_fix
from diagnose.model.analysis import Analysis
from diagnose.model.cause import Fix
from diagnose.model.change import Change, Scale
from diagnose.model.optype import BY_NAME, DIRECTIONS, EVIDENCE, Op
from diagnose.model.priced import HandFixPrice, HandPrices
from diagnose.model.remedy import FaultLocation, NamedFix, Refusal
from diagnose.model.trace import Ints

#: What `--set` may name beside an operation type.
_SEVERAL = {
    "compute": DIRECTIONS,
    "p2p": (Op.FORWARD_SEND, Op.FORWARD_RECV, Op.BACKWARD_SEND, Op.BACKWARD_RECV),
}
_SET_EXAMPLE = "'forward-compute stage=3 x0.8'"


def parse_fix(text: str) -> NamedFix:
    """Read `NAME`, or `NAME:key=value,key=value`.

    Raises
    ------
    UsageError
        There is no such fix, or it has no such setting.

    >>> parse_fix("planned-gc:every=200").settings
    {'every': '200'}
    """
    name, _, rest = text.partition(":")
    settings = {}
    # A comma parts settings where another key follows, so that a value may be a list.
    for part in re.split(r",(?=\s*[a-z_]+=)", rest) if rest else []:
        key, equals, value = part.partition("=")
        if not equals or not value.strip():
            raise UsageError(f"--fix {text}: expected NAME:key=value,key=value")
        settings[key.strip()] = value.strip()
    fix = find_fix(name.strip())
    check_settings(fix, settings)
    return NamedFix(fix.NAME, settings=settings)


def parse_set(text: str, analysis: Analysis) -> Scale:
    """Read `TYPE[,TYPE] [stage=N] [dp=N] [step=N] xFACTOR`; N is a label, a range, or a list of them.

    Raises
    ------
    UsageError
        It reads otherwise, or names what the job does not have.
    """
    parts = text.split()
    if len(parts) < 2 or not re.fullmatch(r"x\d*\.?\d+(e[+-]?\d+)?", parts[-1]):
        raise UsageError(f"--set {text!r}: expected operation types, places and a factor, such as {_SET_EXAMPLE}")
    trace = analysis.trace
    axes = {"stage": trace.stage_labels, "step": analysis.breakdown.steps, "dp": trace.dp_labels}
    masks = {name: np.ones(len(labels), dtype=bool) for name, labels in axes.items()}
    for part in parts[1:-1]:
        key, equals, value = part.partition("=")
        if not equals or key not in axes:
            raise UsageError(
                f"--set {text!r}: {part!r} is no place; expected {', '.join(f'{axis}=N' for axis in axes)}"
            )
        masks[key] = _among(axes[key], value, f"--set {text!r}: {key}")
    chosen = masks["stage"][:, None, None] & masks["step"][:, None] & masks["dp"]
    return Scale(_ops(parts[0], text), np.where(chosen, float(parts[-1][1:]), 1.0))


def _ops(text: str, whole: str) -> frozenset[int]:
    """Read a list of operation types."""
    found: set[int] = set()
    for name in text.split(","):
        if name in _SEVERAL:
            found.update(int(op) for op in _SEVERAL[name])
        elif name in BY_NAME and BY_NAME[name] not in EVIDENCE:
            found.add(int(BY_NAME[name]))
        else:
            known = [*_SEVERAL, *(known for known, op in BY_NAME.items() if op not in EVIDENCE)]
            raise UsageError(
                f"--set {whole!r}: there is no operation type {name!r}; expected one of {', '.join(known)}"
            )
    return frozenset(found)


def _among(labels: Ints, text: str, where: str) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Mark the labels that a text such as `0,4-7` names."""
    mask = np.zeros(len(labels), dtype=bool)
    for part in text.split(","):
        found = re.fullmatch(r"(\d{1,15})(?:-(\d{1,15}))?", part)
        if not found:
            raise UsageError(f"{where}: {part!r} is no number and no range such as 0-3")
        low, high = int(found[1]), int(found[2] or found[1])
        here = (labels >= low) & (labels <= high)
        if not here.any():
            raise UsageError(f"{where}: the job has none of {part}; it has {int(labels.min())} to {int(labels.max())}")
        mask |= here
    return mask


def price_by_hand(
    analysis: Analysis, fixes: Sequence[tuple[NamedFix, FaultLocation]], scales: Sequence[tuple[str, Scale]]
) -> HandPrices:
    """Price each fix and scaling by itself, and one after the other in the order given, fixes first.

    The scalings come with the texts that they were read from.
    """
    entries: list[tuple[str, Priced | Refusal]] = [
        (_write(named), price_fix(analysis, named, place, ())) for named, place in fixes
    ]
    for text, scale in scales:
        step_s = float(analysis.price([scale]).mean())
        fix = Fix("set", "own times scaled", "", *predict(analysis, step_s))
        entries.append((text, Priced(fix, (scale,), step_s)))
    done: tuple[Change, ...] = ()
    before_s = analysis.gains.replayed_s
    asked = []
    for text, entry in entries:
        if isinstance(entry, Refusal):
            asked.append(HandFixPrice(text, None, entry.reason, None, None, None))
            continue
        after_s = entry.step_s if not done else float(analysis.price((*done, *entry.changes)).mean())
        done = (*done, *entry.changes)
        asked.append(HandFixPrice(text, entry.fix, None, *predict(analysis, after_s), 1.0 - after_s / before_s))
        before_s = after_s
    predicted_s, _ = predict(analysis, before_s)
    error = abs(analysis.gains.replayed_s / analysis.gains.recorded_s - 1.0)
    return HandPrices(analysis.trace.job.job_id, analysis.gains.recorded_s, predicted_s, error, tuple(asked), done)


def _write(named: NamedFix) -> str:
    """Write a fix as a user gives it."""
    settings = ",".join(f"{key}={value}" for key, value in named.settings.items())
    return f"{named.fix}:{settings}" if settings else named.fix
