"""Who may import whom (contracts in pyproject.toml), which library where, and who prints: DESIGN.md as tests over the source."""

import ast
import itertools
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MODULES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "diagnose").rglob("*.py"))
#: The command line.
CLI = {path for path in MODULES if path.startswith("diagnose/cli/")}

#: Where a library may be imported: folders or files.
LIBRARIES = {
    "pyarrow": (
        "diagnose/trace/",
        "diagnose/triage/",
        "diagnose/faults/",
        "diagnose/train/measure.py",
        "diagnose/packing/read.py",
        "diagnose/record/write.py",
        "diagnose/bundle/",
    ),
    "scipy": ("diagnose/packing/", "diagnose/fleet/"),
    "torch": ("diagnose/record/", "diagnose/confirm/host.py"),  # the second is no module: it runs on machines to test
    "msgspec": (
        "diagnose/trace/collectives/",
        "diagnose/trace/producers/",
        "diagnose/model/",
        "diagnose/report/",
        "diagnose/judge/",
        "diagnose/compare/",
        "diagnose/confirm/",
        "diagnose/telemetry/",
        "diagnose/tickets/",
        "diagnose/triage/findings.py",
        "diagnose/watch/",
        "diagnose/fixes/plan.py",
    ),
    "matplotlib": ("diagnose/report/html/", "diagnose/results.py"),  # the second for its type alone
    "jinja2": ("diagnose/report/html/",),
    "sqlalchemy": ("diagnose/triage/",),
    "fsspec": ("diagnose/triage/source.py",),
    "distributed": ("diagnose/triage/pools.py",),
    "httpx": ("diagnose/tickets/post.py", "diagnose/telemetry/server.py"),
    "tenacity": ("diagnose/tickets/",),
    "apprise": ("diagnose/tickets/apprise.py",),
    "prometheus_client": ("diagnose/tickets/gauges.py", "diagnose/telemetry/prometheus.py", "diagnose/watch/gauges.py"),
    "yaml": (
        "diagnose/judge/rule_file.py",
        "diagnose/judge/telemetry_file.py",
        "diagnose/judge/yaml_file.py",
        "diagnose/trace/metadata.py",
    ),
    "rich": ("diagnose/report/", "diagnose/cli/progress.py", "diagnose/watch/screen.py", "diagnose/faults/__main__.py"),
    "sklearn": ("diagnose/train/trees.py",),
    "tensorboard": ("diagnose/trace/logs/formats/event_files.py",),
    "pandas": ("diagnose/model/diagnosis.py", "diagnose/model/request.py"),  # the second for its type alone
    "click": (
        "diagnose/cli/",
        "diagnose/faults/__main__.py",
        "diagnose/train/__main__.py",
    ),
}
#: What is run as a program, and so may print and exit; `faults` makes jobs, `train` learns from them.
PROGRAMS = {
    *CLI,
    "diagnose/__main__.py",
    "diagnose/confirm/host.py",
    "diagnose/faults/__main__.py",
    "diagnose/train/__main__.py",
}
#: Modules that no other name than these may import at their top: they answer before numpy is there.
LIGHT = {"diagnose/__init__.py", "diagnose/__main__.py", *CLI, "diagnose/errors.py"}
HEAVY = {
    "matplotlib",
    "jinja2",
    "numpy",
    "pandas",
    "pyarrow",
    "rich",
    "sklearn",
    "yaml",
    "scipy",
    "sqlalchemy",
    "httpx",
    "tenacity",
    "apprise",
    "prometheus_client",
}


#: Libraries that are imported inside functions only: they take long, and few need them.
LAZY = {"pandas", "scipy", "sklearn"}
#: The same in the recorder: nothing else of the package needs torch, and only what writes its files needs the others.
LAZY_IN_RECORD = {"torch", "pyarrow", "numpy"}


#: What no job makes `diagnose JOB --format json` import, of libraries and of the program.
NEVER_IMPORTED = {
    *(
        "pandas",
        "scipy",
        "sklearn",
        "matplotlib",
        "jinja2",
        "rich",
        "sqlalchemy",
        "fsspec",
        "httpx",
        "torch",
    ),
    *("pyarrow.dataset", "pyarrow.pandas_compat", "importlib.metadata", "diagnose.log_alone", "diagnose.judge.explain"),
    *(
        "diagnose.report.html",
        "diagnose.trace.gather",
        "diagnose.trace.strangers",
        "diagnose.trace.producers.catalogue",
    ),
}
#: What only some jobs make it import; all others do without.
IMPORTED_FOR = {
    "numpy.random": {"allocator-stall", "worker-fault"},  # since when: permutations
    "pyarrow.compute": {"sequence-imbalance"},  # lists of document lengths
    "diagnose.packing": {"sequence-imbalance"},
}


@cache
def tree_of(path: str) -> ast.Module:
    """Parse a module."""
    return ast.parse((ROOT / path).read_text(encoding="utf-8"), path)


def libraries(*nodes: ast.AST) -> set[str]:
    """Name the packages that are imported in these nodes, at the top or in functions."""
    found = set()
    for node in itertools.chain.from_iterable(map(ast.walk, nodes)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            found.add(str(node.module).split(".")[0])
    return found


def libraries_at_top(path: str) -> set[str]:
    """Name the packages that are imported when the module is: not in functions, not for type checkers."""
    return libraries(*(node for node in tree_of(path).body if isinstance(node, ast.Import | ast.ImportFrom)))


def test_direction(capsys: pytest.CaptureFixture[str]) -> None:
    """The contracts in pyproject.toml hold: who may import whom, and no circles."""
    pytest.importorskip("importlinter.api", reason="import-linter is not installed")  # its settings, not its logging
    from importlinter.application.use_cases import lint_imports

    kept = lint_imports(config_filename=str(ROOT / "pyproject.toml"), cache_dir=None, no_logo=True)
    assert kept, capsys.readouterr().out


def test_libraries() -> None:
    """A library is imported only where it belongs."""
    misplaced = {
        (path, name)
        for path in MODULES
        for name in libraries(tree_of(path)) & LIBRARIES.keys()
        if not path.startswith(LIBRARIES[name])
    }
    assert not misplaced


def test_lazy_libraries() -> None:
    """What takes long to import is imported inside functions only."""
    eager = {(path, name) for path in MODULES for name in libraries_at_top(path) & LAZY}
    recorder = [path for path in MODULES if path.startswith("diagnose/record/")]
    eager |= {(path, name) for path in recorder for name in libraries_at_top(path) & LAZY_IN_RECORD}
    assert not eager


def test_light_modules() -> None:
    """What runs for `--help` imports nothing heavy at its top."""
    heavy = {(path, name) for path in LIGHT for name in libraries_at_top(path) & HEAVY}
    assert not heavy


@pytest.mark.parametrize("job", ["healthy", "worker-fault", "sequence-imbalance", "allocator-stall"])
def test_what_a_diagnosis_imports(job: str) -> None:
    """A job in one Parquet file is diagnosed for programs with what this kind of job needs, and no more."""
    program = (
        "import sys\nfrom diagnose.cli.main import main\nmain(sys.argv[1:])\nprint(*sorted(sys.modules), sep='\\n')"
    )
    command = [sys.executable, "-c", program, str(ROOT / "fixtures" / f"{job}.parquet"), "--format", "json", "--quiet"]
    answer, *imported = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert answer.startswith("{")
    assert not NEVER_IMPORTED & set(imported)
    needless = {name for name, jobs in IMPORTED_FOR.items() if job not in jobs and name in imported}
    assert not needless


def test_only_programs_print_or_exit() -> None:
    """No module but the command line prints, exits, or touches the streams of the process."""
    found = {(path, use) for path in MODULES if path not in PROGRAMS for use in uses_of_the_process(tree_of(path))}
    assert not found


def uses_of_the_process(tree: ast.Module) -> set[str]:
    """Name what prints, exits, asks, or is a stream of the process."""
    nodes = list(ast.walk(tree))
    calls = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
    streams = {ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)}
    return (calls & {"print", "exit", "quit", "sys.exit", "os._exit", "input", "breakpoint"}) | (
        streams & {"sys.stdout", "sys.stderr", "sys.stdin"}
    )
