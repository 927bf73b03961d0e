"""Save checkpoints in the background, or less often.

The replay takes the saves out of the starts, the ends and the gaps of steps. Less often means: what they cost now, divided by how
much longer the interval is. The interval that loses least is that of Young and Daly, where the failure rate is given.
"""

import math
from collections.abc import Mapping

import numpy as np

from diagnose.fixes.frameworks import choose_how
from diagnose.fixes.places import read_number, read_whole
from diagnose.model.analysis import Analysis
from diagnose.model.change import Change, Remove, Spend
from diagnose.model.remedy import FaultLocation, Refusal, Remedy

NAME = "async-checkpoint"
TITLE = "save checkpoints in the background, or less often"
SETTINGS = {
    "every": "save every so many steps as now, and not in the background",
    "mtbf_hours": "mean hours between failures of the job: gives the interval of Young and Daly",
}
#: Where saves are seen.
_COMPONENTS = ("start-delay", "end-delay", "between-steps")
_HOW = {
    "megatron": "--async-save --use-persistent-ckpt-worker --ckpt-format torch_dist --ckpt-fully-parallel-save; "
    "--non-persistent-save-interval with --non-persistent-ckpt-type local for more frequent local ones{interval}",
    "torchtitan": "--checkpoint.async_mode async_with_pinned_mem{interval}",
    "pytorch": "torch.distributed.checkpoint.async_save, with a pinned-memory stager{interval}",
}


def propose(analysis: Analysis, place: FaultLocation, settings: Mapping[str, str]) -> Remedy | Refusal:
    """Take the saves off the steps, or make them rarer."""
    gone: tuple[Change, ...] = tuple(Remove(name) for name in _COMPONENTS if name in analysis.gains.alone_s)
    if not gone:
        return Refusal("nothing stops all workers between steps")
    lost_s = analysis.gains.replayed_s - float(analysis.price(gone).mean())
    now = place.when.period_steps
    save_s = None if now is None else lost_s * now
    figures: dict[str, float | None] = {"save_s": save_s, "every_now_steps": now}
    every = _interval(analysis, settings, save_s, figures)
    if every is None:
        changes, summary, assumed = gone, "save in the background", "what is left of a save on the step costs nothing"
    else:
        if now is None or save_s is None:
            return Refusal("the saves have no period in this trace, so no longer interval can be priced")
        changes = (*gone, Spend(np.array([save_s / every])))
        summary = f"save every {every} steps instead of every {now:g}"
        assumed = "a save costs what it costs now, however rare it is"
    interval = f"; --save-interval {every}" if every is not None else ""
    return Remedy(
        summary=summary,
        how=choose_how({name: how.replace("{interval}", interval) for name, how in _HOW.items()}, analysis.trace.job),
        changes=changes,
        settings={} if every is None else {"every": str(every)},
        assumptions=(assumed,),
        risks=(
            "a copy of the state is held in the memory of the host while it is written"
            if every is None
            else "a failure loses more work: half an interval on average",
        ),
        figures=figures,
    )


def _interval(
    analysis: Analysis, settings: Mapping[str, str], save_s: float | None, figures: dict[str, float | None]
) -> int | None:
    """Choose the interval in steps; None where saves go to the background.

    Source: Young (1974), Daly (2006): the square root of twice the cost of a save times the time between failures.
    """
    if "mtbf_hours" in settings:
        failures_s = 3600.0 * read_number(settings, "mtbf_hours", NAME)
        if save_s is not None and save_s > 0:
            best_s = math.sqrt(2.0 * save_s * failures_s)
            figures["young_daly_s"] = best_s
            figures["young_daly_steps"] = max(round(best_s / analysis.gains.clean_s), 1)
    if "every" in settings:
        return read_whole(settings, "every", NAME, least=1)
    best = figures.get("young_daly_steps")
    return None if best is None else int(best)
