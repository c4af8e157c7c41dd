"""Engines that other packages offer."""

from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import ClassVar

import pytest

from ptymesh.engines import RPIE, offered
from ptymesh.errors import BadInput
from ptymesh.run.recipe import Recipe


class Mine(RPIE):
    """A user's engine."""

    name: ClassVar[str] = "mine"
    boldness: float = 2.0


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint("mine", f"{__name__}:Mine", offered.GROUP),
        EntryPoint("odd", "pathlib:Path", offered.GROUP),
    ]

    def entry_points(**wanted: str) -> EntryPoints:
        return EntryPoints(points).select(**wanted)

    monkeypatch.setattr(offered, "entry_points", entry_points)
    monkeypatch.setattr(EntryPoint, "load", lambda self: {"mine": Mine, "odd": Path}[self.name])


@pytest.mark.usefixtures("installed")
def test_an_installed_engine_is_found_by_name() -> None:
    raw = {"data": {"path": "scan.cxi"}, "stages": [{"engine": "mine", "boldness": 3}]}
    recipe = Recipe.parse(raw)
    assert recipe.stages == [Mine(boldness=3)]
    assert Recipe.from_yaml(recipe.to_yaml()) == recipe
    assert {"rpie", "mine"} <= set(offered.names())


@pytest.mark.usefixtures("installed")
def test_what_is_no_engine_is_refused() -> None:
    with pytest.raises(BadInput, match=r"odd = pathlib:Path is not an Engine"):
        offered.find("odd")
    with pytest.raises(BadInput, match="did you mean mine"):
        Recipe.parse({"data": {"path": "scan.cxi"}, "stages": [{"engine": "minee"}]})
    assert offered.find("none") is None
