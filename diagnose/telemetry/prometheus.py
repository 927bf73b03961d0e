"""Answers of a Prometheus server, and the text that exporters give to it.

Enters: bytes. Leaves: values in a `Gathering`.

Source: HTTP API and exposition formats of prometheus.io.
"""

import contextlib
import itertools
import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from diagnose.errors import TraceError
from diagnose.telemetry.gather import Gathering, read_number
from diagnose.telemetry.times import find_time

if TYPE_CHECKING:
    from prometheus_client.samples import Sample

JSON_FORMAT: Final = "Prometheus range query"
TEXT_FORMAT: Final = "Prometheus text"
#: Times below this are seconds that were taken for milliseconds.
_SECONDS_BELOW: Final = 1e8


class _Result(msgspec.Struct, gc=False):
    """One series of an answer; of an instant query one value."""

    metric: dict[str, str] = {}
    values: list[tuple[float, str | float]] = []
    value: tuple[float, str | float] | None = None


#: What wraps answers, each part of it still as bytes: of a large answer one series at a time is made into numbers.
_WRAPPED: Final = msgspec.json.Decoder(dict[str, msgspec.Raw] | list[msgspec.Raw])
_RESULT: Final = msgspec.json.Decoder(_Result)
_TEXT: Final = msgspec.json.Decoder(str)


def read_answers(content: bytes, into: Gathering, *, metric: str = "", may_be_empty: bool = False) -> None:
    """Read answers of a server to range queries: one, a list of them, one a line, or an object of them by name.

    A series without a name, as of a sum, is one of `metric`.

    Raises
    ------
    TraceError
        It is no such answer, or the server's word that it could not answer.
    """
    n_series = 0
    for result in itertools.chain.from_iterable(map(_list_results, _list_documents(content))):
        n_series += 1
        pairs = result.values or ([result.value] if result.value is not None else [])
        labels = dict(result.metric)
        name = labels.pop("__name__", "") or metric
        if into.is_known(name):
            into.add(name, labels, [pair[0] for pair in pairs], [read_number(pair[1]) for pair in pairs])
    if not n_series and not may_be_empty:
        raise TraceError(
            "is an answer of Prometheus without any series; expected resultType matrix with values: "
            "ask query_range for metrics that the server has, over the hours of the job"
        )
    into.say_format(JSON_FORMAT)


def _list_documents(content: bytes) -> Iterator[bytes | msgspec.Raw]:
    """List the JSON documents of a file."""
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        yield msgspec.json.decode(content, type=msgspec.Raw)
        return
    decoder, text, at = json.JSONDecoder(), content.decode("utf-8", "replace").strip(), 0
    while at < len(text):
        began = at
        try:
            _, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            raise TraceError(
                f"is no JSON from character {at + 1} on; expected answers of Prometheus to range queries, whole: fetch it again"
            ) from None
        yield text[began:at].encode()
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1


def _list_results(answer: bytes | msgspec.Raw, depth: int = 0) -> Iterator[_Result]:
    """List the series of an answer, however it is wrapped."""
    try:
        wrapped = _WRAPPED.decode(answer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return  # a number, a text: nothing that could hold series
    if isinstance(wrapped, list):
        yield from _list_all(wrapped, depth)
        return
    if _text(wrapped, "status") == "error":
        said = (_text(wrapped, "error") or _text(wrapped, "errorType") or "no reason")[:200]
        raise TraceError(f"is Prometheus's answer that it could not answer: {said!r}; expected series: ask again")
    if "metric" in wrapped:
        try:
            yield _RESULT.decode(answer)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise TraceError(
                f"has a series that is none of Prometheus's: {error}; expected [time, value] pairs"
            ) from None
    elif "data" in wrapped:
        yield from _list_results(wrapped["data"], depth + 1)
    elif "result" in wrapped:
        kind = _text(wrapped, "resultType") if "resultType" in wrapped else "matrix"
        if kind not in {"matrix", "vector"}:
            raise TraceError(f"has resultType {kind[:40]!r}; expected matrix: ask query_range")
        yield from _list_results(wrapped["result"], depth + 1)
    else:
        yield from _list_all(wrapped.values(), depth)


def _list_all(parts: Iterable[msgspec.Raw], depth: int) -> Iterator[_Result]:
    """List the series of several parts, where these are not nested without end."""
    for part in parts if depth < 4 else ():
        yield from _list_results(part, depth + 1)


def _text(wrapped: dict[str, msgspec.Raw], key: str) -> str:
    """Give the text at a key; empty where there is none."""
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
        return _TEXT.decode(wrapped.get(key, b'""'))
    return ""


def read_text(text: str, into: Gathering, *, host: str, when_s: float | None) -> None:
    """Read what exporters give to a scraper, one scrape or many.

    Times are those of the samples; where they have none that of the last comment line which says a time, or else `when_s`.

    Raises
    ------
    TraceError
        It is not that format, or no sample in it has a time.
    """
    samples: dict[tuple[str, tuple[tuple[str, str], ...]], tuple[list[float], list[float]]] = {}
    n_timeless = 0
    whole = text if text.endswith("\n") else text[: text.rfind("\n") + 1]  # the last line may be cut off
    for scrape_s, scrape in _list_scrapes(whole, when_s):
        for sample in _parse(scrape):
            # OpenMetrics has seconds where the older text has milliseconds, which is what the parser takes them for.
            time = scrape_s if sample.timestamp is None else float(sample.timestamp)
            if time is None:
                n_timeless += 1
                continue
            time = time * 1e3 if time < _SECONDS_BELOW else time
            times, values = samples.setdefault((sample.name, tuple(sorted(sample.labels.items()))), ([], []))
            times.append(time)
            values.append(sample.value)
    if not samples:
        raise TraceError(
            f"has {n_timeless:,} samples without a time; expected one behind each, or a comment line before each scrape such as "
            "# 2026-01-31T12:00:00Z: ask a Prometheus server for the hours of the job"
            if n_timeless
            else "has no samples; expected lines such as node_load1 0.5 1700000000000"
        )
    for (name, labels), (times, values) in samples.items():
        into.add(name, dict(labels), times, values, host=host)
    into.say_format(TEXT_FORMAT)


def _list_scrapes(text: str, when_s: float | None) -> Iterator[tuple[float | None, str]]:
    """Cut a text where a comment line says a time: each part with its time."""
    lines: list[str] = []
    for line in text.splitlines():
        is_note = line.startswith("#") and not line.startswith(("# HELP", "# TYPE", "# UNIT", "# EOF"))
        time = find_time(line) if is_note else None
        if time is None:
            lines.append(line)
            continue
        yield when_s, "\n".join(lines)
        lines, when_s = [], time
    yield when_s, "\n".join(lines)


def _parse(scrape: str) -> Iterator["Sample"]:
    """Parse a scrape; an error says what of it is none."""
    from prometheus_client.parser import text_string_to_metric_families

    try:
        for family in text_string_to_metric_families(scrape):
            yield from family.samples
    except (ValueError, IndexError, KeyError) as error:
        said = str(error).splitlines()[0][:160] if str(error) else type(error).__name__
        raise TraceError(
            f"is no text of an exporter: {said}; expected lines such as node_load1 0.5 1700000000000"
        ) from None
