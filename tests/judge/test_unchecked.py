"""What a recording lacks decides which causes cannot be checked in it: by what rules need, never by their names."""

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from diagnose.errors import RuleError
from diagnose.faults.checkpoint_stall import CheckpointStall
from diagnose.faults.data_loading import DataLoading
from diagnose.faults.fault import Fault
from diagnose.faults.generate import generate
from diagnose.faults.spec import JobSpec
from diagnose.judge.rules import built_in_rules, load_rules
from diagnose.judge.unchecked import name_unchecked
from diagnose.model.capabilities import CAPABILITIES
from diagnose.model.recording import Account, Unobserved
from diagnose.model.request import Request
from diagnose.pipeline import diagnose_job
from tests.judge.cases import built_in, diagnose_table
from tests.trace.producers.pipelines import Pipeline, write_primus

RULES = built_in().rules


def causes_for(*lacks: str) -> tuple[str, ...]:
    """List the causes that cannot be checked where something is lacking."""
    account = name_unchecked(Account("theirs", unobserved=(Unobserved("x", "y", lacks),)), RULES)
    assert account is not None
    return account.unobserved[0].causes


@pytest.mark.parametrize(
    ("lacks", "expected"),
    [
        ((), ()),
        (("between-steps",), ("checkpoint-stall",)),
        (("peers", "transfers"), ("worker-fault", "network-fault")),
        (("last-stage", "next-stages"), ("allocator-stall", "network-fault")),
        (("transfers", "next-stages"), ("network-fault",)),
        (("collection-rows",), ()),
    ],
)
def test_causes_follow_from_what_is_lacking(lacks: tuple[str, ...], expected: tuple[str, ...]) -> None:
    """The causes of rules that need it, in the order of what is lacking, none twice; none where no rule needs it."""
    assert causes_for(*lacks) == expected


def test_causes_that_a_file_names_stay() -> None:
    """What an earlier version wrote into a converted file stands before what the rules need."""
    entry = Unobserved("x", "y", ("between-steps",), ("worker-fault",))
    account = name_unchecked(Account("theirs", unobserved=(entry,)), RULES)
    assert account == Account(
        "theirs", unobserved=(dataclasses.replace(entry, causes=("worker-fault", "checkpoint-stall")),)
    )
    assert name_unchecked(None, RULES) is None


def test_a_word_that_is_no_capability_is_refused(tmp_path: Path) -> None:
    """A producer that lacks it is told at once; a rule that needs it is a fault of its file, with the nearest word."""
    with pytest.raises(ValueError, match="no capability 'transfer'"):
        Unobserved("x", "y", ("transfer",))
    text = (built_in_rules() / "network-fault.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(text.replace(" transfers, ", " transfer, "))
    with pytest.raises(RuleError, match=r"mine\.yaml:\d+: 'transfer' is not known; did you mean 'transfers'\?"):
        load_rules(tmp_path)


def test_every_need_is_met_somewhere() -> None:
    """Rules need capabilities that exist, and each cause but one can be hidden by a recording."""
    assert {name for rule in RULES for name in rule.needs} <= set(CAPABILITIES)
    assert [rule.id for rule in RULES if not rule.needs] == ["garbage-collection"]


def test_a_copy_of_a_rule_is_as_blind_as_the_rule(tmp_path: Path) -> None:
    """Under another id, too, a rule is not checked in a recording that cannot show its cause."""
    (tmp_path / "rules").mkdir()
    text = (built_in_rules() / "checkpoint-stall.yaml").read_text()
    (tmp_path / "rules" / "mine.yaml").write_text(text.replace("id: checkpoint-stall", "id: slow-saves"))
    job = write_primus(tmp_path / "job", Pipeline(n_steps=8).run())
    found = diagnose_job(Request(job, rules=tmp_path / "rules"))
    reasons = {entry.cause: entry.reason for entry in found.not_checked}
    assert reasons["slow-saves"] == reasons["checkpoint-stall"] == "time between steps: each iteration begins at 0"
    assert "slow-saves" not in found.checked
    assert found.recording is not None
    (entry,) = [entry for entry in found.recording.unobserved if entry.what == "time between steps"]
    assert entry.causes == ("checkpoint-stall", "slow-saves")


def test_a_rule_in_the_place_of_another_keeps_what_it_leaves_out(tmp_path: Path) -> None:
    """A user's version of a built-in rule, written before rules said what they need, is as blind as the built-in one."""
    lines = (built_in_rules() / "network-fault.yaml").read_text().splitlines(keepends=True)
    first = [line.split(":")[0] for line in lines]
    headings = ("needs", "pictures", "dated_by_log", "classifier")
    start, kept, inside = 0, [], False
    for line, head in zip(lines, first, strict=True):
        inside = head in headings or (inside and line.startswith((" ", "-", "]")))
        start += inside
        kept += [] if inside else [line]
    assert start >= 3, "the rule has headings to leave out"
    (tmp_path / "mine.yaml").write_text("".join(kept).replace("title: slow network", "title: our network"))
    mine = {rule.id: rule for rule in load_rules(tmp_path).rules}["network-fault"]
    ours = {rule.id: rule for rule in RULES}["network-fault"]
    assert mine.title == "our network"
    assert [getattr(mine, key) for key in headings] == [getattr(ours, key) for key in headings]
    assert ours.needs and ours.pictures == ("transfers",)


def test_a_rule_may_say_that_it_needs_nothing(tmp_path: Path) -> None:
    """What its file does say counts, also where that is nothing."""
    text = (built_in_rules() / "checkpoint-stall.yaml").read_text()
    needs = next(line for line in text.splitlines() if line.startswith("needs:"))
    (tmp_path / "mine.yaml").write_text(text.replace(needs, "needs: []"))
    assert {rule.id: rule for rule in load_rules(tmp_path).rules}["checkpoint-stall"].needs == ()


#: Faults that all workers wait for before the step begins, each with what else is looked for within steps only; "rows" tell.
BEFORE_STEPS: dict[str, tuple[Fault, set[str]]] = {
    "save": (
        CheckpointStall(period_steps=4, where="before", held_together=True, recorded=False),
        {"checkpoint-stall", "data-loading"},
    ),
    "save-with-rows": (
        CheckpointStall(period_steps=4, where="inside", held_together=True, recorded=True),
        {"data-loading"},
    ),
    "loader": (DataLoading(wait_ratio=5.0, where="step", held_together=True), {"checkpoint-stall", "data-loading"}),
}


def begin_at_first(table: pa.Table, *, moved_s: float = 0.0) -> pa.Table:
    """Let each step's times begin with its first operation, as some recorders do; even steps later by some seconds."""
    start_s, step = table["start_ts"].to_numpy().astype(np.float64), table["step"].to_numpy()
    for number in np.unique(step):
        start_s[step == number] -= start_s[step == number].min() - moved_s * (number % 2 == 0)
    return table.set_column(table.column_names.index("start_ts"), "start_ts", pa.array(start_s))


@pytest.mark.parametrize("name", BEFORE_STEPS)
def test_what_lies_before_steps_is_unchecked_where_steps_begin_with_their_first_operation(name: str) -> None:
    """A wait of all workers is not in such a trace: nobody is cleared of it, unless rows would show it."""
    fault, unseen = BEFORE_STEPS[name]
    table = generate(JobSpec(pp=4, dp=2, microbatches=8, steps=24, seed=5), [fault]).trace
    found = diagnose_table(begin_at_first(table))
    said = {cause.cause for cause in found.causes}
    assert {e.cause for e in found.not_checked if "does not show the time between steps" in e.reason} == unseen - said
    assert not unseen & set(found.checked) - said
    assert sorted([*found.checked, *(e.cause for e in found.not_checked)]) == sorted(rule.id for rule in RULES)


def test_a_trace_with_the_time_between_steps_leaves_nothing_unchecked() -> None:
    """Steps that begin at times of their own, by the clock of the step or of the job, show who waits before them."""
    spec = JobSpec(pp=4, dp=2, microbatches=8, steps=8, seed=5)
    for absolute in (False, True):
        job = generate(dataclasses.replace(spec, absolute_times=absolute), [])
        assert diagnose_table(job.trace).not_checked == ()
    late = begin_at_first(generate(spec, []).trace, moved_s=0.2)
    assert diagnose_table(late).not_checked == ()


def test_steps_that_do_not_follow_each_other_show_nothing_between_them() -> None:
    """Every other step of the job, on its clock: what lies between is unknown."""
    job = generate(JobSpec(pp=4, dp=2, microbatches=8, steps=16, seed=5, contiguous=True, absolute_times=True), [])
    table = job.trace.filter(pc.equal(pc.bit_wise_and(job.trace["step"], 1), 0))
    found = diagnose_table(table)
    assert found.verdict == "healthy"
    assert {e.cause for e in found.not_checked if "follow each other" in e.reason} == {
        "checkpoint-stall",
        "data-loading",
    }
