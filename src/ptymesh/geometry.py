"""Wavelengths, distances and pixel sizes, for X-rays and electrons.

lambda_m    wavelength
z1_m, z2_m  focus to sample, sample to detector
p, d        detector pixel, object pixel (m)

Far field (Fraunhofer):     d = lambda z2 / (n p), n the window's pixels on that axis
Near field:                 d = p / Mag, effective distance z2 / Mag, Mag = (z1 + z2) / z1 (Fresnel scaling theorem);
                            without a focus Mag = 1
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from ptymesh import constants
from ptymesh.errors import BadInput

Propagation = Literal["far_field", "angular_spectrum", "fresnel"]
Radiation = Literal["photon", "electron"]
Pair = tuple[float, float]
#: Least and largest lengths (m) of pixels, distances and wavelengths that are accepted.
LENGTHS_M = (1e-15, 1e6)
#: Largest angle by which a surface may lean from the beam, in degrees.
STEEPEST_DEG = 85.0


def photon_wavelength_m(energy_eV: float) -> float:
    """Return the vacuum wavelength hc/E of a photon.

    Raises:
        BadInput: `energy_eV` is not positive.
    """
    _positive("photon energy", energy_eV, "eV")
    return constants.h * constants.c / (energy_eV * constants.e)


def electron_interaction(wavelength_m: float) -> float:
    """Return sigma = 2 pi m e lambda / h^2 of electrons, with their relativistic mass m, in rad / (V m).

    Source: Kirkland, Advanced Computing in Electron Microscopy, eq. 5.6.
    """
    momentum = constants.h / wavelength_m
    mass = math.sqrt(constants.m_e**2 + (momentum / constants.c) ** 2)
    return 2 * math.pi * mass * constants.e * wavelength_m / constants.h**2


def electron_wavelength_m(energy_eV: float) -> float:
    """Return the relativistic de Broglie wavelength h c / sqrt(E (E + 2 m c^2)).

    Raises:
        BadInput: `energy_eV` is not positive.
    """
    _positive("electron energy", energy_eV, "eV")
    energy, rest = energy_eV * constants.e, constants.m_e * constants.c**2
    return constants.h * constants.c / math.sqrt(energy * (energy + 2 * rest))


def _one_line(value: object) -> str:
    return " ".join(str(value).split())[:80]


def _sides(shape: object) -> list[object]:
    """Return those sides of a window that are whole numbers above zero."""
    sides = shape if isinstance(shape, tuple | list) else ()
    return [n for n in sides if isinstance(n, int | np.integer) and not isinstance(n, bool) and n > 0]


def _positive(name: str, value: float | None, unit: str) -> None:
    """Raise BadInput if a value is not a positive number, or no sensible length in metres."""
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value <= 0:  # type: ignore[arg-type, operator]
        raise BadInput(f"The {name} is {_one_line(value)} {unit}; give a positive number.")
    if unit == "m" and not LENGTHS_M[0] < value < LENGTHS_M[1]:  # type: ignore[operator]
        least, most = LENGTHS_M
        raise BadInput(f"The {name} is {value:g} m, which cannot be; give one between {least:g} and {most:g} m.")


@dataclass(frozen=True)
class Geometry:
    """Mapping of the window onto the detector.

    Attributes:
        shape: window (h, w) in pixels.
        propagation: between sample and detector.
        radiation: photon, electron, or None where the file does not say (pixel units).
        wavelength_m: None in pixel units (far field only).
        distance_m: sample to detector (z2); None where only the object pixel is known.
        focus_distance_m: focus to sample (z1) in a diverging near-field beam; None for a parallel one.
        detector_pixel_m: (y, x) after binning.
        object_pixel_m: (y, x); None in pixel units. Along a surface that leans, on the surface.
        surface_deg: (y, x) angle by which the surface's normal leans from the beam that comes from it, along one of
            the detector's axes; zeros where the beam goes through the sample at right angles.
    """

    shape: tuple[int, int]
    propagation: Propagation = "far_field"
    radiation: Radiation | None = None
    wavelength_m: float | None = None
    distance_m: float | None = None
    focus_distance_m: float | None = None
    detector_pixel_m: Pair | None = None
    object_pixel_m: Pair | None = None
    surface_deg: Pair = (0.0, 0.0)

    def __post_init__(self) -> None:
        if len(_sides(self.shape)) != 2:
            raise BadInput(f"The window's shape is {_one_line(self.shape)}; give two whole numbers of pixels, (h, w).")
        for name, word, words in (
            ("propagation", self.propagation, get_args(Propagation)),
            ("radiation", self.radiation, (*get_args(Radiation), None)),
        ):
            if not isinstance(word, str | None) or word not in words:
                raise BadInput(f"The {name} is {_one_line(word)}; give {', '.join(map(str, words))}.")
        for name, pair in (("detector pixel", self.detector_pixel_m), ("object pixel", self.object_pixel_m)):
            if pair is not None and not (isinstance(pair, tuple) and len(pair) == 2):
                raise BadInput(f"The {name} is {_one_line(pair)}; give a pair of metres, (y, x).")
        for name, value in (("wavelength", self.wavelength_m), ("sample-detector distance", self.distance_m)):
            if value is not None:
                _positive(name, value, "m")
        for name, pair in (("detector pixel", self.detector_pixel_m), ("object pixel", self.object_pixel_m)):
            for value in pair or ():
                _positive(name, value, "m")
        if not all(abs(angle) <= STEEPEST_DEG for angle in self.surface_deg) or all(self.surface_deg):
            raise BadInput(
                f"The surface leans by {_one_line(self.surface_deg)} degrees; give an angle (y, x) along one axis, and "
                f"0 along the other, of at most {STEEPEST_DEG:g} degrees."
            )
        if any(self.surface_deg) and self.propagation != "far_field":
            raise BadInput("The surface leans from the beam, which is for far fields alone; leave its angle out.")
        if self.propagation != "far_field":
            for name, needed in (("wavelength", self.wavelength_m), ("sample-detector distance", self.distance_m)):
                _positive(f"near-field {name}", needed, "m")
            if self.object_pixel_m is None:
                raise BadInput("A near-field data set needs its detector pixel size; give it in metres.")

    @property
    def magnification(self) -> float:
        """Magnification (z1 + z2) / z1; 1 without a focus."""
        if self.focus_distance_m is None or self.distance_m is None or self.propagation == "far_field":
            return 1.0
        return (self.focus_distance_m + self.distance_m) / self.focus_distance_m

    @property
    def effective_distance_m(self) -> float:
        """Distance of the equivalent parallel-beam propagation (near field). Raises BadInput where z2 is unknown."""
        if self.distance_m is None:
            raise BadInput("The sample-detector distance is unknown; give it in metres.")
        return self.distance_m / self.magnification

    @property
    def energy_eV(self) -> float | None:
        """Photon or kinetic electron energy; None where the wavelength or the radiation is unknown."""
        if self.wavelength_m is None or self.radiation is None:
            return None
        pc = constants.h * constants.c / self.wavelength_m / constants.e
        if self.radiation == "photon":
            return pc
        rest = constants.m_e * constants.c**2 / constants.e
        return math.sqrt(pc**2 + rest**2) - rest

    def pixel_and_wavelength(self, needed_by: str) -> tuple[Pair, float]:
        """Return the object pixel (y, x) and the wavelength, in metres.

        Args:
            needed_by: what cannot do without them, which begins the sentence where one is unknown.

        Raises:
            BadInput: one is.
        """
        if self.object_pixel_m is None or self.wavelength_m is None:
            raise BadInput(
                f"{needed_by} needs the wavelength and the object pixel, which this data set does not have; give "
                "data.energy_eV (or wavelength_m) and the pixel sizes."
            )
        return self.object_pixel_m, self.wavelength_m

    def pixel_ratio(self, shape: tuple[int, int], binning: float = 1) -> Pair:
        """Return new over old object pixel (y, x) for a window of `shape` pixels, each `binning` old ones wide."""
        if self.propagation != "far_field":
            return float(binning), float(binning)
        return self.shape[0] / (shape[0] * binning), self.shape[1] / (shape[1] * binning)

    def rewindowed(self, shape: tuple[int, int], binning: float = 1) -> Geometry:
        """Return this geometry after cropping, padding and binning the detector to `shape` pixels."""
        ratio = self.pixel_ratio(shape, binning)
        detector, obj = self.detector_pixel_m, self.object_pixel_m
        return replace(
            self,
            shape=shape,
            detector_pixel_m=None if detector is None else (detector[0] * binning, detector[1] * binning),
            object_pixel_m=None if obj is None else (obj[0] * ratio[0], obj[1] * ratio[1]),
        )

    def binned(self, factor: float) -> Geometry:
        """Return this geometry with pixels of the detector so many times as wide; below 1, each is divided."""
        if factor == 1:
            return self
        h, w = (round(n / factor) for n in self.shape)
        return self.rewindowed((h, w), factor)

    def flipped(self, y: bool, x: bool) -> Geometry:
        """Return this geometry with the detector's axes reversed where y or x is True."""
        lean_y, lean_x = self.surface_deg
        return replace(self, surface_deg=(-lean_y if y else lean_y, -lean_x if x else lean_x))

    def transposed(self) -> Geometry:
        """Return this geometry with the detector's axes exchanged."""
        return replace(
            self,
            shape=self.shape[::-1],
            detector_pixel_m=None if self.detector_pixel_m is None else self.detector_pixel_m[::-1],
            object_pixel_m=None if self.object_pixel_m is None else self.object_pixel_m[::-1],
            surface_deg=self.surface_deg[::-1],
        )


def far_field(
    shape: tuple[int, int],
    wavelength_m: float,
    distance_m: float,
    detector_pixel_m: Pair,
    radiation: Radiation = "photon",
    surface_deg: Pair = (0.0, 0.0),
) -> Geometry:
    """Return a Fraunhofer geometry, whose object pixel follows from the window.

    Args:
        shape: window (h, w) in pixels.
        wavelength_m: wavelength.
        distance_m: sample to detector.
        detector_pixel_m: (y, x).
        radiation: photon or electron.
        surface_deg: (y, x) by which the surface leans; a pixel of the detector is shorter by the cosine as it sees it.

    Raises:
        BadInput: a length that is not positive.
    """
    _positive("wavelength", wavelength_m, "m")
    _positive("sample-detector distance", distance_m, "m")
    for pixel in detector_pixel_m:
        _positive("detector pixel", pixel, "m")
    projected = (p * math.cos(math.radians(angle)) for p, angle in zip(detector_pixel_m, surface_deg, strict=True))
    y, x = (wavelength_m * distance_m / (n * p) for n, p in zip(shape, projected, strict=True))
    pixels = detector_pixel_m, (y, x)
    return Geometry(shape, "far_field", radiation, wavelength_m, distance_m, None, *pixels, surface_deg)


def near_field(
    shape: tuple[int, int],
    wavelength_m: float,
    distance_m: float,
    detector_pixel_m: Pair,
    focus_distance_m: float | None = None,
    propagation: Propagation = "angular_spectrum",
    radiation: Radiation = "photon",
) -> Geometry:
    """Return a near-field geometry, with Fresnel scaling if the beam diverges from a focus.

    Args:
        shape: window (h, w) in pixels.
        wavelength_m: wavelength.
        distance_m: sample to detector.
        detector_pixel_m: (y, x).
        focus_distance_m: focus to sample, upstream; None for a parallel beam.
        propagation: angular_spectrum or fresnel.
        radiation: photon or electron.

    Raises:
        BadInput: a length that is not positive.
    """
    _positive("sample-detector distance", distance_m, "m")
    if focus_distance_m is not None:
        _positive("focus-sample distance", focus_distance_m, "m")
    mag = 1.0 if focus_distance_m is None else (focus_distance_m + distance_m) / focus_distance_m
    pixel = (detector_pixel_m[0] / mag, detector_pixel_m[1] / mag)
    return Geometry(shape, propagation, radiation, wavelength_m, distance_m, focus_distance_m, detector_pixel_m, pixel)
