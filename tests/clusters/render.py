"""Telemetry of a cluster, sample by sample: what its job does, what its machines have of their own, and what happens to them.

Enters: a `Cluster`. Leaves: `Telemetry`, as a Prometheus server would hold it.
"""

import dataclasses
from collections.abc import Sequence
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from diagnose.model.telemetry import METRICS, Metric, Series, Telemetry
from tests.clusters.load import (
    AIR_C,
    DEGREES_A_WATT,
    FAMILIES,
    HOST_DEGREES,
    LOADS,
    PHASES,
    STILL,
    WARMING_S,
    Family,
)

#: Seconds between two points of a course.
TICK_S: Final = 0.5
#: Samples from one bend of a slow drift to the next.
DRIFT_SAMPLES = 20
#: What a network port and a disk are called.
PORT, DISK = "mlx5_0", "nvme0n1"

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
How = Literal["scale", "add", "set"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Something that moves one metric of some machines for a while.

    Attributes
    ----------
    metric : str
    hosts : tuple of int
        Indexes of machines.
    card : int or None
        Of a metric of cards: this one alone; None: all.
    how : {"scale", "add", "set"}
        Of a counter, its growth is scaled, or so much a second is added; `set` sets gauges and codes.
    value : float
    from_s, until_s : float
        Seconds after the first sample.
    ramp_s : float
        Seconds until it is there in full.
    period_s : float
        It is there for half of each such period; 0: all the time.
    """

    metric: str
    hosts: tuple[int, ...]
    how: How
    value: float
    card: int | None = None
    from_s: float = 0.0
    until_s: float = float("inf")
    ramp_s: float = 0.0
    period_s: float = 0.0

    def level(self, at_s: Floats) -> Floats:
        """Say how much of it is there at some times, 0..1."""
        since = at_s - self.from_s
        there = (since >= 0) & (at_s < self.until_s)
        if self.period_s:
            there &= since % self.period_s < self.period_s / 2
        return np.asarray(there * (np.clip(since / self.ramp_s, 0.0, 1.0) if self.ramp_s else 1.0))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Samples that are missing: of a machine, or of one of its cards."""

    host: int
    from_s: float
    until_s: float = float("inf")
    card: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Everything that telemetry is made of.

    Attributes
    ----------
    names : tuple of str
        Of machines, shape (n_hosts,).
    roles : tuple of int
        Pipeline stage of each.
    n_cards : int
        Cards of a machine that have metrics of their own.
    metrics : tuple of str
        Names of those that are exported.
    began_s, interval_s : float
        Unix seconds of the first sample, and seconds from one to the next.
    n_samples : int
    courses : ndarray of float64, shape (n_courses, n_phases, n_ticks)
        Part of the time in each phase, every `TICK_S` seconds from a tick before the first sample.
    course_of : mapping of Family to ndarray of int64, shape (n_hosts, n_cards)
        Which course each machine follows, by family; of what cards do not have, that of the first one counts.
    effects : tuple of Effect
    gaps : tuple of Gap
    noise, drift, tails : float
        1 is the usual noise; part of it that drifts; part of the samples that stand out.
    missing_share : float
        Part of the samples that are missing here and there.
    shift_s : ndarray of float64, shape (n_hosts,)
        How far the clock of each is off.
    alike : float
        Machines of a role, and roles, differ by so much of what is usual.
    tick_s : float
    seed : int
    """

    names: tuple[str, ...]
    roles: tuple[int, ...]
    n_cards: int
    metrics: tuple[str, ...]
    began_s: float
    interval_s: float
    n_samples: int
    courses: Floats
    course_of: dict[Family, NDArray[np.int64]]
    effects: tuple[Effect, ...] = ()
    gaps: tuple[Gap, ...] = ()
    noise: float = 1.0
    drift: float = 0.3
    tails: float = 0.001
    missing_share: float = 0.0
    shift_s: Floats | None = None
    alike: float = 1.0
    tick_s: float = TICK_S
    seed: int = 0

    @property
    def span_s(self) -> float:
        """Seconds from the first sample to the last."""
        return (self.n_samples - 1) * self.interval_s


def render(cluster: Cluster, *, name: str = "generated") -> Telemetry:
    """Write what a cluster measured of itself."""
    sampler = _Sampler(cluster)
    series = [one for metric in sorted(cluster.metrics) for one in sampler.list_series(METRICS[metric])]
    return Telemetry(name, ("generated",), tuple(series), ())


class _Sampler:
    """Takes samples of a cluster; each metric draws from a random stream of its own."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        rng = self._random("when")
        n = len(cluster.names)
        # A scraper visits its targets one after the other, each always at the same moment of the interval.
        phase_s = rng.uniform(0.0, min(cluster.interval_s, 15.0), n)
        shift_s = np.zeros(n) if cluster.shift_s is None else cluster.shift_s
        grid_s = np.arange(cluster.n_samples) * cluster.interval_s
        self.at_s = grid_s + phase_s[:, None]
        n_ticks = cluster.courses.shape[2]
        self.tick = np.clip((self.at_s / cluster.tick_s).astype(np.int64) + 1, 0, n_ticks - 1)
        self.times = cluster.began_s + self.at_s + shift_s[:, None]
        self.is_kept = rng.random((n, cluster.n_samples)) >= cluster.missing_share
        self.lacking: dict[tuple[int, int | None], list[Gap]] = {}
        for gap in cluster.gaps:
            self.lacking.setdefault((gap.host, gap.card), []).append(gap)
        self.n_roles = max(cluster.roles) + 1
        self.role = np.array(cluster.roles)
        self.averaged = self._average()

    def _random(self, what: str) -> np.random.Generator:
        return np.random.default_rng([self.cluster.seed, *what.encode()])

    def _average(self) -> Floats:
        """Average courses over the interval before each tick: exporters give means, and counters grow over all of it."""
        width = max(1, round(self.cluster.interval_s / self.cluster.tick_s))
        total = np.cumsum(np.pad(self.cluster.courses, ((0, 0), (0, 0), (width, 0)), mode="edge"), axis=2)
        return np.asarray((total[:, :, width:] - total[:, :, :-width]) / width)

    def list_series(self, metric: Metric) -> list[Series]:
        """Take all samples of one metric."""
        values = self._take(metric)
        found = []
        for host, host_name in enumerate(self.cluster.names):
            for device in range(values.shape[1]):
                card = device if metric.of == "gpu" else None
                kept = self._keep(host, card)
                named = {"gpu": str(device), "nic": PORT, "disk": DISK, "host": ""}[metric.of]
                if kept is None:
                    found.append(Series(metric, host_name, named, self.times[host], values[host, device]))
                elif kept.any():
                    times, taken = self.times[host][kept], values[host, device][kept]
                    found.append(Series(metric, host_name, named, times, taken))
        return found

    def _keep(self, host: int, card: int | None) -> NDArray[np.bool_] | None:
        """Mark the samples that are there; None: all."""
        gaps = [*self.lacking.get((host, None), ()), *(() if card is None else self.lacking.get((host, card), ()))]
        kept = self.is_kept[host]
        for gap in gaps:
            kept = kept & ~((self.at_s[host] >= gap.from_s) & (self.at_s[host] < gap.until_s))
        return None if kept.all() else kept

    def _take(self, metric: Metric) -> Floats:
        """Take the values of a metric, shape (n_hosts, n_devices, n_samples)."""
        n_devices = self.cluster.n_cards if metric.of == "gpu" else 1
        if metric.name == "gpu_temperature_c":
            values = self._temperature()
        elif metric.name in LOADS:
            values = self._level(metric, n_devices)
        else:
            values = np.full((len(self.cluster.names), n_devices, self.cluster.n_samples), STILL[metric.name])
        self._disturb(metric, values)
        if metric.kind == "counter":
            values = np.cumsum(np.maximum(values, 0.0) * self.cluster.interval_s, axis=2)
            values = np.floor(values) if metric.unit != "s" else values
        return values

    def _level(self, metric: Metric, n_devices: int) -> Floats:
        """Follow the job, with what roles, machines and chance have of their own."""
        cluster, load = self.cluster, LOADS[metric.name]
        rng = self._random(metric.name)
        by_course = np.einsum("p,cpt->ct", np.asarray(load.levels, dtype=np.float64), self.averaged)
        course = cluster.course_of[load.family][:, :n_devices]
        values = by_course[course[:, :, None], self.tick[:, None, :]]
        own = np.exp(cluster.alike * load.role_spread * rng.standard_normal(self.n_roles))[self.role][:, None]
        own = own * np.exp(cluster.alike * load.host_spread * rng.standard_normal((len(cluster.names), n_devices)))
        values *= own[:, :, None]
        values *= 1.0 + cluster.noise * load.noise * self._chance(rng, values.shape)
        if load.floor:
            values += load.floor * np.abs(rng.standard_normal(values.shape))
        found: Floats = np.clip(values, 0.0, load.most, out=values)
        return found

    def _chance(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        """Draw noise of variance about 1: white, drifting, and now and then far out."""
        drift = self.cluster.drift
        noise = rng.standard_normal(shape, dtype=np.float32) * np.float32(np.sqrt(1.0 - drift))
        n_bends = shape[2] // DRIFT_SAMPLES + 2
        bends = rng.standard_normal((*shape[:2], n_bends)) * np.sqrt(1.5 * drift)
        at = np.arange(shape[2]) / DRIFT_SAMPLES
        low = at.astype(np.int64)
        part = at - low
        found: Floats = noise + bends[:, :, low] * (1.0 - part) + bends[:, :, low + 1] * part
        n_out = rng.binomial(int(np.prod(shape)), self.cluster.tails)
        where = tuple(rng.integers(size, size=n_out) for size in shape)
        found[where] += rng.exponential(6.0, n_out)
        return found

    def _temperature(self) -> Floats:
        """Warm up and cool down behind the power."""
        metric = METRICS["gpu_power_w"]
        power = self._level(metric, self.cluster.n_cards)
        self._disturb(metric, power)
        rng = self._random("temperature")
        part = 1.0 - np.exp(-self.cluster.interval_s / WARMING_S)
        values = np.empty_like(power)
        now = power[:, :, : max(1, DRIFT_SAMPLES)].mean(axis=2)
        for i in range(power.shape[2]):
            now = now + part * (power[:, :, i] - now)
            values[:, :, i] = now
        own = AIR_C + HOST_DEGREES * rng.standard_normal(power.shape[:2])
        return np.asarray(np.round(own[:, :, None] + DEGREES_A_WATT * values + 0.3 * rng.standard_normal(power.shape)))

    def _disturb(self, metric: Metric, values: Floats) -> None:
        """Let the effects on a metric happen, in place."""
        for effect in self.cluster.effects:
            if effect.metric != metric.name:
                continue
            cards = slice(None) if effect.card is None or metric.of != "gpu" else slice(effect.card, effect.card + 1)
            for host in effect.hosts:
                level = effect.level(self.at_s[host])
                part = values[host, cards]
                if effect.how == "scale":
                    part *= 1.0 + (effect.value - 1.0) * level
                elif effect.how == "add":
                    part += effect.value * level
                else:
                    part += (effect.value - part) * level
                most = LOADS[metric.name].most if metric.name in LOADS else np.inf
                np.clip(part, 0.0, most, out=part)


def follow_one(n_hosts: int, n_cards: int) -> dict[Family, NDArray[np.int64]]:
    """Let all machines follow the first course."""
    return {family: np.zeros((n_hosts, n_cards), dtype=np.int64) for family in FAMILIES}


def stack_courses(phases: Sequence[NDArray[np.int64]]) -> Floats:
    """Turn the phase of each tick, one array a course, into parts of the time, shape (n_courses, n_phases, n_ticks)."""
    return np.asarray(np.stack([np.eye(len(PHASES))[phase].T for phase in phases]))
