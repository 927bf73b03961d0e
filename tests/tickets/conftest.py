"""What tests of tickets share: stores filled by hand with a clock of their own, a webhook receiver, an Alertmanager."""

import contextlib
import dataclasses
import datetime as dt
import http.server
import json
import os
import random
import shutil
import signal
import socketserver
import subprocess
import threading
import time
import urllib.request
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
import standardwebhooks

from diagnose.model.plain import to_plain
from diagnose.tickets import post
from diagnose.tickets.due import Threshold
from diagnose.tickets.tickets import TicketRequest, Tickets
from diagnose.triage import schema
from diagnose.triage.database import plain_row, plain_text
from diagnose.triage.rows import CauseRow, JobRow
from diagnose.triage.store import Store
from tests.ports import free_port
from tests.triage.conftest import environment, fresh_database, postgres_server, start, store_url

__all__ = ["environment", "fresh_database", "postgres_server", "start", "store_url"]

DAY_S = 86_400.0
#: Noon of a day to count from.
NOON_S = 1_780_000_000.0
SECRET = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="


def cause_of(fingerprint: str, cause: str = "worker-fault", *, recoverable: float = 0.15, **more: object) -> dict:
    """Give an entry of `causes` as a diagnosis writes it."""
    found = {
        "cause": cause,
        "title": "slow worker",
        "severity": "high",
        "who": "platform",
        "confidence": 0.96,
        "share": 0.9,
        "recoverable": recoverable,
        "where": {"workers": [{"dp": 1, "pp": 0, "rank": 1}], "stages": [], "hosts": [], "links": []},
        "when": {"pattern": "constant", "onset_step": None, "recovery_step": None, "period_steps": None},
        "evidence": [
            {"source": "rule", "id": "worker-fault/x", "text": "it takes 1.6 times as long", "values": {"x": 1.6}}
        ],
        "fixes": [
            {
                "fix": "replace-worker",
                "summary": "replace the worker at dp 1 stage 0",
                "how": "cordon it",
                "predicted_step_time": 1.66,
                "predicted_speedup": 1.18,
                "settings": {},
                "assumptions": [],
                "risks": [],
                "figures": {},
            }
        ],
        "refused_fixes": [],
        "fingerprint": fingerprint,
    }
    return found | more


@dataclasses.dataclass
class Shelf:
    """A store whose runs are made by hand; `now_s` is its clock."""

    url: str
    store: Store
    now_s: float = NOON_S

    def pass_days(self, n: float) -> None:
        """Let time pass."""
        self.now_s += n * DAY_S

    def put(
        self, job: str, *causes: dict | str, content: str | None = None, identity: str | None = None, **more
    ) -> None:
        """Diagnose a job now: write its rows as triage does, and when that was."""
        given = [cause if isinstance(cause, dict) else cause_of(cause) for cause in causes]
        checked = more.pop("checked", ["worker-fault", "network-fault"])
        content = content or f"{job} {self.now_s}"
        came_at = more.pop("came_at", self.now_s)
        row = {
            "job_id": job.strip("/"),
            "name": "train",
            "framework": "megatron",
            "n_gpus": 16,
            **dict.fromkeys(("tp_size", "cp_size", "vpp_size"), 1),
            **dict.fromkeys(("dp_size", "pp_size"), 4),
            "verdict": "straggling" if given else "healthy",
            "gpu_hours_analysed": 1.0,
            "gpu_hours_wasted": 0.2 if given else 0.0,
            **more,
        }
        if hosts := more.get("hosts"):
            row["hosts"] = json.dumps(hosts)
        document = {"causes": given, "checked": checked}
        rows = tuple(_cause_row(job, place, cause) for place, cause in enumerate(given, start=1))
        of_job = JobRow(job, "diagnosed", identity=identity or content, content=content, **row)
        at = plain_text(job)

        def write(connection: sa.Connection) -> None:
            for table in (schema.JOBS, schema.CAUSES, schema.DOCUMENTS, schema.TIMES):
                connection.execute(sa.delete(table).where(table.c.location == at))
            connection.execute(sa.insert(schema.JOBS).values(plain_row(of_job)))
            for cause in rows:
                connection.execute(sa.insert(schema.CAUSES).values(plain_row(cause)))
            connection.execute(sa.insert(schema.DOCUMENTS).values(location=at, document=json.dumps(document)))
            connection.execute(sa.insert(schema.TIMES).values(location=at, diagnosed_at=self.now_s, came_at=came_at))

        self.store.transact(write)

    def tickets(self, *, is_trial: bool = False, **request) -> Tickets:
        """Work out what is due now."""
        given = {"threshold": Threshold(1.0, 0.5), "gone_after_s": 30 * DAY_S, **request}
        return Tickets(self.store, TicketRequest(**given), self.now_s, is_trial=is_trial)

    def emit(self, **request) -> list[dict]:
        """Give what a triage run tells on standard output."""
        written: list[dict] = []
        self.tickets(**request).write(
            lambda tickets: written.extend(to_plain(ticket.to_document()) for ticket in tickets)
        )
        return written

    def events(self, **request) -> list[tuple[str, str]]:
        """Give fingerprint and event of what a triage run tells."""
        return [(ticket["fingerprint"], ticket["event"]) for ticket in self.emit(**request)]

    def all_rows(self) -> str:
        """Give everything in the store as text, to look for what must not be there."""
        with self.store.reading() as read:
            return repr(
                [
                    tuple(row)
                    for table in schema.METADATA.sorted_tables
                    for rows in read(sa.select(table))
                    for row in rows
                ]
            )


def _cause_row(job: str, place: int, cause: dict) -> CauseRow:
    """Make the row of a cause."""
    known = {key: cause[key] for key in ("cause", "title", "confidence", "share", "recoverable", "fingerprint")}
    unknown = ("pattern", "onset_step", "recovery_step", "period_steps", "fix", "predicted_step_s", "predicted_speedup")
    return CauseRow(
        location=job,
        place=place,
        **known,
        **{key: json.dumps(cause["where"][key]) for key in ("workers", "stages", "hosts", "links")},
        **dict.fromkeys(unknown),
        machine=next(iter(cause["where"]["hosts"]), None),
    )


def day(shelf: Shelf, days: float) -> str:
    """Write a moment as metadata does: noon of the first day, and so many days later."""
    return dt.datetime.fromtimestamp(NOON_S + days * DAY_S, dt.UTC).isoformat()


@pytest.fixture
def shelf(store_url: str) -> Iterator[Shelf]:
    """Give a fresh store, of each kind of database."""
    with Store(store_url) as store:
        store.enter()
        yield Shelf(store_url, store)


@pytest.fixture
def file_shelf(tmp_path: Path) -> Iterator[Shelf]:
    """Give a fresh store in a file."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    with Store(url) as store:
        store.enter()
        yield Shelf(url, store)


class Receiver:
    """A webhook on loopback that checks signatures with the reference library, and fails or kills as told."""

    def __init__(self) -> None:
        self.bodies: dict[str, list[dict]] = defaultdict(list)
        self.n_posts = 0
        self.answer: Callable[[int], int] = lambda _n: 204
        self.before_answer: Callable[[], object] = lambda: None
        self.bad: list[str] = []
        self._lock = threading.Lock()
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/hook/T0P-S3CRET"

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()

    def _handler(receiver):  # noqa: N805 - the handler's self is another
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"])).decode()
                with receiver._lock:
                    receiver.n_posts += 1
                    status = receiver.answer(receiver.n_posts)
                    try:
                        standardwebhooks.Webhook(SECRET).verify(body, dict(self.headers.items()))
                        assert self.headers["idempotency-key"] == self.headers["webhook-id"]
                        if status < 300:
                            receiver.bodies[self.headers["webhook-id"]].append(json.loads(body))
                    except Exception as error:  # noqa: BLE001 - said at the end of the test
                        receiver.bad.append(repr(error))
                receiver.before_answer()
                try:
                    self.send_response(status)
                    self.send_header("content-length", "0")
                    self.end_headers()
                except OSError:  # it was killed
                    pass

            def log_message(self, *_args: object) -> None:
                """Say nothing."""

        return Handler


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """Give a webhook receiver, and the secret in the environment."""
    monkeypatch.setenv("DIAGNOSE_WEBHOOK_SECRET", SECRET)
    found = Receiver()
    try:
        yield found
    finally:
        found.close()
    assert not found.bad


@pytest.fixture
def dripping() -> Iterator[str]:
    """Give host and port of a server whose headers never end: a byte every tenth of a second."""
    ended = threading.Event()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                self.request.sendall(b"HTTP/1.1 200 OK\r\nx-slow: ")
                while not ended.wait(0.1):
                    self.request.sendall(b"a")

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host, port = server.server_address
        yield f"{host}:{port}"
        ended.set()
        server.shutdown()


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait milliseconds between tries."""
    monkeypatch.setattr(post, "FIRST_WAIT_S", 0.001)


def seeded_failures(share: float) -> Callable[[int], int]:
    """Give what answers a part of all posts with a failure of one kind or another."""
    random_ = random.Random(85)
    return lambda _n: random_.choice((500, 502, 503, 429)) if random_.random() < share else 204


@pytest.fixture
def alertmanager(tmp_path: Path) -> Iterator[str]:
    """Start an Alertmanager of our own, and give its address; skip where there is none."""
    binary = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
    if binary is None:
        pytest.skip("no Alertmanager here (apt-get install prometheus-alertmanager)")
    config = tmp_path / "alertmanager.yml"
    config.write_text("route: {receiver: nobody, group_by: [cause]}\nreceivers: [{name: nobody}]\n")
    port = free_port()
    command = [
        binary,
        f"--config.file={config}",
        f"--storage.path={tmp_path / 'alerts'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
    ]
    with (tmp_path / "alertmanager.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"{url}/-/ready", timeout=5).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < until, (tmp_path / "alertmanager.log").read_text()
                time.sleep(0.1)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)


@pytest.fixture(scope="session")
def loaded_apprise() -> None:
    """Load all services of Apprise once; what its dependencies deprecate is theirs."""
    apprise = pytest.importorskip("apprise")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        apprise.Apprise().add("json://localhost")


def ask(url: str) -> list[dict]:
    """Read JSON from a service."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def kill(process: subprocess.Popen) -> None:
    """Kill a process as nothing can be caught."""
    os.kill(process.pid, signal.SIGKILL)
