"""Write the graph of a block under another schedule: what each worker launches, in which order, and what waits for what.

Enters: a `Recorded` block and the launch order of every stage. Leaves: a graph, and for each of its nodes the recorded ones that
say how long it takes and how late it is launched.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from diagnose.model.optype import Op
from diagnose.model.placement import WAYS
from diagnose.model.schedule import BACKWARD, FORWARD, WEIGHT
from diagnose.model.trace import Ints, Nodes
from diagnose.whatif.computes import COMPUTES
from diagnose.whatif.graph import (
    Barrier,
    Event,
    Events,
    Graph,
    Layout,
    Ragged,
    arrange,
    begins_of,
    find_finals,
    flatten,
    join_batches,
)
from diagnose.whatif.recorded import MOVES, NewClosing, Recorded

#: Collectives of which each model chunk has its own.
_BY_CHUNK = (int(Op.ALL_GATHER), int(Op.REDUCE_SCATTER))
#: Places of the types of transfers in `MOVES`: what each direction receives, and what it sends.
_RECV, _SEND = (tuple(MOVES.index(int(way[kind])) for way in WAYS) for kind in (1, 2))


class GraphWriter:
    """Where the new graph of a block is written, for the launch order of each stage and the position of each model chunk.

    `computes` and `moves` are its nodes with the axes of `Recorded`, -1 where there is none.
    """

    def __init__(self, recorded: Recorded, chunks: int, orders: Sequence[Ints], positions: Ints) -> None:
        self.recorded, self.chunks, self.orders = recorded, chunks, orders
        #: Position in the model of each virtual stage, and the virtual stage at each position.
        self.positions, self.at_position = positions, np.argsort(positions)
        self.n_virtual = chunks * recorded.n_stages
        shape = self.n_virtual, len(recorded.microbatches)
        self.computes = np.full((len(COMPUTES), *shape), -1)
        self.moves = np.full((len(MOVES), *shape), -1)
        self.n_nodes = 0
        self.rows: list[Ints] = []  # type, stage, microbatch, chunk
        self.pairs: list[Ints] = []  # source, waiter
        self.last_move: dict[tuple[int, int], int] = {}  # (type, stage) -> the last that was written down
        self.closings: dict[int, int] = {}  # recorded node -> its successor
        self.by_chunk: dict[
            tuple[int, int], list[int]
        ] = {}  # (type, stage) -> nodes that were shared out over other chunks
        nodes, finals = recorded.nodes, recorded.observed.graph.finals
        #: Stages whose step ends with gathers, for the next one.
        self.ended_by_gathers = {int(nodes.stage[node]) for node in finals if nodes.op[node] == Op.ALL_GATHER}
        self.launched: list[Ints] = []  # computes of each stage in launch order
        self.batches = [Ragged.empty(0)]
        self.closed: list[NewClosing] = []
        moves = recorded.moves[:, :, :: recorded.pieces]
        there = (moves >= 0).nonzero()
        #: Type, virtual stage and microbatch of each recorded transfer, -1 elsewhere.
        self.place_of_move = np.full((len(recorded.nodes), 3), -1)
        self.place_of_move[moves[there]] = np.stack(there, axis=1)
        self.place_of_microbatch = {
            m: i for i, m in enumerate(recorded.microbatches.tolist())
        }  # the last piece of each

    def write(self, *, blocking: bool, interleaved: bool) -> Graph:
        """Write down all nodes and what they wait for; then `computes`, `moves` and `closed` say what they take."""
        recorded_moves = bool((self.place_of_move >= 0).any())
        for stage, order in enumerate(self.orders):
            self._add_computes(stage, order)
        for stage, order in enumerate(self.orders if recorded_moves else ()):
            self._add_moves(stage, order[order[:, 0] != WEIGHT])
        self._add_closings()
        first_moves = self._list_first_moves()
        for stage in range(self.recorded.n_stages):
            if not recorded_moves or not blocking:
                self._launch(stage)
            if recorded_moves and not blocking:
                self._run_apart(stage)
            elif recorded_moves and interleaved:
                self._block_interleaved(stage)
            elif recorded_moves:
                self._block(stage)
            self._open(stage, first_moves.get(stage))
        self._link(everywhere=not recorded_moves)
        self._close()
        if blocking:
            self._follow()
        op, stage, microbatch, chunk = np.concatenate(self.rows, axis=1)
        nodes = Nodes(op, stage, _count_before(op * self.recorded.n_stages + stage), microbatch, chunk)
        source, waiter = np.concatenate(self.pairs, axis=1)
        known = (source >= 0) & (waiter >= 0)
        source, waiter = source[known], waiter[known]
        sources = Ragged.of_pairs(waiter, source, self.n_nodes)
        events = self._events()
        finals = find_finals(Layout(nodes, np.arange(len(nodes), dtype=np.float64)), np.arange(len(nodes)))
        return arrange(nodes, sources, events, self._barriers(), (*finals, *self._list_last_gathers()))

    def _list_last_gathers(self) -> list[int]:
        """List the gathers that end the step, by number, as those of the recorded one do."""
        op, stage = self.recorded.nodes.op, self.recorded.nodes.stage
        ended = [old for old in self.closings if op[old] == Op.ALL_GATHER and int(stage[old]) in self.ended_by_gathers]
        shared_out = (self.by_chunk.get((int(Op.ALL_GATHER), of_stage), []) for of_stage in self.ended_by_gathers)
        return sorted({self.closings[old] for old in ended}.union(*shared_out))

    def _add(self, op: Ints | int, stage: int, microbatch: Ints | int = -1, chunk: Ints | int = -1) -> Ints:
        """Write down nodes of a stage."""
        columns = _columns(op, stage, microbatch, chunk)
        self.rows.append(columns)
        self.n_nodes += columns.shape[1]
        return np.arange(self.n_nodes - columns.shape[1], self.n_nodes)

    def _wait(self, sources: Ints | int, waiters: Ints | int) -> None:
        """Let nodes wait for others, one by one; -1 is nothing."""
        self.pairs.append(_columns(sources, waiters))

    def _chain(self, stream: Ints | Sequence[int]) -> None:
        """Let each operation of a stream wait for the one before it."""
        stream = np.asarray(stream, dtype=np.int64)
        self._wait(stream[:-1], stream[1:])

    def _add_computes(self, stage: int, order: Ints) -> None:
        """Write down the computes of a stage."""
        part, chunk, microbatch, _ = order.T
        nodes = self._add(np.array(COMPUTES)[part], stage, self.recorded.microbatches[microbatch], chunk)
        self.computes[part, chunk * self.recorded.n_stages + stage, microbatch] = nodes
        self.launched.append(nodes)

    def _add_moves(self, stage: int, order: Ints) -> None:
        """Write down a send and a recv wherever a microbatch changes its virtual stage."""
        direction, chunk, microbatch, _ = order.T
        virtual = chunk * self.recorded.n_stages + stage
        ahead = np.array([way[3] for way in WAYS])[direction]
        # Of each compute what it receives, then what it sends.
        kind = np.stack([np.array(_RECV)[direction], np.array(_SEND)[direction]], axis=1)
        peer = self.positions[virtual][:, None] + np.stack([-ahead, ahead], axis=1)
        there = (peer >= 0) & (peer < self.n_virtual)
        there[there] = self.at_position[peer[there]] % self.recorded.n_stages != stage
        at = there.nonzero()[0]
        nodes = self._add(np.array(MOVES)[kind[there]], stage, self.recorded.microbatches[microbatch[at]], chunk[at])
        self.moves[kind[there], virtual[at], microbatch[at]] = nodes
        last = {k: nodes[kind[there] == k][-1:].tolist() for k in range(len(MOVES))}
        self.last_move |= {(MOVES[k], stage): node for k, of_kind in last.items() for node in of_kind}

    def _add_closings(self) -> None:
        """Copy what opens and closes a step; what each chunk has of its own is shared out over the new chunks."""
        r = self.recorded
        groups: dict[tuple[int, int], list[int]] = defaultdict(list)
        for node in r.closings:
            groups[int(r.nodes.op[node]), int(r.nodes.stage[node])].append(node)
        for (op, stage), found in groups.items():
            group = sorted(found, key=lambda n: int(r.nodes.seq[n]))
            if op in _BY_CHUNK and len(group) == r.chunks != self.chunks:
                forwards = op == Op.ALL_GATHER or r.layout.chunk(group[0]) <= r.layout.chunk(group[-1])
                chunks = np.arange(self.chunks)
                chunks = chunks if forwards and not self._is_overlapped(group) else chunks[::-1]
                new: list[int] = self._add(op, stage, chunk=chunks).tolist()
                self.by_chunk[op, stage] = new
                self.closings |= {n: new[0] if n == group[0] != group[-1] else new[-1] for n in group}
                later = (group[-1],) if len(group) > 1 else ()
                for i, node in enumerate(new):
                    self.closed.append(NewClosing(node, tuple(group), 1.0 / len(new), (group[0],) if i == 0 else later))
                continue
            copies = self._add(op, stage, r.nodes.microbatch[group], r.nodes.chunk[group])
            for node, new_node in zip(group, copies.tolist(), strict=True):
                self.closings[node] = new_node
                self.closed.append(NewClosing(new_node, (node,), 1.0, (node,)))

    def _is_overlapped(self, group: Sequence[int]) -> bool:
        """Say whether these are collectives that run beside the backwards of other chunks, as `build_graph` has it."""
        nodes = self.recorded.nodes
        separate = self.recorded.layout.of(Op.SEPARATE, int(nodes.stage[group[0]]))
        return int(nodes.op[group[0]]) == Op.REDUCE_SCATTER and bool(separate)

    def _link(self, *, everywhere: bool) -> None:
        """Let computes wait for those that they go on from where no transfer does: everywhere, or where a stage holds both."""
        forwards, backwards = self.computes[:WEIGHT, self.at_position]
        stage = self.at_position % self.recorded.n_stages
        at = np.flatnonzero(everywhere | (stage[:-1] == stage[1:]))
        self._wait(forwards[at].ravel(), forwards[at + 1].ravel())
        self._wait(backwards[at + 1].ravel(), backwards[at].ravel())

    def _launch(self, stage: int) -> None:
        """Let computes of a stage run one after the other, or two at the same time after the two before."""
        computes, beside = self.launched[stage], self.orders[stage][:, 3] > 0
        turns = Ragged(computes, np.append(np.flatnonzero(~beside), len(computes)))
        turn = turns.row_of()
        for ahead in (0, 1):  # of the turn before
            before = turns.begin[turn - 1] + ahead
            known = (turn > 0) & (before < turns.begin[turn])
            self._wait(computes[before[known]], computes[known])

    def _run_apart(self, stage: int) -> None:
        """Let computes run in one stream and each type of transfer with another stage in its own.

        A recv is posted once the compute before has ended, the first of the backwards together with the last forwards before them.
        """
        part, computes = self.orders[stage][:, 0], self.launched[stage]
        received, sent = self._around(stage)
        first = int((part == BACKWARD).argmax())
        opening = computes[first - 2] if first >= 2 else -1
        for direction in (FORWARD, BACKWARD):
            at = np.flatnonzero(part == direction)
            self._wait(np.r_[-1, computes[at[:-1]]], received[at])
            self._wait(computes[at], sent[at])
            for moves, toward in ((received[at], -1), (sent[at], 1)):
                ahead = toward * WAYS[direction][3]
                position = self.positions[self.orders[stage][at, 1] * self.recorded.n_stages + stage] + ahead
                peer = self.at_position[np.clip(position, 0, self.n_virtual - 1)] % self.recorded.n_stages
                for other in np.unique(peer[moves >= 0]).tolist():
                    self._chain(moves[(moves >= 0) & (peer == other)])
                if direction == BACKWARD:
                    self._wait(opening, moves[:1])
        # What is launched at the same time needs all that any of it receives.
        self._wait(received, computes)
        beside = np.flatnonzero(self.orders[stage][:, 3])
        self._wait(received[beside], computes[beside - 1])
        self._wait(received[beside - 1], computes[beside])

    def _around(self, stage: int) -> tuple[Ints, Ints]:
        """Find what each compute of a stage receives, and what it sends, in launch order."""
        part, chunk, microbatch, _ = self.orders[stage].T
        way, virtual = np.minimum(part, BACKWARD), chunk * self.recorded.n_stages + stage
        found = [self.moves[np.array(kinds)[way], virtual, microbatch] for kinds in (_RECV, _SEND)]
        received, sent = (np.where(part == WEIGHT, -1, nodes) for nodes in found)
        return received, sent

    def _block(self, stage: int) -> None:
        """Run everything of a worker one after the other; between a forward and a backward, send and recv are one batch.

        Source: forward_backward_pipelining_without_interleaving of Megatron-LM.
        """
        received, sent = self._around(stage)
        part, at = self.orders[stage][:, 0], 3 * np.arange(len(sent) + 1)
        alone = np.r_[False, part[1:] == part[:-1]]
        self._run((at, np.r_[-1, sent]), (at[:-1] + alone, received), (at[:-1] + 2, self.launched[stage]))

    def _block_interleaved(self, stage: int) -> None:
        """Run everything of a worker one after the other; transfers in both directions are one batch.

        Source: forward_backward_pipelining_with_interleaving of Megatron-LM without overlap of transfers.
        """
        part, computes = self.orders[stage][:, 0], self.launched[stage]
        received, sent = self._around(stage)
        forwards, backwards = np.flatnonzero(part == FORWARD), np.flatnonzero(part == BACKWARD)
        n_ahead = int(backwards[0])
        n_ahead -= n_ahead < len(forwards)  # the last of them is followed by a backward at once
        n_steady = len(forwards) - n_ahead
        # The turn of each compute; its transfers are one batch after it, or after the backward that follows it.
        k = np.arange(len(forwards))
        warm, steady, cool = 1, 1 + 2 * n_ahead, 1 + 2 * n_ahead + 3 * n_steady + (not n_steady)
        of_forward = np.where(k < n_ahead, warm + 2 * k, steady + 3 * (k - n_ahead))
        of_backward = np.where(k < n_steady, steady + 1 + 3 * k, cool + 2 * (k - n_steady))
        after_forward = of_forward + np.where(k < n_ahead, 1, 2)
        # The first recv of a backward is in the batch before the first steady forward.
        opens = steady - 1 if n_steady and n_ahead else cool - 1 if not n_steady else -1
        first = received[backwards[:1]] if opens >= 0 else np.array([-1])
        self._run(
            (of_forward, computes[forwards]),
            (of_backward, computes[backwards]),
            (after_forward, sent[forwards]),
            (of_backward + 1, sent[backwards]),
            (np.r_[0, after_forward[:-1]], received[forwards]),
            (np.r_[opens, of_backward[:-1] + 1], np.r_[first, received[backwards[1:]]]),
        )

    def _run(self, *turns: tuple[Ints, Ints]) -> None:
        """Let a worker launch one turn after the other; what it launches in one ends together.

        `turns` are numbers of turns, and a node for each; -1 is nothing.
        """
        turn, node = (np.concatenate(columns) for columns in zip(*turns, strict=True))
        order = np.argsort(turn, kind="stable")
        order = order[node[order] >= 0]
        turn, node = turn[order], node[order]
        runs = Ragged(node, np.concatenate([[0], np.flatnonzero(turn[1:] != turn[:-1]) + 1, [len(node)]]))
        run = runs.row_of()
        later = np.flatnonzero(run)
        before = runs.take(run[later] - 1)
        self._wait(before.flat, np.repeat(node[later], before.lengths))
        self.batches.append(runs.take(np.flatnonzero(runs.lengths > 1)))

    def _list_first_moves(self) -> dict[int, int]:
        """List the first transfer of each stage, by number, where the recorded one waited for parameters."""
        held, n_stages = self.recorded.list_held_stages(), self.recorded.n_stages
        found = {}
        for stage in held:
            nodes = self.moves[:, stage::n_stages]
            if (nodes >= 0).any():
                found[stage] = int(nodes[nodes >= 0].min())
        return found

    def _open(self, stage: int, first: int | None) -> None:
        """Let the first forward of each chunk wait for its parameters, and the first transfer, if one is given."""
        r = self.recorded
        if stage in self.ended_by_gathers:
            return
        gathers = self.by_chunk.get((int(Op.ALL_GATHER), stage))
        before = (
            [node for node in r.layout.of(Op.ALL_GATHER, stage) if node in self.closings] if gathers is None else []
        )
        before.sort()
        order = self.orders[stage]
        forwards = np.flatnonzero(order[:, 0] == FORWARD)
        for chunk, at in zip(*np.unique(order[forwards, 1], return_index=True), strict=True):
            opened = int(self.launched[stage][forwards[at]])
            of_chunk = [self.closings[g] for g in before if r.layout.chunk(g) == chunk]
            self._wait(np.array(of_chunk if gathers is None else [gathers[chunk]], dtype=np.int64), opened)
        if first is not None:
            opener = gathers[:1] if gathers is not None else [self.closings[g] for g in before[:1]]
            self._wait(np.array(opener, dtype=np.int64), first)

    def _close(self) -> None:
        """Let what opens and closes a step wait for what it waited for, or what stands there now."""
        r = self.recorded
        done: set[int] = set()
        for old in r.closings:
            op, stage = int(r.nodes.op[old]), int(r.nodes.stage[old])
            new = self.by_chunk.get((op, stage))
            if new is None:
                self._wait(self._successors(r.observed.graph.waits[old]), self.closings[old])
            elif new[0] not in done:  # the first of the group, by number
                done.add(new[0])
                self._close_chunks(new, op, stage)

    def _follow(self) -> None:
        """Let last transfers wait for what came before them: a planned collection after the last backward holds up its send."""
        r, graph = self.recorded, self.recorded.observed.graph
        holds = np.zeros(graph.n_nodes, dtype=bool)
        holds[list(self.closings)] = True
        holds &= r.nodes.op != Op.ALL_GATHER
        at = np.flatnonzero(holds[graph.sources.flat])
        for source, old in zip(graph.sources.flat[at].tolist(), graph.sources.row_of()[at].tolist(), strict=True):
            new = self._successor(old) if self.place_of_move[old, 0] >= 0 else None
            if new is not None:
                self._wait(self.closings[source], new)

    def _close_chunks(self, new: list[int], op: int, stage: int) -> None:
        """Put the collectives of the new chunks one after the other where those of the recorded ones were."""
        r = self.recorded
        group = [n for n in r.closings if int(r.nodes.op[n]) == op and int(r.nodes.stage[n]) == stage]
        self._chain(new)
        if self._is_overlapped(group):
            chunks = range(self.chunks)[::-1]  # as they were added
            for node, chunk in zip(new, chunks, strict=True):
                self._wait(self._last_of_chunk(stage, chunk), node)
            return
        first = min(group, key=lambda n: int(r.nodes.seq[n]))
        self._wait(self._successors(s for s in r.observed.graph.waits[first] if s not in group), new[0])

    def _successors(self, sources: Iterable[int]) -> Ints:
        """Say what stands where some recorded nodes stood."""
        found = (self._successor(source) for source in sources)
        return np.array(sorted({node for node in found if node is not None}), dtype=np.int64)

    def _successor(self, source: int) -> int | None:
        """Say what stands where a recorded node stood: the last compute of a stage for the last one, and so on."""
        r = self.recorded
        op, stage = int(r.nodes.op[source]), int(r.nodes.stage[source])
        if source in self.closings:
            return self.closings[source]
        of_type = r.layout.of(Op(op), stage)
        if op in COMPUTES:
            if source == r.last_compute[stage]:
                return int(self.launched[stage][-1])
            chunk = r.layout.chunk(source)
            kept = min(chunk, self.chunks - 1)
            if op == Op.BACKWARD and source == next(n for n in reversed(of_type) if r.layout.chunk(n) == chunk):
                return self._last_of_chunk(stage, kept)
            microbatch = self.place_of_microbatch[int(r.nodes.microbatch[source])]
            of_part = self.computes[:, kept * r.n_stages + stage, microbatch]
            found = int(of_part[COMPUTES.index(op)])
            return int(of_part[BACKWARD]) if found < 0 else found
        if source == of_type[-1] and (op, stage) in self.last_move:
            return self.last_move[op, stage]
        kind, virtual, microbatch = self.place_of_move[source].tolist()
        if kind < 0 or virtual >= self.n_virtual:
            return None
        node = int(self.moves[kind, virtual, microbatch * r.pieces])
        return node if node >= 0 else None

    def _last_of_chunk(self, stage: int, chunk: int) -> int:
        """Find the compute after which a chunk's gradients are complete."""
        part, of_chunk, *_ = self.orders[stage].T
        return int(self.launched[stage][(of_chunk == chunk) & (part != FORWARD)][-1])

    def _events(self) -> Events:
        """Group the nodes that move together; those of a batch end together."""
        moves = self.moves[:, self.at_position]
        sends = [(moves[_SEND[0], :-1], moves[_RECV[0], 1:]), (moves[_SEND[1], 1:], moves[_RECV[1], :-1])]
        pairs = np.concatenate([np.stack([send[send >= 0], recv[send >= 0]], axis=1) for send, recv in sends])
        shared_out = {node for group in self.by_chunk.values() for node in group}
        others = [Event((node,), across_dp=True, completes=(node,)) for node in sorted(shared_out)]
        graph = self.recorded.observed.graph
        copied = np.isin(graph.moves.members.flat, list(self.closings))
        for i in np.unique(graph.moves.members.row_of()[copied]).tolist():
            flat, begin = graph.moves.members.flat, graph.moves.members.begin
            members = tuple(self.closings[n] for n in flat[begin[i] : begin[i + 1]].tolist() if n in self.closings)
            if members[0] not in shared_out:
                others.append(Event(members, bool(graph.moves.across_dp[i]), members))
        alone = np.ones(self.n_nodes, dtype=bool)
        alone[pairs] = False
        alone[flatten([event.members for event in others])] = False
        singles, given = np.flatnonzero(alone), Events.of(others)
        moving = Ragged(
            np.concatenate([pairs.ravel(), given.members.flat, singles]),
            begins_of(np.concatenate([np.full(len(pairs), 2), given.members.lengths, np.ones_like(singles)])),
        )
        across_dp = np.zeros(len(moving), dtype=bool)
        across_dp[len(pairs) : len(pairs) + len(given)] = given.across_dp
        events = Events(moving, moving, Ragged.empty(len(moving)), across_dp)
        return join_batches(events, Ragged.join(self.batches), self.n_nodes)

    def _barriers(self) -> dict[int, tuple[Barrier, ...]]:
        """Carry over the waits that no row records."""
        found: dict[int, tuple[Barrier, ...]] = {}
        for old, barriers in self.recorded.observed.graph.barriers.items():
            waiter = self._successor(old)
            if waiter is None:
                continue
            carried = [dataclasses.replace(b, sources=tuple(self._successors(b.sources).tolist())) for b in barriers]
            found[waiter] = (*found.get(waiter, ()), *(b for b in carried if b.sources and waiter not in b.sources))
        return {waiter: barriers for waiter, barriers in found.items() if barriers}


def _count_before(group: Ints) -> Ints:
    """Say how many of its group come before each."""
    order = np.argsort(group, kind="stable")
    is_first = np.ones(len(group), dtype=bool)
    is_first[1:] = group[order[1:]] != group[order[:-1]]
    at = np.arange(len(group))
    found = np.empty_like(at)
    found[order] = at - np.maximum.accumulate(np.where(is_first, at, 0))
    return found


def _columns(*given: Ints | int) -> Ints:
    """Put columns of the same length, or single numbers that hold for all of it, below each other."""
    columns = np.empty((len(given), *(np.broadcast(*given).shape or (1,))), dtype=np.int64)
    for column, numbers in zip(columns, given, strict=True):
        column[:] = numbers
    return columns
