"""Simulated scans in plain numpy: beams, samples, paths, what a detector counts, and the files that hold it.

N       views
M       incoherent modes
L       slices
n       window and detector pixels along each side; waves are computed with 2 n, object pixels half as large
H, W    object pixels of the model; the sample has 2 H x 2 W

Nothing here is taken from ptymesh. Lengths without a unit are object pixels of the model (dx), y before x. A distance
z stands as lambda z / dx^2, in square pixels. Waves go as exp(i k z): free space multiplies the spectrum by
exp(-i pi lambda z q^2), and the detector far away sees the Fourier transform exp(-2 pi i q r).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import h5py
import numpy as np
from scipy import fft, ndimage

Rng = np.random.Generator

#: Planck's constant (J s), speed of light (m/s), elementary charge (C), mass of the electron (kg).
H_J_S, C_M_S, E_C, ELECTRON_KG = 6.62607015e-34, 299792458.0, 1.602176634e-19, 9.1093837015e-31
#: Object pixels between the scan and the border of the sample.
MARGIN = 8


# --- beams ----------------------------------------------------------------------------------------------------------


def _frequencies(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (2n, 1) and (1, 2n) detector pixels from the zero frequency, in the order of the FFT."""
    k = fft.fftfreq(2 * n) * 2 * n
    return k[:, None], k[None, :]


def _radii(n: int) -> np.ndarray:
    """Return (2n, 2n) object pixels from the middle of the window."""
    r = (np.arange(2 * n) - n) / 2
    return np.hypot(r[:, None], r[None, :])


def _edge(distance: np.ndarray, width: float) -> np.ndarray:
    """Return a step from 0 (negative distances) to 1, as smooth as `width`."""
    return 0.5 * (1 + np.tanh(distance / width))


def lens_beam(
    n: int, radius: float, spread: float, stop: float = 0.0, astigmatism: float = 0.0, spherical: float = 0.0
) -> np.ndarray:
    """Return the beam of a lens or zone plate with a round pupil, off its focus.

    Args:
        n: window.
        radius: of the pupil, detector pixels.
        spread: geometric radius of the beam at the sample; positive downstream of the focus, negative upstream.
        stop: radius of a central stop as a share of the pupil's.
        astigmatism: radius by which the beam is wider along the diagonals than across.
        spherical: radius by which the pupil's edge is spread more than its defocus alone would.

    Returns:
        (2n, 2n) complex, the axis in the middle.
    """
    y, x = _frequencies(n)
    k = np.hypot(y, x)
    pupil = _edge(radius - k, 0.4) * (_edge(k - stop * radius, 0.4) if stop else 1.0)
    scale = np.pi / (n * radius)
    phase = scale * (spread * k**2 + astigmatism * 2 * y * x + spherical * k**4 / (2 * radius**2))
    return fft.fftshift(fft.ifft2(pupil * np.exp(-1j * phase)))


def disc_beam(n: int, radius: float, distance: float) -> np.ndarray:
    """Return the beam (2n, 2n) behind a round hole of this radius, at lambda z / dx^2 = distance."""
    return travel(_edge(radius - _radii(n), 0.7).astype(complex), distance)


def gaussian_beam(n: int, sigma: float, curvature: float) -> np.ndarray:
    """Return a Gaussian beam (2n, 2n) whose phase is pi curvature r^2."""
    r = _radii(n)
    return np.exp(-((r / (2 * sigma)) ** 2) + 1j * np.pi * curvature * r**2)


def diffuse_beam(n: int, radius: float, grain: float, rng: Rng) -> np.ndarray:
    """Return a wide beam (2n, 2n) behind a diffuser: random phases of about 1 rad, as coarse as `grain`."""
    rough = ndimage.gaussian_filter(rng.standard_normal((2 * n, 2 * n)), 2 * grain, mode="wrap")
    return _edge(radius - _radii(n), 3.0) * np.exp(1.2j * rough / rough.std())


def partial_modes(beam: np.ndarray, powers: Sequence[float]) -> np.ndarray:
    """Return modes (M, 2n, 2n) of these powers: the beam, and the beam times polynomials that make it incoherent."""
    n = len(beam) // 2
    r = (np.arange(2 * n) - n) / 2
    y, x = r[:, None], r[None, :]
    weight = np.abs(beam) ** 2
    width = np.sqrt((weight * (y**2 + x**2)).sum() / weight.sum())
    shapes = [np.ones((1, 1)), y / width, x / width, (y**2 - x**2) / width**2, 2 * y * x / width**2]
    modes = [beam * shape for shape in shapes[: len(powers)]]
    return np.stack([m * np.sqrt(p / (np.abs(m) ** 2).sum()) for m, p in zip(modes, powers, strict=True)])


def travel(wave: np.ndarray, distance: float) -> np.ndarray:
    """Return the wave (..., 2n, 2n) after lambda z / dx^2 = distance of free space."""
    n = wave.shape[-1] // 2
    y, x = _frequencies(n)
    kernel = np.exp(-1j * np.pi * distance * (y**2 + x**2) / n**2).astype(wave.dtype)
    return fft.ifft2(fft.fft2(wave) * kernel)


def halve(image: np.ndarray) -> np.ndarray:
    """Return the image (..., 2a, 2b) with pixels twice as large, (..., a, b): the inner half of its spectrum."""
    *_, height, width = image.shape
    spectrum = fft.fftshift(fft.fft2(image), axes=(-2, -1))
    rows, columns = (slice(size // 4, size // 4 + size // 2) for size in (height, width))
    inner = spectrum[..., rows, columns]
    return fft.ifft2(fft.ifftshift(inner, axes=(-2, -1))) / 4


# --- samples --------------------------------------------------------------------------------------------------------


def smooth_sample(shape: tuple[int, int], rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Return thickness and darkness (2H, 2W), from 0 to 1, of something without edges."""
    fields = []
    for grain in (3.0, 4.0):
        rough = ndimage.gaussian_filter(rng.standard_normal(_twice(shape)), 2 * grain, mode="wrap")
        fields.append(np.clip(0.5 + rough / (4 * rough.std()), 0, 1))
    return fields[0], fields[1]


def edged_sample(shape: tuple[int, int], rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Return thickness and darkness (2H, 2W) of ellipses and boxes with edges of a pixel."""
    height, width = shape
    y, x = _coordinates(shape)
    total = np.zeros(_twice(shape))
    for _ in range(height * width // 250):
        cy, cx = rng.uniform(0, height), rng.uniform(0, width)
        a, b, turn = rng.uniform(3, 14), rng.uniform(3, 14), rng.uniform(0, np.pi)
        u, v = (
            ((y - cy) * np.cos(turn) + (x - cx) * np.sin(turn)) / a,
            ((x - cx) * np.cos(turn) - (y - cy) * np.sin(turn)) / b,
        )
        size = np.hypot(u, v) if rng.random() < 0.5 else np.maximum(np.abs(u), np.abs(v))
        total += rng.uniform(-0.5, 0.5) * _edge((1 - size) * min(a, b), 0.8)
    total = np.clip(0.5 + total, 0, 1)
    return total, total


def spoked_sample(shape: tuple[int, int], rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Return thickness and darkness (2H, 2W) of a star of spokes, its middle off the scan's."""
    y, x = _coordinates(shape)
    y, x = y - shape[0] * rng.uniform(0.4, 0.6), x - shape[1] * rng.uniform(0.4, 0.6)
    spokes, radius = int(rng.integers(9, 15)), np.hypot(y, x)
    wave = np.sin(spokes * np.arctan2(y, x) + rng.uniform(0, 6)) * radius / spokes
    rings = np.abs((radius / 18) % 1 - 0.5) * 18
    star = _edge(wave, 0.8) * _edge(rings - 1.2, 0.6)
    return star, star


def crystal_sample(shape: tuple[int, int], rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Return thickness and darkness (2H, 2W) of atoms on a lattice with vacancies, and of two kinds."""
    y, x = _coordinates(shape)
    a, turn = rng.uniform(9, 13), rng.uniform(0, np.pi)
    reach = int(1.5 * max(shape) / a)
    total = np.zeros(_twice(shape))
    for i in range(-reach, reach + 1):
        for j in range(-reach, reach + 1):
            for dy, dx, weight in ((0.0, 0.0, 1.0), (0.5, 0.35, 0.6)):
                u, v = (i + dy) * a, (j + dx) * a * 0.85
                cy = shape[0] / 2 + u * np.cos(turn) - v * np.sin(turn)
                cx = shape[1] / 2 + u * np.sin(turn) + v * np.cos(turn)
                if -9 < cy < shape[0] + 9 and -9 < cx < shape[1] + 9 and rng.random() > 0.08:
                    _add_spot(total, y, x, cy + rng.normal(0, 0.2), cx + rng.normal(0, 0.2), weight)
    return np.clip(total, 0, 1.5), np.zeros((1, 1))


def _add_spot(image: np.ndarray, y: np.ndarray, x: np.ndarray, cy: float, cx: float, weight: float) -> None:
    rows = slice(max(0, int(2 * cy) - 16), max(0, int(2 * cy) + 17))
    columns = slice(max(0, int(2 * cx) - 16), max(0, int(2 * cx) + 17))
    image[rows, columns] += weight * np.exp(-((y[rows] - cy) ** 2 + (x[:, columns] - cx) ** 2) / (2 * 1.7**2))


def _twice(shape: tuple[int, int]) -> tuple[int, int]:
    return 2 * shape[0], 2 * shape[1]


def _coordinates(shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return (2H, 1) and (1, 2W) places in pixels of the model."""
    return np.arange(2 * shape[0])[:, None] / 2, np.arange(2 * shape[1])[None, :] / 2


SAMPLES = {"smooth": smooth_sample, "edges": edged_sample, "spokes": spoked_sample, "crystal": crystal_sample}


def transmission(kind: str, shape: tuple[int, int], rng: Rng, phase: float, absorption: float) -> np.ndarray:
    """Return (2H, 2W) complex: what a sample of this kind lets through, `phase` rad where it is thickest."""
    thickness, darkness = SAMPLES[kind](shape, rng)
    return np.broadcast_to((1 - absorption * darkness) * np.exp(1j * phase * thickness), _twice(shape)).copy()


# --- paths ----------------------------------------------------------------------------------------------------------


def raster_shape(views: int, columns: int | None = None) -> tuple[int, int]:
    """Return rows and columns of about so many views."""
    columns = columns or round(np.sqrt(views))
    return views // columns, columns


def path(kind: str, views: int, step: float, rng: Rng, columns: int | None = None) -> np.ndarray:
    """Return positions (N, 2) about (0, 0), in the order in which they are visited.

    Args:
        kind: spiral, raster, jitter, serpentine or random.
        views: at most so many.
        step: mean distance of neighbours.
        columns: of rasters.
    """
    if kind == "spiral":
        i = np.arange(views) + 0.5
        angle = i * np.pi * (3 - np.sqrt(5))
        return (step * np.sqrt(i / np.pi))[:, None] * np.stack([np.sin(angle), np.cos(angle)], axis=1)
    if kind == "random":
        side = step * np.sqrt(views)
        placed = rng.uniform(-side / 2, side / 2, (1, 2))
        while len(placed) < views:  # of several places, the one farthest from all others
            some = rng.uniform(-side / 2, side / 2, (8, 2))
            nearest = np.linalg.norm(some[:, None] - placed[None], axis=2).min(axis=1)
            placed = np.vstack([placed, some[nearest.argmax()]])
        return placed
    rows, across = raster_shape(views, columns)
    y, x = np.mgrid[0:rows, 0:across].astype(float)
    if kind == "serpentine":
        x[1::2] = x[1::2, ::-1]
    points = step * np.stack([y.ravel() - (rows - 1) / 2, x.ravel() - (across - 1) / 2], axis=1)
    return points + (rng.uniform(-0.35, 0.35, points.shape) * step if kind != "raster" else 0.0)


# --- what is measured -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Optics:
    """What the file or the recipe says of the instrument.

    Attributes:
        radiation: photon or electron.
        energy_eV: of a photon, or kinetic.
        object_pixel_m: of the model.
        propagation: far_field or angular_spectrum.
        distance_m, detector_pixel_m: of X-rays; electrons' patterns come with their object pixel.
        focus_distance_m: from the focus to the sample, of a near field that widens.
    """

    radiation: str
    energy_eV: float
    object_pixel_m: float
    propagation: str = "far_field"
    distance_m: float | None = None
    detector_pixel_m: float | None = None
    focus_distance_m: float | None = None

    @property
    def wavelength_m(self) -> float:
        """The wavelength, relativistic for electrons."""
        if self.radiation == "photon":
            return H_J_S * C_M_S / (self.energy_eV * E_C)
        energy, rest = self.energy_eV * E_C, ELECTRON_KG * C_M_S**2
        return float(H_J_S * C_M_S / np.sqrt(energy * (energy + 2 * rest)))


def far_xray(n: int) -> Optics:
    """Return 8 keV, pixels of 20 nm, a detector with pixels of 75 um."""
    start = Optics("photon", 8000.0, 20e-9, detector_pixel_m=75e-6)
    return replace(start, distance_m=20e-9 * n * 75e-6 / start.wavelength_m)


def near_xray(distance: float, magnification: float = 1.0) -> Optics:
    """Return 17 keV, pixels of 50 nm at the sample, and the detector that lambda z / dx^2 = distance and the
    magnification of a beam from a focus ask for."""
    start = Optics("photon", 17000.0, 50e-9, "angular_spectrum", detector_pixel_m=50e-9 * magnification)
    effective = distance * 50e-9**2 / start.wavelength_m
    beyond = effective * magnification
    focus = beyond / (magnification - 1) if magnification > 1 else None
    return replace(start, distance_m=beyond, focus_distance_m=focus)


def electrons() -> Optics:
    """Return 200 keV, pixels of 0.2 Angstrom."""
    return Optics("electron", 200e3, 0.2e-10)


@dataclass(frozen=True)
class Setup:
    """An experiment before anything is counted.

    Attributes:
        optics: of the instrument.
        modes: (M, 2n, 2n) complex, the beam.
        guess: (1, n, n) complex, what is known of the beam.
        slices: (L, 2H, 2W) complex, the sample; the beam meets the first one first.
        positions: (N, 2) where the window's top left corner truly lies in the model's (H, W).
        dose: counts that a mean view holds.
        gap: lambda dz / dx^2 between slices.
        distance: lambda z / dx^2 to the detector; None far away.
    """

    optics: Optics
    modes: np.ndarray
    guess: np.ndarray
    slices: np.ndarray
    positions: np.ndarray
    dose: float
    gap: float = 0.0
    distance: float | None = None

    @property
    def window(self) -> int:
        """Pixels along each side of the window."""
        return self.modes.shape[-1] // 2

    def expected(
        self, positions: np.ndarray | None = None, offsets: np.ndarray | None = None, weights: np.ndarray | None = None
    ) -> np.ndarray:
        """Return (N, n, n) expected counts, the zero frequency of far fields in the middle.

        Args:
            positions: (N, 2) other places than the true ones.
            offsets: (K, 2) or (N, K, 2) by which the beam wanders while a view is counted.
            weights: (K,) share of the time at each.
        """
        at = self.positions if positions is None else positions
        offsets = np.zeros((1, 2)) if offsets is None else offsets
        weights = np.full(offsets.shape[-2], 1 / offsets.shape[-2]) if weights is None else weights
        found = np.zeros((len(at), self.window, self.window))
        modes, slices = self.modes.astype(np.complex64), self.slices.astype(np.complex64)
        for view, place in enumerate(at):
            for offset, weight in zip(offsets[view] if offsets.ndim == 3 else offsets, weights, strict=True):
                found[view] += weight * self._pattern(place + offset, modes, slices)
        return found * self.dose / found.sum(axis=(1, 2)).mean()

    def _pattern(self, place: np.ndarray, modes: np.ndarray, slices: np.ndarray) -> np.ndarray:
        n = self.window
        corner = np.floor(2 * place).astype(int)
        rest = 2 * place - corner
        y, x = _frequencies(n)
        shift = np.exp(-1j * np.pi * (rest[0] * y + rest[1] * x) / n)
        wave = fft.ifft2(fft.fft2(modes) * shift.astype(np.complex64))
        for index, one in enumerate(slices):
            if index:
                wave = travel(wave, self.gap)
            wave = wave * one[corner[0] : corner[0] + 2 * n, corner[1] : corner[1] + 2 * n]
        if self.distance is not None:
            back = np.conj(shift).astype(np.complex64)  # beam and detector stay where they are, the sample moves
            wave = fft.ifft2(fft.fft2(travel(wave, self.distance)) * back)
            return (np.abs(wave) ** 2).sum(axis=0)[::2, ::2]
        far = fft.fftshift((np.abs(fft.fft2(wave)) ** 2).sum(axis=0))
        return far[n // 2 : n // 2 + n, n // 2 : n // 2 + n]

    def counted(self, rng: Rng, **changes: np.ndarray | None) -> np.ndarray:
        """Return (N, n, n) uint32 counts of `expected`."""
        return rng.poisson(self.expected(**changes)).astype(np.uint32)

    def projection(self) -> np.ndarray:
        """Return (H, W) complex, the product of all slices on the model's pixels."""
        return halve(self.slices.prod(axis=0))

    def region(self) -> np.ndarray:
        """Return (H, W) bool, where more than a fifth of the largest exposure fell."""
        light = np.zeros(tuple(size // 2 for size in self.slices.shape[-2:]))
        intensity, n = (np.abs(halve(self.modes)) ** 2).sum(axis=0), self.window
        for y, x in np.rint(self.positions).astype(int):
            light[y : y + n, x : x + n] += intensity
        return light > 0.2 * light.max()


def canvas(points: np.ndarray, n: int) -> tuple[tuple[int, int], np.ndarray]:
    """Return the (H, W) of a sample for these positions (N, 2), and positions in it of the window's corner."""
    low, high = points.min(axis=0), points.max(axis=0)
    size = np.ceil(high - low).astype(int) + n + 2 * MARGIN
    size += size % 2  # halves evenly
    return (int(size[0]), int(size[1])), points - low + MARGIN


# --- files ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scan:
    """A data set as somebody would hand it over.

    Attributes:
        patterns: (N, n, n) counts, the zero frequency in the middle.
        positions: (N, 2) pixels that the file says, of the size that it says.
        optics: that the file (or, of electrons, the recipe) says.
        probe: (M, n, n) complex or None.
        mask: (n, n) bool, True where good, or None.
        extra: further arrays of an npz, or of a file of their own beside a CXI, by name.
    """

    patterns: np.ndarray
    positions: np.ndarray
    optics: Optics
    probe: np.ndarray | None = None
    mask: np.ndarray | None = None
    extra: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def positions_m(self) -> np.ndarray:
        """(N, 2) metres about their middle."""
        pixels = self.positions - (self.positions.min(axis=0) + self.positions.max(axis=0)) / 2
        return np.asarray(pixels * self.optics.object_pixel_m)


def write_scan(scan: Scan, folder: Path, positions_m: np.ndarray) -> dict[str, object]:
    """Write the scan and return the `data` of a recipe for it: X-rays as CXI, electrons as npz.

    Args:
        scan: the data set.
        folder: where to write.
        positions_m: (N, 2) metres; those of `scan.positions_m`, unless the file is wrong about its own pixels.
    """
    for name, array in scan.extra.items():
        np.save(folder / f"{name}.npy", array)
    optics = scan.optics
    if optics.radiation == "electron":
        arrays = {"patterns": scan.patterns, "positions": positions_m}
        arrays |= {} if scan.probe is None else {"probe": scan.probe.astype(np.complex64)}
        arrays |= {} if scan.mask is None else {"mask": scan.mask}
        np.savez(folder / "scan.npz", **arrays)
        return {
            "path": "scan.npz",
            "keys": {name: name for name in arrays},
            "radiation": "electron",
            "energy_eV": optics.energy_eV,
            "object_pixel_m": optics.object_pixel_m,
        }
    _write_cxi(scan, folder / "scan.cxi", positions_m)
    said: dict[str, object] = {"path": "scan.cxi"}
    if optics.propagation != "far_field":
        said["propagation"] = optics.propagation
    if optics.focus_distance_m is not None:
        said["focus_distance_m"] = optics.focus_distance_m
    return said


def _write_cxi(scan: Scan, path: Path, positions_m: np.ndarray) -> None:
    """Write CXI 1.6: the sample's translation (x, y, z), the energy in joules."""
    optics = scan.optics
    with h5py.File(path, "w") as file:
        file["cxi_version"] = 160
        entry = file.create_group("entry_1")
        detector = entry.create_group("instrument_1/detector_1")
        detector["data"] = scan.patterns
        detector["distance"] = optics.distance_m
        detector["x_pixel_size"] = detector["y_pixel_size"] = optics.detector_pixel_m
        if scan.mask is not None:
            detector["mask"] = (~scan.mask).astype(np.uint32)
        source = entry.create_group("instrument_1/source_1")
        source["energy"] = optics.energy_eV * E_C
        if scan.probe is not None:
            source["illumination"] = scan.probe.astype(np.complex64)
        translation = np.zeros((len(positions_m), 3))
        translation[:, 0], translation[:, 1] = positions_m[:, 1], positions_m[:, 0]
        entry["sample_1/geometry_1/translation"] = translation
        entry["data_1/data"] = detector["data"]
