"""Numbers in sentences, as people write them: without powers of ten.

Enters: a number. Leaves: text.
"""

import math

#: What is nearer to 0 than this is told as a bound.
_SMALL = 1e-4
#: Steps that take longer than this are told in days: nobody plans with millions of them.
_MOST_DAYS = 30.0
_DAY_S = 86_400.0
#: A factor above this is told as a bound: nobody needs more of it, and features that are ratios end here or later.
LARGE_RATIO = 100


def write_figure(value: float, digits: int = 3) -> str:
    """Write a number with so many digits that count.

    >>> write_figure(2.3861), write_figure(0.0301), write_figure(432.1, 2), write_figure(15260.7), write_figure(3.7e-37)
    ('2.39', '0.0301', '430', '15,300', 'under 0.0001')
    """
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    if abs(value) < _SMALL:
        return f"{'under ' if value > 0 else 'above -'}{_SMALL:.4f}"
    rounded = float(f"{value:.{digits}g}")
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    written = f"{rounded:,.{decimals}f}"
    return written.rstrip("0").rstrip(".") if decimals else written


def write_ratio(value: float, digits: int = 3) -> str:
    """Write how many times as much something is.

    >>> write_ratio(61.04), write_ratio(43210.0)
    ('61', 'over 100')
    """
    return f"over {LARGE_RATIO:,}" if value >= LARGE_RATIO else write_figure(value, digits)


def write_percent(share: float) -> str:
    """Write a part of 1 in percent.

    >>> write_percent(0.0341), write_percent(1.0)
    ('3.4%', '100%')
    """
    return f"{write_figure(100.0 * share, 2)}%"


def write_steps(steps: float, step_s: float) -> str:
    """Write so many steps, or, where they take months, the days of them.

    >>> write_steps(2048, 1.66), write_steps(1, 1.0), write_steps(139_714_673, 0.4)
    ('2,048 steps', '1 step', '650 days')
    """
    days = steps * step_s / _DAY_S
    if days > _MOST_DAYS:
        return f"{write_figure(days, 2)} days"
    return f"{int(steps):,} step{'' if steps == 1 else 's'}"
