"""A network that moves data slowly: a bad card, a bad link, a congested group, or single transfers that get stuck.

A collective is as slow as its slowest member, so one bad card slows its whole group down. Computes stay as they are. The
fault adds time: mended, transfers take what they take by themselves.
"""

import dataclasses
from typing import ClassVar, Literal, get_args

import numpy as np

from diagnose.errors import UsageError
from diagnose.faults.decoys import HiddenTransfer
from diagnose.faults.example import CLEAR, CLEAR_ASYNCHRONOUS, PLAIN_JOB, Example, Fixture, LookAlike
from diagnose.faults.fault import Fault, Worker, choose_kind
from diagnose.faults.inputs import Inputs, draw_inputs
from diagnose.faults.programme import Programme, build_programme
from diagnose.faults.spec import JobSpec, draw_log_uniform
from diagnose.faults.strength import estimate_step, find_strength, quiet_step
from diagnose.model.optype import DP_COLLECTIVES, P2P
from diagnose.model.trace import Bools, Ints

Scope = Literal["card", "link", "group"]
#: How often a random fault is in each, where the job has it.
SCOPE_WEIGHT: dict[Scope, float] = {"card": 0.5, "link": 0.25, "group": 0.25}
#: Times as long: all transfers of a bad card or link; the collectives of a congested group; a transfer that flaps.
SLOWDOWN: dict[Scope, tuple[float, float]] = {"card": (1.5, 40.0), "link": (1.5, 40.0), "group": (1.2, 10.0)}
FLAP_SLOWDOWN = (5.0, 300.0)
#: Seconds that a flap lasts, where it is a timeout; at least as many transfers as `FLAP_SLOWDOWN` says.
STALL_S = (1e-3, 10.0)
FLAP_CHANCE, STALL_CHANCE = 0.25, 0.5
FLAP_SHARE = (0.01, 0.10)
#: A bad card or link is so from an onset; congestion always begins, and often ends.
ONSET_CHANCE = 0.3
RECOVERY_CHANCE: dict[Scope, float] = {"card": 0.3, "link": 0.3, "group": 0.5}
#: Limits of the part of a step that a random fault adds to it.
COST = (0.02, 1.0)
#: What costs less is drawn again elsewhere in the job, but for one in four.
MIN_COST = 0.01
STAYS_CHANCE = 0.25
MAX_SPREAD = 0.2


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworkFault(Fault):
    """Slow transfers of a card, a link or a group; `strength` is the slowdown, or `stall_s` where transfers get stuck."""

    cause: ClassVar[str] = "network-fault"
    has_exact_onset: ClassVar[bool] = True
    #: All transfers and collectives of one worker; point-to-point between `stage` and the next, of one dp rank; the
    #: collectives of a stage's dp ranks.
    scope: Scope = "card"
    #: The worker; the sending stage of a link; of a group, `stage` alone counts.
    dp_rank: int = 0
    stage: int = 0
    #: A transfer takes this many times as long.
    slowdown: float = 10.0
    #: It takes these seconds besides.
    stall_s: float = 0.0
    #: Part of the transfers that do; below 1 the link flaps, and which ones is chance. At least one does.
    share: float = 1.0
    #: Standard deviation of the logarithm of what is added, drawn for each transfer.
    spread: float = 0.1

    @property
    def strength(self) -> float:
        """Slowdown, or seconds stuck."""
        return self.stall_s or self.slowdown

    def workers(self, spec: JobSpec) -> tuple[Worker, ...]:
        """Name the worker with the card, or both ends of the link."""
        if self.scope == "group":
            return ()
        stages = (self.stage,) if self.scope == "card" else sorted({self.stage, (self.stage + 1) % spec.pp})
        return tuple((self.dp_rank, stage) for stage in stages)

    def stages(self, spec: JobSpec) -> tuple[int, ...]:  # noqa: ARG002 - of the base class
        """Name the stage of the group."""
        return (self.stage,) if self.scope == "group" else ()

    def tellable(self, spec: JobSpec) -> bool:
        """With one stage all that moves belongs to one group: slow from the first step to the last, it is the normal.

        So it is with two stages and one dp rank, where every transfer has both workers at its ends.
        """
        if self.onset is not None or self.recovery is not None or self.share < 1.0:
            return True
        return spec.pp > 2 or (spec.pp == 2 and (spec.dp > 1 or self.scope == "group"))

    def place_tellable(self, spec: JobSpec) -> bool:
        """Only transfers between two workers say who is slow: a collective ends at the same time for all its members."""
        if self.scope == "group":
            return True
        programme = build_programme(spec)
        tasks = list_transfers(spec, programme, self.scope, self.stage)
        slow = self._draw_slow(spec, self.random(spec), len(tasks)).any(axis=(1, 2))
        return bool(programme.is_op(*P2P)[tasks[slow]].any())

    def apply(self, inputs: Inputs) -> Inputs:
        """Make the transfers longer.

        Raises
        ------
        UsageError
            A card, link or group that the job does not have.
        """
        spec = inputs.spec
        tasks = list_transfers(spec, inputs.programme, self.scope, self.stage)
        is_group = self.scope == "group"
        if not len(tasks) or not (is_group or 0 <= self.dp_rank < spec.dp):
            raise UsageError(
                f"no {self.scope} with transfers at dp {self.dp_rank}, stage {self.stage}; the job has {spec.dp} x {spec.pp}",
                where=self.cause,
            )
        rng = self.random(spec)
        slow = self._draw_slow(spec, rng, len(tasks))
        unsteady = np.exp(self.spread * rng.standard_normal(slow.shape))
        lanes = slice(None) if is_group else slice(self.dp_rank, self.dp_rank + 1)
        transfer_s, stall_s = inputs.transfer_s.copy(), inputs.stall_s.copy()
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


def list_transfers(spec: JobSpec, programme: Programme, scope: Scope, stage: int) -> Ints:
    """List the tasks that go through a card, a link or a group's network; of a link the sends, which is enough."""
    link, found = {stage, (stage + 1) % spec.pp}, []
    for meeting in programme.meetings:
        if len(meeting.members) == 1 and not (meeting.across_dp and spec.has_dp):
            continue  # it meets nobody
        ends = [programme.tasks[member].stage for member in meeting.members]
        op = programme.tasks[meeting.members[0]].op
        if scope == "link":
            found += [meeting.members[0]] if op in P2P and set(ends) == link else []
        elif scope == "card" or op in DP_COLLECTIVES:
            found += [member for member, end in zip(meeting.members, ends, strict=True) if end == stage]
    return np.array(sorted(found), dtype=np.int64)


#: How often a random fault is of each kind.
KINDS = {"network": 1.0}


def draw_fault(
    spec: JobSpec,
    rng: np.random.Generator,
    *,
    strength: float | None = None,
    onset: int | None = None,
    kind: str | None = None,
) -> NetworkFault | None:
    """Draw a bad card, a bad link or a congested group, a quarter of them flapping, as slow as it takes to be felt.

    A job of one worker has no network to speak of: None.
    """
    if spec.dp * spec.pp == 1:
        return None
    weight = np.array(list(SCOPE_WEIGHT.values()))
    scopes = [get_args(Scope)[i] for i in rng.choice(len(weight), size=len(weight), replace=False, p=weight)]
    scopes = [s for s in scopes if s == "card" or (spec.pp > 1 if s == "link" else spec.has_dp)]
    stays, flaps = rng.random() < STAYS_CHANCE, bool(rng.random() < FLAP_CHANCE)
    found: list[tuple[NetworkFault, float]] = []
    chosen = choose_kind(KINDS, rng, kind)
    for scope in scopes:
        drawn = dataclasses.replace(_draw_in_scope(spec, rng, scope, flaps=flaps, onset=onset), kind=chosen)
        found.append(_choose_slowdown(spec, rng, drawn, strength))
        if found[-1][1] >= MIN_COST or stays or strength is not None:
            return found[-1][0]
    return max(found, key=lambda pair: pair[1])[0]


def _draw_in_scope(
    spec: JobSpec, rng: np.random.Generator, scope: Scope, *, flaps: bool, onset: int | None
) -> NetworkFault:
    """Draw everything but how slow it is."""
    n_places = spec.pp - 1 if scope == "link" and (spec.vpp == 1 or spec.pp == 2) else spec.pp
    drawn_onset, drawn_recovery = _draw_times(spec, rng, scope)
    return NetworkFault(
        scope=scope,
        dp_rank=0 if scope == "group" else int(rng.integers(0, spec.dp)),
        stage=int(rng.integers(0, n_places)),
        spread=float(rng.uniform(0.0, MAX_SPREAD)),
        share=float(rng.uniform(*FLAP_SHARE)) if flaps else 1.0,
        onset=drawn_onset if onset is None else onset,
        recovery=drawn_recovery if onset is None else None,
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
    always = dataclasses.replace(fault, onset=None, recovery=None)
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
    starts = scope == "group" or rng.random() < ONSET_CHANCE
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
    transfer_s = inputs.transfer_s[list_transfers(spec, inputs.programme, fault.scope, fault.stage), 0, fault.dp_rank]
    budget_s = cost * estimate_step(inputs.spec) / fault.share
    usual_s = float(transfer_s.mean())
    if stalls and strength is None:
        lowest, highest = STALL_S
        stall_s = float(np.clip(budget_s / len(transfer_s), max(lowest, FLAP_SLOWDOWN[0] * usual_s), highest))
        return dataclasses.replace(fault, slowdown=1.0, stall_s=stall_s)
    slowdown = float(np.clip(1.0 + budget_s / transfer_s.sum(), *FLAP_SLOWDOWN))
    return dataclasses.replace(fault, slowdown=slowdown if strength is None else strength)


EXAMPLES = {
    "a bad card": Example(NetworkFault(scope="card", dp_rank=2, stage=1, slowdown=20.0)),
    "a bad link": Example(
        NetworkFault(scope="link", dp_rank=1, stage=1, slowdown=15.0), dataclasses.replace(CLEAR, transfer_s=5e-3)
    ),
    "a congested group since step 8": Example(NetworkFault(scope="group", stage=2, slowdown=10.0, onset=8)),
}
PLAIN = Example(NetworkFault(scope="card", dp_rank=2, stage=1, slowdown=20.0), PLAIN_JOB)
LOOK_ALIKES = {
    "hidden transfer": LookAlike(
        HiddenTransfer(dp=1, stage=1, first=2, seconds=0.05, strengths=(1.0, 0.5) * 12), CLEAR_ASYNCHRONOUS
    ),
}
FIXTURE = Fixture(
    "single transfers and collectives of dp rank 3, stage 2 take 73 times as long", seed=1, kind="network"
)
