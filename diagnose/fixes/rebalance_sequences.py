"""Even out microbatches: deal documents, or whole microbatches, out over dp ranks and microbatches by what they cost.

The cost of a microbatch is a x tokens + b x sum of squared document lengths, fitted on the trace. The work of a step is kept, it
only goes elsewhere; the replay gives every microbatch its new work and leaves everything else as it was.
"""

import itertools
from collections.abc import Mapping
from typing import cast, get_args

import numpy as np

from diagnose.errors import UsageError
from diagnose.fixes.frameworks import choose_how
from diagnose.fixes.microbatch_costs import implied_cost
from diagnose.fixes.places import read_number
from diagnose.fixes.rebalance import (
    Known,
    Method,
    Rebalanced,
    RebalanceSettings,
    has_documents,
    imbalance_of,
    know,
    rebalance,
)
from diagnose.fixes.repack import Packed
from diagnose.model.analysis import Analysis
from diagnose.model.remedy import FaultLocation, Refusal, Remedy

NAME = "rebalance-sequences"
TITLE = "deal documents out to microbatches by their predicted cost and not by tokens"
SETTINGS = {
    "method": "greedy: documents anew, each stays in its step; queues, balanced: long ones may wait for later steps, in outlier "
    "queues or where a search says so; implied: whole microbatches, by lengths or times. Where left out the best without waiting",
    "memory": "tokens that a microbatch may hold, over those of the longest one now; 1.1 where left out",
    "queues": "lengths in tokens from which documents wait in a queue, such as 16384,65536; chosen by what documents cost where "
    "left out",
}
#: A way in which documents wait is mentioned where it makes steps this part shorter than the best in which none does.
WORTH_MENTIONING = 0.01
#: More tokens than this factor in a microbatch, and memory is a risk.
MEMORY_RATIO = 1.001
_ORDERS = {
    "arrival": "",
    "falling": ", longest first",
    "middle": ", the longest in the middle of the step",
}
_HOW = {
    "megatron": "deal in the data loader; with packed sequences, --sequence-packing-scheduler dp_balanced (and "
    "--max-seqlen-per-dp-cp-rank) gathers the lengths of a global batch on all ranks, but fills microbatches in order and by "
    "tokens: let its get_groups_and_subsamples go by cost. --hybrid-context-parallel spreads long sequences, but not with pipeline "
    "parallelism",
    "torchtitan": "deal in a sampler behind the data loader that sees the lengths of a whole global batch",
    "pytorch": "deal in a batch sampler that sees the lengths of a whole global batch on every rank (same seed, or gathered)",
    "deepspeed": "deal in the data sampler that deepspeed.initialize is given, over the lengths of a whole global batch",
}
#: Microbatches that differ by less, ordinary variation left out, are even (standard deviation of the log).
EVEN_SPREAD = 0.01


def propose(analysis: Analysis, place: FaultLocation, settings: Mapping[str, str]) -> Remedy | Refusal:  # noqa: ARG001 - a fix's interface
    """Deal the work of each step out anew."""
    asked = _read(settings)
    spread = analysis.breakdown.microbatch_spread
    if float(np.std(np.log(implied_cost(analysis.breakdown)))) < EVEN_SPREAD:
        much = "" if spread is None else f" by {spread:.1%},"
        return Refusal(f"microbatches vary{much} no more than by chance: to deal them out would even out nothing")
    known = know(analysis)
    found = rebalance(analysis, known, asked)
    if isinstance(found, Refusal):
        return found
    packed = found.packed
    mention = asked.method is None and has_documents(known)
    return Remedy(
        summary=_summary(found),
        how=choose_how(_HOW | {"any": _recipe(known, found)}, analysis.trace.job),
        changes=(found.work,),
        settings=_resolve(asked, found),
        assumptions=(*_assume(known, found), *(_mention_waiting(analysis, known, asked, found) if mention else ())),
        risks=_warn(known, packed),
        figures=_figures(known, found),
    )


def _read(settings: Mapping[str, str]) -> RebalanceSettings:
    """Read the settings; a `UsageError` where one of them makes no sense."""
    method = settings.get("method")
    if method is not None and method not in get_args(Method):
        raise UsageError(f"--fix {NAME}: method is {method!r}; expected one of {', '.join(get_args(Method))}")
    memory = read_number(settings, "memory", NAME) if "memory" in settings else RebalanceSettings().memory
    if memory < 1.0:
        raise UsageError(f"--fix {NAME}: memory is {settings['memory']!r}; expected a factor from 1 on")
    thresholds = None
    if "queues" in settings:
        parts = [part.strip() for part in settings["queues"].split(",")]
        right = all(part.isascii() and part.isdigit() and 0 < len(part) <= 12 and int(part) > 0 for part in parts)
        thresholds = tuple(int(part) for part in parts) if right else ()
        if not thresholds or any(low >= high for low, high in itertools.pairwise(thresholds)):
            raise UsageError(
                f"--fix {NAME}: queues is {settings['queues']!r}; expected lengths in tokens that rise, such as 16384,65536"
            )
        if method not in (None, "queues"):
            raise UsageError(f"--fix {NAME}: queues goes with method=queues; expected no queues with method={method}")
        method = "queues"
    return RebalanceSettings(cast("Method | None", method), memory, thresholds)


def _resolve(asked: RebalanceSettings, found: Rebalanced) -> dict[str, str]:
    """Say the settings that give the same again."""
    settings: dict[str, str] = {"method": found.method}
    if found.layout is not None:
        settings["memory"] = f"{asked.memory:g}"
    if asked.thresholds is not None and found.method == "queues":
        settings["queues"] = ",".join(str(tokens) for tokens in asked.thresholds)
    return settings


def _summary(found: Rebalanced) -> str:
    """Say in one line what to do."""
    order = _ORDERS[found.order]
    if found.layout is None:
        return f"deal the microbatches of each step out over dp ranks by cost{order}"
    if found.method == "greedy":
        return f"deal the documents of each step out over dp ranks and microbatches by cost{order}"
    waits = "let the longest wait in queues" if found.method == "queues" else "hold long ones back where that pays"
    return f"pack documents by cost and {waits}{order}"


def _recipe(known: Known, found: Rebalanced) -> str:
    """Say the cost and the order to deal by."""
    order = {
        "arrival": "",
        "falling": "; let a rank run its dearest microbatch first",
        "middle": "; let a rank run cheap microbatches first and last and the dearest in the middle, so that neighbours cost alike",
    }[found.order]
    what = "microbatch" if found.layout is None else "document"
    if known.fit is None:
        return f"Cost of a {what}: tokens + tokens_sq / n, n fitted to its times{order}"
    cost = known.fit.both
    formula = "tokens" if cost.quadratic == 0 else "length squared"
    if cost.linear > 0 and cost.quadratic > 0:
        formula = f"length + length squared / {cost.linear / cost.quadratic:,.0f}"
    added = ", added up over its documents" if found.layout is None else ""
    packer = "" if found.layout is None else f' (`packer="{found.layout}"` of `diagnose.packing`)'
    return f"Cost of a {what}: {formula}{added}; deal the dearest first, each to whoever has least{packer}{order}"


def _assume(known: Known, found: Rebalanced) -> tuple[str, ...]:
    """Say what the prediction takes for granted."""
    said = []
    if known.fit is not None:
        said.append(
            f"lengths say what a microbatch costs: they explain {known.fit.quality:.0%} of what the microbatches take"
        )
    elif known.quality is not None:
        said.append(
            f"what a microbatch takes is its cost, and known before it runs; its lengths explain only {known.quality:.0%} of it"
        )
    else:
        said.append("what a microbatch takes is the cost of its documents, and known before it runs")
    if found.layout is None:
        if known.lengths is None or known.lengths.documents is None:
            said.append(
                "the trace has no doc_lengths: microbatches move as a whole, and their documents cannot be split further"
            )
        else:
            said.append("microbatches move as a whole")
    packed = found.packed
    if found.untried:
        said.append("a global batch has too many documents to try every way to pack them")
    if packed is not None and packed.sampled_share < 1.0:
        said.append(f"{packed.sampled_share:.0%} of the steps were packed, the others are taken to gain as much")
    if packed is not None and found.method != "greedy":
        said.append(
            "the steps of the trace are taken as one run of data; what waits at its end counts as if its like had come in"
        )
    if not known.movable.all() and (known.movable != known.there).any():
        share = known.movable.sum() / known.there.sum()
        said.append(f"documents are known of {share:.0%} of the microbatches; the others stay as they are")
    return tuple(said)


def _mention_waiting(analysis: Analysis, known: Known, asked: RebalanceSettings, found: Rebalanced) -> tuple[str, ...]:
    """Say what letting documents wait would bring, where that is worth a word."""
    for method in ("balanced", "queues"):
        other = rebalance(analysis, known, RebalanceSettings(None, asked.memory), only=method)
        if isinstance(other, Refusal) or other.packed is None:
            continue
        if other.step_s > (1.0 - WORTH_MENTIONING) * found.step_s:
            return ()
        wait = f"{other.packed.delayed_share:.1%} of the tokens wait up to {other.packed.max_delay_steps} steps"
        speedup = analysis.gains.replayed_s / other.step_s
        return (f"no document leaves its step; method={method} makes the job {speedup:.2f}x as fast, and lets {wait}",)
    return ()


def _warn(known: Known, packed: Packed | None) -> tuple[str, ...]:
    """Say what may go wrong."""
    risks = []
    if packed is None:
        risks.append("the order of the data changes within a step, not between steps")
    elif packed.delayed_share > 0:
        risks.append(
            f"{packed.delayed_share:.1%} of the tokens are trained later than now, by up to {packed.max_delay_steps} steps: watch "
            "the loss, and save what waits in checkpoints"
        )
    else:
        risks.append(
            "documents meet others in their microbatch: a loss averaged by microbatch weighs them anew, one by token does not"
        )
    if packed is not None and packed.memory_ratio > MEMORY_RATIO:
        risks.append(
            f"the longest microbatch holds {packed.memory_ratio:.2f} times the tokens of now, and as much more activations; "
            "memory=1 keeps it as it is"
        )
    if known.fit is None and known.quality is not None:
        risks.append("if something else than length makes microbatches long, dealing them out by length will not help")
    return tuple(risks)


def _figures(known: Known, found: Rebalanced) -> dict[str, float | None]:
    """List the numbers worth knowing."""
    packed, fit = found.packed, known.fit
    before, after = imbalance_of(known, known.cost, packed), imbalance_of(known, found.cost, packed)
    return {
        "imbalance_before": before[0],
        "imbalance_after": after[0],
        "rank_imbalance_before": before[1],
        "rank_imbalance_after": after[1],
        "tokens_delayed_share": 0.0 if packed is None else packed.delayed_share,
        "delay_mean_steps": 0.0 if packed is None else packed.mean_delay_steps,
        "delay_max_steps": 0.0 if packed is None else float(packed.max_delay_steps),
        "memory_ratio": 1.0 if packed is None else packed.memory_ratio,
        "cost_explained_share": known.quality,
        "equal_cost_tokens": None if fit is None or fit.both.quadratic == 0 else fit.both.linear / fit.both.quadratic,
    }
