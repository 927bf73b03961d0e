"""Uneven experts: a mixture of experts routes more tokens to some experts than to others, and whoever holds those computes longer.

Each layer routes anew, so that each virtual stage has its own share of each microbatch; forward and backward are long by the same
ratio. The tokens are in the wrong place, not too many: mended, every compute of a virtual stage takes the mean.
"""

import dataclasses
from typing import ClassVar

import numpy as np

from diagnose.faults.decoys import EvenDocuments
from diagnose.faults.example import CLEAR, PLAIN_JOB, Example, Fixture, LookAlike
from diagnose.faults.fault import Fault, choose_kind
from diagnose.faults.inputs import Inputs
from diagnose.faults.spec import JobSpec
from diagnose.model.optype import Op
from diagnose.model.trace import Seconds

#: Tokens that the local experts of a rank are given of a microbatch where they are dealt evenly, and how many experts these are.
EVEN_TOKENS, LOCAL_EXPERTS = 8192, 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpertImbalance(Fault):
    """Computes of one (step, virtual stage, microbatch) are long where hot experts are; `strength` is the factor's spread."""

    cause: ClassVar[str] = "expert-imbalance"
    strength_field: ClassVar[str] = "spread"
    #: Standard deviation of the logarithm of the factor.
    spread: float = 0.3
    #: Ranks, one after the other, that share a factor: they wait for each other inside the compute. 1: each has its own.
    group: int = 1
    #: Each of them is given its own tokens, and all take as long as the busiest: uneven tokens make a whole stage long.
    waits: bool = False
    #: Part of the factor's variance that stays for many steps, the same for all microbatches of a step: some experts stay hot.
    hot_share: float = 0.0
    #: Sampled steps after which hot experts have mostly become others.
    drift_steps: float = 20.0
    #: The trace has `expert_tokens`.
    records_tokens: bool = False
    #: The metadata say how many ranks share the experts.
    says_ep_size: bool = False

    def apply(self, inputs: Inputs) -> Inputs:
        """Make computes as long as their experts are busy, and note the tokens where the trace records them."""
        spec, programme, load = inputs.spec, inputs.programme, self.draw_load(inputs.spec)
        by_group = load.reshape(*load.shape[:-1], -1, self.group) if self.waits else load[..., None]
        factor = np.repeat(by_group.max(axis=-1), by_group.shape[-1], axis=-1)
        tasks = programme.is_op(Op.FORWARD, Op.BACKWARD)
        virtual = np.maximum(programme.chunk[tasks], 0) * spec.pp + programme.stage[tasks]
        changed = inputs.with_work(tasks, factor[virtual, programme.microbatch[tasks]])
        if self.says_ep_size:
            changed = dataclasses.replace(changed, ep_size=max(self.group, 2))
        if not self.records_tokens:
            return changed
        shares = self.random(spec).dirichlet(np.full(LOCAL_EXPERTS, 20.0), size=load.shape)
        tokens = np.rint(EVEN_TOKENS * load[..., None] * shares).astype(np.int64)
        return dataclasses.replace(changed, expert_tokens=tokens)

    def tellable(self, spec: JobSpec) -> bool:
        """Say whether stages tell it from documents: with one of them only the column does."""
        return (spec.n_virtual > 1 and not self.waits) or (self.records_tokens and spec.evidence)

    def draw_load(self, spec: JobSpec) -> Seconds:
        """Draw the tokens of each rank against evenly dealt ones, shape (n_virtual, n_microbatches, n_steps, n_dp); 1: even.

        All tokens of a virtual stage are as many as evenly dealt ones, and where ranks wait for each other those of a group.
        """
        rng = self.random(spec)
        drawn = 1 if self.waits else self.group
        n_groups = -(-spec.dp // drawn)
        shape = (spec.n_virtual, spec.microbatches, spec.steps, n_groups)
        anew = rng.standard_normal(shape)
        keep = float(np.exp(-1.0 / self.drift_steps))
        hot = rng.standard_normal((spec.n_virtual, 1, spec.steps, n_groups))
        for step in range(1, spec.steps):
            hot[:, :, step] = keep * hot[:, :, step - 1] + np.sqrt(1.0 - keep**2) * hot[:, :, step]
        log = self.spread * (np.sqrt(1.0 - self.hot_share) * anew + np.sqrt(self.hot_share) * hot)
        load = np.exp(log)[..., np.arange(spec.dp) // drawn]
        if self.waits:
            of_group = load.reshape(*load.shape[:-1], -1, self.group)
            load = (of_group / of_group.mean(axis=-1, keepdims=True)).reshape(load.shape)
        active = self.active(spec)
        load = np.where(active, load, 1.0)
        return np.asarray(load / np.where(active, load.mean(axis=(1, 2, 3), keepdims=True), 1.0))


#: How often a random fault is of each kind: each rank has its own share of a microbatch, or those of an expert-parallel group share
#: one, or some experts stay hot, or all of a group wait for the busiest inside the compute, as only the column tells.
KINDS = {"each-rank": 0.35, "group": 0.35, "hot": 0.3, "inside": 0.1}
#: Hot experts that no column counts must leave so much to the microbatch: else they look like a slow worker, in every number.
MOST_HOT, MOST_HOT_UNSEEN = 0.9, 0.4


def draw_fault(
    spec: JobSpec,
    rng: np.random.Generator,
    *,
    strength: float | None = None,
    onset: int | None = None,
    kind: str | None = None,
) -> ExpertImbalance | None:
    """Draw uneven experts; with one virtual stage nothing but the column tells them from documents, so it is there.

    With one microbatch nothing varies, and with no group of ranks nobody waits: None.
    """
    if spec.microbatches < 2:
        return None
    kind = choose_kind(KINDS, rng, kind)
    groups = [size for size in (2, 4, 8) if spec.dp % size == 0]
    if kind == "inside" and not groups:
        return None
    waits = kind == "inside"
    group = int(rng.choice(groups)) if groups and kind != "each-rank" else 1
    recorded = bool(rng.random() < 0.4) or spec.n_virtual == 1 or waits
    hot = float(rng.uniform(0.2, MOST_HOT if recorded else MOST_HOT_UNSEEN))
    return ExpertImbalance(
        kind=kind,
        spread=float(rng.uniform(0.06, 0.4)) if strength is None else strength,
        group=group,
        waits=waits,
        hot_share=hot if kind in ("hot", "inside") else 0.0,
        drift_steps=float(rng.uniform(5, 60)),
        records_tokens=recorded,
        says_ep_size=bool(rng.random() < 0.5),
        onset=onset,
    )


EXAMPLES = {
    "uneven experts": Example(ExpertImbalance(spread=0.3)),
    "uneven experts of groups": Example(ExpertImbalance(spread=0.3, group=2, says_ep_size=True)),
    "uneven experts that all of a group wait for": Example(
        ExpertImbalance(spread=0.3, group=2, waits=True, hot_share=0.5, records_tokens=True)
    ),
    "experts that stay hot": Example(ExpertImbalance(spread=0.3, hot_share=0.2)),
    "uneven experts of interleaved stages": Example(
        ExpertImbalance(spread=0.35), dataclasses.replace(CLEAR, pp=2, vpp=2)
    ),
}
PLAIN = Example(ExpertImbalance(spread=0.3), PLAIN_JOB)
LOOK_ALIKES = {
    "even documents of experts": LookAlike(EvenDocuments(packed_tokens=8192, document_tokens=4096, spread=0.01)),
}
FIXTURE = Fixture(
    "experts are given uneven shares of the tokens, others on each stage; no columns",
    seed=3,
    strength=0.3,
    kind="each-rank",
)
