"""The consoles of NeMo: Lightning's progress bar, or a line a step.

Enters: lines. Leaves: steps, evaluations, saves.

* `Epoch 0: :   1%|1  | 57/4900 [10:58<15:32:28, v_num=, reduced_train_loss=6.830, global_step=56.00, consumed_samples=7296.0,
  train_step_timing in s=11.30]`, with three digits or four; the counter of the bar is exact, `global_step=2e+3` is not.
* `Training epoch 0, iteration 120/149 | lr: 3e-05 | global_batch_size: 8 | global_step: 120 | .. | train_step_timing in s: 0.0315`.

The time may be the mean of some steps (`buffer_size` of the timer). Sources: NVIDIA/NeMo, nemo/utils/callbacks and
nemo/lightning/pytorch/callbacks/progress_printer.py, nemo/utils/exp_manager.py (`TimingCallback`).
"""

import re

from diagnose.trace.logs.builder import LogBuilder
from diagnose.trace.logs.log_format import LogFormat

_TIME = re.compile(rb"train_step_timing in s(?:=|: )(\d{1,9}(?:\.\d{1,9})?(?:e[+-]?\d{1,3})?)")
_BAR = re.compile(rb"\bEpoch (\d{1,9}):.{0,300}?\| (\d{1,12})/(\d{1,12}|\?) \[")
_STEP = re.compile(rb"\bglobal_step: (\d{1,12})\b")
_BATCH = re.compile(rb"\bglobal_batch_size: (\d{1,9})\b")
_SAVE = re.compile(rb"\bglobal step (\d{1,12}): .{0,300}?\bsaving model to ")


class _Reader:
    def __init__(self, log: LogBuilder) -> None:
        self.log = log

    def take(self, line: bytes) -> bool:
        """Take one line."""
        if time := _TIME.search(line):
            self._add_step(line, float(time[1]))
        if said := _SAVE.search(line):
            self.log.add_event("save", iteration=int(said[1]), text=line)
        elif b"Validation DataLoader" in line:
            self.log.add_event("evaluation", text=line)
        return False

    def _add_step(self, line: bytes, step_s: float) -> None:
        """Add a step by its number in the run: `global_step` of a line, the counter of the epoch and those before of a bar."""
        if said := _STEP.search(line):
            batch = _BATCH.search(line)
            self.log.add_step(int(said[1]), step_s, batch_size=int(batch[1]) if batch else 0)
        elif said := _BAR.search(line):
            a_epoch = int(said[3]) if said[3].isdigit() else 0
            self.log.add_step(int(said[1]) * a_epoch + int(said[2]), step_s)


FORMAT = LogFormat(
    name="nemo",
    title="NeMo",
    reads="train_step_timing in s",
    example="Training epoch E, iteration N/M | .. | global_step: N | .. | train_step_timing in s: ..",
    step_marks=(b"train_step_timing in s",),
    marks=(b"saving model to ", b"Validation DataLoader"),
    reader=_Reader,
)
