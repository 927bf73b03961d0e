"""A diagnosis made again from its JSON, as far as the JSON goes.

Enters: the object that `Diagnosis.to_dict` gave, perhaps by an older version. Leaves: a `Diagnosis` whose words, ledger and
tables are those of the first; what only the trace knows (every worker of a large job, step times in seconds, details) is not in it.
"""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np

from diagnose.model.diagnosis import Diagnosis
from diagnose.model.diagnosis_document import SCHEMA, SCHEMAS, DiagnosisDocument
from diagnose.model.trace import Job, Seconds
from diagnose.model.whatif import WhatIf


def restore(found: Any, *, min_speedup: float) -> Diagnosis:
    """Make a diagnosis of its JSON.

    Parameters
    ----------
    found : dict
        What `json.loads` gives; keys that are not known are left out.
    min_speedup : float
        What it was asked for: the JSON does not say it.

    Returns
    -------
    Diagnosis
        `what_if.recorded_s`, `simulated_s` and `ideal_s` hold the means at every step, so that S is as it was; workers that were
        not listed are NaN, ranks -1.

    Raises
    ------
    ValueError
        It is no diagnosis, or not of this schema.
    """
    kind = found.get("schema") if isinstance(found, dict) else None
    if kind not in SCHEMAS:
        raise ValueError(f"its schema is {kind!r}, not {SCHEMA!r}")
    try:
        return _restore(msgspec.convert(found, DiagnosisDocument), min_speedup)
    except (msgspec.ValidationError, UnicodeEncodeError, KeyError) as error:
        raise ValueError(f"it lacks or distorts {error}") from None


def _restore(found: DiagnosisDocument, min_speedup: float) -> Diagnosis:
    """Put the parts of a document into their places."""
    known = {field.name for field in dataclasses.fields(Job)}
    job = {key: getattr(found.job, key) for key in found.job.__struct_fields__ if key in known}
    what_if = _read_what_if(found)
    return Diagnosis(
        made_by=found.made_by,
        job=Job(**job),
        n_ops=found.job.ops,
        steps_dropped=found.job.steps_dropped,
        verdict=found.verdict,
        why=found.why,
        step_time=found.step_time,
        gpu_hours_analysed=_number(found.gpu_hours.analysed),
        gpu_hours_wasted=found.gpu_hours.wasted,
        fidelity=found.fidelity,
        what_if=what_if,
        causes=found.causes,
        ledger=found.ledger,
        checked=found.checked,
        not_checked=found.not_checked,
        features=found.features,
        warnings=found.warnings,
        dp_labels=np.array([int(label) for label in found.what_if.by_dp_rank], dtype=np.int64),
        stage_labels=np.array([int(label) for label in found.what_if.by_stage], dtype=np.int64),
        ranks=np.full(what_if.by_worker.shape, -1, dtype=np.int64),
        hosts=None,
        min_speedup=min_speedup,
        plan=found.plan,
        budget=found.budget,
        levers=found.levers,
        telemetry=found.telemetry or None,
    )


def _read_what_if(found: DiagnosisDocument) -> WhatIf:
    """Read the measures of the paper."""
    w, times = found.what_if, found.step_time
    dp = {int(label): i for i, label in enumerate(w.by_dp_rank)}
    stage = {int(label): i for i, label in enumerate(w.by_stage)}
    by_worker = np.full((len(dp), len(stage)), np.nan)
    for worker in w.by_worker:
        by_worker[dp[worker.dp], stage[worker.pp]] = _number(worker.slowdown)
    steps = np.array([int(step) for step in w.by_step], dtype=np.int64)
    ideal_s = np.full(len(steps), times.ideal)
    return WhatIf(
        steps=steps,
        recorded_s=np.full(len(steps), times.recorded),
        simulated_s=ideal_s * _number(found.slowdown),
        ideal_s=ideal_s,
        discrepancy=found.fidelity.discrepancy,
        by_optype={name: _number(value) for name, value in w.by_optype.items()},
        by_stage=_numbers(w.by_stage.values()),
        by_dp=_numbers(w.by_dp_rank.values()),
        by_worker=by_worker,
        by_step=_numbers(w.by_step.values()),
        by_worker_step=np.full((*by_worker.shape, len(steps)), np.nan),
        m_w=w.m_w,
        m_s=w.m_s,
    )


def _numbers(values: Iterable[float | None]) -> Seconds:
    """Give NaN for what is null."""
    return np.array([_number(value) for value in values], dtype=np.float64)


def _number(value: float | None) -> float:
    """Give NaN for what is null."""
    return math.nan if value is None else value
