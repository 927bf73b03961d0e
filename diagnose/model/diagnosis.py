"""The finished diagnosis in memory: the object that the JSON, the reports and the tables are made of."""

import dataclasses
import importlib
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from diagnose.model.budget import Budget, Lever
from diagnose.model.cause import Cause, NotChecked
from diagnose.model.diagnosis_document import (
    SCHEMA,
    DiagnosisDocument,
    Fidelity,
    GpuHours,
    JobFacts,
    Ledger,
    MadeBy,
    Plan,
    RecordingFacts,
    Slowdowns,
    StepTime,
    VerdictName,
    WorkerSlowdown,
)
from diagnose.model.named import measure_named
from diagnose.model.place import Shape, Worker
from diagnose.model.plain import to_plain
from diagnose.model.request import MIN_SPEEDUP
from diagnose.model.trace import Bools, Ints, Job, Seconds
from diagnose.model.whatif import WhatIf

if TYPE_CHECKING:
    import pandas as pd

    from diagnose.model.collectives import CollectivesDocument
    from diagnose.model.explanation import Details
    from diagnose.model.recording import Account
    from diagnose.model.telemetry_document import TelemetryDocument
    from diagnose.model.training_log import LogFacts

#: Fields of a job that say how it is laid out over GPUs.
_SIZES = ("dp_size", "pp_size", "tp_size", "cp_size", "vpp_size", "world_size")
#: What is less sure is more probably something else.
PROBABLE = 0.5
#: How much what is said with less counts when causes are put in order.
DOUBTED_WEIGHT = 0.25
#: Workers listed in `what_if.by_worker` at most.
MAX_WORKERS_LISTED = 64


@dataclasses.dataclass(frozen=True, slots=True)
class Diagnosis:
    """All that is known about one job. `to_dict` gives the JSON; the arrays and `details` stay for pictures, tables and pages.

    `why` says in a sentence why the verdict is `noisy` or `inconclusive`. `log` is what the training log says, alone or beside the
    trace; a log alone may not tell how the job is laid out over GPUs. `telemetry` is what its machines measured.
    """

    made_by: MadeBy
    job: Job
    n_ops: int
    steps_dropped: int
    verdict: VerdictName
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
    why: str = ""
    budget: Budget | None = None
    levers: tuple[Lever, ...] = ()
    collectives: "CollectivesDocument | None" = None
    telemetry: "TelemetryDocument | None" = None

    @property
    def is_replayed(self) -> bool:
        """True where there are operations of steps, which were replayed."""
        return self.n_ops > 0

    @property
    def is_from_collectives(self) -> bool:
        """True where there is nothing but what a communication library left: nothing was replayed."""
        return self.collectives is not None and self.n_ops == 0 and self.log is None

    @property
    def is_from_log(self) -> bool:
        """True where there are no operations, only the log of a run: nothing was replayed."""
        return self.log is not None and self.n_ops == 0

    @property
    def shape(self) -> Shape | None:
        """Numbers of dp ranks and stages, of all that the job has; None where it is not known."""
        if not self.parallelism_known:
            return None
        return max(self.job.dp_size, len(self.dp_labels)), max(self.job.pp_size, len(self.stage_labels))

    def is_over(self, cause: Cause) -> bool:
        """Say whether a cause costs nothing any more: a log has the whole run; what went in a trace, a sample, may come again."""
        return self.is_from_log and cause.when.is_past

    @property
    def told(self) -> tuple[Cause, ...]:
        """The causes in the order in which people are told of them; `causes` has the largest share first.

        First what most of the loss is to be expected of; what is doubted more than said, or has no name and so no fix, counts a
        quarter: it comes before what is sure only if that is far less. Where the share of one is not known, as by a log, only
        these move.
        """
        weighed = all(cause.share is not None for cause in self.causes)

        def rank(cause: Cause) -> float:
            counts = 1.0 if cause.confidence >= PROBABLE and cause.is_known else DOUBTED_WEIGHT
            return -counts * (cause.share or 0.0) * cause.confidence if weighed else -counts

        return tuple(sorted(self.causes, key=rank))

    @property
    def without_named_s(self) -> float | None:
        """Mean seconds of a step without what is named: what is lost without a name stays; None where nothing is, as by a log."""
        recorded, clean, ledger = self.step_time.recorded, self.step_time.clean, self.ledger
        if clean is None or ledger is None or not 0 < clean < recorded:
            return None
        alone = max((cause.recoverable for cause in self.causes), default=0.0)
        return recorded * (1.0 - measure_named(1.0 - clean / recorded, 1.0 - ledger.unexplained, alone))

    @property
    def gpu_hours_lost(self) -> float | None:
        """GPU hours lost to what is named; by a log all above its good pace, and where nothing is named all that varies."""
        if self.without_named_s is None:
            return self.gpu_hours_wasted
        return self.gpu_hours_analysed * (1.0 - self.without_named_s / self.step_time.recorded)

    def worker(self, dp: int, stage: int) -> Worker:
        """Name the worker at a dp index and a stage index."""
        host = None if self.hosts is None else self.hosts[dp * len(self.stage_labels) + stage] or None
        return Worker(int(self.dp_labels[dp]), int(self.stage_labels[stage]), int(self.ranks[dp, stage]), host)

    @property
    def summary(self) -> str:
        """One line for people: job, verdict, the first of `causes`, place, and how much longer steps are for it; safe to show."""
        line: str = importlib.import_module("diagnose.report.words").summary(
            self
        )  # by name: no type here knows reports
        return line

    def to_dict(self) -> dict[str, Any]:
        """Give the object that `--format json` prints as plain types; what is not known is None."""
        plain: dict[str, Any] = to_plain(self.to_document())
        return plain

    def to_document(self) -> DiagnosisDocument:
        """Give what `--format json` prints; see there for what each field is."""
        return DiagnosisDocument(
            schema=SCHEMA,
            made_by=self.made_by,
            job=self._job_facts(),
            summary=self.summary,
            verdict=self.verdict,
            why=self.why,
            budget=self.budget,
            levers=self.levers,
            step_time=self.step_time,
            slowdown=self.what_if.slowdown,
            waste=1.0 - 1.0 / self.what_if.slowdown,
            gpu_hours=GpuHours(self.gpu_hours_analysed, self.gpu_hours_wasted),
            fidelity=self.fidelity,
            what_if=self._slowdowns(),
            causes=self.causes,
            ledger=self.ledger,
            plan=self.plan,
            checked=self.checked,
            not_checked=self.not_checked,
            features=dict(sorted(self.features.items())),
            warnings=self.warnings,
            recording=None if self.recording is None else msgspec.convert(self.recording.to_dict(), RecordingFacts),
            log=None if self.log is None else self.log.to_document(),
            collectives=self.collectives,
            telemetry=msgspec.UNSET if self.telemetry is None else self.telemetry,
        )

    def _job_facts(self) -> JobFacts:
        """Give what the JSON tells of the job."""
        said = dataclasses.asdict(self.job)
        known = {key: said[key] for key in JobFacts.__struct_fields__ if key in said}
        if not self.is_replayed and not self.parallelism_known:
            known |= dict.fromkeys(_SIZES)
        return JobFacts(
            **known,
            gpus=known["world_size"],
            steps=len(self.log.iterations) if self.is_from_log and self.log else len(self.what_if.steps),
            steps_dropped=self.steps_dropped,
            ops=self.n_ops,
            hosts=tuple(sorted(set(self.hosts) - {""})) if self.hosts and any(self.hosts) else None,
        )

    def _slowdowns(self) -> Slowdowns:
        """Give what the JSON tells of the what-if analysis."""
        w = self.what_if
        listed = self.slowest_workers(MAX_WORKERS_LISTED)
        return Slowdowns(
            by_optype=dict(w.by_optype),
            by_stage=_labelled(self.stage_labels, w.by_stage),
            by_dp_rank=_labelled(self.dp_labels, w.by_dp),
            by_worker=tuple(WorkerSlowdown(who.dp, who.pp, who.rank, slowdown) for who, slowdown in listed),
            by_step=_labelled(w.steps, w.by_step),
            m_w=w.m_w,
            m_s=w.m_s,
        )

    def slowest_workers(self, n: int) -> list[tuple[Worker, float]]:
        """List the workers with the largest slowdown first, ties by dp rank and stage."""
        slowdown = self.what_if.by_worker
        order = (-slowdown).argsort(axis=None, kind="stable")[:n].tolist()
        n_stages = len(self.stage_labels)
        return [(self.worker(i // n_stages, i % n_stages), float(slowdown.flat[i])) for i in order]

    def find_culprits(self) -> Bools:
        """Mark the workers that causes name: by themselves, as the ends of a link, or by their stage or host.

        Returns
        -------
        ndarray of bool, shape (n_dp, n_stages)
        """
        marked = np.zeros((len(self.dp_labels), len(self.stage_labels)), dtype=bool)
        for where in (cause.where for cause in self.causes):
            for worker in where.all_workers:
                marked |= (self.dp_labels[:, None] == worker.dp) & (self.stage_labels == worker.pp)
            marked |= np.isin(self.stage_labels, where.stages)
            if self.hosts is not None and not where.all_workers:
                marked |= np.isin(np.array(self.hosts).reshape(marked.shape), where.hosts)
        return marked

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


def _labelled(labels: Ints, values: Seconds) -> dict[str, float | None]:
    """Name each value of an array by its label."""
    return {str(int(label)): float(value) for label, value in zip(labels, values, strict=True)}
