"""Logs of trainers and of progress bars: a run comes back as it was written, as far as the format tells it."""

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from diagnose.errors import TraceError
from diagnose.model.request import Request
from diagnose.model.training_log import TrainingLog
from diagnose.pipeline import diagnose_job
from diagnose.trace.find_log import find_log
from diagnose.trace.logs.load import load_log
from tests.logs.runs import Attempt, Between, LoggedRun, steady_run
from tests.logs.writers.composer import write_composer
from tests.logs.writers.consoles import TEMPLATES, write_console
from tests.logs.writers.huggingface import write_accelerate, write_loading, write_trainer
from tests.logs.writers.lightning import write_bar, write_rich_bar
from tests.logs.writers.stragglers import write_nvrx
from tests.logs.writers.torchtitan import write_torchtitan
from tests.logs.writers.torchtune import write_disk_log, write_torchtune
from tests.logs.writers.verl import write_verl
from tests.logs.writers.vision import write_imagenet, write_open_clip, write_timm, write_torchvision
from tests.trace.logs.reading import read_content
from tests.trace.producers.recordings import say_nothing


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A writer, and how well its format tells the time of a step: a part of it."""

    title: str
    write: Callable[[LoggedRun], bytes]
    error: float
    #: Steps that a line stands for on top of the logged interval, where the format tells time coarsely.
    coarse: bool = False


CASES = {
    "torchtitan": Case(title="torchtitan", write=write_torchtitan, error=2e-4),
    "torchtitan-old": Case(
        title="torchtitan",
        write=lambda run: write_torchtitan(run, old=True, coloured=True, config="lines"),
        error=2e-3,
    ),
    "huggingface": Case(title="Hugging Face Trainer", write=write_trainer, error=0.03),
    "huggingface-pasted": Case(
        title="Hugging Face Trainer",
        write=lambda run: write_loading() + write_trainer(run, banner=False, returns=False),
        error=0.03,
    ),
    "trl-dicts": Case(
        title="Hugging Face Trainer (TRL)",
        write=lambda run: write_trainer(run, bars=False, strings=True, trl=True),
        error=1e-3,
    ),
    "accelerate": Case(title="a training loop with tqdm", write=write_accelerate, error=0.03),
    "lightning": Case(title="Lightning", write=write_bar, error=0.06, coarse=True),
    "lightning-epochs": Case(title="Lightning", write=lambda run: write_bar(run, epoch=70), error=0.06, coarse=True),
    "lightning-rich": Case(title="Lightning", write=lambda run: write_rich_bar(run, epoch=70), error=0.06, coarse=True),
    "torchtune": Case(title="torchtune", write=lambda run: write_torchtune(run, epoch=70), error=0.03),
    "composer": Case(title="MosaicML Composer", write=write_composer, error=0.06, coarse=True),
    "verl": Case(title="verl", write=write_verl, error=1e-9),
    "open_clip": Case(title="open_clip", write=write_open_clip, error=2e-3),
    "imagenet": Case(title="PyTorch's ImageNet example", write=write_imagenet, error=0.02),
    "timm": Case(title="timm", write=write_timm, error=0.02),
    "torchvision": Case(title="torchvision's MetricLogger", write=write_torchvision, error=4e-3),
    "mmcv": Case(title="OpenMMLab (mmcv)", write=partial(write_console, TEMPLATES["mmcv"]), error=1e-3),
    "mmengine": Case(title="OpenMMLab (MMEngine)", write=partial(write_console, TEMPLATES["MMEngine"]), error=6e-3),
    "paddleclas": Case(title="PaddleClas", write=partial(write_console, TEMPLATES["PaddleClas"]), error=0.02),
    "detectron2": Case(
        title="Detectron2", write=partial(write_console, TEMPLATES["Detectron2"]), error=0.1, coarse=True
    ),
}


def true_means(run: LoggedRun, log: TrainingLog) -> np.ndarray:
    """Give the mean time of the steps that each line stands for."""
    ends = np.cumsum(run.step_s)
    last = log.iteration - 1
    first = np.r_[-1, last[:-1]] if log.is_mean else last - 1
    before = np.where(first >= 0, ends[np.maximum(first, 0)], 0.0)
    return (ends[last] - before) / (last - first)


@pytest.mark.parametrize("interval", [1, 10])
@pytest.mark.parametrize("name", CASES)
def test_steps_come_back(name: str, interval: int, tmp_path: Path) -> None:
    """Each line is of the format and of the steps that it says, with their time as well as its digits tell it."""
    case = CASES[name]
    run = steady_run(210, 1.3, interval=interval, noise=0.005)
    log = read_content(tmp_path, case.write(run))
    assert log.format == case.title
    assert (log.restarts, log.of) == ((), "")
    assert np.all(np.diff(log.iteration) > 0)
    assert log.iteration[-1] > 190
    assert len(log.iteration) >= (8 if case.coarse else 20)
    assert np.allclose(log.step_s[1:], true_means(run, log)[1:], rtol=case.error)


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("imagenet", "timm")])
def test_a_slower_level_comes_back(name: str, tmp_path: Path) -> None:
    """Steps that take half as long again from the middle on do so in the log, from there on."""
    run = steady_run(300, 1.3, interval=5)
    slow = np.where(np.arange(300) >= 150, 1.5, 1.0)
    log = read_content(tmp_path, CASES[name].write(dataclasses.replace(run, step_s=run.step_s * slow)))
    before, after = (log.iteration > 5) & (log.iteration <= 150), log.iteration > 175
    error = 0.06 if CASES[name].coarse else 0.02
    assert np.median(log.step_s[before]) == pytest.approx(1.3, rel=error)
    assert np.median(log.step_s[after]) == pytest.approx(1.95, rel=error)


@pytest.mark.parametrize(
    "name", ["torchtitan", "huggingface", "trl-dicts", "accelerate", "lightning", "torchtune", "composer", "verl"]
)
def test_a_restart_comes_back(name: str, tmp_path: Path) -> None:
    """A run that goes on from a checkpoint is one restart, near where it broke off."""
    run = steady_run(300, 1.3, interval=5)
    again = np.r_[run.iteration[:160], run.iteration[100:240]]
    run = dataclasses.replace(run, iteration=again, attempts=(Attempt(at=0), Attempt(at=160, gap_s=90.0)))
    log = read_content(tmp_path, CASES[name].write(run))
    (restart,) = log.restarts
    assert 140 <= restart.after <= 160
    assert 101 <= restart.resumed_at <= 120
    assert log.iteration[-1] >= 220


@pytest.mark.parametrize(("name", "tells"), [("torchtitan", True), ("huggingface", True), ("verl", True)])
def test_saves_and_evaluations_come_back(name: str, tells: bool, tmp_path: Path) -> None:
    """What lies between steps is told with the step that it follows; evaluations with their seconds."""
    between = tuple(
        Between(kind=kind, at=at, seconds=7.5) for at, kind in ((99, "save"), (149, "evaluation"), (199, "save"))
    )
    run = dataclasses.replace(steady_run(300, 1.3, interval=5), between=between)
    run = dataclasses.replace(run, intervals={"log": 5, "save": 100, "evaluation": 150})
    log = read_content(tmp_path, CASES[name].write(run))
    found = [(event.kind, event.iteration) for event in log.events if event.kind in ("save", "evaluation")]
    assert sorted(found) == [("evaluation", 150), ("save", 100), ("save", 200)]
    assert [event.seconds for event in log.events if event.kind == "evaluation"] == [pytest.approx(7.5, abs=0.01)]
    if name != "verl":
        assert (log.intervals["save"], log.intervals["evaluation"]) == (100, 150)


def test_every_eighth_step_is_told_by_a_bar(tmp_path: Path) -> None:
    """The smoothed rate of tqdm tells each slow step and no other."""
    run = steady_run(240, 0.9)
    slow = np.arange(240) % 8 == 7
    log = read_content(tmp_path, write_trainer(dataclasses.replace(run, step_s=run.step_s + 7.0 * slow, interval=20)))
    assert log.iteration[log.step_s > 4].tolist() == run.iteration[slow].tolist()
    assert log.step_s[log.step_s > 4] == pytest.approx(7.9, rel=0.02)


def test_slow_batches_that_are_never_printed(tmp_path: Path) -> None:
    """Of a loader of eight workers, printed every eight batches, the mean since the epoch began tells what it costs."""
    run = steady_run(400, 1.3, interval=8)
    slow = np.where(np.arange(400) % 8 == 7, 8.0, 0.0)
    run = dataclasses.replace(run, step_s=run.step_s + slow, parts={"data": 0.01 + slow})
    log = read_content(tmp_path, write_imagenet(run))
    assert log.is_mean
    assert np.median(log.step_s[1:]) == pytest.approx(2.3, rel=0.02)
    assert np.nanmedian(log.parts["data"][1:]) == pytest.approx(1.01, rel=0.05)


@pytest.mark.parametrize("interval", [1, 2, 5, 10, 20, 50])
def test_means_that_overlap_are_taken_apart(interval: int, tmp_path: Path) -> None:
    """One slow batch of a MetricLogger, which means the last twenty, is slow in its own line alone, across epochs too."""
    run = steady_run(400, 1.3, interval=interval, noise=0.002)
    slow = np.where(np.arange(400) == 247, 13.0, 0.0)
    log = read_content(tmp_path, write_torchvision(dataclasses.replace(run, step_s=run.step_s + slow), epoch=150))
    is_slow = log.step_s > 1.5
    if interval < 50:  # else the batches between two windows are not in the log
        (at,) = np.flatnonzero(is_slow).tolist()
        assert log.iteration[at - 1] < 248 <= log.iteration[at]
    assert np.allclose(log.step_s[~is_slow], 1.3, rtol=0.02)


def test_bars_that_are_no_steps(tmp_path: Path) -> None:
    """Downloads, tokenising and weights are no training log."""
    path = tmp_path / "setup.out"
    path.write_bytes(write_loading())
    assert find_log(path) is None


def test_the_pace_alone(tmp_path: Path) -> None:
    """Where only a rate is told, the seconds are of a million tokens, and the log says so."""
    run = steady_run(100, 1.3, interval=5)
    pace_s = 1e6 * run.world_size * 1.3 / run.tokens[0]
    for content in (write_disk_log(run), write_torchtitan(run, old=True, stamped=False, config="")):
        log = read_content(tmp_path, content)
        assert log.of == "1,000,000 tokens of a GPU"
        assert np.median(log.step_s) == pytest.approx(pace_s, rel=0.01)


def test_torchtitan_tells_its_arguments(tmp_path: Path) -> None:
    """Intervals, sizes and the length of the run are read from the settings, however these are printed."""
    run = dataclasses.replace(
        steady_run(100, 1.3, interval=5),
        intervals={"log": 5, "save": 500, "collection": 50, "profile": 100},
        world_size=16,
        tp_size=2,
        pp_size=4,
    )
    for config in ("json", "lines"):
        log = read_content(tmp_path, write_torchtitan(run, config=config))
        assert log.intervals == run.intervals
        assert log.sizes == {"world_size": 16, "pp_size": 4, "tp_size": 2, "cp_size": 1}
        assert log.total == run.total


@pytest.mark.parametrize("name", CASES)
def test_no_damage_breaks_the_reader(name: str, tmp_path: Path) -> None:
    """Cut, spliced and mixed lines give a log or an error in words, and no step that is no number."""
    content = CASES[name].write(steady_run(60, 1.3, interval=2))
    other = CASES["huggingface"].write(steady_run(30, 0.4))
    rng = np.random.default_rng(len(name))
    for _ in range(12):
        a, b = sorted(rng.integers(0, len(content), 2).tolist())
        for damaged in (content[a:b], content[:a] + content[b:], content[:a] + other + content[a:], content[:b] * 2):
            path = tmp_path / "job.out"
            path.write_bytes(damaged)
            inputs = find_log(path)
            if inputs is None:
                continue
            try:
                log = load_log(inputs, name="job.out", report=say_nothing)
            except TraceError:
                continue
            assert np.all(log.step_s > 0)
            assert np.all(log.iteration >= 0)


def test_scores_of_ranks_are_read_in_any_log(tmp_path: Path) -> None:
    """Reports of NVIDIA's straggler detection name the slowest and the fastest rank, between the lines of whatever trains."""
    scores = np.full(32, 0.97)
    scores[5], scores[9] = 0.52, 1.0
    lines = write_torchtitan(steady_run(60, 1.3, interval=5)).splitlines(keepends=True)
    content = b"".join(line + (write_nvrx(scores) if n % 5 == 4 else b"") for n, line in enumerate(lines))
    extremes = read_content(tmp_path, content).extremes["Score"]
    assert set(extremes.low_rank.tolist()) == {5}
    assert set(extremes.high_rank.tolist()) == {9}
    assert (extremes.low[0], extremes.high[0]) == (0.52, 1.0)
    assert len(extremes.low) >= 3


def test_a_slow_rank_by_scores(tmp_path: Path) -> None:
    """The rank that is far behind the fastest in each report is named, and of ranks that are alike none is."""
    for low, ranks in ((0.52, [5]), (0.93, [])):
        scores = np.linspace(0.95, 1.0, 16)
        scores[5] = low
        content = b"".join(
            line + write_nvrx(scores) for line in write_verl(steady_run(40, 9.0)).splitlines(keepends=True)
        )
        path = tmp_path / f"{low}.out"
        path.write_bytes(content)
        found = diagnose_job(Request(path)).log
        assert found is not None
        assert [slow.rank for slow in found.slow_ranks] == ranks


def test_the_first_line_of_open_clip_is_kept(tmp_path: Path) -> None:
    """Where nothing states the samples of a batch, the first line has its place once the second says how many there are."""
    line = "2024-11-28,04:{:02d}:00 | INFO | Train Epoch: 0 [{}/512000 (1%)] Data (t): {:.3f} Batch (t): {:.3f}, 9.1/s, 1.1/s/gpu"
    told = [
        line.format(n, 12_800 * (n + 1), data_s, step_s) for n, (data_s, step_s) in enumerate([(5.0, 6.0), (0.1, 1.0)])
    ]
    log = read_content(tmp_path, "\n".join(told).encode())
    assert (log.iteration.tolist(), log.step_s.tolist()) == ([60, 120], [6.0, 1.0])
    assert log.parts["data"].tolist() == [5.0, 0.1]


@pytest.mark.parametrize("is_old", [False, True])
def test_validation_in_the_bar_of_an_epoch(is_old: bool, tmp_path: Path) -> None:
    """Until Lightning 2 the bar of an epoch counts the batches of its validation, too: they are no steps."""
    n, n_validated = 40, 10
    total = n + n_validated * is_old
    lines = []
    for epoch in range(3):
        lines += [
            f"Epoch {epoch}: 50%|██| {i}/{total} [{_clock(2 * i)}<0:10:00,  2.00s/it, loss=1.2, v_num=0]"
            for i in range(n + 1)
        ]
        lines += [
            f"Validating: 50%|██| {i}/{n_validated} [{_clock(9 * i)}<0:10:00,  9.00s/it]" for i in range(n_validated)
        ]
        if is_old:
            lines += [
                f"Epoch {epoch}: 50%|██| {n + i}/{total} [{_clock(2 * n + 9 * i)}<0:10:00,  2.00s/it, loss=1.2, v_num=0]"
                for i in range(1, n_validated + 1)
            ]
    log = read_content(tmp_path, "\r".join(lines).encode())
    assert (log.format, log.intervals["epoch"], log.restarts) == ("Lightning", n, ())
    assert log.iteration[-1] == 3 * n
    assert np.allclose(log.step_s, 2.0, rtol=0.02)


def _clock(seconds: int) -> str:
    return f"{seconds // 60:02d}:{seconds % 60:02d}"
