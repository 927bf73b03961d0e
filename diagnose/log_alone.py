"""Diagnose a job by its training log alone: since when it is slow. What replays would tell is not known.

Enters: a log. Leaves: a `Diagnosis`.
"""

import numpy as np

from diagnose.features.catalogue import list_features
from diagnose.features.paces import measure_log
from diagnose.judge.log import judge_log
from diagnose.judges import made_by, read_rules
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.diagnosis_document import Fidelity, StepTime
from diagnose.model.job_names import locate, name_of_job
from diagnose.model.request import Request
from diagnose.model.trace import Job
from diagnose.model.training_log import TrainingLog
from diagnose.model.whatif import NOTHING_REPLAYED
from diagnose.trace.input_files import InputFiles
from diagnose.trace.logs.load import load_log

_META_IGNORED = "metadata is not used: a log alone is taken as it is"


def diagnose_log(inputs: InputFiles, request: Request) -> Diagnosis:
    """Diagnose a log, or a folder with those of all nodes.

    Raises
    ------
    TraceError
        It has no line of an iteration, none of the steps asked for, or cannot be read.
    RuleError
        A rule file is wrong.
    """
    request.report("reading")
    log = load_log(
        inputs,
        name=request.name or str(inputs.path),
        steps=request.steps,
        report=request.report,
        column=request.column,
        unit=request.unit,
    )
    request.report("judging")
    facts = measure_log(log, min_speedup=request.min_speedup)
    job, known = describe_job(log, inputs.path.stem, request.location or locate(request.name or str(inputs.path)))
    rule_set = read_rules(request.rules)
    verdict = judge_log(facts, job, rule_set.rules, min_speedup=request.min_speedup)
    assert facts.ledger is not None
    seconds, lost_s = facts.ledger.total_s, sum(facts.ledger.seconds.values())
    hours = job.world_size / 3600.0 if known and not log.of else float("nan")
    return Diagnosis(
        made_by=made_by(request.rules),
        job=job,
        n_ops=0,
        steps_dropped=len(log.iteration) - len(facts.iterations),
        verdict=verdict.verdict,
        step_time=StepTime(float(facts.step_s.mean()), float("nan"), float("nan"), None),
        gpu_hours_analysed=seconds * hours,
        gpu_hours_wasted=max(lost_s, 0.0) * hours if known and verdict.causes and not log.of else None,
        fidelity=Fidelity(float("nan"), float("nan"), ok=False),
        what_if=NOTHING_REPLAYED,
        causes=rule_set.severities.rate_all(verdict.causes, job.world_size if known else None),
        ledger=None,
        checked=verdict.checked,
        not_checked=verdict.not_checked,
        features=dict.fromkeys(list_features()),
        warnings=_warn(log, request),
        dp_labels=np.zeros(0, dtype=np.int64),
        stage_labels=np.zeros(0, dtype=np.int64),
        ranks=np.zeros((0, 0), dtype=np.int64),
        hosts=None,
        min_speedup=request.min_speedup,
        log=facts,
        parallelism_known=known,
    )


def _warn(log: TrainingLog, request: Request) -> tuple[str, ...]:
    """Say what was not used, and what the seconds are of where that is no step."""
    of = (
        (f"the log tells a rate only: what is said of a step is of {log.of}, and no time can be added up",)
        if log.of
        else ()
    )
    return (*of, *log.notes, *((_META_IGNORED,) if request.meta is not None else ()))


def describe_job(log: TrainingLog, job_id: str, location: str) -> tuple[Job, bool]:
    """Make a `Job` of the arguments that a log printed; False where it printed too little to know how the job is laid out."""
    sizes = log.sizes
    world, pp, tp = (sizes.get(key, 0) for key in ("world_size", "pp_size", "tp_size"))
    cp = sizes.get("cp_size", 1)
    known = min(world, pp, tp, cp) > 0 and world % max(1, pp * tp * cp) == 0
    dp, pp, tp, cp, world = (world // (pp * tp * cp), pp, tp, cp, world) if known else (1, 1, 1, 1, 1)
    name = name_of_job(name=None, job_id=None, location=location)
    job = Job(job_id, dp, pp, tp, cp, 1, world, steps_total=log.total, framework=log.format, name=name)
    return job, known
