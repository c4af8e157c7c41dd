"""Small far-field scans with known truth, made by numpy alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

WINDOW, STEP, PIXEL_M, ENERGY_EV = 48, 3.0, 1e-8, 8000.0
WAVELENGTH_M, DETECTOR_PIXEL_M = 1.23984198e-6 / ENERGY_EV, 75e-6


def smooth(rng: np.random.Generator, side: int, width: float) -> np.ndarray:
    """Return noise between 0 and 1, (side, side), blurred by so many pixels."""
    k = np.fft.fftfreq(side)
    blur = np.exp(-2 * (np.pi * width) ** 2 * (k[:, None] ** 2 + k**2))
    made = np.fft.ifft2(np.fft.fft2(rng.normal(size=(side, side))) * blur).real
    return np.asarray((made - made.min()) / np.ptp(made))


def raster(side: int, jitter_px: float, seed: int) -> np.ndarray:
    """Return positions (side^2, 2) in pixels, rows along y, with errors that are known."""
    grid = np.stack(np.meshgrid(np.arange(side), np.arange(side), indexing="ij"), axis=-1).reshape(-1, 2)
    return grid * STEP + np.random.default_rng(seed).uniform(-jitter_px, jitter_px, grid.shape)


def patterns(positions: np.ndarray, counts: float = 1e5, seed: int = 0) -> np.ndarray:
    """Return Poisson counts (N, 48, 48), DC in the middle, at positions (N, 2) in pixels."""
    rng = np.random.default_rng(seed)
    corner = np.floor(positions.min(axis=0)) - 8
    side = int((positions - corner).max()) + WINDOW + 9
    object_ = (0.75 + 0.25 * smooth(rng, side, 3)) * np.exp(1.2j * smooth(rng, side, 2.5))
    y, x = np.mgrid[:WINDOW, :WINDOW] - WINDOW // 2
    radius = np.hypot(y, x) / (0.16 * WINDOW)
    probe = np.fft.fftshift(np.fft.ifft2(np.fft.ifftshift((radius < 1) * np.exp(2j * radius**2))))
    probe *= np.sqrt(counts / (np.abs(probe) ** 2).sum())
    k = np.fft.fftfreq(WINDOW)
    found = []
    for position in positions - corner:
        whole = np.floor(position + 0.5).astype(int)
        dy, dx = position - whole
        moved = np.fft.ifft2(np.fft.fft2(probe) * np.exp(-2j * np.pi * (k[:, None] * dy + k * dx)))
        wave = moved * object_[whole[0] : whole[0] + WINDOW, whole[1] : whole[1] + WINDOW]
        found.append(np.abs(np.fft.fft2(wave)) ** 2 / WINDOW**2)
    return rng.poisson(np.fft.fftshift(np.array(found), axes=(1, 2))).astype(np.float32)


def recipe_for(path: Path, counts: np.ndarray, positions: np.ndarray, **settings: Any) -> dict[str, Any]:
    """Write the scan as npz, and return a recipe that leaves its stages open."""
    distance_m = PIXEL_M * WINDOW * DETECTOR_PIXEL_M / WAVELENGTH_M
    np.savez(path, patterns=counts, positions=positions * PIXEL_M)
    data = {"path": str(path), "keys": {"patterns": "patterns", "positions": "positions"}, "radiation": "photon"}
    data |= {"energy_eV": ENERGY_EV, "distance_m": distance_m, "detector_pixel_m": DETECTOR_PIXEL_M}
    return {"data": data, "stages": "auto", "auto": {"sweeps": 2000}, **settings}
