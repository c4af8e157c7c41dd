"""Aberrations are found as they were put into probes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ptymesh.errors import BadInput
from ptymesh.physics.beam.probes import aberrated, kb_mirror
from ptymesh.physics.beam.pupil import fit_lens, pupil_of

PIXEL, WAVELENGTH = (2e-11, 2.2e-11), 1.97e-12
TRUTH = {"C10": -15e-9, "C12": [4e-9, 0.5], "C21": [50e-9, -0.7], "C30": 2e-6}


def probe() -> np.ndarray:
    """A lens at 25 mrad, of 15 rad of defocus, off the axis and with a phase of its own."""
    wave = aberrated((96, 96), PIXEL, WAVELENGTH, 0.025, TRUTH).numpy()
    return np.roll(wave, (2, -1), (0, 1)) * np.exp(0.7j)


def test_coefficients_are_those_of_the_probe() -> None:
    """Exactly; the phase turns more than twice over the pupil, and its pixels are oblong."""
    found = fit_lens(pupil_of(probe()), PIXEL, WAVELENGTH)
    numbers = {one.name: (one.size_m, one.angle_rad) for one in found.aberrations}
    assert numbers["C10"] == (pytest.approx(-15e-9), None) and numbers["C30"] == (pytest.approx(2e-6), None)
    assert numbers["C12"] == pytest.approx((4e-9, 0.5)) and numbers["C21"] == pytest.approx((50e-9, -0.7))
    assert found.rest_rad < 1e-9
    assert found.semiangle_rad == pytest.approx(0.025, rel=0.01)
    edge = {one.name: one.edge_rad for one in found.aberrations}
    assert edge["C10"] == pytest.approx(math.pi / WAVELENGTH * 15e-9 * found.semiangle_rad**2)
    assert edge["C30"] == pytest.approx(math.pi / 2 / WAVELENGTH * 2e-6 * found.semiangle_rad**4)


def test_noise_moves_coefficients_a_little() -> None:
    """Noise of 2 % of the largest amplitude on all of the window; tolerances are twice what one seed has."""
    rng, wave = np.random.default_rng(0), probe()
    noise = rng.normal(size=wave.shape) + 1j * rng.normal(size=wave.shape)
    found = fit_lens(pupil_of(wave + 0.02 * np.abs(wave).max() * noise), PIXEL, WAVELENGTH)
    sizes = [one.size_m for one in found.aberrations]
    np.testing.assert_allclose(sizes, [-15e-9, 4e-9, 50e-9, 2e-6], rtol=0.04)
    assert found.aberrations[2].angle_rad == pytest.approx(-0.7, abs=0.05)
    assert 0.02 < found.rest_rad < 0.08


def test_the_surface_has_no_wraps_and_no_shift() -> None:
    """It is chi of the coefficients, at zero in the middle; a probe on the axis has the same."""
    moved, still = fit_lens(pupil_of(probe()), PIXEL, WAVELENGTH), aberrated((96, 96), PIXEL, WAVELENGTH, 0.025, TRUTH)
    on_axis = fit_lens(pupil_of(still.numpy()), PIXEL, WAVELENGTH)
    np.testing.assert_array_equal(moved.inside, on_axis.inside)
    np.testing.assert_allclose(moved.chi, on_axis.chi, atol=1e-9)
    assert moved.chi[48, 48] == pytest.approx(0, abs=1e-9)
    y, x = ((np.arange(96) - 48) * WAVELENGTH / (96 * d) for d in PIXEL)
    angle, phi = np.hypot(y[:, None], x), np.arctan2(y[:, None], x)
    chi = -15e-9 * angle**2 / 2 + 4e-9 * angle**2 * np.cos(2 * (phi - 0.5)) / 2
    chi += 50e-9 * angle**3 * np.cos(phi + 0.7) / 3 + 2e-6 * angle**4 / 4
    expected = np.where(moved.inside, 2 * np.pi / WAVELENGTH * chi, np.nan)
    np.testing.assert_allclose(moved.chi, expected, atol=1e-6)


def test_what_is_no_low_order_is_left() -> None:
    """A phase plate of half a radian on half of the pupil is in the rest and in the surface, not in the sizes."""
    spectrum = pupil_of(probe())
    plate = 0.5 * (np.add.outer(np.arange(96), np.arange(96)) % 2)
    found = fit_lens(spectrum * np.exp(-1j * plate), PIXEL, WAVELENGTH)
    assert found.rest_rad == pytest.approx(0.25, rel=0.02)
    assert {one.name: one.size_m for one in found.aberrations}["C10"] == pytest.approx(-15e-9, rel=0.01)
    without = fit_lens(spectrum, PIXEL, WAVELENGTH)
    inside = found.inside & (plate > 0)
    difference = (found.chi - without.chi)[inside].mean() - (found.chi - without.chi)[
        found.inside & (plate == 0)
    ].mean()
    assert difference == pytest.approx(0.5, abs=0.02)


def test_foci_of_mirrors_are_defocus_and_astigmatism() -> None:
    """C10 is minus the mean of both defoci, C12 half their difference, along y or x by its sign."""
    wave = kb_mirror((64, 64), (1e-8, 1e-8), 1.5e-10, (1e-4, 2e-4), (0.05, 0.05), (40e-6, -60e-6)).numpy()
    defocus, astigmatism = fit_lens(pupil_of(wave), (1e-8, 1e-8), 1.5e-10, ("C10", "C12")).aberrations
    assert defocus.size_m == pytest.approx(10e-6)
    assert (astigmatism.size_m, astigmatism.angle_rad) == (pytest.approx(50e-6), pytest.approx(0, abs=1e-9))


def test_noise_is_no_lens() -> None:
    """Phases at random have 1.81 rad rms; a fit of eight numbers to thousands of them takes hardly any away."""
    rng = np.random.default_rng(0)
    wave = rng.normal(size=(48, 48)) + 1j * rng.normal(size=(48, 48))
    assert fit_lens(pupil_of(wave), PIXEL, WAVELENGTH).rest_rad == pytest.approx(math.pi / math.sqrt(3), rel=0.05)


def test_a_pupil_of_few_pixels_is_refused() -> None:
    with pytest.raises(BadInput, match="The pupil of the probe has 1 pixels"):
        fit_lens(pupil_of(np.ones((32, 32), dtype=complex)), PIXEL, WAVELENGTH)
    with pytest.raises(BadInput, match="The pupil of the probe has 0 pixels"):
        fit_lens(np.zeros((32, 32), dtype=complex), PIXEL, WAVELENGTH)
