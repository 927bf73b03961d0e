"""Telemetry of a generated job: the same hosts, the same clock, and why its faults are there.

Enters: a `Job` of `generate`, its faults, and the sub-cause of each. Leaves: `Telemetry`, and the truth about it.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Final, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from diagnose.errors import UsageError
from diagnose.faults.data_loading import DataLoading
from diagnose.faults.fault import Fault, Worker
from diagnose.faults.generate import Job
from diagnose.faults.network_fault import NetworkFault
from diagnose.faults.spec import JobSpec
from diagnose.faults.worker_fault import WorkerFault
from diagnose.model.telemetry import Telemetry
from tests.clusters.load import FAMILIES, LOADS, PHASES, STILL
from tests.clusters.render import Cluster, Effect, Floats, render

Ints = NDArray[np.int64]
#: Why a fault is there, as telemetry can tell.
SubCause = Literal[
    "power-cap",
    "thermal",
    "clock-locked",
    "pcie",
    "ecc",
    "xid",
    "cpu-contention",
    "flaps",
    "symbol-errors",
    "pfc",
    "port-down",
    "width",
    "disk-wait",
    "page-cache",
    "network-storage",
]
SUB_CAUSES: Final[dict[str, tuple[SubCause, ...]]] = {
    "worker-fault": ("power-cap", "thermal", "clock-locked", "pcie", "ecc", "xid", "cpu-contention"),
    "network-fault": ("flaps", "symbol-errors", "pfc", "port-down", "width"),
    "data-loading": ("disk-wait", "page-cache", "network-storage"),
}
#: Why a worker may be slow now and then: what is locked, or broken, stays so.
_COMES_AND_GOES: Final[tuple[SubCause, ...]] = ("power-cap", "thermal", "ecc", "xid", "cpu-contention")
#: Seconds between samples, from the fastest that exporters do; the first that gives no more samples than this is taken.
INTERVALS_S, MOST_SAMPLES, LEAST_SAMPLES = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0), 600, 30
#: Part of the telemetry that is from before the first recorded step.
BEFORE_SHARE = 0.15
#: Bits of DCGM_FI_DEV_CLOCKS_EVENT_REASONS, as in nvml.h: clocks set by a user, power cap, slowdown by hardware and by heat.
_SETTING, _POWER_CAP, _HW_SLOWDOWN, _SW_THERMAL, _HW_THERMAL = 0x2, 0x4, 0x8, 0x20, 0x40
_COMPUTE, _EXCHANGE, _WAIT = PHASES.index("compute"), PHASES.index("exchange"), PHASES.index("wait")
_COMPUTES = ("forward-compute", "backward-compute", "backward-input", "backward-weight", "optimizer")


@dataclasses.dataclass(frozen=True, slots=True)
class Reason:
    """The truth about one fault in telemetry.

    Attributes
    ----------
    cause : str
    sub_cause : str or None
        None: nothing in the telemetry shows it.
    hosts : tuple of str
        Names of the machines that show it.
    cards : tuple of int
        Their cards that do; empty where it is no matter of cards.
    from_s, until_s : float
        Unix seconds.
    """

    cause: str
    sub_cause: SubCause | None
    hosts: tuple[str, ...]
    cards: tuple[int, ...]
    from_s: float
    until_s: float


@dataclasses.dataclass(frozen=True, slots=True)
class Beside:
    """Telemetry beside a job; its trace's first recorded step begins at `began_s`, Unix seconds."""

    telemetry: Telemetry
    reasons: tuple[Reason, ...]
    began_s: float
    interval_s: float


def telemetry_of(
    job: Job,
    faults: Sequence[Fault] = (),
    sub_causes: Sequence[SubCause | None] = (),
    *,
    began_s: float = 1.75e9,
    interval_s: float | None = None,
    metrics: Sequence[str] | None = None,
    noise: float = 1.0,
) -> Beside:
    """Make the telemetry that the machines of a job would have had.

    Parameters
    ----------
    job : Job
        Of `generate`.
    faults : sequence of Fault
        Those that it was generated with.
    sub_causes : sequence of str or None
        One a fault, of `SUB_CAUSES`; None, or left out: nothing shows it.
    began_s : float
        Unix seconds at which its first recorded step begins.
    interval_s : float, optional
        Between samples; if left out one that suits the length of the job.
    metrics : sequence of str, optional
        Those that are exported; if left out all that the generator knows.
    noise : float
        1 is usual.

    Raises
    ------
    UsageError
        A sub-cause that the fault cannot have.
    """
    spec = job.truth.spec
    table = job.trace
    step_s, compute = _measure(spec, table)
    numbers = spec.step_numbers()
    origins_s = np.r_[0.0, np.cumsum(step_s[:-1] + (np.diff(numbers) - 1) * step_s.mean())]
    span_s = float(origins_s[-1] + step_s[-1])
    interval_s = interval_s or next((i for i in INTERVALS_S if span_s / i <= MOST_SAMPLES), INTERVALS_S[-1])
    before_s = max(BEFORE_SHARE * span_s, LEAST_SAMPLES / 3 * interval_s)
    n_samples = max(LEAST_SAMPLES, int((before_s + span_s) / interval_s) + 2)
    host_of, card_of = _place(spec)
    n_hosts, n_cards = int(host_of.max()) + 1, int(card_of.max()) + 1
    tick_s = interval_s / 2
    tick = np.arange(int(n_samples * interval_s / tick_s) + 2 * int(16.0 / tick_s) + 2) * tick_s - tick_s - before_s
    step_at = np.clip(np.searchsorted(origins_s, tick, side="right") - 1, 0, spec.steps - 1)
    courses, follows = _follow(spec, compute, step_at, host_of, card_of)
    drawn = _Effects(spec, origins_s + before_s, span_s + before_s, host_of, card_of)
    names = tuple(f"host-{i:03}" for i in range(n_hosts))
    reasons = []
    for i, fault in enumerate(faults):
        sub_cause = sub_causes[i] if i < len(sub_causes) else None
        if sub_cause is not None and sub_cause not in SUB_CAUSES.get(fault.cause, ()):
            raise UsageError(f"no sub-cause {sub_cause!r} of {fault.cause}", where="telemetry")
        hosts, cards, at = drawn.add(fault, sub_cause)
        when = [began_s - before_s + second for second in at]
        reasons.append(Reason(fault.cause, sub_cause, tuple(names[h] for h in hosts), cards, when[0], when[1]))
    cluster = Cluster(
        names=names,
        roles=tuple(_stage_of_hosts(spec, host_of)),
        n_cards=n_cards,
        metrics=tuple(metrics if metrics is not None else (*LOADS, *STILL, "gpu_temperature_c")),
        began_s=began_s - before_s,
        interval_s=interval_s,
        n_samples=n_samples,
        courses=courses,
        course_of=dict.fromkeys(FAMILIES, follows),
        effects=tuple(drawn.effects),
        noise=noise,
        tick_s=tick_s,
        seed=spec.seed,
    )
    return Beside(render(cluster, name=spec.name), tuple(reasons), began_s, interval_s)


def draw_sub_cause(fault: Fault, spec: JobSpec, rng: np.random.Generator) -> SubCause | None:
    """Draw a sub-cause that suits a fault; None where its cause has none."""
    if fault.cause not in SUB_CAUSES:
        return None
    if isinstance(fault, NetworkFault) and not fault.workers(spec):
        return "pfc"  # what is everywhere is congestion
    if isinstance(fault, WorkerFault) and fault.kind == "forwards":
        return "cpu-contention"
    if isinstance(fault, DataLoading) and not fault.dp_ranks:
        return "network-storage"
    names = SUB_CAUSES[fault.cause]
    if isinstance(fault, WorkerFault) and fault.course == "on-off":
        names = _COMES_AND_GOES
    if isinstance(fault, WorkerFault) and spec.workers_per_host > 1 and not fault.kind.startswith("host"):
        names = names[:-1]  # other workers of the host would be slow as well
    return names[int(rng.integers(len(names)))]


def _measure(spec: JobSpec, table: pa.Table) -> tuple[Floats, Floats]:
    """Read off how long steps are, shape (n_steps,), and the part that each worker computes, (n_steps, n_stages, n_dp)."""
    step = np.searchsorted(spec.step_numbers(), table["step"].to_numpy())
    start = table["start_ts"].to_numpy().astype(np.float64)
    duration = table["duration"].to_numpy().astype(np.float64)
    first = np.full(spec.steps, np.inf)
    np.minimum.at(first, step, start)
    last = np.zeros(spec.steps)
    np.maximum.at(last, step, start + duration)
    begins = first if spec.absolute_times else np.zeros(spec.steps)
    step_s = np.maximum(last - begins, 1e-6)
    is_compute = np.isin(np.asarray(table["optype"].cast(pa.string())), _COMPUTES)
    busy = np.zeros((spec.steps, spec.pp, spec.dp))
    at = step[is_compute], table["stage"].to_numpy()[is_compute], table["dp_rank"].to_numpy()[is_compute]
    np.add.at(busy, at, duration[is_compute])
    n_rows = spec.n_members if spec.members != "one" else 1
    return step_s, np.clip(busy / n_rows / step_s[:, None, None], 0.0, 1.0)


def _place(spec: JobSpec) -> tuple[Ints, Ints]:
    """Say on which host each member of each worker is, and which card it has; shape (n_stages, n_dp, n_members)."""
    rank = np.arange(spec.pp * spec.dp * spec.n_members).reshape(spec.pp, spec.dp, spec.n_members)
    per_host = (spec.members != "one" and spec.ranks_per_host) or max(spec.workers_per_host, 1) * spec.n_members
    return rank // per_host, rank % per_host


def _stage_of_hosts(spec: JobSpec, host_of: Ints) -> list[int]:
    """Say which stage the first card of each host works on."""
    stage = np.broadcast_to(np.arange(spec.pp)[:, None, None], host_of.shape)
    _, first = np.unique(host_of, return_index=True)
    return [int(s) for s in stage.ravel()[first]]


def _follow(spec: JobSpec, compute: Floats, step_at: Ints, host_of: Ints, card_of: Ints) -> tuple[Floats, Ints]:
    """Make a course a worker, and say which each card follows; what is of the whole host follows its first card."""
    exchange = min(0.3, 3.0 * spec.collective_s / max(spec.microbatches * spec.vpp * spec.forward_s * 3.0, 1e-9))
    courses = np.zeros((spec.pp * spec.dp, len(PHASES), len(step_at)))
    busy = compute.reshape(spec.steps, -1).T[:, step_at]
    courses[:, _COMPUTE] = busy
    courses[:, _EXCHANGE] = np.minimum(exchange, 1.0 - busy)
    courses[:, _WAIT] = 1.0 - busy - courses[:, _EXCHANGE]
    follows = np.zeros((int(host_of.max()) + 1, int(card_of.max()) + 1), dtype=np.int64)
    worker = np.arange(spec.pp * spec.dp).reshape(spec.pp, spec.dp, 1)
    follows[host_of, card_of] = np.broadcast_to(worker, host_of.shape)
    return courses, follows


class _Effects:
    """Turns faults of a job into effects on metrics."""

    def __init__(self, spec: JobSpec, origins_s: Floats, end_s: float, host_of: Ints, card_of: Ints) -> None:
        self.spec, self.origins_s, self.end_s, self.host_of, self.card_of = spec, origins_s, end_s, host_of, card_of
        self.effects: list[Effect] = []

    def add(
        self, fault: Fault, sub_cause: SubCause | None
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[float, float]]:
        """Let a fault show as one of its sub-causes; give its hosts, cards, and from when to when."""
        places = self._places(fault)
        member = fault.member if isinstance(fault, WorkerFault) else None
        at = {
            (int(self.host_of[stage, dp, m]), int(self.card_of[stage, dp, m]))
            for dp, stage in places
            for m in (range(self.spec.n_members) if member is None else (member,))
        }
        hosts, cards = tuple(sorted({h for h, _ in at})), tuple(sorted({c for _, c in at}))
        spells = self._list_spells(fault)
        first_s, last_s = spells[0][0], spells[-1][1]
        if sub_cause is not None:
            is_gpu = fault.cause == "worker-fault" and sub_cause != "cpu-contention"
            ramp_s = max(0.0, self.end_s - first_s) if getattr(fault, "course", "") == "ramp" else 0.0
            for effect in _SHOWS[sub_cause](max(1.02, min(_slowdown(fault), 4.0))):
                # The last code that a driver reported stays.
                there = [(first_s, last_s)] if effect.metric == "gpu_xid" else spells
                self.effects += [
                    dataclasses.replace(
                        effect,
                        hosts=(host,),
                        card=card,
                        from_s=from_s,
                        until_s=until_s,
                        ramp_s=0.0 if effect.how == "set" else ramp_s,  # a limit or a flag is there at once
                    )
                    for host, card in (sorted(at) if is_gpu else [(h, None) for h in hosts])
                    for from_s, until_s in there
                ]
        return (
            hosts,
            cards if fault.cause == "worker-fault" and sub_cause != "cpu-contention" else (),
            (first_s, min(last_s, self.end_s)),
        )

    def _list_spells(self, fault: Fault) -> list[tuple[float, float]]:
        """List from when to when a fault is there: one span, or, of one that comes and goes, several."""
        edges_s = [*self.origins_s.tolist(), self.end_s * 2]
        if not (isinstance(fault, WorkerFault) and fault.course == "on-off"):
            from_s = 0.0 if fault.onset is None else edges_s[fault.onset]
            return [(from_s, edges_s[-1 if fault.recovery is None else fault.recovery])]
        moves = np.flatnonzero(np.diff(np.r_[False, fault.level(self.spec) > 0, False])).tolist()
        return [(edges_s[a], edges_s[b]) for a, b in zip(moves[::2], moves[1::2], strict=True)] or [(0.0, 0.0)]

    def _places(self, fault: Fault) -> Sequence[Worker]:
        """List the workers whose machines show a fault: its own, else those of its stages, else all."""
        spec = self.spec
        if isinstance(fault, NetworkFault) and fault.scope == "link":
            return fault.places  # the sending end is the one that is broken
        stages = fault.stages(spec) or range(spec.pp)
        return fault.workers(spec) or [(dp, stage) for stage in stages for dp in range(spec.dp)]


def _slowdown(fault: Fault) -> float:
    return fault.slowdown if isinstance(fault, WorkerFault) else 2.0


def _set(metric: str, value: float) -> Effect:
    return Effect(metric=metric, hosts=(), how="set", value=value)


def _add(metric: str, value: float) -> Effect:
    return Effect(metric=metric, hosts=(), how="add", value=value)


def _scale(metric: str, value: float) -> Effect:
    return Effect(metric=metric, hosts=(), how="scale", value=value)


#: What each sub-cause does to the metrics of its machine, by how many times as long a compute takes.
_SHOWS: Final[dict[SubCause, Callable[[float], list[Effect]]]] = {
    "power-cap": lambda s: [
        _scale("gpu_sm_clock_mhz", 1.0 / s),
        _set("gpu_power_w", 640.0 / s**1.5),
        _set("gpu_power_limit_w", 645.0 / s**1.5),
        _set("gpu_throttle_reasons", _POWER_CAP),
        _add("gpu_power_violation_s", 0.9),
    ],
    "thermal": lambda s: [
        _scale("gpu_sm_clock_mhz", 1.0 / s),
        _scale("gpu_power_w", 0.4 + 0.6 / s),
        _set("gpu_temperature_c", 90.0),
        _set("gpu_throttle_reasons", _HW_SLOWDOWN | _SW_THERMAL | _HW_THERMAL),
        _add("gpu_thermal_violation_s", 0.8),
    ],
    "clock-locked": lambda s: [
        _set("gpu_sm_clock_mhz", 15.0 * round(1710.0 / s / 15.0)),
        _scale("gpu_power_w", 0.4 + 0.6 / s),
        _set("gpu_throttle_reasons", _SETTING),
    ],
    "pcie": lambda s: [
        _set("gpu_pcie_generation", 3.0 if s < 1.5 else 1.0),
        _set("gpu_pcie_width", 8.0 if s < 2.0 else 4.0),
        _add("gpu_pcie_replays", 3.0),
        _scale("gpu_pcie_bytes", 1.0 / s),
    ],
    "ecc": lambda _: [_add("gpu_ecc_corrected", 5.0), _add("gpu_remapped_rows", 0.02)],
    "xid": lambda _: [_set("gpu_xid", 94.0)],
    "cpu-contention": lambda s: [
        _add("cpu_used", min(0.7, 0.3 * s)),
        _add("run_queue", 60.0 * s),
        _add("cpu_steal", 0.05 * s),
    ],
    "flaps": lambda _: [_add("net_carrier_changes", 0.05), _add("net_retransmits", 50.0), _add("net_errors", 1.0)],
    "symbol-errors": lambda _: [_add("net_symbol_errors", 200.0), _add("net_retransmits", 30.0)],
    "pfc": lambda _: [_add("net_pfc_sent", 2e4)],
    "port-down": lambda _: [_set("net_up", 0.0), _add("net_carrier_changes", 0.02)],
    "width": lambda _: [_set("net_speed_bytes", 1.25e10)],
    "disk-wait": lambda _: [_add("disk_wait_s", 0.8), _add("cpu_io_wait", 0.1)],
    "page-cache": lambda _: [
        _add("major_faults", 800.0),
        _add("disk_read_bytes", 1e9),
        _scale("memory_available_bytes", 0.05),
    ],
    "network-storage": lambda _: [_add("nfs_wait_s", 1.5), _add("cpu_io_wait", 0.08)],
}
