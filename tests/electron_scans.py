"""Simulated electron scans with known orientation, lens and descan, made by numpy alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import cos, radians, sin
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from scipy import ndimage

from ptymesh.geometry import electron_wavelength_m

ENERGY_EV, SEMIANGLE_RAD, WINDOW, RADIUS_PX = 200e3, 10e-3, 48, 12.0
WAVELENGTH_M = electron_wavelength_m(ENERGY_EV)
#: Object pixel: the window holds RADIUS_PX pixels of semi-angle.
PIXEL_M = WAVELENGTH_M * RADIUS_PX / (WINDOW * SEMIANGLE_RAD)


@dataclass(frozen=True)
class Made:
    """What a scan is made with; lengths in metres, y x.

    Attributes:
        shape: rows and columns.
        step_m: between them.
        transpose: whether the detector stores its axes exchanged.
        rotation_deg: of the scan, as in a recipe.
        c10_m, c12_m: aberrations (C12a, C12b).
        descan_px: (2, 2) move of the disc, y x, per share of the scan along y and x, in the axes as stored.
        centre_px: of the disc as stored, from the middle.
        electrons: per pattern.
        seed: of the sample and the counts.
    """

    shape: tuple[int, int] = (24, 24)
    step_m: float = 4e-10
    transpose: bool = False
    rotation_deg: float = 0.0
    c10_m: float = 0.0
    c12_m: tuple[float, float] = (0.0, 0.0)
    descan_px: np.ndarray = field(default_factory=lambda: np.zeros((2, 2)))
    centre_px: tuple[float, float] = (0.0, 0.0)
    electrons: float = 3e4
    seed: int = 0


def _probe(made: Made) -> np.ndarray:
    """Return the probe, centred in the window, of power 1; four times finer in its aperture's edge."""
    k = np.fft.fftfreq(WINDOW, PIXEL_M) * WAVELENGTH_M
    y, x = k[:, None], k[None, :]
    a, b = made.c12_m
    chi = np.pi / WAVELENGTH_M * (made.c10_m * (y * y + x * x) + a * (x * x - y * y) + 2 * b * x * y)
    fine = (np.arange(8) - 3.5) / 8 * SEMIANGLE_RAD / RADIUS_PX
    soft = sum(np.hypot(y + dy, x + dx) <= SEMIANGLE_RAD for dy in fine for dx in fine) / 64
    probe = np.fft.fftshift(np.fft.ifft2(np.sqrt(soft) * np.exp(-1j * chi)))
    return probe / np.linalg.norm(probe)


def _potential(side: int, seed: int) -> np.ndarray:
    """Return a weak phase (side, side) with bright peaks, in rad."""
    rng = np.random.default_rng(seed)
    k = np.fft.fftfreq(side)
    points = np.zeros((side, side))
    count = side * side // 150
    np.add.at(points, tuple(rng.integers(0, side, (2, count))), rng.uniform(0.5, 1.5, count))
    found = np.zeros((side, side))
    for width, share in ((1.2, 1.0), (4.0, 8.0)):
        blur = np.exp(-2 * (np.pi * width) ** 2 * (k[:, None] ** 2 + k**2))
        found += share * np.fft.ifft2(np.fft.fft2(points) * blur).real
    return np.asarray(0.25 * found / found.max() * 2)


def make(made: Made) -> np.ndarray:
    """Return the patterns (R, C, h, w) as the detector stores them, uint16, the direct beam near (h // 2, w // 2)."""
    rng = np.random.default_rng([made.seed, 1])
    rows, columns = made.shape
    index = np.stack(np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"), axis=-1).reshape(-1, 2)
    angle = radians(made.rotation_deg)
    turn = np.array([[cos(angle), -sin(angle)], [sin(angle), cos(angle)]])
    positions = (index * made.step_m / PIXEL_M) @ turn.T
    positions -= positions.min(axis=0) - 2
    side = int(positions.max()) + WINDOW + 4
    transmission = np.exp(1j * _potential(side, made.seed))
    probe, k = _probe(made), np.fft.fftfreq(WINDOW)
    share = index / (np.array(made.shape) - 1) - 0.5
    moves = np.array(made.centre_px) + share @ np.asarray(made.descan_px).T
    found = np.empty((len(index), WINDOW, WINDOW), np.uint16)
    for view, position in enumerate(positions):
        whole = np.floor(position + 0.5).astype(int)
        dy, dx = position - whole
        moved = np.fft.ifft2(np.fft.fft2(probe) * np.exp(-2j * np.pi * (k[:, None] * dy + k * dx)))
        wave = moved * transmission[whole[0] : whole[0] + WINDOW, whole[1] : whole[1] + WINDOW]
        move = moves[view][::-1] if made.transpose else moves[view]
        # intensities are moved, as by a detector whose pixels integrate
        pattern = ndimage.shift(np.fft.fftshift(np.abs(np.fft.fft2(wave)) ** 2), move, order=1)
        pattern *= made.electrons / pattern.sum()
        found[view] = rng.poisson(pattern.T if made.transpose else pattern)
    return found.reshape(rows, columns, WINDOW, WINDOW)


def write(path: Path, made: Made) -> Path:
    """Write the patterns alone, as HDF5."""
    with h5py.File(path, "w") as file:
        file["data"] = make(made)
    return path


def recipe_for(path: Path, made: Made) -> dict[str, Any]:
    """Return what a person knows of a scan that `write` wrote."""
    return {
        "data": {"path": str(path), "keys": {"patterns": "data"}, "energy_eV": ENERGY_EV},
        "positions": {"raster": {"step_m": made.step_m}},
        "probe": {"start": {"kind": "electron", "semiangle_rad": SEMIANGLE_RAD}},
    }
