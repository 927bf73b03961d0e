"""What the job as a whole loses, and how far its times vary by themselves."""

from diagnose.model.components import Breakdown
from diagnose.model.feature import Feature, Features
from diagnose.model.trace import Job
from diagnose.model.whatif import WhatIf

#: Each feature: what its values read as, and when it misleads.
READS_AS = {
    "slowdown": "S, the step time over that of the job with ideal times; 1 nothing to gain; leaves out launch delays",
    "discrepancy": "how far the recorded step time is above the replayed one; 0.05 launch delays that S leaves out",
    "job.has_cuda": "whether the job can have an allocator of CUDA at all; 0 its metadata say that it runs without, 1 they do not; "
    "misleads where they say nothing",
    "noise": "relative spread of compute times that nothing accounts for; 0.02 ordinary",
}


def measure_job(what_if: WhatIf, breakdown: Breakdown, job: Job) -> Features:
    """Measure what the whole job lost; never missing."""
    return {
        "slowdown": Feature(what_if.slowdown),
        "discrepancy": Feature(what_if.discrepancy),
        "job.has_cuda": Feature(float(job.has_cuda is not False)),
        "noise": Feature(breakdown.noise_ratio),
    }
