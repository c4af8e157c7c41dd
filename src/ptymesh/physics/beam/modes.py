"""Incoherent probe modes."""

from __future__ import annotations

from functools import reduce

import torch

from ptymesh.physics.elementwise import over_window, times
from ptymesh.types import Probe


def orthogonalise(probe: Probe) -> Probe:
    """Return the same mixed state in mutually orthogonal modes, strongest first: (M, h, w) -> (M, h, w).

    Q = U^H P with the left singular vectors U of the modes.

    Source: Thibault & Menzel, Nature 494, 68, 2013.
    """
    return mixed(probe, orthogonalising(probe))


def orthogonalising(probe: Probe) -> torch.Tensor:
    """Return U^H, (M, M) complex128, by which `orthogonalise` mixes the modes.

    In each column of U the largest entry is made real and positive, so that the result does not depend on the
    decomposition's arbitrary phases. For modes that are not finite it is the identity; the run ends on them elsewhere.
    """
    flat = probe.reshape(len(probe), -1).to(torch.complex128)
    if not bool(torch.view_as_real(flat).isfinite().all()):
        return torch.eye(len(flat), dtype=flat.dtype, device=flat.device)
    left = torch.linalg.svd(flat, full_matrices=False)[0].contiguous() if flat.device.type == "cpu" else _left(probe)
    largest = left.gather(0, left.abs().argmax(0, keepdim=True))
    return times(left, largest.conj() / largest.abs()).mH.resolve_conj().contiguous()


def _left(probe: Probe) -> torch.Tensor:
    """Return U of modes on a GPU, from their inner products P P^H = U S^2 U^H.

    A GPU takes long for a decomposition of (M, h w). Modes below 1e-8 of the strongest, which are rounding in single
    precision, mix.
    """
    planes, rows = probe.to(torch.complex128), []
    for plane in planes:
        product = torch.view_as_real(times(plane, planes.conj()).resolve_conj())
        rows.append(torch.stack([over_window(part) for part in product.unbind(-1)], dim=-1))
    gram = torch.view_as_complex(torch.stack(rows).cpu())
    return torch.linalg.eigh(gram)[1].flip(1).contiguous().to(probe.device)


def mixed(waves: torch.Tensor, mixing: torch.Tensor) -> torch.Tensor:
    """Return sum_n R_mn P_n: waves (..., n, h, w), R (M, n) -> (..., M, h, w), computed in the precision of R.

    Products are added one by one: products of matrices round by the number of threads.
    """
    planes = waves.to(mixing.dtype).unbind(-3)
    combinations = [reduce(torch.add, map(times, row, planes)) for row in mixing]
    return torch.stack(combinations, dim=-3).to(waves.dtype)


def powers(probe: Probe) -> torch.Tensor:
    """Return sum |P_m|^2 of each mode, (M,)."""
    return over_window(probe.abs().square()).to(probe.real.dtype)
