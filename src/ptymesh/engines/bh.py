"""BH: steps from the bilinear Hessian, over object, probe and positions together.

Carlsson, Wendt, Cloetens & Nikitin, arXiv:2502.10755 (2025).

z            preconditioned negative gradient (descent.py); its positions move by their Gauss-Newton steps
v            the step before, where directions are conjugate
H(a, c)      sum_j sum slope Re sum_m [2 conj(Psi_a) Psi_c + 2 conj(Psi) Psi_ac] + curvature I_a I_c, the exact second
             derivative of the loss along a and c; I_a = 2 Re sum_m conj(Psi) Psi_a, slope = dL/dI, curvature its own

    gradient:   (O, P, p) += -L'(z)/H(z, z) z
    conjugate:  (O, P, p) += t z + r v at the stationary point of the second-order model,
                [H(z,z) H(z,v); H(z,v) H(v,v)] (t, r) = -(L'(z), L'(v))

Where L'(v) = 0, as after an exact step on the same views, the second is the paper's conjugate direction z + beta v with
Daniel's beta = -H(z, v)/H(v, v), followed by -L'/H; solved together, it also bears batches and curved valleys. For the
amplitude, H(d, d) is that of ALGORITHMS: with slope 1 - sqrt(y/I) and curvature sqrt(y) I^(-3/2) / 2.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from ptymesh.engines.descent import Descent, Move, apply
from ptymesh.estimate import Estimate
from ptymesh.physics import fidelity
from ptymesh.physics.along import Direction, exit_jet
from ptymesh.physics.model import power
from ptymesh.problem import Batch, Chunk, Problem

#: Directions whose angle (in the metric of H) has a smaller squared sine are as good as parallel.
PARALLEL = 1e-6


class BH(Descent):
    """Bilinear Hessian: gradient or conjugate directions with exact second-order steps, any fidelity and slices.

    directions: gradient or conjugate; scale_positions: of the positions' part of a direction (in their Gauss-Newton
    steps), where the stage refines positions. Where the Hessian is not positive, a search along the gradient of object
    and probe takes its place.
    """

    name: ClassVar[str] = "bh"

    directions: Literal["conjugate", "gradient"] = "conjugate"
    scale_positions: float = Field(1.0, gt=0)

    def step(self, problem: Problem, estimate: Estimate, batch: Batch) -> None:
        """Gradient, second-order model along z and v, step to its stationary point."""
        _, z = self.downhill(problem, estimate, batch)
        moves, shifts = [z], [self._asked(problem, batch)]
        v = self.recall("step", problem, estimate, z) if self.directions == "conjugate" else None
        if v is not None:
            moves.append(v)
            shifts.append(self.per_view.get("position_step", torch.zeros_like(shifts[0])))
        slopes, hessian = problem.world.sum(*self.model_along(problem, estimate, batch, moves, shifts))
        lengths = solved(slopes, hessian)
        if lengths is None:
            step, shift = z.times(self.search(problem, estimate, batch, z)), torch.zeros_like(shifts[0])
        else:
            step, shift = z.times(lengths[0]), shifts[0] * lengths[0]
            if v is not None:
                step, shift = step.plus(lengths[1], v), shift + shifts[1] * lengths[1]
        apply(problem, estimate, step)
        self._hand_over(problem, batch, shift)
        if self.directions == "conjugate":
            self.remember("step", problem, estimate, step)

    def _asked(self, problem: Problem, batch: Batch) -> Tensor:
        """Displacements (n, 2) of own views that the gradient asks for; 0 outside of the batch."""
        asked = torch.zeros(len(problem.layout.own), 2, dtype=torch.float64, device=problem.device)
        for views, steps in problem.position_steps:
            asked[self._rows(problem, views)] = self.scale_positions * steps
        return asked

    def _hand_over(self, problem: Problem, batch: Batch, shift: Tensor) -> None:
        """The loop moves the batch's positions; the next step remembers by how much."""
        problem.position_steps[:] = [(views, shift[self._rows(problem, views)]) for views, _ in problem.position_steps]
        if self.directions == "conjugate" and batch.refine:
            kept = self.per_view.setdefault("position_step", torch.zeros_like(shift))
            for views, steps in problem.position_steps:
                kept[self._rows(problem, views)] = steps

    @staticmethod
    def _rows(problem: Problem, views: Tensor) -> Tensor:
        return torch.as_tensor(problem.layout.local(views.cpu().numpy()), device=problem.device)

    def model_along(
        self, problem: Problem, estimate: Estimate, batch: Batch, moves: list[Move], shifts: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """L' (n,) and H (n, n) float64 along n directions, this rank's share: moves, and shifts (own views, 2)."""
        n = len(moves)
        slopes = torch.zeros(n, dtype=torch.float64, device=problem.device)
        hessian = torch.zeros(n, n, dtype=torch.float64, device=problem.device)
        objects = [problem.spread(move.object, estimate, f"along {i}") for i, move in enumerate(moves)]
        for chunk in problem.chunks(estimate, batch.views):
            directions = [
                Direction(o, move.probe, shift[chunk.rows].to(problem.real) if batch.refine else None)
                for o, move, shift in zip(objects, moves, shifts, strict=True)
            ]
            first, second = second_order(problem, estimate, chunk, directions)
            slopes += first
            hessian += second
        return slopes, hessian


def second_order(
    problem: Problem, estimate: Estimate, chunk: Chunk, directions: list[Direction]
) -> tuple[Tensor, Tensor]:
    """L' (n,) and H (n, n) of a chunk along n directions, float64.

    Re sum slope conj(Psi) Psi_ac is <D^H (slope Psi), psi_ac>: one inverse transform for all pairs.
    """
    model, kind = problem.model, problem.model.fidelity
    scene = problem.scene(estimate, chunk)
    jet = exit_jet(model, estimate.object, scene, directions, chunk.anchors, chunk.fractions, chunk.weights)
    detected = problem.detect(chunk, jet.value)
    S = power(detected)
    slope, curvature = fidelity.slope(kind, S, chunk.data), fidelity.curvature(kind, S, chunk.data)
    gradient = model.detect_adjoint(detected * slope[:, None], chunk.fractions)
    waves = [problem.detect(chunk, jet.first[a]) for a in range(len(directions))]
    changes = [2 * _product(detected, wave) for wave in waves]
    first = torch.stack([(slope * change).sum(dtype=torch.float64) for change in changes])
    second = torch.zeros(len(waves), len(waves), dtype=torch.float64, device=first.device)
    for a in range(len(waves)):
        for c in range(a, len(waves)):
            terms = 2 * slope * _product(waves[a], waves[c]) + curvature * changes[a] * changes[c]
            terms = terms + 2 * _product(gradient, jet.second[a, c])
            second[a, c] = second[c, a] = terms.sum(dtype=torch.float64)
    return first, second


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Re sum_m conj(a_m) b_m, (B, h, w)."""
    return (torch.view_as_real(a) * torch.view_as_real(b)).sum((1, -1))


def solved(slopes: Tensor, hessian: Tensor) -> Tensor | None:
    """Step lengths (n,), -H^-1 L': along the first direction alone where H is not positive definite on both.

    None where it is not even positive there.
    """
    alone = torch.zeros_like(slopes)
    if not float(hessian[0, 0]) > 0:
        return None
    alone[0] = -slopes[0] / hessian[0, 0]
    if len(slopes) == 1:
        return alone
    determinant = hessian[0, 0] * hessian[1, 1] - hessian[0, 1] ** 2
    if not float(determinant) > PARALLEL * float(hessian[0, 0] * hessian[1, 1]) or not float(hessian[1, 1]) > 0:
        return alone
    t = hessian[1, 1] * slopes[0] - hessian[0, 1] * slopes[1]
    r = hessian[0, 0] * slopes[1] - hessian[0, 1] * slopes[0]
    return -torch.stack((t, r)) / determinant
