"""The README is short, and shows what the program prints; the documentation is small, and names files that exist."""

import os
from pathlib import Path

from docs.tools.shell import ROOT, Ran, Shell, fill_outputs, list_commands

README = ROOT / "README.md"
#: What a page of documentation may weigh is what people wait for; all pictures together, bytes.
MAX_PICTURES = 2_000_000


def test_its_output_is_that_of_the_program(tmp_path: Path) -> None:
    """What the README shows below a command is what it prints: UPDATE_GOLDEN=1 writes it anew."""
    text = README.read_text(encoding="utf-8")
    shell = Shell(tmp_path.resolve())
    ran = [shell.run(one) if f"$ {one}" in text else Ran(one, "not shown", 0) for one in list_commands(text)]
    filled = fill_outputs(text, ran)
    assert any(f"$ {one.command}\n{one.output}" in filled for one in ran)
    if os.environ.get("UPDATE_GOLDEN"):
        README.write_text(filled, encoding="utf-8")
    assert filled == README.read_text(encoding="utf-8"), "UPDATE_GOLDEN=1 python -m pytest tests/docs/test_readme.py"


def test_it_is_short() -> None:
    """Who opens it sees in a few screens what there is."""
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 180


def test_pictures_are_small_and_all_shown() -> None:
    """Pictures are committed: together they stay small, and each stands on a page."""
    pictures = sorted((ROOT / "docs/pictures").glob("*.png"))
    assert sum(picture.stat().st_size for picture in pictures) < MAX_PICTURES
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md"))
    causes = {f"{kind}-{rule.stem}" for rule in (ROOT / "rules").glob("*.yaml") for kind in ("page", "terminal")}
    assert causes <= {picture.stem for picture in pictures}
    assert [
        picture.name for picture in pictures if f"pictures/{picture.name}" not in pages and picture.stem not in causes
    ] == []
