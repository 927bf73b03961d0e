"""Context-parallel sharding against plain loops, and what each way is good for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnose.errors import UsageError
from diagnose.packing.cost import Cost
from diagnose.packing.sharding import Kernel
from tests.packing.naive import attend_per_document, attend_per_sequence
from tests.packing.sharding import shard_per_document, shard_per_sequence

#: A kernel that loses nothing.
IDEAL = Kernel(tile=1, full_speed=1, slowest=1.0)
COST = Cost(1.0, 1 / 1_000)


@settings(max_examples=150, deadline=None)
@given(lengths=st.lists(st.integers(1, 40), max_size=8), cp=st.integers(1, 5))
def test_equals_plain_loops(lengths: list[int], cp: int) -> None:
    """With an ideal kernel, tokens and attention of every rank are those counted token by token."""
    for shard, naive in ((shard_per_sequence, attend_per_sequence), (shard_per_document, attend_per_document)):
        found = shard(np.array(lengths, dtype=int), cp, Cost(0.0, 0.5), IDEAL)
        tokens, pairs = naive(lengths, cp)
        assert found.tokens.tolist() == tokens
        # twice the pairs, less one a token: a document of d tokens counts d squared
        assert found.costs == pytest.approx(0.5 * (2 * np.array(pairs) - np.array(tokens)))
        assert found.kernel_loss == pytest.approx(0.0)


def test_one_document_is_even_either_way() -> None:
    """The chunks r and 2 cp - 1 - r of one long document hold the same attention for every rank."""
    for shard in (shard_per_sequence, shard_per_document):
        assert shard([65_536], 4, COST).imbalance == pytest.approx(1.0)


def test_per_document_is_even_for_several() -> None:
    """A long document behind short ones burdens some ranks unless every document is cut."""
    lengths = [4_096] * 8 + [32_768]
    assert shard_per_sequence(lengths, 4, COST).imbalance > 1.2
    assert shard_per_document(lengths, 4, COST).imbalance == pytest.approx(1.0)


def test_short_chunks_cost_more() -> None:
    """Cutting documents of 256 tokens into 16 chunks of 16 wastes most of the kernel's work; long chunks lose nothing."""
    assert shard_per_document([256] * 8, 8, COST).kernel_loss > 0.85
    assert shard_per_document([65_536], 8, COST).kernel_loss == pytest.approx(0.0)


def test_odd_inputs() -> None:
    """An empty microbatch costs nothing; tokens that cannot be divided are dealt in turn; a kernel without sense is refused."""
    assert shard_per_sequence(np.array([], dtype=int), 4, COST).slowest == 0.0
    assert shard_per_document([3], 4, COST).tokens.tolist() == [1, 1, 1, 0]
    for call in (lambda: Kernel(tile=0), lambda: Kernel(slowest=0.0)):
        with pytest.raises(UsageError):
            call()
