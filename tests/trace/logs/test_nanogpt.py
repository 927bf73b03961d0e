"""nanoGPT: a run comes back as it was written."""

from pathlib import Path

import numpy as np

from diagnose.trace.find_log import find_log
from diagnose.trace.logs.load import load_log
from tests.logs.runs import steady_run
from tests.logs.writers import nanogpt
from tests.trace.producers.recordings import say_nothing


def test_a_run_comes_back(tmp_path: Path) -> None:
    """Iterations and step times are those of the run, to the hundredth of a millisecond that the console has."""
    path = tmp_path / "train.log"
    run = steady_run(200, 0.5, interval=10)
    path.write_bytes(nanogpt.write(run))
    inputs = find_log(path)
    assert inputs is not None
    log = load_log(inputs, name="x", report=say_nothing)
    logged = run.iteration % 10 == 0
    assert (log.format, log.is_mean) == ("nanoGPT", False)
    assert log.iteration.tolist() == run.iteration[logged].tolist()
    assert np.allclose(log.step_s, run.step_s[logged], atol=6e-6)
