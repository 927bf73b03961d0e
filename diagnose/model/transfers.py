"""How long transfers took by themselves, link by link and group by group."""

import dataclasses

import numpy as np

from diagnose.model.trace import Bools, Seconds


@dataclasses.dataclass(frozen=True, slots=True)
class SlowPlaces:
    """Where slow transfers are.

    Attributes
    ----------
    ways : ndarray of bool, shape (2, n_stages, n_dp)
        Slow links between each stage and the next by direction: 0 as forwards go, 1 as backwards do.
    groups : ndarray of bool, shape (n_stages,)
        Stages whose dp ranks have slow collectives.
    cards : ndarray of bool, shape (n_dp, n_stages)
        Workers all of whose links and collectives are slow; these are among `ways` and `groups`, too.
    mended_ways : ndarray of float64, shape (2, n_stages, n_dp)
        Part of the seconds beyond ordinary transfers that goes when the slow places are mended; what their equals lose too is
        noise and stays. Above 0, too, on links that a slow one makes slow: it holds up a worker at their end, or shares a batch.
    mended_groups : ndarray of float64, shape (n_stages,)
        The same of collectives.
    repeats : float or None
        Part of the lost seconds that lies where, or when, half of the steps, or of the places, says of the other half; 0 as chance
        has it, 1 all. None where too few are slow, or only one place is there, to tell.
    apart : float or None
        Where nobody can tell whether they repeat: half of the lost seconds are in transfers that are so many times as far beyond an
        ordinary one as the upper end of ordinary ones is.
    in_time : bool
        All of them are slow together in some steps: no place stands out.
    steps_share : float or None
        Part of the steps that have nearly all of the lost seconds.
    are_told : bool
        Collectives say of each card that it is one, and not two links of its worker.
    """

    ways: Bools
    groups: Bools
    cards: Bools
    mended_ways: Seconds
    mended_groups: Seconds
    repeats: float | None = None
    apart: float | None = None
    in_time: bool = False
    steps_share: float | None = None
    are_told: bool = True

    @classmethod
    def nowhere(cls, n_stages: int, n_dp: int) -> "SlowPlaces":
        """Name no place."""
        ways, groups = np.zeros((2, n_stages, n_dp), dtype=bool), np.zeros(n_stages, dtype=bool)
        return cls(ways, groups, np.zeros((n_dp, n_stages), dtype=bool), ways.astype(float), groups.astype(float))

    @property
    def found(self) -> bool:
        """Say whether any place is named."""
        return bool(self.ways.any() or self.groups.any())


@dataclasses.dataclass(frozen=True, slots=True)
class Transfers:
    """Transfer durations, seconds; NaN where there are none.

    Attributes
    ----------
    link_s : ndarray of float64, shape (n_stages, n_dp)
        Median transfer between each stage and the next (the last one's next is the first, with interleaving), both
        directions.
    link_late_s : ndarray of float64, shape (n_stages, n_dp)
        Seconds a step beyond three times the median of all links: what single slow transfers cost on each link.
    group_s : ndarray of float64, shape (n_stages,)
        Median over steps of the collectives of a stage's dp ranks (the quickest rank's, summed over their types).
    step_s : float
        Mean step time.
    link_excess_s : ndarray of float64, shape (n_stages, n_dp)
        Seconds a step that transfers of each link took beyond ordinary ones.
    group_excess_s : ndarray of float64, shape (n_stages,)
        The same of the collectives of a stage's dp ranks.
    excess_ratio : float or None
        Seconds beyond over those of an ordinary one, where any stand out: half of the seconds beyond are in transfers above it.
    typical_ratio : float or None
        The same of a typical transfer of those that stand out.
    slow : SlowPlaces or None
        Where slow transfers lie.
    link_steps_s : ndarray of float64, shape (n_stages, n_dp, n_steps), or None
        Mean transfer of each link in each step, both directions; links as in `link_s`, steps as in `Breakdown.steps`.
    group_steps_s : ndarray of float64, shape (n_stages, n_steps), or None
        Collectives of a stage's dp ranks in each step, together, as in `group_s`.
    """

    link_s: Seconds
    link_late_s: Seconds
    group_s: Seconds
    step_s: float
    link_excess_s: Seconds
    group_excess_s: Seconds
    excess_ratio: float | None
    typical_ratio: float | None = None
    slow: SlowPlaces | None = None
    link_steps_s: Seconds | None = None
    group_steps_s: Seconds | None = None
