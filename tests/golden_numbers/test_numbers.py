"""What is found in jobs of all kinds, number by number: a change that is meant to change nothing changes none of them."""

from itertools import cycle, islice
from pathlib import Path

import numpy as np
import pytest

import diagnose
from diagnose.faults.generate import draw_job, generate, random_faults
from tests.collectives.test_collectives import KINDS, SHAPES, write_job
from tests.golden_numbers import MEASURED, assert_unchanged
from tests.judge.cases import diagnose_table
from tests.logs import shapes
from tests.logs.formats import FORMATS
from tests.recorded import score

RECORDED = sorted(path.stem for path in score.JOBS.glob("*.parquet"))
DRAWN = range(24)
DUMPS = range(4 * len(KINDS))
#: Every format at least once, and every shape of a run in several.
LOGS = [
    (kind, name)
    for kind, name in islice(zip(cycle(shapes.SHAPES), cycle(FORMATS), strict=False), 50)
    if kind not in FORMATS[name].never
]


@pytest.mark.parametrize("name", RECORDED)
def test_recorded(name: str) -> None:
    """Of real jobs: parts of the step, features, causes with places and evidence, prices of fixes; what has to be right."""
    found = score.diagnose(name, "recorded")
    assert_unchanged(found, MEASURED, f"recorded/{name}")
    assert name in score.NOT_RIGHT or score.score(name, found) == "right"


@pytest.mark.parametrize("seed", DRAWN)
def test_drawn(seed: int) -> None:
    """Of random jobs of all worlds, with faults and decoys, some with several."""
    spec, faults, decoys = draw_job(23, seed)
    if seed % 4 == 3:
        faults += random_faults(spec, np.random.default_rng([7, seed]))
    assert_unchanged(diagnose_table(generate(spec, faults, decoys).trace), MEASURED, f"drawn/{seed}")


@pytest.mark.parametrize("seed", DUMPS)
def test_dumps(seed: int, tmp_path: Path) -> None:
    """Of dumps of sound jobs, slow ranks and links, and hangs of all kinds: who, how surely, in which words."""
    write_job(tmp_path / "job", seed, SHAPES[:4])
    found = diagnose.diagnose(tmp_path / "job")
    assert_unchanged(found, ("verdict", "causes", "collectives", "warnings"), f"dumps/{seed}", words=True)


@pytest.mark.parametrize(("kind", "name"), LOGS)
def test_logs(kind: str, name: str, tmp_path: Path) -> None:
    """Of training logs of all formats: since when steps are slow, at what period, and what it costs."""
    path = tmp_path / FORMATS[name].file
    path.write_bytes(FORMATS[name].write(shapes.draw_shape(kind, 40_001).run))
    assert_unchanged(
        diagnose.diagnose(path), ("verdict", "causes", "log", "warnings"), f"logs/{kind}, {name}", words=True
    )
