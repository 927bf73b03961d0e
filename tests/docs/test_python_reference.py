"""The reference of the Python interface has all that is public, with every argument."""

import inspect

import diagnose
from docs.tools.python_reference import ERRORS, FUNCTIONS, RESULTS, write_python


def test_all_that_is_public_is_there() -> None:
    """What `from diagnose import *` brings stands on the page."""
    assert {*FUNCTIONS, *RESULTS, *ERRORS, "__version__"} == set(diagnose.__all__)


def test_every_argument_is_explained() -> None:
    """Each parameter of each function has a row in its table."""
    sections = {part.partition("\n")[0]: part for part in write_python().split("\n### ")}
    for name in FUNCTIONS:
        about = sections[f"diagnose.{name}"]
        rows = [row.split("|")[1].strip(" `").split(", ") for row in about.splitlines() if row.startswith("| `")]
        explained = {one for row in rows for one in row}
        assert set(inspect.signature(getattr(diagnose, name)).parameters) <= explained, name


def test_examples_are_shown_without_what_only_tests_need() -> None:
    """A reader sees no directive of doctest."""
    assert "```pycon" in write_python() and "doctest" not in write_python()
