"""Transfers with two neighbours that overtake each other are numbered as the computes that they serve."""

import itertools

import numpy as np
import pandas as pd
import pytest

from diagnose.model.optype import P2P, of_types
from diagnose.model.schedule import BACKWARD, WEIGHT, order_launches
from diagnose.model.trace import Seconds
from diagnose.trace.overtaken import _match_ends
from tests.jobs import load, to_table
from tests.judge.cases import measure

N_STAGES, N_MICROBATCHES, SHAPE = 4, 8, (6, 2)
META = {"job_id": "overtaken", "dp_size": SHAPE[1], "pp_size": N_STAGES, "tp_size": 1, "cp_size": 1, "world_size": 8}
#: Data that go from one of these model chunks to the next one stay on their stage.
TURN = N_STAGES - 1
GAP_S, COMPUTE_S, TRANSFER_S = 1e-5, 0.04, 1e-3


def run(slowdown: float = 1.0, *, is_buffered: bool = False) -> pd.DataFrame:
    """Run a V whose first two stages run ahead: sends to the third queue up there, and those back to the first overtake them.

    Transfers with each neighbour have a stream, and a recv is posted as the compute before its own begins. A send waits for its
    recv, unless it is buffered. Dp rank 1 computes slower on stage 2.
    """
    factors = np.random.default_rng(5).lognormal(0.0, 0.03, (N_STAGES, 3, 2, N_MICROBATCHES, *SHAPE))
    factors[2, ..., 1] *= slowdown
    posted: dict[tuple[str, int, int], Seconds] = {}
    known: dict[tuple[str, int, int], Seconds] | None = None
    rows: list[tuple[int, str, int, int, Seconds, Seconds]] = []

    def transfer(stage: int, name: str, after_s: Seconds, free_s: Seconds, into: tuple[int, int]) -> Seconds:
        way, kind = name.split("-")
        posted[name, *into] = start_s = np.maximum(after_s, free_s) + GAP_S
        other_s = posted.get((f"{way}-{'recv' if kind == 'send' else 'send'}", *into), start_s)
        end_s = TRANSFER_S + (start_s if is_buffered and kind == "send" else np.maximum(start_s, other_s))
        rows.append((stage, name, -1, -1, start_s, end_s))
        return end_s

    while known is None or any(
        (known[key] < posted[key]).any() for key in known
    ):  # till nothing begins later than it seemed to
        known = dict(posted) or None
        rows.clear()
        for stage in range(N_STAGES):
            free_s: dict[tuple[str, int], Seconds] = {}
            begun_s = at_s = np.zeros(SHAPE)
            launches = order_launches("zb-v", stage, n_stages=N_STAGES, chunks=2, n_microbatches=N_MICROBATCHES)
            if stage < 2:
                launches = launches[np.argsort(launches[:, :2].any(axis=1), kind="stable")]
            for part, chunk, i, _ in launches.tolist():
                position, way, ahead = 2 * TURN + 1 - stage if chunk else stage, "forward", 1
                if part == BACKWARD:
                    way, ahead = "backward", -1
                receives, sends = (
                    part != WEIGHT and 0 <= min(into, into - ahead) <= 2 * TURN and min(into, into - ahead) != TURN
                    for into in (position, position + ahead)
                )
                ready_s = at_s
                if receives:
                    name, none_s = f"{way}-recv", np.zeros(SHAPE)
                    free_s[name, chunk] = transfer(
                        stage, name, begun_s, free_s.get((name, chunk), none_s), (position, i)
                    )
                    ready_s = np.maximum(at_s, free_s[name, chunk])
                begun_s = ready_s + GAP_S
                at_s = begun_s + COMPUTE_S * factors[stage, part, chunk, i]
                name = ("forward-compute", "backward-input", "backward-weight")[part]
                rows.append((stage, name, i, chunk, begun_s, at_s))
                if sends:
                    name, none_s = f"{way}-send", np.zeros(SHAPE)
                    free_s[name, chunk] = transfer(
                        stage, name, at_s, free_s.get((name, chunk), none_s), (position + ahead, i)
                    )
            rows.append((stage, "optimizer", -1, -1, at_s, at_s + GAP_S))
    columns = ["stage", "optype", "mb_id", "mc", "step", "dp_rank", "start_ts", "duration"]
    lanes = list(itertools.product(*map(range, SHAPE)))
    return pd.DataFrame(
        [
            (*of_row, *lane, start_s[lane], (end_s - start_s)[lane])
            for *of_row, start_s, end_s in rows
            for lane in lanes
        ],
        columns=columns,
    )


@pytest.mark.parametrize("digits", [3, 9])
@pytest.mark.parametrize("slowdown", [1.0, 1.6])
def test_transfers_that_overtake_each_other(slowdown: float, digits: int) -> None:
    """The replay is exact, on a coarse clock too, and a slow worker is named and gives back what mending it truly does."""
    rows = run(slowdown).round({"start_ts": digits, "duration": digits})
    m = measure(to_table(rows, META))
    assert m.gains.replayed_s == pytest.approx(m.gains.recorded_s, rel=0.005)
    named = [(cause.cause, [(w.dp, w.pp) for w in cause.where.workers]) for cause in m.diagnosis.causes]
    assert named == ([("worker-fault", [(1, 2)])] if slowdown > 1.0 else [])
    for cause in m.diagnosis.causes:
        healthy_s = measure(to_table(run(), META)).gains.recorded_s
        assert cause.recoverable == pytest.approx(1.0 - healthy_s / m.gains.recorded_s, abs=0.02)


def test_where_rows_are_lost() -> None:
    """A lost row leaves all others in their place."""
    rows = run()
    whole = load(rows, META).blocks[0]
    lost = load(rows.drop(rows.index[rows.optype == "forward-send"][5 :: SHAPE[0] * 37]), META).blocks[0]
    there = ~np.isnan(lost.start_s)
    assert 0 < np.count_nonzero(~there) < 10
    assert np.mean(whole.start_s[there] == lost.start_s[there]) > 0.99


def test_what_is_buffered_stays_as_it_began() -> None:
    """A send that ends apart from its recv does so for another reason: transfers are numbered by their start."""
    block = load(run(is_buffered=True), META).blocks[0]
    nodes = block.nodes
    same = (nodes.op[1:] == nodes.op[:-1]) & (nodes.stage[1:] == nodes.stage[:-1]) & of_types(nodes.op[1:], P2P)
    assert (np.diff(block.start_s, axis=0)[same] > 0).all()


def test_recvs_that_are_posted_ahead_end_with_their_sends() -> None:
    """Of two neighbours, whose messages are posted in any order, each recv is that of the send that it ends with; lost ones fit."""
    rng = np.random.default_rng(7)
    n, shape = 12, (5, 3)
    is_second = rng.random(n) < 0.4
    sent_s = np.sort(rng.uniform(0.0, 1.0, (n, *shape)), axis=0)
    true = np.empty((n, *shape), dtype=np.int64)
    for lane in np.ndindex(*shape):
        posted = rng.permutation(is_second)  # which stream each recv is of, in order of their start
        for stream in (False, True):
            true[(posted == stream, *lane)] = np.flatnonzero(is_second == stream)
    end_s = np.take_along_axis(sent_s, true, axis=0) + rng.uniform(0.0, 1e-4, (n, *shape))
    assert (_match_ends(is_second, sent_s, end_s) == true).all()
    end_s[3, 0, 0] = np.nan
    assert np.mean(_match_ends(is_second, sent_s, end_s) == true) > 0.95
