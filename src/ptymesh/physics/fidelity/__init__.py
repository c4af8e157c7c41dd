"""Fidelities, each in a file of its own, and their values, derivatives and steps over the pixels that hold data.

Every fidelity revises the wave by a real factor, Psi' = factor . Psi; masked pixels have factor 1 and derivative 0.
So have pixels where the model has no light: S is rounding there, and so is its phase, which a factor sqrt(y / S) would
blow up to the size of the data. They join as soon as object or probe send light to them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ptymesh.physics.fidelity.base import BEYOND, FIDELITIES, Fidelity, LinearResponse, fidelity_of
from ptymesh.physics.fidelity.data import DARK, UNLIT, Data, Saturation, per_view, residual_terms
from ptymesh.physics.fidelity.poisson import BRIGHTEST_RATIO, NEWTON_STEPS
from ptymesh.registry import register_classes

__all__ = [
    "BEYOND",
    "BRIGHTEST_RATIO",
    "DARK",
    "FIDELITIES",
    "NEWTON_STEPS",
    "UNLIT",
    "Data",
    "Fidelity",
    "LinearResponse",
    "Saturation",
    "curvature",
    "fidelity_of",
    "norm",
    "residual_terms",
    "revision",
    "revision_through",
    "slope",
    "value",
]


def value(kind: str, S: Tensor, data: Data) -> Tensor:
    """Return the loss of each view, (B,) float64; constants that depend on the data alone are left out (Poisson).

    Args:
        kind: the fidelity's name.
        S: (B, h, w) real, coherent signal.
        data: counts and background.
    """
    return per_view(fidelity_of(kind).loss(data.intensity(S), data.y), data.good)


def slope(kind: str, S: Tensor, data: Data) -> Tensor:
    """Return dL/dI, (B, h, w).

    The derivative with respect to conj(Psi_m) is slope . Psi_m; that with respect to b is the sum of slope.

    Args:
        kind: the fidelity's name.
        S: (B, h, w) real, coherent signal.
        data: counts and background.
    """
    data = data.illuminated(S)
    slopes = fidelity_of(kind).slope(data.intensity(S), data.y)
    return torch.where(data.good, slopes, slopes.new_zeros(()))


def curvature(kind: str, S: Tensor, data: Data) -> Tensor:
    """Return d^2L/dI^2, (B, h, w).

    Args:
        kind: the fidelity's name.
        S: (B, h, w) real, coherent signal.
        data: counts and background.
    """
    data = data.illuminated(S)
    curvatures = fidelity_of(kind).curvature(data.intensity(S).clamp(min=DARK), data.y)
    return torch.where(data.good, curvatures, curvatures.new_zeros(()))


def norm(kind: str, S: Tensor, data: Data) -> Tensor:
    """Return d^2L/dI^2 where counts are as modelled, (B, h, w): 1 / 2I, 1 / I or 2; 0 without data.

    Args:
        kind: the fidelity's name.
        S: (B, h, w) real, coherent signal.
        data: counts and background.
    """
    norms = fidelity_of(kind).norm(data.intensity(S).clamp(min=DARK))
    return torch.where(data.illuminated(S).good, norms, norms.new_zeros(()))


def revision(kind: str, S: Tensor, data: Data) -> Tensor:
    """Return the real factor (B, h, w) of the revised wave Psi' = factor . Psi after one step of this fidelity.

    Args:
        kind: the fidelity's name.
        S: (B, h, w) real, coherent signal.
        data: counts and background.
    """
    data = data.illuminated(S)
    factor = fidelity_of(kind).revision(S, data)
    return torch.where(data.good, factor, factor.new_ones(()))


def revision_through(kind: str, response: LinearResponse, S: Tensor, data: Data) -> Tensor:
    """Return the real factor (B, h, w) of the revised wave where pieces of the detector stand behind it.

    Args:
        kind: the fidelity's name.
        response: the pieces.
        S: (B, h, w) real, signal before them.
        data: counts and background.
    """
    return fidelity_of(kind).revision_through(response, S, data.illuminated(response.signal(S)))


register_classes(FIDELITIES, Fidelity, __name__, __path__)
