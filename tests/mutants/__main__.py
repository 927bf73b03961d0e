"""Change the core a little, many times, and see which tests notice: `python -m tests.mutants`.

    python -m tests.mutants --n 300 --seed 1 --out mutants.jsonl     # about an hour of one core
    python -m tests.mutants --again mutants.jsonl                    # only those that survived, with the tests of now
    python -m tests.mutants --n 40 --only 'diagnose/judge/v*'

First all quick and plain tests run once, to learn which of them runs which line (`--map` keeps it). Then each mutant is written
into a copy of the repository, and a process forked from one that has the libraries loaded runs the tests of the changed line:
those that run little else first, until one fails, at most `--budget` seconds of them. A mutant on which they fail, hang or
cannot be collected is killed. Mutants that change nothing that anyone could see stand in `set_aside.py`, with the reason.
"""

import argparse
import contextlib
import fnmatch
import importlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from tests.mutants.cover import Map
from tests.mutants.mutate import Mutant, choose, list_mutants
from tests.mutants.set_aside import SET_ASIDE

ROOT = Path(__file__).resolve().parents[2]
TARGETS = ("diagnose/judge/", "diagnose/whatif/", "diagnose/trace/clocks.py", "diagnose/triage/store.py")
#: Where tests of them are looked for; those of the long tier are left out.
TESTS = (
    "tests/judge",
    "tests/whatif",
    "tests/trace/test_clocks.py",
    "tests/trace/test_clock_links.py",
    "tests/triage/test_store.py",
    "tests/features",
    "tests/report/test_brief.py",
    "tests/report/test_explain.py",
    "tests/report/test_terminal.py",
    "tests/test_pipeline.py",
    "diagnose/judge",
    "diagnose/whatif",
)
#: Not needed by any test.
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", ".*_cache", "build", "dist")
#: What most tests load, loaded once: nothing of ours.
LIBRARIES = (
    "numpy",
    "pandas",
    "pyarrow.parquet",
    "pyarrow.compute",
    "scipy.stats",
    "sqlalchemy",
    "hypothesis",
    "yaml",
    "msgspec",
    "click",
    "rich.console",
    "jinja2",
    "httpx",
    "sklearn.ensemble",
    "ruptures",
    "matplotlib.figure",
)
PYTEST = ["-q", "-x", "-n0", "-p", "no:cacheprovider", "-W", "ignore", "--hypothesis-seed=0"]
#: Test files of the first round.
FIRST_FILES = 3
#: A mutant may take this much longer than the tests did, and this many seconds of CPU.
PATIENCE, PATIENCE_S = 4, 20.0


def list_targets() -> list[str]:
    """List the files that are changed."""
    paths = (path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "diagnose").rglob("*.py")))
    return [path for path in paths if path.startswith(TARGETS)]


def copy_repository(folder: Path) -> Path:
    """Copy the repository: whatever happens to a mutant, the sources stay as they are."""
    shutil.copytree(ROOT, folder / "repository", ignore=LEFT_OUT)
    if (ROOT.parent / "shared").exists():
        (folder / "shared").symlink_to(ROOT.parent / "shared")
    return folder / "repository"


def search_path(copy: Path) -> str:
    """Say where Python looks for modules: in the copy, not here."""
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and Path(path) != ROOT]
    return os.pathsep.join([str(copy), *others])


def learn(copy: Path, known: Map) -> None:
    """Run the quick and plain tests that nothing is known of."""
    if not known.missing:
        return
    program = (
        "import sys, pytest; from pathlib import Path; from tests.mutants.cover import Coverage;"
        "learned = Coverage(Path.cwd(), sys.argv[3].split(), Path(sys.argv[1]));"
        "sys.exit(pytest.main(sys.argv[2].split('\\n'), plugins=[learned]))"
    )
    options = [*(option for option in PYTEST if option != "-x"), "-m", "not long", *known.missing]
    to = copy.parent / "learned"
    environment = os.environ | {"PYTHONPATH": search_path(copy)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # each mutant's process then compiles one file alone
    command = [sys.executable, "-c", program, str(to), "\n".join(options), " ".join(known.files)]
    subprocess.run(command, cwd=copy, env=environment, check=False)
    known.add(json.loads(to.read_text()))


class Chosen:
    """A pytest plugin: only these tests, in this order."""

    def __init__(self, tests: Sequence[str]) -> None:
        self.order = {test: n for n, test in enumerate(tests)}
        self.failed = ""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Choose and sort."""
        items[:] = sorted(
            (item for item in items if item.nodeid in self.order), key=lambda item: self.order[item.nodeid]
        )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what failed first."""
        if report.failed and not self.failed:
            self.failed = report.nodeid


class Court:
    """Tries mutants in a copy of the repository."""

    def __init__(self, copy: Path, known: Map, budget_s: float) -> None:
        self.copy, self.known, self.budget_s = copy, known, budget_s
        self.n_lines = Counter(test for lines in known.lines.values() for tests in lines.values() for test in tests)
        self.n_tried = 0

    def choose_tests(self, mutant: Mutant) -> list[list[str]]:
        """Choose tests in two rounds: first those of a few files that run little else, then the others while there is time."""
        seconds = self.known.seconds
        covering = self.known.tests_of(mutant.file, range(mutant.line, mutant.line + mutant.before.count("\n") + 1))
        fitting = sorted(covering, key=lambda test: (self.n_lines[test] * (0.05 + seconds[test]), test))
        files = list(dict.fromkeys(test.partition("::")[0] for test in fitting))[:FIRST_FILES]
        first = list(self._within([t for t in fitting if t.partition("::")[0] in files], self.budget_s / 4))
        left_s = self.budget_s - sum(seconds[test] for test in first)
        second = list(self._within([test for test in fitting if test not in set(first)], left_s))
        return [some for some in (first, second) if some]

    def _within(self, tests: Iterable[str], seconds: float) -> Iterable[str]:
        """Take tests while there is time."""
        for test in tests:
            if self.known.seconds[test] <= seconds:
                seconds -= self.known.seconds[test]
                yield test

    def try_mutant(self, mutant: Mutant) -> tuple[str, str]:
        """Run its tests: `killed` and by which, or `survived` and how many ran."""
        path = self.copy / mutant.file
        source, times = path.read_bytes(), path.stat()
        self.n_tried += 1
        n_run = 0
        try:
            path.write_bytes(mutant.apply(source))
            # Compiled code is known by the second and the size of its source: no two mutants may agree in both.
            os.utime(path, (times.st_atime, times.st_mtime + 10 + self.n_tried))
            for tests in self.choose_tests(mutant):
                outcome = self._run(tests, sum(self.known.seconds[test] for test in tests))
                n_run += len(tests)
                if outcome:
                    return "killed", outcome
        finally:
            path.write_bytes(source)
            os.utime(path, (times.st_atime, times.st_mtime))
        return "survived", f"{n_run} tests"

    def _run(self, tests: Sequence[str], expected_s: float) -> str:
        """Run tests in a process of its own; what stopped it, empty where nothing did."""
        limit_s = PATIENCE * expected_s + PATIENCE_S
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.close(read)
            self._run_here(tests, write, limit_s)
        os.close(write)
        with os.fdopen(read) as pipe:
            said = self._wait(child, pipe.fileno(), 3 * limit_s)
        with_signal(child)
        return said

    def _wait(self, child: int, pipe: int, limit_s: float) -> str:
        """Wait for the child, and give what it said, or why it did not."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                said = os.read(pipe, 10_000).decode() if os.WIFEXITED(status) else ""
                return {"passed": ""}.get(said, said or f"ended by signal {os.WTERMSIG(status)}")
            time.sleep(0.02)
        with_signal(child)
        os.waitpid(child, 0)
        return "took too long"

    def _run_here(self, tests: Sequence[str], write: int, limit_s: float) -> None:
        """Run tests in this process, and end it."""
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit_s) + 1, int(limit_s) + 2))
        resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
        nowhere = os.open(os.devnull, os.O_RDWR)
        for n in range(3):
            os.dup2(nowhere, n)
        os.chdir(self.copy)
        os.environ |= {"PYTHONPATH": search_path(self.copy), "PYTHONDONTWRITEBYTECODE": "1"}
        sys.dont_write_bytecode = True
        sys.path[:] = [str(self.copy), *(p for p in sys.path if Path(p or ".").resolve() != ROOT)]
        for name in [name for name in sys.modules if name.partition(".")[0] in {"tests", "diagnose"}]:
            del sys.modules[name]
        importlib.invalidate_caches()
        chosen = Chosen(tests)
        files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
        code = pytest.main([*PYTEST, f"--basetemp={self.copy.parent / 'temporary'}", *files], plugins=[chosen])
        said = "passed" if code == 0 else chosen.failed or f"pytest ended with {int(code)}"
        os.write(write, said.encode())
        os._exit(0)


def with_signal(group: int) -> None:
    """End what a child left behind."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def reason_aside(mutant: Mutant) -> str | None:
    """Say why a mutant was set aside by hand."""
    return SET_ASIDE.get((mutant.file, mutant.text, f"{mutant.before} -> {mutant.after}"))


def again(path: Path) -> list[Mutant]:
    """Find the survivors of an earlier run in the sources of now."""
    said = [json.loads(line) for line in path.read_text().splitlines()]
    keys = {(e["file"], e["text"], e["before"], e["after"], e["nth"]) for e in said if e["outcome"] == "survived"}
    files = sorted({key[0] for key in keys if (ROOT / key[0]).exists()})
    return [m for file in files for m in list_mutants(file, (ROOT / file).read_bytes()) if m.key in keys]


def describe(mutant: Mutant) -> str:
    """Say in a line what was changed."""
    return f"{mutant.file}:{mutant.line}: {' '.join(mutant.before.split())}  ->  {mutant.after}"


def main() -> None:
    """Make mutants, try them, and say who survived."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=300, help="mutants; those set aside do not count (default 300)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="*", metavar="PATTERN", help="files to change")
    parser.add_argument("--again", type=Path, metavar="FILE", help="only those that survived there")
    parser.add_argument("--out", type=Path, metavar="FILE", help="what became of each, one JSON object a line")
    parser.add_argument(
        "--map", type=Path, metavar="FILE", help="which tests run which line: read, or written where absent"
    )
    parser.add_argument(
        "--budget", type=float, default=60.0, metavar="S", help="seconds of tests for a mutant (default 60)"
    )
    options = parser.parse_args()

    for library in LIBRARIES:
        importlib.import_module(library)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = copy_repository(Path(folder))
        known = Map(copy, TESTS, list_targets(), options.map)
        learn(copy, known)
        court = Court(copy, known, options.budget)
        files = [file for file in list_targets() if fnmatch.fnmatch(file, options.only)]
        drawn = again(options.again) if options.again else choose(ROOT, files, options.n, options.seed)
        results = []
        for n, mutant in enumerate(drawn):
            start = time.monotonic()
            reason = reason_aside(mutant)
            outcome, by = ("set aside", reason) if reason else court.try_mutant(mutant)
            print(
                f"{n + 1}/{len(drawn)} {outcome}: {describe(mutant)} ({by}; {time.monotonic() - start:.1f} s)",
                flush=True,
            )
            results.append((mutant, outcome, by))
            if options.out:
                entry = {name: getattr(mutant, name) for name in ("file", "line", "text", "before", "after", "nth")}
                with options.out.open("a") as out:
                    print(json.dumps(entry | {"outcome": outcome, "by": by}), file=out)
    print_table(results)


def print_table(results: Sequence[tuple[Mutant, str, str]]) -> None:
    """Print who survived, and how many of each folder were killed."""
    print("\nsurvived:")
    for mutant, outcome, by in results:
        if outcome == "survived":
            print(f"  {describe(mutant)} ({by})")
    print("\nkilled of those tried:")
    tried = [(mutant.file, outcome) for mutant, outcome, _ in results if outcome != "set aside"]
    for target in (*TARGETS, ""):
        some = [outcome for file, outcome in tried if file.startswith(target)]
        if some:
            killed = some.count("killed")
            print(f"  {target or 'all':28} {killed:4} of {len(some):4}  {100 * killed / len(some):5.1f}%")
    print(f"  set aside: {len(results) - len(tried)}")


if __name__ == "__main__":
    main()
