"""The documents of each microbatch (`doc_lengths`): kept once, whatever the file does with its rows; what is no list is refused."""

import dataclasses
import tracemalloc
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from diagnose.errors import TraceError
from diagnose.faults.garbage_collection import GarbageCollection
from diagnose.faults.generate import strip_evidence
from diagnose.faults.sequence_imbalance import SequenceImbalance
from diagnose.faults.spec import JobSpec
from diagnose.model.documents import Documents
from diagnose.model.trace import Trace
from diagnose.trace.load import load_trace
from tests.jobs import Shape, load, random_job, to_file, to_table
from tests.judge.cases import make

SHAPE = Shape(n_steps=6, n_dp=3, n_stages=2, n_microbatches=4)
INTERLEAVED = Shape(n_steps=3, n_dp=2, n_stages=2, n_microbatches=4, n_chunks=2)
SPEC = JobSpec(pp=2, dp=2, microbatches=4, steps=8, forward_s=0.01)
SEQUENCES = SequenceImbalance(records_tokens=True, records_documents=True)

#: (step, dp rank, microbatch) -> lengths
Lists = dict[tuple[int, int, int], list[int]]


def draw_lists(rows: pd.DataFrame, seed: int = 0) -> Lists:
    """Draw some documents for each microbatch of a job."""
    rng = np.random.default_rng(seed)
    computes = rows[rows.mb_id >= 0]
    keys = sorted(set(zip(computes.step, computes.dp_rank, computes.mb_id, strict=True)))
    return {tuple(map(int, key)): rng.integers(1, 5000, size=rng.integers(1, 6)).tolist() for key in keys}


def with_lists(rows: pd.DataFrame, lists: Lists) -> pd.DataFrame:
    """Write the documents of a microbatch on each of its rows."""
    keys = zip(rows.step, rows.dp_rank, rows.mb_id, strict=True)
    return rows.assign(doc_lengths=[lists.get(tuple(map(int, key))) for key in keys])


def lists_of(trace: Trace) -> Lists:
    """Turn what was loaded back into lists, by the labels of the file."""
    found = trace.documents
    if found is None:
        return {}
    keys = zip(found.step.tolist(), trace.dp_labels[found.dp].tolist(), found.microbatch.tolist(), strict=True)
    borders = zip(found.offsets[:-1], found.offsets[1:], strict=True)
    return {key: found.lengths[low:high].tolist() for key, (low, high) in zip(keys, borders, strict=True)}


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    """Give a healthy job of 6 steps."""
    return random_job(SHAPE, 0)


@pytest.fixture(scope="module")
def lists(rows: pd.DataFrame) -> Lists:
    """Give its documents."""
    return draw_lists(rows)


# ----------------------------------------------------------------------------------------- what is read


@pytest.mark.parametrize("shape", [SHAPE, INTERLEAVED], ids=["plain", "interleaved"])
@pytest.mark.parametrize("seed", range(3))
def test_lists_come_back(shape: Shape, seed: int) -> None:
    """Every list of the file is there once, in the order of step, dp rank and microbatch; rows may come in any order."""
    rows = random_job(shape, seed)
    lists = draw_lists(rows, seed)
    written = with_lists(rows, lists)
    for version in (written, written.sample(frac=1.0, random_state=seed)):
        found = load(version, shape.meta)
        assert lists_of(found) == lists
        assert list(lists_of(found)) == sorted(lists)
        assert found.documents is not None
        assert found.documents.lengths.dtype == np.int32
        assert found.documents.tokens().tolist() == [sum(of_list) for of_list in lists.values()]
        assert found.documents.tokens_sq().tolist() == [sum(n * n for n in of_list) for of_list in lists.values()]


def test_without_the_column_nothing_is_known(rows: pd.DataFrame) -> None:
    """A trace without lists has no documents, and nothing else changes with them."""
    without, with_them = load(rows, SHAPE.meta), load(with_lists(rows, draw_lists(rows)), SHAPE.meta)
    assert without.documents is None
    assert with_them.warnings == without.warnings
    np.testing.assert_array_equal(with_them.blocks[0].start_s, without.blocks[0].start_s)


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.int8()),
        pa.list_(pa.int16()),
        pa.list_(pa.uint32()),
        pa.list_(pa.uint64()),
        pa.large_list(pa.int64()),
        pa.list_(pa.int32(), 2),
    ],
    ids=str,
)
def test_any_list_of_whole_numbers(rows: pd.DataFrame, kind: pa.DataType) -> None:
    """Lists may be of any width, large, or of fixed size."""
    lists = {key: [key[2], 7] for key in draw_lists(rows)}
    table = to_table(with_lists(rows, lists), SHAPE.meta)
    at = table.column_names.index("doc_lengths")
    column = pa.array(table["doc_lengths"].to_pylist(), type=kind)
    assert lists_of(load(table.set_column(at, "doc_lengths", column))) == lists


def test_the_first_stage_that_has_a_list_is_asked(rows: pd.DataFrame, lists: Lists) -> None:
    """Where only the last stage records lists they are read there; where stages differ the first one counts."""
    last = with_lists(rows, lists)
    last.loc[last.stage == 0, "doc_lengths"] = None
    assert lists_of(load(last, SHAPE.meta)) == lists
    other = with_lists(rows, draw_lists(rows, seed=1))
    mixed = with_lists(rows, lists)
    mixed.loc[mixed.stage == 1, "doc_lengths"] = other.loc[other.stage == 1, "doc_lengths"]
    for version in (mixed, mixed.iloc[::-1]):
        assert lists_of(load(version, SHAPE.meta)) == lists


def test_lists_on_forwards_of_some_microbatches(rows: pd.DataFrame, lists: Lists) -> None:
    """A microbatch without a list is unknown; one with an empty list held nothing."""
    kept = {key: of_list for key, of_list in lists.items() if key[2] != 1}
    empty = next(iter(kept))
    kept[empty] = []
    assert lists_of(load(with_lists(rows, kept), SHAPE.meta)) == kept


def test_lists_without_microbatch_numbers(rows: pd.DataFrame, lists: Lists) -> None:
    """Where microbatches are numbered by launch order their lists go with them; backwards are not asked."""
    written = with_lists(rows, lists).drop(columns=["mb_id", "mc", "seq_id"])
    assert lists_of(load(written, SHAPE.meta)) == lists
    backwards = written.optype == "backward-compute"
    written.loc[backwards, "doc_lengths"] = pd.Series([[1]] * int(backwards.sum()), index=written.index[backwards])
    assert lists_of(load(written, SHAPE.meta)) == lists


def test_members_of_a_group_have_one_list(rows: pd.DataFrame, lists: Lists) -> None:
    """Where every rank of a context-parallel group is recorded, a microbatch still has one list."""
    written = with_lists(rows, lists)
    both = pd.concat([written.assign(cp_rank=i) for i in range(2)])
    assert lists_of(load(both, SHAPE.meta | {"cp_size": 2, "world_size": 12})) == lists


# ------------------------------------------------------------------------------------- what lists survive


def test_lost_rows(rows: pd.DataFrame, lists: Lists) -> None:
    """With a tenth of the rows lost, a list is there as long as one of its forwards is."""
    written = with_lists(rows, lists)
    kept = written[np.random.default_rng(3).random(len(written)) > 0.1]
    forwards = kept[kept.optype == "forward-compute"]
    there = set(zip(forwards.step, forwards.dp_rank, forwards.mb_id, strict=True))
    found = load(kept, SHAPE.meta)
    steps = set(found.steps.tolist())
    assert lists_of(found) == {key: lists[key] for key in lists if key in there and key[0] in steps}


def test_picked_steps(rows: pd.DataFrame, lists: Lists) -> None:
    """`--steps` picks the lists of these steps."""
    steps = sorted(rows.step.unique())[1:3]
    found = load_trace(to_file(with_lists(rows, lists), SHAPE.meta), name="job.parquet", steps=np.array(steps))
    assert lists_of(found) == {key: of_list for key, of_list in lists.items() if key[0] in steps}


def test_dropped_steps(rows: pd.DataFrame, lists: Lists) -> None:
    """The lists of a step that is cut off go with it."""
    last = rows.step.max()
    ends = rows.optype.isin(
        ["optimizer", "optimizer-clip-main-grad", "grads-reduce-scatter", "layernorm-grads-all-reduce"]
    )
    cut = with_lists(rows, lists)[~((rows.step == last) & (ends | (rows.optype == "embedding-grads-all-reduce")))]
    found = load(cut, SHAPE.meta)
    assert found.steps_dropped == 1
    assert lists_of(found) == {key: of_list for key, of_list in lists.items() if key[0] != last}


def test_steps_that_were_run_again(rows: pd.DataFrame, lists: Lists) -> None:
    """Of two attempts at a step the documents of the last one are read."""
    absolute = rows.assign(start_ts=rows.start_ts + 10.0 * rows.step.rank(method="dense"))
    first = with_lists(absolute, draw_lists(rows, seed=1))
    last = with_lists(absolute.assign(start_ts=absolute.start_ts + 1000.0), lists)
    found = load(pd.concat([last, first]), SHAPE.meta)
    assert found.restarted_steps
    assert lists_of(found) == lists


def test_labels_of_the_file(rows: pd.DataFrame, lists: Lists) -> None:
    """Ranks that do not count from 0 are indices in the documents, as everywhere."""
    named = with_lists(rows, lists)
    found = load(named.assign(dp_rank=named.dp_rank * 10 + 5), SHAPE.meta)
    assert lists_of(found) == {(step, dp * 10 + 5, mb): of_list for (step, dp, mb), of_list in lists.items()}


def test_generated_jobs_record_what_they_drew() -> None:
    """A generated job's documents come back as drawn, with and without evidence rows; nothing else is another."""
    spec = dataclasses.replace(SPEC, steps=10)
    faults = (SEQUENCES, GarbageCollection())
    table = make(spec, *faults).trace
    silent = make(spec, dataclasses.replace(SEQUENCES, records_documents=False), faults[1]).trace
    assert table.drop_columns(["doc_lengths"]).equals(silent)
    drawn = SEQUENCES.draw_documents(spec)
    for trace in (load(table), load(strip_evidence(table))):
        assert trace.documents is not None
        for field in dataclasses.fields(Documents):
            expected = spec.step_numbers()[drawn.step] if field.name == "step" else getattr(drawn, field.name)
            np.testing.assert_array_equal(getattr(trace.documents, field.name), expected)
        assert not any("doc_lengths" in warning for warning in trace.warnings)


def test_steps_before_the_fault_have_no_lists() -> None:
    """Before long documents come nothing says what the microbatches hold."""
    found = load(make(SPEC, dataclasses.replace(SEQUENCES, onset=5)).trace).documents
    assert found is not None
    assert sorted(set(found.step.tolist())) == SPEC.step_numbers()[5:].tolist()


def test_row_groups_and_pieces(
    rows: pd.DataFrame, lists: Lists, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """It means nothing how the file is cut into row groups, and into how large pieces it is read; a path reads as a buffer."""
    path = tmp_path / "job.parquet"
    pq.write_table(to_table(with_lists(rows, lists), SHAPE.meta), path, row_group_size=50)
    monkeypatch.setattr("diagnose.trace.list_column.BATCH_ROWS", 17)
    assert lists_of(load_trace(path)) == lists


# -------------------------------------------------------------------------------------- what is no list


@pytest.mark.parametrize(
    ("column", "found"),
    [
        (pa.array([1] * 3), "int64"),
        (pa.array([1.5] * 3), "double"),
        (pa.array(["1,2"] * 3), "string"),
        (pa.array([[1.5]] * 3), "list<element: double>"),
        (pa.array([["a"]] * 3), "list<element: string>"),
        (pa.array([[[1]]] * 3), "list<element: list<element: int64>>"),
        (pa.array([{"a": 1}] * 3), "struct<a: int64>"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_type_is_refused(rows: pd.DataFrame, column: pa.Array, found: str) -> None:
    """What is no list of whole numbers is refused, with the column, what was found and what was expected."""
    table = to_table(rows.head(3)).append_column("doc_lengths", column)
    with pytest.raises(TraceError) as error:
        load(table)
    assert "column 'doc_lengths'" in error.value.where
    assert error.value.message == f"has type {found}; expected lists of whole numbers"


def test_two_columns_are_refused(rows: pd.DataFrame, lists: Lists) -> None:
    """A column that appears twice is refused."""
    table = to_table(with_lists(rows, lists))
    with pytest.raises(TraceError, match="more than once"):
        load(table.append_column("doc_lengths", table["doc_lengths"]))


@pytest.mark.parametrize("empty", [pa.null(), pa.list_(pa.null()), pa.list_(pa.int32())], ids=str)
def test_nothing_but_nulls(rows: pd.DataFrame, empty: pa.DataType) -> None:
    """A column of nulls says nothing, whatever its type."""
    found = load(to_table(rows).append_column("doc_lengths", pa.nulls(len(rows), empty)))
    assert found.documents is None
    assert not any("doc_lengths" in warning for warning in found.warnings)


@pytest.mark.parametrize("wrong", [-1, None, 2**40, -(2**63)])
def test_lists_with_impossible_lengths_are_unknown(rows: pd.DataFrame, lists: Lists, wrong: int | None) -> None:
    """A list with a negative, missing or absurd length is as good as none, and one line counts them."""
    bad = [key for i, key in enumerate(lists) if i % 5 == 0]
    changed: dict[Any, Any] = lists | {key: [*lists[key], wrong] for key in bad}
    table = to_table(rows, SHAPE.meta)
    column = pa.array(with_lists(rows, changed).doc_lengths.tolist(), type=pa.list_(pa.int64()))
    found = load(table.append_column("doc_lengths", column))
    assert lists_of(found) == {key: of_list for key, of_list in lists.items() if key not in bad}
    (warning,) = [w for w in found.warnings if "doc_lengths" in w]
    assert warning.startswith(f"{len(bad)} lists of doc_lengths hold a negative length, a null or an absurd one")


def test_tokens_that_differ(rows: pd.DataFrame, lists: Lists) -> None:
    """One line says in how many microbatches the lists do not add up to `tokens`; where they do nothing is said."""
    written = with_lists(rows, lists)
    tokens = written.doc_lengths.map(lambda of_list: None if of_list is None else float(sum(of_list)))
    assert not any("tokens" in w for w in load(written.assign(tokens=tokens), SHAPE.meta).warnings)
    other = tokens.where(written.mb_id != 2, tokens + 10)
    (warning,) = [w for w in load(written.assign(tokens=other), SHAPE.meta).warnings if "tokens" in w]
    assert warning.startswith(
        f"in {len(lists) // 4} of {len(lists)} microbatches doc_lengths does not add up to tokens"
    )


# --------------------------------------------------------------------------------------------- damage


@pytest.mark.parametrize("seed", range(40))
def test_damaged_lists_end_in_an_answer_or_an_error(rows: pd.DataFrame, lists: Lists, seed: int) -> None:
    """Whatever is wrong with the column, the file is read, or refused as others are."""
    rng = np.random.default_rng(seed)
    strange: list[Any] = [None, [], [0], [-5], [None], [2**62], [2**31 - 1] * 3, list(range(300))]
    column = with_lists(rows, lists).doc_lengths.tolist()
    for at in rng.choice(len(column), size=int(rng.integers(1, len(column))), replace=False).tolist():
        column[at] = strange[int(rng.integers(len(strange)))]
    table = to_table(rows, SHAPE.meta).append_column("doc_lengths", pa.array(column, type=pa.list_(pa.int64())))
    file = to_file(table)
    if seed % 2:  # bits of the file itself
        content = bytearray(file.getvalue())
        for _ in range(int(rng.integers(1, 10))):
            content[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
        file = type(file)(bytes(content))
    try:
        found = load_trace(file, name="job.parquet").documents
    except TraceError:
        assert seed % 2, "a strange list is no reason to refuse a file"
        return
    if found is not None:
        assert (np.diff(found.offsets) >= 0).all()
        assert found.offsets[-1] == len(found.lengths)
        assert (found.lengths >= 0).all()
        assert (np.diff(found.microbatch + 100 * (found.dp + 100 * found.step)) > 0).all()


# ----------------------------------------------------------------------------------------------- cost


def test_lists_are_kept_once(rows: pd.DataFrame) -> None:
    """Memory in Python grows with the documents of the microbatches, not with those of all the rows that repeat them."""
    lists = {key: [100] * 2000 for key in draw_lists(rows)}
    file = to_file(with_lists(rows, lists), SHAPE.meta)
    tracemalloc.start()
    found = load_trace(file, name="job.parquet").documents
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found is not None
    n_computes = int((rows.mb_id >= 0).sum())
    assert n_computes == 2 * 2 * len(lists)
    assert peak < 8 * found.lengths.nbytes + 2_000_000
