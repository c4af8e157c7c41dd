"""Geometry and beam of each kind of simulation.

h, w        window pixels
d           object pixel (m)
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from ptymesh.errors import BadInput
from ptymesh.geometry import Geometry, Radiation, electron_wavelength_m, far_field, near_field, photon_wavelength_m
from ptymesh.physics.beam import probes
from ptymesh.simulate.options import DEFAULTS, Simulation


def geometry_of(options: Simulation) -> Geometry:
    """Return the geometry of the window, for which the object pixel is as in the options."""
    default = DEFAULTS[options.kind]
    energy = options.energy_eV or default.energy_eV
    pixel = options.pixel_m or default.pixel_m
    shape = (options.window, options.window)
    if options.kind == "near":
        if any(options.surface_deg):
            raise BadInput("surface_deg is for far fields alone; leave it out for kind near.")
        if options.detector_pixel_m is not None:
            raise BadInput(
                f"detector_pixel_m is {options.detector_pixel_m} for a near field, where it follows from pixel_m and "
                f"focus_distance_m; give those."
            )
        wavelength = photon_wavelength_m(energy)
        # diffraction over this distance spreads a point by sqrt(window / 2) pixels, less than the margin of the beam
        effective_m = 0.5 * options.window * pixel**2 / wavelength
        if options.focus_distance_m is None:
            return near_field(shape, wavelength, effective_m, (pixel, pixel))
        focus = options.focus_distance_m
        if effective_m >= focus:
            raise BadInput(
                f"focus_distance_m is {focus} m, and diffraction must act over {effective_m:.3g} m of parallel beam; "
                f"give a focus farther away than that."
            )
        # z2 / Mag = effective distance with Mag = (z1 + z2) / z1
        distance = effective_m * focus / (focus - effective_m)
        magnified = pixel * (focus + distance) / focus
        return near_field(shape, wavelength, distance, (magnified, magnified), focus)
    if options.focus_distance_m is not None:
        raise BadInput(f"focus_distance_m is {options.focus_distance_m} for kind {options.kind}; it is for near only.")
    electrons = options.kind in ("electron", "crystal")
    wavelength = electron_wavelength_m(energy) if electrons else photon_wavelength_m(energy)
    detector = options.detector_pixel_m or default.detector_pixel_m
    distance = pixel * options.window * detector / wavelength
    radiation: Radiation = "electron" if electrons else "photon"
    return far_field(shape, wavelength, distance, (detector, detector), radiation, options.surface_deg)


def sampling_of(geometry: Geometry) -> tuple[tuple[float, float], float]:
    """Return the object pixel (y, x) and the wavelength, in metres."""
    assert geometry.object_pixel_m is not None and geometry.wavelength_m is not None
    return geometry.object_pixel_m, geometry.wavelength_m


def default_spacing_m(geometry: Geometry) -> float:
    """Return the distance over which waves of a third of the largest angle separate by a pixel and a half.

    Slices so far apart can be told from each other.
    """
    (pixel, _), wavelength = sampling_of(geometry)
    return 1.5 * pixel / (wavelength / (6 * pixel))


def designed_probe(options: Simulation, geometry: Geometry, error: float = 0.0) -> Tensor:
    """Return the first probe mode (h, w), sum |P|^2 = 1, where the sample is.

    Args:
        options: of the simulation.
        geometry: of the window.
        error: relative error of the design's defocus; above 0, a beam behind a diffuser has no speckle.
    """
    pixel, wavelength = sampling_of(geometry)
    beam = _beam_of_design(options, geometry, error)
    if not options.defocus_m:
        return beam
    return probes.defocused(beam, pixel, wavelength, (1 + error) * options.defocus_m)


def _beam_of_design(options: Simulation, geometry: Geometry, error: float) -> Tensor:
    """Return the first probe mode where the design has the sample (`designed_probe`)."""
    pixel, wavelength = sampling_of(geometry)
    width_m = DEFAULTS[options.kind].width * options.window * pixel[0]
    if options.kind == "near":
        return _structured_beam(options, smoothed=error > 0)
    if options.crystal is not None:
        design = {"C10": (1 - error) * float(np.ravel(options.crystal.aberrations_m.get("C10", 0.0))[0])}
        return probes.aberrated(geometry.shape, pixel, wavelength, options.crystal.semiangle_rad, design)
    semiangle = 0.35 * wavelength / (2 * pixel[0])
    blur_m = width_m / (2 * semiangle) * (1 - error)
    if options.kind == "xray":
        outer, diameter = wavelength / (2 * semiangle), 150e-6
        return probes.zone_plate(geometry.shape, pixel, wavelength, outer, diameter, diameter / 4, -blur_m)
    aberrations: dict[str, float | list[float]] = {
        "C10": -blur_m,
        "C12": [0.05 * blur_m, 0.4],
        "C30": 0.1 * blur_m / semiangle**2,
    }
    return probes.aberrated(geometry.shape, pixel, wavelength, semiangle, aberrations)


def _structured_beam(options: Simulation, smoothed: bool) -> Tensor:
    """Return a beam behind a diffuser: smooth rim, speckle-like amplitude and phase; without speckle if `smoothed`."""
    n = options.window
    axis = (torch.arange(n, dtype=torch.float64) - n // 2) / (DEFAULTS["near"].width * n / 2)
    envelope = torch.exp(-((axis[:, None] ** 2 + axis[None, :] ** 2) ** 4))
    if smoothed:
        return probes.rescaled(envelope.to(torch.complex128), 1.0)
    rng = np.random.default_rng([options.seed, 9])
    k = torch.fft.fftfreq(n, dtype=torch.float64)
    grain = torch.exp(-((k[:, None] ** 2 + k[None, :] ** 2) * (math.pi * 3.0) ** 2))
    noise = torch.from_numpy(rng.standard_normal((2, n, n)))
    rough = torch.fft.ifft2(torch.fft.fft2(noise) * grain).real
    rough = rough / rough.std()
    wave = envelope * (1 + 0.15 * rough[0].clamp(-3, 3)) * torch.exp(1j * 0.8 * rough[1])
    return probes.rescaled(wave, 1.0)
