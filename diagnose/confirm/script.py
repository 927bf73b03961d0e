"""Write what runs the tests: a shell script, a batch file for Slurm, or objects for Kubernetes. Nothing is run here.

Enters: a `TestPlan` whose names are checked. Leaves: text. The program that tests a machine stands in it as it is in `host.py`.
"""

import json
from pathlib import Path
from typing import Literal

from diagnose.confirm.catalogue import GROUPS
from diagnose.confirm.host import ROUND_S
from diagnose.model.confirmation import TestPlan

Target = Literal["shell", "slurm", "kubernetes"]
#: Seconds that a machine may take to begin, beyond its tests.
_START_S = 600
_END_OF_PROGRAM = "END_OF_THE_PROGRAM_OF_DIAGNOSE"
_ON = {
    "shell": """\
# Where a machine is this one, its tests run here; on all others by ssh, which must ask for no password.
on() {
  local host=$1
  shift
  if [ "$host" = "$(hostname)" ] || [ "$host" = "$(hostname -s 2>/dev/null)" ]; then
    "$@"
  else
    ssh -o BatchMode=yes -o ConnectTimeout=20 -- "$host" "$(printf '%q ' "$@")"
  fi
}""",
    "slurm": """\
on() {
  local host=$1
  shift
  srun --nodes=1 --ntasks=1 --nodelist="$host" --mem=0 --overlap "$@"
}""",
}


def render_script(plan: TestPlan, target: Target, *, image: str = "") -> str:
    """Write the tests of a plan for a shell, for Slurm or for Kubernetes.

    Parameters
    ----------
    image : str
        Container image with Python, and torch where cards are tested; for Kubernetes alone.
    """
    return _write_kubernetes(plan, image) if target == "kubernetes" else _write_shell(plan, target)


def limit_s(plan: TestPlan) -> int:
    """Say how long the tests of one machine may take, in seconds."""
    return sum(GROUPS.get(group, 0) for group in plan.tests) + plan.n_rounds * ROUND_S + _START_S


def _write_shell(plan: TestPlan, target: Target) -> str:
    """Write the script, whose first lines Slurm reads where it is for Slurm."""
    run = f"{'sbatch' if target == 'slurm' else 'bash'} FILE [--force] [--seconds N]"
    hosts = " ".join(map(_quote, plan.hosts))
    roles = " ".join(["suspect"] * len(plan.suspects) + ["control"] * len(plan.controls))
    limit = limit_s(plan)
    lines = [
        "#!/bin/bash",
        *(_list_directives(plan, limit) if target == "slurm" else []),
        f"# Tests {_describe(plan)}. Written by `diagnose confirm`; run it with: {run}",
        f"# Each machine takes at most {-(-limit // 60)} minutes; its cards burn for N seconds, 30 where nothing is said.",
        "# Nothing is changed or switched off. A machine on whose cards a process runs is not tested, unless --force is given.",
        "# The last line says how to read the results back.",
        "set -u",
        "",
        f"hosts=({hosts})",
        f"roles=({roles})",
        f'tests=({" ".join(map(_quote, _list_arguments(plan)))} "$@")',
        "results=${DIAGNOSE_RESULTS:-confirm-results}",
        "",
        _ON[target],
        "",
        "program() {",
        f"  cat <<'{_END_OF_PROGRAM}'",
        read_program().rstrip("\n"),
        _END_OF_PROGRAM,
        "}",
        "",
        'mkdir -p -- "$results" || exit 1',
        'for n in "${!hosts[@]}"; do',
        "  host=${hosts[n]}",
        f'  program | on "$host" timeout --kill-after=30 {limit} \\',
        '    python3 - --host "$host" --role "${roles[n]}" "${tests[@]}" \\',
        '    >"$results/$host.json" 2>"$results/$host.err" &',
        "done",
        "wait",
        "failed=0",
        'for host in "${hosts[@]}"; do',
        '  if [ -s "$results/$host.json" ]; then',
        '    rm -f -- "$results/$host.err"',
        "  else",
        "    failed=1",
        '    echo "no result of $host: $(tail -n 1 -- "$results/$host.err" 2>/dev/null)" >&2',
        '    rm -f -- "$results/$host.json"',
        "  fi",
        "done",
        'echo "diagnose confirm --read $results JOB"',
        "exit $failed",
    ]
    return "\n".join(lines) + "\n"


def _list_directives(plan: TestPlan, limit: int) -> list[str]:
    """Ask Slurm for these machines whole, and for no other: as many nodes as are named."""
    return [
        "#SBATCH --job-name=diagnose-confirm",
        f"#SBATCH --nodes={len(plan.hosts)}",
        f"#SBATCH --ntasks={len(plan.hosts)}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --nodelist={','.join(plan.hosts)}",
        "#SBATCH --exclusive",
        "#SBATCH --mem=0",
        f"#SBATCH --time={-(-limit // 60)}",
    ]


def _quote(text: str) -> str:
    """Quote a word for a shell, whatever is in it."""
    return "'" + text.replace("'", "'\"'\"'") + "'"


def _describe(plan: TestPlan) -> str:
    """Say what is tested, in a comment: names are checked, so none ends it."""
    suspects = ", ".join(one.host for one in plan.suspects)
    beside = f" beside {', '.join(plan.controls)}" if plan.controls else ""
    return f"{suspects}{beside}"


def _list_arguments(plan: TestPlan) -> list[str]:
    """Write what the program is told on every machine."""
    pairs = ",".join(f"{pair.server}/{pair.client}/{pair.round}" for pair in plan.pairs)
    return [f"--job={plan.job}", f"--tests={','.join(plan.tests)}", f"--pairs={pairs}", f"--data={plan.data}"]


def read_program() -> str:
    """Give the program that tests one machine."""
    text = (Path(__file__).parent / "host.py").read_text(encoding="utf-8")
    assert _END_OF_PROGRAM not in text
    return text


def _write_kubernetes(plan: TestPlan, image: str) -> str:
    """Write a ConfigMap with the program and one Job a machine, as JSON, which is YAML as well."""
    limit = limit_s(plan)
    items: list[dict[str, object]] = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "diagnose-confirm", "labels": {"app": "diagnose-confirm"}},
            "data": {"host.py": read_program()},
        }
    ]
    for n, host in enumerate(plan.hosts):
        role = "suspect" if n < len(plan.suspects) else "control"
        command = ["python3", "/confirm/host.py", f"--host={host}", f"--role={role}", *_list_arguments(plan)]
        n_cards = plan.n_cards if "gpu" in plan.tests else None
        items.append(_make_job(f"diagnose-confirm-{n}", host, image, command, limit, n_cards))
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=1) + "\n"


def _make_job(
    name: str, host: str, image: str, command: list[str], limit: int, n_cards: int | None
) -> dict[str, object]:
    """Make the Job of one machine: on its own network, without a second try, on a node that is cordoned as well.

    It asks for all cards of the machine, so that it waits while another job has one of them.
    """
    container: dict[str, object] = {
        "name": "confirm",
        "image": image,
        "command": command,
        "volumeMounts": [{"name": "program", "mountPath": "/confirm", "readOnly": True}],
    }
    if n_cards:
        container["resources"] = {"limits": {"nvidia.com/gpu": n_cards}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {"app": "diagnose-confirm"}},
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": limit,
            "ttlSecondsAfterFinished": 86400,
            "template": {
                "metadata": {"labels": {"app": "diagnose-confirm"}},
                "spec": {
                    "restartPolicy": "Never",
                    "hostNetwork": True,
                    "nodeSelector": {"kubernetes.io/hostname": host},
                    "tolerations": [{"operator": "Exists", "effect": "NoSchedule"}],
                    "containers": [container],
                    "volumes": [{"name": "program", "configMap": {"name": "diagnose-confirm"}}],
                },
            },
        },
    }
