"""Pupil of a probe, and the aberrations of the lens that explain its phase.

h, w      window pixels;  k  spatial frequency;  a = lambda |k|, phi = atan2(k_y, k_x)
A         spectrum of the probe;  chi  = -arg A, aberration phase, as in `probes.aberrated`

    chi = (2 pi / lambda) sum_nm a^(n+1) (C_nma cos(m phi) + C_nmb sin(m phi)) / (n + 1)

The pupil is made up of the frequencies whose power is a tenth of the typical one or more. Differences of the phase
between neighbouring frequencies, which are less than half a turn where the window holds the probe, are fitted first,
weighted by |A_1 A_2|; then the phase that is left, weighted by |A|^2. A constant and a shift of the whole probe are
free, and no aberrations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ptymesh.errors import BadInput
from ptymesh.physics.beam.caustic import PUPIL
from ptymesh.physics.beam.probes import aberration_phases
from ptymesh.physics.propagate import Pair, fft

#: Aberrations that are fitted: defocus, astigmatism, coma, spherical aberration.
LOW_ORDERS = ("C10", "C12", "C21", "C30")
#: Fits of the differences, each to what the one before has left; and then of the phase.
DIFFERENCE_FITS, PHASE_FITS = 5, 10


@dataclass(frozen=True)
class FittedAberration:
    """Aberration of a lens.

    Attributes:
        name: in Krivanek's notation, such as C12.
        size_m: coefficient, positive where it has an angle.
        angle_rad: from x towards y; None where the aberration is round.
        edge_rad: its largest phase at the edge of the pupil.
    """

    name: str
    size_m: float
    angle_rad: float | None
    edge_rad: float


@dataclass(frozen=True)
class LensFit:
    """Aberrations that explain the phase of a pupil.

    Attributes:
        inside: (h, w) bool, the pupil, with zero frequency at (h//2, w//2).
        chi: (h, w) aberration phase in rad without constant and shift: the fit, and what it leaves within a turn; NaN
            outside the pupil.
        rest: (h, w) what the fit leaves, between -pi and pi; NaN outside the pupil.
        aberrations: that were fitted.
        semiangle_rad: radius of the disc that has the area of the pupil.
        rest_rad: root of the mean square of what the fit leaves, weighted by the power. Phases at random have 1.81.
    """

    inside: np.ndarray
    chi: np.ndarray
    rest: np.ndarray
    aberrations: tuple[FittedAberration, ...]
    semiangle_rad: float
    rest_rad: float


def pupil_of(probe: np.ndarray) -> np.ndarray:
    """Return the spectrum (h, w) complex128 of a mode (h, w), with zero frequency at (h//2, w//2).

    The optical axis of the mode is at (h//2, w//2).
    """
    spectrum = fft(torch.fft.ifftshift(torch.as_tensor(probe).to(torch.complex128)))
    return np.asarray(torch.fft.fftshift(spectrum).numpy())


def pupil_mask(spectrum: np.ndarray) -> np.ndarray:
    """Return where a spectrum (h, w) has a tenth of its typical power or more, (h, w) bool."""
    power = np.abs(spectrum) ** 2
    typical = float((power**2).sum() / power.sum()) if power.sum() > 0 else 0.0
    return (power >= PUPIL * typical) & (typical > 0)


def fit_lens(spectrum: np.ndarray, pixel_m: Pair, wavelength_m: float, names: Sequence[str] = LOW_ORDERS) -> LensFit:
    """Return the aberrations that explain the phase of a pupil.

    Args:
        spectrum: (h, w) complex, of `pupil_of`.
        pixel_m: object pixel (y, x).
        wavelength_m: wavelength.
        names: aberrations that are fitted, such as "C10".

    Raises:
        BadInput: the pupil has fewer pixels than numbers are fitted, or an aberration is not known.
    """
    power, inside = np.abs(spectrum) ** 2, pupil_mask(spectrum)
    phases = aberration_phases(_shape(spectrum), pixel_m, wavelength_m, [*names, "C01"])
    terms = np.stack([np.fft.fftshift(phase.numpy()) for phase in (*phases.values(), torch.ones(spectrum.shape))])
    if inside.sum() <= 2 * len(terms):
        raise BadInput(
            f"The pupil of the probe has {int(inside.sum())} pixels, too few for {len(terms)} numbers; no aberrations "
            "can be fitted without a larger window."
        )
    size = np.sqrt((terms[:, inside] ** 2).mean(axis=1))
    terms = terms / size[:, None, None]
    coefficients = _fit(np.where(inside, spectrum, 0), terms, inside)
    chi = np.tensordot(coefficients, terms, axes=1)
    rest = np.where(inside, -np.angle(spectrum * np.exp(1j * chi)), np.nan)
    lens = len(phases) - 2
    numbers = dict(zip(list(phases)[:lens], coefficients[:lens] / size[:lens], strict=True))
    step_y, step_x = (wavelength_m / (n * d) for n, d in zip(spectrum.shape, pixel_m, strict=True))
    semiangle = math.sqrt(float(inside.sum()) * step_y * step_x / math.pi)
    return LensFit(
        inside=inside,
        chi=np.tensordot(coefficients[:lens], terms[:lens], axes=1) + rest,
        rest=rest,
        aberrations=tuple(_aberration(name, numbers, semiangle, wavelength_m) for name in names),
        semiangle_rad=semiangle,
        rest_rad=math.sqrt(float((rest[inside] ** 2 * power[inside]).sum() / power[inside].sum())),
    )


def _fit(spectrum: np.ndarray, terms: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Return the numbers (n,) of terms (n, h, w), the last of them constant, that make up -arg of a spectrum (h, w)."""
    coefficients = np.zeros(len(terms))
    # Fit the slopes of all terms but the constant.
    slopes = np.concatenate([np.diff(terms[:-1], axis=axis).reshape(len(terms) - 1, -1) for axis in (1, 2)], axis=1)
    for _ in range(DIFFERENCE_FITS):
        flattened = spectrum * np.exp(1j * np.tensordot(coefficients, terms, axes=1))
        products = np.concatenate(
            [(flattened[1:] * flattened[:-1].conj()).ravel(), (flattened[:, 1:] * flattened[:, :-1].conj()).ravel()]
        )
        used = products != 0
        coefficients[:-1] -= _weighted_fit(slopes[:, used], np.angle(products[used]), np.abs(products[used]))
    values, weights = terms[:, inside], np.abs(spectrum[inside]) ** 2
    flattened = spectrum[inside] * np.exp(1j * (coefficients @ values))
    coefficients[-1] -= float(np.angle((flattened * np.abs(flattened)).sum()))
    for _ in range(PHASE_FITS):
        flattened = spectrum[inside] * np.exp(1j * (coefficients @ values))
        coefficients -= _weighted_fit(values, np.angle(flattened), weights)
    return coefficients


def _weighted_fit(terms: np.ndarray, values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the least-squares numbers (n,) of terms (n, k) that make up values (k,) of these weights (k,)."""
    root = np.sqrt(weights / weights.sum())
    return np.asarray(np.linalg.lstsq((terms * root).T, values * root, rcond=None)[0])


def _aberration(name: str, numbers: dict[str, float], semiangle_rad: float, wavelength_m: float) -> FittedAberration:
    """Return one aberration of the numbers that were fitted."""
    n, m = int(name[1]), int(name[2])
    if m == 0:
        size, angle = numbers[name], None
    else:
        a, b = numbers[f"{name}a"], numbers[f"{name}b"]
        size, angle = math.hypot(a, b), math.atan2(b, a) / m
    edge = 2 * math.pi / wavelength_m * abs(size) * semiangle_rad ** (n + 1) / (n + 1)
    return FittedAberration(name, float(size), angle, edge)


def _shape(spectrum: np.ndarray) -> tuple[int, int]:
    return spectrum.shape[0], spectrum.shape[1]
