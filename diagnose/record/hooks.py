"""Put functions around other people's functions, and take them away again without a trace.

Enters: an object, the name of a function in it, and what to do before and after. Leaves: `Hooks`, which undoes it all. What
goes wrong in here never reaches the training: the function runs once and its result is returned, whatever happens.
"""

import functools
import inspect
import types
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
    timed : function of a function, optional
        Makes one that does the same, and notes what that takes; used while `time` has switched it on.
    """

    def __init__(
        self, fail: Callable[[Exception], None], timed: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda f: f
    ) -> None:
        self.fail = fail
        self.timed = timed
        #: True while a compiler reads the code instead of running it: then hooks are not there.
        self.is_compiling: Callable[[], bool] = bool
        #: Tell the compiler not to compile this code, nor (True) what it calls.
        self.keep_out: Callable[[types.CodeType, bool], None] = lambda _code, _all: None
        self._undo: list[Callable[[], None]] = []
        self._switch_timing: list[Callable[[bool], None]] = []

    def around(
        self,
        owner: Any,
        name: str,
        switch: Switch,
        before: Callable[..., Any],
        after: Callable[[Any, Any], None] | None = None,
        raised: Callable[[], None] | None = None,
    ) -> None:
        """Call `before(*args, **kwargs)` and `after(what before gave, the result)` around a function while the switch is on.

        Where `before` gives False, `after` has nothing to do and is not called.

        Parameters
        ----------
        before : function
            May take no parameters at all: that is quicker where a function is called often.
        name : str
            Where `owner` has no such function nothing happens: it is another version.
        raised : function, optional
            Called instead of `after` where the function raises.
        """
        inner = getattr(owner, name, None)
        if inner is None:
            return
        as_found = inspect.getattr_static(owner, name)
        is_own = name in vars(owner)
        fail, is_compiling = self.fail, self.is_compiling
        takes_none = not inspect.signature(before).parameters

        @functools.wraps(inner, updated=())
        def outer(*args: Any, **kwargs: Any) -> Any:
            # The compiler comes first: it takes this for a constant, and then neither reads the switch nor the hooks.
            if is_compiling() or not switch.on:
                return inner(*args, **kwargs)
            try:
                token = before() if takes_none else before(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - the training goes on
                fail(error)
                return inner(*args, **kwargs)
            try:
                result = inner(*args, **kwargs)
            except BaseException:
                if raised is not None:
                    raised()
                raise
            if after is not None and token is not False:
                try:
                    after(token, result)
                except Exception as error:  # noqa: BLE001 - the training goes on
                    fail(error)
            return result

        plain = before, after

        def switch_timing(is_on: bool) -> None:  # noqa: FBT001 - as it is called
            nonlocal before, after
            before, after = plain
            if is_on:
                before, after = self._timed(before), None if after is None else self._timed(after)

        self._switch_timing.append(switch_timing)

        def undo() -> None:
            if inspect.getattr_static(owner, name, None) is not outer:
                return  # other code wrapped this hook; with its switch off it does nothing
            if is_own:
                setattr(owner, name, as_found)
            else:
                delattr(owner, name)

        if isinstance(owner, types.ModuleType):
            # Pickled by name: under the name where it is found, which may be another than where it was defined.
            outer.__module__, outer.__qualname__ = owner.__name__, name
        self._keep_out(outer, [before, after])
        setattr(owner, name, outer)
        self._undo.append(undo)

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Have a function say what it takes; the compiler is not to look at it, either."""
        timed = self.timed(function)
        self._keep_out(None, [timed])
        return timed

    def time(self, is_on: bool) -> None:  # noqa: FBT001 - as a switch is called
        """Have what is called before and after functions say what that takes, or no longer."""
        for switch_timing in self._switch_timing:
            switch_timing(is_on)

    def _keep_out(self, outer: Callable[..., Any] | None, ours: list[Callable[..., Any] | None]) -> None:
        """Have the compiler compile what is hooked, but nothing of the recorder."""
        for function, is_all in [(outer, False), *((one, True) for one in ours)]:
            code = getattr(function, "__code__", None)
            if code is not None:
                self.keep_out(code, is_all)

    def guarded(self, function: Callable[..., None], switch: Switch) -> Callable[..., None]:
        """Make a callback that does nothing while the switch is off and that never raises."""
        is_compiling = self.is_compiling

        def callback(*args: Any, **kwargs: Any) -> None:
            if is_compiling() or not switch.on:
                return
            try:
                function(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - the training goes on
                self.fail(error)

        self._keep_out(None, [callback])
        return callback

    def on_undo(self, undo: Callable[[], None]) -> None:
        """Remember how to take away something that was put in another way."""
        self._undo.append(undo)

    def undo(self) -> None:
        """Take all away, last first; what cannot be taken away keeps nothing else in place."""
        errors = []
        while self._undo:
            try:
                self._undo.pop()()
            except Exception as error:  # noqa: BLE001 - raised below, when all others are undone
                errors.append(error)
        if errors:
            raise errors[0]
