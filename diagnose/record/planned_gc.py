"""Python's garbage is collected on all ranks in the same step: one pause of all, where each had its own and the others waited.

Enters: the numbers of steps as they end. Leaves: collections after the same steps on every rank, and the collector as it was found.
"""

import gc

from diagnose.record.log import Log


class PlannedCollections:
    """Collects after every so many steps, and keeps the collector off in between.

    Parameters
    ----------
    every : int
        Steps from one collection to the next, 1 or more.
    log : Log

    Raises
    ------
    ValueError
        `every` is no such number.
    """

    def __init__(self, every: int, log: Log) -> None:
        if every < 1 or every != int(every):
            raise ValueError(f"planned_gc is {every!r}; expected steps between two collections, 1 or more")
        self._every = every
        self._log = log
        #: True while this keeps the collector off that it found on.
        self._is_off = False
        self._is_frozen = False

    def step_ended(self, number: int) -> None:
        """Collect if it is time, by the step's number, which all ranks have alike.

        What is there after the first step (modules, the model, the optimizer) stays: it is frozen, and no collection looks at it.
        Collections are whole ones, as cycles that have outlived one would never go in another.
        """
        is_first = not self._is_frozen
        if not is_first and (number + 1) % self._every:
            return
        gc.collect()
        if is_first:
            gc.freeze()
            self._is_frozen = True
            self._is_off = gc.isenabled()
            gc.disable()
        if self._log.beside.on:
            self._log.idle_since = self._log.clock.now()

    def switch_on(self) -> None:
        """Leave the collector to a process that the job has forked."""
        if self._is_off:
            gc.enable()
        self._is_off = False

    def restore(self) -> None:
        """Leave the collector as it was found."""
        self.switch_on()
        if self._is_frozen:
            gc.unfreeze()
        self._is_frozen = False
