"""Second-order expansions of exit waves along changes of the unknowns, and exact polynomials along one change.

B, L, M     views of the chunk, slices, modes
t_i         length of the step along direction i, which changes object, probe and positions by t_i (dO, dP, dp)_i
x_i, x_ik   dx/dt_i and d^2x/(dt_i dt_k) at t = 0
D_i         sum_a dp_ia d_a, derivative along the view's displacement

The bilinear Hessian of a loss needs the exit wave to second order in all t_i (Carlsson, Wendt, Cloetens & Nikitin,
arXiv:2502.10755, 2025). Along one direction of object and probe alone, it is a polynomial in t of degree L + 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from ptymesh.physics import window_shifts
from ptymesh.physics.elementwise import overlap, times
from ptymesh.physics.model import Intermediates, Model
from ptymesh.physics.propagate import fft, frequencies, ifft

Key = TypeVar("Key")


@dataclass(frozen=True)
class Jet:
    """An array with its first and second derivatives along the directions, at t = 0.

    Attributes:
        value: x, of any shape.
        first: x_i by i, same shape; a missing entry is zero.
        second: x_ik by (i, k) with i <= k, same shape; a missing entry is zero.
    """

    value: Tensor
    first: dict[int, Tensor]
    second: dict[tuple[int, int], Tensor]

    def __mul__(self, other: Jet) -> Jet:
        """Multiply two jets: (x y)_i = x_i y + x y_i;  (x y)_ik = x_ik y + x_i y_k + x_k y_i + x y_ik."""
        first: dict[int, Tensor] = {}
        second: dict[tuple[int, int], Tensor] = {}
        for x, y in ((self, other), (other, self)):
            for i, x_i in x.first.items():
                _add(first, i, times(x_i, y.value))
            for ik, x_ik in x.second.items():
                _add(second, ik, times(x_ik, y.value))
        for i, x_i in self.first.items():
            for k, y_k in other.first.items():
                _add(second, _pair(i, k), times(x_i, y_k) * _twice(i, k))
        return Jet(times(self.value, other.value), first, second)

    def apply(self, operator: Callable[[Tensor], Tensor]) -> Jet:
        """Apply a linear operator to the value and all derivatives."""
        first = {i: operator(x_i) for i, x_i in self.first.items()}
        return Jet(operator(self.value), first, {ik: operator(x_ik) for ik, x_ik in self.second.items()})

    def moved(self, displacements: dict[int, Tensor]) -> Jet:
        """Shift waves (B, M, h, w) along all directions: exp(-sum_i t_i D_i) x.

        Args:
            displacements: dp (B, 2) of the views in pixels (y, x), by direction; with none, the jet is returned as it
                is.
        """
        if not displacements:
            return self
        ky, kx = frequencies((self.value.shape[-2], self.value.shape[-1]), (1.0, 1.0), self.value.device)
        rates = {}
        for i, dp in displacements.items():
            cycles = dp[:, 0, None, None] * ky + dp[:, 1, None, None] * kx
            rates[i] = (-2j * math.pi * cycles).to(self.value.dtype)[:, None]
        x = self.apply(fft)
        first, second = dict(x.first), dict(x.second)
        for i, rate in rates.items():
            _add(first, i, times(rate, x.value))
            for k, x_k in x.first.items():
                _add(second, _pair(i, k), times(rate, x_k) * _twice(i, k))
            for k, other in rates.items():
                if i <= k:
                    _add(second, (i, k), times(times(rate, other), x.value))
        return Jet(x.value, first, second).apply(ifft)


def _add(terms: dict[Key, Tensor], key: Key, term: Tensor) -> None:
    terms[key] = terms[key] + term if key in terms else term


def _pair(i: int, k: int) -> tuple[int, int]:
    return min(i, k), max(i, k)


def _twice(i: int, k: int) -> int:
    """Return how often x_i y_k enters the pair (i, k): for (i, k) and for (k, i), which are the same if i = k."""
    return 2 if i == k else 1


@dataclass(frozen=True)
class Direction:
    """A change of the unknowns, along which steps are taken.

    Attributes:
        object: (L, H, W) complex.
        probe: (M, h, w) complex.
        positions: (B, 2) displacements of the chunk's views in pixels (y, x); None if they stay.
    """

    object: Tensor
    probe: Tensor
    positions: Tensor | None = None


def exit_jet(
    model: Model,
    obj: Tensor,
    intermediates: Intermediates,
    directions: Sequence[Direction],
    anchors: Tensor,
    fractions: Tensor,
    weights: Tensor,
) -> Jet:
    """Return the exit waves of a chunk, (B, M, h, w), to second order in the steps along the directions.

    In the near field with Fourier sub-pixel positions the image moves back with the probe; that is done at the exit,
    so that Psi_i = D psi_i and Psi_ik = D psi_ik in all cases. OPR modes do not change.

    Args:
        model: the forward model.
        obj: (L, H, W) complex, the object at t = 0.
        intermediates: windows and waves of the chunk at t = 0.
        directions: changes of object, probe and positions.
        anchors: (B, 2) int64, corners of the windows in object pixels.
        fractions: (B, 2) sub-pixel parts of the positions, in pixels.
        weights: (B, 1 + K) weights of the probe and of the OPR modes.
    """
    each = dict(enumerate(directions))
    moves = {i: d.positions for i, d in each.items() if d.positions is not None}
    wave = Jet(intermediates.incoming[0], {i: model.probes(d.probe, fractions, weights) for i, d in each.items()}, {})
    if model.subpixel == "fourier":
        wave = wave.moved(moves)
    windows = _windows(
        model, obj, intermediates, each, moves if model.subpixel == "bilinear" else {}, anchors, fractions
    )
    for index in range(len(intermediates.incoming)):
        if index:
            wave = wave.apply(model.to_next)
        wave = wave * windows.apply(lambda window, index=index: window[:, index, None])  # type: ignore[misc]
    if model.subpixel == "fourier" and model.kernel is not None:
        wave = wave.moved({i: -dp for i, dp in moves.items()})
    return wave


def _windows(
    model: Model,
    obj: Tensor,
    intermediates: Intermediates,
    directions: dict[int, Direction],
    moves: dict[int, Tensor],
    anchors: Tensor,
    fractions: Tensor,
) -> Jet:
    """Return the windows (B, L, h, w) of O + sum_i t_i dO_i.

    Windows that move are interpolated, linearly in y and linearly in x.
    """
    size = (intermediates.exit.shape[-2], intermediates.exit.shape[-1])
    first = {i: model.windows(d.object, anchors, fractions, size) for i, d in directions.items()}
    second: dict[tuple[int, int], Tensor] = {}

    def slid(of: Tensor, dp: Tensor) -> Tensor:
        """Return the derivative of an object's windows along the displacements dp (B, 2)."""
        y, x = (window_shifts.cut_bilinear(of, anchors, fractions, size, order) for order in ((1, 0), (0, 1)))
        return dp[:, 0, None, None, None] * y + dp[:, 1, None, None, None] * x

    for i, dp in moves.items():
        first[i] = first[i] + slid(obj, dp)
        for k, d in directions.items():
            _add(second, _pair(i, k), slid(d.object, dp) * _twice(i, k))
        for k, other in moves.items():
            if i <= k:
                mixed = (dp[:, 0] * other[:, 1] + dp[:, 1] * other[:, 0])[:, None, None, None]
                _add(second, (i, k), mixed * window_shifts.cut_bilinear(obj, anchors, fractions, size, (1, 1)))
    return Jet(intermediates.windows, first, second)


def exit_polynomial(model: Model, intermediates: Intermediates, probes: Tensor, windows: Tensor) -> list[Tensor]:
    """Return the coefficients c_0 ... c_{L+1}, (B, M, h, w) each, of the exit wave sum_n t^n c_n.

    Probes and windows change by t times the given changes; with one slice the wave is P O + t (dP O + P dO) + t^2 dP
    dO.

    Args:
        model: the forward model, for the propagation between slices.
        intermediates: windows and incoming waves at t = 0.
        probes: (B, M, h, w) complex, change of the views' probes.
        windows: (B, L, h, w) complex, change of the object's windows.
    """
    coefficients = [intermediates.incoming[0], probes]
    for index in range(len(intermediates.incoming)):
        if index:
            coefficients = [model.to_next(c, intermediates.values) for c in coefficients]
        window, change = intermediates.windows[:, index, None], windows[:, index, None]
        unchanged, changed = ([times(c, by) for c in coefficients] for by in (window, change))
        middle = [a + b for a, b in zip(unchanged[1:], changed[:-1], strict=True)]
        coefficients = [unchanged[0], *middle, changed[-1]]
    return coefficients


def power_polynomial(waves: Sequence[Tensor]) -> list[Tensor]:
    """Return the coefficients q_0 ... q_2n, (B, h, w) each, of sum_m |sum_n t^n Psi_nm|^2; waves are (B, M, h, w)."""
    powers = [torch.zeros_like(waves[0][:, 0].real) for _ in range(2 * len(waves) - 1)]
    for i, a in enumerate(waves):
        for k, b in enumerate(waves[i:], start=i):
            product = overlap(a, b).sum(1)
            powers[i + k] += product if i == k else 2 * product
    return powers


def evaluated(coefficients: Sequence[Tensor], t: float) -> Tensor:
    """Evaluate the polynomial sum_n t^n q_n by Horner's rule."""
    total = coefficients[-1]
    for q in coefficients[-2::-1]:
        total = total * t + q
    return total
