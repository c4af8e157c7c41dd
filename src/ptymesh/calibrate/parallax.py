"""Defocus, astigmatism and orientation from virtual bright-field images, each of which sees the object from its side.

K           bright-field pixels
k           their places over the wavelength, in the detector's axes with those exchanged if it is transposed
q           frequencies of the scan, turned by its rotation: q = R q_scan
chi, A      phase and aperture of the probe-forming lens, P = A exp(-i chi)
V(k, q)     transform of the image of pixel k over the scan

A weak phase object phi makes V(k, q) = i phi(q) G(k, q) with
G = A(k) A(k - q) exp(i chi(k) - i chi(k - q)) - A(k) A(k + q) exp(-i chi(k) + i chi(k + q)); for small q that is one
image which pixel k sees displaced by -grad chi / 2 pi, the parallax. The power of sum_k G* V over |G|, summed over q,
is largest for the true lens and orientation. (-R, -chi) gives the same power: the twin, with phi negated.

Source: Rodenburg & Bates, Phil. Trans. R. Soc. A 339, 521 (1992); Varnavides et al., arXiv:2309.05250 (2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import atan2, hypot, radians

import numpy as np
from scipy.optimize import minimize

from ptymesh.calibrate.centre_of_mass import frequencies, tapered
from ptymesh.calibrate.scan_grid import ScanGrid

#: Frequencies that the search uses, and that the refinement does.
SEARCHED, REFINED = 300, 1200
#: Step of the rotations that are searched, in degrees.
ROTATION_STEP_DEG = 10.0
#: Largest number of defoci that are searched, on one side.
MOST_DEFOCI = 40
#: Groups of frequencies that are fitted independently, whose scatter is the error.
GROUPS = 4
#: Width of the aperture's edge over its radius: bright-field pixels are squares of detector pixels.
EDGE = 0.08
#: Least lead over the other handedness, in standard errors, and largest error of the rotation, for a fit to count.
SURE_LEAD, SURE_DEG = 3.5, 8.0


@dataclass(frozen=True)
class Lens:
    """Orientation and aberrations.

    Attributes:
        transpose: whether the detector's axes are exchanged.
        rotation_deg: of the scan.
        c10_m: minus the defocus.
        c12_m: (C12a, C12b) of the astigmatism.
    """

    transpose: bool
    rotation_deg: float
    c10_m: float
    c12_m: tuple[float, float] = (0.0, 0.0)

    @property
    def twin(self) -> Lens:
        """The lens that explains the images as well, with the object's phase negated."""
        angle = (self.rotation_deg + 360) % 360 - 180
        return Lens(self.transpose, angle, -self.c10_m, (-self.c12_m[0], -self.c12_m[1]))

    @property
    def astigmatism(self) -> tuple[float, float]:
        """Size in metres and direction in rad of the astigmatism, as a recipe has them."""
        return hypot(*self.c12_m), atan2(self.c12_m[1], self.c12_m[0]) / 2


@dataclass(frozen=True)
class ParallaxFit:
    """Lens found by parallax, one of the two twins.

    Attributes:
        lens: as found.
        rotation_error_deg, c10_error_m, c12_error_m: standard errors by the scatter of independent frequencies.
        lead: power of the best lens less that of the best of the other handedness, in standard errors over frequencies.
        gain: power of the matched images over what it is without aberrations, at the same orientation.
    """

    lens: Lens
    rotation_error_deg: float
    c10_error_m: float
    c12_error_m: float
    lead: float
    gain: float

    @property
    def is_sure(self) -> bool:
        """True if independent frequencies agree on the orientation."""
        return self.lead > SURE_LEAD and self.rotation_error_deg < SURE_DEG


class BrightField:
    """Transforms of bright-field images, matched against what lenses would make of a weak phase object.

    Args:
        pixels: (N, K) shares of the view's counts in bright-field pixels.
        angles: (K, 2) their places over the disc's radius, y x.
        grid: of the scan.
        semiangle_rad: half-angle of the disc.
        wavelength_m: wavelength.
    """

    def __init__(
        self, pixels: np.ndarray, angles: np.ndarray, grid: ScanGrid, semiangle_rad: float, wavelength_m: float
    ) -> None:
        self.grid, self.semiangle, self.wavelength = grid, semiangle_rad, wavelength_m
        self.k = angles * semiangle_rad / wavelength_m
        q = frequencies(grid).reshape(-1, 2)
        size = np.hypot(q[:, 0], q[:, 1])
        # a real image: half of the frequencies is all; beyond twice the aperture there is no signal
        half = (q[:, 0] > 0) | ((q[:, 0] == 0) & (q[:, 1] > 0))
        inside = half & (size < 0.9 * 0.5 / max(grid.step_m)) & (size < 1.8 * semiangle_rad / wavelength_m)
        images = np.empty((len(q), len(angles)), np.complex64)
        for one in range(len(angles)):
            images[:, one] = np.fft.fft2(tapered(grid.image(pixels[:, one].astype(np.float64)))).reshape(-1)
        self._all, self._all_q = images, q
        # those with the strongest images, of which a mean over all pixels (current of the beam) is no part
        contrast = images - images.mean(axis=1, keepdims=True)
        power = np.where(inside, (np.abs(contrast) ** 2).sum(axis=1), -1)
        order = np.argsort(-power, kind="stable")[: min(REFINED, int(inside.sum()))]
        self.q, self.images = q[order], images[order]
        self.power = (np.abs(self.images) ** 2).sum(axis=1)

    def matched(self, lens: Lens, q: np.ndarray, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return sum_k G* V / i, (n,), and sum_k |G|^2, (n,), for frequencies q (n, 2) and their images (n, K).

        Args:
            lens: orientation and aberrations.
            q: in the scan's axes.
            images: transforms.
        """
        angle = radians(lens.rotation_deg)
        cosine, sine = np.cos(angle), np.sin(angle)
        turned = np.stack([cosine * q[:, 0] - sine * q[:, 1], sine * q[:, 0] + cosine * q[:, 1]], axis=1)
        k = self.k[:, ::-1] if lens.transpose else self.k
        # chi is quadratic: chi(k) - chi(k - q) = k H q - q H q / 2, with H of the defocus and astigmatism
        bent = turned @ _curvature(lens) * (2 * np.pi * self.wavelength)
        half = np.exp(0.5j * (bent * turned).sum(axis=1))[:, None].astype(np.complex64)
        wave = np.exp(1j * (bent @ k.T).astype(np.float32))
        square = (k**2).sum(axis=1) + (turned**2).sum(axis=1)[:, None]
        cross = 2 * (turned @ k.T)
        model = wave * (self._aperture(square - cross) * half.conj() - self._aperture(square + cross) * half)
        overlap = np.einsum("nk,nk->n", model.conj(), images)
        return overlap / 1j, np.einsum("nk,nk->n", model.real, model.real) + np.einsum(
            "nk,nk->n", model.imag, model.imag
        )

    def strength(self, lens: Lens, which: slice | np.ndarray = slice(None)) -> np.ndarray:
        """Return the share of each frequency's power (n,) that the lens explains.

        Args:
            lens: orientation and aberrations.
            which: frequencies.
        """
        overlap, norm = self.matched(lens, self.q[which], self.images[which])
        return np.asarray(np.abs(overlap) ** 2 / (norm + 0.02 * len(self.k)) / self.power[which].mean())

    def phase_image(self, lens: Lens) -> np.ndarray:
        """Return the object's phase (R, C) in arbitrary units, by the matched sum (single side band)."""
        overlap, norm = np.zeros(len(self._all_q), complex), np.zeros(len(self._all_q))
        for start in range(0, len(self._all_q), 4096):
            part = slice(start, start + 4096)
            overlap[part], norm[part] = self.matched(lens, self._all_q[part], self._all[part])
        waves = overlap / (norm + 0.02 * len(self.k))
        waves[0] = 0
        return np.asarray(np.fft.ifft2(waves.reshape(self.grid.shape)).real)

    def aligned_image(self, lens: Lens) -> np.ndarray:
        """Return the mean (R, C) of the bright-field images, each moved by its parallax to where the others are."""
        displaced = np.zeros(len(self._all_q), complex)
        shifts = self.shifts(lens)
        for one in range(len(self.k)):
            displaced += self._all[:, one] * np.exp(2j * np.pi * (self._all_q @ shifts[one]))
        return np.asarray(np.fft.ifft2((displaced / len(self.k)).reshape(self.grid.shape)).real)

    def shifts(self, lens: Lens) -> np.ndarray:
        """Return the displacement (K, 2) in metres, y x in the scan's axes, of the image of each pixel."""
        k = self.k[:, ::-1] if lens.transpose else self.k
        angle = radians(lens.rotation_deg)
        rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        return np.asarray(-(self.wavelength * k) @ _curvature(lens) @ rotation)  # R^T of each

    def _aperture(self, square: np.ndarray) -> np.ndarray:
        """Return the aperture at k^2; its edge is soft, as pixels are squares of detector pixels."""
        share = square.astype(np.float32) * np.float32((self.wavelength / self.semiangle) ** 2)
        return np.clip((1 - share) / (2 * EDGE) + 0.5, 0, 1)


def _curvature(lens: Lens) -> np.ndarray:
    """Return the matrix (2, 2) on (y, x) by which angles times it are displacements of rays."""
    a, b = lens.c12_m
    return np.array([[lens.c10_m - a, b], [b, lens.c10_m + a]])


def fit_parallax(images: BrightField, most_c10_m: float) -> ParallaxFit:
    """Return the lens that explains the bright-field images best.

    Args:
        images: of the scan.
        most_c10_m: largest defocus on either side.
    """
    groups = [np.arange(start, len(images.q), GROUPS) for start in range(GROUPS)]
    first = np.arange(min(SEARCHED, len(images.q)))
    spread = float(np.sqrt((images.q[first] ** 2).sum(axis=1).mean()))
    step = max(0.25 / (spread * images.semiangle), most_c10_m / MOST_DEFOCI)
    defoci = np.arange(0, most_c10_m + step / 2, step)
    rotations = np.arange(-180, 180, ROTATION_STEP_DEG)
    tried = [
        Lens(transpose, angle, c10)
        for transpose, angle, c10 in product((False, True), rotations, defoci)
        if c10 or angle < 0
    ]
    strengths = np.array([images.strength(lens, first) for lens in tried])
    order = np.argsort(-strengths.sum(axis=1), kind="stable")
    best = tried[order[0]]
    other = next(one for one in order if tried[one].transpose != best.transpose)
    # as shares of each frequency's own power, so that a few strong ones do not decide alone
    ahead = (strengths[order[0]] - strengths[other]) * images.power[first].mean() / images.power[first]
    lens = _refined(images, best, np.arange(len(images.q)), step)
    parts = [_refined(images, lens, group, step / 2) for group in groups]
    turns = [((part.rotation_deg - lens.rotation_deg + 180) % 360) - 180 for part in parts]
    root = np.sqrt(GROUPS)
    c12 = np.array([part.c12_m for part in parts])
    in_focus = Lens(lens.transpose, lens.rotation_deg, 0.0)
    return ParallaxFit(
        lens,
        float(np.std(turns, ddof=1) / root),
        float(np.std([part.c10_m for part in parts], ddof=1) / root),
        float(np.hypot(*np.std(c12, axis=0, ddof=1)) / root),
        float(ahead.sum() / max(np.sqrt((ahead**2).sum()), 1e-30)),
        float(images.strength(lens).sum() / images.strength(in_focus).sum()),
    )


def _refined(images: BrightField, start: Lens, which: np.ndarray, step_m: float) -> Lens:
    """Return the lens near another one that explains some frequencies best.

    Args:
        images: of the scan.
        start: where the search begins.
        which: frequencies.
        step_m: first step of the defocus.
    """

    def lens(p: np.ndarray) -> Lens:
        return Lens(start.transpose, start.rotation_deg + 5 * p[0], start.c10_m + step_m * p[1],
                    (start.c12_m[0] + step_m * p[2], start.c12_m[1] + step_m * p[3]))  # fmt: skip

    simplex = np.concatenate([np.zeros((1, 4)), 0.5 * np.eye(4)])
    minimum = minimize(
        lambda p: -images.strength(lens(p), which).sum(), np.zeros(4), method="Nelder-Mead",
        options={"initial_simplex": simplex, "xatol": 5e-3, "fatol": 1e-7, "maxfev": 240},
    )  # fmt: skip
    best = lens(minimum.x)
    angle = (best.rotation_deg + 180) % 360 - 180
    return Lens(best.transpose, float(angle), float(best.c10_m), (float(best.c12_m[0]), float(best.c12_m[1])))
