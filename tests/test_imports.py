"""Who may import whom, which library where, and who prints: DESIGN.md as a test over the source."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MODULES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "diagnose").rglob("*.py"))
#: The command line.
CLI = {path for path in MODULES if path.startswith("diagnose/cli/")}

#: Folders of the diagnosing path that meet in `model` and `pipeline` only.
APART = {"trace", "whatif", "features", "judge", "fixes", "report"}
#: What every module may import beside its own folder.
COMMON = {"errors", "model"}
#: What makes jobs with known faults, and learns from them: nothing that diagnoses imports it.
WORKSHOPS = {"faults", "train"}
#: What a part of the package may import beside that; None: everything but those.
MAY_IMPORT: dict[str, frozenset[str] | set[str] | None] = {
    **dict.fromkeys(APART, frozenset()),
    "errors": set(),
    "_version": set(),
    "model": set(),
    "packing": set(),
    "compare": set(),
    "fleet": set(),
    "record": set(),  # runs inside somebody's training
    "report": {"packing"},  # lays out its table
    "fixes": {"packing"},  # replays a job with its documents packed anew
    "pipeline": APART - {"report"} | {"_version"},
    "triage": {"pipeline", "report", "trace", "__init__"},  # trace: to tell a folder of one job from a folder of many
    "tickets": {"triage", "report", "__init__"},  # reads the store, words findings as reports do
    "faults": set(),
    "train": {"pipeline", "faults", "judge"},
    "cli": None,
    "__init__": None,
    "__main__": {"cli"},
}
#: Imports that break the rule, each for its reason.
EXCEPTIONS = {
    (
        "diagnose/faults/prices.py",
        "pipeline",
    ): "compares predictions with the truth of jobs with known faults; lazy, when it runs",
    ("diagnose/faults/score.py", "pipeline"): "judges diagnoses of jobs with known faults; lazy, when it runs",
}

#: Where a library may be imported: folders or files.
LIBRARIES = {
    "pyarrow": (
        "diagnose/trace/",
        "diagnose/triage/",
        "diagnose/faults/",
        "diagnose/train/measure.py",
        "diagnose/packing/read.py",
        "diagnose/record/write.py",
    ),
    "scipy": ("diagnose/packing/", "diagnose/fleet/"),
    "torch": ("diagnose/record/",),
    "msgspec": (
        "diagnose/trace/producers/",
        "diagnose/model/",
        "diagnose/report/",
        "diagnose/judge/",
        "diagnose/compare/",
        "diagnose/tickets/",
        "diagnose/triage/findings.py",
        "diagnose/pipeline.py",
    ),
    "matplotlib": ("diagnose/report/html/",),
    "jinja2": ("diagnose/report/html/",),
    "sqlalchemy": ("diagnose/triage/",),
    "fsspec": ("diagnose/triage/source.py",),
    "distributed": ("diagnose/triage/workplace.py",),
    "httpx": ("diagnose/tickets/post.py",),
    "tenacity": ("diagnose/tickets/",),
    "apprise": ("diagnose/tickets/apprise.py",),
    "prometheus_client": ("diagnose/tickets/gauges.py",),
    "yaml": ("diagnose/judge/rules.py", "diagnose/trace/metadata.py"),
    "rich": ("diagnose/report/", "diagnose/cli/progress.py", "diagnose/faults/__main__.py"),
    "sklearn": ("diagnose/train/trees.py",),
    "ruptures": ("diagnose/features/", "diagnose/judge/", "diagnose/whatif/"),
    "pandas": ("diagnose/model/diagnosis.py",),
    "click": (
        "diagnose/cli/",
        "diagnose/faults/__main__.py",
        "diagnose/faults/prices.py",
        "diagnose/faults/score.py",
        "diagnose/train/__main__.py",
    ),
}
#: What is run as a program, and so may print and exit; `faults` makes jobs and judges diagnoses of them, `train` learns from them.
PROGRAMS = {
    *CLI,
    "diagnose/__main__.py",
    "diagnose/faults/__main__.py",
    "diagnose/faults/prices.py",
    "diagnose/faults/score.py",
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
    "ruptures",
    "yaml",
    "scipy",
    "sqlalchemy",
    "httpx",
    "tenacity",
    "apprise",
    "prometheus_client",
}


def tree_of(path: str) -> ast.Module:
    """Parse a module."""
    return ast.parse((ROOT / path).read_text(encoding="utf-8"), path)


def imports(tree: ast.AST) -> Iterator[str]:
    """Give the full name of everything imported, at the top or in functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def top_imports(tree: ast.Module) -> Iterator[str]:
    """Give what is imported when the module is: not in functions, not for type checkers."""
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from imports(node)


def part_of(path: str) -> str:
    """Name the folder, or the single file, that a module of the package belongs to."""
    return Path(path).parts[1].removesuffix(".py")


def parts_imported(path: str) -> set[str]:
    """Name the parts of the package that a module imports, its own left out."""
    own = part_of(path)
    found = {name.split(".")[1] for name in imports(tree_of(path)) if name.startswith("diagnose.")}
    known = {part_of(module) for module in MODULES}
    return {part if part in known else "__init__" for part in found} - {own}


@pytest.mark.parametrize("path", MODULES)
def test_direction(path: str) -> None:
    """A module imports only what its place in the pipeline lets it."""
    part = part_of(path)
    assert part in MAY_IMPORT, f"say in MAY_IMPORT what diagnose/{part} may import"
    allowed = MAY_IMPORT[part]
    if allowed is None:
        allowed = {part_of(module) for module in MODULES} - WORKSHOPS
    broken = {other for other in parts_imported(path) - allowed - COMMON if (path, other) not in EXCEPTIONS}
    assert not broken


@pytest.mark.parametrize("path", [path for path in MODULES if part_of(path) not in WORKSHOPS])
def test_workshops_stay_out(path: str) -> None:
    """Nothing that diagnoses imports what makes faults, or what learns from them."""
    assert not WORKSHOPS & parts_imported(path)


def test_exceptions_are_needed() -> None:
    """Every exception in the list still is one."""
    for path, part in EXCEPTIONS:
        assert part in parts_imported(path)


@pytest.mark.parametrize("path", MODULES)
def test_libraries(path: str) -> None:
    """A library is imported only where it belongs."""
    libraries = {name.split(".")[0] for name in imports(tree_of(path))}
    misplaced = {name for name in libraries & LIBRARIES.keys() if not path.startswith(LIBRARIES[name])}
    assert not misplaced


@pytest.mark.parametrize("path", MODULES)
def test_scikit_learn_is_lazy(path: str) -> None:
    """Scikit-learn is imported inside functions only: it takes a second."""
    assert "sklearn" not in {name.split(".")[0] for name in top_imports(tree_of(path))}


@pytest.mark.parametrize("path", MODULES)
def test_scipy_is_lazy(path: str) -> None:
    """Scipy is imported inside functions only: only the exact packer and the fleet need it."""
    assert "scipy" not in {name.split(".")[0] for name in top_imports(tree_of(path))}


@pytest.mark.parametrize("path", MODULES)
def test_pandas_is_lazy(path: str) -> None:
    """Pandas is imported inside functions only."""
    assert "pandas" not in {name.split(".")[0] for name in top_imports(tree_of(path))}


@pytest.mark.parametrize("path", [path for path in MODULES if part_of(path) == "record"])
def test_torch_is_lazy(path: str) -> None:
    """The recorder imports torch, and what writes its files, inside functions only: nothing else of the package needs torch."""
    assert not {"torch", "pyarrow", "numpy"} & {name.split(".")[0] for name in top_imports(tree_of(path))}


@pytest.mark.parametrize("path", sorted(LIGHT))
def test_light_modules(path: str) -> None:
    """What runs for `--help` imports nothing heavy at its top."""
    assert not HEAVY & {name.split(".")[0] for name in top_imports(tree_of(path))}


@pytest.mark.parametrize("path", [path for path in MODULES if path not in PROGRAMS])
def test_only_programs_print_or_exit(path: str) -> None:
    """No module but the command line prints, exits, or touches the streams of the process."""
    tree = tree_of(path)
    calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    streams = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not calls & {"print", "exit", "quit", "sys.exit", "os._exit", "input", "breakpoint"}
    assert not streams & {"sys.stdout", "sys.stderr", "sys.stdin"}


def test_no_circles() -> None:
    """The parts of the package can be put in an order in which each imports only earlier ones."""
    left = {part: set[str]() for part in {part_of(path) for path in MODULES}}
    for path in MODULES:
        left[part_of(path)] |= {part for part in parts_imported(path) if (path, part) not in EXCEPTIONS}
    left["__init__"].clear()  # lazy, all of them: test_light_modules
    while left:
        free = {part for part, needs in left.items() if not needs & left.keys()}
        assert free, f"a circle among {sorted(left)}"
        left = {part: needs for part, needs in left.items() if part not in free}
