"""A diagnosis made again from its JSON, as far as the JSON goes.

Enters: the object that `Diagnosis.to_dict` gave, perhaps by an older version. Leaves: a `Diagnosis` whose words, ledger and
tables are those of the first; what only the trace knows (every worker of a large job, step times in seconds, details) is not in it.
"""

import dataclasses
import math
from typing import Any

import numpy as np

from diagnose.model.diagnosis import (
    SCHEMA,
    Cause,
    Diagnosis,
    EvidenceItem,
    Fidelity,
    Fix,
    Ledger,
    MadeBy,
    NotChecked,
    Plan,
    PlanStep,
    RefusedFix,
    StepTime,
    When,
    Where,
    Worker,
)
from diagnose.model.trace import Job, Seconds
from diagnose.model.whatif import WhatIf


def restore(found: dict[str, Any], *, min_speedup: float) -> Diagnosis:
    """Make a diagnosis of its JSON.

    Parameters
    ----------
    found : dict
        What `--format json` printed.
    min_speedup : float
        The JSON does not say it.

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
    try:
        if found["schema"] != SCHEMA:
            raise ValueError(f"its schema is {found['schema']!r}, not {SCHEMA!r}")
        return _restore(found, min_speedup)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it lacks or distorts {error}") from None


def _restore(found: dict[str, Any], min_speedup: float) -> Diagnosis:
    """Read the parts of a diagnosis one by one."""
    job = {field.name: found["job"][field.name] for field in dataclasses.fields(Job)}
    if job["layers_per_stage"] is not None:
        job["layers_per_stage"] = tuple(job["layers_per_stage"])
    what_if = _read_what_if(found)
    plan = found.get("plan")
    return Diagnosis(
        made_by=MadeBy(**_known(MadeBy, found["made_by"])),
        job=Job(**job),
        n_ops=found["job"]["ops"],
        steps_dropped=found["job"]["steps_dropped"],
        verdict=found["verdict"],
        step_time=StepTime(**_known(StepTime, found["step_time"])),
        gpu_hours_analysed=_number(found["gpu_hours"]["analysed"]),
        gpu_hours_wasted=found["gpu_hours"]["wasted"],
        fidelity=_read_fidelity(found["fidelity"]),
        what_if=what_if,
        causes=tuple(_read_cause(cause) for cause in found["causes"]),
        ledger=None if found["ledger"] is None else Ledger(**_known(Ledger, found["ledger"])),
        checked=tuple(found.get("checked", ())),
        not_checked=tuple(NotChecked(**_known(NotChecked, entry)) for entry in found["not_checked"]),
        features=found["features"],
        warnings=tuple(found["warnings"]),
        dp_labels=np.array([int(label) for label in found["what_if"]["by_dp_rank"]], dtype=np.int64),
        stage_labels=np.array([int(label) for label in found["what_if"]["by_stage"]], dtype=np.int64),
        ranks=np.full(what_if.by_worker.shape, -1, dtype=np.int64),
        hosts=None,
        min_speedup=min_speedup,
        plan=None if plan is None else Plan(**_known(Plan, plan) | {"steps": _read_steps(plan["steps"])}),
    )


def _read_fidelity(found: dict[str, Any]) -> Fidelity:
    """Read how far the replay was to be trusted."""
    return Fidelity(_number(found["discrepancy"]), _number(found["replay_error"]), bool(found["ok"]))


def _read_steps(found: list[dict[str, Any]]) -> tuple[PlanStep, ...]:
    """Read the fixes of a plan."""
    return tuple(PlanStep(**_known(PlanStep, step)) for step in found)


def _read_what_if(found: dict[str, Any]) -> WhatIf:
    """Read the measures of the paper."""
    w, times = found["what_if"], found["step_time"]
    dp = {int(label): i for i, label in enumerate(w["by_dp_rank"])}
    stage = {int(label): i for i, label in enumerate(w["by_stage"])}
    by_worker = np.full((len(dp), len(stage)), np.nan)
    for worker in w["by_worker"]:
        by_worker[dp[worker["dp"]], stage[worker["pp"]]] = _number(worker["slowdown"])
    steps = np.array([int(step) for step in w["by_step"]], dtype=np.int64)
    ideal_s = np.full(len(steps), _number(times["ideal"]))
    return WhatIf(
        steps=steps,
        recorded_s=np.full(len(steps), _number(times["recorded"])),
        simulated_s=ideal_s * _number(found["slowdown"]),
        ideal_s=ideal_s,
        discrepancy=_number(found["fidelity"]["discrepancy"]),
        by_optype={name: _number(value) for name, value in w["by_optype"].items()},
        by_stage=_numbers(w["by_stage"]),
        by_dp=_numbers(w["by_dp_rank"]),
        by_worker=by_worker,
        by_step=_numbers(w["by_step"]),
        by_worker_step=np.full((*by_worker.shape, len(steps)), np.nan),
        m_w=w["m_w"],
        m_s=w["m_s"],
    )


def _read_cause(found: dict[str, Any]) -> Cause:
    """Read one cause."""
    fixes = [
        Fix(**_known(Fix, fix) | {key: tuple(fix.get(key, ())) for key in ("assumptions", "risks")})
        for fix in found["fixes"]
    ]
    return Cause(
        cause=found["cause"],
        title=found["title"],
        confidence=_number(found["confidence"]),
        share=found["share"],
        recoverable=_number(found["recoverable"]),
        where=_read_where(found["where"]),
        when=When(**_known(When, found["when"])),
        evidence=tuple(EvidenceItem(**_known(EvidenceItem, item)) for item in found["evidence"]),
        fixes=tuple(fixes),
        fingerprint=found["fingerprint"],
        refused_fixes=tuple(RefusedFix(entry["fix"], entry["reason"]) for entry in found.get("refused_fixes", ())),
        severity=found.get("severity") or "",
        who=found.get("who") or "",
    )


def _read_where(found: dict[str, Any]) -> Where:
    """Read where a cause sits."""
    return Where(
        workers=tuple(Worker(**_known(Worker, worker)) for worker in found["workers"]),
        stages=tuple(found["stages"]),
        hosts=tuple(found["hosts"]),
        links=tuple((Worker(**link["from"]), Worker(**link["to"])) for link in found["links"]),
    )


def _known(kind: type, found: dict[str, Any]) -> dict[str, Any]:
    """Keep the fields that a data type has; a newer version may have written more."""
    names = {field.name for field in dataclasses.fields(kind)}
    return {key: value for key, value in found.items() if key in names}


def _numbers(labelled: dict[str, Any]) -> Seconds:
    """Read the values of a labelled list."""
    return np.array([_number(value) for value in labelled.values()], dtype=np.float64)


def _number(value: float | None) -> float:
    """Give NaN for what is null."""
    return math.nan if value is None else float(value)
