"""Common part of the engines whose steps are those of a revised wave: they move unknowns of the detector's pieces, too.

theta     an unknown of a piece between intensities and counts (physics/detector/pieces.py)

    theta <- theta + gain x sum slope / sum norm      over the views of a batch, after the engine's own step

The quotient is the Gauss-Newton step of theta alone; half of it is the default, as object and probe have moved towards
the same counts. It is cut off at a change that matters, and theta stays within its bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import torch
from pydantic import ConfigDict, Field, model_validator

from ptymesh.estimate import Estimate
from ptymesh.models import OPTICS, DetectorPiece, declared, refuse_fixed
from ptymesh.options import Options
from ptymesh.problem import Batch, Problem
from ptymesh.schedule import OnOff, Schedule
from ptymesh.unknowns import Unknown


class DetectorStep(Schedule, Options):
    """An unknown of the detector: the epochs in which it moves, and how far.

    Attributes:
        gain: factor of its Gauss-Newton step.
    """

    gain: float = Field(0.5, gt=0, le=2)


class DetectorUnknowns(Options):
    """Unknowns of the detector's pieces that move, by name, on/off."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Annotated[DetectorStep | None, OnOff]]

    @model_validator(mode="before")
    @classmethod
    def _declared(cls, values: Any) -> Any:
        known = declared()
        for name in values if isinstance(values, dict) else ():
            if name not in known:
                there = ", ".join(one for one in known if _of_detector(known[one].operator))
                raise ValueError(f"unknowns names {name}, which no piece of the detector declares; there are {there}")
            if not _of_detector(known[name].operator):
                raise ValueError(
                    f"unknowns names {name} of optics.{known[name].operator}, which this engine cannot move; use adam"
                )
            refuse_fixed(name)
        return values

    def moving(self) -> dict[str, DetectorStep]:
        """Return the unknowns that are on, by name."""
        return {name: one for name, one in self if one}


def _of_detector(name: str) -> bool:
    """Return True if this piece stands between intensities and counts."""
    kind = OPTICS.find(name)
    return kind is not None and issubclass(kind, DetectorPiece)


class Sweeping(Options):
    """Steps of a revised wave: what engines that take them have beside what all engines have.

    Attributes:
        unknowns: unknowns of the detector's pieces that move after each batch.
    """

    moves_detector: ClassVar[bool] = True
    meets_new_views: ClassVar[bool] = True

    unknowns: DetectorUnknowns = DetectorUnknowns()

    def named_unknowns(self) -> list[str]:
        """Return the names of the pieces' unknowns that the stage names."""
        return [*self.unknowns.moving()]

    def moved_optics(self, optics: Sequence[Unknown]) -> frozenset[str]:
        """Return the names of those of the pieces' unknowns that this stage moves, in whichever of its epochs."""
        return frozenset(one.name for one in optics) & self.unknowns.moving().keys()

    def due_detector(self, epoch: int) -> dict[str, float]:
        """Return the gains of the detector's unknowns that move in this epoch, by name."""
        return {name: one.gain for name, one in self.unknowns.moving().items() if one.active(epoch)}


def after_batch(problem: Problem, estimate: Estimate, batch: Batch, gains: dict[str, float]) -> None:
    """Move unknowns of the detector's pieces by their Gauss-Newton steps. Collective.

    Args:
        problem: the problem that is solved.
        estimate: the unknowns, changed in place.
        batch: the views, with their slopes and norms.
        gains: factors of the steps, by name.
    """
    bounds = {one.name: one for one in problem.model.unknowns}
    for name in sorted(gains):
        theta, one, most = estimate.others[name], bounds[name], problem.model.sizes[name]
        rows = batch.view_updates.detector.get(name, [])
        if one.scope == "view":
            for views, terms in rows:
                theta[views] = _moved(theta[views], terms[:, 0], terms[:, 1], gains[name], most, one)
            continue
        total = problem.fields.reduction(2, *theta.shape)
        for _, terms in rows:
            total.add(terms)
        along, norm = problem.fields.totals(total)[0]
        theta.copy_(_moved(theta, along, norm, gains[name], most, one))


def _moved(
    theta: torch.Tensor, along: torch.Tensor, norm: torch.Tensor, gain: float, most: float, one: Unknown
) -> torch.Tensor:
    """Return theta + gain along / norm, each step at most `most`, within the unknown's bounds."""
    step = gain * along / norm.clamp(min=torch.finfo(norm.dtype).tiny)
    moved = theta + step.clamp(-most, most).to(theta.dtype)
    return moved.clamp(min=one.least, max=one.largest)
