"""BH: steps from the bilinear Hessian, over object, probe and positions together.

Carlsson, Wendt, Cloetens & Nikitin, arXiv:2502.10755 (2025).

z            preconditioned negative gradient (descent.py); its positions move by their Gauss-Newton steps
v            the step before, if directions are conjugate
H(a, c)      sum_j sum slope Re sum_m [2 conj(Psi_a) Psi_c + 2 conj(Psi) Psi_ac] + curvature I_a I_c, the exact second
             derivative of the loss along a and c; I_a = 2 Re sum_m conj(Psi) Psi_a, slope = dL/dI, curvature d2L/dI2

    gradient:   (O, P, p) += -L'(z)/H(z, z) z
    conjugate:  (O, P, p) += t z + r v at the stationary point of the second-order model,
                [H(z,z) H(z,v); H(z,v) H(v,v)] (t, r) = -(L'(z), L'(v))

If L'(v) = 0, as after an exact step on the same views, the second is the paper's conjugate direction z + beta v with
Daniel's beta = -H(z, v)/H(v, v), followed by -L'/H; solved together, it also bears batches and curved valleys. For the
amplitude, H(d, d) has slope 1 - sqrt(y/I) and curvature sqrt(y) I^(-3/2) / 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from ptymesh.distributed.devices import sent
from ptymesh.engines.cost import EngineCost, StepNeeds
from ptymesh.engines.descent import Descent, Move, apply
from ptymesh.estimate import Estimate
from ptymesh.physics import fidelity
from ptymesh.physics.elementwise import over_window, overlap
from ptymesh.physics.expansions import Direction, exit_jet
from ptymesh.physics.model import power
from ptymesh.problem import Batch, Chunk, Problem

#: Least eigenvalue of H, scaled to a unit diagonal, that counts as positive; below, directions are nearly parallel.
PARALLEL = 1e-3
#: Longest step in units of a direction, z or the step before, for which a second-order model is trusted.
FAR = 8.0


class BH(Descent):
    """Bilinear Hessian: gradient or conjugate directions with exact second-order steps, any fidelity and slices.

    If the Hessian is not positive, or gives very long steps, a line search along z takes its place, and positions do
    not move.

    Attributes:
        directions: gradient or conjugate.
        scale_positions: length of the positions' part of z, in Gauss-Newton steps of each view, if positions are
            refined.
    """

    name: ClassVar[str] = "bh"
    peer_names: ClassVar[Mapping[str, tuple[str, ...]]] = {"ptychi": ("rho",)}
    cost: ClassVar[EngineCost] = EngineCost(17.0, per_object_pixel=1.0, whole=True)
    step_needs: ClassVar[StepNeeds] = replace(
        Descent.step_needs, later_numbers=6, inner_products=0, inner_product_rounds=0
    )
    with_optics: ClassVar[bool] = False
    models_of: ClassVar[tuple[str, ...]] = ()

    directions: Literal["conjugate", "gradient"] = "conjugate"
    scale_positions: float = Field(0.1, gt=0)

    def step(self, problem: Problem, estimate: Estimate, batch: Batch) -> None:
        """Go to the stationary point of the second-order model along z and v. Collective.

        Args:
            problem: loader, evaluator and fields of the stage.
            estimate: the unknowns, changed in place.
            batch: the views.
        """
        _, z = self.downhill(problem, estimate, batch)
        v = self.recall("step", problem, estimate, z) if self.directions == "conjugate" else None
        if batch.refine:
            steps = self._position_steps(problem, batch)
            z = replace(z, positions=steps)
            v = v and replace(v, positions=self.per_view.get("position_step", torch.zeros_like(steps)))
        moves = [z] if v is None else [z, v]
        lengths = solved(*self.model_along(problem, estimate, batch, moves))
        if lengths is None:
            step = replace(z, positions=None).times(self.search(problem, estimate, batch, z))
        else:
            step = reduce(Move.plus, [move.times(t) for move, t in zip(moves, lengths, strict=True)])
        apply(problem, estimate, step)
        self._pass_positions(problem, batch, step)
        if self.directions == "conjugate":
            self.remember("step", problem, estimate, step)

    def _position_steps(self, problem: Problem, batch: Batch) -> Tensor:
        """Return the gradient's displacements of this rank's views (n, 2), within the limit; 0 outside of the batch."""
        assert self.positions is not None
        steps_asked = torch.zeros(len(problem.layout.own), 2, dtype=torch.float64, device=problem.device)
        if batch.view_updates.positions:
            steps_asked[_views_and_rows(problem, batch)[1]] = torch.cat(
                [steps for _, steps in batch.view_updates.positions]
            )
        return (self.scale_positions * steps_asked).clamp(-self.positions.limit_px, self.positions.limit_px)

    def _pass_positions(self, problem: Problem, batch: Batch, step: Move) -> None:
        """Give the step of positions to the loop, which moves them within its limits, and remember it."""
        batch.view_updates.positions.clear()
        if step.positions is None:
            return
        views, rows = _views_and_rows(problem, batch)
        batch.view_updates.positions.append((views, step.positions[rows]))
        if self.directions == "conjugate":
            self.per_view.setdefault("position_step", torch.zeros_like(step.positions))[rows] = step.positions[rows]

    def model_along(
        self, problem: Problem, estimate: Estimate, batch: Batch, moves: list[Move]
    ) -> tuple[Tensor, Tensor]:
        """Return L' (n,) and H (n, n) float64 of the batch along n moves. Collective.

        Args:
            problem: loader, evaluator and fields of the stage.
            estimate: the unknowns.
            batch: the views.
            moves: n directions.
        """
        n = len(moves)
        slopes, hessian = problem.fields.reduction(n), problem.fields.reduction(n, n)
        objects = [problem.fields.window_array(move.object, estimate, f"along {i}") for i, move in enumerate(moves)]
        for chunk in problem.loader.chunks(estimate, batch.views):
            directions = [
                Direction(o, m.probe, None if m.positions is None else m.positions[chunk.rows].to(problem.real))
                for o, m in zip(objects, moves, strict=True)
            ]
            first, second = second_order(problem, estimate, chunk, directions)
            slopes.add(first)
            hessian.add(second)
        slope, curvature = problem.fields.totals(slopes, hessian)
        return slope, curvature


def _views_and_rows(problem: Problem, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return this rank's views of the batch, and their rows among all views of this rank."""
    views = problem.loader.local_views.in_sweep_order(batch.views)
    rows = problem.layout.local(views)
    return sent(views, problem.device), sent(rows, problem.device)


def second_order(
    problem: Problem, estimate: Estimate, chunk: Chunk, directions: list[Direction]
) -> tuple[Tensor, Tensor]:
    """Return L' (B, n) and H (B, n, n) of each view of a chunk along n directions, float64.

    Re sum slope conj(Psi) Psi_ac is <D^H (slope Psi), psi_ac>: one inverse transform for all pairs.

    Args:
        problem: evaluator and model of the stage.
        estimate: the unknowns.
        chunk: the views.
        directions: n changes of object, probe and positions.
    """
    model, kind = problem.model, problem.model.fidelity
    intermediates = problem.evaluator.forward(estimate, chunk)
    obj = problem.evaluator.cut_from(estimate, chunk)
    jet = exit_jet(model, obj, intermediates, directions, chunk.anchors, chunk.fractions, chunk.weights)
    detected = problem.evaluator.detect(chunk, jet.value)
    S = power(detected)
    slope, curvature = fidelity.slope(kind, S, chunk.data), fidelity.curvature(kind, S, chunk.data)
    gradient = model.detect_adjoint(detected * slope[:, None], chunk.fractions)
    waves = [problem.evaluator.detect(chunk, jet.first[a]) for a in range(len(directions))]
    changes = [2 * _product(detected, wave) for wave in waves]
    first = torch.stack([over_window(slope * change) for change in changes], dim=1)
    second = first.new_zeros(len(S), len(waves), len(waves))
    for a in range(len(waves)):
        for c in range(a, len(waves)):
            terms = 2 * slope * _product(waves[a], waves[c]) + curvature * changes[a] * changes[c]
            terms = terms + 2 * _product(gradient, jet.second[a, c])
            second[:, a, c] = second[:, c, a] = over_window(terms)
    return first, second


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Return Re sum_m conj(a_m) b_m, (B, h, w)."""
    return overlap(a, b).sum(1)


def solved(slopes: Tensor, hessian: Tensor) -> Tensor | None:
    """Return the step lengths -H^-1 L' along n directions, (n,) on the host.

    A step is trusted if H is positive and the step is not long; if not, the last directions are left out until it is.

    Args:
        slopes: (n,) float64, L'.
        hessian: (n, n) float64, H.

    Returns:
        Lengths, 0 for directions that are left out; None if even the first alone cannot be trusted.
    """
    slopes, *rows = torch.cat((slopes[None], hessian)).cpu()  # one transfer from the device; the rest runs on the host
    hessian = torch.stack(rows)
    if not bool(hessian.isfinite().all()):
        return None
    for n in range(len(slopes), 0, -1):
        L, H = slopes[:n], hessian[:n, :n]
        size = H.diagonal().abs().clamp(min=torch.finfo(H.dtype).tiny).sqrt()
        scaled = H / torch.outer(size, size)
        if float(torch.linalg.eigvalsh(scaled)[0]) > PARALLEL:
            lengths = -torch.linalg.solve(scaled, L / size) / size
            if float(lengths.abs().max()) < FAR:
                return torch.cat((lengths, lengths.new_zeros(len(slopes) - n)))
    return None
