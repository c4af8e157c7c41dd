"""Rotation, scale, aspect and shear of the scan, by how far the object under each view is strained against its pattern.

u        pixels from the middle of the window;  O_jl windows of the object, psi_jm exit waves
Psi_jm   exit waves on the detector, I_j = sum_m |Psi_jm|^2;  D to the detector
v_k      move of a point at u by a unit of the number theta_k: (-u_x, u_y) by a rotation, (u_y, u_x) by the scale, ...
d_k psi  change of the exit wave as each O_jl changes by (v_k . grad) O_jl, and the beam stays
d_k I_j  2 sum_m Re(conj(Psi_jm) D d_k psi_jm)
L        loss of all views

    e_k = - sum_j <dL/dI_j, d_k I_j> / sum_j <d^2L/dI_j^2, (d_k I_j)^2>,    theta_k <- theta_k - pace GAIN e_k

A prior of theta_k (models/base.py) adds its slope to the numerator, and its curvature to the divisor over GAIN.

With positions that are wrong by a strain the object is strained as they are, for it agrees with these. If both are put
right together, the object under a beam changes by no more than the strain about the middle of the window, which is d_k:
along it lies the slope of the loss by that joint move. For the slope by positions alone the object is nearly at rest:
it says a hundredth of the error or less, and steps by it end where chance takes them in the first epochs. The strain of
the windows says a third to a fifth of the error (docs/how-to/positions.md), and nothing where there is none.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ptymesh.distributed.exact import Reduction
from ptymesh.estimate import Estimate
from ptymesh.models import Parametrisation
from ptymesh.models.scan_geometry import moves_of_terms
from ptymesh.physics import fidelity
from ptymesh.physics.backend import Chunk
from ptymesh.physics.elementwise import over_window
from ptymesh.physics.fidelity import fidelity_of
from ptymesh.physics.model import inner, power
from ptymesh.physics.rounding import total_of
from ptymesh.physics.window_shifts import derivative
from ptymesh.problem import Problem

#: Factor of the strain in a first step, when the object soon follows; later steps are paced, as it follows more slowly.
GAIN = 4.0
#: Most views whose patterns are looked at after an epoch. Others are taken after the next one, so that the errors of
#: single views do not add up.
MOST_VIEWS = 32
#: Its multiples are spread evenly between whole numbers, however many they are.
GOLDEN = (math.sqrt(5) - 1) / 2


def views_of_epoch(views: np.ndarray, epoch: int) -> np.ndarray:
    """Return the views whose patterns are looked at after an epoch, as far apart as they can be, others in each epoch.

    Args:
        views: (N,) global indices of the views that are reconstructed from.
        epoch: of the stage, from 1.
    """
    if len(views) <= MOST_VIEWS:
        return views
    step, start = len(views) / MOST_VIEWS, GOLDEN * epoch % 1
    return np.asarray(views[((np.arange(MOST_VIEWS) + start) * step).astype(np.int64)])


def measure_strain(
    problem: Problem, estimate: Estimate, views: np.ndarray, geometry: Parametrisation, pace: float, away: Tensor
) -> Tensor:
    """Return the step of the scan's geometry that the patterns of views ask for, (n,) float64 on the host. Collective.

    Args:
        problem: the problem that is solved.
        estimate: the unknowns.
        views: global indices of the views whose patterns are looked at.
        geometry: the scan's, with n numbers; all positions together move by its `lr` at most, rms, in pixels.
        pace: factor of the step, 0 to 1.
        away: (n,) float64 on the host, numbers less their values at the start of the run, which priors are about.
    """
    filled, terms = problem.loader.fill_halos(estimate), list(geometry.units())

    def sweep() -> Reduction:
        reduction = problem.fields.reduction(2 * len(terms))
        for chunk in problem.loader.chunks(estimate, views, filled=filled):
            reduction.add(_strains_of_chunk(problem, estimate, chunk, terms))
        return reduction

    slopes, norms = problem.fields.totals(problem.evaluator.in_memory(sweep))[0].cpu().view(-1, 2).unbind(1)
    # loss whose unit is chi-square / 2 of these views' share of the counts
    unit = fidelity_of(problem.model.fidelity).bend / 2 * len(views) / problem.views
    prior = unit * geometry.precisions()
    bent = norms / GAIN + prior
    step = torch.where(bent > 0, pace * (slopes - prior * away) / bent, 0.0)
    moves = (geometry.directions(problem.geometry, estimate) * step.to(problem.device)[:, None, None]).sum(0)
    rms = math.sqrt(float(total_of(moves.square())) / len(moves))
    return step * min(1.0, geometry.lr / rms) if rms > 0 else step


def _strains_of_chunk(problem: Problem, estimate: Estimate, chunk: Chunk, terms: list[str]) -> Tensor:
    """Return slope and curvature of each view's loss by a strain of its object by each term, (B, 2 n) float64."""
    intermediates = problem.evaluator.forward(estimate, chunk)
    downhill, _ = problem.evaluator.loss_gradient(chunk, intermediates, record=False)
    windows, (h, w) = intermediates.windows, problem.window
    y, x = (torch.arange(n, device=windows.device, dtype=problem.real) - n // 2 for n in (h, w))
    fields = moves_of_terms(y[:, None].expand(h, w), x.expand(h, w))
    d_y, d_x = derivative(windows, 0), derivative(windows, 1)
    detected = problem.evaluator.detect(chunk, intermediates.exit)
    norm = fidelity.norm(problem.model.fidelity, power(detected), chunk.data)
    if intermediates.derivative is not None:  # of windows by others, while these are strained themselves
        intermediates = replace(intermediates, derivative=None)
    products = []
    for v_y, v_x in (fields[term] for term in terms):
        strained = problem.model.exit_change(intermediates, None, v_y * d_y + v_x * d_x)
        at_detector = torch.view_as_real(problem.evaluator.detect(chunk, strained))
        change = 2 * (torch.view_as_real(detected) * at_detector).sum(-1).sum(1)
        products += [-2 * inner(strained, downhill), over_window((norm * change.square()).to(torch.float64))]
    return torch.stack(products, dim=1)
