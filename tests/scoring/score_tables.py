"""Figures of how good diagnoses are, as tables in a terminal or in Markdown.

Enters: `Figures`. Leaves: text.
"""

from collections.abc import Sequence

from tests.scoring.figures import SURE, CauseFigures, Figures, OnsetFigures, PartFigures, Rate
from tests.scoring.judged import NOTHING, UNKNOWN

#: A cell of a table without a figure.
NONE = "-"
#: What stands above a table, and its cells.
Table = tuple[str, list[list[str]]]


def render(figures: Figures, *, markdown: bool = False) -> str:
    """Write all figures as tables, in Markdown or in aligned columns."""
    tables = [
        _render_causes(figures),
        _render_places(figures),
        _render_job_rates(figures),
        _render_published(figures),
        _render_calibration(figures),
        _render_confusion(figures),
        render_parts("By kind of fault: jobs in which it has to be said", figures.kinds),
        render_parts("By feature of the world", figures.worlds),
    ]
    return "\n".join(f"{_title(title, markdown)}\n{table(cells, markdown=markdown)}" for title, cells in tables)


def _title(title: str, markdown: bool) -> str:
    """Write what stands above a table."""
    return f"**{title}**\n" if markdown else title


def _render_causes(figures: Figures) -> Table:
    """Show how well each cause is found."""
    cells = [["cause", "jobs", "found", "missed", "made up", "precision", "recall", "F1"]]
    cells += [_cause_cells(cause) for cause in figures.causes]
    total = [sum(getattr(c, name) for c in figures.causes) for name in ("n", "found", "missed", "made_up")]
    cells.append(["all", *map(str, total), NONE, NONE, f"macro {ratio(figures.macro_f1)}"])
    said = (
        f"causes said with confidence {figures.min_confidence:g} or more" if figures.min_confidence else "causes said"
    )
    failed = f", {figures.n_failed} failed" if figures.n_failed else ""
    return f"Causes ({figures.n_jobs} jobs, {figures.n_healthy} of them healthy{failed}; {said})", cells


def _cause_cells(cause: CauseFigures) -> list[str]:
    """Show one cause."""
    counts = [str(n) for n in (cause.n, cause.found, cause.missed, cause.made_up)]
    return [cause.cause, *counts, ratio(cause.precision), ratio(cause.recall), ratio(cause.f1)]


def _render_places(figures: Figures) -> Table:
    """Show how right place, time and gain of the causes found are."""
    cells = [
        ["of causes found", "worker", "stage", "onset exact", "median off", "missing", "made up", "gain off", "p90"],
    ]
    parts: list[tuple[str, CauseFigures | Figures]] = [(cause.cause, cause) for cause in figures.causes]
    for name, part in [*parts, ("all", figures)]:
        gain = [ratio(part.gain.mean, 4), ratio(part.gain.p90, 4)]
        cells.append([name, _of(part.worker), _of(part.stage), *_onset_cells(part.onset), *gain])
    return "Places (named first), onsets (in sampled steps), absolute error of recoverable (part of the step)", cells


def _onset_cells(onset: OnsetFigures) -> list[str]:
    """Show the figures of onsets."""
    dated = onset.n - onset.n_missing
    exact = f"{ratio(onset.exact)} of {dated}" if dated else NONE
    missing = f"{onset.n_missing} of {onset.n}" if onset.n else NONE
    return [exact, NONE if onset.median is None else f"{onset.median:g}", missing, str(onset.n_made_up)]


def _render_job_rates(figures: Figures) -> Table:
    """Show what is counted by job."""
    cells = [["by job", "share", "jobs"]]
    for name, found in (
        ("largest cause said first", figures.primary),
        ("healthy with anything said", figures.false_alarms),
        (f"faulty with `{UNKNOWN}` said", figures.unknown),
        (f"of causes said with {SURE:g} or more: there", figures.sure),
    ):
        cells.append([name, ratio(found.share), f"{found.hits} of {found.n}"])
    return "Jobs", cells


def _render_published(figures: Figures) -> Table:
    """Show what the published thresholds would make of the same jobs."""
    cells = [["cause", "jobs", "found", "missed", "made up", "precision", "recall", "F1"]]
    cells += [_cause_cells(cause) for cause in figures.published]
    cells.append(["all", NONE, NONE, NONE, NONE, NONE, NONE, f"macro {ratio(figures.published_macro_f1)}"])
    return (
        "Published thresholds on the same jobs (arXiv 2505.05713: S >= 1.1, M_W or M_S >= 0.5, correlation >= 0.9)",
        cells,
    )


def _render_calibration(figures: Figures) -> Table:
    """Show how often what is said with some confidence is there."""
    cells = [["confidence", "said", "mean", "there"]]
    for found in figures.bins:
        span = f"{found.lowest:.3f} - {found.highest:.3f}"
        cells.append([span, str(found.n), ratio(found.confidence), ratio(found.right)])
    return f"Confidence (expected calibration error {ratio(figures.calibration_error)}, all confidences)", cells


def _render_confusion(figures: Figures) -> Table:
    """Show what is taken for what."""
    said = {name for row in figures.confusion.values() for name in row}
    columns = sorted(said - {UNKNOWN, NOTHING}) + [name for name in (UNKNOWN, NOTHING) if name in said]
    cells = [["true \\ said first", *columns]]
    for cause, row in figures.confusion.items():
        cells.append([cause, *(str(row.get(name, "")) for name in columns)])
    return "Jobs with exactly one cause", cells


def render_parts(title: str, parts: Sequence[PartFigures]) -> Table:
    """Show jobs cut by what they have."""
    cells = [
        [
            "jobs with",
            "jobs",
            "found",
            "missed",
            "made up",
            "F1",
            "macro-F1",
            f"sure ({SURE:g})",
            "there",
            "healthy wrong",
        ]
    ]
    for part in parts:
        counts = [str(n) for n in (part.n_jobs, part.found, part.missed, part.made_up)]
        alarms = f"{part.false_alarms.hits} of {part.false_alarms.n}"
        sure = [str(part.sure.n), ratio(part.sure.share)]
        cells.append([part.name, *counts, ratio(part.f1), ratio(part.macro_f1), *sure, alarms])
    return title, cells


def ratio(value: float | None, digits: int = 3) -> str:
    """Write a number; None where there is none."""
    return NONE if value is None else f"{value:.{digits}f}"


def _of(found: Rate) -> str:
    """Write a share with what it is a share of."""
    return f"{ratio(found.share)} of {found.n}" if found.n else NONE


def table(cells: Sequence[Sequence[str]], *, markdown: bool = False) -> str:
    """Write a table whose first row is its head; the first column stands left, the others right.

    >>> print(table([["cause", "n"], ["network-fault", "7"]]), end="")
    cause          n
    network-fault  7
    """
    if markdown:
        rule = ["---"] + ["--:"] * (len(cells[0]) - 1)
        return "".join(f"| {' | '.join(row)} |\n" for row in [cells[0], rule, *cells[1:]])
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    lines = []
    for row in cells:
        rest = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *rest]).rstrip() + "\n")
    return "".join(lines)
