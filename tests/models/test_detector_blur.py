"""A blur of the detector: its width is found from a wrong start, and views that are left out are explained better."""

from __future__ import annotations

import pytest
import torch

import ptymesh as pm
from ptymesh.engines import Engine
from ptymesh.measurement import Measurement
from ptymesh.models import OPTICS
from ptymesh.models.detector_blur import DetectorBlur
from ptymesh.physics.operators import Placed
from ptymesh.run.loop import Loop
from ptymesh.simulate import Simulated, simulate
from ptymesh.verdict.held_out import SQUARE, checkerboard
from toy import make

WIDTH, OPTIONS = 0.8, {"views": 64, "window": 32, "photons_per_view": 3e5, "seed": 1}


def made() -> Simulated:
    return simulate(optics={"detector_blur": {"start": {"blur_width": WIDTH}}}, **OPTIONS)


def placed(window: tuple[int, int] = (32, 40)) -> Placed[DetectorBlur]:
    return Placed.of(DetectorBlur(), make(window=window).measurement.geometry, torch.complex128, "cpu")


@pytest.mark.parametrize("width", [0.05, 0.4, 2.5])
def test_the_kernel(width: float) -> None:
    """It is positive, holds all light, and has the width squared as its variance along each axis."""
    one, values = placed(), {"blur_width": torch.tensor(width, dtype=torch.float64)}
    point = torch.zeros(1, 32, 40, dtype=torch.float64)
    point[0, 0, 0] = 1
    kernel = one.operator.forward(point, values, one.tables)[0]
    assert kernel.sum() == pytest.approx(1, rel=1e-12) and kernel.min() > -1e-16
    for axis, n in enumerate(kernel.shape):
        places = (torch.arange(n, dtype=torch.float64) + n // 2) % n - n // 2
        assert (kernel.sum(1 - axis) * places**2).sum() == pytest.approx(width**2, rel=1e-6)


def test_dim_pixels_beside_a_bright_one_keep_their_light_in_single_precision() -> None:
    one, values = placed(), {"blur_width": torch.tensor(0.5)}
    S = torch.full((1, 32, 40), 1e-3)
    S[0, 0, 0] = 1e7
    found = one.operator.forward(S, values, ())
    assert found.dtype == torch.float32 and torch.allclose(found[0, 16, 20], torch.tensor(1e-3), rtol=1e-5)


def held_out(scan: Measurement, stage: Engine, optics: dict[str, object] | None) -> tuple[float, float | None]:
    """Residual of the views that are left out, and the width."""
    recon = pm.Reconstruction(scan, optics=optics)
    loop = Loop(recon.problem, recon.state, [stage], seed=0, hold_out=0.15)
    last = [report.held_out for report in loop.epochs()][-1]
    assert last is not None
    return last, float(recon.state.estimate.others["blur_width"]) if optics else None


@pytest.mark.parametrize(
    "engine", ["rpie", pytest.param("lsqml", marks=pytest.mark.long), pytest.param("adam", marks=pytest.mark.long)]
)
def test_the_width_is_found(engine: str) -> None:
    scan, kinds = made().measurement, {"rpie": pm.RPIE, "lsqml": pm.LSQML, "adam": pm.Adam}
    base = {"object": True, "probe": True} if engine == "adam" else {}
    stages = [kinds[engine](epochs=40, batch=16, unknowns=unknowns) for unknowns in (base, base | {"blur_width": True})]
    without, _ = held_out(scan, stages[0], None)
    with_it, width = held_out(scan, stages[1], {"detector_blur": True})
    assert width == pytest.approx(WIDTH, rel=0.05)
    assert with_it < 0.8 * without


def test_a_width_that_is_given_stays() -> None:
    _, width = held_out(made().measurement, pm.RPIE(epochs=2), {"detector_blur": {"start": {"blur_width": 0.8}}})
    assert width == pytest.approx(0.8)


def test_squares_of_held_out_pixels_are_wider_than_the_blur() -> None:
    one = OPTICS["detector_blur"]()
    assert isinstance(one, DetectorBlur) and one.reach_px({"blur_width": torch.tensor(1.5)}) == 1.5
    fine, wide = (checkerboard((64, 64), torch.device("cpu"), n) for n in (SQUARE, 2 * SQUARE))
    assert bool(fine[0, SQUARE] != fine[0, 0]) and bool(wide[0, SQUARE] == wide[0, 0])
