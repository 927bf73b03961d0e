"""Minder's method, as a baseline: it finds what its paper says it finds."""

import dataclasses

from tests.clusters.ranges import TUNED
from tests.clusters.render import render
from tests.clusters.worlds import draw_world
from tests.machines.minder import train

SMALL = dataclasses.replace(TUNED, n_hosts=(8, 32), n_cards=(1,), intervals_s=(5.0,))


def test_it_finds_machines_whose_processes_died():
    """Trained on forty worlds it names the machine in most of those where GPUs fall idle, and is silent in most sound ones."""
    worlds = [draw_world(30, i, ranges=SMALL) for i in range(40)]
    told = [(render(world.cluster), frozenset(world.faulty)) for world in worlds]
    baseline = train([telemetry for telemetry, faulty in told if not faulty], told)
    clear = [
        draw_world(31, i, ranges=dataclasses.replace(SMALL, n_faults=(1.0, 0.0, 0.0), parts=(1.0,)), faulty=True)
        for i in range(60)
    ]
    clear = [world for world in clear if "gpu-idle" in world.faults[0].shows]
    right = sum(baseline.find(render(world.cluster)) in world.faulty for world in clear)
    assert right >= 0.7 * len(clear)
    sound = [draw_world(32, i, ranges=SMALL, faulty=False) for i in range(20)]
    assert sum(baseline.find(render(world.cluster)) is not None for world in sound) <= 8
