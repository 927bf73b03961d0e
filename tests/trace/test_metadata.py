"""Where job metadata comes from, and what happens where it contradicts the rows."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from diagnose.errors import RuleError, TraceError, UsageError
from diagnose.model.trace import Loader, Trace
from diagnose.trace.load import load_trace
from diagnose.trace.metadata import MAX_META_BYTES, resolve_job
from tests.jobs import Shape, load, random_job, to_file, to_table, write

SHAPE = Shape(n_steps=2, n_dp=2, n_stages=2, n_microbatches=2)
SIZES: dict[str, Any] = {"dp_size": 2, "pp_size": 2, "tp_size": 1, "cp_size": 1, "vpp_size": 1, "world_size": 4}


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    """Give the rows of a small job without global ranks."""
    return random_job(SHAPE, 0)


def in_file(rows: pd.DataFrame, **changes: Any) -> Trace:
    """Load rows whose file carries metadata; a change to None takes a key out."""
    meta = {key: value for key, value in (SIZES | changes).items() if value is not None}
    return load(rows, meta)


# ---------------------------------------------------------------------------------------------- places


def test_the_file_wins_over_the_named_file_and_that_over_the_one_beside_it(rows: pd.DataFrame, tmp_path: Path) -> None:
    """Each key comes from the first place that has it: the trace itself, `--meta`, the YAML beside the trace."""
    path = write(tmp_path / "trace-X.parquet", rows, SIZES | {"job_id": "inside"})
    (tmp_path / "meta-X.yaml").write_text("job_id: beside\nowner: beside\ngpu_type: beside\n")
    (tmp_path / "named.yaml").write_text("job_id: named\nowner: named\n")
    job = load_trace(path, meta=tmp_path / "named.yaml").job
    assert (job.job_id, job.owner, job.gpu_type) == ("inside", "named", "beside")


@pytest.mark.parametrize(
    ("trace", "meta"),
    [
        ("trace-X.parquet", "meta-X.yaml"),
        ("X.parquet", "X.yaml"),
        ("X.parquet", "X.yml"),
        ("trace-X.parquet", "trace-X.yaml"),
    ],
)
def test_a_yaml_file_beside_the_trace_is_found(rows: pd.DataFrame, tmp_path: Path, trace: str, meta: str) -> None:
    """`trace-X.parquet` has `meta-X.yaml` beside it, `X.parquet` has `X.yaml`."""
    (tmp_path / meta).write_text("trial_name: found\ndsp_size: 2\n")
    job = load_trace(write(tmp_path / trace, rows)).job
    assert (job.job_id, job.cp_size, job.world_size) == ("found", 2, 8)


def test_names_of_the_authors_mean_the_same(rows: pd.DataFrame) -> None:
    """`trial_name` is `job_id`, `dsp_size` is `cp_size`; our own name wins where both are there."""
    assert in_file(rows, trial_name="theirs").job.job_id == "theirs"
    assert in_file(rows, trial_name="theirs", job_id="ours").job.job_id == "ours"
    assert in_file(rows, cp_size=None, dsp_size=2, world_size=8).job.cp_size == 2


def test_the_job_is_named_after_the_file_where_nothing_else_names_it(rows: pd.DataFrame, tmp_path: Path) -> None:
    """Without a name in the metadata the file's name is the job's; from standard input it is called a job."""
    assert load_trace(write(tmp_path / "night-run.parquet", rows, SIZES)).job.job_id == "night-run"
    assert load_trace(to_file(rows, SIZES)).job.job_id == "job"


def test_free_keys_are_kept(rows: pd.DataFrame) -> None:
    """What is not about sizes is carried to the report as text."""
    job = in_file(
        rows, owner="vision", gpu_type="H800", started_at="2025-01-01", steps_total=5000, layers_per_stage=[4, 3]
    ).job
    assert (job.owner, job.gpu_type, job.started_at, job.steps_total, job.layers_per_stage) == (
        "vision",
        "H800",
        "2025-01-01",
        5000,
        (4, 3),
    )


# --------------------------------------------------------------------------- derived, and contradicted


def test_without_metadata_parallelism_comes_from_the_rows(rows: pd.DataFrame) -> None:
    """dp, pp and vpp are counted, tp comes from the largest global rank; a warning says that all is derived."""
    trace = load(
        rows.assign(rank=(rows.stage * 2 + rows.dp_rank) * 4)
    )  # the first of 4 tensor-parallel ranks: 0, 4, 8, 12
    job = trace.job
    assert (job.dp_size, job.pp_size, job.vpp_size, job.cp_size) == (2, 2, 1, 1)
    assert any("no metadata" in warning for warning in trace.warnings)


def test_tensor_parallelism_follows_from_the_world(rows: pd.DataFrame) -> None:
    """What dp x pp x cp leaves of the world size is tp."""
    assert in_file(rows, tp_size=None, world_size=32).job.tp_size == 8


@pytest.mark.parametrize("chunks", [2, 3])
def test_model_chunks_are_counted(chunks: int) -> None:
    """Vpp is one more than the largest `mc` in the rows."""
    shape = Shape(n_steps=2, n_dp=1, n_stages=2, n_microbatches=4, n_chunks=chunks)
    assert load(random_job(shape, 0)).job.vpp_size == chunks


@pytest.mark.parametrize(("key", "said"), [("dp_size", 5), ("pp_size", 7), ("vpp_size", 3)])
def test_where_metadata_contradicts_the_rows_the_rows_win(rows: pd.DataFrame, key: str, said: int) -> None:
    """A wrong size is warned of by name and by both values, and the rows' one is used."""
    trace = in_file(rows, **{key: said}, world_size=None)
    assert getattr(trace.job, key) == SIZES[key]
    (warning,) = [warning for warning in trace.warnings if key in warning]
    assert str(said) in warning
    assert str(SIZES[key]) in warning


def test_a_world_that_is_not_the_product_is_warned_of(rows: pd.DataFrame) -> None:
    """world_size is always dp x pp x tp x cp."""
    trace = in_file(rows, world_size=48)
    assert trace.job.world_size == 4
    assert any("world_size" in warning for warning in trace.warnings)


@pytest.mark.parametrize(
    "value",
    ["4", -1, 0, 2.5, True, [2], {"a": 1}, 1e300, "x" * 10_000, float("inf"), float("nan"), 10**400],
    ids=lambda value: repr(value)[:20],
)
@pytest.mark.parametrize(
    "key", ["dp_size", "tp_size", "cp_size", "vpp_size", "world_size", "steps_total", "ep_size", "n_hosts"]
)
def test_sizes_that_are_none_are_ignored_with_a_warning(rows: pd.DataFrame, key: str, value: Any) -> None:
    """A size that is no whole number from 1, or an absurd one, is named in a warning and treated as not there."""
    if key == "steps_total" and isinstance(value, int) and value > 1 and value is not True:
        pytest.skip("any whole number of steps is possible")
    trace = in_file(rows, **{key: value})
    assert any(key in warning and "ignored" in warning for warning in trace.warnings)
    job = trace.job
    assert (job.dp_size, job.pp_size, job.tp_size, job.cp_size, job.world_size) == (2, 2, 1, 1, 4)


@pytest.mark.parametrize("value", ["4,4", [], [1.5], [-1], {"0": 4}, 12])
def test_layers_that_are_none_are_ignored_with_a_warning(rows: pd.DataFrame, value: Any) -> None:
    """`layers_per_stage` is a list of whole numbers or nothing."""
    trace = in_file(rows, layers_per_stage=value)
    assert trace.job.layers_per_stage is None
    assert any("layers_per_stage" in warning for warning in trace.warnings)


def test_what_a_recorder_knows_is_kept(rows: pd.DataFrame) -> None:
    """Expert parallelism, schedule, name, hosts, and what the job has or does, are read as they stand; unknown is None."""
    said = {"ep_size": 2, "schedule": "1f1b", "name": "pretrain", "n_hosts": 3, "has_cuda": False, "saves": True}
    said |= {"records_gc": True}
    trace = in_file(rows, **said)
    assert {key: getattr(trace.job, key) for key in said} == said
    assert trace.job.reads_input is None
    assert not trace.warnings


@pytest.mark.parametrize("value", ["yes", 1, 0, [True], {"a": True}])
@pytest.mark.parametrize("key", ["has_cuda", "saves", "reads_input", "records_gc"])
def test_flags_that_are_none_are_ignored_with_a_warning(rows: pd.DataFrame, key: str, value: Any) -> None:
    """What is neither true nor false is named in a warning, and not known."""
    trace = in_file(rows, **{key: value})
    assert getattr(trace.job, key) is None
    assert any(key in warning and "true or false" in warning for warning in trace.warnings)


def test_settings_of_the_loader_and_the_allocator_are_kept(rows: pd.DataFrame) -> None:
    """A loader's settings are those of `DataLoader`; without its number of workers nothing is known of it."""
    job = in_file(rows, loader={"num_workers": 0, "pin_memory": False}, alloc_conf="expandable_segments:True").job
    assert job.loader == Loader(0, None, pin_memory=False)
    assert job.alloc_conf == "expandable_segments:True"
    for wrong in (4, {"num_workers": -1}, {"num_workers": True}, {}):
        trace = in_file(rows, loader=wrong)
        assert trace.job.loader is None
        assert any("loader is" in warning for warning in trace.warnings)


def test_every_size_is_checked_for_agreement() -> None:
    """`resolve_job` gives back sizes whose product is the world, whatever it is told."""
    job, warnings = resolve_job(
        {"world_size": 12, "cp_size": 3},
        run_id="x",
        location="/x",
        n_dp=2,
        n_stages=2,
        n_chunks=None,
        max_rank=None,
        n_tp=None,
    )
    assert (job.tp_size, job.cp_size, job.world_size) == (1, 3, 12)
    assert warnings == []


# --------------------------------------------------------------------------------------------- refused


def _bomb(item: str) -> str:
    """Write nine levels, each of which has the one before nine times."""
    lines = ["a0: &a0 [x, y]" if item == "[{}]" else "a0: &a0 {x: y}"]
    lines += [f"a{i}: &a{i} " + item.format(", ".join([f"*a{i - 1}"] * 9)) for i in range(1, 10)]
    return "\n".join([*lines, "owner: *a9"])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[1, 2]", 1),
        ("just words", 1),
        ("dp_size: 2\na: b: c", 2),
        ("{", 1),
        ("1: 2", 1),
        ("\x00", 1),
        ("&a [*a]", 1),
        (_bomb("[{}]"), 2),
        (_bomb("{{<<: [{}]}}"), 2),
        ("owner: " + "[" * 100_000, 1),
        ("owner: 2025-99-99", 1),
        (f"owner: {'9' * 10_000}", 1),
        ("#" * (MAX_META_BYTES + 1), 1),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_a_metadata_file_that_is_no_mapping_is_refused(
    rows: pd.DataFrame, tmp_path: Path, text: str, line: int
) -> None:
    """What is not a mapping of names to values, or would fill the memory, is refused with file and line."""
    (tmp_path / "m.yaml").write_text(text)
    with pytest.raises(RuleError) as error:
        load_trace(to_file(rows), name="x", meta=tmp_path / "m.yaml")
    assert str(error.value).startswith(f"{tmp_path / 'm.yaml'}:{line}: ")
    assert len(str(error.value)) < 500
    assert error.value.exit_code == 4


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("3", "3"),
        ("true", "True"),
        ("1.5", "1.5"),
        ("2025-01-02", "2025-01-02"),
        ("[a, b]", None),
        ("{a: b}", None),
        (f"0x{'f' * 100_000}", None),
        (f"[0x{'f' * 100_000}]", None),
        (f"[{'[1, 2], ' * 1000}]", None),
    ],
    ids=lambda value: str(value)[:20],
)
def test_texts_are_scalars(rows: pd.DataFrame, tmp_path: Path, value: str, kept: str | None) -> None:
    """A number or a date is as good as text; a list, a mapping or an endless number is ignored with a short warning."""
    (tmp_path / "m.yaml").write_text(f"owner: {value}\njob_id: {value}\ndp_size: 2\n")
    trace = load_trace(to_file(rows), name="x", meta=tmp_path / "m.yaml")
    assert (trace.job.owner, trace.job.job_id) == (kept, kept or "job")
    told = [warning for warning in trace.warnings if "expected text; ignored" in warning]
    assert len(told) == (0 if kept else 2)
    assert all(len(warning) < 200 for warning in told)


def test_an_empty_metadata_file_says_nothing(rows: pd.DataFrame, tmp_path: Path) -> None:
    """An empty YAML file is no metadata, and no error."""
    (tmp_path / "m.yaml").write_text("# nothing yet\n")
    assert load_trace(to_file(rows), name="x", meta=tmp_path / "m.yaml").job.dp_size == 2


def test_a_named_metadata_file_that_is_not_there_is_an_error_of_use(rows: pd.DataFrame, tmp_path: Path) -> None:
    """`--meta` with a wrong path ends with exit code 2."""
    with pytest.raises(UsageError) as error:
        load_trace(to_file(rows), name="x", meta=tmp_path / "none.yaml")
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"3", b"\xff\xfe", b"null", b"[" * 100_000], ids=lambda text: repr(text[:9])
)
def test_metadata_inside_the_file_that_is_no_object_is_refused(rows: pd.DataFrame, text: bytes) -> None:
    """`diagnose.job` that is no JSON object is a TraceError that names the key."""
    table = to_table(rows).replace_schema_metadata({b"diagnose.job": text})
    with pytest.raises(TraceError) as error:
        load(table)
    assert "diagnose.job" in str(error.value)


def test_nulls_in_metadata_say_nothing(rows: pd.DataFrame) -> None:
    """A key whose value is null is as good as absent."""
    table = to_table(rows).replace_schema_metadata(
        {"diagnose.job": json.dumps(SIZES | {"owner": None, "tp_size": None, "job_id": None})}
    )
    job = load(table).job
    assert (job.owner, job.tp_size) == (None, 1)
