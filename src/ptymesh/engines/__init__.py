"""Reconstruction algorithms, one per file; `ENGINES` holds them by their names in a recipe."""

from collections.abc import Collection

from ptymesh.engines.base import Engine
from ptymesh.engines.bh import BH
from ptymesh.engines.cg import CG
from ptymesh.engines.constraints import CONSTRAINTS, Constraint
from ptymesh.engines.lbfgs import LBFGS
from ptymesh.engines.lsqml import LSQML
from ptymesh.engines.optimisers import (
    ELEMENTWISE,
    REFUSED,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    NAdam,
    RAdam,
    RMSprop,
)
from ptymesh.engines.pie import EPIE, MPIE, RPIE
from ptymesh.engines.projections import AP, DM, RAAR
from ptymesh.engines.waves import EngineMemory
from ptymesh.registry import Registry, subclass_of

_ALL: tuple[type[Engine], ...] = (EPIE, RPIE, MPIE, LSQML, DM, RAAR, AP, BH, CG, LBFGS, *ELEMENTWISE)
ENGINES: Registry[type[Engine]] = Registry(
    "engine", "ptymesh.engines", subclass_of(Engine), "make it a subclass of ptymesh.engines.Engine"
)
for _engine in _ALL:
    ENGINES.register(_engine.name)(_engine)


def find_counterpart(program: str, names: Collection[str]) -> tuple[str, str] | None:
    """Return the first engine that one of another program's names stands for, and this name; None if there is none.

    Args:
        program: as in `Engine.peer_names`.
        names: options or algorithms, as the program calls them.
    """
    claims = ((engine, name) for engine, kind in ENGINES.items() for name in kind.peer_names.get(program, ()))
    return next(((engine, name) for engine, name in claims if name in names), None)


__all__ = [
    "AP",
    "BH",
    "CG",
    "CONSTRAINTS",
    "DM",
    "ENGINES",
    "EPIE",
    "LBFGS",
    "LSQML",
    "MPIE",
    "RAAR",
    "REFUSED",
    "RPIE",
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Constraint",
    "Engine",
    "EngineMemory",
    "NAdam",
    "RAdam",
    "RMSprop",
    "find_counterpart",
]
