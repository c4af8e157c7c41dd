"""Exit waves along directions of the unknowns: second-order expansions, and exact polynomials.

B, L, M     views of the chunk, slices, modes
t_i         length of the step along direction i, which changes object, probe and positions by t_i (dO, dP, dp)_i
D_i         sum_a dp_ia d_a, derivative of a window along the view's displacement
x_i, x_ik   dx/dt_i and d^2x/(dt_i dt_k) at t = 0

The bilinear Hessian of a loss needs the exit wave to second order in all t_i (Carlsson, Wendt, Cloetens & Nikitin,
arXiv:2502.10755, 2025). Along one direction of object and probe alone, it is a polynomial in t of degree L + 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from ptymesh.physics.model import Model, Scene
from ptymesh.physics.propagate import apply_kernel, fft, frequencies, ifft

Linear = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Jet:
    """x, its x_i, and its x_ik for i <= k; what is missing is zero."""

    value: Tensor
    first: dict[int, Tensor]
    second: dict[tuple[int, int], Tensor]

    def __mul__(self, other: Jet) -> Jet:
        """(x y)_i = x_i y + x y_i;  (x y)_ik = x_ik y + x_i y_k + x_k y_i + x y_ik."""
        first: dict[int, Tensor] = {}
        second: dict[tuple[int, int], Tensor] = {}
        for x, y in ((self, other), (other, self)):
            for i, x_i in x.first.items():
                _add(first, i, x_i * y.value)
            for ik, x_ik in x.second.items():
                _add(second, ik, x_ik * y.value)
        for i, x_i in self.first.items():
            for k, y_k in other.first.items():
                _add(second, (min(i, k), max(i, k)), x_i * y_k * (2 if i == k else 1))
        return Jet(self.value * other.value, first, second)

    def through(self, operator: Linear) -> Jet:
        """A linear operator applied to all of it."""
        first = {i: operator(x_i) for i, x_i in self.first.items()}
        return Jet(operator(self.value), first, {ik: operator(x_ik) for ik, x_ik in self.second.items()})

    def moved(self, displacements: dict[int, Tensor], sign: float) -> Jet:
        """exp(-sign sum_i t_i D_i) x, the waves shifted by sign t_i dp_i: displacements (B, 2) by direction."""
        if not displacements:
            return self
        ky, kx = frequencies((self.value.shape[-2], self.value.shape[-1]), (1.0, 1.0), self.value.device)
        rates = {}
        for i, dp in displacements.items():
            rate = dp[:, 0, None, None] * ky + dp[:, 1, None, None] * kx
            rates[i] = (-2j * math.pi * sign * rate).to(self.value.dtype)[:, None]
        x = self.through(fft)
        return _exponential(x, {i: lambda wave, rate=rate: rate * wave for i, rate in rates.items()}).through(ifft)  # type: ignore[misc]


def _add(terms: dict, key: int | tuple[int, int], term: Tensor) -> None:
    terms[key] = terms[key] + term if key in terms else term


def _exponential(x: Jet, rates: dict[int, Linear]) -> Jet:
    """exp(sum_i t_i R_i) x for commuting linear R_i."""
    first, second = dict(x.first), dict(x.second)
    for i, rate in rates.items():
        _add(first, i, rate(x.value))
        for k, x_k in x.first.items():
            _add(second, (min(i, k), max(i, k)), rate(x_k) * (2 if i == k else 1))
        for k, other in rates.items():
            if i <= k:
                _add(second, (i, k), rate(other(x.value)))
    return Jet(x.value, first, second)


@dataclass(frozen=True)
class Direction:
    """Changes of object (L, H, W), probe (M, h, w) and, where they move, the chunk's positions (B, 2)."""

    object: Tensor
    probe: Tensor
    positions: Tensor | None = None


def exit_jet(
    model: Model, scene: Scene, directions: Sequence[Direction], anchors: Tensor, fractions: Tensor, weights: Tensor
) -> Jet:
    """Exit waves (B, M, h, w) of a chunk to second order in the steps along the directions.

    In the near field with Fourier sub-pixel positions the detector moves with the probe; its part is taken back to
    the exit, so that Psi_i = D psi_i and Psi_ik = D psi_ik in all cases. Whole-pixel positions do not move.
    """
    each = dict(enumerate(directions))
    moves = {i: d.positions for i, d in each.items() if d.positions is not None and model.subpixel != "none"}
    incoming = Jet(scene.incoming[0], {i: model.probes(d.probe, fractions, weights) for i, d in each.items()}, {})
    if model.subpixel == "fourier":
        incoming = incoming.moved(moves, 1)
    if model.subpixel == "bilinear" and moves:
        windows = _bilinear(scene, directions, moves, anchors, fractions)
    else:
        size = (scene.exit.shape[-2], scene.exit.shape[-1])
        cuts = {i: model.windows(d.object, anchors, fractions, size) for i, d in each.items()}
        windows = Jet(scene.windows, cuts, {})
    wave, last = incoming, scene.windows.shape[1] - 1
    for index in range(last + 1):
        wave = wave * windows.through(lambda window, index=index: window[:, index, None])  # type: ignore[misc]
        if index < last:
            wave = wave.through(lambda waves: _to_next(model, waves))
    return wave.moved(moves, -1) if model.kernel is not None and model.subpixel == "fourier" else wave


def _bilinear(
    scene: Scene, directions: Sequence[Direction], moves: dict[int, Tensor], anchors: Tensor, fractions: Tensor
) -> Jet:
    """Windows (B, L, h, w) that move over the object: S_j (O + sum_i t_i dO_i) at p_j + sum_i t_i dp_i.

    Within a pixel, interpolation is linear in y and in x: of the second derivatives only the mixed one is not zero.
    """
    size = (scene.exit.shape[-2], scene.exit.shape[-1])
    obj = directions[0].object
    raise NotImplementedError


def _to_next(model: Model, waves: Tensor) -> Tensor:
    assert model.slice_kernel is not None, "several slices need a slice kernel"
    return apply_kernel(waves, model.slice_kernel)
