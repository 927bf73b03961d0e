"""Whether a link, a card or a group moves data more slowly than its equals."""

import warnings

import numpy as np

from diagnose.model.components import Components
from diagnose.model.feature import Feature, Features
from diagnose.model.transfers import Transfers

#: A link that is slow belongs to the card whose other link is slow as well, if that one is at least this much slower than usual.
BOTH_RATIO = 1.3


def measure_network(transfers: Transfers, components: Components) -> Features:
    """Measure how far the slowest link and group are from their equals.

    Parameters
    ----------
    transfers : Transfers
    components : Components

    Returns
    -------
    Features
        `network.link_ratio`: median transfer of the slowest link over the lower median of all. `network.group_ratio`: the same of
        the collectives of a stage. `network.late_share`: single late transfers of the worst link, as a part of the step, beyond
        those of an ordinary link. `network.by_slow_worker`: 1 where the slowest link or group ends at a worker whose computes are
        slow, too.

    Reads as: 1 like the others, 5 five times as long. late_share 0.1 a tenth of the step goes to them.

    Misleads when: links differ by design (within a host and between hosts); every link has the fault.
    """
    found: Features = {}
    links = transfers.link_s[np.isfinite(transfers.link_s)]
    if len(links) < 2:
        found["network.link_ratio"] = Feature.missing("fewer than two links between stages")
        found["network.late_share"] = Feature.missing("fewer than two links between stages")
    else:
        usual = max(float(np.sort(links)[(len(links) - 1) // 2]), 1e-9)
        found["network.link_ratio"] = Feature(float(links.max()) / usual)
        late = transfers.link_late_s[np.isfinite(transfers.link_late_s)]
        ordinary = float(np.sort(late)[(len(late) - 1) // 2])
        found["network.late_share"] = Feature((float(late.max()) - ordinary) / transfers.step_s)
    groups = transfers.group_s[np.isfinite(transfers.group_s)]
    if len(groups) < 2:
        found["network.group_ratio"] = Feature.missing("fewer than two groups of dp ranks")
    else:
        found["network.group_ratio"] = Feature(
            float(groups.max()) / max(float(np.sort(groups)[(len(groups) - 1) // 2]), 1e-9)
        )
    found["network.by_slow_worker"] = Feature(float(_ends_at_slow_worker(transfers, components)))
    return found


def slow_card(transfers: Transfers) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Name the worker whose links are slow, else the link.

    Returns
    -------
    workers : list of (dp index, stage index)
        One whose two links are both slow, or none.
    links : list of (dp index, stage index)
        The slow link by its first stage, where no worker is named; none where no link is slow.
    """
    usual = _usual(transfers)
    if usual is None:
        return [], []
    ratio = np.where(np.isfinite(transfers.link_s), transfers.link_s, -np.inf) / usual  # (n_stages, n_dp)
    stage, dp = np.unravel_index(int(ratio.argmax()), ratio.shape)
    n_stages = ratio.shape[0]
    ends = [int(stage), (int(stage) + 1) % n_stages]
    other = [ratio[(ends[0] - 1) % n_stages, dp], ratio[ends[1], dp]]
    if ratio[stage, dp] < BOTH_RATIO:
        return [], []
    if max(other) >= BOTH_RATIO:
        return [(int(dp), ends[int(np.argmax(other))])], []
    if n_stages == 2:
        return [], [(int(dp), 0)]
    return [], [(int(dp), int(stage))]


def _usual(transfers: Transfers) -> float | None:
    """Take the lower median over all links."""
    links = transfers.link_s[np.isfinite(transfers.link_s)]
    return max(float(np.sort(links)[(len(links) - 1) // 2]), 1e-9) if len(links) >= 2 else None


def _ends_at_slow_worker(transfers: Transfers, components: Components) -> bool:
    """Say whether the slowest link or group has a slow worker at its end."""
    slow = components.slow_workers
    if not slow.any():
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        if np.isfinite(transfers.link_s).any():
            stage, dp = np.unravel_index(int(np.nanargmax(transfers.link_s)), transfers.link_s.shape)
            if slow[dp, stage] or slow[dp, (stage + 1) % slow.shape[1]]:
                return True
        return bool(np.isfinite(transfers.group_s).any() and slow[:, int(np.nanargmax(transfers.group_s))].any())
