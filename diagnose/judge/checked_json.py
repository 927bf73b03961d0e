"""Take parts of a JSON document that nobody vouches for, each checked, and say where it is not what it should be.

Enters: parts of the document, and their places in words. Leaves: numbers and lists; a `ValueError` where one is something else.
"""

import math
from typing import Any

#: A number beyond this is a mistake; what the trees see is cut to it.
MOST = 1e9


def take_entry(part: Any, name: str, place: str) -> Any:
    """Take an entry of an object."""
    if not isinstance(part, dict) or name not in part:
        raise ValueError(f"{place}: expected an object with {name!r}")
    return part[name]


def take_list(found: Any, place: str, *, n: int | None = None) -> list[Any]:
    """Take a list of that length, or of at least one."""
    if not isinstance(found, list) or (len(found) != n if n is not None else not found):
        raise ValueError(f"{place}: expected a list of {n if n is not None else 'at least one'}")
    return found


def take_number(found: Any, place: str) -> float:
    """Take a number that is finite."""
    if isinstance(found, bool) or not isinstance(found, int | float) or not abs(found) <= MOST:
        raise ValueError(f"{place}: {str(found)[:40]!r}; expected a number up to {MOST:g}")
    return float(found)


def take_positive(part: Any, name: str, place: str) -> float:
    """Take a number above 0."""
    found = take_number(take_entry(part, name, place), f"{place}/{name}")
    if found <= 0:
        raise ValueError(f"{place}/{name}: {found}; expected a number above 0")
    return found


def take_numbers(part: Any, name: str, place: str, *, n: int | None = None, empty: bool = False) -> list[float]:
    """Take a list of numbers."""
    found = take_entry(part, name, place)
    here = f"{place}/{name}"
    if empty and found == []:
        return []
    found = take_list(found, here, n=n)
    if _are_numbers(found):
        return list(map(float, found))
    return [take_number(x, f"{here}/{i}") for i, x in enumerate(found)]  # says which one is wrong


def take_known_numbers(part: Any, place: str, *, n: int) -> list[float]:
    """Take a list of numbers of which some may be null, which is NaN."""
    found = take_list(part, place, n=n)
    if not _are_numbers([x for x in found if x is not None]):
        return [math.nan if x is None else take_number(x, f"{place}/{i}") for i, x in enumerate(found)]
    return [math.nan if x is None else float(x) for x in found]


def _are_numbers(found: list[Any]) -> bool:
    """Say whether all are numbers that are finite, at the speed of a few passes: there are tens of thousands."""
    return not found or (set(map(type, found)) <= {int, float} and -MOST <= min(found) <= max(found) <= MOST)


def take_integers(part: Any, name: str, place: str, *, low: int, high: int, n: int | None = None) -> list[int]:
    """Take a list of integers within bounds."""
    found = take_list(take_entry(part, name, place), f"{place}/{name}", n=n)
    if set(map(type, found)) <= {int} and low <= min(found) <= max(found) <= high:
        return found
    for i, x in enumerate(found):  # says which one is wrong
        if type(x) is not int or not low <= x <= high:
            raise ValueError(f"{place}/{name}/{i}: {str(x)[:40]!r}; expected an integer from {low} to {high}")
    return found
