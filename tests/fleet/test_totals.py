"""Sums over jobs, by hand and as properties."""

from hypothesis import given, settings
from hypothesis import strategies as st

from diagnose.fleet.measure import FleetQuery, measure_fleet
from diagnose.fleet.totals import add_up, find_gaps, slice_all

from .jobs import cause, close, failed, job

JOBS = [
    job(
        "/x/a",
        cause("worker-fault", share=0.75, host="h1"),
        cause("data-loading", share=0.25, who="job owner"),
        wasted=40.0,
    ),
    job("/x/b", cause("worker-fault", share=0.5, recoverable=0.2, host="h1"), wasted=20.0, owner="alice"),
    job("/y/c", wasted=1.0, owner="alice", when_s=86_400.0),
]


def test_totals() -> None:
    """Jobs are counted by what came of them, and GPU hours are of those that say something."""
    odd = job("/odd", verdict="inconclusive", wasted=1000.0)
    found = add_up([*JOBS, job("/rough", verdict="noisy"), odd, failed("/f")])
    counts = (found.n_jobs, found.n_counted, found.n_straggling, found.n_healthy, found.n_noisy)
    assert counts == (6, 4, 2, 1, 1)
    assert (found.n_inconclusive, found.n_failed) == (1, 1)
    assert (found.hours_analysed, found.hours_wasted, found.hours_recoverable) == (400.0, 71.0, 10.0)


def test_unpriced_jobs_are_counted() -> None:
    """A job whose plan has no price is not a job that gives back nothing."""
    found = add_up([job("/a", cause(), hours_recoverable=None), job("/b", cause())])
    assert (found.hours_recoverable, found.n_unpriced) == (5.0, 1)


def test_by_cause() -> None:
    """Each job's lost time goes to its causes by their shares, and the rest to none."""
    found = {entry.key: entry for entry in slice_all(JOBS)["cause"]}
    assert [entry.key for entry in slice_all(JOBS)["cause"]] == ["worker-fault", "data-loading", None]
    assert (found["worker-fault"].hours_wasted, found["worker-fault"].n_jobs) == (40.0, 2)
    assert found["worker-fault"].hours_recoverable == 30.0  # a tenth of 100 and a fifth of 100
    assert (found["data-loading"].hours_wasted, found[None].hours_wasted) == (10.0, 11.0)


def test_by_host() -> None:
    """What a cause lost goes to the hosts that it blames, and to nobody where it blames none."""
    found = {entry.key: entry.hours_wasted for entry in slice_all(JOBS)["host"]}
    assert found == {"h1": 40.0, None: 21.0}


def test_by_owner_folder_and_day() -> None:
    """Jobs with the same owner, folder or day stand together; those without an owner come last."""
    found = slice_all(JOBS)
    assert [(entry.key, entry.hours_wasted) for entry in found["owner"]] == [("alice", 21.0), (None, 40.0)]
    assert [(entry.key, entry.hours_wasted) for entry in found["folder"]] == [("/x", 60.0), ("/y", 1.0)]
    assert [(entry.key, entry.n_jobs) for entry in found["day"]] == [("1970-01-01", 2), ("1970-01-02", 1)]


def test_gaps() -> None:
    """Jobs without a diagnosis are grouped by why, the most frequent first, with one reason as it was given."""
    jobs = [
        failed("/1"),
        failed("/2", "timeout", "over 600 s"),
        failed("/3"),
        job("/4", verdict="inconclusive"),
        JOBS[0],
    ]
    found = find_gaps(jobs)
    assert [(gap.kind, gap.n_jobs, gap.example) for gap in found] == [
        ("input", 2, "/1"),
        ("inconclusive", 1, "/4"),
        ("timeout", 1, "/2"),
    ]
    assert found[2].reason == "over 600 s"


names = st.sampled_from(["a", "b", "", None])
causes = st.builds(
    cause, st.sampled_from(["c1", "c2"]), share=st.none() | st.floats(0, 1), host=st.sampled_from(["h1", "h2", None])
)
jobs = st.lists(
    st.builds(
        lambda found, **fields: (found, fields),
        st.lists(causes, max_size=3),
        owner=names,
        framework=names,
        wasted=st.none() | st.floats(0, 1e6),
        when_s=st.floats(0, 1e9),
        verdict=st.sampled_from(["healthy", "noisy", "straggling", "inconclusive"]),
    ),
    max_size=8,
)


@given(jobs)
@settings(max_examples=100)
def test_every_slicing_sums_to_the_whole(made: list) -> None:
    """However lost time is sliced, nothing is lost and nothing counted twice."""
    fleet = [job(f"/{i}/j", *found, **fields) for i, (found, fields) in enumerate(made)]
    total = add_up(fleet).hours_wasted
    for key, slices in slice_all(fleet).items():
        assert close(sum(entry.hours_wasted for entry in slices), total), key
        assert len({entry.key for entry in slices}) == len(slices)


@given(jobs, st.randoms(use_true_random=False))
@settings(max_examples=50)
def test_order_does_not_matter(made: list, chance: object) -> None:
    """The same jobs in another order give the same sums, to the last digit."""
    fleet = [job(f"/{i}/j", *found, **fields) for i, (found, fields) in enumerate(made)]
    mixed = fleet.copy()
    chance.shuffle(mixed)
    assert slice_all(mixed) == slice_all(fleet) and add_up(mixed) == add_up(fleet)


def test_asked() -> None:
    """Only the jobs asked for are in the figures; what is new is judged by those of any time."""
    old = job("/x/old", cause(fingerprint="o"), when_s=-200_000.0, owner="alice")
    fleet = measure_fleet([*JOBS, old], FleetQuery(since_s=0.0, owner="alice"))
    assert [entry.location for entry in fleet.jobs] == ["/x/b", "/y/c"]
    assert fleet.night is not None and fleet.night.n_earlier == 1
    assert [entry.location for entry in measure_fleet(JOBS, FleetQuery(cause="data-loading")).jobs] == ["/x/a"]
    assert [entry.location for entry in measure_fleet(JOBS, FleetQuery(folder="/x/")).jobs] == ["/x/a", "/x/b"]
    assert measure_fleet([job("/xy/a")], FleetQuery(folder="/x")).jobs == ()
    assert measure_fleet(JOBS, FleetQuery(framework="none")).totals.n_jobs == 0


def test_ranked() -> None:
    """Jobs stand by what they lost, or by what they would give back."""
    more = job("/z", cause(), wasted=6.0, hours_recoverable=6.0)
    assert [one.location for one in measure_fleet([*JOBS, more], FleetQuery()).jobs][:2] == ["/x/a", "/x/b"]
    assert measure_fleet([*JOBS, more], FleetQuery(rank="recoverable")).jobs[0].location == "/z"
