"""Run real jobs of many frameworks with known faults, diagnose what was recorded of each, and print which answers are right.

    python -m tests.record.table --framework ddp fsdp2 --fault healthy slow-rank --repeat 3 --out table.json

Jobs run one after the other, on the CPU. Frameworks that are not installed are left out, and named.
"""

import argparse
import dataclasses
import json
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.record.table.fault import FAULTS
from tests.record.table.framework import Framework, list_frameworks
from tests.record.table.judge import Cell, judge
from tests.record.table.launch import JobError, launch


def main() -> int:
    """Run the cells; 1 where one is wrong."""
    frameworks = list_frameworks()
    parser = argparse.ArgumentParser(prog="python -m tests.record.table", description=__doc__.split("\n\n")[0])
    parser.add_argument("--framework", nargs="+", choices=frameworks, default=list(frameworks), metavar="NAME")
    parser.add_argument("--fault", nargs="+", choices=FAULTS, default=list(FAULTS), metavar="NAME")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write the cells as JSON")
    parser.add_argument("--keep", type=Path, help="keep the jobs in this folder, as FRAMEWORK-FAULT")
    options = parser.parse_args()
    cells = []
    for name in options.framework:
        framework = frameworks[name]
        if framework.missing():
            print(f"{name}: left out, {', '.join(framework.missing())} not installed", flush=True)
            continue
        for fault in options.fault:
            if why := why_not(framework, fault):
                print(f"{name:14} {fault:15} does not apply: {why}", flush=True)
                continue
            for _ in range(options.repeat):
                cell = run_cell(name, framework, fault, options.keep)
                print(describe(cell), flush=True)
                cells.append(cell)
                if options.out:
                    options.out.write_text(json.dumps([dataclasses.asdict(cell) for cell in cells], indent=1) + "\n")
    print(render(cells, frameworks))
    return 0 if all(cell.is_right for cell in cells) else 1


def why_not(framework: Framework, fault: str) -> str:
    """Say why a framework cannot have a fault; empty where it can."""
    if FAULTS[fault].needs_stages and framework.n_stages == 1:
        return "there are no stages"
    if FAULTS[fault].accumulate > 1 and framework.microbatches > 1:
        return "a step has microbatches anyway"
    return framework.without.get(fault, "")


def run_cell(name: str, framework: Framework, fault: str, keep: Path | None = None) -> Cell:
    """Run one job and judge its diagnosis; a job that fails is a wrong cell."""
    with tempfile.TemporaryDirectory() as temporary:
        out = (keep or Path(temporary)).resolve() / f"{name}-{fault}"
        shutil.rmtree(out, ignore_errors=True)
        try:
            launch(name, framework, fault, out)
            return judge(name, framework, fault, out)
        except (JobError, OSError, ValueError) as error:
            return Cell(name, fault, FAULTS[fault].cause, None, None, None, "", "failed", 0, (str(error),))


def describe(cell: Cell) -> str:
    """Word one cell as a line."""
    gain, truth = (" -" if part is None else f"{part:3.0%}" for part in (cell.gain, cell.true_gain))
    line = f"{cell.framework:14} {cell.fault:15} {'ok   ' if cell.is_right else 'WRONG'} {cell.found or 'nothing':20}"
    return f"{line} gain {gain} true {truth}  at {cell.where or '-':14} {cell.verdict:12} {'; '.join(cell.wrong)}"


def render(cells: list[Cell], frameworks: dict[str, Framework]) -> str:
    """Make the table in Markdown: the gain that was found and the true one, in percent, or of how many repeats were right."""
    faults = [fault for fault in FAULTS if any(cell.fault == fault for cell in cells)]
    lines = [
        "",
        "| | " + " | ".join(FAULTS[fault].title for fault in faults) + " |",
        "| --- |" + " --: |" * len(faults),
    ]
    for name, framework in frameworks.items():
        own = [cell for cell in cells if cell.framework == name]
        if own:
            lines.append(f"| {framework.title} | " + " | ".join(_render_repeats(fault, own) for fault in faults) + " |")
    right = Counter(cell.is_right for cell in cells)
    return "\n".join([*lines, "", f"{right[True]} of {len(cells)} cells are right"])


def _render_repeats(fault: str, cells: list[Cell]) -> str:
    """Word the repeats of one cell; a fault that was not tried is empty."""
    own = [cell for cell in cells if cell.fault == fault]
    if not own:
        return ""
    right = [cell for cell in own if cell.is_right]
    first = (right or own)[0]
    gain = 0.0 if first.gain is None else first.gain
    text = "right" if first.true_gain is None else f"{gain:.0%} of {first.true_gain:.0%}"
    if len(right) == len(own):
        return text
    return f"{text}: {len(right)} of {len(own)}" if right else "wrong"


if __name__ == "__main__":
    started = time.monotonic()
    code = main()
    print(f"{time.monotonic() - started:.0f} s")
    raise SystemExit(code)
