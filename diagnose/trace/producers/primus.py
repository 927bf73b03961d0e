"""Pipeline parts of Primus (AMD-AGI): `--dump_pp_data`, one JSON file a pipeline rank, and `config.json` beside them.

Enters: the folder, or one file of it. Leaves: a `Recording` of forwards and backwards. Each rank counts milliseconds from where
it entered the schedule of the iteration, so that the ranks are aligned in each iteration. Weight gradients that a
zero-bubble schedule computes apart are dropped and counted.
"""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from diagnose.errors import TraceError
from diagnose.model.optype import Op
from diagnose.model.recording import Dropped, Recording, Unobserved
from diagnose.trace.clocks import align
from diagnose.trace.input_files import InputFiles, name_in
from diagnose.trace.producers.absent import find_absent
from diagnose.trace.producers.catalogue import Report
from diagnose.trace.producers.contents import read_json
from diagnose.trace.producers.weights import Computes

NAME = "primus"
TITLE = "Primus pipeline dump (--dump_pp_data): a folder with pp_rank_*.json and config.json"

#: Numbers beyond this are damage: iterations, microbatches, chunks, ranks.
MAX_NUMBER = 10**9
_NUMBER = re.compile(r"(\d{1,9})(?!.*\d)")
_TIMELINE = re.compile(rb'^\s*\{\s*"\d{1,9}"\s*:\s*\{.{0,4000}?"(?:fwd|bwd)_(?:start|end)"\s*:\s*\[', re.DOTALL)


class _Config(msgspec.Struct):
    """What `config.json` says of the job."""

    world_size: int | None = None
    dp_size: int | None = None
    tp_size: int | None = None
    pp_size: int | None = None
    vp_size: int | None = None
    train_iters: int | None = None


class _Iteration(msgspec.Struct):
    """One iteration of one rank: milliseconds since the rank entered the schedule."""

    fwd_start: list[float | None] = []
    fwd_end: list[float | None] = []
    fwd_minibatch: list[int] | None = None
    fwd_chunk: list[int] | None = None
    bwd_start: list[float | None] = []
    bwd_end: list[float | None] = []
    bwd_minibatch: list[int] | None = None
    bwd_chunk: list[int] | None = None
    wgrad_start: list[float | None] = []
    wgrad_end: list[float | None] = []
    wgrad_minibatch: list[int] | None = None
    wgrad_chunk: list[int] | None = None


def recognise(inputs: InputFiles) -> bool:
    """Say whether any of the files begins as an iteration's lists of forwards or backwards."""
    return any(_TIMELINE.match(inputs.head(file)) for file in inputs.files)


def read(inputs: InputFiles, *, name: str, report: Report) -> Recording:
    """Read all pipeline ranks."""
    files = [file for file in inputs.files if _TIMELINE.match(inputs.head(file))]
    others = [file for file in inputs.files if file not in set(files)]
    config = _read_config(others, inputs, name)
    _refuse_two_dumps(files, inputs, name)
    ranks, warnings = _rank_files(files, config)
    parts = []
    for n, (file, stage) in enumerate(zip(files, ranks, strict=True), start=1):
        report(f"rank {n} of {len(files)}")
        parts.append(_read_rank(file, stage, where=name_in(inputs.path, file, name)))
    computes = Computes.join(parts)
    n_others = len(others) - (config is not None)
    recording = computes.recorded(
        producer=NAME,
        microbatch=computes.microbatch,
        chunk=computes.chunk,
        job=_describe(config),
        dropped=(Dropped("files", n_others, "hold no timeline of a pipeline rank"),) if n_others else (),
        unobserved=(
            Unobserved("collectives", "Primus records forwards and backwards only", ("communication-in-flight",)),
            Unobserved("waiting for input", "it is part of the forward that waits", ("input",)),
            Unobserved("time between steps", "each iteration begins at 0", ("between-steps",)),
            Unobserved("other data-parallel ranks", "Primus writes those of dp rank 0", ("data-parallel-ranks",)),
        ),
        warnings=warnings,
    )
    n_stages = None if config is None else config.pp_size
    recording = dataclasses.replace(
        recording, unobserved=(*recording.unobserved, *find_absent(recording, n_stages=n_stages))
    )
    return align(recording, "rank", per_step=True)


def _refuse_two_dumps(files: Sequence[Path], inputs: InputFiles, name: str) -> None:
    """Refuse files of one name in several folders: nothing but its name says which rank a file is of."""
    seen: dict[str, Path] = {}
    for file in files:
        first = seen.setdefault(file.name, file)
        if first != file:
            raise TraceError(
                f"has the name of {name_in(inputs.path, first, name)}, and names number the ranks; expected the dump of one job: "
                "name its folder",
                where=name_in(inputs.path, file, name),
            )


def _read_config(files: Sequence[Path], inputs: InputFiles, name: str) -> _Config | None:
    """Read what a file beside the ranks says of the job; None where none does."""
    for file in files:
        if b'"pp_size"' in inputs.head(file):
            where = name_in(inputs.path, file, name)
            return read_json(file, _Config, name=where, expected="an object with sizes", most=1 << 20)
    return None


def _rank_files(files: Sequence[Path], config: _Config | None) -> tuple[list[int], tuple[str, ...]]:
    """Say which pipeline rank each file is of: nothing but its name tells."""
    found = [_NUMBER.search(file.name) for file in files]
    ranks = [int(match[1]) for match in found if match]
    warnings = []
    if len(set(ranks)) != len(files):
        ranks = list(range(len(files)))
        warnings.append(
            "the names of the files do not number the pipeline ranks; they are taken in the order of the names"
        )
    if config is not None and config.pp_size is not None and config.pp_size != len(files):
        warnings.append(
            f"{len(files)} of {config.pp_size} pipeline ranks are there; what waits for the others cannot be told: name the folder"
        )
    return ranks, tuple(warnings)


def _read_rank(file: Path, stage: int, *, where: str) -> Computes:
    """Read one file: its operations, milliseconds made seconds."""
    iterations = read_json(
        file,
        dict[str, _Iteration],
        name=where,
        expected='{"<iteration>": {"fwd_start": [ms, ..], "fwd_end": [..], ..}, ..}',
    )
    parts = [
        Computes.of(Op.FORWARD, 0, stage, (), (), None, None, unit_s=1e-3)
    ]  # all there is of a rank without iterations
    for text, iteration in iterations.items():
        if not text.isdecimal() or int(text) > MAX_NUMBER:
            raise TraceError(f"has a key {text[:40]!r}; expected the number of an iteration", where=where)
        for place, op in (("fwd", Op.FORWARD), ("bwd", Op.BACKWARD), ("wgrad", Op.WEIGHT)):
            starts, ends = (getattr(iteration, f"{place}_{side}") for side in ("start", "end"))
            if len(starts) != len(ends):
                raise TraceError(
                    f"has {len(starts)} starts and {len(ends)} ends; expected as many: record the job again",
                    where=f"{where}: iteration {text}: {place}",
                )
            numbers = [
                _numbers(
                    getattr(iteration, f"{place}_{what}"),
                    len(starts),
                    where=f"{where}: iteration {text}: {place}_{what}",
                )
                for what in ("minibatch", "chunk")
            ]
            parts.append(Computes.of(op, int(text), stage, starts, ends, *numbers, unit_s=1e-3))
    return Computes.join(parts)


def _numbers(values: list[int] | None, n: int, *, where: str) -> list[int] | None:
    """Check a list that goes with the operations, where there is one."""
    if not values:
        return None
    if len(values) != n or not all(0 <= value <= MAX_NUMBER for value in values):
        raise TraceError(
            f"has {len(values)} numbers for {n} operations, or some that are none; expected one each", where=where
        )
    return values


def _describe(config: _Config | None) -> dict[str, object]:
    """Turn the sizes into metadata of the job; the rows are of one dp rank."""
    if config is None:
        return {"framework": "Primus"}
    sizes = {
        "tp_size": config.tp_size,
        "pp_size": config.pp_size,
        "vpp_size": config.vp_size,
        "steps_total": config.train_iters,
    }
    return {"framework": "Primus"} | {key: value for key, value in sizes.items() if value is not None}
