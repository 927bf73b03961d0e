"""The map in CONTRIBUTING.md is the way that a job takes."""

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from diagnose.cli.main import main

ROOT = Path(__file__).resolve().parents[1]


def list_mapped() -> list[str]:
    """List the files of the map, in its order."""
    return re.findall(r"(?m)^\| `(diagnose/[\w/]+\.py)` \|", (ROOT / "CONTRIBUTING.md").read_text())


def list_entered(arguments: list[str]) -> list[str]:
    """List the files of the package in the order in which a run of the command line first enters them."""
    entered: dict[str, None] = {}

    def watch(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_name[0] != "<":  # neither a module that is imported nor a lambda
            entered.setdefault(code.co_filename)

    main(arguments)  # so that importing is no part of the order
    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        assert main(arguments) == 0
    finally:
        sys.setprofile(before)
    folder = f"{ROOT / 'diagnose'}/"
    return [f"diagnose/{path.removeprefix(folder)}" for path in entered if path.startswith(folder)]


def test_the_map_is_the_order_of_a_run(tmp_path: Path) -> None:
    """Each file of the map is entered, in the order of the map."""
    job = ROOT / "fixtures" / "worker-fault.parquet"
    mapped = list_mapped()
    entered = list_entered([str(job), "--quiet", "-o", str(tmp_path / "report.txt")])
    assert len(mapped) > 30
    assert [path for path in entered if path in mapped] == mapped


def test_what_the_texts_name_is_there() -> None:
    """Every file and folder that the texts name or link to exists."""
    for text in (ROOT / "CONTRIBUTING.md", ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        content = text.read_text(encoding="utf-8")
        named = set(re.findall(r"`((?:diagnose|tests|rules|fixtures|docs|deploy)/[\w./-]*)`", content))
        missing = sorted(
            path for path in named if not (ROOT / path).exists() and not path.startswith("rules/short-sends")
        )
        assert missing == [], text
        if text.parent == ROOT:  # MkDocs checks the links of the others
            linked = re.findall(r"\]\((?!https?://|#)([^)#]+)", content)
            assert [path for path in linked if not (ROOT / path).exists()] == [], text
