"""Since when each component costs time."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from diagnose.features.onset import find_course
from diagnose.features.stalls import stall_course
from diagnose.features.workers import mainly_slow, slow_steps
from diagnose.model.analysis import Suspects
from diagnose.model.cause import When
from diagnose.model.components import NOTHING_SPECIAL, Breakdown, Gains
from diagnose.model.course import Course
from diagnose.model.optype import DP_COLLECTIVES, P2P
from diagnose.model.trace import Block, Ints, Seconds


def find_courses(
    breakdown: Breakdown, gains: Gains, suspects: Suspects, blocks: Sequence[Block], *, least: float
) -> dict[str, Course]:
    """Say since when a component, or several joined, costs time, by what its removal gives back in each step.

    Of what others hide that is what it gives back after these are gone: alone it is theirs when it shows.
    A slow worker's pace, stalls of one kind, and what transfers take on slow links say more than that: whether they cost anything
    depends on what others do. What gives back less than `least` of the step is left out: fitting costs.
    """
    order = np.argsort(breakdown.steps, kind="stable")
    found = {}
    for name, without_s in gains.alone_steps_s.items():
        if max(gains.recoverable(name), gains.recoverable_last(name)) < least:
            continue
        traits = gains.traits.get(name, NOTHING_SPECIAL)
        if traits.whom == "workers" and suspects.workers:
            behind = np.max([slow_steps(breakdown, worker)[1] for worker in mainly_slow(breakdown)], axis=0)
            found[name] = _begin_small(find_course(breakdown.steps[order], behind), breakdown.steps[order], behind)
        elif traits.whom == "links" and (slow_s := _add_up(breakdown, suspects, blocks)).any():
            found[name] = find_course(breakdown.steps[order], slow_s[order])
        elif traits.stall_kind is not None:
            found[name] = stall_course(breakdown, traits.stall_kind)
        else:
            effect = gains.replayed_steps_s - without_s
            if gains.recoverable(name) < least:
                effect = gains.last_steps_s[name] - gains.clean_steps_s
            found[name] = find_course(breakdown.steps[order], effect[order])
    return found


def _add_up(breakdown: Breakdown, suspects: Suspects, blocks: Sequence[Block]) -> Seconds:
    """Add up what transfers of slow cards, links and groups take beyond ordinary ones in each step, shape (n_steps,)."""
    n_stages = breakdown.slow_workers.shape[1]
    ends = {(dp, at % n_stages) for _, stage, dp in suspects.ways for at in (stage, stage + 1)} | set(suspects.cards)
    groups = {*suspects.groups, *(stage for _, stage in suspects.cards), *(stage for stage, _, _ in suspects.rings)}
    found = [np.zeros(0)]
    for block, (excess, _) in zip(blocks, breakdown.transfers, strict=bool(breakdown.transfers)):
        in_step = np.zeros(len(block.steps))
        for node, seconds in excess.items():
            stage = int(block.nodes.stage[node])
            if block.nodes.op[node] in P2P:
                in_step += seconds[:, [dp for dp, at in ends if at == stage]].sum(axis=1)
            elif block.nodes.op[node] in DP_COLLECTIVES and stage in groups:
                in_step += np.median(seconds, axis=1)
        found.append(in_step)
    return np.concatenate(found)


def _begin_small(course: Course, steps: Ints, behind: Seconds) -> Course:
    """Date the onset of slow workers from where they begin to fall behind: what grows is half as large only later."""
    if course.when.pattern != "onset":
        return course
    at = steps.tolist().index(course.when.onset_step)
    first = at - int(np.logical_and.accumulate(behind[:at][::-1] > 0).sum())
    return course if first in (0, at) else dataclasses.replace(course, when=When("onset", int(steps[first])))


def date_worker(breakdown: Breakdown, worker: tuple[int, int]) -> When:
    """Say since when a slow worker, (dp index, stage index), is so, and until when."""
    return find_course(*slow_steps(breakdown, worker)).when
