"""Whether a link, a card or a group moves data more slowly than its equals."""

import numpy as np

from diagnose.model.components import Breakdown
from diagnose.model.feature import Feature, Features
from diagnose.model.trace import Bools, Seconds
from diagnose.model.transfers import Transfers
from diagnose.numerics.robust import lower_median

#: Each feature: what its values read as, and when it misleads.
READS_AS = {
    "network.link_ratio": "median transfer of the slowest link between stages over the lower median of all links; 1 like the "
    "others, 5 five times as long; misleads when links differ by design or every link has the fault",
    "network.group_ratio": "median collective of the slowest stage's group over the lower median of all groups; 1 like the "
    "others; misleads when stages have unequally large gradients",
    "network.late_share": "single late transfers of the worst link beyond those of an ordinary one, as part of the step; 0.1 a "
    "tenth of the step; misleads when every link has the fault",
    "network.excess_ratio": "what slow transfers and collectives take beyond ordinary ones, over those; 100 a flap",
    "network.place_share": "part of that time on the worst link or group; 1 all in one place, misleads where a bad "
    "card spoils both its links and its group",
    "network.links_share": "part of that time on links between stages and not in collectives; 1 links only",
    "network.rank_ratio": "that time on the worst link over what the same link has on the other dp ranks; 1 all ranks alike, no "
    "link's fault; misleads with one dp rank, where nothing can be alike, and when whole stages sit behind one switch",
    "network.by_slow_worker": "1 where the slowest link or group ends at a worker whose computes are slow, and is not far slower "
    "than they are, else 0; misleads when one host has both faults",
}
#: A slow link belongs to the card whose other link is slow as well, if that one is at least this much slower than usual.
BOTH_RATIO = 1.3
#: ... or if it takes this part of the time beyond the ordinary that the worst one takes.
BOTH_SHARE = 0.2
#: Less time beyond the ordinary than this part of the step names nobody.
NAMED_SHARE = 0.002
#: Transfers shorter than this part of the step count as this long.
LEAST_SHARE = 1e-5
#: A worker whose computes take k times as long explains transfers that take up to so many times k as long (a real worker under a
#: quota: 1.7).
THROTTLED_RATIO = 3.0
#: How slow a slow worker is: this quantile over its steps, as it may be slow in some of them only.
PACE_QUANTILE = 0.9
#: Ratios above are as good as infinite.
MOST = 1000.0


def measure_network(transfers: Transfers, breakdown: Breakdown) -> Features:
    """Measure how far the slowest link and group are from their equals.

    They are missing where nothing is there to compare with.
    """
    found: Features = {}
    links = transfers.link_s[np.isfinite(transfers.link_s)]
    if len(links) < 2:
        found["network.link_ratio"] = Feature.missing("fewer than two links between stages")
        found["network.late_share"] = Feature.missing("fewer than two links between stages")
    else:
        found["network.link_ratio"] = _over_usual(links, transfers.step_s)
        late = transfers.link_late_s[np.isfinite(transfers.link_late_s)]
        ordinary = float(lower_median(late))
        found["network.late_share"] = Feature((float(late.max()) - ordinary) / transfers.step_s)
    groups = transfers.group_s[np.isfinite(transfers.group_s)]
    if len(groups) < 2:
        found["network.group_ratio"] = Feature.missing("fewer than two groups of dp ranks")
    else:
        found["network.group_ratio"] = _over_usual(groups, transfers.step_s)
    links_s, groups_s = float(transfers.link_excess_s.sum()), float(transfers.group_excess_s.sum())
    if transfers.excess_ratio is None or links_s + groups_s <= 0:
        for name in ("excess_ratio", "place_share", "links_share", "rank_ratio"):
            found[f"network.{name}"] = Feature.missing("no transfer takes longer than ordinary ones")
    else:
        worst = max(float(transfers.link_excess_s.max()), float(transfers.group_excess_s.max()))
        found["network.excess_ratio"] = Feature(min(transfers.excess_ratio, MOST))
        found["network.place_share"] = Feature(worst / (links_s + groups_s))
        found["network.links_share"] = Feature(links_s / (links_s + groups_s))
        found["network.rank_ratio"] = _rank_ratio(transfers)
    found["network.by_slow_worker"] = Feature(float(_is_by_slow_worker(transfers, breakdown)))
    return found


def _over_usual(seconds: Seconds, step_s: float) -> Feature:
    """Divide the longest by the lower median, both at least the shortest transfer that counts."""
    least = LEAST_SHARE * step_s
    usual = max(float(lower_median(seconds)), least)
    return Feature(min(max(float(seconds.max()), least) / usual, MOST))


def _rank_ratio(transfers: Transfers) -> Feature:
    """Compare the worst link with its equals on other dp ranks."""
    excess_s = transfers.link_excess_s
    worst = float(excess_s.max(initial=0.0))
    if worst <= 0:
        return Feature.missing("no link between stages takes longer than ordinary ones")
    stage, dp = (int(i) for i in np.unravel_index(int(excess_s.argmax()), excess_s.shape))
    others = np.delete(excess_s[stage], dp)
    usual = float(np.median(others)) if len(others) else 0.0
    return Feature(min(worst / usual, MOST) if usual > 0 else MOST)


def slow_card(transfers: Transfers) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Name the worker whose card is slow, or else the slow link by its first stage, or neither: (dp index, stage index).

    A card is slow if the slowest link ends at it, and the collectives of its group or its other link are slow as well.
    """
    n_stages = transfers.link_s.shape[0]
    excess_s = transfers.link_excess_s
    if float(excess_s.max(initial=0.0)) > NAMED_SHARE * transfers.step_s:
        score, both = excess_s, BOTH_SHARE * float(excess_s.max())
    else:
        usual = _usual(transfers)
        if usual is None:
            return [], []
        score, both = np.where(np.isfinite(transfers.link_s), transfers.link_s, -np.inf) / usual, BOTH_RATIO
        if float(score.max()) < BOTH_RATIO:
            return [], []
    stage, dp = (int(i) for i in np.unravel_index(int(score.argmax()), score.shape))
    ends = [stage, (stage + 1) % n_stages]
    # A slow card makes the collectives of its group slow, too. Where sends and receives end as one batch, its other link is no
    # evidence, and the group is.
    group_s = transfers.group_excess_s[ends]
    if float(group_s.max()) > NAMED_SHARE * transfers.step_s and group_s.min() < BOTH_SHARE * group_s.max():
        return [(dp, ends[int(group_s.argmax())])], []
    if n_stages == 2:
        return [], [(dp, 0)]
    other = [score[(ends[0] - 1) % n_stages, dp], score[ends[1], dp]]
    if max(other) < both:
        return [], [(dp, stage)]
    at = int(np.argmax(other))
    faulty = _faulty_link(transfers, [stage, [(ends[0] - 1) % n_stages, ends[1]][at]], dp)
    if faulty is not None:
        return [], [(dp, faulty)]
    return [(dp, ends[at])], []


def _faulty_link(transfers: Transfers, links: list[int], dp: int) -> int | None:
    """Name the one of two slow links of a worker that is at fault, if the other one is fast in one direction.

    A worker that blocks in a slow transfer is late for its other transfers, too, so both links look slow. But a link that is fast
    when measured alone is not the fault, and then neither is the card that both links share.
    """
    if transfers.link_alone_s is None:
        return None
    first, second = (float(transfers.link_alone_s[link, dp]) for link in links)
    if not (np.isfinite(first) and np.isfinite(second)):
        return None
    if min(first, second) >= BOTH_SHARE * max(first, second):
        return None
    return links[0] if first > second else links[1]


def slow_group(transfers: Transfers) -> int | None:
    """Name the stage whose dp ranks have slow collectives but no slow links; None where there is none."""
    group_s = transfers.group_excess_s
    if float(group_s.max(initial=0.0)) <= NAMED_SHARE * transfers.step_s:
        return None
    return int(group_s.argmax()) if transfers.link_excess_s.max(initial=0.0) < BOTH_SHARE * group_s.max() else None


def _usual(transfers: Transfers) -> float | None:
    """Take the lower median over all links."""
    links = transfers.link_s[np.isfinite(transfers.link_s)]
    return max(float(lower_median(links)), LEAST_SHARE * transfers.step_s) if len(links) >= 2 else None


def _is_by_slow_worker(transfers: Transfers, breakdown: Breakdown) -> bool:
    """Say whether the worst link, else the worst group, has a slow worker at its end that is slow enough to explain it."""
    slow = breakdown.slow_workers
    if not slow.any():
        return False
    ends = _ends_of_worst(transfers, slow)
    if not ends or transfers.excess_ratio is None:
        return bool(ends)
    pace = max(
        float(np.quantile(breakdown.worker_ratio[:, p :: slow.shape[1], :, dp], PACE_QUANTILE)) for dp, p in ends
    )
    return 1.0 + transfers.excess_ratio <= THROTTLED_RATIO * pace


def _ends_of_worst(transfers: Transfers, slow: Bools) -> list[tuple[int, int]]:
    """List the slow workers, (dp index, stage index), at the ends of the worst link, or in the worst group.

    The worst is the one with most seconds beyond ordinary transfers, links before groups: a group has the slow worker among its
    members, whichever member holds it up. Where there are no such seconds, it is the one with the longest median.
    """
    n_stages = slow.shape[1]
    link_s, group_s = transfers.link_excess_s, transfers.group_excess_s
    if float(link_s.max(initial=0.0)) > NAMED_SHARE * transfers.step_s:
        groups: list[Seconds] = []
        links = [link_s]
    elif float(group_s.max(initial=0.0)) > NAMED_SHARE * transfers.step_s:
        groups, links = [group_s], []
    else:
        links = [transfers.link_s] if np.isfinite(transfers.link_s).any() else []
        groups = [transfers.group_s] if np.isfinite(transfers.group_s).any() else []
    found: list[tuple[int, int]] = []
    for seconds in links:
        stage, dp = (int(i) for i in np.unravel_index(int(np.nanargmax(seconds)), seconds.shape))
        found += [(dp, end) for end in (stage, (stage + 1) % n_stages) if slow[dp, end]]
    for seconds in groups:
        stage = int(np.nanargmax(seconds))
        found += [(int(dp), stage) for dp in np.flatnonzero(slow[:, stage])]
    return found
