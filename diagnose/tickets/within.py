"""Bound how long something takes as a whole: the timeouts of sockets are for each piece, and a service may drip.

Enters: seconds, and what to do. Leaves: its answer, or a `TimeoutError`.
"""

import threading
from collections.abc import Callable
from typing import TypeVar

_Found = TypeVar("_Found")


def within(seconds: float, action: Callable[[], _Found]) -> _Found:
    """Do something in a thread, and wait for it so long; what goes on after that is left alone, and ends with the process.

    Raises
    ------
    TimeoutError
        It takes longer.
    """
    found: list[_Found] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            found.append(action())
        except BaseException as error:  # noqa: BLE001 - it is raised again, in the thread that waits
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if raised:
        raise raised[0]
    if not found:
        raise TimeoutError
    return found[0]
