"""`diagnose store`: look into a store, thin it out, or write it as Parquet.

Enters: the address of a store. Leaves: lines about it, or a folder of tables.
"""

from pathlib import Path

import click

from diagnose.cli.options import output_option, store_option
from diagnose.cli.output import count, write_lines


@click.group("store", no_args_is_help=False)
def store_command() -> None:
    """Look into a store, thin it out, or write it as Parquet."""


@store_command.command("info")
@store_option
@output_option
def store_info_command(store: str, output: str | None) -> int:
    """Say what is in a store."""
    from diagnose.triage.store import Store

    with Store(store, only_reads=True) as opened:
        found = opened.info()
    lines = [f"{found.url}: schema {found.schema}"]
    for name, counts in (("jobs", found.by_status), ("verdicts", found.by_verdict), ("causes", found.by_cause)):
        lines.append(f"{name}: " + (", ".join(f"{n:,} {key}" for key, n in counts.items()) or "none"))
    lines.append(f"pruned: {found.n_pruned:,}")
    lines.append(f"at work: {count(found.n_runs, 'triage')}, {count(found.n_claims, 'job')} claimed")
    write_lines("\n".join(lines) + "\n", output)
    return 0


@store_command.command("prune")
@store_option
@click.option(
    "--older", metavar="AGE|DATE", required=True, help="Take out what was diagnosed before: 90d, 1w or 2026-01-31."
)
def store_prune_command(store: str, older: str) -> int:
    """Take old jobs out of a store, and what was noted and told of them; they are diagnosed again only when they change."""
    from diagnose.triage.store import Store
    from diagnose.triage.times import parse_since

    with Store(store, may_create=False) as opened:
        pruned = opened.prune(parse_since(older, opened.now_s()))
        name = opened.name
    notes = (count(pruned.n_runs, "run"), count(pruned.n_sightings, "sighting"), count(pruned.n_deliveries, "message"))
    write_lines(f"{name}: {count(pruned.n_jobs, 'job')} taken out; {', '.join(notes)} forgotten\n")
    return 0


@store_command.command("export")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@store_option
def store_export_command(folder: Path, store: str) -> int:
    """Write a store as Parquet files into DIR, for DuckDB or pandas."""
    from diagnose.triage.export import export_store
    from diagnose.triage.store import Store

    with Store(store, only_reads=True) as opened:
        counts = export_store(opened, folder)
    write_lines("".join(f"{folder / name}: {count(n, 'row')}\n" for name, n in counts.items()))
    return 0
