"""Waves in panels of eight columns, and their Fourier transform: what kernels that transform are made of.

M, h, w      modes, window pixels;  h, w >= 8
panel        eight neighbouring columns of one wave, all its rows: row after row the eight real parts, then the eight
             imaginary ones (vectors.py); of a last panel that is not full, the rest means nothing
plane        (2 h w',) real, a wave panel after panel; w' is w rounded up to whole panels
row          (2 w' 8,) real, eight rows of a wave in the same way: column after column
plan         (2, k) radices whose products are h and w, filled up with zeros; or nothing but zeros where waves have
             been transformed by other means
twiddles     (2, 2 max(h, w)) cos and -sin of 2 pi k / h, by turns, and of 2 pi k / w
work         (bands, n) real, room to work in for every band, kept from call to call: threads ask for no large memory

The transform is Stockham's: every stage reads one array and writes another, and nothing has to be sorted (Van Loan,
Computational Frameworks for the Fast Fourier Transform, 1992, sec. 1.7). The inverse is that of conjugate numbers,
conjugated: what is to be transformed inversely is made conjugate, and made so again when rows leave a plane.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ptymesh.kernels.arrays import ComplexArray, IntArray, RealArray, Tables
from ptymesh.kernels.cpu.compiled.jit import inlined
from ptymesh.kernels.cpu.compiled.vectors import (
    LANES,
    ComplexVector,
    Vector,
    broadcast,
    load,
    load_as,
    load_complex,
    load_eight,
    narrowed,
    number,
    put_number,
    store,
    store_complex,
    store_eight,
    transposed,
)

U: Any = np.uint64
ZERO, ONE, TWO, THREE = U(0), U(1), U(2), U(3)
#: Real numbers that belong to a pixel of eight neighbours: real parts, imaginary parts.
PAIR = TWO * LANES
#: Columns of a panel, for others to count with.
WIDTH = int(LANES)
#: Pixels of eight rows: real and imaginary parts of each.
EightRows = tuple[ComplexVector, ...]
#: Stages that `transform` knows, in this order: those of radix 8 and 2 are the last.
RADICES = (3, 5, 7, 4, 2)


class WindowTransform(NamedTuple):
    """The transform of waves of one size, with its workspace.

    Attributes:
        h: rows of a window.
        w: columns of a window.
        row: (2 w' 8,) real, workspace of eight rows.
        spare: (4 max(h, w) 8,) real, workspace of `transform`.
        plan: (2, k) int64, radices by axis.
        twiddles: (2, 2 max(h, w)) real, by axis.
    """

    h: int
    w: int
    row: RealArray
    spare: RealArray
    plan: IntArray
    twiddles: RealArray


class WindowPlace(NamedTuple):
    """A window of complex pixels in an array: a wave of several, or a view's part of an object.

    Attributes:
        array: complex, C-contiguous.
        place: index at which the window starts, in reals.
        stride: reals from one row to the next.
        h: rows of the window.
        w: columns of the window.
    """

    array: ComplexArray
    place: int
    stride: int
    h: int
    w: int


class WavePlanes(NamedTuple):
    """Planes of several waves, one after the other.

    Attributes:
        numbers: (2 h w' waves,) real or longer.
        size: pixels h w' of a plane.
        waves: number of waves.
    """

    numbers: RealArray
    size: int
    waves: int


def stages(size: int) -> list[int]:
    """Return the radices of a transform of this length; none if it is too short or has prime factors other than 2, 3,
    5, 7."""
    found, rest = [], size
    for radix in RADICES:
        while rest % radix == 0 and rest > 1:
            found.append(radix)
            rest //= radix
    if found[-2:] == [4, 2]:
        found[-2:] = [8]
    return found if rest == 1 and size >= LANES else []


def panel_pixels(h: int, w: int) -> int:
    """Return the number of pixels h w' of all panels of a wave."""
    return h * (w + -w % WIDTH)


def work_size(modes: int, h: int, w: int, slices: int = 1) -> int:
    """Return the number of reals that a band of threads works in: counts, powers and factors, a row and two spare ones,
    and what `kept_size` says.

    Args:
        modes: number of modes.
        h: rows of a window.
        w: columns of a window.
        slices: number of slices.
    """
    panels = 3 * panel_pixels(h, w) + 2 * panel_pixels(WIDTH, w) + 4 * WIDTH * max(h, w)
    return panels + kept_size(modes, h, w, slices)


def kept_size(modes: int, h: int, w: int, slices: int = 1) -> int:
    """Return the number of reals that a view has on its way back from the detector.

    They hold planes. For views that go further than to the detector and back (row_panels.py) they also hold a second
    row, and row panels: of each slice's window and of all modes that enter it, of the gathered window and of its light.

    Args:
        modes: number of modes.
        h: rows of a window.
        w: columns of a window.
        slices: number of slices.
    """
    row_panels = panel_pixels(h + -h % WIDTH, w) * (2 * slices * (modes + 1) + 3)
    return 2 * modes * panel_pixels(h, w) + 2 * panel_pixels(WIDTH, w) + row_panels


# --- the transform of panels and rows ---


@inlined
def _stage4(x: RealArray, at: int, y: RealArray, to: int, n: int, s: int, twiddles: RealArray) -> None:
    """Compute n / 4 butterflies, each over a run of s pixels, which is the step through the twiddles, too."""
    m, between = n // U(4), PAIR * s
    far = m * between
    for p in range(m):
        t = TWO * p * s
        c1, d1 = broadcast(twiddles[t]), broadcast(twiddles[t + ONE])
        c2, d2 = broadcast(twiddles[TWO * t]), broadcast(twiddles[TWO * t + ONE])
        c3, d3 = broadcast(twiddles[THREE * t]), broadcast(twiddles[THREE * t + ONE])
        begin, o0 = at + p * between, to + U(4) * p * between
        for i0 in range(begin, begin + between, PAIR):
            i1 = i0 + far
            i2, i3 = i1 + far, i1 + TWO * far
            x0, u0, x2, u2 = load(x, i0), load(x, i0 + LANES), load(x, i2), load(x, i2 + LANES)
            x1, u1, x3, u3 = load(x, i1), load(x, i1 + LANES), load(x, i3), load(x, i3 + LANES)
            a, b, c, d = x0 + x2, u0 + u2, x0 - x2, u0 - u2
            e, f, g, k = x1 + x3, u1 + u3, u1 - u3, x3 - x1
            o1 = o0 + between
            o2, o3 = o1 + between, o1 + TWO * between
            store(y, o0, a + e)
            store(y, o0 + LANES, b + f)
            a, b, e, f = a - e, b - f, c + g, d + k
            store(y, o1, c1 * e - d1 * f)
            store(y, o1 + LANES, c1 * f + d1 * e)
            store(y, o2, c2 * a - d2 * b)
            store(y, o2 + LANES, c2 * b + d2 * a)
            e, f = c - g, d - k
            store(y, o3, c3 * e - d3 * f)
            store(y, o3 + LANES, c3 * f + d3 * e)
            o0 += PAIR


@inlined
def _stage2(x: RealArray, at: int, y: RealArray, to: int, s: int) -> None:
    """Compute the last stage of an even length: sums and differences."""
    for q in range(ZERO, PAIR * s, LANES):
        a, b = load(x, at + q), load(x, at + PAIR * s + q)
        store(y, to + q, a + b)
        store(y, to + PAIR * s + q, a - b)


@inlined
def _stage8(x: RealArray, at: int, y: RealArray, to: int, s: int, root: Vector) -> None:
    """Compute the last stage of a length with an odd power of two above 2: eight terms each, without twiddles.

    `root` is the square root of 1/2.
    """
    far, top = PAIR * s, U(8) * PAIR * s
    for q in range(ZERO, far, PAIR):
        i, o = at + q, to + q
        a0, b0, a4, b4 = load(x, i), load(x, i + LANES), load(x, i + top // TWO), load(x, i + top // TWO + LANES)
        i += far
        a1, b1, a5, b5 = load(x, i), load(x, i + LANES), load(x, i + top // TWO), load(x, i + top // TWO + LANES)
        i += far
        a2, b2, a6, b6 = load(x, i), load(x, i + LANES), load(x, i + top // TWO), load(x, i + top // TWO + LANES)
        i += far
        a3, b3, a7, b7 = load(x, i), load(x, i + LANES), load(x, i + top // TWO), load(x, i + top // TWO + LANES)
        # sums and differences of terms half a turn apart, then of those a quarter apart: even terms of the result ...
        c0, d0, c4, d4 = a0 + a4, b0 + b4, a0 - a4, b0 - b4
        c2, d2, c6, d6 = a2 + a6, b2 + b6, b2 - b6, a6 - a2
        c1, d1, c5, d5 = a1 + a5, b1 + b5, a1 - a5, b1 - b5
        c3, d3, c7, d7 = a3 + a7, b3 + b7, b3 - b7, a7 - a3
        a0, b0, a2, b2 = c0 + c2, d0 + d2, c0 - c2, d0 - d2
        a1, b1, a3, b3 = c1 + c3, d1 + d3, d1 - d3, c3 - c1
        store(y, o, a0 + a1)
        store(y, o + LANES, b0 + b1)
        store(y, o + top // TWO, a0 - a1)
        store(y, o + top // TWO + LANES, b0 - b1)
        o += TWO * far
        store(y, o, a2 + a3)
        store(y, o + LANES, b2 + b3)
        store(y, o + top // TWO, a2 - a3)
        store(y, o + top // TWO + LANES, b2 - b3)
        # ... and odd ones: of the second, fourth ... term, an eighth of a turn, or three, on
        a4, b4, a6, b6 = c4 + c6, d4 + d6, c4 - c6, d4 - d6
        c1, d1, c3, d3 = c5 + c7, d5 + d7, c5 - c7, d5 - d7
        a5, b5, a7, b7 = root * (c1 + d1), root * (d1 - c1), root * (d3 - c3), root * (c3 + d3)
        o -= far
        store(y, o, a4 + a5)
        store(y, o + LANES, b4 + b5)
        store(y, o + top // TWO, a4 - a5)
        store(y, o + top // TWO + LANES, b4 - b5)
        o += TWO * far
        store(y, o, a6 + a7)
        store(y, o + LANES, b6 - b7)
        store(y, o + top // TWO, a6 - a7)
        store(y, o + top // TWO + LANES, b6 + b7)


@inlined
def _turned_on(y: RealArray, o: int, c: Vector, d: Vector, real: Vector, imaginary: Vector) -> None:
    """Write a pixel of the result, turned by its twiddle c + i d."""
    store(y, o, c * real - d * imaginary)
    store(y, o + LANES, c * imaginary + d * real)


@inlined
def _stage3(x: RealArray, at: int, y: RealArray, to: int, n: int, s: int, twiddles: RealArray) -> None:
    """Compute n / 3 butterflies, each over a run of s pixels; the length of the whole transform is n s."""
    m, between, third = n // THREE, PAIR * s, TWO * (n // THREE * s)
    far, cos, sin = m * between, broadcast(twiddles[third]), broadcast(-twiddles[third + ONE])
    for p in range(m):
        t = TWO * p * s
        c1, d1 = broadcast(twiddles[t]), broadcast(twiddles[t + ONE])
        c2, d2 = broadcast(twiddles[TWO * t]), broadcast(twiddles[TWO * t + ONE])
        begin, o = at + p * between, to + THREE * p * between
        for i in range(begin, begin + between, PAIR):
            x0, u0 = load(x, i), load(x, i + LANES)
            x1, u1 = load(x, i + far), load(x, i + far + LANES)
            x2, u2 = load(x, i + TWO * far), load(x, i + TWO * far + LANES)
            a, b, e, f = x1 + x2, u1 + u2, sin * (x1 - x2), sin * (u1 - u2)
            store(y, o, x0 + a)
            store(y, o + LANES, u0 + b)
            a, b = x0 + cos * a, u0 + cos * b
            _turned_on(y, o + between, c1, d1, a + f, b - e)
            _turned_on(y, o + TWO * between, c2, d2, a - f, b + e)
            o += PAIR


@inlined
def _stage5(x: RealArray, at: int, y: RealArray, to: int, n: int, s: int, twiddles: RealArray) -> None:
    """Compute n / 5 butterflies, each over a run of s pixels; the length of the whole transform is n s."""
    m, between, fifth = n // U(5), PAIR * s, TWO * (n // U(5) * s)
    far = m * between
    cos1, sin1 = broadcast(twiddles[fifth]), broadcast(-twiddles[fifth + ONE])
    cos2, sin2 = broadcast(twiddles[TWO * fifth]), broadcast(-twiddles[TWO * fifth + ONE])
    for p in range(m):
        t = TWO * p * s
        c1, d1 = broadcast(twiddles[t]), broadcast(twiddles[t + ONE])
        c2, d2 = broadcast(twiddles[TWO * t]), broadcast(twiddles[TWO * t + ONE])
        c3, d3 = broadcast(twiddles[THREE * t]), broadcast(twiddles[THREE * t + ONE])
        c4, d4 = broadcast(twiddles[U(4) * t]), broadcast(twiddles[U(4) * t + ONE])
        begin, o = at + p * between, to + U(5) * p * between
        for i in range(begin, begin + between, PAIR):
            i1, i2 = i + far, i + TWO * far
            i3, i4 = i2 + far, i2 + TWO * far
            x0, u0 = load(x, i), load(x, i + LANES)
            x1, u1, x4, u4 = load(x, i1), load(x, i1 + LANES), load(x, i4), load(x, i4 + LANES)
            a, b, e, f = x1 + x4, u1 + u4, x1 - x4, u1 - u4
            x2, u2, x3, u3 = load(x, i2), load(x, i2 + LANES), load(x, i3), load(x, i3 + LANES)
            g, h, k, q = x2 + x3, u2 + u3, x2 - x3, u2 - u3
            store(y, o, x0 + a + g)
            store(y, o + LANES, u0 + b + h)
            x1, u1 = x0 + cos1 * a + cos2 * g, u0 + cos1 * b + cos2 * h
            x2, u2 = x0 + cos2 * a + cos1 * g, u0 + cos2 * b + cos1 * h
            x3, u3 = sin1 * e + sin2 * k, sin1 * f + sin2 * q
            x4, u4 = sin2 * e - sin1 * k, sin2 * f - sin1 * q
            o1, o2 = o + between, o + TWO * between
            _turned_on(y, o1, c1, d1, x1 + u3, u1 - x3)
            _turned_on(y, o2, c2, d2, x2 + u4, u2 - x4)
            _turned_on(y, o2 + between, c3, d3, x2 - u4, u2 + x4)
            _turned_on(y, o2 + TWO * between, c4, d4, x1 - u3, u1 + x3)
            o += PAIR


@inlined
def _stage(radix: int, x: RealArray, at: int, y: RealArray, to: int, n: int, s: int, twiddles: RealArray) -> None:
    """Compute n / radix butterflies of any radix, term by term; the length of the whole transform is n s."""
    m, between, size = n // radix, PAIR * s, n * s
    for p in range(m):
        for k in range(radix):
            o = to + (radix * p + k) * between
            for q in range(ZERO, between, PAIR):
                i = at + p * between + q
                a, b = load(x, i), load(x, i + LANES)
                # exp(-2 pi i (j / radix + p / n) k): the butterfly's, and the twiddle of what it gives
                c, d = broadcast(twiddles[TWO * p * k * s]), broadcast(twiddles[TWO * p * k * s + ONE])
                e, f = c * a - d * b, c * b + d * a
                for j in range(ONE, radix):
                    place = TWO * ((j * k * (size // radix) + p * k * s) % size)
                    c, d = broadcast(twiddles[place]), broadcast(twiddles[place + ONE])
                    i += m * between
                    a, b = load(x, i), load(x, i + LANES)
                    e, f = e + (c * a - d * b), f + (c * b + d * a)
                store(y, o + q, e)
                store(y, o + q + LANES, f)


@inlined
def transform(x: RealArray, at: int, spare: RealArray, size: int, plan: IntArray, twiddles: RealArray) -> None:
    """Compute eight Fourier transforms side by side, in place.

    Args:
        x: real, holds the eight lines: pixel by pixel eight real parts, then eight imaginary ones.
        at: index of the first number.
        spare: (4 size 8,) real, workspace.
        size: pixels of each line.
        plan: (k,) int64, radices.
        twiddles: (2 size,) real.
    """
    n, s, half = size, ONE, PAIR * size
    last = U(len(plan))
    while plan[last - ONE] == 0:
        last -= ONE
    source, i = x, at
    for k in range(last):
        radix = U(plan[k])
        if k + ONE == last:
            target, o = x, at
        else:
            target, o = spare, half * (k % TWO)
        if radix == 4:
            _stage4(source, i, target, o, n, s, twiddles)
        elif radix == 8:
            _stage8(source, i, target, o, s, broadcast(twiddles[size // U(4)]))
        elif radix == 2:
            _stage2(source, i, target, o, s)
        elif radix == 3:
            _stage3(source, i, target, o, n, s, twiddles)
        elif radix == 5:
            _stage5(source, i, target, o, n, s, twiddles)
        else:
            _stage(radix, source, i, target, o, n, s, twiddles)
        n, s = n // radix, s * radix
        source, i = target, o


@inlined
def transform_panel(plane: RealArray, at: int, fourier: WindowTransform) -> None:
    """Transform eight columns of a plane, in place.

    Args:
        plane: (2 h w',) real, a wave panel after panel.
        at: index in `plane` of the panel's first number.
        fourier: the transform.
    """
    transform(plane, at, fourier.spare, fourier.h, fourier.plan[0], fourier.twiddles[0])


@inlined
def transform_row(row: RealArray, at: int, fourier: WindowTransform) -> None:
    """Transform eight rows of a wave, in place.

    Args:
        row: (2 w' 8,) real or longer.
        at: index in `row` of the first number.
        fourier: the transform.
    """
    transform(row, at, fourier.spare, fourier.w, fourier.plan[1], fourier.twiddles[1])


# --- rows to panels and back ---


@inlined
def _turned(x: RealArray, i: int, step: int, y: RealArray, o: int, to: int, w: int) -> None:
    """Transpose eight rows of w pixels between panels and a row: from x[i] on, `step` apart, to y[o] on, `to` apart."""
    for _ in range(ZERO, w, LANES):
        store_eight(y, o, PAIR, transposed(load_eight(x, i, PAIR)))
        store_eight(y, o + LANES, PAIR, transposed(load_eight(x, i + LANES, PAIR)))
        i, o = i + step, o + to


@inlined
def row_panel_from(plane: RealArray, first: int, h: int, w: int, row: RealArray, at: int) -> None:
    """Copy eight rows of a plane to a row panel.

    Args:
        plane: (2 h w',) real, a wave panel after panel.
        first: the first of the eight rows.
        h: rows of a window.
        w: columns of a window.
        row: (2 w' 8,) real or longer, written.
        at: index in `row` of the first number.
    """
    _turned(plane, PAIR * first, TWO * h * LANES, row, at, PAIR * LANES, w)


@inlined
def row_panel_back(row: RealArray, at: int, plane: RealArray, first: int, h: int, w: int) -> None:
    """Copy eight rows from a row panel to a plane.

    Args:
        row: real, read.
        at: index in `row` of the first number.
        plane: (2 h w',) real, a wave panel after panel; written.
        first: the first of the eight rows.
        h: rows of a window.
        w: columns of a window.
    """
    _turned(row, at, PAIR * LANES, plane, PAIR * first, TWO * h * LANES, w)


@inlined
def _put_eight(row: RealArray, at: int, pixels: EightRows) -> None:
    """Write eight pixels of eight rows from row[at] on."""
    a, b, c, d, e, f, g, h = pixels
    real = (a[0], b[0], c[0], d[0], e[0], f[0], g[0], h[0])
    imaginary = (a[1], b[1], c[1], d[1], e[1], f[1], g[1], h[1])
    store_eight(row, at, PAIR, transposed(real))
    store_eight(row, at + LANES, PAIR, transposed(imaginary))


@inlined
def _factored(
    waves: ComplexArray, i: int, obj: ComplexArray, o: int, f: Vector, g: Vector, product: bool
) -> ComplexVector:
    """Return eight pixels of waves, multiplied by the object's if `product`, whose parts are multiplied by f and g."""
    p, q = load_complex(waves, i)
    if product:
        s, t = load_complex(obj, o)
        s, t = f * s, g * t
        p, q = p * s - q * t, p * t + q * s
    return p, q


@inlined
def rows_in(
    wave: WindowPlace,
    window: WindowPlace,
    real: float,
    imaginary: float,
    product: bool,
    fourier: WindowTransform,
    plane: RealArray,
) -> None:
    """Transform the rows of a wave, and write them to a plane; with `product`, of the wave times the object in its
    window.

    Args:
        wave: the wave, whose rows follow each other.
        window: the object's window.
        real: factor of the object's real parts.
        imaginary: factor of the object's imaginary parts.
        product: True to multiply by the object.
        fourier: the transform.
        plane: (2 h w',) real, a wave panel after panel.
    """
    h, w, row = fourier.h, fourier.w, fourier.row
    waves, obj, wide, stride = wave.array, window.array, wave.stride, window.stride
    f, g = broadcast(real), broadcast(imaginary)
    for r in range(ZERO, h, LANES):
        first = min(r, h - LANES)
        for c in range(ZERO, w, LANES):
            start = min(c, w - LANES)
            i, o = wave.place + wide * first + TWO * start, window.place + stride * first + TWO * start
            _put_eight(
                row,
                PAIR * start,
                (
                    _factored(waves, i, obj, o, f, g, product),
                    _factored(waves, i + wide, obj, o + stride, f, g, product),
                    _factored(waves, i + TWO * wide, obj, o + TWO * stride, f, g, product),
                    _factored(waves, i + THREE * wide, obj, o + THREE * stride, f, g, product),
                    _factored(waves, i + U(4) * wide, obj, o + U(4) * stride, f, g, product),
                    _factored(waves, i + U(5) * wide, obj, o + U(5) * stride, f, g, product),
                    _factored(waves, i + U(6) * wide, obj, o + U(6) * stride, f, g, product),
                    _factored(waves, i + U(7) * wide, obj, o + U(7) * stride, f, g, product),
                ),
            )
        transform_row(row, ZERO, fourier)
        row_panel_back(row, ZERO, plane, first, h, w)


@inlined
def row_panel_in(waves: ComplexArray, place: int, stride: int, w: int, row: RealArray, at: int) -> None:
    """Copy eight rows of complex pixels to a row panel.

    Args:
        waves: complex, C-contiguous.
        place: index of the first pixel, in reals.
        stride: reals from one row to the next.
        w: columns of a window.
        row: real, written.
        at: index in `row` of the first number.
    """
    for c in range(ZERO, w, LANES):
        start = min(c, w - LANES)
        i = place + TWO * start
        _put_eight(
            row,
            at + PAIR * start,
            (
                load_complex(waves, i),
                load_complex(waves, i + stride),
                load_complex(waves, i + TWO * stride),
                load_complex(waves, i + THREE * stride),
                load_complex(waves, i + U(4) * stride),
                load_complex(waves, i + U(5) * stride),
                load_complex(waves, i + U(6) * stride),
                load_complex(waves, i + U(7) * stride),
            ),
        )


@inlined
def row_panel_out(row: RealArray, at: int, w: int, sign: Vector, out: ComplexArray, place: int) -> None:
    """Write eight rows of pixels from a row panel to a complex array.

    Args:
        row: real, read.
        at: index in `row` of the first number.
        w: columns of a window.
        sign: vector that multiplies imaginary parts.
        out: complex, C-contiguous, written.
        place: index of the first pixel in `out`, in reals.
    """
    for c in range(ZERO, w, LANES):
        start = min(c, w - LANES)  # the last eight, though some of them have been written
        a, b, c2, d, e, f, g, h = transposed(load_eight(row, at + PAIR * start, PAIR))
        p, q, r, s, t, u, v, x = transposed(load_eight(row, at + PAIR * start + LANES, PAIR))
        o, stride = place + TWO * start, TWO * w
        store_complex(out, o, a, sign * p)
        store_complex(out, o + stride, b, sign * q)
        store_complex(out, o + TWO * stride, c2, sign * r)
        store_complex(out, o + THREE * stride, d, sign * s)
        store_complex(out, o + U(4) * stride, e, sign * t)
        store_complex(out, o + U(5) * stride, f, sign * u)
        store_complex(out, o + U(6) * stride, g, sign * v)
        store_complex(out, o + U(7) * stride, h, sign * x)


@inlined
def rows_back(plane: RealArray, fourier: WindowTransform, out: ComplexArray, place: int) -> None:
    """Transform the rows of a plane whose columns are transformed, and write the conjugate as a wave (h, w).

    Args:
        plane: (2 h w',) real, a wave panel after panel.
        fourier: the transform.
        out: complex, C-contiguous, written.
        place: index at which the wave starts in `out`, in reals.
    """
    h, w, row, minus = fourier.h, fourier.w, fourier.row, broadcast(-fourier.twiddles[0, 0])
    for r in range(ZERO, h, LANES):
        first = min(r, h - LANES)
        row_panel_from(plane, first, h, w, row, ZERO)
        transform_row(row, ZERO, fourier)
        row_panel_out(row, ZERO, w, minus, out, place + TWO * w * first)


@inlined
def panel_in(waves: ComplexArray, place: int, h: int, w: int, start: int, plane: RealArray) -> None:
    """Copy eight columns of a complex wave to their panel of a plane.

    Args:
        waves: complex, C-contiguous.
        place: index at which the wave starts, in reals.
        h: rows of a window.
        w: columns of a window.
        start: first of the eight columns.
        plane: (2 h w',) real, a wave panel after panel.
    """
    columns_of(waves, place, h, w, start, plane, TWO * h * start)


@inlined
def columns_of(waves: ComplexArray, place: int, h: int, w: int, start: int, plane: RealArray, at: int) -> None:
    """Copy eight columns of a complex wave to plane[at] on; columns beyond w are 0.

    Args:
        waves: complex, C-contiguous.
        place: index at which the wave starts, in reals.
        h: rows of a window.
        w: columns of a window.
        start: first of the eight columns.
        plane: real, written.
        at: index of the first number.
    """
    for r in range(h):
        i, o = place + TWO * (w * r + start), at + PAIR * r
        if start + LANES <= w:
            p, q = load_complex(waves, i)
            store(plane, o, p)
            store(plane, o + LANES, q)
        else:
            plane[o : o + PAIR] = 0
            for c in range(w - start):
                plane[o + c], plane[o + LANES + c] = number(waves, i + TWO * c), number(waves, i + TWO * c + ONE)


@inlined
def panel_out(plane: RealArray, h: int, w: int, start: int, out: ComplexArray, place: int) -> None:
    """Copy a panel of a plane to eight columns of a complex wave.

    Args:
        plane: (2 h w',) real, a wave panel after panel.
        h: rows of a window.
        w: columns of a window.
        start: first of the eight columns.
        out: complex, C-contiguous, written.
        place: index at which the wave starts, in reals.
    """
    for r in range(h):
        i, o = TWO * h * start + PAIR * r, place + TWO * (w * r + start)
        if start + LANES <= w:
            store_complex(out, o, load(plane, i), load(plane, i + LANES))
        else:
            for c in range(w - start):
                put_number(out, o + TWO * c, plane[i + c])
                put_number(out, o + TWO * c + ONE, plane[i + LANES + c])


@inlined
def real_panel_in(rows: RealArray, h: int, w: int, start: int, out: RealArray, at: int, step: int) -> None:
    """Copy eight columns of a real window to a panel; columns beyond w are 0.

    Args:
        rows: (h w,) real, row after row.
        h: rows of a window.
        w: columns of a window.
        start: first of the eight columns.
        out: real, written.
        at: index of the panel's first number.
        step: numbers from one row of the panel to the next.
    """
    for r in range(h):
        i, o = w * r + start, at + step * r
        if start + LANES <= w:
            store(out, o, load_as(rows, i, out))
        else:
            out[o : o + LANES] = 0
            for c in range(w - start):
                out[o + c] = rows[i + c]


@inlined
def real_panel_out(panel: RealArray, at: int, step: int, h: int, w: int, start: int, rows: RealArray) -> None:
    """Copy a panel to eight columns of a real window.

    Args:
        panel: real.
        at: index of the panel's first number.
        step: numbers from one row of the panel to the next.
        h: rows of a window.
        w: columns of a window.
        start: first of the eight columns.
        rows: (h w,) real, row after row, written.
    """
    for r in range(h):
        i, o = at + step * r, w * r + start
        if start + LANES <= w:
            store(rows, o, narrowed(load(panel, i), rows))
        else:
            for c in range(w - start):
                rows[o + c] = panel[i + c]


# --- room to work in ---


@inlined
def transform_in(work: RealArray, at: int, h: int, w: int, tables: Tables) -> tuple[WindowTransform, int]:
    """Return the transform with its workspace, whose row is zero beyond w, and the index in `work` behind that.

    Args:
        work: (k,) real, workspace of a band.
        at: index in `work` at which the workspace starts.
        h: rows of a window.
        w: columns of a window.
        tables: constants, plan and twiddles of the transform.
    """
    long, room = PAIR * ((w + LANES - ONE) // LANES * LANES), PAIR * max(h, w)
    row = work[at : at + long]
    row[PAIR * w :] = 0
    end = at + long + TWO * room
    return WindowTransform(h, w, row, work[at + long : end], tables[1], tables[2]), end


@inlined
def plane_of(planes: WavePlanes, m: int) -> RealArray:
    """Return the plane of wave m."""
    return planes.numbers[TWO * planes.size * m : TWO * planes.size * (m + ONE)]


@inlined
def wave_at(waves: ComplexArray, m: int) -> WindowPlace:
    """Return wave m of an array.

    Args:
        waves: (..., h, w) complex, C-contiguous.
        m: which of all waves.
    """
    h, w = U(waves.shape[-2]), U(waves.shape[-1])
    return WindowPlace(waves, TWO * h * w * m, TWO * w, h, w)


@inlined
def window_at(obj: ComplexArray, corner: IntArray, h: int, w: int) -> WindowPlace:
    """Return a view's window of an object.

    Args:
        obj: (H, W) complex.
        corner: (2,) int64, pixel y x under the window's corner.
        h: rows of a window.
        w: columns of a window.
    """
    stride = TWO * U(obj.shape[1])
    return WindowPlace(obj, stride * U(corner[0]) + TWO * U(corner[1]), stride, h, w)
