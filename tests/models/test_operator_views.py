"""Operators that see their views, start where measurement or recipe say, and hold unknowns above a bound."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import ptymesh as pm
from beam_tilt import BeamTilt
from ptymesh.distributed.world import World
from ptymesh.engines import RPIE, Adam
from ptymesh.errors import BadInput
from ptymesh.geometry import Geometry
from ptymesh.measurement import ArraySource, Measurement
from ptymesh.models import OPTICS, WaveOperator
from ptymesh.physics.operators import Place, Placed, Tables, Values, Views, ViewValues
from ptymesh.recipe.schema import Recipe
from ptymesh.run_folder.patterns import compared_patterns
from ptymesh.unknowns import Unknown
from toy import Toy, make, relative, share

TILT = BeamTilt()


class ScanTilt(WaveOperator):
    """Tilts that are linear in the scan's positions: t_j = A s_j."""

    name: ClassVar[str] = "scan_tilt"
    at: ClassVar[Place] = "exit"
    unknowns: ClassVar[tuple[Unknown, ...]] = (Unknown("descan", ("2", "2"), "shared"),)
    #: The views of each call, for tests.
    calls: ClassVar[list[Views]] = []

    def tables(self, geometry: Geometry) -> Tables:
        return TILT.tables(geometry)

    def tilts(self, values: Values, views: Views) -> Values:
        self.calls.append(views)
        scan = views.scan.to(values["descan"].dtype)
        return {"shift": (values["descan"] * scan[:, None, :]).sum(-1)}

    def forward(self, psi: Tensor, values: Values, tables: Tables, views: Views) -> Tensor:
        return TILT.forward(psi, self.tilts(values, views), tables)

    def adjoint(self, psi: Tensor, values: Values, tables: Tables, views: Views) -> Tensor:
        return TILT.adjoint(psi, self.tilts(values, views), tables)

    def slopes(  # type: ignore[override]
        self, psi: Tensor, values: Values, tables: Tables, back: Tensor, views: Views
    ) -> dict[str, tuple[Tensor, Tensor]]:
        along, norm = TILT.slopes(psi, self.tilts(values, views), tables, back)["shift"]
        scan = views.scan[:, None, :]
        return {"descan": (along[:, :, None] * scan, norm[:, :, None] * scan**2)}


class Dimmer(BeamTilt):
    """No tilt is below zero, and each starts at the number of the scan's rows that the measurement says."""

    name: ClassVar[str] = "dimmer"
    unknowns: ClassVar[tuple[Unknown, ...]] = (Unknown("shift", ("N", "2"), "view", unit="px", least=0.0, largest=9.0),)

    def start_values(self, measurement: Measurement) -> Mapping[str, Any]:
        return {"shift": np.abs(measurement.positions) / 100, **super().start_values(measurement)}


TRUE = torch.tensor([[0.02, -0.01], [0.0, 0.015]], dtype=torch.float64)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(OPTICS, "_own", {**OPTICS._own, "scan_tilt": ScanTilt, "dimmer": Dimmer})
    ScanTilt.calls.clear()
    yield


def case() -> tuple[Toy, Views]:
    toy = make(views=24)
    placed = Placed.of(ScanTilt(), toy.measurement.geometry, torch.complex128, "cpu")
    toy.model = replace(toy.model, operators=(placed,))
    e, every = toy.truth, torch.arange(24)
    scan = torch.as_tensor(toy.measurement.positions)
    return toy, Views(e.positions, e.fractions(every), scan, every)


def seen(world: World, layout: str) -> list[tuple[np.ndarray, ...]]:
    """The views of each call of the operator, in a pass over some views."""
    toy, _ = case()
    problem = toy.problem(world, layout)
    estimate = share(replace(toy.truth, others={"descan": TRUE.clone()}), problem)
    problem.begin_epoch(estimate)
    ScanTilt.calls.clear()
    problem.residual(estimate, np.array([3, 8, 17, 20]))
    every = ScanTilt.calls
    return [(v.positions.numpy(), v.fractions.numpy(), v.scan.numpy(), v.numbers.numpy()) for v in every]


@pytest.mark.parametrize("layout", ["replicated", "tiled"])
def test_operators_are_told_their_views(ranks, layout: str) -> None:  # type: ignore[no-untyped-def]
    toy, every = case()
    for size in (1, 2):
        calls = [call for rank in ranks(size, seen, layout) for call in rank]
        assert sorted(int(n) for call in calls for n in call[3]) == [3, 8, 17, 20]
        for positions, fractions, scan, numbers in calls:
            assert np.array_equal(positions, every.positions[numbers])
            assert np.array_equal(fractions, every.fractions[numbers])
            assert np.array_equal(scan, toy.measurement.positions[numbers])


def test_derivatives_by_what_depends_on_views() -> None:
    toy, every = case()
    e = toy.truth

    def exit_waves(matrix: Tensor) -> Any:
        windows = toy.model.windows(e.object, e.anchors, every.fractions, e.window)
        probes = toy.model.probes(e.probe, every.fractions, e.weights)
        return toy.model.forward(windows, probes, ViewValues({"descan": matrix}, every))

    waves = exit_waves(TRUE)
    generator = torch.Generator().manual_seed(1)
    chi = torch.randn(waves.exit.shape, generator=generator, dtype=torch.complex128)
    slope, norm = toy.model.operator_slopes(waves, chi)["descan"]
    direction, step = torch.randn(2, 2, generator=generator, dtype=torch.float64), 1e-6
    change = (exit_waves(TRUE + step * direction).exit - exit_waves(TRUE - step * direction).exit) / (2 * step)
    wanted = (change * chi.conj()).real.sum((1, 2, 3))
    assert relative((slope * direction).sum((1, 2)), wanted) < 1e-7 and bool((norm >= 0).all())
    with pytest.raises(BadInput, match=r"optics\.scan_tilt depends on the views; give its values as ViewValues"):
        toy.model.forward(waves.windows, waves.exit, {"descan": TRUE})


def counted() -> Measurement:
    toy, every = case()
    e = toy.truth
    values = ViewValues({"descan": TRUE}, every)
    expected = toy.model.intensity(e.object, e.probe, e.anchors, every.fractions, e.weights, values=values)
    return replace(toy.measurement, patterns=ArraySource(expected.numpy()))


def test_a_result_is_modelled_with_its_views() -> None:
    """Figures and diagnosis see the intensities that the run has seen."""
    scan, stage = counted(), {"engine": "adam", "epochs": 1, "batch": 8, "unknowns": {"object": True, "descan": True}}
    recipe = Recipe.parse({"data": {"path": "scan.cxi"}, "optics": {"scan_tilt": True}, "stages": [stage]})
    recon = pm.Reconstruction(scan, optics={"scan_tilt": {"start": {"descan": 0.01}}}, precision="double")
    list(recon.run(stage))
    result = recon.result(recipe.to_yaml())
    assert result.residuals is not None
    for title, (counts, modelled) in compared_patterns(result, scan).pairs.items():
        view = int(title.split("view ")[1].split(",")[0])
        misfit = ((np.sqrt(counts) - np.sqrt(modelled)) ** 2).sum() / counts.sum()
        assert misfit == pytest.approx(result.residuals[view], rel=1e-9)


def test_starts_of_measurement_and_recipe() -> None:
    scan = make(views=6).measurement
    read = pm.Reconstruction(scan, optics={"dimmer": True}, precision="double")
    assert np.array_equal(read.state.estimate.others["shift"], np.abs(scan.positions) / 100)
    told = pm.Reconstruction(scan, optics={"dimmer": {"start": {"shift": 0.25}}}, precision="double")
    assert bool((told.state.estimate.others["shift"] == 0.25).all())
    assert len(list(told.run(RPIE(epochs=1)))) == 1, "what has been given may stay as it is"
    with pytest.raises(BadInput, match=r"dimmer has no unknown shft; it has shift"):
        Dimmer(start={"shft": 1.0})
    with pytest.raises(
        BadInput, match=r"optics\.dimmer starts shift with values beyond its bounds, 0 to 9; give others"
    ):
        pm.Reconstruction(scan, optics={"dimmer": {"start": {"shift": -1.0}}})
    again = Recipe.parse({"data": {"path": "a.cxi"}, "optics": {"dimmer": {"start": {"shift": 0.5}}}})
    assert Recipe.from_yaml(again.to_yaml()).optics == again.optics


def test_a_lower_bound_holds() -> None:
    scan = make(views=12, counts=1e4).measurement
    recon = pm.Reconstruction(scan, optics={"dimmer": {"start": {"shift": 0.02}}}, precision="double")
    unknowns = {"object": False, "probe": False, "shift": {"lr": 0.05}}
    list(recon.run(Adam(epochs=2, batch=6, unknowns=unknowns)))
    shift = recon.state.estimate.others["shift"]
    assert bool((shift >= 0).all()) and bool((shift == 0).any()) and bool((shift > 0).any())
    with pytest.raises(ValueError, match="least of x is 1; it needs a real unknown that starts"):
        Unknown("x", least=1.0)
