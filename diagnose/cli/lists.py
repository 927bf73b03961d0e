"""Commands that print what is fixed: `diagnose fixes`, `diagnose schema` and `diagnose completion`.

Enters: a name at most. Leaves: a list, a schema or a script on standard output.
"""

import click

from diagnose.cli.options import output_option
from diagnose.cli.output import open_output, write_lines
from diagnose.errors import UsageError


@click.command("fixes")
@output_option
def fixes_command(output: str | None) -> int:
    """List all fixes that `diagnose what-if` can price, with their settings."""
    from diagnose.fixes.catalogue import list_fixes

    lines = []
    for name, fix in sorted(list_fixes().items()):
        lines.append(f"{name}: {fix.TITLE}")
        lines += [f"    {key}: {meaning}" for key, meaning in fix.SETTINGS.items()]
    write_lines("\n".join(lines) + "\n", output)
    return 0


@click.command("schema")
@click.argument(
    "what",
    type=click.Choice(["diagnosis", "compare", "fleet", "ticket", "machines", "watch", "watch-states"]),
    default="diagnosis",
)
@output_option
def schema_command(what: str, output: str | None) -> int:
    """Print the JSON Schema of what --format json prints: of a diagnosis, or of WHAT."""
    from diagnose.report.schemas import render_schema

    with open_output(output) as write:
        write(render_schema(what))
    return 0


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@output_option
@click.pass_context
def completion_command(ctx: click.Context, shell: str, output: str | None) -> int:
    """Print a script that completes commands, options, causes, fixes, rules and files.

    For bash: eval "$(diagnose completion bash)"
    """
    from click.shell_completion import get_completion_class

    completion = get_completion_class(shell)
    if completion is None:
        raise UsageError(f"click {click.__version__} knows no completion for {shell}")
    with open_output(output) as write:
        write(completion(ctx.find_root().command, {}, "diagnose", "_DIAGNOSE_COMPLETE").source().strip() + "\n")
    return 0
