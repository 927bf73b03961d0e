"""Write down what takes a confirmed machine out: for a person to read and to run. Nothing is run here.

Enters: a diagnosis with `confirmed`. Leaves: commands for Slurm, and for Kubernetes a cordon and a node condition.

Source of the condition: NVIDIA/NVSentinel, platform-connectors/pkg/connectors/kubernetes/process_node_events.go: its `type` is the
name of the check, `status` "True" while it fails, `reason` the name with `IsNotHealthy`, and `message` lists `ErrorCode:...`, the
entities as `GPU:3`, a text and `Recommended Action=...;`. Its Kubernetes object monitor makes a health event of such a condition.
"""

import datetime as dt
import json
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from diagnose.confirm.plan import check_names
from diagnose.model.confirmation import HostConfirmation, TestedCause

#: Name of the condition; NVSentinel's own checks are named alike (GpuThermalWatch).
CONDITION = "DiagnoseConfirm"
#: Slurm cuts what is longer.
_MAX_REASON = 200
_CARD_TESTS = ("gemm", "card-memory", "pcie", "allocation")


def list_confirmed(causes: Sequence[TestedCause]) -> Iterator[tuple[str, HostConfirmation]]:
    """List the machines that are confirmed, each once, with the cause that names it first."""
    seen: set[str] = set()
    for cause, _, said in causes:
        for one in said.hosts:
            if one.outcome == "confirmed" and one.host not in seen:
                seen.add(one.host)
                yield cause, one


def write_slurm(cause: str, one: HostConfirmation) -> str:
    """Write the command that drains a machine in Slurm."""
    check_names([one.host])
    return f"scontrol update nodename={shlex.quote(one.host)} state=drain reason={shlex.quote(_reason(cause, one))}"


def write_kubernetes(cause: str, one: HostConfirmation) -> tuple[str, str]:
    """Write the commands that cordon a machine in Kubernetes, and that put the condition on it."""
    check_names([one.host])
    patch = json.dumps({"status": {"conditions": [make_condition(cause, one)]}})
    host = shlex.quote(one.host)
    return (
        f"kubectl cordon {host}",
        f"kubectl patch node {host} --subresource=status --type=strategic --patch {shlex.quote(patch)}",
    )


def make_condition(cause: str, one: HostConfirmation) -> dict[str, Any]:
    """Make the condition of a node."""
    told = [test for test in one.tests if test.outcome == "confirmed"]
    codes = dict.fromkeys(f"ErrorCode:{test.test.upper()}" for test in told)
    cards = dict.fromkeys(f"GPU:{test.of}" for test in told if test.test in _CARD_TESTS and test.of.isdigit())
    stamp = dt.datetime.fromtimestamp(one.tested_s or 0.0, tz=dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    text = _plain(_reason(cause, one)).replace(";", ",")  # it ends an entry of the message
    return {
        "type": CONDITION,
        "status": "True",
        "reason": f"{CONDITION}IsNotHealthy",
        "message": f"{' '.join([*codes, *cards, text])} Recommended Action=CONTACT_SUPPORT;",
        "lastHeartbeatTime": stamp,
        "lastTransitionTime": stamp,
    }


def _reason(cause: str, one: HostConfirmation) -> str:
    """Say in a line why."""
    told = next((test.text for test in one.tests if test.outcome == "confirmed"), "confirmed by tests")
    return _plain(f"diagnose: {cause}: {told}")[:_MAX_REASON]


def _plain(text: str) -> str:
    """Leave printable ASCII on one line."""
    return " ".join("".join(char if char.isprintable() and char.isascii() else " " for char in text).split())
