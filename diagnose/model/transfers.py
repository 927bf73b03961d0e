"""How long transfers took by themselves, link by link and group by group."""

import dataclasses

from diagnose.model.trace import Seconds


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
        Typical seconds beyond over those of an ordinary one, where any stand out.
    link_alone_s : ndarray of float64, shape (n_stages, n_dp), or None
        Mean seconds beyond ordinary ones of transfers that share no batch with one the other way on their link, in the steps in
        which the link is slow, of the quicker direction; NaN where there are none.
    """

    link_s: Seconds
    link_late_s: Seconds
    group_s: Seconds
    step_s: float
    link_excess_s: Seconds
    group_excess_s: Seconds
    excess_ratio: float | None
    link_alone_s: Seconds | None = None
