"""How often slow links are found in event-timer logs: `python -m tests.scoring.slow_links FIRST LAST [varying]`.

Each seed is a job of one of the four modes of a scheduler, healthy or with up to two links that get slow (`draw_scheduler`), or
whose links vary (`draw_varying`), as its logs. A link counts as found where it is named, or the one worker at whose stage both slow
links end; what it costs says the same simulation without it.
"""

import dataclasses
import sys
import tempfile
import warnings
from pathlib import Path

from diagnose.model.cause import Cause
from diagnose.model.request import Request
from diagnose.pipeline import diagnose_job
from tests.scoring.judged import COUNTS, UNKNOWN
from tests.trace.producers.switching_logs import Scheduler, draw_scheduler, draw_varying, write_logs

SURE = 0.8


def length_s(job: Scheduler) -> float:
    """Add up the iterations after the first, which sets the job up."""
    return sum(max(span[2] for spans in stages for span in spans) for stages in job.run()[1:])


def without(job: Scheduler, link: int) -> Scheduler:
    """Mend one link."""
    mended = {since: {at: s for at, s in delays.items() if at != link} for since, delays in job.delays_s.items()}
    return dataclasses.replace(job, delays_s=mended)


def measure_costs(job: Scheduler) -> dict[int, float]:
    """Say what each slow link costs alone, or after the other is mended, whichever is more: part of the time, by first stage."""
    links = {link for delays in job.delays_s.values() for link in delays}
    job_s, sound_s = length_s(job), length_s(dataclasses.replace(job, delays_s={}))
    costs = {}
    for link in links:
        mended_s = length_s(without(job, link))
        (other,) = links - {link} or (link,)
        last_s = job_s - mended_s if other == link else length_s(without(job, other)) - sound_s
        costs[link] = max(job_s - mended_s, last_s) / job_s
    return costs


def read_places(cause: Cause, slow: set[int]) -> tuple[set[int], bool]:
    """Give the slow links that a network fault names, and whether it names anything else."""
    links = {min(end.pp for end in link.ends) for link in cause.where.links}
    cards = [{worker.pp - 1, worker.pp} for worker in cause.where.workers]
    named = links.union(*cards)
    return named & slow, not links <= slow or any(not card <= slow for card in cards)


def main() -> None:
    """Judge the jobs, list what is wrong or missed, and print the counts."""
    warnings.simplefilter("ignore")
    counts = dict.fromkeys(
        ("links", "sure", "named", "worth it", "sure of these", "named of these", "wrong", "onset"), 0
    )
    n_healthy = n_told = 0
    draw = draw_varying if sys.argv[3:] == ["varying"] else draw_scheduler
    for seed in range(int(sys.argv[1]), int(sys.argv[2])):
        job = draw(seed)
        costs = measure_costs(job) if job.delays_s else {}
        n_healthy += not costs
        with tempfile.TemporaryDirectory() as folder:
            causes = diagnose_job(Request(write_logs(Path(folder) / "logs", job))).causes
        told: dict[int, float] = {}
        for cause in causes:
            right, is_wrong = read_places(cause, set(costs)) if cause.cause == "network-fault" else (set(), True)
            told |= {link: max(cause.confidence, told.get(link, 0.0)) for link in right}
            if is_wrong and cause.cause != UNKNOWN:
                counts["wrong"] += 1
                print(f"{seed} {job.mode}: {cause.cause} {cause.confidence:.2f} is wrong", flush=True)
            if right:
                n_told += 1
                counts["onset"] += cause.when.onset_step in {*job.delays_s, *(since + 1 for since in job.delays_s)}
        for link, cost in costs.items():
            sure = told.get(link, 0.0)
            of_these = cost >= COUNTS
            for name, is_so in (("links", True), ("sure", sure >= SURE), ("named", sure > 0), ("worth it", of_these)):
                counts[name] += is_so
            counts["sure of these"] += of_these and sure >= SURE
            counts["named of these"] += of_these and sure > 0
            if sure < SURE:
                print(f"{seed} {job.mode}: link {link}, which costs {cost:.3f}, is told with {sure:.2f}", flush=True)
    print(f"{n_healthy} healthy jobs, {n_told} causes with a right place;", counts)


if __name__ == "__main__":
    main()
