"""Progress bars of tqdm and rich around a training loop, and what the Trainer of Hugging Face prints between them.

Enters: lines. Leaves: steps.

Bars: `Epoch 0: 12%|█▏ | 12/100 [00:12<01:29, 1.02it/s, v_num=0]`. Many are no steps: downloads, tokenising, evaluation. Those
of training are told by their name, by the dicts of losses between them, by the number of steps that the Trainer states; without
any of these the one that ran longest is taken. The time of a step is read off as `bars.py` says.

Dicts: `{'loss': 2.1, 'epoch': 0.5}` at each logging step. They have no step: it is the one that the bar shows behind them; without
bars they are counted. TRL adds `step_time`, `num_tokens`.

Source: tqdm/std.py of tqdm; huggingface/transformers, trainer_callback.py (`ProgressCallback`) and trainer.py; huggingface/trl,
grpo_trainer.py; Lightning-AI/pytorch-lightning, tqdm_progress.py and rich_progress.py; pytorch/torchtune,
recipes/full_finetune_distributed.py; huggingface/accelerate, examples.
"""

import itertools
import math
import re
from array import array
from collections import Counter

import numpy as np

from diagnose.model.trace import Bools, Ints, Seconds
from diagnose.trace.logs.bars import Lap, read_lap
from diagnose.trace.logs.builder import MAX_EVENTS, MAX_STEPS, LogBuilder
from diagnose.trace.logs.log_format import LogFormat
from diagnose.trace.logs.stamps import read_duration

#: Units of a bar that may be steps; `examples`, `B`, `file` are not.
_UNITS = rb"(?:it|iter|iters|iteration|step|steps|batch|batches|ba|b|update|updates)"
_BAR = re.compile(
    rb"(\d{1,9})/(\d{1,9}) \[(?:(\d{1,4}):)?(\d{1,2}):(\d\d)(?:<[\d:?]{1,12})?, {0,8}"
    rb"(?:(\d{1,9}\.\d\d)(?:(s)/" + _UNITS + rb"|" + _UNITS + rb"/s)|\?" + _UNITS + rb"/s)"
)
#: A whole line with one bar of tqdm: a name of one word and a number, or torchtune's, at most; no other count, dict or `Saving`. Or
#: with a dict of losses.
_ROW = (
    rb"(?:((?!Data)[A-Za-z]{0,20}(?: \d{1,6})?|\d{1,6}\|\d{1,12}\|Loss: [^\s:]{1,30}):? {0,4}\d{1,3}%\|[^|/S\n]{0,400}\| "
    rb"(\d{1,9})/(\d{1,9}) \[(?:(\d{1,4}):)?(\d{1,2}):(\d\d)<[\d:?]{1,12}, {0,8}(\d{1,9}\.\d\d)(?:(s)/it|it/s)"
    rb"((?:, [^\[\]{:S\n]{0,300})?\])|(\{'loss'[^\[{}\n]{1,8000}\})) {0,200}"
)
_RICH = re.compile(rb"(\d{1,9})/(\d{1,9}) (\d{1,4}):(\d\d):(\d\d) \S{1,3} (?:\d{1,4}:\d\d:\d\d|-:--:--) ")
#: The bar of the Trainer in a notebook, pasted: ` [ 23/2080 10:12 < 16:40:10, 0.03 it/s, Epoch 0.00/1]`.
_NOTEBOOK = re.compile(
    rb"\[ {0,9}(\d{1,9})/(\d{1,9}) (?:(\d{1,4}):)?(\d{1,2}):(\d\d) < [\d:]{1,12}, [\d.]{1,9} it/s, Epoch "
)
#: What stands between the name of a bar and its count.
_DRAWN = re.compile(rb":? {0,8}\d{1,3}%(?:\|[^|]{0,400}\|)? ?$")
#: What a launcher puts in front: `[08:03:35] [STDERR] `.
_FRONT = re.compile(rb"^\s*(?:\[[\w:., -]{1,60}\] {1,4}){1,4}(?=[A-Za-z])")
_TORCHTUNE = re.compile(rb"(?:^|\s)(\d{1,6})\|(\d{1,12})\|Loss: [^\s:]{1,30}$")
_EPOCH = re.compile(rb"\b[Ee]poch[ #:\[]{0,3}(\d{1,6})\b")
#: YOLO's name of a bar: epoch, memory, losses, size of images.
_YOLO = re.compile(rb"(?:^|\s)(\d{1,6})/\d{1,6}\s{1,20}\d[\d.]{0,10}[GM]?(?:\s{1,20}[\d.naif+-]{1,12}){2,12}$")
_WORD = re.compile(rb"[A-Za-z]+")
#: First words of bars that are steps of training, and words in those that are not.
_STEPS = {b"epoch", b"epochs", b"train", b"training", b"step", b"steps", b"iteration", b"iterations", b"loss"}
_OTHERS = re.compile(
    rb"(?i)\b(?:map|filter|flatten|token|loading|load|download|fetch|generat|saving|save|cast|pack|truncat|group|convert|adding|apply"
    rb"|extract|creat|pre-?process|process|sanity|valid|val\b|eval|test|predict|infer|upload|resolv|compil|captur|warm-?up|shard|file"
    rb"|checkpoint|sampl|rollout|quantiz|materializ|model-|pytorch_model)"
)
_PAIR = re.compile(rb"'([A-Za-z_][\w/.-]{0,60})': '?(-?\d{1,15}(?:\.\d{0,20})?(?:e[+-]?\d{1,3})?)'?(?=[,}])")
#: What ms-swift adds to a dict.
_SWIFT = re.compile(rb"'global_step/max_steps': '(\d{1,12})/(\d{1,12})'[^\n]{0,200}?'elapsed_time': '([\w ]{2,30})'")
_SETTING = re.compile(
    rb"\b(logging_steps|save_steps|eval_steps|dataloader_num_workers|save_strategy|eval(?:uation)?_strategy)"
    rb"[=:] ?'?([\w.]{1,40})"
)
_FACT = re.compile(
    rb"\b(Total optimization steps|Num Epochs|Total train batch size)(?: \([^()]{1,80}\))? = (\d[\d,]{0,15})"
)
_SAVING = re.compile(
    rb"(?:Saving model checkpoint to|Saved state to|Saving current state to) \S{0,400}?(?:-|_)(\d{1,12})\b"
)
_RESUMED = re.compile(rb"Continuing training from global step (\d{1,12})\b")
#: Series of bars that are told apart: scripts have a handful.
MAX_SERIES = 64
#: Fewer bars that nothing says to be of training are of a program that waited for something.
LEAST_BARS = 5
#: Count and clock of another rank's bar are at least this part of those of the bar before it.
BEHIND = 0.5
#: A bar alone tells the mean since it began where its clock shows so many seconds, and its rate is no other by this part.
ALONE_S, SAME_RATE = 5.0, 0.2


class _Series:
    """Bars of one name and total."""

    def __init__(self, name: bytes, total: int) -> None:
        self.name, self.total = name, total
        self.count, self.order = array("q"), array("q")
        self.elapsed_s, self.rate = array("d"), array("d")
        self.is_inverse = array("b")
        self.number = array("q")  # of the epoch; -1 where the name does not tell it
        self.base = array("q")  # steps before the count, by the step in the name; -1 likewise
        self.longest_s = 0.0
        self.votes = 0
        self.n_validated = 0  # batches of validation that the count goes on with at the end of an epoch

    def add(self, count: int, shown: tuple[float, float, bool], named: tuple[int, int], order: int) -> None:
        """Add a bar, with elapsed seconds, rate and how it is written; the same one painted again is passed over."""
        (elapsed_s, rate, is_inverse), (number, base) = shown, named
        if self.count and count == self.count[-1] and number == self.number[-1] and elapsed_s >= self.elapsed_s[-1]:
            self.base[-1] = max(self.base[-1], base)  # the name is painted after the count
            return
        self.count.append(count)
        self.order.append(order)
        self.elapsed_s.append(elapsed_s)
        self.rate.append(rate)
        self.is_inverse.append(is_inverse)
        self.number.append(number)
        self.base.append(base)
        self.longest_s = max(self.longest_s, elapsed_s)

    def add_all(
        self, count: Ints, elapsed_s: Seconds, rate: Seconds, is_inverse: Bools, base: Ints, order: int
    ) -> None:
        """Add bars with the number of the one before them, in the file numbered from `order` on."""
        n = len(count)
        is_same = np.diff(count, prepend=self.count[-1]) == 0
        if np.any(is_same & (np.diff(elapsed_s, prepend=self.elapsed_s[-1]) < 0)):
            for i, shown in enumerate(zip(elapsed_s.tolist(), rate.tolist(), is_inverse.tolist(), strict=True)):
                self.add(int(count[i]), shown, (self.number[-1], int(base[i])), order + i)
            return
        # The name is painted after the count.
        begins = np.flatnonzero(np.r_[True, ~is_same])
        most = np.maximum.reduceat(np.r_[self.base[-1], base], begins)
        self.base[-1] = int(most[0])
        for values, told in (
            (self.count, count),
            (self.order, order + np.arange(n)),
            (self.elapsed_s, elapsed_s),
            (self.rate, rate),
            (self.is_inverse, is_inverse),
            (self.number, np.full(n, self.number[-1])),
        ):
            values.frombytes(told[~is_same].astype(values.typecode).tobytes())
        self.base.frombytes(most[1:].astype(self.base.typecode).tobytes())
        self.longest_s = max(self.longest_s, float(elapsed_s[~is_same].max(initial=0.0)))

    def drop_others(self) -> None:
        """Drop bars that other ranks paint between: count and clock are a little behind, and a new run begins with both."""
        count, elapsed_s, number = (np.array(values) for values in (self.count, self.elapsed_s, self.number))
        is_behind = ((np.diff(count) < 0) | (np.diff(elapsed_s) < 0)) & (np.diff(number) == 0)
        if not is_behind.any():
            return
        is_new = (np.diff(number) != 0) | (count[1:] < BEHIND * count[:-1]) | (elapsed_s[1:] < BEHIND * elapsed_s[:-1])
        kept = []
        for lap in np.split(np.arange(len(count)), np.flatnonzero(is_new) + 1):
            ahead = np.r_[-1, np.maximum.accumulate(count[lap])[:-1]]
            passed_s = np.r_[-1.0, np.maximum.accumulate(elapsed_s[lap])[:-1]]
            kept.append(lap[(count[lap] > ahead) & (elapsed_s[lap] >= passed_s)])
        self._keep(np.concatenate(kept))

    def drop_validation(self) -> None:
        """Drop what Lightning counts on with at the end of epochs, until its version 2: batches of the validation."""
        if self.n_validated:
            self.total -= self.n_validated
            self._keep(np.flatnonzero(np.array(self.count) <= self.total))

    def _keep(self, at: Ints) -> None:
        """Keep some of the bars."""
        for values in (self.count, self.order, self.elapsed_s, self.rate, self.is_inverse, self.number, self.base):
            told = np.array(values)[at]
            del values[:]
            values.frombytes(told.astype(values.typecode).tobytes())


class _Reader:
    row = _ROW

    def __init__(self, log: LogBuilder) -> None:
        self.log = log
        self.series: dict[tuple[bytes, int], _Series] = {}
        self.n_bars = 0
        self.dicts: list[tuple[int, dict[bytes, float]]] = []
        self.stamps = array("d")
        self.saves: list[tuple[int, int, bytes]] = []
        self.settings: dict[bytes, bytes] = {}
        self.facts: dict[bytes, int] = {}
        self.words: Counter[str] = Counter()
        self.to_vote = False
        #: The bar of an epoch that was painted last.
        self.last: _Series | None = None

    def take(self, line: bytes) -> bool:
        """Take one line."""
        if b" it/s, Epoch " in line and (said := _NOTEBOOK.search(line)):
            count, total, h, m, s = (int(part or 0) for part in said.groups())
            self.words["Hugging Face Trainer"] += 1
            self._add(b"step", count, total, 3600.0 * h + 60.0 * m + s, math.nan, is_inverse=False)
        elif b"[" in line and b"/" in line:
            self._take_bars(line)
        elif b"it/s" in line:
            self._take_rich(line)
        if b"{'" in line:
            self._take_dict(line)
        elif said := _RESUMED.search(line):
            self.dicts.append((self.n_bars, {b"resumed_at": float(said[1])}))
        elif said := _SAVING.search(line):
            if len(self.saves) < MAX_EVENTS:
                self.saves.append((self.n_bars, int(said[1]), line))
        elif b" = " in line and (said := _FACT.search(line)):
            self.facts[said[1]] = int(said[2].replace(b",", b""))
        elif b"_st" in line or b"_num_workers" in line:
            for key, value in _SETTING.findall(line):
                self.settings[key.replace(b"evaluation", b"eval")] = value
        return False

    def _take_bars(self, line: bytes) -> None:
        """Take the bars of a line; a paste may have lost the carriage returns between them."""
        end = 0
        for said in _BAR.finditer(line):
            before = line[max(end, said.start() - 700) : said.start()]
            h, m, s = (int(part or 0) for part in said.group(3, 4, 5))
            value = float(said[6]) if said[6] else math.nan
            is_inverse = said[7] is not None
            rate = (1.0 / value if value > 0 else math.nan) if is_inverse else value
            self._add(before, int(said[1]), int(said[2]), 3600.0 * h + 60.0 * m + s, rate, is_inverse=is_inverse)
            if b"v_num=" in line[said.end() : said.end() + 200]:
                self.words["Lightning"] += 1
            end = said.end()

    def take_rows(self, rows: list[tuple[bytes, ...]]) -> bool:
        """Take the groups of lines with one bar each, of one name and total, or a dict; torchtune names its bars by their steps."""
        bars = [row[:-1] for row in rows if row[1]]
        if not bars or (len(bars) < len(rows) and any(b"global_step/max_steps" in row[-1] for row in rows)):
            return False
        names, counts, totals, h, m, s, values, inverse, ends = zip(*bars, strict=True)
        steps = [name.split(b"|") for name in names] if b"|" in names[0] else []
        if len(set(totals)) > 1 or (len(set(names)) > 1 and not (steps and min(map(len, steps)) == 3)):
            return False
        count = np.array(list(map(int, counts)))
        elapsed_s = 60.0 * np.array(list(map(int, m))) + np.array(list(map(int, s)))
        if any(h):
            elapsed_s += 3600.0 * np.array([int(hours or 0) for hours in h])
        value, is_inverse = np.array(list(map(float, values))), np.array(inverse) != b""
        with np.errstate(divide="ignore"):
            rate = np.where(is_inverse, np.where(value > 0, 1.0 / value, np.nan), value)
        base = np.full(len(bars), -1)
        if steps:
            base = np.maximum(np.array([int(parts[1]) for parts in steps]) - count, -1)
        if any(ends):
            self.words["Lightning"] += sum([b"v_num=" in end[:200] for end in ends])
        before, at = self.n_bars, 0
        while not rows[at][1]:
            self._take_dict(rows[at][-1])
            at += 1
        shown = float(elapsed_s[0]), float(rate[0])
        series = self._add(names[0], int(count[0]), int(totals[0]), *shown, is_inverse=bool(is_inverse[0]))
        for row in rows[at + 1 :] if len(rows) > len(bars) else ():
            if not row[1]:
                self._take_dict(row[-1])
                continue
            self.n_bars += 1
            if self.to_vote and series is not None and not names[0].strip(b" :"):
                series.votes += 1
            self.to_vote = False
        self.n_bars = before + len(bars)
        last = min(len(bars), 1 + max(MAX_STEPS - before - 1, 0))
        if series is not None and last > 1:
            many = slice(1, last)
            series.add_all(count[many], elapsed_s[many], rate[many], is_inverse[many], base[many], before + 2)
            self.log.seen = max(int(base[last - 1]), 0) + int(count[last - 1])
        return True

    def _take_rich(self, line: bytes) -> None:
        """Take a bar that rich drew: its rate is a mean of the last half minute, which cannot be undone."""
        if said := _RICH.search(line):
            h, m, s = (int(part) for part in said.group(3, 4, 5))
            name = line[max(0, said.start() - 400) : said.start()].partition(b"/")[0]
            self._add(name, int(said[1]), int(said[2]), 3600.0 * h + 60.0 * m + s, math.nan, is_inverse=False)
            self.words["Lightning"] += b"v_num" in line

    def _add(
        self, before: bytes, count: int, total: int, elapsed_s: float, rate: float, *, is_inverse: bool
    ) -> _Series | None:
        """Add a bar to its series; None where it has none."""
        self.n_bars += 1
        drawn = _DRAWN.search(before)
        name = _FRONT.sub(b"", before[: drawn.start() if drawn else None]).strip(b" :")
        number = base = -1
        if said := _TORCHTUNE.search(name):
            self.words["torchtune"] += 1
            name, base = b"", max(int(said[2]) - count, -1)
        elif said := _EPOCH.search(name):
            number = int(said[1])
        elif said := _YOLO.search(name):
            self.words["YOLO"] += 1
            name, number = b"", int(said[1])
        if b"DataLoader" in name:
            self.words["Lightning"] += 1
        if name and _OTHERS.search(name):
            if count == 0 and self.last is not None and name.startswith((b"Validating", b"Validation")):
                self._see_validation(self.last, total)
            return None
        word = _WORD.search(name)
        key = (word[0].lower() if word else b"", 0 if number >= 0 else total)
        series = self.series.get(key)
        if series is None:
            if len(self.series) >= MAX_SERIES:
                return None
            series = self.series.setdefault(key, _Series(*key))
        if self.n_bars <= MAX_STEPS:
            series.total = total
            self.log.seen = max(base, 0) + count
            series.add(count, (elapsed_s, rate, is_inverse), (number, base), self.n_bars)
        self.last = series if number >= 0 else None
        if self.to_vote and not name:
            series.votes += 1
        self.to_vote = False
        return series

    @staticmethod
    def _see_validation(series: _Series, n_batches: int) -> None:
        """See whether a validation that begins is what the bar of the epoch has still to count, but for what it did not paint."""
        left = series.total - series.count[-1] - n_batches
        unpainted = series.count[-1] - series.count[-2] if len(series.count) > 1 else 0
        if 0 <= left < max(unpainted, 1):
            series.n_validated = n_batches

    def _take_dict(self, line: bytes) -> None:
        """Take a dict of metrics."""
        begin = line.find(b"{'")
        values = {key: float(value) for key, value in _PAIR.findall(line, begin, begin + 8192)}
        if b"loss" not in values and b"eval_runtime" not in values and b"train_runtime" not in values:
            return
        if said := _SWIFT.search(line):
            values |= {
                b"step": float(said[1]),
                b"max_steps": float(said[2]),
                b"elapsed": read_duration(said[3].decode()),
            }
            self.words["ms-swift"] += 1
        if len(self.dicts) < MAX_STEPS:
            self.dicts.append((self.n_bars, values))
            self.words["Hugging Face Trainer"] += 1
            if b"num_tokens" in values or b"step_time" in values:
                self.words["TRL"] += 1
        self.to_vote = b"loss" in values

    def end(self) -> None:
        """Tell what all of it says."""
        self.log.format = self._name_writer()
        for series in self.series.values():
            series.drop_others()
            series.drop_validation()
        chosen = self._choose()
        if chosen:
            self._tell_bars(chosen)
        else:
            self._tell_dicts()
        if self.log.n_steps:
            self._tell_settings(chosen[0].total if chosen else 0)

    def _name_writer(self) -> str:
        """Say who wrote it."""
        for name in ("torchtune", "ms-swift"):
            if self.words[name]:
                return name
        if self.words["TRL"]:
            return "Hugging Face Trainer (TRL)"
        if self.words["Hugging Face Trainer"] or b"Total optimization steps" in self.facts:
            return "Hugging Face Trainer"
        if self.words["YOLO"]:
            return "YOLO"
        return "Lightning" if self.words["Lightning"] else "a training loop with tqdm"

    def _choose(self) -> list[_Series]:
        """Give the series of the training loop: several where it was started with another number of steps."""
        named = [series for series in self.series.values() if series.name in _STEPS or _is_numbered(series)]
        # Of one bar alone something else must say that it is of training.
        real = [
            series
            for series in self.series.values()
            if len(series.count) > 1 or series in named or (self.dicts and not series.name)
        ]
        voted = [series for series in real if series.votes]
        stated = [series for series in real if series.total == self.facts.get(b"Total optimization steps", -1)]
        if voted:
            most = max(series.votes for series in voted)
            return [series for series in voted if 2 * series.votes >= most or series in stated]
        if stated:
            return stated
        least = 0 if self.dicts else LEAST_BARS
        others = [series for series in real if not series.name and len(series.count) > least]
        return sorted(named or others, key=lambda one: -one.longest_s)[:1]

    def _tell_bars(self, chosen: list[_Series]) -> None:
        """Tell the steps of the bars, lap by lap."""
        how: Counter[str] = Counter()
        dicts = _Dicts(self.dicts)
        laps = sorted((lap for series in chosen for lap in _split(series)), key=lambda lap: lap[0].order[lap[1]])
        base = last = 0
        before: tuple[_Series, int, int] | None = None
        apart = self._find_apart(laps)
        for series, low, high in laps:
            is_restart = False
            named = max(series.base[low:high])
            if named >= 0:
                base = named
                is_restart = before is not None and base + series.count[low] < last
            elif before is None:
                base = self._base_of_first(series, low)
            else:
                base, is_restart = _go_on(before, (series, low, high), base)
            if is_restart:
                self.log.begin()
            self._tell_lap((series, low, high), base, apart, dicts, how)
            last = base + series.count[high - 1]
            before = (series, low, high)
        if self._is_numbered(laps):
            self.log.set_interval("epoch", chosen[0].total)
        else:
            self.log.total = chosen[0].total
        said = how.most_common(1)[0][0] if how else "elapsed"
        self.log.reads = f"progress bar ({said})"
        self._tell_events(chosen, dicts)

    def _is_numbered(self, laps: list[tuple[_Series, int, int]]) -> bool:
        """Say whether a bar is of an epoch, and not of the whole run."""
        return self.words["torchtune"] > 0 or any(series.number[low] >= 0 for series, low, _ in laps)

    @staticmethod
    def _base_of_first(series: _Series, low: int) -> int:
        """Say how many steps there were before the first bar: whole epochs, which are counted from 0 or from 1."""
        number = series.number[low]
        return (number - 1) * series.total if number > 1 else 0

    def _find_apart(self, laps: list[tuple[_Series, int, int]]) -> float:
        """Say how many steps a line is to be of in all laps: as many as the coarsest needs, as lines of one run are alike."""
        if len(laps) < 2:
            return 0.0
        apart = 0.0
        for lap in laps:
            series, low, high = lap
            bars = self._read_lap(lap)[0] if high - low > 1 else np.zeros(0, dtype=np.int64)
            if len(bars) and np.median(np.diff(bars, prepend=0)) > 1:
                count = np.array(series.count[low:high], dtype=np.int64)
                apart = max(apart, float(np.median(np.diff(count[np.r_[0, bars]]))))
        return apart

    def _read_lap(self, lap: tuple[_Series, int, int], apart: float = 0.0) -> tuple[Ints, Seconds, float, str]:
        """Read the bars of a lap, as `read_lap` does."""
        series, low, high = lap
        shown = Lap(
            np.array(series.count[low:high], dtype=np.int64),
            np.array(series.elapsed_s[low:high]),
            np.array(series.rate[low:high]),
            np.array(series.is_inverse[low:high], dtype=bool),
        )
        return read_lap(shown, is_mean=self.words["Lightning"] > 0, apart=apart)

    def _tell_lap(
        self, lap: tuple[_Series, int, int], base: int, apart: float, dicts: "_Dicts", how: Counter[str]
    ) -> None:
        """Tell the steps of one lap."""
        series, low, high = lap
        if high - low < 2:
            self._tell_alone(series, low, base, how)
            return
        count = np.array(series.count[low:high], dtype=np.int64)
        bars, mean_s, error, said = self._read_lap(lap, apart)
        self.log.clock = max(self.log.clock, error)
        how[said] += len(bars)
        skipped = _count_skipped(count)
        ends = count[bars]
        begins = np.r_[count[:1], ends][:-1]
        kept = np.flatnonzero((begins >= skipped) & ~np.isnan(mean_s))
        orders = np.array(series.order[low:high], dtype=np.int64)[bars[kept]]
        before = self.log.n_steps
        told = self.log.add_steps(base + ends[kept], mean_s[kept], tokens=dicts.tokens_at(orders))
        between_s = dicts.evaluated_since(orders[told]) / (ends - begins)[kept[told]]
        at = np.flatnonzero(between_s)
        self.log.add_parts("evaluation", before + at, between_s[at])

    def _tell_alone(self, series: _Series, at: int, base: int, how: Counter[str]) -> None:
        """Tell the mean since a lap began, of which there is one bar: the last of an epoch, as a rule."""
        count, elapsed_s, rate = series.count[at], series.elapsed_s[at], series.rate[at]
        if count > 0 and elapsed_s >= ALONE_S and not abs(rate * elapsed_s / count - 1.0) > SAME_RATE:
            how["elapsed, whole seconds"] += 1
            self.log.clock = max(self.log.clock, 0.5 / elapsed_s)
            self.log.add_step(base + count, (elapsed_s + 0.5) / count, stamp_s=math.nan, n_steps=count)

    def _tell_events(self, chosen: list[_Series], dicts: "_Dicts") -> None:
        """Tell evaluations and saves, each after the step that the bar showed last."""
        order = np.concatenate([np.array(series.order, dtype=np.int64) for series in chosen])
        count = np.concatenate([np.array(series.count, dtype=np.int64) for series in chosen])
        by = np.argsort(order)
        order, count = order[by], count[by]
        for at, seconds in dicts.evaluations:
            where = int(np.searchsorted(order, at, side="right")) - 1
            self.log.add_event("evaluation", iteration=int(count[max(where, 0)]), seconds=seconds)
        for _, iteration, text in self.saves:
            self.log.add_event("save", iteration=iteration, text=text)

    def _tell_clock(self) -> None:
        """Tell the dicts that have their step and a clock in whole seconds."""
        told = [values for _, values in self.dicts if b"loss" in values and b"step" in values]
        step, clock_s = (np.array([values[key] for values in told]) for key in (b"step", b"elapsed"))
        self.log.total, self.log.reads = int(told[-1][b"max_steps"]), "elapsed_time of the dicts, whole seconds"
        for n, lap in enumerate(np.split(np.arange(len(step)), np.flatnonzero(np.diff(step) <= 0) + 1)):
            if n:
                self.log.begin()
            number = step[lap].astype(np.int64)
            for _, high, step_s in self.log.read_clock(number, clock_s[lap], np.full(len(lap), 0.5)):
                self.log.add_step(int(number[high]), step_s, stamp_s=math.nan)

    def _tell_dicts(self) -> None:
        """Tell the dicts where no bar tells steps: by their clock, else they are counted."""
        if self.words["ms-swift"]:
            self._tell_clock()
            return
        interval = _whole(self.settings.get(b"logging_steps"))
        if not interval:
            self.log.notes.append("the interval of its lines is not stated: each is taken for one step")
        iteration = 0
        tokens = iter(_count_tokens([values for _, values in self.dicts]))
        for _, values in self.dicts:
            if b"resumed_at" in values:
                self.log.begin()
                iteration = int(values[b"resumed_at"])
            elif b"eval_runtime" in values:
                self.log.add_event("evaluation", iteration=iteration, seconds=values[b"eval_runtime"])
            elif b"loss" in values:
                interval = max(interval, 1)
                iteration += interval
                worked = next(tokens) / interval
                step_s = values.get(b"step_time", math.nan)
                if math.isnan(step_s) and values.get(b"step_tokens_per_second", 0) > 0:
                    step_s = worked / values[b"step_tokens_per_second"]
                if not math.isnan(step_s):
                    self.log.add_step(iteration, step_s, tokens=worked, stamp_s=math.nan)
        self.log.reads = "step_time of the dicts"

    def _tell_settings(self, total: int) -> None:
        """Tell the intervals of the arguments."""
        for key, kind in ((b"logging_steps", "log"), (b"dataloader_num_workers", "loader-workers")):
            self.log.set_interval(kind, _whole(self.settings.get(key)))  # type: ignore[arg-type]
        for key, strategy, kind, usual in (
            (b"save_steps", b"save_strategy", "save", b"steps"),
            (b"eval_steps", b"eval_strategy", "evaluation", b"no"),
        ):
            if self.settings.get(strategy, usual).rpartition(b".")[2].lower() == b"steps":
                self.log.set_interval(kind, _whole(self.settings.get(key)))  # type: ignore[arg-type]
        epochs = self.facts.get(b"Num Epochs", 0)
        if epochs > 1 and total:
            self.log.set_interval("epoch", total // epochs)


def _go_on(before: tuple[_Series, int, int], now: tuple[_Series, int, int], base: int) -> tuple[int, bool]:
    """Say how many steps there were before a lap, and whether the run was started again for it."""
    was, was_low, was_high = before
    series, low, _ = now
    done, number, was_number = was.count[was_high - 1], series.number[low], was.number[was_low]
    if number >= 0:
        length = max(series.total, done)
        if number > was_number:
            return base + (number - was_number) * length, False
        return max(0, base - (was_number - number) * length), True
    if done >= was.total and was.total == series.total:
        return base + done, False
    return base, True


class _Dicts:
    """What the dicts say, by the bars that they stand between."""

    def __init__(self, dicts: list[tuple[int, dict[bytes, float]]]) -> None:
        self.evaluations = [(order, values[b"eval_runtime"]) for order, values in dicts if b"eval_runtime" in values]
        self._orders = [order for order, values in dicts if b"loss" in values]
        #: The tokens before a bar by the dicts before it: those of the next one, and nothing before the first and after the last.
        self._tokens = np.r_[np.nan, _count_tokens([values for _, values in dicts])[1:], np.nan]
        self._evaluated_s = np.cumsum([0.0, *(seconds for _, seconds in self.evaluations)])
        self._given_s = 0.0

    def tokens_at(self, orders: Ints) -> Seconds:
        """Give the tokens between the dicts around bars, which only have a meaning beside others."""
        found: Seconds = self._tokens[np.minimum(np.searchsorted(self._orders, orders), len(self._tokens) - 1)]
        return found

    def evaluated_since(self, orders: Ints) -> Seconds:
        """Give the seconds of evaluations before each bar that were not given yet; orders increase, also from call to call."""
        evaluated_s = self._evaluated_s[np.searchsorted([order for order, _ in self.evaluations], orders)]
        since_s: Seconds = np.diff(evaluated_s, prepend=self._given_s)
        self._given_s = float(evaluated_s[-1]) if len(evaluated_s) else self._given_s
        return since_s


def _count_tokens(dicts: list[dict[bytes, float]]) -> list[float]:
    """Count the tokens since the dict of a loss before, for each; NaN where they do not say, or where a run starts again.

    A count of four digits, as some versions write it, grows in leaps: then it is taken to grow evenly for as long as they allow.
    """
    seen = np.array(
        [
            values.get(b"num_tokens", values.get(b"num_input_tokens_seen", math.nan))
            for values in dicts
            if b"loss" in values
        ]
    )
    if not np.isfinite(seen).any():
        return [math.nan] * len(seen)
    with np.errstate(divide="ignore", invalid="ignore"):
        digit = 10.0 ** (np.floor(np.log10(seen)) - 3)
        is_short = bool(np.all(np.abs(seen / digit - np.round(seen / digit)) < 1e-6))
    begins = [0, *(np.flatnonzero(~(np.diff(seen) >= 0)) + 1).tolist(), len(seen)]
    found = np.full(len(seen), math.nan)
    for low, high in itertools.pairwise(begins):
        lap = seen[low:high]
        found[low + 1 : high] = _even_out(lap.tolist(), digit[low:high].tolist()) if is_short else np.diff(lap)
    found[~(found > 0)] = math.nan
    return [float(each) for each in found]


def _even_out(count: list[float], digit: list[float]) -> list[float]:
    """Give what a count grows by from each reading to the next: straight on from a reading for as long as its digits allow."""
    grown: list[float] = []
    at, low, high = 0, 0.0, math.inf
    for n in range(1, len(count)):
        passed = count[n] - count[at]
        least, most = max(low, (passed - digit[n]) / (n - at)), min(high, (passed + digit[n]) / (n - at))
        if least > most:
            grown += (n - 1 - at) * [(low + high) / 2]
            at, passed = n - 1, count[n] - count[n - 1]
            least, most = max(passed - digit[n], 0.0), passed + digit[n]
        low, high = least, most
    return grown + (len(count) - 1 - at) * [(low + high) / 2]


def _is_numbered(series: _Series) -> bool:
    """Say whether the bars of a series are of epochs with a number, or of a run that is named by its step."""
    return bool(max(series.number) >= 0 or max(series.base) >= 0)


def _split(series: _Series) -> list[tuple[_Series, int, int]]:
    """Split a series where its clock or its count starts again."""
    count, elapsed_s = np.array(series.count), np.array(series.elapsed_s)
    number = np.array(series.number)
    is_new = (np.diff(count) <= 0) | (np.diff(elapsed_s) < 0) | (np.diff(number) != 0)
    edges = [0, *(np.flatnonzero(is_new) + 1).tolist(), len(count)]
    return [(series, low, high) for low, high in itertools.pairwise(edges)]


def _count_skipped(count: "np.ndarray") -> int:
    """Say up to where a bar was moved at once, because the run goes on from a checkpoint."""
    new = np.diff(count)
    usual = float(np.median(new))
    return int(count[1]) if count[0] == 0 and new[0] > 5 * usual else 0


def _whole(text: bytes | None) -> int:
    """Read a whole number of steps; 0 where it is none, as a part of all steps is."""
    try:
        value = float(text) if text is not None else 0.0
    except ValueError:
        return 0
    return int(value) if value >= 1 and value == int(value) else 0


FORMAT = LogFormat(
    name="progress-bars",
    title="Hugging Face Trainer, Lightning, torchtune, Accelerate (progress bars)",
    reads="progress bar",
    example="12%|..| 120/1000 [02:03<15:01, 1.02s/it]",
    step_marks=(b"it/s", b"s/it", b"{'loss'", b"steps/s", b"step/s"),
    marks=(
        b"{'eval_",
        b"{'train_runtime'",
        b"Total optimization steps",
        b"Num Epochs",
        b"Total train batch size",
        b"Continuing training from global step",
        b"Saving model checkpoint to",
        b"Saved state to",
        b"_steps=",
        b"_strategy=",
        b"dataloader_num_workers",
    ),
    reader=_Reader,
    is_mean=True,
)
