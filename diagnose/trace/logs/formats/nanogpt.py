"""The consoles of nanoGPT and of what descends from it.

Enters: lines. Leaves: steps, evaluations, saves.

* nanoGPT: `iter 120: loss 2.1234, time 123.45ms, mfu 30.12%`, every `log_interval` iterations with the time of the last one alone;
  an evaluation before it, `step 120: train loss 2.1, val loss 2.2`, is in that time. Source: karpathy/nanoGPT, train.py.
* llama2.c: `120 | loss 5.7543 | lr 4.900000e-05 | 8060.78ms | mfu 0.21%`, likewise. Source: karpathy/llama2.c, train.py.
* llm.c: `step   61/74 | loss 3.208939 (+nanz)| norm 1.4800 (+nanz)| lr 3.00e-04 | 44.57 ms | -100.0% bf16 MFU | 91886 tok/s`, every
  step. Source: karpathy/llm.c, train_gpt2.cu.
* build-nanogpt and the many that follow it: `step   120 | loss: 3.208939 | lr 3.0000e-04 | norm: 0.4000 | dt: 523.12ms | tok/sec:
  1002231.15`, every step; an evaluation, `validation loss: 3.2`, is in the time of the step behind it. Some print seconds. Source:
  karpathy/build-nanogpt, train_gpt2.py.
* modded-nanogpt: `step:125/1480 val_loss:4.3719 train_time:29736ms step_avg:258.57ms`; the time runs on over the run without
  evaluations. Source: KellerJordan/modded-nanogpt, train_gpt.py.
"""

import re
from collections.abc import Callable

import numpy as np

from diagnose.trace.logs.builder import LogBuilder
from diagnose.trace.logs.log_format import LineReader, LogFormat

MS = 1e-3
_MS = rb"(\d{1,12}(?:\.\d{1,9})?) ?ms"
_EVALUATION = re.compile(rb"^step (\d{1,12}): train loss ")
_VALIDATION = b"validation loss: "
_SAVING = b"saving checkpoint to "
_STEP = {
    "nanoGPT": re.compile(rb"\biter (\d{1,12}): loss [^,\s]{1,30}, time " + _MS),
    "llama2.c": re.compile(rb"(?:^|\s)(\d{1,12}) \| loss [^|]{1,30}\| lr [^|]{1,30}\| " + _MS),
    "llm.c": re.compile(rb"\bstep\s{1,12}(\d{1,12})/\s{0,12}(\d{1,12}) \|(?:[^|]{1,60}\|){1,6}? " + _MS + rb" \|"),
    "build-nanogpt": re.compile(
        rb"\bstep:?\s{1,12}(\d{1,12}) \|(?:[^|]{1,60}\|){1,6}? dt: (\d{1,12}(?:\.\d{1,9})? ?m?s)\b"
    ),
    "modded-nanogpt": re.compile(rb"\bstep:(\d{1,12})/(\d{1,12}) (?:[a-z_]{1,40}:\S{1,30} ){0,6}?train_time:" + _MS),
}
#: Whole lines as they are printed; none has a colon behind its number, and so no date.
_ROW = {
    "nanoGPT": rb"iter (\d{1,12}): loss [^,:\s]{1,30}, time " + _MS + rb"[^:\n]{0,200}",
    "llama2.c": rb"(\d{1,12}) \| loss [^|:\n]{1,30}\| lr [^|:\n]{1,30}\| " + _MS + rb"[^:\n]{0,200}",
    "llm.c": rb"step {1,12}(\d{1,12})/(\d{1,12}) \|(?:[^|:\n]{1,60}\|){1,6}? " + _MS + rb" \|[^:\n]{1,80} tok/s",
}


class _Reader:
    def __init__(self, log: LogBuilder, step: re.Pattern[bytes], *, runs_on: bool) -> None:
        self.log, self.step, self.runs_on = log, step, runs_on

    def take(self, line: bytes) -> bool:
        """Take one line."""
        said = self.step.search(line)
        if said is not None:
            iteration, *total, time = said.groups()
            if total:
                self.log.total = int(total[0])
            if not self.runs_on:
                self.log.add_step(int(iteration), float(time) * MS)
            elif not self.log.n_steps or int(iteration) != self.log.last:  # the loss of its evaluation has a line, too
                self.log.add_step(int(iteration), elapsed_s=float(time) * MS)
        elif said := _EVALUATION.search(line):
            self.log.add_event("evaluation", iteration=int(said[1]), text=line)
        elif _SAVING in line:
            self.log.add_event("save", text=line)
        return False


class _BuildReader:
    """Reads the lines of build-nanogpt."""

    def __init__(self, log: LogBuilder) -> None:
        self.log = log

    def take(self, line: bytes) -> bool:
        """Take one line."""
        if said := _STEP["build-nanogpt"].search(line):
            time = said[2].removesuffix(b"s")
            self.log.add_step(int(said[1]), float(time.removesuffix(b"m")) * (MS if time.endswith(b"m") else 1.0))
        elif line.startswith(_VALIDATION):
            self.log.add_event("evaluation", iteration=self.log.last + 1, text=line)
        return False


class _RowReader(_Reader):
    """Reads lines at once, too; a `RowReader`."""

    def __init__(self, log: LogBuilder, title: str) -> None:
        super().__init__(log, _STEP[title], runs_on=False)
        self.row = _ROW[title]

    def take_rows(self, rows: list[tuple[bytes, ...]]) -> bool:
        """Take the groups of lines below each other."""
        iteration, *total, time = zip(*rows, strict=True)
        if total:
            self.log.total = int(total[0][-1])
        self.log.add_steps(np.array(list(map(int, iteration))), np.array(list(map(float, time))) * MS)
        return True


def _reader(title: str) -> Callable[[LogBuilder], LineReader]:
    """Make the maker of the readers of one of the consoles."""
    return lambda log: _RowReader(log, title) if title in _ROW else _Reader(log, _STEP[title], runs_on=True)


_MARKS = (b": train loss ", _SAVING)
FORMATS = (
    LogFormat(
        name="nanogpt",
        title="nanoGPT",
        reads="time (ms) of the logged iteration",
        example="iter N: loss .., time ..ms, mfu ..%",
        step_marks=(b", time ",),
        marks=_MARKS,
        reader=_reader("nanoGPT"),
    ),
    LogFormat(
        name="llama2.c",
        title="llama2.c",
        reads="milliseconds of the logged iteration",
        example="N | loss .. | lr .. | ..ms | mfu ..%",
        step_marks=(b" | loss ",),
        marks=_MARKS,
        reader=_reader("llama2.c"),
    ),
    LogFormat(
        name="llm.c",
        title="llm.c",
        reads="milliseconds of each step",
        example="step N/M | loss .. | norm .. | lr .. | .. ms | ..% bf16 MFU | .. tok/s",
        step_marks=(b" tok/s",),
        reader=_reader("llm.c"),
    ),
    LogFormat(
        name="build-nanogpt",
        title="build-nanogpt",
        reads="dt of each step",
        example="step N | loss: .. | lr .. | norm: .. | dt: ..ms | tok/sec: ..",
        step_marks=(b" | dt: ",),
        marks=(_VALIDATION,),
        reader=_BuildReader,
    ),
    LogFormat(
        name="modded-nanogpt",
        title="modded-nanogpt",
        reads="train_time (ms), from line to line",
        example="step:N/M train_loss:.. train_time:..ms step_avg:..ms",
        is_mean=True,
        step_marks=(b" train_time:",),
        reader=_reader("modded-nanogpt"),
    ),
)
