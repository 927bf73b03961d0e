"""Where doctests are looked for."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.doctest import DoctestModule


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Iterator[None]:
    """Look for doctests in modules that show some, and in no tests: to look into a module is to import it."""
    collectors = yield
    in_tests = file_path.is_relative_to(Path(__file__).with_name("tests"))
    if not in_tests and b">>> " in file_path.read_bytes():
        return collectors
    return [collector for collector in collectors if not isinstance(collector, DoctestModule)]
