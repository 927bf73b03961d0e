"""The command line: the only place that prints or exits.

Enters: arguments. Leaves: results on standard output, progress and errors on standard error, and the exit code.
Nothing heavy is imported before a command needs it, so that `diagnose --help` and shell completion answer at once.
"""

import contextlib
import dataclasses
import errno
import math
import os
import shutil
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Self, TextIO

import click

from diagnose import __version__
from diagnose.errors import DiagnoseError, MetadataError, RuleError, UsageError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem
    from rich.status import Status

    from diagnose.model.comparison import Comparison
    from diagnose.model.diagnosis import Diagnosis
    from diagnose.model.explanation import Explanation
    from diagnose.model.night import Headway
    from diagnose.model.priced import ByHand, Wishes
    from diagnose.model.scene import Scene
    from diagnose.model.trace import Ints

#: Exit codes beside those of the exceptions in `errors`.
EXIT_STRAGGLING = 1
EXIT_WORSE = 1
EXIT_BATCH = 5
EXIT_INTERNAL = 70
EXIT_OUTPUT = 74
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
EXIT_TERMINATED = 143

#: Columns of a report that no terminal shows.
FILE_WIDTH = 100
MIN_WIDTH = 40
MAX_WIDTH = 1000
#: A job that is diagnosed sooner shows no progress.
PROGRESS_AFTER_S = 1.0

#: Name in the group of the command that diagnoses: no file and no command can have it.
_JOBS = ""
_EPILOG = """\b
Exit codes:
  0    diagnosed, whatever the verdict
  1    the verdict is straggling, with --fail-on straggling; steps are longer, or a
       cause came, with --fail-on worse or came of `diagnose compare`
  2    bad usage
  3    the input cannot be read as a trace, or as a diagnosis
  4    a rule or configuration file is wrong
  5    of several jobs, some failed
  70   an error in diagnose itself; DIAGNOSE_DEBUG=1 shows where
  74   the output cannot be written, or a store or cluster does not answer

A file that has the name of a command is diagnosed as ./NAME."""


class JobsOrCommand(click.Group):
    """A group whose first argument is the name of a command or, if it is none, the first job."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the name of the diagnosing command first unless there is another."""
        completing_first = ctx.resilient_parsing and not args
        if not completing_first and not (args and args[0] in {*self.commands, "--help", "--version"}):
            args = [_JOBS, *args]
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show both ways to call the program."""
        name = ctx.find_root().command_path
        formatter.write_usage(name, "[OPTIONS] JOB...")
        formatter.write_usage(name, "COMMAND [ARGS]...", prefix="       ")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show the options of the diagnosing command, then the other commands."""
        click.Command.format_options(self.commands[_JOBS], ctx, formatter)
        self.format_commands(ctx, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Offer commands and files, or options."""
        from click.shell_completion import CompletionItem

        if incomplete.startswith("-"):
            return self.commands[_JOBS].shell_complete(ctx, incomplete)
        return [*super().shell_complete(ctx, incomplete), CompletionItem(incomplete, type="file")]


class _JobsCommand(click.Command):
    """The command without a name; its help is the help of the program."""

    def get_help(self, ctx: click.Context) -> str:
        """Give the help of the group."""
        return program.get_help(ctx)


def _check_min_speedup(_ctx: click.Context, _param: click.Parameter, value: float) -> float:
    """Refuse what is not a number."""
    if not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a finite number.")
    return value


#: Options of every command that reads a job.
_meta_option = click.option(
    "--meta", metavar="FILE", type=click.Path(path_type=Path), help="YAML file with metadata of the job."
)
_steps_option = click.option("--steps", metavar="STEPS", help="Analyse only these steps: 16-40,80.")
_own_rules_option = click.option(
    "--rules",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Rules of your own; one replaces the built-in rule of its id.",
)
_min_speedup_option = click.option(
    "--min-speedup",
    metavar="FLOAT",
    type=click.FloatRange(min=1.0),
    callback=_check_min_speedup,
    default=1.02,
    show_default=True,
    help="Report a cause when removing it makes the job at least so many times faster.",
)
_perfetto_option = click.option(
    "--perfetto", metavar="FILE", type=click.Path(), help="Draw some steps as timelines for ui.perfetto.dev: .json.gz."
)
_perfetto_steps_option = click.option(
    "--perfetto-steps", metavar="STEPS", help="Draw these steps: 40,41; the worst and a typical one if left out."
)
_perfetto_dp_option = click.option(
    "--perfetto-dp", metavar="RANKS", help="Draw these dp ranks: 0,3; culprits and a sound peer if left out."
)
_perfetto_mb_option = click.option(
    "--perfetto-mb",
    metavar="MB",
    type=click.FloatRange(min=0.0, min_open=True),
    default=20.0,
    show_default=True,
    help="Draw no more than a file of this size holds.",
)
_no_color_option = click.option(
    "--no-color", is_flag=True, help="No colours; so does the environment variable NO_COLOR."
)
_width_option = click.option(
    "--width", metavar="N", type=click.IntRange(MIN_WIDTH, MAX_WIDTH), help="Columns of the report."
)
_version_option = click.version_option(__version__, prog_name="diagnose", message="%(prog)s %(version)s")


@click.group(cls=JobsOrCommand, epilog=_EPILOG, no_args_is_help=False)
@_version_option
def program() -> None:
    """Say why a large training job is slow: where, since when, how sure, and what to change.

    JOB is the trace of one job, a Parquet file with one row an operation; - reads it from standard input. Each job
    gets one report.
    """


@program.command(_JOBS, cls=_JobsCommand, hidden=True)
@click.argument("jobs", metavar="JOB...", nargs=-1, type=click.Path())
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["terminal", "json", "markdown", "junit"]),
    default="terminal",
    show_default=True,
    help="A page for people, one JSON object a job and line (see `diagnose schema`), Markdown for tickets, or JUnit XML for gates.",
)
@click.option(
    "-o", "output", metavar="FILE", type=click.Path(), help="Write there instead of standard output, all or nothing."
)
@_meta_option
@_steps_option
@_own_rules_option
@_min_speedup_option
@click.option("--fail-on", type=click.Choice(["straggling"]), help="End with exit code 1 when a job has this verdict.")
@click.option("--verbose", is_flag=True, help="Add every rule with its conditions, and every feature, to the page.")
@click.option(
    "--html", metavar="FILE", type=click.Path(), help="Draw the job on a page for a browser: one file, no network."
)
@_perfetto_option
@_perfetto_steps_option
@_perfetto_dp_option
@_perfetto_mb_option
@_no_color_option
@_width_option
@click.option("--quiet", is_flag=True, help="No progress.")
@_version_option
def jobs_command(jobs: tuple[str, ...], **given: Any) -> int:
    """Diagnose every job."""
    return diagnose_jobs(jobs, Options(**given))


@program.command("explain")
@click.argument("job", type=click.Path())
@click.argument("cause")
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["terminal", "json"]),
    default="terminal",
    show_default=True,
    help="A page for people, or one JSON object (diagnose-explain/1).",
)
@_meta_option
@_steps_option
@_own_rules_option
@_min_speedup_option
@_no_color_option
@_width_option
def explain_command(job: str, cause: str, **given: Any) -> int:
    """Say why one CAUSE is said of a JOB, or why not.

    CAUSE is the id of a rule (see `diagnose rules list`), or `unknown` for time that no rule explains.
    """
    from diagnose.report import explain

    options = Options(output=None, fail_on=None, quiet=False, **given)
    _check_jobs((job,), options)
    explanation = _explain_one(job, cause, _parse_steps(options.steps), options)
    if options.output_format == "json":
        _write_stdout(explain.render_json(explanation) + "\n")
    else:
        _write_stdout(explain.render(explanation, width=options.columns, color=options.color))
    return 0


@program.command("what-if")
@click.argument("job", type=click.Path())
@click.option(
    "--fix",
    "fixes",
    metavar="NAME[:KEY=VALUE,...]",
    multiple=True,
    help="Apply this fix (see `diagnose fixes`); several are applied one after the other.",
)
@click.option(
    "--set",
    "scales",
    metavar="'TYPE [stage=N] [dp=N] [step=N] xF'",
    multiple=True,
    help="Let operations of a type take F times as long, on some stages, dp ranks or steps.",
)
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["terminal", "json"]),
    default="terminal",
    show_default=True,
    help="A page for people, or one JSON object (diagnose-what-if/1).",
)
@_meta_option
@_steps_option
@_own_rules_option
@_min_speedup_option
@_perfetto_option
@_perfetto_steps_option
@_perfetto_dp_option
@_perfetto_mb_option
@_no_color_option
@_width_option
def what_if_command(job: str, fixes: tuple[str, ...], scales: tuple[str, ...], **given: Any) -> int:
    """Say how fast a JOB would run with some fixes.

    Such as --fix replace-worker:dp=0,pp=0 --fix planned-gc:every=200 --set 'forward-compute stage=3 x0.8'.
    """
    from diagnose.model.priced import Wishes
    from diagnose.report import what_if

    options = Options(output=None, fail_on=None, quiet=False, **given)
    _check_jobs((job,), options)
    if not fixes and not scales:
        raise UsageError("nothing to price: give --fix (`diagnose fixes` lists them) or --set")
    found, scene = _price_one(job, Wishes(fixes, scales), _parse_steps(options.steps), options)
    if options.perfetto is not None:
        _write_perfetto(scene, options.perfetto, options, fixed="the fixes given by hand")
    if options.output_format == "json":
        _write_stdout(what_if.render_json(found) + "\n")
    else:
        _write_stdout(what_if.render(found, width=options.columns, color=options.color))
    return 0


@program.command("compare")
@click.argument("before", metavar="A", type=click.Path())
@click.argument("after", metavar="B", type=click.Path())
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["terminal", "json", "markdown"]),
    default="terminal",
    show_default=True,
    help="A page for people, one JSON object (diagnose-compare/1), or Markdown for tickets.",
)
@click.option(
    "-o", "output", metavar="FILE", type=click.Path(), help="Write there instead of standard output, all or nothing."
)
@click.option("--job", metavar="ID", help="Compare the diagnoses of this job, where a file holds several.")
@click.option(
    "--fail-on",
    type=click.Choice(["worse", "came"]),
    help="End with exit code 1 when steps are at least 2% longer (worse), or when a cause came or grew (came).",
)
@_own_rules_option
@_min_speedup_option
@_no_color_option
@_width_option
def compare_command(before: str, after: str, job: str | None, **given: Any) -> int:
    """Say what changed between two diagnoses A and B: causes that came, went, grew or shrank, and the step time.

    A and B are traces, or what --format json printed of them. For `was the fix worth it` and `what changed since yesterday`.
    """
    from diagnose.report import compare as page

    options = Options(meta=None, steps=None, quiet=False, **given)
    _check_jobs((before, after), options)
    found = _compare_two(before, after, job, options)
    with _open_output(options.output) as write:
        if options.output_format == "json":
            write(page.render_json(found) + "\n")
        elif options.output_format == "markdown":
            write(page.render_markdown(found))
        else:
            write(page.render(found, width=options.columns, color=options.color))
    is_worse = found.trend == "slower"
    came = any(change.change in ("came", "grew") for change in found.changes)
    return EXIT_WORSE if (options.fail_on == "worse" and is_worse) or (options.fail_on == "came" and came) else 0


def _compare_two(before: str, after: str, job: str | None, options: "Options") -> "Comparison":
    """Read or make both diagnoses, and compare them."""
    from diagnose.compare.compare import compare
    from diagnose.compare.read import choose, job_id_of

    names = [_name_of(given) for given in (before, after)]
    found = [_diagnoses_of(given, options) for given in (before, after)]
    for one, other in (found, found[::-1]):
        if job is None and len(one) > 1 and len(other) == 1:
            job = job_id_of(other[0])  # of several, the one that the other file is about
    wanted = [None if len(one) == 1 else job for one in found]
    return compare(*(choose(*side) for side in zip(found, names, wanted, strict=True)))


def _diagnoses_of(given: str, options: "Options") -> list[dict[str, Any]]:
    """Read saved diagnoses, or diagnose a trace, as the content of the file says."""
    import json

    from diagnose.compare.read import read_saved

    with _open_job(given, None, options) as (source, found):
        saved = read_saved(source, found["name"])
        if saved is not None:
            return saved
        from diagnose.pipeline import diagnose_job
        from diagnose.report import json_lines

        return [json.loads(json_lines.render(diagnose_job(source, **found)))]


def _name_of(given: str) -> str:
    """Name an input as errors do."""
    return "standard input" if given == "-" else given


@program.command("fixes")
def fixes_command() -> int:
    """List all fixes that `diagnose what-if` can price, with their settings."""
    from diagnose.fixes.catalogue import list_fixes

    lines = []
    for name, fix in sorted(list_fixes().items()):
        lines.append(f"{name}: {fix.TITLE}")
        lines += [f"    {key}: {meaning}" for key, meaning in fix.SETTINGS.items()]
    _write_lines("\n".join(lines) + "\n")
    return 0


@program.command("schema")
@click.argument("what", type=click.Choice(["diagnosis", "compare"]), default="diagnosis")
def schema_command(what: str) -> int:
    """Print the JSON Schema of --format json, or of `diagnose compare --format json`."""
    name = {"diagnosis": "diagnosis.schema.json", "compare": "comparison.schema.json"}[what]
    schema = Path(__file__).parent / "report" / name
    _write_stdout(schema.read_text(encoding="utf-8"))
    return 0


def _parse_cost(_ctx: click.Context, _param: click.Parameter, value: str | None) -> tuple[float, float] | None:
    """Read `--cost A,B`."""
    if value is None:
        return None
    try:
        linear, quadratic = (float(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not two numbers such as 1,3.8e-5.") from None
    return linear, quadratic


def _parse_queues(
    _ctx: click.Context, _param: click.Parameter, value: str | None
) -> tuple[tuple[int, ...], ...] | None:
    """Read `--queues 32768,65536`."""
    if value is None:
        return None
    try:
        return (tuple(int(part) for part in value.split(",")),)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of tokens such as 32768,65536.") from None


@program.command("pack")
@click.argument("lengths", metavar="LENGTHS", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["terminal", "json"]),
    default="terminal",
    show_default=True,
    help="A page for people, or one JSON object (diagnose-pack/1).",
)
@click.option(
    "-o", "output", metavar="FILE", type=click.Path(), help="Write there instead of standard output, all or nothing."
)
@click.option("--column", metavar="NAME", help="Column with the lengths; found by name or type when left out.")
@click.option("--window", metavar="N", type=click.IntRange(1, 2**40), help="Tokens of a microbatch  [default: 131072]")
@click.option(
    "--microbatches",
    metavar="N",
    type=click.IntRange(1, 10_000),
    default=4,
    show_default=True,
    help="Microbatches of one data-parallel rank in a global batch.",
)
@click.option(
    "--dp", metavar="N", type=click.IntRange(1, 100_000), default=1, show_default=True, help="Data-parallel ranks."
)
@click.option(
    "--cost", metavar="A,B", callback=_parse_cost, help="Cost of a microbatch: A x tokens + B x tokens squared."
)
@click.option("--cost-quadratic", metavar="B", type=float, help="The same with A = 1  [default: 1/26000, as published]")
@click.option(
    "--memory",
    metavar="FLOAT",
    type=click.FloatRange(1, 1000),
    default=1.1,
    show_default=True,
    help="Tokens that memory allows in a microbatch, in windows.",
)
@click.option(
    "--queues",
    metavar="N,N,...",
    callback=_parse_queues,
    help="Thresholds in tokens above which documents wait  [default: three published settings]",
)
@click.option(
    "--batches",
    metavar="N",
    type=click.IntRange(1, 1_000_000),
    default=512,
    show_default=True,
    help="Global batches to pack at most.",
)
@click.option(
    "--exact",
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True),
    help="Run the exact packer too, at most so long for each problem; then results may depend on the machine.",
)
@click.option("--times", is_flag=True, help="Say how long each packer takes; that differs from run to run.")
@_no_color_option
@_width_option
def pack_command(  # noqa: PLR0913 - one argument an option
    *,
    lengths: Path,
    output_format: str,
    output: str | None,
    column: str | None,
    window: int | None,
    microbatches: int,
    dp: int,
    cost: tuple[float, float] | None,
    cost_quadratic: float | None,
    memory: float,
    queues: tuple[tuple[int, ...], ...] | None,
    batches: int,
    exact: float | None,
    times: bool,
    no_color: bool,
    width: int | None,
) -> int:
    """Compare ways to pack documents into microbatches: imbalance, delay, memory.

    LENGTHS is a Parquet file with a column of document lengths (doc_lengths, lengths or length), a trace with doc_lengths, or
    a .csv or .txt file with one length a line.
    """
    from diagnose.packing.compare import Plan, compare_packers
    from diagnose.packing.cost import PUBLISHED_COST, Cost
    from diagnose.packing.lengths import WINDOW
    from diagnose.packing.read import read_lengths
    from diagnose.report import packing as page

    if cost is not None and cost_quadratic is not None:
        raise UsageError("--cost and --cost-quadratic say the same: give one of them")
    if output is not None and os.path.realpath(output) == os.path.realpath(lengths):
        raise UsageError(f"-o: {output} is the file to read; name another file")
    if cost is None and cost_quadratic is not None:
        cost = (1.0, cost_quadratic)
    plan = Plan(
        window=window or WINDOW,
        n_microbatches=microbatches,
        n_ranks=dp,
        memory_ratio=memory,
        cost=PUBLISHED_COST if cost is None else Cost(*cost),
        queues=queues,
        exact_s=exact,
        n_batches=batches,
        timed=times,
    )
    look = Options(output_format, output, None, None, None, 1.0, None, no_color, width, quiet=True)
    comparison = compare_packers(read_lengths(lengths, column=column).lengths, plan)
    with _open_output(output) as write:
        if output_format == "json":
            write(page.render_json(comparison, name=str(lengths)) + "\n")
        else:
            write(page.render(comparison, name=str(lengths), width=look.columns, color=look.color))
    return 0


@program.group("rules", no_args_is_help=False)
def rules_command() -> None:
    """List, show, check and test rules."""


_rules_option = click.option(
    "--rules",
    "folder",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Rules of your own beside the built-in ones.",
)


@rules_command.command("list")
@_rules_option
def list_rules_command(folder: Path | None) -> int:
    """List all rules."""
    from diagnose.judge.describe import tabulate_rules
    from diagnose.judge.rules import load_rules

    _check_rules_folder(folder)
    _write_lines(tabulate_rules(load_rules(folder).rules))
    return 0


@rules_command.command("show")
@click.argument("rule_id", metavar="ID")
@_rules_option
def show_rule_command(rule_id: str, folder: Path | None) -> int:
    """Show the rule with this id: its story, conditions, thresholds, fixes and tests."""
    import difflib

    from diagnose.features.catalogue import list_features
    from diagnose.judge.describe import describe_rule
    from diagnose.judge.rules import load_rules

    _check_rules_folder(folder)
    by_id = {rule.id: rule for rule in load_rules(folder).rules}
    if rule_id not in by_id:
        near = difflib.get_close_matches(rule_id, by_id, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(by_id)}"
        raise UsageError(f"there is no rule {rule_id!r}; {hint}")
    titles = {rule.id: rule.title for rule in by_id.values()}
    _write_lines(describe_rule(by_id[rule_id], titles, list_features()))
    return 0


@rules_command.command("check")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
def check_rules_command(folder: Path) -> int:
    """List all faults of the rule files in DIR, one line each."""
    from diagnose.features.catalogue import list_features
    from diagnose.judge.check import check_folder

    _check_rules_folder(folder)
    rules, faults = check_folder(folder, list_features())
    _write_lines("".join(f"{fault}\n" for fault in faults) or f"{folder}: {_count(len(rules), 'rule')}, no faults\n")
    return RuleError.exit_code if faults else 0


@rules_command.command("test")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
def test_rules_command(folder: Path) -> int:
    """Judge the cases beside the rules in DIR, and say which conditions decided where one fails."""
    from diagnose.judge.check import try_cases

    _check_rules_folder(folder)
    trials = try_cases(folder)
    failing = [trial for trial in trials if not trial.passes]
    lines = [line for trial in failing for line in trial.explain()]
    n_rules = len({trial.rule.id for trial in trials})
    lines.append(f"{folder}: {_count(n_rules, 'rule')}, {_count(len(trials), 'case')}, {len(failing)} failing")
    _write_lines("\n".join(lines) + "\n")
    return RuleError.exit_code if failing else 0


def _check_rules_folder(folder: Path | None) -> None:
    """Refuse what is no folder."""
    if folder is not None and not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; expected one with rule files")


def _count(n: int, noun: str) -> str:
    """Write a number of things."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


@program.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(shell: str) -> int:
    """Print a script that completes commands, options and files.

    For bash: eval "$(diagnose completion bash)"
    """
    from click.shell_completion import get_completion_class

    completion = get_completion_class(shell)
    if completion is None:
        raise UsageError(f"click {click.__version__} knows no completion for {shell}")
    _write_stdout(completion(program, {}, "diagnose", "_DIAGNOSE_COMPLETE").source().strip() + "\n")
    return 0


def _check_store(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Refuse a password where everybody can read it."""
    from_line = ctx.get_parameter_source(param.name or "") == click.core.ParameterSource.COMMANDLINE
    if from_line and "@" in value and ":" in value.split("://", 1)[-1].rsplit("@", 1)[0]:
        raise UsageError(
            "--store: a password on the command line can be read by everybody on the machine; give it in "
            "DIAGNOSE_STORE_PASSWORD, or in a file named by DIAGNOSE_STORE_PASSWORD_FILE"
        )
    return value


_store_option = click.option(
    "--store",
    metavar="URL",
    envvar="DIAGNOSE_STORE",
    default="sqlite:///diagnose.db",
    show_default=True,
    callback=_check_store,
    help="sqlite:///FILE or postgresql://USER@HOST/DATABASE; the password comes from the environment or a file.",
)


@program.command("triage")
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True, type=click.Path())
@_store_option
@click.option("--workers", metavar="N", type=click.IntRange(1, 1024), help="Processes  [default: one a core]")
@click.option(
    "--memory", metavar="SIZE", help="Memory for all jobs together, such as 8G  [default: 60% of the machine]"
)
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    help="Give a job up after so long.",
)
@click.option("--since", metavar="AGE|DATE", help="Only traces modified since: 12h, 2d, 1w or 2026-01-31.")
@click.option("--limit", metavar="N", type=click.IntRange(min=1), help="Do at most so many jobs, the newest.")
@click.option("--force", is_flag=True, help="Do jobs that have not changed too.")
@click.option("--retry-failed", is_flag=True, help="Do jobs that have failed and not changed too.")
@click.option("--dry-run", is_flag=True, help="List what would be done, and do nothing.")
@click.option("--dask", metavar="ADDRESS", help="Work on this Dask cluster, such as tcp://host:8786.")
@_own_rules_option
@_min_speedup_option
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["terminal", "json"]),
    default="terminal",
    show_default=True,
    help="A summary for people, or one JSON object (diagnose-triage/1).",
)
@_no_color_option
@_width_option
@click.option("--quiet", is_flag=True, help="No progress.")
def triage_command(  # noqa: PLR0913 - one argument an option
    *,
    sources: tuple[str, ...],
    store: str,
    workers: int | None,
    memory: str | None,
    timeout: float,
    since: str | None,
    limit: int | None,
    force: bool,
    retry_failed: bool,
    dry_run: bool,
    dask: str | None,
    rules: Path | None,
    min_speedup: float,
    output_format: str,
    no_color: bool,
    width: int | None,
    quiet: bool,
) -> int:
    """Diagnose all jobs in SOURCE that are new or changed, and keep the results in a store.

    SOURCE is a folder, a glob, a file with one of these a line (.txt), or s3://BUCKET/PREFIX, gs://BUCKET/PREFIX. Stopped at
    any moment and started again, it goes on where it was; several may work on one store at the same time.
    """
    from diagnose.report import night as page
    from diagnose.triage.triage import Wishes, triage

    _check_rules_folder(rules)
    wishes = Wishes(
        sources, store, workers, memory, timeout, since, limit, force, retry_failed, dry_run, dask, rules, min_speedup
    )
    with NightProgress(shown=not quiet and _is_terminal(sys.stderr)) as progress:
        night = triage(wishes, watch=progress)
    if output_format == "json":
        _write_stdout(page.render_json(night) + "\n")
    else:
        look = Options(output_format, None, None, None, None, 1.0, None, no_color, width, quiet)
        _write_stdout(page.render(night, width=look.columns, color=look.color))
    return EXIT_BATCH if night.n_failed else 0


@program.group("store", no_args_is_help=False)
def store_command() -> None:
    """Look into a store, thin it out, or write it as Parquet."""


@store_command.command("info")
@_store_option
def store_info_command(store: str) -> int:
    """Say what is in a store."""
    from diagnose.triage.store import Store

    with Store(store, may_create=False) as opened:
        found = opened.info()
    lines = [f"{found.url}: schema {found.schema}"]
    for name, counts in (("jobs", found.by_status), ("verdicts", found.by_verdict), ("causes", found.by_cause)):
        lines.append(f"{name}: " + (", ".join(f"{n:,} {key}" for key, n in counts.items()) or "none"))
    lines.append(f"pruned: {found.n_pruned:,}")
    lines.append(f"at work: {_count(found.n_nights, 'triage')}, {_count(found.n_claims, 'job')} claimed")
    _write_lines("\n".join(lines) + "\n")
    return 0


@store_command.command("prune")
@_store_option
@click.option(
    "--older", metavar="AGE|DATE", required=True, help="Take out what was diagnosed before: 90d, 1w or 2026-01-31."
)
def store_prune_command(store: str, older: str) -> int:
    """Take old jobs out of a store; they are diagnosed again only when their content changes."""
    from diagnose.triage.source import parse_since
    from diagnose.triage.store import Store

    with Store(store, may_create=False) as opened:
        n_jobs = opened.prune(parse_since(older, opened.now_s()))
        name = opened.name
    _write_lines(f"{name}: {_count(n_jobs, 'job')} taken out\n")
    return 0


@store_command.command("export")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@_store_option
def store_export_command(folder: Path, store: str) -> int:
    """Write a store as Parquet files into DIR, for DuckDB or pandas."""
    from diagnose.triage.export import export_store
    from diagnose.triage.store import Store

    with Store(store, may_create=False) as opened:
        counts = export_store(opened, folder)
    _write_lines("".join(f"{folder / name}: {_count(n, 'row')}\n" for name, n in counts.items()))
    return 0


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks for, as click gives it."""

    output_format: str
    output: str | None
    meta: Path | None
    steps: str | None
    rules: Path | None
    min_speedup: float
    fail_on: str | None
    no_color: bool
    width: int | None
    quiet: bool
    verbose: bool = False
    html: str | None = None
    perfetto: str | None = None
    perfetto_steps: str | None = None
    perfetto_dp: str | None = None
    perfetto_mb: float = 20.0

    @property
    def columns(self) -> int:
        """Columns of a report: asked for, else those of the terminal, else fixed."""
        if self.width is not None:
            return self.width
        if self.output is not None:
            return FILE_WIDTH
        return min(max(shutil.get_terminal_size((FILE_WIDTH, 50)).columns, MIN_WIDTH), MAX_WIDTH)

    @property
    def color(self) -> bool:
        """True where the report goes to a terminal that shows colours and nobody minds."""
        wanted = not self.no_color and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        return wanted and self.output is None and _is_terminal(sys.stdout)


def diagnose_jobs(jobs: tuple[str, ...], options: Options) -> int:
    """Diagnose every job, write its report or its error, and give the exit code."""
    _check_jobs(jobs, options)
    steps = _parse_steps(options.steps)
    failures: list[int] = []
    straggling = n_written = 0
    frame = _frame_of(options)
    with _open_output(options.output) as write:
        for job in jobs:
            try:
                diagnosis = _diagnose_one(job, steps, options)
                report = _render(diagnosis, options)
            except DiagnoseError as error:
                if isinstance(error, RuleError) and not isinstance(error, MetadataError):
                    raise
                _say_error(str(error))
                failures.append(error.exit_code)
                report = _render_error(job, str(error), options)
            except Exception as error:  # noqa: BLE001 - one broken job must not stop the others
                _say_internal_error(error, job)
                failures.append(EXIT_INTERNAL)
                report = _render_error(job, f"internal error: {type(error).__name__}", options)
            else:
                straggling += diagnosis.verdict == "straggling"
            if report:
                write((frame.between if n_written else frame.before) + report)
                n_written += 1
        if n_written:
            write(frame.after)
    return _exit_code(len(jobs), failures, straggling=bool(straggling), options=options)


def _check_jobs(jobs: tuple[str, ...], options: Options) -> None:
    """Refuse arguments that make no sense together, before any work."""
    if not jobs:
        raise UsageError("no job given: `diagnose FILE` diagnoses one, `diagnose --help` shows everything")
    if jobs.count("-") > 1:
        raise UsageError("standard input (-) can be read once only")
    if "-" in jobs and sys.stdin is None:
        raise UsageError("standard input is closed: pipe a trace into it, or name a file instead of -")
    if "-" in jobs and _is_terminal(sys.stdin):
        raise UsageError("standard input is a terminal: pipe a trace into it, or name a file instead of -")
    if options.meta is not None and len(jobs) > 1:
        raise UsageError(f"--meta describes one job, and {len(jobs)} are given: diagnose them one by one")
    if options.meta is not None and not options.meta.is_file():
        raise UsageError(f"--meta: {options.meta} is not a file")
    if options.output is not None and os.path.realpath(options.output) in {os.path.realpath(job) for job in jobs}:
        raise UsageError(f"-o: {options.output} is the trace to read; name another file")
    if options.rules is not None and not options.rules.is_dir():
        raise UsageError(f"--rules: {options.rules} is not a folder")
    _check_perfetto(jobs, options)
    _check_html(jobs, options)


def _check_html(jobs: tuple[str, ...], options: Options) -> None:
    """Refuse to write a page that cannot be drawn, or where something else is."""
    import importlib.util

    if options.html is None:
        return
    if len(jobs) > 1:
        raise UsageError(f"--html draws one job, and {len(jobs)} are given: diagnose them one by one")
    others = [*jobs, *(path for path in (options.output, options.perfetto, options.meta) if path is not None)]
    if os.path.realpath(options.html) in {os.path.realpath(other) for other in others}:
        raise UsageError(f"--html: {options.html} is read or written already; name another file")
    if not Path(options.html).absolute().parent.is_dir():
        raise UsageError(f"--html: there is no folder {Path(options.html).parent}")
    missing = [name for name in ("matplotlib", "jinja2") if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"--html needs {' and '.join(missing)}: pip install 'diagnose-training[html]'")


def _check_perfetto(jobs: tuple[str, ...], options: Options) -> None:
    """Refuse to draw what cannot be drawn, or where something else is."""
    if options.perfetto is None:
        if options.perfetto_steps is not None or options.perfetto_dp is not None:
            raise UsageError("--perfetto-steps and --perfetto-dp say what to draw: give --perfetto FILE with them")
        return
    if len(jobs) > 1:
        raise UsageError(f"--perfetto draws one job, and {len(jobs)} are given: diagnose them one by one")
    others = [*jobs, *([options.output] if options.output is not None else [])]
    if os.path.realpath(options.perfetto) in {os.path.realpath(other) for other in others}:
        raise UsageError(f"--perfetto: {options.perfetto} is the trace or the report; name another file")
    if not Path(options.perfetto).absolute().parent.is_dir():
        raise UsageError(f"--perfetto: there is no folder {Path(options.perfetto).parent}")
    _parse_numbers("--perfetto-steps", options.perfetto_steps)
    _parse_numbers("--perfetto-dp", options.perfetto_dp)


def _parse_steps(text: str | None) -> "Ints | None":
    """Read `--steps`."""
    return _parse_numbers("--steps", text)


def _parse_numbers(option: str, text: str | None) -> "Ints | None":
    """Read an option that lists steps or ranks."""
    if text is None:
        return None
    from diagnose.trace.load import parse_steps

    try:
        return parse_steps(text)
    except (ValueError, OverflowError):
        what = "dp ranks" if option == "--perfetto-dp" else "steps"
        raise UsageError(f"{option}: {text!r} is not a list of {what} and ranges such as 16-40,80") from None


def _diagnose_one(job: str, steps: "Ints | None", options: Options) -> "Diagnosis":
    """Run the pipeline on one job, with progress on a terminal."""
    with _open_job(job, steps, options) as (source, found):
        if options.perfetto is None and options.html is None:
            from diagnose.pipeline import diagnose_job

            return diagnose_job(source, **found)
        from diagnose.pipeline import paint_job

        scene = paint_job(source, **found)
        found["progress"]("drawing")
        if options.perfetto is not None:
            _write_perfetto(scene, options.perfetto, options)
        if options.html is not None:
            _write_html(scene, options.html, options)
    return scene.diagnosis


def _write_html(scene: "Scene", path: str, options: Options) -> None:
    """Draw the page of a job into a file that appears when all is written."""
    from diagnose.report.html.page import render

    given = (("--steps", options.steps), ("--rules", options.rules), ("--meta", options.meta))
    said = [f" {name} {value}" for name, value in given if value is not None]
    page = render(scene, options=f"{''.join(said)} --min-speedup {options.min_speedup:g}")
    _write_bytes("--html", path, page.encode("utf-8", "backslashreplace"))


def _write_perfetto(scene: "Scene", path: str, options: Options, fixed: str = "the plan of the diagnosis") -> None:
    """Draw timelines into a file that appears when all is written, and say what did not fit; `fixed` names the fixes."""
    from diagnose.report.perfetto import Mended, render

    picture = render(
        scene,
        steps=_parse_numbers("--perfetto-steps", options.perfetto_steps),
        dp=_parse_numbers("--perfetto-dp", options.perfetto_dp),
        limit_mb=options.perfetto_mb,
        compressed=not path.lower().endswith(".json"),
        mended=Mended(fixed, scene.plan) if scene.plan else None,
    )
    _write_bytes("--perfetto", path, picture.content)
    for warning in picture.warnings:
        _say("warning", warning)


def _write_bytes(option: str, path: str, content: bytes) -> None:
    """Write a file beside its place, then put it there; into a device or a pipe, at once."""
    target = Path(os.path.realpath(path))
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(content)
            return
        beside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            with beside.open("xb") as file:
                file.write(content)
            if target.exists():
                shutil.copymode(target, beside)
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"{option}: cannot write {path}: {error.strerror}") from None


def _explain_one(job: str, cause: str, steps: "Ints | None", options: Options) -> "Explanation":
    """Run the pipeline on one job, and explain one cause."""
    from diagnose.pipeline import explain_job

    with _open_job(job, steps, options) as (source, found):
        return explain_job(source, cause, **found)


def _price_one(job: str, wishes: "Wishes", steps: "Ints | None", options: Options) -> "tuple[ByHand, Scene]":
    """Run the pipeline on one job, and price what the user asks for."""
    from diagnose.pipeline import price_job

    with _open_job(job, steps, options) as (source, found):
        return price_job(source, wishes, **found)


@contextlib.contextmanager
def _open_job(job: str, steps: "Ints | None", options: Options) -> "Iterator[tuple[Path | BinaryIO, dict[str, Any]]]":
    """Give the source of a job and what the pipeline is told of it, with progress on a terminal until it is done."""
    import io

    name = _name_of(job)
    with Progress(name, shown=not options.quiet and _is_terminal(sys.stderr)) as progress:
        yield (
            io.BytesIO(sys.stdin.buffer.read()) if job == "-" else Path(job),
            {
                "name": name,
                "meta": options.meta,
                "steps": steps,
                "rules": options.rules,
                "min_speedup": options.min_speedup,
                "progress": progress,
            },
        )


def _render(diagnosis: "Diagnosis", options: Options) -> str:
    """Write one report in the format asked for."""
    if options.output_format == "json":
        from diagnose.report import json_lines

        return json_lines.render(diagnosis) + "\n"
    if options.output_format == "markdown":
        from diagnose.report import markdown

        return markdown.render(diagnosis)
    if options.output_format == "junit":
        from diagnose.report import junit

        return junit.render(diagnosis)
    from diagnose.report import terminal

    written = (("Page", options.html), ("Timelines", options.perfetto))
    return terminal.render(
        diagnosis,
        width=options.columns,
        color=options.color,
        verbose=options.verbose,
        links=[(what, path) for what, path in written if path is not None],
    )


def _render_error(job: str, message: str, options: Options) -> str:
    """Write a job that could not be diagnosed, in the format that has a place for it; empty in all others."""
    if options.output_format != "junit":
        return ""
    from diagnose.report import junit

    return junit.render_error(job, message)


@dataclasses.dataclass(frozen=True, slots=True)
class _Frame:
    """What stands before the first report of a run, between two, and after the last."""

    before: str = ""
    between: str = ""
    after: str = ""


def _frame_of(options: Options) -> _Frame:
    """Give what makes one document of several reports."""
    match options.output_format:
        case "json":
            return _Frame()
        case "markdown":
            from diagnose.report import markdown

            return _Frame(between=markdown.BETWEEN)
        case "junit":
            from diagnose.report import junit

            return _Frame(before=junit.BEFORE, after=junit.AFTER)
    return _Frame(between="\n" + "─" * options.columns + "\n\n")


def _exit_code(n_jobs: int, failures: list[int], *, straggling: bool, options: Options) -> int:
    """Give the exit code of a batch: failures first, then the verdict."""
    if failures:
        return failures[0] if len(failures) == n_jobs and len(set(failures)) == 1 else EXIT_BATCH
    return EXIT_STRAGGLING if straggling and options.fail_on == "straggling" else 0


@contextlib.contextmanager
def _open_output(path: str | None) -> Iterator[Callable[[str], object]]:
    """Give what writes reports: to standard output, or to a file that appears when all is written."""
    if path is None:
        yield _write_stdout
        return
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():  # a device or a pipe: nothing to rename over
        with _opened(target, "w", path) as file:
            yield file.write
        return
    beside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with _opened(beside, "x", path) as file:
            yield file.write
            written = file.tell() > 0
        if written:
            if target.exists():
                shutil.copymode(target, beside)
            beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def _opened(path: Path, mode: str, named: str) -> Any:
    """Open a file for writing text, or say why it cannot be."""
    try:
        return path.open(mode, encoding="utf-8", errors="backslashreplace", newline="\n")
    except OSError as error:
        raise UsageError(f"-o: cannot write {named}: {error.strerror}") from None


class Progress:
    """Shows on standard error which stage of the pipeline runs, once a job takes longer than a second."""

    def __init__(self, job: str, *, shown: bool) -> None:
        self._job = job
        self._stage = "reading"
        self._status: Status | None = None
        self._ended = False
        self._lock = threading.Lock()
        self._timer = threading.Timer(PROGRESS_AFTER_S, self._show) if shown else None

    def __enter__(self) -> Self:
        if self._timer:
            self._timer.daemon = True
            self._timer.start()
        return self

    def __call__(self, stage: str) -> None:
        """Take the name of the stage that begins."""
        with self._lock:
            self._stage = stage
            if self._status:
                self._status.update(self._text())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._timer:
            self._timer.cancel()
        with self._lock:
            self._ended = True
            if self._status:
                self._status.stop()

    def _show(self) -> None:
        """Begin to show the stage; runs in the thread of the timer."""
        from rich.console import Console

        with self._lock:
            if not self._ended:
                self._status = Console(stderr=True).status(self._text())
                self._status.start()

    def _text(self) -> Any:
        """Say what is being done to which job."""
        from rich.text import Text

        from diagnose.report.escape import escape

        return Text(f"{escape(self._job)}: {escape(self._stage)}")


class NightProgress:
    """Shows on standard error how far a triage has come, with its rate and the time that remains."""

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown
        self._status: Status | None = None

    def __enter__(self) -> Self:
        return self

    def __call__(self, headway: "Headway") -> None:
        """Take how far it has come."""
        if not self._shown:
            return
        from rich.console import Console
        from rich.text import Text

        from diagnose.report.night import say_headway

        text = Text(say_headway(headway))
        if self._status is None:
            self._status = Console(stderr=True).status(text)
            self._status.start()
        self._status.update(text)

    def __exit__(self, *_error: object) -> None:
        if self._status is not None:
            self._status.stop()


def _is_terminal(stream: TextIO | None) -> bool:
    """Say whether a standard stream, None where it is closed, is a terminal."""
    return stream is not None and stream.isatty()


def _write_stdout(text: str) -> None:
    """Write to standard output at once, so that a reader of a pipe sees each report as it is done."""
    from diagnose.report.escape import to_encoding

    if sys.stdout is None:
        raise OSError(errno.EBADF, "standard output is closed")
    sys.stdout.write(to_encoding(text, sys.stdout.encoding or "utf-8"))
    sys.stdout.flush()


def _write_lines(text: str) -> None:
    """Write lines that hold text of the user's to standard output."""
    from diagnose.report.escape import escape

    _write_stdout("\n".join(escape(line) for line in text.split("\n")))


def _say_error(message: str) -> None:
    """Write an error as one line to standard error, whatever the message holds."""
    _say("error", message)


def _say(kind: str, message: str) -> None:
    """Write an error or a warning as one line to standard error."""
    from diagnose.report.escape import escape

    if sys.stderr is None:
        return
    try:
        sys.stderr.write(f"diagnose: {kind}: {escape(message)}\n")
        sys.stderr.flush()
    except OSError:  # nobody can be told; the exit code says it
        _drop(sys.stderr)


def _say_internal_error(error: BaseException, job: str | None = None) -> None:
    """Say that the fault is ours, in one line; with DIAGNOSE_DEBUG set, where it is."""
    where = f"{job}: " if job is not None else ""
    what = " ".join(f"{type(error).__name__}: {error}".split())
    _say_error(f"{where}internal error: {what}; please report it; set DIAGNOSE_DEBUG=1 for the traceback")
    if os.environ.get("DIAGNOSE_DEBUG") and sys.stderr is not None:
        import traceback

        traceback.print_exception(error)


def main(args: Sequence[str] | None = None) -> int:
    """Run the program and give its exit code; every error ends here in a line on standard error.

    Parameters
    ----------
    args : sequence of str, optional
        Arguments without the name of the program; those of the process when left out.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    if args is None and not sys.warnoptions and not os.environ.get("DIAGNOSE_DEBUG"):
        warnings.simplefilter("ignore")  # what numpy remarks is nothing a user can act on
    if args is None and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)
    try:
        return _run(list(sys.argv[1:] if args is None else args))
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - no traceback for who did not ask for one
        return _end_with(error)


def _terminate(_signal: int, _frame: object) -> None:
    """End in order when asked to, so that no half-written file is left."""
    raise SystemExit(EXIT_TERMINATED)


def _end_with(error: BaseException) -> int:
    """Say in a line what ended the program, and give its exit code."""
    match error:
        case click.ClickException():
            _say_error(" ".join(error.format_message().split()))
            return UsageError.exit_code
        case RuleError():
            for line in str(error).splitlines():
                _say_error(line)
            return error.exit_code
        case DiagnoseError():
            _say_error(str(error))
            return error.exit_code
        case KeyboardInterrupt() | click.Abort():
            _say_error("interrupted")
            return EXIT_INTERRUPTED
        case BrokenPipeError():
            _drop(sys.stdout)
            return EXIT_BROKEN_PIPE
        case OSError():
            _drop(sys.stdout)
            _say_error(f"cannot write the report: {error.strerror or error}")
            return EXIT_OUTPUT
    _say_internal_error(error)
    return EXIT_INTERNAL


def _run(args: list[str]) -> int:
    """Answer the shell's question for completions, or run the command named first."""
    instruction = os.environ.get("_DIAGNOSE_COMPLETE")
    if instruction:
        from click.shell_completion import shell_complete

        return shell_complete(program, {}, "diagnose", "_DIAGNOSE_COMPLETE", instruction)
    try:
        with program.make_context("diagnose", args) as ctx:
            code = program.invoke(ctx)
    except click.exceptions.Exit as end:
        code = end.exit_code
    if sys.stdout is not None:
        sys.stdout.flush()
    return int(code or 0)


def _drop(stream: TextIO | None) -> None:
    """Point a standard stream nowhere, so that Python's last flush does not fail again."""
    with contextlib.suppress(OSError, ValueError):
        if stream is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
