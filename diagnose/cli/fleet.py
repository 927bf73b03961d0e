"""`diagnose fleet`: what adds up over all jobs of a store.

Enters: the address of a store. Leaves: a page, one JSON object, or a folder of HTML that any web server serves.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from diagnose.cli.completion import complete_causes
from diagnose.cli.drawings import check_folder_of
from diagnose.cli.options import Options, format_option, look_options, output_option, store_option
from diagnose.cli.output import print_message
from diagnose.errors import UsageError

if TYPE_CHECKING:
    from diagnose.model.fleet import Fleet
    from diagnose.model.fleet_document import Rank
    from diagnose.triage.store import Store


@click.command("fleet")
@store_option
@format_option("terminal", "json", meaning="A page for people, or one JSON object (diagnose-fleet/1).")
@output_option
@click.option(
    "--site", metavar="DIR", type=click.Path(path_type=Path), help="Also write HTML: an index and a page a job."
)
@click.option(
    "--draw",
    metavar="N",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Draw the pages of the first N jobs from their traces, where these are still there: seconds each.",
)
@click.option(
    "--since", metavar="AGE|DATE", help="Only jobs that ran since: 7d back from the newest diagnosis, or 2026-01-31."
)
@click.option(
    "--night", metavar="AGE", default="24h", show_default=True, help="What is new in the last 24h against those before."
)
@click.option(
    "--rank",
    type=click.Choice(["lost", "recoverable"]),
    default="lost",
    show_default=True,
    help="Rank jobs by the GPU hours that they lost, or that their plan gives back.",
)
@click.option("--limit", metavar="N", type=click.IntRange(min=1), help="List so many jobs  [default: 10; JSON: all]")
@click.option("--owner", metavar="NAME", help="Only jobs of this owner.")
@click.option("--cause", metavar="ID", shell_complete=complete_causes, help="Only jobs with this cause.")
@click.option("--framework", metavar="NAME", help="Only jobs of this framework.")
@click.option("--folder", metavar="DIR", help="Only jobs whose traces lie below this folder or prefix: a cluster's.")
@look_options
def fleet_command(  # noqa: PLR0913 - one argument an option
    *,
    store: str,
    output_format: str,
    output: str | None,
    site: Path | None,
    draw: int,
    since: str | None,
    night: str,
    rank: "Rank",
    limit: int | None,
    no_color: bool,
    width: int | None,
    **filters: str | None,
) -> int:
    """Say where the GPU hours of all jobs went, what is new since the night before, and which hosts to look at.

    Reads the store that `diagnose triage` fills, and changes nothing in it.
    """
    from diagnose.report import fleet as page
    from diagnose.triage.store import Store

    if site is None and draw:
        raise UsageError("--draw says what to draw in a site: give --site DIR with it")
    if site is not None:
        check_folder_of("--site", site)
    with Store(store, only_reads=True) as opened:
        found = _measure(
            opened, since, night, rank, {key: value for key, value in filters.items() if value is not None}
        )
        if site is not None:
            _write_site(opened, found, site, draw)
    look = Options(output_format=output_format, no_color=no_color, width=width, output=output)
    look.write(page, found, limit=limit)
    return 0


def _measure(store: "Store", since: str | None, night: str, rank: "Rank", filters: dict[str, str]) -> "Fleet":
    """Read the store and add up what is asked for."""
    from diagnose.fleet.measure import FleetQuery, measure_fleet, newest_s
    from diagnose.triage.collect import collect
    from diagnose.triage.times import parse_since

    period_s = -parse_since(night, 0.0)
    if period_s <= 0 or not night.strip()[-1:].isalpha():
        raise UsageError(f"--night: {night!r} is no length of time such as 24h or 7d")
    jobs = collect(store)
    since_s = None if since is None else parse_since(since, newest_s(jobs))
    said = filters | ({} if since is None else {"since": since})
    asked = FleetQuery(since_s=since_s, rank=rank, period_s=period_s, said=said, **filters)
    return measure_fleet(jobs, asked, store=store.name)


def _write_site(store: "Store", fleet: "Fleet", folder: Path, draw: int) -> None:
    """Write the site, and say what was done."""
    from diagnose.cli.site import write_site

    wrote = write_site(store, fleet, folder, draw=draw)
    counts = f"{wrote.n_written:,} pages written, {wrote.n_kept:,} as they were, {wrote.n_removed:,} removed"
    print_message("site", f"{folder / 'index.html'}: {counts}")
