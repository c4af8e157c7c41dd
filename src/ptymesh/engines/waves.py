"""Exit waves in an engine's memory, changed along with gauges.

n, M, h, w  this rank's views, modes, window pixels

A gauge that turns object, probe and positions into others with the same intensities turns exit waves into others, too;
stored ones must follow. These are the tensors of `engine.per_view` that the engine declares so (`remembers`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from ptymesh.estimate import Estimate
from ptymesh.physics.beam.modes import mixed
from ptymesh.physics.elementwise import times
from ptymesh.physics.window_shifts import shift
from ptymesh.problem import KeptWaves, Problem
from ptymesh.unknowns import Unknown


class EngineMemory(Protocol):
    """Memory of an engine, as gauges and constraints use it (base.py documents the members)."""

    remembers: ClassVar[tuple[Unknown, ...]]

    @property
    def state(self) -> dict[str, Tensor]:
        """Tensors by name."""

    @property
    def per_view(self) -> dict[str, Tensor]:
        """Tensors of this rank's views, by name."""


def rotate(engine: EngineMemory, rotation: Tensor) -> None:
    """Apply psi_jm <- sum_n R_mn psi_jn, after the probe's modes were mixed by R (M, M).

    Of the K waves that operators make of a mode (`Model.fan_out`), each goes into the one at its place.
    """
    for waves, row in _each_view(engine):
        psi = waves[row].unflatten(1, (len(rotation), -1)).transpose(1, 2)
        waves[row] = mixed(psi, rotation.to(psi.dtype)).transpose(1, 2).flatten(1, 2)


def move(engine: EngineMemory, problem: Problem, by: Tensor) -> None:
    """Apply psi_j <- T_d psi_j, after the probe was moved by d and the positions by -d.

    With Fourier sub-pixel positions a wave stays until its window gets a new anchor (`roll`): until then the shift
    of the probe and that of its fraction cancel.

    Args:
        engine: memory with exit waves.
        problem: the problem that is solved.
        by: d (2,), in pixels.
    """
    if problem.model.subpixel == "fourier":
        return
    for waves, row in _each_view(engine):
        psi = waves[row]
        waves[row] = shift(psi, by.to(psi.real.dtype)[None])


def ramp(engine: EngineMemory, problem: Problem, estimate: Estimate, gradient: list[float]) -> None:
    """Apply psi_j <- exp(-i g.(p_j + (h, w)/2 - (H, W)/2)) psi_j.

    That is the product of a ramp exp(-i g.r) about the object's middle and its inverse about the probe's.

    Args:
        engine: memory with exit waves.
        problem: the problem that is solved.
        estimate: positions and sizes.
        gradient: g, y x, in rad/px.
    """
    local_views = torch.as_tensor(problem.layout.own, device=problem.device)
    positions = (estimate.anchors if problem.model.subpixel == "none" else estimate.positions).to(torch.float64)
    middle = [n // 2 - side // 2 for n, side in zip(estimate.window, estimate.extent, strict=True)]
    g = torch.tensor(gradient, dtype=torch.float64, device=problem.device)
    phase = -((positions + torch.tensor(middle, device=problem.device)) * g).sum(1)
    # For all views, so that factors do not depend on which of them this rank has.
    factor = torch.polar(torch.ones_like(phase), phase)[local_views, None, None, None]
    for waves, row in _each_view(engine):
        psi = waves[row]
        waves[row] = times(psi, factor[row].to(psi.dtype))


def roll(engine: EngineMemory, problem: Problem, by: Tensor) -> None:
    """Apply psi_j[r] <- psi_j[r + d_j], after windows were moved by whole pixels.

    Args:
        engine: memory with exit waves.
        problem: the problem that is solved.
        by: d (N, 2) int64, of all views.
    """
    by = by[torch.as_tensor(problem.layout.own, device=by.device)].cpu()
    for row in by.any(1).nonzero()[:, 0].tolist():
        y, x = by[row].tolist()
        for waves in _stored_waves(engine):
            waves[row : row + 1] = torch.roll(waves[row : row + 1], (-y, -x), (-2, -1))


def _stored_waves(engine: EngineMemory) -> list[KeptWaves]:
    """Return the exit waves in an engine's memory."""
    names = [one.name for one in engine.remembers if one.axes == ("N", "M", "h", "w")]
    return [KeptWaves(engine.per_view, name) for name in names if name in engine.per_view]


def _each_view(engine: EngineMemory) -> Iterator[tuple[KeptWaves, slice]]:
    """Yield exit waves one view at a time, so that results do not depend on the other views of this rank."""
    for waves in _stored_waves(engine):
        yield from ((waves, slice(row, row + 1)) for row in range(len(waves)))
