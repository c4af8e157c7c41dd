"""Orientations of a detector against a scan: the recipe keys that set them, what is equal, and what is the twin.

D       what the recipe does to detector pixels: rows and columns reversed, then axes exchanged; (2, 2) on (y, x)
S       what it does to the scan: exchange, flips, affine matrix, rotation
G       D^-1 S: from the scan as stored to the detector as stored. Recipes with the same G give the same object, turned.

-G is the twin: it fits as well, if object and probe are turned by 180 degrees and conjugated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ptymesh.io.options import PositionOptions
from ptymesh.io.prepare.positions import turn

KEYS = ("data.flip_y", "data.flip_x", "data.transpose", "positions.rotation_deg")


@dataclass(frozen=True)
class Orientation:
    """Values of the recipe's keys; what else `positions` says (its own flips, affine matrix) comes from the recipe."""

    flip_y: bool = False
    flip_x: bool = False
    transpose: bool = False
    rotation_deg: float = 0.0

    def relative(self, positions: Mapping[str, object]) -> np.ndarray:
        """G, (2, 2), with the recipe's other keys of `positions`; without scale where its affine matrix has one."""
        flips = np.diag([-1.0 if self.flip_y else 1.0, -1.0 if self.flip_x else 1.0])
        detector = (np.array([[0.0, 1.0], [1.0, 0.0]]) if self.transpose else np.eye(2)) @ flips
        matrix = np.linalg.inv(detector) @ turn(PositionOptions(**{**positions, "rotation_deg": self.rotation_deg}))
        return matrix / math.sqrt(abs(np.linalg.det(matrix)))

    def twin(self, *, by_rotation: bool) -> Orientation:
        """-G, by another rotation, or by reversing both of the detector's axes."""
        if by_rotation:
            return Orientation(self.flip_y, self.flip_x, self.transpose, wrapped(self.rotation_deg + 180))
        return Orientation(not self.flip_y, not self.flip_x, self.transpose, self.rotation_deg)

    def settings(self) -> dict[str, object]:
        """Recipe key -> value."""
        return dict(zip(KEYS, (self.flip_y, self.flip_x, self.transpose, self.rotation_deg), strict=True))

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Orientation:
        """The orientation that a recipe's keys set."""
        return cls(*(settings.get(key, default) for key, default in zip(KEYS, (False, False, False, 0.0), strict=True)))

    def __str__(self) -> str:
        operations = [name for name, on in (("rows reversed", self.flip_y), ("columns reversed", self.flip_x)) if on]
        operations += ["transposed"] if self.transpose else []
        detector = "detector " + (" and ".join(operations) if operations else "as stored")
        return f"{detector}, scan rotated by {self.rotation_deg:g} degrees"


def apart_deg(a: np.ndarray, b: np.ndarray) -> float:
    """Angle between two G of the same handedness, 0 to 180; infinite where one is the other's mirror image."""
    if np.linalg.det(a) * np.linalg.det(b) < 0:
        return math.inf
    between = a @ np.linalg.inv(b)
    return abs(math.degrees(math.atan2(between[1, 0] - between[0, 1], between[0, 0] + between[1, 1])))


def apart_but_for_twin_deg(a: np.ndarray, b: np.ndarray) -> float:
    """The same, -b counting as b."""
    return min(apart_deg(a, b), apart_deg(a, -b))


def wrapped(angle_deg: float) -> float:
    """The angle from -180 (included) to 180."""
    return (angle_deg + 180) % 360 - 180


def discrete() -> Iterator[Orientation]:
    """The eight ways to lay a square detector, without a rotation of the scan."""
    for transpose in (False, True):
        for flip_y in (False, True):
            for flip_x in (False, True):
                yield Orientation(flip_y, flip_x, transpose)
