"""A further distance to the detector for each view of a near field: scans at several distances, or one that drifts.

z_j     distance of view j from the sample to the detector beyond that of the scan's geometry (m), both as effective
        distances in a parallel beam
r       phase per metre of free space: 2 pi (k_z - 1 / lambda), or its parabola -pi lambda k^2 (Fresnel)

    psi -> F^H exp(i z_j r) F psi,    d/dz_j = F^H [i r exp(i z_j r) F psi]

behind the last slice, so that the whole way is that of the geometry and this one. Where scans of other distances are
reconstructed together (`scans`), z_j is what each scan says; pixels of the object have to be the same. The band to
which the angular spectrum is cut off is that of the geometry, the first scan's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from ptymesh.errors import BadInput
from ptymesh.geometry import Geometry
from ptymesh.measurement import Measurement
from ptymesh.models.view_defocus import PropagatedViews
from ptymesh.physics.operators import Place, Tables, WaveOperator
from ptymesh.physics.propagate import frequencies, phase_rate
from ptymesh.unknowns import Unknown


class ViewDistance(PropagatedViews, WaveOperator):
    """Further distance z_j of each view to a near-field detector (m), from the scans.

    It is refined if a stage has `unknowns: {further_distance: true}`.
    """

    name: ClassVar[str] = "view_distance"
    at: ClassVar[Place] = "exit"
    unknowns: ClassVar[tuple[Unknown, ...]] = (Unknown("further_distance", ("N",), "view", unit="m", largest=1e3),)

    def check(self, geometry: Geometry) -> None:
        """Check that the geometry is a near field with wavelength and pixel.

        Raises:
            BadInput: it is a far field, whose patterns do not depend on the distance but by the pixel; or something is
                missing.
        """
        if geometry.propagation == "far_field":
            raise BadInput("optics.view_distance is for near fields, and this scan is in the far field; leave it out.")
        geometry.pixel_and_wavelength("optics.view_distance")

    def start_values(self, measurement: Measurement) -> Mapping[str, float | np.ndarray]:
        """Return the further distances (N,) of the scans, if they have other ones than the first.

        Args:
            measurement: the scan.
        """
        starts = {} if measurement.further_distance_m is None else {"further_distance": measurement.further_distance_m}
        return {**starts, **super().start_values(measurement)}

    def sizes(self, geometry: Geometry) -> dict[str, float]:
        """Return the distance, m, that turns the phase by a radian at half the window's band."""
        (y, x), wavelength = geometry.object_pixel_m or (0.0, 0.0), geometry.wavelength_m
        assert wavelength is not None, "checked"
        return {"further_distance": 16 * max(y, x) ** 2 / (math.pi * wavelength)}

    def tables(self, geometry: Geometry) -> Tables:
        """Return r, (h, w) rad/m."""
        assert geometry.object_pixel_m is not None and geometry.wavelength_m is not None, "checked"
        if geometry.propagation == "angular_spectrum":
            return (phase_rate(geometry.shape, geometry.object_pixel_m, geometry.wavelength_m),)
        y, x = frequencies(geometry.shape, geometry.object_pixel_m)
        return (-math.pi * geometry.wavelength_m * (y**2 + x**2),)
