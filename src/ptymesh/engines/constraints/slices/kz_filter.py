"""Filter of the frequencies along the beam that the largest scattering angle cannot carry.

Waves scattered by up to theta know of the object's frequencies (k_r, k_z) only k_z <= k_r theta / 2 or so (the Ewald
sphere and the cone of the beam). The m-th cosine along the beam, of frequency k_z = m / (2 L dz), keeps

    1 - exp(-k_r^2 / (2 s^2)),  s = k_z / angle

of its frequencies k_r in the plane. Cosines of slices are even at both ends: top and bottom do not wrap.
"""

from __future__ import annotations

import math
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from ptymesh.engines.constraints.base import CONSTRAINTS, OfValues, Prior
from ptymesh.engines.constraints.neighbours import blurred, check_several_slices, gaussian_reach, with_neighbours
from ptymesh.errors import BadInput
from ptymesh.estimate import Estimate
from ptymesh.problem import Problem

#: Largest standard deviation in pixels of a filter in the plane; wider ones end there, so that margins stay small.
WIDEST_PX = 32.0


@CONSTRAINTS.register("kz_filter")
class KzFilter(Prior):
    """Differences between slices lose the low frequencies in the plane that no scattered wave carries.

    Attributes:
        angle_rad: largest angle between waves; None for that of the window, wavelength / (2 pixels).
    """

    after: ClassVar[str | None] = "smooth"
    of_potential: ClassVar[OfValues] = "values"
    between_slices: ClassVar[bool] = True

    angle_rad: float | None = Field(None, gt=0, le=1)

    def check(self, problem: Problem) -> None:
        """Refuse a single slice, and an unknown pixel size. Raises BadInput."""
        check_several_slices("kz_filter", problem)
        if problem.geometry.object_pixel_m is None or problem.geometry.wavelength_m is None:
            raise BadInput("constraints.kz_filter needs the object pixel and the wavelength in metres; give both.")

    def goal(self, problem: Problem, estimate: Estimate) -> Tensor:
        """Return the object without what lies beyond the cone. Collective.

        Args:
            problem: gives pixels and wavelength.
            estimate: the unknowns.
        """
        sigmas = self.widths_px(problem, estimate)

        def without(planes: Tensor, _: tuple[int, int]) -> Tensor:
            slices, out = len(planes), planes.clone()
            for m in range(1, slices):
                cosine = [math.sqrt(2 / slices) * math.cos(math.pi * m * (i + 0.5) / slices) for i in range(slices)]
                component = planes[0] * cosine[0]
                for i in range(1, slices):
                    component = component + planes[i] * cosine[i]
                low = blurred(component, sigmas[m - 1])
                for i in range(slices):
                    out[i] = out[i] - low * cosine[i]
            return out

        return with_neighbours(problem, estimate, gaussian_reach(max(sigmas)), without)

    def widths_px(self, problem: Problem, estimate: Estimate) -> list[float]:
        """Return 1 / (2 pi s) for each cosine along the beam but the constant, in pixels, WIDEST_PX at most."""
        geometry, slices = problem.geometry, len(estimate.object)
        assert geometry.object_pixel_m is not None and geometry.wavelength_m is not None, "check() refuses this"
        pixel = math.sqrt(geometry.object_pixel_m[0] * geometry.object_pixel_m[1])
        angle = geometry.wavelength_m / (2 * pixel) if self.angle_rad is None else self.angle_rad
        frequency = [m / (2 * slices * estimate.slice_spacing_m) for m in range(1, slices)]
        return [min(WIDEST_PX, angle / (2 * math.pi * kz * pixel)) for kz in frequency]
