"""The world of a random job: all that is usual in one job and not in the next, and that no fault is.

Enters: a random generator. Leaves: a `JobSpec`. A world has *features* with names (`WORLDS`): training leaves them out by name, and
scores are cut by them. What a feature costs is the job's normal, so that none of them costs much.
"""

import dataclasses
from collections.abc import Callable, Collection
from typing import get_args

import numpy as np

from diagnose.errors import UsageError
from diagnose.faults.spec import (
    MAX_ROWS,
    NOISE,
    NOT_BLOCKING,
    OPTIONAL_COLUMNS,
    SPLITTING,
    InputRows,
    JobSpec,
    Schedule,
    count_rows,
    draw_log_uniform,
    random_spec,
)
from diagnose.faults.strength import estimate_step

#: Part of the step that slower hours, or slower links, may cost a job.
MOST_COST = 0.006
#: How many jobs are drawn to find one with a feature, or without some.
MAX_DRAWS = 300
#: Steps of a short recording.
FEW_STEPS = (3, 6)
#: Stages and dp ranks that are no powers of two.
ODD_STAGES, ODD_RANKS = (3, 5, 7, 9, 11, 13), (3, 6)

#: Model chunks of a worker.
CHUNKS = (2, 3, 4, 6, 8)
#: One gather of parameters before each compute, in units of a forward.
GATHER = (0.02, 0.4)
#: Part of a backward that may be left when the reduction of its gradients begins.
SCATTERS_WITHIN = (0.1, 0.9)
#: Part of a backward that computes the gradients of weights, where it is split; how often several are computed together; and how
#: often the metadata name a schedule that is not Megatron-LM's.
WEIGHT_SHARE, MERGES_WEIGHTS_CHANCE, SAYS_SCHEDULE_CHANCE = (0.35, 0.55), 0.3, 0.5

Draw = Callable[[JobSpec, np.random.Generator], JobSpec]


@dataclasses.dataclass(frozen=True, slots=True)
class Feature:
    """One thing that is so in some jobs: how often a job is given it besides those that have it anyway, who has it, and how."""

    share: float
    has: Callable[[JobSpec], bool]
    give: Draw


def draw_world(
    rng: np.random.Generator,
    *,
    noise: tuple[float, float] = NOISE,
    max_rows: int = MAX_ROWS,
    only: str | None = None,
    without: Collection[str] = (),
) -> JobSpec:
    """Draw a job of any world.

    Parameters
    ----------
    noise, max_rows
        As for `random_spec`.
    only : str, optional
        A feature that it has.
    without : collection of str
        Features that it does not have; other names mean nothing here.

    Raises
    ------
    UsageError
        There is no such feature, or no such job is found.
    """
    if only is not None and only not in WORLDS:
        raise UsageError(f"no feature {only!r}; expected one of {', '.join(WORLDS)}", where="world")
    for _ in range(MAX_DRAWS):
        spec = usual = random_spec(rng, noise=noise, max_rows=max_rows)
        usually = {name: feature for name, feature in WORLDS.items() if name not in LATER}
        given = [name for name, feature in usually.items() if rng.random() < feature.share and name not in without]
        for name in rng.permutation(given).tolist():
            spec = WORLDS[name].give(spec, rng)
        later = usual.random("world")
        for name, feature in LATER.items():
            if later.random() < feature.share and name not in without:
                spec = feature.give(spec, later)
        if only is not None:
            spec = WORLDS[only].give(spec, rng)
        spec = _keep_shares(_fit(spec, max_rows), usual)
        if count_rows(spec) > max_rows:
            continue
        named = name_world(spec)
        if (only is None or only in named) and not set(without).intersection(named):
            return spec
    raise UsageError(
        f"no job with {only or 'any feature'} and without {', '.join(without)} in {MAX_DRAWS}", where="world"
    )


def name_world(spec: JobSpec) -> tuple[str, ...]:
    """Name the features that a job has."""
    return tuple(name for name, feature in WORLDS.items() if feature.has(spec))


def _keep_shares(spec: JobSpec, usual: JobSpec) -> JobSpec:
    """Let what a step does once take as large a part of it as in the usual job, though a rank may compute more or less."""
    share = spec.vpp * spec.microbatches / (usual.vpp * usual.microbatches)
    times = {name: share * getattr(usual, name) for name in ("collective_s", "optimizer_s", "host_gap_s")}
    return dataclasses.replace(spec, **times)


def _fit(spec: JobSpec, max_rows: int) -> JobSpec:
    """Cut microbatches, steps and dp ranks until the trace has few enough rows, as far as they can be cut."""
    unit, least = spec.unit, spec.least_microbatches
    while count_rows(spec) * (1 if spec.members == "one" else spec.n_members) > max_rows:
        cut = (
            dataclasses.replace(spec, microbatches=max(unit * (spec.microbatches * 2 // 3 // unit), least)),
            dataclasses.replace(spec, steps=max(spec.steps * 2 // 3, min(spec.steps, 8))),
            dataclasses.replace(spec, dp=max(spec.dp // 2, min(spec.dp, 2))),
        )
        smaller = [one for one in cut if one != spec]
        if not smaller:
            break
        spec = max(smaller, key=count_rows)
    return spec


def _set(**fields: object) -> Draw:
    """Give a job some fields."""
    return lambda spec, rng: dataclasses.replace(spec, **fields)  # type: ignore[arg-type] # noqa: ARG005 - as the others


def _give_schedule(schedule: str) -> Draw:
    """Give a job without model chunks another schedule; an eager one sends without waiting."""

    def give(spec: JobSpec, rng: np.random.Generator) -> JobSpec:  # noqa: ARG001 - as the others
        if spec.pp == 1 or spec.vpp > 1:
            return spec
        streams = spec.p2p if spec.p2p in ("asynchronous", "lazy") or schedule != "eager" else "asynchronous"
        return dataclasses.replace(spec, schedule=schedule, p2p=streams)  # type: ignore[arg-type] # one of Schedule

    return give


def _give_chunked(schedule: Schedule, chunks: tuple[int, ...]) -> Draw:
    """Give a job another schedule of several model chunks, or one that splits backwards; its transfers do not block."""

    def give(spec: JobSpec, rng: np.random.Generator) -> JobSpec:
        if spec.pp == 1:
            return spec
        given = dataclasses.replace(
            spec,
            schedule=schedule,
            vpp=int(rng.choice(chunks)),
            microbatches=_round_microbatches(spec.microbatches, spec.pp, schedule),
            p2p=spec.p2p if spec.p2p == "lazy" else "asynchronous",
            lacks=_lack_but_chunks(spec),
            says_schedule=bool(rng.random() < SAYS_SCHEDULE_CHANCE),
            gather_s=0.0,
        )
        if schedule not in SPLITTING:
            return given
        return dataclasses.replace(
            given,
            weight_share=float(rng.uniform(*WEIGHT_SHARE)),
            input_rows=get_args(InputRows)[int(rng.integers(2))],
            merges_weights=bool(rng.random() < MERGES_WEIGHTS_CHANCE),
        )

    return give


def _lack_but_chunks(spec: JobSpec) -> str:
    """List the columns that a trace of several model chunks lacks: not that of chunks."""
    return ",".join(name for name in spec.lacked if name != "mc")


def _round_microbatches(microbatches: int, pp: int, schedule: Schedule) -> int:
    """Give about so many microbatches, as many as a schedule of several chunks can run."""
    if schedule in ("1f1b", "zero-bubble"):
        return pp * max(1, microbatches // pp)
    return max(microbatches, 2 * pp) if schedule == "dualpipev" else microbatches


def _lack(column: str) -> Draw:
    """Leave out a column of a job's trace."""
    return lambda spec, rng: dataclasses.replace(spec, lacks=",".join(sorted({*spec.lacked, column})))  # noqa: ARG005 - as the others


def _give_chunks(spec: JobSpec, rng: np.random.Generator) -> JobSpec:
    if spec.pp == 1:
        return spec
    microbatches = _round_microbatches(spec.microbatches, spec.pp, "1f1b")
    p2p = "blocking" if spec.p2p == "pairs" else spec.p2p
    vpp = int(rng.choice(CHUNKS))
    return dataclasses.replace(
        spec,
        vpp=vpp,
        microbatches=microbatches,
        p2p=p2p,
        schedule="1f1b",
        lacks=_lack_but_chunks(spec),
        gather_s=0.0,
    )


def _give_stages(spec: JobSpec, rng: np.random.Generator) -> JobSpec:
    pp = int(rng.choice(ODD_STAGES))
    microbatches = _round_microbatches(spec.microbatches, pp, spec.schedule) if spec.vpp > 1 else spec.microbatches
    return dataclasses.replace(spec, pp=pp, microbatches=microbatches)


def _give_few_microbatches(spec: JobSpec, rng: np.random.Generator) -> JobSpec:
    if spec.pp == 1 or spec.vpp > 1:
        return spec
    return dataclasses.replace(spec, microbatches=int(rng.integers(1, spec.pp)))


def _give_pairs(spec: JobSpec, rng: np.random.Generator) -> JobSpec:  # noqa: ARG001 - as the others
    if spec.pp == 1 or spec.vpp > 1 or spec.schedule in ("eager", *NOT_BLOCKING):
        return spec
    return dataclasses.replace(spec, p2p="pairs")


def _give_streams(p2p: str) -> Draw:
    """Let the transfers of a job that has some not block it."""

    def give(spec: JobSpec, rng: np.random.Generator) -> JobSpec:  # noqa: ARG001 - as the others
        return spec if spec.pp == 1 else dataclasses.replace(spec, p2p=p2p)  # type: ignore[arg-type] # one of P2P

    return give


def _give_host_drift(spec: JobSpec, rng: np.random.Generator) -> JobSpec:
    per_host = spec.workers_per_host or int(rng.choice([2, 4, 8]))
    return dataclasses.replace(
        spec, workers_per_host=per_host, host_drift=min(spec.noise, 1.5) * float(rng.uniform(0.002, 0.006))
    )


def _give_tide(spec: JobSpec, rng: np.random.Generator) -> JobSpec:
    tide = float(rng.uniform(0.1, 0.6))
    slow = dataclasses.replace(
        spec, transfer_s=spec.transfer_s * (1.0 + tide), collective_s=spec.collective_s * (1.0 + tide)
    )
    return dataclasses.replace(spec, network_tide=tide * _share_of_cost(spec, slow))


def _give_unequal_links(spec: JobSpec, rng: np.random.Generator) -> JobSpec:
    if spec.pp == 1:
        return spec
    spec = dataclasses.replace(spec, workers_per_host=spec.workers_per_host or int(rng.choice([2, 4, 8])))
    ratio = draw_log_uniform(rng, 1.5, 8.0)
    slow = dataclasses.replace(spec, link_ratio=ratio)
    return dataclasses.replace(spec, link_ratio=1.0 + (ratio - 1.0) * _share_of_cost(spec, slow))


def _share_of_cost(spec: JobSpec, slow: JobSpec) -> float:
    """Say how much of what makes a job slower is cheap enough."""
    cost = estimate_step(slow) / estimate_step(spec) - 1.0
    return min(1.0, MOST_COST / cost) if cost > 0 else 1.0


def _give_few_steps(spec: JobSpec, rng: np.random.Generator) -> JobSpec:
    return dataclasses.replace(spec, steps=int(rng.integers(FEW_STEPS[0], FEW_STEPS[1] + 1)))


def _give_lost_rows(spec: JobSpec, rng: np.random.Generator) -> JobSpec:
    return dataclasses.replace(spec, lost_share=draw_log_uniform(rng, 2e-4, 5e-3))


def _give_missing_columns(spec: JobSpec, rng: np.random.Generator) -> JobSpec:
    """Leave out some columns; that of model chunks stays where there are several, and of hosts there must be some."""
    there = [name for name in OPTIONAL_COLUMNS if name != "mc" or spec.vpp == 1]
    n_left_out = int(rng.integers(1, 4))
    return dataclasses.replace(spec, lacks=",".join(rng.permutation(there)[:n_left_out].tolist()))


def _give_members(spec: JobSpec, rng: np.random.Generator) -> JobSpec:
    rows = ("ends", "starts", "waits")[int(rng.integers(3))]
    return dataclasses.replace(spec, tp_size=2, cp_size=1, members=rows)  # type: ignore[arg-type] # one of MemberRows


def _give_shards(spec: JobSpec, rng: np.random.Generator) -> JobSpec:
    if not spec.has_dp or spec.vpp > 1 or spec.schedule in SPLITTING:
        return spec
    within = float(rng.choice([0.0, rng.uniform(*SCATTERS_WITHIN)]))
    gather_s = spec.forward_s * draw_log_uniform(rng, *GATHER)
    return dataclasses.replace(
        spec,
        gather_s=gather_s,
        gathers=True,
        gathers_last=False,
        separate=False,
        scatters_within=within,
    )


def _give_overlap(spec: JobSpec, rng: np.random.Generator) -> JobSpec:
    return dataclasses.replace(spec, scatters_within=float(rng.uniform(*SCATTERS_WITHIN))) if spec.has_dp else spec


def _give_last_gathers(spec: JobSpec, rng: np.random.Generator) -> JobSpec:  # noqa: ARG001 - as the others
    return dataclasses.replace(spec, gathers_last=spec.has_dp and spec.gathers and not spec.shards)


def _give_clocks(spec: JobSpec, rng: np.random.Generator) -> JobSpec:
    return dataclasses.replace(spec, clock_s=min(draw_log_uniform(rng, 1e-4, 1e-2), 0.5 * spec.forward_s))


#: Every feature by name. Those with share 0 come with `random_spec` in many jobs.
WORLDS: dict[str, Feature] = {
    "gpipe": Feature(0.2, lambda s: s.schedule == "gpipe", _give_schedule("gpipe")),
    "eager": Feature(0.2, lambda s: s.schedule == "eager", _give_schedule("eager")),
    "zero-bubble": Feature(0.0, lambda s: s.schedule == "zero-bubble", _give_chunked("zero-bubble", (1, 1, 1, 2, 3))),
    "interleaved": Feature(0.0, lambda s: s.schedule == "1f1b" and s.vpp > 1, _give_chunks),
    "odd-stages": Feature(0.12, lambda s: s.pp > 1 and s.pp % 2 == 1, _give_stages),
    "odd-ranks": Feature(
        0.1, lambda s: s.dp % 3 == 0, lambda s, rng: dataclasses.replace(s, dp=int(rng.choice(ODD_RANKS)))
    ),
    "one-stage": Feature(0.0, lambda s: s.pp == 1, _set(pp=1, vpp=1, p2p="blocking", schedule="1f1b")),
    "one-rank": Feature(0.0, lambda s: s.dp == 1, _set(dp=1)),
    "many-ranks": Feature(0.0, lambda s: s.dp >= 32, _set(dp=32)),
    "few-microbatches": Feature(0.04, lambda s: s.microbatches < s.pp, _give_few_microbatches),
    "pairs": Feature(0.15, lambda s: s.p2p == "pairs", _give_pairs),
    "streams": Feature(0.0, lambda s: s.p2p == "asynchronous", _give_streams("asynchronous")),
    "lazy-recvs": Feature(0.15, lambda s: s.p2p == "lazy", _give_streams("lazy")),
    "clip-over-stages": Feature(0.15, lambda s: s.clip == "stages", _set(clip="stages")),
    "no-clip": Feature(0.12, lambda s: s.clip == "none", _set(clip="none")),
    "no-gather": Feature(0.2, lambda s: s.has_dp and not s.gathers, _set(gathers=False)),
    "loss-average": Feature(0.0, lambda s: s.averages_loss, _set(averages_loss=True)),
    "rank-0-waits": Feature(0.0, lambda s: s.rank_0_waits, _set(rank_0_waits=True)),
    "start-barrier": Feature(0.12, lambda s: s.starts_together, _set(starts_together=True)),
    "gradient-barrier": Feature(0.1, lambda s: s.gradients_wait, _set(gradients_wait=True)),
    "optimizer-barrier": Feature(0.12, lambda s: s.optimizer_waits, _set(optimizer_waits=True)),
    "drift": Feature(0.0, lambda s: s.drift > 0, _set(drift=0.01)),
    "host-drift": Feature(0.12, lambda s: s.host_drift > 0, _give_host_drift),
    "heavy-tails": Feature(0.0, lambda s: s.tail_noise > 0, _set(tail_noise=0.04)),
    "network-tide": Feature(0.12, lambda s: s.network_tide > 0, _give_tide),
    "unequal-links": Feature(0.1, lambda s: s.link_ratio > 1, _give_unequal_links),
    "few-steps": Feature(0.1, lambda s: s.steps <= FEW_STEPS[1], _give_few_steps),
    "contiguous-steps": Feature(0.3, lambda s: s.contiguous, _set(contiguous=True)),
    "lost-rows": Feature(0.08, lambda s: s.lost_share > 0, _give_lost_rows),
    "missing-columns": Feature(0.12, lambda s: bool(s.lacks), _give_missing_columns),
    "members": Feature(0.06, lambda s: s.members != "one", _give_members),
    "clocks-off": Feature(0.12, lambda s: s.clock_s > 0, _give_clocks),
    "hosts": Feature(0.0, lambda s: s.workers_per_host > 0, _set(workers_per_host=4)),
    "absolute-times": Feature(0.0, lambda s: s.absolute_times, _set(absolute_times=True)),
}
#: Those whose draws leave all other jobs as they are.
LATER: dict[str, Feature] = {
    "1f1b": Feature(0.0, lambda s: s.schedule == "1f1b" and s.vpp == 1 < s.pp, _set(schedule="1f1b", vpp=1)),
    "looped": Feature(0.0, lambda s: s.schedule == "looped", _give_chunked("looped", CHUNKS)),
    "zb-h2": Feature(0.0, lambda s: s.schedule == "zb-h2", _give_chunked("zb-h2", (1,))),
    "zb-v": Feature(0.0, lambda s: s.schedule == "zb-v", _give_chunked("zb-v", (2,))),
    "dualpipev": Feature(0.0, lambda s: s.schedule == "dualpipev", _give_chunked("dualpipev", (2,))),
    "no-transfers": Feature(0.0, lambda s: s.pp > 1 and not s.records_transfers, _set(records_transfers=False)),
    "no-positions": Feature(0.0, lambda s: s.vpp > 1 and "gmc" in s.lacked, _lack("gmc")),
    "shards": Feature(0.08, lambda s: s.shards, _give_shards),
    "overlapped-last": Feature(0.1, lambda s: s.has_dp and s.scatters_within > 0, _give_overlap),
    "gathers-last": Feature(0.15, lambda s: s.has_dp and s.gathers_last, _give_last_gathers),
}
WORLDS |= LATER
