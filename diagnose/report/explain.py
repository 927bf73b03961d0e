"""The explanation of one cause as a page of text, or as one JSON object.

Enters: an `Explanation`. Leaves: text that reads at any width from 40 columns, with or without colour.
"""

import math
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from diagnose.model.explanation import REASONS, CausePrediction, Checked, Explanation, Weight, Worth
from diagnose.model.plain import to_json
from diagnose.report import words
from diagnose.report.conditions import describe_wanted, draw_conditions, format_number
from diagnose.report.escape import escape, prose
from diagnose.report.facts import describe_alternatives, describe_makers
from diagnose.report.layout import PROSE_WIDTH, draw_facts, draw_sections

#: Conditions named in the sentence that says why.
_MAX_NAMED = 2
#: Columns for what a component is, at least.
_LEAST_WORDS = 9
#: A probability below this is an objection.
_EVEN = 0.5


def render(explanation: Explanation, *, width: int, color: bool) -> str:
    """Write an explanation as a page for a terminal or a plain file."""
    return draw_sections(_sections(explanation), width=min(width, PROSE_WIDTH), color=color)


def render_json(explanation: Explanation) -> str:
    """Write an explanation as one JSON object on one line; `why` is the sentence of `describe_why`."""
    return to_json(explanation.to_dict() | {"why": describe_why(explanation)})


def describe_why(explanation: Explanation) -> str:
    """Say in one sentence why the cause is said, or why not."""
    e = explanation
    if e.said:
        rule = {
            True: "the conditions of its rule hold",
            False: "the conditions of its rule do not hold, but the classifier sees it",
            None: "it cannot be said whether the conditions of its rule hold, but the classifier sees it",
        }
        first = "no rule explains the time" if e.conditions is None else rule[e.fires]
        doubted = "" if not _objects(e.prediction) else f"; {_describe_probability(e.prediction)}"
        return f"Said: {first}, and {_describe_gain(e)}{doubted}."
    parts = list(dict.fromkeys(part for code in e.because if (part := _describe_reason(e, code))))
    return f"Not said: {'; and '.join(parts) or 'nothing speaks for it'}."


def _describe_reason(e: Explanation, code: str) -> str:
    """Say one thing that keeps the cause from being said."""
    match code:
        case "inconclusive" | "alternative" | "unknown":
            return prose(e.doubt) or REASONS[code]
        case "unsaid":
            return f"what was recorded cannot show it; {prose(e.doubt)}"
        case "unmeasured":
            return f"nobody can tell what it costs, as {prose(e.worth[-1].reason)}"
        case "gain":
            return _describe_gain(e)
        case "conditions" | "unknown-conditions":
            deciding = [part for part in e.conditions.conditions() if part.deciding] if e.conditions else []
            named = [_describe_failed(part) for part in deciding[:_MAX_NAMED]]
            more = len(deciding) - len(named)
            return " and ".join([", ".join(named), f"{more} more"] if more > 0 else named)
        case "veto":
            held = [part for part in e.vetoes.conditions() if part.holds and part.says] if e.vetoes else []
            return f"it is ruled out: {' and '.join(part.says for part in held) or 'a veto of its rule holds'}"
        case "classifier":
            return f"the conditions of its rule hold and {_describe_gain(e)}, but {_describe_probability(e.prediction)}"
        case _:
            return f"{_describe_gain(e)}, but other causes account for that time"


def _describe_gain(e: Explanation) -> str:
    """Say how much shorter steps would be, against what is asked for."""
    least = words.percent(e.least_gain)
    gain = e.gain or 0.0
    if gain < words.NO_SHARE:
        return f"nothing comes back without it ({least} of the step time is asked for)"
    first = ", once the causes that are said are gone," if e.after_others else ""
    return f"without it{first} steps are {words.percent(gain)} shorter ({least} is asked for)"


def _describe_failed(part: Checked) -> str:
    """Say of a condition why the rule does not fire for it."""
    name, wanted = escape(part.feature), describe_wanted(part)
    if part.value is None:
        return f"{name} could not be measured ({prose(part.reason)})"
    if part.holds:
        return f"{name} is {format_number(part.value)}, {wanted}, and must not be"
    return f"{name} is {format_number(part.value)}, not {wanted}"


def _objects(prediction: CausePrediction | None) -> bool:
    """Say whether the classifier thinks that the cause is not there."""
    return prediction is not None and prediction.probability is not None and prediction.probability < _EVEN


def _describe_probability(prediction: CausePrediction | None) -> str:
    """Say what the classifier thinks."""
    if prediction is None or prediction.probability is None:
        return "the classifier does not know it"
    return f"the classifier gives it a probability of {words.ratio(prediction.probability)}"


def _sections(e: Explanation) -> Iterator[tuple[str, RenderableType]]:
    """Give the sections in the order of the page: title and body."""
    job = escape(e.job_id) or "job"
    style = "bold red" if e.said else "bold"
    yield "", Text(f"{job}: {prose(e.title)} ({escape(e.cause)}) is {'said' if e.said else 'not said'}", style=style)
    yield "", draw_facts(_summary(e))
    if e.conditions is not None:
        yield "Conditions of its rule", draw_conditions(e.conditions)
    if e.vetoes is not None and e.vetoes.parts:
        yield "What would rule it out", draw_conditions(e.vetoes)
    yield "What removing it gives back", _draw_worth(e)
    if e.changes:
        yield "Change points", _draw_changes(e)
    yield "Classifier", _draw_prediction(e.prediction)
    yield "", draw_facts(_origins(e))


def _summary(e: Explanation) -> list[tuple[str, RenderableType]]:
    """Say why, how sure, where and when."""
    rows: list[tuple[str, RenderableType]] = [("Why", describe_why(e))]
    if e.confidence is not None:
        rows.append(("Confidence", words.confidence(e.confidence)))
    if e.alternatives:
        rows.append(("Or else", "\n".join(describe_alternatives(e.alternatives))))
    without = e.worth[-1].without_s
    rows.append(("Step time", f"recorded {words.seconds(e.recorded_s)}, without it {words.seconds(without)}"))
    where = words.places(e.where)
    if where or e.said:
        rows.append(("Where", "\n".join(where) or "spread over the job"))
    when = words.since(e.when)
    if when:
        rows.append(("When", when))
    return rows


def _draw_worth(e: Explanation) -> RenderableType:
    """Draw a table with what each component gives back."""
    table = Table.grid(padding=(0, 2))
    table.add_column(overflow="fold", min_width=_LEAST_WORDS)
    for _ in range(4):
        table.add_column(justify="right", no_wrap=True)
    table.add_row("", *(Text(head, style="dim") for head in ("alone", "last", "share", "without")))
    for worth in e.worth:
        table.add_row(prose(worth.words), *_worth_cells(worth))
    notes = [f"{prose(w.words)}: {prose(w.reason)}" for w in e.worth if w.reason]
    how = "alone: of the recorded step time; last: after all others; share: of the lost time; without: step time"
    return Group(table, *(Text(note) for note in notes), Text(how, style="dim"))


def _worth_cells(worth: Worth) -> list[str]:
    """Write the figures of a component."""
    parts = [worth.alone, worth.last, worth.share]
    cells = ["-" if part is None else words.percent(part).replace("under ", "<") for part in parts]
    return [*cells, "-" if worth.without_s is None else words.seconds(worth.without_s)]


def _draw_changes(e: Explanation) -> RenderableType:
    """Say at which steps it began or ended to cost time."""

    def level(value: float) -> str:
        return f"{words.ratio(math.exp(value))}x" if e.changes_in == "log-ratio" else words.seconds(value)

    unit = "its peers' time" if e.changes_in == "log-ratio" else "lost a step"
    lines = [
        f"step {change.step}: from {level(change.before)} to {level(change.after)} {unit}; "
        f"by chance with probability {format_number(change.chance)}"
        for change in e.changes
    ]
    return Group(*map(Text, lines))


def _draw_prediction(prediction: CausePrediction | None) -> RenderableType:
    """Say how probable the classifier thinks the cause, and what that rests on."""
    if prediction is None:
        return Text("this version has none")
    known = prediction.probability is not None
    said = f"probability {words.ratio(prediction.probability)}" if known else "it was trained on no job with this cause"
    lines: list[RenderableType] = [Text(said)]
    if prediction.unlike:
        lines.append(Text(prose(prediction.unlike), style="yellow"))
    if prediction.speaks_for or prediction.speaks_against:
        table = Table.grid(padding=(0, 2))
        for _ in range(2):
            table.add_column(overflow="fold")
        for _ in range(2):
            table.add_column(justify="right")
        table.add_row("", *(Text(head, style="dim") for head in ("feature", "value", "log odds")))
        for label, weights in (("for", prediction.speaks_for), ("against", prediction.speaks_against)):
            _add_weights(table, label, weights)
        lines.append(table)
    return Group(*lines)


def _add_weights(table: Table, label: str, weights: Sequence[Weight]) -> None:
    """Add one row a feature, the label before the first."""
    for n, weight in enumerate(weights):
        value = "missing" if weight.value is None else format_number(weight.value)
        table.add_row(label if n == 0 else "", escape(weight.feature), value, f"{weight.log_odds:+.2f}")


def _origins(e: Explanation) -> list[tuple[str, RenderableType]]:
    """Say which rule was asked, what made the page, and what is wrong with the input."""
    rows: list[tuple[str, RenderableType]] = [("Rule", escape(e.rule))] if e.rule else []
    rows += [("Warning", prose(warning)) for warning in e.warnings]
    return [*rows, ("Made by", describe_makers(e.made_by))]
