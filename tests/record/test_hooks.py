"""Functions around other people's functions."""

import types

import pytest

from diagnose.record.hooks import Hooks, Switch


class Target:
    """Somebody else's class."""

    def double(self, x):
        """Double."""
        if x < 0:
            raise ValueError("negative")
        return 2 * x


class Child(Target):
    """Inherits what is hooked."""


@pytest.fixture
def failures():
    """Collect what went wrong."""
    return []


def test_before_and_after(failures):
    """Both are called, with the arguments and the result, while the switch is on."""
    seen, switch, hooks = [], Switch(), Hooks(failures.append)
    hooks.around(Target, "double", switch, lambda _self, x: x, lambda token, result: seen.append((token, result)))
    assert Target().double(1) == 2 and not seen
    switch.on = True
    assert Target().double(4) == 8
    assert seen == [(4, 8)]
    hooks.undo()


def test_nothing_to_do_afterwards(failures):
    """Where the first of the two gives False the second is not called."""
    seen, switch, hooks = [], Switch(), Hooks(failures.append)
    switch.on = True
    hooks.around(Target, "double", switch, lambda _self, x: x > 1, lambda token, result: seen.append((token, result)))
    assert [Target().double(x) for x in (1, 2)] == [2, 4] and seen == [(True, 4)]
    hooks.undo()


@pytest.mark.parametrize("broken", ["before", "after"])
def test_a_broken_hook(failures, broken):
    """A hook that raises is reported, and the function still runs exactly once."""
    ran, switch, hooks = [], Switch(), Hooks(failures.append)
    switch.on = True
    module = types.ModuleType("module")
    module.work = lambda: ran.append(1) or "done"

    def breaks(*_args):
        raise RuntimeError("ours")

    parts = {"before": lambda: None, "after": lambda _token, _result: None} | {broken: breaks}
    hooks.around(module, "work", switch, parts["before"], parts["after"])
    assert module.work() == "done"
    assert ran == [1] and len(failures) == 1
    hooks.undo()


def test_their_errors_are_theirs(failures):
    """What the function itself raises goes to its caller and is no failure of the recorder."""
    switch, hooks = Switch(), Hooks(failures.append)
    switch.on = True
    hooks.around(Target, "double", switch, lambda *_: None)
    with pytest.raises(ValueError, match="negative"):
        Target().double(-1)
    hooks.undo()
    assert not failures


def test_undo_restores(failures):
    """Afterwards everything is the very object it was, also where a class had inherited the function."""
    before, hooks = Target.__dict__["double"], Hooks(failures.append)
    hooks.around(Target, "double", Switch(), lambda *_: None)
    hooks.around(Child, "double", Switch(), lambda *_: None)
    assert "double" in vars(Child)
    hooks.undo()
    assert Target.__dict__["double"] is before and "double" not in vars(Child)


def test_somebody_else_hooks_too(failures):
    """A function that somebody put around ours stays, and ours within it does nothing any more."""
    seen, switch, hooks = [], Switch(), Hooks(failures.append)
    switch.on = True
    module = types.ModuleType("module")
    module.work = lambda: "done"
    hooks.around(module, "work", switch, lambda: seen.append(1))
    ours = module.work
    module.work = lambda: ours() + "!"
    theirs = module.work
    hooks.undo()
    switch.on = False
    assert module.work is theirs and module.work() == "done!" and not seen


def test_undo_goes_on(failures):
    """One hook that cannot be taken away leaves no other behind."""
    before, hooks = Target.__dict__["double"], Hooks(failures.append)
    hooks.around(Target, "double", Switch(), lambda *_: None)

    def breaks():
        raise RuntimeError("theirs")

    hooks.on_undo(breaks)
    with pytest.raises(RuntimeError, match="theirs"):
        hooks.undo()
    assert Target.__dict__["double"] is before


def test_another_version(failures):
    """A function that is not there in this version is left out without a word."""
    hooks = Hooks(failures.append)
    hooks.around(types.ModuleType("module"), "work", Switch(), lambda: None)
    hooks.undo()
    assert not failures
