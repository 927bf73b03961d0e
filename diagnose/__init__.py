"""Says why a large training job is slow, where, since when, and what to change.

`diagnose`, `compare`, `what_if`, `explain` and `triage` do what the commands of these names do; what they give shows itself in a
notebook, and has `to_dict`, `to_json` and `to_text`. Everything that is wrong with an input is a `DiagnoseError`.

>>> import diagnose
>>> diagnose.diagnose("fixtures/healthy.parquet").verdict
'healthy'

Nothing heavy is imported before a function is called. No configuration file is read: functions do what their arguments say.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from diagnose._version import __version__
from diagnose.model.request import MIN_SPEEDUP, Source

if TYPE_CHECKING:
    import os

    from diagnose.errors import DiagnoseError, RuleError, ServiceError, TraceError, UsageError
    from diagnose.results import Comparison, Diagnosis, Explanation, Prices, TriageRun

__all__ = [
    "Comparison",
    "DiagnoseError",
    "Diagnosis",
    "Explanation",
    "Prices",
    "RuleError",
    "ServiceError",
    "TraceError",
    "TriageRun",
    "UsageError",
    "__version__",
    "compare",
    "diagnose",
    "explain",
    "triage",
    "what_if",
]

#: Names that cost an import of numpy, and where they stand: brought in when first asked for.
_LAZY = dict.fromkeys(("DiagnoseError", "RuleError", "ServiceError", "TraceError", "UsageError"), "diagnose.errors")
_LAZY |= dict.fromkeys(("Comparison", "Diagnosis", "Explanation", "Prices", "TriageRun"), "diagnose.results")

# The first import of a package binds its name here. These two share theirs with functions, and so are imported, both empty, before.
for _name in ("compare", "triage"):
    import_module(f"diagnose.{_name}")


def diagnose(
    source: Source,
    *,
    meta: "str | os.PathLike[str] | Mapping[str, Any] | None" = None,
    steps: str | Sequence[int] | None = None,
    rules: "str | os.PathLike[str] | None" = None,
    min_speedup: float = MIN_SPEEDUP,
    log: "str | os.PathLike[str] | None" = None,
    telemetry: "str | os.PathLike[str] | None" = None,
    pictures: bool = True,
) -> "Diagnosis":
    """Diagnose one job.

    Parameters
    ----------
    source : path, bytes, open binary file, pandas DataFrame, or pyarrow Table
        The trace: what `diagnose JOB` reads, its content, or a table with the columns of the format, one row an operation.
        Tables of other packages do that hand out Arrow columns (polars, DuckDB).
    meta : path or mapping, optional
        YAML file with metadata of the job, or what would stand in one: `{"job_id": "run-7", "tp_size": 8}`.
    steps : str or sequence of int, optional
        Analyse only these steps: `"16-40,80"` or `range(16, 41)`.
    rules : path, optional
        Folder with rules of your own; one replaces the built-in rule of its id.
    min_speedup : float, at least 1
        Report a cause only when removing it makes the job this many times faster.
    log : path, optional
        Training log of the run that the trace is of.
    telemetry : path or address, optional
        What the machines of the job measured: a file or folder (answers of Prometheus, nvidia-smi), or a Prometheus server.
    pictures : bool
        Keep what pictures are made from, which takes as much memory as the trace. Without it `to_html` has tables in their place:
        for who diagnoses many jobs and keeps the diagnoses.

    Returns
    -------
    Diagnosis

    Raises
    ------
    TraceError
        The input cannot be read as a trace.
    RuleError
        A rule file, or one with metadata, is wrong.
    UsageError
        An argument makes no sense.

    Examples
    --------
    >>> diagnosis = diagnose("fixtures/worker-fault.parquet")
    >>> diagnosis.causes[0].where.workers[0].dp
    1
    >>> diagnosis.to_html("report.html")  # doctest: +SKIP
    """
    from diagnose.arguments import make_request
    from diagnose.pipeline import diagnose_and_keep
    from diagnose.results import Diagnosis, show_as

    request = make_request(
        source, meta=meta, steps=steps, rules=rules, min_speedup=min_speedup, log=log, telemetry=telemetry
    )
    found, data = diagnose_and_keep(request)
    return show_as(Diagnosis, found, data if pictures else None)


def compare(
    before: "Source | Diagnosis | Mapping[str, Any]",
    after: "Source | Diagnosis | Mapping[str, Any]",
    *,
    job: str | None = None,
    rules: "str | os.PathLike[str] | None" = None,
    min_speedup: float = MIN_SPEEDUP,
) -> "Comparison":
    """Say what changed between two jobs: causes that came, went, grew or shrank, and the step time.

    Parameters
    ----------
    before, after : Diagnosis, mapping, or what `diagnose` takes
        A diagnosis at hand, what its `to_dict` gave, a file with what `--format json` printed, or a trace.
    job : str, optional
        Id of the job, where a file holds the diagnoses of several.
    rules, min_speedup
        As `diagnose` takes them, for traces.

    Returns
    -------
    Comparison

    Raises
    ------
    TraceError
        One of them is neither a trace nor a diagnosis.
    RuleError
        A rule file is wrong.
    UsageError
        An argument makes no sense, or it is not clear which job is meant.

    Examples
    --------
    >>> compare("fixtures/healthy.parquet", "fixtures/worker-fault.parquet").trend
    'slower'
    """
    from diagnose.arguments import make_request, read_text
    from diagnose.comparing import compare_jobs, find_diagnoses
    from diagnose.model.diagnosis import Diagnosis as Found
    from diagnose.results import Comparison, show_as

    sides = [
        find_diagnoses(
            given if isinstance(given, Found | Mapping) else make_request(given, rules=rules, min_speedup=min_speedup)
        )
        for given in (before, after)
    ]
    return show_as(Comparison, compare_jobs(*sides, job=None if job is None else read_text("job", job)))


def what_if(
    source: Source,
    fixes: str | Iterable[str] = (),
    *,
    scales: str | Iterable[str] = (),
    meta: "str | os.PathLike[str] | Mapping[str, Any] | None" = None,
    steps: str | Sequence[int] | None = None,
    rules: "str | os.PathLike[str] | None" = None,
    min_speedup: float = MIN_SPEEDUP,
) -> "Prices":
    """Say how fast a job would run with some fixes.

    Parameters
    ----------
    source
        As `diagnose` takes it.
    fixes : str or sequence of str
        `NAME` or `NAME:key=value,key=value`, applied one after the other: those of `diagnose fixes`.
    scales : str or sequence of str
        `TYPE [stage=N] [dp=N] [step=N] xF`: operations of a type take F times as long.
    meta, steps, rules, min_speedup
        As `diagnose` takes them.

    Returns
    -------
    Prices
        A fix that is not for this job has `refused` instead of a price.

    Raises
    ------
    UsageError
        There is nothing to price, a fix, a setting or a place is not known, or another argument makes no sense.
    TraceError, RuleError
        As `diagnose` does.

    Examples
    --------
    >>> what_if("fixtures/worker-fault.parquet", "replace-worker").speedup > 1.1
    True
    """
    from diagnose.arguments import make_request, read_texts
    from diagnose.errors import UsageError
    from diagnose.model.priced import HandFixes
    from diagnose.pipeline import price_job
    from diagnose.results import Prices, show_as

    by_hand = HandFixes(read_texts("fixes", fixes), read_texts("scales", scales))
    if not by_hand.fixes and not by_hand.scales:
        raise UsageError("nothing to price: give fixes (`diagnose fixes` lists them) or scales")
    request = make_request(source, meta=meta, steps=steps, rules=rules, min_speedup=min_speedup)
    found, data = price_job(request, by_hand)
    return show_as(Prices, found, data)


def explain(
    source: Source,
    cause: str,
    *,
    meta: "str | os.PathLike[str] | Mapping[str, Any] | None" = None,
    steps: str | Sequence[int] | None = None,
    rules: "str | os.PathLike[str] | None" = None,
    min_speedup: float = MIN_SPEEDUP,
) -> "Explanation":
    """Say why one cause is said of a job, or why not.

    Parameters
    ----------
    source
        As `diagnose` takes it.
    cause : str
        Id of a rule, or `unknown` for time that no rule explains.
    meta, steps, rules, min_speedup
        As `diagnose` takes them.

    Returns
    -------
    Explanation

    Raises
    ------
    UsageError
        There is no such cause, or another argument makes no sense.
    TraceError, RuleError
        As `diagnose` does.

    Examples
    --------
    >>> explain("fixtures/healthy.parquet", "worker-fault").said
    False
    """
    from diagnose.arguments import make_request, read_text
    from diagnose.pipeline import explain_job
    from diagnose.results import Explanation, show_as

    request = make_request(source, meta=meta, steps=steps, rules=rules, min_speedup=min_speedup)
    return show_as(Explanation, explain_job(request, read_text("cause", cause)))


def triage(  # noqa: PLR0913 - one argument an option of the command
    sources: "str | os.PathLike[str] | Iterable[str | os.PathLike[str]]",
    *,
    store: str = "sqlite:///diagnose.db",
    workers: int | None = None,
    memory: str | None = None,
    timeout: float = 600.0,
    since: str | None = None,
    limit: int | None = None,
    force: bool = False,
    retry_failed: bool = False,
    dry_run: bool = False,
    dask: str | None = None,
    rules: "str | os.PathLike[str] | None" = None,
    min_speedup: float = MIN_SPEEDUP,
    watch: "Callable[[Any], None] | None" = None,
) -> "TriageRun":
    """Diagnose all jobs that are new or changed, and keep the results in a store.

    Jobs run in processes of their own, which import the program that calls: in a script, call it below
    `if __name__ == "__main__":`.

    Parameters
    ----------
    sources : path or sequence of paths
        Folders, globs, `.txt` files with one of these a line, or `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`.
    store : str
        `sqlite:///FILE` or `postgresql://USER@HOST/DATABASE`.
    workers : int, optional
        Processes; one a core when left out.
    memory : str, optional
        Memory for all jobs together, such as `"8G"`; 60% of the machine when left out.
    timeout : float
        Seconds after which a job is given up.
    since : str, optional
        Only traces modified since: `"12h"`, `"2d"` or `"2026-01-31"`.
    limit : int, optional
        Do at most so many jobs, the newest.
    force, retry_failed, dry_run : bool
        Do jobs that have not changed, or have failed, too; list what would be done, and do nothing.
    dask : str, optional
        Work on this Dask cluster, such as `"tcp://host:8786"`.
    rules, min_speedup
        As `diagnose` takes them.
    watch : callable, optional
        Called with how far it has come: `n_jobs`, `n_done`, `n_failed`, `n_running`, `took_s`.

    Returns
    -------
    TriageRun

    Raises
    ------
    UsageError
        An argument makes no sense, or what it needs is not installed.
    RuleError
        A rule file is wrong.
    ServiceError
        The store or the cluster does not answer.

    Examples
    --------
    >>> triage("jobs/", store="sqlite:///night.db").n_failed  # doctest: +SKIP
    0
    """
    from diagnose.arguments import make_triage_request
    from diagnose.results import TriageRun, show_as
    from diagnose.triage.triage import triage as run_triage

    request = make_triage_request(
        sources,
        store=store,
        n_workers=workers,
        memory=memory,
        timeout_s=timeout,
        since=since,
        limit=limit,
        force=force,
        retry_failed=retry_failed,
        dry_run=dry_run,
        dask=dask,
        rules=rules,
        min_speedup=min_speedup,
    )
    return show_as(TriageRun, run_triage(request, watch=watch))


def __getattr__(name: str) -> Any:
    """Bring in classes when they are first asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module 'diagnose' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    """List what the package is for, also what is not brought in yet."""
    return sorted({*globals(), *__all__})
