"""Orientation and defocus of the real sets, with what is known of them withheld."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptymesh.recipe.schema import raw_recipe
from ptymesh.tune.options import tuning
from ptymesh.tune.orient import Crop, orient
from ptymesh.tune.orientation import Orientation
from ptymesh.tune.session import run_study

EXAMPLE = Path(__file__).parents[2] / "examples" / "cryo-4dstem.yaml"
C10_M, ROTATION_DEG = -13.5e-6, -126.0


def cryo(data_dir: Path) -> dict[str, Any]:
    """The example without its orientation, and with a C10 that is right in its sign at most by chance."""
    raw = raw_recipe(EXAMPLE, [f"data.path={data_dir / 'cryo-4dstem-40x40.h5'}"])
    del raw["data"]["transpose"], raw["positions"]["rotation_deg"]
    raw["probe"]["start"]["aberrations_m"] = {"C10": 11e-6}
    return raw


@pytest.mark.long
def test_the_cryo_set_is_transposed_and_rotated(data_dir: Path) -> None:
    crop = Crop(views=200, epochs=3)
    found = orient(cryo(data_dir), crop=crop, rotation_step_deg=30.0, c10="negative", device="cpu")
    assert found.best.transpose and not found.best.flip_y and not found.best.flip_x
    assert abs(found.best.rotation_deg - ROTATION_DEG) <= 10
    assert found.settled == "C10, known to be negative" and found.confidence != "unsure"
    assert found.lines()["probe"] == {"start": {"aberrations_m": {"C10": -11e-6}}}
    assert abs(found.twin.rotation_deg - (ROTATION_DEG + 180)) <= 10


@pytest.mark.long
def test_the_defocus_of_the_cryo_set(data_dir: Path, tmp_path: Path) -> None:
    recipe = cryo(data_dir)
    recipe["data"] |= {"transpose": True, "crop": 72, "views": {"central": 250}}
    recipe["positions"]["rotation_deg"] = -120  # as an orientation search finds it
    recipe["stages"] = [{"engine": "rpie", "epochs": 3, "batch": 20}]
    search = tuning(
        {
            "recipe": recipe,
            "space": {"probe.start.aberrations_m.C10": {"low": -25e-6, "high": -5e-6}},
            "objective": {"kind": "held_out", "fraction": 0.2},
            "pruner": "nop",
            "trials": 12,
            "output": {"dir": str(tmp_path)},
        },
        tmp_path,
    )
    found = run_study(search, device="cpu", quiet=True, reconstruct=False)
    assert found is not None
    assert abs(found.best.settings["probe.start.aberrations_m.C10"] - C10_M) <= 1.5e-6


def test_the_star_with_its_scan_turned_and_mirrored(data_dir: Path) -> None:
    data = {"path": str(data_dir / "siemens-star-small.npz.bz2")}
    positions = {"transpose": True, "flip_y": True}
    found = orient({"data": data, "positions": positions}, crop=Crop(views=150, epochs=3), device="cpu")
    assert found.best == Orientation(flip_x=True, transpose=True) and found.confidence == "sure"
    assert np.allclose(found.best.relative(positions), np.eye(2)), "the original orientation"
    assert found.residual < 0.7 * found.second_residual, "measured: 0.55"
