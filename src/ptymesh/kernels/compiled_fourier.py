"""Waves to the detector and back, and probes at fractions of pixels, compiled by numba for this CPU.

B, M, h, w   views of the chunk, modes, window pixels;  h, w >= 8
waves        (B, M, h, w) complex
strip        eight neighbouring columns of one wave, all its rows: row after row the eight real parts, then the eight
             imaginary ones (vectors.py); of a last strip that is not full, the rest means nothing
plane        (2 h w',) real, a wave strip after strip; w' is w rounded up to whole strips
row          (2 w' 8,) real, eight rows of a wave in the same way: column after column
plan         (2, k) radices whose products are h and w, filled up with zeros; or nothing but zeros where waves have
             been transformed by other means
turns        (2, 2 max(h, w)) cos and -sin of 2 pi k / h, by turns, and of 2 pi k / w
work         (bands, n) real, room to work in for every band, kept from call to call: threads ask for no large memory

A view's waves are made, transformed, compared with its counts and brought back by one thread in one go, while they are
in its cache. The transform is Stockham's: every stage reads one array and writes another, and nothing has to be sorted
(Van Loan, Computational Frameworks for the Fast Fourier Transform, 1992, sec. 1.7). The inverse is that of conjugate
numbers, conjugated: what is to be transformed inversely is made conjugate, and made so again when rows leave a plane.
Sums over views are made in groups of neighbours, which are the same for any number of threads.
All that transforms stands in this one file, for the reason given in compiled.py.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import prange

from ptymesh.kernels.jit import inlined, parallel
from ptymesh.kernels.vectors import (
    LANES,
    load,
    load_as,
    load_complex,
    load_eight,
    number,
    put_number,
    spread,
    store,
    store_complex,
    store_eight,
    transposed,
    where_at_least,
)

U: Any = np.uint64
ZERO, ONE, TWO, THREE = U(0), U(1), U(2), U(3)
#: Real numbers that belong to a pixel of eight neighbours: real parts, imaginary parts.
PAIR = TWO * LANES
#: Columns of a strip, for others to count with.
WIDTH = int(LANES)
#: Pixels that are summed in the precision of the waves before they join a sum in double precision.
PART = U(1024)
#: Stages that `_transform` knows, in this order: that of radix 2 is the last.
RADICES = (3, 5, 7, 4, 2)
#: Fidelities as numbers.
KINDS = {"amplitude": 0, "poisson": 1, "intensity": 2}
#: Patterns of these dtypes are read as they are, others as floats. One function reads them all: `detector` is large,
#: and to compile it for each dtype would take a minute.
NATIVE = ("uint8", "uint16", "uint32", "float32", "float64")
#: What `detector` does with the waves.
WATCH, REVISE, DESCEND = 0, 1, 2


def in_strips(plane: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A real plane (h, w) strip after strip, (h w',); what fills up the last one is zero."""
    padded = np.pad(plane, ((0, 0), (0, -plane.shape[1] % WIDTH)))
    return padded.reshape(len(plane), -1, WIDTH).swapaxes(0, 1).ravel()


def stages(size: int) -> list[int]:
    """Radices of a transform of this length; none where it is too short or has other prime factors than 2, 3, 5, 7."""
    found, rest = [], size
    for radix in RADICES:
        while rest % radix == 0 and rest > 1:
            found.append(radix)
            rest //= radix
    return found if rest == 1 and size >= LANES else []


# --- the transform of strips and rows ---


@inlined
def _stage4(x: Any, at: int, y: Any, to: int, n: int, s: int, turns: Any, step: int) -> None:
    """n / 4 butterflies, each over a run of s pixels; step: of the twiddles."""
    m, between = n // U(4), PAIR * s
    far = m * between
    for p in range(m):
        t = TWO * p * step
        c1, d1 = spread(turns[t]), spread(turns[t + ONE])
        c2, d2 = spread(turns[TWO * t]), spread(turns[TWO * t + ONE])
        c3, d3 = spread(turns[THREE * t]), spread(turns[THREE * t + ONE])
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
def _stage(radix: int, x: Any, at: int, y: Any, to: int, n: int, s: int, size: int, turns: Any, step: int) -> None:
    """The same with any radix, term by term; size: of the whole transform."""
    m, between = n // radix, PAIR * s
    for p in range(m):
        for k in range(radix):
            o = to + (radix * p + k) * between
            for q in range(ZERO, between, PAIR):
                i = at + p * between + q
                a, b = load(x, i), load(x, i + LANES)
                # exp(-2 pi i (j / radix + p / n) k): the butterfly's, and the twiddle of what it gives
                c, d = spread(turns[TWO * p * k * step]), spread(turns[TWO * p * k * step + ONE])
                e, f = c * a - d * b, c * b + d * a
                for j in range(ONE, radix):
                    place = TWO * ((j * k * (size // radix) + p * k * step) % size)
                    c, d = spread(turns[place]), spread(turns[place + ONE])
                    i += m * between
                    a, b = load(x, i), load(x, i + LANES)
                    e, f = e + (c * a - d * b), f + (c * b + d * a)
                store(y, o + q, e)
                store(y, o + q + LANES, f)


@inlined
def _transform(x: Any, at: int, spare: Any, size: int, plan: Any, turns: Any) -> None:
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
            _stage4(source, i, target, o, n, s, turns, step)
        elif radix == 2:
            _stage2(source, i, target, o, s)
        else:
            _stage(radix, source, i, target, o, n, s, size, turns, step)
        n, s, step = n // radix, s * radix, step * radix
        source, i = target, o


# --- rows to strips and back ---


@inlined
def _turn_rows(row: Any, first: int, h: int, w: int, plane: Any) -> None:
    """Eight rows of a wave, from `first` on, to their places in a plane."""
    for c in range(ZERO, w, LANES):
        i, o = PAIR * c, TWO * h * c + PAIR * first
        store_eight(plane, o, PAIR, transposed(load_eight(row, i, PAIR)))
        store_eight(plane, o + LANES, PAIR, transposed(load_eight(row, i + LANES, PAIR)))


@inlined
def _turn_strips(plane: Any, first: int, h: int, w: int, row: Any) -> None:
    """The rows from their places in a plane."""
    for c in range(ZERO, w, LANES):
        i, o = TWO * h * c + PAIR * first, PAIR * c
        store_eight(row, o, PAIR, transposed(load_eight(plane, i, PAIR)))
        store_eight(row, o + LANES, PAIR, transposed(load_eight(plane, i + LANES, PAIR)))


@inlined
def _put_eight(row: Any, start: int, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any) -> None:
    """Eight pixels, from `start` on, of eight rows: real and imaginary parts of each row's pixels."""
    real = (a[0], b[0], c[0], d[0], e[0], f[0], g[0], h[0])
    imaginary = (a[1], b[1], c[1], d[1], e[1], f[1], g[1], h[1])
    store_eight(row, PAIR * start, PAIR, transposed(real))
    store_eight(row, PAIR * start + LANES, PAIR, transposed(imaginary))


@inlined
def _rows_out(row: Any, w: int, minus: Any, out: Any, place: int) -> None:
    """Conjugates of eight rows of w pixels to complex ones from a place on; minus: -1."""
    for c in range(ZERO, w, LANES):
        start = min(c, w - LANES)  # the last eight, though some of them have been written
        a, b, c2, d, e, f, g, h = transposed(load_eight(row, PAIR * start, PAIR))
        p, q, r, s, t, u, v, x = transposed(load_eight(row, PAIR * start + LANES, PAIR))
        o, stride = place + TWO * start, TWO * w
        store_complex(out, o, a, minus * p)
        store_complex(out, o + stride, b, minus * q)
        store_complex(out, o + TWO * stride, c2, minus * r)
        store_complex(out, o + THREE * stride, d, minus * s)
        store_complex(out, o + U(4) * stride, e, minus * t)
        store_complex(out, o + U(5) * stride, f, minus * u)
        store_complex(out, o + U(6) * stride, g, minus * v)
        store_complex(out, o + U(7) * stride, h, minus * x)


@inlined
def _back(plane: Any, h: int, w: int, row: Any, spare: Any, plan: Any, turns: Any, out: Any, place: int) -> None:
    """To a place of `out` the wave (h, w) whose conjugate stands in a plane, columns transformed and rows not."""
    minus = spread(-turns[0, 0])
    for r in range(ZERO, h, LANES):
        first = min(r, h - LANES)
        _turn_strips(plane, first, h, w, row)
        _transform(row, ZERO, spare, w, plan[1], turns[1])
        _rows_out(row, w, minus, out, place + TWO * w * first)


@inlined
def _strip_in(waves: Any, place: int, h: int, w: int, start: int, plane: Any) -> None:
    """Columns from `start` on of a complex wave at a place, to theirs in a plane."""
    for r in range(h):
        i, o = place + TWO * (w * r + start), TWO * h * start + PAIR * r
        if start + LANES <= w:
            p, q = load_complex(waves, i)
            store(plane, o, p)
            store(plane, o + LANES, q)
        else:
            plane[o : o + PAIR] = 0
            for c in range(w - start):
                plane[o + c], plane[o + LANES + c] = number(waves, i + TWO * c), number(waves, i + TWO * c + ONE)


@inlined
def _strip_out(plane: Any, h: int, w: int, start: int, out: Any, place: int) -> None:
    """Columns from a plane to those from `start` on of a complex wave."""
    for r in range(h):
        i, o = TWO * h * start + PAIR * r, place + TWO * (w * r + start)
        if start + LANES <= w:
            store_complex(out, o, load(plane, i), load(plane, i + LANES))
        else:
            for c in range(w - start):
                put_number(out, o + TWO * c, plane[i + c])
                put_number(out, o + TWO * c + ONE, plane[i + LANES + c])


# --- the detector ---


@inlined
def _exit(beams: Any, b: int, obj: Any, o: int, f: Any, product: bool) -> Any:
    """Eight pixels of an exit wave, or of the beam if that is one."""
    p, q = load_complex(beams, b)
    if product:
        s, t = load_complex(obj, o)
        p, q = f * p, f * q
        p, q = p * s - q * t, p * t + q * s
    return p, q


@inlined
def _there(
    beams: Any,
    b: int,
    obj: Any,
    o: int,
    stride: int,
    a: float,
    product: bool,
    h: int,
    w: int,
    row: Any,
    spare: Any,
    plan: Any,
    turns: Any,
    plane: Any,
) -> None:
    """Rows of a view's exit wave, transformed, to a plane; the beam starts at b, the window at o."""
    f, wide = spread(a), TWO * w
    for r in range(ZERO, h, LANES):
        first = min(r, h - LANES)
        for c in range(ZERO, w, LANES):
            start = min(c, w - LANES)
            i, k = b + wide * first + TWO * start, o + stride * first + TWO * start
            _put_eight(
                row,
                start,
                _exit(beams, i, obj, k, f, product),
                _exit(beams, i + wide, obj, k + stride, f, product),
                _exit(beams, i + TWO * wide, obj, k + TWO * stride, f, product),
                _exit(beams, i + THREE * wide, obj, k + THREE * stride, f, product),
                _exit(beams, i + U(4) * wide, obj, k + U(4) * stride, f, product),
                _exit(beams, i + U(5) * wide, obj, k + U(5) * stride, f, product),
                _exit(beams, i + U(6) * wide, obj, k + U(6) * stride, f, product),
                _exit(beams, i + U(7) * wide, obj, k + U(7) * stride, f, product),
            )
        _transform(row, ZERO, spare, w, plan[1], turns[1])
        _turn_rows(row, first, h, w, plane)


@inlined
def _data(planes: Any, j: int, h: int, w: int, good: Any, constants: Any, out: Any) -> None:
    """Plane j of (n, h, w), strip after strip, as real numbers; -1 where there are no data."""
    zero, one, none = spread(constants[0]), spread(constants[1]), spread(-constants[1])
    for start in range(ZERO, w, LANES):
        for r in range(h):
            i, o = w * (h * j + r) + start, h * start + r * LANES
            if start + LANES <= w:
                store(out, o, load_as(planes, i, out))
            else:
                for c in range(w - start):
                    out[o + c] = planes[j, r, start + c]
            y = where_at_least(load(good, o), one, load(out, o), none)
            store(out, o, where_at_least(y, zero, y, none))  # NaN is no datum either


@inlined
def _counts(counts: Any, j: int, code: int, h: int, w: int, good: Any, constants: Any, out: Any) -> None:
    """Pattern j (n, h, w times the bytes of one), strip after strip."""
    if code == 0:
        _data(counts, j, h, w, good, constants, out)
    elif code == 1:
        _data(counts.view(np.uint16), j, h, w, good, constants, out)
    elif code == 2:
        _data(counts.view(np.uint32), j, h, w, good, constants, out)
    elif code == 3:
        _data(counts.view(np.float32), j, h, w, good, constants, out)
    else:
        _data(counts.view(np.float64), j, h, w, good, constants, out)


@inlined
def _add_power(plane: Any, at: int, h: int, first: bool, scale: float, S: Any, own: int) -> None:
    """scale |Psi|^2 of a strip."""
    s = spread(scale)
    for r in range(h):
        p, q = load(plane, at + PAIR * r), load(plane, at + PAIR * r + LANES)
        power, i = s * (p * p + q * q), own + LANES * r
        store(S, i, power if first else load(S, i) + power)


@inlined
def _times(plane: Any, at: int, h: int, change: Any, own: int, real: float, imaginary: float) -> None:
    """A strip times real factors, and its parts times these."""
    s, t = spread(real), spread(imaginary)
    for r in range(h):
        i, f = at + PAIR * r, load(change, own + LANES * r)
        store(plane, i, s * f * load(plane, i))
        store(plane, i + LANES, t * f * load(plane, i + LANES))


@inlined
def _detector(
    j: int,
    work: Any,
    obj: Any,
    n: Any,
    beams: Any,
    a: Any,
    product: bool,
    counts: Any,
    place: int,
    code: int,
    good: Any,
    b: Any,
    constants: Any,
    has_background: bool,
    kind: int,
    task: int,
    plan: Any,
    turns: Any,
    out: Any,
    terms: Any,
) -> None:
    M, h, w = U(out.shape[1]), U(out.shape[2]), U(out.shape[3])
    scale = constants[6] * constants[6]
    size, strip, far = U(len(good)), LANES * h, plan[0, 0] > 0
    newton = task == 1 and kind != 0
    view = ZERO if len(beams) == 1 else j
    y, S, change = work[:size], work[size : TWO * size], work[TWO * size : THREE * size]
    row, spare, at = _rows_of(work, THREE * size, h, w)
    planes = work[at:]
    for t in range(6):
        terms[j, t] = 0.0
    _counts(counts, place, code, h, w, good, constants, y)
    for m in range(M):
        beam = TWO * h * w * (view * M + m)
        if far:
            stride = TWO * U(obj.shape[1])
            window = stride * U(n[j, 0]) + TWO * U(n[j, 1])
            _there(
                beams, beam, obj, window, stride, a[j], product, h, w, row, spare, plan, turns, _plane(planes, m, size)
            )
        else:
            for start in range(ZERO, w, LANES):
                _strip_in(beams, beam, h, w, start, _plane(planes, m, size))
    for start in range(ZERO, w, LANES):
        at = h * start
        own = at if newton else ZERO
        for m in range(M):
            if far:
                _transform(_plane(planes, m, size), TWO * at, spare, h, plan[0], turns[0])
            _add_power(_plane(planes, m, size), TWO * at, h, m == ZERO, scale, S, own)
        _compare(strip, S, change, own, y, b, at, constants, has_background, kind, task, j, terms)
        if task > 0 and not newton:
            for m in range(M):
                _changed(_plane(planes, m, size), at, h, change, own, scale, far, spare, plan, turns)
    if newton:
        alpha = scale * _newton(kind, S, y, change, b, constants)
        for start in range(ZERO, w, LANES):
            for m in range(M):
                _changed(_plane(planes, m, size), h * start, h, change, h * start, alpha, far, spare, plan, turns)
    if task > 0:
        for m in range(M):
            wave = TWO * h * w * (j * M + m)
            if far:
                _back(_plane(planes, m, size), h, w, row, spare, plan, turns, out, wave)
            else:
                for start in range(ZERO, w, LANES):
                    _strip_out(_plane(planes, m, size), h, w, start, out, wave)


@inlined
def _rows_of(work: Any, at: int, h: int, w: int) -> Any:
    """A row, whose pixels beyond w are zero, and room for transforms; what follows them starts at the third."""
    long, room = PAIR * ((w + LANES - ONE) // LANES * LANES), PAIR * max(h, w)
    row = work[at : at + long]
    row[PAIR * w :] = 0
    return row, work[at + long : at + long + TWO * room], at + long + TWO * room


def pixels(h: int, w: int) -> int:
    """Of all strips, h w'."""
    return h * (w + -w % WIDTH)


def room(modes: int, h: int, w: int) -> int:
    """Numbers that a band works in: counts, powers and factors, a row and two spare ones, and planes."""
    return (3 + 2 * modes) * pixels(h, w) + 2 * (pixels(WIDTH, w) + 2 * WIDTH * max(h, w))


@inlined
def _plane(planes: Any, m: int, size: int) -> Any:
    """That of a mode."""
    return planes[TWO * size * m : TWO * size * (m + ONE)]


@inlined
def _changed(
    plane: Any, at: int, h: int, change: Any, own: int, scale: float, far: bool, spare: Any, plan: Any, turns: Any
) -> None:
    """A strip times its factors; where it has been transformed its conjugate, transformed again."""
    _times(plane, TWO * at, h, change, own, scale, -scale if far else scale)
    if far:
        _transform(plane, TWO * at, spare, h, plan[0], turns[0])


@parallel
def detector(
    work: Any,
    obj: Any,
    n: Any,
    beams: Any,
    a: Any,
    product: bool,
    counts: Any,
    places: Any,
    code: int,
    good: Any,
    background: Any,
    constants: Any,
    has_background: bool,
    kind: int,
    task: int,
    plan: Any,
    turns: Any,
    out: Any,
    terms: Any,
) -> None:
    """From exit waves to the detector and back: sums for the history, and out (B, M, h, w) as the task says.

    obj (H, W), n (B, 2), beams (1 or B, M, h, w), a (B,): see compiled.py; with `product` exit waves are made of them,
    without it they are `beams`. counts: (n, h, w times the bytes of one) uint8, places (B,) in it, what they are: code.
    good, background: (h w',), strip after strip; not good is 0. task: 0 watches and leaves `out` alone, 1 makes
    D^H (Psi' - Psi), 2 makes -D^H dL/dI Psi. constants: real 0, 1, DARK, sqrt(DARK), BRIGHTEST_RATIO, the number of
    Newton steps, and the factor of the transform, there and back. Without a plan D is nothing: `beams` are waves on
    the detector, and may be `out`. terms: (B, 6), see Passes.revise.
    """
    count, bands = len(terms), len(work)
    for i in prange(bands):
        band = np.int64(i)
        for j in range(count * band // bands, count * (band + 1) // bands):
            _detector(
                U(j),
                work[band],
                obj,
                n,
                beams,
                a,
                product,
                counts,
                U(places[j]),
                code,
                good,
                background,
                constants,
                has_background,
                kind,
                task,
                plan,
                turns,
                out,
                terms,
            )


@inlined
def _compare(
    size: int,
    S: Any,
    change: Any,
    own: int,
    y: Any,
    b: Any,
    at: int,
    constants: Any,
    has_background: bool,
    kind: int,
    task: int,
    j: int,
    terms: Any,
) -> None:
    """Sums of a strip, and the factor by which its waves are to change (for Newton steps: their direction).

    The strip starts at pixel `own` of S and `change`, and at pixel `at` of y and b.
    """
    zero, one, dark, dark_root = constants[0], constants[1], constants[2], constants[3]
    misfit, total, absolute, roots, squares = zero, zero, zero, zero, zero
    for i in range(size):
        good = y[at + i] >= zero
        counts = y[at + i] if good else zero
        root_y, root_I = np.sqrt(counts), np.sqrt(S[own + i] + b[at + i])
        difference = root_I - root_y if good else zero
        misfit += difference * difference
        absolute += abs(difference)
        total += counts
        roots += root_y
        squares += counts * counts
        # 1 - sqrt(y / I), or without background the same as the projection
        change[own + i] = root_y / max(root_I, dark_root) - one if good else zero
    terms[j, 1] += misfit
    terms[j, 2] += total
    terms[j, 3] += absolute
    terms[j, 4] += roots
    terms[j, 5] += squares
    if kind == 0:
        terms[j, 0] += misfit
        if has_background and task == 1:
            for i in range(size):
                signal = max(y[at + i] - b[at + i], zero)
                change[own + i] = np.sqrt(signal / max(S[own + i], dark)) - one if y[at + i] >= zero else zero
    else:
        terms[j, 0] += _loss(kind, size, S, own, y, b, at, dark, zero)
        _slope(kind, size, S, change, own, y, b, at, constants, task == 1)


@inlined
def _loss(kind: int, size: int, S: Any, own: int, y: Any, b: Any, at: int, dark: float, zero: float) -> float:
    total = zero
    if kind == 1:
        for i in range(size):
            I = S[own + i] + b[at + i]
            total += I - y[at + i] * np.log(max(I, dark)) if y[at + i] >= zero else zero
    else:
        for i in range(size):
            difference = S[own + i] + b[at + i] - y[at + i] if y[at + i] >= zero else zero
            total += difference * difference
    return total


@inlined
def _slope(
    kind: int, size: int, S: Any, out: Any, own: int, y: Any, b: Any, at: int, constants: Any, newton: bool
) -> None:
    """-dL/dI; for a Newton step its direction xi = dL/dI, with y/I capped."""
    zero, one, dark, brightest = constants[0], constants[1], constants[2], constants[4]
    sign = -one if newton else one
    if kind == 1:
        for i in range(size):
            ratio = y[at + i] / max(S[own + i] + b[at + i], dark)
            ratio = min(ratio, brightest) if newton else ratio
            out[own + i] = sign * (ratio - one) if y[at + i] >= zero else zero
    else:
        for i in range(size):
            out[own + i] = sign * (y[at + i] - S[own + i] - b[at + i]) * (one + one) if y[at + i] >= zero else zero


@inlined
def _newton(kind: int, S: Any, y: Any, xi: Any, b: Any, constants: Any) -> float:
    """-alpha of Psi' = (1 - alpha xi) Psi, from planes (h w,) of a view; see fidelity._poisson_step."""
    one, dark, steps = constants[1], constants[2], int(constants[5])
    alpha = np.empty(1, S.dtype)  # a cell, so that alpha keeps its precision
    alpha[0] = one / (one + one)
    for _ in range(steps if kind == 1 else 1):
        first, second, size = 0.0, 0.0, U(len(S))
        for k in range(ZERO, size, PART):
            parts = _newton_part(kind, S, y, xi, b, k, min(k + PART, size), alpha[0], constants)
            first += parts[0]
            second += parts[1]
        if kind == 1:
            alpha[0] = min(max(alpha[0] - first / max(second, float(dark)), 0.0), 1.0)
        else:
            alpha[0] = first / max(second, float(dark)) if second > 0 else 0.0
    return -alpha[0]


@inlined
def _newton_part(
    kind: int, S: Any, y: Any, xi: Any, b: Any, begin: int, end: int, a: float, constants: Any
) -> tuple[float, float]:
    """First and second derivative of the loss by alpha, over some pixels."""
    zero, one, dark = constants[0], constants[1], constants[2]
    two, first, second = one + one, zero, zero
    if kind == 1:
        for i in range(begin, end):
            scale = one - a * xi[i]
            over = one / max(S[i] * scale * scale + b[i], dark)
            dI, d2I, misfit = -two * S[i] * xi[i] * scale, two * S[i] * xi[i] * xi[i], one - y[i] * over
            first += misfit * dI
            second += y[i] * (dI * over) * (dI * over) + misfit * d2I
    else:
        for i in range(begin, end):
            first += two * S[i] * xi[i] * xi[i]
            second += two * S[i] * xi[i] * xi[i] * (two * two * S[i] + xi[i])
    return first, second


# --- probes at fractions of pixels ---


@inlined
def _ramp(f: float, out: Any) -> None:
    """exp(-2 pi i k f) over the FFT frequencies k of len(out) pixels, in double precision."""
    size = len(out)
    phase = -2.0 * math.pi * f / size
    turn, value = complex(math.cos(phase), math.sin(phase)), complex(1.0, 0.0)
    out[0] = value
    for k in range(1, (size + 1) // 2):
        value *= turn
        out[k] = value
        out[size - k] = value.conjugate()
    if size % 2 == 0:
        phase = math.pi * f
        out[size // 2] = complex(math.cos(phase), math.sin(phase))


@inlined
def _frequency(k: int, size: int) -> float:
    return (k if k < (size + 1) // 2 else k - size) / size


@inlined
def _ramps(f: Any, w: int, axis: int, factor: float, down: Any, across: Any) -> None:
    """Factors exp(-2 pi i k.f) of rows, times `factor`, down (2, h), and of columns, across (2, w' >= w).

    Real parts, imaginary parts; those of the axis also times 2 pi i k.
    """
    ry, rx = np.empty(down.shape[1], np.complex128), np.empty(w, np.complex128)
    _ramp(f[0], ry)
    _ramp(f[1], rx)
    for r in range(len(ry)):
        value = factor * (ry[r] * (2j * math.pi * _frequency(r, len(ry))) if axis == 0 else ry[r])
        down[0, r], down[1, r] = value.real, value.imag
    for c in range(w):
        value = rx[c] * (2j * math.pi * _frequency(c, w)) if axis == 1 else rx[c]
        across[0, c], across[1, c] = value.real, value.imag


@inlined
def _ramped(
    j: int, work: Any, spectrum: Any, fractions: Any, a: Any, axis: int, constants: Any, plan: Any, turns: Any, out: Any
) -> None:
    M, h, w, dtype = U(out.shape[1]), U(out.shape[2]), U(out.shape[3]), constants.dtype
    wide = (w + LANES - ONE) // LANES * LANES
    row, spare, at = _rows_of(work, ZERO, h, w)
    plane = work[at : at + TWO * h * wide]
    down, across = np.empty((TWO, h), dtype), np.zeros((TWO, wide), dtype)
    _ramps(fractions[j], np.int64(w), axis, a[j] * constants[6], down, across)
    minus = spread(-constants[1])
    for m in range(M):
        for start in range(ZERO, w, LANES):
            _strip_in(spectrum, TWO * h * w * m, h, w, start, plane)
            c, d = load(across[0], start), load(across[1], start)
            for r in range(h):
                i, e, f = TWO * h * start + PAIR * r, spread(down[0, r]), spread(down[1, r])
                s, t, p, q = load(plane, i), load(plane, i + LANES), e * c - f * d, e * d + f * c
                store(plane, i, p * s - q * t)
                store(plane, i + LANES, minus * (p * t + q * s))
            _transform(plane, TWO * h * start, spare, h, plan[0], turns[0])
        _back(plane, h, w, row, spare, plan, turns, out, TWO * h * w * (j * M + m))


@parallel
def ramped(
    work: Any, spectrum: Any, fractions: Any, a: Any, axis: int, constants: Any, plan: Any, turns: Any, out: Any
) -> None:
    """out_jm = F^H of a_j exp(-2 pi i k.f_j) spectrum_m, times 2 pi i k_axis where axis is 0 or 1."""
    count, bands = len(out), len(work)
    for i in prange(bands):
        band = np.int64(i)
        for j in range(count * band // bands, count * (band + 1) // bands):
            _ramped(U(j), work[band], spectrum, fractions, a, axis, constants, plan, turns, out)


@inlined
def _from_object(chi: Any, i: int, obj: Any, o: int, f: Any) -> Any:
    """Eight pixels of f conj(O) chi."""
    (p, q), (s, t) = load_complex(chi, i), load_complex(obj, o)
    return f * (s * p + t * q), f * (s * q - t * p)


@inlined
def _to_plane(
    chi: Any,
    i: int,
    obj: Any,
    k: int,
    stride: int,
    a: float,
    h: int,
    w: int,
    row: Any,
    spare: Any,
    plan: Any,
    turns: Any,
    plane: Any,
) -> None:
    """Rows of a conj(S O) chi, transformed, to a plane; the wave starts at i, the window at k."""
    f, wide = spread(a), TWO * w
    for r in range(ZERO, h, LANES):
        first = min(r, h - LANES)
        for c in range(ZERO, w, LANES):
            start = min(c, w - LANES)
            q, o = i + wide * first + TWO * start, k + stride * first + TWO * start
            _put_eight(
                row,
                start,
                _from_object(chi, q, obj, o, f),
                _from_object(chi, q + wide, obj, o + stride, f),
                _from_object(chi, q + TWO * wide, obj, o + TWO * stride, f),
                _from_object(chi, q + THREE * wide, obj, o + THREE * stride, f),
                _from_object(chi, q + U(4) * wide, obj, o + U(4) * stride, f),
                _from_object(chi, q + U(5) * wide, obj, o + U(5) * stride, f),
                _from_object(chi, q + U(6) * wide, obj, o + U(6) * stride, f),
                _from_object(chi, q + U(7) * wide, obj, o + U(7) * stride, f),
            )
        _transform(row, ZERO, spare, w, plan[1], turns[1])
        _turn_rows(row, first, h, w, plane)


@inlined
def _add_view(
    j: int,
    work: Any,
    chi: Any,
    obj: Any,
    n: Any,
    a: Any,
    fractions: Any,
    constants: Any,
    plan: Any,
    turns: Any,
    sums: Any,
    light: Any,
) -> None:
    """One view's share of a group's sums (M, 2 h w') and light (h, w)."""
    M, h, w, dtype = U(chi.shape[1]), U(chi.shape[2]), U(chi.shape[3]), constants.dtype
    wide = (w + LANES - ONE) // LANES * LANES
    row, spare, at = _rows_of(work, ZERO, h, w)
    plane = work[at : at + TWO * h * wide]
    down, across = np.empty((TWO, h), dtype), np.zeros((TWO, wide), dtype)
    _ramps(-fractions[j], np.int64(w), -1, constants[6], down, across)
    y, x, f2, stride = U(n[j, 0]), U(n[j, 1]), a[j] * a[j], TWO * U(obj.shape[1])
    for m in range(M):
        wave = TWO * h * w * (j * M + m)
        _to_plane(chi, wave, obj, stride * y + TWO * x, stride, a[j], h, w, row, spare, plan, turns, plane)
        for start in range(ZERO, w, LANES):
            _transform(plane, TWO * h * start, spare, h, plan[0], turns[0])
            c, d = load(across[0], start), load(across[1], start)
            for r in range(h):
                i, e, f = TWO * h * start + PAIR * r, spread(down[0, r]), spread(down[1, r])
                s, t, p, q = load(plane, i), load(plane, i + LANES), e * c - f * d, e * d + f * c
                store(sums[m], i, load(sums[m], i) + (p * s - q * t))
                store(sums[m], i + LANES, load(sums[m], i + LANES) + (p * t + q * s))
    for r in range(h):
        o, k = obj[y + r, x : x + w], light[r]
        for c in range(w):
            k[c] += f2 * (o[c].real * o[c].real + o[c].imag * o[c].imag)


@inlined
def _gather_groups(r: int, sums: Any, lights: Any, out: Any, weight: Any) -> None:
    """Row r of what groups have summed."""
    M, h, w = U(out.shape[0]), U(out.shape[1]), U(out.shape[2])
    for g in range(U(len(sums))):
        for m in range(M):
            for start in range(ZERO, w, LANES):
                i = TWO * h * start + PAIR * r
                for c in range(min(LANES, w - start)):
                    out[m, r, start + c] += complex(sums[g, m, i + c], sums[g, m, i + LANES + c])
        for c in range(w):
            weight[r, c] += lights[g, r, c]


@parallel
def to_spectrum(
    work: Any,
    chi: Any,
    obj: Any,
    n: Any,
    a: Any,
    fractions: Any,
    constants: Any,
    plan: Any,
    turns: Any,
    sums: Any,
    lights: Any,
    out: Any,
    weight: Any,
) -> None:
    """out_m += sum_j exp(+2 pi i k.f_j) F a_j conj(S_j O) chi_jm and weight += sum_j a_j^2 |S_j O|^2.

    sums (groups, M, 2 h w') and lights (groups, h, w), zero: neighbouring views are summed in groups, and then those.
    A band of `work` is one of a group.
    """
    B, groups = len(chi), len(work)
    for i in prange(groups):
        group = np.int64(i)
        for j in range(B * group // groups, B * (group + 1) // groups):
            _add_view(U(j), work[group], chi, obj, n, a, fractions, constants, plan, turns, sums[group], lights[group])
    for i in prange(out.shape[1]):
        _gather_groups(U(i), sums, lights, out, weight)


#: See compiled.SIGNATURES.
SIGNATURES = {
    detector: "r2 c2 i2 c4 r1 b u3 i1 i r1 r1 r1 b i i i2 r2 c4 d2",
    ramped: "r2 c3 r2 r1 i r1 i2 r2 c4",
    to_spectrum: "r2 c4 c2 i2 r1 r2 r1 i2 r2 r3 r3 c3 r2",
}
