"""Simulated scans of many kinds, each wrong in its own way, on a grid twice as fine as that of any model.

    python benchmarks/kinds.py drift 7 scan.cxi

Waves are computed with object pixels of half the size (in the near field with detector pixels of half the size); the
detector then shows 64 x 64 pixels: far-field patterns are cut, near-field images are binned. So light is scattered
beyond the detector, and no model explains the counts to the last bit.

Severities are drawn from the seed, from the ranges that the functions name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ptymesh.geometry import near_field
from ptymesh.io.formats.cxi_writer import write_measurement
from ptymesh.measurement import ArraySource, Measurement
from ptymesh.simulate import Truth, checked, patterns, truth

WINDOW, VIEWS = 64, 200
#: Object pixels (of the model) that positions may be off by.
ROOM = 6

Rng = np.random.Generator


@dataclass
class Scan:
    """A simulation that is about to be measured.

    coarse, fine: the truth on the model's grid, and on the one that is computed. moved: (N, 2) true minus told
    positions, model pixels. brightness: (N,) factors. background: (64, 64) counts, DC or image as the detector shows
    it. counted: makes counts of expected ones. finish: what the file says at last.
    """

    coarse: Truth
    fine: Truth
    moved: np.ndarray
    brightness: np.ndarray
    background: np.ndarray
    counted: Callable[[np.ndarray], np.ndarray]
    finish: Callable[[Measurement], Measurement] = lambda measured: measured


def begin(rng: Rng, seed: int, kind: str = "xray", photons: float | None = None, **options: Any) -> Scan:
    """A sound scan: 3e5 to 3e6 photons per view (3e6 to 3e7 in the near field), a spiral."""
    near = kind == "near"
    photons = photons or float(10 ** rng.uniform(5.5, 6.5)) * (10 if near else 1)
    given = {"kind": kind, "views": VIEWS, "seed": seed, "photons_per_view": photons, "noise": False, **options}
    coarse = truth(checked(window=WINDOW, position_error_px=ROOM, **given))
    pixel = coarse.geometry.object_pixel_m[0]
    if kind != "near":
        given["slice_spacing_m"] = coarse.slice_spacing_m or None
    fine = truth(checked(window=2 * WINDOW, pixel_m=pixel / 2, position_error_px=2 * ROOM, **given))
    if near:
        g = coarse.geometry
        geometry = near_field((2 * WINDOW,) * 2, g.wavelength_m, g.distance_m, (pixel / 2, pixel / 2))
        fine = replace(fine, geometry=geometry)
    # the beam of the coarse grid, band limited, whose pixels are halved
    spectrum = np.fft.fftshift(np.fft.fft2(np.fft.ifftshift(coarse.probe, axes=(1, 2))), axes=(1, 2))
    wide = np.pad(spectrum, ((0, 0), (WINDOW // 2,) * 2, (WINDOW // 2,) * 2))
    probe = np.fft.fftshift(np.fft.ifft2(np.fft.ifftshift(wide, axes=(1, 2))), axes=(1, 2))
    probe *= np.sqrt((np.abs(coarse.probe) ** 2).sum() / (np.abs(probe) ** 2).sum())
    return Scan(
        coarse,
        replace(fine, probe=probe),
        np.zeros((VIEWS, 2)),
        np.ones(VIEWS),
        np.zeros((WINDOW, WINDOW)),
        lambda expected: rng.poisson(expected),
    )


def measured(scan: Scan) -> Measurement:
    """What the file will hold."""
    fine, near = scan.fine, scan.fine.geometry.propagation != "far_field"
    expected = np.concatenate(list(patterns(replace(fine, positions=fine.nominal + 2 * scan.moved))))
    n = WINDOW
    if near:
        expected = expected.reshape(VIEWS, n, 2, n, 2).sum(axis=(2, 4))
    else:
        expected = np.fft.fftshift(expected, axes=(1, 2))[:, n // 2 : -(n // 2), n // 2 : -(n // 2)]
    counts = scan.counted(expected * scan.brightness[:, None, None] + scan.background)
    counts = counts if near else np.fft.ifftshift(counts, axes=(1, 2))
    told = fine.nominal / 2
    made = Measurement(
        patterns=ArraySource(np.ascontiguousarray(counts).astype(np.uint32)),
        positions=told - (told.min(axis=0) + told.max(axis=0)) / 2,
        geometry=scan.coarse.geometry,
        mask=np.ones((n, n), bool),
        probe=scan.coarse.guess(),
        name="simulated",
    )
    return scan.finish(made)


# --- kinds ----------------------------------------------------------------------------------------------------------


def far(rng: Rng, seed: int) -> Scan:
    """Far field, nothing wrong but the guess of the probe (its defocus 10 % off)."""
    return begin(rng, seed)


def near(rng: Rng, seed: int) -> Scan:
    """Near field, nothing wrong but the guess of the probe (without its structure)."""
    return begin(rng, seed, "near")


def modes(rng: Rng, seed: int) -> Scan:
    """Three modes, the first with 55 to 80 % of the power."""
    first = float(rng.uniform(0.55, 0.8))
    return begin(rng, seed, modes=3, mode_powers=(first, 0.65 * (1 - first), 0.35 * (1 - first)))


def drift(rng: Rng, seed: int) -> Scan:
    """2 to 4 px from the first view to the last, along a curve."""
    scan = begin(rng, seed)
    t, angle = np.linspace(-1, 1, VIEWS)[:, None], rng.uniform(0, 2 * np.pi)
    along, across = np.array([np.cos(angle), np.sin(angle)]), np.array([-np.sin(angle), np.cos(angle)])
    scan.moved = rng.uniform(2, 4) * (0.5 * t * along + 0.4 * (t**2 - 1 / 3) * across)
    return scan


def jitter(rng: Rng, seed: int) -> Scan:
    """Each view elsewhere by up to 1 to 2 px on either axis."""
    scan = begin(rng, seed)
    scan.moved = rng.uniform(-1, 1, (VIEWS, 2)) * rng.uniform(1, 2)
    return scan


def dim(rng: Rng, seed: int) -> Scan:
    """2,000 to 8,000 photons per view."""
    return begin(rng, seed, photons=float(rng.uniform(2e3, 8e3)))


def _light(rng: Rng, share: float, counts: float) -> np.ndarray:
    """A broad hill on a floor, which hold this share of the counts."""
    y, x = np.mgrid[:WINDOW, :WINDOW] / WINDOW - 0.5
    at = rng.uniform(-0.15, 0.15, 2)
    shape = rng.uniform(0.2, 0.6) + np.exp(-((y - at[0]) ** 2 + (x - at[1]) ** 2) / (2 * rng.uniform(0.15, 0.3) ** 2))
    return share * counts * shape / shape.sum()


def background(rng: Rng, seed: int) -> Scan:
    """A broad hill and a floor of light, 5 to 20 % of all, of which nothing is said."""
    scan = begin(rng, seed)
    scan.background = _light(rng, rng.uniform(0.05, 0.2), scan.coarse.options.photons_per_view)
    return scan


def near_background(rng: Rng, seed: int) -> Scan:
    """The same in the near field, 5 to 15 %."""
    scan = begin(rng, seed, "near")
    scan.background = _light(rng, rng.uniform(0.05, 0.15), scan.coarse.options.photons_per_view)
    return scan


def flicker(rng: Rng, seed: int) -> Scan:
    """The beam loses up to 20 to 45 % at random from view to view."""
    scan = begin(rng, seed)
    scan.brightness = 1 - rng.uniform(0, rng.uniform(0.2, 0.45), VIEWS)
    return scan


def hot(rng: Rng, seed: int) -> Scan:
    """4 to 10 pixels count on their own, 2 to 20 % of the brightest; and the detector counts to 40 to 70 % of it."""
    scan = begin(rng, seed)
    count, where = int(rng.integers(4, 11)), rng.integers(0, WINDOW, (10, 2))
    level, most = rng.uniform(0.02, 0.2, 10), rng.uniform(0.4, 0.7)

    def counted(expected: np.ndarray) -> np.ndarray:
        counts = rng.poisson(expected)
        peak = counts.max()
        for (y, x), share in list(zip(where, level, strict=True))[:count]:
            counts[:, y, x] += rng.poisson(share * expected.mean(axis=0).max(), len(counts))
        return np.minimum(counts, int(most * peak))

    scan.counted = counted
    return scan


def no_probe(rng: Rng, seed: int) -> Scan:
    """The file has no guess of the probe, which is out of focus."""
    scan = begin(rng, seed)
    scan.finish = lambda made: replace(made, probe=None)
    return scan


def near_distance(rng: Rng, seed: int) -> Scan:
    """Near field, whose distance is told 6 to 15 % too long or too short."""
    scan = begin(rng, seed, "near")
    factor = float(rng.uniform(1.06, 1.15)) ** rng.choice([-1, 1])
    g = scan.coarse.geometry
    scan.finish = lambda made: replace(made, geometry=replace(g, distance_m=g.distance_m * factor))
    return scan


def turned(rng: Rng, seed: int) -> Scan:
    """The detector's axes are exchanged, or one of them reversed."""
    scan = begin(rng, seed)
    kind = int(rng.integers(3))

    def finish(made: Measurement) -> Measurement:
        upright = np.fft.fftshift(made.patterns.read(np.arange(VIEWS)), axes=(1, 2))
        seen = [
            lambda y: y.transpose(0, 2, 1),
            lambda y: np.roll(y[:, ::-1], 1, 1),
            lambda y: np.roll(y[:, :, ::-1], 1, 2),
        ]
        y = np.fft.ifftshift(seen[kind](upright), axes=(1, 2))
        return replace(made, patterns=ArraySource(np.ascontiguousarray(y)), probe=None)

    scan.finish = finish
    return scan


def everything(rng: Rng, seed: int) -> Scan:
    """Two modes (the second 10 to 25 %), positions off by up to 1 px, and a beam that loses up to 15 %."""
    second = float(rng.uniform(0.1, 0.25))
    scan = begin(rng, seed, modes=2, mode_powers=(1 - second, second))
    scan.moved = rng.uniform(-1, 1, (VIEWS, 2))
    scan.brightness = 1 - rng.uniform(0, 0.15, VIEWS)
    return scan


KINDS: dict[str, Callable[[Rng, int], Scan]] = {
    kind.__name__: kind
    for kind in (
        far, near, modes, drift, jitter, dim, background, near_background, flicker, hot, no_probe, near_distance,
        turned, everything,
    )
}  # fmt: skip


def write(kind: str, seed: int, path: Path) -> Path:
    """A data set of this kind."""
    torch.manual_seed(0)
    write_measurement(measured(KINDS[kind](np.random.default_rng([seed, 88]), seed)), path)
    return path


if __name__ == "__main__":
    write(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
