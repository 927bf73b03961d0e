"""What is tested: suspects, controls, and pairs that tell a bad machine from a bad link."""

import msgspec.structs
import pytest

from diagnose.confirm.plan import make_plan
from diagnose.errors import TraceError, UsageError
from diagnose.model.place import Link, Where, Worker
from tests.confirm.stands import HOSTS, document, link


def test_a_slow_worker() -> None:
    """Its machine is tested beside four others, spread over the job; its card is known where ranks are dealt evenly."""
    plan = make_plan(document())
    (suspect,) = plan.suspects
    assert (suspect.host, suspect.causes, suspect.cards) == ("node-3", ("worker-fault",), (3,))
    assert len(set(plan.controls)) == 4 and set(plan.controls) < set(HOSTS) - {"node-3"}
    assert plan.tests == ("gpu", "cpu", "memory") and not plan.pairs and plan.n_cards == 8
    assert plan == make_plan(document())


def test_a_slow_link() -> None:
    """Both ends send to each other and to controls, controls among themselves; in a round nobody has two partners."""
    plan = make_plan(document("network-fault", link(2, 9)))
    assert plan.tests == ("network",)
    pairs = [{pair.server, pair.client} for pair in plan.pairs]
    assert {"node-2", "node-9"} in pairs
    for end in ("node-2", "node-9"):
        assert len([pair for pair in pairs if end in pair]) == 3
    assert sum(pair <= set(plan.controls) for pair in pairs) == 4
    for n in range(plan.n_rounds):
        busy = [host for pair in plan.pairs if pair.round == n for host in (pair.server, pair.client)]
        assert len(busy) == len(set(busy)) > 0


@pytest.mark.parametrize("n", [1, 5, 16, 40])
def test_pairs_are_few(n: int) -> None:
    """Two pairs a suspect and a ring of controls, however many are blamed; sixteen at once."""
    hosts = tuple(f"h{n}" for n in range(100))
    where = Where(workers=tuple(Worker(k, 0, 8 * k, f"h{k}") for k in range(n)))
    plan = make_plan(document("network-fault", where, hosts))
    assert len(plan.suspects) == min(n, 16) and plan.left_out == max(0, n - 16)
    assert len(plan.pairs) == 2 * len(plan.suspects) + 4
    assert plan.n_rounds <= 12  # of two minutes at most


def test_links_are_placed_by_the_trace() -> None:
    """The ends of a link bear no host in the JSON: the trace says where they ran."""
    where = Where(links=(Link(Worker(0, 1), Worker(0, 2)),))
    with pytest.raises(UsageError, match="names workers, but not the machines"):
        make_plan(document("network-fault", where))
    plan = make_plan(document("network-fault", where), host_of=lambda _dp, stage: f"node-{stage}")
    assert [one.host for one in plan.suspects] == ["node-1", "node-2"]
    assert plan.suspects[0].partners == ("node-2",)


def test_a_link_within_a_machine_is_for_the_diagnostics_of_its_cards() -> None:
    """Nothing between machines would show it."""
    where = Where(links=(Link(Worker(0, 1), Worker(0, 2)),))
    assert make_plan(document("network-fault", where), host_of=lambda *_: "node-4").tests == ("network", "gpu")


def test_machines_named_by_hand() -> None:
    """They stand in place of those of the diagnosis; a healthy job can have a machine tested, too."""
    plan = make_plan(document(), suspects=["node-7", "node-7"], controls=["other-1", "other-2"])
    assert [one.host for one in plan.suspects] == ["node-7"] and plan.controls == ("other-1", "other-2")
    healthy = msgspec.structs.replace(document(), causes=())
    assert make_plan(healthy, suspects=["node-7"]).tests == ("network", "gpu", "cpu", "memory", "disk")
    assert "node-3" not in make_plan(document(), suspects=["node-7"], n_controls=14).controls
    for suspects in ([], ["node-7"]):
        with pytest.raises(UsageError, match="node-3 is a suspect, and cannot be a control"):
            make_plan(document(), suspects=suspects, controls=["node-3"])


@pytest.mark.parametrize(
    "name",
    [
        "$(reboot)",
        "a;b",
        "-oProxyCommand=x",
        "a b",
        "a\nb",
        "../etc",
        "a/b",
        "'",
        '"',
        "`x`",
        "a,b",
        "n[1-9]",
        "é",
        ".",
        "a" * 300,
        "x\x1b[31m",
        "",
    ],
)
def test_hostile_names_are_refused(name: str) -> None:
    """A name that is an order in a shell, an option, a list of Slurm or a path is refused, whoever gives it."""
    where = Where(workers=(Worker(3, 0, 27, name or None),), hosts=(name,) if name else ("\x00",))
    with pytest.raises(TraceError, match="is no name of a machine"):
        make_plan(document(where=where))
    with pytest.raises(TraceError, match="is no name of a machine"):
        make_plan(document(), controls=[name])
    chosen = make_plan(document(hosts=(name, "node-3", "ok-1"))).controls
    assert chosen == ("ok-1",)


def test_hostile_jobs_get_a_digest() -> None:
    """The id of a job stands in scripts: what is more than letters, digits and a few signs becomes a number."""
    assert make_plan(document(job_id="a'; rm -rf /")).job.isalnum()
    assert make_plan(document(job_id="team/run-7")).job == "team/run-7"
