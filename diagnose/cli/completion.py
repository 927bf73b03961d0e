"""What a shell offers for an argument: causes, fixes, rules.

Enters: what is typed so far. Leaves: words that begin so. Nothing here may fail: a shell shows no errors.
"""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def complete_rules(ctx: click.Context, _param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
    """Offer the built-in rules and those of the folder that the line names."""
    from click.shell_completion import CompletionItem

    found: dict[str, str] = {}
    with contextlib.suppress(Exception):
        from diagnose.judge.rules import load_rules

        folder = ctx.params.get("rules") or ctx.params.get("folder")
        rules = load_rules(None if folder is None else Path(folder)).rules
        found = {rule.id: rule.title for rule in rules}
    return [CompletionItem(name, help=title) for name, title in found.items() if name.startswith(incomplete)]


def complete_causes(ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
    """Offer the causes that rules are of, and what no rule is of."""
    from click.shell_completion import CompletionItem

    rest = [CompletionItem("unknown", help="time that no rule explains")] if "unknown".startswith(incomplete) else []
    return [*complete_rules(ctx, param, incomplete), *rest]


def complete_fixes(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
    """Offer the fixes that can be priced."""
    from click.shell_completion import CompletionItem

    with contextlib.suppress(Exception):
        from diagnose.fixes.catalogue import list_fixes

        known = sorted(list_fixes().items())
        return [CompletionItem(name, help=fix.TITLE) for name, fix in known if name.startswith(incomplete)]
    return []
