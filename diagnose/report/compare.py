"""Two diagnoses compared, as a page of text, as Markdown, or as one JSON object.

Enters: a `Comparison`. Leaves: text; a page reads at any width from 40 columns, with or without colour.
"""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from diagnose.model.comparison import Change, Comparison, Payoff, Side
from diagnose.model.plain import to_json
from diagnose.report import words
from diagnose.report.escape import escape, name, prose
from diagnose.report.layout import PROSE_WIDTH, draw_bullets, draw_facts, draw_sections, make_grid
from diagnose.report.markdown import bullets, code, table, text

#: What became of a cause, in colour.
_STYLES = {"came": "bold red", "grew": "red", "unclear": "yellow", "shrank": "green", "went": "bold green"}
_TREND_STYLES = {"slower": "bold red", "faster": "bold green"}
#: Parts of a predicted gain from which on a fix has kept its promise, and below which it has not.
_KEPT, _BROKEN = 0.8, 0.2
#: Fixes of one cause weighed at most: best first.
_MAX_FIXES = 3


def render(comparison: Comparison, *, width: int, color: bool) -> str:
    """Write a comparison as a page for a terminal or a plain file."""
    return draw_sections(_sections(comparison), width=min(width, PROSE_WIDTH), color=color)


def render_json(comparison: Comparison) -> str:
    """Write a comparison as one JSON object on one line, without the line end; ASCII."""
    return to_json(comparison.to_document())


def render_markdown(comparison: Comparison) -> str:
    """Write a comparison as Markdown: what comes from the diagnoses is text there and nothing else."""
    return "\n\n".join(_blocks(comparison)) + "\n"


def describe_change(comparison: Comparison) -> str:
    """Say in one sentence what became of the step time, and which causes came and went."""
    old, new = comparison.before.recorded_s, comparison.after.recorded_s
    times = f"{words.seconds(old)} -> {words.seconds(new)} a step"
    share = words.percent(abs(comparison.change_share))
    said = f"{times}, {share} {'longer' if comparison.change_s > 0 else 'shorter'}"
    found = {"slower": f"slower: {said}", "faster": f"faster: {said}", "alike": f"as fast as before: {times}"}
    for kind in ("came", "grew", "shrank", "went"):
        causes = dict.fromkeys(escape(change.seen.cause) for change in comparison.changes if change.change == kind)
        if causes:
            found[comparison.trend] += f"; {', '.join(causes)} {kind}"
    return found[comparison.trend]


def _sections(comparison: Comparison) -> Iterator[tuple[str, RenderableType]]:
    """Give the sections in the order of the page: title and body."""
    yield "", Text(describe_change(comparison), style=_TREND_STYLES.get(comparison.trend, "bold"))
    sides = [("Before", comparison.before), ("After", comparison.after)]
    yield "", draw_facts([(label, _about_side(side)) for label, side in sides])
    yield "What became of the causes", _draw_changes(comparison)
    if comparison.account is not None:
        yield "Where the change comes from", _draw_account(comparison)
    if comparison.payoffs:
        yield "Was it worth it", draw_bullets(_describe_payoffs(comparison))
    if comparison.warnings:
        yield "Mind", draw_bullets([prose(warning) for warning in comparison.warnings], mark="!")


def _about_side(side: Side) -> str:
    """Name one side, with its verdict."""
    job = f"job {name(side.job_id)}" if side.job_id else "a job without a name"
    return f"{name(side.source)}: {job}, {escape(side.verdict)}, {words.seconds(side.recorded_s)} a step"


def _draw_changes(comparison: Comparison) -> RenderableType:
    """Draw two lines a cause: what it is and what became of it, and the time lost to it."""
    if not comparison.changes:
        return Text("neither diagnosis says any cause")
    grid = make_grid("mark", "text")
    for change in comparison.changes:
        lines = [Text(_name_cause(change)), Text(_describe_times(change))]
        lines += [Text(prose(change.note), style="yellow")] if change.note else []
        grid.add_row(Text(change.change, style=_STYLES.get(change.change, "")), Group(*lines))
    return grid


def _name_cause(change: Change) -> str:
    """Name a cause with its severity, its place and its title."""
    seen = change.seen
    return words.first_line(seen.severity, escape(seen.cause), seen.where, seen.title)


def _describe_times(change: Change) -> str:
    """Say how much time a step lost to a cause, and loses."""
    if change.before_s is None or change.after_s is None or change.change_s is None:
        return "lost time not known"
    return f"{words.seconds(change.before_s)} -> {words.seconds(change.after_s)} lost a step"


def _account_rows(comparison: Comparison) -> list[tuple[str, float]]:
    """List what the change is made of, in ms to a tenth: what is rounded away goes to what is unexplained, so that it adds up."""
    account = comparison.account
    if account is None:
        return []
    rows = [("step without any cause", account.clean), *sorted(account.causes.items(), key=lambda row: -abs(row[1]))]
    rounded = [(label, round(1e3 * value, 1)) for label, value in rows]
    total = round(1e3 * account.recorded, 1)
    rest = round(total - sum(value for _, value in rounded), 1)
    return [*rounded, ("unexplained", rest), ("step time", total)]


def _draw_account(comparison: Comparison) -> RenderableType:
    """Draw the change of the step time as a sum."""
    grid = make_grid("text", "number")
    for label, value in _account_rows(comparison):
        is_sum = label == "step time"
        grid.add_row(Text(escape(label), style="bold" if is_sum else ""), f"{'= ' if is_sum else ''}{_signed(value)}")
    return grid


def _signed(value_ms: float) -> str:
    """Write a change in ms.

    >>> _signed(-291.04), _signed(0.0), _signed(1234.5)
    ('-291.0 ms', '0.0 ms', '+1,234.5 ms')
    """
    return f"{value_ms:+,.1f} ms" if value_ms else "0.0 ms"


def _describe_payoffs(comparison: Comparison) -> list[str]:
    """Say of each fix what it had promised and what came of it."""
    found: list[str] = []
    n_of: dict[tuple[str, ...], int] = {}
    for payoff in comparison.payoffs:
        n_of[payoff.causes] = n_of.get(payoff.causes, 0) + 1
        if n_of[payoff.causes] <= _MAX_FIXES:
            found.append(_describe_payoff(payoff, comparison))
    return found


def _describe_payoff(payoff: Payoff, comparison: Comparison) -> str:
    """Say of one fix, or of the whole plan, what it had promised and what came of it."""
    causes = ", ".join(map(escape, payoff.causes))
    fixes = ", ".join(map(escape, payoff.fixes))
    who = f"{fixes} (for {causes})" if fixes else f"all fixes of the plan ({causes})"
    gain = words.seconds(payoff.predicted_gain_s)
    promised = f"{words.seconds(payoff.predicted_s)} a step was predicted, {gain} less"
    now = f"it is {words.seconds(comparison.after.recorded_s)}"
    if payoff.gain_s is None:
        return f"{who}: {promised}; {now}"
    fell = f"time lost to {'it' if len(payoff.causes) == 1 else 'them'} fell by {words.seconds(payoff.gain_s)}"
    if payoff.reached is None:
        return f"{who}: {promised}; {now}; {fell}"
    kept = "not worth what was promised" if payoff.reached < _BROKEN else "worth a part of it"
    kept = "worth it" if payoff.reached >= _KEPT else kept
    return f"{kept}: {who}: {promised}; {now}; {fell}, {words.percent(payoff.reached)} of that"


def _blocks(comparison: Comparison) -> Iterator[str]:
    """Give the blocks of the Markdown."""
    yield f"## {text(describe_change(comparison))}"
    sides = [("Before", comparison.before), ("After", comparison.after)]
    head = ["", "Diagnosis", "Job", "Verdict", "Step time", "Clean"]
    yield table(head, [[label, *_side_cells(side)] for label, side in sides])
    if comparison.changes:
        yield "### What became of the causes"
        yield table(["", "Severity", "Cause", "Place", "Before", "After"], list(map(_row, comparison.changes)))
    notes = [f"{code(change.seen.cause)}: {text(change.note)}" for change in comparison.changes if change.note]
    if notes:
        yield bullets(notes)
    if comparison.account is not None:
        yield "### Where the change comes from"
        rows = [[text(label), _signed(value)] for label, value in _account_rows(comparison)]
        yield table(["Part", "Change"], rows)
    if comparison.payoffs:
        yield "### Was it worth it"
        yield bullets([text(line) for line in _describe_payoffs(comparison)])
    if comparison.warnings:
        yield "### Mind"
        yield bullets([text(warning) for warning in comparison.warnings])


def _side_cells(side: Side) -> list[str]:
    """Give the cells of one side behind its label."""
    named = [code(name(side.source)), code(name(side.job_id)), escape(side.verdict)]
    return [*named, words.seconds(side.recorded_s), words.seconds(side.clean_s)]


def _row(change: Change) -> list[str]:
    """Give the line of one cause."""
    seen = change.seen
    return [
        f"**{change.change}**",
        escape(seen.severity or "-"),
        code(seen.cause),
        text(words.spot(seen.where).removeprefix("at ")),
        words.seconds(change.before_s),
        words.seconds(change.after_s),
    ]
