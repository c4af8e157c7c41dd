"""Caustic of a probe: the beam along its axis, through its waists.

M       incoherent modes
h, w    window pixels; twice as many where the beam is propagated
Z       planes
A, k    spectrum of a mode; spatial frequency, angle / lambda
z       distance from the probe's plane (the entrance of the object), positive downstream

Rays of angle t = lambda k pass the probe's plane at r = -(1 / 2 pi) d arg A / dk, and the plane at z at r + z t.
Weighted by |A|^2, they spread least, by the root of the mean square, at z = -cov(r, t) / var(t), the waist. Only
frequencies in the pupil count, whose power is a tenth of the typical one or more: noise at large angles would weigh
much.

Widths are those of the narrowest interval that holds 76 % of the power of a profile, which of a Gaussian is its full
width at half maximum. It does not depend on weak and wide tails, and a beam of several peaks has one, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ptymesh.errors import BadInput
from ptymesh.physics.propagate import Pair, fft, ifft, phase_rate

#: Share of the power within the full width at half maximum of a Gaussian, erf(sqrt(ln 2)).
SHARE = math.erf(math.sqrt(math.log(2)))
#: Share of the typical power of a frequency, from which on it belongs to the pupil.
PUPIL = 0.1
#: Planes that are drawn.
PLANES = 81
#: Depths of focus beyond waists and probe over which the beam is followed, where the window holds it.
MARGIN = 3.0
#: Steps per expected depth, and depths, in which the end of the depth of focus is looked for.
STEPS, REACH = 8, 4


@dataclass(frozen=True)
class Caustic:
    """Beam along its axis.

    Attributes:
        z_m: (Z,) distances from the probe's plane, ascending, positive downstream.
        profiles: (Z, 2h) and (Z, 2w), power of all modes summed over the other axis, of y and x.
        pixel_m: pixel (y, x).
        width_m: (Z, 2) width y x of the profiles: narrowest interval that holds 76 % of the power.
        waist_m: (y, x) distances at which the rays spread least.
        size_m: (y, x) widths there.
        depth_m: (y, x) length over which the width is below sqrt 2 times that at the waist; inf where it is longer
            than the window can hold.
        images: power of all modes (h, w) in the probe's plane, and at the waists of y and x.
    """

    z_m: np.ndarray
    profiles: tuple[np.ndarray, np.ndarray]
    pixel_m: Pair
    width_m: np.ndarray
    waist_m: Pair
    size_m: Pair
    depth_m: Pair
    images: tuple[np.ndarray, np.ndarray, np.ndarray]

    @property
    def astigmatism_m(self) -> float:
        """Distance from the waist of y to that of x, positive where that of x is further downstream."""
        return self.waist_m[1] - self.waist_m[0]


def caustic_of(probe: Tensor, pixel_m: Pair, wavelength_m: float) -> Caustic:
    """Propagate a probe through its waists by the angular spectrum.

    Args:
        probe: (M, h, w) complex, optical axis at (h//2, w//2).
        pixel_m: object pixel (y, x).
        wavelength_m: wavelength.

    Raises:
        BadInput: the probe is dark, or has no spread of angles, so that there is no waist.
    """
    modes = probe.to(torch.complex128)
    spectrum = fft(torch.fft.ifftshift(modes, dim=(-2, -1)))
    waist, angles = zip(*(_waist(spectrum, axis, pixel_m[axis], wavelength_m) for axis in (0, 1)), strict=True)
    beam = _Beam(modes, pixel_m, wavelength_m)
    # Of a Gaussian: angles of rms t are those of a depth of lambda / (2 pi t^2).
    depth = [wavelength_m / (2 * math.pi * angle**2) for angle in angles]
    room = [n * d / (4 * angle) for n, d, angle in zip(probe.shape[-2:], pixel_m, angles, strict=True)]
    margin = min(MARGIN * max(depth), min(room))
    z = np.linspace(min(0.0, *waist) - margin, max(0.0, *waist) + margin, PLANES)
    profiles = [beam.profiles(float(distance)) for distance in z]
    stacked = np.stack([p[0] for p in profiles]), np.stack([p[1] for p in profiles])
    width = np.stack([[_width(line) * d for line in lines] for lines, d in zip(stacked, pixel_m, strict=True)], axis=1)
    size = [beam.width(waist[axis], axis) for axis in (0, 1)]
    length = [_depth(partial(beam.width, axis=axis), waist[axis], size[axis], depth[axis]) for axis in (0, 1)]
    return Caustic(
        z_m=z,
        profiles=stacked,
        pixel_m=pixel_m,
        width_m=width,
        waist_m=(waist[0], waist[1]),
        size_m=(size[0], size[1]),
        depth_m=(length[0], length[1]),
        images=(beam.image(0.0), beam.image(waist[0]), beam.image(waist[1])),
    )


def _waist(spectrum: Tensor, axis: int, pixel_m: float, wavelength_m: float) -> tuple[float, float]:
    """Return the distance at which rays spread least along an axis, and the root of the mean square of their angles.

    Args:
        spectrum: (M, h, w) complex128, DC at the corner, of waves with the optical axis at the corner.
        axis: 0 for y, 1 for x.
        pixel_m: object pixel on this axis.
        wavelength_m: wavelength.

    Raises:
        BadInput: there are no angles.
    """
    power = (spectrum.abs() ** 2).sum(0)
    typical = float((power**2).sum() / power.sum()) if float(power.sum()) > 0 else 0.0
    in_pupil = power >= PUPIL * typical
    n = spectrum.shape[axis + 1]
    shifted = torch.fft.fftshift(spectrum, dim=axis + 1).movedim(axis + 1, -1)
    inside = torch.fft.fftshift(in_pupil, dim=axis).movedim(axis, -1)
    product = shifted[..., 1:] * shifted[..., :-1].conj() * (inside[..., 1:] & inside[..., :-1])
    weight = product.abs()
    # Between neighbouring frequencies 1 / (n d) apart, the phase changes by -2 pi r / (n d).
    place = -product.angle() / (2 * math.pi) * n * pixel_m
    angle = wavelength_m * (torch.arange(n - 1, dtype=torch.float64) + 0.5 - n // 2) / (n * pixel_m)
    total = float(weight.sum())
    if typical == 0 or total == 0:
        raise BadInput(f"The probe has light at a single angle in {'yx'[axis]}, or none; there is no waist to find.")
    weight = weight / total
    angle = angle.expand_as(weight)
    angle = angle - (weight * angle).sum()
    spread = float((weight * angle**2).sum())
    if spread <= 0:
        raise BadInput(f"The probe has light at a single angle in {'yx'[axis]}; there is no waist to find.")
    return -float((weight * angle * place).sum()) / spread, math.sqrt(spread)


class _Beam:
    """A beam that is propagated in a window twice as wide, which holds its rays in all planes that are looked at.

    Args:
        modes: (M, h, w) complex128.
        pixel_m: pixel (y, x).
        wavelength_m: wavelength.
    """

    def __init__(self, modes: Tensor, pixel_m: Pair, wavelength_m: float) -> None:
        self.window = modes.shape[-2], modes.shape[-1]
        self.shape = 2 * self.window[0], 2 * self.window[1]
        self.pixel_m = pixel_m
        self.rate = phase_rate(self.shape, pixel_m, wavelength_m)
        # The optical axis goes from n // 2 to n.
        before = [n - n // 2 for n in self.window]
        wide = modes.new_zeros(len(modes), *self.shape)
        self.box = tuple(slice(start, start + n) for start, n in zip(before, self.window, strict=True))
        wide[:, self.box[0], self.box[1]] = modes
        self.spectrum = fft(wide)

    def power(self, distance_m: float) -> np.ndarray:
        """Return the power (2h, 2w) of all modes at a distance."""
        kernel = torch.polar(torch.ones_like(self.rate), distance_m * self.rate)
        power = torch.zeros(self.shape, dtype=torch.float64)
        for mode in self.spectrum:
            power += ifft(kernel * mode).abs() ** 2
        return power.numpy()

    def profiles(self, distance_m: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the power along y (2h,) and x (2w,) at a distance."""
        power = self.power(distance_m)
        return power.sum(axis=1), power.sum(axis=0)

    def width(self, distance_m: float, axis: int) -> float:
        """Return the width in metres along y (axis 0) or x (axis 1) at a distance."""
        return _width(self.profiles(distance_m)[axis]) * self.pixel_m[axis]

    def image(self, distance_m: float) -> np.ndarray:
        """Return the power (h, w) within the window at a distance."""
        return self.power(distance_m)[self.box[0], self.box[1]]


def _width(profile: np.ndarray) -> float:
    """Return the length in pixels of the narrowest interval that holds SHARE of a profile (n,)."""
    edges = np.arange(len(profile) + 1.0)
    # A floor makes the sum strictly ascending, so that it can be inverted.
    cumulative = np.concatenate([[0.0], np.cumsum(profile + 1e-12 * profile.sum() / len(profile))])
    cumulative /= cumulative[-1]
    first, last = edges[cumulative <= 1 - SHARE], edges[cumulative >= SHARE]
    ends = np.interp(cumulative[cumulative <= 1 - SHARE] + SHARE, cumulative, edges)
    starts = np.interp(cumulative[cumulative >= SHARE] - SHARE, cumulative, edges)
    return float(min((ends - first).min(), (last - starts).min()))


def _depth(width_at: Callable[[float], float], waist: float, size: float, expected: float) -> float:
    """Return the length around a waist over which the width stays below sqrt 2 times its own; inf if it goes on.

    Args:
        width_at: returns the width at a distance.
        waist: distance of the waist.
        size: width there.
        expected: depth that a Gaussian beam of these angles has.
    """
    limit, step, depth = math.sqrt(2) * size, expected / STEPS, 0.0
    for sign in (-1, 1):
        before = size
        for i in range(1, REACH * STEPS + 1):
            width = width_at(waist + sign * i * step)
            if width > limit:
                depth += (i - 1 + (limit - before) / (width - before)) * step
                break
            before = width
        else:
            return math.inf
    return depth
