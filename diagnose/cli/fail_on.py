"""`--fail-on`: what a diagnosis must say for the program to end with exit code 1.

Enters: words of the command line. Leaves: a `Gate`.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, get_args

import click

from diagnose.errors import UsageError

if TYPE_CHECKING:
    from diagnose.model.cause import Cause
    from diagnose.model.diagnosis import Diagnosis

_STRAGGLING, _UNKNOWN = "straggling", "unknown"


@dataclasses.dataclass(frozen=True, slots=True)
class Gate:
    """What one cause must be to trip the gate: all of it. Time that nothing explains does so only where it is asked for.

    `least` is the place of a severity among `SEVERITIES`, `sure` a confidence; `named` counts causes that have a name.
    """

    least: int = 0
    sure: float = 0.0
    unknown: bool = False
    named: bool = True

    def trips(self, diagnosis: "Diagnosis") -> bool:
        """Say whether a job has such a cause."""
        return diagnosis.verdict == _STRAGGLING and any(self._is_reached(cause) for cause in diagnosis.causes)

    def _is_reached(self, cause: "Cause") -> bool:
        """Say whether one cause is bad and sure enough."""
        severity = list_severities().index(cause.severity) if cause.severity else 0
        is_asked_for = self.unknown if cause.cause == _UNKNOWN else self.named
        return severity >= self.least and cause.confidence >= self.sure and is_asked_for


def list_severities() -> Sequence[str]:
    """List severities, the mildest first."""
    from diagnose.model.cause import Severity

    return get_args(Severity)


def parse_gate(asked: Sequence[str]) -> Gate | None:
    """Read all `--fail-on` of a command line; None where there is none."""
    gate = Gate()
    for word in asked:
        if word in list_severities():
            gate = dataclasses.replace(gate, least=max(gate.least, list_severities().index(word)))
        elif word == _UNKNOWN:
            gate = dataclasses.replace(gate, unknown=True, named=set(asked) != {_UNKNOWN})
        elif word != _STRAGGLING:
            wanted = (_STRAGGLING, *reversed(list_severities()), _UNKNOWN)
            gate = dataclasses.replace(gate, sure=max(gate.sure, read_confidence(word, wanted)))
    return gate if asked else None


def read_confidence(word: str, words: Sequence[str]) -> float:
    """Read a confidence; refuse all else, and say which words would have done."""
    try:
        sure = float(word)
    except ValueError:
        sure = math.nan
    if not 0.0 <= sure <= 1.0:
        raise UsageError(f"--fail-on: {word!r} is not one of {', '.join(words)}, nor a confidence from 0 to 1")
    return sure


fail_on_option = click.option(
    "--fail-on",
    metavar="WHAT",
    multiple=True,
    help="End with exit code 1 when a job has a cause (straggling), one at least so severe (critical, high, medium, low), or at "
    "least so sure (0.9); given again: all of it in one cause. Time that nothing explains counts only with unknown, and alone "
    "where that is all that is asked for.",
)
