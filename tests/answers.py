"""Keep what the program answers on a fixed corpus, and compare two of such answers: `python -m tests.answers`.

    python -m tests.answers keep /tmp/before           # about six minutes of CPU: every job below
    python -m tests.answers keep /tmp/now --quick      # about one minute: a part of them, JSON alone
    python -m tests.answers keep /tmp/now --only 'real-*'
    python -m tests.answers compare /tmp/before /tmp/now

The corpus: all fixtures, and where `../shared` is there its two production traces, 18 shapes, real jobs and traces of other
producers; 200 generated jobs, half of them without evidence rows. Kept of each: the JSON; of the named ones also the pages
for people, explanations, fixes by hand and comparisons. A job that cannot be diagnosed keeps its error.
Generated jobs are made once, in the folder itself (`jobs/`), or taken from the folder given with `--jobs`, so that a change of
the generator does not pass for a change of the judge.
"""

import argparse
import contextlib
import difflib
import fnmatch
import functools
import io
import json
import multiprocessing
import os
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
#: Seeds of the generated jobs, with and without evidence rows; nothing was ever tuned on them.
SEEDS = {True: 26112201, False: 26112202}
N_GENERATED = 100
CAUSES = sorted(path.stem for path in (ROOT / "rules").glob("*.yaml"))
#: Every so-manieth generated job and shape is part of the quick corpus.
QUICK_EVERY = 8


def list_named() -> dict[str, str]:
    """Give the jobs that people know, by a name for the files of their answers."""
    found = {f"fixture-{path.stem}": path for path in sorted((ROOT / "fixtures").glob("*.parquet"))}
    for path in sorted((SHARED / "artifact").glob("trace-*.parquet")):
        found[path.stem] = path
    for path in sorted((SHARED / "artifact" / "shapes").glob("*.parquet")):
        found[path.stem] = path
    for path in sorted((SHARED / "real").glob("*.parquet")):
        found[f"real-{path.stem}"] = path
    formats = SHARED / "formats"
    for path in (*sorted(formats.glob("*")), *sorted(formats.glob("pipemorph*/*")), *sorted(formats.glob("*/*.json*"))):
        found["format-" + "-".join(path.relative_to(formats).parts)] = path
    found["format-primus-pp8"] = formats / "primus" / "pp8"
    return {name: str(path) for name, path in found.items() if path.exists()}


def list_generated(folder: Path, *, make: bool) -> dict[str, str]:
    """Give the generated jobs, made first unless they are there."""
    found = {}
    for evidence, seed in SEEDS.items():
        at = folder / f"{'with' if evidence else 'no'}-evidence"
        if make:
            from diagnose.faults.corpus import Corpus, write_corpus

            for _ in write_corpus(Corpus(at, seed, evidence=evidence), N_GENERATED, 2):
                pass
        found |= {f"generated-{at.name}-{path.stem}": str(path) for path in sorted(at.glob("*.parquet"))}
    return found


def list_commands(name: str, path: str, out: Path) -> Iterator[tuple[str, list[str]]]:
    """Give what is asked of one job: the end of the file's name, and the arguments."""
    yield "json", [path, "--format", "json", "--quiet"]
    if name.startswith(("generated-", "shape-")):
        return
    yield "txt", [path, "-vv", "--quiet", "--html", str(out / f"{name}.html")]
    yield "md", [path, "--format", "markdown", "--quiet"]
    if name.startswith(("fixture-", "real-", "trace-")):
        culprit = name.removeprefix("fixture-") if name.removeprefix("fixture-") in CAUSES else "worker-fault"
        for cause in dict.fromkeys([culprit, *(CAUSES if name.startswith("trace-") else ()), "unknown"]):
            yield f"explain-{cause}.txt", ["explain", path, cause]
        yield "explain.json", ["explain", path, culprit, "--format", "json"]
        whole = ["--fix", "replace-worker", "--fix", "planned-gc", "--set", "forward-compute stage=0 x0.8"]
        yield "what-if.json", ["what-if", path, *whole, "--format", "json"]
        yield (
            "compare.json",
            ["compare", str(ROOT / "fixtures" / "healthy.parquet"), path, "--format", "json"],
        )


#: What the program says without a job.
ALONE = {
    "schema.json": ["schema"],
    "schema-compare.json": ["schema", "compare"],
    "schema-fleet.json": ["schema", "fleet"],
    "schema-ticket.json": ["schema", "ticket"],
    "schema-watch.json": ["schema", "watch"],
    "schema-watch-states.json": ["schema", "watch-states"],
    "rules.txt": ["rules", "list"],
    "fixes.txt": ["fixes"],
    "help.txt": ["--help"],
}


def run(arguments: list[str]) -> str:
    """Run the command line in this process and give what it prints, and its exit code unless it is 0."""
    from diagnose.cli.main import main

    os.environ["COLUMNS"] = "160"
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        code = main(arguments)
    return said.getvalue() + (f"exit {code}\n" if code else "")


def answer(out: Path, item: tuple[str, str], *, quick: bool) -> None:
    """Write what the program says of one job."""
    for suffix, arguments in list_commands(*item, out):
        if quick and suffix != "json":
            break
        (out / f"{item[0]}.{suffix}").write_text(run(arguments).replace(str(out), "OUT"))


def keep(out: Path, *, jobs: Path | None, quick: bool, only: str, workers: int) -> None:
    """Answer every job of the corpus."""
    out.mkdir(parents=True, exist_ok=True)
    generated = list_generated(jobs or out / "jobs", make=jobs is None)
    items = list_named() | generated
    if quick:
        often = {name for name in items if name.startswith(("generated-", "shape-"))}
        chosen = set(sorted(often)[::QUICK_EVERY])
        items = {name: path for name, path in items.items() if name not in often or name in chosen}
    items = {name: path for name, path in items.items() if fnmatch.fnmatch(name, only)}
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        for i, _ in enumerate(pool.map(functools.partial(answer, out, quick=quick), items.items())):
            print(f"\r{i + 1} of {len(items)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    for file, arguments in ALONE.items():
        (out / f"alone-{file}").write_text(run(arguments))


def compare(before: Path, after: Path, *, ignore: tuple[str, ...], same: tuple[str, ...]) -> Iterator[str]:
    """Give a line for each answer of `after` that is not in `before`, byte for byte, with the first lines that differ.

    `ignore` are keys of the JSON that may differ, `same` pairs OLD=NEW of texts that count as the same.
    """
    pairs = [pair.split("=", 1) for pair in same]
    for path in sorted(path for path in after.iterdir() if path.is_file()):
        old = before / path.name
        if not old.exists():
            yield f"{path.name}: new"
            continue
        was, now = (_readable(p, ignore, pairs) for p in (old, path))
        if was != now:
            diff = list(difflib.unified_diff(was, now, lineterm="", n=0))[2:]
            yield f"{path.name}: {len(diff)} lines\n" + "\n".join(f"    {line[:240]}" for line in diff[:12])


def _readable(path: Path, ignore: tuple[str, ...], same: list[list[str]]) -> list[str]:
    """Give the lines of an answer; of JSON one a value, without the keys to ignore."""
    text = path.read_text()
    for old, new in same:
        text = text.replace(old, new)
    if path.suffix != ".json" or not text.startswith("{"):
        return text.splitlines()
    document = json.loads(text)
    for key in ignore:
        *above, last = key.split(".")
        at = document
        for part in above:
            at = at.get(part) or {}
        at.pop(last, None)
    lines = json.dumps(document, indent=1).splitlines()
    return lines if ignore else [*lines, text]


def main() -> int:
    """Run one of the two."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    keeping = commands.add_parser("keep")
    keeping.add_argument("out", type=Path)
    keeping.add_argument("--jobs", type=Path, help="folder with the generated jobs of an earlier run")
    keeping.add_argument("--quick", action="store_true")
    keeping.add_argument("--only", default="*", help="pattern of names of jobs")
    keeping.add_argument("--workers", type=int, default=2)
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument(
        "--ignore", action="append", default=[], help="key of the JSON that may differ: made_by.rules"
    )
    comparing.add_argument("--same", action="append", default=[], help="texts that count as the same: d22ad8=573868")
    given = parser.parse_args()
    if given.command == "keep":
        keep(given.out, jobs=given.jobs, quick=given.quick, only=given.only, workers=given.workers)
        return 0
    differences = list(compare(given.before, given.after, ignore=tuple(given.ignore), same=tuple(given.same)))
    print("\n".join(differences) if differences else "the same")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
