"""Find out what is known about the job: from the file, from a YAML file, else from the rows.

Enters: the metadata found in the trace file and the path of the trace. Leaves: a `Job` that agrees with the rows, and
warnings where the two contradicted each other.
"""

import datetime as dt
import math
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from diagnose.errors import MetadataError, UsageError, shorten
from diagnose.model.job_names import name_of_job
from diagnose.model.trace import Job, Loader

SIZES = ("dp_size", "pp_size", "tp_size", "cp_size", "vpp_size", "world_size")
ALIASES = {"trial_name": "job_id", "dsp_size": "cp_size"}
#: A larger metadata file is a mistake, or an attack.
MAX_META_BYTES = 256 * 1024
#: Whole numbers beyond this mean nothing here.
MAX_NUMBER = 10**12
#: A parallel size beyond this is damage: no job has so many GPUs.
MAX_SIZE = 1e8
TEXTS = ("job_id", "name", "schedule", "started_at", "finished_at", "gpu_type", "owner", "framework", "alloc_conf")


def read_metadata(path: Path | None, footer: dict[str, Any], meta: Path | Mapping[str, Any] | None) -> dict[str, Any]:
    """Merge the places where metadata may lie; the first that has a key wins.

    They are the trace file itself (`footer`), a YAML file that the user names or what would stand in it (`meta`), and one beside
    the trace (`path`; None where it is no file).

    Raises
    ------
    UsageError
        The named file does not exist.
    MetadataError
        A metadata file that is not a YAML mapping; the message is `file:line: what`.
    """
    found = _canonical(footer)
    places = [meta] if isinstance(meta, Path) else []
    if isinstance(meta, Path) and not meta.is_file():
        raise UsageError("no such metadata file; expected YAML", where=str(meta))
    if isinstance(meta, Mapping):
        found = (
            _canonical({key: value.item() if hasattr(value, "item") else value for key, value in meta.items()}) | found
        )
    if path is not None:
        stem = path.name.removesuffix(".parquet")
        beside = [path.with_name(f"{stem}.yaml"), path.with_name(f"{stem}.yml")]
        if stem.startswith("trace-"):
            beside.insert(0, path.with_name(f"meta-{stem.removeprefix('trace-')}.yaml"))
        places += [place for place in beside if place.is_file()][:1]
    for place in places:
        found = _canonical(_read_yaml(place)) | found
    return found


def resolve_job(
    found: dict[str, Any],
    *,
    run_id: str,
    location: str,
    n_dp: int,
    n_stages: int,
    n_chunks: int | None,
    max_rank: int | None,
    n_tp: int | None,
) -> tuple[Job, list[str]]:
    """Make a `Job` of what the metadata says and what the rows show; rows win, with a warning for each contradiction.

    `run_id` is the job's where the metadata has none, and `location`, path or URL of the trace, gives the name that its runs share
    (`name_of_job`). The numbers are those of the rows: data-parallel ranks, stages, model
    chunks a worker, the largest global rank, and tensor-parallel ranks; None where rows do not say, or record one a group.
    """
    warnings: list[str] = []
    sizes = _read_sizes(found, warnings)
    seen: dict[str, int | None] = {"dp_size": n_dp, "pp_size": n_stages, "vpp_size": n_chunks, "tp_size": n_tp}
    for key, rows_say in seen.items():
        said = sizes[key]
        if rows_say is not None and said is not None and said != rows_say:
            warnings.append(f"metadata: {key} is {said}, the rows have {rows_say}; the rows are used")
        if rows_say is not None:
            sizes[key] = rows_say
    dp, pp, cp = n_dp, n_stages, sizes["cp_size"] or 1
    world, tp = sizes["world_size"], sizes["tp_size"]
    n_ranks = world if world is not None or max_rank is None else max_rank + 1
    if tp is None and n_ranks is not None and n_ranks % (dp * pp * cp) == 0:
        tp = n_ranks // (dp * pp * cp)
    if not any(found.get(key) for key in SIZES):
        warnings.append(
            f"no metadata: parallelism taken from the rows (dp {dp}, pp {pp}, tp {tp or 'unknown, taken as 1'}, cp taken as 1)"
        )
    tp = tp or 1
    if world is not None and world != dp * pp * tp * cp:
        warnings.append(
            f"metadata: world_size is {world}, dp x pp x tp x cp is {dp * pp * tp * cp}; the product is used"
        )
    layers = _read_layers(found.get("layers_per_stage"), warnings)
    texts = _texts(found, warnings)
    texts["name"] = name_of_job(name=texts.get("name"), job_id=texts.get("job_id"), location=location)
    job = Job(
        dp_size=dp,
        pp_size=pp,
        tp_size=tp,
        cp_size=cp,
        vpp_size=sizes["vpp_size"] or 1,
        world_size=dp * pp * tp * cp,
        layers_per_stage=layers,
        steps_total=_read_count(found, "steps_total", warnings),
        ep_size=_read_count(found, "ep_size", warnings, most=int(MAX_SIZE)),
        n_hosts=_read_count(found, "n_hosts", warnings, most=int(MAX_SIZE)),
        has_cuda=_read_flag(found, "has_cuda", warnings),
        saves=_read_flag(found, "saves", warnings),
        reads_input=_read_flag(found, "reads_input", warnings),
        records_gc=_read_flag(found, "records_gc", warnings),
        loader=_read_loader(found.get("loader"), warnings),
        **({"job_id": run_id} | texts),
    )
    return job, warnings


def count_ranks_told(found: dict[str, Any]) -> int:
    """Count the ranks that the metadata tells of, whether or not the rows have them; 0 where it tells of none."""
    sizes = _read_sizes(found, [])
    layout = [sizes[key] for key in ("dp_size", "pp_size", "tp_size", "cp_size")]
    return max(sizes["world_size"] or 0, math.prod(size or 1 for size in layout) if any(layout) else 0)


def _read_sizes(found: dict[str, Any], warnings: list[str]) -> dict[str, int | None]:
    """Read the sizes of the job; None where nothing says one."""
    sizes: dict[str, int | None] = dict.fromkeys(SIZES)
    for key in SIZES:
        value = found.get(key)
        if value is None:
            continue
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if is_number and 1 <= value < MAX_SIZE and value == int(value):
            sizes[key] = int(value)
        else:
            warnings.append(f"metadata: {key} is {_shown(value)}, expected a whole number from 1; ignored")
    return sizes


def _read_layers(layers: Any, warnings: list[str]) -> tuple[int, ...] | None:
    """Read the layers of each stage; None where nothing says them."""
    if layers is None:
        return None
    if (
        isinstance(layers, list)
        and layers
        and all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < MAX_NUMBER for n in layers)
    ):
        return tuple(layers)
    warnings.append("metadata: layers_per_stage is not a list of whole numbers; ignored")
    return None


def _read_count(found: dict[str, Any], key: str, warnings: list[str], *, most: int = MAX_NUMBER) -> int | None:
    """Read a whole number from 1; None where nothing says it."""
    value = found.get(key)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value < most):
        return value
    warnings.append(f"metadata: {key} is {_shown(value)}, expected a whole number from 1; ignored")
    return None


def _read_flag(found: dict[str, Any], key: str, warnings: list[str]) -> bool | None:
    """Read what is true or false; None where nothing says it."""
    value = found.get(key)
    if value is None or isinstance(value, bool):
        return value
    warnings.append(f"metadata: {key} is {_shown(value)}, expected true or false; ignored")
    return None


def _read_loader(found: Any, warnings: list[str]) -> Loader | None:
    """Read how the data loader is set up; None where nothing says it."""
    if found is None:
        return None
    workers = found.get("num_workers") if isinstance(found, dict) else None
    if not isinstance(workers, int) or isinstance(workers, bool) or not 0 <= workers < MAX_SIZE:
        warnings.append(f"metadata: loader is {_shown(found)}, expected a mapping with num_workers, from 0; ignored")
        return None
    return Loader(
        num_workers=workers,
        prefetch_factor=_read_count(found, "prefetch_factor", warnings),
        pin_memory=_read_flag(found, "pin_memory", warnings),
        persistent_workers=_read_flag(found, "persistent_workers", warnings),
    )


def _canonical(found: dict[str, Any]) -> dict[str, Any]:
    """Use one name for each key."""
    renamed = {ALIASES.get(key, key): value for key, value in found.items() if key in ALIASES}
    return renamed | {key: value for key, value in found.items() if key not in ALIASES and value is not None}


def _texts(found: dict[str, Any], warnings: list[str]) -> dict[str, str]:
    """Read the free texts; numbers and dates are as good, anything nested is ignored with a warning."""
    texts: dict[str, str] = {}
    for key in TEXTS:
        value = found.get(key)
        if isinstance(value, (str, float, dt.date)) or (isinstance(value, int) and abs(value) < MAX_NUMBER):
            texts[key] = str(value)[:500]
        elif value is not None:
            warnings.append(f"metadata: {key} is {_shown(value)}, expected text; ignored")
    return texts


def _shown(value: Any) -> str:
    """Write a value for a warning, shortened where it is long or deep."""
    try:
        return reprlib.repr(value)
    except ValueError:  # Python writes no more than 4300 digits
        return "a number too long to write"


class _Loader(yaml.SafeLoader):
    """Reads YAML without aliases, a few lines of which can fill the memory; in Python, where nesting is an exception."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Refuse an alias."""
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]  # the stubs leave it out
            raise yaml.MarkedYAMLError(problem="an alias; write out what it stands for", problem_mark=mark)
        return super().compose_node(parent, index)


def _read_yaml(place: Path) -> dict[str, Any]:
    """Read one metadata file."""
    try:
        if place.stat().st_size > MAX_META_BYTES:
            raise MetadataError(f"is larger than {MAX_META_BYTES} bytes; expected a few lines", where=f"{place}:1")
        found = yaml.load(place.read_bytes(), Loader=_Loader)  # noqa: S506 - a safe loader
    except (OSError, yaml.YAMLError, ValueError, RecursionError, MemoryError) as error:
        mark = getattr(error, "problem_mark", None)
        what = getattr(error, "problem", None) or shorten(error)
        line = 1 if mark is None else mark.line + 1
        raise MetadataError(f"cannot be read as YAML ({what})", where=f"{place}:{line}") from None
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise MetadataError(
            "is not a mapping of names to values; expected lines such as `dp_size: 4`", where=f"{place}:1"
        )
    return found
