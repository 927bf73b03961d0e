"""Random clusters with jobs, benign events, and machines that break: for tuning, and others that no tuning has seen.

Enters: a seed, and `Ranges`. Leaves: a `Cluster`, and the truth about it.
"""

import dataclasses
from typing import Final, Literal

import numpy as np

from diagnose.faults.spec import draw_log_uniform
from tests.clusters.course import JobCourse
from tests.clusters.effects import list_benign, list_effects
from tests.clusters.kinds import KINDS, MachineFault, draw_slowdown, draw_symptoms
from tests.clusters.load import LOADS, STILL
from tests.clusters.ranges import TUNED, Benign, Ranges
from tests.clusters.render import Cluster, Ints

#: Metrics in Minder's order: with these alone it works.
SEVEN: Final = (
    "net_pfc_sent",
    "cpu_used",
    "gpu_utilization",
    "gpu_power_w",
    "gpu_graphics_active",
    "gpu_tensor_active",
    "gpu_nvlink_bytes",
)
#: What else is exported: nothing, what dcgm-exporter and node_exporter do by default, all.
Exported = Literal["seven", "stock", "all"]
_STOCK: Final = (
    *SEVEN,
    *("gpu_sm_clock_mhz", "gpu_temperature_c", "gpu_memory_used_bytes", "gpu_dram_active", "gpu_pcie_bytes"),
    *("gpu_pcie_replays", "gpu_xid", "memory_available_bytes", "run_queue", "cpu_io_wait"),
    *("net_sent_bytes", "net_received_bytes", "net_up", "disk_read_bytes"),
)
_ALL: Final = (*dict.fromkeys((*_STOCK, *LOADS, *STILL)),)
EXPORTED: Final[dict[Exported, tuple[str, ...]]] = {"seven": SEVEN, "stock": _STOCK, "all": _ALL}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A cluster with its truth.

    Attributes
    ----------
    cluster : Cluster
    faults : tuple of MachineFault
    benign : tuple of str
        What happened and is no fault.
    exported : str
    """

    cluster: Cluster
    faults: tuple[MachineFault, ...]
    benign: tuple[Benign, ...]
    exported: Exported

    @property
    def faulty(self) -> dict[str, str]:
        """Kind of each faulty machine, by name."""
        return {self.cluster.names[fault.host]: fault.kind for fault in self.faults}

    @property
    def unobservable(self) -> tuple[str, ...]:
        """Names of faulty machines of which nothing is seen."""
        return tuple(self.cluster.names[fault.host] for fault in self.faults if not fault.is_visible)


def draw_world(
    seed: int, i: int, *, ranges: Ranges = TUNED, faulty: bool | None = None, n_hosts: int | None = None
) -> World:
    """Draw world i of a corpus: the same whatever other worlds are drawn.

    Parameters
    ----------
    seed, i : int
    ranges : Ranges
    faulty : bool, optional
        Whether machines break; if left out every other world has none.
    n_hosts : int, optional
        Machines; if left out drawn.
    """
    rng = np.random.default_rng([seed, i])
    n = n_hosts or round(draw_log_uniform(rng, *ranges.n_hosts))
    interval_s = float(rng.choice(ranges.intervals_s))
    n_roles = int(rng.choice([r for r in ranges.n_roles if n >= 2 * r]))
    n_cards = int(rng.choice([c for c in ranges.n_cards if c * n <= 1500]))
    roles = np.arange(n) * n_roles // n
    span_s = float(rng.choice(ranges.minutes)) * 60.0
    exported: Exported = ("seven", "stock", "all")[int(rng.integers(3))]
    metrics = EXPORTED[exported]
    is_faulty = bool(i % 2) if faulty is None else faulty
    faults = _draw_faults(rng, ranges, roles, n_cards, span_s, metrics) if is_faulty else ()
    benign: tuple[Benign, ...] = tuple(name for name, chance in ranges.benign.items() if rng.random() < chance)
    ends = ("finishes", "software-hang", "exporter-dies")  # each of them hides whether a machine broke, or looks as if
    benign = tuple(name for name in benign if not (faults and name in ends))
    course = JobCourse(rng, ranges, span_s, benign, faults)
    courses, course_of = course.finish(n, n_cards)
    effects, gaps = list_effects(rng, faults)
    more_effects, more_gaps = list_benign(rng, benign, roles, span_s, {fault.host for fault in faults})
    cluster = Cluster(
        names=tuple(f"node-{k:04}" for k in rng.permutation(n)),
        roles=tuple(roles.tolist()),
        n_cards=n_cards,
        metrics=metrics,
        began_s=1.75e9 + float(rng.integers(0, 10**7)),
        interval_s=interval_s,
        n_samples=int(span_s / interval_s),
        courses=courses,
        course_of=course_of,
        effects=(*more_effects, *effects),
        gaps=(*more_gaps, *gaps),
        noise=draw_log_uniform(rng, *ranges.noise),
        drift=float(rng.uniform(*ranges.drift)),
        tails=float(rng.uniform(*ranges.tails)),
        missing_share=float(rng.uniform(*ranges.missing_share)) * float(rng.random() < 0.5),
        shift_s=float(rng.uniform(*ranges.shift_s)) * rng.standard_normal(n) * (rng.random(n) < 0.1),
        alike=float(rng.uniform(*ranges.alike)),
        seed=int(rng.integers(2**31)),
    )
    return World(cluster=cluster, faults=faults, benign=benign, exported=exported)


def _draw_faults(
    rng: np.random.Generator, ranges: Ranges, roles: Ints, n_cards: int, span_s: float, metrics: tuple[str, ...]
) -> tuple[MachineFault, ...]:
    """Draw which machines break, how, and since when: mostly one; several of one kind, as one switch or rack breaks."""
    n_drawn = 1 + int(rng.choice(len(ranges.n_faults), p=ranges.n_faults))
    n_drawn = min(n_drawn, max(1, len(roles) // 8))
    shares = np.array([kind.share for kind in KINDS.values()])
    first = list(KINDS)[int(rng.choice(len(shares), p=shares / shares.sum()))]
    onset_s = span_s - float(rng.uniform(*ranges.onset_s))
    faults: list[MachineFault] = []
    for host in rng.choice(len(roles), n_drawn, replace=False).tolist():
        kind = KINDS[first]
        shows = draw_symptoms(kind, rng, metrics)
        outcome = faults[0].outcome if faults else str(rng.choice(list(kind.outcomes), p=list(kind.outcomes.values())))
        peers = np.flatnonzero((roles == roles[host]) & (np.arange(len(roles)) != host))
        n_victims = min(int(rng.integers(1, 7)), len(peers) // 3) if rng.random() < kind.spreads else 0
        faults.append(
            MachineFault(
                kind=first,
                host=host,
                card=int(rng.integers(n_cards)) if n_cards > 1 else None,
                onset_s=onset_s + float(rng.uniform(0.0, 20.0)) * bool(faults),
                outcome=outcome,  # type: ignore[arg-type] # one of Outcome
                delay_s=float(rng.uniform(*ranges.delay_s)),
                slowdown=draw_slowdown(rng, *ranges.slowdown),
                shows=shows,
                part=float(rng.choice(ranges.parts)),
                strength=float(rng.uniform(*ranges.strength)),
                ramp_s=float(rng.choice(ranges.ramps_s)),
                period_s=float(rng.choice(ranges.periods_s)),
                victims=tuple(rng.choice(peers, n_victims, replace=False).tolist()) if shows else (),
                victims_s=float(rng.uniform(5.0, 60.0)),
                xid=int(rng.choice(kind.xids)) if kind.xids else 0,
            )
        )
    broken = {fault.host for fault in faults}
    return tuple(dataclasses.replace(f, victims=tuple(v for v in f.victims if v not in broken)) for f in faults)
