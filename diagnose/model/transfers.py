"""How long transfers took by themselves, link by link and group by group."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from diagnose.model.trace import Bools, Seconds


@dataclasses.dataclass(frozen=True, slots=True)
class SlowPlaces:
    """Where slow transfers are."""

    #: Shape (2, n_stages, n_dp): slow links between each stage and the next by direction: 0 as forwards go, 1 as backwards do.
    ways: Bools
    #: Shape (n_stages,): stages whose dp ranks have slow collectives.
    groups: Bools
    #: Shape (n_dp, n_stages): workers all of whose links and collectives are slow; these are among `ways` and `groups`, too.
    cards: Bools
    #: Shape (2, n_stages, n_dp): part of the seconds beyond ordinary transfers that goes when the slow places are mended; what
    #: their equals lose too is noise and stays. Above 0, too, on links that a slow one makes slow: it holds up a worker at
    #: their end, or shares a batch.
    mended_ways: Seconds
    #: Shape (n_stages,): the same of collectives.
    mended_groups: Seconds
    #: Part of the lost seconds that lies where, or when, half of the steps, or of the places, says of the other half; 0 as
    #: chance has it, 1 all. None where too few are slow, or only one place is there, to tell.
    repeats: float | None = None
    #: Where nobody can tell whether they repeat: half of the lost seconds are in transfers that are so many times as far beyond
    #: an ordinary one as the upper end of ordinary ones is.
    apart: float | None = None
    #: All of them are slow together in some steps: no place stands out.
    in_time: bool = False
    #: ... every so many steps.
    at_interval: bool = False
    #: Part of the steps that have nearly all of the lost seconds.
    steps_share: float | None = None
    #: Collectives say of each card that it is one, and not two links of its worker.
    are_told: bool = True
    #: Slow links of the rings of slow groups: the stage, the dp rank before it and the one behind it.
    rings: Sequence[tuple[int, int, int]] = ()
    #: Such a link, or a card, is told by where ranks of a ring end.
    in_ring: bool = False

    @classmethod
    def nowhere(cls, n_stages: int, n_dp: int) -> "SlowPlaces":
        """Name no place."""
        ways, groups = np.zeros((2, n_stages, n_dp), dtype=bool), np.zeros(n_stages, dtype=bool)
        return cls(ways, groups, np.zeros((n_dp, n_stages), dtype=bool), ways.astype(float), groups.astype(float))

    @property
    def found(self) -> bool:
        """Say whether any place is named."""
        return bool(self.ways.any() or self.groups.any())

    def lacks_peers(self, has_group: Bools) -> bool:
        """Say whether no quick group is there to compare slow ones with, nor a slow link; `has_group` has the shape (n_stages,)."""
        return bool(self.groups.any() and not (self.in_ring or self.ways.any()) and self.groups[has_group].all())


@dataclasses.dataclass(frozen=True, slots=True)
class Transfers:
    """Transfer durations, seconds; NaN where there are none."""

    #: Shape (n_stages, n_dp): median transfer between each stage and the next (the last one's next is the first, with
    #: interleaving), both directions.
    link_s: Seconds
    #: Shape (n_stages, n_dp): seconds a step beyond three times the median of all links: what single slow transfers cost on
    #: each link.
    link_late_s: Seconds
    #: Shape (n_stages,): median over steps of the collectives of a stage's dp ranks (the quickest rank's, summed over their
    #: types).
    group_s: Seconds
    #: Mean step time.
    step_s: float
    #: Shape (n_stages, n_dp): seconds a step that transfers of each link took beyond ordinary ones.
    link_excess_s: Seconds
    #: Shape (n_stages,): the same of the collectives of a stage's dp ranks.
    group_excess_s: Seconds
    #: Seconds beyond over those of an ordinary one, where any stand out: half of the seconds beyond are in transfers above it.
    excess_ratio: float | None
    #: The same of a typical transfer of those that stand out.
    typical_ratio: float | None = None
    #: Where slow transfers lie.
    slow: SlowPlaces | None = None
    #: Shape (n_stages, n_dp, n_steps): mean transfer of each link in each step, both directions; links as in `link_s`, steps as
    #: in `Breakdown.steps`.
    link_steps_s: Seconds | None = None
    #: Shape (n_stages, n_steps): collectives of a stage's dp ranks in each step, together, as in `group_s`.
    group_steps_s: Seconds | None = None
