"""Packing in a running job: every document once, the same on all ranks, from the same seed, and after a restart."""

import itertools
import json
import re
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from diagnose.errors import UsageError
from diagnose.packing import PackedBatchSampler, PackedIterable
from diagnose.packing.balanced import pack_balanced
from diagnose.packing.cost import PUBLISHED_COST, Cost
from diagnose.packing.forming import PackerName
from diagnose.packing.greedy import pack_greedy
from diagnose.packing.measure import measure
from diagnose.packing.plan import Documents, Packing, check_documents
from diagnose.packing.queues import pack_queues
from diagnose.packing.ranks import RanksPacker, fill_ranks

PACKERS = get_args(PackerName)
N_BATCHES, BATCH, MICROBATCHES, RANKS, WINDOW = 30, 40, 2, 3, 40_000
THRESHOLDS = (10_000, 20_000)
SETTINGS: dict[str, Any] = {
    "batch_documents": BATCH,
    "n_microbatches": MICROBATCHES,
    "max_tokens": WINDOW,
    "n_ranks": RANKS,
}


def draw(n: int = N_BATCHES * BATCH + 7) -> np.ndarray:
    """Draw lengths, a few of them long."""
    rng = np.random.default_rng(3)
    return np.where(rng.random(n) < 0.1, rng.integers(8_000, 38_000, n), rng.integers(50, 3_000, n))


LENGTHS = draw()


def pack_ranks(docs: Documents) -> Packing:
    """Pack batch after batch, to ranks first."""
    packer = RanksPacker(RANKS)
    for batch, arriving in docs.arriving():
        packer.form(docs, batch, arriving)
    return docs.packing()


OFFLINE = {"greedy": pack_greedy, "ranks": pack_ranks, "queues": pack_queues, "balanced": pack_balanced}


def sample(packer: str, rank: int = 0, **changes: Any) -> PackedBatchSampler:
    """Make the sampler of one rank."""
    thresholds = THRESHOLDS if packer == "queues" else ()
    return PackedBatchSampler(LENGTHS, rank=rank, packer=packer, thresholds=thresholds, **(SETTINGS | changes))


@pytest.mark.parametrize("packer", PACKERS)
def test_every_document_comes_once(packer: str) -> None:
    """In two epochs all ranks together give each document of an epoch once, but those that wait, and no microbatch is empty."""
    samplers = [sample(packer, rank) for rank in range(RANKS)]
    seen: list[int] = []
    for _epoch in range(2):
        of_ranks = [list(one) for one in samplers]
        assert {len(of_rank) for of_rank in of_ranks} == {len(samplers[0])} == {N_BATCHES * MICROBATCHES}
        microbatches = list(itertools.chain.from_iterable(of_ranks))
        assert all(microbatches)
        assert max(int(LENGTHS[documents].sum()) for documents in microbatches) <= WINDOW
        seen += itertools.chain.from_iterable(microbatches)
    counts = np.bincount(seen, minlength=len(LENGTHS))
    report = samplers[0].report()
    assert counts.max() == 2
    assert counts.sum() == report.n_documents == 2 * N_BATCHES * BATCH - report.n_waiting
    assert report == samplers[1].report()
    assert report.n_waiting < BATCH


@pytest.mark.parametrize("packer", PACKERS)
def test_it_packs_as_the_packer_does(packer: str) -> None:
    """Document by document, batches are those of the packer on all the data at once, and so are balance and delay."""
    sampler = [sample(packer, rank, shuffle=False) for rank in range(RANKS)]
    n = N_BATCHES * BATCH
    batch_of = np.full(n, -1)
    for of_rank in map(list, sampler):
        for number, documents in enumerate(of_rank):
            batch_of[documents] = number // MICROBATCHES
    options = {"thresholds": THRESHOLDS} if packer == "queues" else {}
    docs = check_documents(LENGTHS[:n], np.arange(n) // BATCH, MICROBATCHES * RANKS, PUBLISHED_COST, WINDOW)
    packing = OFFLINE[packer](docs, **options)
    np.testing.assert_array_equal(batch_of, packing.batch)
    report, found = sampler[0].report(), measure(packing, PUBLISHED_COST, WINDOW)
    assert report.imbalance == pytest.approx(found.mean_imbalance)
    assert report.n_waiting == found.waiting_documents
    placed = packing.batch >= 0
    delay = (packing.batch - packing.arrives)[placed]
    assert report.max_delay == delay.max()
    assert report.mean_delay == pytest.approx(np.average(delay, weights=packing.lengths[placed]))


@pytest.mark.parametrize("packer", ["balanced", "queues"])
def test_ranks_cost_alike(packer: str) -> None:
    """Documents as they come leave a rank with a third more than the mean; packed, with a few percent."""
    costs = PUBLISHED_COST.of(LENGTHS[: N_BATCHES * BATCH // (RANKS * 4) * RANKS * 4]).reshape(-1, RANKS, 4).sum(axis=2)
    assert (costs.max(axis=1) / costs.mean(axis=1)).mean() > 1.3
    sampler = sample(packer)
    list(sampler)
    assert sampler.report().rank_imbalance < 1.1


@pytest.mark.parametrize("n_trained", [0, 1, 7, N_BATCHES * MICROBATCHES])
@pytest.mark.parametrize("packer", PACKERS)
def test_a_restart_goes_on_with_the_same_data(packer: str, n_trained: int) -> None:
    """A state that went through JSON gives the same microbatches as a run that never stopped, in the next epoch too."""
    whole, stopped = sample(packer, 1), sample(packer, 1)
    first, second, third = list(whole), list(whole), list(whole)
    assert first != second
    list(stopped)
    handed = list(itertools.islice(stopped, n_trained))
    assert handed == second[:n_trained]
    again = sample(packer, 1)
    again.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
    assert list(again) == second[n_trained:]
    assert list(again) == third
    assert again.report() == whole.report()


def test_what_a_loader_asked_for_ahead_is_not_trained() -> None:
    """Where a loader has asked for all of an epoch and 5 microbatches are trained, the state begins with the sixth."""
    ahead, again = sample("balanced"), sample("balanced")
    first = list(ahead)
    again.load_state_dict(ahead.state_dict(n_trained=5))
    assert list(again) == first[5:]


def test_another_seed_gives_other_data() -> None:
    """The seed and the epoch choose the order; without shuffling it is that of the dataset."""
    first = list(sample("greedy"))
    assert first == list(sample("greedy"))
    assert first != list(sample("greedy", seed=1))
    later = sample("greedy")
    later.set_epoch(1)
    assert first != list(later)
    plain = list(sample("greedy", shuffle=False))
    assert set(itertools.chain.from_iterable(plain[:MICROBATCHES])) <= set(range(BATCH))


def test_a_state_of_other_settings_is_refused() -> None:
    """With other settings the data would be others: the first that differs is named."""
    state = sample("greedy").state_dict()
    with pytest.raises(UsageError, match="packer='greedy'; expected 'balanced'"):
        sample("balanced").load_state_dict(state)
    with pytest.raises(UsageError, match="n_ranks=3; expected 2"):
        sample("greedy", n_ranks=2).load_state_dict(state)
    sample("greedy", rank=2).load_state_dict(state)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"batch_documents": 5}, "5 documents for 6 microbatches"),
        ({"batch_documents": 10**6}, "fill no global batch"),
        ({"max_tokens": 20_000}, "cut documents first"),
        ({"rank": 3}, "rank 3 of 3"),
        ({"packer": "magic"}, "no packer 'magic'"),
        ({"packer": "queues", "thresholds": (5, 5)}, "that rise"),
    ],
)
def test_settings_without_sense_are_refused(changes: dict[str, Any], says: str) -> None:
    """A sampler that could not go on to the end is refused when it is made."""
    with pytest.raises(UsageError, match=says):
        PackedBatchSampler(LENGTHS, **(SETTINGS | changes))


def test_no_microbatch_is_empty_where_documents_are_few() -> None:
    """With as many documents as microbatches none waits, whatever the packer would like."""
    for packer in PACKERS:
        sampler = sample(packer, batch_documents=MICROBATCHES * RANKS)
        assert all(sampler)


@pytest.mark.parametrize("packer", PACKERS)
def test_an_iterable_is_packed_as_a_dataset_is(packer: str) -> None:
    """Documents that come one after the other are packed as those of a dataset in its order, and a restart reads them again."""
    thresholds = THRESHOLDS if packer == "queues" else ()

    def read(rank: int) -> PackedIterable[tuple[int, int]]:
        documents = list(enumerate(LENGTHS.tolist()))
        return PackedIterable(
            documents, lambda one: one[1], rank=rank, packer=packer, thresholds=thresholds, **SETTINGS
        )

    of_dataset, found = sample(packer, 2, shuffle=False), read(2)
    expected = list(of_dataset)
    assert [[number for number, _ in microbatch] for microbatch in found] == expected
    assert found.report() == of_dataset.report()
    stopped, again = read(2), read(2)
    list(itertools.islice(stopped, 9))
    again.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
    assert [[number for number, _ in microbatch] for microbatch in again] == expected[9:]


@pytest.mark.parametrize("n_workers", [0, 2])
def test_a_real_loader_takes_it(n_workers: int) -> None:
    """PyTorch's `DataLoader` gives the microbatches in order, and hands the epochs on."""
    data = pytest.importorskip("torch.utils.data", reason="torch is not installed: there is no DataLoader")
    sampler = sample("balanced")
    loader = data.DataLoader(
        range(len(LENGTHS)), batch_sampler=sampler, num_workers=n_workers, collate_fn=list,
        multiprocessing_context="fork" if n_workers else None,
    )  # fmt: skip
    expected = sample("balanced")
    assert len(loader) == len(expected)
    for _epoch in range(2):
        assert list(loader) == list(expected)


def test_the_page_shows_how() -> None:
    """What the page on packing shows runs as it stands: the loader gives what the sampler chooses."""
    pytest.importorskip("torch", reason="torch is not installed: there is no DataLoader")
    page = Path(__file__).parents[2] / "docs/how-to/pack.md"
    (script,) = re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    known: dict[str, Any] = {"lengths": [500, 30_000, 2_000] * 200, "dp_rank": 1, "dp_size": 2, "pack": list}
    known["dataset"] = range(600)
    exec(compile(script, page.name, "exec"), known)
    assert len(list(known["loader"])) == 2 * 4
    assert known["sampler"].report().n_batches == 2


def test_sums_of_ranks_are_closer_when_ranks_come_first() -> None:
    """Documents dealt to ranks first give ranks that cost alike, where microbatches that cost alike do not."""
    reports = {}
    for packer in ("greedy", "ranks"):
        sampler = sample(packer, max_tokens=4 * WINDOW)
        list(sampler)
        reports[packer] = sampler.report()
    assert reports["ranks"].rank_imbalance - 1.0 < 0.5 * (reports["greedy"].rank_imbalance - 1.0)
    assert reports["ranks"].delayed_share == 0.0


def test_what_has_no_room_on_its_rank_waits() -> None:
    """Three documents of 6 tokens fit a rank of two microbatches of 10 by their sum alone: one of them waits."""
    docs = check_documents([6, 6, 6, 6], [0] * 4, 2, Cost(linear=1.0, quadratic=0.0), 10)
    placed, waiting = fill_ranks(docs, range(3), 1)
    assert (placed, waiting) == ({0: 0, 1: 1}, [2])
