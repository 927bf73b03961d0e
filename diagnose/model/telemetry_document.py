"""What the counters of a job's machines say beside its trace, as its JSON and its page have it.

These types are part of the contract of the JSON: their fields are its keys, in its order.
"""

from typing import Annotated

from msgspec import Struct

from diagnose.model.plain import says


class Curve(Struct, frozen=True, kw_only=True):
    """A metric of a suspect over time, beside its peers: what a picture is drawn from."""

    metric: str
    words: Annotated[str, says("what it is, for people")]
    unit: Annotated[str, says("of the values; of a counter what it grows by each second")]
    host: str
    device: Annotated[str, says("index of a card, name of a port or disk; empty for the whole machine")]
    times: Annotated[tuple[float, ...], says("Unix seconds, increasing")]
    values: tuple[float | None, ...]
    peers: Annotated[tuple[float | None, ...], says("median of the peers")]
    low: Annotated[tuple[float | None, ...], says("lowest of the peers")]
    high: Annotated[tuple[float | None, ...], says("highest of the peers")]
    n_peers: int


class TelemetryFinding(Struct, frozen=True, kw_only=True):
    """What the counters say of one cause."""

    cause: str
    kind: Annotated[str | None, says("sub-cause; null where the counters of the suspects show nothing")]
    title: Annotated[str, says("the sub-cause in a few words; empty where there is none")]
    hosts: Annotated[tuple[str, ...], says("machines that show it, or that were looked at")]
    curves: Annotated[tuple[Curve, ...], says("the metrics that tell it, the most telling first")]


class TelemetryDocument(Struct, frozen=True, kw_only=True):
    """What was read of the machines of a job, and what it says of the causes found."""

    source: str
    formats: tuple[str, ...]
    begin_s: Annotated[float | None, says("Unix seconds of the span that was compared; null where nothing was")]
    end_s: float | None
    hosts: Annotated[tuple[str, ...], says("machines of the job that it has, by the trace's names")]
    missing: Annotated[tuple[str, ...], says("machines of the job that it does not have")]
    unread: Annotated[tuple[str, ...], says("metrics in it that nobody here knows")]
    findings: tuple[TelemetryFinding, ...] = ()
