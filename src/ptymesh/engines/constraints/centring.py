"""Gauge of the common translation of probe and positions."""

from __future__ import annotations

import torch
from torch import Tensor

from ptymesh.engines import waves
from ptymesh.engines.constraints.base import Constraint
from ptymesh.engines.waves import EngineMemory
from ptymesh.estimate import Estimate
from ptymesh.physics.rounding import total_of
from ptymesh.physics.views import shift
from ptymesh.problem import Problem


class Centre(Constraint):
    """Gauge with the probe's centre of mass in the middle of the window; positions follow."""

    def apply(self, problem: Problem, estimate: Estimate, engine: EngineMemory) -> None:
        """Move the probe to the middle of the window; stored waves follow.

        Args:
            problem: the problem that is solved.
            estimate: the unknowns.
            engine: memory with exit waves, which are moved if the probe's shift is not part of the model.
        """
        waves.move(engine, problem, centre(estimate, whole=problem.model.subpixel == "none"))


def centre(estimate: Estimate, *, whole: bool = False) -> Tensor:
    """Move the centre of mass of sum |P|^2 to (h//2, w//2), by a shift T_d of the probe and of all positions by -d.

    The object stays: P(r - d) O(r + p - d) is the old exit wave moved by d, whose far-field intensity is the same.

    Args:
        estimate: the unknowns, changed in place.
        whole: True to move by whole pixels, for a model in which fractions do not act; anchors move by -d then.

    Returns:
        d (2,) in pixels, y x.
    """
    intensity = (estimate.probe.abs() ** 2).sum(0).to(torch.float64)
    total = total_of(intensity)
    d = []
    for axis, n in enumerate(intensity.shape):
        r = torch.arange(n, dtype=torch.float64, device=intensity.device)
        d.append(n // 2 - total_of(intensity * (r if axis else r[:, None])) / total)
    move = torch.stack(d).round() if whole else torch.stack(d)
    if whole:
        estimate.anchors -= move.to(estimate.anchors.dtype)
    estimate.probe.copy_(shift(estimate.probe, move[None].to(estimate.probe.real.dtype))[0])
    estimate.positions -= move
    estimate.nominal -= move
    estimate.origin = (estimate.origin[0] - float(move[0]), estimate.origin[1] - float(move[1]))
    return move
