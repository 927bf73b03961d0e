"""What recording costs, as it is measured."""

import pytest

from diagnose.record.cost import WRAPPED, Cost
from diagnose.record.hooks import Hooks, Switch


class Job:
    """Work that takes 90 ns, with a hook that takes 10 before it and 5 after it, by a clock of its own."""

    def __init__(self):
        self.ns = 0
        self.cost = Cost(now=lambda: self.ns)
        hooks, switch = Hooks(pytest.fail, self.cost.timed), Switch()
        switch.on = True
        self.cost.time_hooks = hooks.time
        hooks.around(self, "work", switch, lambda: self.wait(10), lambda _token, _result: self.wait(5))

    def wait(self, ns):
        """Let time pass."""
        self.ns += ns

    def work(self):
        """Work."""
        self.wait(90)


def test_what_hooks_take():
    """A step is longer by what its hooks take; steps that are not recorded, and single long ones, do not count."""
    job = Job()
    job.work()
    job.cost.start()
    for n in range(5):
        job.work()
        if n == 2:
            job.cost.timed(job.wait)(10_000)
        job.cost.end_step(is_recorded=True)
    job.wait(7)
    job.cost.end_step(is_recorded=False)
    assert job.cost.stop() == pytest.approx(WRAPPED * 15 / (105 - WRAPPED * 15))
    taken_ns = job.cost.taken_ns
    job.work()
    assert job.cost.taken_ns == taken_ns, "hooks are timed only while it is measured"


def test_nothing_was_recorded():
    """Where no step was recorded meanwhile nothing is known to cost anything."""
    cost = Cost()
    cost.start()
    cost.end_step(is_recorded=False)
    assert cost.stop() == 0.0
