"""What the job as a whole loses, and how far its times vary by themselves."""

from diagnose.model.components import Breakdown
from diagnose.model.feature import Feature, Features
from diagnose.model.trace import Job
from diagnose.model.whatif import WhatIf

#: Each feature: what its values read as, and when it misleads.
READS_AS = {
    "slowdown": "S, the step time over that of the job with ideal times; 1 nothing to gain; leaves out launch delays",
    "discrepancy": "how far the recorded step time is above the replayed one; 0.05 launch delays that S leaves out",
    "job.has_cuda": "1 where the job computes with CUDA, by its metadata, 0 where it does not; misleads as job.saves does",
    "noise": "relative spread of compute times that nothing accounts for; 0.02 ordinary",
    "job.saves": "1 where the job saves its state, by its metadata, 0 where it never does; misleads when they are of another run",
    "job.reads_input": "1 where the job reads data, by its metadata, 0 where it has none to wait for; misleads as job.saves does",
}


def measure_job(what_if: WhatIf, breakdown: Breakdown, job: Job) -> Features:
    """Measure what the whole job lost, and give what is known of it; only what nobody says is missing."""
    flags = {"has_cuda": job.has_cuda, "saves": job.saves, "reads_input": job.reads_input}
    return {
        f"job.{name}": Feature.missing("the metadata do not say") if flag is None else Feature(float(flag))
        for name, flag in flags.items()
    } | {
        "slowdown": Feature(what_if.slowdown),
        "discrepancy": Feature(what_if.discrepancy),
        "noise": Feature(breakdown.noise_ratio),
    }
