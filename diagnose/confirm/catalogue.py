"""What is tested, for which cause, and from when on a figure speaks against a machine.

A machine is compared with sound ones of the same job, which the same program measured in the same minutes. No figure of a data
sheet is used: it knows nothing of the site's power caps, cooling and cables.
"""

import dataclasses
from typing import Final, Literal

from diagnose.model.confirmation import TestName

#: Whether more is better, or less; `pass` has no figure.
Better = Literal["more", "less", "pass"]


@dataclasses.dataclass(frozen=True, slots=True)
class Test:
    """How one figure is read."""

    __test__ = False  # no test of pytest

    #: For people: what is measured.
    words: str
    #: Of its values, for people; "part" is shown in percent.
    unit: str
    #: `pass`: it has no figure.
    better: Better
    #: As a part of the controls' median (of "part" and "a core": above it), from here on the machine is worse.
    slow: float
    #: Within this it is as good as they are. Between the two nobody can tell.
    sound: float


TESTS: Final[dict[TestName, Test]] = {
    # Cards of one model are 8% apart on average in matrix products, and up to 22% where cooling or power holds some back, which is
    # what is looked for (Sinha and others, SC '22, five clusters). 10% below the median of the neighbours is more than chance; the
    # spread of the controls themselves is asked besides.
    "gemm": Test("matrix products", "TFLOP/s", "more", 0.10, 0.05),
    # Memory and links of cards run at fixed clocks: sound ones are 1 to 2% apart; a link at half its width is 50% off.
    "card-memory": Test("memory of the card", "GB/s", "more", 0.10, 0.05),
    "pcie": Test("copies to the card", "GB/s", "more", 0.20, 0.10),
    # A call into the driver: its time varies with the processor by tens of percent, and doubles where something is wrong.
    "allocation": Test("allocating 64 MiB on the card", "ms", "less", 1.00, 0.40),
    "dcgm": Test("dcgmi diag -r 3", "", "pass", 0.0, 0.0),
    # ib_write_bw reaches 95 to 98% of the line on any sound pair; a lane that fell out costs at least a quarter.
    "network": Test("sending", "Gb/s", "more", 0.20, 0.10),
    "port": Test("network port", "", "pass", 0.0, 0.0),
    # One core in a loop: the same on machines of one model, but for what else runs there.
    "cpu": Test("one core", "M additions/s", "more", 0.15, 0.08),
    # 5 points of stolen time stop a launching thread for 50 ms of each second; none is stolen on a machine of one's own.
    "steal": Test("CPU taken by the hypervisor", "part", "less", 0.05, 0.02),
    # The tests are alone on the machine: half a task a core beyond what waits on the controls is somebody else's work.
    "run-queue": Test("tasks that want a core", "a core", "less", 0.50, 0.25),
    "memory": Test("main memory", "GB/s", "more", 0.20, 0.10),
    # Disks share what lies behind them: half the neighbours' speed is no chance any more, 30% may be.
    "disk": Test("writing to disk", "MB/s", "more", 0.50, 0.30),
    "data": Test("reading the data", "MB/s", "more", 0.50, 0.30),
}
#: Groups of tests, in the order in which the program runs them, and the seconds that each may take.
GROUPS: Final[dict[str, int]] = {"gpu": 2700, "cpu": 30, "memory": 30, "disk": 120}
#: Which groups are run for a cause, and which figures then confirm or clear it.
_OF_CAUSE: Final[dict[str, tuple[str, ...]]] = {
    "worker-fault": ("gpu", "cpu", "memory"),
    "allocator-stall": ("gpu", "cpu"),
    "kernel-queue-contention": ("gpu", "network"),
    "network-fault": ("network",),
    "data-loading": ("disk", "cpu", "memory"),
    "checkpoint-stall": ("disk", "network"),
    "garbage-collection": ("cpu", "memory"),
    # Kinds of rules/machines; for those that are not here, as a process that is gone, a machine is tested as a whole.
    "slow-gpu": ("gpu", "cpu", "memory"),
    "never-waits": ("gpu", "cpu", "memory"),
    "card-lost": ("gpu",),
    "memory-error": ("gpu",),
    "execution-error": ("gpu",),
    "nvlink": ("gpu",),
    "pcie-downgrade": ("gpu", "network"),
    "nic-down": ("network",),
    "cable": ("network",),
    "slow-link": ("network",),
    "storage": ("disk",),
    "gpu-starved": ("disk", "cpu", "memory"),
    "cpu-contention": ("cpu",),
}
#: For a cause that the list does not have: a machine as a whole.
_OF_ANY: Final = ("network", "gpu", "cpu", "memory", "disk")
_IN_GROUP: Final[dict[str, tuple[TestName, ...]]] = {
    "gpu": ("gemm", "card-memory", "pcie", "allocation", "dcgm"),
    "network": ("network", "port", "dcgm"),
    "cpu": ("cpu", "steal", "run-queue"),
    "memory": ("memory",),
    "disk": ("disk", "data"),
}
#: Without these nobody is cleared: what the cause would have to show in, by its groups, or of some causes by name.
_DECISIVE: Final[dict[str, tuple[TestName, ...]]] = {
    "gpu": ("gemm",),
    "network": ("network",),
    "cpu": ("cpu",),
    "memory": ("memory",),
    "disk": ("disk",),
    "memory-error": ("dcgm",),
    "execution-error": ("gemm", "dcgm"),
    "nvlink": ("dcgm",),
    "pcie-downgrade": ("pcie", "network"),
    "cpu-contention": ("cpu", "run-queue"),
}


def groups_of(cause: str) -> tuple[str, ...]:
    """Say which groups of tests are for a cause.

    >>> groups_of("network-fault"), groups_of("something-else")
    (('network',), ('network', 'gpu', 'cpu', 'memory', 'disk'))
    """
    return _OF_CAUSE.get(cause, _OF_ANY)


def tests_of(cause: str) -> tuple[TestName, ...]:
    """Say which figures confirm or clear a cause."""
    return tuple(test for group in groups_of(cause) for test in _IN_GROUP[group])


def decisive_of(cause: str) -> frozenset[TestName]:
    """Say which figures must be sound to clear a machine of a cause.

    >>> sorted(decisive_of("worker-fault")), sorted(decisive_of("nvlink"))
    (['cpu', 'gemm', 'memory'], ['dcgm'])
    """
    by_group = (test for group in groups_of(cause) for test in _DECISIVE[group])
    return frozenset(_DECISIVE.get(cause) or by_group)
