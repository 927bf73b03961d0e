"""Two fuzzers: Parquet that is sound but laid out in every way there is, and folders in which all kinds of files lie together.

`python -m tests.fuzz_structures 0 1500` tries so many inputs of each, and prints what is wrong: anything but an answer or a
`DiagnoseError`. `python -m tests.fuzz_structures tables 17` tries one again. A share of them is `test_fuzz_structures.py`.
"""

import contextlib
import faulthandler
import gzip
import io
import json
import os
import resource
import shutil
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from diagnose.errors import DiagnoseError
from diagnose.model.request import Request
from diagnose.pipeline import diagnose_job
from diagnose.triage.identity import Judge
from diagnose.triage.source import list_jobs
from diagnose.triage.worker import Task, do_job
from tests.jobs import to_table
from tests.test_fuzz import ABSURD_FLOATS, ABSURD_INTS, SHAPES, ask, healthy
from tests.trace.foreign_files import FOREIGN
from tests.trace.producers.megatron_lines import run

ROOT = Path(__file__).resolve().parents[1]
#: Seconds after which an input is taken to hang.
HANGS_S = 120
Rng = np.random.Generator


# ---------------------------------------------------------------------------------- tables

INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
NUMBERS = [*INTEGERS, pa.float16(), pa.float32(), pa.float64()]
ODD = [
    pa.bool_(),
    pa.string(),
    pa.large_string(),
    pa.binary(),
    pa.decimal128(38, 9),
    pa.timestamp("us"),
    pa.duration("ns"),
    pa.date32(),
    pa.time64("us"),
    pa.null(),
    pa.struct([("a", pa.int64())]),
    pa.map_(pa.string(), pa.int64()),
    pa.list_(pa.int64()),
]
INDICES = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()]
JOB_VALUES: list[Any] = [
    *(None, True, -1, 0, 1, 3, 2**31, 10**30, 1e300, 0.5, "", "x", "us", "s", "\x00", "\u202e", "x" * 3000),
    *([], [1], [[1]], {}, {"num_workers": 2}, {"a": {"b": [None]}}, "2026-01-01T00:00:00Z"),
]
JOB_KEYS = [
    *("job_id", "name", "dp_size", "pp_size", "tp_size", "cp_size", "dsp_size", "vpp_size", "world_size", "ep_size"),
    *("layers_per_stage", "schedule", "steps_total", "started_at", "finished_at", "owner", "framework", "gpu_type"),
    *(
        "n_hosts",
        "has_cuda",
        "saves",
        "reads_input",
        "records_gc",
        "loader",
        "alloc_conf",
        "unit",
        "sample",
        "trial_name",
    ),
]


def pick(rng: Rng, choices: Any) -> Any:
    """Choose one, whatever they are."""
    return choices[int(rng.integers(len(choices)))]


def cast(column: Any, kind: pa.DataType) -> Any:
    """Write a column with another type; as it is where no value fits."""
    if pa.types.is_nested(kind):
        value: Any = [("a", 1)] if pa.types.is_map(kind) else [1] if pa.types.is_list(kind) else {"a": 1}
        return pa.array([value] * len(column), kind)
    try:
        if pa.types.is_float16(kind):
            with np.errstate(over="ignore"):
                return pa.array(column.to_numpy().astype(np.float16))
        return pa.nulls(len(column), kind) if pa.types.is_null(kind) else column.cast(kind, safe=False)
    except (pa.ArrowException, ValueError, TypeError):
        return column


def change_columns(rng: Rng, table: pa.Table) -> pa.Table:
    """Give some columns other types, mostly ones that hold the same values; dictionaries of any index."""
    for at, name in enumerate(table.column_names):
        if rng.random() < 0.35:
            column, is_text = table.column(at), pa.types.is_string(table.schema.field(at).type)
            kinds = [pa.string(), pa.large_string()] if is_text else NUMBERS
            column = cast(column, pick(rng, ODD) if rng.random() < 0.06 else pick(rng, kinds))
            if rng.random() < 0.3:
                with contextlib.suppress(pa.ArrowException):
                    plain = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
                    encoded = plain.dictionary_encode()
                    column = encoded.cast(pa.dictionary(pick(rng, INDICES), encoded.type.value_type))
            table = table.set_column(at, name, column)
    return table


def put_nulls(rng: Rng, table: pa.Table) -> pa.Table:
    """Leave values out: few, many, all, a run of them; in one column or in several."""
    for at, name in enumerate(table.column_names):
        if rng.random() < 0.15 and len(table):
            hole = rng.random(len(table)) < pick(rng, [0.001, 0.05, 0.5, 1.0])
            if rng.random() < 0.3:
                hole = np.arange(len(table)) < int(rng.integers(len(table)))
            column = table.column(at)
            with contextlib.suppress(pa.ArrowException):
                table = table.set_column(at, name, pa.array(column.to_pylist(), type=column.type, mask=hole))
    return table


def add_lists(rng: Rng, table: pa.Table) -> pa.Table:
    """Give computes lists of documents and of tokens by expert: nulls, nothing, negative, huge, of any type and layout."""
    for name in ("doc_lengths", "expert_tokens"):
        if rng.random() < 0.4:
            longest, most = int(pick(rng, [0, 1, 4, 200])), int(pick(rng, [2, 4096, 2**31, 2**62]))
            kind = pick(rng, [*INTEGERS[2:], pa.float64(), pa.null(), pa.string()])
            values = [
                None if rng.random() < 0.2 else rng.integers(-1, most, int(rng.integers(longest + 1))).tolist()
                for _ in range(len(table))
            ]
            if rng.random() < 0.3:
                values = [None if row is None or not row else [*row, None] for row in values]
            outer: Any = pick(rng, [pa.list_, pa.large_list])
            with contextlib.suppress(pa.ArrowException, OverflowError):
                table = table.append_column(name, pa.array(values, type=outer(pa.int64())).cast(outer(kind)))
    return table


def put_values(rng: Rng, table: pa.Table) -> pa.Table:
    """Put absurd values into some rows of a column, or move, scale or shuffle a whole one."""
    for name in (
        "step",
        "dp_rank",
        "stage",
        "seq_id",
        "mb_id",
        "mc",
        "rank",
        "tp_rank",
        "start_ts",
        "duration",
        "tokens",
    ):
        if rng.random() < 0.06 and name in table.column_names:
            values = table[name].to_numpy().copy()
            is_float = values.dtype.kind == "f"
            how = int(rng.integers(4))
            if how == 0:
                values[rng.random(len(values)) < pick(rng, [0.01, 0.5])] = pick(
                    rng, ABSURD_FLOATS if is_float else ABSURD_INTS
                )
            elif how == 1:
                values = values * (10.0 ** int(rng.integers(-9, 10)) if is_float else int(rng.integers(-3, 100)))
            elif how == 2:
                values = values + (10.0 ** int(rng.integers(0, 18)) if is_float else int(rng.integers(-5, 1000)))
            else:
                values = rng.permutation(values)
            table = table.set_column(table.column_names.index(name), name, pa.array(values))
    return table


def lay_out(rng: Rng, table: pa.Table) -> pa.Table:
    """Change order and number of rows and columns."""
    if rng.random() < 0.3:
        table = table.take(pa.array(rng.permutation(len(table))))
    if rng.random() < 0.1:
        table = table.slice(int(rng.integers(len(table))), int(rng.integers(len(table))))
    if rng.random() < 0.3:
        table = table.select(list(rng.permutation(table.column_names)))
    if rng.random() < 0.15:
        table = table.drop_columns([str(rng.choice(table.column_names))])
    if rng.random() < 0.15:
        name = pick(rng, ["step", "a.b", "", "x" * 5000, "\x1b[31m", "optype ", "Step", "__index_level_0__"])
        table = table.append_column(name, pa.array(np.arange(len(table))))
    return table


def describe(rng: Rng, table: pa.Table) -> pa.Table:
    """Write metadata: of a job, of a recording, of a recorder, of pandas; objects, or no JSON at all."""
    said = {key: pick(rng, JOB_VALUES) for key in JOB_KEYS if rng.random() < 0.15}
    footer: dict[bytes, bytes] = dict(table.schema.metadata or {}) if rng.random() < 0.5 else {}
    if rng.random() < 0.6:
        footer[b"diagnose.job"] = json.dumps(said).encode()
    for key in (b"diagnose.job", b"diagnose.recording", b"diagnose.recorder", b"pandas", b"ARROW:schema"):
        if rng.random() < 0.07:
            texts = [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"producer": 3}', b"[" * 100_000, b'{"a": 1e999}', b"{}"]
            footer[key] = pick(rng, texts)
    return table.replace_schema_metadata(footer)


def write_table(rng: Rng, table: pa.Table) -> bytes:
    """Write a table with any encoding, compression, page and group."""
    options: dict[str, Any] = {
        "compression": pick(rng, ["none", "snappy", "gzip", "zstd", "lz4", "brotli"]),
        "row_group_size": int(pick(rng, [1, 7, 100, 10_000])),
        "data_page_version": pick(rng, ["1.0", "2.0"]),
        "version": pick(rng, ["1.0", "2.4", "2.6"]),
        "write_statistics": bool(rng.random() < 0.5),
        "store_schema": bool(rng.random() < 0.5),
        "write_page_index": bool(rng.random() < 0.3),
        "write_page_checksum": bool(rng.random() < 0.3),
        "data_page_size": int(pick(rng, [1, 100, 1 << 20])),
        "dictionary_pagesize_limit": int(pick(rng, [1, 100, 1 << 20])),
        "use_dictionary": bool(rng.random() < 0.5),
    }
    if not options["use_dictionary"] and rng.random() < 0.7:
        fits = {
            "i": ["PLAIN", "DELTA_BINARY_PACKED"],
            "f": ["PLAIN", "BYTE_STREAM_SPLIT"],
            "s": ["PLAIN", "DELTA_BYTE_ARRAY"],
        }
        kinds = {
            field.name: "f" if pa.types.is_floating(field.type) else "i" if pa.types.is_integer(field.type) else "s"
            for field in table.schema
            if pa.types.is_floating(field.type) or pa.types.is_integer(field.type) or pa.types.is_string(field.type)
        }
        options["column_encoding"] = {name: pick(rng, fits[kind]) for name, kind in kinds.items()}
    for some in (options, {"row_group_size": options["row_group_size"]}, {}):
        file = io.BytesIO()
        with contextlib.suppress(pa.ArrowException, OSError, ValueError, TypeError):
            pq.write_table(table, file, **some)
            return file.getvalue()
    return b""


def make_table(seed: int) -> bytes:
    """Make a Parquet file."""
    rng = np.random.default_rng([seed, 61])
    rows, meta = healthy(int(rng.integers(len(SHAPES))))
    table = to_table(rows, meta)
    for change in (put_values, add_lists, lay_out, change_columns, put_nulls, describe):
        if rng.random() < 0.75:
            table = change(rng, table)
    return write_table(rng, table)


def try_table(seed: int) -> bool:
    """Diagnose a table; True where there is an answer."""
    content = make_table(seed)
    try:
        ask(content)
    except DiagnoseError as error:
        check_message(error)
        return False
    return True


# ---------------------------------------------------------------------------------- folders

NAMES = [
    "job",
    "run 1",
    "-x",
    "start-1",
    "start-2",
    "rank-00000",
    "a\nb",
    "ü",
    "trace-7",
    "meta-7",
    "diagnosis",
    "x" * 100,
]


def _write_trace(rng: Rng, path: Path) -> None:
    rows, meta = healthy(int(rng.integers(len(SHAPES))))
    table = to_table(rows, meta)
    if rng.random() < 0.5:  # one rank of it
        dp, stage = (int(rng.choice(rows[column].unique())) for column in ("dp_rank", "stage"))
        table = to_table(rows[(rows.dp_rank == dp) & (rows.stage == stage)], meta)
        footer = {"diagnose.job": json.dumps(meta), "diagnose.recorder": "{}"}
        table = table.replace_schema_metadata(footer)
    pq.write_table(table, path)


def _write_fuzzed(rng: Rng, path: Path) -> None:
    path.write_bytes(make_table(int(rng.integers(10**6))))


def _write_cut(rng: Rng, path: Path) -> None:
    content = Path(pick(rng, sorted((ROOT / "fixtures").glob("*.parquet")))).read_bytes()
    path.write_bytes(content[: int(rng.integers(len(content)))])


def _write_foreign(rng: Rng, path: Path) -> None:
    _, content = pick(rng, FOREIGN[pick(rng, sorted(FOREIGN))])
    path.write_bytes(content() if callable(content) else content)


def _write_log(rng: Rng, path: Path) -> None:
    n = int(rng.integers(1, 40))
    text = "\n".join(run(range(1, n + 1), rng.uniform(0.5, 3.0, n).tolist())).encode()
    path.write_bytes(gzip.compress(text) if rng.random() < 0.3 else text[: int(rng.integers(len(text) + 1))])


def _write_metadata(rng: Rng, path: Path) -> None:
    said = {key: pick(rng, JOB_VALUES[:14]) for key in JOB_KEYS if rng.random() < 0.2}
    path.with_suffix(pick(rng, [".yaml", ".yml"])).write_text(
        pick(rng, [json.dumps(said), "a: &a [*a]", "- 1", ":", ""])
    )


def _write_bytes(rng: Rng, path: Path) -> None:
    path.write_bytes(
        pick(rng, [b"", b"PAR1", b"PAR1PAR1", b"{", b"[]", b"\x1f\x8b", b"\x00" * 70_000, rng.bytes(3000)])
    )


def _link(rng: Rng, path: Path) -> None:
    near = sorted(path.parent.iterdir())
    path.symlink_to(
        pick(rng, [path.parent, path, Path("/nowhere"), Path("/dev/null"), ROOT / "fixtures/healthy.parquet", *near])
    )


def _make_pipe(_rng: Rng, path: Path) -> None:
    os.mkfifo(path)


def _make_folder(rng: Rng, path: Path) -> None:
    path.mkdir()
    fill(rng, path, int(rng.integers(4)))


WRITERS: tuple[Callable[[Rng, Path], None], ...] = (
    *(_write_trace, _write_trace, _write_trace, _write_fuzzed, _write_cut, _write_foreign, _write_log),
    *(_write_metadata, _write_bytes, _link, _make_pipe, _make_folder),
)


def fill(rng: Rng, folder: Path, n_files: int) -> None:
    """Put files of all kinds into a folder, under names that say little of what they are."""
    for _ in range(n_files):
        writer = pick(rng, WRITERS)
        ending = (
            ".parquet"
            if rng.random() < 0.6
            else pick(rng, ["", ".json", ".log", ".txt", ".parquet.gz", ".db", ".PARQUET"])
        )
        path = folder / f"{'.' if rng.random() < 0.03 else ''}{pick(rng, NAMES)}-{int(rng.integers(3))}{ending}"
        with contextlib.suppress(FileExistsError, IsADirectoryError):
            if not path.is_symlink() and not path.is_fifo():
                writer(rng, path)


def try_folder(seed: int) -> bool:
    """Diagnose a folder as one job, and each job that a night finds in it; True where anything has an answer."""
    rng = np.random.default_rng([seed, 67])
    place = Path(tempfile.mkdtemp(prefix="fuzz-"))
    answered = False
    try:
        fill(rng, place, int(rng.integers(1, 9)))
        try:
            json.dumps(diagnose_job(Request(place)).to_dict(), allow_nan=False)
            answered = True
        except DiagnoseError as error:
            check_message(error)
        for job in list_jobs([str(place)])[:4]:
            row = do_job(Task(job, Judge("1", "2", None, 1.02))).row
            assert row is not None and row.failure not in ("internal", "crash"), (job.location, row and row.reason)
            answered |= row.status == "diagnosed"
    finally:
        shutil.rmtree(place)
    return answered


def check_message(error: DiagnoseError) -> None:
    """An error says something, and not too much."""
    assert error.message, "an error without a message"
    assert len(str(error)) < 4000, f"a message of {len(str(error))} characters"


# ---------------------------------------------------------------------------------- the program

FUZZERS: dict[str, Callable[[int], bool]] = {"tables": try_table, "folders": try_folder}


def main(args: list[str]) -> int:
    """Try many inputs, or one again."""
    warnings.simplefilter("error")
    if args[0] in FUZZERS:
        print(FUZZERS[args[0]](int(args[1])))
        return 0
    n_wrong = n_answered = 0
    seeds = range(int(args[0]), int(args[1]))
    for seed in seeds:
        for kind, attempt in FUZZERS.items():
            faulthandler.dump_traceback_later(HANGS_S, exit=True)
            try:
                n_answered += attempt(seed)
            except Exception as error:  # noqa: BLE001 - whatever comes out is what this looks for
                n_wrong += 1
                frames = [f"{Path(f.filename).name}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)[-2:]]
                print(kind, seed, type(error).__name__, str(error)[:300], *frames, flush=True)
    faulthandler.cancel_dump_traceback_later()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"{len(seeds) * len(FUZZERS)} inputs: {n_answered} answered, {n_wrong} wrong, at most {most} MB of memory")
    return 1 if n_wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
