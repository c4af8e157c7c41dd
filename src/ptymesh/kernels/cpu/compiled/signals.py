"""Waves to a detector with pieces between intensities and counts, and back, compiled by numba for this CPU.

B, M, h, w   views of the chunk, modes, window pixels;  h, w >= 8
planes       (B, M, 2 h w') real, waves on the detector, panel after panel (column_panels.py)
signals      (B, h w) real, of each pixel, row after row

What stands between powers and counts is computed in between, window by window: by a piece's own methods, or, if it
convolves with a short kernel, by `convolved`.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from ptymesh.kernels.arrays import ComplexArray, DetectorInputs, DetectorOptions, ExitInputs, RealArray, Tables
from ptymesh.kernels.cpu.compiled.column_panels import (
    PAIR,
    TWO,
    ZERO,
    U,
    rows_back,
    rows_in,
    transform_in,
    transform_panel,
    wave_at,
    window_at,
)
from ptymesh.kernels.cpu.compiled.comparison import Panel, compare, counts_in_panels
from ptymesh.kernels.cpu.compiled.jit import inlined, parallel
from ptymesh.kernels.cpu.compiled.vectors import LANES, Vector, broadcast, load, store

FourVectors = tuple[Vector, Vector, Vector, Vector]
#: Columns that are convolved together.
FOUR = U(4) * LANES

# --- to the detector ---


@inlined
def _to_detector(
    j: int,
    work: RealArray,
    made_of: ExitInputs,
    product: bool,
    window: tuple[int, int],
    tables: Tables,
    out: tuple[RealArray, RealArray],
) -> None:
    """Write planes and powers of view j."""
    (obj, n, beams, a), constants, (planes, powers) = made_of, tables[0], out
    M, h, w, view = U(planes.shape[1]), U(window[0]), U(window[1]), ZERO if len(beams) == 1 else j
    fourier, _ = transform_in(work, ZERO, h, w, tables)
    spare, f, scale, own = fourier.spare, a[j], broadcast(constants[6] * constants[6]), powers[j]
    place = window_at(obj, n[j], h, w)
    for m in range(M):
        plane = planes[j, m]
        rows_in(wave_at(beams, view * M + m), place, f, f, product, fourier, plane)
        for start in range(ZERO, w, LANES):
            at = TWO * h * start
            transform_panel(plane, at, fourier)
            for r in range(h):
                p, q, o = load(plane, at + PAIR * r), load(plane, at + PAIR * r + LANES), w * r + start
                power = scale * (p * p + q * q)
                if start + LANES <= w:
                    store(own, o, power if m == ZERO else load(own, o) + power)
                    continue
                store(spare, ZERO, power)
                for c in range(w - start):
                    own[o + c] = spare[c] if m == ZERO else own[o + c] + spare[c]


@parallel
def to_detector(
    work: RealArray,
    made_of: ExitInputs,
    product: bool,
    window: tuple[int, int],
    tables: Tables,
    planes: RealArray,
    powers: RealArray,
) -> None:
    """Write waves on the detector, times sqrt(h w), and their powers sum_m |Psi_m|^2.

    Args:
        work: (bands, k) real, workspace of each band.
        made_of: object (H, W), corners (B, 2), beams (1 or B, M, h, w) and amplitudes (B,), see windows.py.
        product: True if exit waves are made of these; False if they are the beams.
        window: h and w.
        tables: constants, plan and twiddles of the transform.
        planes: (B, M, 2 h w') real, written.
        powers: (B, h w) real, written.
    """
    count, bands = len(powers), len(work)
    for i in prange(bands):
        band = np.int64(i)
        for j in range(count * band // bands, count * (band + 1) // bands):
            _to_detector(U(j), work[band], made_of, product, window, tables, (planes, powers))


# --- back from it ---


@inlined
def _from_detector(
    j: int, work: RealArray, planes: RealArray, factors: RealArray, tables: Tables, out: ComplexArray
) -> None:
    """Write what comes back of view j."""
    M, h, w, constants = U(out.shape[1]), U(out.shape[2]), U(out.shape[3]), tables[0]
    fourier, _ = transform_in(work, ZERO, h, w, tables)
    spare, own, scale = fourier.spare, factors[j], constants[6] * constants[6]
    s, t, zero = broadcast(scale), broadcast(-scale), broadcast(constants[0])
    for m in range(M):
        plane = planes[j, m]
        for start in range(ZERO, w, LANES):
            at = TWO * h * start
            for r in range(h):
                i, o = at + PAIR * r, w * r + start
                if start + LANES <= w:
                    f = load(own, o)
                else:
                    store(spare, ZERO, zero)
                    for c in range(w - start):
                        spare[c] = own[o + c]
                    f = load(spare, ZERO)
                store(plane, i, s * f * load(plane, i))
                store(plane, i + LANES, t * f * load(plane, i + LANES))
            transform_panel(plane, at, fourier)
        rows_back(plane, fourier, out, TWO * h * w * (j * M + m))


@parallel
def from_detector(work: RealArray, planes: RealArray, factors: RealArray, tables: Tables, out: ComplexArray) -> None:
    """Write D^H (factors Psi).

    Args:
        work: (bands, k) real, workspace of each band.
        planes: (B, M, 2 h w') real, from `to_detector`, overwritten.
        factors: (B, h w) real.
        tables: constants, plan and twiddles of the transform.
        out: (B, M, h, w) complex, written.
    """
    count, bands = len(out), len(work)
    for i in prange(bands):
        band = np.int64(i)
        for j in range(count * band // bands, count * (band + 1) // bands):
            _from_detector(U(j), work[band], planes, factors, tables, out)


# --- there ---


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
    h, w, pixels, zero = U(window[0]), U(window[1]), U(len(good)), broadcast(constants[0])
    y, S, change = work[:pixels], work[pixels : TWO * pixels], work[TWO * pixels : U(3) * pixels]
    for t in range(6):
        terms[j, t] = 0.0
    least = constants[7] * counts_in_panels(counts[places[j]], code, h, w, good, constants, y)
    of_view, out, size = signals[j], changes[j], LANES * h
    for start in range(ZERO, w, LANES):
        at = h * start
        for r in range(h):
            i, o = at + LANES * r, w * r + start
            if start + LANES <= w:
                store(S, i, load(of_view, o))
            else:
                store(S, i, zero)
                for c in range(w - start):
                    S[i + c] = of_view[o + c]
        panel = Panel(size, S, change, at, y, b, at)
        compare(panel, constants, least, kind, task, terms[j])
        for r in range(h):
            i, o = at + LANES * r, w * r + start
            if start + LANES <= w:
                store(out, o, load(change, i))
            else:
                for c in range(w - start):
                    out[o + c] = change[i + c]


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


#: See compiled.SIGNATURES; what stands in brackets is a tuple.
SIGNATURES = {
    to_detector: "r2 (c2 i2 c4 r1) b (i i) (r1 i2 r2) r3 r2",
    from_detector: "r2 r3 r2 (r1 i2 r2) c4",
    compare_signals: "r2 (i i) (u3 i1 r1 r1) (i b i i) r1 (r2 d2 r2)",
    convolved: "r2 r2 (i i) r1 r1 r2",
}
