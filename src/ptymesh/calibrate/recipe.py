"""Recipe of a calibration, with the reasons of every number as comments."""

from __future__ import annotations

import copy
from math import ceil, degrees, exp, hypot, pi
from pathlib import Path

from ptymesh.auto.data import Reasons
from ptymesh.auto.recipe_text import recipe_text
from ptymesh.calibrate.bragg import KnownLattice
from ptymesh.calibrate.calibration import Calibration
from ptymesh.io.options import DataOptions
from ptymesh.io.prepare.preprocess import PreparedSource
from ptymesh.physics.object_models import TRANSMISSION
from ptymesh.physics.object_models.potential import Potential
from ptymesh.recipe.schema import LENS_MODELS, RawGroup, Recipe, default_stages
from ptymesh.recipe.starts import ObjectOptions, ProbeOptions

#: Probe modes of an object of several slices.
THICK_MODES = 3
#: First epochs of a potential of several slices, on the inner half of the detector, for a quarter of the work: scan,
#: lens and what is large follow faster there, and the others then start from it.
COARSE_EPOCHS = 10
#: Last epochs of a potential of several slices in which single positions move, when scan and lens have been found.
MOVING_EPOCHS = 10
#: Pieces of the model of an object of several slices: pixels count the light on all of their area.
THICK_OPTICS: RawGroup = {"detector_transfer": {"pixel_side": 1}}
#: Most phase in rad by which the beam's edge turns against its middle from slice to slice: what a slice does is not to
#: depend on where in it the beam is.
MOST_TURN_RAD = 1.0
#: Largest weight that a prior along the beam takes.
MOST_WEIGHT = 1000.0


def recipe_of(calibration: Calibration, folder: Path) -> tuple[Recipe, Reasons]:
    """Return the recipe of a calibrated scan, and why it is as it is, by key.

    Args:
        calibration: the calibration.
        folder: that the recipe's run will write into.
    """
    description = calibration.description
    raw, reasons = copy.deepcopy(description.recipe), {key: list(reason) for key, reason in description.reasons.items()}
    data, positions = raw["data"], raw["positions"]
    reasons.setdefault("data", []).append(
        f"{calibration.counts_per_view:.4g} counts per pattern, {calibration.dose_e_per_A2:.4g} e/A^2 if each is an "
        f"electron; {_descan_sentence(calibration)}"
    )
    _set_pixel(calibration, data, reasons)
    _set_centre(calibration, data, reasons)
    lens, why = calibration.lens, orientation_sentence(calibration)
    if lens.transpose:
        data["transpose"] = True
        reasons["data.transpose"] = [
            f"By {'parallax' if calibration.parallax.is_sure else 'the centres of mass'}, as below."
        ]
    positions["rotation_deg"] = round(lens.rotation_deg, 2)
    reasons["positions.rotation_deg"] = [why, twin_sentence(calibration)]
    start: RawGroup = {"kind": "electron", "semiangle_rad": float(f"{calibration.semiangle_rad:.5g}")}
    aberrations: RawGroup = {}
    if calibration.parallax.is_sure:
        size, angle = lens.astigmatism
        aberrations["C10"] = float(f"{lens.c10_m:.4g}")
        if size > 2 * calibration.parallax.c12_error_m:
            aberrations["C12"] = [float(f"{size:.3g}"), round(angle, 3)]
        start["aberrations_m"] = aberrations
    raw["probe"] = {**(raw.get("probe") or {}), "start": start}
    reasons["probe.start"] = [lens_sentence(calibration)]
    reason = "was told" if description.semiangle_rad is not None else "follows from the disc and the file's pixel size"
    reason = reason if calibration.lattice is None else "follows from the disc and the lattice"
    reasons["probe.start.semiangle_rad"] = [f"It {reason}."]
    is_told = "optics" in raw
    if calibration.has_descan and "descan" not in (raw.get("optics") or {}):
        raw["optics"] = {**(raw.get("optics") or {}), "descan": True}
        size, error = calibration.descan_turn_px
        reasons["optics.descan"] = [
            f"Patterns wander by {size:.2g} +- {error:.1g} px over the scan as no lens makes them do. Stages with "
            "unknowns: {object: true, probe: true, descan: true} refine it, for two to three times the work."
        ]
    if not raw.get("stages"):
        parts = _set_thick_object(raw, reasons, calibration)
        raw["stages"], reasons["stages"] = refining_stages(calibration, raw, parts), [refinement_sentence(calibration)]
        if _is_thick_potential(raw) and not is_told:
            raw["optics"] = {**(raw.get("optics") or {}), **copy.deepcopy(THICK_OPTICS)}
            reasons["optics.detector_transfer"] = ["Pixels count the light on all of their area: patterns are softer."]
    before_m = ObjectOptions.parse(raw.get("object") or {}, "object").middle_m
    if aberrations and before_m:
        aberrations["C10"] = float(f"{lens.c10_m - before_m:.4g}")
        reasons["probe.start"] += [
            f"The first slice lies {before_m:.4g} m before that: C10 is smaller there.",
            "Parallax takes the sample for weak: of thick crystals C10 is off by a nanometre or two, to either side.",
        ]
    raw["output"] = {**(raw.get("output") or {}), "dir": str(folder)}
    return Recipe.parse(raw), reasons


def _set_thick_object(raw: RawGroup, reasons: Reasons, calibration: Calibration) -> int:
    """Set kind, slices and modes of an object of several slices, where nothing is said of kind and modes.

    Returns:
        Slices that each one which is told is made of.
    """
    obj, probe = raw.get("object") or {}, raw["probe"]
    object_options = ObjectOptions.parse({"kind": Potential.name, **obj}, "object")
    if object_options.slices == 1:
        return 1
    if "kind" not in obj:
        obj = raw["object"] = {**obj, "kind": Potential.name}
        reasons["object.kind"] = [
            "Through several slices, amplitudes that are free would take up what rotation and lens do to the patterns."
        ]
    if "modes" not in probe:
        probe["modes"] = THICK_MODES
        reasons["probe.modes"] = ["For a source of some size, and for atoms that move."]
    if obj["kind"] == TRANSMISSION or object_options.initial != "ones" or object_options.slice_spacing_m is None:
        return 1
    turn = turn_in_slice(
        object_options.slice_spacing_m, calibration.description.wavelength_m, calibration.semiangle_rad
    )
    parts = parts_of_slice(turn)
    if parts > 1:
        raw["object"] = {
            **obj,
            "slices": object_options.slices * parts,
            "slice_spacing_m": object_options.slice_spacing_m / parts,
        }
        reasons["object.slices"] = [
            f"{object_options.slices} of {object_options.slice_spacing_m:.4g} m were told, in each of which the "
            f"beam's edge turns by {turn:.2g} rad against its middle: {parts} slices add up to each. An epoch takes "
            f"{parts} times as long."
        ]
    return parts


def turn_in_slice(spacing_m: float, wavelength_m: float, semiangle_rad: float) -> float:
    """Return the phase in rad by which the beam's edge turns against its middle in a slice, pi dz alpha^2 / lambda.

    Args:
        spacing_m: dz.
        wavelength_m: lambda.
        semiangle_rad: alpha.
    """
    return pi * spacing_m * semiangle_rad**2 / wavelength_m


def parts_of_slice(turn: float) -> int:
    """Return how many slices one is made of, in which the beam's edge turns by so many rad."""
    return max(ceil(turn / MOST_TURN_RAD), 1)


def refining_stages(calibration: Calibration, raw: RawGroup, parts: int = 1) -> list[RawGroup]:
    """Return the default stages, which refine what was measured: the rotation, and the lens where parallax is sure.

    Args:
        calibration: the calibration.
        raw: the recipe without stages.
        parts: slices that each one which was told is made of.
    """
    obj = ObjectOptions.parse(raw.get("object") or {}, "object")
    if not calibration.parallax.is_sure:
        rotation = {"scan_geometry": LENS_MODELS["scan_geometry"]}
        stages = smooth_thin_slices(default_stages(obj, ProbeOptions()), parts)
        return [{**stage, "models": copy.deepcopy(rotation)} for stage in stages]
    stages = smooth_thin_slices(default_stages(obj, ProbeOptions.parse(raw["probe"], "probe")), parts)
    if not _is_thick_potential(raw):
        return stages
    radius = calibration.disc.radius * exp(hypot(*calibration.disc.stretch))
    if not raw.get("optics") and can_begin_coarse(calibration.description.scan.window, radius):
        stages = begin_coarse(stages)
    return move_positions_late(stages)


def _is_thick_potential(raw: RawGroup) -> bool:
    """Return True for an object of several slices without amplitudes of its own, which starts empty."""
    obj = ObjectOptions.parse(raw.get("object") or {}, "object")
    return obj.slices > 1 and obj.kind != TRANSMISSION and obj.initial == "ones"


def smooth_thin_slices(stages: list[RawGroup], parts: int) -> list[RawGroup]:
    """Return stages whose prior along the beam reaches as far in thin slices as it did in whole ones.

    Args:
        stages: for whole slices.
        parts: thin slices that a whole one is made of.
    """
    stages = copy.deepcopy(stages)
    for stage in stages:
        prior = stage.get("constraints", {}).get("depth_smoothness", {})
        if "weight" in prior:
            prior["weight"] = min(float(f"{prior['weight'] * parts**2:.4g}"), MOST_WEIGHT)
    return stages


def can_begin_coarse(window: tuple[int, ...], radius: float) -> bool:
    """Return True if the inner half of the detector holds the bright disc.

    Args:
        window: (h, w) of a pattern, pixels.
        radius: of the disc, pixels.
    """
    return all(n % 4 == 0 and radius < n / 4 for n in window)


def begin_coarse(stages: list[RawGroup]) -> list[RawGroup]:
    """Return stages whose first epochs see the inner half of the detector alone, with all slices the same.

    Low angles hardly tell depths, and slices that are free there gather near the entrance, from where later epochs move
    them slowly, as they move together with the focus.

    Args:
        stages: one, of more than COARSE_EPOCHS epochs.
    """
    (stage,) = stages
    constraints = {**stage.get("constraints", {}), "identical_slices": True}
    first = {**stage, "epochs": COARSE_EPOCHS, "coarsen": 2, "constraints": constraints}
    return copy.deepcopy([first, {**stage, "epochs": stage["epochs"] - COARSE_EPOCHS}])


def move_positions_late(stages: list[RawGroup]) -> list[RawGroup]:
    """Return stages in whose last epochs single positions move, too.

    Args:
        stages: of which the last has more than MOVING_EPOCHS epochs.
    """
    *earlier, last = copy.deepcopy(stages)
    return [*earlier, {**last, "positions": {"start": last["epochs"] - MOVING_EPOCHS}}]


def refinement_sentence(calibration: Calibration) -> str:
    """Return what the stages refine of the calibration."""
    subject = "rotation, defocus and astigmatism are" if calibration.parallax.is_sure else "the rotation is"
    return f"What was measured has errors: {subject} refined."


def calibrated_text(calibration: Calibration, folder: Path) -> str:
    """Return the YAML text of a calibration's recipe.

    Args:
        calibration: the calibration.
        folder: that the recipe's run will write into.
    """
    return recipe_text(*recipe_of(calibration, folder))


def _set_pixel(calibration: Calibration, data: RawGroup, reasons: Reasons) -> None:
    """Set the object pixel where the semi-angle was told."""
    description, disc = calibration.description, calibration.disc
    edge = f"The disc has a radius of {disc.radius:.2f} +- {disc.error:.2f} pixels"
    shape = f"{edge}, is {disc.ellipticity:.1%} longer than wide (at {disc.long_axis_deg:.0f} degrees from x to y)"
    if description.semiangle_rad is None and calibration.lattice is None:
        reasons["data"].append(f"{shape}; its angle follows from the pixel size of the file.")
        return
    stored = tuple(pixel / ratio for pixel, ratio in zip(calibration.pixel_m, description.ratio, strict=True))
    for key in ("distance_m", "detector_pixel_m"):
        data.pop(key, None)
    data["object_pixel_m"] = [float(f"{pixel:.5g}") for pixel in stored]
    reason = f"{shape} and an angle of {calibration.semiangle_rad:.5g} rad."
    if calibration.lattice is not None:
        reason = f"{lattice_sentence(calibration.lattice)} {shape}."
    if description.stored_pixel_m is not None:
        reason += (
            f" The file says pixels of {description.stored_pixel_m[0]:.4g} x {description.stored_pixel_m[1]:.4g} m."
        )
    reasons["data.object_pixel_m"] = [reason]


def lattice_sentence(lattice: KnownLattice) -> str:
    """Return how large the lattice is on the detector."""
    discs = lattice.discs
    return (
        f"{len(discs.places)} Bragg discs lie on a lattice, the innermost {discs.spacing:.2f} +- {discs.error:.2f} "
        f"pixels from the direct beam, of planes of {lattice.spacing_m:.4g} m."
    )


def _set_centre(calibration: Calibration, data: RawGroup, reasons: Reasons) -> None:
    """Set the pixel of the direct beam if it is another one than the file's."""
    source, disc = calibration.description.scan.patterns, calibration.disc
    options = DataOptions.parse(data, "data")
    away = [c - n // 2 for c, n in zip(disc.centre, calibration.description.scan.window, strict=True)]
    if not isinstance(source, PreparedSource) or max(map(abs, away)) <= 0.5:
        return
    stored = source.raw.shape[1:]
    before = options.centre if isinstance(options.centre, tuple) else tuple(n // 2 for n in stored)
    axes = (source.window.y, source.window.x)
    data["centre"] = [
        round(c + axis.offset + shift * axis.pixels.shape[1]) for c, axis, shift in zip(before, axes, away, strict=True)
    ]
    reasons["data.centre"] = [
        f"The disc's middle lies {away[0]:+.2f}, {away[1]:+.2f} pixels (y, x) from where the file has the direct beam."
    ]


def _descan_sentence(calibration: Calibration) -> str:
    descan = calibration.descan
    if not descan.degree:
        return f"the disc stays where it is over the scan, within {descan.scatter_px:.2g} px."
    size, _ = calibration.descan_turn_px
    follows = (
        "which the model follows (optics)"
        if calibration.has_descan
        else f"mostly as a lens does, but for {size:.1g} px"
    )
    return (
        f"the disc wanders by {descan.wander_px:.2g} px over the scan (descan; {descan.scatter_px:.2g} px about a "
        f"polynomial of degree {descan.degree}), {follows}."
    )


def orientation_sentence(calibration: Calibration) -> str:
    """Return what the orientation was taken from, and how sure it is."""
    curl, fit = calibration.curl, calibration.parallax
    by_curl = (
        f"the curl of the centres of mass says {'transposed' if curl.transpose else 'not transposed'}, "
        f"{curl.rotation_deg:.1f} degrees or half a turn more ({curl.curl:.0%} of them is no gradient then, "
        f"{curl.other_curl:.0%} with the other transposition)"
    )
    if calibration.orientation_from == "parallax":
        return f"By parallax, +- {fit.rotation_error_deg:.2g} degrees (statistical); {by_curl}."
    sure = "" if calibration.orientation_from == "curl" else " That is not clear: try ptymesh orient."
    return f"By parallax nothing is sure; {by_curl}.{sure}"


def twin_sentence(calibration: Calibration) -> str:
    """Return the twin, and what tells it apart."""
    twin = calibration.lens.twin
    which = f"rotation_deg {twin.rotation_deg:.2f}" + (
        f" with C10 {twin.c10_m:.4g} in the middle of the sample" if twin.c10_m else ""
    )
    if calibration.settled:
        return f"Its twin, {which}, is told apart by {calibration.settled}."
    return f"NOTHING TELLS IT FROM ITS TWIN, {which}, in which the phase has the other sign; give --c10 or --phase."


def lens_sentence(calibration: Calibration) -> str:
    """Return the aberrations with their errors."""
    fit = calibration.parallax
    if not fit.is_sure:
        return "Bright-field images show no parallax that is sure: the aberrations are left at zero."
    size, angle = calibration.lens.astigmatism
    return (
        f"By parallax of {len(calibration.angles)} virtual bright-field images: C10 (C1) {calibration.lens.c10_m:.4g} "
        f"+- {fit.c10_error_m:.1g} m in the middle of the sample, C12 (A1) {size:.3g} +- {fit.c12_error_m:.1g} m at "
        f"{degrees(angle):.0f} degrees."
    )
