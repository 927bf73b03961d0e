"""Which machines do the same work: named by the user, or found by how they differ while all is well.

Enters: a `Grid`, and a layout where there is one. Leaves: the role of each machine.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from diagnose.errors import UsageError
from diagnose.machines.grid import Floats, Grid, Ints
from diagnose.numerics.robust import nan_median

#: Roles differ by at least so many standard deviations within them, and by so much of their level: less is how machines differ.
APART, LEAST = 6.0, 0.05
#: A role has at least so many machines; pipelines rarely have more than sixteen stages, all about as large as each other: of
#: what is split into two, neither part is a small rest.
MIN_MACHINES, MOST_ROLES, MOST_UNLIKE = 3, 16, 8
#: Metrics whose level tells roles: what the work itself takes. Clocks, temperatures and what counts errors do not.
TELLING: Final = (
    "gpu_memory_used_bytes",
    "gpu_tensor_active",
    "gpu_dram_active",
    "gpu_nvlink_bytes",
    "net_sent_bytes",
    "net_received_bytes",
    "gpu_pcie_bytes",
    "cpu_used",
    "net_pfc_sent",
)


def find_roles(grid: Grid, before: slice, layout: Mapping[str, str] | None = None) -> Ints:
    """Say which role each machine has, numbered by their first machine, shape (n_hosts,).

    Parameters
    ----------
    before : slice
        Bins in which all is well, as far as known.
    layout : mapping of str to str, optional
        Name of the role of each machine.

    Raises
    ------
    UsageError
        The layout lacks machines.
    """
    if layout is not None:
        lacking = [host for host in grid.hosts if host not in layout]
        if lacking:
            raise UsageError(
                f"--roles names no role for {len(lacking)} of {len(grid.hosts)} machines, the first {lacking[0]!r}; expected all"
            )
        return _number([layout[host] for host in grid.hosts])
    columns = []
    for name in TELLING:
        if name in grid.levels:
            values = grid.levels[name].values[:, :, before]
            columns.append(nan_median(values, axis=(1, 2)) if values.shape[2] else np.full(len(grid.hosts), np.nan))
    if not columns:
        return np.zeros(len(grid.hosts), dtype=np.int64)
    role = np.zeros(len(grid.hosts), dtype=np.int64)
    _split(np.stack(columns, axis=1), np.arange(len(grid.hosts)), role)
    return _number(role.tolist())


def _split(levels: Floats, members: Ints, role: Ints) -> None:
    """Split machines where the levels of one metric fall apart into two, again and again; in place."""
    best: tuple[float, Ints, Ints] | None = None
    least = max(MIN_MACHINES, len(role) // MOST_ROLES, len(members) // MOST_UNLIKE)
    for column in range(levels.shape[1]):
        values = levels[members, column]
        if len(members) < 2 * least or not np.isfinite(values).all():
            continue
        order = np.argsort(values, kind="stable")
        ordered = values[order]
        count = np.arange(1, len(ordered))
        total, square = np.cumsum(ordered), np.cumsum(ordered**2)
        low, high = total[:-1] / count, (total[-1] - total[:-1]) / (len(ordered) - count)
        within = np.maximum(square[-1] - count * low**2 - (len(ordered) - count) * high**2, 0.0)
        within[: least - 1] = within[len(ordered) - least :] = np.inf
        at = int(np.argmin(within))
        gap = float(ordered[at + 1] - ordered[at])
        spread = float(np.sqrt(within[at] / len(ordered)))
        apart = (high[at] - low[at]) / max(spread, 1e-12)
        if gap < LEAST * abs(float(np.median(ordered))) or gap < 2.0 * spread or apart < APART:
            continue
        if best is None or apart > best[0]:
            best = float(apart), members[order[: at + 1]], members[order[at + 1 :]]
    if best is None:
        return
    role[best[2]] = role.max() + 1
    _split(levels, best[1], role)
    _split(levels, best[2], role)


def _number(names: Sequence[object]) -> Ints:
    """Number roles by their first machine."""
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)
