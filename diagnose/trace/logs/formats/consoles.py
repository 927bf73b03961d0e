"""Consoles that tell a step in one line: a table of what the line looks like.

Enters: lines. Leaves: steps, time in the loader, evaluations, saves.

A pattern names what it finds, also twice, as `s` and `s2`. The number of the step is `step`, of `total`; where an epoch has steps
of its own it is one of `length`, in `epoch`. Its time is `s`, `ms` or `us`; or `since_s`, what passed since the line before; or
`epoch_s`, what the epoch took that it ends; or `per_s`, steps a second; or a reading of a clock that runs on, `clock_s` or
`clock_ms`; or `mean_s`, the mean since the run was started; or `lap_s`, that since the epoch began, or `lap_rate` and `tokens` for
it; or, where it is none of these, told by the stamps of lines. Besides there are `data_s`, `tokens` and `batch`. `work_per_s` is a
rate of tokens alone, of which a step has nobody knows how many. Numbers may be as nanotron writes them: 11.5K. Where a pattern has
only `<name>`, the number may be any that is usual for it.

Sources: AI-Hypercomputer/maxtext, src/MaxText/metric_logger.py; karpathy/nanoGPT, train.py; karpathy/llama2.c, train.py;
karpathy/llm.c, train_gpt2.cu; karpathy/build-nanogpt, train_gpt2.py, and karpathy/nanochat, scripts/base_train.py;
KellerJordan/modded-nanogpt, train_gpt.py; Lightning-AI/litgpt, litgpt/pretrain.py; huggingface/nanotron, src/nanotron/trainer.py;
pytorch/torchtune, torchtune/training/metric_logging.py; open-mmlab/mmcv, runner/hooks/logger/text.py (1.x);
facebookresearch/detectron2, detectron2/utils/events.py and engine/hooks.py (`IterationTimer`), and
facebookresearch/maskrcnn-benchmark, engine/trainer.py; facebookresearch/fairseq, fairseq/logging/progress_bar.py;
PaddlePaddle/PaddleNLP, paddlenlp/trainer/trainer_utils.py (`speed_metrics`); mindspore-lab/mindformers,
mindformers/core/callback/callback.py, and mindspore-lab/mindyolo, mindocr; tensorflow/models,
research/object_detection/model_lib_v2.py, and tensorflow/tensorflow, python/training/basic_session_run_hooks.py; keras-team/keras,
src/utils/progbar.py; flairNLP/flair, flair/trainers/plugins; facebookresearch/DiT, train.py; facebookresearch/dlrm,
dlrm_s_pytorch.py; Megvii-BaseDetection/YOLOX, yolox/core/trainer.py; PaddlePaddle/PaddleOCR, tools/ program.py;
NVIDIA-NeMo/Automodel, recipes; k2-fsa/icefall, egs/*/ASR/*/train.py, and k2-fsa/snowfall; espnet/espnet, espnet2/train/reporter.py;
NifTK/NiftyNet, niftynet/engine/handler_console.py; MIC-DKFZ/nnUNet, nnunetv2/training/nnUNetTrainer/nnUNetTrainer.py;
HRNet/HRNet-Semantic-Segmentation, lib/core/function.py, which PIDNet and DDRNet share; hangzhaomit/Sound-of-Pixels, main.py;
pjreddie/darknet, examples/detector.c, and AlexeyAB/darknet; deepmodeling/deepmd-kit, deepmd/loggers/training.py; apache/mxnet,
python/mxnet/callback.py (`Speedometer`); wenet-e2e/wenet, wenet/utils/executor.py;
lightly-ai/lightly-train, the task's train loop.
"""

import dataclasses
import functools
import math
import re
from array import array
from typing import Literal

import numpy as np

from diagnose.model.training_log import LogEventKind
from diagnose.trace.logs.builder import HALF_MS, HALF_SECOND, NOMINAL, LogBuilder, is_whole
from diagnose.trace.logs.log_format import LogFormat
from diagnose.trace.logs.stamps import HEAD_BYTES, find_stamp

#: Seconds in each unit that a pattern names.
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
#: What stands behind a number that is cut to three digits.
_CUT = {b"K": 1e3, b"M": 1e6, b"G": 1e9, b"B": 1e9}
#: Numbers that have no fraction.
_WHOLE = ("step", "total", "epoch", "length", "batch")
#: Readings of clocks, and means since something began, with the seconds in each.
_CLOCKS = {"clock_s": 1.0, "clock_ms": 1e-3, "mean_s": 1.0, "lap_s": 1.0, "lap_rate": 1.0}
#: The usual digits of numbers; those of all others may have a fraction.
_DIGITS = {
    b"step": rb"\d{1,12}",
    b"total": rb"\d{1,12}",
    b"length": rb"\d{1,12}",
    b"epoch": rb"\d{1,9}",
    b"batch": rb"\d{1,9}",
}
_FRACTION = rb"\d{1,12}(?:\.\d{1,20})?"


def compile_pattern(pattern: bytes) -> re.Pattern[bytes]:
    """Compile a pattern in which `<name>` stands for a number of this name."""

    def name_group(said: re.Match[bytes]) -> bytes:
        return b"(?P<%b>%b)" % (said[1], _DIGITS.get(said[1].removesuffix(b"2"), _FRACTION))

    return re.compile(re.sub(rb"(?<!P)<(\w+)>", name_group, pattern))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A line that tells of something else: a literal in it, and the number of its step, with `s` or `ms` its time."""

    mark: bytes
    kind: LogEventKind | Literal["start"]
    at: bytes = rb"(?!)"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Console:
    """What the line of a step looks like; all but these are as in `LogFormat`."""

    name: str
    title: str
    reads: str
    example: str
    marks: tuple[bytes, ...]
    #: A regular expression that finds a step anywhere in a line, by named groups; linear in the length of the line.
    step: bytes
    is_mean: bool = False
    #: What the first epoch is called, where the log does not show it.
    first_epoch: int = 1
    #: Steps of an epoch, where lines of epochs alone are printed and do not say it.
    length: int = 0
    #: Steps at the begin of an epoch, or of a run, that a mean leaves out once there are more; of `mean_s` it never has them.
    warm_up: int = 0
    #: What seconds are told of where only a rate is.
    of: str = ""
    events: tuple[Event, ...] = ()


class _Reader:
    """Reads the lines of a console, one by one or, as the last one was, many at once; a `RowReader`."""

    def __init__(self, log: LogBuilder, console: Console) -> None:
        self.log, self.console = log, console
        log.of = console.of
        self.step = compile_pattern(console.step)
        self.events = [(event, compile_pattern(event.at)) for event in console.events]
        #: What the first epoch and its first step are called; the epoch, where a line of its own tells it.
        self.first_epoch, self.first_step, self.epoch = console.first_epoch, 1, -1 if console.length else 1
        self.has_epochs = any(event.kind == "epoch" for event in console.events) or "epoch" in self.step.groupindex
        #: Steps before each epoch, where no line says how long epochs are; the last step, in the run and in its epoch, and from
        #: where it was printed.
        self.begins: dict[int, int] = {}
        self.last = (0, 0, 0)
        #: How often a line said that training starts, and after which step; NaN where it does not say.
        self.starts, self.began = 0, 0.0
        #: Readings of a clock, eight numbers each: step, start, steps since it, seconds, half of their last digit, stamp, seconds
        #: for data, tokens.
        self.readings = array("d")
        #: The parts that times are wrong by at most, where whole seconds tell them.
        self.rounded = array("d")
        #: The last line of a step, until it is learned from; what it looks like, and the names of the groups of that.
        self.example: re.Match[bytes] | None = None
        self.learned: bytes = b""
        self.names: tuple[str, ...] = ()

    def take(self, line: bytes) -> bool:
        """Take one line."""
        if said := self.step.search(line):
            found = {name.rstrip("2"): text for name, text in said.groupdict().items() if text}
            self.example = said
            if length := self.console.length:
                found |= dict.fromkeys(("step", "length"), b"%d" % length)
            if self.epoch >= 0:
                self._take_step(found)
            return False
        for event, at in self.events:
            if event.mark in line:
                self._take_event(event, at.search(line), line)
                break
        return False

    @property
    def row(self) -> bytes:
        """What lines of steps look like as the last one did; empty where that cannot be told."""
        if self.example is not None:
            self.learned, self.names = _learn_row(self.example)
            self.example = None
        return self.learned

    def take_rows(self, rows: list[tuple[bytes, ...]]) -> bool:
        """Take the groups of lines below each other: columns of numbers where no epochs are counted, else one by one."""
        if self.epoch < 0 or self.console.length:
            return False
        if not _COLUMNS.issuperset(self.names) or self.has_epochs:
            for texts in rows:
                found: dict[str, bytes] = dict(zip(self.names, texts, strict=True))
                self.log.line = self.log.around = found.pop("stamp", b"")
                self._take_step(found)
            return True
        found_at = dict(zip(self.names, zip(*rows, strict=True), strict=True))
        unit = next((unit for unit in _SECONDS if unit in found_at), None)
        if unit is None:
            return False
        self.log.total = int(found_at["total"][-1]) if "total" in found_at else self.log.total
        told = {name: np.array(list(map(float, found_at[name]))) for name in ("tokens", "data_s") if name in found_at}
        before = self.log.n_steps
        kept = self.log.add_steps(
            np.array(list(map(int, found_at["step"]))),
            np.array(list(map(float, found_at[unit]))) * _SECONDS[unit],
            batch_size=np.array(list(map(int, found_at["batch"]))) if "batch" in found_at else None,
            tokens=told.get("tokens"),
            stamp_s=np.array(list(map(find_stamp, found_at["stamp"]))) if "stamp" in found_at else None,
        )
        if "data_s" in told:
            self.log.add_parts("data", before + np.arange(len(kept)), told["data_s"][kept])
        return True

    def _take_event(self, event: Event, said: re.Match[bytes] | None, line: bytes) -> None:
        """Take what is no step."""
        found = {} if said is None else said.groupdict()
        number = int(found["step"]) if found.get("step") else None
        if event.kind == "epoch":
            self.epoch = self.epoch if number is None else number
        elif event.kind == "start":
            self.starts += 1
            self.began = math.nan if number is None else float(number)
        else:
            seconds = _number(found["ms"]) * 1e-3 if found.get("ms") else _number(found.get("s"))
            self.log.add_event(event.kind, iteration=number, seconds=seconds, text=line)

    def _take_step(self, found: dict[str, bytes]) -> None:
        """Tell a step, or keep a reading until it is known how far apart readings must be."""
        number, of_epoch = self._number_of(found)
        tokens, data_s = _number(found.get("tokens")), _number(found.get("data_s"))
        clock = next((name for name in _CLOCKS if name in found), None)
        if clock is not None:
            scale, half_digit = _CLOCKS[clock], 0.5 * 10.0 ** -len(found[clock].partition(b".")[2])
            count = of_epoch if clock in ("lap_s", "lap_rate") else number - self.began
            value = _number(found[clock]) * scale
            if clock == "lap_rate":
                value, half_digit = tokens / value, half_digit * tokens / value**2
            reading = (value, half_digit * scale, find_stamp(self.log.line))
            self.log.seen = number
            self.readings.extend((number, self.starts, count, *reading, data_s, tokens))
            return
        batch = _number(found.get("batch"))
        before = self.log.n_steps
        batch_size = 0 if math.isnan(batch) else int(batch)
        self.log.add_step(number, self._time(found, number), tokens=tokens, batch_size=batch_size)
        if self.log.n_steps > before:
            self.log.add_part("data", data_s)

    def _number_of(self, found: dict[str, bytes]) -> tuple[int, int]:
        """Give the number of a step in the run, and in its epoch."""
        number, length = int(found["step"]), int(found.get("length", b"0"))
        if length and self.has_epochs and ("epoch" in found or "epoch" not in self.step.groupindex):
            self.log.set_interval("epoch", length)
            epoch = int(found.get("epoch", self.epoch))
            # Who counts from 0 shows so in the first lines.
            self.first_epoch, self.first_step = min(self.first_epoch, epoch), min(self.first_step, number)
            number += 1 - self.first_step
            return (epoch - self.first_epoch) * length + number, number
        if "epoch" in found:  # how long it is, its last line says
            epoch, (before, of_epoch, apart) = int(found["epoch"]), self.last
            if self.begins and epoch not in self.begins:
                more = apart if number == 0 else 0  # the first is 0, and the last is not printed
                before, of_epoch = before + more, of_epoch + more
                self.log.set_interval("epoch", of_epoch)
            apart = number - of_epoch if number > of_epoch else apart
            self.last = self.begins.setdefault(epoch, before) + number, number, apart
            return self.last[:2]
        self.log.total = length or int(found.get("total", b"0")) or self.log.total
        return number, number

    def _time(self, found: dict[str, bytes], number: int) -> float:
        """Give the seconds of a step; NaN where stamps are to tell."""
        # Both have whole numbers: the larger one says more.
        others = [_number(found[unit]) for unit in _SECONDS if unit in found]
        if "epoch_s" in found and _number(found["epoch_s"]) > max(others, default=0.0):
            if b"." not in found["epoch_s"]:
                self.rounded.append(HALF_SECOND / _number(found["epoch_s"]))
            return _number(found["epoch_s"]) / max(int(found["length"]), 1)
        for unit, scale in _SECONDS.items():
            if unit in found:
                return _number(found[unit]) * scale
        if "since_s" in found and number > self.log.last > 0:
            return _number(found["since_s"]) / (number - self.log.last)
        for rate, amount in (("per_s", 1.0), ("work_per_s", float(NOMINAL))):
            if rate in found and _number(found[rate]) > 0:
                self.log.half_rate = 0.5 * 10.0 ** -len(found[rate].partition(b".")[2]) / amount
                return amount / _number(found[rate])
        return math.nan

    def end(self) -> None:
        """Tell what passed between readings."""
        if self.rounded:
            self.log.error = float(np.median(self.rounded)) / math.sqrt(3.0)
        if not self.readings:
            return
        table = np.array(self.readings).reshape(-1, 8)
        # An evaluation has the step and the clock of the line before it.
        number, start, count, value, half, stamp_s, data_s, tokens = table[np.diff(table[:, 0], prepend=-1) != 0].T
        is_mean, is_lap = b"<mean_s" in self.console.step, b"<lap_" in self.console.step
        is_start = np.r_[False, (np.diff(number) < 0) | (np.diff(start) > 0)]
        is_start[1:] |= (np.diff(value) < 0) & (not is_mean and not is_lap)
        is_warm = count > self.console.warm_up
        is_new = is_start | np.r_[False, ((np.diff(number - count) != 0) | (np.diff(is_warm) != 0)) & is_lap]
        for lap in np.split(np.arange(len(number)), np.flatnonzero(is_new)):
            first, own = lap[0], number[lap]
            apart = float(own[1] - own[0]) if len(lap) > 1 else math.inf
            weight = np.ones(len(lap))
            if is_start[first]:
                self.log.begin()
            if is_mean:
                is_known = math.isfinite(count[first]) and (not is_start[first] or start[first] > start[first - 1])
                weight = count[lap] if is_known else own - own[0] + min(apart, own[0])
                weight = np.maximum(weight - self.console.warm_up, 0.0)
            elif is_lap:
                weight = count[lap] - self.console.warm_up * is_warm[lap]
            clock_s, error_s = value[lap] * weight, half[lap] * weight
            stamp_error_s = HALF_SECOND if is_whole(stamp_s[lap]) else HALF_MS
            if stamp_error_s < float(np.median(error_s)) and np.isfinite(stamp_s[lap]).all():
                clock_s, error_s = stamp_s[lap], np.full(len(lap), stamp_error_s)
                self.log.reads = "stamps of the lines"
            elif (is_mean or is_lap) and 0 < weight[0] <= apart:
                self.log.add_step(int(own[0]), float(value[first]), stamp_s=stamp_s[first], n_steps=int(weight[0]))
            for a, b, step_s in self.log.read_clock(own.astype(np.int64), clock_s, error_s):
                told = [
                    values[lap[b]] if b == a + 1 else values[lap[a + 1 : b + 1]].mean() for values in (tokens, data_s)
                ]
                self.log.add_step(int(own[b]), step_s, tokens=float(told[0]), stamp_s=stamp_s[lap[b]])
                self.log.add_part("data", float(told[1]))


#: Numbers in a line of a step, with one that is written with an exponent; and how stamps are, which are numbers, too.
_TOKEN = re.compile(rb" *\d+(?:\.\d+)?(?:e[-+]?\d+)?")
_ANY = rb"\d{1,20}(?:\.\d{1,20})?(?:e[-+]?\d{1,3})?"
_STAMP_ROW = rb"(\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d(?!\d))?)"
_STAMP = re.compile(rb"(?<!\d)" + _STAMP_ROW)
#: What is read by columns.
_COLUMNS = frozenset(("step", "total", "s", "ms", "us", "tokens", "batch", "data_s", "stamp"))
#: A longer line is read alone.
MOST_ROW_BYTES = 1000


def _learn_row(said: re.Match[bytes]) -> tuple[bytes, tuple[str, ...]]:
    """Make a pattern of lines that differ from that of a step in their numbers alone, with its groups; empty where it has none."""
    line = said.string
    spans = {said.span(name): name.rstrip("2") for name, text in said.groupdict().items() if text}
    stamp = _STAMP.search(line, 0, HEAD_BYTES)
    is_stamped_otherwise = stamp is None and not math.isnan(find_stamp(line))
    if len(line) > MOST_ROW_BYTES or is_stamped_otherwise or b"(?P=" in said.re.pattern:
        return b"", ()
    row, at = b"", 0
    names: list[str] = []
    if stamp is not None:
        row, names, at = re.escape(line[: stamp.start()]) + _STAMP_ROW, ["stamp"], stamp.end()
    for token in _TOKEN.finditer(line, at):
        text = token[0]
        n_spaces = len(text) - len(text.lstrip(b" "))
        name = spans.pop((token.start() + n_spaces, token.end()), None)
        row += re.escape(line[at : token.start()]) + (rb" {1,20}" if n_spaces else b"")
        row += _ANY if name is None else rb"(\d{1,12})" if name in _WHOLE else rb"(" + _FRACTION + rb")"
        names += [] if name is None else [name]
        at = token.end()
    return (b"", ()) if spans or len(names) < 2 else (row + re.escape(line[at:]), tuple(names))


def _number(text: bytes | None) -> float:
    """Read a number, cut to three digits or not; NaN where there is none."""
    if not text:
        return math.nan
    return float(text[:-1]) * _CUT[text[-1:]] if text[-1:] in _CUT else float(text)


def _make_format(console: Console) -> LogFormat:
    """Make the format of a console."""
    return LogFormat(
        name=console.name,
        title=console.title,
        reads=console.reads,
        example=console.example,
        step_marks=console.marks,
        marks=tuple(event.mark for event in console.events),
        reader=functools.partial(_Reader, console=console),
        is_mean=console.is_mean,
    )


_NANOGPT_EVENTS = (
    Event(mark=b": train loss ", kind="evaluation", at=rb"(?:^|\s)step <step>: train loss "),
    Event(mark=b"saving checkpoint to ", kind="save"),
)
_MIND = (
    rb"(?:\b[Ee]poch:? ?\[? {0,9}<epoch>/ {0,9}\d{1,9}\]?,? )?\b[Ss]tep:? ?\[? {0,9}<step>/ {0,9}<length>\]?, "
    rb"(?:[^\n]{0,300}?(?<![a-z_]))?"
)
CONSOLES = (
    Console(
        name="maxtext",
        title="MaxText",
        reads="seconds of each step",
        example="completed step: N, seconds: .., TFLOP/s/device: .., Tokens/s/device: ..",
        marks=(b"completed step: ",),
        step=rb"completed step: <step>, seconds: <s>",
        events=(
            Event(mark=b"Completed eval after train step", kind="evaluation", at=rb"\bstep <step>"),
            Event(mark=b"aved a checkpoint at step", kind="save", at=rb"\bstep <step>"),
        ),
    ),
    # The time is that of the printed iteration, with the evaluation before it.
    Console(
        name="nanogpt",
        title="nanoGPT",
        reads="time (ms) of the logged iteration",
        example="iter N: loss .., time ..ms, mfu ..%",
        marks=(b", time ",),
        step=rb"\biter <step>: loss [^,\s]{1,30}, time <ms> ?ms",
        events=_NANOGPT_EVENTS,
    ),
    Console(
        name="llama2.c",
        title="llama2.c",
        reads="milliseconds of the logged iteration",
        example="N | loss .. | lr .. | ..ms | mfu ..%",
        marks=(b" | loss ",),
        step=rb"(?:^|\s)<step> \| loss [^|]{1,30}\| lr [^|]{1,30}\| <ms> ?ms",
        events=_NANOGPT_EVENTS,
    ),
    Console(
        name="llm.c",
        title="llm.c",
        reads="milliseconds of each step",
        example="step N/M | loss .. | norm .. | lr .. | .. ms | ..% bf16 MFU | .. tok/s",
        marks=(b" tok/s",),
        step=rb"\bstep\s{1,12}<step>/\s{0,12}<total> \|(?:[^|]{1,60}\|){1,6}? <ms> ?ms \|",
    ),
    Console(
        name="build-nanogpt",
        title="build-nanogpt",
        reads="dt of each step",
        example="step N | loss: .. | lr .. | norm: .. | dt: ..ms | tok/sec: ..",
        marks=(b" dt: ",),
        step=rb"(?:\b[Ss]tep:? {0,12}|^ {0,8})<step>(?:/<total>)?(?: \(\d{1,3}(?:\.\d{1,9})?%\))? {0,4}[|,] "
        rb"[^\n]{1,300}?\bdt: (?:<ms> ?ms|<s> ?s)\b",
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
        step=rb"\bstep:<step>/<total> (?:[a-z_]{1,40}:\S{1,30} ){0,6}?train_time:<clock_ms>ms",
    ),
    Console(
        name="litgpt",
        title="LitGPT",
        reads="iter time",
        example="Epoch 1 | iter N step M | loss train: .. | iter time: .. ms",
        marks=(b"iter time: ",),
        step=rb"\biter <step> step \d{1,12}[^\n]{1,200}?\biter time: <ms> ?ms",
        events=(
            Event(
                mark=b": val loss ",
                kind="evaluation",
                at=rb"\biter <step>: val loss [^\n]{1,40} val time: <ms>",
            ),
            Event(mark=b"Saving checkpoint to ", kind="save"),
        ),
    ),
    Console(
        name="nanotron",
        title="nanotron",
        reads="elapsed_time_per_iteration_ms, of three digits",
        example="iteration: N / M | .. elapsed_time_per_iteration_ms: 11.5K | ..",
        marks=(b"elapsed_time_per_iteration_ms: ",),
        step=rb"\biteration: <step> / <total> \|[^\n]{1,200}?elapsed_time_per_iteration_ms: "
        rb"(?P<ms>\d{1,12}(?:\.\d{1,20})?[KMG]?)(?:[^\n]{1,200}?\bglobal_batch_size: <batch>\b)?",
        events=(Event(mark=b"Saving checkpoint at ", kind="save", at=rb"/<step>\s*$"),),
    ),
    # The rate of the logged step alone; how many tokens that has is nowhere, and it varies. Its bar is in progress_bars.py.
    Console(
        name="torchtune-metrics",
        title="torchtune",
        reads="tokens_per_second_per_gpu: how many tokens a step has is not stated",
        example="Step 12 | loss:.. lr:.. tokens_per_second_per_gpu:..",
        of="1,000,000 tokens of a GPU",
        marks=(b"tokens_per_second_per_gpu:",),
        step=rb"\bStep <step> \| [^\n]{0,400}?tokens_per_second_per_gpu:<work_per_s>",
    ),
    # Of MMDetection 2, MMSegmentation 0 and others of their time; for what is newer see vision.py.
    Console(
        name="openmmlab",
        title="OpenMMLab (mmcv)",
        reads="time, data_time",
        example="Epoch [1][50/7330]  lr: .., eta: .., time: 1.09, data_time: 0.015, ..",
        is_mean=True,
        marks=(b" eta: ", b"data_time: "),
        step=rb"(?:Epoch ?\[<epoch>\]|Iter) ?\[ {0,9}<step>/<length>\][^\n]{0,400}?\btime: <s>"
        rb"(?:,? {1,4}data_time: <data_s>)?",
    ),
    Console(
        name="yolox",
        title="YOLOX",
        reads="iter_time, data_time",
        example="epoch: 48/300, iter: 5890/7393, mem: .., iter_time: 0.571s, data_time: 0.002s, ..",
        is_mean=True,
        marks=(b"iter_time: ",),
        step=rb"\bepoch: <epoch>/\d{1,9}, iter: <step>/<length>, [^\n]{0,100}?\biter_time: <s>s, data_time: <data_s>",
    ),
    # The time is the mean since the run was started, without its first two iterations, which are counted from 0.
    Console(
        name="detectron2",
        title="Detectron2",
        reads="time, a mean since the run was started, taken apart",
        example="eta: ..  iter: N  total_loss: ..  time: 0.3322  data_time: 0.0334  lr: ..",
        is_mean=True,
        warm_up=1,
        marks=(b"  iter: ",),
        step=rb"  iter: <step> [^\n]{1,2000}? time: <mean_s>(?:  last_time: [\d.]{1,20})?  data_time: <data_s>",
        events=(
            Event(mark=b"tarting training from iteration ", kind="start", at=rb"iteration <step>"),
            Event(mark=b"Start inference on ", kind="evaluation"),
            Event(mark=b"Saving checkpoint to ", kind="save", at=rb"model_0{0,12}<step>\.pth"),
        ),
    ),
    # That mean is in brackets, with what lies between iterations; the one before it is of the last lines.
    Console(
        name="maskrcnn-benchmark",
        title="maskrcnn-benchmark",
        reads="time, a mean since the run was started, taken apart",
        example="eta: ..  iter: N  loss: .. (..)  time: 0.3322 (0.3401)  data: 0.0334 (0.0340)  lr: ..",
        is_mean=True,
        marks=(b"  iter: ",),
        step=rb"  iter: <step> [^\n]{1,2000}? time: [\d.]{1,20} \(<mean_s>\)  data: <data_s>",
        events=(
            Event(mark=b"Start training", kind="start"),
            Event(mark=b"Saving checkpoint to ", kind="save", at=rb"model_0{0,12}<step>\.pth"),
        ),
    ),
    Console(
        name="fairseq",
        title="fairseq",
        reads="wall, from line to line",
        example="train_inner | epoch 001: 2800 / 160368 loss=.., wps=.., ups=.., wpb=.., num_updates=2800, .. wall=1236",
        is_mean=True,
        marks=(b"num_updates",),
        step=rb"(?:\bwpb\"?[=:] ?\"?<tokens>[^\n]{1,200}?)?\bnum_updates\"?[=:] ?\"?<step>\b"
        rb"[^\n]{1,300}?[ \"]wall\"?[=:] ?\"?(?P<clock_s>\d{1,9})\b",
        events=(
            Event(mark=b"valid on 'valid' subset", kind="evaluation", at=rb"\bnum_updates <step>"),
            Event(
                mark=b"aved checkpoint ",
                kind="save",
                at=rb" @ <step> updates[^\n]{0,200}?\(writing took <s> seconds",
            ),
        ),
    ),
    # Until 0.6: words a second, and words of an update, both means since the epoch began.
    Console(
        name="fairseq-0.6",
        title="fairseq",
        reads="wpb and wps, means since the epoch began, taken apart",
        example="| epoch 010  2000 / 8223 loss=1.27 (1.50), wps=962, wpb=908, ..",
        is_mean=True,
        marks=(b", wps=",),
        step=rb"\| epoch <epoch>:? {1,9}<step> / <length> loss=(?![^\n]{0,600}num_updates)"
        rb"[^\n]{1,100}?, wps=<lap_rate>, [^\n]{0,60}?\bwpb=<tokens>",
    ),
    Console(
        name="paddlenlp",
        title="PaddleNLP",
        reads="interval_runtime",
        example="loss: .., global_step: 10, interval_runtime: 2.2591, .. interval_steps_per_second: 4.427",
        is_mean=True,
        marks=(b"interval_runtime: ",),
        step=rb"\bglobal_step: <step>, [^\n]{0,400}?\binterval_runtime: <since_s>"
        rb"[^\n]{0,400}?\binterval_steps_per_second: <per_s>",
        events=(
            Event(mark=b"***** Running Evaluation *****", kind="evaluation"),
            Event(mark=b"Saving model checkpoint to ", kind="save", at=rb"checkpoint-<step>"),
        ),
    ),
    # Of PaddleOCR, PaddleDetection, PaddleSeg, and of what follows them.
    Console(
        name="paddle",
        title="Paddle",
        reads="batch_cost, reader_cost",
        example="epoch: [3/500], global_step: 500, .. avg_reader_cost: 1.81 s, avg_batch_cost: 2.04 s, ..",
        is_mean=True,
        marks=(b"batch_cost: ",),
        step=rb"(?:\bepoch: \[?\d{1,9}(?:/\d{1,9}\])?, (?:global_step|iter): <step>(?:/<total>)?, "
        rb"|\bEpoch:? \[?<epoch>(?:/\d{1,9})?\] ?\[ {0,9}<step2>/<length>\])"
        rb"(?=[^\n]{0,1000}?(?<![a-z])batch_cost: <s>)(?:[^\n]{0,1000}?(?<![a-z])(?:reader|data)_cost: <data_s>)?",
        events=(
            Event(mark=b"cur metric, ", kind="evaluation"),
            Event(mark=b"Start evaluating (", kind="evaluation"),
            Event(mark=b"save model in ", kind="save"),
        ),
    ),
    # The mean since the epoch began, from its sixth batch on without the first five.
    Console(
        name="paddleclas",
        title="PaddleClas",
        reads="batch_cost, a mean since the epoch began, taken apart",
        example="[Train][Epoch 1/20][Iter: 10/500]lr: .., batch_cost: 0.75500s, reader_cost: 0.08544, ..",
        is_mean=True,
        warm_up=5,
        marks=(b"batch_cost: ",),
        step=rb"\[Epoch <epoch>/\d{1,9}\]\[Iter: {1,9}<step>/<length>\][^\n]{0,1000}?(?<![a-z])batch_cost: <lap_s>s",
    ),
    Console(
        name="hrnet",
        title="HRNet, The Sound of Pixels and what follows these",
        first_epoch=0,
        reads="Time, a mean since the epoch began, taken apart",
        example="Epoch: [352/520] Iter:[10/495], Time: 0.66, ..",
        is_mean=True,
        marks=(b"], Time: ",),
        step=rb"Epoch: \[<epoch>(?:/\d{1,9}\] Iter: {0,2})?\]?\[<step>/<length>\], Time: <lap_s>,",
    ),
    Console(
        name="automodel",
        title="NeMo Automodel",
        reads="stamps of the lines",
        example="2026-08-10 15:48:59 | INFO | root | step 13 | epoch 0 | loss .. | tps 6574.51(821.81/gpu) | ..",
        is_mean=True,
        marks=(b" | tps ",),
        step=rb"\bstep <step> \| epoch \d{1,9} \| loss ",
    ),
    # The step itself; MindYOLO and MindOCR print the mean since the line before.
    Console(
        name="mindformers",
        title="MindFormers",
        reads="per_step_time",
        example="Epoch:[  1/  2], step:[   10/   19], loss: .., per_step_time: 1752ms, ..",
        marks=(b"per_step_time: ",),
        step=_MIND + rb"per_step_time: {1,9}<ms> ?ms",
    ),
    Console(
        name="mindspore",
        title="MindYOLO, MindOCR",
        reads="step time",
        example="Epoch 2/200, Step 3900/3995, step time: 736.50 ms",
        is_mean=True,
        marks=(b"step time: ",),
        step=_MIND + rb"(?:per )?step time: {1,9}<ms> ?ms",
    ),
    # The step itself; the tutorials print the mean since the line before.
    Console(
        name="tensorflow",
        title="TensorFlow",
        reads="seconds of a step",
        example="global step 7: loss = 59.8181 (16.456 sec/step)",
        marks=(b" sec/step)", b" per-step time "),
        step=rb"\b[Ss]tep <step>(?:[:,] loss = \S{1,30} \((?:[\d.]{1,20} examples/sec; {1,3})?<s> {1,2}sec/step\)"
        rb"| per-step time <s2>s)",
    ),
    Console(
        name="tensorflow-tutorials",
        title="TensorFlow's tutorials",
        reads="seconds of a batch",
        example="step 2600, loss = 1.36 (4606.2 examples/sec; 0.028 sec/batch)",
        is_mean=True,
        marks=(b" sec/batch)",),
        step=rb"\bstep <step>, loss = \S{1,30} \((?:[\d.]{1,20} examples/sec; {1,3})?<s> {1,2}sec/batch\)",
    ),
    Console(
        name="tensorflow-estimator",
        title="TensorFlow's Estimator",
        reads="seconds since the line before",
        example="loss = 0.3523, step = 40 (0.875 sec)",
        is_mean=True,
        marks=(b", step = ",),
        step=rb", step = <step>[^\n]{0,200}? \(<since_s> sec\)",
        events=(Event(mark=b"Saving checkpoints for ", kind="save", at=rb" for <step> into "),),
    ),
    Console(
        name="keras",
        title="Keras",
        reads="the mean of each epoch",
        example="1875/1875 [====] - 5s 3ms/step - loss: ..",
        is_mean=True,
        marks=(b"s/step",),
        step=rb"<step>/(?P<length>(?P=step)) (?:[^\n]{0,400}?(?:-|\xe2\x94\x81) <epoch_s>s )?[^\n]{0,400}?(?<![\d.])"
        rb"(?:<ms>ms|<us>us|<s>s)/step",
        events=(Event(mark=b"Epoch ", kind="epoch", at=rb"^Epoch (?P<step>\d{1,9})/\d{1,9}\b"),),
    ),
    Console(
        name="flair",
        title="Flair",
        reads="stamps of the lines",
        example="2021-02-22 08:40:43,913 epoch 1 - iter 21/219 - loss .. - samples/sec: 19.11",
        is_mean=True,
        marks=(b" - iter ",),
        step=rb"\bepoch <epoch> - iter <step>/<length> - ",
    ),
    Console(
        name="icefall",
        title="icefall, snowfall",
        reads="stamps of the lines",
        example="2022-04-28 21:16:31,929 INFO [train.py:755] Epoch 0, batch 50, loss[..",
        is_mean=True,
        marks=(b"poch ",),
        step=rb"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]{4,8} \[[^\]\s]{1,60}\] (?:\(\d{1,5}/\d{1,5}\) )?"
        rb"(?:Epoch <epoch>, batch <step>, |batch <step2>, epoch <epoch2>/\d)",
    ),
    Console(
        name="espnet",
        title="ESPnet",
        reads="stamps of the lines",
        example="2020-11-11 16:58:33,417 (trainer:486) INFO: 17epoch:train:4876-5250batch: iter_time=.., train_time=0.014",
        is_mean=True,
        marks=(b"epoch:train:",),
        step=rb"(?<!\d)<epoch>epoch:train:\d{1,12}-<step>batch: ",
    ),
    Console(
        name="niftynet",
        title="NiftyNet",
        reads="seconds of each step",
        example="Training iter N, loss=.. (3.145937s)",
        marks=(b"raining iter ",),
        step=rb"\b[Tt]raining iter <step>, [^\n]{1,200}? \(<s>s\)",
    ),
    # An epoch is 250 iterations and a validation, whatever the data are.
    Console(
        name="nnunet",
        title="nnU-Net",
        reads="seconds of epochs of 250 iterations, with their validation",
        example="This epoch took 797.606469 s",
        is_mean=True,
        length=250,
        marks=(b"poch took ", b"poch time: "),
        step=rb"\b(?:This epoch took|Epoch time:) <epoch_s> s\b",
        events=(Event(mark=b"poch", kind="epoch", at=rb"(?:^|\s)[Ee]poch:? {1,4}(?P<step>\d{1,9})\s{0,4}$"),),
    ),
    Console(
        name="dit",
        title="DiT and what follows it",
        reads="Train Steps/Sec",
        example="(step=0000100) Train Loss: .., Train Steps/Sec: 1.23",
        is_mean=True,
        marks=(b"Steps/Sec: ",),
        step=rb"\(step=<step>\) [^\n]{0,200}?\bSteps/Sec: <per_s>",
        events=(Event(mark=b"Saved checkpoint to ", kind="save", at=rb"/0{0,12}<step>\.pt"),),
    ),
    Console(
        name="dlrm",
        title="DLRM",
        first_epoch=0,
        reads="ms/it",
        example="Finished training it 144/150 of epoch 0, 459.49 ms/it, loss ..",
        is_mean=True,
        marks=(b" ms/it, ",),
        step=rb"training it <step>/<length> of epoch <epoch>, <ms> ms/it",
    ),
    Console(
        name="darknet",
        title="Darknet",
        reads="seconds of each iteration",
        example=" N: 0.660188, 0.689227 avg loss, 0.000839 rate, .. seconds, 61248 images",
        marks=(b" avg loss, ",),
        step=rb"(?:^|\s)<step>: [^,\s]{1,30}, [^,\s]{1,30} avg loss, [^,\s]{1,30} rate, <s> seconds, ",
        events=(Event(mark=b"Saving weights to ", kind="save"),),
    ),
    Console(
        name="deepmd",
        title="DeePMD-kit",
        reads="training time since the line before",
        example="DEEPMD INFO    batch    N training time .. s, testing time 0.00 s",
        is_mean=True,
        marks=(b" training time ", b"total wall time = "),
        step=rb"\b[Bb]atch {1,12}<step>(?: training time |: total wall time = )<since_s> s\b",
    ),
    # The rate is of samples, and nothing says how many a batch has: stamps of the lines tell seconds.
    Console(
        name="mxnet",
        title="MXNet",
        first_epoch=0,
        reads="stamps of the lines",
        example="2018-10-22 21:42:56,366 Epoch[0] Batch [26500]\tSpeed: 7.51 samples/sec ..",
        is_mean=True,
        marks=(b" samples/sec",),
        step=rb"\bEpoch\[<epoch>\] Batch \[(?:\d{1,12}-)?<step>\]\s{1,8}Speed: ",
    ),
    Console(
        name="wenet",
        title="WeNet",
        first_epoch=0,
        reads="stamps of the lines",
        example="2023-01-30 18:47:07,107 DEBUG TRAIN Batch 4/203700 loss .. lr .. rank 0",
        is_mean=True,
        marks=(b" TRAIN ",),
        step=rb"\bDEBUG TRAIN (?:\| steps/sec [\d.]{1,20}\| )?Batch <epoch>/<step> loss "
        rb"(?:[^\n]{1,400}? rank 0(?!\d)|(?![^\n]{0,400} rank ))",
    ),
    Console(
        name="lightly-train",
        title="LightlyTrain",
        reads="stamps of the lines",
        example="[2026-02-06 11:55:27,760][INFO] Train Step 1/10 | Train Loss: .. | Time Spent [Dataload: 64.5%, ..]",
        is_mean=True,
        marks=(b"Train Step ",),
        step=rb"\bTrain Step <step>/<total> \| ",
    ),
)
FORMATS = tuple(_make_format(console) for console in CONSOLES)
