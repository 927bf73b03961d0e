"""`diagnose pack`: ways to pack documents into microbatches, beside each other.

Enters: lengths of documents. Leaves: a page, or one JSON object.
"""

import os
from pathlib import Path
from typing import Any

import click

from diagnose.cli.options import Options, format_option, look_options, output_option
from diagnose.errors import UsageError


def _parse_cost(_ctx: click.Context, _param: click.Parameter, value: str | None) -> tuple[float, float] | None:
    """Read `--cost A,B`."""
    if value is None:
        return None
    try:
        linear, quadratic = (float(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not two numbers such as 1,3.8e-5.") from None
    return linear, quadratic


def _parse_queues(
    _ctx: click.Context, _param: click.Parameter, value: str | None
) -> tuple[tuple[int, ...], ...] | None:
    """Read `--queues 32768,65536`."""
    if value is None:
        return None
    try:
        return (tuple(int(part) for part in value.split(",")),)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of tokens such as 32768,65536.") from None


@click.command("pack")
@click.argument("lengths", metavar="LENGTHS", type=click.Path(path_type=Path))
@format_option("terminal", "json", meaning="A page for people, or one JSON object (diagnose-pack/1).")
@output_option
@click.option("--column", metavar="NAME", help="Column with the lengths; found by name or type when left out.")
@click.option("--window", metavar="N", type=click.IntRange(1, 2**40), help="Tokens of a microbatch  [default: 131072]")
@click.option(
    "--microbatches",
    "n_microbatches",
    metavar="N",
    type=click.IntRange(1, 10_000),
    default=4,
    show_default=True,
    help="Microbatches of one data-parallel rank in a global batch.",
)
@click.option(
    "--dp",
    "n_ranks",
    metavar="N",
    type=click.IntRange(1, 100_000),
    default=1,
    show_default=True,
    help="Data-parallel ranks.",
)
@click.option(
    "--cost", metavar="A,B", callback=_parse_cost, help="Cost of a microbatch: A x tokens + B x tokens squared."
)
@click.option("--cost-quadratic", metavar="B", type=float, help="The same with A = 1  [default: 1/26000, as published]")
@click.option(
    "--memory",
    "memory_ratio",
    metavar="FLOAT",
    type=click.FloatRange(1, 1000),
    default=1.1,
    show_default=True,
    help="Tokens that memory allows in a microbatch, in windows.",
)
@click.option(
    "--queues",
    metavar="N,N,...",
    callback=_parse_queues,
    help="Thresholds in tokens above which documents wait  [default: three published settings]",
)
@click.option(
    "--batches",
    "n_batches",
    metavar="N",
    type=click.IntRange(1, 1_000_000),
    default=512,
    show_default=True,
    help="Global batches to pack at most.",
)
@click.option(
    "--exact",
    "exact_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True),
    help="Run the exact packer too, at most so long for each problem; then results may depend on the machine.",
)
@click.option("--times", "timed", is_flag=True, help="Say how long each packer takes; that differs from run to run.")
@look_options
def pack_command(  # noqa: PLR0913 - one argument an option
    *,
    lengths: Path,
    output_format: str,
    output: str | None,
    column: str | None,
    window: int | None,
    cost: tuple[float, float] | None,
    cost_quadratic: float | None,
    no_color: bool,
    width: int | None,
    **asked: Any,
) -> int:
    """Compare ways to pack documents into microbatches: imbalance, delay, memory.

    LENGTHS is a Parquet file with a column of document lengths (doc_lengths, lengths or length), a trace with doc_lengths, or
    a .csv or .txt file with one length a line.
    """
    from diagnose.packing.compare import PackingSetup, compare_packers
    from diagnose.packing.cost import PUBLISHED_COST, Cost
    from diagnose.packing.lengths import WINDOW
    from diagnose.packing.read import read_lengths
    from diagnose.report import packing as page

    if cost is not None and cost_quadratic is not None:
        raise UsageError("--cost and --cost-quadratic say the same: give one of them")
    if output is not None and os.path.realpath(output) == os.path.realpath(lengths):
        raise UsageError(f"-o: {output} is the file to read; name another file")
    if cost is None and cost_quadratic is not None:
        cost = (1.0, cost_quadratic)
    plan = PackingSetup(window=window or WINDOW, cost=PUBLISHED_COST if cost is None else Cost(*cost), **asked)
    look = Options(output_format=output_format, no_color=no_color, width=width, output=output)
    comparison = compare_packers(read_lengths(lengths, column=column), plan)
    look.write(page, comparison, name=str(lengths))
    return 0
