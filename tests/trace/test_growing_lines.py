"""Logs of operations that grow: what is whole, what is another file, and what no line of an operation is."""

from pathlib import Path

from diagnose.trace import growing_lines
from diagnose.trace.growing_lines import FORMATS, GrowingLines


def write_steps(steps: range, ranks: tuple[int, ...] = (0, 1)) -> str:
    """Write the log of some ranks of an event timer."""
    return "".join(
        f"[RANK{rank}] Iteration {step}\n[RANK{rank}] F @ {step}.0 (ms) to {step}.5 (ms)\n"
        for step in steps
        for rank in ranks
    )


def follow(path: Path) -> GrowingLines:
    """Follow a log from its first line on."""
    log = GrowingLines(path, FORMATS["event-timer"])
    assert log.look()
    return log


def test_a_rank_that_vanished_is_not_waited_for(tmp_path):
    """GIVEN one file of two ranks, one of which ends, THEN steps go on without it once the other is far ahead."""
    path = tmp_path / "all.log"
    path.write_text(write_steps(range(1, 11)) + write_steps(range(11, 60), (0,)))
    log = follow(path)
    assert log.steps(99).tolist() == [*range(1, 10)]
    path.write_text(write_steps(range(1, 11)) + write_steps(range(11, 100), (0,)))
    assert log.look() and log.steps(99).tolist() == [*range(1, 99)]
    rows = log.rows_through(98)
    assert rows is not None and len(rows) == 2 * (10 + 98)


def test_a_file_with_other_content_is_another(tmp_path):
    """GIVEN a log whose place another one takes that is longer, THEN it is read from its first line on."""
    path = tmp_path / "all.log"
    path.write_text(write_steps(range(1, 11)))
    log = follow(path)
    log.drop_through(log.last_step)
    path.write_text(write_steps(range(1, 21)))
    assert log.look() and not log.has_restarted and log.steps(99).tolist() == [*range(10, 20)]
    path.write_text(write_steps(range(101, 131)))
    assert log.look() and log.has_restarted and log.steps(99).tolist() == [*range(101, 130)]


def test_bytes_without_a_line_are_passed_over(tmp_path, monkeypatch):
    """GIVEN blocks of anything without the end of a line, THEN they are read once, a block at a time."""
    monkeypatch.setattr(growing_lines, "BLOCK_BYTES", 1000)
    path = tmp_path / "all.log"
    path.write_bytes(write_steps(range(1, 11)).encode() + b"\0" * 5500)
    log = follow(path)
    assert log.steps(99).tolist() == [*range(1, 10)]
    with path.open("ab") as more:
        more.write(b"\n" + write_steps(range(11, 21)).encode())
    assert log.look() and not log.has_restarted and log.steps(99).tolist() == [*range(1, 20)]
