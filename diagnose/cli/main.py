"""The command line: the only place that exits, and `diagnose.cli` the only one that prints.

Enters: arguments. Leaves: results on standard output, progress and errors on standard error, and the exit code.
Nothing heavy is imported before a command needs it, so that `diagnose --help` and shell completion answer at once.

A new command is a file of its own beside this one, with a `click.command`, and a line in `COMMANDS`.
"""

import itertools
import os
import signal
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import click

from diagnose.cli.ack import ack_command
from diagnose.cli.bundle import bundle_command
from diagnose.cli.compare import compare_command
from diagnose.cli.config import config_command, config_option, takes_defaults
from diagnose.cli.confirm import confirm_command
from diagnose.cli.convert import convert_command
from diagnose.cli.explain import explain_command
from diagnose.cli.fleet import fleet_command
from diagnose.cli.jobs import JOBS, jobs_command
from diagnose.cli.lists import completion_command, fixes_command, schema_command
from diagnose.cli.machines import machines_command
from diagnose.cli.open import open_command
from diagnose.cli.options import (
    EXIT_BROKEN_PIPE,
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    EXIT_OUTPUT,
    EXIT_TERMINATED,
    version_option,
)
from diagnose.cli.output import drop, print_error, print_internal_error
from diagnose.cli.pack import pack_command
from diagnose.cli.rules import rules_command
from diagnose.cli.run import run_command
from diagnose.cli.store import store_command
from diagnose.cli.tickets import tickets_command
from diagnose.cli.triage import triage_command
from diagnose.cli.watch import watch_command
from diagnose.cli.what_if import what_if_command
from diagnose.errors import DiagnoseError, RuleError, UsageError, asked_to_end, explain_unwritten

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

#: Every command; the help lists them by name.
COMMANDS: tuple[click.Command, ...] = (
    jobs_command,
    run_command,
    explain_command,
    what_if_command,
    compare_command,
    confirm_command,
    convert_command,
    bundle_command,
    fixes_command,
    schema_command,
    pack_command,
    rules_command,
    completion_command,
    triage_command,
    store_command,
    watch_command,
    tickets_command,
    ack_command,
    fleet_command,
    machines_command,
    open_command,
    config_command,
)
#: Options that are about the program, and not about a job.
_ABOUT_ALL = ("-h", "--help", "--version")
_EPILOG = """\b
Exit codes:
  0    diagnosed, whatever the verdict
  1    a job has what --fail-on names: a cause (straggling), one so severe, or so
       sure; of `diagnose compare`, longer steps (worse) or a new cause (came); of
       `diagnose what-if`, no fix is for this job; of `diagnose machines`, one is
       faulty, or nobody can tell
  2    bad usage
  3    the input cannot be read as a trace, or as a diagnosis
  4    a rule or configuration file is wrong
  5    of several jobs, some failed
  70   an error in diagnose itself; DIAGNOSE_DEBUG=1 shows where
  74   the output cannot be written, or a store, a cluster or
       a service does not answer

A file that has the name of a command is diagnosed as ./NAME."""


class JobsOrCommand(click.Group):
    """A group whose first argument is the name of a command or, if it is none, the first job."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the name of the diagnosing command first unless there is another."""
        completing_first = ctx.resilient_parsing and not args
        if not completing_first and not (args and args[0] in {*self.commands, *_ABOUT_ALL}):
            if args and not ctx.resilient_parsing:
                _refuse_misspelt(args[0], self.commands)
                _refuse_late(args, self.commands)
            args = [JOBS, *args]
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show both ways to call the program."""
        name = ctx.find_root().command_path
        formatter.write_usage(name, "[OPTIONS] JOB...")
        formatter.write_usage(name, "COMMAND [ARGS]...", prefix="       ")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show the options of the diagnosing command, then the other commands."""
        click.Command.format_options(self.commands[JOBS], ctx, formatter)
        self.format_commands(ctx, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Offer commands and files, or options."""
        from click.shell_completion import CompletionItem

        if incomplete.startswith("-"):
            return self.commands[JOBS].shell_complete(ctx, incomplete)
        return [*super().shell_complete(ctx, incomplete), CompletionItem(incomplete, type="file")]


def _refuse_misspelt(first: str, commands: Iterable[str]) -> None:
    """Refuse a first word that is nearly a command, and no file; a file goes before, whatever its name."""
    import difflib

    near = difflib.get_close_matches(first, filter(None, commands), n=1, cutoff=0.7)
    if near and not first.startswith("-") and os.path.basename(first) == first and not os.path.lexists(first):  # noqa: PTH119
        raise UsageError(f"there is no file and no command {first!r}; did you mean `diagnose {near[0]}`?")


def _refuse_late(args: Sequence[str], commands: Iterable[str]) -> None:
    """Refuse options before the command that they are for."""
    words = [
        word
        for before, word in itertools.pairwise(args)
        if word in commands and before != "--rules" and not os.path.lexists(word)
    ]
    if words and args[0].startswith("-"):
        raise UsageError(f"options go behind the command, expected `diagnose {words[0]} {args[0]} ...`")


@click.group(
    cls=JobsOrCommand, epilog=_EPILOG, no_args_is_help=False, context_settings={"help_option_names": ["-h", "--help"]}
)
@version_option
def program() -> None:
    """Say why a large training job is slow: where, since when, how sure, and what to change.

    JOB is the trace of one job: a Parquet file with one row an operation, a folder with one such file a rank, or what another
    tool recorded (`diagnose convert --list`); - reads it from standard input. Each job gets one report.
    """


def _every_command(group: click.Group) -> Iterator[click.Command]:
    """List all commands, those of groups too."""
    for command in group.commands.values():
        yield from _every_command(command) if isinstance(command, click.Group) else [command]


for _command in COMMANDS:
    program.add_command(_command)
for _command in _every_command(program):
    if takes_defaults(_command):
        config_option(_command)


def main(args: Sequence[str] | None = None) -> int:
    """Run the program and give its exit code; every error ends here in a line on standard error.

    `args` are without the name of the program; those of the process when left out.
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
    error = asked_to_end(error) or error
    match error:
        case SystemExit():
            return EXIT_TERMINATED
        case click.ClickException():
            print_error(" ".join(error.format_message().split()))
            return UsageError.exit_code
        case RuleError():
            for line in str(error).splitlines():
                print_error(line)
            return error.exit_code
        case DiagnoseError():
            print_error(str(error))
            return error.exit_code
        case KeyboardInterrupt() | click.Abort():
            print_error("interrupted")
            return EXIT_INTERRUPTED
        case BrokenPipeError():
            drop(sys.stdout)
            return EXIT_BROKEN_PIPE
        case OSError():
            return _end_without_file(error)
    print_internal_error(error)
    return EXIT_INTERNAL


def _end_without_file(error: OSError) -> int:
    """Say which path cannot be opened; without one it is standard output that takes no more."""
    if error.filename is not None:
        said = explain_unwritten(f"cannot open {error.filename}", error)
        print_error(str(said))
        return said.exit_code
    drop(sys.stdout)
    print_error(f"cannot write the report: {error.strerror or error}")
    return EXIT_OUTPUT


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
