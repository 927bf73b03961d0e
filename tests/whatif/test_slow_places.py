"""Where slow transfers are, on hand-made seconds: what repeats is named, what is random is not."""

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from diagnose.errors import UsageError
from diagnose.faults.decoy import Decoy
from diagnose.faults.generate import generate
from diagnose.faults.inputs import Inputs
from diagnose.faults.network_fault import NetworkFault
from diagnose.faults.spec import JobSpec
from diagnose.model.optype import P2P, RECEIVES, Op
from diagnose.model.trace import Bools, Seconds
from diagnose.model.transfers import SlowPlaces
from diagnose.numerics.robust import lower_median
from diagnose.report import words
from diagnose.whatif import slow_places
from diagnose.whatif.components.transfer import TransferPart
from diagnose.whatif.observed import Observed
from diagnose.whatif.slow_places import (
    _are_alike,
    _find_innocent,
    _Lost,
    _repeat_places,
    _repeat_steps,
    find_slow_places,
    list_ways,
    pair_seconds,
)
from tests.judge.cases import Measured, causes, measure

JOB = JobSpec(pp=4, dp=4, microbatches=8, steps=16, transfer_s=5e-3, seed=53)


def with_fault(fault: NetworkFault, spec: JobSpec = JOB) -> Measured:
    """Measure a job with one fault."""
    return measure(generate(spec, [fault]).trace)


def slow_in(found: Measured) -> SlowPlaces:
    """Say where the slow transfers of a job are."""
    return found.removal.part_of(TransferPart).slow


def named(mask: Bools) -> list[list[int]]:
    """List where a mask is true."""
    return [list(map(int, at)) for at in np.argwhere(mask)]


@pytest.mark.parametrize("also", [(0, 2), (3, 1), (2, 0)])
def test_two_links_are_both_named_and_both_mended(also: tuple[int, int]) -> None:
    """Two slow links are named, on one dp rank or on two, and the first fix gives back what mending both does."""
    fault = NetworkFault(scope="link", dp_rank=0, stage=0, slowdown=10.0, also=(also,))
    job = generate(JOB, [fault])
    found = measure(job.trace)
    (cause,) = found.diagnosis.causes
    links = {(link.source.dp, link.source.pp) for link in cause.where.links}
    assert links == {(0, 0), also}
    (truth,) = job.truth.faults
    assert cause.recoverable == pytest.approx(truth.recoverable, abs=0.02)
    assert 1.0 - 1.0 / (cause.fixes[0].predicted_speedup or 1.0) == pytest.approx(cause.recoverable, abs=0.003)


#: Of five stages the third has two slow links.
CARD, FIRST, SECOND = (
    NetworkFault(scope="card", dp_rank=0, stage=2, slowdown=8.0),
    NetworkFault(scope="link", dp_rank=0, stage=1, slowdown=8.0),
    NetworkFault(scope="link", dp_rank=0, stage=2, slowdown=8.0),
)


@pytest.mark.parametrize("p2p", ["blocking", "asynchronous"])
@pytest.mark.parametrize("dp", [1, 2])
@pytest.mark.parametrize(
    ("faults", "is_card"),
    [
        ([CARD], (True, True)),
        ([FIRST, SECOND], (True, False)),  # with one dp rank no collective tells them from a card
        ([FIRST, dataclasses.replace(SECOND, slowdown=3.0)], (False, False)),
        ([dataclasses.replace(FIRST, onset=3), dataclasses.replace(SECOND, onset=11)], (False, False)),
    ],
    ids=["card", "alike", "unlike", "since when"],
)
def test_two_links_of_one_worker(faults: list[NetworkFault], is_card: tuple[bool, bool], dp: int, p2p: str) -> None:
    """They are its card's where they are slow alike; where no collective tells, the doubt is told, too."""
    spec = JobSpec(pp=5, dp=dp, microbatches=8, steps=16, transfer_s=5e-3, seed=5, p2p=p2p)  # type: ignore[arg-type]
    (cause,) = measure(generate(spec, faults).trace).diagnosis.causes
    if is_card[dp - 1]:
        assert [(worker.dp, worker.pp) for worker in cause.where.workers] == [(0, 2)] and not cause.where.links
    else:
        assert {link.source.pp for link in cause.where.links} == {1, 2} and not cause.where.workers
    doubted = dp == 1 and is_card[0]
    assert [words.name_alternative(other, cause) for other in cause.alternatives] == ["other places"] * doubted
    assert cause.confidence < 0.75 if doubted else cause.confidence > 0.9


def test_one_direction_of_a_link_is_one_direction() -> None:
    """Where transfers do not block, only the direction that is slow is named; backwards it goes from the later stage."""
    spec = JobSpec(pp=4, dp=4, microbatches=8, steps=16, transfer_s=5e-3, p2p="asynchronous", seed=53)
    for index, direction in enumerate(("forward", "backward")):
        fault = NetworkFault(scope="link", dp_rank=1, stage=1, slowdown=15.0, direction=direction)  # type: ignore[arg-type]
        found = with_fault(fault, spec)
        slow = slow_in(found)
        assert named(slow.ways) == [[index, 1, 1]]
        assert slow.mended_ways[index, 1, 1] > 0.9 and not slow.mended_ways[:, :, [0, 2, 3]].any()
        (link,) = found.diagnosis.causes[0].where.links
        assert (link.source.pp, link.target.pp) == ((1, 2), (2, 1))[index]


def test_flapping_collectives_are_weighed_by_their_seconds() -> None:
    """4 of 32 collectives of a stage with nearly all the lost seconds are found, and their excess is theirs, not the median's."""
    found = with_fault(NetworkFault(scope="group", stage=1, slowdown=1.0, stall_s=0.5, share=0.15))
    assert causes(found.diagnosis) == ["network-fault"]
    assert found.diagnosis.causes[0].where.stages == (1,)
    assert (found.diagnosis.features["network.excess_ratio"] or 0.0) > 10.0


def test_all_collectives_from_an_onset_are_nobodys() -> None:
    """Collectives of all stages slow from some step on are a fault of the network in no place."""
    found = with_fault(NetworkFault(scope="collectives", slowdown=6.0, onset=6))
    (cause,) = found.diagnosis.causes
    assert cause.cause == "network-fault"
    assert not (cause.where.workers or cause.where.stages or cause.where.links)
    assert named(slow_in(found).groups) == [[0], [1], [2], [3]]


def test_with_one_dp_rank_the_collectives_between_stages_are_the_networks_too() -> None:
    """Two stages, one rank each: what they reduce together is slow from some step on, as what they send is."""
    job = generate(
        JobSpec(pp=2, dp=1, microbatches=2, steps=13, forward_s=0.006, transfer_s=3e-5, collective_s=2e-4, seed=9),
        [NetworkFault(scope="card", slowdown=40.0, onset=8)],
    )
    found, truth = measure(job.trace), job.truth.faults[0].recoverable
    assert truth > 0.04 and found.gains.recoverable("transfer") == pytest.approx(truth, abs=0.005)
    assert causes(found.diagnosis) == ["network-fault"]
    assert found.diagnosis.causes[0].when.onset_step == job.truth.faults[0].onset_step


def test_a_switch_is_all_links_between_its_hosts() -> None:
    """All links between two hosts slow from some step on are all named, and the switch is mended; one host has no switch."""
    spec = dataclasses.replace(JOB, workers_per_host=4)
    found = with_fault(NetworkFault(scope="switch", stage=1, slowdown=10.0, onset=6), spec)
    (cause,) = found.diagnosis.causes
    assert [(link.source.dp, link.source.pp) for link in cause.where.links] == [(dp, 1) for dp in range(4)]
    assert "cable between hosts host-001 and host-002, as all 4 links between them are slow" in cause.fixes[0].summary
    with pytest.raises(UsageError, match="on one"):
        generate(JOB, [NetworkFault(scope="switch", stage=1, onset=6)])


def test_a_card_of_the_last_stage_is_told_by_its_collectives() -> None:
    """Where the only link and the collectives of a worker take about as many times as long, it is the card."""
    job = generate(JOB, [NetworkFault(scope="card", dp_rank=1, stage=3, slowdown=2.5)])
    found = measure(job.trace)
    assert named(slow_in(found).cards) == [[1, 3]]
    assert found.gains.recoverable("transfer") == pytest.approx(job.truth.faults[0].recoverable, abs=0.02)


@pytest.mark.parametrize("also", [(), ((2, 2),)])
def test_a_card_whose_links_move_little_is_told_by_them(also: tuple[tuple[int, int], ...]) -> None:
    """Where collectives lose nearly all, links say whose card it is; where those of another worker are slow, too, nobody does."""
    spec = dataclasses.replace(JOB, transfer_s=2e-5)
    faults = [NetworkFault(scope="card", dp_rank=1, stage=0, slowdown=20.0)]
    faults += [NetworkFault(scope="link", dp_rank=dp, stage=stage, slowdown=20.0) for dp, stage in also]
    slow = slow_in(measure(generate(spec, faults).trace))
    assert slow.groups.tolist() == [True, False, False, False]
    assert named(slow.cards) == ([] if also else [[1, 0]])


def test_a_link_at_certain_hours_repeats() -> None:
    """A link that is 1.5 times as slow for half of the time is told by the noise of its equals, and takes part of the steps."""
    spec = dataclasses.replace(JOB, steps=24, transfer_s=0.02)
    found = with_fault(NetworkFault(scope="link", dp_rank=2, stage=0, slowdown=1.5, cycle_steps=8), spec)
    assert named(slow_in(found).ways) == [[0, 0, 2], [1, 0, 2]]
    features = found.diagnosis.features
    assert (features["network.repeats"] or 0.0) > 0.9
    assert features["network.steps_share"] == pytest.approx(0.5, abs=0.1)


def test_most_cards_are_no_place() -> None:
    """One slow card of eight is named; where six are slow, that is no card's fault, and nothing repeats at a place."""
    spec = dataclasses.replace(JOB, dp=2)
    for n_cards in (1, 6):
        slow = slow_in(measure(generate(spec, [card(dp, stage) for dp, stage in CARDS[:n_cards]]).trace))
        assert named(slow.cards) == ([list(CARDS[0])] if n_cards == 1 else [])


@pytest.mark.parametrize("p2p", ["blocking", "asynchronous"])
@pytest.mark.parametrize("places", [[(0, 1), (0, 2), (1, 1)], [(0, 1), (0, 2), (1, 2)]])
def test_slow_cards_that_most_links_end_at_are_named_and_nobody_else(places: list[tuple[int, int]], p2p: Any) -> None:
    """Five of six links are slow, and two groups: the quick link clears the fourth worker of these stages."""
    job = generate(dataclasses.replace(JOB, dp=2, p2p=p2p), [card(dp, stage) for dp, stage in places])
    found = measure(job.trace)
    (cause,) = found.diagnosis.causes
    assert named(slow_in(found).cards) == [list(place) for place in places] and cause.confidence > 0.8
    assert cause.recoverable == pytest.approx(1.0 - job.truth.step_time_without_any_s / job.truth.step_time_s, abs=0.01)


def test_most_groups_are_slow_by_cards_that_links_tell() -> None:
    """Two of three groups are: the third one says what a collective takes."""
    spec = JobSpec(pp=3, dp=4, microbatches=6, steps=20, forward_s=0.02, seed=3)
    job = generate(spec, [NetworkFault(scope="card", dp_rank=0, stage=0, also=((2, 2),), slowdown=25.0)])
    found = measure(job.trace)
    assert named(slow_in(found).cards) == [[0, 0], [2, 2]]
    assert found.gains.recoverable("transfer") == pytest.approx(job.truth.faults[0].recoverable, abs=0.04)


@pytest.mark.parametrize("pp", [3, 4])
def test_all_groups_are_slow_by_the_cards_of_one_dp_rank(pp: int) -> None:
    """None stands out among the others, but links say whose cards they are."""
    spec = JobSpec(pp=pp, dp=2, microbatches=6, steps=20, forward_s=0.02, seed=3)
    cards = tuple((0, stage) for stage in range(1, pp))
    job = generate(spec, [NetworkFault(scope="card", dp_rank=0, stage=0, also=cards, slowdown=25.0, cycle_steps=6)])
    found = measure(job.trace)
    assert named(slow_in(found).cards) == [[0, 0], *map(list, cards)]
    assert causes(found.diagnosis) == ["network-fault"]
    assert found.gains.recoverable("transfer") == pytest.approx(job.truth.faults[0].recoverable, abs=0.02)


#: All workers of stages 1 to 3, of two dp ranks.
CARDS = [(dp, stage) for stage in (2, 1, 3) for dp in range(2)]


def card(dp: int, stage: int) -> NetworkFault:
    """Slow one card."""
    return NetworkFault(scope="card", dp_rank=dp, stage=stage, slowdown=5.0)


#: Milliseconds of the reductions of the two stages of a real job, step by step, on hosts whose processes waited for processors.
REAL_MS = np.array([
    [17, 12, 5, 19, 17, 34, 5, 7, 31, 26, 31, 18, 32, 29, 18, 22, 24, 25, 37, 27, 34, 10, 13, 13, 18, 24, 12, 33, 28, 23, 25,
     23, 31, 24, 24, 6, 8, 20, 16],
    [10, 6, 12, 6, 28, 10, 15, 24, 11, 25, 26, 23, 19, 19, 21, 16, 9, 6, 3, 36, 8, 16, 12, 30, 22, 25, 5, 5, 3, 5, 4, 7, 12,
     13, 5, 8, 12, 25, 31],
])  # fmt: skip


class BusyHosts(Decoy):
    """Collectives take as long as those of the real job."""

    name = "busy-hosts"

    def apply(self, inputs: Inputs) -> Inputs:
        """Let the reductions of both stages take so long, on all members alike."""
        stall_s = inputs.stall_s.copy()
        for stage, of_stage in enumerate(REAL_MS):
            at = inputs.programme.is_op(Op.REDUCE_SCATTER) & (inputs.programme.stage == stage)
            stall_s[at] += 1e-3 * of_stage[:, None]
        return dataclasses.replace(inputs, stall_s=stall_s)


def test_collectives_that_vary_on_busy_hosts() -> None:
    """Groups that take now 5 and now 35 ms, one twice as long as the other, are no network fault."""
    spec = JobSpec(pp=2, dp=2, microbatches=4, steps=REAL_MS.shape[1], forward_s=0.03, collective_s=1e-4, seed=5)
    found = measure(generate(spec, [], [BusyHosts()]).trace)
    assert not slow_in(found).groups.any()
    assert "network-fault" not in causes(found.diagnosis)


class LongAtRandom(Decoy):
    """Transfers anywhere are long at random."""

    name = "long-at-random"

    def apply(self, inputs: Inputs) -> Inputs:
        """Let one transfer of 25 take 10 ms to a second longer, wherever it is."""
        rng = np.random.default_rng(7)
        stall_s = inputs.stall_s.copy()
        tasks = np.flatnonzero(inputs.programme.is_op(*P2P))
        stall_s[tasks] += np.where(
            rng.random((len(tasks), *inputs.lanes)) < 0.04,
            np.exp(rng.normal(-4.0, 1.0, (len(tasks), *inputs.lanes))),
            0.0,
        )
        return dataclasses.replace(inputs, stall_s=stall_s)


def test_what_is_long_at_random_is_no_fault_of_the_network() -> None:
    """Transfers that are long at random on all links alike are no network fault, whatever they cost."""
    found = measure(generate(JOB, [], [LongAtRandom()]).trace)
    assert found.gains.recoverable("transfer") > 0.05
    assert not slow_in(found).found
    assert (found.diagnosis.features["network.repeats"] or 0.0) < 0.3
    assert "network-fault" not in causes(found.diagnosis)


@dataclasses.dataclass(frozen=True)
class LateTogether(Decoy):
    """Busy hosts: what a stage receives one way in a step is late together, now more and now less."""

    seed: int
    name = "late-together"

    def apply(self, inputs: Inputs) -> Inputs:
        """Let the messages of each stage, way and step be late by one draw, of some 2.5 ms."""
        rng, stall_s, programme = np.random.default_rng(self.seed), inputs.stall_s.copy(), inputs.programme
        for op in RECEIVES:
            for stage in range(4):
                tasks = np.flatnonzero(programme.is_op(op) & (programme.stage == stage))
                if len(tasks):
                    stall_s[tasks] += np.exp(rng.normal(-6.0, 1.0, inputs.lanes))
        return dataclasses.replace(inputs, stall_s=stall_s)


def test_messages_that_are_late_together_count_once() -> None:
    """Of many messages that one delay makes late nobody learns where it comes again: few jobs have a slow link by that."""
    spec = JobSpec(pp=4, dp=1, microbatches=8, steps=8, forward_s=0.016, transfer_s=1e-3, p2p="asynchronous")
    jobs = [generate(dataclasses.replace(spec, seed=n), [], [LateTogether(n)]) for n in range(126, 134)]
    said = [cause for job in jobs for cause in measure(job.trace).diagnosis.causes]
    assert sum(cause.cause == "network-fault" and cause.confidence > 0.5 for cause in said) <= 2


def took_one_by_one(o: Observed, seconds: dict[int, Seconds]) -> dict[tuple[int, int], Seconds]:
    """Say what the message of each pair took as `pair_seconds` does, pair by pair."""
    recv_of = {node: max(pair, key=lambda n: o.block.nodes.op[n] in RECEIVES) for pair in o.pairs for node in pair}
    batch_of = {node: batch for batch in o.graph.list_batches() for node in batch}
    zero, by_way = np.zeros(o.block.start_s.shape[1:]), dict[tuple[int, int], dict[tuple[int, int], list[Seconds]]]()
    for pair, way in list_ways(o).items():
        took = np.minimum(*(seconds[n] for n in pair)) if all(n in seconds for n in pair) else zero
        by_recv, recv = took, recv_of[pair[0]]
        beside = [recv_of[node] for node in batch_of.get(recv, ()) if node != recv and node in recv_of]
        if recv in seconds and not any(other in batch_of[recv] for other in beside):
            alone = np.all([o.block.end_s[other] < o.block.end_s[recv] for other in beside], axis=0)
            by_recv = np.where(alone, seconds[recv], took)
        by_way.setdefault(way, {})[pair[0], pair[1]] = [took, by_recv]
    usual = {way: lower_median(np.stack([s for _, s in of.values()]), axis=0) for way, of in by_way.items()}
    return {
        pair: np.maximum(took, np.minimum(by_recv, usual[way]))
        for way, of_way in by_way.items()
        for pair, (took, by_recv) in of_way.items()
    }


@pytest.mark.parametrize(
    "spec",
    [
        JOB,
        dataclasses.replace(JOB, p2p="pairs"),
        dataclasses.replace(JOB, p2p="asynchronous"),
        dataclasses.replace(JOB, vpp=2),
    ],
    ids=["blocking", "pairs", "asynchronous", "two recvs in a batch"],
)
def test_messages_of_all_pairs_at_once_took_what_they_took_one_by_one(spec: JobSpec) -> None:
    """Whatever ends together, and whatever few transfers are late: the same seconds; pairs that took none are left out."""
    (o,) = measure(generate(spec, []).trace).observed
    random = np.random.default_rng(1)
    end_s = o.block.end_s + 1e-6 * random.random(o.block.end_s.shape)  # those of a batch are never quite equal
    o = dataclasses.replace(o, block=dataclasses.replace(o.block, end_s=end_s))
    for share in (1.0, 0.7, 0.01, 0.0):
        late = o.find_pairs().ravel()
        late = late[random.random(len(late)) < share].tolist()
        seconds = {n: random.exponential(size=o.block.start_s.shape[1:]) * (random.random() < 0.8) for n in late}
        expected = {pair: took for pair, took in took_one_by_one(o, seconds).items() if took.any()}
        rows, took_s = pair_seconds(o, seconds)
        found = dict(zip(map(tuple, o.find_pairs()[rows].tolist()), took_s, strict=True))
        assert found.keys() == expected.keys() and all((found[pair] == expected[pair]).all() for pair in found)


def test_a_link_that_is_quick_alone_is_innocent() -> None:
    """Of two slow links of one worker the one that is quick where nothing else moves; where nobody knows that, none is."""
    ways = np.zeros((2, 3, 2), dtype=bool)
    ways[0, :2, 1] = True
    alone_s = np.full((2, 3, 2), np.nan)
    assert not _find_innocent(ways, alone_s).any()
    alone_s[0, :2, 1] = 1.0, 10.0
    innocent = _find_innocent(ways, alone_s)
    assert innocent[0, 0, 1] and not innocent[0, 1, 1] and not innocent[:, :, 0].any()


@pytest.mark.parametrize(("ratio", "alike"), [(2.5, True), (4.0, False)])
def test_links_that_are_slow_now_and_then_are_alike_as_far_as_chance_goes(ratio: float, *, alike: bool) -> None:
    """Two that lose thirty times each, at times of their own: a slow card's may differ by a factor of 2.8."""
    ways = np.zeros((2, 3, 1, 180))
    ways[0, 0, 0, ::6], ways[0, 1, 0, 3::6] = 1.0, ratio
    exists, no_groups = np.ones((2, 3, 1), dtype=bool), np.zeros(3, dtype=bool)
    lost = _Lost(ways, np.zeros((3, 180)), exists, no_groups, np.arange(180), 60.0, 60.0, 0.1, None)
    assert _are_alike(lost, 1, 0) == alike


@pytest.mark.parametrize(("n_alone", "alike"), [(2, True), (9, True), (12, False)])
def test_links_of_a_card_are_slow_in_the_same_steps(n_alone: int, *, alike: bool) -> None:
    """But for a quarter of those in which either is."""
    ways = np.zeros((2, 3, 1, 40))
    ways[0, 0, 0] = ways[0, 1, 0] = 1.0
    ways[0, 1, 0, :n_alone] = 0.0
    exists, no_groups = np.ones((2, 3, 1), dtype=bool), np.zeros(3, dtype=bool)
    lost = _Lost(ways, np.zeros((3, 40)), exists, no_groups, np.arange(40), 60.0, 60.0, 0.1, None)
    assert _are_alike(lost, 1, 0) == alike


def test_a_link_that_makes_all_others_look_slow_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all links lose alike no place repeats; without those that another one holds up, that one does."""
    ways, exists = np.full((2, 4, 1, 20), 0.01), np.ones((2, 4, 1), dtype=bool)
    ways[:, 3], exists[:, 3] = 0.0, False  # no link leaves the last stage
    lost = _Lost(ways, np.zeros((4, 20)), exists, np.zeros(4, dtype=bool), np.arange(20), 900.0, 900.0, 0.5, None)
    held_up = exists & (np.arange(4) != 1)[None, :, None]
    monkeypatch.setattr(slow_places, "_add_up", lambda *_: lost)
    monkeypatch.setattr(slow_places, "_find_waiting", lambda *_: np.zeros(exists.shape))
    monkeypatch.setattr(slow_places, "_find_victims", lambda *_: held_up)
    assert _repeat_places(lost, ways.sum(axis=(0, 1, 2))) == 0.0
    assert named(find_slow_places([], [], [], 4).ways) == [[0, 1, 0], [1, 1, 0]]


@pytest.mark.parametrize(
    ("late_ms", "repeats"),
    [((3, 2, 4, 130, 2, 1, 3, 5), False), ((3, 2, 4, 130, 2, 110, 3, 5), True), ((130, 2, 4, 90, 2, 1, 60, 5), True)],
)
def test_one_late_step_repeats_nothing(late_ms: tuple[int, ...], repeats: bool) -> None:
    """Beside it one link has the ordinary variation of a busy host, which is no second time; of two or three such steps it is."""
    ways = np.zeros((2, 3, 1, len(late_ms)))
    ways[0, 1, 0] = late_ms
    exists, no_groups = np.ones((2, 3, 1), dtype=bool), np.zeros(3, dtype=bool)
    lost = _Lost(ways, np.zeros((3, len(late_ms))), exists, no_groups, np.arange(len(late_ms)), 20.0, 20.0, 0.5, None)
    share = _repeat_places(lost, ways.sum(axis=(0, 1, 2)))
    assert (share is not None and share > 0.8) == repeats


def test_a_link_that_flaps_repeats_whichever_way_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN single late messages of a link, one way in one half of the steps and the other in the other, THEN it is named."""
    ways, exists = np.zeros((2, 4, 1, 20)), np.ones((2, 4, 1), dtype=bool)
    ways[0, 1, 0, [3, 9, 14]], ways[1, 1, 0, [5, 11, 17]] = [6.0, 4.0, 2.0], [5.0, 3.0, 1.0]
    lost = _Lost(ways, np.zeros((4, 20)), exists, np.zeros(4, dtype=bool), np.arange(20), 6.0, 6.0, 0.02, 900.0)
    monkeypatch.setattr(slow_places, "_add_up", lambda *_: lost)
    monkeypatch.setattr(slow_places, "_find_waiting", lambda *_: np.zeros(exists.shape))
    monkeypatch.setattr(slow_places, "_find_victims", lambda *_: np.zeros(exists.shape, dtype=bool))
    assert _repeat_places(lost, ways.sum(axis=(0, 1, 2))) == 0.0
    assert named(find_slow_places([], [], [], 4).ways) == [[0, 1, 0], [1, 1, 0]]


@pytest.mark.parametrize(("link_s", "step_s", "worth"), [(1.0, 5.0, False), (1.0, 2.0, True), (0.1, 5.0, True)])
def test_little_beside_far_more_is_not_named(
    monkeypatch: pytest.MonkeyPatch, link_s: float, step_s: float, *, worth: bool
) -> None:
    """GIVEN a group that loses less than a hundredth of the step, or more, beside a link that loses far more, or not."""
    ways, exists = np.zeros((2, 4, 1, 20)), np.ones((2, 4, 1), dtype=bool)
    ways[0, 2, 0], groups = link_s, np.repeat([[0.03], [0.0], [0.0], [0.0]], 20, axis=1)
    has_group = np.ones(4, dtype=bool)
    lost = _Lost(ways, groups, exists, has_group, np.arange(20), 40.0, 40.0, 0.1, None, step_s=step_s)
    monkeypatch.setattr(slow_places, "_add_up", lambda *_: lost)
    monkeypatch.setattr(slow_places, "_find_waiting", lambda *_: np.zeros(exists.shape))
    monkeypatch.setattr(slow_places, "_find_victims", lambda *_: np.zeros(exists.shape, dtype=bool))
    found = find_slow_places([], [], [], 4)
    assert named(found.ways) == [[0, 2, 0]]
    assert found.groups.tolist() == [worth, False, False, False]
    assert found.mended_groups.any() == worth


@pytest.mark.parametrize(("n_slow", "repeats"), [(1, False), (2, True)])
def test_the_only_group_is_slow_in_all_of_its_collectives(n_slow: int, *, repeats: bool) -> None:
    """GIVEN two a step and a stretch of slow steps, THEN one of them alone has no second one that says so."""
    seconds = np.where(np.arange(20) >= 8, 1.0, 0.0)
    collectives = np.array([seconds, seconds if n_slow == 2 else np.zeros(20)])
    nothing, exists = np.zeros((2, 1, 4, 20)), np.zeros((2, 1, 4), dtype=bool)
    one_group = np.ones(1, dtype=bool)
    groups = collectives.sum(axis=0)[None]
    lost = _Lost(nothing, groups, exists, one_group, np.arange(20), 12.0, 12.0, 0.5, None, collectives)
    assert (_repeat_steps(lost) > 0.8) == repeats
    assert (
        _repeat_steps(dataclasses.replace(lost, collectives=seconds[None])) > 0.8
    )  # with one a step nobody else is asked


@pytest.mark.parametrize(("period", "jitter", "told"), [(3, 0, True), (4, 0, True), (4, 1, False)])
def test_what_is_slow_everywhere_every_so_many_steps_is_no_noise(
    monkeypatch: pytest.MonkeyPatch, period: int, jitter: int, *, told: bool
) -> None:
    """GIVEN links that are slow together in each third or fourth step, or now and then, THEN an interval tells, too."""
    steps = np.arange(30)
    every = steps[period - 1 :: period]
    slow = every - jitter * np.random.default_rng(5).integers(3, size=len(every))
    ways, exists = np.zeros((2, 4, 2, 30)), np.ones((2, 4, 2), dtype=bool)
    ways[..., slow] = 1.0
    lost = _Lost(ways, np.zeros((4, 30)), exists, np.zeros(4, dtype=bool), steps, 100.0, 100.0, 0.3, None)
    monkeypatch.setattr(slow_places, "_add_up", lambda *_: lost)
    monkeypatch.setattr(slow_places, "_find_waiting", lambda *_: np.zeros(exists.shape))
    monkeypatch.setattr(slow_places, "_find_victims", lambda *_: np.zeros(exists.shape, dtype=bool))
    found = find_slow_places([], [], [], 4)
    assert (found.in_time, found.at_interval) == (told, told)


def test_a_collective_of_all_workers_that_is_slow_from_a_step_on_is_nobodys_card() -> None:
    """Gradients are clipped over all workers: links that lose a hundredth of that are not the place of it."""
    job = generate(JobSpec(pp=4, dp=2, microbatches=8, steps=24, contiguous=True, seed=3), [])
    table = job.trace.to_pandas()
    since = table["step"].min() + 15
    clip = table[table.optype == "optimizer-clip-main-grad"].groupby("step").start_ts.max()
    late = table.step >= since
    table.loc[late & (table.start_ts > table.step.map(clip) + 1e-9), "start_ts"] += 4.0
    table.loc[late & (table.optype == "optimizer-clip-main-grad"), "duration"] += 4.0
    (cause,) = measure(pa.Table.from_pandas(table, preserve_index=False)).diagnosis.causes
    assert (cause.cause, cause.when.onset_step) == ("network-fault", since)
    assert not cause.where.workers and not cause.where.links
    assert "collectives are slow everywhere" in cause.fixes[0].summary
