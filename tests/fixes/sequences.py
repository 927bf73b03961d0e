"""Jobs with uneven microbatches, and the truth of dealing them out anew: the same job simulated with the new costs.

The truth is the generator's own event simulation, which shares nothing with the replay.
"""

import dataclasses
from collections.abc import Sequence
from functools import cache

import numpy as np

from diagnose.faults.fault import Fault
from diagnose.faults.generate import list_causes
from diagnose.faults.inputs import Inputs, draw_inputs
from diagnose.faults.record import record
from diagnose.faults.sequence_imbalance import SequenceImbalance
from diagnose.faults.simulate import simulate
from diagnose.faults.spec import JobSpec, random_spec
from diagnose.fixes.deal import take_dealt
from diagnose.fixes.rebalance import Known, Rebalanced, RebalanceSettings, know, rebalance
from diagnose.model.analysis import Analysis
from diagnose.model.remedy import Refusal
from diagnose.model.trace import Seconds
from diagnose.packing.cost import Cost
from diagnose.packing.sharding import Kernel
from tests.fixes.layered import look
from tests.jobs import to_file
from tests.packing.sharding import shard_per_document, shard_per_sequence

#: Rows of a job at most: a test makes dozens.
MAX_ROWS = 15_000
CAUSE = "sequence-imbalance"


def draw(seed: int, i: int, *, other: str | None = None, **changes: object) -> tuple[JobSpec, tuple[Fault, ...]] | None:
    """Draw job `i` with uneven microbatches, alone or with another cause; None where its shape can have none."""
    rng = np.random.default_rng([seed, i])
    for _ in range(10):
        spec = random_spec(rng, max_rows=MAX_ROWS)
        # Documents are recorded where they are packed as they come.
        faults = [list_causes()[CAUSE](spec, rng, kind="packed"), *([list_causes()[other](spec, rng)] if other else [])]
        if all(fault is not None for fault in faults) and spec.dp * spec.microbatches > 1:
            first, *others = faults
            return spec, (dataclasses.replace(first, records_tokens=False, **changes), *others)
    return None


def simulated_steps_s(spec: JobSpec, faults: Sequence[Fault], found: Rebalanced | None) -> Seconds:
    """Simulate a job with its microbatches as found, and all other faults as they are: seconds, shape (n_steps,)."""
    inputs = draw_inputs(spec)
    for fault in faults:
        if found is None or not isinstance(fault, SequenceImbalance):
            inputs = fault.apply(inputs)
        elif found.packed is not None:
            inputs = repack(fault, inputs, found.packed.tokens, found.packed.tokens_sq)
        else:
            inputs = fault.scale(inputs, take_dealt(fault.draw_cost(spec), found.source))
    return simulate(inputs).step_s


def repack(fault: SequenceImbalance, inputs: Inputs, tokens: Seconds, tokens_sq: Seconds) -> Inputs:
    """Pack the documents in another way, of these sums in each microbatch, shape (n_microbatches, n_steps, n_dp).

    What does not grow with the squares grows with the tokens, forward and backward: an empty microbatch takes no time.
    """
    active = fault.active(inputs.spec)
    linear, quadratic = tokens / fault.packed_tokens, tokens_sq / fault.draw_documents(inputs.spec).tokens_sq().mean()
    cost = (1.0 - fault.quadratic_share) * linear + fault.quadratic_share * quadratic
    return fault.scale(inputs, np.where(active, cost, 1.0), np.where(active, linear, 1.0))


def error_of(spec: JobSpec, faults: Sequence[Fault], asked: RebalanceSettings) -> float | None:
    """Say how far the predicted speedup is from the true one, over the steps dealt anew; None where nothing is dealt."""
    job, _, found = rebalanced(spec, *faults, asked=asked)
    if isinstance(found, Refusal) or not (job.breakdown.microbatch_ratio != 1.0).any():
        return None
    at = np.searchsorted(spec.step_numbers(), job.breakdown.steps)
    dealt = np.ones(len(at), dtype=bool) if found.packed is None else ~found.packed.left
    predicted = job.gains.replayed_steps_s[dealt].sum() / job.price([found.work])[dealt].sum()
    before, after = (simulated_steps_s(spec, faults, one)[at][dealt].sum() for one in (None, found))
    return float(predicted / (before / after) - 1.0)


@cache
def analysis(spec: JobSpec, *faults: Fault) -> Analysis:
    """Generate and measure a job, once; nobody judges it."""
    inputs = draw_inputs(spec)
    for fault in faults:
        inputs = fault.apply(inputs)
    return look(to_file(record(inputs, simulate(inputs)))).analysis


@cache
def rebalanced(
    spec: JobSpec, *faults: Fault, asked: RebalanceSettings | None = None
) -> tuple[Analysis, Known, Rebalanced | Refusal]:
    """Measure a job and rebalance it, once."""
    job = analysis(spec, *faults)
    known = know(job)
    return job, known, rebalance(job, known, asked or RebalanceSettings())


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardedSequences(SequenceImbalance):
    """Long-tailed documents on context-parallel ranks: a microbatch costs what its slowest rank costs."""

    way: str = "per-sequence"

    def _cost(self, spec: JobSpec, tokens_sq: np.ndarray) -> np.ndarray:
        documents, cp = self.draw_documents(spec), spec.cp_size
        share = self.quadratic_share
        cost = Cost(cp * (1.0 - share) / self.packed_tokens, cp * share / tokens_sq.mean())
        slowest = []
        for low, high in zip(documents.offsets[:-1], documents.offsets[1:], strict=True):
            lengths = documents.lengths[low:high].tolist()
            ways = (shard_per_sequence, shard_per_document)
            both = [float(shard(lengths, cp, cost, Kernel())[1].max()) for shard in ways]
            slowest.append({"per-sequence": both[0], "per-document": both[1], "adaptive": min(both)}[self.way])
        return np.where(self.active(spec), self._by_microbatch(spec, np.array(slowest)), 1.0)
