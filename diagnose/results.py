"""What the functions of the package give: answers of the engine, each with the ways to show it.

Enters: a diagnosis, a comparison, prices, an explanation, or what came of a triage. Leaves: the same with `to_dict`, `to_json` and
`to_text`, a `repr` of one line, and what a notebook shows.
"""

import dataclasses
import html
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from diagnose.errors import UsageError, explain_unwritten
from diagnose.files import appearing
from diagnose.model.analysis import ReportData
from diagnose.model.comparison import Comparison as _Comparison
from diagnose.model.diagnosis import Diagnosis as _Diagnosis
from diagnose.model.explanation import Explanation as _Explanation
from diagnose.model.plain import to_json, to_plain
from diagnose.model.priced import HandPrices
from diagnose.model.triage_run import TriageRun as _TriageRun
from diagnose.report import words
from diagnose.report.escape import escape

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from diagnose.report.html.picture import Picture

#: Columns of a page of text where nobody says otherwise.
WIDTH = 100
#: Pixels of the frame in which a notebook shows a page; a reader drags it larger.
FRAME_HEIGHT = 720
_PRE = "font-family:Menlo,Consolas,'DejaVu Sans Mono',monospace;line-height:1.2;white-space:pre;overflow-x:auto"
_Result = TypeVar("_Result", bound="_Shown")


class _Shown:
    """What all results have in common."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Give the object that the command prints with `--format json`, as plain types; what is not known is None."""
        raise NotImplementedError

    def to_json(self) -> str:
        """Give the same as one line of JSON, ASCII, without the line end."""
        return to_json(self.to_dict())

    def to_text(self, *, width: int = WIDTH, color: bool = False) -> str:
        """Give the page that the command prints for people.

        Parameters
        ----------
        width : int
            Columns, from 40.
        color : bool
            With the control sequences of a terminal that shows colours.
        """
        raise NotImplementedError

    def _line(self) -> str:
        """Say in a line what it is."""
        raise NotImplementedError

    def __repr__(self) -> str:
        """Give the kind and one line of text, whatever names the job has."""
        return f"<{type(self).__name__} {escape(self._line())}>"

    def _repr_html_(self) -> str:
        """Show the page of text in a notebook, where a wide line is scrolled and not cut off."""
        return f'<pre style="{_PRE}">{html.escape(self.to_text())}</pre>'


@dataclasses.dataclass(frozen=True, slots=True, repr=False, eq=False)
class Diagnosis(_Shown, _Diagnosis):
    """Why one job is slow, where, since when, and what to change.

    Made by `diagnose.diagnose`. In a notebook it shows itself as its page.

    Attributes
    ----------
    verdict : str
        `healthy`, `noisy`, `straggling` or `inconclusive`; `why` says a sentence more of the second and the last.
    causes : tuple of Cause
        Largest share first: `cause`, `title`, `confidence`, `share`, `recoverable`, `where`, `when`, `evidence`, `fixes`, ...
    step_time : StepTime
        `recorded`, `simulated`, `ideal`, `clean`: mean seconds a step.
    job, ledger, plan, fidelity, what_if, features, warnings, not_checked, ...
        As the keys of the JSON.
    """

    #: What pictures are made from; None where it was not kept.
    _data: ReportData | None = None

    def __getstate__(self) -> list[Any]:
        """Go to another process, or to disk, without what pictures are made from: it is as large as the trace."""
        return _state_of(self)

    def to_dict(self) -> dict[str, Any]:
        """Give the object that `diagnose JOB --format json` prints, as plain types; what is not known is None."""
        return _Diagnosis.to_dict(self)

    def to_text(self, *, width: int = WIDTH, color: bool = False, verbose: int = 0) -> str:
        """Give the page that `diagnose JOB` prints.

        Parameters
        ----------
        width : int
            Columns, from 40.
        color : bool
            With the control sequences of a terminal that shows colours.
        verbose : int
            As often as `-v` is given: 0 for the gist, 1 for all figures, 2 with every rule and its conditions and every feature.
        """
        from diagnose.report import brief, terminal

        if not verbose:
            return brief.render(self, width=width, color=color)
        return terminal.render(self, width=width, color=color, thorough=verbose > 1)

    def to_markdown(self) -> str:
        """Give the page for tickets and pull requests."""
        from diagnose.report import markdown

        return markdown.render(self)

    @overload
    def to_html(self, path: None = None) -> str: ...

    @overload
    def to_html(self, path: "str | os.PathLike[str]") -> None: ...

    def to_html(self, path: "str | os.PathLike[str] | None" = None) -> str | None:
        """Draw the page for a browser: one document that needs no network.

        Parameters
        ----------
        path : path, optional
            Where to write it, all or nothing.

        Returns
        -------
        str or None
            The document where no path is given. Without what pictures are made from (see `diagnose.diagnose`) it has tables in
            their place.

        Raises
        ------
        UsageError
            The file cannot be written.
        """
        from diagnose.report.html import page

        speedup = f" --min-speedup {self.min_speedup:g}"
        text = (
            page.render_saved(self, in_site=False) if self._data is None else page.render(self._data, options=speedup)
        )
        if path is None:
            return text
        _write(path, text.encode("utf-8", "backslashreplace"))
        return None

    def to_perfetto(self, path: "str | os.PathLike[str]", *, limit_mb: float | None = None) -> tuple[str, ...]:
        """Draw the worst step and a typical one as timelines for ui.perfetto.dev, as `--perfetto` does.

        Parameters
        ----------
        path : path
            Packed by gzip unless it ends in `.json`.
        limit_mb : float, optional
            Draw no more than a file of this size holds.

        Returns
        -------
        tuple of str
            What did not fit.

        Raises
        ------
        UsageError
            What pictures are made from was not kept; the file cannot be written.
        """
        return _draw_timelines(self._kept("to_perfetto"), path, limit_mb, "the plan of the diagnosis")

    def plot_workers(self) -> "Figure":
        """Draw how slow the job is when only one worker keeps its own times, for each worker.

        Returns
        -------
        matplotlib.figure.Figure
            Shown by a notebook; `savefig` writes it.

        Raises
        ------
        UsageError
            What pictures are made from was not kept, or there is nothing to draw.
        """
        from diagnose.report.html.workers import draw_workers

        data = self._kept("plot_workers")
        return self._plot("plot_workers", lambda: draw_workers(data.diagnosis))

    def plot_timeline(self) -> "Figure":
        """Draw the worst step as recorded, ideal and fixed, for an affected data-parallel rank and a sound one.

        Returns and raises as `plot_workers` does.
        """
        from diagnose.report.html.timelines import draw_timeline

        data = self._kept("plot_timeline")
        return self._plot("plot_timeline", lambda: draw_timeline(data))

    def plot_budget(self) -> "Figure":
        """Draw where the GPU-seconds of a step go, all parts as one bar.

        Returns as `plot_workers` does, also where what pictures are made from was not kept.
        """
        from diagnose.report.html.budget import draw_budget

        return self._plot("plot_budget", lambda: draw_budget(self))

    def _plot(self, name: str, draw: "Callable[[], Picture | None]") -> "Figure":
        """Draw a picture of the page."""
        from diagnose.report.html.figures import plot

        figure = plot(draw, self.job.job_id)
        if figure is None:
            raise UsageError(f"{name}: this job has nothing to draw there; to_html() has all that there is")
        return figure

    def _kept(self, name: str) -> ReportData:
        """Give what pictures are made from, or say how to get it."""
        if self._data is None:
            why = "a training log has no operations to draw" if self.is_from_log else "diagnose the job again with it"
            raise UsageError(f"{name} needs what diagnose.diagnose keeps of the trace with pictures=True: {why}")
        return self._data

    def _line(self) -> str:
        """Say job, verdict and first cause."""
        return self.summary

    def _repr_html_(self) -> str:
        """Show the page in a notebook, in a frame that can neither read nor change the notebook."""
        return frame(self.to_html())


@dataclasses.dataclass(frozen=True, slots=True, repr=False, eq=False)
class Comparison(_Shown, _Comparison):
    """What changed between two jobs: `trend`, `changes`, `account`, `payoffs`. Made by `diagnose.compare`."""

    def to_dict(self) -> dict[str, Any]:
        """Give the object that `diagnose compare --format json` prints, as plain types."""
        plain: dict[str, Any] = to_plain(self.to_document())
        return plain

    def to_text(self, *, width: int = WIDTH, color: bool = False) -> str:
        """Give the page that `diagnose compare` prints; see `Diagnosis.to_text`."""
        from diagnose.report import compare

        return compare.render(self, width=width, color=color)

    def to_markdown(self) -> str:
        """Give the page for tickets and pull requests."""
        from diagnose.report import compare

        return compare.render_markdown(self)

    def _line(self) -> str:
        """Say what became of the step time."""
        from diagnose.report import compare

        return compare.describe_change(self)


@dataclasses.dataclass(frozen=True, slots=True, repr=False, eq=False)
class Explanation(_Shown, _Explanation):
    """Why one cause is said of a job, or why not. Made by `diagnose.explain`."""

    @property
    def why(self) -> str:
        """The answer in one sentence."""
        from diagnose.report import explain

        return explain.describe_why(self)

    def to_dict(self) -> dict[str, Any]:
        """Give the object that `diagnose explain --format json` prints, as plain types."""
        return _Explanation.to_dict(self) | {"why": self.why}

    def to_text(self, *, width: int = WIDTH, color: bool = False) -> str:
        """Give the page that `diagnose explain` prints; see `Diagnosis.to_text`."""
        from diagnose.report import explain

        return explain.render(self, width=width, color=color)

    def _line(self) -> str:
        """Say the answer in a sentence."""
        return f"{self.cause} in {self.job_id}: {self.why}"


@dataclasses.dataclass(frozen=True, slots=True, repr=False, eq=False)
class Prices(_Shown, HandPrices):
    """How fast a job would run with some fixes: `recorded_s`, `predicted_s`, `speedup`, `asked`. Made by `diagnose.what_if`."""

    #: What timelines are made from.
    _data: ReportData | None = None

    def __getstate__(self) -> list[Any]:
        """Go to another process without what timelines are made from."""
        return _state_of(self)

    def to_dict(self) -> dict[str, Any]:
        """Give the object that `diagnose what-if --format json` prints, as plain types."""
        return HandPrices.to_dict(self)

    def to_text(self, *, width: int = WIDTH, color: bool = False) -> str:
        """Give the page that `diagnose what-if` prints; see `Diagnosis.to_text`."""
        from diagnose.report import what_if

        return what_if.render(self, width=width, color=color)

    def to_perfetto(self, path: "str | os.PathLike[str]", *, limit_mb: float | None = None) -> tuple[str, ...]:
        """Draw timelines with and without the fixes; see `Diagnosis.to_perfetto`."""
        if self._data is None:
            raise UsageError("to_perfetto needs the trace, which does not go from one process to another")
        return _draw_timelines(self._data, path, limit_mb, "the fixes given by hand")

    def _line(self) -> str:
        """Say what the fixes give together."""
        refused = sum(one.fix is None for one in self.asked)
        but = f", {refused} of {len(self.asked)} refused" if refused else ""
        times = f"{words.seconds(self.recorded_s)} -> {words.seconds(self.predicted_s)} a step"
        return f"{self.job_id}: {times}, {words.speedup(self.speedup)}{but}"


@dataclasses.dataclass(frozen=True, slots=True, repr=False, eq=False)
class TriageRun(_Shown, _TriageRun):
    """What a triage did: counts, what failed, what cost most. Made by `diagnose.triage`."""

    def to_dict(self) -> dict[str, Any]:
        """Give the object that `diagnose triage --format json` prints, as plain types."""
        plain: dict[str, Any] = to_plain(_TriageRun.to_dict(self))
        return plain

    def to_text(self, *, width: int = WIDTH, color: bool = False) -> str:
        """Give the page that `diagnose triage` prints; see `Diagnosis.to_text`."""
        from diagnose.report import triage

        return triage.render(self, width=width, color=color)

    def _line(self) -> str:
        """Say where the jobs went."""
        counts = (
            ("diagnosed", self.n_diagnosed),
            ("failed", self.n_failed),
            ("known", self.n_known),
            ("left", self.n_left),
        )
        return f"{words.count(self.n_found, 'job')}: " + ", ".join(f"{n:,} {what}" for what, n in counts if n)


def show_as(kind: type[_Result], found: Any, data: ReportData | None = None) -> _Result:
    """Give what the engine found as the result of this kind, with what pictures are made from where it has any."""
    fields = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
    return kind(**fields) if data is None else kind(**fields | {"_data": data})


def frame(page: str) -> str:
    """Put a document into a frame of a notebook: its script runs, and reaches neither the notebook nor a network.

    >>> frame("<p>a & b</p>").partition("srcdoc=")[2]
    '"&lt;p&gt;a &amp; b&lt;/p&gt;"></iframe>'
    """
    style = f"width:100%;height:{FRAME_HEIGHT}px;border:1px solid #c5ced9;border-radius:4px;resize:vertical"
    return f'<iframe title="diagnosis" sandbox="allow-scripts" style="{style}" srcdoc="{html.escape(page)}"></iframe>'


def _state_of(result: Any) -> list[Any]:
    """Give the values of all fields, but for what pictures are made from."""
    return [None if field.name == "_data" else getattr(result, field.name) for field in dataclasses.fields(result)]


def _draw_timelines(
    data: ReportData, path: "str | os.PathLike[str]", limit_mb: float | None, fixed: str
) -> tuple[str, ...]:
    """Write timelines into a file, and give what did not fit."""
    from diagnose.report.perfetto import LIMIT_MB, AppliedFixes, render

    picture = render(
        data,
        limit_mb=LIMIT_MB if limit_mb is None else limit_mb,
        compressed=not os.fspath(path).lower().endswith(".json"),
        applied=AppliedFixes(fixed, data.plan) if data.plan else None,
    )
    _write(path, picture.content)
    return tuple(picture.warnings)


def _write(path: "str | os.PathLike[str]", content: bytes) -> None:
    """Write a file that appears when all is written."""
    try:
        with appearing(Path(path)) as beside:
            beside.write_bytes(content)
    except (OSError, ValueError) as error:
        raise explain_unwritten(f"cannot write {path}", error) from None
