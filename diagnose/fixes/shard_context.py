"""Share the documents of a microbatch out over its context-parallel ranks so that none works longer than the others.

Causal attention makes the end of a document dearer than its beginning. Cutting the whole sequence is even for one document, cutting
every document is even for any, but makes short chunks, on which attention kernels are slow; adaptive takes what is faster,
microbatch by microbatch. How it is done now is what fits the times best.

Source: arXiv 2503.17924.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from diagnose.errors import UsageError
from diagnose.fixes.frameworks import choose_how
from diagnose.fixes.microbatch_costs import MIN_QUALITY, LengthCost, Lengths, fit_costs, read_lengths
from diagnose.fixes.places import read_number
from diagnose.fixes.shard_costs import Shares, share_documents, share_sequences
from diagnose.model.analysis import Analysis
from diagnose.model.change import Work
from diagnose.model.remedy import FaultLocation, Refusal, Remedy
from diagnose.model.trace import Bools, Seconds
from diagnose.packing.sharding import PER_DOCUMENT, PER_SEQUENCE, Kernel

NAME = "shard-context"
TITLE = "cut documents, not sequences, over context-parallel ranks"
ADAPTIVE = "adaptive"
WAYS = (PER_SEQUENCE, PER_DOCUMENT, ADAPTIVE)
SETTINGS = {
    "way": "per-sequence, per-document or adaptive (the faster one for each microbatch); the fastest where left out",
    "now": "per-sequence or per-document: how it is done now; what fits the times best where left out",
    "short_speed": "speed of the attention kernel on a chunk of 128 queries or less over its full speed; 0.75 where left out",
}
#: Another way is only worth its trouble when it makes steps this part shorter than a simpler one.
WORTH_SHARE = 0.002
#: A way that explains this much more of the variance is the one in use; else both are about as fast, and sequences are cut.
TELLING_QUALITY = 0.005
_HOW = {
    PER_DOCUMENT: {
        "megatron": "give attention the borders of the documents (packed sequences, qkv_format thd with cu_seqlens_padded): "
        "Transformer Engine then cuts each document (thd_get_partitioned_indices); pad each to a multiple of 2 x cp",
        "torchtitan": "its balancers cut whole sequences (parallelism.context_parallel_load_balancer: headtail) or blocks of work "
        "(ptrr, with FlexAttention); for documents use the one of PyTorch",
        "pytorch": "use the load balancer _PerDocumentHeadTailLoadBalancer of torch.distributed.tensor.experimental, with "
        "FlexAttention and a document mask",
        "deepspeed": "Ulysses splits heads and not the sequence: it has no such imbalance",
    },
    PER_SEQUENCE: {
        "megatron": "get_batch_on_this_cp_rank cuts the whole sequence in 2 x cp chunks; give attention the mask of the documents",
        "torchtitan": "parallelism.context_parallel_load_balancer: headtail",
        "pytorch": "use the load balancer _HeadTailLoadBalancer of torch.distributed.tensor.experimental",
        "deepspeed": "Ulysses splits heads and not the sequence: it has no such imbalance",
    },
}
_ADAPTIVE_HOW = (
    "predict both for each microbatch when its batch is made, and take per sequence where its chunks would be too short"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Sharded:
    """All ways for one job."""

    now: str
    #: Cost of the slowest rank of a microbatch.
    fit: LengthCost
    #: Shape (2, n_microbatches, n_steps, n_dp): what each way multiplies the work by.
    factors: Mapping[str, Seconds]
    #: Of the two ways that adaptive chooses from.
    shares: Mapping[str, Shares]
    #: Part of the microbatches for which adaptive cuts documents.
    document_share: float


def propose(analysis: Analysis, place: FaultLocation, settings: Mapping[str, str]) -> Remedy | Refusal:  # noqa: ARG001 - a fix's interface
    """Choose the way to shard that makes the job fastest."""
    way, now = (_read_way(settings, key, among) for key, among in (("way", WAYS), ("now", WAYS[:2])))
    kernel = _read_kernel(settings)
    if analysis.trace.job.cp_size <= 1:
        return Refusal("the job has no context parallelism (cp_size is 1)", obvious=True)
    sharded = shard(analysis, kernel, now)
    if isinstance(sharded, Refusal):
        return sharded
    step_s = {name: float(analysis.price([Work(factor[:, None])]).mean()) for name, factor in sharded.factors.items()}
    chosen = way or _choose(step_s, sharded.now)
    if chosen == sharded.now:
        why = "" if way else f", and no other way makes steps {WORTH_SHARE:.1%} shorter"
        return Refusal(f"documents are cut {chosen} now{why}")
    quality = sharded.fit.quality
    gains = {name: analysis.gains.replayed_s / seconds for name, seconds in step_s.items()}
    found_out = "" if now else f": that explains {quality:.0%} of what microbatches take"
    loss = (
        f"attention on chunks of {kernel.tile} queries or less runs at {kernel.slowest:.0%} of full speed, and chunks are filled "
        f"up to a multiple of {kernel.tile}: measure it for your kernel"
    )
    return Remedy(
        summary=f"shard {chosen} over the {analysis.trace.job.cp_size} context-parallel ranks instead of {sharded.now}"
        + (f" (documents cut in {sharded.document_share:.0%} of the microbatches)" if chosen == ADAPTIVE else ""),
        how=_advise(chosen, analysis),
        changes=(Work(sharded.factors[chosen][:, None]),),
        settings={"way": chosen, "now": sharded.now, "short_speed": f"{kernel.slowest:g}"},
        assumptions=(
            f"documents are cut {sharded.now} now{found_out}",
            loss,
            ", ".join(f"{name} {gain:.2f}x" for name, gain in gains.items()) + " as fast",
        ),
        risks=(
            "every rank needs keys and values of all documents that it has pieces of: the exchange between ranks is not priced",
        ),
        figures={
            "per_sequence_speedup": gains[PER_SEQUENCE],
            "per_document_speedup": gains[PER_DOCUMENT],
            "adaptive_speedup": gains[ADAPTIVE],
            "per_sequence_kernel_loss_share": sharded.shares[PER_SEQUENCE].kernel_loss_share,
            "per_document_kernel_loss_share": sharded.shares[PER_DOCUMENT].kernel_loss_share,
            "documents_cut_share": sharded.document_share,
            "cost_explained_share": quality,
        },
    )


def shard(analysis: Analysis, kernel: Kernel, now: str | None = None) -> Sharded | Refusal:
    """Work out what every way to shard makes of the microbatches.

    How it is done `now` is found out when left out.
    """
    lengths = read_lengths(analysis)
    if lengths is None or lengths.documents is None:
        return Refusal("the trace has no doc_lengths: what each context-parallel rank has to do is not known")
    cp = analysis.trace.job.cp_size
    shares = {
        PER_SEQUENCE: share_sequences(lengths.documents, cp, kernel),
        PER_DOCUMENT: share_documents(lengths.documents, cp, kernel),
    }
    known = lengths.list_at >= 0
    fits = {
        name: fit_costs(
            analysis, *(_lay_out(values.max(axis=1), lengths, known) for values in (one.tokens, one.squares))
        )
        for name, one in shares.items()
    }
    quality = {name: -np.inf if fit is None else fit.quality for name, fit in fits.items()}
    better = quality[PER_DOCUMENT] > quality[PER_SEQUENCE] + TELLING_QUALITY
    now = now or (PER_DOCUMENT if better else PER_SEQUENCE)
    fit = fits[now]
    if fit is None or fit.quality < MIN_QUALITY:
        explained = 0.0 if fit is None else max(fit.quality, 0.0)
        return Refusal(
            f"what context-parallel ranks have to do explains {explained:.0%} of what microbatches take, below {MIN_QUALITY:.0%}"
        )
    slowest = {name: fit.both_of(one.slowest) for name, one in shares.items()}
    by_direction = {name: np.stack([one.slowest(cost) for cost in fit.directions]) for name, one in shares.items()}
    cuts = slowest[PER_DOCUMENT] < slowest[PER_SEQUENCE]
    by_direction[ADAPTIVE] = np.where(cuts, by_direction[PER_DOCUMENT], by_direction[PER_SEQUENCE])
    before = np.maximum(by_direction[now], 1e-300)
    factors = {
        name: np.stack(
            [_lay_out(ratio, lengths, known, fill=1.0) for ratio in np.where(before > 1e-300, after / before, 1.0)]
        )
        for name, after in by_direction.items()
    }
    placed = lengths.list_at[known]
    return Sharded(now, fit, factors, shares, float(cuts[placed].mean()))


def _lay_out(values: Seconds, lengths: Lengths, known: Bools, *, fill: float = np.nan) -> Seconds:
    """Put one value a list into its place, shape (n_microbatches, n_steps, n_dp)."""
    laid = np.full(known.shape, fill)
    laid[known] = values[lengths.list_at[known]]
    return laid


def _choose(step_s: Mapping[str, float], now: str) -> str:
    """Take the fastest way; a simpler one, and first of all that of now, where it is hardly slower."""
    least = min(step_s.values())
    order = (now, *(name for name in WAYS if name != now))
    return next(name for name in order if step_s[name] <= least * (1.0 + WORTH_SHARE))


def _advise(way: str, analysis: Analysis) -> str:
    """Say how to shard in this way."""
    if way != ADAPTIVE:
        return choose_how(_HOW[way], analysis.trace.job)
    return choose_how(_HOW[PER_DOCUMENT] | {"any": _ADAPTIVE_HOW}, analysis.trace.job)


def _read_way(settings: Mapping[str, str], key: str, among: tuple[str, ...]) -> str | None:
    """Read a way to shard, None where it is left out; a `UsageError` where there is no such way."""
    if key in settings and settings[key] not in among:
        raise UsageError(f"--fix {NAME}: {key} is {settings[key]!r}; expected one of {', '.join(among)}")
    return settings.get(key)


def _read_kernel(settings: Mapping[str, str]) -> Kernel:
    """Read how slow short chunks are; a `UsageError` where it is no part of full speed."""
    if "short_speed" not in settings:
        return Kernel()
    speed = read_number(settings, "short_speed", NAME)
    if speed > 1.0:
        raise UsageError(
            f"--fix {NAME}: short_speed is {settings['short_speed']!r}; expected a part of full speed, 0 to 1"
        )
    return Kernel(slowest=speed)
