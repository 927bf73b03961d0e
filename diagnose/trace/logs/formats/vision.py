"""Consoles that tell the time of a batch and of its data: open_clip, timm, PyTorch's ImageNet example, torchvision, MMEngine.

Enters: lines. Leaves: steps.

open_clip prints means since the line before. The ImageNet example and timm print the batch itself, and in brackets
the mean since the epoch began: batches in between may be slow where the printed ones are not, as when a loader with 10 workers
is printed every 10 batches. So where not every batch is printed, and the printed ones are not as slow as the mean, the means
are taken.

Source: mlfoundations/open_clip, src/open_clip_train/train.py; huggingface/pytorch-image-models, train.py; pytorch/examples,
imagenet/main.py; pytorch/vision, references/classification/utils.py (`MetricLogger`), which DeiT, MAE and DINO share;
open-mmlab/mmengine, mmengine/runner/log_processor.py (`LogProcessor`).
"""

import itertools
import math
import re
from array import array

import numpy as np

from diagnose.trace.logs.builder import LogBuilder
from diagnose.trace.logs.log_format import LogFormat
from diagnose.trace.logs.stamps import find_stamp


def _compile(pattern: bytes) -> re.Pattern[bytes]:
    """Compile a pattern in which `<s>` stands for a group of seconds."""
    return re.compile(pattern.replace(b"<s>", rb"(\d{1,7}\.\d{1,6})"))


_OPEN_CLIP = _compile(
    rb"Train Epoch: (\d{1,9}) \[ {0,12}(\d{1,15})/(\d{1,15}) [^\n]{0,300}?Data \(t\): <s> Batch \(t\): <s>"
)
_PARAM = re.compile(rb"\|   (batch_size|world_size|accum_freq|log_every_n_steps|workers): (\d{1,9})\s*$")
_EXAMPLE = _compile(
    rb"(?:Epoch|Train):? ?\[(\d{1,9})(?:/\d{1,9})?\] ?\[ {0,9}(\d{1,12})/(\d{1,12})\]"
    rb"(?=[^\n]{0,200}?\b(?:[Tt]ime|Batch):? {0,6}<s> {1,2}\( {0,6}<s>\))"
    rb"(?:[^\n]{0,200}?\b[Dd]ata:? {0,6}<s> {1,2}\( {0,6}<s>\))?"
)
_TIMM = _compile(
    rb"Train: (\d{1,9}) \[ {0,9}(\d{1,12})/(\d{1,12}) [^\n]{0,200}?Time: <s>s, {1,8}[\d.]{1,15}/s {1,3}\(<s>s,"
    rb"(?:[^\n]{0,200}?Data: <s> \(<s>\))?"
)
_TORCHVISION = _compile(
    rb"Epoch: \[(\d{1,9})(?:/\d{1,9})?\] {1,4}\[ {0,9}(\d{1,12})/(\d{1,12})\] {1,4}eta: [^\n]{0,4000}?\btime: <s>"
    rb"(?: {1,4}data: <s>)?"
)
_MMENGINE = _compile(
    rb"(?:Epoch\(train\) {1,4}\[(\d{1,9})\]|Iter\(train\) ?())\[ {0,9}(\d{1,12})/(\d{1,12})\] [^\n]{0,400}?\btime: <s>"
    rb"(?: {1,4}data_time: <s>)?"
)
_WINDOW_SIZE = re.compile(rb"\bwindow_size=(\d{1,6})\b")
#: The printed batches stand for all where their mean is as near to that of all.
SAME_MEAN = 0.1
#: The standard deviation of what four digits leave out.
ROUNDED_S = 1e-4 / math.sqrt(12.0)
#: Half of the last of three digits.
HALF_DIGIT_S = 0.0005


class _OpenClip:
    def __init__(self, log: LogBuilder) -> None:
        self.log = log
        self.params: dict[bytes, int] = {}
        #: Samples of a batch, all ranks together; 0 while it is not known.
        self.batch = 0
        #: The line before: its epoch, samples and stamp; and itself, where its batch was not known.
        self.epoch = -1
        self.before: tuple[int, float] | None = None
        self.held: tuple[int, int, int, float, float, float] | None = None

    def take(self, line: bytes) -> bool:
        """Take one line."""
        if said := _OPEN_CLIP.search(line):
            self._take_step(*said.groups())
        elif b"Eval Epoch:" in line:
            self.log.add_event("evaluation", text=line)
        elif b"Start epoch" in line or b"Resuming" in line or b"=> resuming" in line:
            if b"=> resuming" in line:
                self.log.begin()
        elif said := _PARAM.search(line):
            self.params[said[1]] = int(said[2])
            if said[1] == b"workers":
                self.log.set_interval("loader-workers", int(said[2]))
            elif said[1] == b"log_every_n_steps":
                self.log.set_interval("log", int(said[2]))
        return False

    def _take_step(self, epoch_: bytes, samples_: bytes, all_: bytes, data_: bytes, batch_: bytes) -> None:
        epoch, samples, n_all, step_s = int(epoch_), int(samples_), int(all_), float(batch_)
        stamp_s = find_stamp(self.log.around.replace(b",", b" ", 1))
        if not self.batch:
            self.batch = self._find_batch(epoch, samples, step_s, stamp_s)
            if self.batch and self.held is not None:
                self._tell(*self.held)
        self.epoch, self.before = epoch, (samples, stamp_s)
        line = (epoch, samples, n_all, float(data_), step_s, stamp_s)
        self.held = None if self.batch else line
        if self.batch:
            self._tell(*line)

    def _tell(self, epoch: int, samples: int, n_all: int, data_s: float, step_s: float, stamp_s: float) -> None:
        """Tell a line, where it is known how many samples a batch has."""
        n_epoch = max(n_all // self.batch, 1)
        self.log.set_interval("epoch", n_epoch)
        n = max(round(samples / self.batch), 1)
        self.log.add_step(epoch * n_epoch + n, step_s, batch_size=self.batch, stamp_s=stamp_s)
        self.log.add_part("data", data_s)

    def _find_batch(self, epoch: int, samples: int, step_s: float, stamp_s: float) -> int:
        """Find how many samples a batch has: by arguments, by the first line of an epoch, else by what passed since the last."""
        if {b"batch_size", b"world_size"} <= self.params.keys():
            return self.params[b"batch_size"] * self.params[b"world_size"] * self.params.get(b"accum_freq", 1)
        if self.before is None or epoch != self.epoch:
            is_first = self.epoch >= 0 and epoch != self.epoch
            return samples if is_first else 0
        new, passed_s = samples - self.before[0], stamp_s - self.before[1]
        n_steps = round(passed_s / step_s) if passed_s > 0 else 0
        return round(new / n_steps) if n_steps > 0 and new > 0 else 0


class _Epochs:
    """Reads lines with an epoch, a batch in it, the time of this batch, and the mean since the epoch began."""

    def __init__(self, log: LogBuilder, pattern: re.Pattern[bytes], *, first: int) -> None:
        self.log, self.pattern, self.first = log, pattern, first
        self.epoch, self.batch, self.length = array("q"), array("q"), array("q")
        self.own_s, self.mean_s, self.data_s, self.mean_data_s, self.stamp_s = (array("d") for _ in range(5))
        self.lowest = math.inf

    def take(self, line: bytes) -> bool:
        """Take one line."""
        if b"Test:" in line[:200]:
            self.log.add_event("evaluation", iteration=self._number(len(self.epoch) - 1), text=line)
        for said in self.pattern.finditer(line):
            epoch, batch, length, own_s, mean_s, data_s, mean_data_s = said.groups()
            self.epoch.append(int(epoch))
            self.batch.append(int(batch))
            self.length.append(int(length))
            for values, value in (
                (self.own_s, own_s),
                (self.mean_s, mean_s),
                (self.data_s, data_s),
                (self.mean_data_s, mean_data_s),
            ):
                values.append(float(value) if value else math.nan)
            self.stamp_s.append(self.log.find_stamp())
            self.lowest = min(self.lowest, int(batch))
            self.log.seen = self._number(len(self.epoch) - 1)
        return False

    def _number(self, n: int) -> int:
        """Give the number of the batch of a line, from 1 on; epochs are counted from 0."""
        if n < 0:
            return 0
        first = 0 if self.lowest == 0 else self.first
        return self.epoch[n] * self.length[n] + self.batch[n] + 1 - first

    def end(self) -> None:
        """Tell all steps: whether the printed batches stand for all is known only now."""
        n_lines = len(self.epoch)
        if not n_lines:
            return
        number = np.array([self._number(n) for n in range(n_lines)])
        count = np.array(self.batch) + 1 - (0 if self.lowest == 0 else self.first)
        own_s, mean_s, data_s, mean_data_s = (
            np.array(v) for v in (self.own_s, self.mean_s, self.data_s, self.mean_data_s)
        )
        self.log.set_interval("epoch", int(self.length[0]))
        laps = [0, *(np.flatnonzero((np.diff(number) <= 0) | (np.diff(self.epoch) != 0)) + 1).tolist(), n_lines]
        gaps = np.diff(number)
        interval = int(np.median(gaps[gaps > 0])) if (gaps > 0).any() else 1
        if (interval == 1 and np.isfinite(own_s).all()) or _stand_for_all(
            (own_s, mean_s), (data_s, mean_data_s), count, laps
        ):
            self.log.is_mean, self.log.reads = False, "time of the printed batch"
            # The first batch of an epoch is printed whatever the interval is, and none is like it; the last ones are like the
            # last that is printed.
            n_steps = (count == 1).astype(np.int64)
            ends = np.flatnonzero((count[1:] == 1) & (count[:-1] > 1) & (np.diff(np.array(self.epoch)) == 1))
            ends = ends[ends > 0]
            n_steps[ends] = np.minimum(number[ends + 1] - 1 - number[ends - 1], 2 * interval)
            for n in range(n_lines):
                self.log.add_step(int(number[n]), float(own_s[n]), stamp_s=self.stamp_s[n], n_steps=int(n_steps[n]))
                self.log.add_part("data", float(data_s[n]))
            return
        self.log.is_mean, self.log.reads = True, "mean time since the epoch began, taken apart"
        for low, high in itertools.pairwise(laps):
            sums, sums_data = mean_s[low:high] * count[low:high], mean_data_s[low:high] * count[low:high]
            if count[low] == 1:
                self.log.add_step(int(number[low]), float(mean_s[low]), stamp_s=self.stamp_s[low], n_steps=1)
                self.log.add_part("data", float(data_s[low]))
            for a, b, step_s in self.log.read_clock(count[low:high], sums, HALF_DIGIT_S * count[low:high]):
                self.log.add_step(int(number[low + b]), step_s, stamp_s=self.stamp_s[low + b])
                waited_s = (sums_data[b] - sums_data[a]) / (count[low + b] - count[low + a])
                self.log.add_part("data", max(float(waited_s), 0.0))


def _stand_for_all(
    time: tuple[np.ndarray, np.ndarray], data: tuple[np.ndarray, np.ndarray], count: np.ndarray, laps: list[int]
) -> bool:
    """Say whether the printed batches take as long, and wait as long for data, as all do, by the means at the end of epochs."""
    (shown_s, real_s), (shown_data_s, real_data_s) = (_compare_mean(*values, count, laps) for values in (time, data))
    allowed_s = SAME_MEAN * real_s
    return real_s > 0 and abs(shown_s - real_s) <= allowed_s and not abs(shown_data_s - real_data_s) > allowed_s


def _compare_mean(own_s: np.ndarray, mean_s: np.ndarray, count: np.ndarray, laps: list[int]) -> tuple[float, float]:
    """Give the mean of the printed batches and that of all.

    The first of an epoch is always printed, and waits for the loader to start: it is taken out of both.
    """
    shown = real = n_shown = n_real = 0.0
    for low, high in itertools.pairwise(laps):
        begin = low + 1 if count[low] == 1 and high - low > 1 else low
        first_s, n_first = (own_s[low], 1) if begin > low else (0.0, 0)
        shown += float(own_s[begin:high].sum())
        n_shown += high - begin
        real += float(mean_s[high - 1] * count[high - 1]) - first_s
        n_real += float(count[high - 1]) - n_first
    return (shown / n_shown, real / n_real) if n_shown and n_real else (0.0, 0.0)


class _Sliding:
    """Reads lines with an epoch, a batch in it, and the mean of the last batches, `window` of them at most.

    Such means overlap where lines come more often: what passed since the line before is what the window has more than the lines
    that lie in it. MMEngine counts from 1, and its windows go on from epoch to epoch; a MetricLogger is a new one in each.
    """

    def __init__(self, log: LogBuilder, pattern: re.Pattern[bytes], *, window: int, first: int) -> None:
        self.log, self.pattern, self.window, self.first = log, pattern, window, first
        self.epoch, self.batch, self.length = array("q"), array("q"), array("q")
        self.mean_s, self.data_s, self.stamp_s = array("d"), array("d"), array("d")

    def take(self, line: bytes) -> bool:
        """Take one line."""
        if said := self.pattern.search(line):
            *epoch, batch, length, mean_s, data_s = said.groups()
            for values, value in (
                (self.epoch, int(next(filter(None, epoch), self.first))),
                (self.batch, int(batch) - self.first),
                (self.length, int(length)),
            ):
                values.append(value)
            self.mean_s.append(float(mean_s))
            self.data_s.append(float(data_s) if data_s else math.nan)
            self.stamp_s.append(self.log.find_stamp())
            self.log.seen = (self.epoch[-1] - self.first) * self.length[-1] + self.batch[-1] + 1
        elif self.first and (said := _WINDOW_SIZE.search(line)):
            self.window = int(said[1]) or self.window
        return False

    def end(self) -> None:
        """Tell all steps: how often lines come is known only now."""
        if not self.epoch:
            return
        epoch, batch, length = (np.array(values) for values in (self.epoch, self.batch, self.length))
        mean_s, data_s = np.array(self.mean_s), np.array(self.data_s)
        number = (epoch - self.first) * length + batch + 1
        self.log.set_interval("epoch", int(length[0]))
        count = number if self.first else batch + 1
        ends = np.flatnonzero((np.diff(count) <= 0) | ((np.diff(epoch) != 0) & (not self.first))) + 1
        for lap in np.split(np.arange(len(count)), ends):
            kept, step_s = self._take_apart(count[lap], mean_s[lap])
            parts_s = data_s[lap][kept]
            if len(kept) >= len(lap) - 1 and np.isfinite(data_s[lap]).all():
                apart = self._take_apart(count[lap], data_s[lap])[1]
                parts_s = apart if len(apart) == len(kept) else parts_s
            for at, seconds, part_s in zip(lap[kept].tolist(), step_s.tolist(), parts_s.tolist(), strict=True):
                self.log.add_step(int(number[at]), seconds, stamp_s=self.stamp_s[at])
                self.log.add_part("data", part_s)
            error_s = ROUNDED_S * self.window * math.sqrt(len(kept) / self.window + 1.0)
            if len(kept) > 1:
                self.log.error = max(
                    self.log.error, error_s / float(np.median(step_s) * np.median(np.diff(count[lap])))
                )

    def _take_apart(self, count: np.ndarray, mean_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Give lines of a lap, and the mean seconds of a batch since the line before.

        Where means cannot be taken apart, the lines are those whose windows do not overlap.
        """
        window = self.window
        apart = int(np.median(np.diff(count))) if len(count) > 1 else window
        if len(count) > 2 and count[-1] - count[-2] != apart:  # the last of an epoch is printed, too
            count, mean_s = count[:-1], mean_s[:-1]
        if (
            apart < window
            and window % max(apart, 1) == 0
            and count[0] in (1, apart)
            and (np.diff(count) == apart).all()
        ):
            total = mean_s * np.minimum(count, window)
            since = np.zeros(len(count))
            n_before = window // apart - 1
            for i, window_s in enumerate(total.tolist()):
                since[i] = window_s - float(since[max(0, i - n_before) : i].sum())
            step_s = since / np.diff(count, prepend=0)
            if (step_s > 0).all():
                return np.arange(len(count)), step_s
        kept, last = [], -window
        for i, number in enumerate(count.tolist()):
            if number - last >= window:
                kept.append(i)
                last = number
        return np.array(kept), mean_s[kept]


FORMATS = (
    LogFormat(
        name="open-clip",
        title="open_clip",
        reads="Batch (t), Data (t)",
        example="Train Epoch: 0 [ .. ] Data (t): .. Batch (t): ..",
        step_marks=(b"Batch (t): ",),
        marks=(
            b"Eval Epoch:",
            b"|   batch_size: ",
            b"|   world_size: ",
            b"|   accum_freq: ",
            b"|   workers: ",
            b"|   log_every_n_steps: ",
        ),
        reader=_OpenClip,
        is_mean=True,
    ),
    LogFormat(
        name="timm",
        title="timm",
        reads="Time, Data",
        example="Train: 0 [  10/1251 ( 1%)]  ..  Time: 0.243s, ..",
        step_marks=(b"Train: ",),
        reader=lambda log: _Epochs(log, _TIMM, first=0),
    ),
    LogFormat(
        name="torchvision",
        title="torchvision's MetricLogger",
        reads="time, a mean of the last 20 batches",
        example="Epoch: [0]  [  10/1251]  eta: ..  time: 0.243  data: ..",
        step_marks=(b"  eta: ",),
        reader=lambda log: _Sliding(log, _TORCHVISION, window=20, first=0),
        is_mean=True,
    ),
    LogFormat(
        name="mmengine",
        title="OpenMMLab (MMEngine)",
        reads="time, a mean of the last iterations",
        example="Epoch(train) [1][  50/2500]  ..  time: 1.09  data_time: 0.015",
        step_marks=(b"(train) ",),
        marks=(b"window_size=",),
        reader=lambda log: _Sliding(log, _MMENGINE, window=10, first=1),
        is_mean=True,
    ),
    LogFormat(
        name="imagenet-example",
        title="PyTorch's ImageNet example",
        reads="Time, Data",
        example="Epoch: [0][  10/5005]  Time 0.243 (0.5)  Data 0.1 (0.2)",
        step_marks=(b"Epoch: [", b"Epoch [", b"Train: ["),
        marks=(b"Test: [",),
        reader=lambda log: _Epochs(log, _EXAMPLE, first=1),
    ),
)
