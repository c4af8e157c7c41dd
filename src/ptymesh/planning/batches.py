"""Batches: a function of (seed, epoch, nominal positions, batch size, schedule) alone, drawn over all ranks.

N, B    views, views of a batch
R       ranks
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ptymesh.distributed.layouts.owners import along_curve
from ptymesh.engines.base import Order

#: Keys that keep random numbers for different purposes, of one seed, apart.
_MEMBERS, _HELD_OUT = 1, 2


def draw(
    nominal: np.ndarray,
    size: int | None,
    seed: int,
    epoch: int,
    order: Order = "random",
    among: np.ndarray | None = None,
) -> list[np.ndarray]:
    """Draw batches of nearly equal sizes: 516 views in batches of 64 make 9 batches of 57 or 58.

    The views are put in the order of a space-filling curve. `random`: it is cut into runs of as many views as there
    are batches, and every batch gets one view of each run at random, so that each batch covers the scan; `uniform`:
    the same, but always with the same members; `compact`: batches are pieces of the curve, clusters of neighbours.
    The order of batches is random.

    Args:
        nominal: (N, 2) float, nominal positions in pixels.
        size: B, None for all views.
        seed: of the random numbers.
        epoch: number of epochs done before this one.
        order: how batches are composed, as above.
        among: indices of the views that take part; None: all.

    Returns:
        Indices of views, one integer array per batch, ascending within a batch.
    """
    return deal_batches(order_along_curve(nominal, among), size, seed, epoch, order)


def order_along_curve(nominal: np.ndarray, among: np.ndarray | None = None) -> np.ndarray:
    """Return the views that take part in the order of the curve, which is the same in every epoch."""
    views = np.arange(len(nominal)) if among is None else among
    return views[along_curve(nominal[views])]


def deal_batches(
    curve: np.ndarray, size: int | None, seed: int, epoch: int, order: Order = "random"
) -> list[np.ndarray]:
    """Draw batches as `draw` does, of views that are in the order of the curve already.

    Args:
        curve: (n,) integer, indices of the views that take part, as `order_along_curve` returns them.
        size: B, None for all views.
        seed: of the random numbers.
        epoch: number of epochs done before this one.
        order: how batches are composed.

    Returns:
        Indices of views, one integer array per batch, ascending within a batch.
    """
    count = 1 if size is None else math.ceil(len(curve) / size)
    rng = np.random.default_rng([seed, epoch, _MEMBERS])
    if order == "compact":
        batches = np.array_split(curve, count)
        return [np.sort(batches[b]) for b in rng.permutation(count)]
    members = rng if order == "random" else np.random.default_rng([seed, 0, _MEMBERS])
    batch_of = np.empty(len(curve), dtype=np.int64)
    for start in range(0, len(curve), count):
        batch_of[start : start + count] = members.permutation(count)[: len(curve) - start]
    ends = np.cumsum(np.bincount(batch_of, minlength=count)).tolist()
    sorted_ = curve[np.lexsort((curve, batch_of))]
    batches = [sorted_[start:end] for start, end in pairwise((0, *ends))]
    return batches if order == "random" else [batches[b] for b in rng.permutation(count)]


def balance(owner: np.ndarray, batches: Sequence[np.ndarray], ranks: int) -> float:
    """Return the share of the speed of equal shares that these owners leave, at most 1.

    Each batch waits for the rank that has most of it: B/R over the largest share, averaged over batches.

    Args:
        owner: (N,) integer, the rank that owns each view.
        batches: indices of views, one array per batch.
        ranks: R.
    """
    shares = [len(batch) / ranks / np.bincount(owner[batch], minlength=ranks).max() for batch in batches]
    return float(np.mean(shares))


def hold_out(nominal: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """Return the views that no update sees: about `fraction` of them, spread evenly over the scan.

    One view is taken at random of each run of 1/fraction neighbours along the space-filling curve.

    Args:
        nominal: (N, 2) float, nominal positions in pixels.
        fraction: of the views, from 0 to below 1.
        seed: of the random numbers.

    Returns:
        (n,) integer, ascending indices.
    """
    if not fraction:
        return np.empty(0, dtype=np.int64)
    curve = along_curve(nominal)
    count = max(1, min(len(curve) - 1, round(fraction * len(curve))))
    rng = np.random.default_rng([seed, 0, _HELD_OUT])
    return np.sort([rng.choice(run) for run in np.array_split(curve, count)])
