"""Numbers with units in options and on the command line."""

from __future__ import annotations

import math
from typing import Any

import pytest
import typer

from ptymesh.calibrate.description import semiangle_of
from ptymesh.cli.quantities import parse_angle, parse_energy, parse_length
from ptymesh.engines.constraints.probe_supports import EllipseSupport
from ptymesh.errors import BadInput
from ptymesh.recipe.schema import Recipe
from ptymesh.simulate import checked
from ptymesh.units import ANGLE, DEGREES, ENERGY, LENGTH, Quantity, parse_quantity


@pytest.mark.parametrize(
    ("text", "quantity", "expected"),
    [
        ("80 keV", ENERGY, 80e3),
        ("8.5keV", ENERGY, 8.5e3),
        ("0.4 A", LENGTH, 0.4e-10),
        ("0.4 Å", LENGTH, 0.4e-10),
        ("-10 nm", LENGTH, -10e-9),
        ("1.5e3 µm", LENGTH, 1.5e-3),
        ("75 um", LENGTH, 75e-6),
        (".5 mm", LENGTH, 0.5e-3),
        ("2 m", LENGTH, 2.0),
        ("21.4 mrad", ANGLE, 21.4e-3),
        ("30 deg", ANGLE, math.radians(30)),
        ("30 deg", DEGREES, 30.0),
        ("90°", DEGREES, 90.0),
        ("100 mrad", DEGREES, math.degrees(0.1)),
    ],
)
def test_a_number_with_its_unit_is_that_number(text: str, quantity: Quantity, expected: float) -> None:
    found = parse_quantity(text, quantity)
    assert found == expected if quantity in (ENERGY, LENGTH) else found == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("text", ["1e-8", "1e8", "12", "nm", "find", "", "0x10", "1 nm 2", "1 nm^-1", "3" * 70 + " nm"])
def test_text_without_a_unit_is_left_alone(text: str) -> None:
    assert parse_quantity(text, LENGTH) is None


@pytest.mark.parametrize(
    ("text", "quantity"), [("10 mrad", LENGTH), ("3 meV", ENERGY), ("8 kev", ENERGY), ("1 Mm", LENGTH)]
)
def test_a_wrong_unit_is_refused(text: str, quantity: Quantity) -> None:
    with pytest.raises(ValueError, match="is no unit of"):
        parse_quantity(text, quantity)


def recipe(**groups: Any) -> Recipe:
    data = groups.pop("data", {})
    return Recipe.parse({"data": {"path": "/scan.cxi", **data}, **groups})


def test_units_are_read_wherever_a_key_ends_in_one() -> None:
    lens = {"kind": "electron", "semiangle_rad": "21.4 mrad", "defocus_m": "10 nm"}
    made = recipe(
        data={"energy_eV": "80 keV", "object_pixel_m": ["0.4 A", "40 pm"], "distance_m": "1.2 m"},
        probe={"start": lens},
        object={"slices": 2, "slice_spacing_m": "2 nm", "tilt_rad": ["1 mrad", 0]},
        positions={"rotation_deg": "-90 deg", "raster": {"step_m": "0.5 A"}},
    )
    plain = recipe(
        data={"energy_eV": 80e3, "object_pixel_m": [0.4e-10, 40e-12], "distance_m": 1.2},
        probe={"start": {**lens, "semiangle_rad": 21.4e-3, "defocus_m": 10e-9}},
        object={"slices": 2, "slice_spacing_m": 2e-9, "tilt_rad": [1e-3, 0]},
        positions={"rotation_deg": -90, "raster": {"step_m": 0.5e-10}},
    )
    assert made == plain
    assert "energy_eV: 80000.0" in made.to_yaml()
    assert checked(energy_eV="8.5 keV", pixel_m="20 nm").energy_eV == 8500.0
    support = EllipseSupport(radii=(0.2, 0.3))
    support.angle_deg = "1 rad"  # type: ignore[assignment]
    assert support.angle_deg == pytest.approx(math.degrees(1))


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (
            {"probe": {"start": {"kind": "data", "defocus_m": "10 mrad"}}},
            "probe.start.defocus_m is '10 mrad'; it should be a length, such as 10 nm.",
        ),
        ({"data": {"energy_eV": "8 kg"}}, "data.energy_eV is '8 kg'; it should be an energy, such as 80 keV."),
        (
            {"data": {"object_pixel_m": ["1 nm", "2 keV"]}},
            "data.object_pixel_m.1 is '2 keV'; it should be a length, such as 10 nm.",
        ),
        ({"data": {"distance_m": "1e400 m"}}, "data.distance_m is inf; it should be a finite number."),
        (
            {"data": {"distance_m": "far"}},
            "data.distance_m is 'far'; it should be a number in metres, or a length, such as 10 nm.",
        ),
    ],
)
def test_another_quantity_is_refused_in_one_sentence(groups: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as refused:
        recipe(**groups)
    assert str(refused.value) == message


def test_starts_of_unknowns_and_paths_take_units() -> None:
    optics = {"focal_spread": {"start": {"focal_spread": "5 nm"}}, "fly_scan": {"path": ["0.2 um", 0]}}
    made = recipe(optics=optics).optics
    assert made["focal_spread"].start == {"focal_spread": 5e-9} and vars(made["fly_scan"])["path"] == (2e-7, 0.0)
    with pytest.raises(BadInput, match="focal_spread is '5 mrad'; give a length, such as 10 nm"):
        recipe(optics={"focal_spread": {"start": {"focal_spread": "5 mrad"}}})
    with pytest.raises(BadInput, match="path is '5 deg'; give a length, such as 10 nm"):
        recipe(optics={"fly_scan": {"path": ["5 deg", 0]}})


def test_names_of_datasets_are_no_quantities() -> None:
    keys = recipe(data={"keys": {"patterns": "p", "positions": "q", "energy_eV": "8 keV"}}).data.keys
    assert keys is not None and keys.energy_eV == "8 keV"


def test_options_of_commands_take_them() -> None:
    assert parse_energy("300 keV") == parse_energy("300e3") == parse_energy(3e5) == 3e5
    assert parse_length("0.4 A") == 0.4e-10 and parse_angle("20 mrad") == 20e-3
    for wrong, remedy in (("20 nm", "give eV, or a number with its unit, such as 80 keV"), ("nan", "is not finite")):
        with pytest.raises(typer.BadParameter, match=remedy):
            parse_energy(wrong)


def test_calibrate_reads_the_angle_of_a_recipe() -> None:
    for said, angle in (("20 mrad", 20e-3), ("2e-2", 20e-3), (0.02, 20e-3)):
        assert semiangle_of({"probe": {"start": {"kind": "electron", "semiangle_rad": said}}}) == angle
    with pytest.raises(BadInput, match="The semi-angle is '20 nm'; give it in rad"):
        semiangle_of({"probe": {"start": {"kind": "electron", "semiangle_rad": "20 nm"}}})
