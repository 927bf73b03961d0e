"""`diagnose confirm`: tests for the machines that a diagnosis blames, and their results read back into it.

Enters: a trace, a saved diagnosis or answer of `diagnose machines`; with --read, results too. Leaves: a script, or a page, or what
was saved with what was found.
It runs no test and takes no machine out.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from diagnose.cli.inputs import check_jobs, open_job
from diagnose.cli.options import Options, format_option, look_options, output_option, reading_options
from diagnose.cli.output import open_output, print_message
from diagnose.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from diagnose.confirm.script import Target
    from diagnose.model.confirmation import HostResult, TestPlan
    from diagnose.model.diagnosis_document import DiagnosisDocument
    from diagnose.model.machines import MachinesDocument


@click.command("confirm")
@click.argument("job", metavar="JOB|DIAGNOSIS.json|MACHINES.json", type=click.Path())
@click.option(
    "--suspect", "suspects", metavar="HOST", multiple=True, help="Test this machine in place of those blamed."
)
@click.option("--control", "controls", metavar="HOST", multiple=True, help="Compare with this sound machine.")
@click.option(
    "--controls",
    "n_controls",
    metavar="N",
    type=click.IntRange(0, 64),
    default=4,
    show_default=True,
    help="Choose so many sound machines of the job where none is named.",
)
@click.option(
    "--as",
    "target",
    type=click.Choice(("shell", "slurm", "kubernetes")),
    default="shell",
    show_default=True,
    help="What the tests are written for: ssh to each machine, a batch file, or Jobs.",
)
@click.option(
    "--image", metavar="IMAGE", help="Container image of the Jobs; for cards one with torch. Kubernetes only."
)
@click.option(
    "--gpus", metavar="N", type=click.IntRange(1, 64), help="GPUs a machine, where the diagnosis does not say."
)
@click.option("--data", metavar="DIR", default="", help="Folder of the job's data: reading it is tested as well.")
@click.option(
    "--read",
    "results",
    metavar="RESULTS",
    type=click.Path(path_type=Path),
    help="Read what the tests left: a folder, or a file with a result a line.",
)
@click.option("--job", "job_id", metavar="ID", help="The job that is meant, where a file holds several diagnoses.")
@format_option("terminal", "json", meaning="With --read: a page for people, or the diagnosis with `confirmed` in it.")
@output_option
@reading_options
@look_options
def confirm_command(  # noqa: PLR0913 - an argument an option
    *,
    job: str,
    suspects: tuple[str, ...],
    controls: tuple[str, ...],
    n_controls: int,
    target: "Target",
    image: str | None,
    gpus: int | None,
    data: str,
    results: Path | None,
    job_id: str | None,
    **given: Any,
) -> int:
    """Write the tests that confirm or clear the machines that are blamed, and read their results.

    They are blamed by a diagnosis, of a trace or of what `--format json` saved, or by what `diagnose machines --format json` did.

    Each suspect is tested beside sound machines of the same job: matrix products on every card, `dcgmi diag -r 3`,
    `ib_write_bw` between pairs, memory, disk and CPU, as its cause asks for. The script is printed, and nothing is run.
    With --read its results go into the diagnosis: confirmed, cleared, or nobody can tell.
    """
    from diagnose.confirm.plan import make_plan
    from diagnose.confirm.read import read_results

    options = Options(**given)
    check_jobs((job,), options)
    _check(target, image, data, results)
    entry, host_of = _find_diagnosis(job, job_id, options)
    found = _read_document(entry, job)
    read = read_results(results) if results is not None else []
    plan = make_plan(
        found,
        suspects=suspects,
        tested=[one.host for one in read if one.role == "suspect"],
        controls=controls,
        n_controls=n_controls,
        n_cards=gpus,
        data=data,
        host_of=host_of,
    )
    if results is not None:
        return _read_back(entry, plan, read, target, options)
    _warn(plan, target)
    from diagnose.confirm.script import render_script

    with open_output(options.output) as write:
        write(render_script(plan, target, image=image or ""))
    return 0


def _check(target: str, image: str | None, data: str, results: Path | None) -> None:
    """Refuse what makes no sense together, before any work."""
    if results is not None and not results.exists():
        raise UsageError(f"--read: {results} does not exist; expected the folder, or the file, that the tests left")
    if target == "kubernetes" and not image and results is None:
        raise UsageError("--as kubernetes needs --image IMAGE: the image of the job, or another with python3 and torch")
    if image is not None and target != "kubernetes":
        raise UsageError("--image is for --as kubernetes")
    if not data.isprintable():
        raise UsageError(f"--data: {data!r} is no name of a folder")


def _find_diagnosis(
    job: str, job_id: str | None, options: Options
) -> "tuple[dict[str, Any], Callable[[int, int], str | None] | None]":
    """Read a saved diagnosis, or diagnose a trace, which also says where every worker ran."""
    from diagnose.compare.read import choose, read_saved
    from diagnose.model import diagnosis_document, machines

    with open_job(job, options) as request:
        name = request.name or job
        saved = read_saved(request.source, name, schemas=(*diagnosis_document.SCHEMAS, machines.SCHEMA))
        if saved is not None:
            return choose(saved, name, job_id), None
        from diagnose.pipeline import diagnose_job

        found = diagnose_job(request)
    if found.hosts is None:
        return found.to_dict(), None
    hosts = {
        (int(dp), int(stage)): found.hosts[d * len(found.stage_labels) + s]
        for d, dp in enumerate(found.dp_labels)
        for s, stage in enumerate(found.stage_labels)
    }
    return found.to_dict(), lambda dp, stage: hosts.get((dp, stage)) or None


def _read_document(entry: dict[str, Any], name: str) -> "DiagnosisDocument | MachinesDocument":
    """Check what was saved."""
    from diagnose.compare.read import read_document
    from diagnose.confirm.read import read_machines
    from diagnose.model import machines

    return read_machines(entry, name) if entry.get("schema") == machines.SCHEMA else read_document(entry, name)


def _warn(plan: "TestPlan", target: str) -> None:
    """Say what the tests will not show."""
    if plan.left_out:
        print_message("warning", f"{plan.left_out} more suspects are left out: test these {len(plan.suspects)} first")
    if len(plan.controls) < 2:
        print_message(
            "warning",
            f"two sound machines are needed to compare with, and there is {len(plan.controls) or 'none'}: name some with "
            "--control HOST; without, only a test that fails by itself confirms",
        )
    if target == "kubernetes" and plan.n_cards is None and "gpu" in plan.tests:
        raise UsageError("the diagnosis does not say how many GPUs a machine has; give --gpus N")


def _read_back(
    entry: dict[str, Any], plan: "TestPlan", results: "list[HostResult]", target: str, options: Options
) -> int:
    """Put the results into the diagnosis, and show them."""
    from diagnose.confirm.hand_over import list_confirmed, write_kubernetes, write_slurm
    from diagnose.confirm.judge import apply_results, list_tested
    from diagnose.model.plain import to_json
    from diagnose.report import confirm as page

    judged = apply_results(entry, plan, results)
    with open_output(options.output) as write:
        if options.output_format == "json":
            write(f"{to_json(judged)}\n")
            return 0
        told = list_tested(judged)
        named = {one.host for _, _, said in told for one in said.hosts}
        for lost in (one.host for one in plan.suspects if one.host not in named):
            print_message("warning", f"{lost}: nothing blames it, so that its results are told nowhere")
        commands: list[str] = []
        for cause, one in list_confirmed(told):
            commands += [write_slurm(cause, one)] if target != "kubernetes" else []
            commands += write_kubernetes(cause, one) if target != "slurm" else ()
        write(page.render(plan.job, told, commands, width=options.columns, color=options.color))
    return 0
