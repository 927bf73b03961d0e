"""Print how well logs of runs of every shape are understood: `python -m tests.logs.table [FIRST SEED] [RUNS]`.

Shapes x what is right: kind, onsets, period, lost time within 2% or the noise of it, and within 2%.
"""

import sys

from tests.logs.score import Score
from tests.logs.shapes import SHAPES
from tests.logs.test_shapes import FIRST, N, score_runs


def print_table(first: int, n: int) -> None:
    """Print a line for each shape."""
    print(
        f"{'shape':12} {'kind':>6} {'onsets':>7} {'period':>7} {'lost':>6} {'in 2%':>6}  ({n} runs from seed {first})"
    )
    for kind in SHAPES:
        scores = score_runs(kind, range(first, first + n))
        cells = [_percent([getattr(one, key) for one in scores]) for key in ("kind", "onset", "period", "lost_right")]
        cells.append(_percent([_is_close(one) for one in scores]))
        print(f"{kind:12} {cells[0]:>6} {cells[1]:>7} {cells[2]:>7} {cells[3]:>6} {cells[4]:>6}")


def _is_close(one: Score) -> bool | None:
    """Say whether lost time is within 2% of the truth."""
    return None if one.lost is None else one.lost <= 0.02


def _percent(values: list[bool | None]) -> str:
    """Write the part that is right."""
    known = [value for value in values if value is not None]
    return f"{100 * sum(known) / len(known):.1f}%" if known else "-"


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:3]]
    print_table(*(numbers + [FIRST, N][len(numbers) :]))
