"""How good answers about machines are: true and false positives by machine, over generated worlds.

Enters: worlds, and what names machines in each. Leaves: tables.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from tests.clusters.worlds import World

#: Kinds of rules that are right for each kind of a fault: without counters nobody can tell a memory error from one of a program.
RIGHT = {
    "ecc": {"memory-error", "process-died"},
    "pcie-downgrade": {"pcie-downgrade"},
    "nic-dropout": {"nic-down", "process-died"},
    "gpu-card-drop": {"card-lost", "process-died"},
    "nvlink": {"nvlink"},
    "aoc-cable": {"cable", "pcie-downgrade", "slow-link"},
    "cuda-execution": {"execution-error", "process-died"},
    "gpu-execution": {"execution-error", "process-died"},
    "hdfs": {"storage", "process-died", "gpu-starved"},
    "unreachable": {"unreachable", "process-died"},
    "slow-gpu": {"slow-gpu", "never-waits"},
    "cpu-contention": {"cpu-contention"},
}
SIZES = ((4, 15), (16, 63), (64, 255), (256, 1500))


@dataclasses.dataclass
class Count:
    """Machines named rightly and wrongly, and faulty ones not named."""

    right: int = 0
    wrong: int = 0
    missed: int = 0
    kinds_right: int = 0

    def add(self, named: dict[str, str], truth: dict[str, str]) -> None:
        """Count one world."""
        self.right += len(named.keys() & truth.keys())
        self.wrong += len(named.keys() - truth.keys())
        self.missed += len(truth.keys() - named.keys())
        self.kinds_right += sum(named[host] in RIGHT[truth[host]] for host in named.keys() & truth.keys())

    @property
    def precision(self) -> float:
        """Part of the machines named that are faulty."""
        return self.right / max(self.right + self.wrong, 1)

    @property
    def recall(self) -> float:
        """Part of the faulty machines that are named."""
        return self.right / max(self.right + self.missed, 1)

    @property
    def f1(self) -> float:
        """Harmonic mean of both."""
        return 2.0 * self.right / max(2 * self.right + self.wrong + self.missed, 1)

    def line(self) -> str:
        """Write it as cells of a table."""
        return f"{self.precision:.3f} | {self.recall:.3f} | {self.f1:.3f}"


def tabulate(found: Sequence[tuple[World, dict[str, dict[str, str]]]]) -> str:
    """Write precision, recall and F1 of each method: over all, without what nothing shows, by kind, size, and what is exported."""
    methods = list(found[0][1])
    lines = ["| worlds | n | " + " | ".join(f"{m} precision | recall | F1" for m in methods) + " |"]
    lines.append("|" + "---|" * (2 + 3 * len(methods)))

    def row(name: str, keep: Callable[[World], bool], hide: Callable[[World], Iterable[str]] = lambda _: ()) -> None:
        some = [(w, named) for w, named in found if keep(w)]
        cells = []
        for method in methods:
            count = Count()
            for world, named in some:
                hidden = set(hide(world))
                truth = {h: k for h, k in world.faulty.items() if h not in hidden}
                count.add({h: k for h, k in named[method].items() if h not in hidden}, truth)
            cells.append(count.line())
        lines.append(f"| {name} | {len(some)} | " + " | ".join(cells) + " |")

    row("all", lambda _: True)
    row("without faults that no metric shows", lambda _: True, lambda w: w.unobservable)
    row("one faulty machine at most", lambda w: len(w.faults) <= 1)
    row("several faulty machines", lambda w: len(w.faults) > 1)
    row("all machines in one role", lambda w: len(set(w.cluster.roles)) == 1)
    for kind in RIGHT:
        row(kind, lambda w, kind=kind: bool(w.faults) and w.faults[0].kind == kind)
    for low, high in SIZES:
        row(f"{low} to {high} machines", lambda w, low=low, high=high: low <= len(w.cluster.names) <= high)
    for exported in ("seven", "stock", "all"):
        row(f"metrics: {exported}", lambda w, exported=exported: w.exported == exported)
    healthy = [(w, named) for w, named in found if not w.faults]
    for method in methods:
        alarms = sum(bool(named[method]) for _, named in healthy)
        lines.append(f"\n{method}: {alarms} false alarms in {len(healthy)} worlds without faults")
        count = Count()
        for world, named in found:
            count.add(named[method], world.faulty)
        lines.append(f"{method}: kind right in {count.kinds_right} of {count.right}")
    return "\n".join(lines)
