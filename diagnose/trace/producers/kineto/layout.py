"""Say which place in the job each rank has: data-parallel rank, stage, tensor- and context-parallel rank.

Enters: what the files of all ranks say, each for itself. Leaves: `RankCoordinates` for each. Stages that annotations
name count first, then process groups by their descriptions, then who sends and receives what.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from diagnose.errors import TraceError, name_some
from diagnose.model.groups import is_described
from diagnose.model.optype import Op
from diagnose.trace.producers.kineto.rank import ProcessGroup, Rank

#: A rank that receives for fewer of its forwards is of the first stage: all others do for each.
SELDOM_SHARE = 0.5
#: Ranks that a message names.
MAX_NAMED = 8


@dataclasses.dataclass(frozen=True, slots=True)
class RankCoordinates:
    """Where in the job one rank is; all count from 0."""

    rank: int
    dp: int
    stage: int
    tp: int
    cp: int


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """Places of all ranks, in the order of the ranks that were given."""

    places: tuple[RankCoordinates, ...]
    n_stages: int
    n_chunks: int
    names_chunks: bool  # annotations say of which chunk a compute is; else the schedule does
    in_v: bool  # rank p of P holds stages p and 2P - 1 - p
    n_tp: int
    n_cp: int
    warnings: tuple[str, ...]


def place_ranks(ranks: Sequence[Rank], numbers: Sequence[int], *, name: str) -> Layout:
    """Find the place of each rank; `numbers` are their global ranks.

    Raises
    ------
    TraceError
        The stages are dealt in a way that the replay does not know, or no rule says which stage a rank is.
    """
    warnings: list[str] = []
    held = [_stages_of(rank) for rank in ranks]
    n_chunks, in_v = 1, False
    if any(held):
        n_stages, n_chunks, in_v = _count_stages(held, name)
        stages = [min(stages, default=0) % n_stages for stages in held]
    elif any(rank.exchanges_with_peers for rank in ranks) and len(ranks) > 1:
        stages, n_stages = _stages_by_peers(ranks, numbers, name, warnings)
        first = [rank for rank, stage in zip(ranks, stages, strict=True) if stage == 0]
        n_chunks = _count_chunks(first) if n_stages > 1 else 1
    elif any(rank.exchanges_with_peers for rank in ranks):
        raise TraceError(
            "is one rank of a pipeline whose annotations do not name its stage; expected the traces of all ranks: name the folder",
            where=name,
        )
    else:
        stages, n_stages = [0] * len(ranks), 1
    absent = sorted(set(range(n_stages)).difference(stages))
    if absent:
        raise TraceError(
            f"has no trace of stages {', '.join(map(str, absent[:8]))} of a pipeline of {n_stages}; expected the traces of all "
            "ranks: name the folder",
            where=name,
        )
    tensor = [_position(rank, number, "tp") for rank, number in zip(ranks, numbers, strict=True)]
    context = [_position(rank, number, "cp") for rank, number in zip(ranks, numbers, strict=True)]
    lanes = _lanes(ranks, numbers, stages, list(zip(tensor, context, strict=True)), n_stages)
    places = tuple(
        RankCoordinates(number, lane, stage, tp, cp)
        for number, lane, stage, tp, cp in zip(numbers, lanes, stages, tensor, context, strict=True)
    )
    _refuse_same_places(places, name)
    return Layout(places, n_stages, n_chunks, any(held), in_v, max(tensor) + 1, max(context) + 1, tuple(warnings))


def _refuse_same_places(places: Sequence[RankCoordinates], name: str) -> None:
    """Refuse two ranks in one place of the job."""
    taken: dict[tuple[int, int, int, int], int] = {}
    for place in places:
        key = (place.dp, place.stage, place.tp, place.cp)
        if key in taken:
            raise TraceError(
                f"ranks {taken[key]} and {place.rank} seem to have one place in the job (dp rank {place.dp}, stage {place.stage}); "
                "expected traces of one job, with process groups or stages that tell its ranks apart",
                where=name,
            )
        taken[key] = place.rank


def _stages_of(rank: Rank) -> tuple[int, ...]:
    """List the stages of the model that a rank's annotations name."""
    compute = np.isin(rank.operations.op, (Op.FORWARD, Op.BACKWARD))
    return tuple(stage for stage in np.unique(rank.operations.stage[compute]).tolist() if stage >= 0)


def _count_stages(held: Sequence[tuple[int, ...]], name: str) -> tuple[int, int, bool]:
    """Count pipeline ranks, and the model chunks of each, from the stages that they hold; say whether these lie in a V."""
    total = max(stages[-1] for stages in held if stages) + 1
    n_chunks = max(len(stages) for stages in held)
    n_stages, left = divmod(total, n_chunks)
    whole = not left and all(held)
    if whole and all(stages == tuple(range(stages[0], total, n_stages)) and stages[0] < n_stages for stages in held):
        return n_stages, n_chunks, False
    if whole and n_chunks == 2 and all(stages == (stages[0], total - 1 - stages[0]) for stages in held):
        return n_stages, n_chunks, True
    shown = "; ".join(",".join(str(stage) for stage in stages) or "none" for stages in sorted(set(held))[:4])
    raise TraceError(
        f"has stages dealt to ranks as {shown}; expected rank p of P to hold stages p, p + P, .. (as Interleaved1F1B deals them), "
        "or p and 2 P - 1 - p (as ZBVZeroBubble and DualPipeV do), and traces of all stages",
        where=name,
    )


def _count_chunks(ranks: Sequence[Rank]) -> int:
    """Count the model chunks of each rank by what those of the first stage send: no annotation tells forwards' from backwards'.

    Of m microbatches in v chunks it sends m v forwards, and m (v - 1) backwards to the last stage. Ring attention sends more.
    """
    found = set()
    for rank in ranks:
        n_forwards, *n_sent = (
            int((rank.operations.op == op).sum()) for op in (Op.FORWARD, Op.FORWARD_SEND, Op.BACKWARD_SEND)
        )
        n_microbatches = 2 * n_forwards - sum(n_sent)
        is_whole = any(n_sent) and n_microbatches >= max(len(rank.steps), 1)
        n_chunks, left = divmod(n_forwards, n_microbatches) if is_whole else (1, 0)
        found.add(1 if left else n_chunks)
    return max(found.pop(), 1) if len(found) == 1 else 1


def _does_seldom(rank: Rank, op: Op) -> bool:
    """Say whether few of a rank's forwards receive, or send: before the first step stages tell each other the shapes of tensors."""
    ops = rank.operations.op
    n_ops, n_forwards = (int(np.count_nonzero(ops == one)) for one in (op, Op.FORWARD))
    return n_ops <= SELDOM_SHARE * n_forwards


def _stages_by_peers(
    ranks: Sequence[Rank], numbers: Sequence[int], name: str, warnings: list[str]
) -> tuple[list[int], int]:
    """Find the stage of each rank where no annotation says it: from its group, or from who never receives or sends forwards."""
    described = [_group(rank, number, "pp") for rank, number in zip(ranks, numbers, strict=True)]
    if all(described):
        stages = [group.ranks.index(number) for group, number in zip(described, numbers, strict=True) if group]
        return stages, max(len(group.ranks) for group in described if group)
    first, last = (
        {n for rank, n in zip(ranks, numbers, strict=True) if _does_seldom(rank, op)}
        for op in (Op.FORWARD_RECV, Op.FORWARD_SEND)
    )
    world = max((rank.world or 0 for rank in ranks), default=0) or len(ranks)
    if not first or len(first) != len(last) or len(numbers) % len(first):
        raise TraceError(
            f"has {len(first)} ranks that receive no forward and {len(last)} that send none, of {len(ranks)}; expected as many "
            "first stages as last ones: name the folder with the traces of all ranks",
            where=name,
        )
    n_stages = len(numbers) // len(first)
    found: dict[int, int] = {}
    for rank, number in zip(ranks, numbers, strict=True):
        for group in rank.groups:
            fits = len(group.ranks) == n_stages and group.ranks[0] in first and group.ranks[-1] in last
            if fits and len(first.intersection(group.ranks)) == 1 and number in group.ranks:
                found[number] = group.ranks.index(number)
    if len(found) == len(numbers):
        return [found[number] for number in numbers], n_stages
    if len(numbers) < world:
        lacking = name_some([str(number) for number in range(world) if number not in numbers], MAX_NAMED)
        raise TraceError(
            f"has {len(numbers)} of {world} ranks of a pipeline, and no process group says which stage each is; expected all "
            f"ranks, but there is no trace of rank {lacking}",
            where=name,
        )
    order = sorted(numbers)
    stages = [order.index(number) // len(first) for number in numbers]
    if {n for n, s in zip(numbers, stages, strict=True) if s == 0} != first:
        raise TraceError(
            f"ranks {sorted(first)[:8]} receive no forward and no process group says which stage follows; expected the first "
            f"{len(first)} ranks to be the first stage, as Megatron-LM and PyTorch deal ranks",
            where=name,
        )
    warnings.append(
        "no process group is a pipeline: ranks are taken to be dealt to stages in their order, as Megatron-LM does"
    )
    return stages, n_stages


def _lanes(
    ranks: Sequence[Rank],
    numbers: Sequence[int],
    stages: Sequence[int],
    members: Sequence[tuple[int, int]],
    n_stages: int,
) -> list[int]:
    """Number the data-parallel replicas: the pipelines by their first rank, or else the ranks of each stage in their order."""
    if n_stages > 1:
        pipelines = [
            _pipeline_of(rank, number, numbers, stages, n_stages) for rank, number in zip(ranks, numbers, strict=True)
        ]
        if all(pipelines):
            firsts = [min(pipeline) for pipeline in pipelines]
            order = {
                member: sorted({f for f, m in zip(firsts, members, strict=True) if m == member})
                for member in set(members)
            }
            return [order[member].index(first) for first, member in zip(firsts, members, strict=True)]
    lanes = []
    for number, stage, member in zip(numbers, stages, members, strict=True):
        same = sorted(n for n, s, m in zip(numbers, stages, members, strict=True) if s == stage and m == member)
        lanes.append(same.index(number))
    return lanes


def _pipeline_of(
    rank: Rank, number: int, numbers: Sequence[int], stages: Sequence[int], n_stages: int
) -> tuple[int, ...]:
    """Name the ranks of the pipeline that a rank is in; none where no group is one."""
    described = _group(rank, number, "pp")
    if described:
        return described.ranks
    stage_of = dict(zip(numbers, stages, strict=True))
    for group in sorted(rank.groups, key=lambda group: len(group.ranks)):
        held = [stage_of.get(member) for member in group.ranks]
        if (
            number in group.ranks
            and len(held) == n_stages
            and sorted(held, key=str) == sorted(range(n_stages), key=str)
        ):
            return group.ranks
    return ()


def _group(rank: Rank, number: int, kind: str) -> ProcessGroup | None:
    """Find the group of a rank that is described as one of a kind."""
    fitting = (group for group in rank.groups if is_described(group.description, kind) and number in group.ranks)
    return next(fitting, None)


def _position(rank: Rank, number: int, kind: str) -> int:
    """Say the how manieth a rank is in a group; 0 where there is none."""
    group = _group(rank, number, kind)
    return group.ranks.index(number) if group else 0
