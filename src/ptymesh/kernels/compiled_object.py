"""Loops that add views to an object, compiled by numba for this CPU. `cpu.py` and `object_sums.py` call them.

chi, n, beams, a   see compiled.py;  H, W  object pixels
windows            (B, h, w) complex, of views that wait: sum_m conj(P_jm) chi_jm of each, with its amplitude
light              (1 or B, h, w) real, sum_m |P_m|^2 of all of them alike, or of each, without the amplitudes a

Every pixel of the object adds view after view, whichever band of rows it is in.
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
    fetch,
    is_zero,
    larger,
    load,
    load_complex,
    spread,
    store,
)

U: Any = np.uint64
ZERO, TWO = U(0), U(2)
WIDTH = int(LANES)
#: Rows for which views are looked through together.
ROWS = 128


@inlined
def _reach(n: Any, h: int) -> Any:
    """First row that windows of h + 1 rows at n (B, 2) reach, and the one after the last."""
    top, bottom = n[0, 0], n[0, 0]
    for j in range(1, len(n)):
        top, bottom = min(top, n[j, 0]), max(bottom, n[j, 0])
    return top, bottom + h + 1


@inlined
def _rows(whole: bool, top: int, bottom: int, band: int, bands: int) -> Any:
    """First row of a band of rows top ... bottom - 1, and the one after its last; whole: no block is shared."""
    if whole:
        first, last = top // SIDE, (bottom + SIDE - 1) // SIDE
        return (first + (last - first) * band // bands) * SIDE, (first + (last - first) * (band + 1) // bands) * SIDE
    return top + (bottom - top) * band // bands, top + (bottom - top) * (band + 1) // bands


@inlined
def _freshen(stale: Any, top: int, bottom: int, left: int, right: int, out: Any, weight: Any) -> None:
    """Blocks under rows top ... bottom - 1 and columns left ... right - 1 become zero if they are stale."""
    W = U(out.shape[1])
    for r in range(top // SIDE, (bottom + SIDE - 1) // SIDE):
        for c in range(left // SIDE, (right + SIDE - 1) // SIDE):
            if stale[r, c] != 0:
                stale[r, c] = 0
                clear_pixels(W * U(SIDE * r) + U(SIDE * c), W, U(SIDE), out, weight)


@inlined
def _grown(weight: Any, place: int, power: Any, highest: Any) -> Any:
    """Adds to the weight at a place; what is highest with it. Weights only grow: at last it is the highest of all."""
    power = load(weight, place) + power
    store(weight, place, power)
    return larger(power, highest)


@inlined
def _add_row(
    j: int, b: int, r: int, chi: Any, beams: Any, f: float, y: int, x: int, out: Any, weight: Any, top: Any
) -> None:
    """Row r of view j, beam b: adds sum_m conj(f P_m) chi_m to `out` and sum_m |f P_m|^2 to `weight` at y x."""
    M, h, w, W = U(chi.shape[1]), U(chi.shape[2]), U(chi.shape[3]), U(out.shape[1])
    k, mode = W * U(y) + U(x), TWO * h * w
    i, e = mode * M * U(j) + TWO * w * U(r), mode * M * U(b) + TWO * w * U(r)
    by, by2 = spread(f), spread(f * f)
    full = w // LANES * LANES
    fetch(out, TWO * (k + AHEAD * W), TWO * w)
    fetch(weight, k + AHEAD * W, w)
    highest = load(top, ZERO)
    for c in range(ZERO, full, LANES):
        at = TWO * c
        (p, q), (s, t) = load_complex(beams, e + at), load_complex(chi, i + at)
        real, imaginary, power = p * s + q * t, p * t - q * s, p * p + q * q
        for m in range(U(1), M):
            (p, q), (s, t) = load_complex(beams, e + at + m * mode), load_complex(chi, i + at + m * mode)
            real, imaginary, power = real + (p * s + q * t), imaginary + (p * t - q * s), power + (p * p + q * q)
        add_complex(out, TWO * k + at, by * real, by * imaginary)
        highest = _grown(weight, k + c, by2 * power, highest)
    store(top, ZERO, highest)
    for c in range(full, w):
        for m in range(M):
            P = f * beams[b, m, r, c]
            out[y, U(x) + c] += np.conj(P) * chi[j, m, r, c]
            weight[y, U(x) + c] += P.real * P.real + P.imag * P.imag
        top[0] = max(top[0], weight[y, U(x) + c])


@inlined
def _add_between(
    j: int,
    b: int,
    r: int,
    chi: Any,
    beams: Any,
    f: float,
    y: int,
    x: int,
    ty: float,
    tx: float,
    start: int,
    stop: int,
    one: float,
    wave: Any,
    power: Any,
    out: Any,
    weight: Any,
) -> None:
    """The same between pixels, shared out to those of rows start ... stop - 1; wave, power: rows to work in."""
    M, w = chi.shape[1], chi.shape[3]
    wave[:], power[:] = 0, 0
    for m in range(M):
        p, q = beams[b, m, r], chi[j, m, r]
        for c in range(w):
            wave[c] += f * (np.conj(p[c]) * q[c])
            power[c] += f * f * (p[c].real * p[c].real + p[c].imag * p[c].imag)
    for corner in range(4):
        row, right = y + corner // 2, corner % 2
        share = (ty if corner // 2 else one - ty) * (tx if right else one - tx)
        if start <= row < stop:
            o, k = out[row, x + right : x + right + w], weight[row, x + right : x + right + w]
            for c in range(w):
                o[c] += share * wave[c]
                k[c] += share * power[c]


@inlined
def _to_object(
    band: int,
    chi: Any,
    n: Any,
    t: Any,
    beams: Any,
    a: Any,
    top: int,
    bottom: int,
    bands: int,
    constants: Any,
    stale: Any,
    out: Any,
    weight: Any,
    top_of: Any,
) -> None:
    B, _, h, w = chi.shape
    whole = len(stale) > 0
    start, stop = _rows(whole, top, bottom, band, bands)
    power, wave = np.empty(w, weight.dtype), np.empty(w, out.dtype)
    for j in range(B):
        y, x, f, ty, tx = n[j, 0], n[j, 1], a[j], t[j, 0], t[j, 1]
        b, one = 0 if beams.shape[0] == 1 else j, constants[1]
        if whole:
            more = 1 if (ty != 0) | (tx != 0) else 0
            _freshen(stale, max(start, y), min(stop, y + h + more), x, x + w + more, out, weight)
        if (ty != 0) | (tx != 0):
            for r in range(max(0, start - y - 1), min(h, stop - y)):
                _add_between(j, b, r, chi, beams, f, y + r, x, ty, tx, start, stop, one, wave, power, out, weight)
        else:
            for r in range(max(0, start - y), min(h, stop - y)):
                _add_row(j, b, r, chi, beams, f, y + r, x, out, weight, top_of[band])


@parallel
def to_object(
    chi: Any,
    n: Any,
    t: Any,
    beams: Any,
    a: Any,
    bands: int,
    constants: Any,
    stale: Any,
    out: Any,
    weight: Any,
    tops: Any,
) -> None:
    """out += sum_j S_j^H sum_m conj(a_j beams_jm) chi_jm and weight += sum_j S_j^H sum_m |a_j beams_jm|^2.

    t (B, 2): weights of the next pixel, down and right (bilinear), or zero. stale (H/b, W/b) uint8: blocks which become
    zero before anything is added to them, and are stale no more; of no rows, there are none. tops (bands, k >= 8): in
    each band's row is the largest weight that it has added to, if not one larger yet; where t is zero.
    """
    top, bottom = _reach(n, chi.shape[2])
    for i in prange(bands):
        _to_object(np.int64(i), chi, n, t, beams, a, top, bottom, bands, constants, stale, out, weight, tops)


@inlined
def _add_light(band: int, light: Any, n: Any, a: Any, top: int, bottom: int, bands: int, out: Any) -> None:
    h, w = light.shape
    start, stop = top + (bottom - top) * band // bands, top + (bottom - top) * (band + 1) // bands
    for j in range(len(n)):
        y, x, f2 = n[j, 0], n[j, 1], a[j] * a[j]
        for r in range(max(0, start - y), min(h, stop - y)):
            k, source = out[y + r, x : x + w], light[r]
            for c in range(w):
                k[c] += f2 * source[c]


@parallel
def add_light(light: Any, n: Any, a: Any, bands: int, out: Any) -> None:
    """out += sum_j a_j^2 S_j^H light, light (h, w) real."""
    top, bottom = _reach(n, light.shape[0])
    for i in prange(bands):
        _add_light(np.int64(i), light, n, a, top, bottom, bands, out)


# --- windows that wait ---


@inlined
def _add_windows(
    band: int,
    windows: Any,
    light: Any,
    n: Any,
    a: Any,
    top: int,
    bottom: int,
    bands: int,
    stale: Any,
    out: Any,
    weight: Any,
    top_of: Any,
) -> None:
    h, w, W, whole = U(windows.shape[1]), U(windows.shape[2]), U(out.shape[1]), len(stale) > 0
    start, stop = _rows(whole, top, bottom, band, bands)
    full, highest = w // LANES * LANES, load(top_of, ZERO)
    for j in range(len(n)):
        y, x, squared = n[j, 0], n[j, 1], a[j] * a[j]
        if whole:
            _freshen(stale, max(start, y), min(stop, y + windows.shape[1]), x, x + windows.shape[2], out, weight)
        for r in range(max(0, start - y), min(windows.shape[1], stop - y)):
            k, i = W * U(y + r) + U(x), w * (h * U(j) + U(r))
            e = w * U(r) if len(light) == 1 else i
            fetch(out, TWO * (k + AHEAD * W), TWO * w)
            fetch(weight, k + AHEAD * W, w)
            for c in range(ZERO, full, LANES):
                real, imaginary = load_complex(windows, TWO * (i + c))
                add_complex(out, TWO * (k + c), real, imaginary)
                highest = _grown(weight, k + c, spread(squared) * load(light, e + c), highest)
            for c in range(full, w):
                out[y + r, U(x) + c] += windows[j, r, c]
                weight[y + r, U(x) + c] += squared * light[min(j, len(light) - 1), r, c]
                top_of[LANES] = max(top_of[LANES], weight[y + r, U(x) + c])
    store(top_of, ZERO, highest)


@parallel
def add_windows(
    windows: Any, light: Any, n: Any, a: Any, bands: int, stale: Any, out: Any, weight: Any, tops: Any
) -> None:
    """out (H, W) += sum_j S_j^H windows_j and weight += sum_j a_j^2 S_j^H light_j.

    stale, tops (bands, k > 8): see `to_object`.
    """
    top, bottom = _reach(n, windows.shape[1])
    for i in prange(bands):
        _add_windows(np.int64(i), windows, light, n, a, top, bottom, bands, stale, out, weight, tops[i])


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
def _sum_row(
    y: int, views: Any, windows: Any, light: Any, n: Any, a: Any, divide: bool, sums: Any, weight: Any
) -> None:
    """Adds row y of these views to `sums` (W,), if these are to be divided, and `weight` (W,)."""
    h, w = U(windows.shape[1]), U(windows.shape[2])
    full = w // LANES * LANES
    for j in views:
        x, squared, r = U(n[j, 1]), a[j] * a[j], U(y - n[j, 0])
        i = w * (h * U(j) + r)
        e = w * r if len(light) == 1 else i
        for c in range(ZERO, full, LANES):
            store(weight, x + c, load(weight, x + c) + spread(squared) * load(light, e + c))
        for c in range(full, w):
            weight[x + c] += squared * light[min(j, len(light) - 1), r, c]
        if not divide:
            continue
        fetch(windows, TWO * (i + AHEAD * w), TWO * w)
        for c in range(ZERO, TWO * full, LANES):
            store(sums, TWO * x + c, load(sums, TWO * x + c) + load(windows, TWO * i + c))
        for c in range(full, w):
            sums[x + c] += windows[j, r, c]


@inlined
def _divide_windows(
    start: int,
    stop: int,
    windows: Any,
    light: Any,
    n: Any,
    a: Any,
    by_column: Any,
    numbers: Any,
    divide: bool,
    target: Any,
    top_of: Any,
) -> None:
    """Rows start ... stop - 1, some at a time: where there are many views, few of them cross those."""
    B, h, w = windows.shape
    W, nothing, highest = U(target.shape[1]), spread(light.dtype.type(0)), load(top_of, ZERO)
    times, factor, summand = spread(numbers[0]), spread(numbers[1]), spread(numbers[2])
    sums, weight = np.empty(target.shape[1], target.dtype), np.empty(target.shape[1], light.dtype)
    every, near, beside, views = np.arange(B), np.arange(B), np.arange(B), np.arange(B)
    spans, high, some = np.empty((B, 2), np.int64), start, 0
    top = start
    while top < stop:
        if top == high:
            high = min(top + ROWS, stop)
            some = _near(top, high, n, h, every, near)
            _near(top, high, n, h, by_column, beside)
        count, joined, until = _crossing(top, high, n, h, w, near[:some], beside[:some], views, spans)
        for y in range(top, until if count > 0 else top):
            for first, after in spans[:joined]:
                if divide:
                    fetch(target, TWO * (W * (U(y) + AHEAD) + U(first)), TWO * U(after - first))
                for c in range(U(first), U(after), LANES):
                    store(weight, c, nothing)
                    if divide:
                        store(sums, TWO * c, nothing)
                        store(sums, TWO * c + LANES, nothing)
            _sum_row(y, views[:count], windows, light, n, a, divide, sums, weight)
            for first, after in spans[:joined]:
                for c in range(U(first), U(after), LANES):
                    found = load(weight, c)
                    if not divide:
                        highest = larger(found, highest)
                        continue
                    real, imaginary = load_complex(sums, TWO * c)
                    if not is_zero(real, imaginary):  # nothing is added there, whatever divides it
                        by = times / (found * factor + summand)
                        add_complex(target, TWO * (W * U(y) + c), real * by, imaginary * by)
        top = until
    store(top_of, ZERO, highest)


@parallel
def divide_windows(
    windows: Any,
    light: Any,
    n: Any,
    a: Any,
    by_column: Any,
    numbers: Any,
    divide: bool,
    bands: int,
    target: Any,
    tops: Any,
) -> None:
    """target (H, W) += numbers[0] sum_j S_j^H windows_j / (numbers[1] weight + numbers[2]), weight as in `add_windows`.

    Sums are made row by row, and never leave the cache. by_column: views in the order of their columns. divide: if not,
    the target stays. then tops (bands, k >= 8) say in each band's row the largest weight that it has found, if not one
    larger yet. W is whole vectors.
    """
    top, bottom = _reach(n, windows.shape[1])
    for i in prange(bands):
        band = np.int64(i)
        start, stop = _rows(False, top, bottom, band, bands)
        _divide_windows(start, stop, windows, light, n, a, by_column, numbers, divide, target, tops[band])


#: See compiled.SIGNATURES.
SIGNATURES = {
    to_object: "c4 i2 r2 c4 r1 i r1 u2 c2 r2 r2",
    add_light: "r2 i2 r1 i r2",
    add_windows: "c3 r3 i2 r1 i u2 c2 r2 r2",
    divide_windows: "c3 r3 i2 r1 i1 r1 b i c2 r2",
}
