"""The what-if analysis by plain loops over named operations: the oracle of every fast path.

Written from the design, not from `diagnose.whatif`. Enters: the rows of a trace as a DataFrame with `step`, `dp_rank`,
`stage`, `optype`, `start_ts`, `duration`, `seq_id`, `mb_id` and `mc`. Leaves: step times of any scenario. An operation is
a tuple (optype, stage, dp, step, seq); one dict for each fact about it. Slow on purpose.
"""

import functools
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pandas as pd

Operation = tuple[str, int, int, int, int]  # optype, stage, dp rank, step, seq

FORWARD, BACKWARD = "forward-compute", "backward-compute"
COMPUTE = (FORWARD, BACKWARD, "gc", "optimizer")
P2P = ("forward-send", "forward-recv", "backward-send", "backward-recv")
DP = ("params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce")
#: Transfer durations and launch delays below this count as 0.
CLOCK_ERROR_S = -0.010


def closing_collections(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep of the `gc` rows those after their worker's last compute, merged into one, and give each worker without one of zero."""
    worker = ["step", "dp_rank", "stage"]
    end = rows.start_ts.astype(float) + rows.duration.astype(float)
    last = end[rows.optype.isin((FORWARD, BACKWARD))].groupby([rows[c] for c in worker]).max()
    kept = rows[rows.optype != "gc"]
    collections: dict[tuple[int, int, int], list[tuple[float, float]]] = defaultdict(list)
    for row, row_end in zip(rows.itertuples(), end, strict=True):
        place = (row.step, row.dp_rank, row.stage)
        if row.optype == "gc" and float(row.start_ts) >= last[place] - 1e-3:
            collections[place].append((float(row.start_ts), row_end))
    stages = {stage for _, _, stage in collections}
    added = []
    for place, of_worker in last.items():
        if place[2] in stages:
            spans = collections.get(place, [(of_worker, of_worker)])
            start = min(s for s, _ in spans)
            duration = max(e for _, e in spans) - start
            added.append((*place, "gc", start, duration, 0, -1, -1))
    columns = [*worker, "optype", "start_ts", "duration", "seq_id", "mb_id", "mc"]
    if not added:
        return kept[columns]
    return pd.concat(
        [kept[columns].astype({"optype": object}), pd.DataFrame(added, columns=columns)], ignore_index=True
    )


class NaiveJob:
    """All operations of a job, what each waits for, and who moves together with it.

    Parameters
    ----------
    rows : DataFrame
    has_dp : bool
        Whether gradients are reduced over more than one member (dp x dsp > 1).
    """

    def __init__(self, rows: pd.DataFrame, *, has_dp: bool) -> None:
        self.start: dict[Operation, float] = {}
        self.end: dict[Operation, float] = {}
        self.microbatch: dict[Operation, int] = {}
        self.chunk: dict[Operation, int] = {}
        self.waits: dict[Operation, list[Operation]] = {}
        self.group: dict[Operation, list[Operation]] = {}
        self.place: dict[tuple[str, int, int, int], list[Operation]] = defaultdict(list)
        for row in rows.itertuples():
            op = (str(row.optype), int(row.stage), int(row.dp_rank), int(row.step), int(row.seq_id))
            self.start[op] = float(row.start_ts)
            self.end[op] = float(row.start_ts) + float(row.duration)
            self.microbatch[op] = int(row.mb_id)
            self.chunk[op] = max(int(row.mc), 0)
        # Without data parallelism the dp operations are absent.
        self.ops = [op for op in self.start if has_dp or op[0] not in DP]
        for op in self.ops:
            self.waits[op] = []
            self.group[op] = [op]
            self.place[op[:4]].append(op)
        for of_type in self.place.values():
            of_type.sort(key=lambda op: op[4])
        self.steps = sorted({op[3] for op in self.ops})
        self.dps = sorted({op[2] for op in self.ops})
        self.stages = sorted({op[1] for op in self.ops})
        for step in self.steps:
            for dp in self.dps:
                for stage in self.stages:
                    self._wait_on_worker(stage, dp, step)
                self._pair(dp, step)
            self._join_collectives(step)
        if not any(op[0] in P2P for op in self.ops):
            self._follow_microbatches()
        self.order = self._order()
        self.own = {op: self._own_time(op) for op in self.ops}
        self.ideal = self._ideal_times()

    def _on(self, worker: tuple[int, int, int], *optypes: str) -> list[Operation]:
        """List a worker's operations of some types by launch."""
        found = [op for optype in optypes for op in self.place.get((optype, *worker), [])]
        return sorted(found, key=lambda op: (self.start[op], op[4])) if len(optypes) > 1 else found

    def _chain(self, ops: list[Operation]) -> None:
        for i in range(1, len(ops)):
            self.waits[ops[i]].append(ops[i - 1])

    def _wait_on_worker(self, stage: int, dp: int, step: int) -> None:
        """Collect what operations wait for on their own worker: streams, data, and the chain that ends a step."""
        worker = (stage, dp, step)
        computes = self._on(worker, FORWARD, BACKWARD)
        self._chain(computes)
        for optype in P2P:
            self._chain(self._on(worker, optype))
        # The first forward of a model chunk waits for that chunk's params-all-gather.
        gathers = sorted(self._on(worker, "params-all-gather"), key=lambda op: self.start[op])
        self._chain(gathers)
        for gather in gathers:
            for forward in self._on(worker, FORWARD):
                if self.chunk[forward] == self.chunk[gather]:
                    self.waits[forward].append(gather)
                    break
        for way, compute_type in (("forward", FORWARD), ("backward", BACKWARD)):
            of_type = self._on(worker, compute_type)
            recvs, sends = self._on(worker, f"{way}-recv"), self._on(worker, f"{way}-send")
            # A worker whose first input comes from nowhere may not record that recv: count from the end.
            for i in range(1, min(len(recvs), len(of_type)) + 1):
                self.waits[of_type[-i]].append(recvs[-i])
                if len(of_type) - i - 1 >= 0:
                    self.waits[recvs[-i]].append(of_type[-i - 1])
            for i in range(min(len(sends), len(of_type))):
                self.waits[sends[i]].append(of_type[i])
        # The first backward-send and -recv wait for the second-last forward before the first backward.
        warm_up = []
        for op in computes:
            if op[0] == BACKWARD:
                break
            warm_up.append(op)
        if len(warm_up) >= 2 and len(warm_up) < len(computes):
            for optype in ("backward-send", "backward-recv"):
                for op in self._on(worker, optype)[:1]:
                    self.waits[op].append(warm_up[-2])
        self._close(worker, computes)

    def _close(self, worker: tuple[int, int, int], computes: list[Operation]) -> None:
        """Chain what comes after a worker's last compute."""
        scatters = sorted(self._on(worker, "grads-reduce-scatter"), key=lambda op: self.start[op])
        separate = self._on(worker, "separate-grads-all-reduce")
        tail = computes[-1:] + self._on(worker, "gc")
        layernorm, embedding = (
            self._on(worker, "layernorm-grads-all-reduce"),
            self._on(worker, "embedding-grads-all-reduce"),
        )
        if separate:
            self._chain(scatters)
            for scatter in scatters:
                same_chunk = [op for op in self._on(worker, BACKWARD) if self.chunk[op] == self.chunk[scatter]]
                self.waits[scatter] += same_chunk[-1:]
            if layernorm:
                self.waits[layernorm[0]] += scatters[-1:]
            tail += layernorm + embedding + separate
        else:
            tail += layernorm + embedding + scatters
        self._chain(tail + self._on(worker, "optimizer-clip-main-grad") + self._on(worker, "optimizer"))

    def _computes_by_place(self, dp: int, step: int, optype: str) -> dict[tuple[int, int], Operation]:
        """Map (virtual stage, microbatch) to the compute that works on it."""
        return {
            (self.chunk[op] * len(self.stages) + i, self.microbatch[op]): op
            for i, stage in enumerate(self.stages)
            for op in self._on((stage, dp, step), optype)
        }

    def _pair(self, dp: int, step: int) -> None:
        """Let the send of each compute move with the recv of the compute that the microbatch enters next."""
        for way, compute_type, ahead in (("forward", FORWARD, 1), ("backward", BACKWARD, -1)):
            places = self._computes_by_place(dp, step, compute_type)
            send_of, recv_of = {}, {}
            for stage in self.stages:
                worker = (stage, dp, step)
                of_type, recvs = self._on(worker, compute_type), self._on(worker, f"{way}-recv")
                send_of.update(zip(of_type, self._on(worker, f"{way}-send"), strict=False))
                recv_of.update({of_type[-i]: recvs[-i] for i in range(1, min(len(recvs), len(of_type)) + 1)})
            for (virtual, microbatch), compute in places.items():
                peer = places.get((virtual + ahead, microbatch))
                if peer is not None and compute in send_of:
                    pair = [send_of[compute], recv_of[peer]]
                    self.group[pair[0]] = self.group[pair[1]] = pair

    def _join_collectives(self, step: int) -> None:
        """Group all dp ranks, the first and last stage, or everybody."""
        groups: dict[tuple[Any, ...], list[Operation]] = defaultdict(list)
        for op in self.ops:
            optype, stage, dp, of_step, seq = op
            if of_step != step:
                continue
            if optype in DP:
                groups[optype, stage, seq].append(op)
            elif optype == "embedding-grads-all-reduce" and stage in (self.stages[0], self.stages[-1]):
                groups[optype, dp, seq].append(op)
            elif optype == "optimizer-clip-main-grad":
                groups[optype, seq].append(op)
        for group in groups.values():
            for op in group:
                self.group[op] = group

    def _follow_microbatches(self) -> None:
        """Without any point-to-point row, let a compute wait for the one before it on the same microbatch."""
        for step in self.steps:
            for dp in self.dps:
                for optype, ahead in ((FORWARD, 1), (BACKWARD, -1)):
                    places = self._computes_by_place(dp, step, optype)
                    for (virtual, microbatch), op in places.items():
                        if (virtual - ahead, microbatch) in places:
                            self.waits[op].append(places[virtual - ahead, microbatch])

    def _order(self) -> list[list[Operation]]:
        """Put groups into an order in which all that a group waits for comes before it."""
        groups = {id(self.group[op]): self.group[op] for op in self.ops}
        waits_for = {
            key: {id(self.group[source]) for op in group for source in self.waits[op]} - {key}
            for key, group in groups.items()
        }
        awaited_by: dict[int, list[int]] = defaultdict(list)
        for key, sources in waits_for.items():
            for source in sources:
                awaited_by[source].append(key)
        ordered = []
        ready = [key for key, sources in waits_for.items() if not sources]
        while ready:
            key = ready.pop()
            ordered.append(groups[key])
            for later in awaited_by[key]:
                waits_for[later].discard(key)
                if not waits_for[later]:
                    ready.append(later)
        if len(ordered) < len(groups):
            raise ValueError("operations wait for each other in a circle")
        return ordered

    def _own_time(self, op: Operation) -> float:
        """Say how long an operation took once all its peers had started."""
        if op[0] in COMPUTE:
            return self.end[op] - self.start[op]
        transfer = self.end[op] - max(self.start[peer] for peer in self.group[op])
        return 0.0 if transfer < CLOCK_ERROR_S else transfer

    def _ideal_times(self) -> dict[Operation, float]:
        """Give each operation the mean (compute) or median (communication) of its type over the job."""
        by_type: dict[str, list[float]] = defaultdict(list)
        for op in self.ops:
            by_type[op[0]].append(self.own[op])
        usual = {
            optype: math.fsum(values) / len(values) if optype in COMPUTE else statistics.median(values)
            for optype, values in by_type.items()
        }
        return {op: usual[op[0]] for op in self.ops}

    def replay(
        self, own: Mapping[Operation, float], delay: Mapping[Operation, float] | None = None
    ) -> tuple[dict[Operation, float], dict[Operation, float]]:
        """Say when each operation starts and ends, given own times and launch delays (none when left out)."""
        start: dict[Operation, float] = {}
        end: dict[Operation, float] = {}
        for group in self.order:
            for op in group:
                start[op] = max((end[source] for source in self.waits[op]), default=0.0)
                if delay is not None:
                    start[op] += delay[op]
            moved = max(start[op] for op in group)
            for op in group:
                end[op] = moved + own[op]
        return start, end

    def launch_delays(self) -> dict[Operation, float]:
        """Say how long after all that it waited for each operation started."""
        delays = {}
        for op in self.ops:
            late = self.start[op] - max((self.end[source] for source in self.waits[op]), default=0.0)
            delays[op] = 0.0 if late < CLOCK_ERROR_S else late
        return delays

    def step_times(
        self,
        own: Mapping[Operation, float],
        delay: Mapping[Operation, float] | None = None,
        *,
        from_first_start: bool = False,
    ) -> dict[int, float]:
        """Say how long each step is: to its last optimizer (to its last operation where there is none).

        `from_first_start` counts from the first start where that lies before 0, as the authors do for S itself.
        """
        start, end = self.replay(own, delay)
        times = {}
        for step in self.steps:
            of_step = [op for op in self.ops if op[3] == step]
            last = max(end[op] for op in [op for op in of_step if op[0] == "optimizer"] or of_step)
            times[step] = last - min(0.0, *(start[op] for op in of_step)) if from_first_start else last
        return times

    def keep(self, kept: Callable[[Operation], bool]) -> dict[Operation, float]:
        """Give own times to the operations that are kept, ideal ones to all others."""
        return {op: self.own[op] if kept(op) else self.ideal[op] for op in self.ops}

    def slowdown(self, kept: Callable[[Operation], bool]) -> float:
        """Say how much slower than ideal the job is when only some operations keep their own times."""
        return sum(self.step_times(self.keep(kept)).values()) / sum(self.ideal_s.values())

    @functools.cached_property
    def simulated_s(self) -> dict[int, float]:
        """T of each step."""
        return self.step_times(self.own, from_first_start=True)

    @functools.cached_property
    def ideal_s(self) -> dict[int, float]:
        """T_ideal of each step."""
        return self.step_times(self.ideal)

    @property
    def recorded_s(self) -> dict[int, float]:
        """Recorded time of each step."""
        return {
            step: max(end for op, end in self.end.items() if op[3] == step)
            - min(0.0, *(start for op, start in self.start.items() if op[3] == step))
            for step in self.steps
        }

    def by_optype(self) -> dict[str, float]:
        """S_t; the two forward point-to-point types count as one, and the two backward ones."""
        return {
            name: self.slowdown(lambda op, n=name: reported(op) == n)
            for name in sorted({reported(op) for op in self.start})
        }  # type: ignore[misc]

    def by_stage(self) -> list[float]:
        """S_stage."""
        return [self.slowdown(lambda op, s=stage: op[1] == s) for stage in self.stages]  # type: ignore[misc]

    def by_dp(self) -> list[float]:
        """S_dp."""
        return [self.slowdown(lambda op, d=dp: op[2] == d) for dp in self.dps]  # type: ignore[misc]

    def by_worker(self) -> list[list[float]]:
        """S_w, one full replay of all ranks each: a list of stages for each dp rank."""
        return [
            [self.slowdown(lambda op, d=dp, s=stage: (op[2], op[1]) == (d, s)) for stage in self.stages]  # type: ignore[misc]
            for dp in self.dps
        ]

    def comes_back(self, fixed: Iterable[tuple[int, int]]) -> float | None:
        """Say which part of the lost time comes back when some (dp, stage) are ideal: M_W, M_S; None where none was lost."""
        workers = set(fixed)
        simulated, ideal = sum(self.simulated_s.values()), sum(self.ideal_s.values())
        if simulated - ideal <= 1e-9 * ideal:
            return None
        without = sum(self.step_times(self.keep(lambda op: (op[2], op[1]) not in workers)).values())
        return (simulated - without) / (simulated - ideal)

    def m_w(self, by_worker: list[list[float]]) -> float | None:
        """M_W: the ceil(3%) workers with the largest S_w."""
        ranked = sorted(
            (
                (slowdown, dp, stage)
                for dp, of_dp in zip(self.dps, by_worker, strict=True)
                for stage, slowdown in zip(self.stages, of_dp, strict=True)
            ),
            key=lambda entry: -entry[0],
        )
        return self.comes_back((dp, stage) for _, dp, stage in ranked[: math.ceil(0.03 * len(ranked))])

    def m_s(self) -> float | None:
        """M_S: the last stage."""
        return self.comes_back((dp, self.stages[-1]) for dp in self.dps)


def reported(op: Operation) -> str:
    """Name the type under which an operation's slowdown is reported."""
    return f"{op[0].split('-')[0]}-pp-comm" if op[0] in P2P else op[0]
