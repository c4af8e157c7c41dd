"""Experiments drawn at random, of which kinds of scans are made, and what a data set and its recipe are.

Words and axes are those of fog_scans.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import fog_scans as scans
import numpy as np
from fog_scans import Rng, Scan, Setup
from scipy import ndimage

WINDOW, VIEWS = 64, 120
#: What is known of a beam's defocus: so many times the true one.
GUESS = 1.06
XRAY_BEAMS = ("disc", "lens", "zone_plate", "gaussian")
XRAY_SAMPLES = ("smooth", "edges", "spokes")


@dataclass(frozen=True)
class Case:
    """A data set and what its recipe says.

    Attributes:
        scan: the data set.
        recipe: keys of the recipe beside `data` of the file: data, probe, positions, object; `stage` goes into all
            stages.
        positions_m: (N, 2) that the file says, where these are not those of its pixels.
    """

    scan: Scan
    recipe: dict[str, Any] = field(default_factory=dict)
    positions_m: np.ndarray | None = None


def draw_beam(kind: str, rng: Rng, n: int = WINDOW) -> Callable[[float], np.ndarray]:
    """Return a function of a factor: the beam (2n, 2n) with so many times its defocus."""
    if kind == "disc":
        radius, distance = rng.uniform(8, 10), rng.uniform(20, 60)
        return lambda factor: scans.disc_beam(n, radius, factor * distance)
    if kind == "gaussian":
        sigma, curvature = rng.uniform(4, 5), rng.choice([-1, 1]) * rng.uniform(0.008, 0.014)
        return lambda factor: scans.gaussian_beam(n, sigma, factor * curvature)
    radius, spread = rng.uniform(12, 16), rng.choice([-1, 1]) * rng.uniform(7, 11)
    if kind == "electron":
        spherical = rng.uniform(-1, 1)
        return lambda factor: scans.lens_beam(n, radius, factor * spread, spherical=spherical)
    stop = rng.uniform(0.25, 0.4) if kind == "zone_plate" else 0.0
    return lambda factor: scans.lens_beam(n, radius, factor * spread, stop)


def xray(
    rng: Rng,
    beam: str | None = None,
    sample: str | None = None,
    path: str | None = None,
    dose: tuple[float, float] = (4.3, 5.7),
    step: float = 4.5,
    phase: float | None = None,
    powers: tuple[float, ...] = (1.0,),
    columns: int | None = None,
) -> tuple[Setup, Callable[[float], np.ndarray]]:
    """Draw a far-field X-ray experiment, and return it with its beam as a function of defocus.

    Args:
        rng: draws what is not asked for.
        beam, sample, path: kinds.
        dose: powers of ten of the counts of a view, lowest and highest.
        step: between neighbours.
        phase: rad of the sample where it is thickest.
        powers: of the modes.
        columns: of rasters.
    """
    made = draw_beam(beam or str(rng.choice(XRAY_BEAMS)), rng)
    points = scans.path(path or str(rng.choice(["spiral", "jitter", "random"])), VIEWS, step, rng, columns)
    shape, positions = scans.canvas(points, WINDOW)
    phase = rng.uniform(0.6, 1.6) if phase is None else phase
    absorption = 0.02 if phase < 0.3 else rng.uniform(0.1, 0.4)
    transmitted = scans.transmission(sample or str(rng.choice(XRAY_SAMPLES)), shape, rng, phase, absorption)
    setup = Setup(
        optics=scans.far_xray(WINDOW),
        modes=scans.partial_modes(made(1.0), powers),
        guess=scans.halve(made(GUESS))[None],
        slices=transmitted[None],
        positions=positions,
        dose=10 ** rng.uniform(*dose),
    )
    return setup, made


def electron(
    rng: Rng,
    sample: str | None = None,
    slices: int = 1,
    gap: float = 0.0,
    dose: tuple[float, float] = (4.0, 5.3),
    path: str | None = None,
) -> tuple[Setup, Callable[[float], np.ndarray]]:
    """Draw an electron experiment, and return it with its beam as a function of defocus.

    Args:
        rng: draws what is not asked for.
        sample: its kind.
        slices: that it has, each a sample of its own.
        gap: lambda dz / dx^2 between them.
        dose: powers of ten of the counts of a view, lowest and highest.
        path: its kind.
    """
    made = draw_beam("electron", rng)
    astigmatism = rng.uniform(0.3, 1.0)
    points = scans.path(path or str(rng.choice(["jitter", "serpentine"])), VIEWS, 3.5, rng)
    shape, positions = scans.canvas(points, WINDOW)
    kind = sample or str(rng.choice(["smooth", "crystal"]))
    phase = rng.uniform(0.5, 0.9) if slices > 1 else rng.uniform(0.6, 1.2)
    stack = [scans.transmission(kind, shape, rng, phase, 0.0) for _ in range(slices)]
    beam = scans.fft.fft2(made(1.0))
    y, x = scans.fft.fftfreq(2 * WINDOW)[:, None] * 2 * WINDOW, scans.fft.fftfreq(2 * WINDOW)[None] * 2 * WINDOW
    beam = scans.fft.ifft2(beam * np.exp(-1j * np.pi * astigmatism * (y**2 - x**2) / (WINDOW * 14)))
    setup = Setup(
        optics=scans.electrons(),
        modes=beam[None],
        guess=scans.halve(made(GUESS))[None],
        slices=np.stack(stack),
        positions=positions,
        dose=10 ** rng.uniform(*dose),
        gap=gap,
    )
    return setup, made


def slices_of(setup: Setup) -> dict[str, Any]:
    """Return the recipe's `object` for a thick sample."""
    spacing = setup.gap * setup.optics.object_pixel_m**2 / setup.optics.wavelength_m
    return {"object": {"slices": len(setup.slices), "slice_spacing_m": float(spacing)}}


def near(rng: Rng, magnification: float = 1.0, dose: tuple[float, float] = (5.0, 5.7)) -> Setup:
    """Draw a near-field X-ray experiment, parallel or behind a focus.

    Args:
        rng: draws.
        magnification: of the beam from sample to detector.
        dose: powers of ten of the counts of a view, lowest and highest.
    """
    beam = scans.diffuse_beam(WINDOW, rng.uniform(17, 19), rng.uniform(2.5, 3.5), rng)
    distance = rng.uniform(25, 50)
    points = scans.path(str(rng.choice(["jitter", "spiral"])), 100, 4.5, rng)
    shape, positions = scans.canvas(points, WINDOW)
    sample = scans.transmission(
        str(rng.choice(XRAY_SAMPLES)), shape, rng, rng.uniform(0.6, 1.2), rng.uniform(0.05, 0.2)
    )
    # a detector in the near field sees all light, also what varies faster than its pixels: no model has that
    sample = ndimage.gaussian_filter(sample, 1.8, mode="nearest")
    return Setup(
        optics=scans.near_xray(distance, magnification),
        modes=beam[None],
        guess=scans.halve(np.abs(beam) * np.exp(0.8j * np.angle(beam)))[None],  # as of an earlier scan
        slices=sample[None],
        positions=positions,
        dose=10 ** rng.uniform(*dose),
        distance=distance,
    )


def case(setup: Setup, patterns: np.ndarray, recipe: dict[str, Any] | None = None, **changes: Any) -> Case:
    """Return these patterns with all else as it truly is, but for what `changes` says of the file (of Scan)."""
    scan = Scan(patterns, setup.positions, setup.optics, setup.guess)
    return Case(replace(scan, **changes), recipe or {})
