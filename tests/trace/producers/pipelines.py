"""Pipelines whose times one can make up: 1F1B with blocking batches of sends and recvs, written as other tools would.

A worker runs its programme: computes, and batches of transfers in between. A transfer begins when both ends have come to it, and a
batch is over when the last of its transfers is.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Span:
    """One compute: seconds since the job began."""

    op: str
    step: int
    stage: int
    microbatch: int
    start_s: float
    end_s: float


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """A job of one pipeline, 1F1B.

    `slow_link` is the first stage of a link that takes `link_delay_s` more a message, both ways, from `since` on; with
    `blocks_all` both of its workers take as long for every message that they send, as in the recorded example. `pauses` are
    seconds by (step, stage, microbatch) in forwards, `stage_ratio` how many times as long a stage computes.
    """

    n_stages: int = 4
    n_microbatches: int = 8
    n_steps: int = 14
    forward_s: float = 0.030
    backward_s: float = 0.060
    message_s: float = 0.003
    jitter: float = 0.02
    slow_link: int | None = None
    link_delay_s: float = 0.0
    since: int = 1
    blocks_all: bool = False
    pauses: Mapping[tuple[int, int, int], float] = dataclasses.field(default_factory=dict)
    stage_ratio: Mapping[int, float] = dataclasses.field(default_factory=dict)
    slow_worker: int | None = None
    slow_since: int = 1
    slow_ratio: float = 1.0
    seed: int = 0

    def run(self) -> list[Span]:
        """Give all computes, in no particular order."""
        rng = np.random.default_rng(self.seed)
        spans: list[Span] = []
        begun = 0.0
        for step in range(1, self.n_steps + 1):
            found = list(self._run_step(step, begun, rng))
            spans += found
            begun = max(span.end_s for span in found) + 0.2
        return spans

    def _run_step(self, step: int, begun: float, rng: np.random.Generator) -> Iterator[Span]:
        programmes = [self._programme(stage) for stage in range(self.n_stages)]
        at, clock = [0] * self.n_stages, [begun] * self.n_stages
        posted: dict[tuple[int, tuple[str, int, int]], float] = {}
        while any(at[stage] < len(programmes[stage]) for stage in range(self.n_stages)):
            moved = False
            for stage, programme in enumerate(programmes):
                while at[stage] < len(programme):
                    item = programme[at[stage]]
                    if isinstance(item, list):
                        for message in item:
                            posted.setdefault((stage, message), clock[stage])
                        ends = [self._arrive(message, posted, step) for message in item]
                        if any(end is None for end in ends):
                            break
                        clock[stage] = max(end for end in ends if end is not None)
                    else:
                        op, microbatch = item
                        seconds = self._seconds(op, step, stage, microbatch) * float(np.exp(self.jitter * rng.normal()))
                        yield Span(op, step, stage, microbatch, clock[stage], clock[stage] + seconds)
                        clock[stage] += seconds
                    at[stage] += 1
                    moved = True
            assert moved, "a deadlock"

    def _seconds(self, op: str, step: int, stage: int, microbatch: int) -> float:
        usual = self.forward_s if op == "F" else self.backward_s
        usual *= self.stage_ratio.get(stage, 1.0)
        if stage == self.slow_worker and step >= self.slow_since:
            usual *= self.slow_ratio
        return usual + (self.pauses.get((step, stage, microbatch), 0.0) if op == "F" else 0.0)

    def _arrive(
        self, message: tuple[str, int, int], posted: Mapping[tuple[int, tuple[str, int, int]], float], step: int
    ) -> float | None:
        """Say when a message (direction, from, microbatch) has arrived; None while an end is missing."""
        op, source, _ = message
        to = source + (1 if op == "F" else -1)
        ends = [posted.get((stage, message)) for stage in (source, to)]
        if any(end is None for end in ends):
            return None
        slow = self.slow_link is not None and step >= self.since
        touched = {self.slow_link, (self.slow_link or 0) + 1}
        hit = slow and ((source in touched) if self.blocks_all else {source, to} == touched)
        return max(end for end in ends if end is not None) + self.message_s + (self.link_delay_s if hit else 0.0)

    def _programme(self, stage: int) -> list[Any]:
        """List what a worker does in a step: ("F", microbatch), or a batch of messages."""
        last, m = self.n_stages - 1, self.n_microbatches
        n_warm_up = min(last - stage, m)
        items: list[Any] = []

        def batch(*messages: tuple[str, int, int] | None) -> None:
            found = [message for message in messages if message is not None]
            if found:
                items.append(found)

        def recv_f(i: int) -> tuple[str, int, int] | None:
            return ("F", stage - 1, i) if stage > 0 and i < m else None

        def send_f(i: int) -> tuple[str, int, int] | None:
            return ("F", stage, i) if stage < last else None

        def recv_b(i: int) -> tuple[str, int, int] | None:
            return ("B", stage + 1, i) if stage < last else None

        def send_b(i: int) -> tuple[str, int, int] | None:
            return ("B", stage, i) if stage > 0 else None

        for i in range(n_warm_up):
            batch(recv_f(i))
            items.append(("F", i))
            batch(send_f(i))
        if n_warm_up < m:
            batch(recv_f(n_warm_up))
        for i in range(m - n_warm_up):
            items.append(("F", n_warm_up + i))
            batch(send_f(n_warm_up + i), recv_b(i))
            items.append(("B", i))
            if i + 1 < m - n_warm_up:
                batch(send_b(i), recv_f(n_warm_up + i + 1))
            else:
                batch(send_b(i))
        for i in range(m - n_warm_up, m):
            batch(recv_b(i))
            items.append(("B", i))
            batch(send_b(i))
        return items


def write_event_timer(folder: Path, spans: list[Span], ahead_s: Callable[[int], float] = lambda _stage: 0.0) -> Path:
    """Write one log a rank as the event timer of zero-bubble does."""
    folder.mkdir(parents=True, exist_ok=True)
    for stage in sorted({span.stage for span in spans}):
        lines, step = [], None
        base = 1.75e9 + ahead_s(stage)
        for span in sorted((s for s in spans if s.stage == stage), key=lambda s: s.start_s):
            if span.step != step:
                step = span.step
                lines.append(f"[RANK{stage}] Iteration {step}")
            start, end = (base + span.start_s) * 1e3, (base + span.end_s) * 1e3
            elapsed = end - start - 0.05
            lines.append(f"[RANK{stage}] {span.op} @ {start} (ms) to {end} (ms), cudaEventElapsed = {elapsed} (ms)")
        (folder / f"GPU{stage}.log").write_text("\n".join(lines) + "\n")
    return folder


def write_primus(
    folder: Path, spans: list[Span], ahead_s: Callable[[int, int], float] = lambda _stage, _step: 0.0
) -> Path:
    """Write a folder as `--dump_pp_data` does: each iteration begins at 0."""
    folder.mkdir(parents=True, exist_ok=True)
    stages, steps = sorted({s.stage for s in spans}), sorted({s.step for s in spans})
    begun = {step: min(s.start_s for s in spans if s.step == step) for step in steps}
    for stage in stages:
        content: dict[str, Any] = {}
        for step in steps:
            found = sorted((s for s in spans if (s.stage, s.step) == (stage, step)), key=lambda s: s.start_s)
            shift = ahead_s(stage, step) - begun[step]
            content[str(step)] = {"total": 1e3 * (found[-1].end_s + shift), "memory": 70.0}
            for op, name in (("F", "fwd"), ("B", "bwd")):
                content[str(step)] |= {
                    f"{name}_start": [1e3 * (s.start_s + shift) for s in found if s.op == op],
                    f"{name}_end": [1e3 * (s.end_s + shift) for s in found if s.op == op],
                }
        (folder / f"pp_rank_{stage}.json").write_text(json.dumps(content))
    sizes = {"world_size": len(stages), "dp_size": 1, "tp_size": 1, "pp_size": len(stages), "vp_size": 1}
    (folder / "config.json").write_text(json.dumps(sizes | {"train_iters": len(steps)}))
    return folder


def write_megascan(
    folder: Path, spans: list[Span], ahead_s: Callable[[int, int], float] = lambda _stage, _step: 0.0
) -> Path:
    """Write raw MegaScan files: nanoseconds since the iteration began on each rank, iterations without numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    stages, steps = sorted({s.stage for s in spans}), sorted({s.step for s in spans})
    begun = {step: min(s.start_s for s in spans if s.step == step) for step in steps}
    ended = {step: max(s.end_s for s in spans if s.step == step) for step in steps}
    for stage in stages:
        place = {"dp_rk": 0, "pp_rk": stage, "tp_rk": 0, "dev": stage, "g_rk": stage}
        rows: list[dict[str, Any]] = []
        for step in steps:
            rows.append({"name": "iteration", "ph": "B", "pad_before": 0 if step == steps[0] else int(2e8)})
            found = sorted((s for s in spans if (s.stage, s.step) == (stage, step)), key=lambda s: s.start_s)
            n_warm_up = next(i for i, s in enumerate(found) if s.op == "B") - 1
            for i, span in enumerate(found):
                name = {"F": "forward", "B": "backward"}[span.op]
                if span.op == "F" and i < n_warm_up:
                    name = "forward-warmup"
                shift = ahead_s(stage, step) - begun[step]
                times = [int(1e9 * (t + shift)) for t in (span.start_s, span.end_s)]
                rows += [
                    {"name": name, "ph": "B", "rel_ts": times[0], **place},
                    {"name": name, "ph": "E", "rel_ts": times[1], "micro_batch_index": span.microbatch, **place},
                ]
            wall = int(1e9 * (ended[step] - begun[step]))
            rows.append(
                {"name": "iteration", "ph": "E", "rel_ts": wall, "duration_wall": wall, "duration_cuda": wall, **place}
            )
        (folder / f"benchmark-data-0-pipeline-{stage}-tensor-0.json").write_text(json.dumps(rows))
    return folder
