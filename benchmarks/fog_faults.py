"""Scans of which file or recipe is wrong in one way, from barely (level 0) to grossly (level 4), beside the right ones.

Every maker takes a generator of random numbers and one of the kind's five levels, and returns the experiment, the wrong
case, and the right one: the same data with the right model, or, where no model has words for the fault or finds its
way in as many epochs, the data without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import fog_scans as scans
import numpy as np
from fog_healthy import gap_mask, rotate
from fog_scans import Rng, Setup
from fog_setups import WINDOW, Case, case, electron, near, slices_of, xray
from scipy import ndimage

Fault = tuple[Setup, Case, Case]
#: Stage keys that keep the beam as the file says it.
FROZEN = {"stage": {"probe": {"frozen": 100_000}}}


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    Attributes:
        make: makes one of a level.
        levels: five, from barely to grossly.
        causes: names by which the program may call it.
        words: any of which the sentence of a refusal may say instead.
        apart: why it is not counted; empty if it is.
        held_back: it was not looked at while thresholds were set.
    """

    make: Callable[[Rng, Any], Fault]
    levels: Sequence[Any]
    causes: tuple[str, ...]
    words: tuple[str, ...] = ()
    apart: str = ""
    held_back: bool = False


# --- positions and orientation --------------------------------------------------------------------------------------


def oriented(rng: Rng, how: str) -> Fault:
    """The detector's axes are not those of the scan."""
    setup, _ = xray(rng)
    counts = setup.counted(rng)
    flipped = counts
    if "y" in how:
        flipped = np.roll(flipped[:, ::-1], 1, axis=1)
    if "x" in how:
        flipped = np.roll(flipped[:, :, ::-1], 1, axis=2)
    if "t" in how:
        flipped = flipped.transpose(0, 2, 1)
    return setup, case(setup, np.ascontiguousarray(flipped)), case(setup, counts)


def _said(setup: Setup, rng: Rng, said: np.ndarray) -> Fault:
    """The file says these positions."""
    counts = setup.counted(rng)
    return setup, case(setup, counts, positions=said), case(setup, counts)


def rotated(rng: Rng, degrees: float) -> Fault:
    """The scan is turned."""
    setup, _ = xray(rng)
    return _said(setup, rng, rotate(setup.positions, rng.choice([-1, 1]) * degrees))


def scaled(rng: Rng, factor: float) -> Fault:
    """The distance of the detector is wrong, and with it the object's pixel."""
    setup, _ = xray(rng)
    counts = setup.counted(rng)
    right = case(setup, counts)
    assert setup.optics.distance_m is not None
    optics = replace(setup.optics, distance_m=setup.optics.distance_m * factor)
    wrong = Case(replace(right.scan, optics=optics), positions_m=right.scan.positions_m)
    return setup, wrong, right


def stretched(rng: Rng, factor: float) -> Fault:
    """The stage's x is longer than it says."""
    setup, _ = xray(rng)
    middle = setup.positions.mean(axis=0)
    return _said(setup, rng, middle + (setup.positions - middle) * [1.0, factor])


def lagging(rng: Rng, frames: int) -> Fault:
    """Positions are those of some frames before."""
    setup, _ = xray(rng, path=str(rng.choice(["jitter", "serpentine"])))
    late = np.maximum(np.arange(len(setup.positions)) - frames, 0)
    return _said(setup, rng, setup.positions[late])


def row_major(rng: Rng, columns: int) -> Fault:
    """Every second row ran backwards, and nobody says so."""
    setup, _ = xray(rng, path="serpentine", columns=columns)
    said = setup.positions.reshape(-1, columns, 2).copy()
    said[1::2] = said[1::2, ::-1]
    return _said(setup, rng, said.reshape(-1, 2))


def scattered(rng: Rng, pixels: float) -> Fault:
    """Each view lies elsewhere."""
    setup, _ = xray(rng)
    return _said(setup, rng, setup.positions + rng.normal(0, pixels, setup.positions.shape))


def drifting(rng: Rng, pixels: float) -> Fault:
    """The sample moves along a curve."""
    setup, _ = xray(rng, path=str(rng.choice(["jitter", "random"])))
    t, angle = np.linspace(-1, 1, len(setup.positions))[:, None], rng.uniform(0, 2 * np.pi)
    along, across = np.array([np.cos(angle), np.sin(angle)]), np.array([-np.sin(angle), np.cos(angle)])
    return _said(setup, rng, setup.positions + pixels * (0.5 * t * along + 0.4 * t**2 * across))


def astray(rng: Rng, pixels: float) -> Fault:
    """Four positions are far from where the views were taken, or one, where it is farther than the scan is wide."""
    setup, _ = xray(rng)
    said = setup.positions.copy()
    bad = rng.choice(len(said), 1 if pixels > 100 else 4, replace=False)
    said[bad, 0] += pixels * np.where(said[bad, 0] > said[:, 0].mean(), -1, 1)
    return _said(setup, rng, said)


# --- detector -------------------------------------------------------------------------------------------------------


def _unmasked(setup: Setup, counts: np.ndarray, mask: np.ndarray) -> Fault:
    """The file says nothing of a mask that it should have."""
    return setup, case(setup, counts), case(setup, counts, mask=mask)


def gapped(rng: Rng, width: int) -> Fault:
    """Module gaps at 0."""
    setup, _ = xray(rng)
    mask = gap_mask(setup.window, width, rng)
    return _unmasked(setup, setup.counted(rng) * mask, mask)


def stopped(rng: Rng, radius: float) -> Fault:
    """A beam stop."""
    setup, _ = xray(rng)
    r = np.hypot(*np.ogrid[-WINDOW // 2 : WINDOW // 2, -WINDOW // 2 : WINDOW // 2])
    mask = r > radius
    return _unmasked(setup, setup.counted(rng) * mask, mask)


def hot(rng: Rng, pixels: int) -> Fault:
    """Pixels that count on their own, as much as the brightest ones do."""
    setup, _ = xray(rng)
    counts = setup.counted(rng)
    mask = np.ones((setup.window, setup.window), bool)
    for y, x in rng.integers(0, setup.window, (pixels, 2)):
        mask[y, x] = False
        level = rng.uniform(0.5, 4.0) * counts.mean(axis=0).max()
        counts[:, y, x] += rng.poisson(level, len(counts)).astype(np.uint32)
    return _unmasked(setup, counts, mask)


def saturated(rng: Rng, share: float) -> Fault:
    """A detector that counts to a share of the largest value."""
    setup, _ = xray(rng, dose=(4.8, 6.0))
    counts = setup.counted(rng)
    top = max(2, int(share * counts.max()))
    return setup, case(setup, np.minimum(counts, top)), case(setup, counts)


def lit(rng: Rng, share: float) -> Fault:
    """A background, so many times the light."""
    setup, _ = xray(rng)
    slope = np.linspace(0.6, 1.4, setup.window)
    background = share * setup.dose / setup.window**2 * np.broadcast_to(slope[:, None], (setup.window,) * 2)
    counts = rng.poisson(setup.expected() + background).astype(np.uint32)
    known = {"data": {"background": "background.npy"}}
    return setup, case(setup, counts), case(setup, counts, known, extra={"background": background})


def darkened(rng: Rng, counts: float) -> Fault:
    """A dark pattern is subtracted that had been subtracted before; `counts` of it for each mean count."""
    setup, _ = xray(rng)
    true = setup.counted(rng)
    dark = max(1, round(counts * setup.dose / setup.window**2))
    return setup, case(setup, np.where(true > dark, true - dark, 0).astype(np.uint32)), case(setup, true)


def blurred(rng: Rng, pixels: float) -> Fault:
    """A detector whose pixels share their counts."""
    setup, _ = xray(rng)
    expected = setup.expected()
    soft = ndimage.gaussian_filter(expected, (0, pixels, pixels))
    wrong, right = (rng.poisson(one).astype(np.uint32) for one in (soft, expected))
    return setup, case(setup, wrong), case(setup, right)


# --- views ----------------------------------------------------------------------------------------------------------


def _without(setup: Setup, counts: np.ndarray, bad: np.ndarray) -> Fault:
    """The right case has no such views."""
    good = np.setdiff1d(np.arange(len(counts)), bad)
    return setup, case(setup, counts), case(setup, counts[good], positions=setup.positions[good])


def blank(rng: Rng, views: int) -> Fault:
    """Frames without a count."""
    setup, _ = xray(rng)
    counts, bad = setup.counted(rng), rng.choice(len(setup.positions), views, replace=False)
    counts[bad] = 0
    return _without(setup, counts, bad)


def mad(rng: Rng, views: int) -> Fault:
    """Frames that are a hundred times too bright."""
    setup, _ = xray(rng)
    counts, bad = setup.counted(rng), rng.choice(len(setup.positions), views, replace=False)
    level = 100 * counts.mean()
    counts[bad] = rng.poisson(level, (views, setup.window, setup.window)).astype(np.uint32)
    return _without(setup, counts, bad)


def flickering(rng: Rng, share: float) -> Fault:
    """Intensities that differ."""
    setup, _ = xray(rng)
    brightness = np.exp(share * rng.standard_normal(len(setup.positions)) - share**2 / 2)
    counts = rng.poisson(setup.expected() * brightness[:, None, None]).astype(np.uint32)
    return setup, case(setup, counts), case(setup, counts, {"stage": {"probe": {"intensity": True}}})


def two_beams(rng: Rng, factor: float) -> Fault:
    """In the middle of the scan the defocus changes by a factor."""
    setup, made = xray(rng)
    other = replace(setup, modes=scans.partial_modes(made(factor), (1.0,)))
    expected = setup.expected()
    mixed = np.concatenate([expected[: len(expected) // 2], other.expected()[len(expected) // 2 :]])
    wrong, right = (rng.poisson(one).astype(np.uint32) for one in (mixed, expected))
    return setup, case(setup, wrong), case(setup, right)


def descanned(rng: Rng, pixels: float) -> Fault:
    """Patterns wander over the detector, across the way of the scan: no beam explains that."""
    setup, _ = xray(rng)
    y, x = _unit(setup.positions)
    return _wandering(setup, rng, pixels * np.stack([x, -y], axis=1))


def symmetric_descan(rng: Rng, pixels: float) -> Fault:
    """Patterns wander along with the scan: another curvature of the beam explains that."""
    setup, _ = xray(rng)
    y, x = _unit(setup.positions)
    return _wandering(setup, rng, pixels * np.stack([y, x], axis=1))


def _unit(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return y and x from -1 to 1."""
    low, high = positions.min(axis=0), positions.max(axis=0)
    y, x = (2 * (positions - low) / (high - low) - 1).T
    return y, x


def _wandering(setup: Setup, rng: Rng, shifts: np.ndarray) -> Fault:
    expected = setup.expected()
    moved = np.stack([ndimage.shift(one, by, order=1) for one, by in zip(expected, shifts, strict=True)])
    wrong, right = (rng.poisson(one).astype(np.uint32) for one in (moved, expected))
    return setup, case(setup, wrong), case(setup, right)


# --- coherence ------------------------------------------------------------------------------------------------------


def one_mode(rng: Rng, share: float) -> Fault:
    """A beam of three modes, of which the recipe says one; the others have this share of the light."""
    setup, _ = xray(rng, powers=(1 - share, 0.65 * share, 0.35 * share), dose=(4.8, 5.8))
    counts = setup.counted(rng)
    powers = [round(1 - share, 6), round(0.65 * share, 6), round(0.35 * share, 6)]
    return setup, case(setup, counts), case(setup, counts, {"probe": {"modes": 3, "mode_powers": powers}})


def flying(rng: Rng, pixels: float) -> Fault:
    """The stage moves on by so many pixels while a view is counted."""
    setup, _ = xray(rng, path="jitter", sample=str(rng.choice(["edges", "spokes"])), dose=(5.2, 6.0))
    offsets = np.stack([np.zeros(7), (np.arange(7) - 3) / 7 * pixels], axis=1)
    return setup, case(setup, setup.counted(rng, offsets=offsets)), case(setup, setup.counted(rng))


def wide_source(rng: Rng, pixels: float) -> Fault:
    """Electrons come from a source whose image is so wide (standard deviation)."""
    setup, _ = electron(rng, dose=(5.0, 5.8))
    nodes, weights = np.array([-1.0, 0.0, 1.0]) * np.sqrt(3) * pixels, np.array([1, 4, 1]) / 6
    offsets = np.stack(np.meshgrid(nodes, nodes, indexing="ij"), axis=-1).reshape(-1, 2)
    blurred = setup.counted(rng, offsets=offsets, weights=np.outer(weights, weights).ravel())
    return setup, case(setup, blurred), case(setup, setup.counted(rng))


# --- optics ---------------------------------------------------------------------------------------------------------


def out_of_focus(rng: Rng, factor: float) -> Fault:
    """What is said of the beam has so many times its defocus."""
    setup, made = xray(rng, beam=str(rng.choice(["lens", "zone_plate", "disc"])))
    counts = setup.counted(rng)
    return setup, case(setup, counts, probe=scans.halve(made(factor))[None]), case(setup, counts)


def single_slice(rng: Rng, gap: float) -> Fault:
    """Three slices so far from each other (lambda dz / dx^2), of which the recipe says one."""
    setup, _ = electron(rng, slices=3, gap=gap, dose=(4.8, 5.6))
    counts = setup.counted(rng)
    return setup, case(setup, counts), case(setup, counts, slices_of(setup))


def taken_for_far(rng: Rng, magnification: float) -> Fault:
    """A near field that nobody says is one."""
    setup = near(rng, magnification)
    counts = setup.counted(rng)
    right = case(setup, counts)
    optics = replace(setup.optics, propagation="far_field", focus_distance_m=None)
    wrong = Case(replace(right.scan, optics=optics), positions_m=right.scan.positions_m)
    return setup, wrong, right


def wrong_distance(rng: Rng, factor: float) -> Fault:
    """A near field of another distance."""
    setup = near(rng)
    right = case(setup, setup.counted(rng))
    assert setup.optics.distance_m is not None
    optics = replace(setup.optics, distance_m=setup.optics.distance_m * factor)
    return setup, replace(right, scan=replace(right.scan, optics=optics)), right


def sparse(rng: Rng, step: float) -> Fault:
    """Steps too long for a beam of which the defocus is known to a third only; the right case knows it."""
    setup, made = xray(rng, beam=str(rng.choice(["lens", "zone_plate"])), path="jitter", step=step, dose=(5.0, 5.8))
    counts = setup.counted(rng)
    wrong = case(setup, counts, probe=scans.halve(made(1.35))[None])
    return setup, wrong, case(setup, counts, FROZEN, probe=scans.halve(setup.modes))


# --- apart ----------------------------------------------------------------------------------------------------------


def amplitudes(rng: Rng, power: float) -> Fault:
    """A power of the counts, 0.5 for amplitudes."""
    setup, _ = xray(rng)
    counts = setup.counted(rng)
    return setup, case(setup, (counts.astype(np.float32) ** power).astype(np.float32)), case(setup, counts)


def in_other_units(rng: Rng, gain: float) -> Fault:
    """Counts times a factor, which is harmless, but no counting."""
    setup, _ = xray(rng)
    counts = setup.counted(rng)
    return setup, case(setup, (counts * gain).astype(np.float32)), case(setup, counts)


def few_counts(rng: Rng, dose: float) -> Fault:
    """So few counts a view that no model makes a picture of them."""
    setup, _ = xray(rng, dose=(np.log10(dose),) * 2)
    counts = setup.counted(rng)
    return setup, case(setup, counts), case(setup, counts)


def twin(rng: Rng, degrees: float) -> Fault:
    """A scan that is turned by half a turn: its twin fits as well."""
    setup, _ = xray(rng)
    return _said(setup, rng, rotate(setup.positions, degrees))


#: By name.
FAULTS: dict[str, Kind] = {
    "orientation": Kind(oriented, ("y", "x", "t", "ty", "tx"), ("orientation",)),
    "rotation": Kind(rotated, (1.0, 3.0, 8.0, 20.0, 60.0), ("orientation", "geometry")),
    "scale": Kind(scaled, (1.01, 1.03, 1.08, 1.2, 1.5), ("geometry",)),
    "stretch": Kind(stretched, (1.01, 1.02, 1.035, 1.08, 1.15), ("geometry",)),
    "lag": Kind(lagging, (1, 2, 3, 5, 8), ("lag",), ("lag",)),
    "serpentine": Kind(row_major, (8, 10, 12, 15, 20), ("serpentine",), ("serpentine", "second row")),
    "scatter": Kind(scattered, (0.3, 0.6, 1.0, 2.0, 4.0), ("vibration",)),
    "drift": Kind(drifting, (1.0, 2.0, 3.0, 5.0, 8.0), ("drift",)),
    "astray": Kind(astray, (8, 15, 25, 2000, 50_000), ("astray",), ("position",)),
    "gaps": Kind(gapped, (1, 2, 3, 4, 6), ("dead_region",), ("without counts",)),
    "beam stop": Kind(stopped, (1, 2, 3, 5, 7), ("dead_region",), ("without counts",), held_back=True),
    "hot pixels": Kind(hot, (1, 3, 8, 16, 32), ("hot_pixels",)),
    "saturation": Kind(saturated, (0.7, 0.5, 0.35, 0.2, 0.1), ("saturation",)),
    "background": Kind(lit, (0.02, 0.05, 0.15, 0.4, 1.0), ("background",)),
    "dark twice": Kind(darkened, (0.1, 0.3, 1.0, 3.0, 10.0), ("over_subtracted",)),
    "blur": Kind(blurred, (0.4, 0.7, 1.0, 1.5, 2.5), ("few_modes",)),
    "blank": Kind(blank, (1, 3, 6, 12, 30), ("bad_frames", "intensity"), ("without counts",)),
    "mad": Kind(mad, (1, 2, 3, 5, 8), ("bad_frames",), ("too bright",)),
    "flicker": Kind(flickering, (0.05, 0.1, 0.2, 0.35, 0.6), ("intensity",)),
    "two beams": Kind(two_beams, (1.15, 1.4, 1.8, 0.2, -1.0), ("two_beams",), held_back=True),
    "descan": Kind(descanned, (0.5, 1.0, 2.0, 3.0, 5.0), ("descan",)),
    "one mode": Kind(one_mode, (0.05, 0.15, 0.3, 0.45, 0.6), ("few_modes",)),
    "fly scan": Kind(flying, (2.0, 4.0, 7.0, 10.0, 14.0), ("fly_scan", "few_modes")),
    "source": Kind(wide_source, (0.8, 1.5, 2.2, 3.0, 4.0), ("few_modes",)),
    "defocus": Kind(out_of_focus, (0.6, 0.2, -0.3, -1.0, -1.6), ("plane", "defocus_sign")),
    "single slice": Kind(single_slice, (4.0, 8.0, 15.0, 25.0, 40.0), ("few_slices",)),
    "near as far": Kind(taken_for_far, (1.0, 3.0, 8.0, 15.0, 30.0), ("near_field",), ("near field",)),
    "distance": Kind(wrong_distance, (1.02, 1.06, 1.15, 1.3, 1.7), ("distance",)),
    "overlap": Kind(
        sparse, (6.0, 9.0, 12.0, 15.0, 19.0), ("overlap",), apart="too little overlap, which no model mends"
    ),
    "amplitudes": Kind(
        amplitudes, (0.5, 0.5, 0.5, 0.5, 0.7), ("amplitudes",), ("amplitude",), apart="patterns that are no counts"
    ),
    "other units": Kind(in_other_units, (0.01, 0.1, 0.37, 2.6, 40.0), (), apart="patterns that are no counts"),
    "few counts": Kind(few_counts, (20.0, 50.0, 100.0, 200.0, 400.0), (), apart="too few counts"),
    "twin": Kind(twin, (180.0,), (), apart="the twin"),
    "symmetric descan": Kind(symmetric_descan, (0.5, 1.0, 2.0), (), apart="a linear, symmetric descan"),
}
