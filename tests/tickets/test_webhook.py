"""Tickets arrive at a webhook: signed, at least once, each under one key, whatever fails, is killed, or runs twice."""

import json
import random
import time
from pathlib import Path

import jsonschema
import pytest

from diagnose.errors import UsageError
from diagnose.report.schemas import make_schema
from diagnose.tickets import deliver
from diagnose.tickets.webhook import read_key
from diagnose.triage.store import Store
from tests.ports import free_port

from .conftest import SECRET, Receiver, Shelf, cause_of, kill, seeded_failures, start

SCHEMA = make_schema("ticket")
N_FINDINGS = 30


def fill(shelf: Shelf, n: int = N_FINDINGS) -> set[str]:
    """Put findings into a store, several a job; give their fingerprints."""
    names = [f"f{i:03}" for i in range(n)]
    for i in range(0, n, 3):
        shelf.put(f"/job-{i}", *(cause_of(name, recoverable=0.1) for name in names[i : i + 3]))
    return set(names)


def send(shelf: Shelf, receiver: Receiver, **request) -> list[deliver.Sent]:
    """Tell the receiver what is due."""
    return list(shelf.tickets(send=True, webhooks=(receiver.url,), **request).send())


def fingerprints(receiver: Receiver) -> list[str]:
    """Give the fingerprint behind each key that arrived."""
    return sorted(bodies[0]["fingerprint"] for bodies in receiver.bodies.values())


def test_every_ticket_once(shelf: Shelf, receiver: Receiver) -> None:
    """All findings arrive, each once, valid against the schema, and not again the next time."""
    names = fill(shelf)
    (sent,) = send(shelf, receiver)
    assert (sent.n_sent, sent.n_left, sent.errors) == (N_FINDINGS, 0, ())
    assert fingerprints(receiver) == sorted(names) and receiver.n_posts == N_FINDINGS
    for bodies in receiver.bodies.values():
        jsonschema.Draft202012Validator(SCHEMA).validate(bodies[0])
    assert send(shelf, receiver)[0].n_sent == 0 and receiver.n_posts == N_FINDINGS


def test_a_receiver_that_often_fails(shelf: Shelf, receiver: Receiver, short_waits: None) -> None:
    """With 30% of the posts failing, runs until nothing is left bring every finding, each under one key."""
    names = fill(shelf)
    receiver.answer = seeded_failures(0.3)
    for _ in range(5):
        (sent,) = send(shelf, receiver)
        if not sent.n_left:
            break
    assert not sent.n_left and fingerprints(receiver) == sorted(names)
    assert receiver.n_posts > N_FINDINGS, "nothing failed"


def test_what_cannot_be_sent_is_sent_the_next_time(shelf: Shelf, receiver: Receiver, short_waits: None) -> None:
    """A service that is down costs three messages' tries, says so, and loses nothing."""
    names = fill(shelf)
    receiver.answer = lambda _n: 503
    (sent,) = send(shelf, receiver)
    assert (sent.n_sent, sent.n_left, receiver.n_posts) == (0, N_FINDINGS, 3 * 6)
    assert sent.errors == (f"{sent.target}: answered 503, 6 times; sent again the next time",)
    receiver.answer = lambda _n: 200
    assert send(shelf, receiver)[0].n_sent == N_FINDINGS and fingerprints(receiver) == sorted(names)


@pytest.mark.parametrize("status", [301, 400, 401, 404, 410])
def test_one_that_is_refused_does_not_stop_the_others(shelf: Shelf, receiver: Receiver, status: int) -> None:
    """It is not tried again at once, and the others arrive."""
    fill(shelf, 6)
    receiver.answer = lambda n: status if n == 2 else 200
    (sent,) = send(shelf, receiver)
    assert (sent.n_sent, sent.n_left, receiver.n_posts) == (5, 1, 6)
    assert sent.errors == (f"{sent.target}: answered {status}; expected 2xx",)


def test_a_receiver_that_drips(file_shelf: Shelf, receiver: Receiver, short_waits: None, dripping: str) -> None:
    """Headers that come a byte now and then, without an end, do not hold up the others: the time is for a whole try."""
    file_shelf.put("/a", "f1")
    urls = (f"http://{dripping}/hook", receiver.url)
    slow, well = file_shelf.tickets(send=True, webhooks=urls, timeout_s=0.3).send()
    (error,) = slow.errors
    assert error.endswith(": has not answered within 0.3 s, 6 times; sent again the next time") and well.n_sent == 1


def test_one_target_that_fails_does_not_stop_the_others(shelf: Shelf, receiver: Receiver, short_waits: None) -> None:
    """Nobody listens at the first; the second gets everything."""
    names = fill(shelf, 6)
    nobody = f"http://127.0.0.1:{free_port()}/T0P-S3CRET"
    first, second = shelf.tickets(send=True, webhooks=(nobody, receiver.url)).send()
    assert (first.n_left, second.n_left) == (6, 0) and fingerprints(receiver) == sorted(names)
    assert "does not answer (ConnectError), 6 times" in first.errors[0] and "S3CRET" not in str(first)


def test_opened_fixed_reopened(shelf: Shelf, receiver: Receiver) -> None:
    """One fingerprint, two tickets, four messages with keys of their own."""
    for causes in (["f1"], [], ["f1"], []):
        shelf.put(f"/{shelf.now_s}", *causes)
        send(shelf, receiver, with_fixed=True)
        shelf.pass_days(1)
    told = [bodies[0] for bodies in receiver.bodies.values()]
    assert [one["event"] for one in told] == ["opened", "fixed", "reopened", "fixed"]
    assert [told[0]["id"], told[2]["id"]] == [told[1]["id"], told[3]["id"]] and told[0]["id"] != told[2]["id"]


def test_secrets_are_nowhere(shelf: Shelf, receiver: Receiver) -> None:
    """Neither password nor path of the address is in the store, in what is shown, or in what is posted."""
    fill(shelf, 3)
    url = receiver.url.replace("http://", "http://me:pa55w0rd@")
    tickets = shelf.tickets(send=True, webhooks=(url,))
    shown = repr(list(tickets.show())) + repr(list(tickets.send())) + json.dumps(list(receiver.bodies.values()))
    assert len(receiver.bodies) == 3
    for secret in ("pa55w0rd", "S3CRET", SECRET):
        assert secret not in shown + shelf.all_rows()


def test_another_password_is_the_same_target(shelf: Shelf, receiver: Receiver) -> None:
    """A password that is changed does not have everything sent again."""
    fill(shelf, 3)
    for password in ("old", "new"):
        url = receiver.url.replace("http://", f"http://me:{password}@")
        list(shelf.tickets(send=True, webhooks=(url,)).send())
    assert receiver.n_posts == 3


@pytest.mark.parametrize(
    "secret", ["", "secret", "whsec_", "whsec_###", "whsec_c2hvcnQ=", "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="]
)
def test_secrets_that_are_none(monkeypatch: pytest.MonkeyPatch, secret: str) -> None:
    """Refused with how to make one, and not shown."""
    monkeypatch.setenv("DIAGNOSE_WEBHOOK_SECRET", secret)
    with pytest.raises(UsageError, match="openssl rand -base64 32") as error:
        read_key()
    assert len(secret) < 8 or secret not in str(error.value)


def test_a_secret_from_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The file may end with a line end; one that is not there is named."""
    monkeypatch.delenv("DIAGNOSE_WEBHOOK_SECRET", raising=False)
    monkeypatch.setenv("DIAGNOSE_WEBHOOK_SECRET_FILE", str(tmp_path / "secret"))
    with pytest.raises(UsageError, match="No such file"):
        read_key()
    (tmp_path / "secret").write_text(SECRET + "\n")
    assert read_key() == b"01234567890123456789012345678901"


def run_cli(shelf: Shelf, receiver: Receiver):
    """Start the program that tells the receiver."""
    return start(
        "tickets", "--store", shelf.url, "--send",
        DIAGNOSE_WEBHOOK_URL=receiver.url, DIAGNOSE_WEBHOOK_SECRET=SECRET,
    )  # fmt: skip


def test_killed_between_the_post_and_the_mark(shelf: Shelf, receiver: Receiver) -> None:
    """A ticket whose sender is killed before it hears the answer is sent again at once, under the same key."""
    names = fill(shelf, 3)
    shelf.store.leave()
    process = run_cli(shelf, receiver)
    receiver.before_answer = lambda: kill(process)
    process.communicate(timeout=60)
    assert process.returncode == -9 and receiver.n_posts == 1
    receiver.before_answer = lambda: None
    process = run_cli(shelf, receiver)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "3 sent" in out and fingerprints(receiver) == sorted(names)
    assert sorted(len(bodies) for bodies in receiver.bodies.values()) == [1, 1, 2]


def check_kills(shelf: Shelf, receiver: Receiver, n_kills: int) -> None:
    """Kill the sender again and again, half the times when a message has just arrived; then let it end, and count what arrived."""
    rng = random.Random(7)
    names = fill(shelf, 9 * n_kills // 2)  # the last one still has most of them to send, however quick the machine is
    shelf.store.leave()
    for i in range(n_kills):
        process = run_cli(shelf, receiver)
        if i % 2:
            left = [rng.randint(1, 3)]

            def count_down(process=process, left=left) -> None:
                left[0] -= 1
                if left[0] == 0:
                    kill(process)

            receiver.before_answer = count_down
        else:
            receiver.before_answer = lambda: time.sleep(0.1)
            time.sleep(rng.uniform(0.1, 1.0))
            kill(process)
        process.communicate(timeout=120)
        assert process.returncode == -9, "killed at work"
    receiver.before_answer = lambda: None
    process = run_cli(shelf, receiver)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert fingerprints(receiver) == sorted(names), "each finding under one key"
    again = sum(len(bodies) - 1 for bodies in receiver.bodies.values())
    print(f"\n{n_kills} kills: {len(names)} findings, each under one key, {again} messages came once more")
    assert n_kills // 2 <= again <= n_kills, f"{again} came again: each kill between the post and its mark makes one"
    with Store(shelf.url) as store:
        assert store.info().n_runs == 0, "the last one cleaned up"


def test_kills(file_shelf: Shelf, receiver: Receiver) -> None:
    """Killed 20 times, half of them when a message has just arrived, half at any time: all arrive, each under one key."""
    check_kills(file_shelf, receiver, 20)


@pytest.mark.benchmark
def test_200_kills(shelf: Shelf, receiver: Receiver) -> None:
    """The same with 200 kills, on each database."""
    check_kills(shelf, receiver, 200)


def test_two_at_once_do_not_double(shelf: Shelf, receiver: Receiver) -> None:
    """Two that send from one store share the work: every message is posted once."""
    names = fill(shelf)
    shelf.store.leave()
    receiver.before_answer = lambda: time.sleep(0.03)
    processes = [run_cli(shelf, receiver) for _ in range(2)]
    for process in processes:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    assert fingerprints(receiver) == sorted(names) and receiver.n_posts == N_FINDINGS
