"""Documents of very different lengths packed into microbatches of one token length: attention costs the square of each.

A microbatch costs a x tokens + b x (sum of squared document lengths), on every stage, forward and backward alike, and is
another in each step. The work is in the wrong place, not too much: mended, it is kept and evenly spread, so that every
microbatch of a step costs the mean over that step's global batch (all dp ranks and microbatches). Steps differ still.
"""

import dataclasses
from typing import ClassVar, Literal, cast

import numpy as np

from diagnose.faults.decoys import EvenDocuments
from diagnose.faults.example import PLAIN_JOB, Example, Fixture, LookAlike
from diagnose.faults.fault import Fault, choose_kind
from diagnose.faults.inputs import Inputs
from diagnose.faults.spec import JobSpec, draw_log_uniform
from diagnose.model.documents import Documents
from diagnose.model.optype import Op
from diagnose.model.trace import Seconds

#: How documents come to lie in microbatches.
Layout = Literal["packed", "sorted", "one-replica", "lognormal"]
#: Standard deviation of the logarithm of the squares of lengths that are not packed.
LOGNORMAL_SPREAD = 0.7
#: Documents are capped at this part of a microbatch.
CAPPED_AT = 0.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceImbalance(Fault):
    """Long-tailed documents; `strength` is the part of a mean microbatch's cost that grows with the square of lengths."""

    cause: ClassVar[str] = "sequence-imbalance"
    strength_field: ClassVar[str] = "quadratic_share"
    #: 0..1, part of the mean cost that is attention within documents.
    quadratic_share: float = 0.4
    #: Tokens in each microbatch; a document that does not fit is cut, and its rest begins the next microbatch.
    packed_tokens: int = 32768
    #: Median length of a document.
    median_tokens: float = 1200.0
    #: Standard deviation of the logarithm of lengths.
    length_spread: float = 1.4
    #: What a backward's cost deviates from the mean for each 1 of the forward's; production jobs have 0.7 to 1.4.
    backward_ratio: float = 1.0
    #: How documents come to lie in microbatches: as they come; those of a rank in a step longest first; one replica is always given
    #: the longer ones; or microbatches are as long as they are, lognormal, without being packed.
    layout: Layout = "packed"
    #: No document is longer than this; None: as long as it is.
    most_tokens: float | None = None
    #: The replica that is given the longer ones.
    replica: int = 0
    #: The trace has `tokens` and `tokens_sq`.
    records_tokens: bool = False
    #: The trace has `doc_lengths`, for the steps in which it happens.
    records_documents: bool = False

    def apply(self, inputs: Inputs) -> Inputs:
        """Make each microbatch as long as its documents, and note them where the trace records them."""
        documents = self.draw_documents(inputs.spec)
        tokens_sq = self._arrange(inputs.spec, documents)
        changed = self.scale(inputs, self._cost(inputs.spec, tokens_sq))
        if self.records_documents and self.layout == "packed":
            known = np.flatnonzero(self.active(inputs.spec)[documents.step, 0])
            changed = dataclasses.replace(changed, documents=documents.take(known))
        if not self.records_tokens:
            return changed
        tokens = np.full(tokens_sq.shape, float(self.packed_tokens))
        tokens_sq = np.where(self.active(inputs.spec), tokens_sq, tokens_sq.mean())
        return dataclasses.replace(changed, tokens=tokens, tokens_sq=tokens_sq)

    def mend(self, inputs: Inputs) -> Inputs:
        """Give every microbatch the mean cost of its step's global batch."""
        cost = self.draw_cost(inputs.spec)
        return self.scale(inputs, np.broadcast_to(cost.mean(axis=(0, 2), keepdims=True), cost.shape))

    def draw_cost(self, spec: JobSpec) -> Seconds:
        """Draw the cost of each microbatch in units of the job's mean, shape (n_microbatches, n_steps, n_dp)."""
        return self._cost(spec, self._arrange(spec, self.draw_documents(spec)))

    def _arrange(self, spec: JobSpec, documents: Documents) -> Seconds:
        """Give the sum of squared lengths of each microbatch, shape (n_microbatches, n_steps, n_dp)."""
        if self.layout == "lognormal":
            log = LOGNORMAL_SPREAD * self.random(spec).standard_normal((spec.microbatches, spec.steps, spec.dp))
            return np.asarray(np.exp(log))
        tokens_sq = self._by_microbatch(spec, documents.tokens_sq())
        if self.layout == "sorted":
            return np.sort(tokens_sq, axis=0)[::-1]
        if self.layout == "one-replica":
            tokens_sq = tokens_sq.copy()
            other = np.roll(tokens_sq[:, :, self.replica], 1, axis=0)
            tokens_sq[:, :, self.replica] = np.maximum(tokens_sq[:, :, self.replica], other)
        return tokens_sq

    def _cost(self, spec: JobSpec, tokens_sq: Seconds) -> Seconds:
        """Work out the cost of each microbatch in units of the job's mean, shape (n_microbatches, n_steps, n_dp)."""
        cost = 1.0 - self.quadratic_share + self.quadratic_share * tokens_sq / tokens_sq.mean()
        return np.where(self.active(spec), cost, 1.0)

    @staticmethod
    def _by_microbatch(spec: JobSpec, values: Seconds) -> Seconds:
        """Lay out one value a list, shape (n_microbatches, n_steps, n_dp)."""
        return np.moveaxis(values.reshape(spec.steps, spec.dp, spec.microbatches), 2, 0)

    def scale(self, inputs: Inputs, cost: Seconds, linear: Seconds | float = 1.0) -> Inputs:
        """Scale forward and backward of each microbatch on every stage.

        Parameters
        ----------
        cost : ndarray of float64, shape (n_microbatches, n_steps, n_dp)
            In units of the job's mean, as `draw_cost`.
        linear : ndarray of float64 of the same shape, or 1
            Tokens of a microbatch over those of a full one: an empty one takes no time.
        """
        programme = inputs.programme
        for op, ratio in ((Op.FORWARD, 1.0), (Op.BACKWARD, self.backward_ratio)):
            tasks = programme.is_op(op)
            longer = np.maximum(linear + (cost - linear) * ratio, 0.05)[programme.microbatch[tasks]]
            inputs = inputs.with_work(tasks, longer)
        return inputs

    def draw_documents(self, spec: JobSpec) -> Documents:
        """Pack a stream of documents: the pieces in each microbatch, `step` an index."""
        rng = self.random(spec)
        n_packs = spec.steps * spec.dp * spec.microbatches
        total = n_packs * self.packed_tokens
        mean = self.median_tokens * float(np.exp(self.length_spread**2 / 2))
        ends = np.zeros(0, dtype=np.int64)
        while not len(ends) or ends[-1] < total:
            log = self.length_spread * rng.standard_normal(int(total / mean) // 4 + 64)
            lengths = np.clip(self.median_tokens * np.exp(log), 1.0, self.most_tokens).astype(np.int64)
            ends = np.concatenate([ends, lengths.cumsum() + (ends[-1] if len(ends) else 0)])
        borders = np.arange(n_packs + 1, dtype=np.int64) * self.packed_tokens
        cuts = np.union1d(ends[ends < total], borders)
        lane, microbatch = np.divmod(np.arange(n_packs), spec.microbatches)
        return Documents(
            step=lane // spec.dp,
            dp=lane % spec.dp,
            microbatch=microbatch,
            offsets=np.searchsorted(cuts, borders),
            lengths=np.diff(cuts).astype(np.int32),
        )


#: How often a random fault is of each kind.
KINDS = {"packed": 0.55, "capped": 0.1, "sorted": 0.1, "one-replica": 0.1, "lognormal": 0.15}


def draw_fault(
    spec: JobSpec,
    rng: np.random.Generator,
    *,
    strength: float | None = None,
    onset: int | None = None,
    kind: str | None = None,
) -> SequenceImbalance | None:
    """Draw a mixture of documents, from a little uneven to a spread of forwards of a third; half of the jobs record tokens.

    With one microbatch there is nothing to balance: None.
    """
    if spec.dp * spec.microbatches == 1:
        return None
    share = float(rng.uniform(0.15, 0.6))
    fault = SequenceImbalance(
        kind=choose_kind(KINDS, rng, kind),
        quadratic_share=share if strength is None else strength,
        packed_tokens=int(2 ** rng.integers(13, 18)),
        median_tokens=draw_log_uniform(rng, 400, 3000),
        length_spread=float(rng.uniform(1.0, 1.8)),
        backward_ratio=float(rng.uniform(0.85, 1.15)),
        records_tokens=bool(rng.random() < 0.5),
        onset=onset,
    )
    if fault.kind == "capped":
        return dataclasses.replace(fault, most_tokens=CAPPED_AT * fault.packed_tokens)
    if fault.kind == "one-replica" and spec.dp == 1:
        return None
    layout = cast("Layout", fault.kind)
    return dataclasses.replace(
        fault, layout=layout, replica=int(rng.integers(spec.dp)) if layout == "one-replica" else 0
    )


EXAMPLES = {
    "long documents": Example(SequenceImbalance(quadratic_share=0.5)),
    "documents that are not packed": Example(SequenceImbalance(quadratic_share=0.3, layout="lognormal")),
    "documents sorted within a rank": Example(SequenceImbalance(quadratic_share=0.4, layout="sorted")),
    "longer documents on one replica": Example(SequenceImbalance(quadratic_share=0.4, layout="one-replica", replica=2)),
}
PLAIN = Example(SequenceImbalance(quadratic_share=0.5), PLAIN_JOB)
LOOK_ALIKES = {"even documents": LookAlike(EvenDocuments(packed_tokens=8192, document_tokens=2048, spread=0.02))}
FIXTURE = Fixture(
    "packed documents, 0.49 of the cost is attention; with `tokens` and `tokens_sq`", seed=2, kind="packed"
)
