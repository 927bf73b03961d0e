"""Event files of TensorBoard, written by TensorBoard itself."""

import importlib.util
import sys
from pathlib import Path

import pytest

from diagnose.errors import TraceError
from tests.trace.logs.reading import read_log

needs_tensorboard = pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None,
    reason="TensorBoard is not installed: pip install 'diagnose-training[tensorboard]'",
)
#: The first record of a file: its version.
HEAD = b"\x18\0\0\0\0\0\0\0\xa3\x7fK\x22\t\0\0\xc0%\xddu\xd5A\x1a\rbrain.Event:2\xec\xa5\x88\xe1"
STEPS_S = [1.0, 1.0, 2.5, 1.0, 1.0]


def write_events(folder: Path, tags: dict[str, list[float]]) -> Path:
    """Write scalars of steps from 1 on, each when its step has ended."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder))
    now_s = 1.79e9
    for step, took_s in enumerate(STEPS_S, start=1):
        now_s += took_s
        for tag, values in tags.items():
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=values[step - 1])])
            writer.add_event(Event(wall_time=now_s, step=step, summary=summary))
    writer.close()
    return next(folder.glob("events.out.tfevents.*"))


@needs_tensorboard
def test_a_scalar_of_step_times_is_read_from_a_file_and_its_folder(tmp_path: Path) -> None:
    """Of the tags that Megatron-LM writes, the one of time by step is taken, in seconds."""
    tags = {"lm loss": [3.0] * 5, "iteration-time": STEPS_S, "iteration-time vs samples": [9.0] * 5}
    file = write_events(tmp_path, tags)

    for path in (file, tmp_path):
        log = read_log(path)

        assert log.iteration.tolist() == [1, 2, 3, 4, 5]
        assert log.step_s.tolist() == STEPS_S
        assert log.reads.startswith("iteration-time")
    assert read_log(file, column="lm loss").step_s.tolist() == [3.0] * 5


@needs_tensorboard
def test_without_a_scalar_of_time_the_clock_of_the_curve_is_read(tmp_path: Path) -> None:
    """A loss of every step tells when each ended; curves of an evaluation tell nothing of training."""
    file = write_events(tmp_path, {"eval/loss": [2.0] * 5, "train/loss": [3.0] * 5})

    log = read_log(file)

    assert log.step_s.tolist() == pytest.approx(STEPS_S[1:])
    assert "Wall time of train/loss" in log.reads


@needs_tensorboard
@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_damaged_file_says_so(tmp_path: Path, damage: str) -> None:
    """What comes behind the damage is not read, and the log says so."""
    file = write_events(tmp_path, {"iteration-time": STEPS_S})
    whole = file.read_bytes()
    half = len(whole) // 2
    file.write_bytes(whole[:half] if damage == "cut" else whole[:half] + bytes([whole[half] ^ 255]) + whole[half + 1 :])

    log = read_log(file)

    assert len(log.iteration) < 5
    assert any("is damaged or cut after" in note for note in log.notes)


@needs_tensorboard
def test_events_of_several_writers_are_not_mixed(tmp_path: Path) -> None:
    """Keras writes training and validation into two folders, with the same steps."""
    for name in ("train", "validation"):
        write_events(tmp_path / name, {"epoch_loss": [3.0] * 5})

    with pytest.raises(TraceError, match="events of several runs, or writers, in train, validation"):
        read_log(tmp_path)


@needs_tensorboard
def test_without_a_scalar_of_training_the_error_names_what_there_is(tmp_path: Path) -> None:
    """A file of evaluations alone."""
    write_events(tmp_path, {"eval/loss": [3.0] * 5})

    with pytest.raises(TraceError, match="no scalar of training; its scalars are eval/loss"):
        read_log(tmp_path)


def test_without_tensorboard_the_error_says_what_to_install_and_what_to_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extra is named, and the way without it."""
    for module in ("tensorboard", "tensorboard.backend.event_processing.event_file_loader"):
        monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / "events.out.tfevents.1790000000.node1.12.0").write_bytes(HEAD)

    with pytest.raises(TraceError, match=r"diagnose-training\[tensorboard\].*CSV of a step time"):
        read_log(tmp_path)
