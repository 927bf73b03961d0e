"""What is said of rows of types that the format does not name: what they take of the step, and which of them are uneven."""

from diagnose.model.analysis import Analysis
from diagnose.model.other_work import OtherWork
from diagnose.model.place import Where
from diagnose.numerics.figures import write_figure, write_ratio

#: The component of such work where it is uneven.
UNEVEN = "other-work"
#: A type that takes this part of the step is named, so many at most.
MENTIONED_SHARE = 0.01
MAX_NAMED = 5
#: Letters of a type that are said.
MAX_NAME = 60


def describe_types(analysis: Analysis) -> list[str]:
    """Say which types take how much of the step, on the workers that have them."""
    found = sorted(analysis.others, key=lambda work: -work.busy_s.max())
    found = [work for work in found if work.busy_s.max() >= MENTIONED_SHARE * analysis.gains.recorded_s]
    if not found:
        return []
    said = [_describe(work, analysis.gains.recorded_s) for work in found[:MAX_NAMED]]
    said += [f"{len(found) - MAX_NAMED} more types"] if len(found) > MAX_NAMED else []
    met = [f"`{_shorten(work.name)}`" for work in found[:MAX_NAMED] if work.is_met]
    but = f", but for waits in {' and '.join(met)} for who comes last" if met else ""
    return [f"between operations workers are busy with {', '.join(said)}: replays keep it where it stands{but}"]


def _describe(work: OtherWork, step_s: float) -> str:
    """Say what one type takes."""
    has = work.busy_s > 0
    share = 100 * float(work.busy_s[has].mean()) / step_s
    where = "" if has.all() else f" on {int(has.sum())} of {has.size} workers"
    return f"`{_shorten(work.name)}` ({write_figure(share, 2)}% of the step{where})"


def describe_uneven(analysis: Analysis, where: Where) -> tuple[str, str]:
    """Say which type is uneven, as a title and in a sentence; else which one others wait for, if there is any."""
    worst = max(analysis.others, key=lambda work: (work.uneven_s, float(work.busy_s.max())), default=None)
    if worst is None:
        return "", ""
    workers = [f"dp {worker.dp}, stage {worker.pp}" for worker in where.workers]
    on = f" on {' and '.join(workers)}" if 0 < len(workers) <= 2 else f" on {len(workers)} workers" if workers else ""
    how = f"take {write_ratio(worst.ratio, 2)} times as long as usual" if worst.ratio else "make some computes longer"
    name = _shorten(worst.name)
    if not worst.uneven_s:
        return (
            f"unknown cause: workers wait for `{name}`",
            f"workers wait for rows of the type `{name}` on others, and no rule says why",
        )
    text = f"rows of the type `{name}`{on} {how}"
    return f"unknown cause: uneven `{name}`", f"{text}, and no rule says why"


def _shorten(name: str) -> str:
    """Cut a type's name, which may be anything that a file says."""
    name = " ".join(name.split())
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…"
