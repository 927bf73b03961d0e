"""All components in the order in which they are taken out: for each name of `COMPONENTS` the file of that name.

Enters: nothing. Leaves: components. Adding one is a line in `COMPONENTS` and a file with `COMPONENT`, or, from outside of the
package, `added`.
"""

import contextlib
import importlib
from collections.abc import Iterator

from diagnose.model.components import COMPONENTS
from diagnose.whatif.components.component import Component

#: Breakdown from outside of the package, by name.
_ADDED: dict[str, Component] = {}


def list_components() -> list[Component]:
    """List all components, in the order in which they are taken out.

    >>> [component.name for component in list_components()][:3]
    ['queue', 'stage', 'worker']
    """
    return [_ADDED[name] if name in _ADDED else _load(name) for name in COMPONENTS]


@contextlib.contextmanager
def added(component: Component, words: str) -> Iterator[None]:
    """Take one more component out of the times, after all others, until the context ends.

    Parameters
    ----------
    words : str
        What it is: "slow workers".
    """
    if component.name in COMPONENTS:
        raise ValueError(f"there is a component {component.name!r} already; expected another name")
    _ADDED[component.name], COMPONENTS[component.name] = component, words
    try:
        yield
    finally:
        del _ADDED[component.name], COMPONENTS[component.name]


def _load(name: str) -> Component:
    """Import the file of a component."""
    found: Component = importlib.import_module(f"diagnose.whatif.components.{name.replace('-', '_')}").COMPONENT
    return found
