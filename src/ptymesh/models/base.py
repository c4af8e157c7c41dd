"""Base class of parametrisations: a few numbers that make up the probe, or the positions of all views.

theta     (n,) the numbers, in units of their own
x         what they make up: the probe (M, h, w), or the positions (N, 2)
J_k       dx / d theta_k

A parametrisation defines its first-order directions J, and how x follows a change of theta. Everything else is
the same for all of them (engines/parametrised.py): gradients, their sums over ranks, steps, checkpoints and results.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from ptymesh.estimate import Estimate
from ptymesh.geometry import Geometry
from ptymesh.options import Options
from ptymesh.schedule import Schedule


class Parametrisation(Schedule, Options):
    """One parametrisation, as it stands under `models` of a stage. A subclass in this package is registered by itself.

    The `description` of its fields is printed in docs/reference/recipe.md.
    """

    #: Its key under `models`, and in results.
    name: ClassVar[str]
    #: The unknown that it makes up.
    of: ClassVar[Literal["probe", "positions"]]

    lr: float = Field(
        0.02,
        gt=0,
        le=1,
        description="learning rate: how far a step goes at first along each independent direction, rms, in radians of "
        "the probe's phase in its pupil or in pixels of positions; it falls to zero along half a cosine",
    )

    @property
    def moves_alone(self) -> bool:
        """True if x moves by the numbers alone; otherwise the engine moves it pixel by pixel, too."""
        return False

    @property
    def moves_between_epochs(self) -> bool:
        """True if it moves after an epoch, by what patterns tell of it, and not after each batch."""
        return False

    def units(self) -> dict[str, str]:
        """Return the names of the numbers theta_k, in order, and the unit of each."""
        raise NotImplementedError

    def check(self, geometry: Geometry) -> None:
        """Check that the measurement's geometry has what this needs.

        Raises:
            BadInput: something that it needs is missing.
        """

    def check_scans(self, scans: int) -> None:
        """Check that this makes sense for the number of scans that are reconstructed together.

        Raises:
            BadInput: it does not.
        """

    def directions(self, geometry: Geometry, estimate: Estimate) -> Tensor:
        """Return J at the estimate, per unit of theta.

        Changes that no pattern determines (a phase of the whole probe, a shift of the whole scan) are left out.

        Returns:
            (n, M, h, w) complex128, or (n, N, 2) float64.
        """
        raise NotImplementedError

    def moved(self, geometry: Geometry, estimate: Estimate, x: Tensor, before: Tensor, after: Tensor) -> Tensor:
        """Return x after a change of theta.

        Args:
            geometry: of the measurement.
            estimate: the unknowns.
            x: (M, h, w) complex or (N, 2) float64, with theta `before`.
            before: (n,) float64 on the host.
            after: (n,) float64 on the host.
        """
        raise NotImplementedError

    def read(self, geometry: Geometry, reference: Tensor, x: Tensor, change: Tensor) -> Tensor:
        """Return by how much theta has changed from that of `reference` to that of x.

        It is called after every epoch in which the engine also moved x itself, as the numbers do not follow these
        steps.

        Args:
            geometry: of the measurement.
            reference: x at the start of the stage, complex (M, h, w) or float64 (N, 2).
            x: its present value, likewise.
            change: (n,) float64 on the host, change by the steps of theta alone.

        Returns:
            (n,) float64 on the host; `change` itself if x cannot tell more.
        """
        return change
