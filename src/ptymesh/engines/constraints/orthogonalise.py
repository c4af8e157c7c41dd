"""Orthogonal probe modes."""

from __future__ import annotations

from typing import ClassVar

from ptymesh.engines import waves
from ptymesh.engines.constraints.base import Constraint, OfValues
from ptymesh.engines.waves import EngineMemory
from ptymesh.estimate import Estimate
from ptymesh.physics.beam.modes import mixed, orthogonalising
from ptymesh.problem import Problem


class Orthogonalise(Constraint):
    """Probe modes are made orthogonal, the strongest first."""

    of_moving_probe: ClassVar[bool] = True
    of_potential: ClassVar[OfValues] = "alone"

    def apply(self, problem: Problem, estimate: Estimate, engine: EngineMemory) -> None:
        """Make the probe's modes orthogonal by the rotation that rank 0 computes. Collective.

        Stored waves, and what operators have for single modes, follow.

        Args:
            problem: the problem that is solved.
            estimate: the unknowns.
            engine: memory with exit waves, which are rotated, too.
        """
        if len(estimate.probe) > 1:
            rotation = problem.world.broadcast(orthogonalising(estimate.probe))[0]
            estimate.probe.copy_(mixed(estimate.probe, rotation))
            waves.rotate(engine, rotation)
            for placed in problem.model.operators:
                placed.operator.rotate_modes(estimate.others, rotation)
