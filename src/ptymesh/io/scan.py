"""Scans as readers return them: as their files store them, before anything is done to them.

N       views
M       probe modes
H, W    detector pixels as stored
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from ptymesh.errors import BadInput
from ptymesh.geometry import (
    Geometry,
    Pair,
    Propagation,
    Radiation,
    electron_wavelength_m,
    far_field,
    near_field,
    photon_wavelength_m,
)
from ptymesh.io.options import DataOptions, Unit
from ptymesh.io.source import SlabSource
from ptymesh.measurement import ConvergentBeam


@dataclass(frozen=True)
class Optics:
    """ConvergentBeam and detector as a file describes them; None: unknown. Lengths are in metres, pixels are (y, x)."""

    propagation: Propagation = "far_field"
    radiation: Radiation | None = None
    wavelength_m: float | None = None
    energy_eV: float | None = None
    distance_m: float | None = None
    focus_distance_m: float | None = None
    detector_pixel_m: Pair | None = None
    object_pixel_m: Pair | None = None
    surface_deg: Pair = (0.0, 0.0)

    def overridden(self, options: DataOptions) -> Optics:
        """Return the optics with the recipe's values, without an object pixel that depends on them."""
        names = ("propagation", "radiation", "distance_m", "focus_distance_m", "detector_pixel_m", "surface_deg")
        overrides = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
        if options.energy_eV is not None or options.wavelength_m is not None:
            overrides |= {"energy_eV": options.energy_eV, "wavelength_m": options.wavelength_m}
        changed = replace(self, **overrides)
        if options.object_pixel_m is not None:
            return replace(changed, object_pixel_m=options.object_pixel_m)
        pixel_terms = (changed.energy_eV or changed.wavelength_m, changed.distance_m, changed.detector_pixel_m)
        if any(changed.surface_deg) and not all(pixel_terms):
            raise BadInput(
                "data.surface_deg needs the energy, data.distance_m and data.detector_pixel_m, from which pixels on "
                "the surface follow; give these, or data.object_pixel_m as on the surface."
            )
        return (
            replace(changed, object_pixel_m=None) if overrides.keys() - {"radiation"} and all(pixel_terms) else changed
        )

    def geometry(self, shape: tuple[int, int]) -> Geometry:
        """Return the geometry of a window of `shape` pixels; raise BadInput if a near field lacks something."""
        wavelength, distance, pixel = self._wavelength_m(), self.distance_m, self.detector_pixel_m
        obj = self.object_pixel_m
        if obj is None and wavelength is not None and distance is not None and pixel is not None:
            if self.propagation == "far_field":
                obj = far_field(shape, wavelength, distance, pixel, surface_deg=self.surface_deg).object_pixel_m
            else:
                obj = near_field(shape, wavelength, distance, pixel, self.focus_distance_m).object_pixel_m
        beam = self.propagation, self.radiation, wavelength, distance, self.focus_distance_m
        return Geometry(shape, *beam, pixel, obj, self.surface_deg)

    def _wavelength_m(self) -> float | None:
        if self.wavelength_m is not None or self.energy_eV is None:
            return self.wavelength_m
        if self.radiation is None:
            raise BadInput(
                f"The energy is {self.energy_eV:g} eV, but whether of photons or of electrons is not said; set "
                f"data.radiation to photon or electron."
            )
        return (photon_wavelength_m if self.radiation == "photon" else electron_wavelength_m)(self.energy_eV)


@dataclass(frozen=True)
class RawScan:
    """A data set as stored; None: the file has no such array.

    Attributes:
        patterns: source of (N, H, W) detector values in the order of the file.
        optics: beam and detector as the file describes them.
        centred: whether DC of far-field patterns, mask, dark ... is at (H//2, W//2), else at the corner.
        positions: (N, 2) y x in `unit`, of the probe on the object.
        unit: of the positions.
        unit_doubt: a sentence that asks for the unit if the file says one that cannot be used; else empty.
        raster: (rows, columns) if the patterns are stored as 4-D data.
        mask: (H, W) bool, True where good.
        view_mask: (N, H, W) bool, a mask of each view.
        dark: (H, W) detector units.
        background: (H, W) counts.
        efficiency: (H, W) share of the light that each pixel counts, in any unit.
        intensity: (N,) incident intensity, in any unit.
        probe: (M, H, W) complex, optical axis at (H//2, W//2).
        beam: aperture and focus of the lens before the sample.
        negative_is_missing: whether values below zero mark missing pixels (written so by ptymesh).
        name: as in Measurement.
        notes: as in Measurement.
    """

    patterns: SlabSource
    optics: Optics
    centred: bool = True
    positions: np.ndarray | None = None
    unit: Unit = "m"
    unit_doubt: str = ""
    raster: tuple[int, int] | None = None
    mask: np.ndarray | None = None
    view_mask: SlabSource | None = None
    dark: np.ndarray | None = None
    background: np.ndarray | None = None
    efficiency: np.ndarray | None = None
    intensity: np.ndarray | None = None
    probe: np.ndarray | None = None
    beam: ConvergentBeam | None = None
    negative_is_missing: bool = False
    name: str = "scan"
    notes: tuple[str, ...] = field(default=())
