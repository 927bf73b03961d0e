"""Pages, states and gauges of watched jobs, for a browser and for Prometheus, on this machine alone unless more is asked for.

Enters: jobs as they are now. Leaves: answers to GET, among them a stream of server-sent events that says which pages changed.

The server of the standard library does: a handful of people and one Prometheus ask for what is made already, nothing is written,
and a thread may wait for each. A framework would bring an event loop beside the watch, and five packages to keep.
"""

import contextlib
import ipaddress
import json
import socket
import threading
import time
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from diagnose.errors import UsageError
from diagnose.model.live import LiveEvent, WatchedJob
from diagnose.watch.gauges import render_gauges
from diagnose.watch.pages import INDEX, STATES, Pages, PagesView

#: Connections at once, and of those the streams: a hundred open tabs leave room for Prometheus.
_MOST_CLIENTS, _MOST_STREAMS = 48, 32
#: Seconds that a client may take to ask, or to take what it is sent.
_PATIENCE_S: Final = 10.0
#: Seconds after which a stream says that somebody still watches.
_BEAT_S: Final = 15.0
#: Seconds without a round after which the watch is not well: the diagnosis of a large window takes minutes, not this.
_STUCK_S: Final = 900.0
_HTML, _JSON, _TEXT = "text/html; charset=utf-8", "application/json", "text/plain; charset=utf-8"
_METRICS: Final = "text/plain; version=0.0.4; charset=utf-8"
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}


class Server(PagesView):
    """A view that gives pages to who asks; `address` is where it can be reached.

    Raises
    ------
    UsageError
        It cannot listen there.
    """

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        super().__init__(Pages(epoch=f"{time.time_ns():x}"))
        self._server = _listen(host, port, self._pages)
        shown = f"[{host}]" if ":" in host else host
        self.address = f"http://{shown}:{self._server.server_address[1]}/"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.2,), name="serve", daemon=True)
        self._thread.start()

    def show(self, jobs: Sequence[WatchedJob], events: Sequence[LiveEvent], now_s: float) -> None:
        """Take all jobs as they are now, and tell whoever listens."""
        del events
        self._pages.update(jobs, now_s)
        self._server.tell()

    def close(self) -> None:
        """End all streams, and listen no more."""
        self._server.stop()
        self._thread.join()


def is_loopback(host: str) -> bool:
    """Say whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(host: str, port: int, pages: Pages) -> "_HttpServer":
    """Listen, or say why that cannot be."""
    try:
        return _HttpServer(host, port, pages)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"--serve: cannot listen on {host} port {port}: {why}; name another port, or 0 for any free one"
        ) from None


class _HttpServer(ThreadingHTTPServer):
    """Listens, with a bound on clients."""

    daemon_threads = True

    def __init__(self, host: str, port: int, pages: Pages) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.pages = pages
        self.changed = threading.Condition()
        self.ending = threading.Event()
        self.streams = threading.BoundedSemaphore(_MOST_STREAMS)
        self._clients = threading.BoundedSemaphore(_MOST_CLIENTS)
        self._own_names = _find_names(host)
        super().__init__((host, port), _Handler)

    def tell(self) -> None:
        """Wake all streams."""
        with self.changed:
            self.changed.notify_all()

    def stop(self) -> None:
        """End all streams, and listen no more."""
        self.ending.set()
        self.tell()
        self.shutdown()
        self.server_close()

    def is_own(self, named: str) -> bool:
        """Say whether a Host header names this server: an address as a number, or a name of this machine.

        Another name may be one that somebody made point here, so that a page of theirs could read these. The port is not looked
        at: who comes through a tunnel has another one.
        """
        host = ""
        try:
            host = urlsplit(f"//{named}").hostname or ""
            ipaddress.ip_address(host)
        except ValueError:
            return host in self._own_names
        return True

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a client, or turn it away where there are too many."""
        if not self._clients.acquire(blocking=False):
            with contextlib.suppress(OSError):
                request.settimeout(1.0)
                request.sendall(b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 5\r\nConnection: close\r\n\r\n")
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread to be had
            self._clients.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a client in its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._clients.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that went away is no news."""

    def server_bind(self) -> None:
        """Bind without asking the network for the name of this machine, which may take long."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if self.allow_reuse_address:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])


def _find_names(host: str) -> frozenset[str]:
    """Name this machine as clients may: beyond loopback by its own name too."""
    names = {"localhost"}
    if not is_loopback(host):
        names |= {host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()}
    return frozenset(names)


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD; anything else is refused by the class that this is made from."""

    server: _HttpServer
    timeout = _PATIENCE_S
    server_version, sys_version = "diagnose", ""

    def do_GET(self) -> None:
        """Answer."""
        if not self.server.is_own(self.headers.get("Host", "")):
            said = (
                "this server answers by address or as localhost only; through a tunnel, open http://localhost:PORT/\n"
            )
            self._answer(HTTPStatus.MISDIRECTED_REQUEST, _TEXT, said.encode())
            return
        asked = urlsplit(self.path)
        path = asked.path.removeprefix("/")
        if path == "events":
            self._stream(self.headers.get("Last-Event-ID") or parse_qs(asked.query).get("since", [""])[0])
        elif path == "metrics":
            self._answer(
                HTTPStatus.OK, _METRICS, render_gauges(self.server.pages.jobs.values(), self.server.pages.now_s)
            )
        elif path == "healthz":
            self._tell_health()
        else:
            self._give_page(path or INDEX, is_root=not path)

    do_HEAD = do_GET  # noqa: N815 - the same

    def _give_page(self, path: str, *, is_root: bool) -> None:
        """Give a page; the only job's in the place of an index of one."""
        pages = self.server.pages
        if is_root and len(pages.jobs) == 1:
            self._answer(HTTPStatus.FOUND, _TEXT, b"", {"Location": f"/{next(iter(pages.jobs))}"})
            return
        page = pages.draw(path)
        if page is None:
            self._answer(HTTPStatus.NOT_FOUND, _TEXT, b"no such page: / has all jobs\n")
            return
        self._answer(HTTPStatus.OK, _JSON if path == STATES else _HTML, page)

    def _tell_health(self) -> None:
        """Say whether the watch goes on, and since when it did not."""
        age_s = max(time.time() - self.server.pages.now_s, 0.0) if self.server.pages.now_s else None
        is_well = age_s is None or age_s < _STUCK_S
        said = {"status": "ok" if is_well else "stuck", "last_round_s_ago": None if age_s is None else round(age_s, 1)}
        status = HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE
        self._answer(status, _JSON, json.dumps(said).encode() + b"\n")

    def _answer(self, status: HTTPStatus, kind: str, content: bytes, more: dict[str, str] | None = None) -> None:
        """Send an answer."""
        self.send_response(status)
        for key, value in {
            **_HEADERS,
            "Content-Type": kind,
            "Content-Length": str(len(content)),
            **(more or {}),
        }.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _stream(self, since: str) -> None:
        """Send which pages changed, as they change, until either side has enough."""
        server = self.server
        if self.command == "HEAD" or not server.streams.acquire(blocking=False):
            self._answer(
                HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, b"too many streams; close a tab\n", {"Retry-After": "30"}
            )
            return
        try:
            self.send_response(HTTPStatus.OK)
            for key, value in {**_HEADERS, "Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}.items():
                self.send_header(key, value)
            self.end_headers()
            self._tell_changes(server.pages.number(since))
        finally:
            server.streams.release()

    def _tell_changes(self, known: int) -> None:
        """Send an event for what changed after `known`, and now and then how long ago jobs were looked at."""
        server, beat_at = self.server, 0.0
        while not server.ending.is_set():
            last = server.pages.last
            changed = server.pages.changed_since(known)
            if changed:
                self._send("changed", json.dumps(changed), server.pages.version(last))
                known = last
            if time.monotonic() >= beat_at:
                self._send("watched", f"{server.pages.now_s:.0f}")
                beat_at = time.monotonic() + _BEAT_S
            with server.changed:
                if not server.ending.is_set() and server.pages.last <= known:
                    server.changed.wait(_BEAT_S)

    def _send(self, event: str, data: str, number: str = "") -> None:
        """Send an event."""
        name = f"id: {number}\n" if number else ""
        self.wfile.write(f"event: {event}\n{name}data: {data}\n\n".encode())
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        """Keep no log of who asks."""
