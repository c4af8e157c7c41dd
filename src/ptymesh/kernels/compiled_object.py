"""Loops that add windows of views to an object, compiled by numba for this CPU.

windows            (B, h, w) complex, sum_m conj(P_jm) chi_jm of each view, with its amplitude
light              (1 or B, h, w) real, sum_m |P_m|^2 of all of them alike, or of each, without the amplitudes
n, t, a            (B, 2) pixel under each corner; (B, 2) weights of the next one (bilinear), or 0; (B,) amplitudes
H, W               object pixels
sums, weight       (parts, H, W) of double precision, complex and real: terms are rounded (physics/rounding.py)
shifts             (n, 2) float64, by kind of sum and part

Bands of rows are independent of each other, and every pixel adds view after view; no sum depends on the order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from ptymesh.kernels.compiled_blocks import AHEAD, SIDE, clear_pixels
from ptymesh.kernels.jit import inlined, parallel
from ptymesh.kernels.vectors import (
    LANES,
    add_complex,
    add_number,
    add_rounded,
    fetch,
    is_zero,
    larger,
    load,
    load_complex,
    load_sums,
    narrowed,
    second_part,
    spread,
    store,
    sum_at,
)
from ptymesh.physics.kinds import OBJECT, OBJECT_WEIGHT

U: Any = np.uint64
ZERO, ONE, TWO = U(0), U(1), U(2)
WIDTH = int(LANES)
#: Rows for which views are looked through together.
ROWS = 128


@inlined
def _reach(n: Any, h: int, rows: int) -> Any:
    """First row that windows of h + 1 rows at n (B, 2) reach, of so many, and the one after the last."""
    top, bottom = n[0, 0], n[0, 0]
    for j in range(1, len(n)):
        top, bottom = min(top, n[j, 0]), max(bottom, n[j, 0])
    top, bottom = min(max(top, 0), rows), min(bottom + h + 1, rows)
    return top, max(top, bottom)


@inlined
def _rows(whole: bool, top: int, bottom: int, band: int, bands: int) -> Any:
    """First row of a band of rows top ... bottom - 1, and the one after its last; whole: no block is shared."""
    if whole:
        first, last = top // SIDE, (bottom + SIDE - 1) // SIDE
        return (first + (last - first) * band // bands) * SIDE, (first + (last - first) * (band + 1) // bands) * SIDE
    return top + (bottom - top) * band // bands, top + (bottom - top) * (band + 1) // bands


@inlined
def _freshen(stale: Any, top: int, bottom: int, left: int, right: int, sums: Any, weight: Any) -> None:
    """Blocks under rows top ... bottom - 1 and columns left ... right - 1 become zero if they are stale."""
    W = U(weight.shape[2])
    for r in range(top // SIDE, (bottom + SIDE - 1) // SIDE):
        for c in range(left // SIDE, (right + SIDE - 1) // SIDE):
            if stale[r, c] != 0:
                stale[r, c] = 0
                for part in range(len(weight)):
                    first = W * (U(weight.shape[1]) * U(part) + U(SIDE * r)) + U(SIDE * c)
                    clear_pixels(first, W, U(SIDE), sums, weight)


# --- to sums ---


@inlined
def _add_row(windows: Any, i: int, w: int, shifts: Any, sums: Any, half: int, k: int) -> None:
    """Whole vectors of a row of w pixels of a window, from number i on, to pixel k of the sums."""
    shift, fine = spread(shifts[OBJECT, 0]), spread(shifts[OBJECT, 1])
    for c in range(ZERO, TWO * (w // LANES * LANES), LANES):
        add_rounded(sums, TWO * k + c, half, load(windows, TWO * i + c), shift, fine)


@inlined
def _light_row(light: Any, e: int, squared: float, w: int, shifts: Any, weight: Any, half: int, k: int) -> Any:
    """The same of its light, times a number, and the weight. Returns the highest weight there now: weights only grow,
    at last it is the highest of all."""
    shift, fine = spread(shifts[OBJECT_WEIGHT, 0]), spread(shifts[OBJECT_WEIGHT, 1])
    by, top = spread(squared), spread(0.0)
    for c in range(ZERO, w // LANES * LANES, LANES):
        add_rounded(weight, k + c, half, by * load(light, e + c), shift, fine)
        top = larger(load_sums(weight, k + c, half), top)
    return top


@inlined
def _add_rest(source: Any, share: float, first: int, shifts: Any, sums: Any, half: int, k: int) -> None:
    """Pixels from `first` on of a row of a window (w,), times a share, one by one."""
    shift, fine = shifts[OBJECT, 0], shifts[OBJECT, 1]
    for c in range(first, len(source)):
        z, at = source[c], TWO * (k + U(c))
        add_number(sums, at, half, share * z.real, shift, fine)
        add_number(sums, at + ONE, half, share * z.imag, shift, fine)


@inlined
def _light_rest(lit: Any, factor: float, first: int, shifts: Any, weight: Any, half: int, k: int) -> float:
    """The same of its light (w,), and the weight; returns the highest weight there now."""
    top = 0.0
    for c in range(first, len(lit)):
        at = k + U(c)
        add_number(weight, at, half, factor * lit[c], shifts[OBJECT_WEIGHT, 0], shifts[OBJECT_WEIGHT, 1])
        top = max(top, sum_at(weight, at, half))
    return top


@inlined
def _add_windows(
    band: int,
    windows: Any,
    light: Any,
    n: Any,
    t: Any,
    a: Any,
    shifts: Any,
    top: int,
    bottom: int,
    bands: int,
    one: float,
    stale: Any,
    sums: Any,
    weight: Any,
    top_of: Any,
) -> None:
    half, light_half = second_part(2 * sums.size, len(weight)), second_part(weight.size, len(weight))
    whole = len(stale) > 0
    h, w, W = U(windows.shape[1]), U(windows.shape[2]), U(weight.shape[2])
    start, stop = _rows(whole, top, bottom, band, bands)
    full, highest = int(w // LANES * LANES), load(top_of, ZERO)
    for j in range(len(n)):
        y, x, squared, ty, tx = n[j, 0], n[j, 1], a[j] * a[j], t[j, 0], t[j, 1]
        more, lit = 1 if (ty != 0) | (tx != 0) else 0, min(j, len(light) - 1)
        if whole:
            below, right = y + windows.shape[1] + more, x + windows.shape[2] + more
            _freshen(stale, max(start, y), min(stop, below), x, right, sums, weight)
        for r in range(max(0, start - y - more), min(windows.shape[1], stop - y)):
            k = W * U(y + r) + U(x)
            if more > 0:  # between pixels, shared out to those of this band's rows
                for corner in range(4):
                    down, across = corner // 2, corner % 2
                    share = (ty if down else one - ty) * (tx if across else one - tx)
                    if start <= y + r + down < stop:
                        at = k + W * U(down) + U(across)
                        _add_rest(windows[j, r], share, 0, shifts, sums, half, at)
                        _light_rest(light[lit, r], share * squared, 0, shifts, weight, light_half, at)
                continue
            fetch(sums, TWO * (k + AHEAD * W), TWO * w)
            fetch(weight, k + AHEAD * W, w)
            e = w * (h * U(lit) + U(r))
            _add_row(windows, w * (h * U(j) + U(r)), w, shifts, sums, half, k)
            _add_rest(windows[j, r], one, full, shifts, sums, half, k)
            highest = larger(_light_row(light, e, squared, w, shifts, weight, light_half, k), highest)
            found = _light_rest(light[lit, r], squared, full, shifts, weight, light_half, k)
            top_of[LANES] = max(top_of[LANES], found)
    store(top_of, ZERO, highest)


@parallel
def add_windows(
    windows: Any,
    light: Any,
    n: Any,
    t: Any,
    a: Any,
    shifts: Any,
    bands: int,
    constants: Any,
    stale: Any,
    sums: Any,
    weight: Any,
    tops: Any,
) -> None:
    """sums += sum_j S_j^H windows_j and weight += sum_j a_j^2 S_j^H light_j, where there are rows of them.

    stale (H/b, W/b) uint8: blocks which become zero before anything is added to them, and are stale no more; of no
    rows, there are none. tops (bands, k > 8): in each band's row is the largest weight that it has added to, if not one
    larger yet; where t is zero.
    """
    top, bottom = _reach(n, windows.shape[1], weight.shape[1])
    for i in prange(bands):
        _add_windows(
            np.int64(i), windows, light, n, t, a, shifts, top, bottom, bands, constants[1], stale, sums, weight, tops[i]
        )


@inlined
def _add_light(band: int, light: Any, n: Any, a: Any, shifts: Any, top: int, bottom: int, bands: int, out: Any) -> None:
    h, w, W, half = light.shape[0], light.shape[1], U(out.shape[2]), second_part(out.size, len(out))
    start, stop = top + (bottom - top) * band // bands, top + (bottom - top) * (band + 1) // bands
    for j in range(len(n)):
        y, x, squared = n[j, 0], n[j, 1], a[j] * a[j]
        for r in range(max(0, start - y), min(h, stop - y)):
            k = W * U(y + r) + U(x)
            for c in range(w):
                add_number(
                    out, k + U(c), half, squared * light[r, c], shifts[OBJECT_WEIGHT, 0], shifts[OBJECT_WEIGHT, 1]
                )


@parallel
def add_light(light: Any, n: Any, a: Any, shifts: Any, bands: int, out: Any) -> None:
    """out (parts, H, W) += sum_j a_j^2 S_j^H light, light (h, w) real."""
    top, bottom = _reach(n, light.shape[0], out.shape[1])
    for i in prange(bands):
        _add_light(np.int64(i), light, n, a, shifts, top, bottom, bands, out)


# --- at once to what the sums are for ---


@inlined
def _near(low: int, high: int, n: Any, h: int, order: Any, out: Any) -> int:
    """How many of these views have windows that cross any of the rows low ... high - 1; they are in `out` in order."""
    count = 0
    for j in order:
        if n[j, 0] < high and n[j, 0] + h > low:
            out[count] = j
            count += 1
    return count


@inlined
def _crossing(r: int, last: int, n: Any, h: int, w: int, by_view: Any, by_column: Any, views: Any, spans: Any) -> Any:
    """Those of these views whose windows cross row r, and spans of columns first ... after - 1, in whole vectors, that
    these cover; how many there are of both, and the row, `last` at most, from which on that is so no more."""
    count, joined, until = 0, 0, last
    for j in by_view:
        if n[j, 0] > r:
            until = min(until, n[j, 0])
        elif n[j, 0] + h > r:
            until = min(until, n[j, 0] + h)
            views[count] = j
            count += 1
    if count == 0:
        return count, joined, until
    for j in by_column:
        if n[j, 0] <= r and r < n[j, 0] + h:
            first, after = n[j, 1] // WIDTH * WIDTH, (n[j, 1] + w + WIDTH - 1) // WIDTH * WIDTH
            if joined > 0 and first <= spans[joined - 1, 1]:
                spans[joined - 1, 1] = max(spans[joined - 1, 1], after)
            else:
                spans[joined, 0], spans[joined, 1] = first, after
                joined += 1
    return count, joined, until


@inlined
def _next_rows(top: int, stop: int, high: int, some: int, n: Any, h: int, w: int, by_column: Any, lists: Any) -> Any:
    """As `_crossing`, of rows top ... stop - 1 of a band, of which ROWS are looked through together: where there are
    many views, few of them cross those. high, some: what was returned before, `top` and 0 at first."""
    every, near, beside, views, spans = lists
    if top == high:
        high = min(top + ROWS, stop)
        some = _near(top, high, n, h, every, near)
        _near(top, high, n, h, by_column, beside)
    count, joined, until = _crossing(top, high, n, h, w, near[:some], beside[:some], views, spans)
    return high, some, count, joined, until


@inlined
def _lists(B: int) -> Any:
    """What `_next_rows` works with: numbers of all views, of those near, the same by column, of those that cross a row;
    and spans of columns."""
    return np.arange(B), np.arange(B), np.arange(B), np.arange(B), np.empty((B, 2), np.int64)


@inlined
def _weigh_windows(
    start: int,
    stop: int,
    light: Any,
    n: Any,
    a: Any,
    h: int,
    by_column: Any,
    shifts: Any,
    out: Any,
    weight: Any,
    top_of: Any,
) -> None:
    """Rows start ... stop - 1 of `weigh_windows`."""
    w = light.shape[2]
    half, full, highest = second_part(weight.size, len(weight)), w // WIDTH * WIDTH, load(top_of, ZERO)
    W, nothing = U(out.shape[1]), spread(0.0)
    lists, top, high, some = _lists(len(n)), start, start, 0
    views, spans = lists[3], lists[4]
    while top < stop:
        high, some, count, joined, until = _next_rows(top, stop, high, some, n, h, w, by_column, lists)
        for y in range(top, until if count > 0 else top):
            for first, after in spans[:joined]:
                for part in range(len(weight)):
                    for c in range(U(first), U(after), LANES):
                        store(weight, half * U(part) + c, nothing)
            for j in views[:count]:
                r, lit, squared, k = y - n[j, 0], min(j, len(light) - 1), a[j] * a[j], U(n[j, 1])
                found = _light_row(light, U(w * (h * lit + r)), squared, U(w), shifts, weight, half, k)
                highest = larger(found, highest)
                rest = _light_rest(light[lit, r], squared, full, shifts, weight, half, k)
                top_of[LANES] = max(top_of[LANES], rest)
            for first, after in spans[:joined]:
                for c in range(U(first), U(after), LANES):
                    store(out, W * U(y) + c, narrowed(load_sums(weight, c, half), light))
        top = until
    store(top_of, ZERO, highest)


@parallel
def weigh_windows(
    light: Any,
    n: Any,
    a: Any,
    h: int,
    by_column: Any,
    shifts: Any,
    out: Any,
    weights: Any,
    tops: Any,
) -> None:
    """out (H, W) = weight, as in `add_windows`, where there are windows of h rows, which may reach beyond its first and
    last rows.

    Sums are made row by row, and never leave the cache: weights (bands, parts, 1, W) is room for them. by_column: views
    in the order of their columns. tops (bands, k > 8): in each band's row is the largest weight that it has found, if
    not one larger yet. W is whole vectors.
    """
    (top, bottom), bands = _reach(n, h, len(out)), len(weights)
    for i in prange(bands):
        band = np.int64(i)
        start, stop = _rows(False, top, bottom, band, bands)
        _weigh_windows(start, stop, light, n, a, h, by_column, shifts, out, weights[band], tops[band])


@inlined
def _divide_windows(
    start: int,
    stop: int,
    windows: Any,
    n: Any,
    by_column: Any,
    shifts: Any,
    numbers: Any,
    one: float,
    weight: Any,
    target: Any,
    sums: Any,
) -> None:
    """Rows start ... stop - 1 of `divide_windows`."""
    _, h, w = windows.shape
    W, half, full = U(target.shape[1]), second_part(2 * sums.size, len(sums)), w // WIDTH * WIDTH
    times, factor, summand, nothing = spread(numbers[0]), spread(numbers[1]), spread(numbers[2]), spread(0.0)
    lists, top, high, some = _lists(len(n)), start, start, 0
    views, spans = lists[3], lists[4]
    while top < stop:
        high, some, count, joined, until = _next_rows(top, stop, high, some, n, h, w, by_column, lists)
        for y in range(top, until if count > 0 else top):
            for first, after in spans[:joined]:
                fetch(target, TWO * (W * (U(y) + AHEAD) + U(first)), TWO * U(after - first))
                for part in range(len(sums)):
                    for c in range(TWO * U(first), TWO * U(after), LANES):
                        store(sums, half * U(part) + c, nothing)
            for j in views[:count]:
                r, k = y - n[j, 0], U(n[j, 1])
                i = U(w * (h * j + r))
                fetch(windows, TWO * (i + AHEAD * U(w)), TWO * U(w))
                _add_row(windows, i, U(w), shifts, sums, half, k)
                _add_rest(windows[j, r], one, full, shifts, sums, half, k)
            for first, after in spans[:joined]:
                for c in range(U(first), U(after), LANES):
                    store(sums, TWO * c, load_sums(sums, TWO * c, half))
                    store(sums, TWO * c + LANES, load_sums(sums, TWO * c + LANES, half))
                    p, q = load_complex(sums, TWO * c)
                    real, imaginary = narrowed(p, weight), narrowed(q, weight)
                    if not is_zero(real, imaginary):  # nothing is added there, whatever divides it
                        by = times / (load(weight, W * U(y) + c) * factor + summand)
                        add_complex(target, TWO * (W * U(y) + c), real * by, imaginary * by)
        top = until


@parallel
def divide_windows(
    windows: Any,
    n: Any,
    by_column: Any,
    shifts: Any,
    numbers: Any,
    constants: Any,
    weight: Any,
    target: Any,
    rows: Any,
) -> None:
    """target (H, W) += numbers[0] sum_j S_j^H windows_j / (numbers[1] weight + numbers[2]), with what `weigh_windows`
    has left in weight (H, W), and with rows (bands, parts, 1, W) as it has weights."""
    (top, bottom), bands = _reach(n, windows.shape[1], len(target)), len(rows)
    for i in prange(bands):
        band = np.int64(i)
        start, stop = _rows(False, top, bottom, band, bands)
        given = (windows, n, by_column, shifts, numbers, constants[1], weight)
        _divide_windows(start, stop, *given, target, rows[band])


#: See compiled.SIGNATURES.
SIGNATURES = {
    add_windows: "c3 r3 i2 r2 r1 d2 i r1 u2 z3 d3 d2",
    add_light: "r2 i2 r1 d2 i d3",
    weigh_windows: "r3 i2 r1 i i1 d2 r2 d4 d2",
    divide_windows: "c3 i2 i1 d2 r1 r1 r2 c2 z4",
}
