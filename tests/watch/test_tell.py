"""What receivers of tickets hear of episodes."""

import dataclasses
import json
import re
import time
from types import SimpleNamespace

import jsonschema
import sqlalchemy as sa
from msgspec.structs import replace

from diagnose.report.gist import describe_pace
from diagnose.report.live_words import describe_window
from diagnose.report.schemas import make_schema
from diagnose.tickets import post
from diagnose.tickets.alertmanager import Alertmanager
from diagnose.tickets.webhook import Webhook, read_key
from diagnose.triage.schema import ACKS
from diagnose.triage.store import Store
from diagnose.watch.job import JobState
from diagnose.watch.tell import Teller
from diagnose.watch.window import _keep, _StepClock
from tests.fixture_jobs import diagnosed
from tests.tickets.conftest import ask
from tests.watch.recorded import RecordedJob, SimulatedClock
from tests.watch.test_episodes import follow_steps, spread
from tests.watch.watching import Watching, make_trace, slow_worker

N_STEPS = 200


def begin(tmp_path, clock: SimulatedClock, **receivers) -> tuple[RecordedJob, Watching]:
    """Begin to watch a job with a worker that is slow for a while, and tell some receivers."""
    trace = make_trace(N_STEPS, slow_worker(N_STEPS, 50, 110))
    job = RecordedJob(trace, tmp_path / "job", began_s=clock.at_s)
    watching = Watching(tmp_path / "job", store=tmp_path / "store.db", clock=clock)
    watching.watch._teller = Teller(watching.store, watching.printed.append, **receivers)
    return job, watching


def go_on(job: RecordedJob, watching: Watching, through: int) -> None:
    """Let the job go on, and the watch look."""
    job.write(int(job.steps[through - 1]))
    watching.clock.at_s = max(watching.clock.at_s, job.ends_s[int(job.steps[through - 1])])
    watching.go()


def test_a_webhook_hears_of_an_episode_once(tmp_path, receiver, monkeypatch):
    """It is opened and fixed under one id, valid as tickets are; where nobody answers it is told later, and no line twice."""
    monkeypatch.setattr(post, "FIRST_WAIT_S", 0.001)
    clock = SimulatedClock()
    job, watching = begin(tmp_path, clock, messengers=[Webhook(receiver.url, 5.0, read_key())])
    receiver.answer = lambda _n: 503
    go_on(job, watching, 100)
    assert not receiver.bodies and len(watching.events("began")) == 1
    assert len(watching.complaints) == 1 and "503" in watching.complaints[0]
    receiver.answer = lambda _n: 204
    for _ in range(3):
        watching.go()
    assert len(receiver.bodies) == 1
    go_on(job, watching, N_STEPS)
    watching.go()
    bodies = [body for (body,) in receiver.bodies.values()]
    for body in bodies:
        jsonschema.Draft202012Validator(make_schema("ticket")).validate(body)
    assert [body["event"] for body in bodies] == ["opened", "fixed"] and bodies[0]["id"] == bodies[1]["id"]
    assert bodies[0]["cause"] == "worker-fault" and bodies[0]["jobs"][0]["location"] == str(tmp_path / "job")
    assert len(watching.events("began")) == len(watching.events("recovered")) == 1
    watching.close()


def test_what_is_acknowledged_is_printed_and_not_sent(tmp_path, receiver):
    """Somebody who knows of it is not told again; whoever reads the lines is."""
    clock = SimulatedClock()
    job, watching = begin(tmp_path, clock, messengers=[Webhook(receiver.url, 5.0, read_key())])
    go_on(job, watching, 40)
    probe = Watching(tmp_path / "job", store=tmp_path / "other.db", clock=clock)
    job.write(int(job.steps[99]))
    fingerprint = probe.go()[0].episodes[0].fingerprint
    probe.close()
    acked = sa.insert(ACKS).values(fingerprint=fingerprint, reason="in repair", until_at=None, acked_at=clock.at_s)
    watching.store.transact(lambda connection: connection.execute(acked))
    go_on(job, watching, N_STEPS)
    assert not receiver.bodies and len(watching.events("began")) == 1
    watching.close()


def test_alertmanager_is_told_what_fires_and_what_is_over(tmp_path, alertmanager):
    """An episode fires while it lasts."""
    clock = SimulatedClock(time.time() - 1000.0)
    job, watching = begin(tmp_path, clock, alertmanagers=[Alertmanager(alertmanager, 10.0)])
    go_on(job, watching, 100)
    [alert] = ask(f"{alertmanager}/api/v2/alerts")
    assert alert["labels"]["cause"] == "worker-fault"
    go_on(job, watching, N_STEPS)
    assert ask(f"{alertmanager}/api/v2/alerts") == [] and not watching.complaints
    watching.close()


def test_an_alert_is_known_by_the_same_labels_when_its_episode_gets_a_name(tmp_path, monkeypatch):
    """GIVEN slowness that gets a name before it is over, THEN what resolves its alert has the labels that it fired with."""
    posted = []
    monkeypatch.setattr(Alertmanager, "send", lambda _self, request: posted.extend(json.loads(request.body)))
    store = Store(f"sqlite:///{tmp_path / 'store.db'}")
    store.enter()
    teller = Teller(store, lambda _event: None, alertmanagers=[Alertmanager("http://127.0.0.1:9", 1.0)])
    seen = {n: [spread(n, "unknown" if n < 13 else "network-fault")] for n in range(10, 17)}
    for episodes in follow_steps(seen, [1.0] * 10 + [1.25] * 7 + [1.0] * 4, usual_s=1.0):
        assert not teller.tell([("job", JobState(name="job", episodes=episodes))], 2000.0)
    fired, resolved = posted
    assert fired["labels"] == resolved["labels"] and fired["labels"]["cause"] == "unknown"
    assert "unknown" in fired["annotations"]["summary"] and "network-fault" in resolved["annotations"]["summary"]
    store.close()


def test_a_window_is_as_much_slower_as_its_page_says() -> None:
    """What is lost and has no name is no fault."""
    found = diagnosed("worker-fault")
    assert found.ledger is not None
    causes = tuple(replace(cause, recoverable=0.01) for cause in found.causes)
    found = dataclasses.replace(found, ledger=replace(found.ledger, unexplained=0.4), causes=causes)
    delivery = SimpleNamespace(n_rows=1, silent=())
    kept = _keep(delivery, found, _StepClock({}, {}), number=0, seen_s=0.0, took_s=0.0)
    (slower,) = re.findall(r"straggling, (.* slower than without faults), ", describe_window(kept))
    assert describe_pace(found).startswith(slower)
