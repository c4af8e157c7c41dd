"""Pieces of the forward model, each in a file of its own, which registers what it defines.

Parametrisations: a few numbers that make up the probe or the positions (`models` of a stage; entry points of other
packages: group `ptymesh.models`). Operators between probe and detector, and pieces between intensities and counts, with
unknowns of their own (`optics` of a recipe; group `ptymesh.optics`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ptymesh.models.base import Parametrisation
from ptymesh.options import Options
from ptymesh.physics.detector.pieces import DetectorPiece
from ptymesh.physics.operators import Piece, ShiftOperator, WaveOperator
from ptymesh.registry import Registry, register_classes, subclass_of
from ptymesh.unknowns import Unknown

__all__ = [
    "MODELS",
    "OPTICS",
    "Declared",
    "DetectorPiece",
    "Parametrisation",
    "Piece",
    "ShiftOperator",
    "WaveOperator",
    "declared",
    "named",
    "refuse_fixed",
]

MODELS: Registry[type[Parametrisation]] = Registry(
    "model", "ptymesh.models", subclass_of(Parametrisation), "make it a subclass of ptymesh.models.Parametrisation"
)
OPTICS: Registry[type[Piece]] = Registry(
    "operator",
    "ptymesh.optics",
    subclass_of(Piece),
    "make it a subclass of ptymesh.models.WaveOperator, or of DetectorPiece",
)


@dataclass(frozen=True)
class Declared:
    """An unknown, with the name of the operator that declares it."""

    unknown: Unknown
    operator: str


def declared() -> dict[str, Declared]:
    """Return the unknowns of all operators, by name."""
    kinds = {name: OPTICS.find(name) for name in OPTICS.names()}
    return {one.name: Declared(one, name) for name, kind in kinds.items() if kind for one in kind.unknowns}


def refuse_fixed(name: str) -> None:
    """Raise ValueError if an unknown of a piece, by this name, is one that no engine moves."""
    one = declared()[name]
    if one.unknown.is_fixed:
        raise ValueError(f"unknowns names {name} of optics.{one.operator}, which is known and stays; leave it out")


def named(values: Any, registry: Registry, key: str) -> Any:
    """Parse groups of options, each under the name of its class; `true` stands for its defaults, `false` leaves it out.

    Args:
        values: mapping of names to options; anything else is returned as it is.
        registry: classes by name.
        key: of the recipe, for messages.

    Raises:
        BadInput: a name is not in the registry, or its options are not valid.
    """
    if not isinstance(values, dict):
        return values
    by_name = {}
    for name, options in values.items():
        if isinstance(options, Options):
            by_name[name] = options
        elif options is not None and options is not False:
            by_name[name] = registry[name].parse({} if options is True else options, f"{key}.{name}")
    return by_name


register_classes(MODELS, Parametrisation, __name__, __path__)
register_classes(OPTICS, Piece, __name__, __path__)
