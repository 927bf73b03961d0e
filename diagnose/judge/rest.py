"""What is lost where no cause was found: to what nobody can look for, to nothing that is known, to ordinary variation.

Enters: an `Analysis`. Leaves: sentences, empty where there is nothing to say.
"""

from collections.abc import Collection, Mapping

import numpy as np

from diagnose.judge.unknown import NOISY_SHARE, UNKNOWN_SHARE, comes_and_goes
from diagnose.judge.worth import clean_without_collections, is_unmeasured
from diagnose.model.analysis import Analysis
from diagnose.model.budget import MUCH_EXPOSED
from diagnose.model.change import Work
from diagnose.model.components import COMPONENTS, STALLED
from diagnose.model.optype import Op, of_types
from diagnose.model.stalls import StallKind
from diagnose.numerics.figures import write_figure, write_percent
from diagnose.numerics.robust import nan_median, robust_deviation

#: Ordinary variation never cost more: jobs on machines with twice as many workers as cores have S up to 1.2.
MOST_NOISE = 1.0 - 1.0 / 1.25
#: Of fewer stages each ends the model.
LEAST_STAGES = 3
#: Rows of planned work.
PLANNED_ROWS = (Op.EVAL, Op.LOG)
#: How what merely varies ends.
NO_CAUSE = "no cause can be named"
#: Said of slow steps in which all computes are longer alike, where no tokens tell of more work.
ALIKE = "and all their computes are longer alike, as with more work, a warm-up or a profiler"
#: Steps are slow for saves in the background where this part of what they lose is in so many steps after each, as many saves at
#: least, and these are no more than that part of all.
NEARLY_ALL, MOST_AFTER, MIN_SAVES, HALF_OF_STEPS = 0.8, 2, 2, 0.5


def describe_unlooked(
    analysis: Analysis,
    explained: Collection[str],
    unlooked: Mapping[str, str],
    reasons: Mapping[str, str],
    least: float,
) -> str:
    """Say which component would give back most of those that no cause could be looked for in, and why not.

    Parameters
    ----------
    explained : collection of str
        Components of the causes that are said.
    unlooked : dict of str to str
        Components that only causes own that the recording cannot show, each with such a cause.
    reasons : dict of str to str
        Why each cause cannot be looked for.
    """
    gains = analysis.gains
    found = {name: f"{cause} could not be looked for ({reasons[cause]})" for name, cause in unlooked.items()}
    found |= {
        name: f"nobody can tell whose fault it is ({analysis.features[f'gain.{name}'].reason})"
        for name in COMPONENTS
        if is_unmeasured(analysis, (name,)) and name not in found
    }
    large = [
        name
        for name in found
        if name not in explained
        and gains.recoverable(name) >= max(UNKNOWN_SHARE, least)
        and not gains.traits[name].is_excused(analysis.features, explained)
    ]
    if not large:
        return ""
    worst = max(large, key=gains.recoverable)
    return f"{COMPONENTS[worst]} would give back {write_percent(gains.recoverable(worst))} of the step time, and {found[worst]}"


def describe_unproven_plan(analysis: Analysis, least: float) -> str:
    """Say how much planned work costs that may be none, as one microbatch a step shows no more than that its forward is long.

    An evaluation lengthens all forwards of a step, or rows tell of it; what stops a worker lengthens one of them.
    """
    evidence, planned = analysis.trace.evidence, STALLED[StallKind.PLANNED]
    cost = analysis.gains.recoverable(planned)
    is_told = of_types(evidence.op, PLANNED_ROWS).any()
    if analysis.breakdown.compute_s.shape[2] > 1 or is_told or cost < max(UNKNOWN_SHARE, least):
        return ""
    return (
        f"every so many steps the forward of all workers is longer, which costs {write_percent(cost)}: an evaluation is planned, "
        "collections of Python in the same step are not; rows of either would tell"
    )


def describe_lone_worker(analysis: Analysis, least: float) -> str:
    """Say what another worker would give back for the one of the longest stage, where no second dp rank tells it from a layout.

    The ends of a model are longer by themselves, and so is who has more layers.
    """
    trace, load_s = analysis.trace, nan_median(analysis.breakdown.alike_s, axis=(2, 3, 4), keepdims=True)
    if trace.n_dp > 1 or trace.n_stages < LEAST_STAGES or not (load_s > 0).all():
        return ""
    by_stage_s = load_s.reshape(len(load_s), -1, trace.n_stages).sum(axis=1)  # (n_directions, n_stages)
    worst = int(by_stage_s.sum(axis=0).argmax())
    usual_s = np.median(np.delete(by_stage_s, worst, axis=1), axis=1)  # (n_directions,)
    label, layers = int(trace.stage_labels[worst]), trace.job.layers_per_stage or ()
    more_layers = len(layers) > label and layers[label] > float(np.median(np.delete(layers, label)))
    if worst in (0, trace.n_stages - 1) or more_layers:
        return ""
    factor = np.ones_like(load_s)
    factor[:, worst :: trace.n_stages, 0, 0, 0] = (usual_s / by_stage_s[:, worst])[:, None]
    gain = 1.0 - float(analysis.price([Work(factor)]).mean()) / analysis.gains.replayed_s
    if gain < max(UNKNOWN_SHARE, least):
        return ""
    longer, even = by_stage_s[:, worst].sum() / usual_s.sum(), max(analysis.gains.recoverable("stage"), 0.0)
    return (
        f"stage {label} computes {write_figure(longer)} times as long as the others: even stages would give back "
        f"{write_percent(even)}, but if its worker is slow another one {write_percent(gain)}; with one dp rank nobody can tell"
    )


def describe_missing_ranks(analysis: Analysis, least: float) -> str:
    """Say for how long the recorded ranks of several are in collectives, where they may wait for one that was not recorded."""
    trace = analysis.trace
    missing = trace.ranks_told - trace.job.world_size
    clean = analysis.split_clean() if missing > 0 else None
    if clean is None or clean.collectives_s < max(MUCH_EXPOSED, least) * clean.step_s:
        return ""
    share = write_percent(clean.collectives_s / clean.step_s)
    return (
        f"{missing} of {trace.ranks_told} ranks were not recorded, and the others are in collectives for {share} of the step: "
        "whether they wait there for one of these nobody can tell"
    )


def describe_rest(analysis: Analysis, least: float) -> str:
    """Say what may be lost, or is, that has no name.

    To ranks that were not recorded; a lone worker; planned work that may be none; ideal times beyond the ordinary.
    """
    for describe in (describe_missing_ranks, describe_lone_worker, describe_unproven_plan):
        if unsure := describe(analysis, least):
            return unsure
    if (longer := _measure_longest(analysis)) >= max(MOST_NOISE, least):
        return f"steps longer than usual cost {write_percent(longer)}, and nothing that was looked for accounts for it"
    waste = _measure_waste(analysis)
    if waste < max(MOST_NOISE, least):
        return ""
    slowdown = write_figure(analysis.what_if.slowdown)
    shorter = f"with ideal times steps would be {write_percent(waste)} shorter (S {slowdown})"
    return f"{shorter}, and nothing that was looked for accounts for it"


def describe_noise(analysis: Analysis, explained: Collection[str], least: float) -> str:
    """Say what varies, and by how much, where that is more than in a healthy job.

    It may be steps; computes and transfers within steps, for which others wait; or many parts that are each too little to be named.
    """
    gains = analysis.gains
    if uneven := describe_uneven_plan(analysis, max(UNKNOWN_SHARE, least)):
        return uneven
    if excuses := _list_excuses(analysis, explained, max(UNKNOWN_SHARE, least)):
        name = max(excuses, key=gains.recoverable)
        if name == "step" and (more := describe_more_work(analysis)):
            return more
        cost = write_percent(gains.recoverable(name))
        return f"{COMPONENTS[name]} cost {cost} of the step time, {excuses[name]}; {NO_CAUSE}"
    steps_s = gains.replayed_steps_s
    typical_s = float(np.median(steps_s))
    spread = robust_deviation(steps_s - typical_s) / typical_s
    waste = _measure_waste(analysis)
    parts = 1.0 - gains.clean_s / gains.replayed_s - _measure_planned(analysis)
    longest = _measure_longest(analysis)
    much = max(NOISY_SHARE, least)
    if max(spread, longest, waste, parts) < much:
        return ""
    said = [f"steps vary by {write_percent(spread)}, computes by {write_percent(analysis.breakdown.noise_ratio)}"]
    if longest > spread:
        said.append(f"steps longer than usual cost {write_percent(longest)}")
    if waste > 0:
        said.append(f"if each operation took its usual time, steps would be {write_percent(waste)} shorter")
    if max(spread, longest, waste) < much:
        said.append(f"many small losses cost {write_percent(parts)} together")
    return "; ".join([*said, NO_CAUSE])


def describe_more_work(analysis: Analysis) -> str:
    """Say what steps with more tokens cost, where tokens tell that slow steps have more work; empty elsewhere."""
    tells = analysis.features.get("sequence.slow_steps")
    if tells is None or tells.value is None or "step" not in analysis.gains.traits:
        return ""
    if not analysis.gains.traits["step"].is_excused(analysis.features, ()):
        return ""
    cost = write_percent(analysis.gains.recoverable("step"))
    return f"steps with more tokens take longer: {cost} of the time is more work, by the columns, and no fault"


def describe_uneven_plan(analysis: Analysis, least: float) -> str:
    """Say who does more of the planned work than the usual data-parallel rank, by its rows, while others wait for so long."""
    rows, trace = analysis.trace.evidence, analysis.trace
    rows = rows.take(of_types(rows.op, PLANNED_ROWS))
    steps, at = np.unique(rows.step, return_inverse=True)
    if trace.n_dp == 1 or not len(steps):
        return ""
    seconds = np.zeros((len(steps), trace.n_dp, trace.n_stages))
    np.add.at(seconds, (at, rows.dp, rows.stage), rows.end_s - rows.start_s)
    of_rank = seconds.max(axis=2)
    longer_s = of_rank.max(axis=1) - np.median(of_rank, axis=1)
    share = float(longer_s.sum()) / (analysis.gains.recorded_s * len(analysis.breakdown.steps))
    share = min(share, analysis.gains.recoverable(STALLED[StallKind.PLANNED]))  # nobody waits for more
    if share < least:
        return ""
    most = np.bincount(of_rank.argmax(axis=1), weights=longer_s, minlength=trace.n_dp)
    rank = int(trace.dp_labels[most.argmax()])
    return f"planned work is longer on dp rank {rank} than on others, which wait: by {write_percent(share)} of the time"


def _list_excuses(analysis: Analysis, explained: Collection[str], least: float) -> dict[str, str]:
    """Say when time is lost to components that would give back so much and are nobody's fault, but for what planned work costs."""
    gains = analysis.gains
    found = {}
    for name, traits in gains.traits.items():
        if gains.recoverable(name) < least or traits.is_excused({}, ()):
            continue
        if traits.is_excused(analysis.features, explained):
            tells = analysis.features.get("sequence.slow_steps")
            is_guess = name == "step" and (tells is None or tells.value is None)
            found[name] = (_describe_after_saves(analysis) or ALIKE) if is_guess else traits.excuse
        elif comes_and_goes(analysis, name, least):
            found[name] = "now and then, on nobody more than on others"
    return found


def _describe_after_saves(analysis: Analysis) -> str:
    """Say that slow steps come right after those with a save, by its rows: it goes on beside them. Empty elsewhere."""
    gains, steps, rows = analysis.gains, analysis.breakdown.steps, analysis.trace.evidence
    saves = np.unique(rows.step[rows.op == Op.CHECKPOINT])
    ahead = steps[:, None] - saves
    after = ((ahead > 0) & (ahead <= MOST_AFTER)).any(axis=1)
    lost_s = gains.replayed_steps_s - gains.alone_steps_s["step"]
    if len(saves) < MIN_SAVES or after.mean() > HALF_OF_STEPS or lost_s[after].sum() < NEARLY_ALL * lost_s.sum():
        return ""
    return (
        f"nearly all in the {MOST_AFTER} steps after one that saves: what a save does in the background is in their way"
    )


def _measure_waste(analysis: Analysis) -> float:
    """Say which part of a step ideal times would give back; 0 where that is not known.

    Without planned work; and without what is so in all steps and on all dp ranks, which the ideal times lack and no fault makes:
    longer microbatches at the end, or stages. Costs one replay where much is lost.
    """
    slowdown = analysis.what_if.slowdown
    if not slowdown > 0:
        return 0.0
    waste = 1.0 - 1.0 / slowdown - _measure_planned(analysis)
    return max(waste if waste < NOISY_SHARE else waste - max(_measure_structure(analysis), 0.0), 0.0)


def _measure_longest(analysis: Analysis) -> float:
    """Say which part of the step time is beyond a usual step, without all that was found, and what rows of other types fill.

    These may hold up one stage after the other. Planned collections are known, too.
    """
    steps_s, others = clean_without_collections(analysis), analysis.trace.others
    filled_s = np.zeros((len(steps_s), analysis.trace.n_dp, analysis.trace.n_stages))
    at = np.searchsorted(np.sort(analysis.breakdown.steps), others.step)
    known = np.isin(others.step, analysis.breakdown.steps)
    np.add.at(filled_s, (at[known], others.dp[known], others.stage[known]), (others.end_s - others.start_s)[known])
    filled = float(filled_s.max(axis=1).sum(axis=1).mean()) / analysis.gains.clean_s
    return float(steps_s.mean() - np.median(steps_s)) / analysis.gains.clean_s - filled


def _measure_planned(analysis: Analysis) -> float:
    """Say which part of a step comes back without what needs no explanation: planned work."""
    gains = analysis.gains
    excused = [name for name, traits in gains.traits.items() if traits.is_excused(analysis.features, ())]
    return sum(max(gains.recoverable(name), 0.0) for name in excused)


def _measure_structure(analysis: Analysis) -> float:
    """Say which part of a step comes back where each compute has the usual time of its direction, and varies as it does."""
    typical_s = nan_median(analysis.breakdown.alike_s, axis=(3, 4), keepdims=True)
    usual_s = nan_median(typical_s, axis=(1, 2), keepdims=True)
    factor = np.divide(usual_s, typical_s, out=np.ones_like(typical_s), where=typical_s > 0)
    return 1.0 - float(analysis.price([Work(factor)]).mean()) / analysis.gains.replayed_s
