"""Rotation of the scan against the detector, by how far patterns are turned against their models.

u        pixels from the middle of the window;  psi_jm exit waves, Psi_jm on the detector, I_j = sum_m |Psi_jm|^2
G psi    (u_y d_x - u_x d_y) psi, the change of a wave that turns about the middle;  D to the detector
dI_j     2 sum_m Re(conj(Psi_jm) D G psi_jm), change of a pattern by the turn
L        loss of all views

    turn = - sum_j <dL/dI_j, dI_j> / sum_j <d^2L/dI_j^2, dI_j^2>,    rotation <- rotation - pace GAIN turn

With a wrong rotation the object turns as the positions do, for it agrees with these; its patterns then are turned as
well, and the data's are not. For the slope by positions the object is nearly at rest: it says a hundredth of the error
or less, and steps by it end where chance takes them in the first epochs. The turn of the patterns says a seventh of it
(docs/how-to/positions.md), the same in all views.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from ptymesh.distributed.exact import Reduction
from ptymesh.estimate import Estimate
from ptymesh.physics import fidelity
from ptymesh.physics.backend import Chunk
from ptymesh.physics.elementwise import means, over_window
from ptymesh.physics.model import inner, power
from ptymesh.physics.rounding import total_of
from ptymesh.physics.window_shifts import derivative
from ptymesh.problem import Problem

#: Factor of the turn in a first step, when the object soon follows; later steps are paced, as it follows more slowly.
GAIN = 6.0
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


def measure_rotation(problem: Problem, estimate: Estimate, views: np.ndarray, pace: float, limit_px: float) -> float:
    """Return the step of the scan's rotation in rad that the patterns of views ask for. Collective.

    Args:
        problem: the problem that is solved.
        estimate: the unknowns.
        views: global indices of the views whose patterns are looked at.
        pace: factor of the step, 0 to 1.
        limit_px: rms of the moves of all positions at most.
    """
    filled = problem.loader.fill_halos(estimate)

    def sweep() -> Reduction:
        reduction = problem.fields.reduction(2)
        for chunk in problem.loader.chunks(estimate, views, filled=filled):
            reduction.add(_turns_of_chunk(problem, estimate, chunk))
        return reduction

    slope, norm = (float(number) for number in problem.fields.totals(problem.evaluator.in_memory(sweep))[0].cpu())
    away = estimate.nominal - means(estimate.nominal)
    most = limit_px / max(math.sqrt(float(total_of(away.square())) / len(away)), 1.0)
    return min(max(pace * GAIN * slope / norm, -most), most) if norm > 0 else 0.0


def _turns_of_chunk(problem: Problem, estimate: Estimate, chunk: Chunk) -> Tensor:
    """Return slope and curvature of each view's loss by a turn of its pattern, (B, 2) float64."""
    intermediates = problem.evaluator.forward(estimate, chunk)
    waves = intermediates.exit
    downhill, _ = problem.evaluator.loss_gradient(chunk, intermediates, record=False)
    h, w = problem.window
    y, x = (torch.arange(n, device=waves.device, dtype=problem.real) - n // 2 for n in (h, w))
    turned = y[:, None] * derivative(waves, 1) - x * derivative(waves, 0)
    detected = problem.evaluator.detect(chunk, waves)
    behind = torch.view_as_real(problem.evaluator.detect(chunk, turned))
    change = 2 * (torch.view_as_real(detected) * behind).sum(-1).sum(1)
    norm = fidelity.norm(problem.model.fidelity, power(detected), chunk.data)
    return torch.stack((-2 * inner(turned, downhill), over_window((norm * change.square()).to(torch.float64))), dim=1)
