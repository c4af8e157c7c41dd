"""Reconstruction algorithms, one per file. `ENGINES` maps the name in a recipe to its class."""

from ptymesh.engines.base import Engine
from ptymesh.engines.bh import BH
from ptymesh.engines.cg import CG
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

_ALL: tuple[type[Engine], ...] = (EPIE, RPIE, MPIE, LSQML, DM, RAAR, AP, BH, CG, LBFGS, *ELEMENTWISE)
ENGINES: dict[str, type[Engine]] = {engine.name: engine for engine in _ALL}

__all__ = [
    "AP",
    "BH",
    "CG",
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
    "Engine",
    "NAdam",
    "RAdam",
    "RMSprop",
]
