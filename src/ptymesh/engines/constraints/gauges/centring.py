"""Gauge of the common translation of probe and positions."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ptymesh.engines import waves
from ptymesh.engines.constraints.base import Constraint, OfValues
from ptymesh.engines.waves import EngineMemory
from ptymesh.estimate import Estimate
from ptymesh.physics.rounding import total_of
from ptymesh.physics.window_shifts import shift
from ptymesh.problem import Problem


class Centre(Constraint):
    """Gauge with the probe's centre of mass in the middle of the window; positions follow.

    Where each scan has a probe of its own, each is moved by itself, and the positions of its scan follow: a shift of
    that scan's probe and one of its positions cannot be told apart in the far field otherwise.
    """

    of_potential: ClassVar[OfValues] = "alone"

    def apply(self, problem: Problem, estimate: Estimate, engine: EngineMemory) -> None:
        """Move the probe to the middle of the window; stored waves follow.

        Args:
            problem: the problem that is solved.
            estimate: the unknowns.
            engine: memory with exit waves, which are moved if the probe's shift is not part of the model.
        """
        waves.move(engine, problem, centre(estimate, whole_pixels=problem.model.subpixel == "none"))


def centre(estimate: Estimate, *, whole_pixels: bool = False) -> Tensor:
    """Move the centre of mass of sum |P|^2 to (h//2, w//2), by a shift T_d of the probe and of its positions by -d.

    The object stays: P(r - d) O(r + p - d) is the old exit wave moved by d, whose far-field intensity is the same. The
    shifts that are refined of whole scans (`models.scan_shift`) change with the positions of these scans.

    Args:
        estimate: the unknowns, changed in place.
        whole_pixels: True to move by whole pixels, for a model in which fractions do not act; anchors move by -d then.

    Returns:
        d (2,) in pixels, y x, of the first probe.
    """
    moves = torch.stack([offset_to_middle(probe) for probe in estimate.probes])
    if whole_pixels:
        moves = moves.round()
    by_view = moves[0] if estimate.probe_count == 1 else moves[estimate.scan_index]
    if whole_pixels:
        estimate.anchors -= by_view.to(estimate.anchors.dtype)
    for probe, move in zip(estimate.probes, moves, strict=True):
        probe.copy_(shift(probe, move[None].to(probe.real.dtype))[0])
    estimate.positions -= by_view
    estimate.nominal -= by_view
    y, x = moves[0].tolist()
    estimate.origin = (estimate.origin[0] - y, estimate.origin[1] - x)
    numbers = estimate.parameters.get("scan_shift", {})
    for scan, apart in enumerate((moves - moves[0]).tolist()):
        for axis, change in zip("yx", apart, strict=True):
            if f"{axis}{scan}" in numbers:
                numbers[f"{axis}{scan}"] -= change
    return moves[0]


def offset_to_middle(probe: Tensor) -> Tensor:
    """Return d (2,) float64, by which the centre of mass of a probe (M, h, w) is away from the middle of its window."""
    intensity = (probe.abs() ** 2).sum(0).to(torch.float64)
    total = total_of(intensity)
    d = []
    for axis, n in enumerate(intensity.shape):
        r = torch.arange(n, dtype=torch.float64, device=intensity.device)
        d.append(n // 2 - total_of(intensity * (r if axis else r[:, None])) / total)
    return torch.stack(d)
