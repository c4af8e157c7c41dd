"""Rotation, scale and shear of all positions at once, for a scan whose axes or steps are not as stated.

p       = c + A (p_0 - c), c the mean of the nominal positions, y before x
A       = (1 + scale) [[cos r, -sin r], [sin r, cos r]] [[1 + aspect, shear], [shear, 1 - aspect]], r the rotation

The refinement of single positions cannot do this: an object that was made with wrong positions agrees with them, so
that the step of each view is a hundredth of the step that all of them need together. The patterns show it more
plainly: under each beam the object is strained as the told positions are, and the sample is not (engines/strain.py).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor

from ptymesh.errors import BadInput
from ptymesh.estimate import Estimate
from ptymesh.geometry import Geometry
from ptymesh.models.base import JUDGE, Parametrisation
from ptymesh.physics.elementwise import means
from ptymesh.units import ANGLE, read_quantity

Term = Literal["rotation", "scale", "aspect", "shear"]
UNITS = {"rotation": "rad", "scale": "1", "aspect": "1", "shear": "1"}


class ScanGeometry(Parametrisation):
    """Rotation, scale, aspect and shear of the scan about its middle, beside the refinement of single positions."""

    name: ClassVar[str] = "scan_geometry"
    of: ClassVar[Literal["probe", "positions"]] = "positions"

    lr: float = Field(0.1, gt=0, le=1, description=Parametrisation.model_fields["lr"].description)
    terms: list[Term] = Field(
        ["rotation", "scale", "aspect", "shear"],
        min_length=1,
        description="which are refined: rotation (rad), scale, aspect (y longer and x shorter), shear",
    )
    judge: bool = JUDGE
    follow: Literal["positions", "patterns"] = Field(
        "positions",
        description="what the terms follow: steps of positions after each batch; or, after each epoch, the strain of "
        "the object under each view against its pattern, with moves of at most lr (in a near field the rotation alone)",
    )

    @model_validator(mode="before")
    @classmethod
    def _read_former_name(cls, values: object) -> object:
        """Take `rotation_from` for `follow`: recipes that results hold say so."""
        if isinstance(values, dict) and "rotation_from" in values and "follow" not in values:
            values = {"follow" if key == "rotation_from" else key: value for key, value in values.items()}
        return values

    @field_validator("terms")
    @classmethod
    def _refuse_doubles(cls, terms: list[Term]) -> list[Term]:
        if len(set(terms)) < len(terms):
            raise ValueError(f"terms names one twice: {', '.join(terms)}; name each once")
        return terms

    @property
    def is_judged(self) -> bool:
        """True if each term is put back where it does not help."""
        return self.judge

    def without(self, terms: Collection[str]) -> Self | None:
        """Return the same with the other terms, None if there is none."""
        terms_left = [term for term in self.terms if term not in terms]
        return self.model_copy(update={"terms": terms_left}) if terms_left else None

    @classmethod
    def read_widths(cls, widths: dict[str, object]) -> dict[str, object]:
        """Return widths by term, of the rotation in rad. Raises ValueError where that is no angle."""
        return {
            name: read_quantity(name, value, ANGLE) if name == "rotation" else value for name, value in widths.items()
        }

    @property
    def moves_between_epochs(self) -> bool:
        """True if the terms follow the patterns."""
        return self.follow == "patterns"

    def check(self, geometry: Geometry) -> None:
        """Check that patterns tell the strain of the object, where the terms follow them.

        Raises:
            BadInput: the scan is in the near field, where a beam of another curvature magnifies the object by as much
                as its positions are scaled or sheared; no curvature turns it.
        """
        if self.moves_between_epochs and geometry.propagation != "far_field" and self.terms != ["rotation"]:
            raise BadInput(
                "models.scan_geometry.follow: patterns of a near field tells the rotation alone, as a beam of another "
                "curvature makes up for scale, aspect and shear; use terms: [rotation], or follow: positions."
            )

    def units(self) -> dict[str, str]:
        """Return the names of the numbers, with their units."""
        return {name: UNITS[name] for name in self.terms}

    def directions(self, geometry: Geometry, estimate: Estimate) -> Tensor:
        """Return J, (n, N, 2) float64: moves of the positions about their middle, pixels per unit."""
        moves = moves_of_terms(*(estimate.nominal - means(estimate.nominal)).unbind(1))
        return torch.stack([torch.stack(moves[name], dim=1) for name in self.terms])

    def moved(self, geometry: Geometry, estimate: Estimate, x: Tensor, before: Tensor, after: Tensor) -> Tensor:
        """Return c + A(after) A(before)^-1 (x - c).

        Args:
            geometry: not used.
            estimate: its nominal positions give c.
            x: (N, 2) float64, positions in pixels.
            before: (n,) float64 on the host.
            after: (n,) float64 on the host.
        """
        (a, b), (c, d) = (self._matrix(after) @ torch.linalg.inv(self._matrix(before))).tolist()
        centre = means(estimate.nominal)
        y, x = (x - centre).unbind(1)
        return torch.stack((a * y + b * x, c * y + d * x), dim=1) + centre

    def _matrix(self, theta: Tensor) -> Tensor:
        """Return A, (2, 2) float64."""
        return torch.from_numpy(matrix_of(dict(zip(self.terms, theta.tolist(), strict=True))))


def moves_of_terms(y: Tensor, x: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Return how points at (y, x) from the middle move by a small unit of each term, y before x."""
    return {"rotation": (-x, y), "scale": (y, x), "aspect": (y, -x), "shear": (x, y)}


def matrix_of(numbers: Mapping[str, float]) -> np.ndarray:
    """Return A, (2, 2) float64, for some of rotation (rad), scale, aspect and shear; others are 0."""
    values = dict.fromkeys(UNITS, 0.0) | dict(numbers)
    cosine, sine, s = math.cos(values["rotation"]), math.sin(values["rotation"]), values["shear"]
    turn = np.array([[cosine, -sine], [sine, cosine]])
    stretch = np.array([[1 + values["aspect"], s], [s, 1 - values["aspect"]]])
    return (1 + values["scale"]) * turn @ stretch
