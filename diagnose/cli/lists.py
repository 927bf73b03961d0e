"""Commands that print what is fixed: `diagnose fixes`, `diagnose schema` and `diagnose completion`.

Enters: a name at most. Leaves: a list, a schema or a script on standard output.
"""

import click

from diagnose.cli.output import write_lines, write_stdout
from diagnose.errors import UsageError


@click.command("fixes")
def fixes_command() -> int:
    """List all fixes that `diagnose what-if` can price, with their settings."""
    from diagnose.fixes.catalogue import list_fixes

    lines = []
    for name, fix in sorted(list_fixes().items()):
        lines.append(f"{name}: {fix.TITLE}")
        lines += [f"    {key}: {meaning}" for key, meaning in fix.SETTINGS.items()]
    write_lines("\n".join(lines) + "\n")
    return 0


@click.command("schema")
@click.argument("what", type=click.Choice(["diagnosis", "compare", "fleet", "ticket"]), default="diagnosis")
def schema_command(what: str) -> int:
    """Print the JSON Schema of --format json, of that of `diagnose compare` or `diagnose fleet`, or of tickets."""
    from diagnose.report.schemas import render_schema

    write_stdout(render_schema(what))
    return 0


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> int:
    """Print a script that completes commands, options and files.

    For bash: eval "$(diagnose completion bash)"
    """
    from click.shell_completion import get_completion_class

    completion = get_completion_class(shell)
    if completion is None:
        raise UsageError(f"click {click.__version__} knows no completion for {shell}")
    write_stdout(completion(ctx.find_root().command, {}, "diagnose", "_DIAGNOSE_COMPLETE").source().strip() + "\n")
    return 0
