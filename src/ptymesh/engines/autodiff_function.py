"""The forward model as one torch function with a hand-written backward pass, for models of a user's own.

    obj = problem.layout.fill_halo(estimate.object)  # array that windows are cut from, to make leaves of
    for chunk in problem.loader.chunks(estimate, batch.views):
        I = intensities(problem.model, chunk, obj, probe)           # (B, h, w); obj, probe: leaves or functions of them
        my_loss(I, chunk.data.y).backward()                         # adds *this rank's* sums to the leaves' .grad
    by_object = problem.layout.sum_field(obj.grad)                  # over ranks, of this one's part of the object
    by_probe = problem.world.sum(probe.grad)[0]

The user's computations from parameters to object and probe, and from intensities to a number, are torch's ordinary
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
from ptymesh.physics.backend import Adjoints, BatchCache
from ptymesh.physics.elementwise import over_few, over_window, overlap
from ptymesh.physics.model import Model, power
from ptymesh.physics.rounding import empty_sums, largest, narrowed, shifts_for
from ptymesh.problem import Chunk

#: Parts of each sum: two, as terms of users' losses may be of any size.
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
    """Return I_j = sum_m |D psi_jm|^2 + b of a chunk's views, (B, h, w), differentiable in every tensor that is given.

    Where the model's detector saturates, I is no more than the counts of a saturated pixel tell.

    Args:
        model: the forward model.
        chunk: the views.
        obj: (L, H, W) complex.
        probe: (M, h, w) complex.
        fractions: (B, 2), positions less anchors, in pixels; None for the chunk's.
        weights: (B, 1 + K), of the probe and of the OPR modes; None for the chunk's, without OPR modes.
        background: (h, w) intensity; None for zero.
        opr: (K, h, w) complex, variable-probe modes, with weights for them; None without any.
    """
    intensity: Tensor = _Intensities.apply(
        model,
        chunk,
        obj,
        probe,
        chunk.fractions if fractions is None else fractions,
        chunk.weights[:, :1] if weights is None else weights,
        probe.new_zeros(()).real if background is None else background,
        probe.detach()[:0] if opr is None else opr,
    )
    ceiling = None if chunk.saturation is None else chunk.data.ceiling
    return intensity if ceiling is None else torch.minimum(intensity, ceiling)


class _Intensities(torch.autograd.Function):
    """Function with a hand-written backward pass; torch's gradient of a complex tensor is 2 dL/d conj."""

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
        """Return I of the views.

        Args:
            ctx: torch's context.
            model: the forward model.
            chunk: the views.
            obj: (L, H, W) complex.
            probe: (M, h, w) complex.
            fractions: (B, 2) sub-pixel parts of the positions, in pixels.
            weights: (B, 1 + K), of the probe and of the OPR modes.
            background: (h, w) intensity, or 0-d.
            opr: (K, h, w) complex, variable-probe modes.
        """
        chunk = replace(
            chunk, fractions=fractions.detach(), weights=weights.detach(), integer_positions=False, cache=BatchCache()
        )
        ctx.backend = kernel_backend(obj.device, obj.dtype)
        intermediates = ctx.backend.forward(model, chunk, obj.detach(), probe.detach(), opr.detach())
        detected = model.detect(intermediates.exit, fractions)
        ctx.model, ctx.chunk, ctx.intermediates = model, chunk, intermediates
        ctx.save_for_backward(obj, probe, fractions, background, opr, detected)
        return model.signal(power(detected), chunk.values) + model.counts_without_light(background, chunk.values)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        """Return the adjoints of slope . Psi for those inputs that need a gradient."""
        (slope,), model, chunk, intermediates = slopes, ctx.model, ctx.chunk, ctx.intermediates
        obj, probe, fractions, background, opr, detected = ctx.saved_tensors
        _, _, by_obj, by_probe, by_fractions, by_weights, by_background, by_opr = ctx.needs_input_grad
        response = model.response(chunk.values)
        by_light = slope if response is None else response.adjoint(slope)
        waves = model.detect_adjoint(detected * (2 * by_light)[:, None], fractions)
        gradients: dict[str, Tensor] = {}
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
            gradients["object"] = narrowed(sums.object, obj.dtype, len(obj))
        if by_probe and sums.probe is not None:
            gradients["probe"] = model.unshifted(narrowed(sums.probe, probe.dtype, len(probe)))
        if by_fractions:
            moved = [model.position_derivative(obj, chunk.anchors, fractions, intermediates, axis) for axis in (0, 1)]
            gradients["fractions"] = torch.stack([over_few(over_window(overlap(d, waves))) for d in moved], dim=1).to(
                fractions.dtype
            )
        if by_weights:
            to_probes = model.forward_adjoint(intermediates, waves)[1]
            gradients["weights"] = model.weights_adjoint(to_probes, probe, fractions, opr)
        if by_background:
            gradients["background"] = slope.sum_to_size(background.shape)
        if by_opr:
            gradients["opr"] = model.unshifted(narrowed(sums.opr, opr.dtype, len(opr)))
        names = ("object", "probe", "fractions", "weights", "background", "opr")
        return (None, None, *(gradients.get(name) for name in names))


def _bounds(obj: Tensor, probe: Tensor, opr: Tensor, weights: Tensor, waves: Tensor) -> Tensor:
    """Return how large terms of each kind of sum (6,) can be, for slopes of any size."""
    o, p, q, w = (2 * largest(t) for t in (obj, probe, opr, waves))
    a = largest(weights)
    beam = a * (len(probe) * p + len(opr) * q)
    spread = math.sqrt(probe.shape[-2] * probe.shape[-1])  # largest growth of a value by a transform
    by_probe, light = spread * a * o * w, (a * o).square()
    return torch.stack((beam * w, beam.square(), by_probe, light, by_probe, light))
