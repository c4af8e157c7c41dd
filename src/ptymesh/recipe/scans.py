"""Scans of a recipe (keys `data` and `scans`), loaded as one measurement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptymesh.io.joint_scans import join_measurements, lay_side_by_side
from ptymesh.io.load import load_measurement

if TYPE_CHECKING:
    from ptymesh.measurement import Measurement
    from ptymesh.recipe.schema import Recipe


def load_scans(recipe: Recipe) -> list[Measurement]:
    """Return each of a recipe's several scans by itself. Raises BadInput where a file cannot be used."""
    return [load_measurement(one.data, recipe.positions) for one in recipe.scans]


def load_scan(recipe: Recipe) -> Measurement:
    """Return the scan of a recipe, or its scans joined, prepared as the recipe says.

    Raises:
        BadInput: a file cannot be used, or scans differ in what they have to share.
    """
    if not recipe.scans:
        return load_measurement(recipe.data, recipe.positions)
    joint = join_measurements(load_scans(recipe), [one.shift_px for one in recipe.scans])
    return lay_side_by_side(joint) if recipe.object.scans == "own" else joint
