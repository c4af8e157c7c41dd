"""Description of a scan before its patterns are looked at: beam, semi-angle, positions, by file, recipe or person."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from math import sqrt

import numpy as np

from ptymesh.auto.data import Reasons
from ptymesh.auto.dataset_names import guessed_keys
from ptymesh.errors import BadInput
from ptymesh.io import load_measurement
from ptymesh.io.load import open_scan
from ptymesh.io.options import DataOptions, PositionOptions
from ptymesh.io.prepare.checks import refuse_featureless, without_marks
from ptymesh.io.samples import located
from ptymesh.io.scan import Optics
from ptymesh.measurement import Measurement
from ptymesh.recipe.schema import RawGroup
from ptymesh.units import ANGLE, parse_quantity

#: Object pixel (m) with which positions are read before it is known; any number would do.
PROVISIONAL_M = 1e-10
#: Keys that say how the detector lies to the scan, which calibrate finds.
LIES = ("flip_y", "flip_x", "transpose")


@dataclass(frozen=True)
class Description:
    """Data set as far as it is described.

    Attributes:
        recipe: plain dicts, without what calibrate finds.
        scan: with a provisional object pixel.
        wavelength_m: of the electrons.
        energy_eV: None where the file says the wavelength alone.
        semiangle_rad: half-angle of the beam's cone, None where nothing says it.
        stored_pixel_m: (y, x) object pixel of the whole stored pattern, None where nothing says it.
        ratio: (y, x) object pixel of the window over that of the whole stored pattern.
        positions: (N, 2) y x in the scan's own axes, in metres, or in window pixels (`in_pixels`).
        in_pixels: whether positions are.
        reasons: sentences by key of the recipe.
    """

    recipe: RawGroup
    scan: Measurement
    wavelength_m: float
    energy_eV: float | None
    semiangle_rad: float | None
    stored_pixel_m: tuple[float, float] | None
    ratio: tuple[float, float]
    positions: np.ndarray
    in_pixels: bool
    reasons: Reasons


def describe(recipe: RawGroup) -> Description:
    """Return what a recipe and its file say.

    Args:
        recipe: plain dicts with absolute paths; `data.path` is all that must be there.

    Raises:
        BadInput: the data are no electrons' far field, or something is missing that only a person knows.
    """
    raw, reasons = copy.deepcopy(recipe), Reasons()
    data, positions = raw["data"], raw.setdefault("positions", {})
    for key in (*LIES, *(("centre",) if data.get("centre") == "find" else ())):
        data.pop(key, None)
    positions.pop("rotation_deg", None)
    options = DataOptions.parse(data, "data")
    options = options.model_copy(update={"path": located(options.path)})
    if options.keys is None and (key_guesses := guessed_keys(options.path)) is not None:
        data["keys"], why = key_guesses
        reasons["data.keys"] = [why]
        options = DataOptions.parse(data, "data").model_copy(update={"path": options.path})
    stored = open_scan(options)
    optics = stored.optics.overridden(options)
    wavelength, energy = _beam(optics, data, reasons)
    optics = stored.optics.overridden(DataOptions.parse(data, "data"))  # with the radiation
    position_options = _where(positions, stored.positions is None)
    in_pixels = (
        position_options.raster.step_m is None
        if position_options.raster
        else (position_options.unit or stored.unit) == "px"
    )
    provisional = {key: value for key, value in data.items() if key not in ("distance_m", "detector_pixel_m")}
    scan = load_measurement(
        DataOptions.parse({**provisional, "object_pixel_m": PROVISIONAL_M}, "data"), position_options
    )
    scan = without_marks(scan)
    refuse_featureless(scan)
    window_m = scan.geometry.object_pixel_m
    assert window_m is not None, "set above"
    pixel = optics.geometry((stored.patterns.shape[1], stored.patterns.shape[2])).object_pixel_m
    return Description(
        raw,
        scan,
        wavelength,
        energy,
        semiangle_of(raw),
        pixel,
        (window_m[0] / PROVISIONAL_M, window_m[1] / PROVISIONAL_M),
        scan.positions if in_pixels else scan.positions * np.array(window_m),
        in_pixels,
        reasons,
    )


def _beam(optics: Optics, data: RawGroup, reasons: Reasons) -> tuple[float, float | None]:
    """Return the wavelength and the energy, and set `data.radiation` where nothing says it."""
    if optics.radiation == "photon":
        raise BadInput(f"{data['path']} is a scan with X-rays, and calibrate is for electrons; see `ptymesh inspect`.")
    if optics.propagation != "far_field":
        raise BadInput(f"{data['path']} is a near field ({optics.propagation}); calibrate needs far-field patterns.")
    if optics.radiation is None:
        data["radiation"] = "electron"
        reasons["data.radiation"] = ["The file does not say it; calibrate is for electrons."]
        optics = optics.overridden(DataOptions.parse(data, "data"))
    if optics.energy_eV is None and optics.wavelength_m is None:
        raise BadInput(
            f"{data['path']} does not say the energy of its electrons; give --energy EV, such as --energy 300e3 "
            "(data.energy_eV in a recipe)."
        )
    geometry = optics.geometry((8, 8))
    assert geometry.wavelength_m is not None, "one of the two is known"
    return geometry.wavelength_m, geometry.energy_eV


def _where(positions: RawGroup, is_raster: bool) -> PositionOptions:
    """Return where views lie. Raises BadInput where nothing says the step."""
    options = PositionOptions.parse(positions, "positions")
    if is_raster and (options.raster is None or (options.raster.step_m is None and options.raster.step_px is None)):
        raise BadInput(
            "The file does not say the step of the scan; give --step M, such as --step 0.4e-10 "
            "(positions.raster.step_m in a recipe)."
        )
    return options


def semiangle_of(raw: RawGroup) -> float | None:
    """Return the semi-angle that a recipe says, or None."""
    start = (raw.get("probe") or {}).get("start")
    semiangle_rad = start.get("semiangle_rad") if isinstance(start, dict) else None
    if semiangle_rad is None:
        return None
    try:
        angle = parse_quantity(semiangle_rad, ANGLE) if isinstance(semiangle_rad, str) else float(semiangle_rad)
        angle = float(semiangle_rad) if angle is None else angle
    except (TypeError, ValueError) as error:
        raise BadInput(f"The semi-angle is {semiangle_rad!r}; give it in rad, such as --semiangle 20e-3.") from error
    if not 0 < angle < 0.5:
        raise BadInput(f"The semi-angle is {angle:g} rad; give one between 0 and 0.5, such as --semiangle 20e-3.")
    return angle


def mean_pixel(pair: tuple[float, float]) -> float:
    """Return the geometric mean of the sides of a pixel."""
    return sqrt(pair[0] * pair[1])
