"""Transfers that no row records, derived from the computes on both sides."""

import numpy as np
import pytest

from diagnose.model.optype import P2P, Op
from diagnose.model.trace import Block, Nodes
from diagnose.trace.derive import derive_transfers, lacks_transfers

#: One step, two stages, two microbatches, 1F1B: (type, stage, microbatch, start, end).
COMPUTES = (
    (Op.FORWARD, 0, 0, 0.0, 1.0),
    (Op.FORWARD, 0, 1, 1.2, 2.2),
    (Op.BACKWARD, 0, 0, 4.4, 6.4),
    (Op.BACKWARD, 0, 1, 7.8, 9.8),
    (Op.FORWARD, 1, 0, 1.2, 2.2),
    (Op.BACKWARD, 1, 0, 2.2, 4.2),
    (Op.FORWARD, 1, 1, 4.5, 5.5),
    (Op.BACKWARD, 1, 1, 5.5, 7.5),
)


def block_of(computes: tuple[tuple[Op, int, int, float, float], ...], chunk: int = 0) -> Block:
    """Make a block of one lane."""
    op, stage, microbatch, start_s, end_s = (np.array(column) for column in zip(*computes, strict=True))
    nodes = Nodes(op, stage, microbatch, microbatch, np.full(len(op), chunk))
    return Block(np.array([1]), nodes, start_s[:, None, None].astype(float), end_s[:, None, None].astype(float))


def times(block: Block, op: Op, stage: int) -> list[tuple[float, float]]:
    """Give start and end of each transfer of one type on a stage."""
    at = np.flatnonzero((block.nodes.op == op) & (block.nodes.stage == stage))
    return [(float(block.start_s[n, 0, 0]), float(block.end_s[n, 0, 0])) for n in at]


def test_each_wait_between_computes_is_what_is_sent_and_received_then() -> None:
    """A worker receives from the end of its compute to the start of the next; blocked, it sends as long."""
    (block,), are_told = derive_transfers((block_of(COMPUTES),))
    assert are_told
    assert times(block, Op.FORWARD_RECV, 1) == [(0.0, 1.2), (4.2, 4.5)]
    assert times(block, Op.BACKWARD_RECV, 0) == [(2.2, 4.4), (6.4, 7.8)]
    assert times(block, Op.FORWARD_SEND, 0) == [(1.0, 1.2), (2.2, 4.4)]
    assert times(block, Op.BACKWARD_SEND, 1) == [(4.2, 4.5), (7.5, 7.8)]


def test_steps_that_lost_a_stage_send_to_nobody() -> None:
    """Steps without the rows of the last stage still have that stage before them, and their sends move nothing."""
    whole, cut = derive_transfers((block_of(COMPUTES), block_of(COMPUTES[:4])))[0]
    assert times(whole, Op.FORWARD_SEND, 0) == [(1.0, 1.2), (2.2, 4.4)]
    assert times(cut, Op.FORWARD_SEND, 0) == [(1.0, 1.0), (2.2, 2.2)]
    assert times(cut, Op.BACKWARD_RECV, 0) == [(2.2, 2.2), (6.4, 6.4)]


def test_the_outermost_stages_send_nothing_outwards() -> None:
    """The first stage receives no forward, the last no backward."""
    (block,), _ = derive_transfers((block_of(COMPUTES),))
    assert times(block, Op.FORWARD_RECV, 0) == times(block, Op.BACKWARD_SEND, 0) == []
    assert times(block, Op.FORWARD_SEND, 1) == times(block, Op.BACKWARD_RECV, 1) == []


def test_a_worker_that_goes_on_does_not_block() -> None:
    """Where the next compute begins before the other end is ready, what was sent lasts until it is used."""
    early = tuple(
        (op, stage, m, *((1.0, 2.0) if (op, stage, m) == (Op.FORWARD, 0, 1) else (start, end)))
        for op, stage, m, start, end in COMPUTES
    )
    early = tuple(
        (op, stage, m, *((3.0, 5.0) if (op, stage, m) == (Op.BACKWARD, 0, 0) else (start, end)))
        for op, stage, m, start, end in early
    )
    (block,), _ = derive_transfers((block_of(early),))
    assert times(block, Op.FORWARD_SEND, 0)[1] == (2.0, 4.5)


def test_a_compute_that_is_missing_has_no_transfer() -> None:
    """A lost compute leaves gaps, to be filled as other gaps are."""
    block = block_of(COMPUTES)
    block.start_s[0], block.end_s[0] = np.nan, np.nan
    (found,), _ = derive_transfers((block,))
    assert np.isnan(times(found, Op.FORWARD_SEND, 0)[0][0])
    assert len(found.nodes) == len(block.nodes) + 8


def test_only_blocks_without_transfers_lack_them() -> None:
    """One stage alone sends nothing, and what was recorded is not derived."""
    block = block_of(COMPUTES)
    assert lacks_transfers((block,))
    (derived,), _ = derive_transfers((block,))
    assert not lacks_transfers((derived,))
    assert not lacks_transfers((block_of(tuple(row for row in COMPUTES if row[1] == 0)),))
    assert int(np.isin(derived.nodes.op, [int(op) for op in P2P]).sum()) == 8


def test_interleaved_workers_that_do_not_block_tell_no_network_fault() -> None:
    """With chunks that are sent ahead a transfer and a queue look alike, and that is said."""
    second = tuple((op, stage, m, start + 0.1, end + 0.1) for op, stage, m, start, end in COMPUTES)
    one, two = block_of(COMPUTES), block_of(second, chunk=1)
    nodes = Nodes(
        *(
            np.concatenate([getattr(b.nodes, f) for b in (one, two)])
            for f in ("op", "stage", "seq", "microbatch", "chunk")
        )
    )
    nodes = Nodes(nodes.op, nodes.stage, np.r_[one.nodes.seq, two.nodes.seq + 2], nodes.microbatch, nodes.chunk)
    both = Block(one.steps, nodes, np.concatenate([one.start_s, two.start_s]), np.concatenate([one.end_s, two.end_s]))
    (block,), are_told = derive_transfers((both,))
    assert not are_told
    assert len(times(block, Op.FORWARD_SEND, 1)) == 4
    assert pytest.approx(0.0) == block.end_s[block.nodes.op == Op.FORWARD_RECV].min()


#: When each of three stages begins four forwards, as usual and where messages over the second link hold up their sender for 3 s.
USUAL_S = ((0.0, 1.0, 2.0, 3.0), (1.0, 2.0, 3.0, 4.0), (2.0, 3.5, 5.0, 6.5))
HELD_S = ((0.0, 1.0, 2.0, 3.0), (1.0, 5.0, 9.0, 13.0), (5.0, 9.0, 13.0, 17.0))
FORWARDS_S = np.repeat([1.0, 1.0, 1.5], 4)


@pytest.mark.parametrize("n_held", [1, 3, 12])
def test_what_holds_up_its_sender_is_no_slow_link_before_it(n_held: int) -> None:
    """Where what a worker sends holds up its next forward, the input of that has long been there; in few steps as in many."""
    stage, microbatch = np.repeat([0, 1, 2], 4), np.tile([0, 1, 2, 3], 3)
    nodes = Nodes(np.full(12, Op.FORWARD), stage, microbatch, microbatch, np.zeros(12, dtype=np.int64))
    start_s = np.stack([np.ravel(HELD_S if step < n_held else USUAL_S) for step in range(12)], axis=1)[..., None]
    (block,), _ = derive_transfers((Block(np.arange(12), nodes, start_s, start_s + FORWARDS_S[:, None, None]),))

    def lasts(op: Op, at: int) -> list[float]:
        return [end - start for start, end in times(block, op, at)]

    assert lasts(Op.FORWARD_SEND, 1)[:3] == [3.0, 3.0, 3.0]
    assert lasts(Op.FORWARD_RECV, 2)[1:] == [2.5, 2.5, 2.5]
    assert lasts(Op.FORWARD_RECV, 1)[1:] == [0.0, 0.0, 0.0]
