"""Incoherent probe modes."""

from __future__ import annotations

import torch

from ptymesh.types import Probe


def orthogonalise(probe: Probe) -> Probe:
    """The same mixed state in mutually orthogonal modes, strongest first (Thibault & Menzel, Nature 494, 68, 2013).

    (M, h, w) -> (M, h, w): Q = U^H P with the left singular vectors U of the modes.
    """
    return mixed(probe, orthogonalising(probe))


def orthogonalising(probe: Probe) -> torch.Tensor:
    """U^H, (M, M) complex128, by which `orthogonalise` mixes the modes.

    In each column of U the largest entry is made real and positive, so that the result does not depend on the
    decomposition's arbitrary phases. Modes that are not finite are left as they are, for those to see who end the run.
    """
    flat = probe.reshape(len(probe), -1).to(torch.complex128)
    if not bool(torch.view_as_real(flat).isfinite().all()):
        return torch.eye(len(flat), dtype=flat.dtype, device=flat.device)
    left = torch.linalg.svd(flat, full_matrices=False)[0]
    largest = left.gather(0, left.abs().argmax(0, keepdim=True))
    return (left * (largest.conj() / largest.abs())).mH.resolve_conj().contiguous()


def mixed(probe: Probe, mixing: torch.Tensor) -> Probe:
    """sum_n R_mn P_n: modes (M, h, w), R (M, M) complex128 -> (M, h, w)."""
    return torch.einsum("mn,nhw->mhw", mixing, probe.to(torch.complex128)).to(probe.dtype)


def powers(probe: Probe) -> torch.Tensor:
    """sum |P_m|^2 of each mode, (M,)."""
    return (probe.abs() ** 2).sum((-1, -2))
