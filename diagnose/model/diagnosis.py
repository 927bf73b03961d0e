"""The finished diagnosis: the object that the JSON, the terminal report and the tables are made of."""

import dataclasses
from typing import TYPE_CHECKING, Any

from diagnose.model.request import MIN_SPEEDUP
from diagnose.model.trace import Ints, Job
from diagnose.model.whatif import WhatIf

if TYPE_CHECKING:
    import pandas as pd

    from diagnose.model.explanation import Details
    from diagnose.model.recording import Account
    from diagnose.model.training_log import LogFacts

SCHEMA = "diagnose/1"
#: Fields of a job that say how it is laid out over GPUs.
SIZES = ("dp_size", "pp_size", "tp_size", "cp_size", "vpp_size", "world_size")
#: Workers listed in `what_if.by_worker` at most.
MAX_WORKERS_LISTED = 64


@dataclasses.dataclass(frozen=True, slots=True)
class Worker:
    """One (dp rank, stage), by the labels of the file.

    Where one of its tensor- or context-parallel members is meant, `rank` and `host` are that member's, and `tp`, `cp` its labels.
    """

    dp: int
    pp: int
    rank: int | None = None
    host: str | None = None
    tp: int | None = None
    cp: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Leave out what is not known."""
        known = {"rank": self.rank, "host": self.host, "tp": self.tp, "cp": self.cp}
        return {"dp": self.dp, "pp": self.pp} | {key: value for key, value in known.items() if value is not None}


@dataclasses.dataclass(frozen=True, slots=True)
class Where:
    """Culprits, worst first; all empty where a cause is spread over the job."""

    workers: tuple[Worker, ...] = ()
    stages: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    links: tuple[tuple[Worker, Worker], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Give the `where` of a cause."""
        return {
            "workers": [worker.to_dict() for worker in self.workers],
            "stages": list(self.stages),
            "hosts": list(self.hosts),
            "links": [{"from": {"dp": a.dp, "pp": a.pp}, "to": {"dp": b.dp, "pp": b.pp}} for a, b in self.links],
        }


@dataclasses.dataclass(frozen=True, slots=True)
class When:
    """Since when and how often: `constant`, `onset`, `periodic`, `sporadic` or `transient`; None where not known."""

    pattern: str | None = None
    onset_step: int | None = None
    recovery_step: int | None = None
    period_steps: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class EvidenceItem:
    """One sentence that a person can check, with the values it rests on."""

    source: str
    id: str
    text: str
    values: dict[str, float | None]


@dataclasses.dataclass(frozen=True, slots=True)
class Fix:
    """What to change; step times in seconds, with launch delays; None where no replay says it.

    `settings` give the same fix by hand; `figures` are numbers worth knowing beside the step time, by name, unit at its end.
    """

    fix: str
    summary: str
    how: str
    predicted_step_time: float | None
    predicted_speedup: float | None
    settings: dict[str, str] = dataclasses.field(default_factory=dict)
    assumptions: tuple[str, ...] = ()
    risks: tuple[str, ...] = ()
    figures: dict[str, float | None] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class RefusedFix:
    """A fix that is not for this job, and why; an `obvious` reason is left out of reports."""

    fix: str
    reason: str
    obvious: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Give one entry of `refused_fixes`."""
        return {"fix": self.fix, "reason": self.reason}


@dataclasses.dataclass(frozen=True, slots=True)
class PlanStep:
    """One fix in the order in which to do them.

    Attributes
    ----------
    fix, cause : str
    predicted_step_time, predicted_speedup : float
        With it and all before it; seconds, and against the recorded step time.
    gain : float
        Part of the step time after those before it that it gives back; `gain_alone` the same of the recorded one without them.
    note : str or None
        What a reader might not expect.
    """

    fix: str
    cause: str
    predicted_step_time: float
    predicted_speedup: float | None
    gain: float
    gain_alone: float
    note: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """The best fix of each cause, the most rewarding first, and what all of them give together."""

    steps: tuple[PlanStep, ...]
    predicted_step_time: float
    predicted_speedup: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class Cause:
    """One cause found; `share` of the lost time and `recoverable` part of the recorded step time, 0..1.

    `severity` is `low`, `medium` or `high`, and `who` says who can mend it; both are empty where no rule says so.
    """

    cause: str
    title: str
    confidence: float
    share: float | None
    recoverable: float
    where: Where
    when: When
    evidence: tuple[EvidenceItem, ...]
    fixes: tuple[Fix, ...]
    fingerprint: str
    refused_fixes: tuple[RefusedFix, ...] = ()
    severity: str = ""
    who: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Give one entry of `causes`."""
        return {
            "cause": self.cause,
            "title": self.title,
            "severity": self.severity or None,
            "who": self.who or None,
            "confidence": self.confidence,
            "share": self.share,
            "recoverable": self.recoverable,
            "where": self.where.to_dict(),
            "when": dataclasses.asdict(self.when),
            "evidence": [dataclasses.asdict(item) for item in self.evidence],
            "fixes": [dataclasses.asdict(fix) for fix in self.fixes],
            "refused_fixes": [fix.to_dict() for fix in self.refused_fixes],
            "fingerprint": self.fingerprint,
        }


@dataclasses.dataclass(frozen=True, slots=True)
class NotChecked:
    """A cause that could not be looked for, and why."""

    cause: str
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class StepTime:
    """Mean seconds a step; None where not known."""

    recorded: float
    simulated: float
    ideal: float
    clean: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class Fidelity:
    """How far the replay can be trusted; ratios."""

    discrepancy: float
    replay_error: float
    ok: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Ledger:
    """Lost time shared out.

    `causes` and `unexplained` sum to 1; so do `components`, the same time by what it was lost to whether a cause was found for
    it or not, and `immaterial`, what is too small to be told apart.
    """

    causes: dict[str, float]
    components: dict[str, float]
    unexplained: float
    immaterial: float


@dataclasses.dataclass(frozen=True, slots=True)
class MadeBy:
    """Version of the program, and digests of the rules and the classifier that judged."""

    version: str
    rules: str
    classifier: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class Diagnosis:
    """All that is known about one job. `to_dict` gives the JSON; the arrays and `details` stay for pictures, tables and pages.

    `log` is what the training log says, alone or beside the trace; a log alone may not tell how the job is laid out over GPUs.
    """

    made_by: MadeBy
    job: Job
    n_ops: int
    steps_dropped: int
    verdict: str
    step_time: StepTime
    gpu_hours_analysed: float
    gpu_hours_wasted: float | None
    fidelity: Fidelity
    what_if: WhatIf
    causes: tuple[Cause, ...]
    ledger: Ledger | None
    checked: tuple[str, ...]
    not_checked: tuple[NotChecked, ...]
    features: dict[str, float | None]
    warnings: tuple[str, ...]
    dp_labels: Ints
    stage_labels: Ints
    ranks: Ints
    hosts: tuple[str, ...] | None
    min_speedup: float = MIN_SPEEDUP
    plan: Plan | None = None
    recording: "Account | None" = None
    details: "Details | None" = None
    log: "LogFacts | None" = None
    parallelism_known: bool = True

    @property
    def is_from_log(self) -> bool:
        """True where there are no operations, only the log of a run: nothing was replayed."""
        return self.log is not None and self.n_ops == 0

    def worker(self, dp: int, stage: int) -> Worker:
        """Name the worker at a dp index and a stage index."""
        host = None if self.hosts is None else self.hosts[dp * len(self.stage_labels) + stage] or None
        return Worker(int(self.dp_labels[dp]), int(self.stage_labels[stage]), int(self.ranks[dp, stage]), host)

    def to_dict(self) -> dict[str, Any]:
        """Give the object that `--format json` prints: plain types, no NaN.

        Returns
        -------
        dict
            As the contract of the output says; validates against `diagnose schema`.
        """
        w = self.what_if
        job = dataclasses.asdict(self.job)
        job["layers_per_stage"] = None if self.job.layers_per_stage is None else list(self.job.layers_per_stage)
        if self.is_from_log and not self.parallelism_known:
            job |= dict.fromkeys(SIZES)
        job |= {
            "gpus": job["world_size"],
            "steps": len(w.steps) if self.log is None or not self.is_from_log else len(self.log.iterations),
            "steps_dropped": self.steps_dropped,
            "ops": self.n_ops,
            "hosts": sorted(set(self.hosts) - {""}) if self.hosts and any(self.hosts) else None,
        }
        return {
            "schema": SCHEMA,
            "made_by": dataclasses.asdict(self.made_by),
            "job": job,
            "verdict": self.verdict,
            "step_time": dataclasses.asdict(self.step_time),
            "slowdown": w.slowdown,
            "waste": 1.0 - 1.0 / w.slowdown,
            "gpu_hours": {"analysed": self.gpu_hours_analysed, "wasted": self.gpu_hours_wasted},
            "fidelity": dataclasses.asdict(self.fidelity),
            "what_if": {
                "by_optype": w.by_optype,
                "by_stage": _labelled(self.stage_labels, w.by_stage),
                "by_dp_rank": _labelled(self.dp_labels, w.by_dp),
                "by_worker": [
                    {"dp": who.dp, "pp": who.pp, "rank": who.rank, "slowdown": slowdown}
                    for who, slowdown in self.slowest_workers(MAX_WORKERS_LISTED)
                ],
                "by_step": _labelled(w.steps, w.by_step),
                "m_w": w.m_w,
                "m_s": w.m_s,
            },
            "causes": [cause.to_dict() for cause in self.causes],
            "ledger": None if self.ledger is None else dataclasses.asdict(self.ledger),
            "plan": None if self.plan is None else dataclasses.asdict(self.plan),
            "checked": list(self.checked),
            "not_checked": [dataclasses.asdict(entry) for entry in self.not_checked],
            "features": dict(sorted(self.features.items())),
            "warnings": list(self.warnings),
            "recording": None if self.recording is None else self.recording.to_dict(),
            "log": None if self.log is None else self.log.to_dict(),
        }

    def slowest_workers(self, n: int) -> list[tuple[Worker, float]]:
        """List the workers with the largest slowdown first, ties by dp rank and stage."""
        slowdown = self.what_if.by_worker
        order = (-slowdown).argsort(axis=None, kind="stable")[:n].tolist()
        n_stages = len(self.stage_labels)
        return [(self.worker(i // n_stages, i % n_stages), float(slowdown.flat[i])) for i in order]

    def workers(self) -> "pd.DataFrame":
        """Give one row a worker: dp, pp, rank, host, slowdown."""
        import pandas as pd

        rows = [
            {
                "dp": who.dp,
                "pp": who.pp,
                "rank": who.rank,
                "host": who.host,
                "slowdown": float(self.what_if.by_worker[dp, stage]),
            }
            for dp in range(len(self.dp_labels))
            for stage in range(len(self.stage_labels))
            for who in [self.worker(dp, stage)]
        ]
        return pd.DataFrame(rows)

    def steps(self) -> "pd.DataFrame":
        """Give one row a step: step, recorded_s, simulated_s, ideal_s, slowdown."""
        import pandas as pd

        w = self.what_if
        columns = {
            "recorded_s": w.recorded_s,
            "simulated_s": w.simulated_s,
            "ideal_s": w.ideal_s,
            "slowdown": w.by_step,
        }
        return pd.DataFrame({"step": w.steps} | columns)

    def causes_table(self) -> "pd.DataFrame":
        """Give one row a cause: cause, confidence, share, recoverable, workers, stages, pattern, onset_step."""
        import pandas as pd

        columns = ["cause", "confidence", "share", "recoverable", "workers", "stages", "pattern", "onset_step"]
        rows = [
            [
                cause.cause,
                cause.confidence,
                cause.share,
                cause.recoverable,
                [(worker.dp, worker.pp) for worker in cause.where.workers],
                list(cause.where.stages),
                cause.when.pattern,
                cause.when.onset_step,
            ]
            for cause in self.causes
        ]
        return pd.DataFrame(rows, columns=columns)

    def _repr_html_(self) -> str:
        """Show the report in a notebook."""
        from diagnose.report.terminal import render_html

        return render_html(self)


def _labelled(labels: Ints, values: Any) -> dict[str, float]:
    """Name each value of an array by its label."""
    return {str(int(label)): float(value) for label, value in zip(labels, values, strict=True)}
