"""Near-field scans in plain numpy: a spherical wave through a diffuser and the sample to a detector.

n       detector pixels along each side
p, d    detector pixel; d = p / Mag its shadow in the sample's plane (m)
z1, z2  focus to sample, sample to detector (m); z1 is infinite for a parallel beam
F       lambda z2 / (Mag d^2), the distance of the parallel beam that diffracts as much, in square pixels

The Fresnel integral is evaluated as it stands, on four sample points for each d, with the sphere's phase, and at four
points of each detector pixel; nothing here is taken from ptymesh, and no scaling theorem is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
from scipy import ndimage

#: Sample points for each d, and detector points for each p, along either axis.
FINE, PARTS = 4, 2
ENERGY_EV, ENERGY_J = 17e3, 17e3 * 1.602176634e-19
WAVELENGTH_M = 6.62607015e-34 * 299792458.0 / ENERGY_J


@dataclass(frozen=True)
class NearScan:
    """What was measured, and the truth.

    Attributes:
        patterns: (N, n, n) counts as the camera shows them.
        positions_m: (N, 2) places y, x of the beam on the sample.
        detector_pixel_m, distance_m, focus_distance_m: p, z2 and z1 (None: parallel).
        object: (H, W) complex truth on pixels of d; corners: (N, 2) where the window's corner lies in it.
    """

    patterns: np.ndarray
    positions_m: np.ndarray
    detector_pixel_m: float
    distance_m: float
    focus_distance_m: float | None
    object: np.ndarray
    corners: np.ndarray

    @property
    def magnification(self) -> float:
        """(z1 + z2) / z1."""
        return 1.0 if self.focus_distance_m is None else 1 + self.distance_m / self.focus_distance_m

    def write(
        self,
        path: Path,
        distance_m: float | None = None,
        patterns: np.ndarray | None = None,
        positions_m: np.ndarray | None = None,
    ) -> Path:
        """Write a CXI file that says nothing of the propagation.

        Args:
            path: of the file.
            distance_m: that the file says; z2 by default.
            patterns, positions_m: that take the place of the true ones.
        """
        patterns = self.patterns if patterns is None else patterns
        positions_m = self.positions_m if positions_m is None else positions_m
        with h5py.File(path, "w") as file:
            file["cxi_version"] = 160
            entry = file.create_group("entry_1")
            detector = entry.create_group("instrument_1/detector_1")
            detector["data"] = patterns
            detector["distance"] = self.distance_m if distance_m is None else distance_m
            detector["x_pixel_size"] = detector["y_pixel_size"] = self.detector_pixel_m
            entry.create_group("instrument_1/source_1")["energy"] = ENERGY_J
            translation = np.zeros((len(positions_m), 3))
            translation[:, 0], translation[:, 1] = positions_m[:, 1], positions_m[:, 0]
            entry["sample_1/geometry_1/translation"] = translation
            entry["data_1/data"] = detector["data"]
        return path


def simulate_near(
    seed: int,
    magnification: float = 1.0,
    *,
    n: int = 64,
    views: int = 36,
    step: float = 6.0,
    fresnel: float = 25.0,
    detector_pixel_m: float = 1.5e-6,
    counts: float = 2000.0,
    blur: float = 0.0,
    fill: float = 0.8,
) -> NearScan:
    """Return a scan on a jittered grid.

    Args:
        seed: of beam, sample, positions and counts.
        magnification: Mag; 1 is a parallel beam.
        n, views: of the scan, a square number of views.
        step: of the grid, in pixels of d.
        fresnel: F.
        detector_pixel_m: p.
        counts: of a bright pixel.
        blur: of the camera, standard deviation in its pixels.
        fill: radius of the beam over half the detector's shadow; above 1 the detector is overfilled.
    """
    rng = np.random.default_rng(seed)
    d = detector_pixel_m / magnification
    effective = fresnel * d**2 / WAVELENGTH_M
    distance = effective * magnification
    curvature = (magnification - 1) / distance  # 1 / z1
    wide = 2 * int(np.ceil(max(1.0, fill + 0.15) * n / 2))  # pixels of d over which there is light
    r = (np.arange(FINE * wide) - FINE * wide / 2 + 0.5) / FINE  # pixels of d
    beam = _beam(r, fill * n / 2, rng) * np.exp(
        1j * np.pi * curvature * d**2 / WAVELENGTH_M * (r[:, None] ** 2 + r[None, :] ** 2)
    )
    x = (np.arange(PARTS * n) - PARTS * n / 2 + 0.5) / PARTS * detector_pixel_m
    phase = (x[:, None] - r[None, :] * d) ** 2 * np.pi / (WAVELENGTH_M * distance)
    kernel = np.exp(1j * phase) * (d / FINE / np.sqrt(WAVELENGTH_M * distance))

    side = round(views**0.5)
    grid = np.stack(np.meshgrid(np.arange(side), np.arange(side), indexing="ij"), axis=-1).reshape(-1, 2)
    places = step * (grid + rng.uniform(-0.35, 0.35, (side * side, 2)))
    places = np.rint(FINE * (places - places.min(axis=0))) / FINE  # on the fine grid
    extent = tuple(int(np.ceil(most)) + wide for most in places.max(axis=0))
    sample = _sample(extent, rng)
    patterns = []
    for place in places:
        row, column = np.rint(FINE * place).astype(int)
        wave = beam * sample[row : row + FINE * wide, column : column + FINE * wide]
        fine = np.abs(kernel @ wave @ kernel.T) ** 2
        image = fine.reshape(n, PARTS, n, PARTS).mean(axis=(1, 3))
        patterns.append(ndimage.gaussian_filter(image, blur) if blur else image)
    bright = np.stack(patterns)
    bright *= counts / np.quantile(bright, 0.9)
    return NearScan(
        patterns=rng.poisson(bright).astype(np.uint32),
        positions_m=(places - places.mean(axis=0)) * d,
        detector_pixel_m=detector_pixel_m,
        distance_m=distance,
        focus_distance_m=None if magnification == 1 else 1 / curvature,
        object=sample.reshape(extent[0], FINE, extent[1], FINE).mean(axis=(1, 3)),
        corners=places + (wide - n) / 2,
    )


def _beam(r: np.ndarray, radius: float, rng: np.random.Generator) -> np.ndarray:
    """Return a round beam with the structure of a diffuser, whose phase varies by 1.5 rad over some pixels."""
    noise = ndimage.gaussian_filter(rng.normal(size=(2, len(r), len(r))), (0, 2.5 * FINE, 2.5 * FINE), mode="wrap")
    noise /= noise.std(axis=(1, 2), keepdims=True)
    distance = np.hypot(r[:, None], r[None, :])
    return 0.5 * (1 + np.tanh((radius - distance) / 2)) * np.exp(0.15 * noise[0] + 1.2j * noise[1])


def _sample(shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Return a complex object on fine pixels: boxes and smooth ground, phases of about 1 rad, some absorption."""
    height, width = (FINE * side for side in shape)
    ground = ndimage.gaussian_filter(rng.normal(size=(height, width)), 3 * FINE)
    density = ground / ground.std() / 3
    for _ in range(shape[0] * shape[1] // 120):
        h, w = rng.integers(2 * FINE, 9 * FINE, 2)
        row, column = rng.integers(0, height), rng.integers(0, width)
        density[row : row + h, column : column + w] += rng.choice([-0.7, 0.7])
    density = ndimage.gaussian_filter(density, 0.8 * FINE)
    return np.exp((-0.06 + 0.8j) * (density - density.min()))
