"""Common part of all constraints: a schedule, a strength that may rise, a place in their order.

A constraint of ptymesh's own is a class in a file of this package, registered by its name:

    @CONSTRAINTS.register("identical_slices")
    class IdenticalSlices(Prior):
        ...

It then is a key of `constraints` of a stage. Those that are older are keys of `probe` and `object`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from ptymesh.engines.waves import EngineMemory
from ptymesh.estimate import Estimate
from ptymesh.options import Options
from ptymesh.physics.object_models import object_model_of
from ptymesh.problem import Problem
from ptymesh.registry import Registry, subclass_of
from ptymesh.schedule import MOST, Schedule

#: What a constraint does where the object follows from values, as of a potential: act on these as on a transmission,
#: leave the object alone anyway, change the transmission's amplitudes alone, which complex values follow and others do
#: not leave free, or make no sense.
OfValues = Literal["values", "alone", "amplitudes", "no"]


class RisingStrength(Schedule, Options):
    """Strength of a constraint that goes a share of the way; a part of constraints.

    Attributes:
        strength: share of the way, 1 for all of it.
        rise: epochs over which the strength rises, in equal steps, before it is all there.
    """

    strength: float = Field(1.0, gt=0, le=1)
    rise: int = Field(0, ge=0, le=MOST)

    def at_epoch(self, epoch: int) -> Self:
        """Return the constraint with the strength that it has risen to in an epoch (from 1) of the stage."""
        share = min(1.0, (epoch - self.start + 1) / (self.rise + 1))
        return self.model_copy(update={"strength": self.strength * share})

    def blend(self, values: Tensor, goal: Tensor) -> Tensor:
        """Return real values moved to values + strength (goal - values), at strength 1 the goal to the last bit."""
        return goal if self.strength == 1 else values + self.strength * (goal - values)


class Constraint(Schedule, Options):
    """A change of unknowns after the epochs of its schedule; its options are fields.

    Those of ptymesh are keys of `probe`, `object` and `constraints` of a stage; one of another package, which offers it
    by an entry point of the group `ptymesh.constraints`, stands under its name in `constraints`.
    """

    #: Name of the constraint right after which this one is applied; None for after all others.
    after: ClassVar[str | None] = None
    #: True if it leaves a frozen probe unchanged, as it is a statement about the probe alone.
    of_moving_probe: ClassVar[bool] = False
    #: False if it is a statement about a single probe, which makes no sense where each scan has its own. One that
    #: leaves a frozen probe unchanged is applied to each of them.
    for_own_probes: ClassVar[bool] = True
    #: What it does to an object that follows from values.
    of_potential: ClassVar[OfValues] = "no"

    #: Complex planes as large as the whole object that each rank holds while it is applied.
    whole_planes: ClassVar[int] = 0
    #: True if it may act between slices: those of each object mode, one mode after the other.
    between_slices: ClassVar[bool] = False

    @property
    def named_unknowns(self) -> list[str]:
        """Names of the unknowns that it acts on alone, as its options say."""
        return []

    def check(self, problem: Problem) -> None:
        """Check that the options make sense for a problem, before any work.

        Raises:
            BadInput: an option has no meaning for this problem.
        """

    def at_epoch(self, epoch: int) -> Self:
        """Return the constraint as it is in an epoch (from 1) of the stage."""
        return self

    def apply(self, problem: Problem, estimate: Estimate, engine: EngineMemory) -> None:
        """Change the estimate in place, in the same way on all ranks. Collective.

        If object, probe and positions are replaced by others with the same intensities, exit waves in the engine's
        memory must be changed with them (waves.py).

        Args:
            problem: the problem that is solved.
            estimate: the unknowns.
            engine: memory of the engine.
        """
        raise NotImplementedError


def apply_constraint(constraint: Constraint, problem: Problem, estimate: Estimate, engine: EngineMemory) -> None:
    """Apply a constraint to the estimate, or to the values that its object follows from. Collective.

    One that may act between slices is applied to each object mode.

    Args:
        constraint: as it is in this epoch.
        problem: the problem that is solved.
        estimate: the unknowns, changed in place.
        engine: memory of the engine.
    """
    if constraint.between_slices and estimate.object_modes > 1:
        for mode in estimate.by_object_mode():
            apply_constraint(constraint, problem, mode, engine)
        return
    object_values = estimate.object_values
    if object_values is None or constraint.of_potential == "alone":
        constraint.apply(problem, estimate, engine)
        return
    model = object_model_of(estimate.object_kind)
    if constraint.of_potential == "amplitudes":
        constraint.apply(problem, estimate, engine)
        object_values.copy_(model.followed(object_values, estimate.object, estimate.absorption))
    else:
        values = replace(
            estimate,
            object=object_values
            if object_values.is_complex()
            else torch.complex(object_values, torch.zeros_like(object_values)),
        )
        constraint.apply(problem, values, engine)
        object_values.copy_(values.object if object_values.is_complex() else values.object.real)
    estimate.object.copy_(model.transmission(object_values, estimate.absorption))


CONSTRAINTS: Registry[type[Constraint]] = Registry(
    "constraint", "ptymesh.constraints", subclass_of(Constraint), "make it a subclass of ptymesh.engines.Constraint"
)


class Prior(RisingStrength, Constraint):
    """Constraint that moves the object or the probe a share of the way to what is known of it."""

    #: The unknown that is moved.
    of: ClassVar[Literal["object", "probe"]] = "object"

    def goal(self, problem: Problem, estimate: Estimate) -> Tensor:
        """Return the object or the probe as it would be at strength 1, of its own shape. Collective.

        Where the object follows from values, `estimate.object` holds these, and so does the goal.

        Args:
            problem: the problem that is solved.
            estimate: the unknowns, not to be changed.
        """
        raise NotImplementedError

    def apply(self, problem: Problem, estimate: Estimate, engine: EngineMemory) -> None:
        """Move the unknown X to X + strength (goal - X). Collective.

        Args:
            problem: the problem that is solved.
            estimate: the unknowns.
            engine: not used.
        """
        unknown, goal = estimate[self.of], self.goal(problem, estimate)
        if self.strength == 1:
            unknown.copy_(goal)
            return
        parts = torch.view_as_real(unknown)
        parts += self.strength * (torch.view_as_real(goal) - parts)
