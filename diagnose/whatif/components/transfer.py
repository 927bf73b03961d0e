"""Slow transfers: communication that takes longer than on an ordinary link, or in ordinary steps."""

from collections.abc import Sequence

from diagnose.whatif.components.component import ByNode, Component, Part
from diagnose.whatif.transfers import transfer_excess


class TransferPart(Part):
    """Without it transfers take as long as ordinary ones of their type."""

    def find_own(self) -> Sequence[ByNode]:
        """Find what transfers take beyond that of ordinary ones."""
        return [transfer_excess(o) for o in self.job.observed]


COMPONENT = Component("transfer", TransferPart)
