"""The page that people see first: it fits a screen, says what to do early, and promises what its first fix gives."""

import dataclasses
import functools
import os
import re
from pathlib import Path

import msgspec.structs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from diagnose.model.cause import Alternative, Cause, EvidenceItem, Fix, NotChecked, RefusedFix, When
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.diagnosis_document import Ledger
from diagnose.model.place import Link, Where, Worker
from diagnose.report import facts, markdown, overview, terminal, words
from diagnose.report.brief import render
from diagnose.report.escape import escape
from diagnose.report.gist import list_reasons
from diagnose.report.html.page import render_saved
from tests.fixture_jobs import FIXTURES, diagnosed
from tests.report.examples import EXAMPLES, either, healthy, inconclusive, noisy, two_causes, unknown, worker_fault
from tests.report.hostile import HOSTILE, hostile
from tests.report.pages import COMMAND, assert_fits, assert_promises_agree, page_of

GOLDEN = Path(__file__).parent / "golden_brief"
PAGES = {**{f"fixture-{name}": name for name in FIXTURES}, **{name: name for name in EXAMPLES}}


def diagnosis_of(page: str) -> Diagnosis:
    """Give the fixture or example that a golden page is of."""
    return diagnosed(PAGES[page]) if page.startswith("fixture-") else EXAMPLES[PAGES[page]]()


@pytest.mark.parametrize("name", PAGES)
def test_golden(name: str) -> None:
    """The page of each fixture and example is the one that was last read and agreed to, and fits a screen."""
    page, path = page_of(diagnosis_of(name)), GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(page, encoding="utf-8")
    assert page == path.read_text(encoding="utf-8"), "run with UPDATE_GOLDEN=1 and read the difference"
    assert_fits(page)


def test_planned_work_is_named_by_what_it_is() -> None:
    """What rank 0 does every few steps may be a log as well as an evaluation."""
    assert words.name_alternative(Alternative("evaluation", 0.4, ""), unknown().causes[0]) == "evaluation or logging"
    assert (
        words.name_alternative(Alternative("unknown", 0.4, ""), worker_fault().causes[0]) == "something without a name"
    )


def test_a_share_of_the_slow_workers_says_nothing_of_one() -> None:
    """It is told where several are named."""
    found = worker_fault().causes[0]
    share = EvidenceItem(
        "rule", "worker-fault/worker.began_share", "100% of the slow workers were not slow in the first steps", {}
    )
    one = msgspec.structs.replace(found, evidence=(found.evidence[0], share), where=Where(workers=(Worker(1, 0),)))
    several = msgspec.structs.replace(one, where=Where(workers=(Worker(1, 0), Worker(0, 1))))
    assert (share.text in list_reasons(one), share.text in list_reasons(several)) == (False, True)


def test_the_classifier_is_told_of_what_is_sure() -> None:
    """Beside a guess, or with something else that it may be, its probability says more than is meant."""
    said = EvidenceItem("classifier", "worker-fault/probability", "a classifier gives it 0.99", {})
    found = worker_fault().causes[0]
    sure = msgspec.structs.replace(found, confidence=0.9, alternatives=(), evidence=(found.evidence[0], said))
    assert "a classifier gives it 0.99" in list_reasons(sure)
    other = Alternative("stage-imbalance", 0.3, "")
    for unsure in (
        msgspec.structs.replace(sure, confidence=0.4),
        msgspec.structs.replace(sure, alternatives=(other,)),
    ):
        assert list_reasons(unsure) == list_reasons(sure)[:-1]


def test_golden_has_no_strangers() -> None:
    """Every golden file belongs to a page."""
    assert {path.stem for path in GOLDEN.iterdir()} == set(PAGES)


NAMES = st.one_of(
    st.sampled_from(sorted(HOSTILE.values())), st.text(max_size=120), st.just("gpu-node-" + "0123456789" * 9)
)
NUMBERS = st.floats(0.0, 1e7) | st.floats(0.0, 1.0)
WORKERS = st.builds(
    Worker, st.integers(0, 4095), st.integers(0, 63), rank=st.none() | st.integers(0, 100_000), host=st.none() | NAMES
)
WHERES = st.builds(
    Where,
    workers=st.lists(WORKERS, max_size=9).map(tuple),
    stages=st.lists(st.integers(0, 63), max_size=5).map(tuple),
    hosts=st.lists(NAMES, max_size=3).map(tuple),
    links=st.lists(st.builds(Link, WORKERS, WORKERS), max_size=2).map(tuple),
)
FIXES = st.builds(
    Fix,
    NAMES,
    NAMES,
    NAMES,
    st.none() | NUMBERS,
    st.none() | st.floats(0.5, 100.0),
    figures=st.fixed_dictionaries(
        {}, optional={"break_even_steps": st.integers(0, 10**9), "steps_left": st.none() | st.integers(0, 10**6)}
    ),
)
CAUSES = st.builds(
    Cause,
    cause=st.sampled_from(
        ["worker-fault", "kernel-queue-contention", "unknown", "a-rule-of-a-user-with-a-very-long-name-" * 3]
    ),
    title=NAMES,
    severity=st.sampled_from([None, "low", "critical"]),
    who=st.none() | NAMES,
    confidence=st.floats(0, 1),
    share=st.none() | st.floats(0, 1),
    recoverable=st.floats(-0.1, 1.0),
    recoverable_after_others=st.none() | st.floats(0.0, 1.0),
    where=WHERES,
    when=st.builds(
        When, st.sampled_from(["onset", "periodic", None]), st.none() | st.integers(0, 10**7), st.none(), st.none()
    ),
    check=st.none() | NAMES,
    evidence=st.lists(st.builds(EvidenceItem, st.just("rule"), NAMES, NAMES, st.just({})), max_size=6).map(tuple),
    fixes=st.lists(FIXES, max_size=3).map(tuple),
    refused_fixes=st.lists(st.builds(RefusedFix, NAMES, NAMES), max_size=2).map(tuple),
    alternatives=st.lists(st.builds(Alternative, st.just("network-fault"), st.floats(0, 1), NAMES), max_size=2).map(
        tuple
    ),
    fingerprint=st.just("00"),
)


@given(
    causes=st.lists(CAUSES, max_size=7),
    verdict=st.sampled_from(["straggling", "healthy", "noisy", "inconclusive"]),
    name=NAMES,
    why=NAMES,
    n_notes=st.integers(0, 40),
    path=st.none() | NAMES,
    width=st.integers(40, 200),
)
@settings(max_examples=60)
def test_any_job_fits_a_screen(
    causes: list[Cause], verdict: str, name: str, why: str, n_notes: int, path: str | None, width: int
) -> None:
    """However many causes, and however long the names: never more than a screen, never wider than asked for."""
    base = two_causes()
    diagnosis = dataclasses.replace(
        base,
        verdict=verdict,
        job=dataclasses.replace(base.job, job_id=name),
        causes=tuple(causes) if verdict == "straggling" else (),
        why=why,
        warnings=("w",) * n_notes,
        not_checked=tuple(NotChecked(f"cause-{n}", "no rows") for n in range(n_notes)),
        checked=tuple(f"cause-{n}" for n in range(n_notes)),
    )
    assert_fits(page_of(diagnosis, path=path))
    page = page_of(diagnosis, width=width, path=path)
    lines = page.split("\n")
    assert all(line == line.rstrip() and line == escape(line) for line in lines)
    assert all(cell_len(line) <= width or line.startswith(COMMAND) for line in lines)


@pytest.mark.parametrize(
    "name", sorted(set(PAGES) - {"healthy", "noisy", "overlapping", "inconclusive", "fixture-healthy"})
)
def test_headline_promises_what_the_first_fix_gives(name: str) -> None:
    """Fixtures and examples."""
    assert_promises_agree(diagnosis_of(name))


def test_do_comes_before_why() -> None:
    """What to do stands in the first ten lines, after the verdict and the cause, and before why."""
    for name in FIXTURES:
        labels = [line.split(" ")[0] for line in page_of(diagnosed(name)).splitlines() if not line.startswith(" ")]
        if diagnosed(name).causes:
            assert [label for label in labels if label in ("Cause", "Do", "Why", "Cost", "Check", "More")] == [
                *("Cause", "Do", "Why", "Cost", "Check", "More")
            ]


def test_one_baseline() -> None:
    """The default page compares recorded steps with those without what it names, and has no measure of the paper."""
    for name in PAGES:
        page = page_of(diagnosis_of(name))
        assert not re.search(r"\b(S [0-9]|M_W|M_S|simulated|ideal|discrepancy|waste)\b", page)
    found = msgspec.structs.replace(worker_fault().step_time, recorded=10.0, clean=5.0)
    ledger = Ledger({"worker-fault": 0.6}, {}, 0.4, 0.0)
    for alone, without in ((0.2, "7.00 s"), (0.35, "6.50 s"), (0.7, "5.00 s")):
        (cause,) = worker_fault().causes
        causes = (msgspec.structs.replace(cause, recoverable=alone),)
        page = page_of(dataclasses.replace(worker_fault(), step_time=found, ledger=ledger, causes=causes))
        assert f"10.00 s a step, not {without}" in page


def test_no_job_is_slower_by_less_than_nothing() -> None:
    """Where the replay without faults is no quicker than the recording, a page says how long steps take, and no more."""
    found = worker_fault()
    times = msgspec.structs.replace(found.step_time, clean=1.02 * found.step_time.recorded)
    page = page_of(dataclasses.replace(found, step_time=times))
    assert "slower than without" not in page and f"{words.seconds(times.recorded)} a step" in page
    assert overview.sum_up(found).slower and not overview.sum_up(dataclasses.replace(found, step_time=times)).slower


def test_what_a_finding_names_is_not_called_unchecked() -> None:
    """What could not be looked for, and is told as what a cause may be instead, stands there once."""
    found = worker_fault()
    other = Alternative("stage-imbalance", 0.3, "another run")
    told = tuple(msgspec.structs.replace(cause, alternatives=(other,)) for cause in found.causes)
    unchecked = (NotChecked("stage-imbalance", "one rank"), NotChecked("network-fault", "no rows"))
    before, after = (
        page_of(dataclasses.replace(found, causes=causes, not_checked=unchecked)) for causes in (found.causes, told)
    )
    assert "could not be checked: stage-imbalance (one rank); network-fault (no rows)" in " ".join(before.split())
    assert "could not be checked: network-fault (no rows)" in after


def test_what_has_no_name_is_called_no_fault() -> None:
    """It may be more work."""
    page = page_of(unknown())
    assert "14% slower for an unknown cause: 7.67 s a step, not 6.75 s" in page and "without faults" not in page


def test_unknown_promises_nothing() -> None:
    """Time that nothing explains has no fix: the most that could come back is told as that."""
    assert "up to 12% if it were gone" in page_of(unknown()) and "up to 12% if it were gone" in words.headline(
        unknown()
    )


def test_what_a_fix_gives_is_said_however_long_it_is() -> None:
    """A list of what to move is cut before its result is."""
    (cause,) = worker_fault().causes
    fix = msgspec.structs.replace(cause.fixes[0], summary=f"move {', '.join(map(str, range(200)))}")
    page = page_of(dataclasses.replace(worker_fault(), causes=(msgspec.structs.replace(cause, fixes=(fix,)),)))
    (said,) = re.findall(r"move 0, 1, .*? …: (.*?) +who:", " ".join(page.split()))
    assert said.endswith(f"(-{words.percent(words.price(fix))})")


def test_no_sentence_is_cut_while_there_is_room() -> None:
    """The rows that are too long get the lines that are left of the page, the first one first."""
    (cause,) = unknown().causes
    why = f"time is lost, {'and ' * 40}that is what matters"
    said = EvidenceItem("rule", "unknown/gain.step", why, {})
    found = dataclasses.replace(unknown(), causes=(msgspec.structs.replace(cause, evidence=(said,)),))
    page = page_of(found)
    assert "that is what matters" in page
    assert_fits(page)
    full = page_of(dataclasses.replace(found, warnings=("note " * 18,), not_checked=(NotChecked("x" * 80, "y"),) * 9))
    assert_fits(full)


def test_let_it_finish() -> None:
    """Where a restart pays off only after the end, nobody is told to restart now; a job that is over need not be let finish."""
    page = page_of(diagnosed("worker-fault"))
    assert "let it finish; before the next job replace the worker at dp 1 stage 0" in page and "pays off" not in page
    assert "let it finish: with the fix steps of the next job are 15% shorter" in words.headline(
        diagnosed("worker-fault")
    )
    (cause,) = worker_fault().causes
    fix = msgspec.structs.replace(cause.fixes[0], figures={"break_even_steps": 300, "steps_left": 0})
    over = dataclasses.replace(worker_fault(), causes=(msgspec.structs.replace(cause, fixes=(fix,)),))
    assert "; with the fix steps of the next job are 48% shorter" in words.headline(over)


def test_after_the_others() -> None:
    """A cause that gives enough only once others are gone says so, and how much it is then."""
    first, second = two_causes().causes
    hidden = msgspec.structs.replace(
        second, recoverable=0.001, recoverable_after_others=0.066, fixes=worker_fault().causes[0].fixes
    )
    page = page_of(dataclasses.replace(two_causes(), causes=(first, hidden)))
    assert "25% of the loss, after the others, sure 0.61" in page
    assert ": up to 6.6% after the others" in page


def test_a_fix_that_is_not_for_this_job() -> None:
    """Where the only fix is refused the page says what would come back, which fix is not for this job, in its words, and why."""
    first, second = two_causes().causes
    for summary, named in (("", "async-checkpoint"), ("save in the background", "save in the background")):
        refused = RefusedFix("async-checkpoint", "it saves so already", summary)
        stuck = dataclasses.replace(
            two_causes(), causes=(first, msgspec.structs.replace(second, refused_fixes=(refused,)))
        )
        said = f"Do no fix is known, up to 7.0% without it; not for this job: {named} (it saves so already)"
        assert said in " ".join(page_of(stuck).split())
    long_page = terminal.render(stuck, width=200, color=False)
    assert "• save in the background (async-checkpoint): it saves so already" in long_page


def test_what_makes_a_cause_less_sure_is_no_reason_for_it() -> None:
    """With one stage no other one confirms long documents: that stands with all evidence, not under why."""
    texts = {"correlation": "both are long together", "one_stage": "no other stage can confirm it"}
    evidence = [EvidenceItem("rule", f"sequence-imbalance/sequence.{key}", text, {}) for key, text in texts.items()]
    cause = msgspec.structs.replace(two_causes().causes[0], evidence=tuple(evidence))
    assert list_reasons(cause) == ["both are long together"]


def test_a_whole_stage_is_named_by_it() -> None:
    """Workers that are all of a stage, or of a dp rank, are named so; two by label, and a member of a group as itself."""
    (cause,) = worker_fault().causes
    for workers, said in (
        ([(3, 1), (0, 1), (2, 1), (1, 1)], "stage 1"),
        ([(2, 3), (2, 0), (2, 1), (2, 2)], "dp 2, all stages"),
        ([(3, 1), (0, 1), (2, 1)], "stage 1, 3 workers"),
        ([(3, 1), (2, 1)], "stage 1, dp 2 and 3"),
        ([(3, 1), (3, 0)], "dp 3, stages 0 and 1"),
        ([(3, 0), (0, 1)], "dp 0, stage 1 and dp 3, stage 0"),
        ([(3, 0), (0, 1), (1, 2)], "dp 3, stage 0 and 2 more"),
        ([(dp, stage) for stage in (1, 3) for dp in range(4)], "stages 1 and 3"),
        ([(dp, stage) for stage in range(4) for dp in range(4)], "the whole job"),
    ):
        named = msgspec.structs.replace(cause, where=Where(workers=tuple(Worker(*one) for one in workers)))
        found = dataclasses.replace(worker_fault(), causes=(named,))
        assert f"Cause slow worker: {said}, all the time" in " ".join(page_of(found, width=120).split())
        assert f"slow worker ({said});" in words.headline(found) and f"slow worker at {said}, " in words.summary(found)
        assert f"HIGH worker-fault at {said}: slow worker" in terminal.render(found, width=120, color=False)
    members = Where(workers=tuple(Worker(dp, 0, rank=dp, tp=dp % 2) for dp in range(2)))
    assert words.place(members, (2, 4)) == "dp 0, stage 0, tp 0 and 1 more"


def test_many_causes() -> None:
    """Two or three causes are told, the others are named."""
    first = two_causes().causes[0]
    many = dataclasses.replace(two_causes(), causes=tuple(msgspec.structs.replace(first) for _ in range(9)))
    page = page_of(many)
    assert "Cause 1" in page and "Cause 3" in page and "Cause 4" not in page
    assert re.search(r"^ +and 6 more causes: uneven sequence lengths \(up to", page, re.MULTILINE)


def test_what_is_doubted_is_told_last() -> None:
    """First what most of the loss is to be expected of, where what is doubted, or unknown, counts a quarter, on all pages."""
    names = ("worker-fault", "unknown", "expert-imbalance", "stage-imbalance", "data-loading")
    shares, sure = (0.52, 0.3, 0.15, 0.25, 0.02), (0.09, 0.6, 0.91, 0.9, 0.49)
    first = two_causes().causes[0]
    causes = [
        msgspec.structs.replace(first, cause=name, title=f"the {name}", share=share, confidence=confidence)
        for name, share, confidence in zip(names, shares, sure, strict=True)
    ]
    found = dataclasses.replace(two_causes(), causes=tuple(causes))
    told = ["stage-imbalance", "expert-imbalance", "unknown", "worker-fault", "data-loading"]
    assert [cause.cause for cause in found.told] == told
    assert [cause["cause"] for cause in found.to_dict()["causes"]] == list(names)
    assert "straggling — the stage-imbalance" in words.headline(found)
    assert ", the worker-fault, " in words.summary(found)  # as the contract has it
    long_page = terminal.render(found, width=100, color=False)
    for page in (page_of(found), long_page[long_page.index("1. ") :], markdown.render(found).partition("###")[2]):
        places = [page.index(f"the {name}") for name in told if f"the {name}" in page]
        assert len(places) >= 3 and places == sorted(places), page
    of_log = [msgspec.structs.replace(cause, share=None) for cause in causes]
    assert [cause.cause for cause in dataclasses.replace(found, causes=tuple(of_log)).told] == [
        *("expert-imbalance", "stage-imbalance"),
        *("worker-fault", "unknown", "data-loading"),
    ]


def test_what_gives_nothing_by_itself_does_not_pay_off() -> None:
    """A fix that others hide is priced by itself, and no page says after how many steps its restart pays off."""
    fix = msgspec.structs.replace(worker_fault().causes[0].fixes[0], figures={"break_even_steps": 300})
    assert "a restart pays off after" in (facts.predict(fix) or "")
    little = msgspec.structs.replace(fix, predicted_speedup=1.01)
    assert (facts.predict(little) or "").startswith("predicted by itself: ") and "pays off" not in (
        facts.predict(little) or ""
    )


def test_what_is_sure_and_small_is_told_last() -> None:
    """A sure cause of 2% of the loss does not come before a probable one of 86%."""
    first = two_causes().causes[0]
    large = msgspec.structs.replace(first, cause="checkpoint-stall", share=0.86, confidence=0.49)
    small = msgspec.structs.replace(first, cause="network-fault", share=0.018, confidence=0.97)
    middle = msgspec.structs.replace(first, cause="data-loading", share=0.3, confidence=0.9)
    found = dataclasses.replace(two_causes(), causes=(large, middle, small))
    assert [cause.cause for cause in found.told] == ["data-loading", "checkpoint-stall", "network-fault"]


def test_alternatives_and_doubts() -> None:
    """What else it may be, what was not checked and why, and the first warning stand on the first page."""
    assert "or else sequence-imbalance (0.37)" in " ".join(page_of(either()).split())
    note = " ".join(page_of(two_causes()).split())
    warned = "warning: step 16 is a warm-up step: left out when causes are sought (+ 1 more); could not be checked: "
    assert (
        f"{warned}network-fault, kernel-queue-contention, allocator-stall " in note
    )  # three lines have no room for reasons
    few = dataclasses.replace(
        worker_fault(),
        warnings=("a warning of many words, " + "and more of them " * 9,),
        not_checked=(NotChecked("data-loading", "no rows tell of it, so that nobody knows; input.x: it is so"),),
    )
    note = " ".join(page_of(few).split())
    assert re.search(
        r"warning: a warning of many words, .{50,65}…; could not be checked: data-loading \(no rows tell of it\)", note
    )


def test_no_cause() -> None:
    """A healthy job is cleared in plain words; one that nobody can judge says why."""
    assert page_of(healthy()).startswith("pretrain-7b  HEALTHY  nothing worth mending: 6.40 s a step\n")
    assert "INCONCLUSIVE" in page_of(inconclusive()) and "the replay is off by 12%" in page_of(inconclusive())


def _exposed(diagnosis: Diagnosis, collectives: float, transfers: float, *, gpu_type: str = "H100") -> Diagnosis:
    """Give a job in which collectives and transfers take so much of the step, with a lever of 25%."""
    budget, (lever, *_) = diagnosed("healthy").budget, diagnosed("stage-imbalance").levers
    assert budget is not None
    return dataclasses.replace(
        diagnosis,
        job=dataclasses.replace(diagnosis.job, gpu_type=gpu_type),
        budget=msgspec.structs.replace(budget, exposed_collectives=collectives, exposed_p2p=transfers),
        levers=(msgspec.structs.replace(lever, predicted_speedup=4 / 3, at_most=True),),
    )


def test_a_network_that_is_slow_everywhere_is_not_cleared() -> None:
    """Where communication takes a tenth of a job without a cause the network may be slow: what would tell is said."""
    said = "collectives take 26% of the step, no longer than they usually do here: whether the network is slow all the time and"
    for example in (healthy, noisy):
        page = page_of(_exposed(example(), 0.26, 0.05))
        assert (
            f"{said} everywhere the trace cannot tell. Compare with all_reduce_perf of nccl-tests (docs/how-to/collectives.md)."
            in " ".join(page.split())
        )
        assert said in " ".join(terminal.render(_exposed(example(), 0.26, 0.05), width=100, color=False).split())
        assert_fits(page)
        both = " ".join(page_of(_exposed(example(), 0.26, 0.12)).split())
        assert "Exposed collectives take 26% and exposed transfers take 12% of the step, no longer than" in both
        assert "Compare with all_reduce_perf and sendrecv_perf of nccl-tests" in both
        on_cpu = " ".join(page_of(_exposed(example(), 0.26, 0.05, gpu_type="cpu")).split())
        assert (
            "Compare with iperf3 between its hosts, or the same job on hosts that do" in on_cpu and "nccl" not in on_cpu
        )
        assert "all the time and everywhere" not in page_of(_exposed(example(), 0.09, 0.09))


@pytest.mark.parametrize("how", ["named", "or else", "without a name"])
def test_a_network_that_is_said_to_be_slow_is_not_said_to_be_as_usual(how: str) -> None:
    """Where most links are bad, or all for a while, what transfers usually take is no measure: that it is usual is not said."""
    base = worker_fault()
    (cause,) = base.causes
    named = {
        "named": {"cause": "network-fault", "title": "slow network"},
        "or else": {"alternatives": (Alternative("network-fault", 0.3, "counters of its ports"),)},
        "without a name": {"cause": "unknown", "title": "unknown cause: slow transfers"},
    }[how]
    slow = dataclasses.replace(base, causes=(msgspec.structs.replace(cause, **named),))
    said = " ".join(page_of(_exposed(slow, 0.4, 0.05), width=100).split())
    assert "than they usually do here" not in said
    assert "Exposed collectives take 40% of the step, beside what is lost to slow ones: whether the rest of the" in said
    assert "no longer than they usually do here" in " ".join(page_of(_exposed(base, 0.4, 0.05), width=100).split())


@pytest.mark.parametrize(("faster", "told"), [(1.03, "of the 48% it costs"), (1.9, "")])
def test_a_fix_that_gives_back_a_part_says_of_what(faster: float, told: str) -> None:
    """What a fix gives back stands beside what its cause costs, which the JSON has, where that is much more."""
    base = worker_fault()
    (cause,) = base.causes
    fix = msgspec.structs.replace(cause.fixes[0], predicted_speedup=faster)
    found = page_of(dataclasses.replace(base, causes=(msgspec.structs.replace(cause, fixes=(fix,)),)))
    promised = re.findall(r"\(-(\S+%)\)(?: (of the \S+ it costs))?", " ".join(found.split()))
    assert promised[0] == (words.percent(1 - 1 / faster), told)
    assert_fits(found)


def test_workers_that_take_turns_are_not_slow_all_the_time() -> None:
    """Where each of several is slow for a while all pages say with the time that they are not so at once."""
    base = worker_fault()
    (cause,) = base.causes
    turns = EvidenceItem("rule", "worker-fault/turns", "not all of them at once: dp 0 stage 1 until step 15", {})
    found = dataclasses.replace(base, causes=(msgspec.structs.replace(cause, evidence=(turns, *cause.evidence)),))
    full = functools.partial(terminal.render, width=100, color=False)
    for write in (page_of, full, markdown.render, render_saved):
        assert "all the time, not all at once" in " ".join(write(found).split()), write
        assert "not all at once" not in " ".join(write(base).split())


def test_nobody_is_told_that_nothing_is_to_be_done_beside_a_large_lever() -> None:
    """A healthy job that could be a tenth faster says so in its first line."""
    large = _exposed(healthy(), 0.0, 0.0)
    (lever,) = large.levers
    assert " HEALTHY no fault found, but steps could be up to 25% shorter: 6.40 s" in " ".join(page_of(large).split())
    assert words.headline(large).endswith(": healthy — no fault found, but steps could be up to 25% shorter")
    sure = dataclasses.replace(large, levers=(msgspec.structs.replace(lever, at_most=False),))
    unchecked = dataclasses.replace(sure, not_checked=(NotChecked("data-loading", "no rows"),))
    assert "no fault found in what could be checked, but steps could be 25% shorter" in " ".join(
        page_of(unchecked).split()
    )
    small = dataclasses.replace(large, levers=(msgspec.structs.replace(lever, predicted_speedup=1 / 0.91),))
    assert "nothing worth mending" in page_of(small) and "worth mending" in words.summary(small)


def test_what_a_job_without_a_cause_costs() -> None:
    """What varies is not lost; where no figure is trusted nothing is known to be lost, and nothing ruled out."""
    hint_page = page_of(dataclasses.replace(inconclusive(), gpu_hours_wasted=0.0))
    for page in map(page_of, (healthy(), noisy())):
        assert "Looked  for" in page and "hours lost" not in page and "a day" not in page
    assert "Looked" not in hint_page and "Cost    not known; " in hint_page
    unchecked = dataclasses.replace(healthy(), not_checked=(NotChecked("data-loading", "no rows"),))
    assert "HEALTHY nothing worth mending of what could be checked: 6.40 s" in " ".join(page_of(unchecked).split())


@pytest.mark.parametrize(("confidence", "label"), [(0.5, "Do      "), (0.49, "If so   ")])
def test_what_is_more_probably_something_else_is_mended_on_condition(confidence: float, label: str) -> None:
    """Nobody is sent to mend what is less probable than not, without the word if."""
    first = msgspec.structs.replace(two_causes().causes[0], confidence=confidence)
    assert f"\n{label}Balance by predicted cost" in page_of(dataclasses.replace(two_causes(), causes=(first,)))


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("jobs/AR.parquet", "diagnose explain jobs/AR.parquet worker-fault"),
        ("my job", "diagnose explain 'my job' worker-fault"),
        (None, "diagnose explain JOB worker-fault"),
        ("x" * 200, f"diagnose explain {'x' * 200} worker-fault"),
        ("a\x1bb", "diagnose explain JOB worker-fault"),
    ],
)
def test_the_command_can_be_copied(path: str | None, said: str) -> None:
    """The command that explains is that of this job, quoted for a shell, on one line at any length."""
    assert said in page_of(worker_fault(), path=path)


def test_links() -> None:
    """What else was written of a job is named with its whole path."""
    page = render(worker_fault(), width=80, color=False, links=[("Page", "out/" + "long/" * 20 + "AR.html")])
    assert "AR.html" in page and "Page" in page


def test_color_changes_only_color() -> None:
    """Without its colours the coloured page says the same."""
    for example in EXAMPLES.values():
        colored = re.sub(r"\x1b\[[0-9;]*m", "", render(example(), width=80, color=True))
        assert [line.rstrip() for line in colored.splitlines()] == render(example(), width=80, color=False).splitlines()


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_names_are_harmless(what: str) -> None:
    """Whatever a trace holds, the page fits and has no character that a terminal obeys."""
    page = page_of(hostile(HOSTILE[what]))
    assert_fits(page)
    assert all(char.isprintable() or char == "\n" for char in page)


def test_culprits_are_marked_in_the_map() -> None:
    """The map of the long page marks the workers that causes name, those of a stage or a link, and no other."""
    base = worker_fault()
    assert np.argwhere(base.find_culprits()).tolist() == [[0, 0]]
    report = terminal.render(base, width=100, color=False)
    assert "X1.92" in report and report.count("X1.") == 1 and "X is a culprit" in report
    cause = msgspec.structs.replace(base.causes[0], where=Where(stages=(2,)))
    assert np.argwhere(dataclasses.replace(base, causes=(cause,)).find_culprits())[:, 1].tolist() == [2] * 4
    cause = msgspec.structs.replace(base.causes[0], where=Where(links=(Link(Worker(0, 1), Worker(0, 2)),)))
    assert np.argwhere(dataclasses.replace(base, causes=(cause,)).find_culprits()).tolist() == [[0, 1], [0, 2]]
    cause = msgspec.structs.replace(base.causes[0], where=Where(hosts=("gpu-18",)))
    assert dataclasses.replace(base, causes=(cause,)).find_culprits().sum() == 4


def test_only_the_recipe_of_the_jobs_framework() -> None:
    """Where the framework is not known the recipes are named; all of them stand in the thorough page alone."""
    how = "Look first. Megatron-LM: --a. DeepSpeed: b. PyTorch: c."
    fix = msgspec.structs.replace(worker_fault().causes[0].fixes[0], how=how)
    cause = msgspec.structs.replace(worker_fault().causes[0], fixes=(fix,))
    diagnosis = dataclasses.replace(worker_fault(), causes=(cause,))
    page = terminal.render(diagnosis, width=200, color=False)
    assert "Look first." in page and "Megatron-LM, DeepSpeed, PyTorch: -vv" in page and "--a." not in page
    assert "Megatron-LM: --a." in terminal.render(diagnosis, width=200, color=False, thorough=True)
    assert "--a" not in page_of(diagnosis)
