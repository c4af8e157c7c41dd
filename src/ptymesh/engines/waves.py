"""Exit waves that an engine keeps between batches follow the gauges.

n, M, h, w  own views, modes, window pixels

Upkeep that turns object, probe and positions into others with the same intensities turns exit waves into others, too;
kept ones must not stay behind. Which they are: those of `engine.per_view` that the engine declares so (`remembers`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from ptymesh.estimate import Estimate
from ptymesh.physics.elementwise import times
from ptymesh.physics.modes import mixed
from ptymesh.physics.views import shift
from ptymesh.problem import KeptWaves, Problem
from ptymesh.unknowns import Unknown


class EngineMemory(Protocol):
    """What an engine remembers, as gauges and constraints see it (base.py says what each holds)."""

    remembers: ClassVar[tuple[Unknown, ...]]

    @property
    def state(self) -> dict[str, Tensor]:
        """By name."""

    @property
    def per_view(self) -> dict[str, Tensor]:
        """Of own views, by name."""


def rotate(engine: EngineMemory, rotation: Tensor) -> None:
    """psi_jm <- sum_n R_mn psi_jn: the probe's modes were mixed by R (M, M)."""
    for waves, row in _each(engine):
        psi = waves[row]
        waves[row] = mixed(psi, rotation.to(psi.dtype))


def move(engine: EngineMemory, problem: Problem, by: Tensor) -> None:
    """psi_j <- T_d psi_j: the probe was moved by d (2,) pixels and the positions by -d.

    With Fourier sub-pixel positions a wave stays until its window gets a new anchor (see `roll`): until then the shift
    of the probe and that of its fraction cancel.
    """
    if problem.model.subpixel == "fourier":
        return
    for waves, row in _each(engine):
        psi = waves[row]
        waves[row] = shift(psi, by.to(psi.real.dtype)[None])


def ramp(engine: EngineMemory, problem: Problem, estimate: Estimate, gradient: list[float]) -> None:
    """psi_j <- exp(-i g.(p_j + (h, w)/2 - (H, W)/2)) psi_j: what a ramp exp(-i g.r) about the object's middle and its
    inverse about the probe's leave of each other, g (2,) in rad/px."""
    own = torch.as_tensor(problem.layout.own, device=problem.device)
    positions = (estimate.anchors if problem.model.subpixel == "none" else estimate.positions).to(torch.float64)
    middle = [n // 2 - side // 2 for n, side in zip(estimate.window, estimate.extent, strict=True)]
    g = torch.tensor(gradient, dtype=torch.float64, device=problem.device)
    phase = -((positions + torch.tensor(middle, device=problem.device)) * g).sum(1)
    # of all views, so that own ones are computed alike whatever others there are
    factor = torch.polar(torch.ones_like(phase), phase)[own, None, None, None]
    for waves, row in _each(engine):
        psi = waves[row]
        waves[row] = times(psi, factor[row].to(psi.dtype))


def roll(engine: EngineMemory, problem: Problem, by: Tensor) -> None:
    """psi_j[r] <- psi_j[r + d_j]: windows were cut anew d_j (N, 2) whole pixels further on."""
    by = by[torch.as_tensor(problem.layout.own, device=by.device)].cpu()
    for row in by.any(1).nonzero()[:, 0].tolist():
        y, x = by[row].tolist()
        for waves in _kept(engine):
            waves[row : row + 1] = torch.roll(waves[row : row + 1], (-y, -x), (-2, -1))


def _kept(engine: EngineMemory) -> list[KeptWaves]:
    names = [one.name for one in engine.remembers if one.axes == ("N", "M", "h", "w")]
    return [KeptWaves(engine.per_view, name) for name in names if name in engine.per_view]


def _each(engine: EngineMemory) -> Iterator[tuple[KeptWaves, slice]]:
    """One view at a time, so that it is computed alike whatever others there are."""
    for waves in _kept(engine):
        yield from ((waves, slice(row, row + 1)) for row in range(len(waves)))
