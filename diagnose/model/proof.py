"""The figures that show a cause: what the first picture of a page is drawn from, and what stays of it where the trace is gone."""

from typing import Annotated, Literal

from msgspec import Struct

from diagnose.model.plain import says

#: What figures a cause is shown by.
#: pace: own compute times of culprits over those of their peers. transfers: own times of transfers over the usual one.
#: ranks: compute time of each dp rank over the mean of all in that step. experts: the same of workers, against their stage.
#: pauses: seconds that each worker lost. steps: step times, recorded and without the cause. stages: seconds of a microbatch.
ProofKind = Literal["pace", "transfers", "ranks", "experts", "pauses", "steps", "stages"]
ProofUnit = Literal["seconds", "ratio"]


class Proof(Struct, frozen=True, kw_only=True):
    """A small table of figures that shows one cause: rows are places, columns are steps or stages."""

    kind: ProofKind
    unit: Annotated[ProofUnit, says("of all values")]
    rows: Annotated[tuple[str, ...], says("the place of each row, culprits first where they are named")]
    n_culprits: Annotated[int, says("so many of the first rows are culprits", ge=0)] = 0
    columns: Annotated[
        tuple[int, ...], says("step of each column, the first of several; or its virtual stage, an index")
    ]
    steps_each: Annotated[int, says("steps that share a column: the worst of them, or their mean", ge=1)] = 1
    values: Annotated[tuple[tuple[float | None, ...], ...], says("one list a row; null where there is none")]
    marked: Annotated[tuple[int, ...], says("steps in which rows of the trace tell of a checkpoint")] = ()
    left_out: Annotated[int, says("rows that are not here, as they show less", ge=0)] = 0
