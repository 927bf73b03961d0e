"""What all tests share: the tiers, the switch for benchmarks, and the folder with published traces."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.tiers import LONG, QUICK, tier_of, tiers_within

ROOT = Path(__file__).resolve().parents[1]
#: Traces with their authors' results; not part of the repository.
SHARED = ROOT.parent / "shared"

#: Processes that run tests at most; each keeps its own measured jobs.
MAX_PROCESSES = 8
# No machine is too slow for a property.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that let long tests and benchmarks run."""
    parser.addoption("--all", action="store_true", help="run long tests too; those of a file named here run anyway")
    parser.addoption(
        "--benchmarks", action="store_true", help="run tests/benchmarks too, and print their tables (add -s)"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Run on every core, but benchmarks alone and where they can print."""
    return 0 if config.getoption("--benchmarks") else min(os.cpu_count() or 1, MAX_PROCESSES)


def named(config: pytest.Config) -> set[str]:
    """Give the files that the command line names, from the top of the repository: their long tests run."""
    paths = {Path(config.invocation_params.dir, argument.partition("::")[0]).resolve() for argument in config.args}
    return {path.relative_to(ROOT).as_posix() for path in paths if path.is_file() and path.is_relative_to(ROOT)}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import a file none of whose tests will run."""
    path = collection_path.relative_to(ROOT).as_posix()
    if not collection_path.name.startswith("test_") or path in named(config):
        return None
    if path.startswith("tests/benchmarks/"):
        return True if not config.getoption("--benchmarks") else None
    tiers = tiers_within(path)
    if config.option.markexpr == QUICK and QUICK not in tiers:
        return True
    return True if tiers == {LONG} and not config.getoption("--all") else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests with their tier; leave out long ones and benchmarks unless asked for."""
    kept, left_out, files = [], [], named(config)
    for item in items:
        if item.get_closest_marker("benchmark") and not config.getoption("--benchmarks"):
            item.add_marker(pytest.mark.skip(reason="a benchmark: run with --benchmarks"))
        tier = LONG if item.get_closest_marker(LONG) else tier_of(item.nodeid)
        if tier in {QUICK, LONG}:
            item.add_marker(tier)
        is_left_out = tier == LONG and not config.getoption("--all") and item.nodeid.partition("::")[0] not in files
        (left_out if is_left_out else kept).append(item)
    items[:] = kept
    if left_out:
        config.hook.pytest_deselected(items=left_out)


#: What Python tells its auditors that a quick test does not do.
_SLOW_EVENTS = {"subprocess.Popen", "os.fork", "os.posix_spawn", "sqlite3.connect", "socket.connect"}
_running: list[pytest.Item] = []


def _refuse(event: str, _args: tuple[object, ...]) -> None:
    """Let a quick test fail that does what takes long."""
    if event in _SLOW_EVENTS and _running:
        raise AssertionError(f"{event} in a quick test: say in tests/tiers.py that it is a plain one")


sys.addaudithook(_refuse)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Watch quick tests."""
    _running[:] = [item] if item.get_closest_marker(QUICK) else []
    try:
        return (yield)
    finally:
        _running.clear()


@pytest.fixture(autouse=True)
def _no_jobs_in_quick_tests(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a quick test fail that generates a job."""
    if not request.node.get_closest_marker(QUICK) or "diagnose.faults.generate" not in sys.modules:
        return

    def refuse(*_args: object) -> None:
        raise AssertionError("a quick test generates a job: say in tests/tiers.py that it is a plain one")

    monkeypatch.setattr("diagnose.faults.generate.simulate", refuse)


@pytest.fixture(scope="session")
def shared() -> Path:
    """Give the folder with the published traces and results, or skip."""
    if not (SHARED / "artifact").is_dir():
        pytest.skip(f"published traces are not here ({SHARED / 'artifact'} is absent)")
    return SHARED
