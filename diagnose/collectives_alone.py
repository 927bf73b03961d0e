"""Diagnose a job by what its communication library left: who hangs it, who is late, which transfers are slow.

Enters: dumps. Leaves: a `Diagnosis`. What replays would tell is not known.
"""

import dataclasses

import numpy as np

from diagnose.errors import TraceError
from diagnose.features.catalogue import list_features
from diagnose.judge.collectives import judge_collectives
from diagnose.judge.collectives_beside import join_collectives
from diagnose.judge.collectives_layout import find_layout
from diagnose.judges import made_by, read_rules
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.diagnosis_document import Fidelity, StepTime
from diagnose.model.job_names import locate, name_of_job
from diagnose.model.request import Request
from diagnose.model.trace import Job
from diagnose.model.whatif import NOTHING_REPLAYED
from diagnose.trace.collectives.recognise import Dumps, load_collectives

_META_IGNORED = "metadata is not used: dumps of collectives are taken as they are"
_NAMES_GIVEN = (
    "nothing in the recording tells ranks: processes are numbered in the order of their hosts and process ids"
)


def diagnose_collectives(dumps: Dumps, request: Request) -> Diagnosis:
    """Diagnose a folder of dumps, one a rank; of a job with those of two recorders, both are read.

    Raises
    ------
    TraceError
        They are damaged, ask to run code, or hold no operation.
    RuleError
        A rule file is wrong.
    """
    if dumps.second is None:
        return _diagnose_kind(dumps, request)
    found, refused = [], []
    for each in (dumps, dumps.second):
        try:
            found.append(_diagnose_kind(each, request))
        except TraceError as error:
            refused.append(error)
    if not found:
        raise refused[0]
    if refused:
        warning = f"dumps of one of two recorders are not used: {refused[0]}"
        return dataclasses.replace(found[0], warnings=(*found[0].warnings, warning))
    first, second = sorted(found, key=lambda one: one.collectives is None or one.collectives.hang is None)
    return join_collectives(first, second, read_rules(request.rules).severities)


def _diagnose_kind(dumps: Dumps, request: Request) -> Diagnosis:
    """Diagnose the dumps of one recorder."""
    request.report("reading")
    path = dumps.inputs.path
    name = request.name or str(path)
    recorded = load_collectives(dumps, name=name, report=lambda line: request.report(f"reading {line}"))
    request.report("judging")
    layout = find_layout(recorded)
    location = request.location or locate(name)
    job = Job(
        path.stem,
        layout.dp,
        layout.pp,
        layout.tp,
        1,
        1,
        max(1, recorded.world_size),
        framework=None,
        name=name_of_job(name=None, job_id=None, location=location),
    )
    rule_set = read_rules(request.rules)
    verdict, document = judge_collectives(recorded, job, rule_set.rules, min_speedup=request.min_speedup)
    nothing = float("nan")
    warnings = [*recorded.warnings, *verdict.warnings]
    warnings += [] if recorded.are_ranks_known else [_NAMES_GIVEN]
    warnings += [_META_IGNORED] if request.meta is not None else []
    return Diagnosis(
        made_by=made_by(request.rules),
        job=job,
        n_ops=0,
        steps_dropped=0,
        verdict=verdict.verdict,
        step_time=StepTime(nothing, nothing, nothing, None),
        gpu_hours_analysed=job.world_size * recorded.span_s / 3600.0,
        gpu_hours_wasted=None,
        fidelity=Fidelity(nothing, nothing, ok=False),
        what_if=NOTHING_REPLAYED,
        causes=rule_set.severities.rate_all(verdict.causes, job.world_size),
        ledger=None,
        checked=verdict.checked,
        not_checked=verdict.not_checked,
        features=dict.fromkeys(list_features()),
        warnings=tuple(warnings),
        dp_labels=np.zeros(0, dtype=np.int64),
        stage_labels=np.zeros(0, dtype=np.int64),
        ranks=np.zeros((0, 0), dtype=np.int64),
        hosts=None,
        min_speedup=request.min_speedup,
        why=verdict.why,
        parallelism_known=layout.is_known,
        collectives=document,
    )
