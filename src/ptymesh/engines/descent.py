"""Common part of CG and BH: the preconditioned joint gradient of object and probe, and a line search.

g        derivative of the batch's loss with respect to the conjugates of O and P, summed over its views;  s = -g
w        sum_j S_j^H sum_m |P_jm|^2;  u = sum_j |O_j|^2
alpha    step at which the exit waves psi + alpha D^H (-slope Psi) would fit best, by Newton: 1 for amplitude

    z_O = alpha s_O / sqrt(w^2 + (delta max w)^2)        z_P = scale_probe alpha s_P / sqrt(u^2 + (delta max u)^2)

Weights are those of the batch: z is the Gauss-Newton step of every pixel alone, so that a step of about 1 is right for
all fidelities and units. Along a direction d, exit waves are a polynomial A + t B + t^2 C (with one slice) whose power
is computed once; the loss is then known at any t without another Fourier transform.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from ptymesh.distributed.layouts.layout import BlockSparseField, product
from ptymesh.engines.base import Engine
from ptymesh.engines.cost import StepNeeds
from ptymesh.estimate import Estimate
from ptymesh.physics import fidelity
from ptymesh.physics.elementwise import over_window
from ptymesh.physics.expansions import evaluated, exit_polynomial, power_polynomial
from ptymesh.physics.model import power
from ptymesh.physics.rounding import total_of
from ptymesh.problem import Batch, Problem

#: Steps that a line search evaluates, besides 0.
LADDER = tuple(2.0**n for n in range(-5, 4))

Weight = TypeVar("Weight", Tensor, BlockSparseField)


@dataclass(frozen=True)
class Move:
    """A change of object and probe on the blocks that a batch touches, and of positions if they are part of it.

    Attributes:
        object: touched blocks, complex.
        probe: (M, h, w) complex.
        positions: (n, 2) displacements of this rank's views, in pixels; None if they stay.
    """

    object: BlockSparseField
    probe: Tensor
    positions: Tensor | None = None

    def times(self, factor: Tensor) -> Move:
        """Return factor x self; factor is 0-d."""
        real = factor.to(self.probe.real.dtype)
        positions = None if self.positions is None else factor * self.positions
        return Move(self.object * real, self.probe * real, positions)

    def plus(self, other: Move) -> Move:
        """Return self + other; positions are left out unless both have them."""
        positions = None
        if self.positions is not None and other.positions is not None:
            positions = self.positions + other.positions
        return Move(self.object + other.object, self.probe + other.probe, positions)


class Descent(Engine):
    """Options of descent along joint directions, by default of all views in every step.

    Attributes:
        batch: views per update; None for all.
        delta: regularises the preconditioner's weights, as a fraction of the largest.
        scale_probe: length of the probe's part of a direction against the object's.
    """

    step_needs: ClassVar[StepNeeds] = StepNeeds(
        parts=2,
        numbers=3,
        later_numbers=len(LADDER) + 1,
        inner_products=3,
        inner_product_rounds=3,
        object_arrays=3,
    )

    batch: PositiveInt | None = None
    delta: float = Field(0.1, gt=0, le=1)
    scale_probe: float = Field(1.0, gt=0)

    def downhill(self, problem: Problem, estimate: Estimate, batch: Batch) -> tuple[Move, Move]:
        """Return s and z of the batch, in one sweep. Collective.

        Steps of positions and beams, and the sums of OPR modes, are multiplied by alpha.

        Args:
            problem: loader, evaluator and fields of the stage.
            estimate: the unknowns.
            batch: the views.
        """
        kind, model = problem.model.fidelity, problem.model
        least = fidelity.fidelity_of(kind).least_slope
        accumulator = problem.accumulator(estimate, batch)
        terms = problem.fields.reduction(3)
        for chunk in problem.loader.chunks(estimate, batch.views):
            intermediates = problem.evaluator.forward(estimate, chunk)
            detected = problem.evaluator.detect(chunk, intermediates.exit)
            S = power(detected)
            problem.evaluator.record_signal(chunk, S)
            slope = fidelity.slope(kind, S, chunk.data)
            if least is not None:  # dim pixels must not decide the direction; the length follows from the true loss
                slope = slope.clamp(min=least)
            accumulator.add(chunk, intermediates, model.detect_adjoint(detected * -slope[:, None], chunk.fractions))
            bend = 4 * fidelity.curvature(kind, S, chunk.data) * S**2 * slope**2
            curves = (2 * S * slope**2, 2 * S * slope**3, bend)
            terms.add(torch.stack([over_window(t) for t in curves], dim=1))
        s = accumulator.total(terms)
        alpha = _newton(*s.others[0])
        batch.view_updates.scaled(alpha)
        batch.view_updates.gradients = replace(s, opr=alpha * s.opr)
        z_object = alpha * s.object / floored(s.object_weight, self.delta)
        z_probe = self.scale_probe * alpha * s.probe / floored(s.probe_weight, self.delta)
        return Move(s.object, s.probe), Move(z_object, z_probe)

    def recall(self, name: str, problem: Problem, estimate: Estimate, like: Move) -> Move | None:
        """Return a remembered move on the blocks of `like`.

        Args:
            name: of the move.
            problem: the problem that is solved.
            estimate: the unknowns.
            like: move that gives the blocks.

        Returns:
            The move; None if there is none for an object of this shape.
        """
        remembered = self.state.get(f"object_{name}")
        if remembered is None or remembered.shape != estimate.object.shape:
            return None
        return Move(problem.fields.touched(remembered, like.object), self.state[f"probe_{name}"])

    def remember(self, name: str, problem: Problem, estimate: Estimate, move: Move) -> None:
        """Store a move for the next step.

        Args:
            name: of the move.
            problem: the problem that is solved.
            estimate: the unknowns.
            move: what is stored.
        """
        remembered = self.state.get(f"object_{name}")
        if remembered is None or remembered.shape != estimate.object.shape:
            remembered = self.state[f"object_{name}"] = torch.zeros_like(estimate.object)
        problem.fields.put(remembered, move.object)
        self.state[f"probe_{name}"] = move.probe

    def drop_moves(self, *names: str) -> None:
        """Drop remembered moves."""
        for name in names:
            self.state.pop(f"object_{name}", None)
            self.state.pop(f"probe_{name}", None)

    def search(self, problem: Problem, estimate: Estimate, batch: Batch, move: Move) -> Tensor:
        """Return the step t >= 0 of the least loss along a move, 0-d float64 on the host. Collective.

        It is the best of the ladder, refined by a parabola.

        Args:
            problem: loader, evaluator and fields of the stage.
            estimate: the unknowns at t = 0.
            batch: the views.
            move: the direction.
        """
        direction, kind = problem.fields.window_array(move.object, estimate), problem.model.fidelity
        steps = (0.0, *LADDER)
        losses = problem.fields.reduction(len(steps))
        for chunk in problem.loader.chunks(estimate, batch.views):
            windows = problem.model.windows(direction, chunk.anchors, chunk.fractions, problem.window)
            probes = problem.model.probes(move.probe, chunk.fractions, chunk.weights)
            waves = exit_polynomial(problem.model, problem.evaluator.forward(estimate, chunk), probes, windows)
            powers = power_polynomial([problem.evaluator.detect(chunk, wave) for wave in waves])
            values = [fidelity.value(kind, evaluated(powers, t).clamp(min=0), chunk.data) for t in steps]
            losses.add(torch.stack(values, dim=1))
        return lowest(torch.tensor(steps, dtype=torch.float64), problem.fields.totals(losses)[0].cpu())


def dot(problem: Problem, estimate: Estimate, a: Move, b: Move) -> Tensor:
    """Return <a, b> over object and probe, 0-d float64. Collective.

    Args:
        problem: fields of the stage.
        estimate: gives the object's place.
        a: a move.
        b: a move.
    """
    return problem.fields.dot(a.object, b.object, estimate) + total_of(product(a.probe, b.probe))


def apply(problem: Problem, estimate: Estimate, move: Move) -> None:
    """Add a move to object and probe.

    Args:
        problem: fields of the stage.
        estimate: the unknowns, changed in place.
        move: the change.
    """
    problem.fields.add(estimate.object, move.object)
    problem.fields.add(estimate.probe, move.probe)


def floored(weight: Weight, delta: float) -> Weight:
    """Return sqrt(w^2 + (delta max w)^2), kept above zero for pixels without illumination."""
    top = weight.max()
    floor = (delta * top) ** 2 + torch.finfo(top.dtype).tiny
    return (weight * weight + floor).sqrt()


def lowest(steps: Tensor, losses: Tensor) -> Tensor:
    """Return the minimum of the parabola through the least of the losses (n,) and its neighbours.

    At an end of the line, the step itself is returned.
    """
    k = int(losses.argmin())
    if k == 0 or k == len(steps) - 1:
        return steps[k]
    (a, b, c), (fa, fb, fc) = steps[k - 1 : k + 2], losses[k - 1 : k + 2]
    left, right = (b - a) * (fb - fc), (b - c) * (fb - fa)
    vertex = b - 0.5 * ((b - a) * left - (b - c) * right) / (left - right)
    return vertex.clamp(a, c) if bool(vertex.isfinite()) else b


def _newton(first: Tensor, cubic: Tensor, bend: Tensor) -> Tensor:
    """Return -L'/L'' along Psi' = (1 - alpha slope) Psi, with L'' at least an eighth of its Gauss-Newton part."""
    tiny = torch.finfo(first.dtype).tiny
    return first / torch.maximum(cubic + bend, bend / 8).clamp(min=tiny)
