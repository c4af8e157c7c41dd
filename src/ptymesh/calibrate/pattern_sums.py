"""Two passes over all patterns, slab by slab: sums that show the disc, and what virtual detectors see once it is known.

Slabs are dealt out to ranks in turn. Counts add up exactly in any order while they are whole numbers.

N       views
h, w    detector pixels, with the direct beam near the middle
K       bright-field pixels, squares of the detector within the disc
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, sqrt

import numpy as np
import torch

from ptymesh.calibrate.disc import Disc
from ptymesh.calibrate.scan_grid import ScanGrid
from ptymesh.distributed.world import World
from ptymesh.io.prepare.survey import upright
from ptymesh.io.source import slabs
from ptymesh.measurement import Measurement

#: Blocks of the scan along either axis, in each of which the disc's centre is fitted.
BLOCKS = 5
#: Bytes of working memory for a pixel of a pattern.
PIXEL_BYTES = 32
#: Number of bright-field pixels, and values of all their images together, at most.
MOST_PIXELS, MOST_VALUES = 120, 2**25
#: Radii of the virtual detectors over the disc's: of the annular bright field, and from where the dark field begins.
ANNULUS, DARK = 0.5, 1.1


@dataclass(frozen=True)
class PatternSums:
    """Sums over patterns.

    Attributes:
        mean, largest: (h, w) counts.
        blocks: (B, h, w) mean counts of each block of the scan.
        places: (B, 2) mean position of the views of each block, 0 to 1 across the scan.
        totals: (N,) counts per view.
    """

    mean: np.ndarray
    largest: np.ndarray
    blocks: np.ndarray
    places: np.ndarray
    totals: np.ndarray


@dataclass(frozen=True)
class VirtualDetectors:
    """Counts of virtual detectors, and where the light lies in each view.

    Attributes:
        bright, annular, dark: (N,) counts in the disc, in its outer part, and outside.
        halves: (N, 2) shares of the disc's counts in its half of larger y, or x, less those in the other half.
        centres: (N, 2) centres of mass in pixels, y x, from the disc's centre in that view.
        pixels: (N, K) float32 shares of the view's counts in the disc.
        angles: (K, 2) places of these pixels, y x, over the disc's radius.
    """

    bright: np.ndarray
    annular: np.ndarray
    dark: np.ndarray
    halves: np.ndarray
    centres: np.ndarray
    pixels: np.ndarray
    angles: np.ndarray


def places_of(grid: ScanGrid) -> np.ndarray:
    """Return the positions (N, 2) of views as shares of the scan, 0 to 1."""
    least = grid.positions_m.min(axis=0)
    return np.asarray((grid.positions_m - least) / (grid.positions_m.max(axis=0) - least))


def add_patterns(scan: Measurement, grid: ScanGrid, world: World) -> PatternSums:
    """Return the sums of all patterns, which are read once. Collective.

    Args:
        scan: whose patterns are added.
        grid: of the scan.
        world: the ranks.
    """
    h, w = scan.window
    side = min(BLOCKS, *(n // 2 for n in grid.shape))
    share = places_of(grid)
    index = np.minimum((share * side).astype(int), side - 1) @ np.array([side, 1])
    total, largest = np.zeros((side * side, h, w)), np.zeros((h, w))
    totals = np.zeros(scan.views)
    for views, counts in _read_slabs(scan, world):
        totals[views] = counts.sum(axis=(1, 2))
        largest = np.maximum(largest, counts.max(axis=0))
        for block in np.unique(index[views]):
            total[block] += counts[index[views] == block].sum(axis=0)
    total, totals = _sum_over_ranks(world, total, totals)
    largest = world.max(torch.from_numpy(largest).to(world.device))[0].cpu().numpy()
    members = np.bincount(index, minlength=side * side)
    used = np.flatnonzero(members)
    places = np.stack([share[index == block].mean(axis=0) for block in used])
    blocks = total[used] / members[used][:, None, None]
    return PatternSums(total.sum(axis=0) / scan.views, largest, blocks, places, totals)


def count_virtually(scan: Measurement, disc: Disc, centres: np.ndarray, world: World) -> VirtualDetectors:
    """Return what virtual detectors count, each of which follows the disc from view to view by whole pixels.

    Collective.

    Args:
        scan: whose patterns are read once.
        disc: of the mean pattern.
        centres: (N, 2) centre of the disc in each view, y x.
        world: the ranks.
    """
    h, w = scan.window
    n = scan.views
    bin_ = _bin(disc.radius, n)
    middle = np.rint(np.array(disc.centre)).astype(int)
    moves = np.rint(centres - disc.centre).astype(int)
    y, x = np.indices((h, w))
    # distances from the disc's centre where a view's pattern is moved by whole pixels
    mask = upright(scan, scan.mask)
    reach = min(*middle, *(np.array((h, w)) - 1 - middle)) / disc.radius
    distance = disc.distance((h, w))
    squares, angles = _bin_disc(distance, middle, bin_, disc)
    detectors = VirtualDetectors(
        np.zeros(n), np.zeros(n), np.zeros(n), np.zeros((n, 2)), np.zeros((n, 2)),
        np.zeros((n, len(angles)), np.float32), angles,
    )  # fmt: skip
    within = distance <= 1
    upper = np.where(y > disc.centre[0], 1.0, -1.0)[within], np.where(x > disc.centre[1], 1.0, -1.0)[within]
    round_part = distance <= max(reach, 1.0)  # a round part of the detector, so that no corner pulls
    sums = np.zeros((h * w, len(angles)), np.float32)
    sums[squares[0], squares[1]] = 1
    for views, stored in _read_slabs(scan, world):
        counts = stored * mask
        for move in np.unique(moves[views], axis=0):
            members = (moves[views] == move).all(axis=1)
            which = views[members]
            moved = _moved(counts[members], move)
            flat = moved.reshape(len(which), -1)
            inside = moved[:, within]
            detectors.bright[which] = inside.sum(axis=1)
            detectors.annular[which] = moved[:, within & (distance >= ANNULUS)].sum(axis=1)
            detectors.dark[which] = moved[:, (distance > DARK) & round_part].sum(axis=1)
            total = np.maximum(inside.sum(axis=1), 1e-30)
            detectors.halves[which] = np.stack([inside @ upper[0], inside @ upper[1]], axis=1) / total[:, None]
            light = moved[:, round_part]
            weight = np.maximum(light.sum(axis=1), 1e-30)
            rest = centres[which] - disc.centre - move
            detectors.centres[which] = (
                np.stack(
                    [
                        light @ (y[round_part] - disc.centre[0]) / weight,
                        light @ (x[round_part] - disc.centre[1]) / weight,
                    ],
                    axis=1,
                )
                - rest
            )
            detectors.pixels[which] = (flat.astype(np.float32) @ sums) / total[:, None]
    names = ("bright", "annular", "dark", "halves", "centres", "pixels")
    merged = _sum_over_ranks(world, *(getattr(detectors, name) for name in names))  # a view is of one rank
    return replace(detectors, **dict(zip(names, merged, strict=True)))


def _read_slabs(scan: Measurement, world: World) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the views of this rank's slabs and their patterns; where a rank cannot read, every rank raises."""
    h, w = scan.window
    every = list(slabs(scan.views, h * w * PIXEL_BYTES))
    for first in range(0, len(every), world.size):
        own_slabs = every[
            first + world.rank : first + world.rank + 1
        ]  # none, where the last turn has fewer slabs than ranks
        yield from world.on_all_ranks(partial(_read, scan, own_slabs), "reading the data")


def _read(scan: Measurement, slabs: list[np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the views of slabs with their patterns."""
    return [(views, _counts(scan, views)) for views in slabs]


def _sum_over_ranks(world: World, *arrays: np.ndarray) -> list[np.ndarray]:
    """Return the sums of arrays over ranks. Collective."""
    return [x.cpu().numpy() for x in world.sum(*(torch.from_numpy(x).to(world.device) for x in arrays))]


def _counts(scan: Measurement, views: np.ndarray) -> np.ndarray:
    """Return the patterns of some views as they lie on the detector, float64, zero where there are no data."""
    return np.maximum(upright(scan, scan.patterns.read(views)), 0).astype(np.float64)


def _moved(counts: np.ndarray, move: np.ndarray) -> np.ndarray:
    """Return patterns (n, h, w) moved back by whole pixels (y, x), with zeros where there was no detector."""
    h, w = counts.shape[1:]
    if not move.any():
        return counts
    moved_counts = np.zeros_like(counts)
    dy, dx = int(move[0]), int(move[1])
    moved_counts[:, max(0, -dy) : h - max(0, dy), max(0, -dx) : w - max(0, dx)] = counts[
        :, max(0, dy) : h - max(0, -dy), max(0, dx) : w - max(0, -dx)
    ]
    return moved_counts


def _bin(radius: float, views: int) -> int:
    """Return the side in detector pixels of the squares that make bright-field pixels."""
    most = max(12, min(MOST_PIXELS, MOST_VALUES // views))
    return max(1, ceil(radius * sqrt(np.pi / most)))


def _bin_disc(
    distance: np.ndarray, middle: np.ndarray, bin_: int, disc: Disc
) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Divide the bright disc into squares of detector pixels, and leave out those that are less than half in the disc.

    Args:
        distance: (h, w) distances from the disc's centre, in radii.
        middle: (2,) int, the pixel nearest to the centre (y, x); it lies in the middle of a square.
        bin_: side of a square in pixels.
        disc: the bright disc.

    Returns:
        Indices (n,) of the pixels in a flat pattern and (n,) of the square of each; and the mean places of the squares
        (K, 2), y x, in radii from the centre.
    """
    h, w = distance.shape
    y, x = np.indices((h, w))
    cell = np.stack([(y - middle[0] + bin_ // 2) // bin_, (x - middle[1] + bin_ // 2) // bin_], axis=-1)
    inside = distance <= 1
    _, index, count = np.unique(cell[inside], axis=0, return_inverse=True, return_counts=True)
    full = count > bin_ * bin_ / 2
    number = np.cumsum(full) - 1
    index = index.reshape(-1)
    used = full[index]
    flat = np.flatnonzero(inside.reshape(-1))[used]
    square = number[index[used]]
    places = np.zeros((int(full.sum()), 2))
    np.add.at(places, square, np.stack([y.reshape(-1)[flat], x.reshape(-1)[flat]], axis=1))
    places /= np.bincount(square, minlength=len(places))[:, None]
    return (flat, square), (places - disc.centre) / disc.radius
