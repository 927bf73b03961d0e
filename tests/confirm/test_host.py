"""The program that runs on the machines: with programs that stand in for those that only a cluster has, and with none."""

import ast
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from diagnose.confirm import host
from tests.confirm.stands import put_program

PROGRAM = Path(host.__file__)
#: Without the libraries of the tests: loading torch takes seconds.
BARE = getattr(sys, "_base_executable", sys.executable)
#: Two cards, on the second of which a process may run.
CARDS = """
case "$*" in
*compute-apps*) {apps} ;;
*link.gen*) echo "5, 5, {width}, 16" ;;
*) printf '0, GPU-aaa, 4, {mig}\\n1, GPU-bbb, 4, Disabled\\n' ;;
esac"""
PASSED = "echo '| Memory      | Pass - All |'"
FAILED = "echo '| Memory      | Fail - GPU: 1 |'; exit 226"
BURNT = "echo '100.0%  proc:ed: 12 (61234 Gflop/s)   errors: 0'"


def run(tmp_path: Path, programs: dict[str, str], *arguments: str, python: str = BARE) -> dict[str, Any]:
    """Run the program with only these programs beside it."""
    for name, body in programs.items():
        put_program(tmp_path / "bin", name, body)
    path = f"{tmp_path / 'bin'}:/usr/bin:/bin"
    ran = subprocess.run(
        [python, "-", "--host", "h", *arguments],
        input=PROGRAM.read_text(),
        cwd=tmp_path,
        env={"PATH": path, "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def figures(found: dict[str, Any]) -> dict[tuple[str, str], Any]:
    """Index what was measured by test and card."""
    return {
        (one["test"], one["of"]): one["passed"] if one["value"] is None else one["value"] for one in found["measured"]
    }


def cards(apps: str = ":", width: int = 16, mig: str = "Disabled") -> str:
    """Write a stand-in for nvidia-smi."""
    return CARDS.format(apps=apps, width=width, mig=mig)


def test_without_cards(tmp_path: Path) -> None:
    """On a machine without cards the processor multiplies; every figure is above 0, and no file is left."""
    found = run(
        tmp_path,
        {},
        "--seconds",
        "0.5",
        "--role",
        "control",
        "--job",
        "j",
        "--data",
        str(tmp_path / "none"),
        python=sys.executable,
    )
    said = figures(found)
    assert (found["schema"], found["host"], found["role"], found["job"]) == ("diagnose-confirm/1", "h", "control", "j")
    assert all(said[name, ""] > 0 for name in ("gemm", "cpu", "memory")) and said["disk", str(tmp_path)] > 0
    assert 0 <= said["steal", ""] <= 1 and said["run-queue", ""] >= 0
    assert {one["test"] for one in found["skipped"]} == {"dcgm", "data"}
    assert not list(tmp_path.glob("diagnose-confirm-*"))
    assert found["ended_s"] > found["began_s"] > 1.6e9


def test_cards_without_torch_for_them(tmp_path: Path) -> None:
    """Where there is no torch, or one that sees no card, gpu_burn burns each, if it is there; the vendor's diagnostics follow."""
    programs = {"nvidia-smi": cards(), "dcgmi": PASSED}
    found = run(tmp_path, programs, "--tests", "gpu", "--seconds", "0.1", python=sys.executable)
    assert figures(found) == {("dcgm", ""): True}
    assert [one["test"] for one in found["skipped"]] == ["gemm", "gemm"]
    found = run(tmp_path, programs | {"gpu_burn": BURNT}, "--tests", "gpu", "--seconds", "0.1")
    assert figures(found) == {("gemm", "0"): 61.234, ("gemm", "1"): 61.234, ("dcgm", ""): True}


@pytest.mark.parametrize(
    ("programs", "key", "note"),
    [
        ({"nvidia-smi": cards(), "dcgmi": FAILED}, ("dcgm", ""), "Memory Fail - GPU: 1"),
        ({"nvidia-smi": cards(), "gpu_burn": "echo 'GPU 0: FAULTY'"}, ("gemm", "0"), "gpu_burn says FAULTY"),
        ({"nvidia-smi": cards(width=8)}, ("pcie", "1"), "PCIe x8 of x16"),
        ({"nvidia-smi": "echo 'Unable to determine the device handle'; exit 15"}, ("gemm", ""), "nvidia-smi failed"),
    ],
)
def test_what_fails_is_said(tmp_path: Path, programs: dict[str, str], key: tuple[str, str], note: str) -> None:
    """A test that says no is a result, with what it said."""
    found = run(tmp_path, programs, "--tests", "gpu", "--seconds", "0.1")
    assert figures(found)[key] is False
    assert any(note in one["note"] for one in found["measured"])


@pytest.mark.parametrize("apps", ["echo 'GPU-bbb, 4711'", None])
def test_a_card_with_a_job_is_left_alone(tmp_path: Path, apps: str | None) -> None:
    """Nothing is burnt beside a job, seen by its process, or by its memory where a container hides it; unless forced to."""
    smi = cards(apps) if apps else cards().replace("1, GPU-bbb, 4,", "1, GPU-bbb, 61000,")
    programs = {"nvidia-smi": smi, "gpu_burn": "touch burnt; " + BURNT, "dcgmi": "touch burnt; " + PASSED}
    found = run(tmp_path, programs, "--tests", "gpu", "--seconds", "0.1")
    (skipped,) = found["skipped"]
    assert not found["measured"] and not (tmp_path / "burnt").exists()
    assert ("card 1: process 4711" if apps else "card 1: 61000 MiB of its memory in use") in skipped["reason"]
    found = run(tmp_path, programs, "--tests", "gpu", "--seconds", "0.1", "--force")
    assert ("gemm", "1") in figures(found)
    assert (tmp_path / "burnt").exists()


def test_split_cards_are_not_burnt(tmp_path: Path) -> None:
    """A part of a card has its own pace: it is left out, and that is said."""
    programs = {"nvidia-smi": cards(mig="Enabled"), "gpu_burn": BURNT}
    found = run(tmp_path, programs, "--tests", "gpu", "--seconds", "0.1")
    assert ("gemm", "1") in figures(found) and ("gemm", "0") not in figures(found)
    assert any("1 of 2 cards are split by MIG" in one["reason"] for one in found["skipped"])


def test_programs_that_hang_are_stopped(tmp_path: Path) -> None:
    """A program that does not end is stopped with all that it started."""
    put_program(tmp_path, "hangs", f"sleep 1000 & echo $! > {tmp_path}/child; wait")
    code, said = host.call([str(tmp_path / "hangs")], 3.0)
    assert code is None and "no answer within" in said
    state = Path(f"/proc/{(tmp_path / 'child').read_text().strip()}/stat")
    while state.exists() and state.read_text().split()[2] != "Z":
        time.sleep(0.01)  # it is stopped, and its parent is gone: the kernel says so soon


def test_data_is_read(tmp_path: Path) -> None:
    """Files of the job's data are read, in a folder of theirs too."""
    (tmp_path / "data/shards").mkdir(parents=True)
    (tmp_path / "data/shards/0.bin").write_bytes(bytes(20 * host.MIB))
    found = run(tmp_path, {}, "--tests", "disk", "--data", str(tmp_path / "data"))
    assert figures(found)["data", str(tmp_path / "data")] > 0


@pytest.mark.parametrize("how", ["tcp", "ib"])
def test_machines_send_to_each_other(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three machines in two rounds: each pair has one figure, of who sends, whatever order they begin in."""
    monkeypatch.setattr(host, "SEND_S", 0.2)
    monkeypatch.setattr(host, "ROUND_S", 120)
    monkeypatch.setattr(host, "FIRST_PORT", 23000 + os.getpid() % 9000)  # none that the kernel gives to others
    if how == "ib":
        _put_ports(tmp_path, monkeypatch)
    pairs = "127.0.0.1/127.0.0.2/0,127.0.0.2/127.0.0.3/1"
    reports = {f"127.0.0.{n}": host.Report() for n in (3, 1, 2)}
    threads = [
        threading.Thread(
            target=host.try_network, args=(report, host._read_arguments(["--host", name, "--pairs", pairs]))
        )
        for name, report in reports.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sent = {
        (name, one["of"]): one["value"] for name, report in reports.items() for one in report.measured if one["value"]
    }
    ports = ["TCP"] if how == "tcp" else ["mlx5_0", "mlx5_1"]
    assert set(sent) == {
        (c, f"{s} {port}") for s, c in (("127.0.0.1", "127.0.0.2"), ("127.0.0.2", "127.0.0.3")) for port in ports
    }
    assert all(value > 0.1 for value in sent.values())
    if how == "ib":
        assert set(sent.values()) == {393.97}
        down = [one for one in reports["127.0.0.1"].measured if one["test"] == "port"]
        assert [(one["of"], one["passed"], one["note"]) for one in down] == [("mlx5_2", False, "port 1 is DOWN")]


def _put_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make three ports of which one is down, and a program that waits, or sends, as ib_write_bw does."""
    for name, state in (("mlx5_0", "4: ACTIVE"), ("mlx5_1", "4: ACTIVE"), ("mlx5_2", "1: DOWN")):
        (tmp_path / "class" / name / "ports/1").mkdir(parents=True)
        (tmp_path / "class" / name / "ports/1/state").write_text(f"{state}\n")
    body = f"""exec "{sys.executable}" - "$@" <<'EOF'
import socket, sys
port = int(sys.argv[sys.argv.index("-p") + 1])
if sys.argv[-1] == "--report_gbits":
    with socket.create_server(("", port)) as listener:
        listener.accept()[0].close()
else:
    socket.create_connection((sys.argv[-1], port), timeout=1).close()
    print(" #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]")
    print(" 65536      3756217          394.21             393.97               0.751445")
EOF"""
    put_program(tmp_path / "bin", "ib_write_bw", body)
    monkeypatch.setattr(host, "INFINIBAND", str(tmp_path / "class"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")


def test_a_partner_that_never_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is down holds its partner up to the end of the round, and no longer; that is said, and is no figure."""
    monkeypatch.setattr(host, "ROUND_S", 2)
    monkeypatch.setattr(host, "FIRST_PORT", 23000 + os.getpid() % 9000)  # none that the kernel gives to others
    report = host.Report()
    host.try_network(report, host._read_arguments(["--host", "127.0.0.2", "--pairs", "127.0.0.9/127.0.0.2/0"]))
    assert not report.measured
    assert report.skipped[-1]["reason"].startswith("no answer from 127.0.0.9")


def test_it_is_for_old_machines() -> None:
    """The program is one that Python 3.6 reads, and imports nothing of this package."""
    tree = ast.parse(PROGRAM.read_text(), feature_version=(3, 6))
    modules = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert not any(name.startswith("diagnose") for name in modules)


@pytest.mark.parametrize("version", ["3.6", "3.8", "3.9"])
def test_it_runs_on_an_old_python(version: str, tmp_path: Path) -> None:
    """It runs where no library is installed."""
    python = next(
        (str(path) for path in (Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/python")),
        shutil.which(f"python{version}"),
    )
    if python is None or subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode:
        pytest.skip(f"no Python {version} here")
    found = run(tmp_path, {}, "--seconds", "0.1", "--tests", "gpu,cpu,disk", python=python)
    assert ("cpu", "") in figures(found)
