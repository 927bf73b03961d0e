"""What a reader must know about the input of an analysis."""

import numpy as np

from diagnose.judge.confidence import runs_beside
from diagnose.judge.other_work import describe_types
from diagnose.judge.rest import describe_more_work, describe_uneven_plan, describe_unproven_plan
from diagnose.judge.worth import measure_planned_collections
from diagnose.model.analysis import Analysis
from diagnose.model.components import STALLED
from diagnose.model.planned import find_planned_collections
from diagnose.model.stalls import StallKind
from diagnose.model.trace import Trace
from diagnose.numerics.figures import write_figure, write_percent

#: The component of planned work, and the part of the time from which on it is mentioned.
PLANNED = STALLED[StallKind.PLANNED]
MENTIONED_SHARE = 0.01
#: A clock that is off by this part of a step is, where nothing tells how long messages or collectives take.
MENTIONED_OFFSET = 0.005
#: Where single ranks have more of it, by this part of the time, others wait for them.
UNEVEN_SHARE = 0.02


def list_caveats(analysis: Analysis) -> tuple[str, ...]:
    """List in sentences what the recording leaves out, what reading it took for granted, and whose clock was off."""
    trace = analysis.trace
    return (
        *(trace.recording.sentences() if trace.recording else ()),
        *trace.warnings,
        *_describe_clocks(analysis),
        *_describe_overlap(analysis),
        *_describe_planned(analysis),
        *_describe_collections(analysis),
        *_describe_more_work(analysis),
        *describe_types(analysis),
    )


def _describe_overlap(analysis: Analysis) -> list[str]:
    """Say that S is too long where communication runs beside what it is taken to wait for."""
    if not analysis.fidelity.ok or not runs_beside(analysis):
        return []
    longer = write_percent(1.0 / (1.0 + analysis.fidelity.discrepancy) - 1.0)
    # What matters comes first: short pages have room for so much.
    less_sure = "causes and gains are less sure: communication runs beside what S takes it to wait for"
    little = f"S, whose steps are {longer} longer than the recorded ones, says little here"
    return [f"{less_sure}; they are of a replay in which it does, and {little}"]


def _describe_planned(analysis: Analysis) -> list[str]:
    """Say how much time planned work takes, first that others wait for one rank's."""
    share = analysis.gains.recoverable(PLANNED)
    if share < MENTIONED_SHARE or describe_unproven_plan(analysis, 0.0):
        return []
    said = f"evaluation, logging and what else is planned takes {write_percent(share)} of the time"
    uneven = describe_uneven_plan(analysis, UNEVEN_SHARE)
    return [uneven, said] if uneven else [f"{said}; that is no fault"]


def _describe_collections(analysis: Analysis) -> list[str]:
    """Say how much time collections take that all workers make together, and every how many steps."""
    planned, share = find_planned_collections(analysis.trace), measure_planned_collections(analysis)
    if planned is None or share < MENTIONED_SHARE:
        return []
    every = f"planned collections every {write_figure(planned.interval_steps, 2)} steps"
    return [f"{every} take {write_percent(share)} of the time: a longer interval takes less"]


def _describe_more_work(analysis: Analysis) -> list[str]:
    """Say how much time steps take for more tokens than usual."""
    said = describe_more_work(analysis)
    return [said] if said and analysis.gains.recoverable("step") >= MENTIONED_SHARE else []


def _describe_clocks(analysis: Analysis) -> list[str]:
    """Say whose clock is furthest off, of workers and of their members, where messages seem to be there before they are sent."""
    trace, offset_s, said, least_s = analysis.trace, analysis.clock_offset_s, [], _least_offset(analysis)
    if trace.members is not None and np.abs(trace.members.clock_s).max() > least_s:
        of_members_s = trace.members.clock_s
        *worker, member = (int(i) for i in np.unravel_index(np.abs(of_members_s).argmax(), of_members_s.shape))
        who, by = _name_worker(trace, *worker), write_figure(float(of_members_s[*worker, member]), 2)
        said.append(
            f"clocks of members differ: member {member} of the worker at {who} is off by {by} s from the first one; corrected"
        )
    if np.abs(offset_s).max() > least_s:
        who = _name_worker(trace, *divmod(int(np.abs(offset_s).argmax()), trace.n_stages))
        by = f"{write_figure(float(offset_s.flat[np.abs(offset_s).argmax()]), 2)} s"
        where = "corrected" if analysis.clocks_apart else "corrected for causes and gains, S is on times as recorded"
        most = " in some steps, by less in others" if analysis.clocks_move else ""
        said.append(f"clocks differ: the worker at {who} is off by {by}{most}; {where}")
    return said


def _least_offset(analysis: Analysis) -> float:
    """Say by how much a clock must be off at least: what messages, or collectives, usually take, else a part of the step."""
    known = [s[np.isfinite(s)] for s in (analysis.transfers.link_s, analysis.transfers.group_s)]
    usual_s = [float(np.median(seconds)) for seconds in known if len(seconds)]
    return min(usual_s, default=MENTIONED_OFFSET * analysis.gains.recorded_s)


def _name_worker(trace: Trace, dp: int, stage: int) -> str:
    """Name a worker as the file does."""
    return f"dp {int(trace.dp_labels[dp])}, stage {int(trace.stage_labels[stage])}"
