"""What all tests share: the folder with published traces, and the switch for benchmarks."""

import os
from pathlib import Path

import pytest

#: Traces with their authors' results; not part of the repository.
SHARED = Path(__file__).resolve().parents[2] / "shared"

#: Processes that run tests at most; each keeps its own measured jobs.
MAX_PROCESSES = 8


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that lets benchmarks run."""
    parser.addoption(
        "--benchmarks", action="store_true", help="run tests/benchmarks too, and print their tables (add -s)"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Run on every core, but benchmarks alone and where they can print."""
    return 0 if config.getoption("--benchmarks") else min(os.cpu_count() or 1, MAX_PROCESSES)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out benchmarks unless asked for."""
    if config.getoption("--benchmarks"):
        return
    for item in items:
        if item.get_closest_marker("benchmark"):
            item.add_marker(pytest.mark.skip(reason="a benchmark: run with --benchmarks"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """Give the folder with the published traces and results, or skip."""
    if not (SHARED / "artifact").is_dir():
        pytest.skip(f"published traces are not here ({SHARED / 'artifact'} is absent)")
    return SHARED
