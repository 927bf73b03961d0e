"""Jobs under a schedule beside the same jobs under 1F1B."""

from tests.scoring.figures import measure
from tests.scoring.schedules import judge_pair, row_of

SEED = 27112695


def test_a_twin_has_the_same_faults() -> None:
    """Faults and their places are those of the job, whatever they cost under the other schedule; a row counts both."""
    pairs = [pair for i in range(4) if (pair := judge_pair(SEED, i, "zb-h2")) is not None]
    assert any(here.truth for here, _ in pairs)
    for here, there in pairs:
        assert "zb-h2" in here.world and "1f1b" in there.world
        assert not here.error and not there.error
        assert [(true.cause, true.workers) for true in here.truth] == [
            (true.cause, true.workers) for true in there.truth
        ]
    figures = [measure(rows) for rows in zip(*pairs, strict=True)]
    assert row_of("zb-h2", figures[0], figures[1], 0.01).startswith("| zb-h2 | ")
