"""Patterns alone tell a near field, its magnification, and how a scan lies; far fields do not look like one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from near_scans import NearScan, simulate_near
from ptymesh.errors import BadInput
from ptymesh.io import load_measurement
from ptymesh.io.options import DataOptions, PositionOptions
from ptymesh.io.prepare.checks import check_near_field, check_scan
from ptymesh.io.prepare.inspection import summarise
from ptymesh.io.prepare.near_field import near_field_doubt, near_field_signs
from ptymesh.io.prepare.positions import turn
from ptymesh.simulate import simulate


@pytest.fixture(scope="module")
def scans() -> dict[float, NearScan]:
    return {mag: simulate_near(3, mag, views=25, step=9.0) for mag in (1.0, 8.0)}


@pytest.mark.parametrize("mag", [1.0, 8.0])
def test_the_magnification_is_told_by_patterns_alone(scans: dict[float, NearScan], tmp_path: Path, mag: float) -> None:
    """It is known to 2 %, and the focus from the file's distance; the file says nothing of the propagation."""
    scan = load_measurement(DataOptions(path=scans[mag].write(tmp_path / "near.cxi")))
    assert scan.geometry.propagation == "far_field"
    signs = near_field_signs(scan)
    assert signs is not None and signs.is_certain and signs.orientation() == {}
    assert signs.magnification == pytest.approx(mag, rel=0.02)
    focus = signs.focus_distance_m(scans[mag].distance_m)
    truth = scans[mag].focus_distance_m
    assert (focus is None) == (truth is None)
    assert truth is None or focus == pytest.approx(truth, rel=0.025)


@pytest.mark.parametrize(
    "keys",
    [
        {"transpose": True},
        {"flip_y": True},
        {"flip_x": True},
        {"flip_y": True, "flip_x": True},
        {"transpose": True, "flip_x": True},
        {"rotation_deg": 20.0},
        {"transpose": True, "rotation_deg": -30.0},
    ],
)
def test_a_scan_that_lies_otherwise_is_turned(
    scans: dict[float, NearScan], tmp_path: Path, keys: dict[str, Any]
) -> None:
    """The keys that are told undo what was done to the positions."""
    near = scans[8.0]
    done = np.linalg.inv(turn(PositionOptions(**keys)))
    path = near.write(tmp_path / "near.cxi", positions_m=near.positions_m @ done.T)
    signs = near_field_signs(load_measurement(DataOptions(path=path)))
    assert signs is not None
    left = turn(PositionOptions(**signs.orientation())) @ done
    assert np.abs(left - np.eye(2)).max() < 0.03


def test_a_run_is_warned_of_a_near_field(scans: dict[float, NearScan], tmp_path: Path) -> None:
    near = scans[8.0]
    data = DataOptions(path=near.write(tmp_path / "near.cxi"))
    (said,) = check_near_field(load_measurement(data)).doubts
    assert "near field is suspected" in said and "data.propagation=angular_spectrum" in said
    assert near.focus_distance_m is not None
    told = float(said.split("focus_distance_m=")[1].split(",")[0])
    assert told == pytest.approx(near.focus_distance_m, rel=0.025)
    assert said in summarise(load_measurement(data)).suspicious
    known = data.model_copy(update={"propagation": "angular_spectrum", "focus_distance_m": near.focus_distance_m})
    assert not check_near_field(load_measurement(known)).sentences, "the recipe says so already"
    silent = load_measurement(data)
    silent = replace(silent, checks=replace(silent.checks, scan="off"))
    assert not check_near_field(silent).sentences


def test_views_too_far_apart_for_a_far_field_are_of_a_near_field(tmp_path: Path) -> None:
    near = simulate_near(5, 4.0, views=25, step=24.0, fresnel=17.0)
    scan = load_measurement(DataOptions(path=near.write(tmp_path / "near.cxi")))
    with pytest.raises(BadInput, match="near field is suspected"):
        check_scan(scan)


@pytest.mark.parametrize("kind", ["xray", "electron"])
def test_a_far_field_is_not_suspected(kind: str) -> None:
    """Its beam is out of focus, so that shadows move there as well."""
    scan = simulate(kind=kind, views=60, window=48, seed=3).measurement
    signs = near_field_signs(scan)
    assert near_field_doubt(scan) == ""
    assert signs is None or not signs.is_certain
