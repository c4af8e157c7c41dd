"""A distance that is told wrong, and a probe of which nothing is told, are found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ptymesh.auto import optics
from ptymesh.auto.candidates import Budget, Candidate, CandidateRunner, OverBudget, SearchContext
from ptymesh.auto.optics import bright_radius, find_optics
from ptymesh.auto.stage_search import OPTICS_ADAM
from ptymesh.distributed.world import Solo
from ptymesh.errors import BadInput
from ptymesh.io import load_measurement
from ptymesh.io.formats.cxi_writer import write_measurement
from ptymesh.recipe.schema import Recipe
from ptymesh.simulate import simulate


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def found(path: Path, epochs: int = 6) -> tuple[Recipe, list[str]]:
    recipe = Recipe.parse({"data": {"path": str(path)}})
    said: list[str] = []

    def begin(some: Sequence[Recipe], frozen: bool, times: float) -> list[Candidate | None]:
        still = {"probe": {"frozen": epochs}} if frozen else {}
        engine, candidates = {"engine": "rpie", "batch": 8, **still}, list[Candidate | None]()
        for one in some:
            try:
                runner = CandidateRunner(
                    one, load_measurement(one.data), SearchContext(Solo(), lambda: False, Budget(1e6)), 60
                )
                candidates.append(runner.run(runner.start(engine), max(1, round(times * epochs))))
            except BadInput:
                candidates.append(None)
        return candidates

    def advance(recipe: Recipe, candidate: Candidate, epochs: int) -> Candidate | None:
        runner = CandidateRunner(
            recipe, load_measurement(recipe.data), SearchContext(Solo(), lambda: False, Budget(1e6)), 60
        )
        return runner.run(candidate.using(OPTICS_ADAM | {"batch": 16}), epochs)

    made = find_optics(
        recipe, load_measurement(recipe.data), begin, advance, lambda key, sentence: said.append(f"{key}: {sentence}")
    )
    return made, said


@pytest.mark.sample(1)
@pytest.mark.parametrize("factor", [1.0, 1.15])
def test_the_distance_of_a_near_field(tmp_path: Path, factor: float) -> None:
    """Told 15 % too long, it is found to 10 %."""
    scan = simulate(kind="near", views=40, window=32, seed=3, photons_per_view=3e7).measurement
    true = scan.geometry.distance_m
    assert true is not None
    write_measurement(replace(scan, geometry=replace(scan.geometry, distance_m=true * factor)), tmp_path / "near.cxi")
    made, said = found(tmp_path / "near.cxi")
    if factor == 1:
        assert made.data.distance_m is None and "As the file says" in said[0]
    else:
        assert made.data.distance_m == pytest.approx(true, rel=0.1) and "times what the file says" in said[0]


def test_a_probe_out_of_focus_that_no_file_holds(tmp_path: Path) -> None:
    scan = simulate(kind="xray", views=36, window=32, seed=3, probe_guess="none").measurement
    write_measurement(scan, tmp_path / "far.cxi")
    made, said = found(tmp_path / "far.cxi")
    assert made.probe.start.kind == "data" and made.probe.start.defocus_m != 0, said
    assert "With this defocus" in said[0]


def test_what_is_known_is_not_searched(tmp_path: Path) -> None:
    write_measurement(simulate(kind="xray", views=20, window=32, seed=3).measurement, tmp_path / "far.cxi")
    assert found(tmp_path / "far.cxi")[1] == []


def test_a_budget_may_end_it(tmp_path: Path) -> None:
    write_measurement(simulate(kind="near", views=20, window=32, seed=3).measurement, tmp_path / "near.cxi")
    recipe = Recipe.parse({"data": {"path": str(tmp_path / "near.cxi")}})

    def begin(some: Sequence[Recipe], frozen: bool, times: float) -> list[Candidate | None]:
        raise OverBudget

    def advance(recipe: Recipe, candidate: Candidate, epochs: int) -> Candidate | None:
        raise OverBudget

    assert find_optics(recipe, load_measurement(recipe.data), begin, advance, lambda key, sentence: None) is recipe


def test_the_bright_disc() -> None:
    scan = simulate(kind="electron", views=20, window=64, seed=3, slices=1).measurement
    wavelength, pixel = scan.geometry.wavelength_m, scan.geometry.object_pixel_m
    assert wavelength and pixel
    radius = 0.35 * wavelength / (2 * pixel[0]) / (wavelength / (64 * pixel[0]))
    assert bright_radius(scan) == pytest.approx(radius, rel=0.1)
    assert optics.VIEWS > 20
