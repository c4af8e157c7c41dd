"""Loops over windows of views that wait to be added to an object, compiled by numba for this CPU. `object_sums.py`
calls them.

B, h, w    views that wait, window pixels;  H, W  object pixels
windows    (B, h, w) complex, sum_m conj(P_jm) chi_jm of each view, with its amplitude
light      (1 or B, h, w) real, sum_m |P_m|^2 of all views alike, or of each;  a  (B,) real, amplitudes that it lacks
n          (B, 2) int64, the object's pixel under each window's corner, y x

Every pixel of the object adds view after view, whichever band of rows it is in.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from ptymesh.kernels.compiled import TWO, ZERO, U, freshen, grown, reach, rows_of
from ptymesh.kernels.compiled_blocks import AHEAD
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

WIDTH = int(LANES)
#: Rows for which views are looked through together.
ROWS = 128


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
    start, stop = rows_of(whole, top, bottom, band, bands)
    full, highest = w // LANES * LANES, load(top_of, ZERO)
    for j in range(len(n)):
        y, x, squared = n[j, 0], n[j, 1], a[j] * a[j]
        if whole:
            freshen(stale, max(start, y), min(stop, y + windows.shape[1]), x, x + windows.shape[2], out, weight)
        for r in range(max(0, start - y), min(windows.shape[1], stop - y)):
            k, i = W * U(y + r) + U(x), w * (h * U(j) + U(r))
            e = w * U(r) if len(light) == 1 else i
            fetch(out, TWO * (k + AHEAD * W), TWO * w)
            fetch(weight, k + AHEAD * W, w)
            for c in range(ZERO, full, LANES):
                real, imaginary = load_complex(windows, TWO * (i + c))
                add_complex(out, TWO * (k + c), real, imaginary)
                highest = grown(weight, k + c, spread(squared) * load(light, e + c), highest)
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

    stale, tops (bands, k > 8): see `compiled.to_object`.
    """
    top, bottom = reach(n, windows.shape[1])
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
    top, bottom = reach(n, windows.shape[1])
    for i in prange(bands):
        band = np.int64(i)
        start, stop = rows_of(False, top, bottom, band, bands)
        _divide_windows(start, stop, windows, light, n, a, by_column, numbers, divide, target, tops[band])


#: See compiled.SIGNATURES.
SIGNATURES = {
    add_windows: "c3 r3 i2 r1 i u2 c2 r2 r2",
    divide_windows: "c3 r3 i2 r1 i1 r1 b i c2 r2",
}
