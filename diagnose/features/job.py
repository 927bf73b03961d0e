"""What the job as a whole loses, and how far its times vary by themselves."""

from diagnose.model.components import Breakdown
from diagnose.model.feature import Feature, Features
from diagnose.model.whatif import WhatIf

#: Each feature: what its values read as, and when it misleads.
READS_AS = {
    "slowdown": "S, the step time over that of the job with ideal times; 1 nothing to gain; leaves out launch delays",
    "discrepancy": "how far the recorded step time is above the replayed one; 0.05 launch delays that S leaves out",
    "noise": "relative spread of compute times that nothing accounts for; 0.02 ordinary",
}


def measure_job(what_if: WhatIf, breakdown: Breakdown) -> Features:
    """Measure what the whole job lost; never missing."""
    return {
        "slowdown": Feature(what_if.slowdown),
        "discrepancy": Feature(what_if.discrepancy),
        "noise": Feature(breakdown.noise_ratio),
    }
