"""What a parametrisation says: how a few numbers make up the probe, or the positions of all views.

theta     (n,) the numbers, in units of their own
x         what they make up: the probe (M, h, w), or the positions (N, 2)
J_k       dx / d theta_k

A parametrisation is told by its first-order directions J and by how x follows a change of theta. Everything else is
the same for all of them (engines/parametrised.py): gradients, their sums over ranks, steps, checkpoints and results.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from ptymesh.estimate import Estimate
from ptymesh.geometry import Geometry
from ptymesh.schedule import Schedule


class Parametrisation(Schedule):
    """One parametrisation, as it stands under `models` of a stage. A subclass in this package is found by itself.

    Fields say in their `description` what they mean, which is what docs/reference/recipe.md prints.
    """

    #: Its key under `models`, and in results.
    name: ClassVar[str]
    #: What it makes up.
    of: ClassVar[Literal["probe", "positions"]]

    lr: float = Field(
        0.02,
        gt=0,
        le=1,
        description="learning rate: how far a step goes at first along each independent direction, rms, in radians of "
        "the probe's phase in its pupil or in pixels of positions; it falls to zero along half a cosine",
    )

    @property
    def alone(self) -> bool:
        """Whether x moves by the numbers alone; otherwise the engine goes on to move it pixel by pixel, too."""
        return False

    def units(self) -> dict[str, str]:
        """Names of the numbers theta_k, in order, and the unit of each."""
        raise NotImplementedError

    def check(self, geometry: Geometry) -> None:
        """Raises BadInput where the measurement's geometry does not say what this needs."""

    def directions(self, geometry: Geometry, estimate: Estimate) -> Tensor:
        """J at the estimate, (n, M, h, w) complex128 or (n, N, 2) float64, per unit of theta; what no pattern tells
        (a phase of the whole probe, a shift of the whole scan) left out."""
        raise NotImplementedError

    def moved(self, geometry: Geometry, estimate: Estimate, x: Tensor, before: Tensor, after: Tensor) -> Tensor:
        """x, of which theta was `before`, where it is `after`; both (n,) float64 on the host."""
        raise NotImplementedError

    def read(self, geometry: Geometry, reference: Tensor, x: Tensor, change: Tensor) -> Tensor:
        """Return by how much theta has changed from what `reference` has to what x has.

        Asked after every epoch in which the engine moved x besides, whose steps the numbers would not know otherwise.

        Args:
            geometry: of the measurement.
            reference: x as it was when the stage began, complex (M, h, w) or float64 (N, 2).
            x: as it is now, likewise.
            change: (n,) float64 on the host, of the steps of theta alone.

        Returns:
            (n,) float64 on the host; `change` itself where x cannot tell more.
        """
        return change
