"""Which test runs which line, and how long it takes: a pytest plugin.

What a fixture of a module, or a cached function, makes is made by the first test that asks for it; here it counts for each.
"""

import difflib
import functools
import gzip
import hashlib
import json
import re
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import coverage
import pytest


class Coverage:
    """Give each test, each fixture and each cached call a context of its own; `uses` says which needs which."""

    def __init__(self, root: Path, files: list[str], to: Path) -> None:
        self.root, self.to = root, to
        self.measured = coverage.Coverage(
            data_file=None, include=[str(root / file) for file in files], config_file=False
        )
        self.stack = [""]
        self.uses: dict[str, set[str]] = {}
        self.seconds: dict[str, float] = {}
        self.passed: set[str] = set()
        functools.cache = self.cache
        self.measured.start()

    def enter(self, name: str) -> None:
        """Count what runs for `name`, which who runs now uses."""
        self.uses.setdefault(self.stack[-1], set()).add(name)
        self.stack.append(name)
        self.measured.switch_context(name)

    def leave(self) -> None:
        """Count for whoever came before."""
        self.stack.pop()
        self.measured.switch_context(self.stack[-1])

    def cache(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Stand for `functools.cache`."""
        made: dict[Any, Any] = {}

        @functools.wraps(function)
        def cached(*args: Any, **kwargs: Any) -> Any:
            key = (args, tuple(sorted(kwargs.items())))
            name = f"cache {function!r} {hash(key)}"
            if key in made:
                self.uses.setdefault(self.stack[-1], set()).add(name)
                return made[key]
            self.enter(name)
            try:
                made[key] = function(*args, **kwargs)
            finally:
                self.leave()
            return made[key]

        cached.cache_clear = made.clear  # type: ignore[attr-defined]
        return cached

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Iterator[None]:
        """Count what makes a fixture that several tests share for that fixture."""
        if fixturedef.scope == "function":
            return (yield)
        name = self._fixture(fixturedef, request)
        self.enter(name)
        try:
            return (yield)
        finally:
            self.leave()

    def _fixture(self, fixturedef: Any, request: Any) -> str:
        return f"fixture {fixturedef.baseid} {fixturedef.argname} {getattr(request, 'param', '')!r}"

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # a quick test opens no database: what is counted does
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Count what runs for a test."""
        self.enter(item.nodeid)
        start = time.process_time()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = time.process_time() - start
            for definitions in getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {}).values():
                if definitions[-1].scope != "function":
                    marker = f"fixture {definitions[-1].baseid} {definitions[-1].argname} "
                    self.uses.setdefault(item.nodeid, set()).update(n for n in self.uses if n.startswith(marker))
            self.leave()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep which tests pass as things are."""
        if report.when == "call" and report.passed:
            self.passed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write it down."""
        self.measured.stop()
        for_whom: dict[str, list[str]] = {}
        for test in sorted(self.passed):
            for name in self._reached(test):
                for_whom.setdefault(name, []).append(test)
        data, lines = self.measured.get_data(), {}
        for path in sorted(data.measured_files()):
            lines[str(Path(path).relative_to(self.root))] = {
                line: sorted({test for name in names for test in for_whom.get(name, ())})
                for line, names in sorted(data.contexts_by_lineno(path).items())
            }
        self.to.write_text(json.dumps({"seconds": {t: self.seconds[t] for t in sorted(self.passed)}, "lines": lines}))

    def _reached(self, name: str) -> set[str]:
        """Give a context, and all that it uses."""
        reached, queue = {name}, [name]
        while queue:
            for used in self.uses.get(queue.pop(), ()):
                if used not in reached:
                    reached.add(used)
                    queue.append(used)
        return reached


class Map:
    """Which tests run each line of the sources of now, and how long each takes.

    It is kept in a file with the texts that it was learned on. Where sources changed since, lines that are still there keep their
    tests, and a new line has those of the one above it; of test files that are new, or changed, all tests are learned again.
    """

    def __init__(self, root: Path, tests: Sequence[str], files: Sequence[str], kept: Path | None) -> None:
        self.root, self.files, self.kept = root, files, kept
        old = json.loads(gzip.decompress(kept.read_bytes())) if kept is not None and kept.exists() else {}
        self.texts: dict[str, str] = {file: (root / file).read_text() for file in files}
        self.digests = {
            file: hashlib.sha256((root / file).read_bytes()).hexdigest() for file in self._list_tests(tests)
        }
        same = {file for file, digest in old.get("digests", {}).items() if self.digests.get(file) == digest}
        #: All tests by number, and seconds of those that are as they were.
        self.tests: list[str] = old.get("tests", [])
        self.seconds = {test: s for test, s in old.get("seconds", {}).items() if test.partition("::")[0] in same}
        self.lines: dict[str, dict[int, array[int]]] = {file: {} for file in files}
        for file, lines in old.get("lines", {}).items():
            if file in self.texts:
                self._carry_over(file, old["texts"][file], {int(line): array("H", ids) for line, ids in lines.items()})
        self.missing = sorted(set(self.digests) - same)

    def add(self, learned: dict[str, Any]) -> None:
        """Add what a run of tests told, and keep it all."""
        self.seconds |= learned["seconds"]
        self.tests += sorted(learned["seconds"].keys() - set(self.tests))
        number = {test: n for n, test in enumerate(self.tests)}
        for file, lines in learned["lines"].items():
            for line, tests in lines.items():
                known = self.lines[file].get(int(line), ())
                self.lines[file][int(line)] = array("H", sorted({*known, *(number[test] for test in tests)}))
        if self.kept is not None:
            lists = {file: {line: ids.tolist() for line, ids in lines.items()} for file, lines in self.lines.items()}
            found = {"seconds": self.seconds, "tests": self.tests, "lines": lists}
            found |= {"texts": self.texts, "digests": self.digests}
            self.kept.write_bytes(gzip.compress(json.dumps(found).encode()))

    def tests_of(self, file: str, lines: range) -> set[str]:
        """Give the tests that run any of these lines."""
        found = {self.tests[n] for line in lines for n in self.lines[file].get(line, ())}
        return found & self.seconds.keys()

    def tests_of_names(self, names: Sequence[str]) -> set[str]:
        """Give the tests that run any line, of any file, in which one of these names stands."""
        named = re.compile(rf"\b({'|'.join(names)})\b")
        lines = {
            file: [line for line, text in enumerate(self.texts[file].splitlines(), 1) if named.search(text)]
            for file in self.files
        }
        return {
            test for file, some in lines.items() for line in some for test in self.tests_of(file, range(line, line + 1))
        }

    def count_lines(self) -> Counter[str]:
        """Say how many lines each test runs."""
        found = Counter(n for lines in self.lines.values() for ids in lines.values() for n in ids)
        return Counter({self.tests[n]: count for n, count in found.items()})

    def _list_tests(self, tests: Sequence[str]) -> list[str]:
        """List the files in which tests may stand."""
        named = [self.root / test for test in tests]
        paths = [path for one in named for path in (one.rglob("*.py") if one.is_dir() else [one])]
        holds = lambda path: path.name.startswith("test_") or b">>> " in path.read_bytes()  # noqa: E731 - one line
        return sorted(path.relative_to(self.root).as_posix() for path in paths if holds(path))

    def _carry_over(self, file: str, text: str, lines: "dict[int, array[int]]") -> None:
        """Take over what is known of the lines of an older text."""
        matcher = difflib.SequenceMatcher(None, text.splitlines(), self.texts[file].splitlines(), autojunk=False)
        for _, a, a_end, b, b_end in matcher.get_opcodes():
            for n in range(b_end - b):
                at = min(a + n, a_end - 1) if a_end > a else a - 1
                if tests := lines.get(at + 1):
                    self.lines[file][b + n + 1] = tests
