"""Object models, each in a file of its own, found by being there: how transmissions follow from real values."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from ptymesh.physics.object_models.base import OBJECT_MODELS, TRANSMISSION, ObjectModel, object_model_of

__all__ = ["OBJECT_MODELS", "TRANSMISSION", "ObjectModel", "object_model_of"]


def find_files() -> None:
    """Register the object models that the files of this package define, in the order of their names."""
    for name in sorted(module.name for module in iter_modules(__path__)):
        for kind in vars(import_module(f"{__name__}.{name}")).values():
            if isinstance(kind, type) and issubclass(kind, ObjectModel) and kind is not ObjectModel:
                OBJECT_MODELS.register(kind.name)(kind)


find_files()
