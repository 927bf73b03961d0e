"""Let the router of a mixture of experts deal tokens evenly.

The replay gives each compute the mean of its virtual stage; dispatching tokens and combining what comes back stay as they are.
"""

from collections.abc import Mapping

import numpy as np

from diagnose.fixes.frameworks import choose_how
from diagnose.model.analysis import Analysis
from diagnose.model.change import Remove
from diagnose.model.remedy import FaultLocation, Refusal, Remedy

NAME = "balance-experts"
TITLE = "deal tokens evenly to experts"
SETTINGS: dict[str, str] = {}
#: The busiest computes: one in so many is longer.
BUSY_QUANTILE = 0.99
_HOW = {
    "megatron": "--moe-router-load-balancing-type aux_loss (or seq_aux_loss) with --moe-aux-loss-coeff 1e-2, or without a loss "
    "--moe-router-score-function sigmoid --moe-router-enable-expert-bias --moe-router-bias-update-rate 1e-3; where it must be "
    "bounded, --moe-expert-capacity-factor 1.0 to 1.5, which drops tokens",
    "torchtitan": "MoEArgs.load_balance_coeff (1e-3) of the model's arguments: a bias of each expert, moved after each step",
    "deepspeed": "deepspeed.moe.layer.MoE(capacity_factor=1.0 to 1.5, drop_tokens=True), and l_aux of each layer added to the loss "
    "with a coefficient of 1e-2",
    "any": "Where a few experts stay hot, place copies of them on other ranks by their token counts (EPLB), and overlap the "
    "all-to-alls with computes",
}


def propose(analysis: Analysis, place: FaultLocation, settings: Mapping[str, str]) -> Remedy | Refusal:  # noqa: ARG001 - a fix's interface
    """Give each compute the work that it has with evenly dealt tokens."""
    experts = analysis.breakdown.experts
    if experts.ratio is None:
        return Refusal("no compute is long for its experts")
    busy = float(np.quantile(experts.ratio, BUSY_QUANTILE))
    return Remedy(
        summary="balance the router, so that experts are given tokens evenly",
        how=choose_how(_HOW, analysis.trace.job),
        changes=(Remove("expert"),),
        assumptions=("tokens can be dealt evenly, and dispatching them takes as long as now",),
        risks=("a stronger balance may cost quality, and dropped tokens do: compare the loss",),
        figures={"busiest_compute_ratio": busy, "ranks_alike": float(experts.group)},
    )
