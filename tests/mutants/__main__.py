"""Change the core a little, many times, and see which tests notice: `python -m tests.mutants`.

    python -m tests.mutants --n 300 --seed 1 --out mutants.jsonl     # half an hour of one core
    python -m tests.mutants --again mutants.jsonl                    # only those that survived, with the tests of now
    python -m tests.mutants --n 40 --only 'diagnose/judge/v*'

First all quick and plain tests run once, to learn which of them runs which line (`--map FILE` keeps it). Then a process collects
them and runs none. For each mutant it forks one that puts the change in (in its memory, and in the copy of the repository from
which all of this runs) and runs the tests of the changed line: those that run little else first, until one fails, at most
`--budget` seconds of them. A mutant on which they fail or hang is killed. Mutants that change nothing that anyone could see stand
in `set_aside.py`, with the reason.
"""

import argparse
import contextlib
import fnmatch
import gc
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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.mutants.cover import Map
from tests.mutants.live import find_names, index_functions, put_in
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
    "tests/tickets/test_findings.py",
    "tests/logs/test_series.py",
    "tests/collectives",
    "tests/telemetry",
    "tests/test_rules_cli.py",
    "tests/features",
    "tests/fixes",
    "tests/report/test_brief.py",
    "tests/report/test_explain.py",
    "tests/report/test_terminal.py",
    "tests/golden_numbers",
    "tests/recorded/test_recorded.py",
    "tests/test_members.py",
    "tests/test_pipeline.py",
    "diagnose/judge",
    "diagnose/whatif",
)
#: Not needed by any test.
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", ".*_cache", "build", "dist")
PYTEST = ["-q", "-n0", "-p", "no:cacheprovider", "-W", "ignore", "--hypothesis-seed=0", "-m", "not long"]
#: Seconds of CPU beyond the budget after which a test is taken to hang, and wall time for each second of CPU.
PATIENCE_S = 30.0
MOST_WALL = 20.0
MOST_MEMORY = 12 << 30


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
    to = copy.parent / "learned"
    command = [sys.executable, "-c", program, str(to), "\n".join([*PYTEST, *known.missing]), " ".join(known.files)]
    subprocess.run(command, cwd=copy, env=os.environ | {"PYTHONPATH": search_path(copy)}, check=False)
    known.add(json.loads(to.read_text()))


class Court:
    """Tries mutants: a pytest plugin that collects all tests once, and runs none but in forked processes."""

    def __init__(self, copy: Path, known: Map, mutants: Sequence[Mutant], *, budget_s: float, out: Path | None) -> None:
        self.copy, self.known, self.mutants, self.budget_s, self.out = copy, known, mutants, budget_s, out
        self.n_lines = known.count_lines()
        self.results: list[tuple[Mutant, str, str]] = []
        #: Files of mutants that were killed, and by which test.
        self.noticed: list[tuple[str, str]] = []
        self.failed = ""
        self.log = os.dup(2)  # pytest takes the usual ones

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try all mutants, in place of running the tests."""
        self.plugins = session.config.pluginmanager
        self.items = {item.nodeid: item for item in session.items}
        for file in self.known.files:
            importlib.import_module(file.removesuffix(".py").replace("/", "."))
        self.functions = index_functions(self.copy)
        gc.freeze()  # so that forked processes share it
        for n, mutant in enumerate(self.mutants):
            start = time.monotonic()
            reason = SET_ASIDE.get((mutant.file, mutant.text, f"{mutant.before} -> {mutant.after}", mutant.nth))
            outcome, by = ("set aside", reason) if reason else self._try(mutant)
            self.results.append((mutant, outcome, by))
            if outcome == "killed":
                self.noticed.append((mutant.file, by))
            said = (
                f"{n + 1}/{len(self.mutants)} {outcome}: {describe(mutant)} ({by}; {time.monotonic() - start:.1f} s)\n"
            )
            os.write(self.log, said.encode())
            if self.out:
                entry = {name: getattr(mutant, name) for name in ("file", "line", "text", "before", "after", "nth")}
                with self.out.open("a") as out:
                    print(json.dumps(entry | {"outcome": outcome, "by": by}), file=out)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what failed first."""
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def choose_tests(self, mutant: Mutant) -> list[str]:
        """Choose tests: those that run little but this line first."""
        seconds = self.known.seconds
        names = find_names((self.copy / mutant.file).read_text(), mutant.line)
        if names:  # values of a module: who uses them?
            covering = self.known.tests_of_names(names)
        else:
            last = mutant.line + mutant.before.count("\n")
            covering = self.known.tests_of(mutant.file, range(mutant.line, last + 1))
        # Who noticed other mutants is likely to notice this one: most of all those of the same file.
        noticed = Counter(by for _, outcome, by in self.results if outcome == "killed")
        noticed.update(
            {by: 9 for other, outcome, by in self.results if outcome == "killed" and other.file == mutant.file}
        )
        weight = {test: self.n_lines[test] * (0.02 + seconds[test]) / (1 + noticed[test]) ** 2 for test in covering}
        return sorted(covering & self.items.keys(), key=lambda test: (weight[test], test))

    def _try(self, mutant: Mutant) -> tuple[str, str]:
        """Run the tests of a mutant: `killed` and by which, or `survived` and how many ran."""
        path = self.copy / mutant.file
        source = path.read_bytes()
        tests = self.choose_tests(mutant)
        if not tests:
            return "survived", "no test runs it"
        path.write_bytes(mutant.apply(source))  # for tests that start a process
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.close(read)
            said = "nothing could be run"
            try:
                said = self._run_here(mutant, tests)
            finally:
                os.write(write, said.encode())
                os._exit(0)
        os.close(write)
        try:
            with os.fdopen(read) as pipe:
                said = self._wait(child, pipe.fileno(), MOST_WALL * (self.budget_s + PATIENCE_S))
        finally:
            path.write_bytes(source)
        return ("survived", said) if said.startswith("passed") else ("killed", said)

    def _wait(self, child: int, pipe: int, limit_s: float) -> str:
        """Wait for the child, and give what it said, or why it did not."""
        deadline = time.monotonic() + limit_s
        said = "took too long"
        while time.monotonic() < deadline:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                said = os.read(pipe, 10_000).decode() if os.WIFEXITED(status) else f"signal {os.WTERMSIG(status)}"
                break
            time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # and what it left behind
        if said == "took too long":
            os.waitpid(child, 0)
        return said

    def _run_here(self, mutant: Mutant, tests: Sequence[str]) -> str:
        """Put a mutant into this process, and run tests until one fails, or there is no more time."""
        os.setsid()
        limit_s = int(self.budget_s + PATIENCE_S)
        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 1))
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
        self.plugins.unregister(name="terminalreporter")
        path, name = self.copy / mutant.file, mutant.file.removesuffix(".py").replace("/", ".")
        put_in(self.functions, path, name, path.read_text(), mutant.line)
        items = [self.items[test] for test in tests]
        for n, (item, following) in enumerate(zip(items, [*items[1:], None], strict=True)):
            if time.process_time() > self.budget_s:
                return f"passed {n} of {len(items)} tests"
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed:
                return self.failed
        return f"passed {len(items)} tests"


def find_survivors(said: Sequence[dict[str, Any]]) -> list[Mutant]:
    """Find the survivors of an earlier run in the sources of now."""
    keys = {(e["file"], e["text"], e["before"], e["after"], e["nth"]) for e in said if e["outcome"] == "survived"}
    files = sorted({key[0] for key in keys if (ROOT / key[0]).exists()})
    return [m for file in files for m in list_mutants(file, (ROOT / file).read_bytes()) if m.key in keys]


def describe(mutant: Mutant) -> str:
    """Say in a line what was changed."""
    return f"{mutant.file}:{mutant.line}: {' '.join(mutant.before.split())}  ->  {mutant.after}"


def main() -> None:
    """Make mutants, try them, and say who survived."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=300, help="mutants (default 300)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", default="1/1", metavar="K/N", help="only each N-th of these, from the K-th on")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="files to change")
    parser.add_argument("--again", type=Path, metavar="FILE", help="only those that survived there")
    parser.add_argument("--out", type=Path, metavar="FILE", help="what became of each, one JSON object a line")
    parser.add_argument(
        "--map", type=Path, metavar="FILE", help="which tests run which line: read, and brought up to date"
    )
    parser.add_argument(
        "--budget", type=float, default=30.0, metavar="S", help="seconds of CPU for the tests of a mutant (default 30)"
    )
    options = parser.parse_args()

    files = [file for file in list_targets() if fnmatch.fnmatch(file, options.only)]
    said = [json.loads(line) for line in options.again.read_text().splitlines()] if options.again else []
    mutants = find_survivors(said) if options.again else choose(ROOT, files, options.n, options.seed)
    part, n_parts = map(int, options.part.split("/"))
    mutants = mutants[part - 1 :: n_parts]
    out = options.out.resolve() if options.out else None
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = copy_repository(Path(folder))
        known = Map(copy, TESTS, list_targets(), options.map.resolve() if options.map else None)
        learn(copy, known)
        # From here on the tests, and what they test, are those of the copy.
        os.chdir(copy)
        os.environ["PYTHONPATH"] = search_path(copy)
        sys.path[:] = [str(copy), *(path for path in sys.path if Path(path or ".").resolve() != ROOT)]
        for name in [name for name in sys.modules if name.partition(".")[0] in {"tests", "diagnose"}]:
            del sys.modules[name]
        court = Court(copy, known, mutants, budget_s=options.budget, out=out)
        court.noticed += [(entry["file"], entry["by"]) for entry in said if entry["outcome"] == "killed"]
        pytest.main([*PYTEST, f"--basetemp={folder}/temporary", *TESTS], plugins=[court])
    print_table(court.results)


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
