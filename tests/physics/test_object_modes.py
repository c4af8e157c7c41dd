"""Incoherent object modes in the model: adjoints, derivatives, intensities, means."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ptymesh.engines import BH, Adam
from ptymesh.errors import BadInput
from ptymesh.kernels.cpu.backend import CpuBackend
from ptymesh.kernels.piece_costs import costs_of_pieces
from ptymesh.physics.backend import Backend
from ptymesh.physics.model import Intermediates, Model, inner
from ptymesh.physics.object_modes import ObjectModes, mean_object, spread_phases
from ptymesh.physics.operators import Placed
from ptymesh.problem import Batch
from toy import Toy, make, relative

VIEWS = torch.arange(6)


def toy_of(modes: int = 3, **options: Any) -> tuple[Toy, Model, torch.Tensor]:
    """A scan of two probe modes, the model with so many object modes, and their planes."""
    toy = make(views=12, window=(14, 16), modes=2, **options)
    placed = Placed.of(ObjectModes(modes=modes), toy.measurement.geometry, torch.complex128, "cpu")
    rng = torch.Generator().manual_seed(2)
    apart = 0.3 * torch.randn((modes, *toy.truth.object.shape), generator=rng, dtype=torch.float64)
    planes = (toy.truth.object * torch.polar(torch.ones_like(apart), apart)).flatten(0, 1)
    return toy, replace(toy.model, operators=(placed,)), planes


def waves_of(toy: Toy, model: Model, planes: torch.Tensor) -> Intermediates:
    e, f = toy.truth, toy.truth.fractions(VIEWS)
    windows = model.windows(planes, e.anchors[VIEWS], f, e.window)
    return model.forward(windows, model.probes(e.probe, f, e.weights[VIEWS]))


def noise(like: torch.Tensor, seed: int) -> torch.Tensor:
    return torch.randn(like.shape, dtype=like.dtype, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("slices", [1, 3])
def test_intensities_are_means_over_the_modes(slices: int) -> None:
    toy, model, planes = toy_of(slices=slices)
    e, f = toy.truth, toy.truth.fractions(VIEWS)
    found = model.intensity(planes, e.probe, e.anchors[VIEWS], f)
    each = [toy.model.intensity(one, e.probe, e.anchors[VIEWS], f) for one in planes.chunk(3)]
    torch.testing.assert_close(found, torch.stack(each).mean(0), rtol=1e-12, atol=0)
    assert relative(each[0], found) > 0.05


@pytest.mark.parametrize("slices", [1, 3])
def test_the_adjoint(slices: int) -> None:
    toy, model, planes = toy_of(slices=slices)
    made = waves_of(toy, model, planes)
    chi, d_windows, d_probes = noise(made.exit, 3), noise(made.windows, 4), noise(made.incoming[0][:, ::3], 5)
    to_windows, to_probes = model.forward_adjoint(made, chi)
    by_windows = inner(model.exit_change(made, None, d_windows), chi)
    torch.testing.assert_close(by_windows, inner(d_windows, to_windows), rtol=1e-11, atol=1e-11)
    by_probes = inner(model.exit_change(made, d_probes, None), chi)
    torch.testing.assert_close(by_probes, inner(d_probes, to_probes), rtol=1e-11, atol=1e-11)


def test_changes_are_finite_differences() -> None:
    """Of the exit waves, by object, positions and the distance of the slices."""
    toy, model, planes = toy_of(slices=3, subpixel="bilinear")
    e, made, h = toy.truth, waves_of(toy, model, planes), 1e-6
    change = noise(planes, 6)
    windows = model.windows(change, e.anchors[VIEWS], e.fractions(VIEWS), e.window)
    two = [waves_of(toy, model, planes + step * change).exit for step in (h, -h)]
    assert relative(model.exit_change(made, None, windows), (two[0] - two[1]) / (2 * h)) < 1e-7
    moved = model.position_derivative(planes, e.anchors[VIEWS], e.fractions(VIEWS), made, 0)
    step, z = torch.tensor([h, 0.0], dtype=torch.float64), model.slice_spacing_m
    moves = [replace(toy, truth=replace(e, positions=e.positions + s)) for s in (step, -step)]
    two = [waves_of(one, model, planes).exit for one in moves]
    assert relative(moved, (two[0] - two[1]) / (2 * h)) < 1e-7
    spacings, geometry = (z * (1 + 1e-4), z * (1 - 1e-4)), toy.measurement.geometry
    models = [model.spaced(geometry, spacing, (0, 0), torch.complex128, "cpu") for spacing in spacings]
    two = [waves_of(toy, one, planes).exit for one in models]
    rate = model.gap_rates("slice_spacing")[0]
    assert relative(model.gap_derivative(made, rate), (two[0] - two[1]) / 2e-4) < 1e-6


@pytest.mark.parametrize("slices", [1, 2])
def test_sums_over_a_batch_are_slopes_of_the_loss(slices: int) -> None:
    toy, model, planes = toy_of(slices=slices)
    toy = replace(toy, model=model)
    problem, e = toy.problem(), replace(toy.truth, object=planes, object_modes=3)
    problem.begin_epoch(e)
    change, h, engine = noise(planes, 7), 1e-5, Adam()
    slope = engine.gradient(problem, e, Batch(np.arange(12)), {"object"}).parts["object"].slope

    def loss(step: float) -> float:
        moved = replace(e, object=planes + step * change)
        return float(engine.gradient(problem, moved, Batch(np.arange(12)), {"object"}).value)

    wanted = (loss(h) - loss(-h)) / (2 * h)
    assert float((slope * torch.view_as_real(change)).sum()) == pytest.approx(wanted, rel=1e-6)


def test_a_mean_is_taken_after_free_phases_are_turned_away() -> None:
    _, _, planes = toy_of(slices=2)
    modes = planes.unflatten(0, (3, 2)).numpy()
    turned = modes * np.exp(1j * np.array([0.0, 2.0, -1.0]))[:, None, None, None]
    assert relative(mean_object(turned), mean_object(modes)) < 1e-12
    assert relative(mean_object(modes), modes.mean(0)) < 0.05


def test_phases_at_the_start_depend_on_the_pixel_alone() -> None:
    whole = spread_phases(2, 3, (slice(0, 96), slice(0, 64)), 64, seed=5)
    part = spread_phases(2, 3, (slice(17, 70), slice(9, 40)), 64, seed=5)
    assert np.array_equal(part, whole[:, :, 17:70, 9:40])
    assert np.abs(whole.mean(0)).max() < 1e-15 and 0.02 < whole.std() < 0.05
    assert not np.array_equal(whole[:, :, :32], whole[:, :, 32:64])


def test_a_log_says_what_they_cost() -> None:
    toy, model, _ = toy_of()
    backend = CpuBackend(torch.complex128)
    (said,) = costs_of_pieces(backend, model, (14, 16))
    assert said.startswith("object.modes is computed by torch")
    assert costs_of_pieces(Backend(), model, (14, 16)) == []
    with pytest.raises(BadInput, match=r"bh does not know object\.modes; use another engine"):
        BH().check(replace(toy, model=model).problem())
