"""The Grafana dashboard asks for gauges that the program writes, and for all of them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from diagnose.model.census import Census
from diagnose.tickets.gauges import render_gauges

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = json.loads((ROOT / "deploy/grafana/dashboard.json").read_text())


def census() -> Census:
    """Give a store with something of everything."""
    return Census(
        night_ended_at=1.78e9,
        jobs_by_verdict={"straggling": 2, "healthy": 1},
        failed_by_kind={"damaged": 1},
        gpu_hours_analysed=10.0,
        gpu_hours_wasted=1.0,
        wasted_by_cause={"worker-fault": 1.0},
    )


def targets() -> Iterator[dict[str, Any]]:
    """List what the panels ask for."""
    for panel in DASHBOARD["panels"]:
        yield from panel["targets"]


def test_metrics_are_those_that_the_program_writes() -> None:
    """Every metric of a panel is written, and every gauge is shown in one."""
    written = {family.name for family in text_string_to_metric_families(render_gauges(census(), [], set()).decode())}
    asked = {name for target in targets() for name in re.findall(r"\bdiagnose_\w+", target["expr"])}
    assert asked == written


def test_labels_are_those_that_the_program_writes() -> None:
    """A legend that names a label names one of its metric."""
    families = text_string_to_metric_families(render_gauges(census(), [], set()).decode())
    labels = {family.name: {key for sample in family.samples for key in sample.labels} for family in families}
    for target in targets():
        (metric, *_) = re.findall(r"\bdiagnose_\w+", target["expr"])
        assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels[metric], target


def test_panels_have_room_and_a_source() -> None:
    """Ids are unique, no two panels overlap, and all ask the source that the import asks for."""
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    (source,) = DASHBOARD["__inputs"]
    cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        room = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not room & cells and max(x for x, _ in room) < 24
        cells |= room
        assert panel["datasource"]["uid"] == f"${{{source['name']}}}"
        assert all(target["datasource"] == panel["datasource"] for target in panel["targets"])
