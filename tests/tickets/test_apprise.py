"""Apprise reaches a service; nothing of its address is shown."""

import http.server
import json
import logging
import sys
import threading
from collections.abc import Iterator

import pytest

from diagnose.errors import UsageError
from diagnose.tickets.apprise import AppriseService
from tests.ports import free_port

from .conftest import Shelf, cause_of

pytestmark = pytest.mark.usefixtures("loaded_apprise")


class Chat:
    """What Apprise's `json://` talks to."""

    def __init__(self) -> None:
        self.said: list[dict] = []
        self.status = 200
        chat = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                chat.said.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                self.send_response(chat.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_args: object) -> None:
                """Say nothing."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"json://me:pa55w0rd@127.0.0.1:{self.server.server_address[1]}/T0P-S3CRET"


@pytest.fixture
def chat() -> Iterator[Chat]:
    """Give a service on loopback."""
    found = Chat()
    yield found
    found.server.shutdown()
    found.server.server_close()


def test_a_message_a_finding(file_shelf: Shelf, chat: Chat) -> None:
    """In words, once, with the key that tells doubles, and a hostile name made harmless."""
    file_shelf.put("/a", cause_of("f1", title="slow\x1b[31m worker"), "f2", owner="ann\nBcc: eve")
    (sent,) = file_shelf.tickets(send=True, apprises=(chat.url,), site="https://site.example").send()
    assert (sent.n_sent, sent.errors, sent.target) == (2, (), "apprise json://***")
    said = chat.said[0]
    assert said["title"] == r"train: slow\x1b[31m worker at dp 1, stage 0, steps 1.18x" and said["type"] == "warning"
    lines = said["message"].splitlines()
    assert lines[0].startswith("opened: HIGH train: slow") and lines[-1].endswith("-opened")
    assert r"Who acts: platform (ann\x0aBcc: eve)" in lines and "- it takes 1.6 times as long" in lines
    assert any(line.startswith("Report: https://site.example/jobs/a-") for line in lines)
    (again,) = file_shelf.tickets(send=True, apprises=(chat.url,)).send()
    assert again.n_sent == 0 and len(chat.said) == 2


def test_what_fails_is_sent_the_next_time(
    file_shelf: Shelf, chat: Chat, short_waits: None, capfd: pytest.CaptureFixture[str]
) -> None:
    """Four tries, an error without secrets, nothing in the log, and the message the next time."""
    file_shelf.put("/a", "f1")
    chat.status = 500
    (sent,) = file_shelf.tickets(send=True, apprises=(chat.url,)).send()
    assert sent.errors == ("apprise json://***: did not take it, 4 times; sent again the next time",)
    assert len(chat.said) == 4 and capfd.readouterr() == ("", "")
    chat.status = 200
    (sent,) = file_shelf.tickets(send=True, apprises=(chat.url,)).send()
    assert sent.n_sent == 1
    for secret in ("pa55w0rd", "S3CRET"):
        assert secret not in file_shelf.all_rows()


def test_nobody_there(file_shelf: Shelf, short_waits: None, capfd: pytest.CaptureFixture[str]) -> None:
    """What Apprise logs of it stays where it is."""
    file_shelf.put("/a", "f1")
    (sent,) = file_shelf.tickets(send=True, apprises=(f"json://x:S3CRET@127.0.0.1:{free_port()}",)).send()
    assert sent.n_left == 1 and capfd.readouterr() == ("", "")
    assert logging.getLogger("apprise").propagate is False


def test_a_service_that_drips(file_shelf: Shelf, short_waits: None, dripping: str) -> None:
    """Its answer, a byte now and then, is not waited for longer than for others."""
    file_shelf.put("/a", "f1")
    (sent,) = file_shelf.tickets(send=True, apprises=(f"json://{dripping}",), timeout_s=0.3).send()
    assert sent.errors == ("apprise json://***: did not take it, 4 times; sent again the next time",)


@pytest.mark.parametrize("url", ["nonsense://S3CRET", "S3CRET", "", "://S3CRET"])
def test_addresses_that_are_none(url: str) -> None:
    """Refused without showing them."""
    with pytest.raises(UsageError, match="knows no such service") as error:
        AppriseService(url, 1.0)
    assert "S3CRET" not in str(error.value)


def test_without_apprise(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an extra, and the error says which."""
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(UsageError, match=r"diagnose-training\[apprise\]"):
        AppriseService("json://localhost", 1.0)
