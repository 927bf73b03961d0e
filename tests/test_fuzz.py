"""Damaged files: 500 of them, each ends in an answer or in a `DiagnoseError`, within 2 GB, and never kills the interpreter.

Run as a program it is the worker: `python tests/test_fuzz.py FIRST END STRIDE` reports each seed before and after it tries it, so a
crash names the seed. To see one input again: `python tests/test_fuzz.py SEED`.
"""

import io
import json
import math
import resource
import subprocess
import sys
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from diagnose.errors import DiagnoseError  # noqa: E402 - a worker has no installed package to import
from diagnose.model.request import Request  # noqa: E402
from diagnose.pipeline import diagnose_job  # noqa: E402
from tests.jobs import Shape, random_job, to_table  # noqa: E402

N_INPUTS = 500
N_WORKERS = 2
MAX_RSS_BYTES = 2 * 2**30


def ask(content: bytes) -> None:
    """Do with one file all that the program does; its answer must be JSON without NaN or infinity."""
    json.dumps(diagnose_job(Request(io.BytesIO(content), name="fuzz.parquet")).to_dict(), allow_nan=False)


# ------------------------------------------------------------------------------------------ the inputs

SHAPES = (
    Shape(n_steps=4, n_dp=2, n_stages=2, n_microbatches=4),
    Shape(n_steps=3, n_dp=2, n_stages=2, n_microbatches=4, n_chunks=2, overlapped=True),
    Shape(n_steps=2, n_dp=1, n_stages=3, n_microbatches=5),
    Shape(n_steps=10, n_dp=3, n_stages=1, n_microbatches=3),
    Shape(n_steps=3, n_dp=3, n_stages=3, n_microbatches=4, compute_only=True),
)
INTS = ["step", "dp_rank", "stage", "seq_id", "mb_id", "mc", "rank", "tp_rank"]
FLOATS = ["start_ts", "duration", "tokens"]
ABSURD_INTS = (-1, -(2**63), 2**63 - 1, 2**62, 2**31, -(2**31), 10**6, 255, 99_999_999)
ABSURD_FLOATS = (math.nan, math.inf, -math.inf, -1.0, 1e308, -1e308, 1e-320, 1e18, 1.7e9, 0.0, 9.9e6, 1e11)


@cache
def healthy(i: int) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Give one of a few healthy jobs, with optional columns."""
    rows = random_job(SHAPES[i], i)
    return rows.assign(
        rank=rows.stage * SHAPES[i].n_dp + rows.dp_rank, tp_rank=0, host="h" + rows.dp_rank.astype(str), tokens=4096.0
    ), SHAPES[i].meta


def content_of(table: pa.Table) -> bytes:
    """Write a table."""
    file = io.BytesIO()
    pq.write_table(table, file, compression="snappy" if table.num_rows % 2 else "none")
    return file.getvalue()


def flip_bits(rng: np.random.Generator, table: pa.Table) -> bytes:
    """Damage the file itself, anywhere or in its footer."""
    content = bytearray(content_of(table))
    low = len(content) - 1500 if rng.random() < 0.5 else 0
    for _ in range(int(rng.choice([1, 1, 3, 20]))):
        content[int(rng.integers(max(low, 0), len(content)))] ^= 1 << int(rng.integers(8))
    return bytes(content)


def truncate(rng: np.random.Generator, table: pa.Table) -> bytes:
    """Cut the file off, or cut a piece out."""
    content = content_of(table)
    start = int(rng.integers(len(content)))
    return content[:start] if rng.random() < 0.5 else content[:start] + content[start + int(rng.integers(1, 200)) :]


def drop_rows(rng: np.random.Generator, table: pa.Table) -> bytes:
    """Lose rows: some, most, all of a type, all of a worker, all after a moment."""
    rows = table.to_pandas()
    kind = int(rng.integers(6))
    if kind == 0:
        keep = rng.random(len(rows)) > rng.choice([0.001, 0.02, 0.3, 0.9, 0.99])
    elif kind == 1:
        keep = rows.optype != rng.choice(rows.optype.unique())
    elif kind == 2:
        keep = (rows.stage != rng.choice(rows.stage.unique())) | (rows.dp_rank != rng.choice(rows.dp_rank.unique()))
    elif kind == 3:
        keep = rows.start_ts < rows.start_ts.quantile(rng.random())
    elif kind == 4:
        keep = np.arange(len(rows)) < int(rng.integers(len(rows)))
    else:
        keep = (rows.optype != rng.choice(rows.optype.unique())) | (rows.stage != rng.choice(rows.stage.unique()))
    return (
        content_of(to_table(rows[np.asarray(keep)]))
        if rng.random() < 0.5
        else content_of(table.filter(pa.array(np.asarray(keep))))
    )


def repeat_rows(rng: np.random.Generator, table: pa.Table) -> bytes:
    """Have rows twice, exactly or nearly."""
    rows = table.to_pandas()
    more = rows.sample(frac=float(rng.choice([0.01, 0.3, 1.0])), random_state=int(rng.integers(2**31)))
    if rng.random() < 0.5:
        more = more.assign(start_ts=more.start_ts + rng.normal(0, 0.01, len(more)))
    rows = pd.concat([rows, more])
    return content_of(
        to_table(
            rows.sample(frac=1.0, random_state=int(rng.integers(2**31))),
            json.loads(table.schema.metadata[b"diagnose.job"]),
        )
    )


def drop_columns(rng: np.random.Generator, table: pa.Table) -> bytes:
    """Lose columns, or have one twice."""
    if rng.random() < 0.2:
        return content_of(table.append_column(str(rng.choice(table.column_names)), table["step"]))
    return content_of(
        table.drop_columns(list(rng.choice(table.column_names, size=int(rng.integers(1, 7)), replace=False)))
    )


def change_type(rng: np.random.Generator, table: pa.Table) -> bytes:
    """Write a column with another type."""
    i = int(rng.integers(table.num_columns))
    types = [
        pa.int8(),
        pa.uint64(),
        pa.float16(),
        pa.float32(),
        pa.float64(),
        pa.string(),
        pa.large_string(),
        pa.binary(),
        pa.bool_(),
        pa.decimal128(38, 6),
        pa.timestamp("ns"),
        pa.duration("us"),
        pa.null(),
        pa.list_(pa.float64()),
        pa.dictionary(pa.int32(), pa.int64()),
        pa.date32(),
    ]
    wanted = types[int(rng.integers(len(types)))]
    values = table.column(i)
    try:
        if pa.types.is_null(wanted):
            column = pa.nulls(len(table))
        elif pa.types.is_list(wanted):
            column = pa.array([[1.0]] * len(table))
        elif pa.types.is_dictionary(wanted):
            column = values.combine_chunks().dictionary_encode()
        elif pa.types.is_float16(wanted):
            column = pa.array(values.to_numpy().astype(np.float16))
        else:
            column = values.cast(wanted, safe=False)
    except (pa.ArrowException, ValueError, TypeError):
        column = pa.array(["?"] * len(table))
    return content_of(table.set_column(i, table.column_names[i], column))


def put_absurd_values(rng: np.random.Generator, table: pa.Table) -> bytes:
    """Put impossible values into one row, some rows, or all."""
    column = str(rng.choice(INTS + FLOATS))
    values = table[column].to_numpy().copy()
    where = rng.random(len(values)) < rng.choice([0.002, 0.05, 0.5, 1.0])
    where[int(rng.integers(len(values)))] = True
    choices = ABSURD_INTS if column in INTS else ABSURD_FLOATS
    if rng.random() < 0.5:
        values[where] = choices[int(rng.integers(len(choices)))]
    elif column in INTS:
        values[where] = rng.integers(-(2**40), 2**40, size=int(where.sum()))
    else:
        values[where] = rng.normal(0.0, 10.0 ** rng.uniform(-3, 300), size=int(where.sum()))
    return content_of(table.set_column(table.column_names.index(column), column, pa.array(values)))


def make_ranks_empty_or_huge(rng: np.random.Generator, table: pa.Table) -> bytes:
    """Spread a column over very many values, or make it all one."""
    column = str(rng.choice(INTS))
    n = len(table)
    values = [
        np.arange(n),
        np.zeros(n, dtype=np.int64),
        np.arange(n) * 10**9,
        np.arange(n) // 2,
        rng.integers(0, 3, n),
        rng.permutation(table[column].to_numpy()),
    ]
    return content_of(
        table.set_column(table.column_names.index(column), column, pa.array(values[int(rng.integers(len(values)))]))
    )


def put_nulls(rng: np.random.Generator, table: pa.Table) -> bytes:
    """Null values in one column or in all."""
    names = table.column_names if rng.random() < 0.2 else [str(rng.choice(table.column_names))]
    share = rng.choice([0.002, 0.1, 1.0])
    for name in names:
        hole = rng.random(len(table)) < share
        column = pa.array(table[name].to_pylist(), mask=hole, type=table.schema.field(name).type)
        table = table.set_column(table.column_names.index(name), name, column)
    return content_of(table)


def rename_operations(rng: np.random.Generator, table: pa.Table) -> bytes:
    """Other operation types: nonsense, each other's names, or long and odd strings."""
    types = np.asarray(table["optype"].to_pylist(), dtype=object)
    where = rng.random(len(types)) < rng.choice([0.01, 0.3, 1.0])
    nonsense = [
        "",
        "\x1b[31mred\x1b[0m",
        "é" * 50,
        "forward-compute ",
        "<script>",
        "x" * 10_000,
        "gc",
        "checkpoint",
        "data-load",
        *np.unique(types).tolist(),
    ]
    if rng.random() < 0.3:
        types[where] = [f"t{i}" for i in range(int(where.sum()))]
    else:
        types[where] = [nonsense[k] for k in rng.integers(len(nonsense), size=int(where.sum()))]
    return content_of(table.set_column(table.column_names.index("optype"), "optype", pa.array(types.tolist())))


def spoil_metadata(rng: np.random.Generator, table: pa.Table) -> bytes:
    """Metadata that is none."""
    meta = dict(json.loads(table.schema.metadata[b"diagnose.job"]))
    values: list[Any] = [None, "x", -1, 0, 3, 1e300, math.nan, math.inf, [1], {}, True, 10**30, "", 999]
    for key in (*meta, "layers_per_stage", "steps_total", "owner"):
        if rng.random() < 0.4:
            meta[key] = values[int(rng.integers(len(values)))]
    texts = [json.dumps(meta)] * 5 + ["", "[", "3", "\ud800"]
    text = texts[int(rng.integers(len(texts)))].encode("utf-8", "surrogatepass")
    return content_of(table.replace_schema_metadata({b"diagnose.job": text}))


def random_bytes(rng: np.random.Generator, table: pa.Table) -> bytes:
    """No Parquet at all."""
    return b"PAR1" * int(rng.integers(2)) + rng.bytes(int(rng.integers(2000))) + b"PAR1" * int(rng.integers(2))


def empty(rng: np.random.Generator, table: pa.Table) -> bytes:
    """Hardly any rows."""
    return content_of(table.slice(int(rng.integers(len(table))), int(rng.integers(4))))


DAMAGES: tuple[Callable[[np.random.Generator, pa.Table], bytes], ...] = (
    flip_bits,
    truncate,
    drop_rows,
    drop_rows,
    repeat_rows,
    drop_columns,
    change_type,
    put_absurd_values,
    put_absurd_values,
    make_ranks_empty_or_huge,
    put_nulls,
    rename_operations,
    spoil_metadata,
    random_bytes,
    empty,
    flip_bits,
)


def make_input(seed: int) -> tuple[str, bytes]:
    """Make one damaged file: what was done to it, and its bytes."""
    rng = np.random.default_rng([seed, 6])
    damage = DAMAGES[seed % len(DAMAGES)]
    rows, meta = healthy(int(rng.integers(len(SHAPES))))
    return damage.__name__, damage(rng, to_table(rows, meta))


# ------------------------------------------------------------------------------------------ the worker


def work(seeds: range) -> None:
    """Try inputs one after the other and report each: `> seed` before, `< seed {json}` after."""
    for seed in seeds:
        damage, content = make_input(seed)
        print(">", seed, damage, flush=True)
        outcome = {"seed": seed, "damage": damage, "wrong": "", "answered": False}
        try:
            outcome["answered"] = True
            ask(content)
        except DiagnoseError as error:
            outcome["answered"] = False
            if not error.message or len(str(error)) > 2000:
                outcome["wrong"] = f"a message of {len(str(error))} characters"
        except BaseException as error:  # noqa: BLE001 - whatever else comes out is what this looks for
            frame = traceback.extract_tb(error.__traceback__)[-1]
            outcome["wrong"] = (
                f"{type(error).__name__}: {str(error)[:200]} ({Path(frame.filename).name}:{frame.lineno})"
            )
        outcome["rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print("<", json.dumps(outcome), flush=True)


@pytest.fixture(scope="module")
def outcomes() -> tuple[list[dict[str, Any]], list[str]]:
    """Give what became of each input, and what killed a worker."""
    workers = [
        subprocess.Popen(
            [sys.executable, "-W", "error", __file__, str(i), str(N_INPUTS), str(N_WORKERS)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(N_WORKERS)
    ]
    found, killed = [], []
    for worker in workers:
        try:
            out, err = worker.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            worker.kill()
            out, err = worker.communicate()
        lines = out.splitlines()
        found += [json.loads(line[2:]) for line in lines if line.startswith("<")]
        if worker.returncode != 0:
            last = next((line for line in reversed(lines) if line.startswith(">")), "(none)")
            killed.append(f"worker ended with {worker.returncode} at seed {last[2:]}: {err[-500:]}")
    return found, killed


def test_no_input_kills_the_interpreter(outcomes: tuple[list[dict[str, Any]], list[str]]) -> None:
    """Every worker lives to try its last input."""
    found, killed = outcomes
    assert killed == []
    assert len(found) == N_INPUTS


def test_every_input_ends_in_an_answer_or_an_error_for_the_user(
    outcomes: tuple[list[dict[str, Any]], list[str]],
) -> None:
    """Nothing but `DiagnoseError` comes out, no warning of a library either, and every number is finite."""
    wrong = [f"seed {o['seed']} ({o['damage']}): {o['wrong']}" for o in outcomes[0] if o["wrong"]]
    assert not wrong, "\n".join(wrong)


def test_no_input_takes_more_than_two_gigabytes(outcomes: tuple[list[dict[str, Any]], list[str]]) -> None:
    """However many ranks a small file claims, memory stays in proportion to its rows."""
    worst = max(outcomes[0], key=lambda o: o["rss_bytes"])
    assert worst["rss_bytes"] < MAX_RSS_BYTES, worst


def test_both_ends_are_met(outcomes: tuple[list[dict[str, Any]], list[str]]) -> None:
    """At least a fifth of the inputs are answered and a fifth refused: the damage is neither too mild nor too harsh."""
    answered = sum(o["answered"] for o in outcomes[0])
    assert N_INPUTS / 5 <= answered <= N_INPUTS * 4 / 5


if __name__ == "__main__":
    limit = 8 * 2**30
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    if len(sys.argv) == 2:
        ask(make_input(int(sys.argv[1]))[1])
    else:
        work(range(*map(int, sys.argv[1:4])))
