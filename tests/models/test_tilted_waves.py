"""Waves between the points of the transform: against sums written out, torch's interpolation, and intensities."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import grid_sample

import ptymesh as pm
from ptymesh.errors import BadInput
from ptymesh.geometry import Geometry
from ptymesh.models.tilted_surface import TiltedSurface, TiltedWaves
from ptymesh.physics.detector.surface import Grid, seen_areas, seen_pixels, seen_places
from ptymesh.physics.propagate import fft
from ptymesh.simulate import simulate

WINDOW, ANGLE = 33, 40.0


@pytest.fixture(scope="module")
def geometry() -> Geometry:
    return simulate(
        views=4, window=WINDOW, energy_eV=92, pixel_m=25e-9, detector_pixel_m=1e-4, surface_deg=(0, ANGLE), seed=1
    ).measurement.geometry


def exit_waves(share: float) -> torch.Tensor:
    """Two waves (1, 2, h, w) of random phases within so large a share of the window."""
    rng, r = np.random.default_rng(2), np.arange(WINDOW) - WINDOW // 2
    inside = np.abs(r) <= share * WINDOW / 2
    waves = np.exp(1j * rng.uniform(-1, 1, (1, 2, WINDOW, WINDOW))) * inside[:, None] * inside
    return torch.from_numpy(waves)


def centred(patterns: torch.Tensor) -> np.ndarray:
    return np.fft.fftshift(patterns.numpy(), axes=(-2, -1))


def exact(psi: torch.Tensor, geometry: Geometry) -> np.ndarray:
    """J |sum_r psi(r) exp(-2 pi i m.r / n)|^2 / n^2 at the places that pixels see."""
    grid = Grid.of_geometry(geometry)
    m, r = seen_places(grid, ANGLE), np.arange(WINDOW) - WINDOW // 2
    rows = np.exp(-2j * np.pi * m[0][..., None] * r / WINDOW)
    columns = np.exp(-2j * np.pi * m[1][..., None] * r / WINDOW)
    waves = np.einsum("abcd,efc,efd->abef", psi.numpy(), rows, columns) / WINDOW
    return np.asarray(seen_areas(grid, ANGLE) * (np.abs(waves) ** 2).sum(axis=1))


def of_waves(psi: torch.Tensor, geometry: Geometry, finer: int) -> np.ndarray:
    piece = TiltedWaves(finer=finer)
    return centred((fft(piece.forward(psi, {}, piece.tables(geometry))).abs() ** 2).sum(1))


def of_intensities(psi: torch.Tensor, geometry: Geometry) -> np.ndarray:
    piece, angle = TiltedSurface(), {"surface_angle": torch.tensor(ANGLE, dtype=torch.float64)}
    return centred(piece.forward((fft(psi).abs() ** 2).sum(1), angle, piece.tables(geometry)))


def test_waves_are_those_of_linear_interpolation(geometry: Geometry) -> None:
    """In the order of CDTools' correction: the transform in the middle, torch's interpolation of both parts."""
    psi, grid = exit_waves(0.5), Grid.of_geometry(geometry)
    waves = torch.from_numpy(centred(fft(torch.fft.ifftshift(psi, (-2, -1)))))[0]
    m = seen_places(grid, ANGLE) + WINDOW // 2
    places = torch.from_numpy(np.stack([2 * (m[1] + 0.5) / WINDOW - 1, 2 * (m[0] + 0.5) / WINDOW - 1], axis=-1))
    real, imag = (grid_sample(part[None], places[None], align_corners=False)[0] for part in (waves.real, waves.imag))
    wanted = (seen_areas(grid, ANGLE) * (real**2 + imag**2).numpy()).sum(axis=0)
    np.testing.assert_allclose(of_waves(psi, geometry, 1)[0], wanted, rtol=1e-9, atol=1e-9 * wanted.max())


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_finer_points_are_nearer_to_the_exact_ones(geometry: Geometry, share: float) -> None:
    psi, mask = exit_waves(share), np.fft.fftshift(seen_pixels(geometry))
    wanted = exact(psi, geometry)
    made = [of_intensities(psi, geometry), *(of_waves(psi, geometry, finer) for finer in (1, 2, 4))]
    errors = [np.linalg.norm((one - wanted) * mask) / np.linalg.norm(wanted * mask) for one in made]
    assert errors[1] < errors[0]
    assert errors[2] < 0.4 * errors[1]
    assert errors[3] < 0.4 * errors[2]


def test_a_scan_is_explained_with_it_and_refused_without() -> None:
    scan = simulate(
        views=30, window=32, energy_eV=92, pixel_m=25e-9, detector_pixel_m=1e-4, surface_deg=(0, 40),
        optics={"tilted_waves": True}, photons_per_view=1e5, seed=3,
    ).measurement  # fmt: skip
    found = pm.reconstruct(scan, pm.LSQML(epochs=15, batch=10), optics={"tilted_waves": True}, seed=1)
    assert found.attrs["final_residual"] < 2 * found.attrs["noise_floor"]
    with pytest.raises(BadInput, match=r"tilted_surface: true\} \(or tilted_waves\)"):
        pm.Reconstruction(scan)
    with pytest.raises(BadInput, match="two ways to the same; remove one"):
        pm.Reconstruction(scan, optics={"tilted_waves": True, "tilted_surface": True})
    with pytest.raises(BadInput, match="tilted_waves is for far fields"):
        pm.Reconstruction(simulate(kind="near", views=4, window=16).measurement, optics={"tilted_waves": True})
