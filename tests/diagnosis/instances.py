"""Instances of causes, in plain numpy, at two severities; and healthy results of all kinds.

Each maker takes a random number generator and a severity, 0 (mild) or 1 (severe), and returns the measurement as a user
would have it, and what the reconstruction is asked for beyond the ordinary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import simulator as sim
from scipy import ndimage

from ptymesh.geometry import far_field
from ptymesh.io.results import Result
from ptymesh.measurement import NO_CHECKS, Measurement
from ptymesh.recipe.python_arguments import stages_of
from ptymesh.run.reconstruction import Reconstruction

Made = tuple[Measurement, dict[str, Any]]
Maker = Callable[[np.random.Generator, int], Made]


def solve(
    measured: Measurement,
    seed: int,
    epochs: int = 40,
    modes: int = 1,
    hold_out: float = 0.0,
    object: Any = None,
    **stage: Any,
) -> Result:
    """Return the result of rPIE in batches of 16."""
    recon = Reconstruction(measured, probe_modes=modes, seed=seed, object=object)
    recon.stages = stages_of({"engine": "rpie", "epochs": epochs, "batch": 16} | stage)
    recon.loop(hold_out=hold_out).run()
    return recon.result()


def transposed(rng: np.random.Generator, severity: int) -> Made:
    """The detector's axes exchanged, or one of them reversed."""
    scan = sim.make(rng)
    patterns = scan.counts()
    turned = np.roll(patterns[:, ::-1], 1, axis=1) if severity else patterns.transpose(0, 2, 1)
    return scan.measurement(turned), {}


def defocus_sign(rng: np.random.Generator, severity: int) -> Made:
    """The probe in the file has the defocus of the true one with the other sign."""
    spread = (7.0, 9.0)[severity]
    scan = sim.make(rng, spread=spread)
    n = scan.window[0]
    other = sim.lens(scan.window, 0.2 * n, -spread, 0.06 * n, 0.5)
    return scan.measurement(probe=other[None]), {}


def lag(rng: np.random.Generator, severity: int) -> Made:
    """Positions lag the patterns by 1 or 3 frames."""
    scan = sim.make(rng, path="raster")
    return scan.measurement(positions=np.roll(scan.positions, (1, 3)[severity], axis=0)), {}


def serpentine(rng: np.random.Generator, severity: int) -> Made:
    """Every second row was scanned backwards, and is not told to be."""
    scan = sim.make(rng, path="serpentine", views=(64, 100)[severity])
    straight = sim.raster(len(scan.positions), 1.0)
    step = np.ptp(scan.positions[:, 0]) / np.ptp(straight[:, 0])
    straight = step * straight
    return scan.measurement(positions=straight - straight.min(axis=0) + scan.positions.min(axis=0)), {}


def shifted(intensity: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Return patterns (h, w), DC at the corner, moved over the detector by (y, x) pixels, also fractions."""
    moved = ndimage.shift(np.fft.fftshift(intensity), by, order=1, mode="constant")
    return np.fft.ifftshift(moved)


def descan(rng: np.random.Generator, severity: int) -> Made:
    """Patterns wander over the detector by 2 or 4 px along the scan, at right angles to it, as no phase makes them."""
    scan = sim.make(rng, path="jitter")
    p = scan.positions - scan.positions.mean(axis=0)
    p = p / np.ptp(p, axis=0)
    by = (2.0, 4.0)[severity] * np.stack([p[:, 1], -p[:, 0]], axis=1)
    return scan.measurement(
        scan.counts(np.stack([shifted(i, d) for i, d in zip(scan.intensities(), by, strict=True)]))
    ), {}


def few_slices(rng: np.random.Generator, severity: int) -> Made:
    """A thick sample of three slices, fitted by one."""
    scan = sim.make(rng, slices=3, spacing=(8.0, 20.0)[severity])
    return scan.measurement(), {}


def dead_region(rng: np.random.Generator, severity: int) -> Made:
    """Two dead rows and columns, or a beam stop, without a mask."""
    scan = sim.make(rng)
    patterns = np.fft.fftshift(scan.counts(), axes=(1, 2))
    if severity:
        patterns[:, 20:29, 22:31] = 0
    else:
        patterns[:, 27:29] = 0
        patterns[:, :, 20:22] = 0
    return scan.measurement(np.fft.ifftshift(patterns, axes=(1, 2))), {}


def bad_frames(rng: np.random.Generator, severity: int) -> Made:
    """Three blank frames; or five, and three that are a hundred times too bright."""
    scan = sim.make(rng)
    patterns = scan.counts()
    chosen = rng.permutation(len(patterns))[:8]
    patterns[chosen[: 5 if severity else 3]] = 0
    if severity:
        patterns[chosen[5:]] *= 100
    return scan.measurement(patterns), {}


def over_subtracted(rng: np.random.Generator, severity: int) -> Made:
    """A dark pattern is subtracted a second time: half of the mean count, or three times as much."""
    scan = sim.make(rng)
    counts = scan.counts()
    dark = (0.5, 3.0)[severity] * counts.mean()
    return scan.measurement(np.where(counts > dark, counts - np.floor(dark), 0).astype(counts.dtype)), {}


def astray(rng: np.random.Generator, severity: int) -> Made:
    """One view, or three, lie a dozen pixels from where their positions say."""
    scan = sim.make(rng)
    positions = scan.positions.copy()
    chosen = rng.permutation(len(positions))[: (1, 3)[severity]]
    middle = positions.mean(axis=0)
    positions[chosen] += 12 * np.where(positions[chosen] > middle, -1, 1)
    return scan.measurement(positions=positions), {}


def near_field(rng: np.random.Generator, severity: int) -> Made:
    """Near-field images taken for far-field patterns, without or with a background of the detector."""
    scan = sim.make(rng, kind="near", photons=(1e6, 1e7)[severity])
    images = scan.counts()
    patterns = np.fft.ifftshift(images, axes=(1, 2))
    geometry = far_field(scan.window, sim.WAVELENGTH_M, sim.DISTANCE_M, (sim.DETECTOR_PIXEL_M,) * 2)
    return replace(scan, near=0.0).measurement(patterns, geometry=geometry, probe=None), {}


def amplitudes(rng: np.random.Generator, severity: int) -> Made:
    """Square roots of counts in the file."""
    scan = sim.make(rng, photons=(1e5, 1e6)[severity])
    return scan.measurement(np.sqrt(scan.counts()).astype(np.float32)), {}


def two_beams(rng: np.random.Generator, severity: int) -> Made:
    """From the middle of the scan on, the beam is another: out of focus by a third more, or the other way."""
    scan = sim.make(rng)
    n = scan.window[0]
    other = sim.lens(scan.window, 0.2 * n, (1.4, -1.0)[severity] * n / 6, 0.06 * n, (0.5, 1.5)[severity])
    first, second = scan.intensities(), scan.intensities(probes=other[None])
    half = len(first) // 2
    return scan.measurement(scan.counts(np.concatenate([first[:half], 0.7 * second[half:]]))), {}


def refocused(rng: np.random.Generator, severity: int) -> Made:
    """From the middle of the scan on the beam is out of focus by a third more, or twice as much, and nothing else."""
    scan = sim.make(rng)
    n = scan.window[0]
    other = sim.lens(scan.window, 0.2 * n, (1.33, 2.0)[severity] * n / 6, 0.06 * n, 0.5)
    first, second = scan.intensities(), scan.intensities(probes=other[None])
    half = len(first) // 2
    return scan.measurement(scan.counts(np.concatenate([first[:half], second[half:]]))), {}


def flicker(rng: np.random.Generator, severity: int) -> Made:
    """The beam's brightness varies by a normal factor, now and then by much."""
    scan = sim.make(rng)
    factors = np.exp((0.2, 0.35)[severity] * rng.standard_normal(len(scan.positions)))
    return scan.measurement(scan.counts(scan.intensities() * factors[:, None, None])), {}


def fading(rng: np.random.Generator, severity: int) -> Made:
    """The brightness of an electron beam comes and goes with time, slowly, by 30 or 50 %."""
    scan = sim.make(rng, kind="electron", path="raster")
    factors = 1 + (0.3, 0.5)[severity] * np.sin(np.linspace(0, 9, len(scan.positions)))
    return scan.measurement(scan.counts(scan.intensities() * factors[:, None, None])), {}


def fly_scan(rng: np.random.Generator, severity: int) -> Made:
    """Each view is exposed while the sample moves along its row by half a step, or by a whole one."""
    scan = sim.make(rng, path="raster")
    step = np.ptp(scan.positions[:, 1]) / (round(len(scan.positions) ** 0.5) - 1)
    parts = (0.6, 1.0)[severity] * step * (np.arange(7) - 3) / 7
    blurred = np.mean([scan.intensities(scan.positions + np.array([0, part])) for part in parts], axis=0)
    return scan.measurement(scan.counts(blurred)), {}


def stretched(rng: np.random.Generator, severity: int) -> Made:
    """The steps along x are told 3.5 or 10 % too long."""
    scan = sim.make(rng, views=144)
    return scan.measurement(positions=scan.positions * np.array([1.0, (1.035, 1.1)[severity]])), {}


def scaled(rng: np.random.Generator, severity: int) -> Made:
    """The distance is told 3 or 8 % too short: all steps are too long in object pixels."""
    scan = sim.make(rng, views=144)
    return scan.measurement(positions=scan.positions * (1.03, 1.08)[severity]), {}


def detector_blur(rng: np.random.Generator, severity: int) -> Made:
    """Each pixel spreads over its neighbours, before counting."""
    scan = sim.make(rng)
    sigma = (0.6, 1.0)[severity]
    blurred = ndimage.gaussian_filter(scan.intensities(), (0, sigma, sigma), mode="wrap")
    return scan.measurement(scan.counts(blurred)), {}


def few_modes(rng: np.random.Generator, severity: int) -> Made:
    """Three modes, fitted by one."""
    scan = sim.make(rng, powers=((0.8, 0.12, 0.08), (0.6, 0.22, 0.18))[severity])
    return scan.measurement(), {}


def vibration(rng: np.random.Generator, severity: int) -> Made:
    """Each view elsewhere."""
    scan = sim.make(rng)
    size = (1.0, 2.0)[severity]
    return scan.measurement(positions=scan.positions + rng.uniform(-size, size, scan.positions.shape)), {}


def drift(rng: np.random.Generator, severity: int) -> Made:
    """Positions drift along a curve."""
    scan = sim.make(rng)
    t = np.linspace(-1, 1, len(scan.positions))[:, None]
    along = t * np.array([1.0, 0.5]) + t**2 * np.array([-0.6, 0.8])
    return scan.measurement(positions=scan.positions + (1.5, 3.0)[severity] * along), {}


def intensity(rng: np.random.Generator, severity: int) -> Made:
    """The beam loses up to 30 or 60 % at random from view to view."""
    scan = sim.make(rng)
    factors = 1 - rng.uniform(0, (0.3, 0.6)[severity], len(scan.positions))
    return scan.measurement(scan.counts(scan.intensities() * factors[:, None, None])), {}


def background(rng: np.random.Generator, severity: int) -> Made:
    """An even background of 5 or 20 % of the light."""
    scan = sim.make(rng)
    even = (0.05, 0.2)[severity] / np.prod(scan.window)
    return scan.measurement(scan.counts(scan.intensities() + even)), {}


def saturation(rng: np.random.Generator, severity: int) -> Made:
    """The detector counts to 30 or 15 % of what comes."""
    scan = sim.make(rng)
    patterns = scan.counts()
    return scan.measurement(np.minimum(patterns, int((0.3, 0.15)[severity] * patterns.max()))), {}


def hot_pixels(rng: np.random.Generator, severity: int) -> Made:
    """Two or six pixels count by themselves."""
    scan = sim.make(rng)
    patterns = scan.counts()
    for _ in range((2, 6)[severity]):
        level = (0.1, 0.3)[severity] * patterns.mean(axis=0).max()
        patterns[:, rng.integers(48), rng.integers(48)] += rng.poisson(level, len(patterns)).astype(np.uint32)
    return scan.measurement(patterns), {}


#: Of each kind: its maker, and the causes of which one is to be named first.
INSTANCES: dict[str, tuple[Maker, tuple[str, ...]]] = {
    "transposed": (transposed, ("orientation",)),
    "defocus_sign": (defocus_sign, ("defocus_sign",)),
    "lag": (lag, ("lag",)),
    "serpentine": (serpentine, ("serpentine",)),
    "descan": (descan, ("descan",)),
    "few_slices": (few_slices, ("few_slices",)),
    "dead_region": (dead_region, ("dead_region",)),
    "bad_frames": (bad_frames, ("bad_frames",)),
    "over_subtracted": (over_subtracted, ("over_subtracted",)),
    "astray": (astray, ("astray",)),
    "near_field": (near_field, ("near_field",)),
    "amplitudes": (amplitudes, ("amplitudes",)),
    "two_beams": (two_beams, ("two_beams",)),
    "refocused": (refocused, ("two_beams",)),
    "flicker": (flicker, ("intensity",)),
    "fading": (fading, ("intensity",)),
    "fly_scan": (fly_scan, ("fly_scan",)),
    "stretched": (stretched, ("geometry",)),
    "scaled": (scaled, ("geometry",)),
    "detector_blur": (detector_blur, ("few_modes",)),
    "few_modes": (few_modes, ("few_modes",)),
    "vibration": (vibration, ("vibration",)),
    "drift": (drift, ("drift",)),
    "intensity": (intensity, ("intensity",)),
    "background": (background, ("background",)),
    "saturation": (saturation, ("saturation",)),
    "hot_pixels": (hot_pixels, ("hot_pixels",)),
}


def instance(name: str, severity: int, seed: int) -> tuple[Measurement, Result]:
    """Return an instance of a kind, and the result of it."""
    maker = INSTANCES[name][0]
    measured, options = maker(np.random.default_rng([seed, severity, *map(ord, name)]), severity)
    measured = replace(measured, checks=NO_CHECKS)  # which would mask, or leave out, what is to be named
    return measured, solve(measured, seed, **options)


#: Healthy scans: what `simulator.make` is asked for, and what the reconstruction.
HEALTHY: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({}, {}),
    ({"path": "spiral"}, {}),
    ({"path": "raster"}, {}),
    ({"path": "serpentine"}, {}),
    ({"photons": 1e4}, {"epochs": 25}),
    ({"photons": 3e4, "path": "spiral"}, {"epochs": 25}),
    ({"photons": None}, {}),
    ({"photons": None, "path": "raster"}, {}),
    ({"photons": 1e7}, {"epochs": 80}),
    ({"kind": "electron", "photons": 3e4}, {"epochs": 25}),
    ({"kind": "electron", "photons": 1e5, "path": "raster"}, {}),
    ({"kind": "electron", "photons": 1e6, "path": "serpentine"}, {"epochs": 60}),
    ({"kind": "electron", "photons": 3e3, "path": "raster"}, {"epochs": 15}),
    ({"kind": "electron", "photons": None}, {"epochs": 60}),
    ({"kind": "near", "photons": 1e6}, {"engine": "adam", "epochs": 150}),
    ({"kind": "near", "photons": 3e5, "path": "spiral"}, {"engine": "adam", "epochs": 150}),
    ({"views": 36}, {"epochs": 60}),
    ({"views": 25, "path": "raster", "photons": 1e5}, {"epochs": 60}),
    ({"views": 30, "path": "spiral", "kind": "electron", "photons": 1e5}, {"epochs": 60}),
    ({"powers": (0.7, 0.2, 0.1)}, {"modes": 3, "epochs": 60}),
    ({"powers": (0.5, 0.2, 0.2, 0.1), "path": "spiral"}, {"modes": 4, "epochs": 80}),
    ({"powers": (0.8, 0.2), "photons": 1e5}, {"modes": 2, "epochs": 60}),
    ({"window": (45, 45)}, {}),
    ({"window": (40, 54), "path": "spiral"}, {}),
    ({"window": (51, 38), "kind": "electron", "photons": 1e5}, {}),
    ({"window": 33, "path": "raster"}, {}),
    ({"overlap": 0.8, "path": "raster"}, {}),
    ({"overlap": 0.5, "path": "spiral"}, {"epochs": 80}),
    ({"strength": 0.3}, {}),
    ({"strength": 0.3, "kind": "electron", "photons": 1e5, "path": "raster"}, {}),
    ({"strength": 2.0, "path": "spiral"}, {"epochs": 80}),
    ({"spread": 4.0, "path": "spiral"}, {"epochs": 60}),
    ({"spread": -8.0}, {}),
    ({"photons": 1e5}, {"hold_out": 0.1}),
    ({"photons": 1e4, "path": "raster"}, {"hold_out": 0.1, "epochs": 25}),
    ({"kind": "electron", "photons": 3e4}, {"hold_out": 0.1, "epochs": 25}),
    ({"photons": 3e5, "path": "raster"}, {"positions": {"start": 5}}),
    ({"photons": 3e5, "path": "spiral"}, {"probe": {"intensity": True}}),
    ({"slices": 2, "spacing": 8.0}, {"object": {"slices": 2, "slice_spacing_m": 3.08e-4}, "epochs": 80}),
    ({"views": 196, "path": "raster", "window": 40}, {"epochs": 30}),
)


def healthy(index: int, seed: int = 0) -> tuple[sim.Scan, Measurement, Result]:
    """Return a healthy scan of this index, and the result of it."""
    options, asked = HEALTHY[index]
    scan = sim.make(np.random.default_rng([seed, index, 5]), **options)
    measured = scan.measurement()
    return scan, measured, solve(measured, seed, **asked)
