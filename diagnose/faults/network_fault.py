"""A network that moves data slowly: bad cards or links, a switch, congested collectives, or single transfers that get stuck.

A collective is as slow as its slowest member, so one bad card slows its whole group down. Computes stay as they are. The
fault adds time: mended, transfers take what they take by themselves.
"""

import dataclasses
from typing import ClassVar, Literal

import numpy as np

from diagnose.errors import UsageError
from diagnose.faults.decoys import HiddenTransfer
from diagnose.faults.example import CLEAR, CLEAR_ASYNCHRONOUS, PLAIN_JOB, Example, Fixture, LookAlike
from diagnose.faults.fault import Fault, Worker, choose_kind
from diagnose.faults.inputs import Inputs, draw_inputs
from diagnose.faults.programme import Programme, build_programme
from diagnose.faults.spec import JobSpec, draw_log_uniform
from diagnose.faults.strength import estimate_step, find_strength, quiet_step
from diagnose.model.optype import DP_COLLECTIVES, P2P, Op
from diagnose.model.trace import Bools, Ints

Scope = Literal["card", "link", "group", "switch", "collectives"]
#: Which transfers of a link: those of one direction of the pipeline, or all.
Direction = Literal["both", "forward", "backward"]
#: How often a random fault is of each kind; and in which scopes it can be, one of them at random.
KINDS = {
    "card": 0.24,
    "link": 0.17,
    "direction": 0.09,
    "several": 0.1,
    "group": 0.1,
    "flaps": 0.15,
    "hours": 0.05,
    "switch": 0.05,
    "collectives": 0.05,
}
SCOPES_OF: dict[str, tuple[Scope, ...]] = {
    "card": ("card",),
    "link": ("link",),
    "direction": ("link",),
    "several": ("link", "card", "group"),
    "group": ("group",),
    "flaps": ("card", "link", "group"),
    "hours": ("link", "group", "card"),
    "switch": ("switch",),
    "collectives": ("collectives",),
}
#: Scopes of collectives, which all dp ranks share.
OF_GROUPS = ("group", "collectives")
#: Times as long: all transfers of a bad card, link or switch; congested collectives; a transfer that flaps.
SLOWDOWN: dict[Scope, tuple[float, float]] = {
    "card": (1.5, 40.0),
    "link": (1.5, 40.0),
    "group": (1.2, 10.0),
    "switch": (1.5, 40.0),
    "collectives": (1.2, 10.0),
}
FLAP_SLOWDOWN = (5.0, 300.0)
#: Seconds that a flap lasts, where it is a timeout; at least as many transfers as `FLAP_SLOWDOWN` says.
STALL_S = (1e-3, 10.0)
STALL_CHANCE = 0.5
FLAP_SHARE = (0.01, 0.10)
#: A bad card or link is so from an onset; congestion always begins, and often ends.
ONSET_CHANCE = 0.3
RECOVERY_CHANCE: dict[Scope, float] = {"card": 0.3, "link": 0.3, "group": 0.5, "switch": 0.5, "collectives": 0.5}
#: Limits of the part of a step that a random fault adds to it.
COST = (0.02, 1.0)
#: What costs less is drawn again elsewhere in the job, but for one in four.
MIN_COST = 0.01
STAYS_CHANCE = 0.25
MAX_SPREAD = 0.2


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworkFault(Fault):
    """Slow transfers of cards, links or groups; `strength` is the slowdown, or `stall_s` where transfers get stuck."""

    cause: ClassVar[str] = "network-fault"
    has_exact_onset: ClassVar[bool] = True
    #: All transfers and collectives of one worker; point-to-point between `stage` and the next, of one dp rank; the
    #: collectives of a stage's dp ranks; point-to-point between `stage` and the next of all dp ranks, where these are on different
    #: hosts; the collectives of all stages.
    scope: Scope = "card"
    #: The worker; the sending stage of a link; of a group, `stage` alone counts.
    dp_rank: int = 0
    stage: int = 0
    #: More places like it, (dp rank, stage), that are slow as well.
    also: tuple[Worker, ...] = ()
    #: Which transfers of a link or switch.
    direction: Direction = "both"
    #: A transfer takes this many times as long.
    slowdown: float = 10.0
    #: It takes these seconds besides.
    stall_s: float = 0.0
    #: Part of the transfers that do; below 1 the link flaps, and which ones is chance. At least one does.
    share: float = 1.0
    #: Standard deviation of the logarithm of what is added, drawn for each transfer.
    spread: float = 0.1
    #: Of so many steps, those within onset and recovery, the first half is slow: certain hours. 0: all are.
    cycle_steps: int | None = None

    @property
    def strength(self) -> float:
        """Slowdown, or seconds stuck."""
        return self.stall_s or self.slowdown

    @property
    def places(self) -> tuple[Worker, ...]:
        """List the places of the scope, (dp rank, stage)."""
        return ((self.dp_rank, self.stage), *self.also)

    def active(self, spec: JobSpec) -> Bools:
        """Mark the steps in which it happens, shape (n_steps, 1)."""
        always = super().active(spec)
        if self.cycle_steps is None:
            return always
        since = np.arange(spec.steps) - (self.onset or 0)
        return always & (since % self.cycle_steps < self.cycle_steps // 2)[:, None]

    def workers(self, spec: JobSpec) -> tuple[Worker, ...]:
        """Name the workers with the cards, or both ends of the links."""
        if self.scope in OF_GROUPS:
            return ()
        if self.scope == "card":
            return self.places
        links = [(dp, self.stage) for dp in range(spec.dp)] if self.scope == "switch" else self.places
        ends = {(dp, end % spec.pp) for dp, stage in links for end in (stage, stage + 1)}
        return tuple(sorted(ends))

    def stages(self, spec: JobSpec) -> tuple[int, ...]:  # noqa: ARG002 - of the base class
        """Name the stages of the groups; all collectives are everywhere."""
        return tuple(stage for _, stage in self.places) if self.scope == "group" else ()

    def tellable(self, spec: JobSpec) -> bool:
        """With one stage all that moves belongs to one group: slow from the first step to the last, it is the normal.

        So it is with two stages and one dp rank, where every transfer has both workers at its ends, and with what all stages or all
        dp ranks share: that is how the job is laid out.
        """
        if self.onset is not None or self.recovery is not None or self.cycle_steps is not None or self.share < 1.0:
            return True
        if self.scope in ("switch", "collectives"):
            return False
        return spec.pp > 2 or (spec.pp == 2 and (spec.dp > 1 or self.scope == "group"))

    def place_tellable(self, spec: JobSpec) -> bool:
        """Only transfers between two workers say who is slow: a collective ends at the same time for all its members."""
        if self.scope != "card":
            return True
        programme = build_programme(spec)
        rng = self.random(spec)
        for _, stage in self.places:
            tasks = list_transfers(spec, programme, self.scope, stage)
            slow = self._draw_slow(spec, rng, len(tasks)).any(axis=(1, 2))
            rng.standard_normal((len(tasks), spec.steps, 1))
            if not programme.is_op(*P2P)[tasks[slow]].any():
                return False
        return True

    def apply(self, inputs: Inputs) -> Inputs:
        """Make the transfers longer.

        Raises
        ------
        UsageError
            A card, link or group that the job does not have, or a switch in a job on one host.
        """
        spec, rng = inputs.spec, self.random(inputs.spec)
        if self.scope == "switch" and not 0 < spec.workers_per_host < spec.pp * spec.dp:
            raise UsageError("a switch is between hosts; the job is on one, or names none", where=self.cause)
        transfer_s, stall_s = inputs.transfer_s.copy(), inputs.stall_s.copy()
        for dp_rank, stage in self.places:
            tasks = list_transfers(spec, inputs.programme, self.scope, stage, self.direction)
            everywhere = self.scope not in ("card", "link")
            if not len(tasks) or not (everywhere or 0 <= dp_rank < spec.dp):
                raise UsageError(
                    f"no {self.scope} with transfers at dp {dp_rank}, stage {stage}; the job has {spec.dp} x {spec.pp}",
                    where=self.cause,
                )
            slow = self._draw_slow(spec, rng, len(tasks))
            unsteady = np.exp(self.spread * rng.standard_normal(slow.shape))
            lanes = slice(None) if everywhere else slice(dp_rank, dp_rank + 1)
            transfer_s[tasks, :, lanes] *= np.where(slow, 1.0 + (self.slowdown - 1.0) * unsteady, 1.0)
            stall_s[tasks, :, lanes] += np.where(slow, self.stall_s * unsteady, 0.0)
        return dataclasses.replace(inputs, transfer_s=transfer_s, stall_s=stall_s)

    def _draw_slow(self, spec: JobSpec, rng: np.random.Generator, n_tasks: int) -> Bools:
        """Choose the transfers that are slow, shape (n_tasks, n_steps, 1)."""
        chance = rng.random((n_tasks, spec.steps, 1))
        chance[:, ~self.active(spec)[:, 0]] = np.inf
        n_active = int(np.isfinite(chance).sum())
        n_slow = min(max(1, round(self.share * n_active)), n_active)
        limit = np.sort(chance, axis=None)[n_slow - 1] if n_slow else -np.inf
        return np.asarray(chance <= limit)


def list_transfers(
    spec: JobSpec, programme: Programme, scope: Scope, stage: int, direction: Direction = "both"
) -> Ints:
    """List the tasks that go through a card, a link or a group's network; of a link the sends, which is enough."""
    link, found = {stage, (stage + 1) % spec.pp}, []
    send = {"forward": {Op.FORWARD_SEND}, "backward": {Op.BACKWARD_SEND}, "both": {Op.FORWARD_SEND, Op.BACKWARD_SEND}}
    for meeting in programme.meetings:
        if len(meeting.members) == 1 and not (meeting.across_dp and spec.has_dp):
            continue  # it meets nobody
        ends = [programme.tasks[member].stage for member in meeting.members]
        op = programme.tasks[meeting.members[0]].op
        if scope in ("link", "switch"):
            ops = {programme.tasks[member].op for member in meeting.members}
            way = "forward" if ends[0] == stage else "backward"  # sender first
            goes = ops & send[direction] if not spec.is_v else direction in ("both", way)
            found += [meeting.members[0]] if op in P2P and set(ends) == link and goes else []
        elif scope == "collectives":
            found += [member for member in meeting.members if op in DP_COLLECTIVES]
        elif scope == "card" or op in DP_COLLECTIVES:
            found += [member for member, end in zip(meeting.members, ends, strict=True) if end == stage]
    return np.array(sorted(found), dtype=np.int64)


def draw_fault(
    spec: JobSpec,
    rng: np.random.Generator,
    *,
    strength: float | None = None,
    onset: int | None = None,
    kind: str | None = None,
) -> NetworkFault | None:
    """Draw a fault of the network, as slow as it takes to be felt.

    A job of one worker has no network to speak of, and another may not have that kind: None.
    """
    if spec.dp * spec.pp == 1:
        return None
    chosen = choose_kind(KINDS, rng, kind)
    others = [name for name in rng.permutation(list(KINDS)).tolist() if name != chosen] if kind is None else []
    stays = rng.random() < STAYS_CHANCE
    found: list[tuple[NetworkFault, float]] = []
    for name in (chosen, *others):
        for scope in rng.permutation(SCOPES_OF[name]).tolist():
            drawn = _draw_in_scope(spec, rng, scope, name, onset) if _has(spec, scope) else None
            if drawn is None:
                continue
            found.append(_choose_slowdown(spec, rng, drawn, strength))
            if found[-1][1] >= MIN_COST or stays or strength is not None:
                return found[-1][0]
    return max(found, key=lambda pair: pair[1])[0] if found else None


def _has(spec: JobSpec, scope: Scope) -> bool:
    """Say whether a job has a scope; a switch where a stage fills its hosts, so that all its links leave them."""
    if scope in OF_GROUPS:
        return spec.has_dp
    if scope == "switch":
        return spec.pp > 1 and spec.workers_per_host > 0 and spec.dp % spec.workers_per_host == 0
    return scope == "card" or spec.pp > 1


def _draw_in_scope(
    spec: JobSpec, rng: np.random.Generator, scope: Scope, kind: str, onset: int | None
) -> NetworkFault | None:
    """Draw everything but how slow it is; None where the job is too short or too small for it."""
    is_ring = spec.vpp > 1 and spec.pp > 2 and not spec.is_v
    n_places = spec.pp - 1 if scope in ("link", "switch") and not is_ring else spec.pp
    n_ranks = spec.dp if scope in ("card", "link") else 1
    drawn_onset, drawn_recovery = _draw_times(spec, rng, scope)
    n_drawn = 2 if kind == "several" else 1
    direction: Direction = ("forward", "backward")[int(rng.integers(2))] if kind == "direction" else "both"
    cycle = 2 * int(rng.integers(2, 7))
    if n_drawn > n_places * n_ranks or (kind == "hours" and spec.steps < 2 * cycle):
        return None
    if scope in ("switch", "collectives") and drawn_onset is None and onset is None:
        return None  # all the time it would be how the job is laid out
    at = rng.choice(n_ranks * n_places, size=n_drawn, replace=False)
    places = [(int(i) // n_places, int(i) % n_places) for i in at]
    given = onset is not None or kind == "hours"
    return NetworkFault(
        kind=kind,
        scope=scope,
        dp_rank=places[0][0],
        stage=places[0][1],
        also=tuple(places[1:]),
        direction=direction,
        cycle_steps=cycle if kind == "hours" else None,
        spread=float(rng.uniform(0.0, MAX_SPREAD)),
        share=float(rng.uniform(*FLAP_SHARE)) if kind == "flaps" else 1.0,
        onset=onset if given else drawn_onset,
        recovery=None if given else drawn_recovery,
    )


def _choose_slowdown(
    spec: JobSpec, rng: np.random.Generator, fault: NetworkFault, strength: float | None
) -> tuple[NetworkFault, float]:
    """Draw a cost, and choose how slow transfers are for the mean step to have it; say what it comes to."""
    cost = draw_log_uniform(rng, *COST)
    stalls, active_share = bool(rng.random() < STALL_CHANCE), float(fault.active(spec).mean())
    if fault.share < 1.0:
        return _choose_flap(spec, fault, cost=cost / active_share, stalls=stalls, strength=strength), cost
    if strength is not None:
        return dataclasses.replace(fault, slowdown=strength), cost
    lowest, highest = SLOWDOWN[fault.scope]
    always = dataclasses.replace(fault, onset=None, recovery=None, cycle_steps=None)
    slowdown, reached = find_strength(
        spec,
        lambda s: dataclasses.replace(always, slowdown=s),
        cost=cost / active_share,
        lowest=lowest,
        highest=highest,
    )
    return dataclasses.replace(fault, slowdown=slowdown), reached * active_share


def _draw_times(spec: JobSpec, rng: np.random.Generator, scope: Scope) -> tuple[int | None, int | None]:
    """Draw an onset, for a group always, and perhaps a recovery."""
    starts = scope in OF_GROUPS or scope == "switch" or rng.random() < ONSET_CHANCE
    recovers = rng.random() < RECOVERY_CHANCE[scope]
    first, length = rng.random(), rng.random()
    if spec.steps <= 3 or not starts:
        return None, None
    onset = 1 + int(first * (spec.steps - 2))
    recovery = onset + 1 + int(length * (spec.steps - onset - 1))
    return onset, recovery if recovers and recovery < spec.steps else None


def _choose_flap(
    spec: JobSpec, fault: NetworkFault, *, cost: float, stalls: bool, strength: float | None
) -> NetworkFault:
    """Make the transfers that flap so long that all together cost that part of the steps, if none of it is hidden."""
    inputs = draw_inputs(quiet_step(spec))
    tasks = list_transfers(spec, inputs.programme, fault.scope, fault.stage, fault.direction)
    transfer_s = inputs.transfer_s[tasks, 0, fault.dp_rank]
    budget_s = cost * estimate_step(inputs.spec) / fault.share
    usual_s = float(transfer_s.mean())
    if stalls and strength is None:
        lowest, highest = STALL_S
        stall_s = float(np.clip(budget_s / len(transfer_s), max(lowest, FLAP_SLOWDOWN[0] * usual_s), highest))
        return dataclasses.replace(fault, slowdown=1.0, stall_s=stall_s)
    slowdown = float(np.clip(1.0 + budget_s / transfer_s.sum(), *FLAP_SLOWDOWN))
    return dataclasses.replace(fault, slowdown=slowdown if strength is None else strength)


_SLOW_LINKS = dataclasses.replace(CLEAR, transfer_s=5e-3)
_ON_HOSTS = dataclasses.replace(_SLOW_LINKS, workers_per_host=4)
EXAMPLES = {
    "a bad card": Example(NetworkFault(scope="card", dp_rank=2, stage=1, slowdown=20.0)),
    "a bad link": Example(NetworkFault(scope="link", dp_rank=1, stage=1, slowdown=15.0), _SLOW_LINKS),
    "a congested group since step 8": Example(NetworkFault(scope="group", stage=2, slowdown=10.0, onset=8)),
    "one direction of a link": Example(
        NetworkFault(scope="link", dp_rank=1, stage=1, slowdown=15.0, direction="forward"),
        dataclasses.replace(_SLOW_LINKS, p2p="asynchronous"),
    ),
    "two bad links": Example(
        NetworkFault(scope="link", dp_rank=0, stage=0, slowdown=10.0, also=((0, 2),)), _SLOW_LINKS
    ),
    "bad links of two ranks": Example(
        NetworkFault(scope="link", dp_rank=0, stage=0, slowdown=10.0, also=((3, 1),)), _SLOW_LINKS
    ),
    "two bad cards": Example(NetworkFault(scope="card", dp_rank=2, stage=1, slowdown=15.0, also=((0, 3),))),
    "a switch since step 10": Example(NetworkFault(scope="switch", stage=1, slowdown=10.0, onset=10), _ON_HOSTS),
    "a link at certain hours": Example(
        NetworkFault(scope="link", dp_rank=2, stage=0, slowdown=20.0, cycle_steps=8), _SLOW_LINKS
    ),
    "a flapping link": Example(NetworkFault(scope="link", dp_rank=3, stage=2, slowdown=150.0, share=0.03), _SLOW_LINKS),
    "flapping collectives of one stage": Example(
        NetworkFault(scope="group", stage=1, slowdown=1.0, stall_s=0.4, share=0.25)
    ),
    "all collectives since step 8": Example(NetworkFault(scope="collectives", slowdown=6.0, onset=8)),
}
PLAIN = Example(NetworkFault(scope="card", dp_rank=2, stage=1, slowdown=20.0), PLAIN_JOB)
LOOK_ALIKES = {
    "hidden transfer": LookAlike(
        HiddenTransfer(dp=1, stage=1, first=2, seconds=0.05, strengths=(1.0, 0.5) * 12), CLEAR_ASYNCHRONOUS
    ),
}
FIXTURE = Fixture("single transfers and collectives of dp rank 1, stage 1 stick for 83 ms", seed=2, kind="flaps")
