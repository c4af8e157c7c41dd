"""Scans of which file and recipe say what is true: the program must not call their results poor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from fog_scans import Rng, Scan, Setup
from fog_setups import Case, case, electron, near, slices_of, xray

Healthy = tuple[Setup, Case]


def plain(path: str) -> Callable[[Rng], Healthy]:
    """Return a maker of X-ray scans along this path."""

    def make(rng: Rng) -> Healthy:
        setup, _ = xray(rng, path=path)
        return setup, case(setup, setup.counted(rng))

    return make


def weak(rng: Rng) -> Healthy:
    """A phase of 0.2 rad, hardly any absorption, many counts."""
    setup, _ = xray(rng, sample="smooth", phase=0.2, dose=(5.3, 6.0))
    return setup, case(setup, setup.counted(rng))


def faint(rng: Rng) -> Healthy:
    """1,000 to 8,000 counts a view."""
    setup, _ = xray(rng, dose=(3.0, 3.9))
    return setup, case(setup, setup.counted(rng))


def bright(rng: Rng) -> Healthy:
    """A million counts a view."""
    setup, _ = xray(rng, dose=(5.9, 6.0))
    return setup, case(setup, setup.counted(rng))


def thin_electrons(rng: Rng) -> Healthy:
    """Electrons through a smooth film."""
    setup, _ = electron(rng, "smooth")
    return setup, case(setup, setup.counted(rng))


def crystal(rng: Rng) -> Healthy:
    """Electrons through a crystal with vacancies."""
    setup, _ = electron(rng, "crystal", path="raster")
    return setup, case(setup, setup.counted(rng))


def thick_electrons(rng: Rng) -> Healthy:
    """Electrons through two or three slices, as many as the recipe says."""
    setup, _ = electron(rng, slices=int(rng.integers(2, 4)), gap=rng.uniform(20, 30))
    return setup, case(setup, setup.counted(rng), slices_of(setup))


def near_parallel(rng: Rng) -> Healthy:
    """Near field of a parallel beam."""
    setup = near(rng)
    return setup, case(setup, setup.counted(rng))


def near_focus(rng: Rng) -> Healthy:
    """Near field behind a focus."""
    setup = near(rng, magnification=rng.uniform(5, 30))
    return setup, case(setup, setup.counted(rng))


def flickering(rng: Rng) -> Healthy:
    """Intensities that differ by 20 %, refined."""
    setup, _ = xray(rng)
    brightness = np.clip(1 + 0.2 * rng.standard_normal(len(setup.positions)), 0.3, None)
    counts = rng.poisson(setup.expected() * brightness[:, None, None]).astype(np.uint32)
    return setup, case(setup, counts, {"stage": {"probe": {"intensity": True}}})


def three_modes(rng: Rng) -> Healthy:
    """A beam of three modes, as many as the recipe says."""
    setup, _ = xray(rng, powers=(0.7, 0.2, 0.1))
    return setup, case(setup, setup.counted(rng), {"probe": {"modes": 3, "mode_powers": [0.8, 0.12, 0.08]}})


def refined_positions(rng: Rng) -> Healthy:
    """Positions that are off by 0.7 pixels, refined."""
    setup, _ = xray(rng)
    said = setup.positions + rng.normal(0, 0.7, setup.positions.shape)
    return setup, case(setup, setup.counted(rng), {"stage": {"positions": {"start": 2}}}, positions=said)


def masked_gaps(rng: Rng) -> Healthy:
    """Module gaps of two to four pixels, masked."""
    setup, _ = xray(rng)
    mask = gap_mask(setup.window, int(rng.integers(2, 5)), rng)
    return setup, case(setup, setup.counted(rng) * mask, mask=mask)


def gap_mask(n: int, width: int, rng: Rng) -> np.ndarray:
    """Return (n, n) bool, False on a row and a column of this width beside the beam's middle."""
    mask = np.ones((n, n), bool)
    for axis in (0, 1):
        first = n // 2 + int(rng.choice([-1, 1])) * int(rng.integers(4, 9))
        np.moveaxis(mask, axis, 0)[first : first + width] = False
    return mask


def known_background(rng: Rng) -> Healthy:
    """A background of 10 to 30 % of the light, of which the recipe has an image."""
    setup, _ = xray(rng)
    level = rng.uniform(0.1, 0.3) * setup.dose / setup.window**2
    slope = np.linspace(0.5, 1.5, setup.window)
    background = level * np.broadcast_to(slope[:, None], (setup.window, setup.window))
    counts = rng.poisson(setup.expected() + background).astype(np.uint32)
    return setup, case(setup, counts, {"data": {"background": "background.npy"}}, extra={"background": background})


def cut_off(rng: Rng) -> Healthy:
    """A detector that counts to three fifths of its largest value, which the recipe says."""
    setup, _ = xray(rng)
    counts = setup.counted(rng)
    top = int(0.6 * counts.max())
    return setup, case(setup, np.minimum(counts, top), {"data": {"saturation": top}})


def turned(rng: Rng) -> Healthy:
    """A scan rotated and a detector transposed, as the recipe says."""
    setup, _ = xray(rng)
    degrees = rng.uniform(-40, 40)
    counts = np.ascontiguousarray(setup.counted(rng).transpose(0, 2, 1))
    said = rotate(setup.positions, -degrees)
    recipe = {"data": {"transpose": True}, "positions": {"rotation_deg": float(degrees)}}
    return setup, case(setup, counts, recipe, positions=said)


def rotate(positions: np.ndarray, degrees: float) -> np.ndarray:
    """Return positions (N, 2) turned about their mean: y' = y cos - x sin, x' = y sin + x cos."""
    middle = positions.mean(axis=0)
    y, x = (positions - middle).T
    c, s = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    return np.asarray(np.stack([y * c - x * s, y * s + x * c], axis=1) + middle)


def unknown_beam(rng: Rng) -> Healthy:
    """A small beam near its focus of which the file says nothing."""
    setup, _ = xray(rng, beam="gaussian")
    return setup, case(replace(setup), setup.counted(rng), probe=None)


#: By name: what makes one.
HEALTHY: dict[str, Callable[[Rng], Healthy]] = {
    "spiral path": plain("spiral"),
    "raster path": plain("raster"),
    "jittered path": plain("jitter"),
    "serpentine path": plain("serpentine"),
    "random path": plain("random"),
    "weak": weak,
    "faint": faint,
    "bright": bright,
    "thin electrons": thin_electrons,
    "crystal": crystal,
    "thick electrons": thick_electrons,
    "near field": near_parallel,
    "near focus": near_focus,
    "refined flicker": flickering,
    "three modes": three_modes,
    "refined positions": refined_positions,
    "masked gaps": masked_gaps,
    "known background": known_background,
    "known saturation": cut_off,
    "turned scan": turned,
}
__all__ = ["HEALTHY", "Healthy", "Scan", "gap_mask", "rotate"]
