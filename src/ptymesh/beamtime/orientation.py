"""Orientation of a detector to its scan by a result, as settings of the recipe of another scan."""

from __future__ import annotations

import json
from math import degrees
from pathlib import Path

from ptymesh.io.results import Result
from ptymesh.recipe.schema import Recipe

#: Keys that say how the detector's and the scan's axes lie, besides the rotation.
DETECTOR_KEYS = ("flip_y", "flip_x", "transpose")
SCAN_KEYS = ("transpose", "flip_y", "flip_x", "affine")


def orientation_settings(path: Path) -> list[str]:
    """Return `key=value` of the orientation of a result's recipe, with the rotation that its run has found.

    Args:
        path: of the result.

    Raises:
        BadInput: the result does not hold its recipe.
    """
    result = Result.load(path)
    recipe = Recipe.from_yaml(result.recipe)
    turned = degrees(result.parameters.get("scan_geometry", {}).get("rotation", 0.0))
    angle = (recipe.positions.rotation_deg + turned + 180) % 360 - 180
    data = recipe.data.model_dump(mode="json", include=set(DETECTOR_KEYS))
    positions = recipe.positions.model_dump(mode="json", include=set(SCAN_KEYS))
    values = {f"data.{key}": data[key] for key in DETECTOR_KEYS}
    values |= {f"positions.{key}": positions[key] for key in SCAN_KEYS}
    values["positions.rotation_deg"] = round(angle, 4)
    return [f"{key}={json.dumps(value)}" for key, value in values.items()]
