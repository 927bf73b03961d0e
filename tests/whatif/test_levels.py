"""Replays level by level give what a walk from operation to operation gives, to the bit."""

import dataclasses

import numpy as np
import pytest

from diagnose.faults.fault import Fault
from diagnose.faults.kernel_queue_contention import KernelQueueContention
from diagnose.faults.network_fault import NetworkFault
from diagnose.faults.spec import JobSpec
from diagnose.model.change import Remove
from diagnose.whatif import levels
from diagnose.whatif.graph import Barrier, add_barriers
from diagnose.whatif.replay import launch_delays, replay, replay_each_rank, replay_ends
from tests.judge.cases import Measured, measured

PLAIN = JobSpec(pp=4, dp=3, microbatches=8, steps=6, seed=17)
#: Blocking batches end together, some computes wait for what no row records, and gaps are filled.
CASES: dict[str, tuple[JobSpec, Fault]] = {
    "blocking": (PLAIN, NetworkFault()),
    "pairs": (dataclasses.replace(PLAIN, p2p="pairs"), NetworkFault()),
    "interleaved, with waits by lane": (
        dataclasses.replace(PLAIN, vpp=2, p2p="asynchronous", separate=True),
        KernelQueueContention(rivals="reduce-scatter", slowdown=25.0),
    ),
    "split backwards": (dataclasses.replace(PLAIN, schedule="zero-bubble"), NetworkFault()),
    "side by side": (dataclasses.replace(PLAIN, schedule="dualpipev", vpp=2, p2p="asynchronous"), NetworkFault()),
    "lost rows": (dataclasses.replace(PLAIN, lost_share=0.01), NetworkFault()),
}


def all_replays(m: Measured) -> list[np.ndarray]:
    """Replay a job in every way."""
    found = []
    for p, o in zip(m.prepared, m.observed, strict=True):
        found.append(replay(p.graph, p.ideal))
        ranks = replay_each_rank(p.graph, p.own, p.ideal)
        found += [ranks.alone_s, ranks.together_s, ranks.from_first_s, replay(o.graph, o.own, o.delay)]
        found += [end for end in replay_ends(o.graph, o.own, o.delay) if end is not None]
    found += [m.removal.price([]), *(m.removal.price([Remove(name)]) for name in m.removal.present())]
    return found


@pytest.mark.parametrize("name", CASES)
def test_levels_give_what_a_walk_gives(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever graph, whatever lanes: the same seconds, where arrays are small and where they are not."""
    m = measured(*CASES[name])
    monkeypatch.setattr(levels, "MIN_EVENTS", np.inf)
    walked = all_replays(m)
    monkeypatch.setattr(levels, "MIN_EVENTS", 0)
    for expected, found in zip(walked, all_replays(m), strict=True):
        assert (np.broadcast_to(expected, found.shape) == found).all()
    assert all(len(levels.levels_of(o.graph).levels) < len(o.graph.events) for o in m.observed)
    monkeypatch.setattr(levels, "MIN_CHAIN", 2)
    for at in (*m.prepared, *m.observed):
        at.graph.levels.clear()
    for expected, found in zip(walked, all_replays(m), strict=True):
        assert (np.broadcast_to(expected, found.shape) == found).all()
    assert any(level.chains for o in m.observed for level in levels.levels_of(o.graph).levels)
    for limit in ("MIN_LANES", "MAX_CELLS"):
        assert levels.replay_levels(m.observed[0].graph, [m.observed[0].own], None) is not None
        monkeypatch.setattr(levels, limit, 0)
    assert levels.replay_levels(m.observed[0].graph, [m.observed[0].own], None) is None


@pytest.mark.parametrize("min_events", [0, np.inf])
def test_what_waits_on_some_lanes_alone_starts_with_the_step_on_others(
    min_events: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first forward of a worker waits in one step for something, and in all others for nothing: all are replayed."""
    monkeypatch.setattr(levels, "MIN_EVENTS", min_events)
    (o,) = measured(PLAIN).observed
    first, source = (int(np.flatnonzero(o.graph.sources.lengths == 0)[at]) for at in (0, 1))
    lanes = np.arange(o.block.start_s.shape[1])[:, None] == np.zeros((1, o.block.n_dp))
    graph = add_barriers(o.block.nodes, o.graph, {first: (Barrier((source,), across_dp=False, lanes=lanes),)})
    delay = launch_delays(o.block, graph)
    assert np.isfinite(np.array([np.broadcast_to(of_node, o.block.start_s[0].shape) for of_node in delay])).all()
    found, recorded = replay(graph, o.own, delay), replay(o.graph, o.own, o.delay)
    np.testing.assert_allclose(found[1:], recorded[1:], atol=1e-9)
