"""Spacing and tilt of slices: derivatives against central differences, and what a tilt does, in float64."""

import math
from dataclasses import replace

import pytest
import torch

from ptymesh.physics.backend import Backend, Chunk
from ptymesh.physics.model import Intermediates, Model, inner
from ptymesh.physics.propagate import angular_spectrum_kernel, apply_kernel
from toy import Toy, make, relative

TILT = (8e-3, -5e-3)
EVERY = torch.arange(4)


def tilted(toy: Toy, spacing_m: float, tilt_rad: tuple[float, float]) -> Model:
    return toy.model.spaced(toy.measurement.geometry, spacing_m, tilt_rad, torch.complex128, "cpu")


def scene_of(toy: Toy, model: Model) -> Intermediates:
    e, f = toy.truth, toy.truth.fractions(EVERY)
    return model.forward(model.windows(e.object, e.anchors, f, e.window), model.probes(e.probe, f, e.weights))


@pytest.mark.parametrize("slices", [2, 3])
@pytest.mark.parametrize("window", [(14, 16), (15, 13)])
def test_derivatives(slices: int, window: tuple[int, int]) -> None:
    toy = make(views=4, window=window, modes=2, slices=slices, subpixel="bilinear")
    z = 2e-6
    intermediates = scene_of(toy, tilted(toy, z, TILT))

    def at(spacing_m: float, y: float = 0.0, x: float = 0.0) -> torch.Tensor:
        return scene_of(toy, tilted(toy, spacing_m, (TILT[0] + y, TILT[1] + x))).exit

    model, h = tilted(toy, z, TILT), 1e-6
    down, across = (model.gap_derivative(intermediates, rate) for rate in model.gap_rates("tilt"))
    assert relative(down, (at(z, h) - at(z, -h)) / (2 * h)) < 1e-7
    assert relative(across, (at(z, 0, h) - at(z, 0, -h)) / (2 * h)) < 1e-7
    step = 1e-4 * z
    apart = model.gap_derivative(intermediates, model.gap_rates("slice_spacing")[0]) / z
    assert relative(apart, (at(z + step) - at(z - step)) / (2 * step)) < 1e-6


@pytest.mark.parametrize(("absorbing", "accuracy"), [(False, 1e-5), (True, 0.4)])
def test_steps_of_positions(absorbing: bool, accuracy: float) -> None:
    """What is multiplied at the probe is what it would be at the exit; the norm is taken behind the first slice."""
    toy = make(views=4, window=(24, 28), modes=2, slices=4)
    toy.truth.object *= toy.truth.object.abs() ** (7 if absorbing else -1)
    e, f = toy.truth, toy.truth.fractions(EVERY)
    made, none = scene_of(toy, toy.model), torch.zeros(0)
    chi = torch.randn(made.exit.shape, dtype=made.exit.dtype, generator=torch.Generator().manual_seed(1))
    chunk = Chunk(EVERY, EVERY, e.anchors, f, e.weights, none, none, none)
    steps = Backend().position_step(toy.model, chunk, e.object, e.probe, e.opr, made, chi)
    let_through = inner(made.exit, made.exit) / e.probe.abs().square().sum()
    assert float(let_through.max()) < 0.6 if absorbing else float(let_through.min()) > 0.9999
    for axis in (0, 1):
        moved = toy.model.position_derivative(e.object, e.anchors, f, made, axis)
        along, norm = inner(moved, chi), inner(moved, moved)
        assert bool((steps[:, axis].sign() == along.sign()).all())
        found = along / steps[:, axis] / norm
        assert float((found - 1).abs().max()) < accuracy, found


def test_a_tilt_is_a_displacement_of_slices_against_one_another() -> None:
    """A tilt of a pixel over the spacing shows the second slice as if its pixels lay one further."""
    toy = make(views=4, window=(24, 24), slices=2, subpixel="none")
    pixel = toy.measurement.geometry.object_pixel_m
    assert pixel is not None
    tilt = (math.atan(2 * pixel[0] / 2e-6), math.atan(-pixel[1] / 2e-6))
    moved = toy.truth.object.clone()
    moved[1] = moved[1].roll((2, -1), (0, 1))
    displaced = replace(toy, truth=replace(toy.truth, object=moved))
    far_off, straight = scene_of(toy, tilted(toy, 2e-6, tilt)), scene_of(displaced, toy.model)
    # the whole exit wave moves with the second slice, which the far field does not see
    inside = (slice(None), slice(None), slice(3, -3), slice(3, -3))
    assert relative(far_off.exit.roll((2, -1), (-2, -1))[inside], straight.exit[inside]) < 1e-3
    assert relative(scene_of(toy, toy.model).exit[inside], straight.exit[inside]) > 0.1


@pytest.mark.parametrize("n", [16, 17])
def test_a_kernel_without_tilt_has_none(n: int) -> None:
    """Frequencies off by half a bin would be a tilt of lambda / (2 n d): a point's image would not be even."""
    point = torch.zeros(n, n, dtype=torch.complex128)
    point[n // 2, n // 2] = 1

    def unevenness(tilt_rad: tuple[float, float]) -> float:
        wave = apply_kernel(point, angular_spectrum_kernel((n, n), (1e-7, 1e-7), 1e-9, 1e-4, tilt_rad))
        around = wave[1 - n % 2 :, 1 - n % 2 :]  # the first row of an even window has no partner on the other side
        return relative(around, around.flip(0, 1))

    assert unevenness((0.0, 0.0)) < 1e-13
    assert unevenness((1e-9 / (2 * n * 1e-7), 0.0)) > 0.1
