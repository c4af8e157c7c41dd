"""ptymesh inspect --template: a recipe that says what the file says, and asks for the rest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ptymesh.cli.template import recipe_template
from ptymesh.errors import BadInput
from ptymesh.io import load_measurement
from ptymesh.recipe.schema import load_recipe


def answered(text: str, **answers: str) -> str:
    """The template with these lines no comments any more, and these values."""
    lines = []
    for line in text.splitlines():
        key = line.strip().removeprefix("# ").partition(":")[0]
        lines.append(f"  {key}: {answers[key]}" if line.startswith("  #") and key in answers else line)
    return "\n".join(lines)


def test_datasets_are_guessed_and_numbers_asked_for(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    path = tmp_path / "scan.npz"
    np.savez(path, counts=rng.poisson(9, (12, 16, 20)), places=rng.normal(size=(12, 2)) * 1e-6)
    text = recipe_template(path, ())
    assert "data.keys is a guess: counts is the largest array" in text
    assert "# distance_m: 1.92  # not in the file" in text and "12 patterns of 16 x 20 pixels" in text
    recipe = tmp_path / "a.yaml"
    recipe.write_text(
        answered(text, radiation="photon", energy_eV="8.8e+3", distance_m="2", detector_pixel_m="75.0e-6")
    )
    found = load_recipe(recipe)
    m = load_measurement(found.data, found.positions)
    assert m.views == 12 and m.geometry.distance_m == 2


def test_a_step_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "scan.npz"
    np.savez(path, counts=np.ones((3, 4, 16, 20), np.uint8))
    text = recipe_template(path, ["data.energy_eV=300e3", "data.radiation=electron"])
    assert "raster: {shape: [3, 4], step_m: 5.0e-9}  # not in the file: the scan's step" in text
    assert "energy_eV: 300000.0" in text and "# energy_eV" not in text
    assert "raster" in recipe_template(path, ["positions.raster.step_px=3"])


def test_a_file_of_no_format(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"nothing known" * 9)
    with pytest.raises(BadInput, match="no known format"):
        recipe_template(tmp_path / "a.bin", ())
