"""Base class of parametrisations: a few numbers that make up the probe, or the positions of all views.

theta     (n,) the numbers, in units of their own;  t, w  values at the start of the run, widths of their priors
x         what they make up: the probe (M, h, w), or the positions (N, 2)
J_k       dx / d theta_k

Numbers with a width add sum (theta - t)^2 / w^2 to the chi-square of the counts, so that a width needs no weight.

A parametrisation defines its first-order directions J, and how x follows a change of theta. Everything else is
the same for all of them (engines/parametrised.py): gradients, their sums over ranks, steps, checkpoints and results.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Annotated, ClassVar, Literal, Self

import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor

from ptymesh.estimate import Estimate
from ptymesh.geometry import Geometry
from ptymesh.options import Options
from ptymesh.schedule import Schedule

#: Field of parametrisations whose terms may be judged one by one.
JUDGE = Field(
    False,
    description="whether each term is judged by short runs with and without it, halfway through the epochs that move "
    "it, and put back to where it began where held-out pixels are not explained better with it by two standard errors",
)


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
    widths: dict[str, Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict,
        description="standard deviations with which terms are known at the start of the run, by term, in its unit or "
        "with one (`rotation: 0.5 deg`, `C10: 2 nm`); a term that is not named is free",
    )

    @field_validator("widths", mode="before")
    @classmethod
    def _read_widths(cls, widths: object) -> object:
        return cls.read_widths(widths) if isinstance(widths, dict) else widths

    @model_validator(mode="after")
    def _refuse_other_widths(self) -> Self:
        terms = list(dict.fromkeys(map(self.term_of, self.units())))
        for term in self.widths:
            if term not in terms:
                raise ValueError(f"widths names {term}, which is not refined; there are {', '.join(terms)}")
        return self

    @classmethod
    def read_widths(cls, widths: dict[str, object]) -> dict[str, object]:
        """Return widths by term as numbers, where they are texts with a unit.

        Raises:
            ValueError: the unit is of another quantity.
        """
        return widths

    @classmethod
    def term_of(cls, number: str) -> str:
        """Return the term that a number belongs to, by which `widths` names it."""
        return number

    @property
    def is_judged(self) -> bool:
        """True if its terms are judged by short runs, and put back where they do not help (verdict/term_trial.py)."""
        return False

    def without(self, terms: Collection[str]) -> Self | None:
        """Return the parametrisation of its other terms, None if there is none."""
        return self

    def precisions(self) -> Tensor:
        """Return 1 / w^2 of the numbers, (n,) float64 on the host; 0 for one that is free."""
        widths = [self.widths.get(self.term_of(number), math.inf) for number in self.units()]
        return torch.tensor(widths, dtype=torch.float64) ** -2

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
