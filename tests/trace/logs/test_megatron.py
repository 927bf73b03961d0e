"""Lines of a Megatron-LM log, as launchers, colours, progress bars and other ranks leave them."""

import gzip
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest

from diagnose.errors import TraceError
from diagnose.model.training_log import TrainingLog
from diagnose.trace.find_log import find_log
from diagnose.trace.input_files import list_input_files
from diagnose.trace.logs.load import is_log, load_log
from diagnose.trace.producers import training_log
from diagnose.trace.producers.catalogue import Producer
from tests.trace.producers.megatron_lines import argument_lines, detector_line, iteration_line, run, timer_lines
from tests.trace.producers.recordings import read, say_nothing

PRODUCER = cast("Producer", cast("ModuleType", training_log))
MAX_RSS_BYTES = 300 * 2**20


def parse(tmp_path: Path, lines: list[str]) -> TrainingLog:
    """Write lines as a log and read it."""
    path = tmp_path / "train.log"
    path.write_text("\n".join(lines))
    inputs = list_input_files(path, name="train.log")
    assert is_log(inputs)
    return load_log(inputs, name="train.log", report=say_nothing)


@pytest.mark.parametrize("prefix", ["", "[default7]:", "0: ", "\x1b[32m7: \x1b[0m", "Epoch:  3%|#  | 1/9\r"])
def test_lines_of_launchers(tmp_path: Path, prefix: str) -> None:
    """Whatever a launcher, a colour or a progress bar puts before a line, its numbers are read."""
    log = parse(tmp_path, [prefix + line for line in run([1, 2, 3], [9.0, 1.5, 1.25])])
    assert log.iteration.tolist() == [1, 2, 3]
    assert log.step_s.tolist() == [9.0, 1.5, 1.25]
    assert log.batch_size.tolist() == [512, 512, 512]
    assert log.total == 10_000


def test_old_and_other_versions(tmp_path: Path) -> None:
    """Lines without a time of day, and those with the running mean behind the time, are read, too."""
    lines = [
        " iteration       11/   50000 | consumed samples: 5632 | elapsed time per iteration (ms):  52728.1 | lm loss: 1.3",
        " iteration       12/   50000 | elapsed time per iteration (ms): 1851.0/1849.3 | lm loss: 1.3",
    ]
    log = parse(tmp_path, lines)
    assert log.iteration.tolist() == [11, 12]
    assert log.step_s.tolist() == pytest.approx([52.7281, 1.851])


def test_mixed_lines(tmp_path: Path) -> None:
    """A line that another rank wrote into gives neither its time to the wrong iteration nor the reverse; a line twice is one."""
    first, second, third = (iteration_line(n, n) for n in (1, 2, 3))
    log = parse(tmp_path, [first[:60] + second, third, third])
    assert log.iteration.tolist() == [2, 3]
    assert log.step_s.tolist() == [2.0, 3.0]


def test_restart(tmp_path: Path) -> None:
    """A counter that falls back is a restart, with the time from the last line before to the first after."""
    lines = [iteration_line(n, 1.0, at_s=n) for n in (1, 2, 3)] + [iteration_line(2, 1.0, at_s=600.0)]
    log = parse(tmp_path, lines)
    assert [(r.after, r.resumed_at, r.lost_s) for r in log.restarts] == [(3, 2, 597.0)]
    assert log.attempt.tolist() == [0, 0, 0, 1]


def test_timers_and_detector(tmp_path: Path) -> None:
    """Timers of all ranks, reports of the straggler detector, saves and sizes are read; of other timers nothing."""
    lines = [
        *argument_lines(world_size=4, pipeline_model_parallel_size=2, tensor_model_parallel_size=1),
        iteration_line(10, 1.0),
        *timer_lines("forward-backward", [9.0, 9.0, 9.0, 9.0]),
        *timer_lines("forward-compute", [0.5, 0.25, 0.5, 0.75])[1:],
        detector_line(slowest=3, throttled=2),
        "    save-checkpoint ................................: (1234.50, 2500.00)",
    ]
    log = parse(tmp_path, lines)
    assert set(log.timers) == {"forward-compute"}
    times = log.timers["forward-compute"]
    assert times.rank.tolist() == [0, 1, 2, 3]
    assert times.seconds.tolist() == [0.5, 0.25, 0.5, 0.75]
    assert times.iteration.tolist() == [10] * 4
    assert (log.extremes["Rtt"].high.tolist(), log.extremes["Rtt"].high_rank.tolist()) == ([4468.2], [3])
    assert (log.extremes["Clk"].low.tolist(), log.extremes["Clk"].low_rank.tolist()) == ([1410.0], [2])
    assert [(event.kind, event.seconds) for event in log.events] == [("save", 2.5)]
    assert log.sizes == {"world_size": 4, "pp_size": 2, "tp_size": 1}


@pytest.mark.parametrize(
    ("between", "cp"),
    [
        (", ", None),
        (", context-parallel size: 2, ", 2),
        (", context-parallel size: 2, hierarchical context-parallel sizes: None", 2),
    ],
)
def test_the_line_of_sizes(between: str, cp: int | None, tmp_path: Path) -> None:
    """Where no argument is printed, the line of sizes says on how many GPUs the job runs: those of an encoder are not the job's."""
    line = f"using world size: 64, data-parallel size: 8{between}tensor-model-parallel size: 4, "
    line += "encoder-tensor-model-parallel size: 0, pipeline-model-parallel size: 2, encoder-pipeline-model-parallel size: 0"
    log = parse(tmp_path, [line, *run([1, 2, 3], [9.0, 1.5, 1.25])])
    sizes = {"world_size": 64, "tp_size": 4, "pp_size": 2}
    assert log.sizes == (sizes if cp is None else {**sizes, "cp_size": cp})


def test_packed_and_folder(tmp_path: Path) -> None:
    """A log that gzip packed, among the logs of other nodes, is read."""
    (tmp_path / "node0.log").write_text("hello\n" * 10)
    with gzip.open(tmp_path / "node1.log.gz", "wt") as file:
        file.write("\n".join(run([1, 2], [1.0, 1.0])))
    inputs = find_log(tmp_path)
    assert inputs is not None
    assert load_log(inputs, name="logs", report=say_nothing).iteration.tolist() == [1, 2]


def test_recognised_by_its_end(tmp_path: Path) -> None:
    """A log with more than 64 KiB of warnings before the first iteration is known by its end; other text is not."""
    path = tmp_path / "train.log"
    path.write_text("warning\n" * 20_000 + "\n".join(run([1], [1.0])))
    assert find_log(path) is not None
    path.write_text("warning\n" * 20_000)
    assert find_log(path) is None
    assert find_log(tmp_path / "missing") is None


def test_has_no_operations(tmp_path: Path) -> None:
    """Where operations are needed, a log is refused with what can be done with it; so is one without iterations."""
    path = tmp_path / "train.log"
    path.write_text("\n".join(run([1], [1.0])))
    with pytest.raises(TraceError, match="diagnose TRACE --log LOG"):
        read(PRODUCER, path)
    path.write_text("nothing\n")
    with pytest.raises(
        TraceError, match="has no line that tells how long a step took; looked for those of Megatron-LM"
    ):
        load_log(list_input_files(path, name="x"), name="x", report=say_nothing)


def test_memory_is_bounded(tmp_path: Path) -> None:
    """A log of 200 MB, with a line of 50 MB in it, is read in less than 300 MB.

    VmHWM is that of the program alone: the ru_maxrss of a child begins with the memory of its parent.
    """
    path = tmp_path / "train.log"
    noise = "[rank 12]: a warning that nobody reads, and that fills the log from end to end\n" * 400
    with path.open("w") as file:
        for line in run(range(1, 5001), [1.0] * 5000):
            file.write(line + "\n" + noise)
        file.write("x" * 50_000_000 + "\n")
    program = (
        "import sys, pathlib\n"
        "from diagnose.trace.logs.load import load_log_beside\n"
        "log = load_log_beside(pathlib.Path(sys.argv[1]), report=lambda line: None)\n"
        "status = pathlib.Path('/proc/self/status').read_text()\n"
        "print(len(log.iteration), status.split('VmHWM:')[1].split()[0])\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    n_lines, peak_kb = map(int, done.stdout.split())
    assert n_lines == 5000
    assert peak_kb * 1024 < MAX_RSS_BYTES
