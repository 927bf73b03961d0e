"""Derive the transfers between stages where a trace has computes only.

Enters: blocks without point-to-point operations. Leaves: the same blocks with one send and one recv for each compute that another
stage waits for. A worker that waits between two computes does so in what it receives then: that begins where the one compute ended
and ends where the next began. What it sends lasts as long where the worker does not go on before the other end is ready, as in the
blocking batches of Megatron-LM; else until the other end uses it. Whether a wait is the network, or the other end that was
late, follows as for recorded transfers: a transfer moves when its last end is there. Costs O(operations).
"""

import dataclasses
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from diagnose.model.optype import DIRECTIONS, P2P, Op, of_types
from diagnose.model.placement import positions_of, stage_at
from diagnose.model.trace import Block, Bools, Seconds
from diagnose.numerics.robust import nan_median

#: The send and the recv of each direction, and from which stage on which the next waits.
_WAYS = ((Op.FORWARD, Op.FORWARD_SEND, Op.FORWARD_RECV, 1), (Op.BACKWARD, Op.BACKWARD_SEND, Op.BACKWARD_RECV, -1))

#: Where a worker sends: on which stage, behind which type of compute and before which.
_Kind = tuple[int, int, int]
#: The compute that a transfer goes before or behind, its type, start and end.
_Transfer = tuple[int, Op, Seconds, Seconds]
#: Workers block in what they send where they go on after the other end was ready in this part of the cases (a warm-up step, or a
#: pause, may be among them), to this part of a typical forward.
BLOCKING_SHARE = 0.9
TOLERANCE_SHARE = 0.02
#: A compute whose input is there begins late beyond this part of one; what was sent holds it up in a step where it does
#: so in this part of its cases.
HOLDING_SHARE = 0.1
HELD_SHARE = 0.2


def lacks_transfers(blocks: Sequence[Block]) -> bool:
    """Say whether several stages were recorded and no transfer between them."""
    p2p = [int(op) for op in P2P]
    return any(block.nodes.stage.max() > 0 for block in blocks) and not any(
        of_types(block.nodes.op, p2p).any() for block in blocks
    )


def derive_transfers(blocks: Sequence[Block]) -> tuple[tuple[Block, ...], bool]:
    """Add the transfers between stages to blocks that have none, as nodes behind their own.

    The second result is False with interleaved chunks whose workers do not wait for the other end of what they send: then a
    worker waits for transfers that others have queued, and that looks like slow ones.
    """
    n_stages = max(int(block.nodes.stage.max()) for block in blocks) + 1  # damaged steps may lack the last ones
    plans = [_Plan(block, n_stages) for block in blocks]
    blocked: Counter[_Kind] = Counter()
    seen: Counter[_Kind] = Counter()
    for plan in plans:
        plan.count_blocked(blocked, seen)
    blocking = {kind for kind, n in seen.items() if blocked[kind] >= BLOCKING_SHARE * n}
    are_told = blocked.total() >= BLOCKING_SHARE * seen.total() or not any(plan.is_interleaved for plan in plans)
    return tuple(plan.fill(blocking) for plan in plans), are_told


class _Plan:
    """The computes of a block in their order, and who waits for whom."""

    def __init__(self, block: Block, n_stages: int) -> None:
        nodes = block.nodes
        self.block = block
        self.n_stages = n_stages
        self.position, self.holder = positions_of(nodes), stage_at(nodes)
        self.computes = np.flatnonzero(of_types(nodes.op, DIRECTIONS))
        self.at = {
            (int(nodes.op[n]), int(self.position[n]), int(nodes.microbatch[n])): n for n in self.computes.tolist()
        }
        self.is_interleaved = int(nodes.chunk.max(initial=0)) > 0
        #: Ends of the compute before each one on its worker (0 before the first), and the one after it.
        self.before_s: dict[int, Seconds] = {}
        self.next: dict[int, int | None] = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a compute that no lane has
            typical_s = np.nan_to_num(np.nanmean(block.start_s, axis=(1, 2)))
        for stage in range(self.n_stages):
            order = self.computes[nodes.stage[self.computes] == stage]
            order = order[np.lexsort((nodes.seq[order], typical_s[order]))]
            for i, n in enumerate(order.tolist()):
                self.before_s[n] = block.end_s[order[i - 1]] if i else np.zeros(block.start_s.shape[1:])
                self.next[n] = int(order[i + 1]) if i + 1 < len(order) else None

    def _peer(self, n: int, ahead: int) -> int | None:
        """Find the compute on the same microbatch so many virtual stages ahead."""
        nodes = self.block.nodes
        return self.at.get((int(nodes.op[n]), int(self.position[n]) + ahead, int(nodes.microbatch[n])))

    def _crosses(self, n: int, toward: int) -> bool:
        """Say whether what goes to, or comes from, so many model chunks ahead crosses stages; dealt out in turn all chunks do."""
        nodes = self.block.nodes
        stage = int(nodes.stage[n])
        if nodes.position is not None:
            return self.holder.get(int(self.position[n]) + toward, stage) != stage
        return self.is_interleaved or stage != (self.n_stages - 1 if toward > 0 else 0)

    def _kind(self, n: int) -> _Kind:
        """Say on which stage, behind what and before what a worker sends."""
        nodes, following = self.block.nodes, self.next[n]
        return int(nodes.stage[n]), int(nodes.op[n]), -1 if following is None else int(nodes.op[following])

    def count_blocked(self, blocked: Counter[_Kind], seen: Counter[_Kind]) -> None:
        """Count the sends after which the worker went on only once the other end was ready to receive, and all of them."""
        block, forwards = self.block, self.block.nodes.op == Op.FORWARD
        tolerance_s = TOLERANCE_SHARE * float(nan_median((block.end_s - block.start_s)[forwards], axis=(0, 1, 2)))
        for n, following in self.next.items():
            to = self._peer(n, 1 if forwards[n] else -1)
            if to is None or following is None:
                continue
            late_s = block.start_s[following] - self.before_s[to]
            late_s = late_s[np.isfinite(late_s)]
            blocked[self._kind(n)] += int(np.count_nonzero(late_s >= -tolerance_s))
            seen[self._kind(n)] += late_s.size

    def fill(self, blocking: set[_Kind]) -> Block:
        """Give the block with all transfers; `blocking` are the kinds of sends that hold up their worker."""
        nodes = self.block.nodes
        new: list[_Transfer] = []
        ready_s = dict(self.before_s)
        holding = self._find_holding(blocking)
        for op, send, _, ahead in _WAYS:
            for n in self.computes[nodes.op[self.computes] == op].tolist():
                if self._crosses(n, ahead):
                    sent = self._sent_s(n, self._peer(n, ahead), blocking, holding)
                    new.append((n, send, self.block.end_s[n], sent))
                    following, kind = self.next[n], self._kind(n)
                    if following is not None and kind in blocking and self._in_turn(n, following):
                        ready_s[following] = sent
                    elif following is not None and kind in holding:
                        ready_s[following] = np.where(holding[kind], sent, ready_s[following])
        for op, _, recv, ahead in _WAYS:
            for n in self.computes[nodes.op[self.computes] == op].tolist():
                if self._crosses(n, -ahead):
                    # Without a peer nothing moves: what the compute waits for is its launch delay.
                    moves = self._peer(n, -ahead) is not None
                    begun = ready_s[n]
                    new.append((n, recv, begun, np.maximum(self.block.start_s[n], begun) if moves else begun))
        return _extend(self.block, new)

    def _sent_s(self, n: int, to: int | None, blocking: set[_Kind], holding: Mapping[_Kind, Bools]) -> Seconds:
        """Say when what a compute sends is over.

        Of computes of both directions one sends and the next receives over the same link, in one batch. Between two of one
        direction a worker first sends, and then receives over another link; with interleaved chunks it does all at once.
        """
        block, following, kind = self.block, self.next[n], self._kind(n)
        ended: Seconds = block.end_s[n]
        if to is None:
            return ended
        arrived = block.start_s[to]
        if following is not None and kind in holding:
            arrived = np.where(holding[kind], np.minimum(arrived, block.start_s[following]), arrived)
        elif following is not None and kind in blocking:
            gone_on = block.start_s[following]
            arrived = np.minimum(arrived, gone_on) if self._in_turn(n, following) else gone_on
        return np.asarray(np.maximum(arrived, ended))

    def _find_holding(self, blocking: set[_Kind]) -> dict[_Kind, Bools]:
        """Find where what is sent holds up the next compute: one of weight gradients, or a forward whose input is there.

        It does in a step where that begins late in most cases, but not after the other end has what was sent.
        """
        block, nodes = self.block, self.block.nodes
        held: dict[_Kind, list[Bools]] = {}
        for n, following in self.next.items():
            ahead = 1 if nodes.op[n] == Op.FORWARD else -1
            to, kind = self._peer(n, ahead), self._kind(n)
            if self.is_interleaved or to is None or following is None or kind in blocking:
                continue
            if nodes.op[following] in (Op.WEIGHT, nodes.op[n]):
                tolerance_s = HOLDING_SHARE * float(nan_median(block.end_s[n] - block.start_s[n], axis=(0, 1)))
                begun, ready = block.start_s[following], block.end_s[n]
                source = None if nodes.op[following] == Op.WEIGHT else self._peer(following, -ahead)
                if source is not None:
                    ready = np.maximum(ready, block.end_s[source])
                is_late = begun - ready > tolerance_s
                held.setdefault(kind, []).append(is_late & (begun <= block.start_s[to] + tolerance_s))
        return {kind: np.mean(cases, axis=0) > HELD_SHARE for kind, cases in held.items()}

    def _in_turn(self, n: int, following: int) -> bool:
        """Say whether a worker first sends what one compute made and then receives what the next needs."""
        return not self.is_interleaved and bool(self.block.nodes.op[following] == self.block.nodes.op[n])


def _extend(old: Block, new: Sequence[_Transfer]) -> Block:
    """Put transfers behind the nodes of a block; one is missing where its compute is."""
    if not new:
        return old
    computes, ops, starts_s, ends_s = zip(*new, strict=True)
    of = np.array(computes, dtype=np.int64)
    nodes = old.nodes
    start_s, end_s = np.stack(starts_s), np.stack(ends_s)
    there = ~(np.isnan(old.start_s[of]) | np.isnan(start_s) | np.isnan(end_s))
    empty = np.full(start_s.shape, np.nan)
    return dataclasses.replace(
        old,
        nodes=nodes.add(np.array([int(op) for op in ops]), nodes.stage[of], nodes.seq[of]),
        start_s=np.concatenate([old.start_s, np.where(there, start_s, np.nan)]),
        end_s=np.concatenate([old.end_s, np.where(there, end_s, np.nan)]),
        absent=None if old.absent is None else np.concatenate([old.absent, old.absent[of]]),
        filled=None if old.filled is None else np.concatenate([old.filled, old.filled[of]]),
        tokens=None if old.tokens is None else np.concatenate([old.tokens, empty]),
        tokens_sq=None if old.tokens_sq is None else np.concatenate([old.tokens_sq, empty]),
        expert_tokens=None if old.expert_tokens is None else np.concatenate([old.expert_tokens, empty]),
    )
