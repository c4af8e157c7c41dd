"""Unwrapped phases are right."""

from __future__ import annotations

import numpy as np
import pytest

from ptymesh.plot import unwrapped_phase


def bumps(shape: tuple[int, int]) -> np.ndarray:
    """Phase of two islands on a flat ground, up to 9 rad: it wraps."""
    y, x = np.indices(shape)
    first = 9 * np.exp(-((y - 30) ** 2 + (x - 25) ** 2) / 200)
    return first - 4 * np.exp(-((y - 60) ** 2 + (x - 70) ** 2) / 150)


@pytest.mark.parametrize("slope", [(0.0, 0.0), (0.31, -0.17), (1.7, 2.3)])
def test_ramp_goes_and_structure_stays(slope: tuple[float, float]) -> None:
    shape = (90, 100)
    truth = bumps(shape)
    y, x = np.indices(shape)
    phase = unwrapped_phase(0.7 * np.exp(1j * (truth + slope[0] * y + slope[1] * x + 1.3)))
    error = phase - truth
    assert np.abs(error - np.median(error)).max() < 0.1
    assert abs(np.median(phase)) < 1e-9


def test_region() -> None:
    """Only the region counts, whatever lies outside; islands of it are unwrapped too."""
    shape = (90, 100)
    truth = bumps(shape)
    y, x = np.indices(shape)
    region = (np.hypot(y - 30, x - 25) < 24) | (np.hypot(y - 60, x - 70) < 24)
    garbage = np.random.default_rng(0).normal(size=shape) * 100
    phase = unwrapped_phase(np.exp(1j * np.where(region, truth, garbage)), region)
    assert np.isnan(phase[~region]).all() and np.isfinite(phase[region]).all()
    np.testing.assert_array_equal(np.isfinite(phase), region)
    first = np.hypot(y - 30, x - 25) < 24
    assert np.ptp(phase[first]) == pytest.approx(np.ptp(truth[first]), abs=0.5)


def test_noise_does_not_tilt() -> None:
    """The median slope of noise of 0.2 rad leaves a tilt well below that."""
    rng = np.random.default_rng(2)
    noise = rng.normal(scale=0.2, size=(200, 200))
    phase = unwrapped_phase(np.exp(1j * noise))
    fit = np.polyfit(np.arange(200), phase.mean(axis=1), 1)
    assert abs(fit[0] * 200) < 0.1


@pytest.mark.parametrize("shape", [(1, 1), (1, 20), (20, 1), (2, 2)])
def test_narrow_images(shape: tuple[int, int]) -> None:
    """A ramp is all that a line can show; it goes."""
    phase = unwrapped_phase(np.exp(0.5j * np.indices(shape).sum(axis=0)))
    assert phase.shape == shape and np.abs(phase).max() < 1e-6


def test_empty_region() -> None:
    assert np.isnan(unwrapped_phase(np.ones((4, 4), complex), np.zeros((4, 4), bool))).all()
