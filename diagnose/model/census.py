"""A store in numbers for who watches the fleet."""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Census:
    """Jobs counted, and their GPU hours; `night_ended_at` in seconds since 1970, None where no night has ended yet."""

    jobs_by_verdict: dict[str, int]
    failed_by_kind: dict[str, int]
    gpu_hours_analysed: float
    gpu_hours_wasted: float
    wasted_by_cause: dict[str, float]
    night_ended_at: float | None
