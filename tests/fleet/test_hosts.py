"""Hosts blamed more often than by chance: against all outcomes counted out, and against simulation."""

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from diagnose.fleet.hosts import count_hosts, tail_probability

from .jobs import cause, job


def tail_by_counting(chances: list[float], least: int) -> float:
    """Add the probabilities of all outcomes in which at least so many events happen."""
    total = 0.0
    for outcome in itertools.product((0, 1), repeat=len(chances)):
        if sum(outcome) >= least:
            total += math.prod(p if hit else 1 - p for p, hit in zip(chances, outcome, strict=True))
    return total


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9), st.integers(1, 9))
@settings(max_examples=100)
def test_tail_equals_all_outcomes_counted_out(chances: list[float], least: int) -> None:
    """The probability is the sum over all outcomes."""
    expected = tail_by_counting(chances, least) if least <= len(chances) else 0.0
    assert tail_probability(chances, least) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("n", "p", "k"), [(50, 0.02, 5), (1000, 0.001, 12), (3000, 1 / 256, 60)])
def test_tail_of_equal_chances_is_binomial(n: int, p: float, k: int) -> None:
    """With equal chances it is scipy's binomial, down to probabilities that no difference from 1 could show."""
    assert tail_probability([p] * n, k) == pytest.approx(stats.binom.sf(k - 1, n, p), rel=1e-9)


def blaming(n: int, host: str | None, hosts: tuple[str, ...], **fields: object) -> list:
    """Make jobs on these hosts that blame one of them, each at another place."""
    found = []
    for i in range(n):
        causes = () if host is None else (cause(host=host, dp=i),)
        found.append(job(f"/{host}-{fields.get('content', i)}-{i}", *causes, hosts=hosts, **fields))
    return found


def test_by_hand() -> None:
    """Two of two jobs on four hosts each blame one host: by chance 1/16, expected in half a job."""
    found = count_hosts(blaming(2, "h1", ("h1", "h2", "h3", "h4")))
    (entry,) = found.blamed
    assert (entry.host, entry.n_blamed, entry.n_ran, entry.expected) == ("h1", 2, 2, 0.5)
    assert entry.p_value == 1 / 16
    assert entry.p_adjusted == pytest.approx(4 / 16)  # four hosts were looked at
    assert entry.proposal == ""
    assert (found.n_jobs, found.n_hosts, found.n_unknown, found.n_copies) == (2, 4, 0, 0)


def test_p_value_equals_simulation() -> None:
    """Drawing culprits at random in jobs of other sizes blames the host as often as said."""
    draw = random.Random(7)
    sizes = [2, 3, 4, 8, 8, 5]
    jobs = [
        job(f"/{i}", cause(host="h0" if i < 3 else "h1", dp=i), hosts=tuple(f"h{n}" for n in range(size)))
        for i, size in enumerate(sizes)
    ]
    entry = next(entry for entry in count_hosts(jobs).blamed if entry.host == "h0")
    hits = [sum(draw.randrange(size) == 0 for size in sizes) >= 3 for _ in range(40_000)]
    assert entry.n_blamed == 3
    assert np.mean(hits) == pytest.approx(entry.p_value, abs=0.01)


def test_a_bad_host_is_proposed() -> None:
    """A host blamed wherever it is stands out among jobs that blame others, and only it."""
    rng = random.Random(3)
    jobs = []
    for i in range(200):
        hosts = tuple(sorted({"bad", *(f"h{n}" for n in rng.sample(range(100), 7))}))[: 7 + i % 2]
        blamed = "bad" if "bad" in hosts and i % 3 else rng.choice(hosts)
        jobs.append(job(f"/{i}", cause(host=blamed, dp=i % 4), hosts=hosts))
    proposed = [entry for entry in count_hosts(jobs).blamed if entry.proposal]
    assert [entry.host for entry in proposed] == ["bad"]
    assert "drain" in proposed[0].proposal and "propose" in proposed[0].proposal


def test_chance_alone_proposes_nothing() -> None:
    """In 20 fleets whose culprits are drawn at random, hosts are proposed in two at most: one in twenty is the level."""
    n_false = 0
    for seed in range(20):
        rng = random.Random(seed)
        jobs = []
        for i in range(100):
            hosts = tuple(sorted(f"h{n}" for n in rng.sample(range(60), 8)))
            jobs.append(job(f"/{i}", cause(host=rng.choice(hosts), dp=i), hosts=hosts))
        n_false += any(entry.proposal for entry in count_hosts(jobs).blamed)
    assert n_false <= 2


def test_one_place_may_be_to_blame() -> None:
    """A host that is always blamed at one place of one kind of job is to be swapped before it is drained."""
    hosts = tuple(f"h{n}" for n in range(16))
    jobs = [job(f"/{i}", cause(host="h0", dp=3), hosts=hosts) for i in range(5)]
    (entry,) = count_hosts(jobs).blamed
    assert entry.n_places == 1 and entry.proposal.startswith("always at one place")
    jobs[0] = job("/0", cause(host="h0", dp=4), hosts=hosts)
    assert count_hosts(jobs).blamed[0].proposal.startswith("propose to drain")


def test_copies_count_once() -> None:
    """The same trace under five names is one job."""
    found = count_hosts(blaming(5, "h1", ("h1", "h2"), content="same"))
    assert (found.n_jobs, found.n_copies, found.blamed) == (1, 4, ())


def test_causes_of_the_job_blame_no_host() -> None:
    """A cause that its owner mends says nothing of the hosts that it shows on."""
    jobs = [job(f"/{i}", cause("allocator-stall", host="h1", who="job owner"), hosts=("h1", "h2")) for i in range(9)]
    assert count_hosts(jobs).blamed == ()


def test_jobs_that_do_not_say_their_hosts_are_in_no_test() -> None:
    """Without the hosts of a job there is no chance to compare with, and the number of such jobs is said."""
    found = count_hosts([*blaming(2, "h1", ("h1", "h2")), job("/x", cause(host="h1"), hosts=None)])
    assert (found.n_jobs, found.n_unknown, found.blamed[0].n_blamed) == (2, 1, 2)


def test_a_host_that_was_no_host_of_the_job_is_not_counted() -> None:
    """A culprit that is not among the hosts of its job cannot make a probability above 1."""
    found = count_hosts([job(f"/{i}", cause(host="ghost"), hosts=("h1",)) for i in range(3)])
    assert found.blamed == () and found.n_hosts == 1


def test_the_only_host_is_no_suspect() -> None:
    """A host that is all its jobs had is blamed with certainty by chance."""
    (entry,) = count_hosts(blaming(4, "h1", ("h1",))).blamed
    assert (entry.p_value, entry.expected, entry.proposal) == (1.0, 4.0, "")


def test_no_jobs() -> None:
    """An empty fleet has no hosts."""
    assert count_hosts([]).blamed == ()
