"""Event-timer logs of a scheduler with four modes, written from a small simulation of its pipeline.

Without the CPU a message is sent within the stream in which its worker computes, over the CPU a few travel beside the computes.
Each iteration begins at 0 but for 1F1B, which has unix time. Iterations are those of the job; the logs count each mode's from 1.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np

#: What a worker computes: type (F, B or W) and microbatch.
Item = tuple[str, int]
#: A message: type of the compute that made it, its microbatch, and the stage that it comes from.
Message = tuple[str, int, int]
MODES = ("1F1B", "ZB", "ZB-CPU", "ZB-CPU-ReSchedule")


@dataclasses.dataclass(frozen=True)
class Scheduler:
    """A job of one pipeline; `delays_s` are seconds more a message by link (its first stage), from an iteration on."""

    mode: str = "ZB"
    n_stages: int = 4
    n_microbatches: int = 10
    n_iterations: int = 15
    delays_s: Mapping[int, Mapping[int, float]] = dataclasses.field(default_factory=dict)
    forward_s: float = 0.030
    backward_s: float = 0.038
    weight_s: float = 0.018
    message_s: float = 0.002
    jitter: float = 0.015
    seed: int = 0

    def delay_s(self, iteration: int) -> dict[int, float]:
        """Give the delay of each link that has one in an iteration."""
        since = [first for first in self.delays_s if first <= iteration]
        return dict(self.delays_s[max(since)]) if since else {}

    def is_over_cpu(self, iteration: int) -> bool:
        """Say whether an iteration sends over the CPU: the first does, to set it up, and those with a slow link."""
        return "CPU" in self.mode and (iteration == 1 or any(self.delay_s(iteration).values()))

    def run(self) -> list[list[list[tuple[str, float, float, float]]]]:
        """Give the spans of each iteration and stage: type, start and end of the host, and seconds of the device."""
        rng = np.random.default_rng(self.seed)
        plan, beside = self._plan({}), self._plan({}, over_cpu=True)
        known: dict[int, float] = {}
        found = []
        for iteration in range(1, self.n_iterations + 1):
            delays = self.delay_s(iteration)
            if self.mode.endswith("ReSchedule") and known != delays:
                known = delays if iteration > 1 and self.delay_s(iteration - 1) == delays else known
                beside = self._plan(known, over_cpu=True)
            over_cpu = self.is_over_cpu(iteration)
            found.append(
                self._run(beside if over_cpu else plan, delays, rng, over_cpu=over_cpu, is_first=iteration == 1)
            )
        return found

    def _plan(self, delays: Mapping[int, float], *, over_cpu: bool = False) -> list[list[Item]]:
        """Order the computes of each worker: whatever can run, backwards first and weight gradients last.

        Over the CPU one more microbatch is under way on each.
        """
        n, m, one_by_one = self.n_stages, self.n_microbatches, self.mode == "1F1B"
        took = {"F": self.forward_s, "B": self.backward_s + (self.weight_s if one_by_one else 0.0), "W": self.weight_s}
        at, done = [0.0] * n, [{"F": 0, "B": 0, "W": 0} for _ in range(n)]
        ends: dict[tuple[str, int, int], float] = {}
        plan: list[list[Item]] = [[] for _ in range(n)]
        while any(len(items) < (2 if one_by_one else 3) * m for items in plan):
            options = []
            for stage in range(n):
                most = n - stage if one_by_one else 2 * (n - stage) - (not over_cpu)
                ready = {"F": 0.0 if stage == 0 else None, "B": None, "W": 0.0}
                counts = done[stage]
                if stage > 0 and counts["F"] < m and ("F", stage - 1, counts["F"]) in ends:
                    ready["F"] = ends["F", stage - 1, counts["F"]] + delays.get(stage - 1, 0.0)
                if stage == n - 1 and counts["B"] < counts["F"]:
                    ready["B"] = ends["F", stage, counts["B"]]
                elif stage < n - 1 and ("B", stage + 1, counts["B"]) in ends:
                    ready["B"] = ends["B", stage + 1, counts["B"]] + delays.get(stage, 0.0)
                can = {
                    "F": counts["F"] < m and counts["F"] - counts["B"] < most,
                    "B": counts["B"] < counts["F"],
                    "W": not one_by_one and counts["W"] < counts["B"],
                }
                for rank, op in enumerate("BFW"):
                    begins = ready[op]
                    if can[op] and begins is not None:
                        begins = max(begins, at[stage])
                        options.append((begins + (1e-9 * rank if op != "W" else 1e-6), stage, op, begins))
            _, stage, op, begins = min(options)
            i = done[stage][op]
            plan[stage].append((op, i))
            at[stage] = begins + took[op]
            ends[op, stage, i] = at[stage]
            done[stage][op] += 1
        return plan

    def _seconds(self, op: str, rng: np.random.Generator) -> float:
        both = self.mode == "1F1B"
        usual = {"F": self.forward_s, "B": self.backward_s + (self.weight_s if both else 0.0), "W": self.weight_s}[op]
        return usual * float(np.exp(self.jitter * rng.normal()))

    def _run(
        self,
        plan: list[list[Item]],
        delays: Mapping[int, float],
        rng: np.random.Generator,
        *,
        over_cpu: bool,
        is_first: bool,
    ) -> list[list[tuple[str, float, float, float]]]:
        """Run one iteration: a worker computes what is next once its input is there.

        Over the CPU a slow message is on its way beside the computes, on one of three lanes of its link. Else it is in the stream
        of its sender, whose next compute the host has begun and the device begins when it is over.
        """
        arrived: dict[Message, float] = {}
        lanes: dict[tuple[int, str, int], float] = {}
        spans: list[list[tuple[str, float, float, float]]] = [[] for _ in plan]
        at, host = [0.0] * len(plan), [0.0] * len(plan)
        while any(len(spans[s]) < len(plan[s]) for s in range(len(plan))):
            for stage, items in enumerate(plan):
                while len(spans[stage]) < len(items):
                    op, i = items[len(spans[stage])]
                    inputs = self._inputs(op, i, stage)
                    if any(message not in arrived for message in inputs):
                        break
                    took = self._seconds(op, rng) * (4.0 if is_first and not spans[stage] else 1.0)
                    ready = max((arrived[message] for message in inputs), default=0.0)
                    begin = max(host[stage], ready) + 0.0003
                    end = max(at[stage], begin) + took
                    spans[stage].append((op, begin, end, took))
                    at[stage] = host[stage] = end
                    if op == "W":
                        continue
                    message = (op, i, stage)
                    late = delays.get(self._link(message), 0.0)
                    if over_cpu:
                        lane = (stage, op, i % 3)
                        lanes[lane] = max(lanes.get(lane, 0.0), end) + 2 * self.message_s + late
                        arrived[message] = lanes[lane]
                    else:
                        at[stage] += late
                        arrived[message] = at[stage] + self.message_s
        return spans

    def _link(self, message: Message) -> int:
        op, _, source = message
        return source if op == "F" else source - 1

    def _inputs(self, op: str, i: int, stage: int) -> list[Message]:
        if op == "F" and stage > 0:
            return [("F", i, stage - 1)]
        return [("B", i, stage + 1)] if op == "B" and stage < self.n_stages - 1 else []


def draw_scheduler(seed: int) -> Scheduler:
    """Draw a job of any mode and shape, of three to eight stages, with up to two links that get slow."""
    rng = np.random.default_rng(seed)
    n_stages = int(rng.integers(3, 9))
    n_microbatches = int(n_stages * rng.choice([1, 1.5, 2, 3])) + int(rng.integers(0, 3))
    forward_s = float(rng.uniform(0.015, 0.05))
    n_slow = int(rng.choice([0, 1, 1, 2])) if n_stages > 3 else int(rng.choice([0, 1, 1]))
    links = sorted(rng.choice(n_stages - 1, n_slow, replace=False).tolist())
    since, delay_s = int(rng.integers(4, 11)), forward_s * float(np.exp(rng.uniform(np.log(0.3), np.log(4))))
    return Scheduler(
        MODES[seed % len(MODES)],
        n_stages=n_stages,
        n_microbatches=n_microbatches,
        delays_s={since: {link: delay_s * float(rng.uniform(0.6, 1.0)) for link in links}} if links else {},
        forward_s=forward_s,
        backward_s=forward_s * float(rng.uniform(1.0, 1.5)),
        weight_s=forward_s * float(rng.uniform(0.5, 1.0)),
        message_s=forward_s * float(rng.uniform(0.02, 0.1)),
        jitter=float(rng.uniform(0.005, 0.03)),
        seed=seed,
    )


def draw_varying(seed: int) -> Scheduler:
    """Draw a job in which a link is slow in two stretches, with other delays, or two links are in turns; mended between, or not."""
    rng = np.random.default_rng([seed, 1])
    job = draw_scheduler(seed)
    links = rng.choice(job.n_stages - 1, 2, replace=False).tolist()
    links = [links[0], links[int(rng.integers(2))]]
    starts = np.cumsum([rng.integers(4, 7), rng.integers(3, 6), rng.integers(0, 3), rng.integers(3, 6)]).tolist()
    delays = [{link: job.forward_s * float(np.exp(rng.uniform(0.0, np.log(4))))} for link in links]
    course = {starts[0]: delays[0], starts[1]: {}, starts[2]: delays[1], starts[3]: {}}
    return dataclasses.replace(job, delays_s=course, n_iterations=starts[3] + int(rng.integers(1, 5)))


def write_logs(folder: Path, job: Scheduler, *, with_log: bool = True) -> Path:
    """Write one log a rank and mode, and the training log beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    iterations = job.run()
    counts = {False: 0, True: 0}
    logs: dict[str, list[str]] = {}
    console = []
    unix_ms = 1.75e12
    for number, stages in enumerate(iterations, start=1):
        over_cpu = job.is_over_cpu(number)
        counts[over_cpu] += 1
        length_s = max(span[2] for spans in stages for span in spans)
        base_ms = unix_ms if job.mode == "1F1B" else 0.0
        for rank, spans in enumerate(stages):
            ending = "_CPU" if over_cpu else "_1F1B" if job.mode == "1F1B" else ""
            lines = logs.setdefault(f"GPU{rank}_rank{rank}{ending}.log", [])
            lines.append(f"[RANK{rank}] Iteration {counts[over_cpu]}")
            lines += [f"[RANK{rank}] {line}" for line in _lines(spans, base_ms)]
        elapsed_ms = 1e3 * length_s + 75.0 + (9000.0 if over_cpu and number == 1 else 0.0)
        unix_ms += elapsed_ms
        console.append(
            f" iteration {number:8d}/{len(iterations):8d} | consumed samples: {12 * number:12d} | elapsed time per iteration (ms): "
            f"{elapsed_ms:.1f} | learning rate: 0.000E+00 | global batch size:    12 | loss scale: 1.0 |"
        )
    for name, lines in logs.items():
        (folder / name).write_text("\n".join(lines) + "\n")
    if with_log:
        (folder / "log.txt").write_text("\n".join(console) + "\n")
    return folder


def _lines(spans: list[tuple[str, float, float, float]], base_ms: float) -> list[str]:
    """Write the operations of one iteration; weight gradients that end it are one."""
    n_last = 0
    while spans[len(spans) - 1 - n_last][0] == "W":
        n_last += 1
    merged = spans[: len(spans) - n_last]
    if n_last:
        last = spans[len(spans) - n_last :]
        merged = [*merged, (f"{n_last}W", last[0][1], last[-1][2], sum(span[3] for span in last))]
    return [
        f"{op} @ {base_ms + 1e3 * begin} (ms) to {base_ms + 1e3 * end} (ms), cudaEventElapsed = {1e3 * took} (ms)"
        for op, begin, end, took in merged
    ]
