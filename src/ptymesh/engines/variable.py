"""Beams that differ from view to view: intensities, and orthogonal probe relaxation (OPR).

Odstrcil et al., Opt. Express 24, 8360 (2016).

P_j0 = w_j0 P_0 + sum_k w_jk V_k      probe of view j;  V_k (K, h, w), weights w (N, 1 + K)

Each view's weights take normalised gradient steps of their own; the modes V_k are updated like the probe, from sums
over the batch. The mean step of the intensities in a batch is left out: the probe takes it in the same batch, and
taken twice it oscillates. Between epochs the constant part of the w_jk goes into P_0, the V_k are made orthogonal,
strongest first, with the norm of P_0, and the mean of the w_j0 becomes 1. A beam that changes slowly has shares that
are smooth in time: if asked, each w_jk becomes the mean of its neighbours' in time, weighted by a Gaussian.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ptymesh.engines.base import ProbeConstraints
from ptymesh.engines.constraints.neighbours import smoothed_over_views
from ptymesh.errors import Diverged
from ptymesh.estimate import Estimate
from ptymesh.physics.elementwise import means
from ptymesh.physics.rounding import total_of
from ptymesh.problem import Batch, Problem

#: Weight of all views, whatever their shares, in the norm of the modes' update: keeps unused modes at rest.
FLOOR = 1e-4


def due(options: ProbeConstraints, estimate: Estimate, epoch: int) -> bool:
    """Return True if weights or modes are varied in this epoch.

    Args:
        options: constraints of the probe.
        estimate: the unknowns.
        epoch: of the stage, from 1.
    """
    modes = len(estimate.opr) > 0 and options.opr is not None and options.opr.active(epoch)
    return epoch > options.frozen and (modes or (options.intensity is not None and options.intensity.active(epoch)))


def after_batch(options: ProbeConstraints, problem: Problem, batch: Batch, estimate: Estimate) -> None:
    """Move the weights of this rank's views by gain x step, w_j0 less its mean; V_k += gain x sum / weight. Collective.

    Args:
        options: constraints of the probe.
        problem: the problem that is solved.
        batch: the views, with their steps and sums.
        estimate: the unknowns, changed in place.
    """
    epoch, sums = batch.epoch, batch.view_updates.gradients
    common = 0.0 if len(batch.views) < 2 else _mean_intensity_step(options, problem, batch)
    for views, steps in batch.view_updates.weights:
        if options.intensity and options.intensity.active(epoch):
            moved = estimate.weights[views, 0] + options.intensity.gain * (steps[:, 0] - common)
            estimate.weights[views, 0] = moved.clamp(min=0)
        if options.opr and options.opr.active(epoch):
            estimate.weights[views, 1:] += options.opr.gain * steps[:, 1:]
    if options.opr and options.opr.active(epoch) and sums is not None and len(estimate.opr):
        weight = sums.opr_weight + FLOOR * sums.probe_weight
        top = weight.amax((-2, -1), keepdim=True) + torch.finfo(weight.dtype).tiny
        estimate.opr += options.opr.gain * sums.opr / (0.5 * weight + 0.5 * top)


def _mean_intensity_step(options: ProbeConstraints, problem: Problem, batch: Batch) -> Tensor | float:
    """Return the mean step of w_j0 over the batch; 0 if intensities are not refined."""
    if not options.intensity or not options.intensity.active(batch.epoch):
        return 0.0
    rows = problem.loader.of_batch(batch, [steps[:, :1] for _, steps in batch.view_updates.weights], 1)
    return means(rows)[0].to(problem.real)


def after_epoch(problem: Problem, estimate: Estimate, options: ProbeConstraints | None = None) -> None:
    """Merge the weights of all ranks, smooth shares, and apply the gauges as rank 0 computes them. Collective.

    Args:
        problem: the problem that is solved.
        estimate: the unknowns, changed in place.
        options: constraints of the probe; None smooths nothing.
    """
    weights = problem.layout.merge(estimate.weights)
    if options is not None and options.opr is not None and options.opr.smooth_views and len(estimate.opr):
        weights[:, 1:] = smoothed_over_views(problem, weights[:, 1:], options.opr.smooth_views)
    mean = (total_of(weights[:, 0]) / len(weights)).to(weights.dtype)
    weights[:, 0] /= mean
    estimate.probe *= mean
    if len(estimate.opr):
        constant = means(weights[:, 1:])
        estimate.probe[0] += torch.view_as_complex(
            (constant[:, None, None, None] * torch.view_as_real(estimate.opr)).sum(0)
        )
        shares, modes = orthogonal(weights[:, 1:] - constant, estimate.opr, estimate.probe[0])
        weights[:, 1:] = shares
        estimate.opr.copy_(modes)
    merged, modes, probe = problem.world.broadcast(weights, estimate.opr, estimate.probe)
    estimate.weights.copy_(merged)
    estimate.opr.copy_(modes)
    estimate.probe.copy_(probe)


def orthogonal(shares: Tensor, modes: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return the same sum_k w_jk V_k (real w) with orthogonal w, strongest V first, each of the norm of `like`.

    Signs are fixed by making each mode's largest share positive.

    Args:
        shares: (N, K) real, w.
        modes: (K, h, w) complex, V.
        like: (h, w) complex.

    Raises:
        Diverged: shares or modes are not finite.
    """
    if not bool(shares.isfinite().all() & modes.isfinite().all()):
        raise Diverged("The variable probe diverged: its modes or their shares are not finite; try smaller steps.")
    flat = torch.view_as_real(modes.to(torch.complex128)).reshape(len(modes), -1)
    q, r = torch.linalg.qr(shares.to(torch.float64))
    left, strength, right = torch.linalg.svd((r[:, :, None] * flat).sum(1), full_matrices=False)
    norm = total_of(torch.view_as_real(like.to(torch.complex128)).square()).sqrt()
    new = (q[:, :, None] * left).sum(1) * (strength / norm)
    sign = new.gather(0, new.abs().argmax(0, keepdim=True)).sign()
    sign = torch.where(sign == 0, torch.ones_like(sign), sign)
    parts = (right * norm * sign.T).reshape(*modes.shape, 2)
    return (new * sign).to(shares.dtype), torch.view_as_complex(parts.contiguous()).to(modes.dtype)
