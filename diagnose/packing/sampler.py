"""Packing in a training job: a batch sampler for PyTorch's `DataLoader`, and microbatches of an iterable.

Enters: lengths of the documents of a dataset, or documents. Leaves: the documents of each microbatch of one data-parallel rank. All
ranks work out the same packing from the same data, and each takes its own microbatches: nothing is sent. Needs no torch.
"""

import dataclasses
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

import numpy as np

from diagnose.errors import UsageError
from diagnose.model.trace import Ints
from diagnose.packing.cost import PUBLISHED_COST, Cost
from diagnose.packing.forming import BatchPlan, Forming, PackerName, PackingReport
from diagnose.packing.plan import check_documents

LOGGER = logging.getLogger("diagnose.packing")

T = TypeVar("T")


class PackedBatchSampler:
    """Documents of each microbatch of this rank, by what they cost: for `DataLoader(dataset, batch_sampler=...)`.

    One epoch is one pass: documents in the order that seed and epoch give, `batch_documents` of them for each global batch. What
    waits at its end comes in the next epoch; what fills no global batch is left out of the epoch. With the same seed, lengths and
    settings the data are the same.

    Parameters
    ----------
    lengths : array_like of int, shape (n_docs,)
        Tokens of each document of the dataset, the same on all ranks.
    batch_documents, n_microbatches, max_tokens, rank, n_ranks, packer, cost, thresholds
        As of `BatchPlan`.
    shuffle : bool
        Draw another order in each epoch; else it is that of the dataset.
    seed : int

    Raises
    ------
    UsageError
        The settings make no sense, a document is longer than `max_tokens`, or there are too few for one global batch.

    Examples
    --------
    >>> sampler = PackedBatchSampler([9, 1, 4, 3, 3, 4], batch_documents=6, n_microbatches=2, max_tokens=20, shuffle=False)
    >>> list(sampler)
    [[0, 4], [1, 2, 3, 5]]
    """

    def __init__(  # noqa: PLR0913 - what a batch is, by name
        self,
        lengths: Any,
        *,
        batch_documents: int,
        n_microbatches: int,
        max_tokens: int,
        rank: int = 0,
        n_ranks: int = 1,
        packer: PackerName = "greedy",
        cost: Cost = PUBLISHED_COST,
        thresholds: tuple[int, ...] = (),
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        self.plan = BatchPlan(
            batch_documents, n_microbatches, max_tokens, rank, n_ranks, packer, cost, tuple(thresholds)
        )
        tokens: Ints = np.asarray(lengths)
        check_documents(tokens, np.zeros(len(tokens), dtype=np.int64), self.plan.n_bins, cost, max_tokens)
        self._lengths = tokens
        self._n_batches = len(tokens) // batch_documents
        if not self._n_batches:
            raise UsageError(f"{len(tokens)} documents fill no global batch; expected at least {batch_documents}")
        self._shuffle, self._seed = shuffle, seed
        self._settings = _describe(self.plan) | {"n_documents": len(tokens), "shuffle": shuffle, "seed": seed}
        self._forming = Forming(self.plan)
        #: The epoch, what waited when it began, how many of its microbatches were handed out, and how many are to be skipped.
        self._epoch, self._carried = 0, self._forming.state_dict()
        self._n_handed = self._n_skipped = 0
        #: Number and beginning of the last epoch that was handed out to its end.
        self._ended: tuple[int, dict[str, Any]] | None = None

    def __len__(self) -> int:
        """Give the microbatches of this rank in an epoch."""
        return self._n_batches * self.plan.n_microbatches

    def __iter__(self) -> Iterator[list[int]]:
        """Give the documents of each microbatch of this rank, to the end of the epoch."""
        n_skipped, self._n_skipped, self._n_handed = self._n_skipped, 0, 0
        forming = self._forming = Forming(self.plan, self._carried)
        for numbers in self._order().reshape(self._n_batches, -1):
            for microbatch in _own(self.plan, forming.form(numbers.tolist(), self._lengths[numbers].tolist())):
                self._n_handed += 1
                if self._n_handed > n_skipped:
                    yield microbatch
        self._ended = self._epoch, self._carried
        self._epoch, self._carried, self._n_handed = self._epoch + 1, forming.state_dict(), 0
        _log(f"epoch {self._epoch - 1}", self.report())

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes next, as trainers do; without it they are counted."""
        self._epoch = epoch

    def state_dict(self, n_trained: int | None = None) -> dict[str, Any]:
        """Give what is needed to go on with the same data: plain numbers, lists and names, to be saved with the job.

        Parameters
        ----------
        n_trained : int, optional
            Microbatches of the running epoch that this rank has trained. All that were handed out where left out; a loader with
            workers asks for some ahead, so that this must be said there.
        """
        epoch, carried = self._epoch, self._carried
        if n_trained and not self._n_handed and self._ended is not None:
            epoch, carried = self._ended  # its last microbatches were asked for, and are not trained yet
        n_trained = self._n_handed if n_trained is None else n_trained
        return {"epoch": epoch, "n_trained": n_trained, "carried": carried, "settings": self._settings}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was asked.

        Raises
        ------
        UsageError
            It is of another dataset, or of other settings.
        """
        _check_settings(state["settings"], self._settings)
        self._epoch, self._carried, self._n_skipped = state["epoch"], state["carried"], state["n_trained"]

    def report(self) -> PackingReport:
        """Say what packing did to the data so far: balance, delay and order."""
        return self._forming.report()

    def _order(self) -> Ints:
        """Give the documents of the epoch in the order in which they come."""
        n = self._n_batches * self.plan.batch_documents
        if not self._shuffle:
            return np.arange(n)
        order: Ints = np.random.default_rng([self._seed, self._epoch]).permutation(len(self._lengths))[:n]
        return order


class PackedIterable(Generic[T]):
    """Microbatches of this rank from documents that come one after the other: a wrapper of any iterable, a `DataLoader` too.

    All ranks must read the same documents in the same order; each gives only its own on. What still waits at the end, or fills no
    global batch, is not given.

    Parameters
    ----------
    documents : iterable
        Read anew, from the beginning, each time that this is iterated.
    length : function
        Gives the tokens of a document.
    batch_documents, n_microbatches, max_tokens, rank, n_ranks, packer, cost, thresholds
        As of `BatchPlan`.

    Examples
    --------
    >>> documents = ["a" * 9, "b", "c" * 4, "d" * 3, "e" * 3, "f" * 4]
    >>> list(PackedIterable(documents, batch_documents=6, n_microbatches=2, max_tokens=20))
    [['aaaaaaaaa', 'eee'], ['b', 'cccc', 'ddd', 'ffff']]
    """

    def __init__(  # noqa: PLR0913 - what a batch is, by name
        self,
        documents: Iterable[T],
        length: Callable[[T], int] = len,  # type: ignore[assignment]  # of what has one
        *,
        batch_documents: int,
        n_microbatches: int,
        max_tokens: int,
        rank: int = 0,
        n_ranks: int = 1,
        packer: PackerName = "greedy",
        cost: Cost = PUBLISHED_COST,
        thresholds: tuple[int, ...] = (),
    ) -> None:
        self.plan = BatchPlan(
            batch_documents, n_microbatches, max_tokens, rank, n_ranks, packer, cost, tuple(thresholds)
        )
        self._documents, self._length = documents, length
        self._forming = Forming(self.plan)
        self._n_handed = self._n_skipped = 0

    def __iter__(self) -> Iterator[list[T]]:
        """Give the documents of each microbatch of this rank."""
        n_skipped, self._n_skipped, self._n_handed = self._n_skipped, 0, 0
        forming = self._forming = Forming(self.plan)
        held: dict[int, T] = {}
        numbered = enumerate(self._documents)
        while len(arriving := dict(itertools.islice(numbered, self.plan.batch_documents))) == self.plan.batch_documents:
            held |= arriving
            batch = forming.form(list(arriving), [int(self._length(document)) for document in arriving.values()])
            for microbatch in _own(self.plan, batch):
                self._n_handed += 1
                if self._n_handed > n_skipped:
                    yield [held[number] for number in microbatch]
            held = {number: held[number] for number in forming.waiting}
        _log("the documents", self.report())

    def state_dict(self, n_trained: int | None = None) -> dict[str, Any]:
        """Give what is needed to go on; as of `PackedBatchSampler`, of this pass over the documents."""
        return {
            "n_trained": self._n_handed if n_trained is None else n_trained,
            "settings": _describe(self.plan),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was asked: documents before that are read again, and not given.

        Raises
        ------
        UsageError
            It is of other settings.
        """
        _check_settings(state["settings"], _describe(self.plan))
        self._n_skipped = state["n_trained"]

    def report(self) -> PackingReport:
        """Say what packing did to the data so far: balance, delay and order."""
        return self._forming.report()


def _own(plan: BatchPlan, microbatches: list[list[int]]) -> list[list[int]]:
    """Take the microbatches of this rank from those of a global batch."""
    return microbatches[plan.rank * plan.n_microbatches : (plan.rank + 1) * plan.n_microbatches]


def _describe(plan: BatchPlan) -> dict[str, Any]:
    """Give the settings on which the data depend, the same on all ranks."""
    return {name: value for name, value in dataclasses.asdict(plan).items() if name != "rank"}


def _check_settings(saved: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse a state of other settings: the data would be others."""
    for name, value in now.items():
        was = saved.get(name)
        if was != value and not (isinstance(value, tuple) and was == list(value)):
            raise UsageError(
                f"the saved state is of {name}={was!r}; expected {value!r}, as set now: with another the data change"
            )


def _log(what: str, report: PackingReport) -> None:
    """Say what packing did."""
    LOGGER.info(
        "%s packed: microbatches %.3f, ranks %.3f times the mean at most; %.1f%% of the tokens delayed, by %.2f global batches on "
        "average, %d at most; %.1f%% of the documents before older ones; %d wait",
        what,
        report.imbalance,
        report.rank_imbalance,
        100.0 * report.delayed_share,
        report.mean_delay,
        report.max_delay,
        100.0 * report.reordered_share,
        report.n_waiting,
    )
