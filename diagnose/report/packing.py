"""The comparison of document packers as a page of text, or as one JSON object.

Enters: a `Comparison`. Leaves: text that reads at any width from 40 columns, with or without colour.
"""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from diagnose.model.plain import to_json
from diagnose.packing.compare import Comparison, PackerResult
from diagnose.report import words
from diagnose.report.escape import escape
from diagnose.report.layout import PROSE_WIDTH, draw_facts, draw_sections

SCHEMA = "diagnose-pack/1"
#: Narrower than this the table leaves columns out.
_WIDE = 84
#: Narrower than this it leaves out one more.
_MIDDLE = 56
#: The headline names the best packer with a mean delay of at most so many batches: longer delays change the order of the data.
_SHORT_DELAY = 0.5


def render(comparison: Comparison, *, name: str, width: int, color: bool) -> str:
    """Write a comparison of packers of the file of this name as a page for a terminal or a plain file."""
    return draw_sections(_sections(comparison, name, width), width=min(width, PROSE_WIDTH), color=color)


def render_json(comparison: Comparison, *, name: str) -> str:
    """Write a comparison as one JSON object on one line.

    Delays are in batches, times in seconds, tokens are counts; a rank's imbalance is over the sums of its microbatches.
    """
    plan, stream = comparison.plan, comparison.stream
    return to_json(
        {
            "schema": SCHEMA,
            "source": name,
            "documents": len(stream.lengths),
            "documents_cut": comparison.n_cut,
            "batches": stream.n_batches,
            "tokens_left": stream.tokens_left,
            "window": plan.window,
            "microbatches": plan.n_microbatches,
            "dp": plan.n_ranks,
            "max_tokens": plan.max_tokens,
            "cost": {"linear": plan.cost.linear, "quadratic": plan.cost.quadratic, "fixed": plan.cost.fixed},
            "packers": [_plain(row) for row in comparison.rows],
        }
    )


def _plain(row: PackerResult) -> dict[str, object]:
    """Give one packer as plain values."""
    found = row.measured
    plain: dict[str, object] = {
        "packer": row.packer,
        "batches_together": row.together,
        "queues": list(row.thresholds),
        "imbalance": found.mean_imbalance,
        "imbalance_max": found.max_imbalance,
        "slowdown": found.slowdown,
        "rank_imbalance": row.rank_imbalance,
        "delayed_share": found.delayed_share,
        "delay": found.mean_delay,
        "delay_documents": found.mean_delay_documents,
        "delay_max": found.max_delay,
        "early": found.mean_early,
        "waiting_documents": found.waiting_documents,
        "waiting_tokens": found.waiting_tokens,
        "tokens_max": found.max_tokens,
        "memory_ratio": found.memory_ratio,
    }
    if row.batch_s is not None:
        plain["batch_s"] = row.batch_s
    if row.n_windows is not None:
        plain |= {"problems": row.n_windows, "proven": row.n_proven}
    return plain


def _sections(comparison: Comparison, name: str, width: int) -> Iterator[tuple[str, RenderableType]]:
    """Give the sections in order: title and body."""
    yield "", Text(f"{escape(name)}: {_headline(comparison)}", style="bold")
    yield "", draw_facts(_about(comparison))
    yield "Packers", _tabulate(comparison, width)
    yield "How to read this", draw_facts(_notes(comparison, wide=width >= _WIDE))


def _headline(comparison: Comparison) -> str:
    """Say how uneven the batches are and how even they could be."""
    first = comparison.rows[0].measured
    soon = [row for row in comparison.rows if row.measured.mean_delay <= _SHORT_DELAY]
    best = min(soon, key=lambda row: row.measured.mean_imbalance)
    before, after = words.ratio(first.mean_imbalance), words.ratio(best.measured.mean_imbalance)
    if before == after:
        return f"imbalance {before}, and no packer lowers it"
    gain = 1.0 - best.measured.slowdown / first.slowdown
    return f"imbalance {before} as it is, {after} with {_title(best)}; about {words.percent(gain)} less time computing"


def _about(comparison: Comparison) -> list[tuple[str, RenderableType]]:
    """Say what was packed."""
    plan, stream = comparison.plan, comparison.stream
    cut = f", {comparison.n_cut:,} longer than the window and cut" if comparison.n_cut else ""
    left = f"; {stream.tokens_left:,} tokens after the last batch left out" if stream.tokens_left else ""
    ranks = f"{plan.n_ranks} dp ranks x " if plan.n_ranks > 1 else ""
    batch, cost = f"{plan.n_microbatches} microbatches of {plan.window:,}", plan.cost
    return [
        ("Documents", f"{len(stream.lengths):,} pieces in {stream.n_batches:,} batches{cut}{left}"),
        ("Batch", f"{ranks}{batch} tokens; memory for {plan.max_tokens:,}"),
        ("Cost", f"{cost.linear:g} x tokens + {cost.quadratic:.4g} x tokens_sq"),
    ]


def _tabulate(comparison: Comparison, width: int) -> Table:
    """Lay out one packer a line."""
    wide, middle, ranks = width >= _WIDE, width >= _MIDDLE, comparison.plan.n_ranks > 1
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("packer", overflow="fold")
    heads = ["imbalance", *(["largest", "time"] if wide else []), *(["ranks"] if ranks else [])]
    heads += ["delay", *(["by docs", "most"] if wide else []), *(["memory"] if middle else [])]
    heads += ["ms"] if comparison.plan.timed else []
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for row in comparison.rows:
        found = row.measured
        figures = [f"{found.mean_imbalance:.3f}"]
        figures += [words.ratio(found.max_imbalance), words.ratio(found.slowdown)] if wide else []
        figures += [f"{row.rank_imbalance:.3f}"] if ranks else []
        figures += [words.ratio(found.mean_delay)]
        figures += [words.ratio(found.mean_delay_documents), str(found.max_delay)] if wide else []
        figures += [words.ratio(found.memory_ratio)] if middle else []
        figures += [_milliseconds(row.batch_s)] if row.batch_s is not None else []
        table.add_row(Text(_title(row)), *figures, style="bold green" if row.packer == "balanced" else None)
    return table


def _title(row: PackerResult) -> str:
    """Name a packer with what it was told.

    >>> from types import SimpleNamespace as Of
    >>> _title(Of(packer="queues", thresholds=(32768, 65536), together=1))
    'queues at 32K, 64K'
    """
    over = f" over {row.together} batches" if row.together > 1 else ""
    match row.packer:
        case "greedy":
            return f"fixed-length greedy{over}"
        case "exact":
            return f"fixed-length exact{over}"
        case "queues":
            queues = ", ".join(map(_tokens, row.thresholds))
            return f"queues at {queues}" if queues else "variable-length, no queue"
    return row.packer


def _tokens(tokens: int) -> str:
    """Write a number of tokens, in units of 1,024 where it is whole."""
    return f"{tokens // 1024}K" if tokens % 1024 == 0 else f"{tokens:,}"


def _milliseconds(seconds: float) -> str:
    """Write milliseconds with two digits that count."""
    ms = 1e3 * seconds
    return f"{ms:.2f}" if ms < 10 else f"{ms:,.0f}"


def _notes(comparison: Comparison, *, wide: bool) -> list[tuple[str, RenderableType]]:
    """Say what the columns mean, and what is not proven."""
    largest, most = ("; largest: of one batch", "; by docs: a document; most: the longest wait") if wide else ("", "")
    notes: list[tuple[str, RenderableType]] = [
        ("imbalance", f"largest over mean cost of a batch's microbatches, mean over batches{largest}")
    ]
    if wide:
        notes.append(
            ("time", "sum over batches of the largest cost over that of the mean: 1.10 is 10% more time than even")
        )
    if comparison.plan.n_ranks > 1:
        notes.append(("ranks", "largest over mean cost of a data-parallel rank, all its microbatches together"))
    notes += [
        ("delay", f"batches that a token waits on average{most}"),
        ("memory", "tokens of the longest microbatch over the window"),
    ]
    if comparison.plan.timed:
        notes.append(("ms", "of packing one batch, on this machine"))
    if any(row.together > 1 for row in comparison.rows):
        early = "packers over several batches read them ahead, and move documents to earlier batches as well"
        notes.append(("order", early))
    for row in comparison.rows:
        if row.n_windows is not None:
            proof = f"{row.n_proven} of {row.n_windows} problems proven optimal to 1%"
            if row.n_proven != row.n_windows:
                proof += f"; {comparison.plan.exact_s:g} s each, another machine may find more"
            notes.append((_title(row).removeprefix("fixed-length "), proof))
    return notes
