"""Reconstruction algorithms, one per file. `ENGINES` maps the name in a recipe to its class."""

from ptymesh.engines.base import Engine
from ptymesh.engines.pie import EPIE, MPIE, RPIE

ENGINES: dict[str, type[Engine]] = {engine.name: engine for engine in (EPIE, RPIE, MPIE)}

__all__ = ["ENGINES", "EPIE", "MPIE", "RPIE", "Engine"]
