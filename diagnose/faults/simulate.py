"""When everything happens: workers run their programmes and wait for each other where they meet.

Enters: `Inputs`. Leaves: `Times`. Event-driven; steps and dp ranks are lanes of one array, as all of them run the same
programme, and a collective over dp ranks is a maximum over lanes. Costs a few numpy calls a task.

It shares nothing with the replay of `diagnose.whatif`, which it is there to check.
"""

import dataclasses
from collections import defaultdict, deque
from collections.abc import Sequence

import numpy as np

from diagnose.faults.inputs import Hold, Inputs
from diagnose.faults.programme import Gate, Launch, Meeting
from diagnose.model.optype import COMPUTE
from diagnose.model.trace import Seconds


@dataclasses.dataclass(frozen=True, slots=True)
class Times:
    """When each task started and ended."""

    #: Shape (n_tasks, n_steps, n_dp). Seconds after the step began.
    start_s: Seconds
    end_s: Seconds
    #: Shape (n_steps,). Step time: when the last worker has ended its last task, and what it does after that.
    step_s: Seconds


def simulate(inputs: Inputs) -> Times:
    """Run a job.

    Raises
    ------
    RuntimeError
        The workers wait for each other in a circle: a programme is wrong.
    """
    run = _Run(inputs)
    run.until_done()
    last = inputs.programme.last_tasks
    ends = run.end_s[last] + inputs.tail_s[inputs.programme.stage[last]]
    return Times(run.start_s, run.end_s, ends.max(axis=(0, 2)))


class _Run:
    """One run of all workers: where each stream stands, and which meetings have whom."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs, self.programme = inputs, inputs.programme
        n_tasks = len(self.programme.tasks)
        self.start_s = np.zeros((n_tasks, *inputs.lanes))
        self.end_s = np.zeros((n_tasks, *inputs.lanes))
        self.moved_s = np.zeros((n_tasks, *inputs.lanes))  # done itself, though the rest of its batch may not be
        self.has_moved = [False] * n_tasks
        self.has_ended = [False] * n_tasks
        self.position = [0] * len(self.programme.streams)
        self.launched = [False] * len(self.programme.streams)
        self.free_s: list[Seconds] = [np.zeros((1, 1))] * len(self.programme.streams)
        self.ready = deque(range(len(self.programme.streams)))
        self.sleepers: dict[int, list[int]] = defaultdict(list)
        self.meeting_of = {task: meeting for meeting in self.programme.meetings for task in meeting.members}
        self.arrived: dict[Meeting, int] = defaultdict(int)
        self.holds: dict[int, list[Hold]] = defaultdict(list)
        for hold in inputs.holds:
            self.holds[hold.task].append(hold)
        self.inside = [pause.seconds for pause in inputs.pauses if pause.where == "inside"]
        self.before = [pause.seconds for pause in inputs.pauses if pause.where == "before"]

    def until_done(self) -> None:
        """Let every stream go on as far as it can, until all are through."""
        while self.ready:
            self._go_on(self.ready.popleft())
        stuck = [t for t, ended in enumerate(self.has_ended) if not ended]
        if stuck:
            names = ", ".join(self.programme.name(t) for t in stuck[:6])
            raise RuntimeError(f"{len(stuck)} tasks wait for each other in a circle: {names}, ...")

    def _go_on(self, stream: int) -> None:
        """Run one stream until it has to wait for a task, and leave it asleep there."""
        launches = self.programme.streams[stream]
        while self.position[stream] < len(launches):
            launch = launches[self.position[stream]]
            if not self.launched[stream]:
                blocker = next((t for t in self._needs(launch) if not self.has_ended[t]), None)
                if blocker is not None:
                    self.sleepers[blocker].append(stream)
                    return
                self._launch(launch, self.free_s[stream])
                self.launched[stream] = True
            blocker = next((t for t in launch.tasks if not self.has_moved[t]), None)
            if blocker is not None:
                self.sleepers[blocker].append(stream)
                return
            self.free_s[stream] = self._close(launch)
            self.position[stream] += 1
            self.launched[stream] = False

    def _needs(self, launch: Launch) -> list[int]:
        """List the tasks that must have ended before a launch can be worked out."""
        gated = [source for gate in launch.gates for source in gate.sources]
        queued = [source for task in launch.tasks for hold in self.holds.get(task, ()) for source in hold.sources]
        return [*launch.after, *gated, *queued]

    def _launch(self, launch: Launch, free_s: Seconds) -> None:
        """Start the tasks of a launch together, and move those that have everybody they meet."""
        start_s = np.broadcast_to(free_s, self.inputs.lanes)
        for source in launch.after:
            left_s = launch.within * (self.end_s[source] - self.start_s[source])
            start_s = np.maximum(start_s, self.end_s[source] - left_s)
        for gate in launch.gates:
            start_s = np.maximum(start_s, self._open(gate))
        delays = [self._delay(task) for task in launch.tasks]
        start_s = start_s + _latest(delays)
        if launch.together:
            start_s = np.broadcast_to(start_s.max(axis=1, keepdims=True), self.inputs.lanes)
        for task in launch.tasks:
            start_s = self._queue(task, start_s, late=True)
        for task in launch.tasks:
            self.start_s[task] = start_s
            meeting = self.meeting_of.get(task)
            if meeting is None:
                self._move_alone(task)
                continue
            self.arrived[meeting] += 1
            if self.arrived[meeting] == len(meeting.members):
                self._move_together(meeting)

    def _delay(self, task: int) -> Seconds:
        """Say how long after it could the host launches a task."""
        delay_s: Seconds = self.inputs.delay_s[task]
        for seconds in self.before:
            delay_s = delay_s + seconds[task]
        return delay_s

    def _open(self, gate: Gate) -> Seconds:
        """Say when a gate opens; at once for those it does not hold up."""
        opens_s = _latest([self.end_s[source] for source in gate.sources])
        if gate.across_dp:
            opens_s = np.broadcast_to(opens_s.max(axis=1, keepdims=True), self.inputs.lanes)
        if gate.dp_ranks is None:
            return opens_s
        held = np.isin(np.arange(self.inputs.spec.dp), gate.dp_ranks)
        return np.where(held, opens_s, -np.inf)

    def _move_alone(self, task: int) -> None:
        """Let a task that meets nobody do its work."""
        begin_s = self._queue(task, self.start_s[task], late=False)
        work_s = self.inputs.work_s if self.programme.tasks[task].op in COMPUTE else self.inputs.transfer_s
        end_s = begin_s + work_s[task]
        for seconds in self.inside:
            end_s = end_s + seconds[task]
        self._moved(task, end_s)

    def _queue(self, task: int, begin_s: Seconds, *, late: bool) -> Seconds:
        """Put a task behind the communication that holds it, before it starts or once it has."""
        for hold in self.holds.get(task, ()):
            if hold.late == late:
                for source in hold.sources:
                    begin_s = np.where(hold.held, np.maximum(begin_s, self.end_s[source]), begin_s)
        return begin_s

    def _move_together(self, meeting: Meeting) -> None:
        """Let a transfer or collective take place: from the last arrival on, as slow as the slowest member's link."""
        members = meeting.members
        begin_s = _latest([self.start_s[member] for member in members])
        transfer_s = _latest([self.inputs.transfer_s[member] + self.inputs.stall_s[member] for member in members])
        if meeting.across_dp:
            begin_s, transfer_s = begin_s.max(axis=1, keepdims=True), transfer_s.max(axis=1, keepdims=True)
        for member in members:
            end_s = begin_s + transfer_s
            for seconds in self.inside:
                end_s = end_s + seconds[member]
            self._moved(member, end_s)

    def _moved(self, task: int, end_s: Seconds) -> None:
        """Note that a task is done, and wake whoever waits for it to close its batch."""
        self.moved_s[task] = end_s
        self.has_moved[task] = True
        self._wake(task)

    def _close(self, launch: Launch) -> Seconds:
        """End the tasks of a launch: a batch ends as one, but for transfers to nobody and for computes."""
        computes = [t for t in launch.tasks if self.programme.tasks[t].op in COMPUTE]
        real = [t for t in launch.tasks if t in self.meeting_of] or sorted(set(launch.tasks) - set(computes))
        end_s = _latest([self.moved_s[t] for t in real or computes])
        for task in launch.tasks:
            self.end_s[task] = end_s if task in real else self.moved_s[task]
            self.has_ended[task] = True
            self._wake(task)
        return end_s

    def _wake(self, task: int) -> None:
        """Let the streams that sleep on a task go on."""
        self.ready.extend(self.sleepers.pop(task, ()))


def _latest(times_s: Sequence[Seconds]) -> Seconds:
    """Take the latest in each lane."""
    latest = times_s[0]
    for time_s in times_s[1:]:
        latest = np.maximum(latest, time_s)
    return latest
