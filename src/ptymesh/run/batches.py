"""Batches: a function of (seed, epoch, nominal positions, batch size, schedule) alone, drawn over all ranks.

N, B    views, views of a batch
"""

from __future__ import annotations

import math

import numpy as np

from ptymesh.parallel.layout import along_curve


def draw(nominal: np.ndarray, size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Random batches, stratified in space, of nearly equal sizes.

    The views, in the order of a space-filling curve, are cut into runs of as many views as there are batches; every
    batch gets one view of each run at random. 516 views in batches of 64 make 9 batches of 57 or 58.

    nominal: (N, 2); size: B, at most N is used; -> index arrays, ascending within a batch, in random order of batches.
    """
    count = math.ceil(len(nominal) / size)
    rng = np.random.default_rng([seed, epoch, _PURPOSE])
    order = along_curve(nominal)
    batch_of = np.empty(len(nominal), dtype=np.int64)
    for start in range(0, len(order), count):
        run = order[start : start + count]
        batch_of[run] = rng.permutation(count)[: len(run)]
    return [np.flatnonzero(batch_of == b) for b in range(count)]


#: Keeps these random numbers apart from others drawn from the same seed and epoch.
_PURPOSE = 1
