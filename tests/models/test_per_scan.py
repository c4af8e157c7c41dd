"""Unknowns with a row for each of several scans (axis S), of a user's operator: found, on ranks, resumed, modelled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import ptymesh as pm
from beam_tilt import BeamTilt
from ptymesh.distributed.world import World
from ptymesh.engines import ENGINES, Engine
from ptymesh.geometry import Geometry
from ptymesh.io.checkpoint import store as checkpoint
from ptymesh.measurement import NO_CHECKS, ArraySource, Measurement
from ptymesh.models import OPTICS, DetectorPiece, WaveOperator
from ptymesh.physics.operators import Place, Placed, Tables, Values
from ptymesh.recipe.schema import Recipe
from ptymesh.run_folder.patterns import compared_patterns
from ptymesh.simulate import simulate
from ptymesh.unknowns import Unknown
from toy import make

VIEWS, TILT = 40, BeamTilt()
#: True tilts of both scans, in detector pixels; what both have in common is a tilt of the probe.
TILTS = np.array([[0.6, -0.3], [-0.6, 0.3]])


class TiltOfScan(WaveOperator):
    """A tilt of the beam for each scan."""

    name: ClassVar[str] = "tilt_of_scan"
    at: ClassVar[Place] = "exit"
    unknowns: ClassVar[tuple[Unknown, ...]] = (Unknown("scan_tilt", ("S", "2"), unit="px"),)

    def tables(self, geometry: Geometry) -> Tables:
        return TILT.tables(geometry)

    def forward(self, psi: Tensor, values: Values, tables: Tables) -> Tensor:
        return TILT.forward(psi, {"shift": values["scan_tilt"]}, tables)

    def adjoint(self, psi: Tensor, values: Values, tables: Tables) -> Tensor:
        return TILT.adjoint(psi, {"shift": values["scan_tilt"]}, tables)

    def slopes(self, psi: Tensor, values: Values, tables: Tables, back: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        return {"scan_tilt": TILT.slopes(psi, {"shift": values["scan_tilt"]}, tables, back)["shift"]}


class DoseOfScan(DetectorPiece):
    """Counts per photon of each scan."""

    name: ClassVar[str] = "dose_of_scan"
    unknowns: ClassVar[tuple[Unknown, ...]] = (Unknown("scan_gain", ("S",), start=1.0, least=0.1, largest=10.0),)

    def forward(self, S: Tensor, values: Values, tables: Tables) -> Tensor:
        return S * values["scan_gain"].view(-1, *[1] * (S.ndim - 1))

    def adjoint(self, x: Tensor, values: Values, tables: Tables) -> Tensor:
        return self.forward(x, values, tables)

    def derivatives(self, S: Tensor, values: Values, tables: Tables) -> dict[str, Tensor]:
        return {"scan_gain": S}


PIECES = {one.name: one for one in (TiltOfScan, DoseOfScan)}
OPTICS_HERE: dict[str, Any] = dict.fromkeys(PIECES, True)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(OPTICS, "_own", {**OPTICS._own, **PIECES})
    yield


def two_scans() -> Measurement:
    """Views of two scans in turns, the second one tilted the other way and counted with 0.7 of the gain."""
    toy = make(views=VIEWS, window=(24, 24), counts=2e4)
    e, every, scan_index = toy.truth, torch.arange(VIEWS), np.arange(VIEWS) % 2
    model = replace(toy.model, operators=(Placed.of(BeamTilt(), toy.measurement.geometry, torch.complex128, "cpu"),))
    values = {"shift": torch.as_tensor(TILTS[scan_index])}
    made = model.intensity(e.object, e.probe, e.anchors, e.fractions(every), e.weights, values=values).numpy()
    made[scan_index == 1] *= 0.7
    counts = np.random.default_rng(0).poisson(made).astype(np.uint16)
    return replace(
        toy.measurement,
        patterns=ArraySource(counts),
        scan_index=scan_index,
        scan_names=("left", "right"),
        checks=NO_CHECKS,
    )


def stage_of(engine: str, epochs: int) -> Engine:
    moved = {"scan_tilt": True, "scan_gain": True} | ({"object": True, "probe": True} if engine == "adam" else {})
    return ENGINES[engine](epochs=epochs, batch=10, unknowns=moved)


def begun(**options: Any) -> pm.Reconstruction:
    return pm.Reconstruction(two_scans(), optics=OPTICS_HERE, seed=1, precision="double", **options)


@pytest.mark.sample(1)
@pytest.mark.parametrize("engine", ["adam", "rpie", "lsqml"])
def test_each_scan_has_its_own(engine: str) -> None:
    """Tilts to 0.1 px, and the quotient of the gains, which starts at 1, to a sixth of its error there."""
    recon = begun()
    list(recon.run(stage_of(engine, 60)))
    found = recon.state.estimate.others
    tilts, gains = found["scan_tilt"].numpy(), found["scan_gain"].numpy()
    assert tilts.shape == (2, 2) and gains.shape == (2,)
    assert np.abs((tilts[0] - tilts[1]) - (TILTS[0] - TILTS[1])).max() < 0.1
    assert gains[1] / gains[0] == pytest.approx(0.7, abs=0.05)


def by_rank(world: World, layout: str, engine: str) -> list[np.ndarray]:
    OPTICS._own.update(PIECES)
    recon = begun(device=world, layout=layout)
    residuals = [report.residual for report in recon.run(stage_of(engine, 2))]
    e = recon.state.estimate
    whole = recon.problem.layout.gather_whole(e.object, e)
    return [*(one.numpy().copy() for one in (whole, e.probe, *e.others.values())), np.array(residuals)]


@pytest.mark.sample(1)
@pytest.mark.parametrize("engine", ["adam", "rpie", "lsqml"])
def test_ranks_and_layouts_have_the_same_bits(ranks, engine: str) -> None:  # type: ignore[no-untyped-def]
    (alone,) = ranks(1, by_rank, "replicated", engine)
    assert alone[2].all()
    for size, layout in ((2, "replicated"), (2, "tiled"), (3, "tiled")):
        for found in ranks(size, by_rank, layout, engine):
            assert all(np.array_equal(a, b) for a, b in zip(found, alone, strict=True)), (size, layout)


@pytest.mark.parametrize("engine", ["adam", "rpie"])
def test_a_stopped_run_goes_on_with_the_same_bits(engine: str, tmp_path: Path) -> None:
    whole, half = begun(), begun()
    list(whole.run(stage_of(engine, 3)))
    half.stages = [stage_of(engine, 3)]
    next(half.loop().epochs())
    half.state.save(tmp_path, half.problem, {})
    resumed = begun(saved=checkpoint.load(tmp_path))
    resumed.stages = [stage_of(engine, 3)]
    resumed.loop().run()
    for name, wanted in whole.state.estimate.others.items():
        assert torch.equal(resumed.state.estimate.others[name], wanted)


def test_figures_model_each_view_with_its_scan() -> None:
    stage = {"engine": "rpie", "epochs": 2, "batch": 10, "unknowns": {"scan_tilt": True, "scan_gain": True}}
    recipe = Recipe.parse({"data": {"path": "scan.cxi"}, "optics": OPTICS_HERE, "stages": [stage]})
    recon = begun()
    list(recon.run(stage))
    result = recon.result(recipe.to_yaml())
    assert result.residuals is not None and result.unknowns["scan_tilt"].shape == (2, 2)
    for title, (counts, modelled) in compared_patterns(result, recon.scan).pairs.items():
        view = int(title.split("view ")[1].split(",")[0])
        misfit = ((np.sqrt(counts) - np.sqrt(modelled)) ** 2).sum() / counts.sum()
        assert misfit == pytest.approx(result.residuals[view], rel=1e-9)


def test_a_single_scan_has_one_row() -> None:
    optics = {"dose_of_scan": {"start": {"scan_gain": 0.5}}}
    whole, half = (simulate(views=9, window=24, noise=False, optics=one, seed=1) for one in ({}, optics))
    counts = [made.measurement.patterns.read(np.arange(9)).astype(float) for made in (whole, half)]
    assert half.truth.unknowns["scan_gain"].shape == (1,)
    assert counts[1].sum() == pytest.approx(0.5 * counts[0].sum(), rel=1e-2)
