"""`diagnose machines`: from a file as Prometheus writes it to a page, JSON and an exit code."""

import json

import jsonschema
import pytest

from diagnose.cli.main import main
from diagnose.report.schemas import make_schema
from tests.clusters.prometheus import render_range
from tests.clusters.render import render
from tests.clusters.worlds import draw_world


@pytest.fixture(scope="module")
def world():
    """A world with a faulty machine that shows it."""
    drawn = (draw_world(11, i, n_hosts=24) for i in range(1, 400, 2))
    return next(
        w for w in drawn if w.faults[0].kind == "gpu-card-drop" and w.exported == "all" and w.cluster.interval_s == 15.0
    )


@pytest.fixture(scope="module")
def path(world, tmp_path_factory):
    """Its telemetry, as a server answers."""
    path = tmp_path_factory.mktemp("telemetry") / "answers.json"
    path.write_text(render_range(render(world.cluster)))
    return path


def test_page(world, path, capsys):
    """The first line names the machine; the page says since when, why and what to do."""
    assert main(["machines", str(path)]) == 0
    page = capsys.readouterr().out
    assert page.splitlines()[0] == f"faulty: {next(iter(world.faulty))}, of 24 machines"
    assert all(word in page for word in ("Sure", "Why", "Next", "Or else", "stopped, its processes wait"))


def test_json_is_as_its_schema_says(world, path, capsys):
    """One object, valid against the schema that the program prints."""
    assert main(["machines", str(path), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, make_schema("machines"))
    assert [machine["host"] for machine in found["machines"]] == list(world.faulty)
    assert found["machines"][0]["kind"] in ("card-lost", "process-died")


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (["--fail-on", "faulty"], 1),
        (["--fail-on", "0.5"], 1),
        (["--fail-on", "1.0"], 0),
        (["--fail-on", "cannot-tell"], 0),
        (["--fail-on", "broken"], 2),
        (["--at", "yesterday"], 2),
        (["--at", "2001-01-01T00:00:00Z"], 3),
    ],
)
def test_exit_codes(path, given, code, capsys):
    """Gates end with 1, wrong words with 2, a time without samples with 3; each error is one line."""
    assert main(["machines", str(path), *given]) == code
    assert capsys.readouterr().err.count("\n") == (code > 1)


def test_roles_from_a_file(path, tmp_path, capsys):
    """A layout names the role of each machine; what lacks or is no layout is refused with its place."""
    layout = tmp_path / "roles.txt"
    layout.write_text("# machine role\n" + "".join(f"node-{i:04} stage-{i % 2}\n" for i in range(24)))
    assert main(["machines", str(path), "--roles", str(layout), "--format", "json"]) == 0
    assert [len(role) for role in json.loads(capsys.readouterr().out)["roles"]] == [12, 12]
    layout.write_text("node-0000 stage 0\n")
    assert main(["machines", str(path), "--roles", str(layout)]) == 2
    assert "roles.txt:1: 3 words; expected a machine and its role" in capsys.readouterr().err


def test_no_telemetry_is_one_line(tmp_path, capsys):
    """What cannot be read as telemetry says what was expected."""
    nothing = tmp_path / "nothing.txt"
    nothing.write_text("hello\n")
    assert main(["machines", str(nothing)]) == 3
    assert capsys.readouterr().err.count("\n") == 1
