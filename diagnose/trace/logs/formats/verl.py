"""The console of verl: all metrics of a step on one line.

Enters: lines. Leaves: steps.

`step:12 - .. - timing_s/gen:74.02 - timing_s/update_actor:14.3 - timing_s/step:96.6 - .. perf/total_num_tokens:1094381`. A step has
its saves and tests in it.

Source: verl-project/verl, verl/utils/logger/aggregate_logger.py (`concat_dict_to_str`), verl/trainer/ppo/metric_utils.py
(`compute_timing_metrics`, `compute_throughout_metrics`).
"""

import re

from diagnose.model.training_log import LogEventKind, LogPart
from diagnose.trace.logs.builder import LogBuilder
from diagnose.trace.logs.log_format import LogFormat

_STEP = re.compile(rb"\bstep:(\d{1,12}) - ")
_TIMING = re.compile(rb"\b(timing_s/\w{1,60}|perf/total_num_tokens):(\d{1,12}(?:\.\d{1,20})?(?:e[+-]?\d{1,3})?)\b")
#: What part of a step each timer is; others overlap these, or are small.
_PARTS: dict[bytes, LogPart] = {
    b"gen": "generation",
    b"old_log_prob": "forward",
    b"ref": "forward",
    b"values": "forward",
    b"update_actor": "update",
    b"update_critic": "update",
    b"save_checkpoint": "save",
    b"testing": "evaluation",
}
_EVENTS: dict[bytes, LogEventKind] = {b"save_checkpoint": "save", b"testing": "evaluation"}


class _Reader:
    def __init__(self, log: LogBuilder) -> None:
        self.log = log

    def take(self, line: bytes) -> bool:
        """Take one line."""
        said = _STEP.search(line)
        values = {key.removeprefix(b"timing_s/"): float(value) for key, value in _TIMING.findall(line)}
        if said is None or b"step" not in values:
            return False
        iteration, step_s = int(said[1]), values[b"step"]
        before = self.log.n_steps
        self.log.add_step(iteration, step_s, tokens=values.get(b"perf/total_num_tokens", float("nan")))
        if self.log.n_steps == before:
            return False
        for name, part in _PARTS.items():
            if name in values and values[name] <= step_s:
                self.log.add_part(part, values[name])
        for name, kind in _EVENTS.items():
            if name in values:
                self.log.add_event(kind, iteration=iteration, seconds=values[name])
        return False


FORMAT = LogFormat(
    name="verl-console",
    title="verl",
    reads="timing_s/step",
    example="step:12 - .. timing_s/step:96.551 ..",
    step_marks=(b"timing_s/step:",),
    reader=_Reader,
)
