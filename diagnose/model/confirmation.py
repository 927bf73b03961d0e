"""Whether a suspect machine is at fault: what is tested, what each machine measured, and what became of the finding.

Enters: a diagnosis, and later the results of tests. Leaves: a `TestPlan`, and the key `confirmed` of a cause.
"""

from typing import Annotated, Final, Literal, NamedTuple

from msgspec import Meta, Struct

from diagnose.model.plain import says

#: What a machine writes about itself.
RESULT_SCHEMA: Final = "diagnose-confirm/1"
#: `confirmed`: it is worse than the controls. `cleared`: it was tested and is as good. `unclear`: nobody can tell.
Outcome = Literal["confirmed", "cleared", "unclear"]
#: What is measured; `diagnose.confirm.catalogue` says how each is read.
TestName = Literal[
    "gemm",
    "card-memory",
    "pcie",
    "allocation",
    "dcgm",
    "network",
    "port",
    "cpu",
    "steal",
    "run-queue",
    "memory",
    "disk",
    "data",
]
Role = Literal["suspect", "control"]
_Share = Annotated[float, Meta(ge=0, le=1)]


class Suspect(Struct, frozen=True, kw_only=True):
    """A machine that a cause is blamed on."""

    #: Its name, as the trace has it.
    host: str
    #: Ids of the causes that name it.
    causes: tuple[str, ...]
    #: Indices of their GPUs, where ranks are dealt to machines in order; empty where nobody knows.
    cards: tuple[int, ...] = ()
    #: Machines at the other ends of links that are blamed.
    partners: tuple[str, ...] = ()


class Pair(Struct, frozen=True):
    """Two machines that send to each other, in a round in which neither has another partner."""

    server: str
    client: str
    round: int


class TestPlan(Struct, frozen=True, kw_only=True):
    """What is run where."""

    __test__ = False  # no test of pytest

    #: Id of the job, or a digest of it where it holds more than letters, digits and a few signs.
    job: str
    #: Worst first.
    suspects: tuple[Suspect, ...]
    #: Sound machines of the same job, to compare with.
    controls: tuple[str, ...]
    #: Suspects beyond those that are tested at once.
    left_out: int
    #: Groups of tests: "gpu", "network", "cpu", "memory", "disk".
    tests: tuple[str, ...]
    #: For the network, by rounds.
    pairs: tuple[Pair, ...]
    #: GPUs a machine; None where nobody knows.
    n_cards: int | None = None
    #: Folder that reading is tested in; empty for none.
    data: str = ""

    @property
    def hosts(self) -> tuple[str, ...]:
        """All machines that are tested, suspects first."""
        return (*(one.host for one in self.suspects), *self.controls)

    @property
    def n_rounds(self) -> int:
        """How many rounds the pairs take."""
        return 1 + max((pair.round for pair in self.pairs), default=-1)


class Measured(Struct, frozen=True):
    """One figure of one machine, of a card, port, partner or folder; `passed` is what a test says that gives no figure."""

    test: TestName
    of: Annotated[str, Meta(max_length=300)] = ""
    value: Annotated[float, Meta(ge=0, le=1e18)] | None = None
    passed: bool | None = None
    note: Annotated[str, Meta(max_length=2000)] = ""


class Skipped(Struct, frozen=True):
    """A test that could not be run, and why."""

    test: Annotated[str, Meta(max_length=100)]
    reason: Annotated[str, Meta(max_length=2000)]


class HostResult(Struct, frozen=True, kw_only=True):
    """What the program of the tests prints on each machine; times in Unix seconds."""

    schema: Literal["diagnose-confirm/1"]
    job: str
    host: Annotated[str, Meta(max_length=300)]
    role: Role
    began_s: float
    ended_s: float
    measured: Annotated[tuple[Measured, ...], Meta(max_length=4000)]
    skipped: Annotated[tuple[Skipped, ...], Meta(max_length=400)] = ()


class Tested(Struct, frozen=True, kw_only=True):
    """One figure of a suspect beside those of the controls."""

    test: TestName
    of: Annotated[str, says("card, port, partner or folder; empty for the machine")]
    outcome: Outcome
    value: Annotated[float | None, says("of the suspect, in the unit of the test")]
    controls: Annotated[float | None, says("median of the controls; null where there are too few")]
    n_controls: Annotated[int, Meta(ge=0)]
    text: Annotated[str, says("the same in a sentence")]


class HostConfirmation(Struct, frozen=True, kw_only=True):
    """What the tests say of one suspect."""

    host: str
    outcome: Outcome
    tested_s: Annotated[float | None, says("Unix seconds at which its tests ended; null where none came")]
    tests: tuple[Tested, ...]
    skipped: Annotated[tuple[Skipped, ...], says("tests that could not be run, and why")] = ()


class TestedCause(NamedTuple):
    """A cause, or the kind of a faulty machine, how sure it is after the tests, and what these say."""

    cause: str
    confidence: float
    said: "Confirmation"


class Confirmation(Struct, frozen=True, kw_only=True):
    """What tests on its machines say of a cause."""

    outcome: Outcome
    confidence_before: Annotated[_Share, says("of the cause, before the tests")]
    hosts: Annotated[tuple[HostConfirmation, ...], says("Suspects, worst first")]
    links: Annotated[tuple[str, ...], says("pairs of machines whose link is slow while both are sound elsewhere")] = ()
