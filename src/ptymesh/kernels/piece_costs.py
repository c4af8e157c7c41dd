"""Costs of pieces of the model that kernels do not compute, in sentences for the log."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ptymesh.kernels.capabilities import Request
from ptymesh.kernels.fused import FusedBackend
from ptymesh.physics.backend import Backend
from ptymesh.physics.model import Model
from ptymesh.physics.operators import MirrorPiece, Placed, WaveOperator
from ptymesh.physics.scan_energies import ScanEnergies

#: Times as long as an epoch without the piece that one with it takes for each wave, of one slice in the far field on a
#: CPU (benchmarks/pieces.py): where kernels do what is before and behind it, and where they do nothing. The same of
#: several slices, where kernels do all but the piece and the way from slice to slice.
BETWEEN_KERNELS, WITHOUT_KERNELS, BETWEEN_SLICES = "1.5 to 3.5", "2 to 11", "1.5 to 2.5"


def costs_of_pieces(backend: Backend, model: Model, window: tuple[int, int]) -> list[str]:
    """Return a sentence for each piece that kernels do not compute, though they compute the model without it.

    Args:
        backend: chooses the kernels.
        model: the forward model.
        window: (h, w).
    """
    plain = replace(model, operators=(), detector=(), energies=None, mirror=None)
    if not isinstance(backend, FusedBackend) or not _has_kernels(backend, plain, window):
        return []
    costs = []
    for placed in model.pieces:
        has_kernels = _has_kernels(backend, _with(model, placed), window)
        if has_kernels and placed.operator.is_fast:
            continue
        times = (
            WITHOUT_KERNELS if not has_kernels else BETWEEN_KERNELS if model.slice_kernel is None else BETWEEN_SLICES
        )
        costs.append(
            f"{placed.operator.label} is computed by torch, and not by compiled kernels; an epoch takes "
            f"{times} times as long for each wave as without it"
        )
    return costs


def _with(model: Model, placed: Placed[Any]) -> Model:
    """Return a model with one piece."""
    plain = replace(model, operators=(), detector=(), energies=None, mirror=None)
    if isinstance(placed.operator, WaveOperator):
        return replace(plain, operators=(placed,))
    if isinstance(placed.operator, ScanEnergies):
        return replace(plain, energies=placed)
    if isinstance(placed.operator, MirrorPiece):
        return replace(plain, mirror=placed)
    return replace(plain, detector=(placed,))


def _has_kernels(backend: FusedBackend, model: Model, window: tuple[int, int]) -> bool:
    """Return True if kernels take views through a model, but for its pieces' own methods."""
    request = Request.of(model, False, False, backend.knows_transform(window))
    if backend.kernel_of("sweep", request):
        return True
    to_detector = backend.kernel_of("detector", request) or backend.kernel_of("apply_at_detector", request)
    return bool(backend.kernel_of("forward", request) and backend.kernel_of("adjoint", request) and to_detector)
