"""Counts of each quantum from the noise: found where the beam leaves lags free, and not said where nothing tells."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ptymesh.io.prepare.inspection import summarise
from ptymesh.io.prepare.noise_gain import noise_gain
from ptymesh.measurement import ArraySource, Measurement
from ptymesh.simulate import checked, simulate


@pytest.fixture(scope="module")
def scan() -> Measurement:
    return simulate(checked(kind="xray", views=49, window=128, seed=3, photons_per_view=2e3)).measurement


def counted(scan: Measurement, gain: float) -> Measurement:
    """Return the scan with so many detector counts for each photon."""
    counts = scan.patterns.read(np.arange(scan.views)) * gain
    return replace(scan, patterns=ArraySource(counts.astype(np.float32)))


@pytest.mark.parametrize("gain", [1.0, 7.3, 0.02])
def test_counts_of_a_photon(scan: Measurement, gain: float) -> None:
    found = noise_gain(counted(scan, gain), 30.0)
    assert found == pytest.approx(gain, rel=0.15)
    said = [one for one in summarise(counted(scan, gain)).suspicious if "The noise of the patterns" in one]
    assert len(said) == (gain != 1.0) and all("data.gain=" in one and "each photon" in one for one in said)


def test_what_does_not_tell(scan: Measurement) -> None:
    """A masked pixel, no noise, a beam as wide as the window."""
    mask = scan.mask.copy()
    mask[3, 4] = False
    assert noise_gain(replace(scan, mask=mask), 30.0) is None
    smooth = np.exp(-(np.hypot(*np.meshgrid(*[np.fft.fftfreq(128)] * 2)) ** 2) / 0.02) * np.ones((9, 1, 1)) * 1e4
    assert noise_gain(replace(scan, patterns=ArraySource(smooth), positions=scan.positions[:9]), 30.0) is None
    rng = np.random.default_rng(1)
    speckles = rng.poisson(20 * rng.exponential(size=(9, 128, 128))).astype(np.uint16)
    filled = replace(scan, patterns=ArraySource(speckles), positions=scan.positions[:9], probe=None)
    assert summarise(filled).noise_gain is None
