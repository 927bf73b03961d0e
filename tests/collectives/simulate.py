"""Jobs of tensor, pipeline and data parallel ranks whose every collective waits for its last member: the truth behind the dumps.

A rank does one thing after the other: it computes, or it is in a collective or an exchange with a neighbour stage. A collective
ends when its last member came, and the transfer after that. So waiting spreads through groups exactly as in a real job.
"""

import dataclasses
from collections import defaultdict

import numpy as np

GPUS_A_HOST = 8


@dataclasses.dataclass(frozen=True)
class Shape:
    """How a job is laid out, ranks in Megatron-LM's order: tensor first, then data, then pipeline."""

    tp: int
    dp: int
    pp: int

    @property
    def world(self):
        """Count the ranks."""
        return self.tp * self.dp * self.pp

    def place(self, rank):
        """Say where a rank is: tp, dp, pp."""
        return rank % self.tp, rank // self.tp % self.dp, rank // (self.tp * self.dp)

    def rank(self, tp, dp, pp):
        """Give the rank of a place."""
        return tp + self.tp * (dp + self.dp * pp)


@dataclasses.dataclass(frozen=True)
class Fault:
    """What is wrong.

    `slow`: a rank computes longer. `hang`: it stops before an operation. `died`: the same, without a dump. `mismatch`: it calls
    something else. `link`: transfers of `group` take longer. Or `none`.
    """

    kind: str = "none"
    rank: int = -1
    factor: float = 1.0
    at: float = 0.0  # part of the run after which it stops
    group: tuple = ()


@dataclasses.dataclass
class Call:
    """One operation of one rank; times are true ones. `end` is infinite where it never ended."""

    group: tuple  # ("tp", dp, pp), ("world",), ("pp", tp, dp)
    op: str
    number: int
    size: int
    arrive: float
    end: float = np.inf
    peer: int = -1  # world rank
    batch: int = 0  # p2p number of the rank; 0 of a collective
    ahead: bool = False


@dataclasses.dataclass
class Run:
    """What happened: calls by rank, the end of time, who is in each group."""

    shape: Shape
    fault: Fault
    calls: list
    members: dict
    step_s: float
    n_steps: int


def list_groups(shape):
    """Say who is in each group, by name."""
    members = {("world",): list(range(shape.world))}
    for rank in range(shape.world):
        tp, dp, pp = shape.place(rank)
        if shape.tp > 1:
            members.setdefault(("tp", dp, pp), []).append(rank)
        if shape.dp > 1:
            members.setdefault(("dp", tp, pp), []).append(rank)
        if shape.pp > 1:
            members.setdefault(("pp", tp, dp), []).append(rank)
    return members


def plan_rank(  # noqa: C901 - one schedule
    shape, rank, *, n_steps, n_micro, n_layers, fsdp
):
    """List what a rank does: ("compute", kind), ("call", group kind, op, size), ("exchange", ((is_send, neighbour), ...))."""
    _, _, pp = shape.place(rank)
    first, last = pp == 0, pp == shape.pp - 1

    def half(kind):
        for _ in range(n_layers):
            if fsdp and shape.dp > 1:
                yield "call", "dp", "_allgather_base", 1 << 22
            yield "compute", kind
            if shape.tp > 1:
                yield "call", "tp", "_allgather_base", 1 << 20
                yield "compute", kind
                yield "call", "tp", "_reduce_scatter_base", 1 << 20
            if fsdp and kind == "backward" and shape.dp > 1:
                yield "call", "dp", "_reduce_scatter_base", 1 << 22

    def exchange(*ends):
        there = [(send, step) for send, step in ends if not (step < 0 and first) and not (step > 0 and last)]
        if there:
            yield "exchange", tuple(there)

    for step in range(n_steps):
        warm = min(shape.pp - pp - 1, n_micro)
        for _ in range(warm):
            yield from exchange((False, -1))
            yield from half("forward")
            yield from exchange((True, 1))
        steady = n_micro - warm
        if steady:
            yield from exchange((False, -1))
        for i in range(steady):
            yield from half("forward")
            yield from exchange((True, 1), (False, 1))
            yield from half("backward")
            yield from exchange((True, -1)) if i == steady - 1 else exchange((True, -1), (False, -1))
        for _ in range(warm):
            yield from exchange((False, 1))
            yield from half("backward")
            yield from exchange((True, -1))
        if shape.dp > 1 and not fsdp:
            yield "call", "dp", "_reduce_scatter_base", 1 << 26
        yield "call", "world", "all_reduce", 1
        yield "compute", "optimizer"
        if shape.dp > 1 and not fsdp:
            yield "call", "dp", "_allgather_base", 1 << 26
        if step % 8 == 7:
            yield "call", "world", "barrier", 1


#: Seconds of a compute of one layer, and of transfers.
LAYER_S, OPTIMIZER_S = 0.010, 0.008
TRANSFER_S = {"tp": 0.0006, "dp": 0.012, "world": 0.0003, "pp": 0.0008}
FSDP_TRANSFER_S = 0.002


def simulate(  # noqa: C901, PLR0912, PLR0915 - one loop over what happens
    shape, fault, *, seed, n_steps, n_micro=4, n_layers=2, noise=0.03, heavy_last=0.0, fsdp=False, run_ahead=0
):
    """Run a job to its end, or until nobody can go on."""
    rng = np.random.default_rng(seed)
    members = list_groups(shape)
    plans = [
        list(plan_rank(shape, rank, n_steps=n_steps, n_micro=n_micro, n_layers=n_layers, fsdp=fsdp))
        for rank in range(shape.world)
    ]
    static = rng.normal(1.0, 0.004, shape.world)
    if fault.kind == "slow":
        static[fault.rank] *= fault.factor
    stop = {}
    if fault.kind in ("hang", "died", "mismatch"):
        own = [i for i, (what, *_) in enumerate(plans[fault.rank]) if what != "compute"]
        if fault.kind == "mismatch":
            own = [i for i in own if plans[fault.rank][i][0] == "call"]
        stop[fault.rank] = own[int(fault.at * (len(own) - 1))]
    names = {}
    for name, ranks in members.items():
        for rank in ranks:
            names[rank, name[0]] = name
    clock = np.zeros(shape.world)
    at = np.zeros(shape.world, dtype=int)
    calls = [[] for _ in range(shape.world)]
    numbers = defaultdict(int)
    waiting = defaultdict(list)  # a collective or a transfer: who came
    pending = [0] * shape.world  # transfers of the exchange that a rank is in
    ready = list(range(shape.world))
    while ready:
        rank = ready.pop()
        while at[rank] < len(plans[rank]):
            what, *how = plans[rank][at[rank]]
            if stop.get(rank) == at[rank] and fault.kind != "mismatch":
                break
            at[rank] += 1
            if what == "compute":
                base = OPTIMIZER_S if how[0] == "optimizer" else LAYER_S * (2 if how[0] == "backward" else 1)
                if heavy_last and shape.place(rank)[2] == shape.pp - 1:
                    base *= 1 + heavy_last
                took = base * static[rank] * np.exp(rng.normal(0, noise))
                if rng.random() < 0.0005:  # a hiccup, on any rank
                    took += rng.exponential(0.02)
                clock[rank] += took
                continue
            clock[rank] += rng.exponential(2e-5)  # the launch
            if what == "call":
                if _call(rank, how, names, numbers, calls, clock, waiting, members, fault, stop, at, rng, fsdp):
                    for other, end in _end_collective(waiting, calls):
                        clock[other] = end
                        if other != rank:
                            ready.append(other)
                    continue
                break
            if not _exchange(rank, how[0], shape, names, numbers, calls, clock, waiting, pending, fault, rng, ready):
                break
    done = [len(plan) for plan in plans]
    if run_ahead:
        for rank in range(shape.world):
            if calls[rank] and calls[rank][-1].end == np.inf and at[rank] < done[rank]:
                _run_ahead(rank, plans[rank][at[rank] :][:run_ahead], names, numbers, calls)
    return Run(shape, fault, calls, members, float(clock.max()) / n_steps, n_steps)


def _transfer(group, fault, rng, fsdp):
    base = FSDP_TRANSFER_S if fsdp and group[0] == "dp" else TRANSFER_S[group[0]]
    if fault.kind == "link" and fault.group == group:
        base *= fault.factor
    return base * np.exp(rng.normal(0, 0.05))


def _call(  # noqa: PLR0917 - the state of the loop
    rank, how, names, numbers, calls, clock, waiting, members, fault, stop, at, rng, fsdp
):
    """Come to a collective; True where everybody is there."""
    kind, op, size = how
    group = names.get((rank, kind))
    if group is None or len(members[group]) < 2:
        waiting["over"] = [(rank, clock[rank])]
        return True
    numbers[rank, group] += 1
    number = numbers[rank, group]
    if fault.kind == "mismatch" and rank == fault.rank and at[rank] - 1 == stop[rank]:
        op = "broadcast" if op != "broadcast" else "all_reduce"
    calls[rank].append(Call(group, op, number, size, clock[rank]))
    there = waiting[group, number]
    there.append((rank, len(calls[rank]) - 1))
    if len(there) < len(members[group]):
        return False
    ops = {calls[other][i].op for other, i in there}
    del waiting[group, number]
    if len(ops) > 1:  # they never understand each other
        return False
    end = max(calls[other][i].arrive for other, i in there) + _transfer(group, fault, rng, fsdp)
    for other, i in there:
        calls[other][i].end = end + rng.exponential(1e-5)
    waiting["over"] = [(other, calls[other][i].end) for other, i in there]
    return True


def _end_collective(waiting, calls):
    return waiting.pop("over")


def _exchange(  # noqa: PLR0917 - the state of the loop
    rank, ends, shape, names, numbers, calls, clock, waiting, pending, fault, rng, ready
):
    """Come to an exchange with neighbour stages; True where it is over for this rank."""
    group = names[rank, "pp"]
    numbers[rank, group, "batch"] += 1
    tp, dp, pp = shape.place(rank)
    mine = []
    for is_send, step in ends:
        other = shape.rank(tp, dp, pp + step)
        pair = (rank, other) if is_send else (other, rank)
        numbers[rank, pair] += 1
        call = Call(
            group,
            "send" if is_send else "recv",
            numbers[rank, group],
            1 << 21,
            clock[rank],
            peer=other,
            batch=numbers[rank, group, "batch"],
        )
        calls[rank].append(call)
        mine.append(len(calls[rank]) - 1)
        key = (pair, numbers[rank, pair])
        waiting[key].append((rank, mine[-1]))
    pending[rank] = mine
    touched = {rank}
    for index in mine:
        call = calls[rank][index]
        pair = (rank, call.peer) if call.op == "send" else (call.peer, rank)
        key = (pair, numbers[rank, pair])
        if len(waiting[key]) == 2:
            there = waiting.pop(key)
            slow = fault.factor if fault.kind == "link" and fault.group == ("pair", *pair) else 1.0
            end = max(calls[o][i].arrive for o, i in there) + TRANSFER_S["pp"] * slow * np.exp(rng.normal(0, 0.05))
            for o, i in there:
                calls[o][i].end = end
                touched.add(o)
    for other in touched:
        if pending[other] and all(calls[other][i].end < np.inf for i in pending[other]):
            end = max(calls[other][i].end for i in pending[other])
            for i in pending[other]:
                calls[other][i].end = end
            clock[other] = end
            pending[other] = 0
            if other != rank:
                ready.append(other)
    return pending[rank] == 0


def _run_ahead(rank, plan, names, numbers, calls):
    """Put what comes next into the queue: the host does not wait for the device."""
    last = calls[rank][-1].arrive
    for what, *how in plan:
        last += 1e-4
        if what == "exchange":
            return
        if what == "call":
            kind, op, size = how
            group = names.get((rank, kind))
            if group is not None:
                numbers[rank, group] += 1
                calls[rank].append(Call(group, op, numbers[rank, group], size, last, ahead=True))
