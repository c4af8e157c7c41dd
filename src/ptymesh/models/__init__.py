"""Forward models with fewer unknowns: a few numbers that make up the probe or the positions (`models` of a stage).

Each stands in a file of its own and is found by being here; a package of your own offers more by entry points of the
group `ptymesh.models`.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules

from ptymesh.errors import BadInput
from ptymesh.models.base import Parametrisation

GROUP = "ptymesh.models"

__all__ = ["GROUP", "Parametrisation", "find", "names"]


@cache
def _own() -> dict[str, type[Parametrisation]]:
    """Those of this package."""
    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    classes = [kind for module in modules for kind in vars(module).values() if isinstance(kind, type)]
    return {kind.name: kind for kind in classes if issubclass(kind, Parametrisation) and kind is not Parametrisation}


def names() -> list[str]:
    """Names that `find` knows."""
    return [*_own(), *(point.name for point in entry_points(group=GROUP) if point.name not in _own())]


def find(name: str) -> type[Parametrisation] | None:
    """The parametrisation of this name, None where there is none. Raises BadInput for an entry point that is none."""
    if name in _own():
        return _own()[name]
    for point in entry_points(group=GROUP, name=name):
        try:
            kind = point.load()
        except Exception as error:  # whatever somebody else's package raises
            raise BadInput(
                f"The model {name} = {point.value} cannot be imported ({type(error).__name__}: {error}); "
                "mend its package."
            ) from error
        if not (isinstance(kind, type) and issubclass(kind, Parametrisation)):
            raise BadInput(f"The entry point {name} = {point.value} is no Parametrisation; make it a subclass of one.")
        return kind
    return None
