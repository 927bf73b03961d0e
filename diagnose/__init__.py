"""Says why a large training job is slow, where, since when, and what to change.

>>> import diagnose
>>> diagnosis = diagnose.diagnose("fixtures/worker-fault.parquet")  # doctest: +SKIP
>>> print(diagnosis.verdict, diagnosis.causes[0].cause)  # doctest: +SKIP
straggling worker-fault
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from diagnose._version import __version__
from diagnose.model.request import MIN_SPEEDUP, Request

if TYPE_CHECKING:
    from pathlib import Path

    from diagnose.errors import DiagnoseError
    from diagnose.model.diagnosis import Diagnosis

__all__ = ["DiagnoseError", "Diagnosis", "__version__", "diagnose"]

#: Names that cost an import of numpy, and where they stand: brought in when first asked for.
_LAZY = {"DiagnoseError": "diagnose.errors", "Diagnosis": "diagnose.model.diagnosis"}


def diagnose(
    source: "str | Path | BinaryIO",
    *,
    meta: "str | Path | None" = None,
    steps: str | Sequence[int] | None = None,
    rules: "str | Path | None" = None,
    min_speedup: float = MIN_SPEEDUP,
) -> "Diagnosis":
    """Diagnose one job.

    Parameters
    ----------
    source : path, or open binary file that can seek
        The trace, Parquet.
    meta : path, optional
        YAML file with job metadata.
    steps : str or sequence of int, optional
        Analyse only these steps: `"16-40,80"` or `range(16, 41)`.
    rules : path, optional
        Folder with rules of your own; one replaces the built-in rule of its id.
    min_speedup : float, at least 1
        Report a cause only when removing it makes the job this many times faster.

    Returns
    -------
    Diagnosis

    Raises
    ------
    TraceError
        The input cannot be read as a trace.
    RuleError
        A rule file is wrong.
    UsageError
        An argument makes no sense.
    """
    import math
    from pathlib import Path

    from diagnose.errors import UsageError
    from diagnose.pipeline import diagnose_job

    if not 1.0 <= min_speedup < math.inf:
        raise UsageError(f"min_speedup is {min_speedup}, expected a finite number of at least 1")
    request = Request(
        source,
        meta=None if meta is None else Path(meta),
        steps=None if steps is None else _parse_steps(steps),
        rules=None if rules is None else Path(rules),
        min_speedup=min_speedup,
    )
    return diagnose_job(request)


def _parse_steps(steps: str | Sequence[int]) -> Any:
    """Give the steps asked for as a sorted array of int64."""
    import numpy as np

    from diagnose.errors import UsageError
    from diagnose.trace.load import parse_steps

    expected = "expected steps and ranges such as '16-40,80', or integers"
    try:
        picked = parse_steps(steps) if isinstance(steps, str) else np.unique(np.asarray(steps))
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"steps are {steps!r}, {expected}") from None
    if picked.ndim != 1 or picked.dtype.kind not in "iu":
        raise UsageError(f"steps are {steps!r}, {expected}")
    return picked.astype(np.int64)


def __getattr__(name: str) -> Any:
    """Bring in `Diagnosis` and `DiagnoseError` when they are first asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module 'diagnose' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)
