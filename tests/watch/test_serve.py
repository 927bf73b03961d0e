"""The server of `diagnose watch --serve`: what it gives, whom it refuses, and that it ends."""

import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Iterator

import msgspec.structs
import pytest

from diagnose.errors import UsageError
from diagnose.watch import serve
from diagnose.watch.serve import Server, is_loopback
from tests.fixture_jobs import diagnosed
from tests.watch import made


@pytest.fixture
def server() -> Iterator[Server]:
    """Serve one job on any port that is free."""
    well, opened = diagnosed("healthy"), Server(0)
    job = made.job("one", well)
    opened.diagnosed(job, well, None)
    opened.show([job], [], made.NOW_S)
    yield opened
    opened.close()


def port_of(server: Server) -> int:
    """Give the port that a server listens on."""
    return int(server.address.rstrip("/").rpartition(":")[2])


def ask(server: Server, path: str, *, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Ask for something: status, headers, content."""
    connection = http.client.HTTPConnection("127.0.0.1", port_of(server), timeout=20)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    found = answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read()
    connection.close()
    return found


class Stream:
    """A stream of server-sent events."""

    def __init__(self, server: Server, since: str = "", **headers: str) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port_of(server), timeout=20)
        self.connection.request("GET", f"/events?since={since}", headers=headers)
        self.answer = self.connection.getresponse()

    def next(self, wanted: str) -> dict[str, str]:
        """Read up to the next event of a kind."""
        while True:
            found: dict[str, str] = {}
            while line := self.answer.readline().decode().rstrip("\n"):
                key, _, value = line.partition(": ")
                found[key] = value
            if not found or found["event"] == wanted:
                return found

    def close(self) -> None:
        """Go away."""
        self.answer.close()
        self.connection.close()


def test_what_it_gives(server: Server) -> None:
    """The only job's page for /, an index, states, gauges and its health; nothing of it may be kept or put into other pages."""
    status, headers, _ = ask(server, "/")
    assert status == 302 and headers["location"].startswith("/jobs/one-")
    for path, kind, said in (
        (headers["location"], "text/html", b"<h1"),
        ("/index.html", "text/html", b"All jobs"),
        ("/watch.json", "application/json", b'"schema": "diagnose-watch-states/1"'),
        ("/metrics", "text/plain; version=0.0.4", b"diagnose_watch_slowdown_ratio"),
        ("/healthz", "application/json", b'"status"'),
    ):
        status, headers, content = ask(server, path)
        assert headers["content-type"].startswith(kind) and said in content, path
        assert status == (503 if path == "/healthz" else 200), "the made job was looked at long ago"
        assert headers["cache-control"] == "no-store" and headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers
        assert ask(server, path, method="HEAD")[2] == b""
    server.show([], [], time.time())
    assert ask(server, "/healthz")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_nothing_is_written(server: Server, method: str) -> None:
    """No other method than GET and HEAD does anything."""
    assert ask(server, "/watch.json", method=method)[0] == 501


@pytest.mark.parametrize(
    "path", ["/nothing", "/jobs/", "/../../etc/passwd", "//x/index.html", "/%2e%2e/", "/index.html/x"]
)
def test_no_such_page(server: Server, path: str) -> None:
    """What is no page of it is not there: no path reaches a file."""
    assert ask(server, path)[0] == 404


@pytest.mark.parametrize(
    ("host", "is_own"),
    [
        *[(host, True) for host in ("127.0.0.1", "localhost", "localhost:9999", "[::1]:1", "10.1.2.3:80", "LOCALHOST")],
        *[
            (host, False)
            for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "a@b@c", "[::1")
        ],
    ],
)
def test_hosts(server: Server, host: str, is_own: bool) -> None:
    """A page of somebody who made a name of theirs point here reads nothing: only addresses and localhost are answered."""
    assert ask(server, "/healthz", Host=host)[0] == (503 if is_own else 421)


def test_changes_are_told(server: Server) -> None:
    """A stream says which pages changed since the page was made, each change once, and goes on where it broke off."""
    well = diagnosed("healthy")
    page = ask(server, ask(server, "/")[1]["location"])[2].decode()
    since = re.search(r'data-events="\.\./events\?since=([^"]+)"', page)
    assert since
    stream = Stream(server, since[1])
    assert stream.answer.getheader("content-type") == "text/event-stream"
    assert stream.next("watched")["data"] == f"{made.NOW_S:.0f}", "nothing changed since"
    job = made.job("one", well, n_windows=42)
    server.show([job], [], made.NOW_S + 5)
    told = stream.next("changed")
    assert set(json.loads(told["data"])) >= {"index.html", "watch.json"} and len(json.loads(told["data"])) == 3
    server.show([msgspec.structs.replace(job, why="other")], [], made.NOW_S + 10)
    assert stream.next("changed")["id"] != told["id"]
    stream.close()
    again = Stream(server, since[1], **{"Last-Event-ID": told["id"]})
    assert again.next("changed")["id"] != told["id"], "the browser says what it knows, and is told the rest"
    again.close()
    other = Stream(server, "of-another-server-7")
    assert len(json.loads(other.next("changed")["data"])) == 3, "who knows nothing of this server is told of everything"
    other.close()


def test_it_ends_with_streams_open(server: Server) -> None:
    """Closing ends streams at once, and the port is free again."""
    streams = [Stream(server) for _ in range(5)]
    assert all(stream.next("watched") for stream in streams)
    port = port_of(server)
    server.close()
    for stream in streams:
        assert stream.next("nothing more") == {}
        stream.close()
    again = Server(port)
    again.close()


def test_clients_are_bounded(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams leave room for others; where all places are taken who comes is turned away, and later let in."""
    streams = [Stream(server) for _ in range(serve._MOST_STREAMS)]
    assert [stream.answer.status for stream in streams] == [200] * len(streams)
    refused = Stream(server)
    assert refused.answer.status == 503
    refused.close()
    assert ask(server, "/metrics")[0] == 200
    idle = [socket.create_connection(("127.0.0.1", port_of(server))) for _ in range(serve._MOST_CLIENTS - len(streams))]
    statuses = set()
    while 503 not in statuses:
        try:
            statuses.add(ask(server, "/metrics")[0])
        except OSError:
            statuses.add(503)
    for connection in idle:
        connection.close()
    while ask_or_none(server, "/metrics") != 200:
        pass
    for stream in streams:
        stream.close()


def ask_or_none(server: Server, path: str) -> int | None:
    """Ask, and give the status; None where the connection was cut."""
    try:
        return ask(server, path)[0]
    except OSError:
        return None


@pytest.mark.parametrize(
    "sent",
    [
        b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x00\xa5" * 20,
        b"GET /" + b"a" * 70_000 + b" HTTP/1.0\r\n\r\n",
    ],
)
def test_broken_requests(server: Server, sent: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    """What is no request, or names no host, is refused without a word on the terminal, and others are served."""
    with socket.create_connection(("127.0.0.1", port_of(server)), timeout=20) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        try:
            answer = connection.recv(4096)
        except ConnectionResetError:
            answer = b""
        assert b"200 OK" not in answer
    assert ask(server, "/metrics")[0] == 200
    assert capfd.readouterr() == ("", "")


def test_threads_draw_at_once(server: Server) -> None:
    """Pages that are asked for while windows come are whole."""
    well, slow = diagnosed("healthy"), diagnosed("worker-fault")
    path, pages = ask(server, "/")[1]["location"], []

    def look() -> None:
        pages.extend(ask(server, path)[2] for _ in range(5))

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for n in range(42, 52):
        job = made.job("one", (well, slow)[n % 2], n_windows=n)
        server.diagnosed(job, (well, slow)[n % 2], None)
        server.show([job], [], made.NOW_S + n)
    for thread in threads:
        thread.join()
    assert len(pages) == 15
    assert all(page.startswith(b"<!doctype html>") and page.rstrip().endswith(b"</html>") for page in pages)


def test_a_port_that_is_taken(server: Server) -> None:
    """The error is one line that says what to do."""
    with pytest.raises(UsageError, match=r"^--serve: cannot listen on 127\.0\.0\.1 port \d+: .*; name another port"):
        Server(port_of(server))
    with pytest.raises(UsageError, match=r"cannot listen on 203\.0\.113\.7"):
        Server(0, "203.0.113.7")


def test_loopback() -> None:
    """What only this machine reaches."""
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", ""))
