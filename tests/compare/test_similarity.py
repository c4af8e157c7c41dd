"""Structural similarity of phases: one for the same, by the equation for others, and only within the region."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage

from ptymesh.compare import phase_similarity


def phase(seed: int = 0) -> np.ndarray:
    """A smooth phase of about 1 rad."""
    return 5 * ndimage.gaussian_filter(np.random.default_rng(seed).normal(size=(64, 64)), 2)


EVERYWHERE = np.ones((64, 64), dtype=bool)


def test_the_same_phase_is_alike_and_others_are_less() -> None:
    """Amplitudes do not count, wraps neither, noise lowers it step by step, and another phase has none."""
    one, rng = phase(), np.random.default_rng(1)
    assert phase_similarity(np.exp(1j * one), 2 * np.exp(1j * one), EVERYWHERE) == pytest.approx(1)
    assert phase_similarity(np.exp(8j * one), np.exp(8j * one), EVERYWHERE) == pytest.approx(1)
    noisy = [
        phase_similarity(np.exp(1j * (one + size * rng.normal(size=one.shape))), np.exp(1j * one), EVERYWHERE)
        for size in (0.05, 0.2, 0.6)
    ]
    assert 1 > noisy[0] > noisy[1] > noisy[2] > 0
    assert abs(phase_similarity(np.exp(1j * phase(5)), np.exp(1j * one), EVERYWHERE) or 1) < 0.2


def test_the_number_is_that_of_the_equation() -> None:
    """Wang et al. (2004), with the Gaussian window cut at 5 pixels, over pixels whose window lies within."""
    one = phase() - np.median(phase())
    other = one + 0.2 * np.random.default_rng(1).normal(size=one.shape)

    def mean(values: np.ndarray) -> np.ndarray:
        return ndimage.gaussian_filter(values, 1.5, radius=5)

    extent = np.ptp(one)
    first, second = (0.01 * extent) ** 2, (0.03 * extent) ** 2
    m1, m2 = mean(one), mean(other)
    v1, v2, c = mean(one**2) - m1**2, mean(other**2) - m2**2, mean(one * other) - m1 * m2
    local = (2 * m1 * m2 + first) * (2 * c + second) / ((m1**2 + m2**2 + first) * (v1 + v2 + second))
    found = phase_similarity(np.exp(1j * other), np.exp(1j * one), EVERYWHERE)
    # unwrapping takes the slope of the phase off, a few mrad per pixel
    assert found == pytest.approx(local[5:-5, 5:-5].mean(), abs=0.01)


def test_what_lies_outside_does_not_count() -> None:
    region = EVERYWHERE.copy()
    region[:, 40:] = False
    one, other = np.exp(1j * phase()), np.exp(1j * phase())
    other[:, 40:] = -1
    assert phase_similarity(other, one, region) == pytest.approx(1)


def test_narrow_regions_and_flat_phases_have_no_similarity() -> None:
    narrow = np.zeros((64, 64), dtype=bool)
    narrow[:, :10] = True
    assert phase_similarity(np.exp(1j * phase()), np.exp(1j * phase()), narrow) is None
    assert phase_similarity(np.exp(1j * phase()), np.ones((64, 64), dtype=complex), EVERYWHERE) is None
