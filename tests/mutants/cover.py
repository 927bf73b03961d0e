"""Which test runs which line, and how long it takes: a pytest plugin.

What a fixture of a module, or a cached function, makes is made by the first test that asks for it; here it counts for each.
"""

import functools
import gzip
import json
import time
from collections.abc import Callable, Iterator
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
            name = f"cache {function.__module__}.{function.__qualname__} {hash(key)}"
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

    @pytest.hookimpl(wrapper=True)
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
        tests = sorted(self.passed)
        number = {test: n for n, test in enumerate(tests)}
        for_whom: dict[str, set[int]] = {}
        for test in tests:
            for name in self._reached(test):
                for_whom.setdefault(name, set()).add(number[test])
        data, lines = self.measured.get_data(), {}
        for path in sorted(data.measured_files()):
            by_line = data.contexts_by_lineno(path)
            lines[str(Path(path).relative_to(self.root))] = {
                line: sorted(set().union(*(for_whom.get(name, set()) for name in names)))
                for line, names in sorted(by_line.items())
            }
        found = {"tests": [[test, round(self.seconds[test], 4)] for test in tests], "lines": lines}
        self.to.write_bytes(gzip.compress(json.dumps(found).encode()))

    def _reached(self, name: str) -> set[str]:
        """Give a context, and all that it uses."""
        reached, queue = {name}, [name]
        while queue:
            for used in self.uses.get(queue.pop(), ()):
                if used not in reached:
                    reached.add(used)
                    queue.append(used)
        return reached
