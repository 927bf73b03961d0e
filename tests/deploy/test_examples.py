"""The examples in `deploy/` for cron, systemd, Kubernetes and Airflow are what they say."""

import ast
import re
import shlex
import shutil
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Self

import click
import pytest
import yaml

from diagnose._version import __version__
from diagnose.cli.main import program

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"


def check_shell(line: str) -> None:
    """Check the syntax of a line of shell, the order of a triage run in it, and every command of ours."""
    subprocess.run(["sh", "-n", "-c", line], check=True)
    assert re.search(
        r"diagnose triage .*\|\| \[ \$\? -eq 5 \].*&& diagnose tickets --send.*&& diagnose fleet --site",
        line,
        re.DOTALL,
    )
    for command in re.findall(r"diagnose (?:triage|tickets)[^|&)]*", line):
        check_command(command)


def check_command(line: str) -> None:
    """Check that the program takes a command as it is written."""
    _, name, *args = shlex.split(line)
    command = program.commands[name]
    with command.make_context(name, args):  # raises where it makes no sense
        pass


def test_cron() -> None:
    """Settings, then five fields and a line of shell without a percent sign, which cron would take for a line end."""
    *settings, line = (DEPLOY / "cron/diagnose").read_text().splitlines()
    assert all(re.fullmatch(r"[A-Z_]+=\S+", setting) for setting in settings)
    *fields, command = line.split(maxsplit=5)
    assert all(re.fullmatch(r"[\d*,/-]+", field) for field in fields) and len(fields) == 5 and "%" not in command
    check_shell(command)


def night(outcome: int, shell: Callable[[str], str], tmp_path: Path) -> list[str]:
    """Run the line of cron with a program that writes down how it is called, and ends triage as told; give the calls."""
    log = tmp_path / "log"
    log.unlink(missing_ok=True)
    fake = tmp_path / "diagnose"
    fake.write_text(f'#!/bin/sh\necho "$1" >>{log}\n[ "$1" != triage ] || exit {outcome}\n')
    fake.chmod(0o755)
    subprocess.run(["sh", "-c", shell(str(tmp_path))], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=False)
    return log.read_text().split()


@pytest.mark.parametrize(
    ("outcome", "calls"), [(0, ["triage", "tickets", "fleet"]), (5, ["triage", "tickets", "fleet"]), (74, ["triage"])]
)
def test_damaged_traces_do_not_keep_tickets_back(outcome: int, calls: list[str], tmp_path: Path) -> None:
    """Exit code 5 of triage goes on, any other failure does not."""
    (tmp_path / "diagnose.env").write_text("")
    line = (DEPLOY / "cron/diagnose").read_text().splitlines()[-1].split(maxsplit=5)[5]
    assert night(outcome, lambda folder: line.replace("/etc/", f"{folder}/"), tmp_path) == calls


def test_systemd(tmp_path: Path) -> None:
    """`systemd-analyze verify` accepts both units, and the line of shell is one."""
    shutil.copytree(DEPLOY / "systemd", tmp_path, dirs_exist_ok=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "diagnose-watch.service",
        "diagnose.service",
        "diagnose.timer",
    ]
    unit = (tmp_path / "diagnose.service").read_text()
    command = re.search(r"^ExecStart=/bin/sh -c '(.*)'$", unit, flags=re.MULTILINE)
    assert command is not None
    check_shell(command[1].replace("$$", "$"))
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here: only the shell was checked")
    paths = [str(path) for path in sorted(tmp_path.iterdir())]
    done = subprocess.run(["systemd-analyze", "verify", *paths], capture_output=True, text=True, check=False)
    about_ours = [line for line in (done.stdout + done.stderr).splitlines() if "diagnose." in line]
    assert done.returncode == 0 and not about_ours, done.stderr


def test_kubernetes() -> None:
    """A CronJob with all that it needs, one at a time."""
    found = yaml.safe_load((DEPLOY / "kubernetes/cronjob.yaml").read_text())
    assert (found["apiVersion"], found["kind"]) == ("batch/v1", "CronJob") and found["metadata"]["name"]
    assert len(found["spec"]["schedule"].split()) == 5 and found["spec"]["concurrencyPolicy"] == "Forbid"
    pod = found["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["restartPolicy"] in {"Never", "OnFailure"} and container["name"] and container["image"]
    assert container["command"] == ["/bin/sh", "-c"]
    check_shell(container["args"][0])
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert not any("PASSWORD" in entry["name"] or "SECRET" in entry["name"] for entry in container["env"])
    written = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert container["securityContext"]["readOnlyRootFilesystem"] and "/tmp" in written


def test_the_image_is_the_one_that_is_built() -> None:
    """The CronJob, the Dockerfile and the page that says how to build it name one image, of this version."""
    found = yaml.safe_load((DEPLOY / "kubernetes/cronjob.yaml").read_text())
    pod = found["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    image = pod["containers"][0]["image"]
    assert re.fullmatch(rf"[a-z.]+/[a-z-]+/[a-z-]+:{re.escape(__version__)}", image)
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert f"docker build -t {image} ." in dockerfile
    assert f"docker build -t {image} ." in (ROOT / "docs/how-to/kubernetes.md").read_text()
    assert f"USER {pod['securityContext']['runAsUser']}" in dockerfile


def test_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The DAG runs with Airflow's names in place, and puts its three tasks in order."""
    source = (DEPLOY / "airflow/diagnose_dag.py").read_text()
    imported = {node.module for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)}
    assert imported == {"airflow.providers.standard.operators.bash", "airflow.sdk"}
    order: list[tuple[str, str]] = []
    commands: dict[str, str] = {}

    class Operator:
        def __init__(self, *, task_id: str, bash_command: str, **_more: object) -> None:
            self.task_id = task_id
            commands[task_id] = bash_command

        def __rshift__(self, other: "Operator") -> "Operator":
            order.append((self.task_id, other.task_id))
            return other

    class Dag:
        def __init__(self, _name: str, **given: object) -> None:
            assert given.keys() == {"schedule", "start_date", "catchup", "max_active_runs"}

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_error: object) -> None:
            pass

    for name in ("airflow", "airflow.providers", "airflow.providers.standard", "airflow.providers.standard.operators"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    for name, key, value in (
        ("airflow.providers.standard.operators.bash", "BashOperator", Operator),
        ("airflow.sdk", "DAG", Dag),
    ):
        module = types.ModuleType(name)
        setattr(module, key, value)
        monkeypatch.setitem(sys.modules, name, module)
    exec(compile(source, "dag.py", "exec"), {})
    assert order == [("triage", "tickets"), ("tickets", "fleet")]
    for command in commands.values():
        subprocess.run(["sh", "-n", "-c", command], check=True)
    check_command(commands["tickets"])
    check_command(commands["triage"].split("||")[0])


def test_an_option_that_is_none_is_found() -> None:
    """The check of commands would notice one that is misspelt."""
    with pytest.raises(click.UsageError):
        check_command("diagnose tickets --sendd")
