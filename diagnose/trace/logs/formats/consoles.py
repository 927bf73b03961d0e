"""Consoles that tell a step in one line: a table of what the line looks like.

Enters: lines. Leaves: steps, time in the loader, evaluations, saves.

A pattern names what it finds, also twice, as `s` and `s2`. The number of the step is `step`, of `total`; where an epoch has steps
of its own it is one of `length`, in `epoch`. Its time is `s`, `ms` or `us`; or `since_s`, what passed since the line before; or
`per_s`, steps a second; or a reading of a clock that runs on, `clock_s` or `clock_ms`; or `mean_s`, the mean since the run began;
or, where it is none of these, told by the stamps of lines. Besides there are `data_s`, `tokens` and `batch`. `work_per_s` is a rate
of tokens alone, of which a step has nobody knows how many. Numbers may be as nanotron writes them: 11.5K.

Sources: AI-Hypercomputer/maxtext, src/MaxText/metric_logger.py; karpathy/nanoGPT, train.py; karpathy/llama2.c, train.py;
karpathy/llm.c, train_gpt2.cu; karpathy/build-nanogpt, train_gpt2.py, and karpathy/nanochat, scripts/base_train.py;
KellerJordan/modded-nanogpt, train_gpt.py; Lightning-AI/litgpt, litgpt/pretrain.py; huggingface/nanotron, src/nanotron/trainer.py;
pytorch/torchtune, torchtune/training/metric_logging.py; open-mmlab/mmengine, runner/log_processor.py; facebookresearch/detectron2,
detectron2/utils/events.py, and facebookresearch/maskrcnn-benchmark, engine/trainer.py; facebookresearch/fairseq,
fairseq/logging/progress_bar.py; PaddlePaddle/PaddleNLP, paddlenlp/trainer/trainer_utils.py (`speed_metrics`);
mindspore-lab/mindformers, mindformers/core/callback/callback.py, and mindspore-lab/mindyolo, mindocr; tensorflow/models,
research/object_detection/model_lib_v2.py, and tensorflow/tensorflow, python/training/basic_session_run_hooks.py;
keras-team/keras, src/utils/progbar.py; flairNLP/flair, flair/trainers/plugins; facebookresearch/DiT, train.py;
facebookresearch/dlrm, dlrm_s_pytorch.py; Megvii-BaseDetection/YOLOX, yolox/core/trainer.py; PaddlePaddle/PaddleOCR, tools/
program.py; NVIDIA-NeMo/Automodel, recipes.
"""

import dataclasses
import math
import re
from array import array

import numpy as np

from diagnose.model.trace import Ints, Seconds
from diagnose.model.training_log import LogEventKind
from diagnose.trace.logs.builder import LogBuilder
from diagnose.trace.logs.log_format import LineReader, LogFormat

#: Seconds in each unit that a pattern names.
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
#: What stands behind a number that is cut to three digits.
_CUT = {b"K": 1e3, b"M": 1e6, b"G": 1e9, b"B": 1e9}
#: Tokens that seconds are told of where only a rate is.
NOMINAL = 1_000_000
_N = rb"(\d{1,12}(?:\.\d{1,20})?)"
_STEP, _TOTAL = rb"(?P<step>\d{1,12})", rb"(?P<total>\d{1,12})"


def _is(name: str, number: bytes = _N) -> bytes:
    """Give the pattern of a number that has a name."""
    return rb"(?P<" + name.encode() + rb">" + number[1:]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A line that tells of something else: a literal in it, and the number of its step, with `s` its seconds."""

    mark: bytes
    kind: LogEventKind
    at: bytes = rb"(?!)"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Console:
    """What the line of a step looks like; all but these five are as in `LogFormat`.

    Attributes
    ----------
    step : bytes
        A regular expression that finds a step anywhere in a line, by named groups; linear in the length of the line.
    row : bytes
        The same for whole lines as most are, as a `RowReader` has it; empty where lines are read one after the other.
    first_epoch : int
        What the first epoch is called.
    of : str
        What seconds are told of where only a rate is.
    events : tuple of Event
    """

    name: str
    title: str
    reads: str
    example: str
    marks: tuple[bytes, ...]
    step: bytes
    row: bytes = b""
    is_mean: bool = False
    first_epoch: int = 1
    of: str = ""
    events: tuple[Event, ...] = ()


class _Reader:
    def __init__(self, log: LogBuilder, console: Console) -> None:
        self.log, self.console = log, console
        log.of = console.of
        self.step = re.compile(console.step)
        self.events = [(event, re.compile(event.at)) for event in console.events]
        #: The epoch, where a line of its own tells it.
        self.epoch = console.first_epoch
        self.has_epochs = any(event.kind == "epoch" for event in console.events) or "epoch" in self.step.groupindex
        #: Readings of a clock, six numbers each: step, seconds, half of the last digit, stamp, tokens, seconds for data.
        self.readings = array("d")

    def take(self, line: bytes) -> bool:
        """Take one line."""
        if said := self.step.search(line):
            self._take_step({name.rstrip("2"): text for name, text in said.groupdict().items() if text})
            return False
        for event, at in self.events:
            if event.mark in line:
                self._take_event(event, at.search(line), line)
                break
        return False

    def _take_event(self, event: Event, said: re.Match[bytes] | None, line: bytes) -> None:
        """Take what is no step."""
        found = {} if said is None else said.groupdict()
        number = int(found["step"]) if found.get("step") else None
        if event.kind == "epoch":
            self.epoch = number or self.epoch
        else:
            self.log.add_event(event.kind, iteration=number, seconds=_number(found.get("s")), text=line)

    def _take_step(self, found: dict[str, bytes]) -> None:
        """Tell a step, or keep a reading until it is known how far apart readings must be."""
        number = self._number_of(found)
        tokens, data_s = _number(found.get("tokens")), _number(found.get("data_s"))
        clock = next((name for name in ("clock_s", "clock_ms", "mean_s") if name in found), None)
        if clock is not None:
            scale = {"clock_s": 1.0, "clock_ms": 1e-3, "mean_s": float(number)}[clock]
            half_digit = 0.5 * 10.0 ** -len(found[clock].partition(b".")[2])
            reading = (_number(found[clock]) * scale, half_digit * scale, self.log.find_stamp())
            self.log.seen = number
            self.readings.extend((number, *reading, tokens, data_s))
            return
        batch = _number(found.get("batch"))
        before = self.log.n_steps
        batch_size = 0 if math.isnan(batch) else int(batch)
        self.log.add_step(number, self._time(found, number), tokens=tokens, batch_size=batch_size)
        if self.log.n_steps > before:
            self.log.add_part("data", data_s)

    def _number_of(self, found: dict[str, bytes]) -> int:
        """Give the number of a step in the run."""
        number, length = int(found["step"]), int(found.get("length", b"0"))
        if length and self.has_epochs and ("epoch" in found or "epoch" not in self.step.groupindex):
            self.log.set_interval("epoch", length)
            return max(int(found.get("epoch", self.epoch)) - self.console.first_epoch, 0) * length + number
        self.log.total = length or int(found.get("total", b"0")) or self.log.total
        return number

    def _time(self, found: dict[str, bytes], number: int) -> float:
        """Give the seconds of a step; NaN where stamps are to tell."""
        for unit, scale in _SECONDS.items():
            if unit in found:
                return _number(found[unit]) * scale
        if "since_s" in found and number > self.log.last > 0:
            return _number(found["since_s"]) / (number - self.log.last)
        for rate, amount in (("per_s", 1.0), ("work_per_s", float(NOMINAL))):
            if rate in found and _number(found[rate]) > 0:
                return amount / _number(found[rate])
        return math.nan

    def end(self) -> None:
        """Tell what passed between readings."""
        if not self.readings:
            return
        numbers, clock_s, error_s, stamp_s, tokens, data_s = np.array(self.readings).reshape(-1, 6).T
        # An evaluation has the step and the clock of the line before it.
        new = np.flatnonzero(np.diff(numbers, prepend=-1) != 0)
        number = numbers.astype(np.int64)
        ends = np.flatnonzero((np.diff(number[new]) < 0) | (np.diff(clock_s[new]) < 0)) + 1
        for n, lap in enumerate(np.split(new, ends)):
            if n:
                self.log.begin()
            self._add_first(number[lap], clock_s[lap])
            for a, b, step_s in self.log.read_clock(number[lap], clock_s[lap], error_s[lap]):
                within = lap[a + 1 : b + 1]
                self.log.add_step(
                    int(number[lap[b]]), step_s, tokens=float(tokens[within].mean()), stamp_s=stamp_s[lap[b]]
                )
                self.log.add_part("data", float(data_s[within].mean()))

    def _add_first(self, number: Ints, clock_s: Seconds) -> None:
        """Add what passed until the first reading, where the run began with it, or where nothing else is known."""
        since_begin = b"<mean_s" in self.console.step
        if since_begin and number[0] > 0 and (len(number) == 1 or number[0] <= number[1] - number[0]):
            self.log.add_step(int(number[0]), float(clock_s[0] / number[0]), stamp_s=math.nan, n_steps=int(number[0]))


class _RowReader(_Reader):
    """Reads lines at once, too; a `RowReader`."""

    def __init__(self, log: LogBuilder, console: Console) -> None:
        super().__init__(log, console)
        self.row = console.row
        self.names = list(re.compile(console.row).groupindex)

    def take_rows(self, rows: list[tuple[bytes, ...]]) -> bool:
        """Take the groups of lines below each other: the number of a step, its total where there is one, and its milliseconds."""
        found = dict(zip(self.names, zip(*rows, strict=True), strict=True))
        self.log.total = int(found["total"][-1]) if "total" in found else self.log.total
        self.log.add_steps(np.array(list(map(int, found["step"]))), np.array(list(map(float, found["ms"]))) * 1e-3)
        return True


def _number(text: bytes | None) -> float:
    """Read a number, cut to three digits or not; NaN where there is none."""
    if not text:
        return math.nan
    return float(text[:-1]) * _CUT[text[-1:]] if text[-1:] in _CUT else float(text)


def _make_format(console: Console) -> LogFormat:
    """Make the format of a console."""

    def make_reader(log: LogBuilder) -> LineReader:
        return _RowReader(log, console) if console.row else _Reader(log, console)

    return LogFormat(
        name=console.name,
        title=console.title,
        reads=console.reads,
        example=console.example,
        step_marks=console.marks,
        marks=tuple(event.mark for event in console.events),
        reader=make_reader,
        is_mean=console.is_mean,
    )


_NANOGPT_EVENTS = (
    Event(mark=b": train loss ", kind="evaluation", at=rb"(?:^|\s)step " + _STEP + rb": train loss "),
    Event(mark=b"saving checkpoint to ", kind="save"),
)
CONSOLES = (
    Console(
        name="maxtext",
        title="MaxText",
        reads="seconds of each step",
        example="completed step: N, seconds: .., TFLOP/s/device: .., Tokens/s/device: ..",
        marks=(b"completed step: ",),
        step=rb"completed step: " + _STEP + rb", seconds: " + _is("s"),
        events=(
            Event(mark=b"Completed eval after train step", kind="evaluation", at=rb"\bstep " + _STEP),
            Event(mark=b"aved a checkpoint at step", kind="save", at=rb"\bstep " + _STEP),
        ),
    ),
    # The time is that of the printed iteration, with the evaluation before it.
    Console(
        name="nanogpt",
        title="nanoGPT",
        reads="time (ms) of the logged iteration",
        example="iter N: loss .., time ..ms, mfu ..%",
        marks=(b", time ",),
        step=rb"\biter " + _STEP + rb": loss [^,\s]{1,30}, time " + _is("ms") + rb" ?ms",
        row=rb"iter " + _STEP + rb": loss [^,:\s]{1,30}, time " + _is("ms") + rb" ?ms[^:\n]{0,200}",
        events=_NANOGPT_EVENTS,
    ),
    Console(
        name="llama2.c",
        title="llama2.c",
        reads="milliseconds of the logged iteration",
        example="N | loss .. | lr .. | ..ms | mfu ..%",
        marks=(b" | loss ",),
        step=rb"(?:^|\s)" + _STEP + rb" \| loss [^|]{1,30}\| lr [^|]{1,30}\| " + _is("ms") + rb" ?ms",
        row=_STEP + rb" \| loss [^|:\n]{1,30}\| lr [^|:\n]{1,30}\| " + _is("ms") + rb" ?ms[^:\n]{0,200}",
        events=_NANOGPT_EVENTS,
    ),
    Console(
        name="llm.c",
        title="llm.c",
        reads="milliseconds of each step",
        example="step N/M | loss .. | norm .. | lr .. | .. ms | ..% bf16 MFU | .. tok/s",
        marks=(b" tok/s",),
        step=rb"\bstep\s{1,12}"
        + _STEP
        + rb"/\s{0,12}"
        + _TOTAL
        + rb" \|(?:[^|]{1,60}\|){1,6}? "
        + _is("ms")
        + rb" ?ms \|",
        row=rb"step {1,12}"
        + _STEP
        + rb"/"
        + _TOTAL
        + rb" \|(?:[^|:\n]{1,60}\|){1,6}? "
        + _is("ms")
        + rb" ?ms \|[^:\n]{1,80} tok/s",
    ),
    Console(
        name="build-nanogpt",
        title="build-nanogpt",
        reads="dt of each step",
        example="step N | loss: .. | lr .. | norm: .. | dt: ..ms | tok/sec: ..",
        marks=(b" dt: ",),
        step=rb"(?:\b[Ss]tep:? {0,12}|^ {0,8})"
        + _STEP
        + rb"(?:/"
        + _TOTAL
        + rb")?(?: \(\d{1,3}(?:\.\d{1,9})?%\))? {0,4}[|,] "
        rb"[^\n]{1,300}?\bdt: (?:" + _is("ms") + rb" ?ms|" + _is("s") + rb" ?s)\b",
        events=(Event(mark=b"validation loss: ", kind="evaluation"),),
    ),
    # The time runs on over the run, without evaluations; the loss of one has a line, too.
    Console(
        name="modded-nanogpt",
        title="modded-nanogpt",
        reads="train_time (ms), from line to line",
        example="step:N/M train_loss:.. train_time:..ms step_avg:..ms",
        is_mean=True,
        marks=(b" train_time:",),
        step=rb"\bstep:"
        + _STEP
        + rb"/"
        + _TOTAL
        + rb" (?:[a-z_]{1,40}:\S{1,30} ){0,6}?train_time:"
        + _is("clock_ms")
        + rb"ms",
    ),
    Console(
        name="litgpt",
        title="LitGPT",
        reads="iter time",
        example="Epoch 1 | iter N step M | loss train: .. | iter time: .. ms",
        marks=(b"iter time: ",),
        step=rb"\biter " + _STEP + rb" step \d{1,12}[^\n]{1,200}?\biter time: " + _is("ms") + rb" ?ms",
    ),
    Console(
        name="nanotron",
        title="nanotron",
        reads="elapsed_time_per_iteration_ms, of three digits",
        example="iteration: N / M | .. elapsed_time_per_iteration_ms: 11.5K | ..",
        is_mean=True,
        marks=(b"elapsed_time_per_iteration_ms: ",),
        step=rb"\biteration: "
        + _STEP
        + rb" / "
        + _TOTAL
        + rb" \|[^\n]{1,200}?elapsed_time_per_iteration_ms: "
        + _is("ms", rb"(\d{1,12}(?:\.\d{1,20})?[KMG]?)")
        + rb"(?:[^\n]{1,200}?\bglobal_batch_size: (?P<batch>\d{1,9})\b)?",
    ),
    # The rate of the logged step alone; how many tokens that has is nowhere, and it varies. Its bar is in progress_bars.py.
    Console(
        name="torchtune-metrics",
        title="torchtune",
        reads="tokens_per_second_per_gpu: how many tokens a step has is not stated",
        example="Step 12 | loss:.. lr:.. tokens_per_second_per_gpu:..",
        of="1,000,000 tokens of a GPU",
        marks=(b"tokens_per_second_per_gpu:",),
        step=rb"\bStep " + _STEP + rb" \| [^\n]{0,400}?tokens_per_second_per_gpu:" + _is("work_per_s"),
    ),
    Console(
        name="openmmlab",
        title="OpenMMLab (MMEngine)",
        reads="time, data_time",
        example="Epoch(train) [1][  50/2500]  ..  time: 1.09  data_time: 0.015",
        is_mean=True,
        marks=(b"(train)", b" eta: ", b"data_time: "),
        step=rb"(?:Epoch ?(?:\(train\))? {1,3}\[(?P<epoch>\d{1,9})\]|Iter ?(?:\(train\))?) ?\[ {0,9}"
        + _STEP
        + rb"/(?P<length>\d{1,12})\][^\n]{0,400}?\btime: "
        + _is("s")
        + rb"(?:,? {1,4}data_time: "
        + _is("data_s")
        + rb")?",
    ),
    Console(
        name="yolox",
        title="YOLOX",
        reads="iter_time, data_time",
        example="epoch: 48/300, iter: 5890/7393, mem: .., iter_time: 0.571s, data_time: 0.002s, ..",
        is_mean=True,
        marks=(b"iter_time: ",),
        step=rb"\bepoch: (?P<epoch>\d{1,9})/\d{1,9}, iter: "
        + _STEP
        + rb"/(?P<length>\d{1,12}), [^\n]{0,100}?\biter_time: "
        + _is("s")
        + rb"s, data_time: "
        + _is("data_s"),
    ),
    # The time is the mean since the run began, in brackets where the one before it is of the last lines.
    Console(
        name="detectron2",
        title="Detectron2",
        reads="time, a mean since the run began, taken apart",
        example="eta: ..  iter: N  total_loss: ..  time: 0.3322  data_time: 0.0334  lr: ..",
        is_mean=True,
        marks=(b"  iter: ",),
        step=rb"  iter: "
        + _STEP
        + rb" [^\n]{1,2000}? time: (?:[\d.]{1,20} \("
        + _is("mean_s")
        + rb"\)|"
        + _is("mean_s2")
        + rb")(?:  last_time: [\d.]{1,20})?  data(?:_time)?: "
        + _is("data_s"),
        events=(
            Event(mark=b"Start inference on ", kind="evaluation"),
            Event(mark=b"Saving checkpoint to ", kind="save", at=rb"model_0{0,12}" + _STEP + rb"\.pth"),
        ),
    ),
    Console(
        name="fairseq",
        title="fairseq",
        reads="wall, from line to line",
        example="train_inner | epoch 001: 2800 / 160368 loss=.., wps=.., ups=.., wpb=.., num_updates=2800, .. wall=1236",
        is_mean=True,
        marks=(b"num_updates",),
        step=rb"(?:\bwpb\"?[=:] ?\"?"
        + _is("tokens")
        + rb"[^\n]{1,200}?)?\bnum_updates\"?[=:] ?\"?"
        + _STEP
        + rb"\b[^\n]{1,300}?[ \"]wall\"?[=:] ?\"?(?P<clock_s>\d{1,9})\b",
        events=(
            Event(mark=b"valid on 'valid' subset", kind="evaluation", at=rb"\bnum_updates " + _STEP),
            Event(
                mark=b"aved checkpoint ",
                kind="save",
                at=rb" @ " + _STEP + rb" updates[^\n]{0,200}?\(writing took " + _is("s") + rb" seconds",
            ),
        ),
    ),
    Console(
        name="paddlenlp",
        title="PaddleNLP",
        reads="interval_runtime",
        example="loss: .., global_step: 10, interval_runtime: 2.2591, .. interval_steps_per_second: 4.427",
        is_mean=True,
        marks=(b"interval_runtime: ",),
        step=rb"\bglobal_step: "
        + _STEP
        + rb", [^\n]{0,400}?\binterval_runtime: "
        + _is("since_s")
        + rb"[^\n]{0,400}?\binterval_steps_per_second: "
        + _is("per_s"),
    ),
    # Of PaddleOCR, PaddleDetection, PaddleSeg and PaddleClas, and of what follows them.
    Console(
        name="paddle",
        title="Paddle",
        reads="batch_cost, reader_cost",
        example="epoch: [3/500], global_step: 500, .. avg_reader_cost: 1.81 s, avg_batch_cost: 2.04 s, ..",
        is_mean=True,
        marks=(b"batch_cost: ",),
        step=rb"(?:\bepoch: \[?\d{1,9}(?:/\d{1,9}\])?, (?:global_step|iter): "
        + _STEP
        + rb"(?:/"
        + _TOTAL
        + rb")?, |\bEpoch:? \[?(?P<epoch>\d{1,9})(?:/\d{1,9})?\] ?\[(?:Iter: )? {0,9}"
        + _is("step2", rb"(\d{1,12})")
        + rb"/(?P<length>\d{1,12})\])(?=[^\n]{0,1000}?(?<![a-z])batch_cost: "
        + _is("s")
        + rb")(?:[^\n]{0,1000}?(?<![a-z])(?:reader|data)_cost: "
        + _is("data_s")
        + rb")?",
    ),
    Console(
        name="automodel",
        title="NeMo Automodel",
        reads="stamps of the lines",
        example="2026-08-10 15:48:59 | INFO | root | step 13 | epoch 0 | loss .. | tps 6574.51(821.81/gpu) | ..",
        is_mean=True,
        marks=(b" | tps ",),
        step=rb"\bstep " + _STEP + rb" \| epoch \d{1,9} \| loss ",
    ),
    Console(
        name="mindspore",
        title="MindFormers, MindYOLO, MindOCR",
        reads="per_step_time",
        example="Epoch:[  1/  2], step:[   10/   19], loss: .., per_step_time: 1752ms, ..",
        is_mean=True,
        marks=(b"step_time: ", b"step time: "),
        step=rb"(?:\b[Ee]poch:? ?\[? {0,9}(?P<epoch>\d{1,9})/ {0,9}\d{1,9}\]?,? )?\b[Ss]tep:? ?\[? {0,9}"
        + _STEP
        + rb"/ {0,9}(?P<length>\d{1,12})\]?, [^\n]{0,300}?(?<![a-z])step[_ ]time: {1,9}"
        + _is("ms")
        + rb" ?ms",
    ),
    Console(
        name="tensorflow",
        title="TensorFlow",
        reads="seconds of a step",
        example="global step 7: loss = 59.8181 (16.456 sec/step)",
        marks=(b" sec/step)", b" sec/batch)", b" per-step time "),
        step=rb"\b[Ss]tep "
        + _STEP
        + rb"(?:[:,] loss = \S{1,30} \((?:[\d.]{1,20} examples/sec; {1,3})?"
        + _is("s")
        + rb" {1,2}sec/(?:step|batch)\)| per-step time "
        + _is("s2")
        + rb"s)",
    ),
    Console(
        name="tensorflow-estimator",
        title="TensorFlow's Estimator",
        reads="seconds since the line before",
        example="loss = 0.3523, step = 40 (0.875 sec)",
        is_mean=True,
        marks=(b", step = ",),
        step=rb", step = " + _STEP + rb"[^\n]{0,200}? \(" + _is("since_s") + rb" sec\)",
    ),
    Console(
        name="keras",
        title="Keras",
        reads="the mean of each epoch",
        example="1875/1875 [====] - 5s 3ms/step - loss: ..",
        is_mean=True,
        marks=(b"s/step",),
        step=_STEP
        + rb"/(?P<length>(?P=step)) [^\n]{0,400}?(?<![\d.])(?:"
        + _is("ms")
        + rb"ms|"
        + _is("us")
        + rb"us|"
        + _is("s")
        + rb"s)/step",
        events=(Event(mark=b"Epoch ", kind="epoch", at=rb"^Epoch (?P<step>\d{1,9})/\d{1,9}\b"),),
    ),
    Console(
        name="flair",
        title="Flair",
        reads="stamps of the lines",
        example="2021-02-22 08:40:43,913 epoch 1 - iter 21/219 - loss .. - samples/sec: 19.11",
        is_mean=True,
        marks=(b" - iter ",),
        step=rb"\bepoch (?P<epoch>\d{1,9}) - iter " + _STEP + rb"/(?P<length>\d{1,12}) - ",
    ),
    Console(
        name="dit",
        title="DiT and what follows it",
        reads="Train Steps/Sec",
        example="(step=0000100) Train Loss: .., Train Steps/Sec: 1.23",
        is_mean=True,
        marks=(b"Steps/Sec: ",),
        step=rb"\(step=" + _STEP + rb"\) [^\n]{0,200}?\bSteps/Sec: " + _is("per_s"),
    ),
    Console(
        name="dlrm",
        title="DLRM",
        reads="ms/it",
        example="Finished training it 144/150 of epoch 0, 459.49 ms/it, loss ..",
        is_mean=True,
        first_epoch=0,
        marks=(b" ms/it, ",),
        step=rb"training it "
        + _STEP
        + rb"/(?P<length>\d{1,12}) of epoch (?P<epoch>\d{1,9}), "
        + _is("ms")
        + rb" ms/it",
    ),
)
FORMATS = tuple(_make_format(console) for console in CONSOLES)
