"""Small scans in plain numpy, whose truth is known: far field, electrons, near field, several slices.

N, M, L     views, modes, slices
h, w        window pixels
m           frequency in detector pixels, -n/2 to n/2
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy import ndimage

from ptymesh.geometry import far_field, near_field
from ptymesh.measurement import ArraySource, Measurement

WAVELENGTH_M, DISTANCE_M, DETECTOR_PIXEL_M = 1.24e-10, 2.0, 75e-6
NEAR_PIXEL_M = 1e-7
MARGIN = 12


def grid(n: int) -> np.ndarray:
    """Integers from -(n // 2), the zero at n // 2."""
    return np.arange(n) - n // 2


def spiral(views: int, step: float) -> np.ndarray:
    k = np.arange(views) + 0.5
    return 0.62 * step * np.sqrt(k)[:, None] * np.stack([np.sin(2.39996 * k), np.cos(2.39996 * k)], axis=1)


def raster(views: int, step: float) -> np.ndarray:
    side = round(views**0.5)
    y, x = np.divmod(np.arange(side * side), side)
    return step * np.stack([y - (side - 1) / 2, x - (side - 1) / 2], axis=1)


def serpentine(views: int, step: float) -> np.ndarray:
    """Return a raster whose odd rows run backwards."""
    side = round(views**0.5)
    rows = raster(views, step).reshape(side, side, 2)
    rows[1::2] = rows[1::2, ::-1]
    return rows.reshape(-1, 2)


def jittered(views: int, step: float, rng: np.random.Generator) -> np.ndarray:
    positions = raster(views, step)
    return positions + rng.uniform(-0.25, 0.25, positions.shape) * step


def sample(
    rng: np.random.Generator, shape: tuple[int, int], absorption: float, phase: float, size: float
) -> np.ndarray:
    """Return a complex object of smooth noise and sharp-edged polygons, features of about `size` pixels."""
    noise = ndimage.gaussian_filter(rng.normal(size=(2, *shape)), (0, size, size))
    noise /= noise.std(axis=(1, 2), keepdims=True)
    y, x = np.indices(shape)
    edges = np.zeros(shape)
    for _ in range(int(np.prod(shape) / (8 * size**2) / 4)):
        cy, cx = rng.uniform(0, shape[0]), rng.uniform(0, shape[1])
        a = rng.uniform(0, np.pi)
        along, across = (y - cy) * np.cos(a) + (x - cx) * np.sin(a), (x - cx) * np.cos(a) - (y - cy) * np.sin(a)
        edges += rng.choice([-1, 1]) * ((abs(along) < size * rng.uniform(0.7, 2)) & (abs(across) < size))
    density = 0.5 * noise[0] + edges
    return np.exp(-absorption * np.maximum(density + 1, 0) + 1j * phase * (0.7 * density + 0.3 * noise[1]))


def lens(shape: tuple[int, int], radius: float, spread: float, stop: float = 0.0, coma: float = 0.0) -> np.ndarray:
    """Return the beam of a lens with an aperture of `radius` detector pixels, out of focus, its power 1.

    The defocus spreads the rim of the aperture to `spread` object pixels; its sign is that of the defocus.
    """
    y, x = grid(shape[0])[:, None], grid(shape[1])[None, :]
    scaled = np.hypot(y * shape[1] / shape[0], x)  # the same angle along both axes
    aperture = np.clip(radius + 0.5 - scaled, 0, 1) * (1 - np.clip(stop + 0.5 - scaled, 0, 1) * (stop > 0))
    c = spread / radius
    phase = np.pi * c * (y**2 / shape[0] + x**2 / shape[1]) + coma * (scaled / radius) ** 2 * (y / radius)
    wave = np.fft.ifft2(np.fft.ifftshift(aperture * np.exp(1j * phase)))
    wave = np.fft.fftshift(wave)
    return wave / np.linalg.norm(wave)


def speckled(shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Return a broad beam with structure, for the near field, its power 1."""
    y, x = grid(shape[0])[:, None], grid(shape[1])[None, :]
    envelope = np.exp(-(((y / (0.42 * shape[0])) ** 2 + (x / (0.42 * shape[1])) ** 2) ** 2))
    noise = ndimage.gaussian_filter(rng.normal(size=(2, *shape)), (0, 2.5, 2.5), mode="wrap")
    noise /= noise.std()
    wave = envelope * np.exp(0.25 * noise[0] + 0.8j * noise[1])
    return wave / np.linalg.norm(wave)


def more_modes(probe: np.ndarray, powers: tuple[float, ...]) -> np.ndarray:
    """Return modes (M, h, w): the beam times Hermite polynomials, made orthogonal, with these shares of the power."""
    y, x = grid(probe.shape[0])[:, None], grid(probe.shape[1])[None, :]
    width = np.sqrt((np.abs(probe) ** 2 * (y**2 + x**2)).sum() / 2)
    modes = [probe, probe * y / width, probe * x / width, probe * y * x / width**2][: len(powers)]
    made: list[np.ndarray] = []
    for mode in modes:
        for other in made:
            mode = mode - (other.conj() * mode).sum() * other
        made.append(mode / np.linalg.norm(mode))
    return np.stack([np.sqrt(p) * mode for p, mode in zip(powers, made, strict=True)])


@dataclass
class Scan:
    """A simulated scan.

    Attributes:
        rng: of the counts. object: (L, H, W). probes: (M, h, w), total power 1.
        positions: (N, 2) true, pixels of the object under the window's corner.
        photons: per view; None for intensities without noise.
        near: lambda z over the pixel's area, of the near field; 0 for the far field.
        spacing: lambda times the slices' distance over the pixel's area.
        radiation: photon or electron.
    """

    rng: np.random.Generator
    object: np.ndarray
    probes: np.ndarray
    positions: np.ndarray
    photons: float | None = 1e6
    near: float = 0.0
    spacing: float = 0.0
    radiation: str = "photon"
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def window(self) -> tuple[int, int]:
        return self.probes.shape[-2], self.probes.shape[-1]

    def kernel(self, distance: float) -> np.ndarray:
        """Return the Fresnel propagator of this lambda z over the pixel's area, DC at the corner."""
        fy, fx = (np.fft.fftfreq(n) for n in self.window)
        return np.exp(-1j * np.pi * distance * (fy[:, None] ** 2 + fx[None, :] ** 2))

    def intensity(
        self, position: np.ndarray, probes: np.ndarray | None = None, obj: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the intensity (h, w) at one position, sum 1 without absorption; DC at the corner in the far field."""
        probes = self.probes if probes is None else probes
        obj = self.object if obj is None else obj
        h, w = self.window
        corner = np.floor(position + 0.5).astype(int)
        fy, fx = position - corner
        ramp = np.exp(-2j * np.pi * (fy * np.fft.fftfreq(h)[:, None] + fx * np.fft.fftfreq(w)[None, :]))
        total = np.zeros((h, w))
        for probe in probes:
            wave = np.fft.ifft2(np.fft.fft2(probe) * ramp)
            for index, layer in enumerate(obj):
                if index:
                    wave = np.fft.ifft2(np.fft.fft2(wave) * self.kernel(self.spacing))
                wave = wave * layer[corner[0] : corner[0] + h, corner[1] : corner[1] + w]
            if self.near:  # the detector stays with the beam, not with the sample's pixels
                total += np.abs(np.fft.ifft2(np.fft.fft2(wave) * self.kernel(self.near) / ramp)) ** 2
            else:
                total += np.abs(np.fft.fft2(wave, norm="ortho")) ** 2
        return total

    def intensities(self, positions: np.ndarray | None = None, **changes: Any) -> np.ndarray:
        """Return intensities (N, h, w) of all views, sum 1 each without absorption."""
        return np.stack([self.intensity(p, **changes) for p in (self.positions if positions is None else positions)])

    def counts(self, intensities: np.ndarray | None = None) -> np.ndarray:
        """Return Poisson counts, or float32 intensities where there is no noise."""
        intensities = self.intensities() if intensities is None else intensities
        if self.photons is None:
            return (1e5 * intensities).astype(np.float32)
        return self.rng.poisson(self.photons * intensities).astype(np.uint32)

    def measurement(
        self, patterns: np.ndarray | None = None, positions: np.ndarray | None = None, **changes: Any
    ) -> Measurement:
        """Return the scan as ptymesh takes it, with the true first mode as the file's probe."""
        patterns = self.counts() if patterns is None else patterns
        shape = self.window
        radiation: Any = self.radiation
        if self.near:
            distance = self.near * NEAR_PIXEL_M**2 / WAVELENGTH_M
            geometry = near_field(shape, WAVELENGTH_M, distance, (NEAR_PIXEL_M,) * 2, propagation="fresnel")
        else:
            geometry = far_field(shape, WAVELENGTH_M, DISTANCE_M, (DETECTOR_PIXEL_M,) * 2, radiation)
        values: dict[str, Any] = {
            "patterns": ArraySource(np.ascontiguousarray(patterns)),
            "positions": self.positions if positions is None else positions,
            "geometry": geometry,
            "mask": np.ones(shape, bool),
            "probe": self.probes[:1].copy(),
        }
        return Measurement(**{**values, **changes})

    def moved(self, positions: np.ndarray) -> Scan:
        """Return the same scan with the views elsewhere."""
        return replace(self, positions=positions)


def make(
    rng: np.random.Generator,
    *,
    kind: str = "xray",
    window: int | tuple[int, int] = 48,
    views: int = 100,
    path: str = "jitter",
    photons: float | None = 1e6,
    overlap: float = 0.65,
    powers: tuple[float, ...] = (1.0,),
    spread: float | None = None,
    slices: int = 1,
    spacing: float = 0.0,
    strength: float = 1.0,
    pad: int = 0,
) -> Scan:
    """Return a sound scan.

    Args:
        rng: of sample, scan and counts.
        kind: xray (zone plate with a central stop), electron (weak phase object) or near (near field).
        window: side, or (h, w).
        views: asked for; a raster takes the nearest square.
        path: spiral, raster, serpentine or jitter.
        photons: per view, None for no noise.
        overlap: 1 - step / diameter of the beam.
        powers: of the modes.
        spread: object pixels to which defocus spreads the aperture's rim; by default a sixth of the window.
        slices, spacing: of the sample; spacing as lambda dz over the pixel's area.
        strength: factor on the sample's absorption and phase.
        pad: object pixels around the outermost windows, beside the margin.
    """
    h, w = (window, window) if isinstance(window, int) else window
    n = min(h, w)
    if kind == "near":
        probe, diameter = speckled((h, w), rng), 0.55 * n
        step = (1 - max(overlap, 0.8)) * diameter
    else:
        spread = n / 6 if spread is None else spread
        radius, stop, coma = (0.2 * n, 0.06 * n, 0.5) if kind == "xray" else (0.22 * n, 0.0, 0.6)
        probe = lens((h, w), radius, spread, stop, coma)
        diameter = 2 * abs(spread) + n / radius / 2
        step = (1 - overlap) * diameter
    where: dict[str, Callable[[], np.ndarray]] = {
        "spiral": lambda: spiral(views, step),
        "raster": lambda: raster(views, step),
        "serpentine": lambda: serpentine(views, step),
        "jitter": lambda: jittered(views, step, rng),
    }
    positions = where[path]()
    positions = positions - positions.min(axis=0) + MARGIN + pad
    shape = tuple(
        int(np.ceil(most)) + size + MARGIN + pad for most, size in zip(positions.max(axis=0), (h, w), strict=True)
    )
    if kind == "electron":
        layers = [sample(rng, shape, 0.0, 0.35 * strength, 1.5) for _ in range(slices)]  # type: ignore[arg-type]
    else:
        layers = [sample(rng, shape, 0.12 * strength / slices, 0.7 * strength, 2.0) for _ in range(slices)]  # type: ignore[arg-type]
    probes = more_modes(probe, powers)
    return Scan(
        rng,
        np.stack(layers),
        probes,
        positions,
        photons,
        near=8.0 if kind == "near" else 0.0,
        spacing=spacing,
        radiation="electron" if kind == "electron" else "photon",
    )
