"""Engines by name: those of ptymesh, and those that installed packages offer.

A package offers an engine by an entry point in the group `ptymesh.engines`, in its pyproject.toml:

    [project.entry-points."ptymesh.engines"]
    mine = "my_package:Mine"
"""

from __future__ import annotations

from importlib.metadata import entry_points

from ptymesh.engines import ENGINES
from ptymesh.engines.base import Engine
from ptymesh.errors import BadInput

GROUP = "ptymesh.engines"


def names() -> list[str]:
    """Names that `find` knows."""
    return [*ENGINES, *(point.name for point in entry_points(group=GROUP) if point.name not in ENGINES)]


def find(name: str) -> type[Engine] | None:
    """The engine of this name, None where there is none. Raises BadInput where an entry point is no engine."""
    if name in ENGINES:
        return ENGINES[name]
    for point in entry_points(group=GROUP, name=name):
        try:
            engine = point.load()
        except Exception as error:  # whatever somebody else's package raises
            raise BadInput(
                f"The engine {name} = {point.value} cannot be imported ({type(error).__name__}: {error}); "
                "mend its package."
            ) from error
        if not (isinstance(engine, type) and issubclass(engine, Engine)):
            raise BadInput(f"The entry point {name} = {point.value} is not an Engine; make it a subclass of one.")
        return engine
    return None
