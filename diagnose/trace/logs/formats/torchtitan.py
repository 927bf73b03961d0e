"""The console of torchtitan.

Enters: lines. Leaves: steps.

`step: 10 loss: 6.1 memory: 49.66GiB(52.28%) tps: 5,856 mfu: 34.29%` every `log_freq` steps, and for the first one. `tps` are
the tokens of one GPU in a second, since the line before; it leaves out validation, and counts saves in. The seconds of a step
are its tokens divided by that: by batch and sequence length where the log prints them, else as stamps tell. Without both only
the pace is known: seconds of a million tokens.

Source: pytorch/torchtitan, torchtitan/components/metrics.py (`MetricsProcessor.log`), train.py, components/checkpoint.py,
tools/utils.py (`GarbageCollection`), distributed/parallel_dims.py.
"""

import math
import re
from array import array

import numpy as np

from diagnose.model.training_log import LogIntervalKind
from diagnose.trace.logs.builder import NOMINAL, LogBuilder
from diagnose.trace.logs.log_format import LogFormat

_STEP = re.compile(rb"\bstep: {1,8}(\d{1,12}) {1,8}[^\n]{0,400}?\btps: {0,8}(\d[\d,]{0,15})\b")
_SECONDS = re.compile(rb"(\d{1,7}\.\d{1,6}) ?s(?:econds?)?\b")
_SHAPE = re.compile(
    rb"local batch size (\d{1,9}), global batch size (\d{1,9}), gradient accumulation steps (\d{1,9}), sequence length (\d{1,9}), "
    rb"total steps (\d{1,12})"
)
_MESH = re.compile(rb"-D device mesh with \[([^\[\]]{1,200})\], \[([\d, ]{1,100})\]")
_STARTS = re.compile(rb"Training starts at step (\d{1,12})")
#: Settings that are intervals: their section, what turns them on, and their kind.
_INTERVALS: dict[tuple[bytes, bytes], tuple[bytes | None, LogIntervalKind]] = {
    (b"metrics", b"log_freq"): (None, "log"),
    (b"training", b"gc_freq"): (None, "collection"),
    (b"checkpoint", b"interval"): (b"enable", "save"),
    (b"validation", b"freq"): (b"enable", "evaluation"),
    (b"validator", b"freq"): (b"enable", "evaluation"),
    (b"profiling", b"profile_freq"): (b"enable", "profile"),
}
_SECTION = re.compile(rb"['\"](\w{1,40})['\"]: ?\{([^{}]{0,20000})")
_PAIR = re.compile(rb"['\"](\w{1,60})['\"]: ?(true|false|True|False|\d{1,12})\b")
#: Lines of settings that are printed one below the other.
MAX_SETTINGS = 2000
#: Tokens of a step do not vary where all are this near to their median: what is left is rounding.
SAME_TOKENS = 0.01
#: A rate of fewer tokens a second is rounded more coarsely than stamps are.
COARSE_TPS = 100


class _Reader:
    def __init__(self, log: LogBuilder) -> None:
        self.log = log
        self.step, self.tps, self.stamp_s = array("q"), array("d"), array("d")
        self.sources: list[bytes] = []
        self.begins: list[int] = []
        #: Saves and evaluations: the line of a step that they come after, their kind and seconds.
        self.between: list[tuple[int, str, float]] = []
        self.tokens, self.batch, self.others = 0, 0, 1
        self.settings: bytes | None = None
        self.n_settings = 0

    def take(self, line: bytes) -> bool:
        """Take one line."""
        if self.settings is not None:
            return self._take_setting(line)
        if b"tps:" in line:
            self._take_step(line)
        elif b"Running with " in line:
            return self._begin_settings(line)
        elif b"[GC]" in line:
            if (b"eriod" in line) and (said := _SECONDS.search(line)):
                self.log.add_event("collection", iteration=self._last(), seconds=float(said[1]), text=line)
        elif b"checkpoint" in line:
            self._take_save(line)
        elif said := _SHAPE.search(line):
            local, batch, accumulated, seq_len, total = map(int, said.groups())
            self.tokens, self.batch, self.log.total = local * accumulated * seq_len, batch, total
        elif said := _MESH.search(line):
            self._take_mesh(said[1], said[2])
        elif _STARTS.search(line) and self.step:
            self.begins.append(len(self.step))
        elif b"Dumping profiler traces at step" in line:
            self.log.add_event("profile", iteration=self._last(), text=line)
        return False

    def _last(self) -> int:
        return self.step[-1] if self.step else 0

    def _take_step(self, line: bytes) -> None:
        """Take the line of a step, or that of a validation."""
        stamp_s = self.log.find_stamp()
        if b"validate step:" in line:
            since_s = stamp_s - self.stamp_s[-1] if self.step else math.nan
            earlier_s = sum(seconds for at, _, seconds in self.between if at == len(self.step))
            self.between.append((len(self.step), "evaluation", since_s - earlier_s))
            return
        if (said := _STEP.search(line)) is None:
            return
        self.step.append(int(said[1]))
        self.log.seen = self.step[-1]
        self.tps.append(float(said[2].replace(b",", b"")))
        self.stamp_s.append(stamp_s)
        self.sources.append(self.log.source)

    def _take_save(self, line: bytes) -> None:
        """Take the end of a save; with `async` it is the end of what training waited for."""
        is_save = b"Finished saving the checkpoint" in line and b"background" not in line
        if (is_save or b"checkpoint completed in" in line) and (said := _SECONDS.search(line)):
            self.between.append((len(self.step), "save", float(said[1])))

    def _take_mesh(self, names: bytes, sizes: bytes) -> None:
        """Take how ranks are laid out."""
        numbers = [int(size) for size in sizes.split(b",") if size.strip().isdigit()]
        mesh = dict(
            zip((name.strip(b" '\"").decode("ascii", "replace") for name in names.split(b",")), numbers, strict=False)
        )
        self.others = math.prod(mesh.get(name, 1) for name in ("tp", "pp", "cp", "sp"))
        self.log.sizes.update({f"{name}_size": mesh.get(name, 1) for name in ("pp", "tp", "cp")})
        self.log.sizes["world_size"] = math.prod(numbers)

    def _begin_settings(self, line: bytes) -> bool:
        """Begin to take the settings, which stand on this line or on those below."""
        text = line[line.find(b"{") :] if b"{" in line else b""
        if not text:
            return False
        if len(text.strip()) > 2:
            self._read_settings(text)
            return False
        self.settings, self.n_settings = text, 0
        return True

    def _take_setting(self, line: bytes) -> bool:
        """Take a line of the settings; the brace at the begin of a line ends them."""
        assert self.settings is not None
        self.settings += line.strip() + b"\n"
        self.n_settings += 1
        if not line.startswith(b"}") and self.n_settings < MAX_SETTINGS and b"tps:" not in line:
            return True
        self._read_settings(self.settings)
        self.settings = None
        return False

    def _read_settings(self, text: bytes) -> None:
        """Read the intervals of the settings."""
        for section, inside in _SECTION.findall(text[: 1 << 16]):
            values = dict(_PAIR.findall(inside))
            off = {key for key, value in values.items() if value.lower() == b"false"}
            for (of, key), (enables, kind) in _INTERVALS.items():
                is_off = enables is not None and any(name.startswith(enables) for name in off)
                if of == section and values.get(key, b"").isdigit() and not is_off:
                    self.log.set_interval(kind, int(values[key]))

    def end(self) -> None:
        """Tell all steps: how many tokens each has is known only now."""
        if not self.step:
            return
        step, tps, stamp_s = (np.array(found) for found in (self.step, self.tps, self.stamp_s))
        begins = sorted({0, *self.begins, *(np.flatnonzero(np.diff(step) < 0) + 1).tolist()})
        step_s, tokens = self._time(step, tps, stamp_s, begins)
        between: dict[int, list[tuple[str, float]]] = {}
        for at, kind, seconds in self.between:
            between.setdefault(at, []).append((kind, seconds))
        for n in range(len(step) + 1):
            for kind, seconds in between.get(n, []):
                self.log.add_event(kind, iteration=int(step[n - 1]) if n else 0, seconds=seconds)  # type: ignore[arg-type]
            if n == len(step):
                break
            if n in self.begins:
                self.log.begin()
            self.log.source = self.sources[n]
            self.log.add_step(int(step[n]), step_s[n], batch_size=self.batch, tokens=tokens[n], stamp_s=stamp_s[n])
            saved_s = sum(seconds for kind, seconds in between.get(n, []) if kind == "save")
            if saved_s > 0 and n not in begins:
                self.log.add_part("save", saved_s / max(step[n] - step[n - 1], 1))

    def _time(
        self, step: np.ndarray, tps: np.ndarray, stamp_s: np.ndarray, begins: list[int]
    ) -> tuple[list[float], list[float]]:
        """Say how long a step of each line took, and its tokens where they vary."""
        n_steps = np.diff(step, prepend=0).astype(np.float64)
        passed_s = np.diff(stamp_s, prepend=np.nan)
        n_steps[begins], passed_s[begins] = np.nan, np.nan
        with np.errstate(divide="ignore", invalid="ignore"):
            by_stamps_s = np.where((n_steps > 0) & (passed_s > 0), passed_s / n_steps, np.nan)
            tokens = tps * self.others * by_stamps_s
            known = tokens[np.isfinite(tokens)]
            usual = float(np.median(known)) if len(known) else math.nan
            varies = len(known) > 2 and float(np.median(np.abs(known - usual))) > SAME_TOKENS * usual
            if varies:
                self.log.reads = "stamps of the lines; tokens from tps"
                return by_stamps_s.tolist(), tokens.tolist()
            if self.tokens:
                usual = float(self.tokens)
                self.log.reads = "tokens of a step by tps"
            elif math.isnan(usual):
                usual = float(NOMINAL)
                self.log.of = "1,000,000 tokens of a GPU"
                self.log.reads = "tps: how many tokens a step has is not stated"
            else:
                self.log.reads = "tps, and stamps of the lines"
            coarse = (tps < COARSE_TPS) & np.isfinite(by_stamps_s)
            by_tokens_s = np.where(tps > 0, usual / (tps * (1 if self.log.of else self.others)), np.nan)
            return np.where(coarse, by_stamps_s, by_tokens_s).tolist(), [math.nan] * len(step)


FORMAT = LogFormat(
    name="torchtitan-console",
    title="torchtitan",
    reads="tps",
    example="step: 10  loss: ..  memory: ..  tps: 5,856  mfu: ..%",
    step_marks=(b"tps: ", b"tps:\x1b"),
    marks=(
        b"[GC] ",
        b"ing the checkpoint",
        b"checkpoint completed in",
        b"Running with args: ",
        b"Running with configs: ",
        b"Trainer is initialized with",
        b"-D device mesh with",
        b"Training starts at step",
        b"Dumping profiler traces at step",
    ),
    opening_marks=(b"[titan] ",),
    reader=_Reader,
    is_mean=True,
)
