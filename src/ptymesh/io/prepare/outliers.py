"""Search for views and detector pixels that cannot be measurements of the sample, judged by the rest of a scan.

N       views
h, w    window pixels; arrays here have DC in the middle of far-field patterns
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy

#: A view with less than this share of the typical counts is dark.
DARK = 0.03
#: A view with more than this many times the typical counts is too bright.
BRIGHT = 5.0
#: Least share that neighbours of dark views have of their own neighbours' counts, if the beam was lost. Beside an
#: opaque part of the sample they have less, because the probe is wider than a step.
SHARP = 0.7
#: Least counts of a typical view; with fewer, a view can be dark by chance.
LEAST_COUNTS = 100.0
#: Largest share of views that are taken for too bright by a fault.
FEW_BRIGHT = 0.1
#: Least number of views of a scan in which too bright views are looked for.
LEAST_VIEWS = 16
#: Neighbours in the scan lie within this many steps.
NEAR = 1.6
#: Counts over all views on both sides of a dark pixel that cannot have left it dark by chance.
SEED_COUNTS = 200.0
#: Counts on both sides of a dark pixel that is dark for the same reason as one beside it.
GROWN_COUNTS = 10.0


@dataclass(frozen=True)
class OddViews:
    """Views (n,) that are no measurement of the sample.

    Attributes:
        empty: without a count.
        lost: with next to no counts, where neighbours have many.
        bright: with far too many counts.
    """

    empty: np.ndarray
    lost: np.ndarray
    bright: np.ndarray

    @property
    def all(self) -> np.ndarray:
        """All of them, in ascending order."""
        return np.sort(np.concatenate([self.empty, self.lost, self.bright]))


def odd_views(totals: np.ndarray, positions: np.ndarray, *, related: bool = True) -> OddViews:
    """Return views whose counts are not those of the beam that the other views had.

    Dark views are faults if the light vanishes between neighbours in the scan: the edge of an opaque part of the sample
    cannot be that sharp, because the probe is wider than a step. Too bright views are faults if they are few, and their
    neighbours are not bright.

    Args:
        totals: (N,) counts per view, divided by the incident intensity if that is known.
        positions: (N, 2) object pixels, y x.
        related: False if neighbouring positions do not share a part of the sample (single exposures); then only views
            without a count are odd.
    """
    none = np.empty(0, np.int64)
    nonzero = totals[totals > 0]
    if not len(nonzero):
        return OddViews(none, none, none)
    level = float(np.median(nonzero[nonzero > DARK * np.median(nonzero)]))
    if level < LEAST_COUNTS:
        return OddViews(none, none, none)
    dark = totals < DARK * level
    if not related:
        return OddViews(np.flatnonzero(totals == 0), none, none)
    bright = totals > BRIGHT * level
    pairs = neighbours(positions)
    cut_off = _abrupt_views(dark, totals, pairs, lambda near, far, _: bool(np.median(near) >= SHARP * np.median(far)))
    flash = none
    if len(totals) >= LEAST_VIEWS and bright.sum() <= max(1, FEW_BRIGHT * len(totals)):
        flash = _abrupt_views(
            bright, totals, pairs, lambda near, _, own: bool(np.quantile(near, 0.75) * BRIGHT <= np.median(own))
        )
    return OddViews(cut_off[totals[cut_off] == 0], cut_off[totals[cut_off] > 0], flash)


def neighbours(positions: np.ndarray) -> np.ndarray:
    """Return pairs (P, 2) of views that lie within NEAR typical steps of each other in the scan (N, 2)."""
    distinct = np.unique(np.round(positions, 2), axis=0)
    if len(distinct) < 2:
        return np.empty((0, 2), np.int64)
    step = float(np.median(scipy.spatial.cKDTree(distinct).query(distinct, k=2)[0][:, 1]))
    return np.asarray(scipy.spatial.cKDTree(positions).query_pairs(NEAR * step, output_type="ndarray"), np.int64)


def _abrupt_views(
    odd: np.ndarray,
    totals: np.ndarray,
    pairs: np.ndarray,
    is_abrupt: Callable[[np.ndarray, np.ndarray, np.ndarray], bool],
) -> np.ndarray:
    """Return the odd views (n,) in those groups of neighbouring odd views that pass a test.

    Args:
        odd: (N,) bool.
        totals: (N,) counts per view.
        pairs: (P, 2) neighbours.
        is_abrupt: the test, called with the counts of a group's neighbours, of their neighbours, and of the group. If
            there are no neighbours, all views that are not odd take their place.
    """
    odd_numbers = np.flatnonzero(odd)
    if not len(odd_numbers) or odd.all():
        return np.empty(0, np.int64)
    links = scipy.sparse.coo_matrix(
        (np.ones(2 * len(pairs), bool), (pairs.T.ravel(), pairs[:, ::-1].T.ravel())), shape=(len(odd),) * 2
    )
    links = links.tocsr()
    group = scipy.sparse.csgraph.connected_components(links[odd_numbers][:, odd_numbers], directed=False)[1]
    groups = []
    for name in range(group.max() + 1):
        members = odd_numbers[group == name]
        near_views = np.setdiff1d(links[members].indices, members)
        far = np.setdiff1d(links[near_views].indices, np.concatenate([members, near_views]))
        counts = [totals[views[~odd[views]]] for views in (near_views, far)]
        close, beyond = (values if len(values) else totals[~odd] for values in counts)
        if is_abrupt(close, beyond, totals[members]):
            groups.append(members)
    return np.sort(np.concatenate(groups)) if groups else np.empty(0, np.int64)


def dark_regions(sums: np.ndarray, most: np.ndarray, mask: np.ndarray, *, far: bool) -> np.ndarray:
    """Return pixels without a count in any view where light must have fallen: module gaps, beam stops, dead rows.

    Light must have fallen on a pixel if both of its sides, along a row or a column, are bright; on a whole row or
    column between bright ones; and, in far-field patterns, on a pixel whose three mirror images are all bright.

    Args:
        sums: (h, w) counts over all views.
        most: (h, w) largest count of any view.
        mask: (h, w) bool, True where good.
        far: whether these are far-field patterns.

    Returns:
        (h, w) bool.
    """
    dark = np.asarray(mask & (most == 0))
    if not dark.any():
        return dark
    lit = mask & (most > 0)
    smooth = _local_mean(sums, lit)
    between = np.maximum(_both_sides(smooth, lit), _both_sides(smooth.T, lit.T).T)
    if far:
        between = np.maximum(between, _mirrored(np.where(lit, smooth, 0)))
    grown = scipy.ndimage.binary_propagation(
        dark & (between >= SEED_COUNTS), structure=np.ones((3, 3), bool), mask=dark & (between >= GROWN_COUNTS)
    )
    return np.asarray(grown | _dark_lines(sums, dark, lit) | _dark_lines(sums.T, dark.T, lit.T).T)


def _local_mean(sums: np.ndarray, lit: np.ndarray) -> np.ndarray:
    """Return the mean of the lit ones of 3 x 3 pixels; 0 on pixels that are not lit."""
    weight = scipy.ndimage.uniform_filter(lit.astype(np.float64), 3, mode="constant")
    total = scipy.ndimage.uniform_filter(np.where(lit, sums, 0).astype(np.float64), 3, mode="constant")
    return np.where(lit, total / np.maximum(weight, 1e-9), 0)


def _both_sides(values: np.ndarray, lit: np.ndarray) -> np.ndarray:
    """Return the lesser of the nearest lit values to the left and right of each pixel; 0 if a side has none."""
    width = values.shape[1]
    columns = np.arange(width)
    before = np.maximum.accumulate(np.where(lit, columns, -1), axis=1)
    after = np.minimum.accumulate(np.where(lit, columns, width)[:, ::-1], axis=1)[:, ::-1]
    left = np.where(before >= 0, np.take_along_axis(values, np.maximum(before, 0), axis=1), 0)
    right = np.where(after < width, np.take_along_axis(values, np.minimum(after, width - 1), axis=1), 0)
    return np.minimum(left, right)


def _mirrored(values: np.ndarray) -> np.ndarray:
    """Return the least of each pixel's three mirror images about the zero frequency; 0 outside the window."""
    h, w = values.shape
    rows, columns = 2 * (h // 2) - np.arange(h), 2 * (w // 2) - np.arange(w)
    inside_y, inside_x = (rows >= 0) & (rows < h), (columns >= 0) & (columns < w)
    flipped_y = np.where(inside_y[:, None], values[np.clip(rows, 0, h - 1)], 0)
    flipped_x = np.where(inside_x, values[:, np.clip(columns, 0, w - 1)], 0)
    turned = np.where(inside_x, flipped_y[:, np.clip(columns, 0, w - 1)], 0)
    return np.minimum(np.minimum(flipped_y, flipped_x), turned)


def _dark_lines(sums: np.ndarray, dark: np.ndarray, lit: np.ndarray) -> np.ndarray:
    """Return the dark pixels in rows without any count that lie between rows with many."""
    has_light = np.asarray(lit.any(axis=1))
    totals = np.where(lit, sums, 0).sum(axis=1)
    between = _both_sides(totals[None], has_light[None])[0]
    return dark & (~has_light & (between >= SEED_COUNTS))[:, None]


def regions_of(bad: np.ndarray) -> list[tuple[int, int, int, int]]:
    """Return rectangles [row, end, column, end] that together cover exactly the True pixels of an array (H, W).

    Equal runs in successive rows make one rectangle.
    """
    regions: list[tuple[int, int, int, int]] = []
    open_at: dict[tuple[int, int], int] = {}
    for row in range(len(bad) + 1):
        runs: set[tuple[int, int]] = set()
        if row < len(bad) and bad[row].any():
            edges = np.flatnonzero(np.diff(np.concatenate(([0], bad[row].astype(np.int8), [0]))))
            runs = {(int(start), int(end)) for start, end in edges.reshape(-1, 2)}
        for run in [run for run in open_at if run not in runs]:
            regions.append((open_at.pop(run), row, *run))
        for run in runs:
            open_at.setdefault(run, row)
    return sorted(regions)
