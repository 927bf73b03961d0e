"""`diagnose ack`: say that somebody knows of a finding, so that nobody is told of it for a while.

Enters: the fingerprint of a finding. Leaves: a row in the store, or the list of them.
"""

import math
from typing import TYPE_CHECKING

import click

from diagnose.cli.options import store_option
from diagnose.cli.output import count, write_lines
from diagnose.errors import UsageError

if TYPE_CHECKING:
    from diagnose.model.ticket import Finding


@click.command("ack")
@click.argument("fingerprint", required=False)
@store_option
@click.option("--reason", metavar="TEXT", help="Why nobody needs to be told.")
@click.option(
    "--until", metavar="AGE|DATE", help="For so long, or until then: 2w or 2026-01-31  [default: until --clear]"
)
@click.option("--clear", is_flag=True, help="Tell of it again.")
@click.option("--list", "show", is_flag=True, help="List what is acknowledged.")
def ack_command(
    *, fingerprint: str | None, store: str, reason: str | None, until: str | None, clear: bool, show: bool
) -> int:
    """Acknowledge the finding with FINGERPRINT, or its beginning: no tickets and alerts of it for a while.

    When the time is over and it is still there, it is told again.
    """
    from diagnose.model.ticket import Ack, iso
    from diagnose.triage.acks import clear_ack, list_acks, write_ack
    from diagnose.triage.findings import find_fingerprint, update_findings
    from diagnose.triage.store import Store
    from diagnose.triage.times import parse_until

    if show == (fingerprint is not None):
        raise UsageError("expected FINGERPRINT with --reason TEXT or --clear, or --list alone")
    if not show and clear == (reason is not None and bool(reason.strip())):
        raise UsageError("expected --reason TEXT, or --clear")
    if clear and until is not None:
        raise UsageError("--until: --clear is at once")
    with Store(store, may_create=False) as opened:
        now_s = opened.now_s()
        findings = update_findings(opened, now_s, math.inf, is_trial=show)
        if show:
            by_fingerprint = {finding.fingerprint: finding for finding in findings}
            acks = [ack for ack in list_acks(opened).values() if ack.until_at is None or ack.until_at > now_s]
            lines = []
            for ack in acks:
                end = "until cleared" if ack.until_at is None else f"until {iso(ack.until_at)}"
                finding = by_fingerprint[ack.fingerprint]
                lines.append(f"{ack.fingerprint}  {end}  {finding.state}  {_call(finding)}: {ack.reason}\n")
            write_lines("".join(lines) or "nothing is acknowledged\n")
            return 0
        finding = find_fingerprint(findings, fingerprint or "")
        if clear:
            known = clear_ack(opened, finding.fingerprint)
            write_lines(f"{finding.fingerprint}: {'told of again' if known else 'was not acknowledged'}\n")
            return 0
        until_at = None if until is None else parse_until(until, now_s)
        write_ack(opened, Ack(finding.fingerprint, " ".join((reason or "").split()), until_at, now_s))
    end = "until `diagnose ack --clear`" if until_at is None else f"until {iso(until_at)}"
    runs = count(finding.n_seen, "run")
    write_lines(f"{finding.fingerprint}: {_call(finding)}, seen in {runs}, is acknowledged {end}\n")
    return 0


def _call(finding: "Finding") -> str:
    """Say what a finding is of: its cause, and the host or the job."""
    from diagnose.report.escape import name

    whose = finding.machine or finding.name
    return f"{finding.cause} {'on' if finding.machine else 'of'} {name(whose)}" if whose else finding.cause
