"""Make a recipe from a data file alone: how it is read, what is done to its patterns, and what a person has to say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml

from ptymesh.auto.dataset_names import guessed_keys
from ptymesh.auto.near_field import is_to_be_tried
from ptymesh.auto.optics import bright_radius
from ptymesh.auto.orientation import rotation, unexplained
from ptymesh.errors import BadInput
from ptymesh.geometry import electron_wavelength_m
from ptymesh.io import load_measurement
from ptymesh.io.options import MOST_BAD_PIXELS, DataOptions, PositionOptions
from ptymesh.io.prepare.checks import check_scan, refuse_featureless, scan_fault, without_marks
from ptymesh.io.prepare.inspection import InspectionReport, summarise
from ptymesh.io.prepare.near_field import DETECTOR_LIES, SCAN_LIES, NearFieldSigns, near_field_signs
from ptymesh.io.prepare.preprocess import PreparedSource
from ptymesh.io.samples import located
from ptymesh.measurement import Measurement, PatternSource, centres_of_mass
from ptymesh.paths import is_data, named_after
from ptymesh.recipe.schema import AUTO, RawGroup, Recipe, apply_overrides, raw_recipe

#: Largest number of views that are looked at.
LOOKED_AT = 400
#: Least number of views from which an orientation is taken.
FEWEST = 40
#: Factor by which centres of mass have to be closer to a gradient for another orientation to be taken.
TURNED = 1.5
#: Least radius in pixels of a bright disc from which the object pixel is taken.
SMALLEST_DISC = 4.0

#: Keys of `data` that apply to far-field patterns alone.
OF_FAR_FIELDS = {"centre", "dc"}

#: Sentences that say why, by key of the recipe.
Reasons = dict[str, list[str]]


def described(path: Path, overrides: Sequence[str] = (), out: Path | None = None) -> tuple[RawGroup, Reasons]:
    """Return a recipe for a data set, as plain dicts with stages to be found, and why it is as it is.

    Args:
        path: the file, or the name of a sample.
        overrides: `key.path=VALUE` of a recipe, which nothing here changes.
        out: output folder; None: named after the data set.

    Raises:
        BadInput: the file does not say something that must be known; the message names the key.
    """
    raw: RawGroup = {"data": {"path": str(path)}, "stages": AUTO}
    raw["output"] = {"dir": str(named_after(path) if out is None else out)}
    raw = apply_overrides(raw, overrides)
    if not isinstance(raw.get("data"), dict) or not isinstance(raw.get("output"), dict):
        return raw, {}  # parsing it as a recipe will report the error
    if out is not None:
        raw["output"]["dir"] = str(out)
    return raw, complete_recipe(raw)


def described_recipe(path: Path, overrides: Sequence[str] = (), out: Path | None = None) -> tuple[Recipe, Reasons]:
    """Return the recipe in a file, or one for a data set, and the reasons for what was added to it.

    If it names no stages, these are to be found, and what it leaves open about the data is taken from them, as for a
    data file alone.

    Args:
        path: of the recipe, or of the data set.
        overrides: `key.path=VALUE` of a recipe.
        out: output folder; None: the recipe's.

    Raises:
        BadInput: with one sentence that names key, value and remedy.
    """
    if is_data(path):
        raw, reasons = described(path, overrides, out)
        return Recipe.parse(raw), reasons
    raw, reasons = raw_recipe(path, overrides), Reasons()
    raw.setdefault("stages", AUTO)
    if raw["stages"] == AUTO and isinstance(raw.get("data"), dict):
        Recipe.parse(raw)  # raises if a key is wrong whatever the data hold
        reasons = complete_recipe(raw)
    recipe = Recipe.parse(raw)
    return recipe if out is None else recipe.with_output(out), reasons


def complete_recipe(raw: RawGroup) -> Reasons:
    """Add to a recipe's plain dicts what the data show and the recipe does not say, and return why, by key."""
    reasons: Reasons = {}
    options = DataOptions.parse(raw["data"], "data")
    if options.keys is None:
        key_guesses = guessed_keys(located(options.path))
        if key_guesses is not None:
            raw["data"]["keys"], why = key_guesses
            reasons["data.keys"] = [why]
    _electron_pixel(raw, reasons)
    _set_from_patterns(raw, reasons)
    return reasons


def _electron_pixel(raw: RawGroup, reasons: Reasons) -> None:
    """Set the object pixel of electron patterns from the bright disc if the half angle of the beam's cone is known."""
    data, start = raw["data"], (raw.get("probe") or {}).get("start")
    angle = start.get("semiangle_rad") if isinstance(start, dict) and start.get("kind") == "electron" else None
    told_keys = {"object_pixel_m", "detector_pixel_m", "distance_m"} & data.keys()
    if angle is None or told_keys or data.get("radiation") != "electron" or "energy_eV" not in data:
        return
    data_options = DataOptions.parse(data, "data")
    if data_options.keys is None or {"detector_pixel_m", "distance_m"} & data_options.keys.model_fields_set:
        return  # the file may say it
    raster = (raw.get("positions") or {}).get("raster")
    position_options = PositionOptions.parse({} if raster is None else {"raster": {"step_px": 1}}, "positions")
    silent = {key: value for key, value in data.items() if key not in ("energy_eV", "radiation")}
    scan = load_measurement(DataOptions.parse({**silent, "invalid": "missing"}, "data"), position_options)
    radius = bright_radius(scan)
    assert data_options.energy_eV is not None
    if radius < SMALLEST_DISC or scan.window[0] != scan.window[1]:
        return
    pixel = electron_wavelength_m(data_options.energy_eV) * radius / (scan.window[0] * float(angle))
    data["object_pixel_m"] = float(f"{pixel:.3g}")
    reasons["data.object_pixel_m"] = [f"The bright disc, {angle:g} rad in radius, has {radius:.3g} pixels."]


def _set_from_patterns(raw: RawGroup, reasons: Reasons) -> None:
    """Set keys of `data` and the orientation from what some of the views look like."""
    data, positions = raw["data"], raw.get("positions") or {}
    position_options = PositionOptions.parse(positions, "positions")
    scan = load_measurement(DataOptions.parse(data, "data"), position_options)
    refuse_featureless(without_marks(scan))
    signs = _near_field(raw, scan, reasons)
    if "propagation" not in data:
        check_scan(scan)  # raises
    step = -(-scan.views // LOOKED_AT)
    if "invalid" not in data and (why := _invalid(scan, step)):
        data["invalid"] = "missing"
        reasons["data.invalid"] = [why]
    central_data = dict(data)
    if "views" not in central_data and step > 1:
        central_data["views"] = {"step": step}
    looked = load_measurement(DataOptions.parse(central_data, "data"), position_options)
    pattern_survey = summarise(looked)
    for key, value, why in [*_choices(pattern_survey), *_bad_pixels(pattern_survey, looked.patterns)]:
        if key not in data and not (signs is not None and key in OF_FAR_FIELDS):
            data[key] = value
            reasons[f"data.{key}"] = [why]
    if signs is None or not signs.is_certain:
        _orient(raw, reasons)


def _near_field(raw: RawGroup, scan: Measurement, reasons: Reasons) -> NearFieldSigns | None:
    """Return the signs of a near field in a scan that is read for a far field; None if there are none.

    If the signs are certain and views are too far apart for a far field, the near field is set in the recipe.
    """
    data, distance_m = raw["data"], scan.geometry.distance_m
    if "propagation" in data or "focus_distance_m" in data or distance_m is None:
        return None
    signs = near_field_signs(without_marks(scan))
    if signs is None or not is_to_be_tried(signs):
        return None
    if signs.is_certain and scan_fault(scan):
        _turn_scan(raw, signs, reasons)
        data["propagation"] = "angular_spectrum"
        reasons["data.propagation"] = [
            f"Patterns are images that move with the sample, magnified {signs.magnification:.4g} times; for a far "
            f"field views are too far apart."
        ]
        focus = signs.focus_distance_m(distance_m)
        if focus is not None:
            data["focus_distance_m"] = float(f"{focus:.6g}")
            reasons["data.focus_distance_m"] = ["By that magnification and the distance in the file."]
    return signs


def _turn_scan(raw: RawGroup, signs: NearFieldSigns, reasons: Reasons) -> None:
    """Set the orientation that moving images ask for, unless the recipe says one."""
    data, positions = raw["data"], raw.get("positions") or {}
    if SCAN_LIES & positions.keys() or DETECTOR_LIES & data.keys():
        return
    settings = signs.orientation()
    if settings:
        raw["positions"] = {**positions, **settings}
        for key in settings:
            reasons[f"positions.{key}"] = ["So images move as the sample does."]


def _orient(raw: RawGroup, reasons: Reasons) -> None:
    """Set the orientation that the patterns' centres of mass ask for, unless the recipe says one."""
    data, positions = raw["data"], raw.get("positions") or {}
    if SCAN_LIES & positions.keys() or DETECTOR_LIES & data.keys():
        return
    central_data = data if "views" in data else {**data, "views": {"central": LOOKED_AT}}
    scan = load_measurement(DataOptions.parse(central_data, "data"), PositionOptions.parse(positions, "positions"))
    if scan.geometry.propagation != "far_field" or scan.views < FEWEST:
        return
    c = centres_of_mass(scan)
    if scan.geometry.radiation == "electron":
        rotation_found = rotation(c, scan.positions)
        share_as_told, share_left, settings = (
            rotation_found.told,
            rotation_found.left,
            {"transpose": True} if rotation_found.transpose else {},
        )
    else:
        by_turn = unexplained(c, scan.positions)
        best = min(by_turn, key=lambda name: by_turn[name])
        share_as_told, share_left, settings = by_turn["as told"], by_turn[best], dict(yaml.safe_load(f"{{{best}}}"))
    if not share_left or share_as_told < TURNED * share_left:  # centres that do not move tell nothing
        return
    closer = f"{share_as_told / share_left:.2g} times closer to a gradient"
    why = f"So the patterns' centres of mass are {closer}; or a half turn more."
    if scan.geometry.radiation == "electron":
        raw["positions"] = {**positions, "rotation_deg": round(rotation_found.angle_deg, 1)}
        reasons["positions.rotation_deg"] = [why]
    for key, value in settings.items():
        data[key] = value
        reasons[f"data.{key}"] = [why]


def _invalid(scan: Measurement, step: int) -> str:
    """Return why NaN and negative values are to be taken as missing; empty if there are none."""
    try:
        for view in range(0, scan.views, max(1, step)):
            scan.patterns.read(np.array([view]))
    except BadInput as error:
        return str(error)
    return ""


def _bad_pixels(pattern_survey: InspectionReport, patterns: PatternSource) -> list[tuple[str, object, str]]:
    """Return `data.bad_pixels` as (key, value, why) for pixels that look wrong, in the file's own coordinates."""
    if not isinstance(patterns, PreparedSource):
        return []
    bad = [patterns.window.stored(y, x) for y, x in (*pattern_survey.hot, *pattern_survey.dead, *pattern_survey.stuck)]
    pixels = sorted({pixel for block in bad for pixel in block})
    if not 0 < len(pixels) <= MOST_BAD_PIXELS:
        return []
    counts = [
        f"{kind} ({len(getattr(pattern_survey, kind))})"
        for kind in ("hot", "dead", "stuck")
        if getattr(pattern_survey, kind)
    ]
    return [("bad_pixels", [list(pixel) for pixel in pixels], f"Pixels that look {' and '.join(counts)}.")]


def _choices(pattern_survey: InspectionReport) -> list[tuple[str, object, str]]:
    """Return choices that a summary suggests, as (key of `data`, value, why)."""
    choices: list[tuple[str, object, str]] = []
    for sentence in pattern_survey.suspicious:
        if "set data.saturation" in sentence:
            choices.append(("saturation", float(pattern_survey.peak_counts), sentence))
        elif sentence.endswith("set data.amplitudes=true."):
            choices.append(("amplitudes", True, sentence))
        elif "set data.centre to find" in sentence:
            choices.append(("centre", "find", sentence))
        elif "set data.dc" in sentence:
            choices.append(("dc", "corner", sentence))
    return choices
