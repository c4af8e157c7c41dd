"""Reconstruction algorithms, one per file. `ENGINES` maps the name in a recipe to its class."""

from ptymesh.engines.base import Engine
from ptymesh.engines.lsqml import LSQML
from ptymesh.engines.pie import EPIE, MPIE, RPIE

ENGINES: dict[str, type[Engine]] = {engine.name: engine for engine in (EPIE, RPIE, MPIE, LSQML)}

__all__ = ["ENGINES", "EPIE", "LSQML", "MPIE", "RPIE", "Engine"]
