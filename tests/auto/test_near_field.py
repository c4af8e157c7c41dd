"""A near field that no file tells is tried, and its distance found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from near_scans import simulate_near
from ptymesh.auto.candidates import Budget, Candidate, OverBudget, SearchContext
from ptymesh.auto.data import described
from ptymesh.auto.near_field import DistanceSearch, NearField, near_fields
from ptymesh.auto.stage_search import StageSearch
from ptymesh.auto.sweeps import default_sweeps
from ptymesh.distributed.world import Solo
from ptymesh.io import load_measurement
from ptymesh.io.prepare.near_field import near_field_signs
from ptymesh.recipe.schema import Recipe
from ptymesh.verdict.held_out import Judged


@dataclass
class Epochs:
    """First epochs whose residual is least at `true_m`, and seems to be at 1.15 times that before they go on.

    Attributes:
        recipe: of a near field of magnification 1, so that data.distance_m is z.
        told_m: distance of a recipe that says none.
        left: how many runs the budget allows.
    """

    recipe: Recipe
    told_m: float
    true_m: float
    left: float = math.inf

    def candidate(self, recipe: Recipe, least_m: float) -> Candidate:
        if self.left < 1:
            raise OverBudget
        self.left -= 1
        off = math.log((recipe.data.distance_m or self.told_m) / least_m)
        misfit = np.full(20, 1 + off**2) * np.linspace(0.95, 1.05, 20)
        return Candidate(None, {}, judged=Judged(misfit, np.full(20, 100.0)))  # type: ignore[arg-type]

    def begin(self, recipes: Sequence[Recipe], frozen: bool, times: float) -> list[Candidate | None]:
        return [self.candidate(recipe, 1.15 * self.true_m) for recipe in recipes]

    def advance(self, recipe: Recipe, candidate: Candidate, epochs: int) -> Candidate | None:
        return self.candidate(recipe, self.true_m)

    def found_m(self) -> float:
        search = DistanceSearch(self.recipe, self.told_m, self.begin, self.advance)
        told = NearField(1.0, self.told_m)
        near = search.refine_distance(*search.approach(told, self.candidate(self.recipe, 1.15 * self.true_m)), [told])
        return near.effective_m


@pytest.mark.parametrize("off", [0.02, 0.6, 1.08, 3.0, 50.0])
def test_any_distance_is_found(off: float) -> None:
    recipe = Recipe.parse({"data": {"path": "scan.cxi", "propagation": "angular_spectrum"}})
    assert Epochs(recipe, 0.5 * off, 0.5).found_m() == pytest.approx(0.5, rel=0.02)


def test_a_distance_that_is_right_stays() -> None:
    recipe = Recipe.parse({"data": {"path": "scan.cxi", "propagation": "angular_spectrum"}})
    assert Epochs(recipe, 0.5, 0.5).found_m() == 0.5
    assert Epochs(recipe, 0.5, 0.51).found_m() == 0.5, "not known better than this"
    few = Epochs(recipe, 0.5, 0.5, left=15)
    assert few.found_m() == 0.5, "first epochs alone say 1.15 times that"


def test_what_the_distance_of_a_file_may_mean(tmp_path: Path) -> None:
    """From the sample, or from the focus, to the detector: one of them is true."""
    near = simulate_near(3, 2.0, views=25, step=9.0)
    assert near.focus_distance_m is not None
    for meant_m, means in (
        (near.distance_m, "from the sample to the detector"),
        (near.distance_m + near.focus_distance_m, "from the focus to the detector"),
    ):
        signs = near_field_signs(load_measurement(Recipe.parse(data(near.write(tmp_path / "s.cxi", meant_m))).data))
        assert signs is not None
        found = near_fields(signs, meant_m)[means]
        recipe = found.recipe(Recipe.parse(data(tmp_path / "s.cxi")), meant_m)
        assert found.effective_m == pytest.approx(near.distance_m / 2, rel=0.03)
        assert recipe.data.focus_distance_m == pytest.approx(near.focus_distance_m, rel=0.03)
        assert (recipe.data.distance_m is None) == (meant_m == near.distance_m)


def data(path: Path) -> dict[str, Any]:
    return {"data": {"path": str(path)}}


@pytest.mark.long
@pytest.mark.parametrize("mag, told", [(1.0, 1.0), (1.0, 1.08), (8.0, 1.0), (30.0, 0.3)])
def test_a_file_alone_becomes_a_near_field(tmp_path: Path, mag: float, told: float) -> None:
    """Behind a focus or not, its distance is found to 10 %, the focus to 10 %, and both are said."""
    torch.set_num_threads(1)
    near = simulate_near(1, mag)
    raw, reasons = described(near.write(tmp_path / "near.cxi", told * near.distance_m))
    recipe = Recipe.parse(raw)
    scan = load_measurement(recipe.data, recipe.positions)
    context = SearchContext(Solo(), lambda: False, Budget(default_sweeps(scan)))
    search = StageSearch(recipe, scan, context, reasons, lambda sentence: None)
    search._optics()
    found = search.scan.geometry
    assert found.propagation == "angular_spectrum" and "images that move" in reasons["data.propagation"][0]
    assert found.magnification == pytest.approx(mag, rel=0.02)
    assert found.effective_distance_m == pytest.approx(near.distance_m / mag, rel=0.1)
    if told == 1:
        assert search.recipe.data.distance_m is None or mag > 1
        assert reasons["data.distance_m"][0].startswith("As the file says")
