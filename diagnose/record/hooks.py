"""Put functions around other people's functions, and take them away again without a trace.

Enters: an object, the name of a function in it, and what to do before and after. Leaves: `Hooks`, which undoes it all. What
goes wrong in here never reaches the training: the function runs once and its result is returned, whatever happens.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any


class Switch:
    """Says whether hooks look at what passes through them."""

    __slots__ = ("on",)

    def __init__(self) -> None:
        self.on = False


class Hooks:
    """The functions that were put around others.

    Parameters
    ----------
    fail : function of an exception
        Told what went wrong in a hook.
    """

    def __init__(self, fail: Callable[[Exception], None]) -> None:
        self.fail = fail
        self._undo: list[Callable[[], None]] = []

    def around(
        self,
        owner: Any,
        name: str,
        switch: Switch,
        before: Callable[..., Any],
        after: Callable[[Any, Any], None] | None = None,
    ) -> None:
        """Call `before(*args, **kwargs)` and `after(what before gave, the result)` around a function while the switch is on.

        Parameters
        ----------
        owner : module or class
        name : str
            Where `owner` has no such function nothing happens: it is another version.
        switch : Switch
        before, after : function
        """
        inner = getattr(owner, name, None)
        if inner is None:
            return
        as_found = inspect.getattr_static(owner, name)
        is_own = name in vars(owner)
        fail = self.fail

        @functools.wraps(inner, updated=())
        def outer(*args: Any, **kwargs: Any) -> Any:
            if not switch.on:
                return inner(*args, **kwargs)
            try:
                token = before(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - the training goes on
                fail(error)
                return inner(*args, **kwargs)
            result = inner(*args, **kwargs)
            if after is not None:
                try:
                    after(token, result)
                except Exception as error:  # noqa: BLE001 - the training goes on
                    fail(error)
            return result

        def undo() -> None:
            if inspect.getattr_static(owner, name, None) is not outer:
                return  # somebody put a function around ours; with its switch off it does nothing
            if is_own:
                setattr(owner, name, as_found)
            else:
                delattr(owner, name)

        setattr(owner, name, outer)
        self._undo.append(undo)

    def guarded(self, function: Callable[..., None], switch: Switch) -> Callable[..., None]:
        """Make a callback that does nothing while the switch is off and that never raises."""

        def callback(*args: Any, **kwargs: Any) -> None:
            if not switch.on:
                return
            try:
                function(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - the training goes on
                self.fail(error)

        return callback

    def on_undo(self, undo: Callable[[], None]) -> None:
        """Remember how to take away something that was put in another way."""
        self._undo.append(undo)

    def undo(self) -> None:
        """Take all away, last first."""
        while self._undo:
            self._undo.pop()()
