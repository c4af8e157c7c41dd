"""Why a result is poor: causes, each with its evidence and what would help (`ptymesh diagnose`).

Each cause stands in a file of its own, or of its kind, and is found by being here.
"""

from __future__ import annotations

from importlib import import_module
from inspect import isabstract
from pkgutil import iter_modules

from ptymesh.diagnosis.base import Cause, Finding
from ptymesh.diagnosis.look import Look

__all__ = ["Cause", "Finding", "Look", "causes"]


def causes() -> list[Cause]:
    """All that the files of this package define, by name."""
    kinds = [
        kind for module in iter_modules(__path__) for kind in vars(import_module(f"{__name__}.{module.name}")).values()
    ]
    found = {kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Cause) and not isabstract(kind)}
    return sorted((kind() for kind in found), key=lambda cause: cause.name)
