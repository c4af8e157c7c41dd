"""Specimen in the middle of the slices: slices and the probe's defocus trade places.

An object moved by n slices along the beam, vacuum at its end, and a probe propagated by -n slice spacings make the same
waves in the specimen. What stands behind it is no longer propagated as far, which a far field does not show.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ptymesh.engines.constraints.base import CONSTRAINTS, Constraint, OfValues
from ptymesh.engines.constraints.illumination import illuminated_mask
from ptymesh.engines.constraints.neighbours import check_several_slices
from ptymesh.engines.waves import EngineMemory
from ptymesh.errors import BadInput
from ptymesh.estimate import Estimate
from ptymesh.physics.propagate import apply_kernel, apply_kernel_adjoint
from ptymesh.problem import Problem


@CONSTRAINTS.register("depth_recentring")
class DepthRecentring(Constraint):
    """Gauge that moves the object by whole slices until its middle is that of the slices; the probe's defocus follows.

    Results hold by how much, as `parameters/depth_recentring`: `slices`, positive along the beam, and `defocus_m`, by
    which the probe has been propagated.
    """

    after: ClassVar[str | None] = "phase"
    of_potential: ClassVar[OfValues] = "values"

    def check(self, problem: Problem) -> None:
        """Refuse a single slice, several object modes, and a near field, in which a shift along the beam shows.

        Raises:
            BadInput: it is one of these.
        """
        check_several_slices("depth_recentring", problem)
        if problem.model.object_modes > 1:
            raise BadInput(
                "constraints.depth_recentring moves one object along the beam, and object.modes asks for several; "
                "remove it from the stage."
            )
        if problem.geometry.propagation != "far_field":
            raise BadInput("constraints.depth_recentring would change a near-field image; remove it from the stage.")

    def apply(self, problem: Problem, estimate: Estimate, engine: EngineMemory) -> None:
        """Move the object by whole slices, and the probe against them. Collective.

        Args:
            problem: the problem that is solved.
            estimate: the unknowns.
            engine: not used, as engines with exit waves in memory have a single slice.
        """
        obj, moved = estimate.object, self.displacement(problem, estimate)
        record = estimate.parameters.setdefault("depth_recentring", {"slices": 0.0, "defocus_m": 0.0})
        if not moved:
            return
        obj.copy_(torch.roll(obj, moved, 0))
        vacuum = slice(0, moved) if moved > 0 else slice(len(obj) + moved, len(obj))
        obj[vacuum] = estimate.vacuum
        kernel = problem.model.slice_kernel
        assert kernel is not None, "check() refuses this"
        propagate = apply_kernel_adjoint if moved > 0 else apply_kernel
        for waves in (estimate.probe, estimate.opr):
            for _ in range(abs(moved) if len(waves) else 0):
                waves.copy_(propagate(waves, kernel))
        record["slices"] += moved
        record["defocus_m"] -= moved * estimate.slice_spacing_m

    def displacement(self, problem: Problem, estimate: Estimate) -> int:
        """Return by how many slices the object must move: the centre of mass of each slice's mean |O - mean O|^2."""
        illuminated = illuminated_mask(problem, estimate)
        contrast = [self._variance(problem, estimate, one, illuminated) for one in estimate.object]
        total = sum(contrast)
        if not total:
            return 0
        middle = (len(contrast) - 1) / 2
        return round(middle - sum(i * c for i, c in enumerate(contrast)) / total)

    def _variance(self, problem: Problem, estimate: Estimate, one: Tensor, illuminated: Tensor) -> float:
        """Return mean |O - mean O|^2 of a slice (H, W) over illuminated pixels. Collective."""
        parts = torch.view_as_real(one).permute(2, 0, 1).contiguous()
        means = [float(problem.fields.mean(part, illuminated, estimate)) for part in parts]
        return sum(
            float(problem.fields.mean((part - mean).square(), illuminated, estimate))
            for part, mean in zip(parts, means, strict=True)
        )
