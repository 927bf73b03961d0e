"""Reading Parquet a few row groups at a time: the columns are those of a file that is read at once."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from diagnose.trace import parquet

N_ROWS = 1000


def columns() -> dict[str, pa.Array]:
    """Give columns of many types, with and without nulls; one has them in its last rows only."""
    rng = np.random.default_rng(1)
    numbers = rng.integers(0, 100, N_ROWS)
    some, late = rng.random(N_ROWS) < 0.2, np.arange(N_ROWS) > 900
    found = {
        str(of): pa.array(numbers, type=of) for of in (pa.int8(), pa.int64(), pa.uint16(), pa.float32(), pa.float64())
    }
    found["half"] = pa.array(numbers.astype(np.float16))
    found["nan"] = pa.array(np.where(some, np.nan, numbers))
    found["nulls"] = pa.array(numbers, mask=some)
    found["late nulls"] = pa.array(numbers.astype(np.float32), mask=late)
    found["all null"] = pa.nulls(N_ROWS, pa.int32())
    found["words"] = pa.array([None if n % 7 == 0 else str(n) for n in numbers]).dictionary_encode()
    found["lists"] = pa.array([[n] * (n % 3) for n in numbers.tolist()], pa.list_(pa.int32()))
    return found


@pytest.mark.parametrize("group", [1, 7, 300, N_ROWS])
def test_row_groups_make_whole_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: int) -> None:
    """Whatever lies in which row group, values and nulls are those of the file, numbers in one piece."""
    path, table = tmp_path / "job.parquet", pa.table(columns())
    pq.write_table(table, path, row_group_size=group)
    monkeypatch.setattr(parquet, "ROWS_AT_A_TIME", 100)
    with pq.ParquetFile(path, read_dictionary=["words"]) as file:
        found = parquet._read_all(file, table.column_names[::-1])
    found.validate(full=True)
    assert sorted(found.column_names) == sorted(table.column_names)
    for name in table.column_names:
        assert str(found[name].to_pylist()) == str(table[name].to_pylist()), name  # NaN is not itself
        assert found[name].num_chunks == 1 or not pa.types.is_primitive(table[name].type)
