"""Units as files write them, and what is asked where one is missing that could change a value a thousandfold."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from ptymesh import constants
from ptymesh.errors import BadInput
from ptymesh.geometry import Pair
from ptymesh.measurement import ConvergentBeam

#: Joules, metres, inverse metres and radians of a unit, in lower case.
ENERGY_J = {"j": 1.0, "ev": constants.e, "kev": 1e3 * constants.e, "mev": 1e6 * constants.e}
LENGTH_M = {"m": 1.0, "mm": 1e-3, "um": 1e-6, "µm": 1e-6, "micron": 1e-6, "nm": 1e-9, "pm": 1e-12}
LENGTH_M |= {"meter": 1.0, "metre": 1.0, "meters": 1.0, "metres": 1.0, "angstrom": 1e-10, "a": 1e-10, "cm": 1e-2}
LENGTH_M |= {"microns": 1e-6, "angstroms": 1e-10, "å": 1e-10, "n_m": 1e-9}
ANGLE_RAD = {"rad": 1.0, "mrad": 1e-3, "urad": 1e-6, "deg": math.pi / 180}
#: Electrons of an instrument, and photons of a beamline, have energies between these.
ELECTRON_EV = (1e4, 2e6)
#: No lens has a larger aperture.
LARGEST_SEMIANGLE_MRAD = 500.0
PHOTON_EV = (1.0, 1e7)


def normalised(unit: str) -> str:
    """Return a unit in lower case, without brackets and blanks, with one kind of µ."""
    return unit.strip().strip("[]").strip().lower().replace("μ", "µ").replace("\N{ANGSTROM SIGN}".lower(), "å")


def length_m(unit: str) -> float | None:
    """Return the metres of one of this unit; None for a unit of anything else."""
    return LENGTH_M.get(normalised(unit))


def per_length(unit: str) -> float | None:
    """Return the inverse metres of one of this unit (`1/nm`, `A^-1`, `n_m^-1`); None for a unit of anything else."""
    text = normalised(unit).replace(" ", "").replace("⁻¹", "^-1").replace("**", "^")
    match = re.fullmatch(r"1/\(?([^()]+)\)?", text) or re.fullmatch(r"([^^()]+?)\^?\(?-1\)?", text)
    if match is None:
        return None
    metres = LENGTH_M.get(match[1])
    return None if metres is None else 1 / metres


def angle_rad(unit: str) -> float | None:
    """Return the radians of one of this unit; None for a unit of anything else."""
    return ANGLE_RAD.get(normalised(unit))


def object_pixel_m(
    window: tuple[int, int], scales: Sequence[tuple[float, str]], wavelength_m: float | None
) -> Pair | None:
    """Return the object pixel (y, x) in metres that the calibration of a far-field detector makes.

    Args:
        window: (h, w) detector pixels.
        scales: (step, unit) of the detector's pixel along y and x, in an inverse length or an angle.
        wavelength_m: for angles; None if unknown.

    Returns:
        None where an axis is not calibrated, or in an angle while the wavelength is unknown.
    """
    pixel_m = []
    for side, (step, unit) in zip(window, scales, strict=True):
        reciprocal, angle = per_length(unit), angle_rad(unit)
        if step > 0 and reciprocal is not None:
            pixel_m.append(1 / (side * step * reciprocal))
        elif step > 0 and angle is not None and wavelength_m is not None:
            pixel_m.append(wavelength_m / (side * step * angle))
    return (pixel_m[0], pixel_m[1]) if len(pixel_m) == 2 else None


def uncalibrated_note(step: float, unit: str) -> str:
    """Return what is said of a detector's pixel (step, unit) that does not give the object pixel."""
    energy = " and the energy (data.energy_eV)" if step > 0 and angle_rad(unit) is not None else ""
    return (
        f"The file's detector pixel is {step:g} {unit or 'without a unit'}, which does not give the object pixel"
        f"{energy}: set data.object_pixel_m."
    )


def beam_of(semiangle_mrad: float | None) -> ConvergentBeam | None:
    """Return the beam of a lens whose half-angle a file says in mrad; None where it says none, or a parallel beam."""
    if semiangle_mrad is None or not 0 < semiangle_mrad <= LARGEST_SEMIANGLE_MRAD:
        return None
    return ConvergentBeam(1e-3 * semiangle_mrad)


def check_energy(energy_eV: float, bounds: tuple[float, float], subject: str, stated: str) -> float:
    """Return the energy.

    Args:
        energy_eV: in electronvolts.
        bounds: between which it must lie.
        subject: names the value, for the message.
        stated: the value and its unit as the file has them.

    Raises:
        BadInput: It lies outside the bounds, as an energy in another unit would.
    """
    if not bounds[0] <= energy_eV <= bounds[1]:  # True on NaN too
        raise BadInput(
            f"{subject} is {stated}, which is no energy of such a beam ({energy_eV:.4g} eV); set data.energy_eV, in "
            "electronvolts."
        )
    return energy_eV
