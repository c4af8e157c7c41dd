"""Loops over the blocks of an object that a batch touches, compiled by numba for this CPU. `blocks.py` and
`cpu/sums.py` call them.

L, H, W   slices, object pixels;  n  blocks;  b  side of a block
rows, columns   (n,) int64, block coordinates

Blocks are independent of each other.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import prange

from ptymesh.kernels.arrays import ComplexArray, IntArray, NumberArray, RealArray
from ptymesh.kernels.cpu.compiled.jit import inlined, parallel
from ptymesh.kernels.cpu.compiled.vectors import (
    LANES,
    add_complex,
    broadcast,
    fetch,
    is_zero,
    load,
    load_complex,
    load_sums,
    narrowed,
    second_part,
    store,
    store_complex,
)

U: Any = np.uint64
#: What `write` can do; registers are a complex C and a real R. What is loaded takes a factor and a summand along.
LOAD_C, LOAD_R, C_BY_NUMBER, R_BY_NUMBER, R_AND_NUMBER, C_AND_C, R_AND_R, R_BY_R, R_OVER_R, C_BY_R, C_OVER_R, ROOT_R = (
    range(12)
)
#: Registers of either kind, and fields of either kind that a program may load.
REGISTERS, COMPLEX_FIELDS, REAL_FIELDS = 4, 2, 2
#: Side of a block, and pixels of a register: as many rows as it holds are worked on together.
SIDE, ROOM = 32, 1024
#: So many blocks that lie side by side are worked on together. Measured: of single ones, too little is read in a row;
#: of more, in an object larger than the cache, the processor fetches what lies beyond them, which nobody needs.
LONGEST = 2
#: Rows of a large array are asked for so many rows before they are wanted: they lie far from each other, and nothing
#: else would ask for them in time.
AHEAD = U(4)
#: Two complex fields, two real ones.
Fields = tuple[ComplexArray, ComplexArray, NumberArray, NumberArray]


class StepProgram(NamedTuple):
    """The operations that `write` runs, one after the other.

    Attributes:
        steps: (k, 3) int64, operation and two registers; for loads, a register and a field.
        numbers: (k, L, 2) real, an operation's number in each slice, or a load's factor and summand.
    """

    steps: IntArray
    numbers: RealArray


class Strip(NamedTuple):
    """Rows of pixels of blocks that lie side by side.

    Attributes:
        at: index of the first block.
        l: which slice.
        top: first of the rows in the blocks.
        rows: number of rows.
        width: pixels of a row.
    """

    at: int
    l: int
    top: int
    rows: int
    width: int


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
def _load(
    parts: int, field: NumberArray, strip: Strip, where: IntArray, numbers: RealArray, place: int, out: NumberArray
) -> None:
    """Load rows of a field times a number plus another to `out` from a place on.

    parts: reals of a pixel; where: (2, n), places of blocks in the field.
    """
    at, l, top, rows, width = strip
    y, x = where[0, at] * SIDE + top, where[1, at] * SIDE
    by, plus = broadcast(numbers[0]), broadcast(numbers[1])
    stride, count, k = U(parts * field.shape[2]), U(parts * width), U(place)
    first = U(parts * x) + stride * (U(l) * U(field.shape[1]) + U(y))
    for r in range(U(rows)):
        for c in range(U(0), count, LANES):
            fetch(field, first + (r + AHEAD) * stride + c, LANES)
            store(out, k + c, load(field, first + r * stride + c) * by + plus)
        k += count


@inlined
def _operate(
    op: int, size: int, c: ComplexArray, d: ComplexArray, r: NumberArray, s: NumberArray, number: float
) -> None:
    """Apply an operation to registers c, d (complex) and r, s (real); the first of each is changed.

    `number` is the operand, or for a division by a real field the numerator, 1.
    """
    if op == C_BY_NUMBER:
        for i in range(size):
            c[i] = complex(c[i].real * number, c[i].imag * number)
    elif op == R_BY_NUMBER:
        for i in range(size):
            r[i] = r[i] * number
    elif op == R_AND_NUMBER:
        for i in range(size):
            r[i] = r[i] + number
    elif op == C_AND_C:
        for i in range(size):
            c[i] = c[i] + d[i]
    elif op == R_AND_R:
        for i in range(size):
            r[i] = r[i] + s[i]
    elif op == R_BY_R:
        for i in range(size):
            r[i] = r[i] * s[i]
    elif op == R_OVER_R:
        for i in range(size):
            r[i] = r[i] / s[i]
    elif op == C_BY_R:
        for i in range(size):
            c[i] = complex(c[i].real * s[i], c[i].imag * s[i])
    elif op == C_OVER_R:
        for i in range(size):
            inverse = number / s[i]
            c[i] = complex(c[i].real * inverse, c[i].imag * inverse)
    elif op == ROOT_R:
        for i in range(size):
            r[i] = np.sqrt(r[i])


@inlined
def _of_field(k: int, places: IntArray) -> IntArray:
    """Return the places (2, n) of blocks in a field."""
    return places[min(k, len(places) - 1)]


@inlined
def _run(strip: Strip, program: StepProgram, fields: Fields, places: IntArray, C: ComplexArray, R: NumberArray) -> None:
    """Run the program over a strip; the result is left in C[0]."""
    (steps, numbers), (c0, c1, r0, r1), l = program, fields, strip.l
    for k in range(len(steps)):
        op, a, b = steps[k, 0], steps[k, 1], steps[k, 2]
        where = _of_field(COMPLEX_FIELDS + b if op == LOAD_R else b, places)
        if op == LOAD_C:
            _load(2, c0 if b == 0 else c1, strip, where, numbers[k, l], 2 * ROOM * a, C)
        elif op == LOAD_R:
            _load(1, r0 if b == 0 else r1, strip, where, numbers[k, l], ROOM * a, R)
        else:
            _operate(op, strip.rows * strip.width, C[a], C[b], R[a], R[b], numbers[k, l, 0])


@inlined
def _is_quotient(steps: IntArray) -> bool:
    """Return True if all that a program does is to divide a complex field by a real one."""
    if len(steps) != 3 or steps[2, 0] != C_OVER_R or steps[0, 0] != LOAD_C or steps[1, 0] != LOAD_R:
        return False
    return steps[0, 2] == 0 and steps[1, 2] == 0


@inlined
def _quotient(
    strip: Strip, numbers: RealArray, fields: Fields, places: IntArray, add: bool, target: NumberArray
) -> None:
    """Write what most engines write, without registers: (c0 times a number) / (r0 times a number plus another).

    It is written over blocks side by side. Nothing is added where the numerator is 0, whatever divides it.
    """
    (at, l, _, _, width), (c0, _, r0, _) = strip, fields
    by, divisor, plus = broadcast(numbers[0, l, 0]), broadcast(numbers[1, l, 0]), broadcast(numbers[1, l, 1])
    C, R, T = U(c0.shape[2]), U(r0.shape[2]), U(target.shape[2])
    c = U(SIDE) * (C * U(places[0, 0, at]) + U(places[0, 1, at])) + U(l) * U(c0.shape[1]) * C
    where = _of_field(COMPLEX_FIELDS, places)
    r = U(SIDE) * (R * U(where[0, at]) + U(where[1, at])) + U(l) * U(r0.shape[1]) * R
    t = U(SIDE) * (T * U(places[-1, 0, at]) + U(places[-1, 1, at])) + U(l) * U(target.shape[1]) * T
    for _ in range(SIDE):
        for x in range(U(0), U(width), LANES):
            fetch(c0, U(2) * (c + x + AHEAD * C), U(2) * LANES)
            real, imaginary = load_complex(c0, U(2) * (c + x))
            if add and is_zero(real, imaginary):  # where no window reaches the target need not be read
                continue
            fetch(r0, r + x + AHEAD * R, LANES)
            fetch(target, U(2) * (t + x + AHEAD * T), U(2) * LANES)
            factor = by / (load(r0, r + x) * divisor + plus)
            if add:
                add_complex(target, U(2) * (t + x), real * factor, imaginary * factor)
            else:
                store_complex(target, U(2) * (t + x), real * factor, imaginary * factor)
        c, r, t = c + C, r + R, t + T


@inlined
def _write(
    first: int, last: int, program: StepProgram, fields: Fields, places: IntArray, add: bool, target: NumberArray
) -> None:
    """Write the program's result to blocks first ... last - 1."""
    C, R = np.empty((REGISTERS, ROOM), fields[0].dtype), np.empty((REGISTERS, ROOM), fields[2].dtype)
    quotient = _is_quotient(program.steps)
    at = first
    while at < last:
        count = _side_by_side(at, last, places)
        width, y, x = count * SIDE, places[-1, 0, at] * SIDE, places[-1, 1, at] * SIDE
        together = ROOM // width
        for l in range(target.shape[0]):
            if quotient:
                _quotient(Strip(at, l, 0, SIDE, width), program.numbers, fields, places, add, target)
                continue
            for top in range(0, SIDE, together):
                rows = min(together, SIDE - top)
                _run(Strip(at, l, top, rows, width), program, fields, places, C, R)
                for r in range(rows):
                    into, row = target[l, y + top + r, x : x + width], C[0, r * width : (r + 1) * width]
                    if add:
                        for c in range(width):
                            into[c] += row[c]
                    else:
                        for c in range(width):
                            into[c] = row[c]
        at += count


@parallel
def write(
    steps: IntArray,
    numbers: RealArray,
    fields: Fields,
    places: IntArray,
    add: bool,
    bands: int,
    target: NumberArray,
) -> None:
    """Write, or add, what a program leaves in the first complex register to blocks of a field.

    Args:
        steps: (k, 3) int64, see `StepProgram`.
        numbers: (k, L, 2) real, see `StepProgram`.
        fields: two complex ones and two real ones, (L, H', W') each.
        places: (5, 2, n) int64, block coordinates y x in each field, then in the target; or (1, 2, n), the same in all.
        add: True to add.
        bands: number of bands that threads share.
        target: (L, H, W) complex, changed in place.
    """
    n = places.shape[2]
    for i in prange(bands):
        band = np.int64(i)
        first, last = n * band // bands, n * (band + 1) // bands
        _write(first, last, StepProgram(steps, numbers), fields, places, add, target)


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
        store(out, to + c, narrowed(load_sums(sums, place + c, half), out))


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
    write: "i2 r3 (c3 c3 r3 r3) i3 b i c3",
    clear: "i3 i z3 d3",
    narrow: "i3 i z3 d3 c3 r3",
    largest: "i3 i r3 r2",
}
