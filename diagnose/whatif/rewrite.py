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
from diagnose.model.schedule import Launch
from diagnose.model.trace import Nodes
from diagnose.whatif.computes import COMPUTES
from diagnose.whatif.graph import Barrier, Event, Graph, Layout, chain_waits, order_graph
from diagnose.whatif.recorded import ComputeKey, MoveKey, NewClosing, NewCompute, NewMove, Recorded

#: Collectives of which each model chunk has its own.
_BY_CHUNK = (int(Op.ALL_GATHER), int(Op.REDUCE_SCATTER))


class GraphWriter:
    """Where the new graph of a block is written, for so many model chunks a stage and the launch order of each stage."""

    def __init__(self, recorded: Recorded, chunks: int, orders: Sequence[Sequence[Launch]]) -> None:
        self.recorded, self.chunks, self.orders = recorded, chunks, orders
        self.n_virtual = chunks * recorded.n_stages
        self.rows: list[tuple[int, int, int, int, int]] = []  # type, stage, seq, microbatch, chunk
        self.n_of: dict[tuple[int, int], int] = defaultdict(int)
        self.waits: list[set[int]] = []
        self.computes: dict[ComputeKey, int] = {}
        self.moves: dict[MoveKey, int] = {}
        self.last_move: dict[tuple[int, int], int] = {}  # (type, stage) -> the last that was written down
        self.served = {node: key for key, node in reversed(recorded.moves.items())}  # of several pieces the first
        self.closings: dict[int, int] = {}  # recorded node -> its successor
        self.by_chunk: dict[
            tuple[int, int], list[int]
        ] = {}  # (type, stage) -> nodes that were shared out over other chunks
        self.launched: list[list[int]] = []  # computes of each stage in launch order
        self.batches: list[tuple[int, ...]] = []
        self.closed: list[NewClosing] = []

    def write(self, *, blocking: bool, interleaved: bool) -> Graph:
        """Write down all nodes and what they wait for; then `parts`, `moved` and `closed` say what they take."""
        for stage, order in enumerate(self.orders):
            self.launched.append([self._add_compute(stage, launch) for launch in order])
        if self.recorded.moves:
            self._add_moves()
        self._add_closings()
        first_moves = self._list_first_moves()
        for stage in range(self.recorded.n_stages):
            if not self.recorded.moves:
                self._link(stage)
            elif not blocking:
                self._run_apart(stage)
            elif interleaved:
                self._block_interleaved(stage)
            else:
                self._block(stage)
            self._open(stage, first_moves.get(stage))
        self._close()
        if blocking:
            self._follow()
        nodes = Nodes(*(np.array(column, dtype=np.int64) for column in zip(*self.rows, strict=True)))
        layout = Layout(nodes, np.arange(len(nodes), dtype=np.float64))
        return order_graph(layout, self.waits, self._events(nodes), self._barriers(), self.batches)

    def _add(self, op: int, stage: int, microbatch: int = -1, chunk: int = -1) -> int:
        """Write down a node."""
        self.rows.append((int(op), stage, self.n_of[int(op), stage], microbatch, chunk))
        self.n_of[int(op), stage] += 1
        self.waits.append(set())
        return len(self.rows) - 1

    def _add_compute(self, stage: int, launch: Launch) -> int:
        """Write down a compute."""
        op = {"forward": Op.FORWARD, "backward": Op.BACKWARD, "weight": Op.WEIGHT}[launch.part]
        microbatch = self.recorded.microbatches[launch.microbatch]
        node = self._add(op, stage, microbatch, launch.chunk)
        self.computes[launch.part, launch.chunk * self.recorded.n_stages + stage, microbatch] = node
        return node

    def _add_moves(self) -> None:
        """Write down a send and a recv wherever a microbatch changes its virtual stage."""
        n_stages = self.recorded.n_stages
        for stage, order in enumerate(self.orders):
            for launch in order:
                if launch.part == "weight":
                    continue
                _, recv, send, ahead = WAYS[launch.part == "backward"]
                virtual, microbatch = launch.chunk * n_stages + stage, self.recorded.microbatches[launch.microbatch]
                for op, peer in ((recv, virtual - ahead), (send, virtual + ahead)):
                    if 0 <= peer < self.n_virtual:
                        node = self._add(op, stage, microbatch, launch.chunk)
                        self.moves[int(op), virtual, microbatch] = self.last_move[int(op), stage] = node

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
                chunks = range(self.chunks) if forwards and not self._is_overlapped(group) else range(self.chunks)[::-1]
                new = [self._add(op, stage, chunk=chunk) for chunk in chunks]
                self.by_chunk[op, stage] = new
                self.closings |= {n: new[0] if n == group[0] != group[-1] else new[-1] for n in group}
                later = (group[-1],) if len(group) > 1 else ()
                for i, node in enumerate(new):
                    self.closed.append(NewClosing(node, tuple(group), 1.0 / len(new), (group[0],) if i == 0 else later))
                continue
            for node in group:
                new_node = self._add(op, stage, int(r.nodes.microbatch[node]), int(r.nodes.chunk[node]))
                self.closings[node] = new_node
                self.closed.append(NewClosing(new_node, (node,), 1.0, (node,)))

    def _is_overlapped(self, group: Sequence[int]) -> bool:
        """Say whether these are collectives that run beside the backwards of other chunks, as `build_graph` has it."""
        nodes = self.recorded.nodes
        separate = self.recorded.layout.of(Op.SEPARATE, int(nodes.stage[group[0]]))
        return int(nodes.op[group[0]]) == Op.REDUCE_SCATTER and bool(separate)

    def _link(self, stage: int) -> None:
        """Let computes wait for each other across stages where the trace records no transfers."""
        chain_waits(self.waits, self.launched[stage])
        for (part, virtual, m), node in self.computes.items():
            if part == "weight" or virtual % self.recorded.n_stages != stage:
                continue
            source = self.computes.get((part, virtual - WAYS[part == "backward"][3], m))
            if source is not None:
                self.waits[node].add(source)

    def _run_apart(self, stage: int) -> None:
        """Let computes run in one stream and each type of transfer in its own.

        A recv is posted once the compute before has ended, the first of the backwards together with the last forwards before them.
        """
        chain_waits(self.waits, self.launched[stage])
        order, computes = self.orders[stage], self.launched[stage]
        first = next((i for i, launch in enumerate(order) if launch.part == "backward"), 0)
        opening = computes[first - 2 : first - 1] if first >= 2 else []
        for direction, (op, recv, send, _) in enumerate(WAYS):
            earlier: int | None = None
            last: dict[int, int] = {}
            for launch, compute in zip(order, computes, strict=True):
                if launch.part != op.name.lower():
                    continue
                received, sent = self._around(stage, launch)
                for kind, node, source in ((recv, received, earlier), (send, sent, compute)):
                    if node is None:
                        continue
                    self.waits[node].update(s for s in (source, last.get(int(kind))) if s is not None)
                    if direction and int(kind) not in last:
                        self.waits[node].update(opening)
                    last[int(kind)] = node
                if received is not None:
                    self.waits[compute].add(received)
                earlier = compute

    def _around(self, stage: int, launch: Launch) -> tuple[int | None, int | None]:
        """Find what a compute receives, and what it sends."""
        if launch.part == "weight":
            return None, None
        place = (launch.chunk * self.recorded.n_stages + stage, self.recorded.microbatches[launch.microbatch])
        _, recv, send, _ = WAYS[launch.part == "backward"]
        return self.moves.get((int(recv), *place)), self.moves.get((int(send), *place))

    def _block(self, stage: int) -> None:
        """Run everything of a worker one after the other; between a forward and a backward, send and recv are one batch.

        Source: forward_backward_pipelining_without_interleaving of Megatron-LM.
        """
        worker = _Worker(self)
        order, computes = self.orders[stage], self.launched[stage]
        sent: int | None = None
        for i, (launch, compute) in enumerate(zip(order, computes, strict=True)):
            received, to_send = self._around(stage, launch)
            if i and launch.part != order[i - 1].part:
                worker.run(sent, received)
            else:
                worker.run(sent)
                worker.run(received)
            worker.run(compute)
            sent = to_send
        worker.run(sent)

    def _block_interleaved(self, stage: int) -> None:
        """Run everything of a worker one after the other; transfers in both directions are one batch.

        Source: forward_backward_pipelining_with_interleaving of Megatron-LM without overlap of transfers.
        """
        worker = _Worker(self)
        runs = list(zip(self.orders[stage], self.launched[stage], strict=True))
        forwards = [(*self._around(stage, launch), node) for launch, node in runs if launch.part == "forward"]
        backwards = [(*self._around(stage, launch), node) for launch, node in runs if launch.part == "backward"]
        n_ahead = next(i for i, (launch, _) in enumerate(runs) if launch.part == "backward")
        n_ahead -= n_ahead < len(forwards)  # the last of them is followed by a backward at once
        n_steady = len(forwards) - n_ahead

        def recv(of: list[tuple[int | None, int | None, int]], k: int) -> int | None:
            return of[k][0] if k < len(of) else None

        worker.run(recv(forwards, 0))
        for k in range(n_ahead):
            worker.run(forwards[k][2])
            opens = recv(backwards, 0) if k == n_ahead - 1 and n_steady else None
            worker.run(forwards[k][1], recv(forwards, k + 1), opens)
        for k in range(n_steady):
            worker.run(forwards[n_ahead + k][2])
            worker.run(backwards[k][2])
            worker.run(
                forwards[n_ahead + k][1], backwards[k][1], recv(forwards, n_ahead + k + 1), recv(backwards, k + 1)
            )
        if not n_steady:
            worker.run(recv(backwards, 0))
        for k in range(n_steady, len(backwards)):
            worker.run(backwards[k][2])
            worker.run(backwards[k][1], recv(backwards, k + 1))

    def _list_first_moves(self) -> dict[int, int]:
        """List the first transfer of each stage, by number, where the recorded one waited for parameters."""
        held = self.recorded.list_held_stages()
        moves = ((self.rows[node][1], node) for node in sorted(self.moves.values(), reverse=True))
        return {stage: node for stage, node in moves if stage in held}

    def _open(self, stage: int, first: int | None) -> None:
        """Let the first forward of each chunk wait for its parameters, and the first transfer, if one is given."""
        r = self.recorded
        gathers = self.by_chunk.get((int(Op.ALL_GATHER), stage))
        before: list[int] = []
        if gathers is None:
            before = [node for node in r.closings if r.nodes.op[node] == Op.ALL_GATHER and r.nodes.stage[node] == stage]
        seen: set[int] = set()
        for launch, node in zip(self.orders[stage], self.launched[stage], strict=True):
            if launch.part != "forward" or launch.chunk in seen:
                continue
            seen.add(launch.chunk)
            if gathers is not None:
                self.waits[node].add(gathers[launch.chunk])
            else:
                self.waits[node].update(self.closings[g] for g in before if r.layout.chunk(g) == launch.chunk)
        if first is not None:
            opener = gathers[:1] if gathers is not None else [self.closings[g] for g in before[:1]]
            self.waits[first].update(opener)

    def _close(self) -> None:
        """Let what opens and closes a step wait for what it waited for, or what stands there now."""
        r = self.recorded
        done: set[int] = set()
        for old in r.closings:
            op, stage = int(r.nodes.op[old]), int(r.nodes.stage[old])
            new = self.by_chunk.get((op, stage))
            if new is None:
                self.waits[self.closings[old]].update(self._successors(r.observed.graph.waits[old]))
            elif new[0] not in done:  # the first of the group, by number
                done.add(new[0])
                self._close_chunks(new, op, stage)

    def _follow(self) -> None:
        """Let last transfers wait for what came before them: a planned collection after the last backward holds up its send."""
        r = self.recorded
        for old in r.moves.values():
            before = [n for n in r.observed.graph.waits[old] if n in self.closings and r.nodes.op[n] != Op.ALL_GATHER]
            new = self._successor(old) if before else None
            if new is not None:
                self.waits[new].update(self.closings[n] for n in before)

    def _close_chunks(self, new: list[int], op: int, stage: int) -> None:
        """Put the collectives of the new chunks one after the other where those of the recorded ones were."""
        r = self.recorded
        group = [n for n in r.closings if int(r.nodes.op[n]) == op and int(r.nodes.stage[n]) == stage]
        chain_waits(self.waits, new)
        waits = r.observed.graph.waits
        if self._is_overlapped(group):
            for node in new:
                self.waits[node].add(self._last_of_chunk(stage, self.rows[node][4]))
            return
        first = min(group, key=lambda n: int(r.nodes.seq[n]))
        self.waits[new[0]].update(self._successors(s for s in waits[first] if s not in group))

    def _successors(self, sources: Iterable[int]) -> set[int]:
        """Say what stands where some recorded nodes stood."""
        found = (self._successor(source) for source in sources)
        return {node for node in found if node is not None}

    def _successor(self, source: int) -> int | None:
        """Say what stands where a recorded node stood: the last compute of a stage for the last one, and so on."""
        r = self.recorded
        op, stage = int(r.nodes.op[source]), int(r.nodes.stage[source])
        if source in self.closings:
            return self.closings[source]
        of_type = r.layout.of(Op(op), stage)
        if op in COMPUTES:
            if source == r.last_compute[stage]:
                return self.launched[stage][-1]
            chunk = r.layout.chunk(source)
            of_chunk = [n for n in of_type if r.layout.chunk(n) == chunk]
            if op == Op.BACKWARD and source == of_chunk[-1]:
                return self._last_of_chunk(stage, min(chunk, self.chunks - 1))
            virtual = min(chunk, self.chunks - 1) * r.n_stages + stage
            microbatch = int(r.nodes.microbatch[source])
            found = self.computes.get((Op(op).name.lower(), virtual, microbatch))
            return self.computes["backward", virtual, microbatch] if found is None else found
        if source == of_type[-1] and (op, stage) in self.last_move:
            return self.last_move[op, stage]
        served = self.served.get(source)
        return None if served is None else self.moves.get(served)

    def _last_of_chunk(self, stage: int, chunk: int) -> int:
        """Find the compute after which a chunk's gradients are complete."""
        pairs = zip(self.orders[stage], self.launched[stage], strict=True)
        return [node for launch, node in pairs if launch.chunk == chunk and launch.part != "forward"][-1]

    def _events(self, nodes: Nodes) -> list[Event]:
        """Group the nodes that move together."""
        events: list[Event] = []
        for (op, virtual, microbatch), node in self.moves.items():
            for _, recv, send, ahead in WAYS:
                if op == send:
                    pair = (node, self.moves[int(recv), virtual + ahead, microbatch])
                    events.append(Event(pair, across_dp=False, completes=pair))
        shared_out = [node for group in self.by_chunk.values() for node in group]
        events += [Event((node,), across_dp=True, completes=(node,)) for node in shared_out]
        for event in self.recorded.observed.graph.events:
            members = tuple(self.closings[n] for n in event.members if n in self.closings)
            if members and members[0] not in shared_out:
                events.append(Event(members, event.across_dp, members))
        grouped = {node for event in events for node in event.members}
        events += [Event((n,), across_dp=False, completes=(n,)) for n in range(len(nodes)) if n not in grouped]
        return events

    def _barriers(self) -> dict[int, tuple[Barrier, ...]]:
        """Carry over the waits that no row records."""
        found: dict[int, tuple[Barrier, ...]] = {}
        for old, barriers in self.recorded.observed.graph.barriers.items():
            waiter = self._successor(old)
            if waiter is None:
                continue
            carried = [dataclasses.replace(b, sources=tuple(self._successors(b.sources))) for b in barriers]
            found[waiter] = (*found.get(waiter, ()), *(b for b in carried if b.sources and waiter not in b.sources))
        return {waiter: barriers for waiter, barriers in found.items() if barriers}

    def parts(self) -> list[NewCompute]:
        """List the computes with their places."""
        return [
            NewCompute(node, int(part != "forward"), virtual, microbatch, part)
            for (part, virtual, microbatch), node in self.computes.items()
        ]

    def moved(self) -> list[NewMove]:
        """Say which recorded transfers tell how long new ones take: themselves, those over the same link, or all of a type."""
        r = self.recorded
        if self.chunks == r.chunks:
            return [NewMove(node, (r.moves[key],), (r.moves[key],)) for key, node in self.moves.items()]
        of_type: dict[int, list[int]] = defaultdict(list)
        of_stage: dict[tuple[int, int], list[int]] = defaultdict(list)
        for (op, _, _), node in r.moves.items():
            of_type[op].append(node)
            of_stage[op, int(r.nodes.stage[node])].append(node)
        found = []
        for (op, virtual, _), node in self.moves.items():
            stage = virtual % r.n_stages
            alike = tuple(of_stage.get((op, stage), of_type[op]))
            opens = op == Op.FORWARD_RECV and self.rows[node][2] == 0 and bool(r.layout.of(Op.FORWARD_RECV, stage))
            found.append(NewMove(node, alike, tuple(r.layout.of(Op.FORWARD_RECV, stage)[:1]) if opens else alike))
        return found


class _Worker:
    """A worker that does one thing after the other."""

    def __init__(self, writer: GraphWriter) -> None:
        self.writer = writer
        self.before: tuple[int, ...] = ()

    def run(self, *operations: int | None) -> None:
        """Launch a compute, or transfers that end together; None is nothing to launch."""
        nodes = tuple(node for node in operations if node is not None)
        if not nodes:
            return
        for node in nodes:
            self.writer.waits[node].update(self.before)
        if len(nodes) > 1:
            self.writer.batches.append(nodes)
        self.before = nodes
