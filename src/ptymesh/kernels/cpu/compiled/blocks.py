"""Loops over the blocks of an object that a batch touches, compiled by numba for this CPU. `cpu/blocks.py` and
`cpu/sums.py` call them.

L, H, W   slices, object pixels;  n  blocks;  b  side of a block
rows, columns   (n,) int64, block coordinates

Blocks are independent of each other. Additions of exact terms, of several ranks, are exact in any order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import prange

from ptymesh.kernels.arrays import ComplexArray, IntArray, NumberArray, RealArray
from ptymesh.kernels.cpu.compiled.jit import inlined, parallel, plainly_inlined, plainly_parallel
from ptymesh.kernels.cpu.compiled.vectors import (
    LANES,
    add_complex,
    broadcast,
    fetch,
    is_zero,
    load,
    load_complex,
    narrowed,
    second_part,
    store,
    store_complex,
)

U: Any = np.uint64
#: Side of a block.
SIDE = 32
#: So many blocks that lie side by side are worked on together. Measured: of single ones, too little is read in a row;
#: of more, in an object larger than the cache, the processor fetches what lies beyond them, which nobody needs.
LONGEST = 2
#: Rows of a large array are asked for so many rows before they are wanted: they lie far from each other, and nothing
#: else would ask for them in time.
AHEAD = U(4)


class FormInputs(NamedTuple):
    """The fields and numbers of an expression that `write` knows (kernels/block_forms.py).

    Attributes:
        numbers: (L, 3) real, of each slice: factors of field and weight; summand, or a scaled field's factor.
        field: (L, H', W') complex.
        weight: (L, H', W') real; of no slices for a scaled field.
        places: (3, 2, n) int64, block coordinates y x in the field, in the weight, and in the target.
    """

    numbers: RealArray
    field: ComplexArray
    weight: RealArray
    places: IntArray


@inlined
def _side_by_side(first: int, last: int, places: IntArray) -> int:
    """Return how many of the blocks first ... last - 1, up to LONGEST, lie side by side in all fields, at places (k, 2,
    n)."""
    count = 1
    while first + count < last and count < LONGEST:
        for k in range(places.shape[0]):
            y, x = places[k, 0], places[k, 1]
            if y[first + count] != y[first] or x[first + count] != x[first] + count:
                return count
        count += 1
    return count


@inlined
def _write_quotient(at: int, l: int, width: int, given: FormInputs, add: bool, target: ComplexArray) -> None:
    """Write times field / (factor weight + summand) over blocks side by side, from the at-th on, in slice l.

    Nothing is added where the numerator is 0, whatever divides it.
    """
    numbers, field, weight, places = given
    by, divisor, plus = broadcast(numbers[l, 0]), broadcast(numbers[l, 1]), broadcast(numbers[l, 2])
    C, R, T = U(field.shape[2]), U(weight.shape[2]), U(target.shape[2])
    c = U(SIDE) * (C * U(places[0, 0, at]) + U(places[0, 1, at])) + U(l) * U(field.shape[1]) * C
    r = U(SIDE) * (R * U(places[1, 0, at]) + U(places[1, 1, at])) + U(l) * U(weight.shape[1]) * R
    t = U(SIDE) * (T * U(places[2, 0, at]) + U(places[2, 1, at])) + U(l) * U(target.shape[1]) * T
    for _ in range(SIDE):
        for x in range(U(0), U(width), LANES):
            fetch(field, U(2) * (c + x + AHEAD * C), U(2) * LANES)
            real, imaginary = load_complex(field, U(2) * (c + x))
            if add and is_zero(real, imaginary):  # where no window reaches the target need not be read
                continue
            fetch(weight, r + x + AHEAD * R, LANES)
            fetch(target, U(2) * (t + x + AHEAD * T), U(2) * LANES)
            factor = by / (load(weight, r + x) * divisor + plus)
            if add:
                add_complex(target, U(2) * (t + x), real * factor, imaginary * factor)
            else:
                store_complex(target, U(2) * (t + x), real * factor, imaginary * factor)
        c, r, t = c + C, r + R, t + T


@plainly_inlined
def _write_scaled(at: int, l: int, width: int, given: FormInputs, add: bool, target: ComplexArray) -> None:
    """Write field / sqrt(weight^2 + number), or number field without a weight, over blocks side by side.

    Every operation is rounded by itself.
    """
    numbers, field, weight, places = given
    factors, one, number = np.full(width, numbers[l, 2]), numbers[l, 0], numbers[l, 2]
    C, T, y, x = U(field.shape[2]), U(target.shape[2]), SIDE * places[1, 0, at], SIDE * places[1, 1, at]
    c = U(SIDE) * (C * U(places[0, 0, at]) + U(places[0, 1, at])) + U(l) * U(field.shape[1]) * C
    t = U(SIDE) * (T * U(places[2, 0, at]) + U(places[2, 1, at])) + U(l) * U(target.shape[1]) * T
    for r in range(SIDE):
        if len(weight) > 0:
            row = weight[l, y + r, x : x + width]
            for i in range(width):
                factors[i] = one / np.sqrt(row[i] * row[i] + number)
        for i in range(U(0), U(width), LANES):
            fetch(field, U(2) * (c + i + AHEAD * C), U(2) * LANES)
            (real, imaginary), factor = load_complex(field, U(2) * (c + i)), load(factors, i)
            real, imaginary = real * factor, imaginary * factor
            if add:
                fetch(target, U(2) * (t + i + AHEAD * T), U(2) * LANES)
                p, q = load_complex(target, U(2) * (t + i))
                real, imaginary = p + real, q + imaginary
            store_complex(target, U(2) * (t + i), real, imaginary)
        c, t = c + C, t + T


@inlined
def _write(first: int, last: int, root: bool, given: FormInputs, add: bool, target: ComplexArray) -> None:
    """Write an expression to blocks first ... last - 1."""
    at = first
    while at < last:
        count = _side_by_side(at, last, given.places)
        for l in range(len(target)):
            if root or len(given.weight) == 0:
                _write_scaled(at, l, count * SIDE, given, add, target)
            else:
                _write_quotient(at, l, count * SIDE, given, add, target)
        at += count


@parallel
def write(
    root: bool,
    given: tuple[RealArray, ComplexArray, RealArray, IntArray],
    add: bool,
    bands: int,
    target: ComplexArray,
) -> None:
    """Write, or add, an expression to blocks of a field.

    Args:
        root: True for a field over a root; False for a quotient or, without a weight, a scaled field.
        given: numbers, field, weight and places, see `FormInputs`.
        add: True to add.
        bands: number of bands that threads share.
        target: (L, H, W) complex, changed in place.
    """
    n = given[3].shape[2]
    for i in prange(bands):
        band = np.int64(i)
        first, last = n * band // bands, n * (band + 1) // bands
        _write(first, last, root, FormInputs(given[0], given[1], given[2], given[3]), add, target)


@inlined
def clear_pixels(place: int, stride: int, width: int, field: NumberArray, weight: NumberArray) -> None:
    """Set SIDE rows of pixels of a complex field and of a real one to 0.

    Args:
        place: index of the first pixel.
        stride: pixels from one row to the next.
        width: pixels of a row.
        field: (L, H, W) complex.
        weight: (L, H, W) real.
    """
    nothing = broadcast(weight.dtype.type(0))
    for _ in range(SIDE):
        for x in range(place, place + width, LANES):
            fetch(field, U(2) * (x + AHEAD * stride), U(2) * LANES)
            fetch(weight, x + AHEAD * stride, LANES)
            store(field, U(2) * x, nothing)
            store(field, U(2) * x + LANES, nothing)
            store(weight, x, nothing)
        place += stride


@inlined
def _clear(first: int, last: int, places: IntArray, field: NumberArray, weight: NumberArray) -> None:
    """Set blocks first ... last - 1 to 0."""
    at = first
    while at < last:
        count = _side_by_side(at, last, places)
        y, x, H, W = places[0, 0, at] * SIDE, places[0, 1, at] * SIDE, field.shape[1], U(field.shape[2])
        for l in range(len(field)):
            clear_pixels(W * U(l * H + y) + U(x), W, U(count * SIDE), field, weight)
        at += count


@parallel
def clear(places: IntArray, bands: int, field: NumberArray, weight: NumberArray) -> None:
    """Set blocks of a complex and a real field to 0.

    Args:
        places: (1, 2, n) int64, block coordinates y x.
        bands: number of bands that threads share.
        field: (L, H, W) complex.
        weight: (L, H, W) real.
    """
    n = places.shape[2]
    for i in prange(bands):
        band = np.int64(i)
        _clear(n * band // bands, n * (band + 1) // bands, places, field, weight)


@inlined
def _narrow_row(sums: RealArray, place: int, half: int, count: int, out: NumberArray, to: int) -> None:
    """Round `count` sums to the precision of `out`."""
    for c in range(U(0), count, LANES):
        fetch(sums, place + c, LANES)
        found = load(sums, place + c)
        store(out, to + c, narrowed(found + load(sums, place + half + c) if half > U(0) else found, out))


@inlined
def _narrow(
    first: int,
    last: int,
    places: IntArray,
    sums: RealArray,
    light: NumberArray,
    field: NumberArray,
    weight: NumberArray,
) -> None:
    """Round the sums of blocks first ... last - 1 to the precision of the fields."""
    area, W, parts = U(weight.shape[1] * weight.shape[2]), U(weight.shape[2]), len(light) // len(weight)
    half = second_part(light.size, parts)
    for at in range(first, last):
        for l in range(len(field)):
            place = area * U(l) + W * U(SIDE * places[0, 0, at]) + U(SIDE * places[0, 1, at])
            for _ in range(SIDE):
                _narrow_row(sums, U(2) * place, U(2) * half, U(2 * SIDE), field, U(2) * place)
                _narrow_row(light, place, half, U(SIDE), weight, place)
                place += W


@parallel
def narrow(
    places: IntArray, bands: int, sums: ComplexArray, light: NumberArray, field: NumberArray, weight: NumberArray
) -> None:
    """Write sums, rounded to the model's precision, to blocks of a complex and a real field.

    Args:
        places: (1, 2, n) int64, block coordinates y x.
        bands: number of bands that threads share.
        sums: (parts L, H, W) complex128.
        light: (parts L, H, W) float64, sums of the weight.
        field: (L, H, W) complex, written.
        weight: (L, H, W) real, written.
    """
    n = places.shape[2]
    for i in prange(bands):
        band = np.int64(i)
        _narrow(n * band // bands, n * (band + 1) // bands, places, sums, light, field, weight)


@plainly_inlined
def _row(
    sums: RealArray, of_ranks: tuple[IntArray, IntArray, IntArray], count: int, numbers: int, out: NumberArray, to: int
) -> None:
    """Write `numbers` numbers of `out`, from a place on: the totals over `count` ranks.

    of_ranks: index of each rank's number; how far behind it the second part is, 0 if there is none; numbers from row to
    row.
    """
    at, half, step = of_ranks
    for c in range(U(0), numbers, LANES):
        fetch(sums, at[0] + c + AHEAD * step[0], LANES)
        found = load(sums, at[0] + c)
        for r in range(1, count):
            fetch(sums, at[r] + c + AHEAD * step[r], LANES)
            found = found + load(sums, at[r] + c)
        if half[0] > U(0):
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
                    half[1, count] = L * plane if parts > 1 else U(0)
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


@inlined
def _largest(first: int, last: int, places: IntArray, field: NumberArray, out: NumberArray) -> None:
    """Write the largest values of a real field on blocks first ... last - 1, by slice."""
    for l in range(len(field)):
        tops = np.zeros(SIDE, out.dtype)  # of columns: one top for all would be found pixel after pixel
        for at in range(first, last):
            y, x = places[0, 0, at] * SIDE, places[0, 1, at] * SIDE
            for r in range(SIDE):
                row = field[l, y + r, x : x + SIDE]
                for c in range(SIDE):
                    tops[c] = row[c] if row[c] > tops[c] else tops[c]
        top = tops[0]
        for c in range(1, SIDE):
            top = max(top, tops[c])
        out[l] = top


@parallel
def largest(places: IntArray, bands: int, field: NumberArray, out: NumberArray) -> None:
    """Write the largest values of a real field on some blocks, or 0 if all are smaller.

    Args:
        places: (1, 2, n) int64, block coordinates y x.
        bands: number of bands that threads share.
        field: (L, H, W) real.
        out: (bands, L) real, written; the largest over all bands is the result.
    """
    n = places.shape[2]
    for i in prange(bands):
        band = np.int64(i)
        _largest(n * band // bands, n * (band + 1) // bands, places, field, out[i])


#: See compiled.SIGNATURES; what stands in brackets is a tuple.
SIGNATURES = {
    write: "b (r2 c3 r3 i3) b i c3",
    clear: "i3 i z3 d3",
    narrow: "i3 i z3 d3 c3 r3",
    add_shared: "(i3 i1) i2 i i d1 (c3 r3)",
    largest: "i3 i r3 r2",
}
