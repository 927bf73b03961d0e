"""What a reader must know about the input of an analysis."""

from diagnose.judge.other_work import describe_types
from diagnose.model.analysis import Analysis
from diagnose.model.components import STALLED
from diagnose.model.stalls import StallKind
from diagnose.numerics.figures import write_figure, write_percent

#: The component of planned work, and the part of the time from which on it is mentioned.
PLANNED = STALLED[StallKind.PLANNED]
MENTIONED_SHARE = 0.01


def list_caveats(analysis: Analysis) -> tuple[str, ...]:
    """List in sentences what the recording leaves out, what reading it took for granted, and whose clock was off."""
    trace = analysis.trace
    return (
        *(trace.recording.sentences() if trace.recording else ()),
        *trace.warnings,
        *_describe_clocks(analysis),
        *_describe_planned(analysis),
        *describe_types(analysis),
    )


def _describe_planned(analysis: Analysis) -> list[str]:
    """Say how much time planned work takes."""
    share = analysis.gains.recoverable(PLANNED)
    if share < MENTIONED_SHARE:
        return []
    return [f"evaluation, logging and what else is planned takes {write_percent(share)} of the time; that is no fault"]


def _describe_clocks(analysis: Analysis) -> list[str]:
    """Say whose clock is furthest off."""
    trace, offset_s = analysis.trace, analysis.clock_offset_s
    if not offset_s.any():
        return []
    dp, stage = divmod(int(abs(offset_s).argmax()), trace.n_stages)
    who = f"dp {int(trace.dp_labels[dp])}, stage {int(trace.stage_labels[stage])}"
    by = f"{write_figure(float(offset_s[dp, stage]), 2)} s"
    return [
        f"clocks differ: the worker at {who} is off by {by}; corrected for causes and gains, S is on times as recorded"
    ]
