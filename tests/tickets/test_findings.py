"""What becomes of findings as triage runs pass: opened once, fixed, reopened, acknowledged, on both kinds of database."""

import json
import random

import pytest
import sqlalchemy as sa

from diagnose.errors import UsageError
from diagnose.model.plain import to_plain
from diagnose.model.ticket import Ack
from diagnose.triage import schema
from diagnose.triage.acks import clear_ack, write_ack
from diagnose.triage.findings import find_fingerprint, update_findings
from diagnose.triage.store import Store

from .conftest import DAY_S, Shelf, cause_of, day


def state(shelf: Shelf, fingerprint: str) -> tuple[str, str | None]:
    """Say how a finding stands."""
    found = {one.fingerprint: one for one in update_findings(shelf.store, shelf.now_s, 30 * DAY_S)}
    return found[fingerprint].state, found[fingerprint].fixed_because


def test_a_finding_is_told_once(shelf: Shelf) -> None:
    """Nights that find the same again tell nothing."""
    shelf.put("/a", "f1")
    assert shelf.events() == [("f1", "opened")]
    assert shelf.events() == []
    shelf.pass_days(1)
    shelf.put("/b", "f1")
    assert shelf.events() == []


def test_several_jobs_make_one_ticket(shelf: Shelf) -> None:
    """Of three jobs with one fingerprint comes one ticket, which lists them, the costliest first, and is told by that one."""
    shelf.put("/a", cause_of("f1", recoverable=0.1), owner="ann")
    shelf.put("/b", cause_of("f1", recoverable=0.3), owner="bob")
    shelf.put("/c", cause_of("f1", recoverable=0.2), owner="cid")
    (ticket,) = shelf.emit(site="https://site.example/fleet/")
    assert (ticket["n_jobs"], ticket["n_seen"], ticket["owner"]) == (3, 3, "bob")
    assert [job["location"] for job in ticket["jobs"]] == ["/b", "/c", "/a"]
    assert ticket["gpu_hours_lost_per_day"] == pytest.approx(16 * 24 * (0.1 + 0.3 + 0.2))
    assert ticket["report"] == ticket["jobs"][0]["report"]
    assert ticket["report"].startswith("https://site.example/fleet/jobs/") and ticket["report"].endswith(".html")


def test_the_costliest_first_and_no_more_than_asked_for(shelf: Shelf) -> None:
    """What `--limit` leaves comes the next time."""
    for i in range(5):
        shelf.put(f"/{i}", cause_of(f"f{i}", recoverable=0.1 + i / 100))
    assert [name for name, _ in shelf.events(limit=2)] == ["f4", "f3"]
    assert [name for name, _ in shelf.events()] == ["f2", "f1", "f0"]


@pytest.mark.parametrize(
    "more", [{"recoverable": 0.002}, {"confidence": 0.4}, {"recoverable": 0.002, "confidence": 0.1}]
)
def test_thresholds(shelf: Shelf, more: dict) -> None:
    """What costs little or is unsure makes no ticket until it costs more."""
    shelf.put("/a", cause_of("f1", **more))
    assert shelf.events() == []
    shelf.put("/b", cause_of("f1"))
    assert shelf.events() == [("f1", "opened")]


def test_fixed_by_a_later_run(shelf: Shelf) -> None:
    """A clean run of the job in a later night closes a finding; it comes back as another ticket."""
    shelf.put("/a", "f1")
    (opened,) = shelf.emit(with_fixed=True)
    shelf.pass_days(1)
    shelf.put("/b")
    (fixed,) = shelf.emit(with_fixed=True)
    assert (fixed["event"], fixed["state"], fixed["id"]) == ("fixed", "fixed", opened["id"])
    assert fixed["key"] != opened["key"] and fixed["fixed_because"] == "a later run does not have it: /b"
    shelf.pass_days(1)
    shelf.put("/c", "f1")
    (again,) = shelf.emit(with_fixed=True)
    assert again["event"] == "reopened" and again["id"] != opened["id"] and again["n_seen"] == 2
    assert again["first_seen"] == opened["first_seen"]


def test_a_clean_run_of_the_same_night_closes_nothing(shelf: Shelf) -> None:
    """Without times in the metadata, jobs that come in one run ran side by side."""
    shelf.put("/a", "f1")
    shelf.now_s += 60
    shelf.put("/b")
    assert shelf.events() == [("f1", "opened")]
    shelf.now_s += 60
    assert state(shelf, "f1") == ("open", None)


@pytest.mark.parametrize(
    ("more", "closes"),
    [
        ({}, True),
        ({"dp_size": 8}, False),
        ({"framework": "deepspeed"}, False),
        ({"framework": None}, False),
        ({"framework": "megatron 0.17"}, True),
        ({"name": "another"}, False),
        ({"owner": "bob"}, False),
        ({"verdict": "noisy"}, True),
        ({"verdict": "inconclusive"}, False),
        ({"checked": ["network-fault"]}, False),
    ],
)
def test_only_who_could_have_seen_it_closes_it(shelf: Shelf, more: dict, closes: bool) -> None:
    """A run of another job, one that says nothing, or one that was not looked at for the cause proves nothing."""
    shelf.put("/a", "f1")
    shelf.events()
    shelf.pass_days(1)
    shelf.put("/b", **more)
    assert (state(shelf, "f1")[0] == "fixed") is closes


def test_a_cause_without_a_name_is_closed_by_any_run_that_was_judged(shelf: Shelf) -> None:
    """No list of what was looked for names it."""
    shelf.put("/a", cause_of("f1", "unknown"))
    shelf.events()
    shelf.pass_days(1)
    shelf.put("/b", checked=[])
    assert state(shelf, "f1")[0] == "fixed"


def test_times_of_the_metadata_count(shelf: Shelf) -> None:
    """A clean run that overlapped the faulty one closes nothing, though it came later; one that began after its end does."""
    shelf.put("/a", "f1", started_at=day(shelf, -9), finished_at=day(shelf, -7))
    shelf.put("/b", started_at=day(shelf, -8), finished_at=day(shelf, -1))
    shelf.events()
    shelf.pass_days(1)
    shelf.put("/c", started_at=day(shelf, -8), finished_at=day(shelf, -6))
    assert state(shelf, "f1") == ("open", None)
    shelf.put("/d", started_at=day(shelf, -6), finished_at=day(shelf, -5))
    assert state(shelf, "f1") == ("fixed", "a later run does not have it: /d")


def test_an_archive_of_old_runs_is_one_night(shelf: Shelf) -> None:
    """Whatever their times, runs that come together close nothing: a finding is told before it is closed."""
    shelf.put("/a", "f1", "f2", started_at=day(shelf, -99), finished_at=day(shelf, -98))
    shelf.put("/b", "f2", started_at=day(shelf, -97), finished_at=day(shelf, -96))
    assert sorted(shelf.events()) == [("f1", "opened"), ("f2", "opened")]
    shelf.pass_days(1)
    shelf.put("/c", "f2", started_at=day(shelf, -95), finished_at=day(shelf, -94))
    assert shelf.events(with_fixed=True) == [("f1", "fixed")]


def test_an_old_run_that_comes_late_reopens_nothing(shelf: Shelf) -> None:
    """A trace from before the fix is counted, and that is all."""
    shelf.put("/a", "f1", started_at=day(shelf, -9), finished_at=day(shelf, -8))
    assert shelf.events() == [("f1", "opened")]
    shelf.pass_days(1)
    shelf.put("/b", started_at=day(shelf, -5), finished_at=day(shelf, -4))
    assert shelf.events() == []
    shelf.pass_days(1)
    shelf.put("/late", "f1", started_at=day(shelf, -8), finished_at=day(shelf, -7))
    assert shelf.events() == []
    shelf.put("/new", "f1", started_at=day(shelf, -3), finished_at=day(shelf, -2))
    assert shelf.events() == [("f1", "reopened")]


@pytest.mark.parametrize("when", ["yesterday", "9999-01-01T00:00:00Z", "", "-5", None])
def test_times_that_make_no_sense_are_none(shelf: Shelf, when: str | None) -> None:
    """They neither close nor keep open."""
    shelf.put("/a", "f1", started_at=when, finished_at=when)
    assert shelf.events() == [("f1", "opened")]
    shelf.pass_days(1)
    shelf.put("/b", started_at=when, finished_at=when)
    assert state(shelf, "f1")[0] == "fixed"


def test_newer_rules_open_nothing_twice(shelf: Shelf) -> None:
    """All jobs diagnosed anew by a newer version: what was fixed stays fixed, what was told stays told."""
    shelf.put("/a", "f1", content="a")
    shelf.put("/x", "f2", content="x", dp_size=2)
    shelf.events()
    shelf.pass_days(1)
    shelf.put("/b", content="b")
    assert shelf.events() == []
    shelf.pass_days(1)
    shelf.put("/a", "f1", content="a", identity="newer rules")
    shelf.put("/b", content="b", identity="newer rules")
    shelf.put("/x", "f2", content="x", identity="newer rules", dp_size=2)
    assert shelf.events() == []
    assert (state(shelf, "f1")[0], state(shelf, "f2")[0]) == ("fixed", "open")


def test_newer_rules_take_a_finding_back(shelf: Shelf) -> None:
    """When the runs that had it are diagnosed anew and have it no longer, it is closed; not when they were pruned."""
    shelf.put("/a", "f1", content="a")
    shelf.put("/x", "f2", content="x", dp_size=2)
    shelf.events()
    shelf.pass_days(1)
    shelf.put("/a", content="a", identity="newer rules")
    assert shelf.store.prune(shelf.now_s - 60).n_jobs == 1
    assert state(shelf, "f1") == ("fixed", "the runs that had it were diagnosed anew, and do not have it")
    assert state(shelf, "f2") == ("open", None)
    (ticket,) = shelf.tickets().all_open()
    assert ticket.n_jobs == 0 and to_plain(ticket.to_document())["evidence"], "what a ticket says survives the job"


def test_a_trace_that_is_overwritten_is_another_run(shelf: Shelf) -> None:
    """One path that every run writes to: the finding goes and comes back with its content."""
    shelf.put("/latest", "f1")
    assert shelf.events() == [("f1", "opened")]
    shelf.pass_days(1)
    shelf.put("/latest")
    assert shelf.events() == [] and state(shelf, "f1")[0] == "fixed"
    shelf.pass_days(1)
    shelf.put("/latest", "f1")
    assert shelf.events() == [("f1", "reopened")]


def test_gone_after(shelf: Shelf) -> None:
    """What no run had for so long is fixed, and reopened when one has it."""
    shelf.put("/a", "f1", finished_at="2001-01-01")
    assert shelf.events() == [("f1", "opened")]
    shelf.pass_days(29)
    assert state(shelf, "f1")[0] == "open"
    shelf.pass_days(2)
    assert state(shelf, "f1") == ("fixed", "no run had it for 30 days")
    shelf.pass_days(1)
    shelf.put("/b", "f1")
    assert shelf.events() == [("f1", "reopened")]


def test_an_ack_silences_until_its_date(shelf: Shelf) -> None:
    """Nothing is told of it until then; then it is, when it is still there."""
    shelf.put("/a", "f1")
    shelf.put("/b", "f2")
    update_findings(shelf.store, shelf.now_s, 30 * DAY_S)
    for name in ("f1", "f2"):
        write_ack(shelf.store, Ack(name, "node is in repair", shelf.now_s + 7 * DAY_S, shelf.now_s))
    assert shelf.events() == []
    assert {to_plain(ticket.to_document())["state"] for ticket in shelf.tickets().all_open()} == {"acked"}
    shelf.pass_days(6)
    shelf.put("/c", "f1", "f2")
    assert shelf.events() == []
    shelf.pass_days(2)
    assert shelf.events() == [("f1", "reminded"), ("f2", "reminded")]
    shelf.pass_days(1)
    assert shelf.events() == []


def test_an_ack_that_is_cleared_tells_what_was_held_back(shelf: Shelf) -> None:
    """A finding that was told before is not told again for that, one that was not is."""
    shelf.put("/a", "f1")
    assert shelf.events() == [("f1", "opened")]
    shelf.put("/b", "f2")
    update_findings(shelf.store, shelf.now_s, 30 * DAY_S)
    for name in ("f1", "f2"):
        write_ack(shelf.store, Ack(name, "known", None, shelf.now_s))
    shelf.pass_days(1)
    assert shelf.events() == []
    assert clear_ack(shelf.store, "f1") and clear_ack(shelf.store, "f2") and not clear_ack(shelf.store, "f2")
    assert shelf.events() == [("f2", "opened")]


def test_an_ack_outlives_a_fix(shelf: Shelf) -> None:
    """Fixed and back before the date: still silent."""
    shelf.put("/a", "f1")
    update_findings(shelf.store, shelf.now_s, 30 * DAY_S)
    write_ack(shelf.store, Ack("f1", "known", shelf.now_s + 9 * DAY_S, shelf.now_s))
    shelf.pass_days(1)
    shelf.put("/b")
    assert shelf.events() == [] and state(shelf, "f1")[0] == "fixed"
    shelf.pass_days(1)
    shelf.put("/c", "f1")
    assert shelf.events() == [] and state(shelf, "f1")[0] == "open"


def test_a_trial_leaves_no_trace(shelf: Shelf) -> None:
    """It says what would be, in the words of the real thing, and the store stays as it was."""
    shelf.put("/a", "f1")
    before = shelf.all_rows()
    tried = [to_plain(ticket.to_document()) for ticket in shelf.tickets(is_trial=True).unwritten()]
    assert shelf.all_rows() == before
    assert tried == shelf.emit()


def test_fingerprints_may_be_cut_short(shelf: Shelf) -> None:
    """The beginning names a finding when it names one only."""
    shelf.put("/a", "ab12", "ab34")
    findings = update_findings(shelf.store, shelf.now_s, 30 * DAY_S)
    assert find_fingerprint(findings, "AB1").fingerprint == "ab12"
    for given in ("ab", "", "zz"):
        with pytest.raises(UsageError):
            find_fingerprint(findings, given)


def test_one_fingerprint_twice_in_a_job_is_one_sighting(shelf: Shelf) -> None:
    """The place further up in the report tells of it."""
    shelf.put("/a", cause_of("f1", title="first"), cause_of("f1", title="second"))
    (ticket,) = shelf.emit()
    assert (ticket["title"], ticket["n_seen"]) == ("train: first at dp 1, stage 0, steps 1.18x", 1)


def test_names_may_be_anything(shelf: Shelf) -> None:
    """NUL, half of a surrogate pair, orders to a terminal and a very long name: one ticket, whose lines are safe."""
    hostile = "gpu\x1b[31m\0\udcff\n{{7*7}}<script>" + "x" * 10_000
    where = {"workers": [{"dp": 0, "pp": 0, "host": hostile}], "stages": [], "hosts": [hostile], "links": []}
    shelf.put("/a" + hostile, cause_of("f1", title=hostile, where=where), owner=hostile, framework=hostile)
    (ticket,) = shelf.emit()
    assert len(ticket["summary"]) < 5000 and ticket["summary"].isprintable()
    draw = random.Random(7)
    names = ["".join(chr(draw.randrange(0x4E00, 0x9FFF)) for _ in range(500)) for _ in range(2)]
    shelf.put("/long", cause_of("f2"), name=names[0], owner=names[1])
    assert len(shelf.emit()) == 1, "no index is too short for it"


def test_a_diagnosis_that_can_no_longer_be_read_stops_no_ticket(shelf: Shelf) -> None:
    """A stored cause that lacks what every cause has is told without particulars, and all others with theirs."""
    lacking, odd = cause_of("f1"), cause_of("f2")
    del lacking["evidence"]
    odd["evidence"][0]["values"] = {"x": "\ud800"}
    shelf.put("/a", lacking)
    shelf.put("/b", odd)
    shelf.put("/c", cause_of("f3"))
    told = {ticket["fingerprint"]: bool(ticket["evidence"]) for ticket in shelf.emit()}
    assert told == {"f1": False, "f2": False, "f3": True}


def test_whole_numbers_stay_whole(shelf: Shelf) -> None:
    """A ticket gives figures and values as the diagnosis printed them."""
    cause = cause_of("f1")
    cause["fixes"][0]["figures"] = {"break_even_steps": 2045, "gain": 0.5}
    cause["evidence"][0]["values"] = {"stall.hits": 3}
    shelf.put("/a", cause)
    (ticket,) = shelf.emit()
    assert json.dumps(ticket["fixes"][0]["figures"]) == '{"break_even_steps": 2045, "gain": 0.5}'
    assert json.dumps(ticket["evidence"][0]["values"]) == '{"stall.hits": 3}'


def test_many_findings_at_once(shelf: Shelf) -> None:
    """More than a query takes at a time."""
    causes = [cause_of(f"{i:04x}") for i in range(1100)]
    shelf.put("/a", *causes)
    assert len(shelf.emit()) == 1100
    shelf.pass_days(1)
    shelf.put("/b")
    assert len(shelf.emit(with_fixed=True)) == 1100
    with shelf.store.reading() as read:
        counts = [row for rows in read(sa.select(sa.func.count()).select_from(schema.SIGHTINGS)) for row in rows]
    assert counts[0][0] == 1100


def test_the_first_day(shelf: Shelf) -> None:
    """Tickets name moments of the runs, not of the reading."""
    shelf.put("/a", "f1", started_at="2026-01-01T00:00:00+02:00", finished_at="2026-01-02")
    (ticket,) = shelf.emit()
    assert (ticket["first_seen"], ticket["last_seen"]) == ("2026-01-02T00:00:00Z",) * 2


def on_host(fingerprint: str, *hosts: str, **more: object) -> dict:
    """Give a slow worker on hosts, the worst first."""
    workers = [{"dp": i, "pp": 0, "host": host} for i, host in enumerate(hosts)]
    return cause_of(fingerprint, where={"workers": workers, "stages": [], "hosts": list(hosts), "links": []}, **more)


def test_jobs_that_share_nothing_but_their_shape(shelf: Shelf) -> None:
    """Of 26 jobs of one shape 19 have a finding, each another or the same: 19 tickets, and no clean job closes any, ever."""
    jobs = [f"job {n}" for n in range(26)]
    for n, name in enumerate(jobs):
        shelf.put(f"/{n}", *([f"{name}: f{n % 5}"] if n < 19 else []), name=name)
    assert sorted(name for name, _ in shelf.events()) == sorted(f"{name}: f{n % 5}" for n, name in enumerate(jobs[:19]))
    shelf.pass_days(1)
    for n, name in enumerate(jobs[19:]):
        shelf.put(f"/again/{n}", name=name)
    assert shelf.events(with_fixed=True) == []
    shelf.put("/later", name="job 3")
    assert shelf.events(with_fixed=True) == [("job 3: f3", "fixed")]


def test_a_run_on_the_same_host_closes_a_fault_of_a_machine(shelf: Shelf) -> None:
    """Whose job it is does not matter; runs elsewhere, and later runs of the same job on other hosts, prove nothing."""
    shelf.put("/a", on_host("bad", "gpu-017"), hosts=["gpu-017", "gpu-018"])
    (ticket,) = shelf.emit()
    assert ticket["title"] == "train: slow worker on gpu-017, steps 1.18x" and ticket["machine"] == "gpu-017"
    shelf.pass_days(1)
    shelf.put("/b", hosts=["gpu-018", "gpu-0171", "xgpu-017"])
    shelf.put("/c")
    assert shelf.events(with_fixed=True) == []
    shelf.put("/d", name="another", owner="bob", dp_size=64, hosts=["gpu-017"])
    assert shelf.events(with_fixed=True) == [("bad", "fixed")]


def test_a_host_that_is_blamed_beside_a_worse_one_is_not_mended(shelf: Shelf) -> None:
    """The finding of a host stays open while its cause names it, though that cause has the fingerprint of another host."""
    hosts = ["gpu-1", "gpu_1", "gpu-2"]
    shelf.put("/a", on_host("one", "gpu-1"), hosts=hosts)
    assert shelf.events() == [("one", "opened")]
    shelf.pass_days(1)
    shelf.put("/b", on_host("two", "gpu-2", "gpu-1"), hosts=hosts)
    assert shelf.events(with_fixed=True) == [("two", "opened")]
    shelf.pass_days(1)
    shelf.put("/c", on_host("three", "gpu_1"), hosts=hosts)
    assert sorted(shelf.events(with_fixed=True)) == [("one", "fixed"), ("three", "opened"), ("two", "fixed")]


def test_what_may_be_it_as_well_closes_nothing(shelf: Shelf) -> None:
    """A run that has another cause, which may as well be this one, was not cleared of it."""
    shelf.put("/a", "f1")
    shelf.events()
    shelf.pass_days(1)
    other = {"cause": "worker-fault", "confidence": 0.3, "tells_apart": "the clocks of the hosts"}
    shelf.put("/b", cause_of("f2", "network-fault", alternatives=[other]))
    assert shelf.events(with_fixed=True) == [("f2", "opened")]
    shelf.pass_days(1)
    shelf.put("/c", cause_of("f2", "network-fault"))
    assert shelf.events(with_fixed=True) == [("f1", "fixed")]


def test_one_job_twice_in_a_night(shelf: Shelf) -> None:
    """One run is faulty and one is clean: the finding stays open, whichever is read first, until a night has clean runs only."""
    shelf.put("/b")
    shelf.put("/a", "f1")
    assert shelf.events() == [("f1", "opened")]
    shelf.pass_days(1)
    shelf.put("/c", "f1")
    shelf.put("/d")
    assert shelf.events(with_fixed=True) == []
    shelf.pass_days(1)
    shelf.put("/e")
    assert shelf.events(with_fixed=True) == [("f1", "fixed")]


def test_two_triages_at_once_are_one_night(shelf: Shelf) -> None:
    """What a triage brings that began before the finding was noted is no later night, however late it ends."""
    began_s = shelf.now_s
    shelf.now_s += 600
    shelf.put("/a", "f1")
    assert shelf.events() == [("f1", "opened")]
    shelf.now_s += 600
    shelf.put("/b", came_at=began_s)
    assert shelf.events(with_fixed=True) == []


def test_a_trace_put_back_is_another_run(shelf: Shelf) -> None:
    """Faulty, clean, and the very bytes of the first night again: reopened."""
    shelf.put("/latest", "f1", content="faulty")
    assert shelf.events() == [("f1", "opened")]
    shelf.pass_days(1)
    shelf.put("/latest", content="clean")
    assert shelf.events(with_fixed=True) == [("f1", "fixed")]
    shelf.pass_days(1)
    shelf.put("/latest", "f1", content="faulty")
    assert shelf.events(with_fixed=True) == [("f1", "reopened")]
    assert shelf.events(with_fixed=True) == []


def test_a_job_that_is_renamed_is_another(shelf: Shelf) -> None:
    """Its finding is told under the new name; the old one ends when no run has it for long."""
    shelf.put("/a", "old")
    shelf.events()
    shelf.pass_days(20)
    shelf.put("/b", "new", name="renamed")
    assert shelf.events(with_fixed=True) == [("new", "opened")]
    shelf.pass_days(20)
    shelf.put("/c", "new", name="renamed")
    assert shelf.events(with_fixed=True) == [("old", "fixed")]


def test_what_is_lost_a_day_is_that_of_the_last_night(shelf: Shelf) -> None:
    """Two runs of a night are two jobs; older nights do not count, nor newer rules that judge them anew."""
    shelf.put("/a", cause_of("f1", recoverable=0.5), content="a")
    assert [ticket["gpu_hours_lost_per_day"] for ticket in shelf.emit()] == [pytest.approx(16 * 24 * 0.5)]
    shelf.pass_days(1)
    shelf.put("/b", cause_of("f1", recoverable=0.1))
    shelf.put("/c", cause_of("f1", recoverable=0.2))
    shelf.put("/a", cause_of("f1", recoverable=0.5), content="a", identity="newer rules", came_at=shelf.now_s - DAY_S)
    update_findings(shelf.store, shelf.now_s, 30 * DAY_S)
    (ticket,) = shelf.tickets().all_open()
    assert ticket.finding.gpu_hours_lost_per_day == pytest.approx(16 * 24 * 0.3)
    assert ticket.finding.worst_location == "/c" and ticket.title.endswith("steps 1.25x")


def test_what_is_lost_a_day_falls_with_its_jobs(shelf: Shelf) -> None:
    """A host that two jobs blamed, and one of them no longer when it is diagnosed anew, costs what the other loses."""
    shelf.put("/a", on_host("bad", "gpu-1", recoverable=0.2), content="a", name="a")
    shelf.put("/b", on_host("bad", "gpu-1", recoverable=0.1), content="b", name="b")
    (ticket,) = shelf.emit()
    assert ticket["gpu_hours_lost_per_day"] == pytest.approx(16 * 24 * 0.3)
    shelf.put("/a", content="a", name="a", identity="newer rules")
    update_findings(shelf.store, shelf.now_s, 30 * DAY_S)
    (left,) = shelf.tickets().all_open()
    assert left.finding.gpu_hours_lost_per_day == pytest.approx(16 * 24 * 0.1)


def test_prune(shelf: Shelf) -> None:
    """Runs, sightings and messages of what is long over go; nothing that is open is closed, or told twice, for that."""
    shelf.put("/a", "fixed")
    shelf.put("/x", "open", name="x")
    shelf.events()
    shelf.pass_days(1)
    shelf.put("/b")
    assert shelf.events(with_fixed=True) == [("fixed", "fixed")]
    shelf.pass_days(29)
    shelf.put("/c")
    assert shelf.events(with_fixed=True) == []
    sent_at = sa.update(schema.DELIVERIES).values(sent_at=shelf.now_s - 29 * DAY_S)
    shelf.store.transact(lambda connection: connection.execute(sent_at))
    pruned = shelf.store.prune(shelf.now_s - 20 * DAY_S)
    assert (pruned.n_jobs, pruned.n_runs, pruned.n_sightings, pruned.n_deliveries) == (3, 3, 2, 2)
    again = shelf.store.prune(shelf.now_s - 20 * DAY_S)
    assert (again.n_jobs, again.n_runs, again.n_sightings, again.n_deliveries) == (0, 0, 0, 0)
    assert shelf.events(with_fixed=True) == []
    assert (state(shelf, "open"), state(shelf, "fixed")[0]) == (("open", None), "fixed")
    shelf.put("/d", "fixed")
    shelf.put("/y", name="x")
    assert sorted(shelf.events(with_fixed=True)) == [("fixed", "reopened"), ("open", "fixed")]


def test_what_was_told_of_a_ticket_that_was_fixed_since_is_kept(shelf: Shelf) -> None:
    """However long ago it was told: it goes with what was fixed before, a day later."""
    shelf.put("/a", "fixed")
    shelf.events()
    shelf.pass_days(1)
    shelf.put("/b")
    assert shelf.events(with_fixed=True) == [("fixed", "fixed")]
    sent_at = sa.update(schema.DELIVERIES).values(sent_at=shelf.now_s - DAY_S)
    shelf.store.transact(lambda connection: connection.execute(sent_at))
    assert [shelf.store.prune(shelf.now_s + days * DAY_S).n_deliveries for days in (-0.5, 0.5)] == [0, 2]


#: What schema 3 kept of a job with a finding that was told.
_OF_SCHEMA_3 = """
INSERT INTO jobs (location, status, identity, content, job_id, framework, n_gpus, verdict)
    VALUES ('/a', 'diagnosed', 'i', 'c', 'a', 'megatron', 16, 'straggling');
INSERT INTO causes (location, place, cause, title, confidence, recoverable, workers, stages, hosts, links, fingerprint)
    VALUES ('/a', 1, 'worker-fault', 'slow worker', 0.9, 0.2, '[]', '[]', '[]', '[]', 'old');
INSERT INTO documents VALUES ('/a', '{}');
INSERT INTO times VALUES ('/a', 1780000000.0, 2.0, 's');
INSERT INTO runs VALUES ('/a', 'c', 'i', 'megatron, dp 4', 'straggling', NULL, NULL, 1780000000.0, 1780000000.0);
INSERT INTO findings VALUES ('old', 'worker-fault', 'slow worker', 'megatron, dp 4', 'open', 'opened', 1780000000.0, NULL,
    1780000000.0, 1780000000.0, NULL, 1780000000.0, 1, 'high', 'platform', NULL, '/a', 76.8, 0.9, '{}', NULL, NULL);
INSERT INTO sightings VALUES ('old', '/a', 'c');
INSERT INTO deliveries VALUES ('output', 'old-1780000000-opened', 'old-1780000000', 'opened', NULL, 1780000000.0)
"""


def test_a_store_of_an_older_version(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was told stays told; diagnosed anew, its finding has another fingerprint: the old one ends, and the new one is told."""
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:3])
        with Store(store_url) as old, old._engine.begin() as connection:
            for statement in _OF_SCHEMA_3.split(";"):
                connection.execute(sa.text(statement))
    with Store(store_url) as store:
        store.enter()
        shelf = Shelf(store_url, store, now_s=1_780_000_000.0 + DAY_S)
        assert shelf.events(with_fixed=True) == [] and state(shelf, "old") == ("open", None)
        shelf.put("/a", "new", content="c", identity="this version", name="a", came_at=1_780_000_000.0)
        assert sorted(shelf.events(with_fixed=True)) == [("new", "opened"), ("old", "fixed")]
