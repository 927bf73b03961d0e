"""Whether a link, a card or a group moves data more slowly than its equals."""

import math
from collections.abc import Sequence

import numpy as np

from diagnose.model.components import Breakdown
from diagnose.model.feature import Feature, Features
from diagnose.model.stalls import AS_LONG_RATIO, MOSTLY_SHARE, UNTOLD, StallKind
from diagnose.model.trace import Bools, Seconds
from diagnose.model.transfers import Transfers
from diagnose.numerics.chance import TOSS_UP
from diagnose.numerics.robust import lower_median, nan_median, weighted_median

#: Each feature: what its values read as, and when it misleads.
READS_AS = {
    "network.link_ratio": "median transfer of the slowest link between stages over the lower median of all links; 1 like the "
    "others, 5 five times as long; misleads when links differ by design or every link has the fault",
    "network.group_ratio": "median collective of the slowest stage's group over the lower median of all groups; 1 like the "
    "others; misleads when stages have unequally large gradients",
    "network.late_share": "single late transfers of the worst link beyond those of an ordinary one, as part of the step; 0.1 a "
    "tenth of the step; misleads when every link has the fault",
    "network.excess_ratio": "what slow transfers and collectives take beyond ordinary ones, over those, half of the lost seconds "
    "above it; 100 a flap",
    "network.repeats": "part of the lost seconds that lies on the places that half of the steps says of the other half, or in the "
    "steps that half of the places says of the others; 0 at random, 1 all; misleads where single transfers are slow in few steps",
    "network.place_share": "part of that time on the worst link or group; 1 all in one place, misleads where a bad "
    "card spoils both its links and its group",
    "network.links_share": "part of that time on links between stages and not in collectives; 1 links only",
    "network.rank_ratio": "that time on the worst link over what the same link has on the other dp ranks; 1 all ranks alike, no "
    "link's fault; misleads when whole stages sit behind one switch",
    "network.one_rank": "1 with one dp rank, else 0; misleads never",
    "network.steps_share": "part of the steps that have 95% of the lost seconds; 0.95 all steps alike, 0.1 a few of them; not "
    "known where all places are slow together; misleads in jobs of few steps",
    "network.apart": "where too few transfers are slow, or only one place is there, to tell whether they repeat: how far they are "
    "beyond an ordinary one, over how far the upper end of ordinary ones is; 5 noise, 100 a transfer that got stuck; misleads "
    "where a paused process holds up a transfer",
    "network.in_ring": "1 where one rank of a group ends its collectives later than the one before it, and the others after it "
    "in turn, as behind a slow link or card of their ring, else 0; misleads where ranks are in another order on it",
    "network.two_links": "how probable it is that two slow links of a worker are so by themselves, not by its card, where both "
    "are slow alike, at the same times, and no collective through the card says it; 0 where one does, or no card is named",
    "network.chance_doubt": "how probable it is that slow places, or times, are those of busy hosts by chance: they hold little "
    "more than half of the lost seconds of the other half, or have no place, and computes of these steps are slow, too, or there "
    "was one such step alone, as where a process was paused, or the worker there pauses in computes for as long, which no row "
    "explains, and hardly any other does, or the only group is late now and then and loses little; other dp "
    "ranks have it on the same link, too; more where all workers compute on the CPUs of one host, between whose processes is no "
    "network; 0 where they hold far more; misleads in jobs of few steps",
    "network.interval_doubt": "where transfers are slow everywhere every so many steps: how probable it is that the job writes "
    "over the same network then, as a save in the background does; 0 where no interval is kept",
    "network.slow_computes": "where transfers are slow everywhere at the same times: part of the lost seconds in steps whose "
    "computes are slow, too, beyond chance; 1 the hosts are busy, and no network; misleads where computes overlap transfers",
    "network.by_slow_worker": "1 where the slowest link or group ends at a worker whose computes are slow, and is not far slower "
    "than they are, else 0; misleads when one host has both faults",
}
#: Less time beyond the ordinary than this part of the step names nobody.
NAMED_SHARE = 0.002
#: Computes of a step are slow beyond this ratio: transfers that are so are far more.
SLOW_STEP_RATIO = 1.1
#: Transfers shorter than this part of the step count as this long.
LEAST_SHARE = 1e-5
#: A worker whose computes take k times as long explains transfers that take up to so many times k as long (a real worker under a
#: quota: 1.7).
THROTTLED_RATIO = 3.0
#: How slow a slow worker is: this quantile over its steps, as it may be slow in some of them only.
PACE_QUANTILE = 0.9
#: ... but not those that are slow at times alone, and nearer to the quick ones than to the slow ones in this part of the steps in
#: which it is slow.
EXTREMES, OFTEN_QUICK = (0.1, 0.9), 1.0 / 3.0
#: One failure explains two links that are slow alike at the same times; the odds of a second one beside it are not more.
TWO_LINKS = 0.28
#: Slow places of real jobs with nothing injected hold up to 0.72 of the lost seconds of the other half, most of those of
#: faults 0.8 and more: from a toss-up where the rule begins the doubt falls to none between them.
BY_CHANCE, NO_CHANCE, CHANCE_DOUBT = 0.5, 0.8, TOSS_UP
#: ... and transfers without a place are those of busy hosts where so much of the lost seconds is in steps with slow computes: 0.3
#: and 0.4 of real ranks that waited for processors, 0 of real cards, up to 0.2 of generated ones.
BUSY_SHARE, BUSY_WITHIN = 0.2, 0.1
#: ... and late collectives of the only group are as probably those of busy hosts where they cost up to the first part of the step,
#: and not from the second on: what hosts do costs real healthy jobs up to 5%.
BUSY_HOSTS_SHARE = 0.05, 0.1
#: ... and slow links that hardly repeat are so where other dp ranks have it on theirs, too: one had 1.1 to 2.2 times as much as the
#: others in three real jobs with busy hosts, far more with real and made faults.
ONE_RANK_RATIO = 3.0
#: ... and between processes of one host is no network: healthy real pipelines there had 0.53 to 0.71.
ONE_HOST_DOUBT = 0.9
#: ... but up to 6 times as much as the same link of other dp ranks; a link that messages truly waited on had 480 and more.
OWN_LINK_RATIO = 30.0
#: What all transfers share every so many steps may be what the job itself does then: odds of three to one, as nobody has measured
#: how often it is.
AT_INTERVAL = 0.28
#: Ratios above are as good as infinite.
MOST = 1000.0


def measure_network(transfers: Transfers, breakdown: Breakdown, *, on_one_cpu: bool = False) -> Features:
    """Measure how far the slowest link and group are from their equals.

    They are missing where nothing is there to compare with. `on_one_cpu` says that all workers compute on the CPUs of one host.
    """
    found: Features = {"network.in_ring": Feature(float(transfers.slow is not None and transfers.slow.in_ring))}
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
    found["network.one_rank"] = Feature(float(transfers.link_excess_s.shape[1] == 1))
    repeats = None if transfers.slow is None else transfers.slow.repeats
    apart = None if transfers.slow is None else transfers.slow.apart
    nothing = "no transfer takes longer than ordinary ones"
    few = nothing if links_s + groups_s <= 0 else "too few transfers are slow, or only one place is there, to tell"
    many = nothing if links_s + groups_s <= 0 else "enough transfers are slow to tell whether they repeat"
    found["network.repeats"] = Feature.missing(few) if repeats is None else Feature(repeats)
    everywhere = transfers.slow is not None and transfers.slow.in_time
    busy = _share_of_slow_steps(transfers, breakdown) if everywhere else 0.0
    steps_share = None if transfers.slow is None or everywhere else transfers.slow.steps_share
    is_one, rank_ratio = max(len(links), len(groups)) < 2, found["network.rank_ratio"].value
    if everywhere:
        found["network.rank_ratio"] = Feature.missing("transfers are slow everywhere at the same times")
    once = apart is not None and steps_share is not None and round(steps_share * len(breakdown.steps)) <= 1
    share = (links_s + groups_s) / transfers.step_s if is_one and repeats is None else math.inf
    by_stops = once or _stops_as_long(transfers, breakdown, UNTOLD, least_share=MOSTLY_SHARE)
    found["network.chance_doubt"] = Feature(
        _doubt_places(
            transfers, rank_ratio, stops=by_stops, busy=busy, share=share, on_one_cpu=on_one_cpu, is_one=is_one
        )
    )
    at_interval = transfers.slow is not None and transfers.slow.at_interval
    found["network.interval_doubt"] = Feature(AT_INTERVAL * at_interval)
    why = "transfers are slow everywhere at the same times: software may do that" if everywhere else nothing
    found["network.steps_share"] = Feature.missing(why) if steps_share is None else Feature(steps_share)
    found["network.slow_computes"] = Feature(busy) if everywhere else Feature.missing("slow transfers have places")
    found["network.apart"] = Feature.missing(many) if apart is None else Feature(min(apart, MOST))
    found["network.two_links"] = Feature(0.0 if transfers.slow is None or transfers.slow.are_told else TWO_LINKS)
    found["network.by_slow_worker"] = Feature(float(_is_by_slow_worker(transfers, breakdown)))
    return found


def _doubt_places(
    transfers: Transfers,
    rank_ratio: float | None,
    *,
    stops: bool,
    busy: float,
    share: float,
    on_one_cpu: bool,
    is_one: bool,
) -> float:
    """Say how probable it is that slow places, or times, are those of busy hosts.

    `stops` says that one step alone has nearly all lost seconds, or that a process there stops as long, `busy` which part of them
    is in steps with slow computes, `is_one` that there is one group and no link, and `share` which part of the step it then loses,
    infinite where places tell.
    """
    repeats = None if transfers.slow is None else transfers.slow.repeats
    nearness = 0.0 if repeats is None else float(np.clip((NO_CHANCE - repeats) / (NO_CHANCE - BY_CHANCE), 0.0, 1.0))
    busy_doubt = float(np.clip((busy - BUSY_SHARE) / BUSY_WITHIN, 0.0, 1.0))
    # All ranks of a group are alike by nature.
    is_alike = nearness > 0 and _names_links(transfers) and rank_ratio is not None and rank_ratio < ONE_RANK_RATIO
    # Where all have one group and no links, places cannot tell a network from a host that is busy now and then, but how much can.
    little, much = BUSY_HOSTS_SHARE
    by_host = float(np.clip((much - share) / (much - little), 0.0, 1.0))
    doubt = CHANCE_DOUBT * max(nearness, float(stops or is_alike), busy_doubt, by_host)
    if not on_one_cpu:
        return doubt
    is_own = rank_ratio is not None and rank_ratio >= OWN_LINK_RATIO
    return max(doubt, ONE_HOST_DOUBT if nearness and not is_own else CHANCE_DOUBT * is_one)


def _share_of_slow_steps(transfers: Transfers, breakdown: Breakdown) -> float:
    """Say which part of what transfers take beyond the usual lies in steps whose computes are slow, beyond chance."""
    slow: Bools = np.any(breakdown.step_ratio > SLOW_STEP_RATIO, axis=0)
    lost_s = np.zeros(len(slow))
    for seconds in (transfers.link_steps_s, transfers.group_steps_s):
        if seconds is not None and np.isfinite(seconds).any():
            places_s = seconds.reshape(-1, len(slow))
            beyond_s = places_s - nan_median(places_s, axis=1, keepdims=True)
            lost_s += np.maximum(np.nan_to_num(beyond_s), 0.0).sum(axis=0)
    chance = float(slow.mean())
    if not lost_s.any() or chance == 1.0:
        return 0.0
    return max(float(lost_s[slow].sum() / lost_s.sum()) - chance, 0.0) / (1.0 - chance)


def _names_links(transfers: Transfers) -> bool:
    """Say whether links are among the slow places."""
    return transfers.slow is not None and bool(transfers.slow.ways.any())


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
    if not len(others):
        return Feature.missing("with one dp rank no other has the same link")
    usual = float(np.median(others))
    return Feature(min(worst / usual, MOST) if usual > 0 else MOST)


def _is_by_slow_worker(transfers: Transfers, breakdown: Breakdown) -> bool:
    """Say whether the worst link, else the worst group, has a slow worker at its end that is slow enough to explain it.

    Or one that stops now and then for as long as transfers are late: who stops sends nothing.
    """
    slow = breakdown.slow_workers
    if _stops_as_long(transfers, breakdown, (StallKind.WORKER,)):
        return True
    if not slow.any():
        return False
    ends = _ends_of_worst(transfers, slow)
    if not ends or transfers.typical_ratio is None:
        return bool(ends)
    paces = [breakdown.worker_ratio[:, p :: slow.shape[1], :, dp] for dp, p in ends]
    if all(_has_quick_transfers(transfers, np.any(pace > 1.0, axis=(0, 1))) for pace in paces):
        return False
    pace = max(float(np.quantile(pace, PACE_QUANTILE)) for pace in paces)
    return 1.0 + transfers.typical_ratio <= THROTTLED_RATIO * pace


def _stops_as_long(
    transfers: Transfers, breakdown: Breakdown, kinds: Sequence[StallKind], *, least_share: float = 0.0
) -> bool:
    """Say whether a worker at the end of the worst link, or in the worst group, stops in computes for as long as these are late.

    By stalls of some kinds that no row tells of; one or two of those workers have at least a part of all of them.
    """
    n_stages, stalls = breakdown.slow_workers.shape[1], breakdown.stalls
    stopped_s = sum(
        (stalls.seconds_of(kind) - stalls.told_seconds_of(kind) for kind in kinds), np.zeros(stalls.inside_s.shape)
    )
    by_worker = stopped_s.sum(axis=(0, 2, 3)).reshape(-1, n_stages, stopped_s.shape[-1]).sum(axis=0).T
    ends = _ends_of_worst(transfers, by_worker > 0) if by_worker.any() else []
    theirs_s = sorted(float(by_worker[end]) for end in set(ends))
    worst_s = float(max(transfers.link_excess_s.max(initial=0.0), transfers.group_excess_s.max(initial=0.0)))
    if worst_s * len(breakdown.steps) >= AS_LONG_RATIO * sum(theirs_s):
        return False  # nobody waits for longer than they stop
    if sum(theirs_s[-2:]) < least_share * by_worker.sum():
        return False
    late_s = np.concatenate([np.zeros(0), *(s.ravel() for excess, _ in breakdown.transfers for s in excess.values())])
    usual_s = [weighted_median(of[of > 0], of[of > 0]) or 0.0 for of in (stopped_s, late_s)]
    return max(usual_s) < AS_LONG_RATIO * min(usual_s)


def _has_quick_transfers(transfers: Transfers, at: Bools) -> bool:
    """Say whether collectives that are slow at times alone are quick in many of the steps in which a worker is slow, (n_steps,)."""
    if transfers.slow is None or not transfers.slow.in_time or transfers.group_steps_s is None or not at.any():
        return False
    in_step = np.nansum(transfers.group_steps_s, axis=0)
    return bool((in_step < np.quantile(in_step, EXTREMES).mean())[at].mean() > OFTEN_QUICK)


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
