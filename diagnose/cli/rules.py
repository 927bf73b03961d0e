"""`diagnose rules`: list, show, check and test rules.

Enters: the built-in rules, or a folder of rules. Leaves: lines, and an exit code where rules have faults.
"""

from pathlib import Path

import click

from diagnose.cli.completion import complete_rules
from diagnose.cli.inputs import check_rules_folder
from diagnose.cli.options import output_option
from diagnose.cli.output import count, write_lines
from diagnose.errors import RuleError, UsageError

_rules_option = click.option(
    "--rules",
    "folder",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Rules of your own beside the built-in ones.",
)


@click.group("rules", no_args_is_help=False)
def rules_command() -> None:
    """List, show, check and test rules."""


@rules_command.command("list")
@_rules_option
@output_option
def list_rules_command(folder: Path | None, output: str | None) -> int:
    """List all rules."""
    from diagnose.judge.describe import tabulate_rules
    from diagnose.judge.rules import load_rules

    check_rules_folder(folder)
    write_lines(tabulate_rules(load_rules(folder).rules), output)
    return 0


@rules_command.command("show")
@click.argument("rule_id", metavar="ID", shell_complete=complete_rules)
@_rules_option
@output_option
def show_rule_command(rule_id: str, folder: Path | None, output: str | None) -> int:
    """Show the rule with this id: its story, conditions, thresholds, fixes and tests."""
    import difflib

    from diagnose.features.catalogue import list_features
    from diagnose.judge.describe import describe_rule
    from diagnose.judge.rules import load_rules

    check_rules_folder(folder)
    by_id = {rule.id: rule for rule in load_rules(folder).rules}
    if rule_id not in by_id:
        near = difflib.get_close_matches(rule_id, by_id, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(by_id)}"
        raise UsageError(f"there is no rule {rule_id!r}; {hint}")
    titles = {rule.id: rule.title for rule in by_id.values()}
    write_lines(describe_rule(by_id[rule_id], titles, list_features()), output)
    return 0


@rules_command.command("check")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@output_option
def check_rules_command(folder: Path, output: str | None) -> int:
    """List all faults of the rule files in DIR, one line each."""
    from diagnose.features.catalogue import list_features
    from diagnose.judge.check import check_folder

    check_rules_folder(folder)
    rules, faults = check_folder(folder, list_features())
    said = "".join(f"{fault}\n" for fault in faults) or f"{folder}: {count(len(rules), 'rule')}, no faults\n"
    write_lines(said, output)
    return RuleError.exit_code if faults else 0


@rules_command.command("test")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@output_option
def test_rules_command(folder: Path, output: str | None) -> int:
    """Judge the cases beside the rules in DIR, and say which conditions decided where one fails."""
    from diagnose.judge.check import try_cases

    check_rules_folder(folder)
    trials = try_cases(folder)
    failing = [trial for trial in trials if not trial.passes]
    lines = [line for trial in failing for line in trial.explain()]
    n_rules = len({trial.rule.id for trial in trials})
    lines.append(f"{folder}: {count(n_rules, 'rule')}, {count(len(trials), 'case')}, {len(failing)} failing")
    write_lines("\n".join(lines) + "\n", output)
    return RuleError.exit_code if failing else 0
