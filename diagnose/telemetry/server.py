"""Ask a Prometheus server for what is known of the machines of a job.

Enters: its address, as the user gives it, and a span of time. Leaves: `Telemetry`. The address may hold a password: it is
never shown whole.

Source: HTTP API of prometheus.io: `query_range` and the values of a label.
"""

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

import httpx
import msgspec

from diagnose.addresses import check_web_address, mask, read_secret
from diagnose.errors import ServiceError, TraceError, UsageError
from diagnose.model.telemetry import Telemetry
from diagnose.telemetry.gather import MAX_VALUES, Gathering, name_machine
from diagnose.telemetry.match import other_machines
from diagnose.telemetry.names import find_known
from diagnose.telemetry.prometheus import read_answers

#: Where the bearer token of a server is, or with `_FILE` behind it the name of a file that has it.
TOKEN: Final = "DIAGNOSE_TELEMETRY_TOKEN"  # noqa: S105 - the name of a variable
#: Seconds for one answer, and how often it is asked for.
TIMEOUT_S: Final = 30.0
TRIES: Final = 3
#: Bytes of one answer.
MAX_ANSWER: Final = 1 << 28
#: Seconds that are asked for where nobody says which.
LAST_S: Final = 900.0
#: Values of a series: fewer where the job has many machines.
POINTS: Final = (60, 720)
#: Series of a machine, roughly: eight cards, ports and disks with their counters.
SERIES_A_HOST: Final = 500
#: Labels that may name a machine; see `gather`.
_LABELS: Final = ("Hostname", "node", "kubernetes_node", "nodename", "instance")
#: ASCII characters that are no part of a word, and those that no text may have.
_SPECIAL: Final = re.compile(r"([ !-,./:-@\[-^`{-~])")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_LATER: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


class _Names(msgspec.Struct):
    """The values of a label."""

    data: list[str] = []


def ask_server(
    url: str,
    *,
    begin_s: float | None,
    end_s: float | None,
    hosts: Sequence[str],
    report: Callable[[str], None] | None,
) -> Telemetry:
    """Ask for all metrics that are known here; see `read_telemetry`. An address with a query of its own is asked as it is.

    Raises, beside what that does, UsageError where the token of the environment is none.
    """
    check_web_address("--telemetry", url)
    headers = _authorize(url)
    shown = mask(url)
    end_s = time.time() if end_s is None else end_s
    begin_s = end_s - LAST_S if begin_s is None else begin_s
    into = Gathering(begin_s, end_s)
    with httpx.Client(timeout=TIMEOUT_S, follow_redirects=False, headers=headers) as client:
        if "/api/v1/query" in urlsplit(url).path:
            _take(_ask(client, "GET", url, {}, shown), into, shown)
            return into.finish(shown)
        base = url.rstrip("/")
        span = {"start": f"{begin_s:.3f}", "end": f"{end_s:.3f}"}
        content = _ask(client, "GET", f"{base}/api/v1/label/__name__/values", span, shown)
        try:
            listed = msgspec.json.decode(content, type=_Names).data
        except msgspec.DecodeError:
            raise ServiceError(
                "answers, and not as Prometheus does; expected the address of a Prometheus server", where=shown
            ) from None
        names = sorted({one for one in listed if find_known(one) is not None})
        if not names:
            raise TraceError(
                "has no metric that is known here in the time of the job; expected those of dcgm-exporter or node_exporter",
                where=shown,
            )
        span["step"] = str(choose_step(end_s - begin_s, len(hosts)))
        machines = [_short(host) for host in hosts]
        uname = _select("node_uname_info", machines)
        answer = _ask(client, "POST", f"{base}/api/v1/query_range", span | {"query": uname}, shown)
        _take(answer, into, shown, may_be_empty=True)
        machines += into.list_instances()
        for i, metric in enumerate(names):
            if report is not None:
                report(f"asking {shown}: {i + 1} of {len(names)}")
            query = _select(metric, machines if hosts else [])
            query = f"sum without (cpu) ({query})" if metric == "node_cpu_seconds_total" else query
            answer = _ask(client, "POST", f"{base}/api/v1/query_range", span | {"query": query}, shown)
            _take(answer, into, shown, metric=metric, may_be_empty=True)
        if hosts and into.is_empty:
            there = _list_machines(_ask(client, "GET", f"{base}/api/v1/series", _ask_series(names, span), shown))
            raise other_machines(there, hosts, shown)
    return into.finish(shown)


def _authorize(url: str) -> dict[str, str]:
    """Give the header with the token of the environment; none where the address has a name and password of its own."""
    token = None if "@" in urlsplit(url).netloc else read_secret(TOKEN)
    if token is None:
        return {}
    if not re.fullmatch(r"[\x21-\x7e]+", token):
        raise UsageError(f"{TOKEN}: what is there is no token; expected one word of ASCII")
    return {"Authorization": f"Bearer {token}"}


class _Labels(msgspec.Struct):
    """The labels of some series."""

    data: list[dict[str, str]] = []


def _ask_series(names: Sequence[str], span: Mapping[str, str]) -> dict[str, str]:
    """Ask for the series of one metric, that of machines where there is one, whoever has it."""
    metric = next((name for name in names if name in {"node_procs_running", "DCGM_FI_DEV_GPU_TEMP"}), names[0])
    return {"match[]": metric, "start": span["start"], "end": span["end"]}


def _list_machines(content: bytes) -> set[str]:
    """List the machines of some series."""
    try:
        found = msgspec.json.decode(content, type=_Labels).data
    except msgspec.DecodeError:
        return set()
    return {host for labels in found if (host := name_machine(labels))}


def choose_step(span_s: float, n_hosts: int) -> int:
    """Say how many seconds lie between two values: no series has more than `POINTS`, and all together fit.

    >>> choose_step(60.0, 4), choose_step(86400.0, 4), choose_step(86400.0, 1500)
    (1, 120, 1114)
    """
    fit = MAX_VALUES / 1.1 / (SERIES_A_HOST * max(n_hosts, 1))
    return max(1, math.ceil(span_s / min(max(fit, POINTS[0]), POINTS[1])))


def _short(host: str) -> str:
    """Give a name without its domain; an address stays whole."""
    return host if re.fullmatch(r"[\d.]+", host) else host.split(".", 1)[0]


def _select(metric: str, machines: Sequence[str]) -> str:
    """Ask for a metric of some machines, whatever label names them and with whatever domain and port."""
    if not machines:
        return metric
    names = "|".join(_quote(machine) for machine in machines)
    matcher = f'=~"(?:{names})(?:[.].*)?(?::[0-9]+)?"'
    return " or ".join(f"{metric}{{{label}{matcher}}}" for label in _LABELS)


def _quote(name: str) -> str:
    """Write a name as a regular expression within a text of PromQL: whatever it holds, it ends neither."""
    escaped = _SPECIAL.sub(r"\\\1", _CONTROL.sub("?", name))
    return escaped.replace("\\", "\\\\").replace('"', '\\"')


def _take(content: bytes, into: Gathering, shown: str, *, metric: str = "", may_be_empty: bool = False) -> None:
    """Read an answer; of a sum, which has no name, `metric` is its name."""
    try:
        read_answers(content, into, metric=metric, may_be_empty=may_be_empty)
    except TraceError as error:
        raise TraceError(error.message, where=shown) from None


def _ask(client: httpx.Client, method: str, url: str, asked: Mapping[str, str], shown: str) -> bytes:
    """Ask once, or again where the server cannot answer for a while."""
    said = ""
    for attempt in range(TRIES):
        if attempt:
            time.sleep(0.5 * 2**attempt)
        try:
            status, content = _fetch(client, method, url, asked)
        except httpx.TransportError as error:
            said = f"does not answer ({type(error).__name__})"
            continue
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise ServiceError(
                f"cannot be asked ({type(error).__name__}); expected the address of a Prometheus server", where=shown
            ) from None
        if status == httpx.codes.OK and len(content) <= MAX_ANSWER:
            return content
        if status == httpx.codes.OK:
            raise TraceError(
                f"answers with more than {MAX_ANSWER >> 20} MiB; expected the machines of one job", where=shown
            )
        said = f"answers {status}{_explain(content)}"
        if status not in _LATER:
            break
    raise ServiceError(f"{said}; expected a Prometheus server (its /api/v1/query_range)", where=shown)


def _fetch(client: httpx.Client, method: str, url: str, asked: Mapping[str, str]) -> tuple[int, bytes]:
    """Ask once, and read no more than an answer may have."""
    where = {"params": dict(asked)} if method == "GET" and asked else {"data": dict(asked)} if asked else {}
    content = bytearray()
    with client.stream(method, url, **where) as answer:  # type: ignore[arg-type]
        for part in answer.iter_bytes():
            content += part
            if len(content) > MAX_ANSWER:
                break
    return answer.status_code, bytes(content)


class _Refusal(msgspec.Struct):
    """What a server says when it cannot answer."""

    error: str = ""


def _explain(content: bytes) -> str:
    """Give the server's own word."""
    try:
        said = msgspec.json.decode(content, type=_Refusal).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    return f" ({said[:200]!r})" if said else ""
