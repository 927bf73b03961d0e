"""Results read back: confirmed, cleared, or nobody can tell; and what becomes of the finding."""

import json
from typing import Any

import jsonschema
import msgspec
import pytest

from diagnose.confirm.hand_over import make_condition, write_kubernetes, write_slurm
from diagnose.confirm.judge import apply_results
from diagnose.confirm.plan import make_plan
from diagnose.errors import TraceError
from diagnose.model.confirmation import Confirmation, HostResult, Measured
from diagnose.model.plain import to_plain
from diagnose.report.schemas import make_schema
from tests.confirm.stands import document, link, machine, result

CONTROLS = [machine(f"node-{n}", gemm=600.0 + n) for n in (1, 5, 9, 13)]


def judge(*results: HostResult, cause: str = "worker-fault", where: Any = None) -> tuple[dict[str, Any], Confirmation]:
    """Read results back into a diagnosis with one cause."""
    found = document(cause, where)
    entry = to_plain(found)
    plan = make_plan(found, tested=[one.host for one in results if one.role == "suspect"])
    (judged,) = apply_results(entry, plan, results)["causes"]
    return judged, msgspec.convert(judged["confirmed"], Confirmation)


def with_card(card: int, tflop_s: float) -> dict[str, float]:
    """Give what eight cards do of which one has another pace."""
    return {str(n): tflop_s if n == card else 606.0 for n in range(8)}


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ({"gemm": with_card(3, 400.0)}, "matrix products on card 3 400 TFLOP/s, and 614 on 4 controls (-35%)"),
        ({"dcgm": False}, "dcgmi diag -r 3: failed; not so on the controls"),
        ({"steal": 0.2}, "CPU taken by the hypervisor 20%, and 0% on 4 controls"),
        ({"run_queue": 1.2}, "tasks that want a core 1.2 a core, and 0.01 a core on 4 controls"),
        ({"memory": 60.0}, "main memory 60 GB/s, and 90 GB/s on 4 controls (-33%)"),
        ({"gemm": {str(n): 606.0 for n in range(7)}}, "7 cards can be burnt, and 8 or more on each of 4 controls"),
    ],
)
def test_what_confirms(figures: dict[str, Any], said: str) -> None:
    """One figure that is worse than the controls' by more than they differ confirms the machine, and the finding is surer."""
    cause, found = judge(suspect_with(figures), *CONTROLS)
    assert found.outcome == "confirmed" and found.confidence_before == 0.8 and cause["confidence"] == 0.99
    (host,) = found.hosts
    assert host.tests[0].text == said.replace("614 on", "614 TFLOP/s on")
    item = cause["evidence"][-1]
    assert item["source"] == "confirm" and item["text"] == f"node-3 is confirmed by tests: {host.tests[0].text}"


def test_another_card_than_the_trace_names() -> None:
    """Ranks may be dealt to cards in another order: the bad card is confirmed, and what the trace names is said beside it."""
    _, found = judge(suspect_with({"gemm": with_card(5, 400.0)}), *CONTROLS)
    assert found.outcome == "confirmed"
    assert found.hosts[0].tests[0].text.endswith("(-35%); by the order of ranks the trace names card 3")


def test_what_clears() -> None:
    """A machine that is as good as the controls in all that its cause would show in is cleared: the finding is less sure."""
    cause, found = judge(suspect_with({}), *CONTROLS)
    assert found.outcome == "cleared" and cause["confidence"] == 0.5
    assert all(test.outcome == "cleared" for test in found.hosts[0].tests)


@pytest.mark.parametrize(
    ("figures", "controls"),
    [
        ({"gemm": with_card(3, 560.0)}, CONTROLS),  # 8% less: neither slow nor sound
        ({"gemm": with_card(3, 400.0)}, CONTROLS[:1]),  # one control: which of two is odd?
        ({"gemm": with_card(3, 400.0)}, []),
        ({"gemm": with_card(3, 450.0)}, [machine(f"c{n}", gemm=gemm) for n, gemm in enumerate((420, 500, 600, 700))]),
        ({"dcgm": False}, [machine(f"c{n}", dcgm=n > 1) for n in range(4)]),  # so it is on half of the controls
        ({"gemm": {}}, CONTROLS),  # nothing measured of what matters
    ],
)
def test_where_nobody_can_tell(figures: dict[str, Any], controls: list[HostResult]) -> None:
    """Between slow and sound, without enough controls, or where these differ as much, nothing is said, and nothing moves."""
    skipped = [("gemm", "torch is needed")] if not figures.get("gemm", True) else []
    cause, found = judge(suspect_with(figures, skipped), *controls)
    assert found.outcome == "unclear" and cause["confidence"] == 0.8
    assert "neither confirmed nor cleared" in cause["evidence"][-1]["text"]


def test_a_test_that_fails_by_itself_needs_no_controls() -> None:
    """What the vendor's diagnostics refuse is broken."""
    assert judge(suspect_with({"dcgm": False}))[1].outcome == "confirmed"


def test_a_control_that_is_slow_too() -> None:
    """One bad control among four hides nobody, and blames nobody."""
    controls = [*CONTROLS[:3], machine("node-13", gemm=300.0)]
    assert judge(suspect_with({"gemm": with_card(3, 400.0)}), *controls)[1].outcome == "confirmed"
    assert judge(suspect_with({}), *controls)[1].outcome == "cleared"


def test_figures_that_the_cause_does_not_show_in() -> None:
    """A slow disk confirms no slow worker."""
    assert (
        judge(suspect_with({"disk": 10.0}), *[machine(f"c{n}", disk=900.0) for n in range(4)])[1].outcome == "cleared"
    )


def suspect_with(figures: dict[str, Any], skipped: Any = ()) -> HostResult:
    """Make the result of the suspect: a sound machine but for some figures."""
    sound = {"cpu": 20.0, "steal": 0.0, "run_queue": 0.01, "memory": 90.0, "dcgm": True, "gemm": with_card(0, 606.0)}
    return result("node-3", "suspect", skipped=skipped, **(sound | figures))


def send(slow: dict[frozenset[str], float], *, suspects: tuple[str, ...]) -> list[HostResult]:
    """Let all pairs of the plan send 390 Gb/s, but for some."""
    plan = make_plan(document("network-fault", link(2, 9)))
    measured: dict[str, list[Measured]] = {host: [] for host in plan.hosts}
    for n, pair in enumerate(plan.pairs):
        ends = {pair.server, pair.client}
        value = next((value for who, value in slow.items() if who <= ends), 390.0 + n % 3)
        measured[pair.client].append(Measured("network", f"{pair.server} mlx5_0", value))
    return [
        msgspec.structs.replace(result(host, "suspect" if host in suspects else "control"), measured=tuple(figures))
        for host, figures in measured.items()
    ]


def test_a_bad_machine_is_told_from_a_bad_link() -> None:
    """Slow with everybody: the machine. With one, while both are sound with others: the link. With a bad control: nobody's."""
    both = ("node-2", "node-9")
    plan = make_plan(document("network-fault", link(2, 9)))
    _, found = judge(*send({frozenset({"node-2"}): 200.0}, suspects=both), cause="network-fault", where=link(2, 9))
    assert [one.outcome for one in found.hosts] == ["confirmed", "cleared"] and not found.links
    assert "slow with each of 3 partners" in found.hosts[0].tests[0].text

    cause, found = judge(*send({frozenset(both): 200.0}, suspects=both), cause="network-fault", where=link(2, 9))
    assert [one.outcome for one in found.hosts] == ["cleared", "cleared"]
    assert found.outcome == "confirmed" and found.links == ("node-2 - node-9",)
    assert "the link node-2 - node-9 is slow" in cause["evidence"][-1]["text"]

    bad = frozenset({plan.controls[0]})
    _, found = judge(*send({bad: 200.0}, suspects=both), cause="network-fault", where=link(2, 9))
    assert found.outcome == "cleared" and not found.links

    _, found = judge(*send({}, suspects=both), cause="network-fault", where=link(2, 9))
    assert found.outcome == "cleared"


def test_results_of_something_else_are_refused() -> None:
    """Results of another job, or of machines that nobody blames, say nothing of this one; the message shows both."""
    with pytest.raises(TraceError, match=r"of node-3 is of job 'other', and the diagnosis of 'pretrain-7b'"):
        judge(result("node-3", "suspect", job="other"))
    with pytest.raises(TraceError, match="the results are of c0, c1, and the diagnosis blames node-3"):
        judge(machine("c0"), machine("c1"))


def test_a_machine_that_did_not_answer() -> None:
    """No result, and a machine on which a job ran, leave the finding as it was, and say why."""
    cause, found = judge(
        *CONTROLS, suspect_with({"gemm": {}, "dcgm": {}}, [("gpu", "a job runs here (card 3: process 7)")])
    )
    assert found.outcome == "unclear" and "gpu: a job runs here (card 3: process 7)" not in cause["evidence"][0]["text"]
    assert found.hosts[0].skipped[0].reason.startswith("a job runs here")


def test_the_diagnosis_keeps_its_schema() -> None:
    """A diagnosis with results read back is one, and holds all that it held."""
    found = document()
    entry = to_plain(found) | {"a key of tomorrow": 1}
    judged = apply_results(entry, make_plan(found), [suspect_with({"dcgm": False}), *CONTROLS])
    jsonschema.validate(judged, make_schema("diagnosis"), cls=jsonschema.Draft202012Validator)
    jsonschema.validate(entry, make_schema("diagnosis"), cls=jsonschema.Draft202012Validator)
    assert judged["a key of tomorrow"] == 1 and "confirmed" not in entry["causes"][0]
    assert len(judged["causes"][0]["evidence"]) == len(entry["causes"][0]["evidence"]) + 1


def test_hand_over() -> None:
    """What takes a machine out is quoted, on one line, and is what Slurm and Kubernetes read."""
    _, found = judge(suspect_with({"gemm": with_card(3, 400.0)}), *CONTROLS)
    (host,) = found.hosts
    assert write_slurm("worker-fault", host) == (
        "scontrol update nodename=node-3 state=drain reason='diagnose: worker-fault: matrix products on card 3 400 TFLOP/s, "
        "and 614 TFLOP/s on 4 controls (-35%)'"
    )
    cordon, patch = write_kubernetes("worker-fault", host)
    assert cordon == "kubectl cordon node-3"
    assert patch.startswith("kubectl patch node node-3 --subresource=status --type=strategic --patch '{")
    condition = make_condition("worker-fault", host)
    assert json.loads(patch.split(" --patch ")[1].strip("'"))["status"]["conditions"] == [condition]
    assert (condition["type"], condition["status"], condition["reason"]) == (
        "DiagnoseConfirm",
        "True",
        "DiagnoseConfirmIsNotHealthy",
    )
    assert condition["message"].startswith("ErrorCode:GEMM GPU:3 diagnose: worker-fault")
    assert condition["message"].endswith("Recommended Action=CONTACT_SUPPORT;") and condition["message"].count(";") == 1


@pytest.mark.parametrize("note", ["'; reboot; '", "$(reboot)", "a\nb", "\x1b[31m;x"])
def test_hostile_results_stay_text(note: str) -> None:
    """What a tested machine says of itself is no order in the commands that are proposed."""
    import shlex

    hostile = msgspec.structs.replace(
        suspect_with({}), measured=(Measured("dcgm", "", None, False, note.encode().decode("unicode_escape")),)
    )
    _, found = judge(hostile, *CONTROLS)
    for command in (write_slurm("worker-fault", found.hosts[0]), *write_kubernetes("worker-fault", found.hosts[0])):
        assert command.isprintable() and "\n" not in command
        words = shlex.split(command)
        assert words[0] in ("scontrol", "kubectl") and len(words) in (3, 5, 7, 8), words
