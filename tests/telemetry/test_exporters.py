"""Text that real exporters write: node_exporter and a Prometheus server, started here, scraping this machine for some seconds."""

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from diagnose.errors import ServiceError, TraceError, UsageError
from diagnose.faults.generate import generate
from diagnose.faults.spec import JobSpec
from diagnose.faults.worker_fault import WorkerFault
from diagnose.model.request import Request
from diagnose.pipeline import diagnose_job
from diagnose.telemetry.read import read_telemetry
from tests.clusters.bridge import telemetry_of
from tests.clusters.prometheus import render_range
from tests.ports import free_port

EXPORTER, SERVER = shutil.which("prometheus-node-exporter"), shutil.which("prometheus")
#: Of any Linux machine, whatever disks and ports it has.
MEASURED = {"cpu_used", "cpu_io_wait", "run_queue", "memory_available_bytes", "major_faults"}
CONFIG = """\
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: node
    static_configs: [{{targets: ['127.0.0.1:{port}'], labels: {{rack: r1}}}}]
"""

pytestmark = pytest.mark.skipif(
    not (EXPORTER and SERVER), reason="needs prometheus-node-exporter and prometheus (Debian packages of these names)"
)


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read()


def _processor_seconds(text: bytes) -> list[bytes]:
    return [line for line in text.splitlines() if line.startswith(b"node_cpu_seconds_total")]


def _wait(what: Callable[[], bool], *, at_most_s: float = 60.0) -> None:
    until = time.monotonic() + at_most_s
    while True:
        try:
            if what():
                return
        except (urllib.error.URLError, OSError):
            pass
        assert time.monotonic() < until, "the exporters did not come up"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def scraped(tmp_path_factory):
    """Start both, and give their addresses once the server has five scrapes."""
    folder = tmp_path_factory.mktemp("prometheus")
    exporter_port, server_port = free_port(), free_port()
    (folder / "prometheus.yml").write_text(CONFIG.format(port=exporter_port))
    started = []
    try:
        for command in (
            [EXPORTER, f"--web.listen-address=127.0.0.1:{exporter_port}", "--collector.ethtool"],
            [
                SERVER,
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address=127.0.0.1:{server_port}",
            ],
        ):
            with (folder / "log").open("ab") as log:
                started.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=folder))
        exporter, server = f"http://127.0.0.1:{exporter_port}", f"http://127.0.0.1:{server_port}"
        count = f"{server}/api/v1/query?query=count_over_time(node_procs_running[5m])"
        _wait(lambda: b'"5"' in _get(count) or b'"6"' in _get(count))
        yield exporter, server
    finally:
        for process in started:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=30)


def test_a_server_is_asked(scraped):
    """A server gives the metrics that it has of the machine, called by its own name, in the time asked for."""
    _, server = scraped
    now = time.time()
    telemetry = read_telemetry(server, begin_s=now - 60, end_s=now)
    assert telemetry.hosts == (os.uname().nodename,)
    assert {one.metric.name for one in telemetry.series} >= MEASURED
    assert telemetry.name == server
    for one in telemetry.series:
        assert one.times[0] >= now - 61
        assert one.times[-1] <= now + 1
    used = next(one for one in telemetry.series if one.metric.name == "cpu_used")
    assert 0.0 <= used.values.min() <= used.values.max() <= 1.0


def test_a_server_is_asked_for_the_machines_of_a_job(scraped):
    """Machines are found by name, with another domain or port; for those that nobody scrapes both lists are said."""
    _, server = scraped
    host = os.uname().nodename
    assert read_telemetry(server, hosts=(f"{host}.cluster.example", "other")).hosts == (host,)
    assert read_telemetry(server, hosts=("127.0.0.1",)).hosts == (host,)
    with pytest.raises(TraceError, match=r"it has 127\.0\.0\.1; the job ran on nobody"):
        read_telemetry(server, hosts=("nobody",))


def test_answers_kept_in_files_say_the_same(scraped, tmp_path):
    """What the API answers to a range query, kept in files, is read as the server's own; so is a query in the address."""
    _, server = scraped
    now = time.time()
    span = f"start={now - 60}&end={now}&step=1"
    for metric in ("node_procs_running", "node_memory_MemAvailable_bytes", "node_uname_info"):
        (tmp_path / f"{metric}.json").write_bytes(_get(f"{server}/api/v1/query_range?query={metric}&{span}"))
    kept = read_telemetry(tmp_path)
    asked = read_telemetry(server, begin_s=now - 60, end_s=now)
    for one in kept.series:
        (same,) = [other for other in asked.series if other.metric == one.metric]
        assert one.host == same.host
        assert set(one.values) <= set(same.values) | {one.values[0], one.values[-1]}
    assert [one.metric.name for one in kept.series] == ["memory_available_bytes", "run_queue"]
    direct = read_telemetry(f"{server}/api/v1/query_range?query=node_procs_running&{span}")
    assert [one.metric.name for one in direct.series] == ["run_queue"]


def test_the_text_of_an_exporter(scraped, tmp_path):
    """Two scrapes of node_exporter in a file, each below a comment with its time."""
    exporter, _ = scraped
    first = second = _get(f"{exporter}/metrics")
    counted = _processor_seconds(first)

    def later() -> bool:
        nonlocal second
        second = _get(f"{exporter}/metrics")
        return _processor_seconds(second) != counted

    _wait(later)  # the kernel counts in hundredths of a second: of two scrapes within one, no share can be told
    text = b"# 2026-01-31T12:00:00Z\n" + first + b"# 2026-01-31T12:00:15Z\n" + second
    path = tmp_path / "node-5.prom"
    path.write_bytes(text)
    telemetry = read_telemetry(path)
    assert {one.metric.name for one in telemetry.series} >= MEASURED
    assert set(telemetry.formats) == {"Prometheus text"}
    memory = next(one for one in telemetry.series if one.metric.name == "memory_available_bytes")
    assert memory.times.tolist() == [1769860800.0, 1769860815.0]
    assert "node_filesystem_free_bytes" in telemetry.unread


def test_who_is_no_server_is_told(scraped):
    """An exporter, a port where nobody listens, and a query that makes no sense: one line, and no password in it."""
    exporter, server = scraped
    with pytest.raises(ServiceError, match=r"not as Prometheus does|answers 404"):
        read_telemetry(exporter)
    silent = f"http://me:secret@127.0.0.1:{free_port()}"
    with pytest.raises(ServiceError, match="does not answer") as error:
        read_telemetry(silent)
    assert "secret" not in str(error.value)
    with pytest.raises(ServiceError, match="answers 400"):
        read_telemetry(f"{server}/api/v1/query_range?query=sum(&start=1&end=2&step=1")
    with pytest.raises(UsageError, match="expected an address"):
        read_telemetry("ftp://host/x")
    with pytest.raises(TraceError, match="without any series"):
        read_telemetry(f"{server}/api/v1/query_range?query=nothing&start=1&end=2&step=1")


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian package prometheus)")
def test_a_server_with_the_counters_of_a_job(tmp_path):
    """What a server has kept of a job's machines says why one is slow, among those of a cluster that the job did not run on."""
    spec = JobSpec(pp=2, dp=4, steps=24, workers_per_host=2, absolute_times=True, seed=5, forward_s=0.2)
    fault = WorkerFault(places=((1, 1),), slowdown=1.5, onset=10)
    job = generate(spec, [fault])
    began_s = 1.75e9
    at = job.trace.schema.get_field_index("start_ts")
    moved = job.trace.set_column(at, "start_ts", pa.array(job.trace["start_ts"].to_numpy() + began_s))
    pq.write_table(moved, tmp_path / "job.parquet")
    answer = json.loads(render_range(telemetry_of(job, [fault], ["power-cap"], began_s=began_s).telemetry))
    series = answer["data"]["result"]
    others = [{**one, "metric": {k: v.replace("host-", "other-") for k, v in one["metric"].items()}} for one in series]
    (tmp_path / "kept.txt").write_text(_open_metrics([*series, *others]))
    data = tmp_path / "data"
    subprocess.run(
        ["promtool", "tsdb", "create-blocks-from", "openmetrics", tmp_path / "kept.txt", data],
        check=True,
        capture_output=True,
    )
    (tmp_path / "prometheus.yml").write_text("{}")
    port = free_port()
    command = [
        SERVER,
        f"--config.file={tmp_path}/prometheus.yml",
        f"--storage.tsdb.path={data}",
        "--storage.tsdb.retention.time=100y",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (tmp_path / "log").open("ab") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, cwd=tmp_path)
    try:
        address = f"http://127.0.0.1:{port}"
        _wait(lambda: b"host-002" in _get(f"{address}/api/v1/label/Hostname/values?start=1749999000&end=1750009000"))
        diagnosis = diagnose_job(Request(tmp_path / "job.parquet", telemetry=address))
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=30)
    (cause,) = [found for found in diagnosis.causes if found.cause == "worker-fault"]
    assert cause.subcause.kind == "power-cap"
    assert cause.subcause.hosts == ("host-002",)
    assert diagnosis.telemetry.hosts == ("host-000", "host-001", "host-002", "host-003")


def _open_metrics(series):
    """Write series as OpenMetrics, a metric after the other, each sample with its time."""
    lines, last = [], ""
    for one in sorted(series, key=lambda one: one["metric"]["__name__"]):
        labels = dict(one["metric"])
        name = labels.pop("__name__")
        if name != last:
            lines.append(f"# TYPE {name} unknown")
            last = name
        said = ",".join(f'{key}="{value}"' for key, value in labels.items())
        lines += [f"{name}{{{said}}} {value} {time:.3f}" for time, value in one["values"]]
    return "\n".join([*lines, "# EOF", ""])
