"""A real Alertmanager takes the alerts, groups them, and lets go of those that are over."""

import json

import pytest

from diagnose.model.ticket import Ack
from diagnose.triage.acks import write_ack
from tests.ports import free_port

from .conftest import Shelf, ask, cause_of


def send(shelf: Shelf, url: str, **request) -> None:
    """Tell the Alertmanager."""
    (sent,) = shelf.tickets(send=True, alertmanagers=(url,), **request).send()
    assert not sent.errors and not sent.n_left


def firing(url: str) -> dict[str, dict]:
    """Give the alerts that fire, by their fingerprint label."""
    found = ask(f"{url}/api/v2/alerts?active=true&silenced=false&inhibited=false")
    return {alert["labels"]["fingerprint"]: alert for alert in found}


@pytest.fixture
def now_shelf(shelf: Shelf) -> Shelf:
    """Give a store whose clock begins now: Alertmanager has no other."""
    shelf.now_s = shelf.store.now_s() - 60  # so that what ends now has ended for Alertmanager
    return shelf


def test_alerts_fire_are_grouped_and_resolved(now_shelf: Shelf, alertmanager: str) -> None:
    """Open findings fire until a later run is clean; posted every run they stay the same alerts."""
    shelf = now_shelf
    shelf.put("/a", cause_of("f1"), cause_of("f2", "network-fault", severity=None, who="hardware"), owner="ann")
    shelf.put("/b", cause_of("f3"), owner=None)
    for _ in range(2):
        send(shelf, alertmanager + "/", site="https://site.example")
        found = firing(alertmanager)
        assert set(found) == {"f1", "f2", "f3"}
    assert found["f1"]["labels"] == {
        "alertname": "TrainingJobSlow",
        "cause": "worker-fault",
        "severity": "high",
        "owner": "ann",
        "job_family": "megatron, dp 4, pp 4, tp 1, cp 1, vpp 1",
        "fingerprint": "f1",
    }
    assert (found["f2"]["labels"]["severity"], found["f3"]["labels"]["owner"]) == ("unknown", "platform")
    assert (
        found["f1"]["annotations"]["summary"]
        == "HIGH train: slow worker at dp 1, stage 0, steps 1.18x; 57.6 GPU hours a day"
    )
    assert found["f1"]["generatorURL"].startswith("https://site.example/jobs/a-")
    groups = {group["labels"]["cause"]: len(group["alerts"]) for group in ask(f"{alertmanager}/api/v2/alerts/groups")}
    assert groups == {"worker-fault": 2, "network-fault": 1}
    shelf.now_s += 1
    shelf.put("/c", cause_of("f2", "network-fault"), owner="ann")
    shelf.put("/d", owner=None)
    send(shelf, f"{alertmanager}/api/v2/alerts")
    assert set(firing(alertmanager)) == {"f2"}
    shelf.now_s += 1
    shelf.put("/e", cause_of("f1"), owner="ann")
    send(shelf, alertmanager)
    assert set(firing(alertmanager)) == {"f1"}, "f1 is back, f2 is fixed"


def test_an_ack_ends_an_alert_and_its_end_lets_it_fire_again(now_shelf: Shelf, alertmanager: str) -> None:
    """What somebody knows of does not fire for as long."""
    shelf = now_shelf
    shelf.put("/a", "f1")
    send(shelf, alertmanager)
    write_ack(shelf.store, Ack("f1", "known", shelf.now_s + 2, shelf.now_s))
    send(shelf, alertmanager)
    assert firing(alertmanager) == {}
    shelf.now_s += 3
    send(shelf, alertmanager)
    assert set(firing(alertmanager)) == {"f1"}


def test_names_may_be_anything(now_shelf: Shelf, alertmanager: str) -> None:
    """Labels of any content are taken, shortened and safe."""
    hostile = "ann\x1b[31m\n{{ .X }}" + "x" * 5_000
    now_shelf.put("/a", cause_of("f1", title=hostile, who=hostile), owner=hostile, framework=hostile)
    send(now_shelf, alertmanager)
    labels = firing(alertmanager)["f1"]["labels"]
    assert labels["owner"].startswith(r"ann\x1b[31m\x0a{{ .X }}xxx") and len(labels["owner"]) < 150


def test_more_than_one_post_holds(now_shelf: Shelf, alertmanager: str) -> None:
    """Two hundred and fifty alerts arrive in parts."""
    now_shelf.put("/a", *(cause_of(f"f{i}") for i in range(250)))
    send(now_shelf, alertmanager)
    assert len(firing(alertmanager)) == 250


def test_a_limit_is_for_new_ones(now_shelf: Shelf, alertmanager: str) -> None:
    """What fires goes on firing, beside so many new ones."""
    now_shelf.put("/a", *(cause_of(f"f{i}", recoverable=0.1 + i / 100) for i in range(4)))
    for expected in ({"f3", "f2"}, {"f3", "f2", "f1", "f0"}):
        send(now_shelf, alertmanager, limit=2)
        assert set(firing(alertmanager)) == expected


def test_what_was_never_told_is_not_resolved(shelf: Shelf) -> None:
    """A dry run lists what would fire, and no ends of alerts that nobody has heard of."""
    shelf.put("/a", "f1")
    shelf.tickets()
    shelf.pass_days(1)
    shelf.put("/b", "f2")
    (unsent,) = shelf.tickets(is_trial=True, alertmanagers=("http://127.0.0.1:9/",)).show()
    (alerts,) = [json.loads(request.body) for request in unsent.requests]
    assert [alert["labels"]["fingerprint"] for alert in alerts] == ["f2"]


def test_nobody_there(shelf: Shelf, short_waits: None) -> None:
    """It is said, and told the next time."""
    shelf.put("/a", "f1")
    (sent,) = shelf.tickets(send=True, alertmanagers=(f"http://127.0.0.1:{free_port()}",)).send()
    assert sent.n_left == 1 and "does not answer" in sent.errors[0]
    (unsent,) = shelf.tickets(is_trial=True, alertmanagers=("http://127.0.0.1:9/",)).show()
    assert len(unsent.requests) == 1
