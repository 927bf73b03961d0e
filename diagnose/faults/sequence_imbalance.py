"""Documents of very different lengths packed into microbatches of one token length: attention costs the square of each.

A microbatch costs a x tokens + b x (sum of squared document lengths), on every stage, forward and backward alike, and is
another in each step. The work is in the wrong place, not too much: mended, it is kept and evenly spread, so that every
microbatch of a step costs the mean over that step's global batch (all dp ranks and microbatches). Steps differ still.
"""

import dataclasses
from typing import ClassVar

import numpy as np

from diagnose.faults.fault import Fault
from diagnose.faults.inputs import Inputs
from diagnose.faults.spec import JobSpec
from diagnose.model.optype import Op
from diagnose.model.trace import Seconds


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceImbalance(Fault):
    """Long-tailed documents; `strength` is the part of a mean microbatch's cost that grows with the square of lengths.

    Attributes
    ----------
    quadratic_share : float
        0..1, part of the mean cost that is attention within documents.
    packed_tokens : int
        Tokens in each microbatch; a document that does not fit is cut, and its rest begins the next microbatch.
    median_tokens : float
        Median length of a document.
    length_spread : float
        Standard deviation of the logarithm of lengths.
    backward_ratio : float
        What a backward's cost deviates from the mean for each 1 of the forward's; production jobs have 0.7 to 1.4.
    records_tokens : bool
        The trace has `tokens` and `tokens_sq`.
    """

    cause: ClassVar[str] = "sequence-imbalance"
    quadratic_share: float = 0.4
    packed_tokens: int = 32768
    median_tokens: float = 1200.0
    length_spread: float = 1.4
    backward_ratio: float = 1.0
    records_tokens: bool = False

    @property
    def strength(self) -> float:
        """Part of the mean cost that is quadratic."""
        return self.quadratic_share

    def apply(self, inputs: Inputs) -> Inputs:
        """Make each microbatch as long as its documents, and note them where the trace records them."""
        tokens_sq = self._draw_tokens_sq(inputs.spec)
        changed = self._scale(inputs, self._cost(inputs.spec, tokens_sq))
        if not self.records_tokens:
            return changed
        tokens = np.full(tokens_sq.shape, float(self.packed_tokens))
        tokens_sq = np.where(self.active(inputs.spec), tokens_sq, tokens_sq.mean())
        return dataclasses.replace(changed, tokens=tokens, tokens_sq=tokens_sq)

    def mend(self, inputs: Inputs) -> Inputs:
        """Give every microbatch the mean cost of its step's global batch."""
        cost = self._cost(inputs.spec, self._draw_tokens_sq(inputs.spec))
        return self._scale(inputs, np.broadcast_to(cost.mean(axis=(0, 2), keepdims=True), cost.shape))

    def _cost(self, spec: JobSpec, tokens_sq: Seconds) -> Seconds:
        """Work out the cost of each microbatch in units of the job's mean, shape (n_microbatches, n_steps, n_dp)."""
        cost = 1.0 - self.quadratic_share + self.quadratic_share * tokens_sq / tokens_sq.mean()
        return np.where(self.active(spec), cost, 1.0)

    def _scale(self, inputs: Inputs, cost: Seconds) -> Inputs:
        """Scale forward and backward of each microbatch on every stage."""
        programme, work_s = inputs.programme, inputs.work_s.copy()
        for op, ratio in ((Op.FORWARD, 1.0), (Op.BACKWARD, self.backward_ratio)):
            tasks = programme.is_op(op)
            work_s[tasks] *= np.maximum(1.0 + (cost - 1.0) * ratio, 0.05)[programme.microbatch[tasks]]
        return dataclasses.replace(inputs, work_s=work_s)

    def _draw_tokens_sq(self, spec: JobSpec) -> Seconds:
        """Pack a stream of documents, and sum the squares of the pieces in each microbatch.

        Returns
        -------
        ndarray of float64, shape (n_microbatches, n_steps, n_dp)
        """
        rng = self.random(spec)
        n_packs = spec.steps * spec.dp * spec.microbatches
        total = n_packs * self.packed_tokens
        mean = self.median_tokens * float(np.exp(self.length_spread**2 / 2))
        ends = np.zeros(0, dtype=np.int64)
        while not len(ends) or ends[-1] < total:
            log = self.length_spread * rng.standard_normal(int(total / mean) // 4 + 64)
            lengths = np.maximum(self.median_tokens * np.exp(log), 1.0).astype(np.int64)
            ends = np.concatenate([ends, lengths.cumsum() + (ends[-1] if len(ends) else 0)])
        borders = np.arange(n_packs + 1, dtype=np.int64) * self.packed_tokens
        cuts = np.union1d(ends[ends < total], borders)
        pieces = np.diff(cuts).astype(np.float64)
        sums = np.add.reduceat(pieces**2, np.searchsorted(cuts, borders[:-1]))
        return np.moveaxis(sums.reshape(spec.steps, spec.dp, spec.microbatches), 2, 0)


def draw_fault(
    spec: JobSpec, rng: np.random.Generator, *, strength: float | None = None, onset: int | None = None
) -> SequenceImbalance | None:
    """Draw a mixture of documents, from a little uneven to a spread of forwards of a third; half of the jobs record tokens.

    With one microbatch there is nothing to balance: None.
    """
    if spec.dp * spec.microbatches == 1:
        return None
    share = float(rng.uniform(0.15, 0.6))
    return SequenceImbalance(
        quadratic_share=share if strength is None else strength,
        packed_tokens=int(2 ** rng.integers(13, 18)),
        median_tokens=float(np.exp(rng.uniform(np.log(400), np.log(3000)))),
        length_spread=float(rng.uniform(1.0, 1.8)),
        backward_ratio=float(rng.uniform(0.85, 1.15)),
        records_tokens=bool(rng.random() < 0.5),
        onset=onset,
    )
