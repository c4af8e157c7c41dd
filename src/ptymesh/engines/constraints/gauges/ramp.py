"""Gauge of the linear phase ramp of the object."""

from __future__ import annotations

import torch
from torch import Tensor

from ptymesh.engines import waves
from ptymesh.engines.constraints.base import Constraint
from ptymesh.engines.constraints.illumination import illuminated_mask
from ptymesh.engines.waves import EngineMemory
from ptymesh.estimate import Estimate
from ptymesh.physics.elementwise import phase as phase_of
from ptymesh.physics.elementwise import times
from ptymesh.problem import Problem


class Ramp(Constraint):
    """Gauge without a linear phase ramp of the object; the probe takes the inverse."""

    def apply(self, problem: Problem, estimate: Estimate, engine: EngineMemory) -> None:
        """Remove the object's mean phase gradient over illuminated pixels; stored waves follow. Collective.

        Args:
            problem: the problem that is solved.
            estimate: the unknowns.
            engine: memory with exit waves, which take what is left of the ramps.
        """
        waves.ramp(engine, problem, estimate, remove_ramp(problem, estimate, illuminated_mask(problem, estimate)))


def remove_ramp(problem: Problem, estimate: Estimate, mask: Tensor) -> list[float]:
    """Bring the mean phase gradient of the product of slices to zero; the probe takes the inverse ramp. Collective.

    The gradient is the phase of sum conj(O[r]) O[r + 1], robust against wraps and noise.

    Args:
        problem: the problem that is solved.
        estimate: the unknowns, changed in place.
        mask: (H, W) bool, pixels that count.

    Returns:
        The gradient in rad/px, y x.
    """
    layout = problem.layout
    padded, at = layout.with_margin(estimate.object, estimate, 1)  # with the pixels next to those of this rank
    total, lit_around = padded.prod(0), layout.with_margin(mask[None], estimate, 1)[0][0]
    owned = torch.zeros_like(lit_around)
    y, x = (slice(c - first, c - first + n) for c, first, n in zip(estimate.corner, at.corner, mask.shape, strict=True))
    owned[y, x] = layout.owned(estimate).expand(mask.shape)
    sums = []
    for axis in (0, 1):
        n = total.shape[axis] - 1
        first, second = total.narrow(axis, 0, n), total.narrow(axis, 1, n)
        both_lit = lit_around.narrow(axis, 0, n) & lit_around.narrow(axis, 1, n) & owned.narrow(axis, 0, n)
        along = torch.where(both_lit, times(first.conj(), second), 0)
        sums += [along.real, along.imag]
    gradient = phase_of(torch.view_as_complex(layout.totals(estimate, *sums).view(2, 2))).tolist()
    middle = [n // 2 for n in estimate.extent]
    corner = [m - c for m, c in zip(middle, estimate.corner, strict=True)]
    ramp = _ramp(estimate.object, gradient, -1.0, corner)
    estimate.object[-1] = times(estimate.object[-1], ramp)
    estimate.probe.copy_(times(estimate.probe, _ramp(estimate.probe, gradient, 1.0, [n // 2 for n in estimate.window])))
    return gradient


def _ramp(like: Tensor, gradient: list[float], sign: float, middle: list[int]) -> Tensor:
    """Return exp(i sign g.(r - middle)) over the last two axes of `like`, g in rad/px."""
    y, x = (torch.arange(n, dtype=torch.float64, device=like.device) for n in like.shape[-2:])
    phase = sign * (gradient[0] * (y - middle[0])[:, None] + gradient[1] * (x - middle[1])[None, :])
    return torch.polar(torch.ones_like(phase), phase).to(like.dtype)
