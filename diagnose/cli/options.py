"""What commands share of the command line: options, what they hold, and exit codes.

Enters: what click reads. Leaves: decorators, one an option or for a list of options that stand together, and `Options`.
"""

import dataclasses
import math
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from diagnose._version import __version__
from diagnose.addresses import holds_password
from diagnose.cli.output import is_terminal, open_output
from diagnose.errors import UsageError
from diagnose.model.request import MIN_SPEEDUP

if TYPE_CHECKING:
    from diagnose.model.trace import Ints

#: Exit codes beside those of the exceptions in `errors`.
EXIT_STRAGGLING = 1
EXIT_WORSE = 1
EXIT_REFUSED = 1
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
#: Defaults of options.
PERFETTO_MB = 20.0

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line asks for, as click gives it; what a command has no option for keeps its default."""

    output_format: str
    no_color: bool
    width: int | None
    output: str | None = None
    meta: Path | None = None
    steps: str | None = None
    unit: str | None = None
    column: str | None = None
    memory: str | None = None
    rules: Path | None = None
    log: Path | None = None
    telemetry: str | None = None
    min_speedup: float = MIN_SPEEDUP
    quiet: bool = False
    verbose: int = 0
    html: str | None = None
    json: str | None = None
    perfetto: str | None = None
    perfetto_steps: str | None = None
    perfetto_dp: str | None = None
    perfetto_mb: float = PERFETTO_MB

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
        return wanted and self.output is None and is_terminal(sys.stdout)

    def render(self, page: Any, found: object, **more: object) -> str:
        """Write what a command found with a module of `report`: one JSON object, or a page."""
        if self.output_format == "json":
            return f"{page.render_json(found, **more)}\n"
        return str(page.render(found, width=self.columns, color=self.color, **more))

    def write(self, page: Any, found: object, **more: object) -> None:
        """Write what a command found where it is asked for, as `render` does."""
        with open_output(self.output) as write:
            write(self.render(page, found, **more))


def parse_numbers(option: str, text: str | None) -> "Ints | None":
    """Read an option that lists steps or ranks."""
    if text is None:
        return None
    from diagnose.trace.load import parse_steps

    try:
        return parse_steps(text)
    except (ValueError, OverflowError):
        what = "dp ranks" if option == "--perfetto-dp" else "steps"
        raise UsageError(f"{option}: {text!r} is not a list of {what} and ranges such as 16-40,80") from None


def format_option(*formats: str, meaning: str) -> Callable[[_Command], _Command]:
    """Give `--format` with these choices, the first the default; `meaning` is its help."""
    return click.option(
        "--format", "output_format", type=click.Choice(formats), default=formats[0], show_default=True, help=meaning
    )


def together(*options: Callable[[Any], Any]) -> Callable[[_Command], _Command]:
    """Make one decorator of several options; the help shows them in this order."""

    def decorate(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _check_min_speedup(_ctx: click.Context, _param: click.Parameter, value: float) -> float:
    """Refuse what is not a number."""
    if not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a finite number.")
    return value


def _check_store(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Refuse a password where everybody can read it."""
    from_line = ctx.get_parameter_source(param.name or "") == click.core.ParameterSource.COMMANDLINE
    if from_line and holds_password(value):
        raise UsageError(
            "--store: a password on the command line can be read by everybody on the machine; give it in "
            "DIAGNOSE_STORE_PASSWORD, or in a file named by DIAGNOSE_STORE_PASSWORD_FILE"
        )
    return value


meta_option = click.option(
    "--meta", metavar="FILE", type=click.Path(path_type=Path), help="YAML file with metadata of the job."
)
log_option = click.option(
    "--log",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Training log of the same run (Megatron-LM): since when, also before and after the traced steps.",
)
telemetry_option = click.option(
    "--telemetry",
    metavar="PATH|URL",
    help="What the machines measured (Prometheus, dcgm-exporter, nvidia-smi): a file, a folder, or a server to ask. Says why a "
    "suspect is slow, or that its counters are like everyone's. A server's bearer token is in DIAGNOSE_TELEMETRY_TOKEN, or in a "
    "file named by DIAGNOSE_TELEMETRY_TOKEN_FILE.",
)
version_option = click.version_option(__version__, prog_name="diagnose", message="%(prog)s %(version)s")
quiet_option = click.option("--quiet", is_flag=True, help="No progress.")
output_option = click.option(
    "-o",
    "--output",
    "output",
    metavar="FILE",
    type=click.Path(),
    help="Write there instead of standard output, all or nothing.",
)
store_option = click.option(
    "--store",
    metavar="URL",
    envvar="DIAGNOSE_STORE",
    default="sqlite:///diagnose.db",
    show_default=True,
    callback=_check_store,
    help="sqlite:///FILE or postgresql://USER@HOST/DATABASE; the password comes from the environment or a file.",
)

#: What every command that judges jobs takes.
judging_options = together(
    click.option(
        "--rules",
        metavar="DIR",
        type=click.Path(path_type=Path),
        help="Rules of your own; one replaces the built-in rule of its id.",
    ),
    click.option(
        "--min-speedup",
        metavar="FLOAT",
        type=click.FloatRange(min=1.0),
        callback=_check_min_speedup,
        default=MIN_SPEEDUP,
        show_default=True,
        help="Report a cause when removing it makes the job at least so many times faster.",
    ),
)
#: What every command that reads one trace at a time takes.
reading_options = together(
    meta_option,
    click.option("--steps", metavar="STEPS", help="Analyse only these steps: 16-40,80."),
    click.option(
        "--unit",
        type=click.Choice(("s", "ms", "us", "ns", "it/s", "tokens/s", "samples/s")),
        help="What the times of a trace, or the --column of a table, are in  [default: what metadata or names say, else s]",
    ),
    click.option(
        "--column", metavar="NAME", help="Column of a table of steps (CSV, JSON Lines) that tells their time or rate."
    ),
    click.option(
        "--memory",
        metavar="SIZE",
        help="Memory that a job may take, such as 4G; of a larger one some steps are analysed  [default: 60% of the machine]",
    ),
    judging_options,
)
#: What every command that draws timelines takes.
perfetto_options = together(
    click.option(
        "--perfetto",
        metavar="FILE",
        type=click.Path(),
        help="Draw some steps as timelines for ui.perfetto.dev: .json.gz.",
    ),
    click.option(
        "--perfetto-steps", metavar="STEPS", help="Draw these steps: 40,41; the worst and a typical one if left out."
    ),
    click.option(
        "--perfetto-dp", metavar="RANKS", help="Draw these dp ranks: 0,3; culprits and a sound peer if left out."
    ),
    click.option(
        "--perfetto-mb",
        metavar="MB",
        type=click.FloatRange(min=0.0, min_open=True),
        default=PERFETTO_MB,
        show_default=True,
        help="Draw no more than a file of this size holds.",
    ),
)
#: What every command that shows a page takes.
look_options = together(
    click.option("--no-color", is_flag=True, help="No colours; so does the environment variable NO_COLOR."),
    click.option("--width", metavar="N", type=click.IntRange(MIN_WIDTH, MAX_WIDTH), help="Columns of the report."),
)
