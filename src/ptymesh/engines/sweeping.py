"""Common part of the engines whose steps are those of a revised wave: they move unknowns of the model's pieces, too.

theta     an unknown of an operator on waves (physics/operators.py), or of a piece between intensities and counts
          (physics/detector/pieces.py)

    theta <- theta + gain x sum slope / sum norm      over the views of a batch, after the engine's own step

The quotient is the Gauss-Newton step of theta alone; half of it is the default, as object and probe have moved towards
the same counts. It is cut off at a change that matters, or at a fifth of it (`OF_COPIES`), and theta stays within its
bounds. An unknown with a row for each view has sums of its own in each row; where another unknown takes what all views
have in common (`common_to`), the mean of the batch's steps is left out. Of a tiled one, every pixel has sums of its
own, and a share of the largest norm of a pixel is added to each (rPIE's step), so that pixels with little light stay.

The background moves likewise, each pixel of the detector by itself; its norm is that of the mean of I^(-1/2), times the
number of views, as a dark speckle would outweigh all others otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import torch
from pydantic import ConfigDict, Field, model_validator
from torch import Tensor

from ptymesh.distributed.devices import sent
from ptymesh.distributed.layouts.layout import BlockSparseField
from ptymesh.estimate import Estimate
from ptymesh.models import declared, refuse_fixed
from ptymesh.options import Options
from ptymesh.physics.elementwise import means
from ptymesh.physics.fidelity import DARK, fidelity_of
from ptymesh.problem import Batch, Problem
from ptymesh.schedule import OnOff, Schedule
from ptymesh.unknowns import DECLARED, Unknown

#: Share of the largest norm of a pixel in the divisor of a tiled unknown's step.
BLEND = 0.1
#: Share of a change that matters by which an unknown that all views share moves at most in a batch, of an operator that
#: makes several waves of each. Until the object is found, a wide blur explains what it lacks, and may not be left.
OF_COPIES = 0.2


class PieceStep(Schedule, Options):
    """An unknown of a piece of the model: the epochs in which it moves, and how far.

    Attributes:
        gain: factor of its Gauss-Newton step.
    """

    gain: float = Field(0.5, gt=0, le=2)


class PieceUnknowns(Options):
    """Unknowns of the model's pieces, and the background, that move, by name, on/off."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Annotated[PieceStep | None, OnOff]]

    @model_validator(mode="before")
    @classmethod
    def _declared(cls, values: Any) -> Any:
        by_name = declared()
        for name in values if isinstance(values, dict) else ():
            if name == "background":
                continue
            if name not in by_name:
                names = ", ".join(by_name)
                raise ValueError(
                    f"unknowns names {name}, which no piece of the model declares; there are background, {names}"
                )
            refuse_fixed(name)
        return values

    def moving(self) -> dict[str, PieceStep]:
        """Return the unknowns that are on, by name."""
        return {name: one for name, one in self if one}


class Sweeping(Options):
    """Steps of a revised wave: what engines that take them have beside what all engines have.

    Attributes:
        unknowns: unknowns of the model's pieces that move after each batch.
    """

    moves_named_unknowns: ClassVar[bool] = True
    meets_new_views: ClassVar[bool] = True

    unknowns: PieceUnknowns = PieceUnknowns()

    @property
    def moves_background(self) -> bool:
        """True if this stage moves the background, in whichever of its epochs."""
        return "background" in self.unknowns.moving()

    def named_unknowns(self) -> list[str]:
        """Return the names of the pieces' unknowns that the stage names."""
        return [*self.unknowns.moving()]

    def moved_optics(self, optics: Sequence[Unknown]) -> frozenset[str]:
        """Return the names of those of the pieces' unknowns that this stage moves, in whichever of its epochs."""
        return frozenset(one.name for one in optics) & self.unknowns.moving().keys()

    def due_unknowns(self, epoch: int) -> dict[str, float]:
        """Return the gains of the pieces' unknowns that move in this epoch, by name."""
        return {name: one.gain for name, one in self.unknowns.moving().items() if one.active(epoch)}


def after_batch(problem: Problem, estimate: Estimate, batch: Batch, gains: dict[str, float]) -> None:
    """Move unknowns of the model's pieces by their Gauss-Newton steps. Collective.

    Args:
        problem: the problem that is solved.
        estimate: the unknowns, changed in place.
        batch: the views, with their slopes and norms.
        gains: factors of the steps, by name.
    """
    declared_here = {"background": DECLARED["background"], **{one.name: one for one in problem.model.unknowns}}
    for name in sorted(gains):
        theta, one = estimate[name], declared_here[name]
        if one.scope == "tiled":
            _move_tiled(problem, theta, one, batch.view_updates.tiled[name], gains[name])
            continue
        reals = torch.view_as_real(theta) if one.complex else theta
        rows, limit = batch.view_updates.pieces.get(name, []), problem.model.sizes.get(name, math.inf)
        if one.scope == "view":
            numbers = reals[0].numel()
            parts = [terms.reshape(len(terms), 2 * numbers) for _, terms in rows]
            of_batch = problem.loader.of_batch(batch, parts, 2 * numbers)
            steps = _steps(of_batch[:, :numbers], of_batch[:, numbers:], gains[name], limit)
            if one.common_to and one.common_to not in batch.frozen and len(steps) > 1:
                steps = steps - means(steps)
            views = sent(batch.views, problem.device)
            reals[views] = _moved(reals[views], steps.view(-1, *reals.shape[1:]), one)
            continue
        if name in problem.model.unknowns_of_copies:
            limit *= OF_COPIES
        if name == "background":
            along, norm = background_terms(problem, estimate, batch)
        else:
            total = problem.fields.reduction(2, *reals.shape)
            for _, terms in rows:
                total.add(terms)
            along, norm = problem.fields.totals(total)[0]
        reals.copy_(_moved(reals, _steps(along, norm, gains[name], limit), one))


def background_terms(problem: Problem, estimate: Estimate, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the sums of slopes and of norms over a batch, of each pixel of the background.

    Args:
        problem: the problem that is solved.
        estimate: the unknowns.
        batch: the views, with the sums that the engine's step has made.
    """
    gradients = batch.view_updates.gradients
    assert gradients is not None and gradients.background is not None, "summed by the engine's accumulator"
    slope, dark = gradients.background
    views = problem.views_of_backgrounds(estimate, batch.views)
    norm = fidelity_of(problem.model.fidelity).norm((views / dark.clamp(min=DARK)).square())
    return -slope / 2, norm * views / 2


def _move_tiled(
    problem: Problem, theta: Tensor, one: Unknown, sums: tuple[BlockSparseField, BlockSparseField], gain: float
) -> None:
    """Move a tiled unknown on the blocks of a batch, by rPIE's step of each pixel. Collective.

    Args:
        problem: the problem that is solved.
        theta: (C, H, W), this rank's part of the unknown, changed in place.
        one: its declaration.
        sums: of slopes and norms over the batch.
        gain: factor of the steps.
    """
    slopes, norms = sums
    top, limit = norms.max(), problem.model.sizes[one.name]
    along, weight = slopes.values, norms.values.lerp(top, BLEND)
    touched = problem.fields.touched(theta, slopes).values
    if one.complex:
        touched, along, weight = torch.view_as_real(touched), torch.view_as_real(along), weight[..., None]
    moved = _moved(touched, _steps(along, weight, gain, limit), one)
    problem.fields.put(theta, slopes.of(torch.view_as_complex(moved) if one.complex else moved))


def _steps(along: Tensor, norm: Tensor, gain: float, limit: float) -> Tensor:
    """Return gain along / norm, each at most `limit`."""
    return (gain * along / norm.clamp(min=torch.finfo(norm.dtype).tiny)).clamp(-limit, limit)


def _moved(theta: Tensor, steps: Tensor, one: Unknown) -> Tensor:
    """Return theta + steps, within the unknown's bounds."""
    return (theta + steps.to(theta.dtype)).clamp(min=one.least, max=one.largest)
