"""The table of tiers speaks of tests that exist, and quick tests cannot become slow unnoticed."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from diagnose.faults import generate
from diagnose.faults.spec import JobSpec
from tests.tiers import LONG, PLAIN, QUICK, TIERS, tier_of, tiers_within

ROOT = Path(__file__).resolve().parents[1]


def test_every_entry_names_something() -> None:
    """Each folder, file and test in the table exists; else a renamed test would change its tier unnoticed."""
    for entry in TIERS:
        path, _, name = entry.partition("[")[0].partition("::")
        assert (ROOT / path).exists(), entry
        assert not name or f"def {name}" in (ROOT / path).read_text(encoding="utf-8"), entry


def test_the_longest_entry_decides() -> None:
    """A folder says the tier, a file another, and a test of it yet another."""
    assert tier_of("tests/whatif/test_of_tomorrow.py::test_it") == QUICK
    assert tier_of("tests/whatif/test_clocks.py::test_correcting_undoes_the_skew") == PLAIN
    assert tier_of("tests/whatif/test_clocks.py::test_no_offset_is_claimed_in_generated_jobs") == LONG
    assert tier_of("README.md::README.md") == PLAIN
    assert tiers_within("tests/whatif/test_clocks.py") == {PLAIN, LONG}


def test_a_quick_test_starts_no_process_and_no_database() -> None:
    """Whoever tries is told to change the tier."""
    with pytest.raises(AssertionError, match=r"subprocess\.Popen.*tests/tiers\.py"):
        subprocess.run([sys.executable, "--version"], check=False)
    with pytest.raises(AssertionError, match=r"sqlite3\.connect"):
        sqlite3.connect(":memory:")


def test_a_quick_test_generates_no_job() -> None:
    """Whoever tries is told the same."""
    with pytest.raises(AssertionError, match="generates a job"):
        generate.generate(JobSpec(), [])
