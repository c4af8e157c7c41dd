"""Signals of a detector with pieces between intensities and counts, compiled by numba for this CPU.

B, h, w      views of the chunk, window pixels;  h, w >= 8
signals      (B, h w) real, of each pixel, row after row
panel, plane, work   see column_panels.py

What stands between powers and counts is computed window by window: by a piece's own methods, which call `convolved` for
short kernels and `filtered` for others. `detector` takes waves there and back.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from ptymesh.kernels.arrays import DetectorInputs, DetectorOptions, RealArray, Tables
from ptymesh.kernels.cpu.compiled.column_panels import (
    PAIR,
    TWO,
    ZERO,
    U,
    WindowTransform,
    real_panel_in,
    real_panel_out,
    row_panel_back,
    row_panel_from,
    transform_in,
    transform_row,
)
from ptymesh.kernels.cpu.compiled.comparison import Panel, compare, counts_in_panels
from ptymesh.kernels.cpu.compiled.jit import inlined, parallel
from ptymesh.kernels.cpu.compiled.propagation import columns_through
from ptymesh.kernels.cpu.compiled.shifts import empty_factors
from ptymesh.kernels.cpu.compiled.vectors import LANES, Vector, broadcast, load, store

FourVectors = tuple[Vector, Vector, Vector, Vector]
#: Columns that are convolved together.
FOUR = U(4) * LANES


@inlined
def _compare_signals(
    j: int,
    work: RealArray,
    window: tuple[int, int],
    data: DetectorInputs,
    how: DetectorOptions,
    constants: RealArray,
    of_views: tuple[RealArray, RealArray, RealArray],
) -> None:
    """Write the sums and factors of view j."""
    (counts, places, good, b), (code, _, kind, task), (signals, terms, changes) = data, how, of_views
    h, w, pixels = U(window[0]), U(window[1]), U(len(good))
    y, S, change = work[:pixels], work[pixels : TWO * pixels], work[TWO * pixels : U(3) * pixels]
    for t in range(6):
        terms[j, t] = 0.0
    least = constants[7] * counts_in_panels(counts[places[j]], code, h, w, good, constants, y)
    for start in range(ZERO, w, LANES):
        at = h * start
        real_panel_in(signals[j], h, w, start, S, at, LANES)
        compare(Panel(LANES * h, S, change, at, y, b, at), constants, least, kind, task, terms[j])
        real_panel_out(change, at, LANES, h, w, start, changes[j])


@parallel
def compare_signals(
    work: RealArray,
    window: tuple[int, int],
    data: DetectorInputs,
    how: DetectorOptions,
    constants: RealArray,
    of_views: tuple[RealArray, RealArray, RealArray],
) -> None:
    """Compare signals with counts: write the sums of each view, and -dL/dI or, for task 1, the factor less 1.

    Args:
        work: (bands, k) real, workspace of each band.
        window: h and w.
        data: counts, indices of patterns, mask and background, as for `detector.detector`.
        how: dtype of the counts, unused, fidelity and task, likewise.
        constants: (10,) real, see comparison.py.
        of_views: signals (B, h w) real, behind the pieces of the detector, without the background; sums (B, 6) float64,
            written, see Backend.at_detector; changes (B, h w) real, written.
    """
    count, bands = len(of_views[0]), len(work)
    for i in prange(bands):
        band = np.int64(i)
        for j in range(count * band // bands, count * (band + 1) // bands):
            _compare_signals(j, work[band], window, data, how, constants, of_views)


@inlined
def _add_neighbours(x: RealArray, i: int, k: int, t: Vector, found: Vector) -> Vector:
    """Return a sum of eight pixels with t times those at i and at k."""
    return found + t * (load(x, i) + load(x, k))


@inlined
def _add_four(x: RealArray, i: int, k: int, t: Vector, found: FourVectors) -> FourVectors:
    """Return sums of four times eight pixels, each as `_add_neighbours`."""
    return (
        _add_neighbours(x, i, k, t, found[0]),
        _add_neighbours(x, i + LANES, k + LANES, t, found[1]),
        _add_neighbours(x, i + TWO * LANES, k + TWO * LANES, t, found[2]),
        _add_neighbours(x, i + U(3) * LANES, k + U(3) * LANES, t, found[3]),
    )


@inlined
def _scaled_four(x: RealArray, i: int, t: Vector) -> FourVectors:
    """Return t times four times eight pixels from i on."""
    return t * load(x, i), t * load(x, i + LANES), t * load(x, i + TWO * LANES), t * load(x, i + U(3) * LANES)


@inlined
def _store_four(out: RealArray, i: int, found: FourVectors) -> None:
    """Write four times eight pixels from i on."""
    store(out, i, found[0])
    store(out, i + LANES, found[1])
    store(out, i + TWO * LANES, found[2])
    store(out, i + U(3) * LANES, found[3])


@inlined
def _convolved(
    x: RealArray, h: int, w: int, down: RealArray, across: RealArray, line: RealArray, out: RealArray
) -> None:
    """Write a window convolved with a symmetric kernel, around its edges; `line` has w + 2 reach numbers.

    Sums over neighbours stay in registers, of 32 columns at a time as long as there are so many: each pixel's terms
    come in the same order.
    """
    deep, reach, wide = U(len(down)), U(len(across)) - U(1), w // FOUR * FOUR
    for r in range(h):
        for c in range(ZERO, wide, FOUR):
            many = _scaled_four(x, w * r + c, broadcast(down[0]))
            for k in range(U(1), deep):
                above, below = (r - k if r >= k else r + h - k), (r + k if r + k < h else r + k - h)
                many = _add_four(x, w * above + c, w * below + c, broadcast(down[k]), many)
            _store_four(line, reach + c, many)
        for c in range(wide, w, LANES):
            at = min(c, w - LANES)  # the last eight, though some of them have been written
            found = broadcast(down[0]) * load(x, w * r + at)
            for k in range(U(1), deep):
                above, below = (r - k if r >= k else r + h - k), (r + k if r + k < h else r + k - h)
                found = _add_neighbours(x, w * above + at, w * below + at, broadcast(down[k]), found)
            store(line, reach + at, found)
        for c in range(reach):
            line[c], line[reach + w + c] = line[w + c], line[reach + c]
        for c in range(ZERO, wide, FOUR):
            many = _scaled_four(line, reach + c, broadcast(across[0]))
            for k in range(U(1), reach + U(1)):
                many = _add_four(line, reach + c - k, reach + c + k, broadcast(across[k]), many)
            _store_four(out, w * r + c, many)
        for c in range(wide, w, LANES):
            at = min(c, w - LANES)
            found = broadcast(across[0]) * load(line, reach + at)
            for k in range(U(1), reach + U(1)):
                found = _add_neighbours(line, reach + at - k, reach + at + k, broadcast(across[k]), found)
            store(out, w * r + at, found)


@parallel
def convolved(
    work: RealArray, x: RealArray, window: tuple[int, int], down: RealArray, across: RealArray, out: RealArray
) -> None:
    """Write windows convolved with the product of two symmetric kernels, around the windows' edges.

    Args:
        work: (bands, k) real, workspace of each band: w + 2 n numbers.
        x: (B, h w) real.
        window: h and w.
        down: (n,) real, kernel along y from its middle on, n <= h.
        across: (n,) real, kernel along x from its middle on, n <= w.
        out: (B, h w) real, written.
    """
    count, bands = len(x), len(work)
    for i in prange(bands):
        band = np.int64(i)
        for j in range(count * band // bands, count * (band + 1) // bands):
            _convolved(x[j], U(window[0]), U(window[1]), down, across, work[band], out[j])


@inlined
def _separate_spectra(row: RealArray, w: int, half: Vector, upper: RealArray, lower: RealArray) -> None:
    """Write the spectra of the real parts of transformed rows, and of their imaginary ones, up to frequency w / 2."""
    for q in range(w // TWO + U(1)):
        i, k = PAIR * q, PAIR * ((w - q) % w)
        s, t, u, v = load(row, i), load(row, i + LANES), load(row, k), load(row, k + LANES)
        store(upper, i, half * (s + u))
        store(upper, i + LANES, half * (t - v))
        store(lower, i, half * (t + v))
        store(lower, i + LANES, half * (u - s))


@inlined
def _join_spectra(upper: RealArray, lower: RealArray, w: int, row: RealArray) -> None:
    """Write rows whose parts have these spectra."""
    for q in range(w // TWO + U(1)):
        i, k = PAIR * q, PAIR * ((w - q) % w)
        a, b, c, d = load(upper, i), load(upper, i + LANES), load(lower, i), load(lower, i + LANES)
        store(row, i, a - d)
        store(row, i + LANES, b + c)
        store(row, k, a + d)
        store(row, k + LANES, c - b)


@inlined
def _filtered(x: RealArray, h: int, w: int, kernel: RealArray, tables: Tables, work: RealArray, out: RealArray) -> None:
    """Write F^H T F of a window of an even number of rows, at least 16.

    Rows of the lower half are transformed as imaginary parts of those of the upper one.
    """
    fourier, at = transform_in(work, ZERO, h, w, tables)
    row, deep, one = fourier.row, h // TWO, fourier.twiddles[0, 0]
    wide, size = PAIR * ((w + LANES - U(1)) // LANES * LANES), h * ((w + LANES - U(1)) // LANES * LANES)
    plane, upper, lower = work[at : at + size], work[at + size :], work[at + size + wide :]
    spectrum, halves = work[at + size + TWO * wide :], (x[: deep * w], x[deep * w :], out[: deep * w], out[deep * w :])
    columns = WindowTransform(h, w // TWO + U(1), row, fourier.spare, fourier.plan, fourier.twiddles)
    for start in range(ZERO, w, LANES):
        real_panel_in(halves[0], deep, w, start, plane, h * start, PAIR)
        real_panel_in(halves[1], deep, w, start, plane, h * start + LANES, PAIR)
    for r in range(ZERO, deep, LANES):
        first = min(r, deep - LANES)
        row_panel_from(plane, first, deep, w, row, ZERO)
        transform_row(row, ZERO, fourier)
        _separate_spectra(row, w, broadcast(one / (one + one)), upper, lower)
        row_panel_back(upper, ZERO, spectrum, first, h, columns.w)
        row_panel_back(lower, ZERO, spectrum, deep + first, h, columns.w)
    columns_through(spectrum, kernel, one, False, empty_factors(h, w, work.dtype), columns)
    for r in range(ZERO, deep, LANES):
        first = min(r, deep - LANES)
        row_panel_from(spectrum, first, h, columns.w, upper, ZERO)
        row_panel_from(spectrum, deep + first, h, columns.w, lower, ZERO)
        _join_spectra(upper, lower, w, row)
        transform_row(row, ZERO, fourier)
        row_panel_back(row, ZERO, plane, first, deep, w)
    for start in range(ZERO, w, LANES):
        real_panel_out(plane, h * start, PAIR, deep, w, start, halves[2])
        real_panel_out(plane, h * start + LANES, PAIR, deep, w, start, halves[3])


@parallel
def filtered(
    work: RealArray, x: RealArray, window: tuple[int, int], kernel: RealArray, tables: Tables, out: RealArray
) -> None:
    """Write F^H T F of windows, in double precision.

    Args:
        work: (bands, k) float64, workspace of each band.
        x: (B, h w) real.
        window: h, even and at least 16, and w.
        kernel: (2 h w',) float64, T as a wave, with the scale of two transforms, panel after panel.
        tables: constants, plan and twiddles of the transform, float64.
        out: (B, h w) real, written.
    """
    count, bands = len(x), len(work)
    for i in prange(bands):
        band = np.int64(i)
        for j in range(count * band // bands, count * (band + 1) // bands):
            _filtered(x[j], U(window[0]), U(window[1]), kernel, tables, work[band], out[j])


#: See compiled.SIGNATURES; what stands in brackets is a tuple.
SIGNATURES = {
    filtered: "d2 r2 (i i) d1 (d1 i2 d2) r2",
    compare_signals: "r2 (i i) (u3 i1 r1 r1) (i b i i) r1 (r2 d2 r2)",
    convolved: "r2 r2 (i i) r1 r1 r2",
}
