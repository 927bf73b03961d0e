"""Every command and every example in Python that the documentation shows is run, on small jobs in a scratch folder."""

import doctest
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from diagnose.faults.generate import generate
from diagnose.faults.spec import JobSpec
from diagnose.faults.worker_fault import WorkerFault
from diagnose.machines.find import find_machines
from diagnose.model.plain import to_json
from docs.tools.shell import ROOT, Shell, list_commands
from tests.clusters.bridge import telemetry_of
from tests.clusters.prometheus import render_range
from tests.clusters.render import render
from tests.clusters.worlds import draw_world
from tests.collectives.simulate import Fault, Shape, simulate
from tests.collectives.write import write_flight_recorder
from tests.confirm.stands import document, machine, result
from tests.trace.producers import kineto_traces, megatron_lines, ndtimeline_files, pipelines, torchtitan_files

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: Beginnings of commands that cannot run here, each with the reason. Every entry must be needed.
CANNOT_RUN = {
    "pip install": "would change the environment that the tests run in; CI's step `wheel` installs the package",
    "python3 -m venv": "the same; CI runs the README's own line for the tests",
    "docker ": "needs a container tool; tests/deploy/test_container.py reads the Dockerfile with a linter",
    "kubectl ": "needs a cluster; tests/deploy/test_examples.py reads the CronJob",
    "bash confirm.sh": "needs machines to test; tests/confirm/test_script.py runs the script with stand-ins for ssh and srun",
    "sbatch ": "needs Slurm; tests/deploy/test_slurm.py runs the script with stand-ins for its programs",
    "systemctl ": "needs systemd as root; tests/deploy/test_examples.py verifies the units",
    "diagnose machines http": "needs a Prometheus server; tests/telemetry asks one",
    "primus ": "runs a training job",
    "torchrun ": "runs a training job",
    "diagnose run ": "runs a training job; tests/test_run_cli.py does that",
    'eval "$(diagnose run': "the same",
    "srun ": "needs Slurm",
    "diagnose /shared/traces/job-7": "needs what the job before it recorded",
    "python -m tests.record.table": "runs real jobs, hours of them; tests/record/table runs one of each framework",
    "python -m diagnose.faults": "makes hundreds of jobs, minutes long; tests/faults makes a few",
    "python -m tests.scoring": "diagnoses hundreds of jobs, minutes long; its tests run each of these programs on a few",
    "python -m diagnose.train": "trains for ten minutes; tests/test_train.py trains on a few jobs",
    "ruff ": "CI's step `ruff`",
    "mypy": "CI's step `mypy`",
    "lint-imports": "CI's step `who imports whom`",
    "python -m tests.answers": "diagnoses a corpus for six minutes; it is a tool for those who change the program",
    "python -m mkdocs": "CI's step `documentation`",
}
#: Commands that may end otherwise than with 0: a gate that finds something.
MAY_FAIL = {
    "diagnose compare last-good.json after.parquet --fail-on came",
    "diagnose machines telemetry.json --fail-on faulty --fail-on cannot-tell",
}


def _profiled(folder: Path) -> None:
    shutil.rmtree(folder / "traces")
    kineto_traces.data_parallel_rank(n_steps=8).write(
        folder / "traces/rank0.pt.trace.json.gz", **kineto_traces.distributed(0, 1)
    )


def _logged(folder: Path) -> None:
    lines = megatron_lines.run(range(1, 121), megatron_lines.noisy([(60, 1.0), (60, 1.3)]))
    (folder / "train.log").write_text("\n".join(lines) + "\n")


def _lengths(folder: Path) -> None:
    lengths = np.random.default_rng(0).integers(500, 60_000, 2000)
    (folder / "lengths.txt").write_text("".join(f"{length}\n" for length in lengths))


def _megascan(folder: Path) -> None:
    """Leave raw files, and a timeline as the aggregating script makes one of them."""
    events: list[dict[str, Any]] = []
    for file in sorted(pipelines.write_megascan(folder / "trace", pipelines.Pipeline(n_steps=4).run()).iterdir()):
        iteration, begun = -1, 0.0
        for row in json.loads(file.read_text()):
            if row["name"] == "iteration":
                iteration += row["ph"] == "B"
                continue
            at_us = row["rel_ts"] / 1e3 + 2e6 * iteration
            if row["ph"] == "E":
                args = {"iteration": iteration, **{key: row[key] for key in ("dp_rk", "pp_rk", "tp_rk", "g_rk")}}
                span = {"name": row["name"], "pid": row["g_rk"], "tid": 0, "ph": "X", "ts": begun, "dur": at_us - begun}
                events.append(span | {"args": args})
            begun = at_us
    (folder / "aggregated.json").write_text(json.dumps(events))


def _measured(folder: Path) -> None:
    """Leave a trace with the time of day, and what its machines answer to a range query."""
    spec, began_s = JobSpec(pp=2, steps=24, workers_per_host=2, absolute_times=True, seed=5, forward_s=0.2), 1.75e9
    fault = WorkerFault(places=((1, 1),), slowdown=1.5, onset=10)
    job = generate(spec, [fault])
    at = job.trace.schema.get_field_index("start_ts")
    moved = job.trace.set_column(at, "start_ts", pa.array(job.trace["start_ts"].to_numpy() + began_s))
    pq.write_table(moved, folder / "traces/job-7.parquet")
    (folder / "telemetry").mkdir()
    beside = telemetry_of(job, [fault], ["thermal"], began_s=began_s)
    (folder / "telemetry/job-7.json").write_text(render_range(beside.telemetry))


def _dumped(folder: Path) -> None:
    run = simulate(Shape(2, 4, 2), Fault("hang", 11, at=0.6), seed=1, n_steps=6)
    write_flight_recorder(run, folder / "dumps/job-7", seed=1)


def _timelines(folder: Path) -> None:
    rows = ndtimeline_files.timed(pd.read_parquet(ROOT / "fixtures/healthy.parquet"))
    ndtimeline_files.write_events(folder / "timelines", rows)
    (folder / "timeline_run0_raw.log").write_text("\n".join(ndtimeline_files.raw_lines(rows)))
    shutil.copy(ROOT / "docs/reference/job.yaml", folder)


def _clustered(folder: Path) -> None:
    """Leave what eight machines measured, and which of them do the same work."""
    world = draw_world(1, 7, n_hosts=8)
    (folder / "telemetry.json").write_text(render_range(render(world.cluster)))
    (folder / "roles.txt").write_text("".join(f"{host} stage-0\n" for host in world.cluster.names))


def _tested(folder: Path) -> None:
    """Leave a diagnosis and an answer about machines that name one, and what the tests of five machines left."""
    (folder / "job.json").write_text(to_json(document()))
    (folder / "machines.json").write_text(to_json(find_machines(render(draw_world(1, 7, n_hosts=8).cluster))))
    (folder / "confirm-results").mkdir()
    slow = {str(n): 402.0 if n == 3 else 606.0 for n in range(8)}
    for one in (result("node-3", "suspect", gemm=slow, dcgm=True), *(machine(f"node-{n}") for n in (1, 5, 9, 13))):
        (folder / f"confirm-results/{one.host}.json").write_text(to_json(one))


#: What puts the files of a page in place, where `shell.STANDS_FOR` does not.
SCENES: dict[str, Callable[[Path], object]] = {
    "docs/how-to/collectives.md": _dumped,
    "docs/how-to/confirm.md": _tested,
    "docs/how-to/logs.md": _logged,
    "docs/how-to/machines.md": _clustered,
    "docs/how-to/megatronapp.md": _megascan,
    "docs/how-to/pack.md": _lengths,
    "docs/how-to/primus.md": lambda at: pipelines.write_primus(at / "output/pp_data", pipelines.Pipeline().run()),
    "docs/how-to/pytorch-profiler.md": _profiled,
    "docs/how-to/telemetry.md": _measured,
    "docs/how-to/torchtitan.md": lambda at: torchtitan_files.write_logs(at / "outputs/structured_logs"),
    "docs/how-to/vescale.md": _timelines,
    "docs/how-to/zero-bubble.md": lambda at: pipelines.write_event_timer(at / "logs", pipelines.Pipeline().run()),
    "docs/reference/metadata.md": lambda at: shutil.copy(ROOT / "docs/reference/job.yaml", at),
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands(page: Path, tmp_path: Path) -> None:
    """Every command of the page ends as it should."""
    commands = [command for command in list_commands(page.read_text(encoding="utf-8")) if not why_not(command)]
    if not commands:
        return
    shell = Shell(tmp_path.resolve())
    SCENES.get(page.relative_to(ROOT).as_posix(), str)(shell.folder)
    for command in commands:
        ran = shell.run(with_known_fingerprint(command, shell))
        assert ran.code == 0 or (ran.code == 1 and command in MAY_FAIL), f"$ {command}\n{ran.output}"


def with_known_fingerprint(command: str, shell: Shell) -> str:
    """Put the fingerprint of a finding of the store in the place of the one that a page shows."""
    if "c9684b1d" not in command:
        return command
    (line, *_) = shell.run("diagnose tickets --all").output.splitlines()
    return command.replace("c9684b1d", json.loads(line)["fingerprint"])


def why_not(command: str) -> str:
    """Say why a command cannot run here; empty where it can."""
    return next((reason for start, reason in CANNOT_RUN.items() if command.startswith(start)), "")


def test_no_reason_is_left_over() -> None:
    """Each entry of the list of commands that cannot run stands for one that is shown."""
    shown = [command for page in PAGES for command in list_commands(page.read_text(encoding="utf-8"))]
    assert len(shown) > 80
    for start in CANNOT_RUN:
        assert any(command.startswith(start) for command in shown), start
    assert set(shown) >= MAY_FAIL


@pytest.mark.parametrize("page", [page for page in PAGES if "```pycon" in page.read_text()], ids=lambda page: page.stem)
def test_python_sessions(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Python answers on a page is what it answers."""
    monkeypatch.chdir(Shell(tmp_path.resolve()).folder)
    session = "".join(re.findall(r"^```pycon\n(.*?)^```$", page.read_text(), flags=re.MULTILINE | re.DOTALL))
    example = doctest.DocTestParser().get_doctest(session, {}, page.stem, str(page), 0)
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE, verbose=False)
    runner.run(example, out=said.append)
    assert runner.tries >= 3
    assert not runner.failures, "".join(said)


SCRIPTS = [
    (page, script)
    for page in PAGES
    for script in re.findall(r"^```python\n(.*?)^```$", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    if "from diagnose.record import" in script  # those for a framework run in it: tests/record/table
]


@pytest.mark.filterwarnings("ignore")  # of what torch says where there is no GPU
@pytest.mark.parametrize(("page", "script"), SCRIPTS, ids=[page.stem for page, _ in SCRIPTS])
def test_scripts(page: Path, script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that trains runs as it is shown, and leaves a trace."""
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")
    monkeypatch.chdir(tmp_path)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(batch: Any) -> None:
        model(batch).sum().backward()
        optimizer.step()

    exec(compile(script, page.name, "exec"), {"loader": [torch.ones(2, 4)] * 24, "train": train, "train_step": train})
    assert [path for path in (tmp_path / "traces").rglob("*") if path.is_file()]
