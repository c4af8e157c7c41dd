"""Forward models with fewer unknowns: a few numbers that make up the probe or the positions (`models` of a stage).

Each stands in a file of its own and is found by being here; a package of your own offers more by entry points of the
group `ptymesh.models`.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from ptymesh.models.base import Parametrisation
from ptymesh.registry import Registry, subclass_of

__all__ = ["MODELS", "Parametrisation"]

MODELS: Registry[type[Parametrisation]] = Registry(
    "model", "ptymesh.models", subclass_of(Parametrisation), "make it a subclass of ptymesh.models.Parametrisation"
)


def find_files() -> None:
    """Registers what the files of this package define."""
    for module in iter_modules(__path__):
        for kind in vars(import_module(f"{__name__}.{module.name}")).values():
            if subclass_of(Parametrisation)(kind) and kind is not Parametrisation:
                MODELS.register(kind.name)(kind)


find_files()
