"""Phantoms: ranges, determinism, structure at every scale."""

import numpy as np
import pytest

from ptymesh.simulate import phantoms

SIZES = [(64, 64), (150, 230), (480, 460)]


def octaves(image):
    """Share of the power (without DC) in each octave of spatial frequency below Nyquist, coarse to fine."""
    window = np.outer(*(np.hanning(n) for n in image.shape))
    power = np.abs(np.fft.fft2((image - image.mean()) * window)) ** 2
    k = np.hypot(np.fft.fftfreq(image.shape[0])[:, None], np.fft.fftfreq(image.shape[1])[None, :])
    edges = 0.5 / 2.0 ** np.arange(int(np.log2(min(image.shape))) - 2, -1, -1)
    return np.histogram(k, edges, weights=power)[0] / power.sum()


@pytest.mark.sample(3)
@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("make", [phantoms.chart, phantoms.powder])
def test_ranges_are_met_and_the_seed_decides(make, shape):
    made = make(shape, 3, (0.5, 0.9), (-1.0, 0.5))
    assert made.shape == (1, *shape)
    amplitude, phase = np.abs(made), np.angle(made)
    np.testing.assert_allclose([amplitude.min(), amplitude.max()], [0.5, 0.9])
    np.testing.assert_allclose([phase.min(), phase.max()], [-1.0, 0.5])
    assert np.array_equal(made, make(shape, 3, (0.5, 0.9), (-1.0, 0.5)))
    assert not np.array_equal(made, make(shape, 4, (0.5, 0.9), (-1.0, 0.5)))


@pytest.mark.parametrize("make", [phantoms.chart, phantoms.powder])
def test_there_is_structure_at_every_scale(make):
    made = make((480, 480), 0, (0.6, 1.0), (-1.2, 0.2))[0]
    for image in (np.abs(made), np.angle(made)):
        assert (octaves(image) > 3e-3).all()


def test_amplitude_and_phase_of_the_chart_are_different_images():
    made = phantoms.chart((256, 256), 0, (0.6, 1.0), (-1.2, 0.2))[0]
    assert 0.2 < np.corrcoef(np.abs(made).ravel(), np.angle(made).ravel())[0, 1] < 0.9


def test_chart_fills_the_field_that_the_beam_reaches():
    made = phantoms.chart((300, 300), 0, (0.6, 1.0), (-1.2, 0.2), field=(150, 100))[0]
    # spokes alternate along a circle inside the field; grains, which are weaker in the phase, are left outside
    angle = np.linspace(0, 2 * np.pi, 720, endpoint=False)
    inside, outside = (
        np.angle(made)[(150 + r * np.sin(angle)).astype(int), (150 + r * np.cos(angle)).astype(int)] for r in (30, 120)
    )
    assert inside.std() > 2 * outside.std()


@pytest.mark.parametrize("slices", [1, 2, 4])
def test_atoms_are_a_phase_object_with_slices_that_differ(slices):
    made = phantoms.atoms((120, 140), slices, (0.25e-10, 0.25e-10), 0, 0.5)
    assert made.shape == (slices, 120, 140)
    np.testing.assert_allclose(np.abs(made), 1)
    np.testing.assert_allclose(np.angle(made).max(axis=(1, 2)), 0.5)
    assert np.angle(made).min() == pytest.approx(0, abs=1e-12)
    flat = np.angle(made).reshape(slices, -1)
    assert np.abs(np.corrcoef(flat)[np.triu_indices(slices, 1)] if slices > 1 else 0).max() < 0.5


def test_atoms_sit_at_the_lattice_spacing():
    image = np.angle(phantoms.atoms((256, 256), 1, (0.25e-10, 0.25e-10), 0, 0.5))[0]
    power = np.abs(np.fft.fft2(image - image.mean())) ** 2
    k = np.hypot(np.fft.fftfreq(256, 0.25)[:, None], np.fft.fftfreq(256, 0.25)[None, :])
    # hexagonal lattice of spacing a: first ring of reflections at 2 / (sqrt 3 a)
    assert k.ravel()[power.argmax()] == pytest.approx(2 / (np.sqrt(3) * 2.6), rel=0.05)
