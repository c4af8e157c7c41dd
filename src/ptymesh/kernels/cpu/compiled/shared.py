"""Sums of several ranks, each in an array of its own, added to one field: compiled by numba for this CPU.

L, H, W   slices, object pixels of the field;  n  blocks
k         ranks, whose arrays may begin elsewhere and have other sides

Additions of exact terms are exact in any order; the total is rounded once, to the precision of the field.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from ptymesh.kernels.arrays import ComplexArray, IntArray, NumberArray, RealArray
from ptymesh.kernels.cpu.compiled.blocks import AHEAD, SIDE
from ptymesh.kernels.cpu.compiled.jit import plainly_inlined, plainly_parallel
from ptymesh.kernels.cpu.compiled.vectors import LANES, fetch, load, narrowed, store

U: Any = np.uint64
NONE: Any = U(0)


@plainly_inlined
def _row(
    sums: RealArray, of_ranks: tuple[IntArray, IntArray, IntArray], count: int, numbers: int, out: NumberArray, to: int
) -> None:
    """Write `numbers` numbers of `out`, from a place on: the totals over `count` ranks.

    of_ranks: index of each rank's number; how far behind it the second part is, 0 if there is none; numbers from row to
    row.
    """
    at, half, step = of_ranks
    for c in range(NONE, numbers, LANES):
        fetch(sums, at[0] + c + AHEAD * step[0], LANES)
        found = load(sums, at[0] + c)
        for r in range(1, count):
            fetch(sums, at[r] + c + AHEAD * step[r], LANES)
            found = found + load(sums, at[r] + c)
        if half[0] > NONE:
            rest = load(sums, at[0] + half[0] + c)
            for r in range(1, count):
                rest = rest + load(sums, at[r] + half[r] + c)
            found = found + rest
        store(out, to + c, narrowed(found, out))
    for r in range(count):
        at[r] += step[r]


@plainly_inlined
def _places(rank: IntArray, l: int, y: int, x: int) -> tuple[int, int, int, int]:
    """Return the indices of a rank's sums and weights of a block, and the numbers of its weight in a slice and in a
    row."""
    H, W = rank[2], rank[3]
    pixel = (l * H + SIDE * (y + rank[4])) * W + SIDE * (x + rank[5])
    return U(rank[0] + 2 * pixel), U(rank[1] + pixel), U(H * W), U(W)


@plainly_inlined
def _add(
    first: int,
    last: int,
    blocks: tuple[IntArray, IntArray],
    ranks: IntArray,
    parts: int,
    sums: RealArray,
    out: tuple[ComplexArray, RealArray],
) -> None:
    """Add the ranks' sums of blocks first ... last - 1."""
    (places, reached), (field, weight) = blocks, out
    # of the sums and of their weight, by rank: see _row
    at, half, step = (
        np.empty((2, len(ranks)), np.uint64),
        np.empty((2, len(ranks)), np.uint64),
        np.empty((2, len(ranks)), np.uint64),
    )
    L, W = U(len(field)), U(weight.shape[2])
    for b in range(first, last):
        y, x = places[0, 0, b], places[0, 1, b]
        for l in range(len(field)):
            count = 0
            for r in range(len(ranks)):
                if reached[b] < 0 or (reached[b] >> r) & 1:
                    at[0, count], at[1, count], plane, width = _places(ranks[r], l, y, x)
                    step[0, count], step[1, count] = U(2) * width, width
                    half[1, count] = L * plane if parts > 1 else NONE
                    half[0, count] = U(2) * half[1, count]
                    count += 1
            to = U(l) * U(weight.shape[1]) * W + U(SIDE * y) * W + U(SIDE * x)
            for _ in range(SIDE):
                _row(sums, (at[0], half[0], step[0]), count, U(2 * SIDE), field, U(2) * to)
                _row(sums, (at[1], half[1], step[1]), count, U(SIDE), weight, to)
                to += W


@plainly_parallel
def add_shared(
    blocks: tuple[IntArray, IntArray],
    ranks: IntArray,
    parts: int,
    bands: int,
    sums: RealArray,
    out: tuple[ComplexArray, RealArray],
) -> None:
    """Write the totals of the sums of some ranks to blocks of a complex and a real field.

    Args:
        blocks: block coordinates y x, (1, 2, n) int64; ranks that contribute to each block, (n,) int64, as bits of a
            number that is not 0, or -1 for all.
        ranks: (k, 6) int64, as in `physics.sums.RankSums`.
        parts: of each sum, 1 or 2.
        bands: number of bands that threads share.
        sums: (m,) float64, sums and weights of all ranks.
        out: field (L, H, W) complex and weight (L, H, W) real, written.
    """
    n = blocks[0].shape[2]
    for i in prange(bands):
        band = np.int64(i)
        _add(n * band // bands, n * (band + 1) // bands, blocks, ranks, parts, sums, out)


#: See compiled.SIGNATURES; what stands in brackets is a tuple.
SIGNATURES = {add_shared: "(i3 i1) i2 i i d1 (c3 r3)"}
