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

from typing import Any

import numpy as np

from ptymesh.kernels.jit import inlined
from ptymesh.kernels.vectors import (
    LANES,
    load,
    load_complex,
    load_eight,
    number,
    put_number,
    spread,
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
#: Stages that `transform` knows, in this order: those of radix 8 and 2 are the last.
RADICES = (3, 5, 7, 4, 2)


def stages(size: int) -> list[int]:
    """Radices of a transform of this length; none where it is too short or has other prime factors than 2, 3, 5, 7."""
    found, rest = [], size
    for radix in RADICES:
        while rest % radix == 0 and rest > 1:
            found.append(radix)
            rest //= radix
    if found[-2:] == [4, 2]:
        found[-2:] = [8]
    return found if rest == 1 and size >= LANES else []


def pixels(h: int, w: int) -> int:
    """Of all panels of a wave, h w'."""
    return h * (w + -w % WIDTH)


def room(modes: int, h: int, w: int, slices: int = 1) -> int:
    """Numbers that a band works in: counts, powers and factors, a row and two spare ones, and planes.

    For views that go further than to the detector and back (row_panels.py) also a second row, and row panels: of each
    slice's window and of all modes that enter it, of what is gathered and of its light.
    """
    row_panels = pixels(h + -h % WIDTH, w) * (2 * slices * (modes + 1) + 3)
    return (3 + 2 * modes) * pixels(h, w) + 4 * (pixels(WIDTH, w) + WIDTH * max(h, w)) + row_panels


# --- the transform of panels and rows ---


@inlined
def _stage4(x: Any, at: int, y: Any, to: int, n: int, s: int, twiddles: Any, step: int) -> None:
    """n / 4 butterflies, each over a run of s pixels; step: of the twiddles."""
    m, between = n // U(4), PAIR * s
    far = m * between
    for p in range(m):
        t = TWO * p * step
        c1, d1 = spread(twiddles[t]), spread(twiddles[t + ONE])
        c2, d2 = spread(twiddles[TWO * t]), spread(twiddles[TWO * t + ONE])
        c3, d3 = spread(twiddles[THREE * t]), spread(twiddles[THREE * t + ONE])
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
def _stage2(x: Any, at: int, y: Any, to: int, s: int) -> None:
    """The last stage of an even length: sums and differences."""
    for q in range(ZERO, PAIR * s, LANES):
        a, b = load(x, at + q), load(x, at + PAIR * s + q)
        store(y, to + q, a + b)
        store(y, to + PAIR * s + q, a - b)


@inlined
def _stage8(x: Any, at: int, y: Any, to: int, s: int, root: Any) -> None:
    """The last stage of a length with an odd power of two above 2: eights of terms, without twiddles; root: of 1/2."""
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
def _turned_on(y: Any, o: int, c: Any, d: Any, real: Any, imaginary: Any) -> None:
    """Writes a pixel of the result, turned by its twiddle c + i d."""
    store(y, o, c * real - d * imaginary)
    store(y, o + LANES, c * imaginary + d * real)


@inlined
def _stage3(x: Any, at: int, y: Any, to: int, n: int, s: int, size: int, twiddles: Any, step: int) -> None:
    """n / 3 butterflies, each over a run of s pixels; size: of the whole transform."""
    m, between, third = n // THREE, PAIR * s, TWO * (size // THREE)
    far, cos, sin = m * between, spread(twiddles[third]), spread(-twiddles[third + ONE])
    for p in range(m):
        t = TWO * p * step
        c1, d1 = spread(twiddles[t]), spread(twiddles[t + ONE])
        c2, d2 = spread(twiddles[TWO * t]), spread(twiddles[TWO * t + ONE])
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
def _stage5(x: Any, at: int, y: Any, to: int, n: int, s: int, size: int, twiddles: Any, step: int) -> None:
    """n / 5 butterflies, each over a run of s pixels; size: of the whole transform."""
    m, between, fifth = n // U(5), PAIR * s, TWO * (size // U(5))
    far = m * between
    cos1, sin1 = spread(twiddles[fifth]), spread(-twiddles[fifth + ONE])
    cos2, sin2 = spread(twiddles[TWO * fifth]), spread(-twiddles[TWO * fifth + ONE])
    for p in range(m):
        t = TWO * p * step
        c1, d1 = spread(twiddles[t]), spread(twiddles[t + ONE])
        c2, d2 = spread(twiddles[TWO * t]), spread(twiddles[TWO * t + ONE])
        c3, d3 = spread(twiddles[THREE * t]), spread(twiddles[THREE * t + ONE])
        c4, d4 = spread(twiddles[U(4) * t]), spread(twiddles[U(4) * t + ONE])
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
def _stage(radix: int, x: Any, at: int, y: Any, to: int, n: int, s: int, size: int, twiddles: Any, step: int) -> None:
    """n / radix butterflies of any radix, term by term; size: of the whole transform."""
    m, between = n // radix, PAIR * s
    for p in range(m):
        for k in range(radix):
            o = to + (radix * p + k) * between
            for q in range(ZERO, between, PAIR):
                i = at + p * between + q
                a, b = load(x, i), load(x, i + LANES)
                # exp(-2 pi i (j / radix + p / n) k): the butterfly's, and the twiddle of what it gives
                c, d = spread(twiddles[TWO * p * k * step]), spread(twiddles[TWO * p * k * step + ONE])
                e, f = c * a - d * b, c * b + d * a
                for j in range(ONE, radix):
                    place = TWO * ((j * k * (size // radix) + p * k * step) % size)
                    c, d = spread(twiddles[place]), spread(twiddles[place + ONE])
                    i += m * between
                    a, b = load(x, i), load(x, i + LANES)
                    e, f = e + (c * a - d * b), f + (c * b + d * a)
                store(y, o + q, e)
                store(y, o + q + LANES, f)


@inlined
def transform(x: Any, at: int, spare: Any, size: int, plan: Any, twiddles: Any) -> None:
    """Eight transforms of `size` pixels that start at x[at], in place; spare: room for two of them."""
    n, s, step, half = size, ONE, ONE, PAIR * size
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
            _stage4(source, i, target, o, n, s, twiddles, step)
        elif radix == 8:
            _stage8(source, i, target, o, s, spread(twiddles[size // U(4)]))
        elif radix == 2:
            _stage2(source, i, target, o, s)
        elif radix == 3:
            _stage3(source, i, target, o, n, s, size, twiddles, step)
        elif radix == 5:
            _stage5(source, i, target, o, n, s, size, twiddles, step)
        else:
            _stage(radix, source, i, target, o, n, s, size, twiddles, step)
        n, s, step = n // radix, s * radix, step * radix
        source, i = target, o


# --- rows to panels and back ---


@inlined
def _turned(x: Any, i: int, step: int, y: Any, o: int, to: int, w: int) -> None:
    """Eight rows of w pixels from panels to a row or back: from x[i] on to y[o] on, by `step` and by `to` at a time."""
    for _ in range(ZERO, w, LANES):
        store_eight(y, o, PAIR, transposed(load_eight(x, i, PAIR)))
        store_eight(y, o + LANES, PAIR, transposed(load_eight(x, i + LANES, PAIR)))
        i, o = i + step, o + to


@inlined
def row_panel_from(plane: Any, first: int, h: int, w: int, row: Any, at: int) -> None:
    """Eight rows of a plane to row[at] on."""
    _turned(plane, PAIR * first, TWO * h * LANES, row, at, PAIR * LANES, w)


@inlined
def row_panel_back(row: Any, at: int, plane: Any, first: int, h: int, w: int) -> None:
    """Eight rows from row[at] on to a plane."""
    _turned(row, at, PAIR * LANES, plane, PAIR * first, TWO * h * LANES, w)


@inlined
def _put_eight(row: Any, at: int, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any) -> None:
    """Eight pixels of eight rows, from row[at] on: real and imaginary parts of each row's pixels."""
    real = (a[0], b[0], c[0], d[0], e[0], f[0], g[0], h[0])
    imaginary = (a[1], b[1], c[1], d[1], e[1], f[1], g[1], h[1])
    store_eight(row, at, PAIR, transposed(real))
    store_eight(row, at + LANES, PAIR, transposed(imaginary))


@inlined
def _factored(waves: Any, i: int, obj: Any, o: int, f: Any, g: Any, product: bool) -> Any:
    """Eight pixels of waves, times the object's if so asked, whose parts are multiplied by f and g."""
    p, q = load_complex(waves, i)
    if product:
        s, t = load_complex(obj, o)
        s, t = f * s, g * t
        p, q = p * s - q * t, p * t + q * s
    return p, q


@inlined
def rows_in(
    waves: Any,
    wave: int,
    obj: Any,
    window: int,
    stride: int,
    real: float,
    imaginary: float,
    product: bool,
    h: int,
    w: int,
    row: Any,
    spare: Any,
    plan: Any,
    twiddles: Any,
    plane: Any,
) -> None:
    """Rows of a wave, transformed, to a plane; with `product` of a wave times the object in its window.

    The wave starts at number `wave`, its window at number `window`; real, imaginary: factors of the object's parts.
    """
    f, g, wide = spread(real), spread(imaginary), TWO * w
    for r in range(ZERO, h, LANES):
        first = min(r, h - LANES)
        for c in range(ZERO, w, LANES):
            start = min(c, w - LANES)
            i, o = wave + wide * first + TWO * start, window + stride * first + TWO * start
            _put_eight(
                row,
                PAIR * start,
                _factored(waves, i, obj, o, f, g, product),
                _factored(waves, i + wide, obj, o + stride, f, g, product),
                _factored(waves, i + TWO * wide, obj, o + TWO * stride, f, g, product),
                _factored(waves, i + THREE * wide, obj, o + THREE * stride, f, g, product),
                _factored(waves, i + U(4) * wide, obj, o + U(4) * stride, f, g, product),
                _factored(waves, i + U(5) * wide, obj, o + U(5) * stride, f, g, product),
                _factored(waves, i + U(6) * wide, obj, o + U(6) * stride, f, g, product),
                _factored(waves, i + U(7) * wide, obj, o + U(7) * stride, f, g, product),
            )
        transform(row, ZERO, spare, w, plan[1], twiddles[1])
        row_panel_back(row, ZERO, plane, first, h, w)


@inlined
def row_panel_in(waves: Any, place: int, stride: int, w: int, row: Any, at: int) -> None:
    """Eight rows of w complex pixels, which are `stride` numbers apart, from a place on to row[at] on."""
    for c in range(ZERO, w, LANES):
        start = min(c, w - LANES)
        i = place + TWO * start
        _put_eight(
            row,
            at + PAIR * start,
            load_complex(waves, i),
            load_complex(waves, i + stride),
            load_complex(waves, i + TWO * stride),
            load_complex(waves, i + THREE * stride),
            load_complex(waves, i + U(4) * stride),
            load_complex(waves, i + U(5) * stride),
            load_complex(waves, i + U(6) * stride),
            load_complex(waves, i + U(7) * stride),
        )


@inlined
def row_panel_out(row: Any, at: int, w: int, sign: Any, out: Any, place: int) -> None:
    """Eight rows of w pixels from row[at] on to complex ones from a place on; sign: of imaginary parts."""
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
def rows_back(plane: Any, h: int, w: int, row: Any, spare: Any, plan: Any, twiddles: Any, out: Any, place: int) -> None:
    """To a place of `out` the wave (h, w) whose conjugate stands in a plane, columns transformed and rows not."""
    minus = spread(-twiddles[0, 0])
    for r in range(ZERO, h, LANES):
        first = min(r, h - LANES)
        row_panel_from(plane, first, h, w, row, ZERO)
        transform(row, ZERO, spare, w, plan[1], twiddles[1])
        row_panel_out(row, ZERO, w, minus, out, place + TWO * w * first)


@inlined
def panel_in(waves: Any, place: int, h: int, w: int, start: int, plane: Any) -> None:
    """Columns from `start` on of a complex wave at a place, to theirs in a plane."""
    columns_of(waves, place, h, w, start, plane, TWO * h * start)


@inlined
def columns_of(waves: Any, place: int, h: int, w: int, start: int, plane: Any, at: int) -> None:
    """Columns from `start` on of a complex wave at a place, to plane[at] on."""
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
def panel_out(plane: Any, h: int, w: int, start: int, out: Any, place: int) -> None:
    """Columns from a plane to those from `start` on of a complex wave."""
    for r in range(h):
        i, o = TWO * h * start + PAIR * r, place + TWO * (w * r + start)
        if start + LANES <= w:
            store_complex(out, o, load(plane, i), load(plane, i + LANES))
        else:
            for c in range(w - start):
                put_number(out, o + TWO * c, plane[i + c])
                put_number(out, o + TWO * c + ONE, plane[i + LANES + c])


# --- room to work in ---


@inlined
def rows_of(work: Any, at: int, h: int, w: int) -> Any:
    """A row, whose pixels beyond w are zero, and room for transforms; what follows them starts at the third."""
    long, room = PAIR * ((w + LANES - ONE) // LANES * LANES), PAIR * max(h, w)
    row = work[at : at + long]
    row[PAIR * w :] = 0
    return row, work[at + long : at + long + TWO * room], at + long + TWO * room


@inlined
def plane_of(planes: Any, m: int, size: int) -> Any:
    """That of a mode."""
    return planes[TWO * size * m : TWO * size * (m + ONE)]
