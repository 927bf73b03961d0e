"""Whether steps lose time at their start, end or between them, at exact multiples of an interval, and on whom."""

import numpy as np

from diagnose.features.stalls import REGULAR, measure_places_of_waits
from diagnose.model.components import Breakdown, Gains
from diagnose.model.feature import Feature, Features
from diagnose.model.optype import Op
from diagnose.model.stalls import StallKind
from diagnose.model.trace import Bools, Evidence, Ints, Seconds
from diagnose.numerics.chance import TOSS_UP
from diagnose.numerics.period import MIN_HITS, MIN_PERIODIC_HITS, find_exact_period, find_period
from diagnose.numerics.robust import nan_median

#: Each feature: what its values read as, and when it misleads.
READS_AS = {
    "stall.period_steps": "distance of the steps that lose time at their start or end, where it is regular; misleads when a "
    "trace samples so sparsely that a multiple of it shows",
    "stall.regularity": "part of those steps that lie on the period, of those on the period that lose time: the smaller; 1 exact, "
    "or it happened once",
    "stall.chance": "probability that so many steps lie on one period by chance; small: no chance",
    "stall.hits": "how many steps lose time at their start or end; two always seem to lie on a period; misleads on long traces",
    "stall.checkpoint_share": "part of the time lost there in steps with checkpoint rows or right after one, as far as rows are "
    "long enough; 1 all explained",
    "stall.steps_share": "part of the borders between steps that lose time; 1 all of them: no checkpoint",
    "stall.size_ratio": "seconds lost at such a border over an ordinary step",
    "stall.planned_doubt": "how probable it is that what is lost there is planned work, as an evaluation every so many steps, "
    "and no save: 0 where checkpoint rows say so, or most is in optimizers, less where it was seen once",
    "stall.optimizer_doubt": "likewise, that it is work of the optimizers, as a preconditioner made anew every so many steps: "
    "where most of it is in or before these",
    "stall.loader_doubt": "likewise, that it is a loader whose workers take turns: where all workers of a job of one or two "
    "stages, or one worker that reads, lose time before steps every few of them, and no row says for what",
    "stall.rare_doubt": "how probable it is that something else, as a restart, stops all workers where it was seen once and no row "
    "tells",
    "stall.input_doubt": "how probable it is that what looks like waiting for input is the end of a stop of all: it is mostly "
    "in steps that lose time at their start, or after one that does at its end, which are few; misleads where a loader stops all",
    "step.shared": "part of what computes vary by from step to step that all workers and directions have in common; 1 steps have "
    "more or less work, 0.7 busy hosts, 0 slow steps follow on slow ones; misleads where all is slow in single steps",
}
#: Steps that lost more than this part of the most that any step lost count as hit.
HIT_SHARE = 0.3
#: ... or than this one, where these keep an interval exactly and the longest, of a slow storage, would hide all others.
LESSER_SHARE = 0.1
#: What is lost beside a row is its own up to so many times its length: all wait for the longest save, and begin anew after it.
ROW_TELLS = 2.0
#: Rows explain what is lost from this part of it on.
EXPLAINED_SHARE = 0.5
#: Without rows a stall of all workers, every so many steps, is a save in half of the cases at most: frameworks save, evaluate, log
#: and start profilers at intervals, and loaders wait. Of 19 jobs recorded for this project with such stalls 7 saved. Where the
#: first data-parallel rank alone is busy it may save, evaluate or log for all: of 10 recorded jobs 7 saved.
PLANNED_CHANCE = TOSS_UP
#: ... and of several stages one alone evaluates nothing: where that rank of one, or of each, is busy, it was a save in nine of ten
#: such jobs, a log in the other.
STAGES_CHANCE = 0.28
#: A stop that was seen once is as probably neither of these: of 7 recorded jobs with one, one saved. Fewer steps than these may
#: hold one of many that keep an interval.
ONCE_CHANCE, ONCE_STEPS = TOSS_UP, (15, 30)
#: A loader with as many workers as this makes all wait every so many steps, where each stage reads data or labels. How often that
#: is so was not measured: it is told beside the others, and less probable than they are. One that is late for one worker alone is
#: as probably that of any other rank; one worker has at least this part of what is lost.
MOST_LOADERS, READING_STAGES, LOADER_CHANCE, ALONE_SHARE = 16, 2, 0.28, 0.8
#: The component of what optimizers take longer: neither evaluations nor logs lie in them, and hardly a save.
IN_OPTIMIZERS = "end-delay"
#: Workers return from a stop of all at different times: where so much of what is waited for input is right after one, and
#: such steps are few (as the rule for saves), it is as probably that.
#: They may be on its period, if it is kept exactly: what others see of one then may be short.
AFTER_STOP_SHARE, FEW_STOPS_SHARE, STOP_CHANCE = 0.5, 0.6, TOSS_UP
#: Less than this part of a step is nothing.
NEGLIGIBLE_SHARE = 0.01
#: All computes of a slow step take so many times as long as usual.
SLOW_STEP_RATIO = 1.1


def measure_periodicity(breakdown: Breakdown, gains: Gains, evidence: Evidence) -> Features:
    """Measure when time is lost outside operations, and when all workers are slow."""
    order = np.argsort(breakdown.steps, kind="stable")
    borders = _measure_borders(breakdown, order, gains, evidence)
    n_stages = breakdown.slow_workers.shape[1]
    doubts = _measure_doubts(gains, borders, n_stages, len(order))
    return borders | doubts | {"step.shared": _share_of_steps(breakdown, order)}


def _measure_doubts(gains: Gains, borders: Features, n_stages: int, n_steps: int) -> Features:
    """Say how probable it is that what looks like a save is planned work, a loader's, or was seen once."""
    lost = {
        name: max(gains.recoverable(name), 0.0) for name, traits in gains.traits.items() if traits.border is not None
    }
    total = sum(lost.values())
    if not total:
        missing = Feature.missing("nothing that was found at the start or end of steps costs time")
        return dict.fromkeys((f"stall.{name}_doubt" for name in ("planned", "optimizer", "loader", "rare")), missing)
    rows_say, period = borders["stall.checkpoint_share"].value, borders["stall.period_steps"].value
    is_told = rows_say is not None and rows_say >= EXPLAINED_SHARE
    of_all, of_first, of_reader, in_optimizers, of_other = 0.0, 0.0, 0.0, 0.0, 0.0
    for name, gain in lost.items():
        on = gains.blame_s.get(name)
        # Nobody but the first worker saves for all.
        of_other += gain if on is not None and on.flat[1:].max(initial=0.0) > ALONE_SHARE * on.sum() else 0.0
        # Nearer to all of it than to the part that each rank has where all are alike.
        if on is not None and on.shape[0] > 1 and on[0].sum() > (1.0 + 1.0 / on.shape[0]) / 2.0 * on.sum():
            of_first += gain
            of_reader += gain / len(on) if on[0, [0, -1]].max() > ALONE_SHARE * on.sum() else 0.0
        elif name == IN_OPTIMIZERS:
            in_optimizers += gain
        else:
            of_all += gain
    takes_turns = not is_told and period is not None and period <= MOST_LOADERS
    of_loader = LOADER_CHANCE * (of_reader + (of_all if n_stages <= READING_STAGES else 0.0)) / total * takes_turns
    is_once = not is_told and borders["stall.hits"].value == 1.0
    # ... of all workers; what stops one alone, once, is its machine's, however few steps there are.
    is_long = max(float(np.interp(n_steps, ONCE_STEPS, (0.0, 1.0))), float(of_other > EXPLAINED_SHARE * total))
    of_once = ONCE_CHANCE * is_long if is_once else 0.0
    # Where saves have rows that tell of less, there was something else.
    is_likely = n_stages > 1 and of_first > EXPLAINED_SHARE * total and rows_say is None
    planned = STAGES_CHANCE if is_likely else PLANNED_CHANCE
    doubt = 0.0 if is_told else planned * (1.0 - of_loader) * (1.0 - of_once)
    mostly_optimizers = in_optimizers > of_all + of_first
    return {
        "stall.rare_doubt": Feature(of_once),
        "stall.planned_doubt": Feature(0.0 if mostly_optimizers else doubt),
        "stall.optimizer_doubt": Feature(doubt if mostly_optimizers else 0.0),
        "stall.loader_doubt": Feature(of_loader),
    }


def _measure_borders(breakdown: Breakdown, order: Ints, gains: Gains, evidence: Evidence) -> Features:
    """Measure what is lost at the borders between steps; missing where nothing is, as far as it describes losses."""
    steps = breakdown.steps[order]
    borders, lost, seen = _lost_at_borders(steps, order, gains)
    top = float(lost.max(initial=0.0))
    hits = lost > HIT_SHARE * top if top > NEGLIGIBLE_SHARE * gains.replayed_s else np.zeros(len(lost), dtype=bool)
    lesser = lost > LESSER_SHARE * top
    if 0 < hits.sum() < MIN_PERIODIC_HITS and find_exact_period(borders[seen | lesser], lesser[seen | lesser]):
        hits = lesser
    found = _describe_period(borders[seen | hits], hits[seen | hits])
    if not hits.any():
        missing = Feature.missing("nothing that was found at the start or end of steps costs time")
        names = ("checkpoint_share", "size_ratio", "steps_share", "hits", "input_doubt")
        return found | {f"stall.{name}": missing for name in names}
    steps_share = float(hits.sum() / (seen | hits).sum())
    found["stall.steps_share"] = Feature(steps_share)
    at = borders[hits]
    period, regularity = found["stall.period_steps"].value, found["stall.regularity"].value
    if period and regularity is not None and regularity >= REGULAR:
        at = steps[(steps - at[0]) % int(period) == 0]
    after_stop = steps_share <= FEW_STOPS_SHARE and _waits_after(breakdown, at) >= AFTER_STOP_SHARE
    # What may be something else on the hosts anyway is not doubted twice.
    is_doubt = after_stop and not measure_places_of_waits(breakdown)["input.unseen_doubt"].value
    found["stall.input_doubt"] = Feature(STOP_CHANCE if is_doubt else 0.0)
    found["stall.hits"] = Feature(float(hits.sum()))
    if hits.sum() == 1 and hits[0]:
        # A recording begins there, or a profiler: nothing tells this from a checkpoint that was saved just before.
        reason = "it happened once, at the start of the first step recorded, where whatever begins there looks like it"
        found["stall.regularity"] = Feature.missing(reason)
    found["stall.size_ratio"] = Feature(float(lost[hits].mean()) / float(np.median(gains.replayed_steps_s)))
    saving = evidence.op == Op.CHECKPOINT
    if not saving.any():
        return found | {"stall.checkpoint_share": Feature.missing("the trace has no checkpoint rows")}
    saved = np.unique(evidence.step[saving])
    longest_s = np.zeros(len(saved))
    np.maximum.at(longest_s, np.searchsorted(saved, evidence.step[saving]), (evidence.end_s - evidence.start_s)[saving])
    told_s = np.zeros(len(borders))
    for near in (saved, saved + 1):
        at = np.searchsorted(borders, near).clip(max=len(borders) - 1)
        np.maximum.at(told_s, at, np.where(borders[at] == near, ROW_TELLS * longest_s, 0.0))
    share = float(np.minimum(lost, told_s).sum() / lost.sum())
    if share >= EXPLAINED_SHARE:
        # Rows know better when it was: what lies before a step whose predecessor was not sampled counts as after it.
        found |= _describe_period(steps, np.isin(steps, saved))
    return found | {"stall.checkpoint_share": Feature(share)}


def _waits_after(breakdown: Breakdown, borders: Ints) -> float:
    """Say which part of the seconds waited for input, that no row tells of, lies in the steps after some borders."""
    stalls = breakdown.stalls
    inside, before = stalls.of_kind(StallKind.INPUT)
    waited_s = np.where(inside & ~stalls.recorded_inside, stalls.inside_s, 0.0)
    waited_s += np.where(before & ~stalls.recorded_before, stalls.before_s, 0.0)
    by_step = waited_s.sum(axis=(0, 1, 2, 4))
    if breakdown.start_s is not None and breakdown.start_recorded is not None:
        by_step = by_step + np.where(breakdown.start_recorded, 0.0, breakdown.start_s).sum(axis=(0, 2))
    all_s = stalls.seconds_of(StallKind.INPUT).sum() + (0.0 if breakdown.start_s is None else breakdown.start_s.sum())
    return float(by_step[np.isin(breakdown.steps, borders)].sum() / all_s) if all_s else 0.0


def _share_of_steps(breakdown: Breakdown, order: Ints) -> Feature:
    """Say how much of what computes vary by from step to step all workers and both directions have in common.

    Only where it comes and goes: what stays for some steps is a slowdown of the whole job, or more work from there on.
    """
    pace_s = nan_median(breakdown.alike_s, axis=2)[:, :, order]  # (n_directions, n_virtual, n_steps, n_dp)
    logs = np.log(np.where(pace_s > 0, pace_s, np.nan))
    logs = logs - nan_median(logs, axis=2, keepdims=True)
    of_step = nan_median(logs, axis=(0, 1, 3))
    known = np.isfinite(of_step)
    of_step, logs = of_step[known], logs[:, :, known]
    varies = float(np.var(of_step)) if len(of_step) >= MIN_HITS else 0.0
    if not varies:
        return Feature.missing("computes do not vary from step to step, or there are too few steps")
    stays = float(np.square(np.diff(of_step)).mean()) < varies
    return Feature(0.0 if stays else varies / (varies + float(np.nanvar(logs - of_step[:, None]))))


def _lost_at_borders(steps: Ints, order: Ints, gains: Gains) -> tuple[Ints, Seconds, Bools]:
    """Add up the seconds lost at the end of one step and at the start of the next: a border has the number of the step after it.

    Gives the borders, what is lost there, and which of them the trace could show: the side on which most is lost was sampled.
    """
    borders = np.unique(np.concatenate([steps, steps + 1]))
    lost = np.zeros(len(borders))
    by_side = [0.0, 0.0]
    for name, traits in gains.traits.items():
        if traits.border is not None and name in gains.alone_steps_s:
            side = int(traits.border == "end")
            seconds = np.maximum(gains.replayed_steps_s - gains.alone_steps_s[name], 0.0)[order]
            lost[np.searchsorted(borders, steps + side)] += seconds
            by_side[side] += float(seconds.sum())
    return borders, lost, np.isin(borders, steps + int(by_side[1] > by_side[0]))


def _describe_period(steps: Ints, hits: Bools) -> Features:
    """Give the period of the steps hit as features."""
    if not hits.any():
        missing = Feature.missing("nothing that was found at the start or end of steps costs time")
        return dict.fromkeys(("stall.period_steps", "stall.regularity", "stall.chance"), missing)
    if hits.sum() < MIN_HITS:
        once = Feature.missing("it happened once")
        return {"stall.period_steps": once, "stall.regularity": Feature(1.0), "stall.chance": Feature(1.0)}
    period, regularity, chance = find_period(steps, hits)
    return {
        "stall.period_steps": Feature(float(period)),
        "stall.regularity": Feature(regularity),
        "stall.chance": Feature(chance),
    }
