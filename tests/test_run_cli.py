"""`diagnose run`: a training script that knows nothing of it is recorded and diagnosed, and runs as it would without."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).resolve().parents[1]
JOB = ROOT / "tests" / "torch_jobs" / "unchanged.py"
PATIENCE_S = 240
torch = pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")


def environment(**more):
    """Give the environment of a command."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "OMP_NUM_THREADS": "1"} | more


def run(*arguments, cwd, **more):
    """Run the command, and give what it did."""
    command = [sys.executable, "-m", "diagnose", "run", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=cwd, env=environment(**more)
    )


def test_a_slow_rank_under_torchrun(tmp_path):
    """An unchanged script under torchrun: the slow rank is named on the page that the command ends with."""
    done = run(
        *(
            "-o",
            "traces",
            "--sample",
            "1",
            "--",
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            "2",
        ),
        *(JOB, "--slow-rank", "1", "--compute-s", "0.04", "--steps", "24"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "slow worker: dp 1" in done.stdout and done.stdout.count("trained") == 2
    found = json.loads((tmp_path / "traces" / "diagnosis.json").read_text())
    assert found["causes"][0]["cause"] == "worker-fault"
    assert found["job"]["dp_size"] == 2 and (tmp_path / "traces" / "diagnosis.html").is_file()
    again = subprocess.run(
        [sys.executable, "-m", "diagnose", "traces", "--format", "json"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(),
        check=True,
    )
    assert json.loads(again.stdout)["warnings"] == found["warnings"], "the report beside the traces is none of them"


def test_what_the_command_leaves(tmp_path):
    """Output, arguments and exit code are the command's; the folder has the name of the script."""
    done = run("--quiet", "--", sys.executable, JOB, "--exit", "3", "--compute-s", "0.002", cwd=tmp_path)
    assert done.returncode == 3 and done.stdout.startswith("trained ['--exit', '3', '--compute-s', '0.002']\n")
    assert list((tmp_path / "traces" / "unchanged").rglob("rank-00000.parquet"))


def test_signals_are_passed_on(tmp_path):
    """A scheduler's SIGTERM reaches the job, what was recorded is diagnosed, and the exit code tells the signal."""
    command = [sys.executable, "-m", "diagnose", "run", "-o", "traces", "--sample", "1", "--", sys.executable, str(JOB)]
    job = subprocess.Popen(
        [*command, "--wait"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment()
    )
    assert job.stdout.readline().startswith("trained")
    job.send_signal(signal.SIGTERM)
    said, _ = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 128 + signal.SIGTERM and "diagnosis.html" in said


def test_a_process_that_does_not_train(tmp_path):
    """A command without torch runs as ever; that nothing was recorded is said."""
    done = run("--", sys.executable, "-c", "import json, sys; print('torch' in sys.modules)", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "False\n") and "nothing was recorded" in done.stderr
    done = run("--", "no-such-command", cwd=tmp_path)
    assert done.returncode == 127 and "cannot run no-such-command" in done.stderr
    done = run("--", sys.executable, "-c", "import no_such_module", cwd=tmp_path)
    assert done.returncode == 1 and "ended with exit code 1 before it trained" in done.stderr
    assert list(tmp_path.iterdir()) == []
    done = run(cwd=tmp_path)
    assert done.returncode == 2 and "no command given" in done.stderr


def test_workers_of_a_loader_record_nothing(tmp_path):
    """Processes that import torch and do not train load nothing of the recorder."""
    script = """
import sys, torch
class Seen(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, i): return float("diagnose" in sys.modules)
if __name__ == "__main__":
    loader = torch.utils.data.DataLoader(Seen(), num_workers=1, multiprocessing_context="spawn")
    print([x.item() for x in loader], "diagnose" in sys.modules)
    torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
    print("diagnose.record" in sys.modules)
"""
    (tmp_path / "train.py").write_text(script)
    done = run("--no-report", "--", sys.executable, "train.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "[0.0, 0.0, 0.0, 0.0] False\nTrue\n"), done.stderr


def test_a_sitecustomize_that_is_there_already(tmp_path):
    """The site's own `sitecustomize` still runs, and what it raises is told as ever."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import sys; sys.site_was_here = __name__\n")
    told = environment()
    told["PYTHONPATH"] = os.pathsep.join([str(tmp_path / "site"), told["PYTHONPATH"]])
    done = subprocess.run(
        [
            *(sys.executable, "-m", "diagnose", "run", "--no-report", "--", sys.executable, "-c"),
            "import sys, sitecustomize as s; print(sys.site_was_here, s.__file__, 'unchanged' in str(sys.path))",
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=told,
        check=True,
    )
    assert done.stdout == f"sitecustomize {tmp_path / 'site' / 'sitecustomize.py'} False\n"


def test_the_environment_alone(tmp_path):
    """What `--env` prints is enough: a shell that sets it records what it runs."""
    printed = run("--env", "--sample", "1", "-o", "my traces", cwd=tmp_path).stdout
    shell = f'{printed}\nexec "{sys.executable}" "{JOB}" --compute-s 0.002'
    subprocess.run(["sh", "-c", shell], check=True, capture_output=True, cwd=tmp_path, env=environment())
    (file,) = (tmp_path / "my traces").rglob("rank-00000.parquet")
    assert len(set(pq.read_table(file)["step"].to_pylist())) >= 19


def test_a_script_with_a_recorder_of_its_own(tmp_path):
    """Where the job records itself it does so alone."""
    (tmp_path / "train.py").write_text(
        "import torch\nfrom diagnose.record import Recorder\n"
        "optimizer = torch.optim.SGD([weight := torch.ones(1, requires_grad=True)], lr=0.1)\n"
        "with Recorder('mine', sample=1.0) as recorder:\n"
        "    for _ in range(5):\n"
        "        with recorder.step():\n"
        "            weight.sum().backward()\n"
        "            optimizer.step()\n"
    )
    run("--no-report", "-o", "theirs", "--", sys.executable, "train.py", cwd=tmp_path)
    assert list((tmp_path / "mine").rglob("rank-*")) and not list((tmp_path / "theirs").rglob("rank-*"))


def test_processes_that_are_not_the_first_do_not_diagnose(tmp_path):
    """Of several that a launcher starts on nodes or for ranks, the first alone diagnoses."""
    command = ("-o", "traces", "--", sys.executable, "-c", "pass")
    first, second = (run(*command, cwd=tmp_path, SLURM_PROCID=number) for number in "01")
    assert "nothing was recorded" in first.stderr and second.stderr == ""
