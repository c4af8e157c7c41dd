"""Regularisers of the object, and of unknowns on its pixels: a density, whose mean under windows is added to the loss.

O       object (L, H, W) complex;  d_y, d_x  forward differences, 0 across the last row and column

    l1          |O - 1|, departure from vacuum            tv          sqrt(|d_y O|^2 + |d_x O|^2)
    l2          |O - 1|^2                                 smoothness  |d_y O|^2 + |d_x O|^2
    sparsity    |arg O|, few pixels that shift the phase

    similar_slices, similar_modes    sqrt(mean |G O - mean G O|^2) over the slices of each object mode, or over the
                                     modes of each slice; G a Gaussian in the plane

Roots are rounded at ROUND, so that they have a derivative at zero. A user's own regulariser is a plain torch function
from O to a density (L, H, W), registered by name or given in Python. It is called with the rank's part of the object
and what is around it, so that a density may depend on eight pixels on each side:

    @regularisers.register("flat amplitude")
    def flat_amplitude(obj):
        return (obj.abs() - 1) ** 2

or, in an installed package, an entry point of the group `ptymesh.regularisers`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from ptymesh.engines.constraints.neighbours import blurred, gaussian_reach
from ptymesh.physics.elementwise import phase
from ptymesh.registry import Registry

Density = Callable[[Tensor], Tensor]


class PlaneComparison(Protocol):
    """A density that compares planes (Q L, H, W), and is given the number of slices and a blur."""

    def __call__(self, obj: Tensor, slices: int | None = None, blur_px: float = 1.0) -> Tensor:
        """Return the density (Q L, H, W)."""


#: Number of pixels on each side that a pixel's density may depend on.
NEIGHBOURS = 8
#: Number of pixels needed on each side for slopes: those of the neighbours' densities, with their own neighbours.
REACH = 2 * NEIGHBOURS
#: Largest standard deviation of a blur, in pixels: a Gaussian reaches four of them.
WIDEST_PX = 2.0
assert gaussian_reach(WIDEST_PX) <= NEIGHBOURS
#: Below this, |x| is a parabola.
ROUND = 1e-3

REGULARISERS: Registry[Density] = Registry("regulariser", "ptymesh.regularisers")
register = REGULARISERS.register


def differences(obj: Tensor) -> tuple[Tensor, Tensor]:
    """Return d_y O and d_x O, each of O's shape."""
    down = torch.nn.functional.pad(obj[..., 1:, :] - obj[..., :-1, :], (0, 0, 0, 1))
    right = torch.nn.functional.pad(obj[..., 1:] - obj[..., :-1], (0, 1))
    return down, right


@register("l1")
def l1(obj: Tensor) -> Tensor:
    """Return |O - 1|."""
    return _rounded(_squared(obj - 1))


@register("l2")
def l2(obj: Tensor) -> Tensor:
    """Return |O - 1|^2."""
    return _squared(obj - 1)


@register("tv")
def tv(obj: Tensor) -> Tensor:
    """Return sqrt(|d_y O|^2 + |d_x O|^2) (Rudin, Osher & Fatemi, Physica D 60, 259, 1992)."""
    return _rounded(smoothness(obj))


@register("smoothness")
def smoothness(obj: Tensor) -> Tensor:
    """Return |d_y O|^2 + |d_x O|^2."""
    down, right = differences(obj)
    return _squared(down) + _squared(right)


@register("sparsity")
def sparsity(obj: Tensor) -> Tensor:
    """Return |arg O|."""
    return _rounded(phase(obj).square())


def similar_slices(obj: Tensor, slices: int | None = None, blur_px: float = 1.0) -> Tensor:
    """Return sqrt(mean_l |G O_l - mean G O|^2) over the slices of each object mode, the same in all of these.

    Args:
        obj: (Q L, H, W) complex, the slices of one mode after the other's.
        slices: L; None for one mode.
        blur_px: standard deviation of G, in pixels; 0 for no blur.
    """
    return _deviation_over_planes(obj, len(obj) if slices is None else slices, blur_px, axis=1)


def similar_modes(obj: Tensor, slices: int | None = None, blur_px: float = 1.0) -> Tensor:
    """Return sqrt(mean_q |G O_q - mean G O|^2) over the object modes of each slice, the same in all of these.

    Args:
        obj: (Q L, H, W) complex, the slices of one mode after the other's.
        slices: L; None for modes of one slice.
        blur_px: standard deviation of G, in pixels; 0 for no blur.
    """
    return _deviation_over_planes(obj, 1 if slices is None else slices, blur_px, axis=0)


#: Densities that compare planes with each other, and take the number of slices and the blur.
COMPARING: dict[str, PlaneComparison] = {"similar_slices": similar_slices, "similar_modes": similar_modes}
for _name, _density in COMPARING.items():
    register(_name)(_density)


def _deviation_over_planes(obj: Tensor, slices: int, blur_px: float, axis: int) -> Tensor:
    """Return the standard deviation of blurred planes along an axis of (Q, L, H, W), for each plane (Q L, H, W)."""
    planes = (blurred(obj, blur_px) if blur_px else obj).unflatten(0, (-1, slices)).unbind(axis)
    # one plane after the other, as torch's sums over an axis are rounded by where a pixel lies in the array
    mean = sum(planes[1:], planes[0]) / len(planes)
    departures = [_squared(plane - mean) for plane in planes]
    spread = _rounded(sum(departures[1:], departures[0]) / len(planes))
    return torch.stack([spread] * len(planes), axis).flatten(0, 1)


def _squared(x: Tensor) -> Tensor:
    """Return |x|^2."""
    return x.real.square() + x.imag.square()


def _rounded(squared: Tensor) -> Tensor:
    """Return the root of x, rounded at zero."""
    return torch.sqrt(squared + ROUND**2) - ROUND


def gradient(
    terms: list[tuple[Density, float]], obj: Tensor, counting: Tensor, pixels: Tensor
) -> tuple[Tensor, Tensor]:
    """Return a weighted sum of densities over some pixels, and its gradient after division by a number of pixels.

    Args:
        terms: densities and their weights.
        obj: (L, H, W) complex.
        counting: (H, W) bool, pixels that count.
        pixels: 0-d, number by which the sum is divided.

    Returns:
        The terms of the sum before the division, and the gradient dR/dx + i dR/dy after it, both (L, H, W).
    """
    leaf = obj.detach().requires_grad_()
    with torch.enable_grad():
        densities = torch.zeros_like(obj.real)
        for density, weight in terms:
            densities = densities + weight * torch.where(counting, density(leaf), 0.0)
        value = densities.sum() / pixels
    (slope,) = torch.autograd.grad(value, leaf)
    return densities.detach(), slope
