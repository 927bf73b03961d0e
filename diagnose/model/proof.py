"""The figures that show a cause: what the first picture of a page is drawn from, and what stays of it where the trace is gone."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

#: What figures a cause is shown by.
#: pace: own compute times of culprits over those of their peers. transfers: own times of transfers over the usual one.
#: ranks: compute time of each dp rank over the mean of all in that step. experts: the same of workers, against their stage.
#: pauses: seconds that each worker lost. steps: step times, recorded and without the cause. stages: seconds of a microbatch.
ProofKind = Literal["pace", "transfers", "ranks", "experts", "pauses", "steps", "stages"]
ProofUnit = Literal["seconds", "ratio"]


class Proof(Struct, frozen=True, kw_only=True):
    """A small table of figures that shows one cause: rows are places, columns are steps or stages."""

    kind: ProofKind
    unit: Annotated[ProofUnit, Meta(description="of all values")]
    rows: Annotated[tuple[str, ...], Meta(description="the place of each row, culprits first where they are named")]
    n_culprits: Annotated[int, Meta(ge=0, description="so many of the first rows are culprits")] = 0
    columns: Annotated[
        tuple[int, ...], Meta(description="step of each column, the first of several; or its virtual stage, an index")
    ]
    steps_each: Annotated[
        int, Meta(ge=1, description="steps that share a column: the worst of them, or their mean")
    ] = 1
    values: Annotated[
        tuple[tuple[float | None, ...], ...], Meta(description="one list a row; null where there is none")
    ]
    marked: Annotated[tuple[int, ...], Meta(description="steps in which rows of the trace tell of a checkpoint")] = ()
    left_out: Annotated[int, Meta(ge=0, description="rows that are not here, as they show less")] = 0
