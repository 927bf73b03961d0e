"""What is said of the dumps of jobs whose truth is known, and of dumps that were made to do harm."""

import pickle

import numpy as np
import pytest

import diagnose
from diagnose.errors import TraceError
from diagnose.report.html.page import render_without_replay
from diagnose.trace.collectives.unpickle import unpickle
from tests.collectives.simulate import Fault, Shape, list_groups, simulate
from tests.collectives.write import write_flight_recorder, write_inspector

SMALL = Shape(2, 4, 2)


def named(diagnosis):
    """Give the cause that is said first, and the ranks that it names."""
    first = diagnosis.causes[0]
    return first.cause, [worker.rank for worker in first.where.workers]


@pytest.mark.parametrize("as_json", [False, True])
def test_a_rank_that_is_missing(tmp_path, as_json):
    """A rank that stops is named with what it never called, and not those that wait for somebody who waits."""
    run = simulate(SMALL, Fault("hang", 11, at=0.6), seed=1, n_steps=6)
    diagnosis = diagnose.diagnose(write_flight_recorder(run, tmp_path / "dumps", seed=1, as_json=as_json))
    assert (diagnosis.verdict, named(diagnosis)) == ("straggling", ("unknown", [11]))
    hang = diagnosis.collectives.hang
    assert (hang.kind, hang.n_waiting) == ("missing", 15)
    assert diagnosis.causes[0].title.startswith("hang: rank 11 never called ")
    page = render_without_replay(diagnosis, "dumps")
    assert "Hang: rank 11 never called" in page
    assert "15 of 16 ranks wait" in page or "15 ranks wait" in page


def test_a_rank_that_died(tmp_path):
    """A rank without a dump that all wait for is named, less surely."""
    run = simulate(SMALL, Fault("died", 3, at=0.5), seed=2, n_steps=6)
    diagnosis = diagnose.diagnose(write_flight_recorder(run, tmp_path / "dumps", seed=1))
    assert (diagnosis.collectives.hang.kind, named(diagnosis)) == ("no-dump", ("unknown", [3]))


@pytest.mark.parametrize("seed", [226, 7026])
def test_a_hang_with_calls_queued_behind_it(tmp_path, seed):
    """A rank whose call waits in the queue behind an earlier one is waited for, and the one that never called is named."""
    assert score(tmp_path, [seed])["wrong"] == []


def test_one_pause_is_no_slow_worker(tmp_path):
    """A sound job in which one rank once paused for a tenth of a second has no slow worker."""
    assert score(tmp_path, [208])["wrong"] == []


def test_two_ranks_that_left_no_dump(tmp_path):
    """An eighth of the ranks are named together."""
    run = simulate(SMALL, Fault("hang", 11, at=0.6), seed=1, n_steps=6)
    folder = write_flight_recorder(run, tmp_path / "dumps", seed=1)
    for rank in (10, 11):
        (folder / f"nccl_trace_rank_{rank}").unlink()
    diagnosis = diagnose.diagnose(folder)
    assert (diagnosis.collectives.hang.kind, named(diagnosis)) == ("no-dump", ("unknown", [10, 11]))


@pytest.mark.parametrize("first", [4, 9])
def test_few_dumps_cannot_tell(tmp_path, first):
    """Where most ranks left no dump, or three of sixteen that others wait for, nobody is blamed."""
    run = simulate(SMALL, Fault("hang", 11, at=0.6), seed=1, n_steps=6)
    folder = write_flight_recorder(run, tmp_path / "dumps", seed=1)
    for rank in range(first, 16 if first == 4 else 12):
        (folder / f"nccl_trace_rank_{rank}").unlink()
    diagnosis = diagnose.diagnose(folder)
    assert (diagnosis.verdict, diagnosis.causes) == ("inconclusive", ())
    assert any("left no dump" in doubt for doubt in diagnosis.collectives.doubts)


def test_another_collective_under_one_number(tmp_path):
    """A rank that calls something else than its group is named with both."""
    run = simulate(SMALL, Fault("mismatch", 6, at=0.5), seed=3, n_steps=6)
    diagnosis = diagnose.diagnose(write_flight_recorder(run, tmp_path / "dumps", seed=1))
    assert diagnosis.collectives.hang.kind == "mismatch"
    assert 6 in diagnosis.collectives.hang.ranks


def test_a_job_under_way_does_not_hang(tmp_path):
    """Dumps taken one after the other while the job runs show ranks behind: nobody is said to hang."""
    run = simulate(SMALL, Fault(), seed=4, n_steps=6)
    folder = write_flight_recorder(run, tmp_path / "dumps", seed=1, cut_s=3.0, cut_spread_s=0.2, written=False)
    diagnosis = diagnose.diagnose(folder)
    assert diagnosis.collectives.hang is None
    assert diagnosis.causes == ()


def test_ranks_at_work_are_no_hang(tmp_path):
    """One rank that others wait for, while some neither wait nor are waited for, is at its own work."""
    run = simulate(SMALL, Fault(), seed=4, n_steps=6)
    doubts = []
    for cut_s in (1.917, 2.083):
        folder = tmp_path / f"{cut_s}"
        write_flight_recorder(run, folder, seed=1, cut_s=cut_s, cut_spread_s=0.01, written=False)
        diagnosis = diagnose.diagnose(folder)
        assert diagnosis.causes == ()
        doubts += diagnosis.collectives.doubts
    assert sum("waited for: a moment in a job under way" in doubt for doubt in doubts) == 2


@pytest.mark.parametrize("shape", [Shape(1, 8, 1), SMALL, Shape(1, 4, 4)])
@pytest.mark.parametrize("writer", ["timing", "inspector"])
def test_a_slow_rank(tmp_path, shape, writer):
    """The rank that computes longer is named, not those that wait for it and come late elsewhere."""
    run = simulate(shape, Fault("slow", 5, 1.35), seed=5, n_steps=12)
    if writer == "timing":
        folder = write_flight_recorder(run, tmp_path / "dumps", seed=1, timing=True)
    else:
        folder = write_inspector(run, tmp_path / "dumps", seed=1, version="v4.3", has_p2p=True, packed=True)
    assert named(diagnose.diagnose(folder)) == ("worker-fault", [5])


def test_a_slow_link(tmp_path):
    """A pair of ranks whose transfers take longer than those of others is named."""
    pair = ("pair", 5, 13)
    run = simulate(SMALL, Fault("link", factor=30.0, group=pair), seed=6, n_steps=12)
    diagnosis = diagnose.diagnose(write_inspector(run, tmp_path / "dumps", seed=1, version="v4.2", has_p2p=True))
    assert diagnosis.causes[0].cause == "network-fault"
    assert diagnosis.collectives.slow_groups[0].ranks == (5, 13)


@pytest.mark.parametrize("writer", ["calls", "timing", "inspector"])
def test_a_sound_job(tmp_path, writer):
    """Nothing is said of a job without a fault, nor that it is healthy."""
    run = simulate(SMALL, Fault(), seed=7, n_steps=12, heavy_last=0.2)
    if writer == "inspector":
        folder = write_inspector(run, tmp_path / "dumps", seed=1)
    else:
        folder = write_flight_recorder(run, tmp_path / "dumps", seed=1, timing=writer == "timing")
    diagnosis = diagnose.diagnose(folder)
    assert (diagnosis.verdict, diagnosis.causes) == ("inconclusive", ())


class _Bomb:
    """Runs a command where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return __import__("os").system, (f"touch {self.path}",)


def test_a_pickle_that_runs_code_does_nothing(tmp_path):
    """What asks for code is refused before anything of it is run, inside a dump as well."""
    proof = tmp_path / "ran"
    dump = {"version": "2.10", "pg_config": {}, "entries": [_Bomb(proof)]}
    for protocol in (2, 3, 4, 5):
        with pytest.raises(TraceError, match="asks to run code"):
            unpickle(pickle.dumps(dump, protocol=protocol), name="dump")
    file = tmp_path / "nccl_trace_rank_0"
    file.write_bytes(pickle.dumps(dump, protocol=2))
    with pytest.raises(TraceError, match="asks to run code"):
        diagnose.diagnose(file)
    assert not proof.exists()


@pytest.mark.parametrize(
    "bomb",
    [
        b"\x80\x02]r\xff\xff\xff\x7f.",  # a place in memory far away
        b"\x80\x02" + b"]" * 5_000_000 + b".",
        b"\x80\x02B\xff\xff\xff\x7f",  # text of 2 GB that is not there
        b"\x80\x02Pevil\n.",
        b"\x80\x02\x82\x01.",
        b"\x80\x02}q\x00h\x00s.",
        b"\x80\x02",
    ],
)
def test_bombs_are_refused(bomb):
    """Damage and bombs end in one line."""
    with pytest.raises(TraceError):
        unpickle(bomb, name="dump")


def test_damaged_dumps(tmp_path):
    """Cut, spliced and mistyped dumps are answered, or refused in one line."""
    rng = np.random.default_rng(1)
    run = simulate(Shape(1, 4, 1), Fault(), seed=8, n_steps=3)
    folder = write_flight_recorder(run, tmp_path / "dumps", seed=1)
    files = sorted(folder.iterdir())
    whole = [file.read_bytes() for file in files]
    junk = [None, -1, 1 << 80, "x" * 99, [], {}, True, 1.5, float("inf"), b"\0", ("a",), [[[1]]]]
    said_lines = []
    for _ in range(200):
        file, data = files[0], bytearray(whole[0])
        how = rng.integers(4)
        if how == 0:
            data = data[: rng.integers(4, len(data))]
        elif how == 1:
            for at in rng.integers(2, len(data), 5):
                data[at] = rng.integers(256)
        elif how == 2:
            data = data[: rng.integers(4, len(data))] + whole[1][rng.integers(len(whole[1])) :]
        else:
            dump = pickle.loads(whole[0])
            for entry in dump["entries"]:
                entry[list(entry)[rng.integers(len(entry))]] = junk[rng.integers(len(junk))]
            dump[list(dump)[rng.integers(len(dump))]] = (
                junk[rng.integers(len(junk))] if rng.random() < 0.3 else dump["entries"]
            )
            data = pickle.dumps(dump, protocol=2)
        file.write_bytes(bytes(data))
        try:
            diagnose.diagnose(folder)
        except TraceError as error:
            said_lines.append(str(error))
    assert said_lines
    assert not any("\n" in said for said in said_lines)


def test_some_jobs(tmp_path):
    """Of a few of them one rank at most is not right, and nothing is said of sound ones."""
    figures = score(tmp_path, range(7000, 7010))
    assert figures["faulty"] >= 5
    assert figures["right"] >= figures["faulty"] - 1
    assert figures["silent"] == figures["sound"]


@pytest.mark.benchmark
def test_sixty_jobs(tmp_path):
    """Of jobs of all layouts and faults the rank is right in 95%, and nothing is said of 98% of sound ones."""
    figures = score(tmp_path, range(7000, 7060))
    assert figures["right"] >= 0.95 * figures["faulty"]
    assert figures["silent"] >= 0.98 * figures["sound"]


@pytest.mark.parametrize("seed", [20160, 20264])
def test_ranks_at_work_in_a_job_under_way(tmp_path, seed):
    """Some ranks of different groups that all wait for, as each is at its own work, are no hang."""
    assert score(tmp_path, [seed])["wrong"] == []


def test_ranks_that_are_late_together(tmp_path):
    """By calls alone a slow rank and the other stages of its pipeline are late alike: all are named, and none is blamed."""
    ((_, _, _, rank, *_, said),) = score(tmp_path, [51055])["wrong"]
    assert "ranks 2, 10, 18, 26 come late together" in said
    assert rank == 26


@pytest.mark.benchmark
def test_sound_jobs(tmp_path):
    """Of a hundred and twenty sound jobs nothing is said of 98%."""
    figures = score(tmp_path, list_sound(30000, 30480))
    assert figures["sound"] == 120
    assert figures["silent"] >= 0.98 * figures["sound"]


#: What is wrong with a job, by its seed.
KINDS = ("none", "slow", "hang", "died", "mismatch", "link", "none", "slow")


def list_sound(first, end):
    """List the seeds of jobs that nothing is wrong with."""
    return [seed for seed in range(first, end) if KINDS[seed % len(KINDS)] == "none"]


SHAPES = [
    (1, 8, 1),
    (2, 2, 2),
    (2, 4, 2),
    (8, 2, 1),
    (4, 4, 2),
    (8, 2, 2),
    (1, 16, 1),
    (1, 8, 4),
    (8, 4, 2),
    (2, 4, 8),
    (8, 8, 8),
]


def write_job(path, seed, shapes=SHAPES):
    """Write the dumps of a job, and give what is wrong with it: the run, its kind, rank, factor and group, and the writer."""
    rng = np.random.default_rng(seed)
    shape = Shape(*shapes[rng.integers(len(shapes) - (seed % 12 != 0))])
    kind = KINDS[seed % len(KINDS)]
    rank = int(rng.integers(shape.world))
    group = ()
    if kind == "link":
        groups = [g for g in list_groups(shape) if g[0] == "dp"]
        group = groups[rng.integers(len(groups))]
        kind = "none" if len(groups) < 4 else kind
        if shape.pp > 1 and rng.random() < 0.5:
            tp, dp, pp = (int(rng.integers(n)) for n in (shape.tp, shape.dp, shape.pp - 1))
            group, kind = ("pair", shape.rank(tp, dp, pp), shape.rank(tp, dp, pp + 1)), "link"
    factor = 1 + rng.uniform(0.15, 0.8) if kind == "slow" else rng.uniform(10, 30)
    stands = kind in ("hang", "died", "mismatch")
    run = simulate(
        shape,
        Fault(kind, rank, factor, rng.uniform(0.3, 0.95), group),
        seed=seed,
        n_steps=3 if shape.world == 512 else 12,
        n_micro=int(rng.integers(2, 9)) if shape.world < 512 else 4,
        run_ahead=int(rng.integers(0, 8)) if stands else 0,
        heavy_last=0.15 * (rng.random() < 0.3),
    )
    last = max(call.arrive for calls in run.calls for call in calls)
    writers = (
        ("calls", "timing")
        if stands
        else ("timing", "inspector")
        if kind == "link"
        else ("calls", "timing", "inspector")
    )
    writer = writers[rng.integers(len(writers))]
    if writer == "inspector":
        write_inspector(run, path, seed=seed, version=("v4.2", "v4.3")[seed % 2], has_p2p=True, verbose=seed % 3 == 0)
    else:
        cut = {} if stands or rng.random() < 0.4 else {"cut_s": last * 0.8, "cut_spread_s": 0.05}
        write_flight_recorder(
            run,
            path,
            seed=seed,
            timing=writer == "timing",
            as_json=seed % 5 == 0,
            written=bool(rng.random() < 0.5),
            **cut,
        )
    return run, kind, rank, factor, group, writer


def score(folder, seeds):
    """Count how many jobs are answered as they are."""
    counted = {"right": 0, "faulty": 0, "silent": 0, "sound": 0, "wrong": []}
    for seed in seeds:
        path = folder / f"job-{seed}"
        run, kind, rank, factor, group, writer = write_job(path, seed)
        diagnosis = diagnose.diagnose(path)
        seen = diagnosis.collectives
        if kind == "none":
            good = not diagnosis.causes
        elif kind == "link":
            ranks = set(group[1:]) if group[0] == "pair" else set(run.members[group])
            good = bool(seen.slow_groups) and set(seen.slow_groups[0].ranks) == ranks and not seen.late_ranks
        elif kind in ("hang", "died", "mismatch"):
            good = seen.hang is not None and rank in seen.hang.ranks and len(seen.hang.ranks) <= 2
        else:
            good = [late.rank for late in seen.late_ranks] == [rank] and seen.hang is None
        counted["sound" if kind == "none" else "faulty"] += 1
        counted["silent" if kind == "none" else "right"] += good
        if not good:
            counted["wrong"].append((seed, run.shape, kind, rank, round(factor, 2), group, writer, diagnosis.summary))
    return counted
