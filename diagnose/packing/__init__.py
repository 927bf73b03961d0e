"""Packing documents into microbatches: in a training job, and for comparison."""

from diagnose.packing.cost import Cost
from diagnose.packing.forming import PackingReport
from diagnose.packing.sampler import PackedBatchSampler, PackedIterable

__all__ = ["Cost", "PackedBatchSampler", "PackedIterable", "PackingReport"]
