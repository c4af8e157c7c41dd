"""Patterns that wander: the start follows from them, the shifts are found, and the object is that of a still scan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import ptymesh as pm
from ptymesh.errors import BadInput
from ptymesh.measurement import ArraySource, Measurement
from ptymesh.models.exit_wave.descan import wandering
from ptymesh.simulate import Simulated, simulate

STAGES = [{"engine": "adam", "epochs": 40, "batch": 20}]


def shifts(positions: np.ndarray, pixels: float, bend: float = 0.0) -> np.ndarray:
    """Return shifts (N, 2) across the way of the scan, from -pixels to pixels, and a curved part."""
    p = (positions - positions.mean(axis=0)) / (np.ptp(positions, axis=0).mean() / 2)
    return pixels * np.stack([p[:, 1], -p[:, 0]], axis=1) + bend * np.stack([p[:, 0] * p[:, 1], p[:, 1] ** 2], axis=1)


def wandering_scan(pixels: float, bend: float = 0.0) -> tuple[Simulated, Measurement, np.ndarray]:
    """Return a still scan, and the same with patterns that wander, from transforms of numpy's, with their shifts."""
    made = simulate(views=80, window=48, photons_per_view=3e5, seed=4)
    truth, n = made.truth, 48
    moved = shifts(truth.positions, pixels, bend)
    y, x = np.mgrid[-n // 2 : n // 2, -n // 2 : n // 2] / n
    counts, rng = np.empty((80, n, n)), np.random.default_rng(5)
    for view, (corner, shift) in enumerate(zip(truth.positions, moved, strict=True)):
        first = np.floor(corner + 0.5).astype(int)
        k = np.fft.fftfreq(n)
        ramp = np.exp(-2j * np.pi * ((corner - first)[0] * k[:, None] + (corner - first)[1] * k[None, :]))
        probe = np.fft.ifft2(np.fft.fft2(truth.probe[0]) * ramp)
        window = truth.object[0, first[0] : first[0] + n, first[1] : first[1] + n]
        wave = probe * window * np.exp(2j * np.pi * (shift[0] * y + shift[1] * x))
        counts[view] = rng.poisson(np.abs(np.fft.fft2(wave, norm="ortho")) ** 2)
    return made, replace(made.measurement, patterns=ArraySource(counts)), moved


def test_the_start_follows_from_the_patterns() -> None:
    made, scan, moved = wandering_scan(2.0)
    still, found = wandering(made.measurement), wandering(scan)
    reach = np.ptp(scan.positions, axis=0).mean() / 2
    assert found * reach == pytest.approx(2.0, rel=0.1) and abs(still * reach) < 0.1
    recon = pm.Reconstruction(scan, optics={"descan": True})
    start = recon.state.estimate.others["descan"].numpy()
    assert np.abs(start - (moved - moved.mean(axis=0))).max() < 0.3


def test_the_object_is_that_of_a_still_scan() -> None:
    made, scan, _ = wandering_scan(2.0)
    residuals = {}
    for name, measured, optics in (
        ("still", made.measurement, {}),
        ("wrong", scan, {}),
        ("right", scan, {"descan": True}),
    ):
        recon = pm.Reconstruction(measured, optics=optics)
        residuals[name] = [report.residual for report in recon.run(STAGES)][-1]
    assert residuals["right"] < 1.15 * residuals["still"] < 0.5 * residuals["wrong"]


@pytest.mark.long
def test_what_else_wanders_is_refined() -> None:
    """A curved part of 1 px is found to 0.1 px, apart from what a tilt and a curvature of the beam are."""
    _, scan, moved = wandering_scan(2.0, bend=1.0)
    recon = pm.Reconstruction(scan, optics={"descan": True})
    on = {"object": True, "probe": True, "descan": True}
    list(recon.run([{"engine": "adam", "epochs": 60, "batch": 20, "unknowns": on}]))
    left = recon.state.estimate.others["descan"].numpy() - moved
    p = scan.positions - scan.positions.mean(axis=0)
    linear = np.concatenate([p, np.ones((len(p), 1))], axis=1)
    left = left - linear @ np.linalg.lstsq(linear, left, rcond=None)[0]
    assert np.sqrt((left**2).mean()) < 0.1


def test_near_fields_are_refused() -> None:
    with pytest.raises(BadInput, match="far fields"):
        pm.Reconstruction(simulate(kind="near", views=20, window=32).measurement, optics={"descan": True})
