"""The lines that the documentation shows to users: jobs run them as they stand there.

Enters: a page of `docs/how-to`. Leaves: one of its Python blocks, with a folder of the job's own and every step recorded.
"""

import re
from pathlib import Path

HOW_TO = Path(__file__).resolve().parents[3] / "docs" / "how-to"
#: The folder that all pages name.
FOLDER = '"traces/job-7"'


def lines_of(page: str, block: int = 0) -> list[str]:
    """Give the lines of a Python block of a page, without empty ones."""
    blocks = re.findall(r"```python\n(.*?)```", (HOW_TO / f"{page}.md").read_text(encoding="utf-8"), re.DOTALL)
    return [line for line in blocks[block].splitlines() if line.strip()]


def run_lines(page: str, folder: Path, block: int = 0, **names: object) -> dict[str, object]:
    """Run what a page shows with these names defined, and give all names that are defined then."""
    code = "\n".join(lines_of(page, block))
    assert FOLDER in code, f"{page}.md names another folder than {FOLDER}"
    exec(compile(code.replace(FOLDER, f"{str(folder)!r}, sample=1.0"), f"{page}.md", "exec"), names)
    return names
