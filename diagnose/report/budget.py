"""Where the GPU-seconds of a step go, in words and bars, and what else would make the job faster.

Enters: a `Diagnosis` with a budget, or the budget of a fleet. Leaves: sections of pages of text, and the words that pictures share.
"""

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from diagnose.model.budget import UNEXPLAINED, Budget, HostWait, Lever
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.fleet_document import FleetBudget
from diagnose.report import facts, words
from diagnose.report.charts import draw_shares
from diagnose.report.escape import name, prose
from diagnose.report.layout import draw_marked

#: What the parts of a budget are called.
PART_NAMES = {
    "compute": "computing",
    "bubble": "pipeline bubble",
    "exposed_p2p": "exposed transfers",
    "exposed_collectives": "exposed collectives",
    "exposed_members": "collectives of tp and cp members",
    "input": "waiting for input",
    "checkpoint": "saving checkpoints",
    "evaluation": "evaluation, planned work",
    "other_work": "rows of other types",
    "host": "host launches late",
    "between_steps": "between steps",
}
#: What no cause accounts for, in `Budget.lost`.
LOST_UNEXPLAINED = "lost, unexplained"
TITLE = "Where the step goes"
LEVERS_TITLE = "What else would make it faster"


def list_parts(measured: Mapping[str, float], lost: Mapping[str, float]) -> list[tuple[str, float, bool]]:
    """List all parts that are not nothing: name in words, share, and whether it is lost; largest causes first, unexplained last."""
    parts = [(PART_NAMES[part], share, False) for part, share in measured.items()]
    causes = sorted(lost.items(), key=lambda entry: (entry[0] == UNEXPLAINED, -entry[1], entry[0]))
    parts += [
        (LOST_UNEXPLAINED if cause == UNEXPLAINED else f"lost to {cause}", share, True) for cause, share in causes
    ]
    return [part for part in parts if part[1] >= words.NO_SHARE]


def list_fleet_parts(budget: FleetBudget) -> list[tuple[str, float, bool]]:
    """List the parts of a fleet's budget, as shares of its GPU hours."""
    parts, lost = (
        {name: hours / budget.hours_analysed for name, hours in some.items()} for some in (budget.parts, budget.lost)
    )
    return list_parts(parts, lost)


def describe_host(wait: HostWait) -> str:
    """Say what makes the host wait for the GPU, how often, and what that costs."""
    what = f"{name(wait.operator)} calls {name(wait.call)}" if wait.operator else f"{name(wait.call)} is called"
    inside = f" (in {name(wait.inside)})" if wait.inside else ""
    who = "" if wait.rank is None else f" of rank {wait.rank}"
    often = f"{wait.per_step:.3g} times a step"
    return f"{what} {often}{inside}; after it the GPU{who} has nothing to do {words.percent(wait.share)} of the time"


def describe_lever(lever: Lever) -> str:
    """Say what a lever gives."""
    gain = words.pace(lever.predicted_step_time, lever.predicted_speedup)
    return f"at best {gain}" if lever.at_most else gain


def draw_budget(diagnosis: Diagnosis, width: int, *, thorough: bool = False) -> Iterator[tuple[str, RenderableType]]:
    """Give the sections of the page of text: a bar for each part, and the levers; none without a budget.

    Where thorough, with how to do it on every framework, if that of the job is not known.
    """
    budget = diagnosis.budget
    if budget is None:
        return
    yield f"{TITLE} ({words.hours(diagnosis.gpu_hours_analysed)} GPU hours)", _draw_parts(budget, width)
    if diagnosis.levers:
        yield (
            LEVERS_TITLE,
            draw_marked(
                [(f"{n}.", _draw_lever(lever, thorough=thorough)) for n, lever in enumerate(diagnosis.levers, start=1)]
            ),
        )


def draw_fleet_budget(budget: FleetBudget | None, width: int) -> Iterator[tuple[str, RenderableType]]:
    """Give the section of the fleet's page; none where no job has a budget."""
    if budget is not None:
        hours = f"{words.hours(budget.hours_analysed)} GPU hours of {words.count(budget.n_jobs, 'job')}"
        yield f"Where the time of all jobs goes ({hours})", _draw_bars(list_fleet_parts(budget), width)


def _draw_parts(budget: Budget, width: int) -> RenderableType:
    """Draw a bar for each part, what makes the host wait, and what was not measured."""
    lines: list[RenderableType] = [_draw_bars(list_parts(budget.measured(), budget.lost), width)]
    if budget.host_wait is not None:
        lines.append(Text(f"Host: {describe_host(budget.host_wait)}"))
    if budget.not_measured:
        missing = [f"{PART_NAMES[part]} ({prose(why)})" for part, why in budget.not_measured.items()]
        lines.append(Text(f"Not measured: {'; '.join(missing)}", style="dim"))
    return Group(*lines)


def _draw_bars(parts: Sequence[tuple[str, float, bool]], width: int) -> RenderableType:
    """Draw a bar for each part."""
    styled = [
        (part, share, "red" if lost and part != LOST_UNEXPLAINED else "dim" if lost else "")
        for part, share, lost in parts
    ]
    return draw_shares(width, styled)[0]


def _draw_lever(lever: Lever, *, thorough: bool) -> RenderableType:
    """Say what to change, what a replay of it gives, how, and what that takes for granted."""
    lines = [
        Text(prose(lever.summary), style="bold"),
        Text(describe_lever(lever), style="green"),
        *(Text(line) for line in (facts.split_how(lever) if thorough else facts.choose_how(lever))),
        Text(f"assumed: {prose('; '.join(lever.assumes))}", style="dim"),
    ]
    return Group(*lines)
