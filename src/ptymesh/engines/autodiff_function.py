"""The forward model as one torch function whose backward pass is written out by hand: for models of a user's own.

    obj = problem.layout.seen(estimate.object)                      # what windows are cut from, to make leaves of
    for chunk in problem.loader.chunks(estimate, batch.views):
        I = intensities(problem.model, chunk, obj, probe)           # (B, h, w); obj, probe: leaves or functions of them
        my_loss(I, chunk.data.y).backward()                         # adds *this rank's* sums to the leaves' .grad
    by_object = problem.layout.sum_field(obj.grad)                  # over ranks, of this one's part of the object
    by_probe = problem.world.sum(probe.grad)[0]

Whatever the user computes from parameters to object and probe, and from intensities to a number, is torch's ordinary
autograd; between them stands this function, which keeps what the adjoints need and no graph of its own. No collective
happens inside: a rank without views in a batch calls nothing, and its sums are zero.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ptymesh.kernels import kernel_backend
from ptymesh.physics.backend import Adjoints
from ptymesh.physics.elementwise import over_few, over_window, overlap
from ptymesh.physics.model import Model, power
from ptymesh.physics.rounding import empty_sums, largest, narrowed, shifts_for
from ptymesh.problem import Chunk

#: Of sums: terms of users' losses may be of any size.
PARTS = 2


def intensities(
    model: Model,
    chunk: Chunk,
    obj: Tensor,
    probe: Tensor,
    *,
    fractions: Tensor | None = None,
    weights: Tensor | None = None,
    background: Tensor | None = None,
    opr: Tensor | None = None,
) -> Tensor:
    """I_j = sum_m |D psi_jm|^2 + b of a chunk's views, (B, h, w), differentiable in every tensor that is given.

    obj (L, H, W) and probe (M, h, w) complex; fractions (B, 2), positions less anchors, and weights (B, 1 + K), by
    default the chunk's; background (h, w), by default none; opr (K, h, w) with weights for it.
    """
    found: Tensor = _Intensities.apply(
        model,
        chunk,
        obj,
        probe,
        chunk.fractions if fractions is None else fractions,
        chunk.weights[:, :1] if weights is None else weights,
        probe.new_zeros(()).real if background is None else background,
        probe.detach()[:0] if opr is None else opr,
    )
    return found


class _Intensities(torch.autograd.Function):
    """torch's gradient of a complex tensor is 2 dL/d conj."""

    @staticmethod
    def forward(
        ctx: Any,
        model: Model,
        chunk: Chunk,
        obj: Tensor,
        probe: Tensor,
        fractions: Tensor,
        weights: Tensor,
        background: Tensor,
        opr: Tensor,
    ) -> Tensor:
        """I of the views."""
        chunk = replace(chunk, fractions=fractions.detach(), weights=weights.detach(), whole=False, sweep={})
        ctx.backend = kernel_backend(obj.device, obj.dtype)
        intermediates = ctx.backend.forward(model, chunk, obj.detach(), probe.detach(), opr.detach())
        detected = model.detect(intermediates.exit, fractions)
        ctx.model, ctx.chunk, ctx.intermediates = model, chunk, intermediates
        ctx.save_for_backward(obj, probe, fractions, background, opr, detected)
        return power(detected) + background

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        """Adjoints of slope . Psi, where they are wanted."""
        (slope,), model, chunk, intermediates = slopes, ctx.model, ctx.chunk, ctx.intermediates
        obj, probe, fractions, background, opr, detected = ctx.saved_tensors
        _, _, by_obj, by_probe, by_fractions, by_weights, by_background, by_opr = ctx.needs_input_grad
        waves = model.detect_adjoint(detected * (2 * slope)[:, None], fractions)
        found: dict[str, Tensor] = {}
        shifts, _ = shifts_for(_bounds(obj, probe, opr, chunk.weights, waves), 4 * len(waves))
        sums = Adjoints(
            empty_sums(obj, PARTS) if by_obj else None,
            empty_sums(obj.real, PARTS) if by_obj else None,
            empty_sums(probe, PARTS) if by_probe or by_opr else None,
            empty_sums(probe[:1].real, PARTS),
            empty_sums(opr, PARTS),
            empty_sums(opr.real, PARTS),
            shifts,
            torch.zeros_like(shifts[:, 0]),
            parts=PARTS,
            shifted=model.subpixel == "fourier",
        )
        ctx.backend.adjoint(model, chunk, intermediates, waves, sums)
        ctx.backend.finish(sums)
        if sums.object is not None:
            found["object"] = narrowed(sums.object, obj.dtype, len(obj))
        if by_probe and sums.probe is not None:
            found["probe"] = model.unshifted(narrowed(sums.probe, probe.dtype, len(probe)))
        if by_fractions:
            moved = [model.position_derivative(obj, chunk.anchors, fractions, intermediates, axis) for axis in (0, 1)]
            found["fractions"] = torch.stack([over_few(over_window(overlap(d, waves))) for d in moved], dim=1).to(
                fractions.dtype
            )
        if by_weights:
            to_probes = model.forward_adjoint(intermediates, waves)[1]
            found["weights"] = model.weights_adjoint(to_probes, probe, fractions, opr)
        if by_background:
            found["background"] = slope.sum_to_size(background.shape)
        if by_opr:
            found["opr"] = model.unshifted(narrowed(sums.opr, opr.dtype, len(opr)))
        names = ("object", "probe", "fractions", "weights", "background", "opr")
        return (None, None, *(found.get(name) for name in names))


def _bounds(obj: Tensor, probe: Tensor, opr: Tensor, weights: Tensor, waves: Tensor) -> Tensor:
    """How large terms of each kind of sum (6,) can be, as of slopes of any size nothing is known beforehand."""
    o, p, q, w = (2 * largest(t) for t in (obj, probe, opr, waves))
    a = largest(weights)
    beam = a * (len(probe) * p + len(opr) * q)
    spread = math.sqrt(probe.shape[-2] * probe.shape[-1])  # of a transform
    by_probe, light = spread * a * o * w, (a * o).square()
    return torch.stack((beam * w, beam.square(), by_probe, light, by_probe, light))
