"""Every cause, clear and alone: found first, in its place and time, with its true gain, for no other; decoys are no cause."""

import dataclasses

import pytest

from diagnose.faults.catalogue import list_cause_files, list_look_alikes
from diagnose.faults.decoy import Decoy
from diagnose.faults.example import CLEAR_ASYNCHRONOUS, Example
from diagnose.faults.generate import FaultTruth, Job, generate, strip_evidence
from diagnose.faults.spec import JobSpec
from diagnose.model.cause import Cause
from diagnose.model.diagnosis import Diagnosis
from tests.judge.cases import built_in, causes, diagnose_table, diagnosed, make
from tests.report.pages import assert_fits, assert_promises_agree, page_of

#: A predicted gain must come that near to the true one.
GAIN_TOLERANCE = 0.03
#: A clear fault is worth at least that part of the step.
CLEAR = 0.08

FILES = list_cause_files()
#: Clear faults, at least one a cause, each in a job that suits it.
EXAMPLES: dict[str, Example] = {name: example for file in FILES.values() for name, example in file.examples.items()}
#: ... which the times alone tell.
TOLD_BY_TIMES = [
    name
    for name, example in EXAMPLES.items()
    if example.fault.tellable(dataclasses.replace(example.spec, evidence=False))
]
#: What looks like a fault and is none, each kind alone.
LOOK_ALIKES = list_look_alikes()
#: Decoys in one job.
PAIRS = (
    ("even documents", "planned collections in a forward"),
    ("hidden pause of a forward", "hidden pause of a backward with rows"),
    ("hidden worker", "even documents"),
)


def make_example(name: str) -> Job:
    """Generate the job of an example, once."""
    return make(EXAMPLES[name].spec, EXAMPLES[name].fault)


def diagnose_example(name: str) -> Diagnosis:
    """Diagnose the job of an example, once."""
    return diagnosed(EXAMPLES[name].spec, EXAMPLES[name].fault)


def found_without_rows(name: str) -> Diagnosis:
    """Diagnose the job of a fault without evidence rows and tokens."""
    return diagnose_table(strip_evidence(make_example(name).trace))


def assert_in_place(found: Cause, true: FaultTruth, spec: JobSpec) -> None:
    """Compare the places named with those where the fault is."""
    named = {(worker.dp, worker.pp) for worker in found.where.workers}
    named |= {(end.dp, end.pp) for link in found.where.links for end in link.ends}
    if not true.place_tellable:
        assert named <= set(true.workers)
    elif true.workers:
        assert named == set(true.workers)
    elif true.stages:
        assert set(found.where.stages) | {stage for _, stage in named} == set(true.stages)
    else:
        assert not found.where.stages or set(found.where.stages) == set(range(spec.pp))


def assert_found(found: Diagnosis, name: str) -> None:
    """The fault is found, alone, in its place, with its true gain, and since when it is there."""
    spec, fault = EXAMPLES[name].spec, EXAMPLES[name].fault
    (true,) = make_example(name).truth.faults
    assert true.recoverable > CLEAR, true.recoverable
    assert found.verdict == "straggling"
    assert causes(found) == [fault.cause]
    cause = found.causes[0]
    assert cause.recoverable == pytest.approx(true.recoverable, abs=GAIN_TOLERANCE)
    # What else may explain the same seconds is told with its part of the confidence.
    assert cause.confidence + sum(other.confidence for other in cause.alternatives) > 0.7
    assert all(other.confidence < cause.confidence for other in cause.alternatives)
    assert_in_place(cause, true, spec)
    grows = getattr(fault, "course", "") == "ramp"  # its first steps are no slower than chance makes them
    assert cause.when.onset_step == true.onset_step or not fault.has_exact_onset or grows


def test_every_cause_has_a_clear_fault() -> None:
    """Each cause that can be generated has a rule, and the reverse; its file brings clear faults of its own, and of no other."""
    assert set(FILES) == {rule.id for rule in built_in().rules}
    for cause, file in FILES.items():
        assert {example.fault.cause for example in [*file.examples.values(), file.plain]} == {cause}
    assert len(EXAMPLES) == sum(len(file.examples) for file in FILES.values())


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_clear_fault_is_found(name: str) -> None:
    """A clear fault alone in a job is the one cause found, where it is, with its true gain."""
    assert_found(diagnose_example(name), name)


@pytest.mark.parametrize("name", TOLD_BY_TIMES)
def test_a_clear_fault_is_found_without_rows(name: str) -> None:
    """The same holds where the trace has no evidence rows: the times alone say so."""
    assert_found(found_without_rows(name), name)


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in TOLD_BY_TIMES])
def test_what_only_rows_tell_is_no_other_cause(name: str) -> None:
    """Nothing else is said surely."""
    others = [cause for cause in found_without_rows(name).causes if cause.cause != EXAMPLES[name].fault.cause]
    assert all(cause.confidence < 0.8 for cause in others)


@pytest.mark.parametrize("name", EXAMPLES)
def test_pages_promise_what_the_fix_gives(name: str) -> None:
    """The headline has the price of the first fix, to the digit that the pages print beside it; the first page fits a screen."""
    for found in (diagnose_example(name), found_without_rows(name)):
        assert_fits(page_of(found))
        if found.causes:
            assert_promises_agree(found)


@pytest.mark.parametrize("name", EXAMPLES)
def test_look_alikes_stay_silent(name: str) -> None:
    """No cause that the rule's file lists as looking like it is reported in its stead, or beside it."""
    fault = EXAMPLES[name].fault
    (rule,) = [rule for rule in built_in().rules if rule.id == fault.cause]
    assert rule.looks_like
    assert not set(rule.looks_like) & set(causes(diagnose_example(name)))


@pytest.mark.parametrize("name", [name for name, example in EXAMPLES.items() if example.fault.onset is not None])
def test_what_begins_later_is_dated(name: str) -> None:
    """A fault with an onset is said to have one, no more than a few steps from the true one, and to end only where it does."""
    spec, fault = EXAMPLES[name].spec, EXAMPLES[name].fault
    numbers, when = spec.step_numbers().tolist(), diagnose_example(name).causes[0].when
    assert when.onset_step is not None
    assert abs(numbers.index(when.onset_step) - (fault.onset or 0)) <= 2
    assert (when.recovery_step is None) == (fault.recovery is None)


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_a_decoy_is_no_fault(name: str) -> None:
    """A job with nothing but one decoy is healthy."""
    spec, decoy = LOOK_ALIKES[name].spec, LOOK_ALIKES[name].decoy
    job = generate(spec, (), [decoy])
    assert job.truth.decoys == (decoy.name,)
    found = diagnose_table(job.trace)
    assert (found.verdict, causes(found)) == ("healthy", [])


def test_every_decoy_is_here() -> None:
    """Each kind of decoy that random jobs have is among those here."""

    def kinds(of: type[Decoy]) -> set[type[Decoy]]:
        below = set(of.__subclasses__())
        return below | {kind for one in below for kind in kinds(one)}

    every = {kind for kind in kinds(Decoy) if kind.__module__.startswith("diagnose.")}
    named = {kind for kind in every if isinstance(getattr(kind, "name", None), str)}
    assert named == {type(one.decoy) for one in LOOK_ALIKES.values()}


@pytest.mark.parametrize("pair", PAIRS, ids=" and ".join)
def test_two_decoys_are_no_fault_either(pair: tuple[str, str]) -> None:
    """Two of them in one job, here and there, are still healthy."""
    job = generate(CLEAR_ASYNCHRONOUS, (), [LOOK_ALIKES[name].decoy for name in pair])
    found = diagnose_table(job.trace)
    assert (found.verdict, causes(found)) == ("healthy", [])
