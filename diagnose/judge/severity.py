"""How severe a cause is in a job: from what comes back without it, how sure it is, and how many GPUs wait for it.

Enters: a YAML file with thresholds, and causes. Leaves: causes with their severity.
"""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec.structs

from diagnose.judge.yaml_file import YamlReader, read_mapping
from diagnose.model.cause import Cause, Severity

#: Name of the file with thresholds, in a folder of the user's rules as here.
FILE_NAME = "severity.yaml"
BUILT_IN = Path(__file__).with_name(FILE_NAME)
#: Those that have thresholds, the worst first; what reaches none of them is the last.
_RATED: tuple[Severity, ...] = ("critical", "high", "medium")
_LEAST: Severity = "low"
#: What a line may ask for, and what is wrong above 1.
_FIELDS = ("gain", "gpus", "sure")
_AT_MOST_1 = {
    "gain": "a part of the step, above 0 and at most 1",
    "sure": "a confidence, above 0 and at most 1",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Threshold:
    """What a cause must cost at least, a part of the step, and GPUs that do nothing, each times how sure it is; and how sure."""

    gain: float = 0.0
    gpus: float = 0.0
    sure: float = 0.0

    def is_reached(self, gain: float, n_gpus: int | None, confidence: float) -> bool:
        """Say whether an expected gain reaches it; GPUs that nobody knows the number of reach nothing."""
        reaches_gpus = self.gpus == 0 or (n_gpus is not None and gain * n_gpus >= self.gpus)
        return gain >= self.gain and reaches_gpus and confidence >= self.sure


@dataclasses.dataclass(frozen=True, slots=True)
class Severities:
    """Thresholds by severity, the worst first; one of those of a severity is enough."""

    thresholds: tuple[tuple[Severity, tuple[Threshold, ...]], ...]

    def rate(self, cause: Cause, n_gpus: int | None) -> Severity:
        """Say how severe a cause is in a job of so many GPUs; None where nobody knows how many."""
        gain = cause.confidence * max(cause.recoverable, cause.recoverable_after_others or 0.0)
        for severity, any_of in self.thresholds:
            if any(threshold.is_reached(gain, n_gpus, cause.confidence) for threshold in any_of):
                return severity
        return _LEAST

    def rate_all(self, causes: Iterable[Cause], n_gpus: int | None) -> tuple[Cause, ...]:
        """Give causes with their severity."""
        return tuple(msgspec.structs.replace(cause, severity=self.rate(cause, n_gpus)) for cause in causes)


def read_severities(path: Path, text: bytes, faults: list[str]) -> Severities | None:
    """Read a file with thresholds; None where there are faults, which are added to `faults` as `file:line: what`."""
    before = len(faults)
    root = read_mapping(path, text, faults, _RATED)
    if root is None:
        return None
    reader = _Reader(str(path), faults)
    fields = reader.mapping(root, _RATED)
    found = tuple((severity, tuple(reader.items(fields.get(severity), reader.threshold))) for severity in _RATED)
    return Severities(found) if len(faults) == before else None


class _Reader(YamlReader):
    """Turns YAML nodes into thresholds."""

    def threshold(self, node: Any) -> Threshold:
        """Read one line: `gain`, `gpus`, or both; and `sure`."""
        before = len(self.faults)
        fields = self.mapping(node, (), _FIELDS)
        if not fields.keys() & {"gain", "gpus"} and len(self.faults) == before:
            self.fault(node, "expected gain, gpus or both, each with a number above 0")
        return Threshold(**{key: self._positive(fields[key], key) for key in fields if key in _FIELDS})

    def _positive(self, node: Any, key: str) -> float:
        """Read a number above 0; a gain is at most 1, the whole step, and so is how sure a cause is."""
        value = self.number(node)
        if value <= 0 or (key in _AT_MOST_1 and value > 1):
            self.fault(node, f"{key} is {value:g}; expected {_AT_MOST_1.get(key, 'a number above 0')}")
        return value
