"""What tests said of suspect machines, and how to take the bad ones out, as a page of text.

Enters: causes with `confirmed`. Leaves: text that reads at any width from 40 columns; commands stand on lines of their own.
"""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from diagnose.model.confirmation import HostConfirmation, TestedCause
from diagnose.report import words
from diagnose.report.escape import escape, name, prose
from diagnose.report.layout import PROSE_WIDTH, draw_bullets, draw_sections

_STYLES = {"confirmed": "bold red", "cleared": "bold green", "unclear": "yellow"}
_WORDS = {"confirmed": "confirmed", "cleared": "cleared", "unclear": "could not tell"}
#: Figures of a machine that are told; the rest is in the JSON.
_MOST_TESTS = 6


def render(job: str, causes: Sequence[TestedCause], hand_over: Sequence[str], *, width: int, color: bool) -> str:
    """Write the page: a section a cause, and at the end the commands, which nobody has run."""
    page = draw_sections(_sections(job, causes), width=min(width, PROSE_WIDTH), color=color)
    if not hand_over:
        return page
    commands = "\n".join(f"  {escape(line)}" for line in hand_over)
    return f"{page}\nTo take out what is confirmed (nothing was run):\n{commands}\n"


def _sections(job: str, causes: Sequence[TestedCause]) -> Iterator[tuple[str | Text, RenderableType]]:
    """Give the sections: which job, then a cause each."""
    yield "", Text(f"{name(job)}: {', '.join(_count(causes))}", style="bold")
    for cause, confidence, said in causes:
        title = Text(f"{escape(cause)} ")
        title.append(_WORDS[said.outcome], style=_STYLES[said.outcome])
        title.append(f", sure {words.ratio(confidence)} (before: {words.ratio(said.confidence_before)})")
        parts: list[RenderableType] = [_draw_host(one) for one in said.hosts]
        if said.links:
            parts.append(
                Text(
                    f"slow between {', '.join(map(name, said.links))}, though both are sound with others: it is the link"
                )
            )
        yield title, Group(*parts)


def _count(causes: Sequence[TestedCause]) -> Iterator[str]:
    """Count the machines by what became of them."""
    best: dict[str, str] = {}
    for _, _, said in causes:
        for one in said.hosts:
            if best.get(one.host) != "confirmed":
                best[one.host] = one.outcome
    for outcome, said_so in _WORDS.items():
        if n := sum(each == outcome for each in best.values()):
            yield f"{words.count(n, 'machine')} {said_so}" if outcome != "unclear" else f"of {n} nobody can tell"


def _draw_host(one: HostConfirmation) -> RenderableType:
    """Draw what a machine measured, the worst first."""
    line = Text(f"{name(one.host)}: ")
    line.append(_WORDS[one.outcome], style=_STYLES[one.outcome])
    odd = [test for test in one.tests if test.outcome != "cleared"]
    told = [prose(test.text) for test in odd[:_MOST_TESTS]]
    if left := len(odd) - len(told):
        told.append(f"and {words.count(left, 'more figure')} like these")
    if sound := len(one.tests) - len(odd):
        told.append(f"{words.count(sound, 'other figure' if odd else 'figure')} as good as on sound machines")
    told += [prose(f"not run: {skipped.test}: {skipped.reason}") for skipped in one.skipped]
    if one.tested_s is None:
        told = ["no result came back"]
    return Group(line, draw_bullets(told)) if told else line
