"""What the job of a random cluster does, tick by tick, and what machines that broke do instead.

Enters: ranges, benign events and faults. Leaves: courses, and which machine follows which.
"""

import numpy as np

from diagnose.faults.spec import draw_log_uniform
from tests.clusters.kinds import MachineFault, Symptom
from tests.clusters.load import PHASES, Family
from tests.clusters.ranges import Benign, Ranges
from tests.clusters.render import TICK_S, Floats, Ints, follow_one, stack_courses

_COMPUTE, _EXCHANGE, _SAVE, _EVALUATE, _START, _WAIT, _DEAD, _STARVED = range(len(PHASES))


class JobCourse:
    """What the job does, tick by tick, and what machines that broke do instead."""

    def __init__(
        self,
        rng: np.random.Generator,
        ranges: Ranges,
        span_s: float,
        benign: tuple[Benign, ...],
        faults: tuple[MachineFault, ...],
    ) -> None:
        self.faults, self.benign = faults, benign
        self.tick_s = np.arange(-TICK_S, span_s + 16.0, TICK_S)
        self.job = self._steps(rng, ranges, faults, is_slow=False)
        self.slow = self._steps(np.random.default_rng(0), ranges, faults, is_slow=True) if faults else self.job
        self.writes = np.zeros(len(self.tick_s), dtype=bool)
        self._interrupt(rng, span_s)
        for fault in faults:
            if fault.outcome == "stop":
                self._hang(fault.onset_s + fault.delay_s)
        self.killed_s = np.inf
        if any(fault.outcome == "stop" for fault in faults) and rng.random() < ranges.dies_share:
            self.killed_s = span_s - float(rng.uniform(10.0, 60.0))
            self.job[self.tick_s >= self.killed_s] = _DEAD
        if "finishes" in benign:
            self.job[self.tick_s >= float(rng.uniform(0.3, 0.9)) * span_s] = _DEAD
        if "software-hang" in benign:
            self._hang(float(rng.uniform(0.3, 0.7)) * span_s)

    def _hang(self, from_s: float) -> None:
        """Let all wait for each other, for good: a job that stands still saves nothing either."""
        self.job[self.tick_s >= from_s] = _WAIT
        self.writes &= self.tick_s < from_s

    def _steps(
        self, rng: np.random.Generator, ranges: Ranges, faults: tuple[MachineFault, ...], *, is_slow: bool
    ) -> Ints:
        """Run steps one after the other; the others' wait for who is slow, and so does nobody when that is it who is drawn."""
        if not is_slow:
            self.step_s = draw_log_uniform(rng, *ranges.step_s)
            self.exchange = float(rng.uniform(*ranges.exchange_share))
            self.jitter = rng.normal(1.0, 0.02, 2 + int((self.tick_s[-1] + 2.0) / (0.9 * self.step_s)))
        phase = np.full(len(self.tick_s), _COMPUTE, dtype=np.int64)
        now, i = float(self.tick_s[0]), 0
        while now < self.tick_s[-1]:
            length = self.step_s * max(0.9, float(self.jitter[min(i, len(self.jitter) - 1)]))
            longer = [f for f in faults if f.outcome.startswith("slow") and now >= f.onset_s]
            compute_s, exchange_s = length * (1.0 - self.exchange), length * self.exchange
            extra_s = length * (max((f.slowdown for f in longer), default=1.0) - 1.0)
            at = [now + compute_s, now + compute_s + extra_s, now + compute_s + extra_s + exchange_s]
            first, second, last = np.searchsorted(self.tick_s, at)
            by_network = any(f.outcome == "slow-network" for f in longer)
            phase[first:second] = _COMPUTE if is_slow else _WAIT
            if by_network:  # gradients are exchanged more slowly, by all alike
                phase[first:second] = np.where(np.arange(second - first) % 2, _EXCHANGE, _WAIT)
            phase[second:last] = _EXCHANGE
            now, i = at[2], i + 1
        return phase

    def _interrupt(self, rng: np.random.Generator, span_s: float) -> None:
        """Let the job start, save and evaluate."""
        both = (self.job, self.slow)
        if "job-starts" in self.benign:
            begun_s, ready_s = float(rng.uniform(10.0, 60.0)), float(rng.uniform(70.0, 150.0))
            for course in both:
                course[self.tick_s < ready_s] = _START
                course[self.tick_s < begun_s] = _DEAD
        if "save" in self.benign:
            every_s, length_s = float(rng.uniform(120.0, 500.0)), float(rng.uniform(5.0, 45.0))
            saving = (self.tick_s + float(rng.uniform(0.0, every_s))) % every_s < length_s
            saving &= self.tick_s > 160.0
            alone = "writer" in self.benign
            self.writes = saving
            for course in both:
                course[saving] = _WAIT if alone else _SAVE
        if "evaluation" in self.benign:
            from_s = float(rng.uniform(160.0, span_s - 100.0))
            during = (self.tick_s >= from_s) & (self.tick_s < from_s + float(rng.uniform(20.0, 90.0)))
            for course in both:
                course[during] = _EVALUATE

    def finish(self, n_hosts: int, n_cards: int) -> tuple[Floats, dict[Family, Ints]]:
        """Give all courses, and who follows which."""
        follows = follow_one(n_hosts, n_cards)
        courses = [stack_courses([self.job])[0]]
        if "writer" in self.benign and self.writes.any():
            alone = self.job.copy()
            alone[self.writes & ~np.isin(alone, (_DEAD, _START))] = _SAVE
            courses.append(stack_courses([alone])[0])
            for following in follows.values():
                following[0] = 1
        for fault in self.faults:
            self._break(fault, courses, follows)
        return np.stack(courses), follows

    def _break(self, fault: MachineFault, courses: list[Floats], follows: dict[Family, Ints]) -> None:
        """Add the courses of a machine that breaks, and of those that it pulls along."""
        cards = slice(None) if fault.card is None or fault.part == 1.0 else slice(fault.card, fault.card + 1)
        if "never-waits" in fault.shows:
            slow = len(courses)
            courses.append(stack_courses([self.slow])[0])
            for following in follows.values():
                following[fault.host] = slow
        families: dict[Symptom, tuple[Family, ...]] = {
            "gpu-idle": ("gpu",),
            "cpu-idle": ("cpu",),
            "memory-freed": ("memory",),
            "net-idle": ("net",),
            "disk-idle": ("disk",),
            "starved": ("gpu", "cpu", "disk"),
        }
        for symptom, moved in families.items():
            if symptom not in fault.shows:
                continue
            after = _STARVED if symptom == "starved" else _DEAD
            whole = fault.part if fault.outcome != "slow-compute" else min(fault.part, 1.0 - 1.0 / fault.slowdown)
            for family in moved:
                at = cards if family in ("gpu", "memory") else slice(None)
                is_one_of_many = at != slice(None)
                before = courses[int(follows[family][fault.host, at][0])]
                part = 1.0 if is_one_of_many and fault.outcome != "slow-compute" else whole
                follows[family][fault.host, at] = len(courses)
                courses.append(self._turn(before, after, fault.onset_s, part))
        if fault.kind == "gpu-execution" and "gpu-idle" in fault.shows:
            for victim in fault.victims:
                follows["gpu"][victim] = len(courses)
                courses.append(self._turn(courses[0], _DEAD, fault.onset_s + fault.victims_s, 1.0))

    def _turn(self, before: Floats, after: int, from_s: float, part: float) -> Floats:
        """Let a part of a course be another phase from some time on."""
        found = before.copy()
        since = self.tick_s >= from_s
        found[:, since] *= 1.0 - part
        found[after, since] += part
        return found
