"""Randomized probe imaging: an object from a single pattern, under a beam that is known and structured.

n, m    pixels of the object of one view, fewer than the window's h, w
o_j     that object;  u = U o_j, the same on the window's pixels

    u = sqrt(h w / (n m)) F_hw^H Z F_nm o_j,    psi = P u,    I = |F psi|^2

F are Fourier transforms with the origin in the middle, Z pads with zeros around it: U interpolates, and keeps the mean
of |o|^2. With half as many pixels on each side there are half as many unknowns as counts.

Levitan et al., "Single-frame far-field diffractive imaging with randomized illumination", Opt. Express 28, 37103 (2020)
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from pydantic import Field, PositiveInt
from torch import Tensor
from torch.fft import fftshift, ifftshift

from ptymesh.errors import BadInput
from ptymesh.geometry import Geometry
from ptymesh.physics.elementwise import times
from ptymesh.physics.operators import Place, Tables, Values, WaveOperator
from ptymesh.physics.propagate import fft, ifft
from ptymesh.unknowns import Unknown

#: Axes of the object in its declaration.
SIDES = ("sample y", "sample x")
#: The last two axes.
YX = (-2, -1)


class RPI(WaveOperator):
    """An object for each view, on fewer pixels than its window, in place of the scanned one."""

    name: ClassVar[str] = "rpi"
    at: ClassVar[Place] = "exit"
    replaces: ClassVar[frozenset[str]] = frozenset({"object", "amplitude", "probe", "opr"})
    unknowns: ClassVar[tuple[Unknown, ...]] = (Unknown("sample", ("N", *SIDES), "view", complex=True, start=1.0),)

    pixels: tuple[PositiveInt, PositiveInt] | PositiveInt | None = Field(
        None, description="of the object of each view, a number for both sides or a pair; by default half the window's"
    )

    def axes(self, window: tuple[int, int]) -> dict[str, int]:
        """Return the sides of the object of one view; window is (h, w)."""
        return dict(zip(SIDES, self._sides(window), strict=True))

    def check(self, geometry: Geometry) -> None:
        """Check the number of pixels.

        Raises:
            BadInput: the object has more pixels than the window along an axis.
        """
        for name, side, most in zip("yx", self._sides(geometry.shape), geometry.shape, strict=True):
            if side > most:
                raise BadInput(
                    f"optics.rpi.pixels is {side} along {name}, more than the {most} of the window; give at most so "
                    f"many, about {most // 2} to be determined well."
                )

    def transforms(self, geometry: Geometry) -> tuple[tuple[int, int], ...]:
        """Return the sides of the object, which is Fourier transformed."""
        return (self._sides(geometry.shape),)

    def forward(self, psi: Tensor, values: Values, tables: Tables) -> Tensor:
        """Return P u.

        Args:
            psi: (B, M, h, w) complex.
            values: `sample` (B, n, m) complex, the objects o_j.
            tables: not used.
        """
        return times(psi, refined_to_window(values["sample"], _sides_of(psi))[:, None])

    def adjoint(self, psi: Tensor, values: Values, tables: Tables) -> Tensor:
        """Return conj(u) psi.

        Args:
            psi: (B, M, h, w) complex.
            values: `sample` (B, n, m) complex, the objects o_j.
            tables: not used.
        """
        return times(psi, refined_to_window(values["sample"], _sides_of(psi))[:, None].conj())

    def slopes(self, psi: Tensor, values: Values, tables: Tables, back: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Return U^H sum_m conj(psi_m) back_m, and the illumination of each pixel of the objects, (B, n, m) each.

        Args:
            psi: (B, M, h, w) complex, where the operator begins.
            values: `sample` (B, n, m) complex, the objects o_j.
            tables: not used.
            back: (B, M, h, w) complex, wave taken back to where it ends.
        """
        sides = _sides_of(values["sample"])
        light = (psi.real.square() + psi.imag.square()).sum(1)
        return {"sample": (finer_adjoint(times(psi.conj(), back).sum(1), sides), illumination_of_pixels(light, sides))}

    def _sides(self, window: tuple[int, int]) -> tuple[int, int]:
        """Return n, m for a window (h, w)."""
        sides = self.pixels
        if sides is None:
            return max(1, window[0] // 2), max(1, window[1] // 2)
        return sides if isinstance(sides, tuple) else (sides, sides)


def refined_to_window(x: Tensor, window: tuple[int, int]) -> Tensor:
    """Return U x: (B, n, m) -> (B, h, w)."""
    sides = _sides_of(x)
    pads: list[int] = []
    for side, size in reversed(list(zip(sides, window, strict=True))):
        before = size // 2 - side // 2  # frequency 0 is at size // 2, and at side // 2
        pads += [before, size - side - before]
    padded = torch.nn.functional.pad(_centred(fft, x), pads)
    return _centred(ifft, padded) * _gain(sides, window)


def finer_adjoint(x: Tensor, sides: tuple[int, int]) -> Tensor:
    """Return U^H x: (B, h, w) -> (B, n, m)."""
    window = _sides_of(x)
    top, left = (size // 2 - side // 2 for side, size in zip(sides, window, strict=True))
    inner = _centred(fft, x)[..., top : top + sides[0], left : left + sides[1]]
    return _centred(ifft, inner) * _gain(sides, window)


def illumination_of_pixels(light: Tensor, sides: tuple[int, int]) -> Tensor:
    """Return sum_p |U_pk|^2 light_p of each pixel k of the object: (B, h, w) -> (B, n, m).

    Along each axis |U_pk|^2 = n^-2 sum_|r|<n (n - |r|) exp(2 pi i r (p / h - k / n)): a triangle of frequencies, of
    which those that are n apart are one on the coarse pixels.
    """
    blurred = ifft(ifftshift(torch.complex(light, torch.zeros_like(light)), dim=YX), norm="forward")
    for axis, side in zip(YX, sides, strict=True):
        size = blurred.shape[axis]
        r = torch.arange(side, dtype=light.dtype, device=light.device).view((-1,) + (1,) * (-1 - axis))
        blurred = ((side - r) * blurred.narrow(axis, 0, side) + r * blurred.narrow(axis, size - side, side)) / side**2
    return fftshift(fft(blurred.contiguous(), norm="backward"), dim=YX).real


def _centred(transform: Any, x: Tensor) -> Tensor:
    """Apply a Fourier transform with both origins in the middle."""
    return fftshift(transform(ifftshift(x, dim=YX)), dim=YX)


def _gain(sides: tuple[int, int], window: tuple[int, int]) -> float:
    """Return sqrt(h w / (n m))."""
    return float((window[0] * window[1] / (sides[0] * sides[1])) ** 0.5)


def _sides_of(x: Tensor) -> tuple[int, int]:
    return x.shape[-2], x.shape[-1]
