"""Pixels that integrate: against sums over a much finer detector, and what leaving that out costs a fit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ptymesh as pm
from ptymesh.errors import BadInput
from ptymesh.models.detector_transfer import DetectorTransfer
from ptymesh.models.integrating_pixels import IntegratingPixels
from ptymesh.physics.detector.pieces import Response
from ptymesh.physics.model import power
from ptymesh.physics.operators import Placed
from ptymesh.physics.propagate import fft
from ptymesh.simulate import simulate
from toy import make, relative

FINE = 15


def integrated(waves: torch.Tensor, side: float) -> torch.Tensor:
    """Patterns of pixels of this side, as means over finer ones, which a transform of a padded wave has."""
    (h, w), middle = waves.shape[-2:], FINE // 2
    padded = waves.new_zeros((*waves.shape[:2], FINE * h, FINE * w))
    top, left = FINE * h // 2 - h // 2, FINE * w // 2 - w // 2
    padded[..., top : top + h, left : left + w] = waves
    # each row's finer ones begin half a pixel before its centre
    S = power(torch.fft.fft2(padded) / (h * w) ** 0.5).roll((middle, middle), (-2, -1))
    block = S.reshape(len(S), h, FINE, w, FINE)
    half = round(side * FINE / 2 - 0.5)
    return block[:, :, middle - half : middle + half + 1, :, middle - half : middle + half + 1].mean((2, 4))


@pytest.mark.parametrize("side", [1.0, 0.6])
def test_patterns_are_sums_over_a_finer_detector(side: float) -> None:
    """Waves that fill their windows: three places miss the integral by 0.002, which the sum itself misses by 0.001.

    A transfer function, which knows the pixels' centres alone, is off by 0.19 and 0.09.
    """
    toy = make(modes=2)
    geometry, (h, w) = toy.measurement.geometry, toy.truth.window
    waves = torch.randn((2, 2, h, w), generator=torch.Generator().manual_seed(1), dtype=torch.complex128)
    wanted, errors = integrated(waves, side), []
    values = {"sensitive_side": torch.tensor(side, dtype=torch.float64)}
    for points in (3, 5):
        placed = Placed.of(IntegratingPixels(points=points), geometry, torch.complex128, "cpu")
        made = placed.operator.forward(waves, values, placed.tables)
        assert made.shape == (2, 2 * points**2, h, w)
        assert torch.allclose(power(made).sum((1, 2)), power(waves).sum((1, 2))), "no light is lost"
        errors.append(relative(power(fft(made)), wanted))
    known = Placed.of(DetectorTransfer(pixel_side=side), geometry, torch.complex128, "cpu")
    errors.append(relative(Response((known,), {}).apply(power(fft(waves))), wanted))
    assert errors[0] < 0.003 and errors[1] < 0.0015 and errors[2] > 0.05, errors


@pytest.mark.sample(1)
@pytest.mark.parametrize("engine", ["rpie", "lsqml", "adam"])
def test_a_fit_that_knows_of_them_is_closer(engine: str) -> None:
    optics: dict[str, Any] = {"integrating_pixels": {"points": 2}}
    scan = simulate(views=25, window=24, noise=False, optics=optics, seed=4).measurement
    stage, residuals = {"engine": engine, "epochs": 15, "batch": 8}, []
    for one in (optics, {"detector_transfer": {"pixel_side": 1}}, None):
        recon = pm.Reconstruction(scan, optics=one, probe_modes=1, seed=1)
        residuals.append(list(recon.run(stage))[-1].residual)
    assert residuals[0] < 0.2 * min(residuals[1:]), residuals


def test_near_fields_are_refused() -> None:
    near = make(propagation="angular_spectrum").measurement
    with pytest.raises(BadInput, match=r"is in the near field; use optics\.detector_transfer with pixel_side: 1"):
        pm.Reconstruction(near, optics={"integrating_pixels": True})
