"""Which machines stand out from their peers in which metric, since when, and by how much.

Enters: a `Grid`, roles, and what the job did. Leaves: `Deviation`s.

Each machine is set against the median of its peers at the same time, which takes out all that the job does; then against
itself before, which takes out what it always has of its own. What is left of all machines says how large a difference chance
makes.
"""

import dataclasses
import math
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from diagnose.machines.grid import Floats, Grid, Ints, Level
from diagnose.machines.job import Course
from diagnose.model.telemetry import Metric, Series
from diagnose.numerics.robust import MAD_TO_SIGMA, nan_median

Direction = Literal["falls", "rises"]


@dataclasses.dataclass(frozen=True, slots=True)
class Scale:
    """How a metric is compared."""

    #: Differences below it mean nothing: part of the usual level, or decades where `reference` is given.
    least: float
    #: For what spreads over decades: the level, in its unit, below which nobody cares. 0: it is compared as it is.
    reference: float = 0.0


#: Metrics that are compared, with the least difference that matters on a machine: a twentieth of power or clock is how cards
#: of one kind differ, a tenth of the CPU is one process more or less, a factor of two of pauses is congestion that comes and
#: goes.
SCALES: Final = {
    "gpu_utilization": Scale(0.06),
    "gpu_graphics_active": Scale(0.06),
    "gpu_tensor_active": Scale(0.08),
    "gpu_dram_active": Scale(0.08),
    "gpu_power_w": Scale(0.06),
    "gpu_sm_clock_mhz": Scale(0.03),
    "gpu_nvlink_bytes": Scale(0.08),
    "gpu_pcie_bytes": Scale(0.12),
    "gpu_memory_used_bytes": Scale(0.05),
    "cpu_used": Scale(0.1),
    "run_queue": Scale(0.15),
    "memory_available_bytes": Scale(0.05),
    "net_sent_bytes": Scale(0.1),
    "net_received_bytes": Scale(0.1),
    "net_pfc_sent": Scale(0.3, 100.0),
    "cpu_io_wait": Scale(0.4, 0.01),
    "disk_wait_s": Scale(0.4, 0.05),
    "nfs_wait_s": Scale(0.4, 0.05),
}
#: Temperatures are compared in degrees: cards of one kind in one hall keep within five of each other over time.
_DEGREES: Final = {"gpu_temperature_c": 6.0, "gpu_memory_temperature_c": 6.0}
#: Seconds that something must last, and seconds before it to compare with.
LASTS_S, BEFORE_S = 120.0, 60.0
#: A difference must be there for this part of the time since it began, taken over a minute each.
STEADY, SMOOTH_S = 0.7, 60.0
#: The level of this part of the time is the usual one; a time has it from this part of it on.
BETTER, BUSY = 0.8, 0.5
#: Noise is never taken for smaller than this part of the least difference.
FLOOR: Final = 1.0 / 6.0
#: Bins that are averaged over to measure noise, that of each bin and that which drifts.
DRIFT_BINS: Final = (1, 4, 10)
#: Part of the time that saves take at most; who does nothing for longer has long steps.
MOST_SAVES: Final = 0.25
#: What changed differs from its peers by at least this part of the change: else it was odd before, and is not now.
NOW: Final = 0.4
#: The sample that begins it is looked for so many bins around.
NEAR: Final = 3.0
#: Differences of this many standard deviations are worth a look; what is sure is decided by rules.
WORTH: Final = 3.0


#: What a machine may lack all the time, and by which part of its peers' level: half of the work is that of a machine that does
#: none, a tenth of the clock one that is locked or held back.
STANDING: Final = {
    "gpu_utilization": 0.5,
    "gpu_power_w": 0.5,
    "gpu_memory_used_bytes": 0.5,
    "cpu_used": 0.5,
    "gpu_sm_clock_mhz": 0.1,
}
#: By how many standard deviations of all machines; and how many cards, or machines, of its role a machine needs.
STANDS_OUT, MIN_PEERS = 8.0, 5


@dataclasses.dataclass(frozen=True, slots=True)
class Deviation:
    """A machine, or a part of it, that differs from its peers more than before.

    `since_s` is in Unix seconds; `value` and `peers` are means since then, in the unit of the metric; `score` counts standard
    deviations.
    """

    host: int
    metric: Metric
    device: str
    direction: Direction
    since_s: float
    score: float
    value: float
    peers: float


def list_deviations(
    grid: Grid, role: Ints, course: Course, before: slice, *, is_slowed: bool = False
) -> list[Deviation]:
    """Compare all machines in all metrics that can be; strongest first. `before`: bins in which all is well, as far as known."""
    # Machines do not begin and end within the same bin.
    first, last = (
        min(course.began + 1, grid.n_bins),
        max(course.ended - 1, 0) if course.ended < grid.n_bins else course.ended,
    )
    found: list[Deviation] = []
    n_after, n_before = (max(2, round(seconds / grid.bin_s)) for seconds in (LASTS_S, BEFORE_S))
    if last - first < n_after + n_before:
        return []
    # While a job saves, who writes for all does other things than all. In a slow job waiting looks alike, and counts.
    saves = _find_saves(course) & (not is_slowed)
    for name, level in grid.levels.items():
        if name in SCALES or name in _DEGREES:
            # In a job that runs a save of a minute carries means of what spreads over decades, and no others.
            is_moved = course.state != "running" or (name in SCALES and SCALES[name].reference > 0.0)
            compared = dataclasses.replace(level, values=np.where(saves & is_moved, np.nan, level.values))
            found += _compare(grid, compared, role, slice(first, last), before, n_after, n_before)
    return sorted(found, key=lambda one: -abs(one.score))


def _find_saves(course: Course) -> NDArray[np.bool_]:
    """Mark bins in which nobody works, and those beside them, until the job stops; none where its steps are like that."""
    runs = np.arange(len(course.idle)) < course.stopped
    idle = course.idle & runs
    if course.state == "running" and idle.sum() > MOST_SAVES * runs.sum():
        return np.zeros(len(idle), dtype=bool)
    return np.asarray(np.convolve(idle, np.ones(3), mode="same").astype(bool) & runs)


def list_standing(grid: Grid, role: Ints) -> list[Deviation]:
    """List machines that have far less of something than their peers all the time: what was so before does not change."""
    found: list[Deviation] = []
    for name, least in STANDING.items():
        level = grid.levels.get(name)
        if level is None:
            continue
        usual = nan_median(level.values, axis=2)
        peers = _find_peers(usual[:, :, None], role)[:, :, 0]
        with np.errstate(invalid="ignore", divide="ignore"):
            effect = np.where(peers > 0.0, usual / peers - 1.0, np.nan)
        spread = MAD_TO_SIGMA * float(nan_median(np.abs(effect - nan_median(effect, axis=(0, 1))), axis=(0, 1)))
        score = effect / max(spread * (1.0 + 3.0 / len(grid.hosts)), FLOOR * least)
        for host, device in np.argwhere((effect <= -least) & (score <= -STANDS_OUT)).tolist():
            found.append(
                Deviation(
                    host=host,
                    metric=level.metric,
                    device=level.devices[device],
                    direction="falls",
                    since_s=grid.from_s,
                    score=float(score[host, device]),
                    value=float(usual[host, device]),
                    peers=float(peers[host, device]),
                )
            )
    return sorted(found, key=lambda one: one.score)


def _prepare(level: Level, before: slice, n_minute: int) -> tuple[Floats, float]:
    """Scale a metric so that machines are alike: parts of their own usual level, or decades; and give the least that matters."""
    name = level.metric.name
    if name in _DEGREES:
        return level.values, _DEGREES[name]
    scale = SCALES[name]
    if scale.reference:
        # Over a minute first: within a step such metrics go up and down by decades, and machines are asked at other moments of it.
        return np.log10(1.0 + _smooth(np.maximum(level.values, 0.0), n_minute) / scale.reference), scale.least
    usual = _usual(level.values[:, :, before])
    floor = 0.1 * float(np.nanmedian(usual)) if np.isfinite(usual).any() else 1.0
    return level.values / np.maximum(usual, max(floor, 1e-12))[:, :, None], scale.least


def _find_peers(values: Floats, role: Ints) -> Floats:
    """Give the median of the peers of each device, shape as `values`: (n_hosts, n_devices, n_bins)."""
    peers = np.empty_like(values)
    for number in range(int(role.max()) + 1):
        at = role == number
        # Of a few, one that differs moves the median; then all machines are the peers of all.
        group = values[at] if at.sum() * values.shape[1] >= MIN_PEERS else values
        peers[at] = nan_median(group, axis=(0, 1))
    return peers


def _smooth(values: Floats, width: int) -> Floats:
    """Average over so many bins around each one; NaN where the bin itself is."""
    known = np.isfinite(values)
    edge = [(0, 0), (0, 0), (width // 2 + 1, width - width // 2 - 1)]
    total = np.cumsum(np.pad(np.where(known, values, 0.0), edge), axis=2)
    count = np.cumsum(np.pad(known, edge), axis=2)
    with np.errstate(invalid="ignore"):
        mean = (total[:, :, width:] - total[:, :, :-width]) / (count[:, :, width:] - count[:, :, :-width])
    return np.where(known, mean, np.nan)


def _usual(values: Floats) -> Floats:
    """Give the usual level of each device, shape (n_hosts, n_devices): that of most, times its own part of it.

    A device that rises before the end of that time does not become its own measure, as it would by its own better time.
    """
    middle = nan_median(values, axis=(0, 1))
    known = middle[np.isfinite(middle)]
    top = float(np.quantile(known, BETTER)) if len(known) else 0.0
    if top <= 0.0:
        return np.full(values.shape[:2], np.nan)
    busy = middle >= BUSY * top
    return np.asarray(top * nan_median(values[:, :, busy] / middle[busy], axis=2))


def _compare(
    grid: Grid,
    level: Level,
    role: Ints,
    span: slice,
    before: slice,
    n_after: int,
    n_before: int,
) -> list[Deviation]:
    """Find who changed against its peers, in one metric."""
    n_minute = max(1, round(SMOOTH_S / grid.bin_s))
    scaled, least = _prepare(level, before if before.stop - before.start >= n_before else span, n_minute)
    scaled = scaled[:, :, span]
    n_hosts, n_devices, n = scaled.shape
    rest = (scaled - _find_peers(scaled, role)).reshape(n_hosts * n_devices, n)
    difference, noise, since_mean = _difference(rest, least)
    with np.errstate(invalid="ignore"):
        score = np.nan_to_num(difference / noise)
        # It must differ from its peers now, and not only from what it was.
        score[since_mean * np.sign(difference) < NOW * np.abs(difference)] = 0.0
    # A change needs some time after it, and some before.
    known = np.cumsum(np.isfinite(rest), axis=1)
    before_n = known - np.isfinite(rest)
    after_n = known[:, -1:] - before_n
    score[(before_n < n_before) | (after_n < n_after)] = 0.0
    # The moment is where two levels fit best, which is not where they are furthest apart.
    fit = np.where(score != 0.0, np.abs(np.nan_to_num(difference)) * np.sqrt(before_n * after_n), 0.0)
    since = np.argmax(fit, axis=1)
    rows = np.arange(len(rest))
    best = score[rows, since]
    found = []
    by_place = {(one.host, one.device): one for one in grid.series[level.metric.name]}
    raw = level.values[:, :, span].reshape(len(rest), n)
    middle = nan_median(level.values[:, :, span], axis=(0, 1))
    for row in np.flatnonzero(np.abs(best) >= WORTH).tolist():
        at, effect = int(since[row]), float(difference[row, since[row]])
        if not _is_steady(rest[row], at, effect, grid.bin_s):
            continue
        after = slice(at, n)
        found.append(
            Deviation(
                host=row // n_devices,
                metric=level.metric,
                device=level.devices[row % n_devices],
                direction="rises" if effect > 0 else "falls",
                since_s=_find_moment(
                    by_place[grid.hosts[row // n_devices], level.devices[row % n_devices]],
                    grid.time_of(span.start + at),
                    NEAR * grid.bin_s,
                ),
                score=float(best[row]),
                value=float(np.nanmean(raw[row, after])),
                peers=float(np.nanmean(middle[after])) if np.isfinite(middle[after]).any() else float("nan"),
            )
        )
    return found


def _difference(rest: Floats, least: float) -> tuple[Floats, Floats, Floats]:
    """Subtract the mean before each bin from that since, and say how far chance moves it; with that since, (n_rows, n_bins)."""
    known = np.isfinite(rest)
    # One wild value must not carry a mean.
    spread = MAD_TO_SIGMA * float(np.median(np.abs(rest[known]))) if known.any() else 1.0
    bound = max(20.0 * spread, 5.0 * least)
    filled = np.where(known, np.clip(rest, -max(bound, 1.0), max(bound, 1.0)), 0.0)
    total, count = np.cumsum(filled, axis=1), np.cumsum(known, axis=1)
    all_of, n_all = total[:, -1:], count[:, -1:]
    before_sum, before_n = total - filled, count - known
    with np.errstate(invalid="ignore", divide="ignore"):
        before = before_sum / before_n
        since = (all_of - before_sum) / (n_all - before_n)
        difference = since - before
        once = np.sqrt(1.0 / np.maximum(before_n, 1) + 1.0 / np.maximum(n_all - before_n, 1))
    # Noise that drifts scatters means of longer times by more than single bins tell.
    in_time = once * max(_scatter(rest, width) * math.sqrt(width) for width in DRIFT_BINS)
    across = MAD_TO_SIGMA * nan_median(np.abs(difference), axis=0) * (1.0 + 1.0 / len(rest))
    noise = np.maximum(np.maximum(across, in_time), FLOOR * least)
    return difference, noise, since


def _scatter(rest: Floats, width: int) -> float:
    """Estimate by how much means of so many bins of a machine scatter, from how much neighbouring ones differ."""
    n_blocks = rest.shape[1] // width
    blocks = rest[:, : n_blocks * width].reshape(len(rest), n_blocks, width)
    known = np.isfinite(blocks)
    with np.errstate(invalid="ignore"):
        means = np.where(known, blocks, 0.0).sum(axis=2) / known.sum(axis=2)
    steps = np.abs(np.diff(means, axis=1))
    steps = steps[np.isfinite(steps)]
    return float(MAD_TO_SIGMA * np.median(steps) / np.sqrt(2.0)) if len(steps) else 0.0


def _find_moment(one: Series, about_s: float, near_s: float) -> float:
    """Say at which sample a series changed its level, near a moment: the first one behind the step that fits best."""
    at = slice(int(np.searchsorted(one.times, about_s - near_s)), int(np.searchsorted(one.times, about_s + near_s)))
    times, values = one.times[at], one.values[at]
    if one.metric.kind == "counter":
        times, values = times[1:], np.diff(values) / np.maximum(np.diff(times), 1e-9)
    if len(values) < 4:
        return about_s
    total, n_before = np.cumsum(values)[:-1], np.arange(1, len(values))
    n_after = len(values) - n_before
    step = np.abs(total / n_before - (total[-1] + values[-1] - total) / n_after) * np.sqrt(n_before * n_after)
    return float(times[int(np.argmax(step)) + 1])


def _is_steady(rest: Floats, since: int, effect: float, bin_s: float) -> bool:
    """Say whether a difference is there for most of the time since it began, minute by minute."""
    before = rest[:since]
    base = float(np.nanmedian(before)) if np.isfinite(before).any() else 0.0
    after = rest[since:] - base
    after = after[np.isfinite(after)]
    width = max(1, min(round(SMOOTH_S / bin_s), len(after)))
    if not len(after):
        return False
    smooth = np.convolve(after, np.ones(width) / width, mode="valid")
    return bool(np.mean(smooth * np.sign(effect) > 0.5 * abs(effect)) >= STEADY)
