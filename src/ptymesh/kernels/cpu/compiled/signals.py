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
from ptymesh.kernels.cpu.compiled.column_panels import ONE, PAIR, TWO, ZERO, U, rows_back, rows_in, rows_of, transform
from ptymesh.kernels.cpu.compiled.comparison import compare, counts_in_panels
from ptymesh.kernels.cpu.compiled.jit import inlined, parallel
from ptymesh.kernels.cpu.compiled.vectors import LANES, Vector, broadcast, load, store

FourVectors = tuple[Vector, Vector, Vector, Vector]
#: Columns that are convolved together.
FOUR = U(4) * LANES

# --- to the detector ---


@inlined
def _to_detector(
    j: int,
    view: int,
    work: RealArray,
    made_of: ExitInputs,
    product: bool,
    window: tuple[int, int],
    tables: Tables,
    planes: RealArray,
    powers: RealArray,
) -> None:
    """Write planes and powers of view j, whose beam is the `view`th."""
    (obj, n, beams, a), (constants, plan, twiddles) = made_of, tables
    M, h, w = U(planes.shape[1]), U(window[0]), U(window[1])
    row, spare, _ = rows_of(work, ZERO, h, w)
    stride, f, scale, own = TWO * U(obj.shape[1]), a[j], broadcast(constants[6] * constants[6]), powers[j]
    place = stride * U(n[j, 0]) + TWO * U(n[j, 1])
    for m in range(M):
        beam, plane = TWO * h * w * (view * M + m), planes[j, m]
        rows_in(beams, beam, obj, place, stride, f, f, product, h, w, row, spare, plan, twiddles, plane)
        for start in range(ZERO, w, LANES):
            at = TWO * h * start
            transform(plane, at, spare, h, plan[0], twiddles[0])
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
            view = ZERO if len(made_of[2]) == 1 else U(j)
            _to_detector(U(j), view, work[band], made_of, product, window, tables, planes, powers)


# --- back from it ---


@inlined
def _from_detector(
    j: int, work: RealArray, planes: RealArray, factors: RealArray, tables: Tables, out: ComplexArray
) -> None:
    """Write what comes back of view j."""
    constants, plan, twiddles = tables
    M, h, w = U(out.shape[1]), U(out.shape[2]), U(out.shape[3])
    row, spare, _ = rows_of(work, ZERO, h, w)
    own, scale = factors[j], constants[6] * constants[6]
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
            transform(plane, at, spare, h, plan[0], twiddles[0])
        rows_back(plane, h, w, row, spare, plan, twiddles, out, TWO * h * w * (j * M + m))


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
    signals: RealArray,
    window: tuple[int, int],
    data: DetectorInputs,
    how: DetectorOptions,
    constants: RealArray,
    terms: RealArray,
    changes: RealArray,
) -> None:
    """Write the sums and factors of view j."""
    (counts, places, good, b), (code, has_background, _, kind, task) = data, how
    h, w, size, zero = U(window[0]), U(window[1]), U(len(good)), broadcast(constants[0])
    y, S, change = work[:size], work[size : TWO * size], work[TWO * size : U(3) * size]
    for t in range(6):
        terms[j, t] = 0.0
    least = constants[7] * counts_in_panels(counts, U(places[j]), code, h, w, good, constants, y)
    of_view, out, panel = signals[j], changes[j], LANES * h
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
        compare(panel, S, change, at, y, b, at, constants, least, has_background, kind, task, j, terms)
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
    signals: RealArray,
    window: tuple[int, int],
    data: DetectorInputs,
    how: DetectorOptions,
    constants: RealArray,
    terms: RealArray,
    changes: RealArray,
) -> None:
    """Compare signals with counts: write the sums of each view, and -dL/dI or, for task 1, the factor less 1.

    Args:
        work: (bands, k) real, workspace of each band.
        signals: (B, h w) real, behind the pieces of the detector, without the background.
        window: h and w.
        data: counts, indices of patterns, mask and background, as for `detector.detector`.
        how: dtype of the counts, background, unused, fidelity and task, likewise.
        constants: (10,) real, see comparison.py.
        terms: (B, 6) float64, written; see Backend.at_detector.
        changes: (B, h w) real, written.
    """
    count, bands = len(terms), len(work)
    for i in prange(bands):
        band = np.int64(i)
        for j in range(count * band // bands, count * (band + 1) // bands):
            _compare_signals(j, work[band], signals, window, data, how, constants, terms, changes)


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
    deep, reach, wide = U(len(down)), U(len(across)) - ONE, w // FOUR * FOUR
    for r in range(h):
        for c in range(ZERO, wide, FOUR):
            many = _scaled_four(x, w * r + c, broadcast(down[0]))
            for k in range(ONE, deep):
                above, below = (r - k if r >= k else r + h - k), (r + k if r + k < h else r + k - h)
                many = _add_four(x, w * above + c, w * below + c, broadcast(down[k]), many)
            _store_four(line, reach + c, many)
        for c in range(wide, w, LANES):
            at = min(c, w - LANES)  # the last eight, though some of them have been written
            found = broadcast(down[0]) * load(x, w * r + at)
            for k in range(ONE, deep):
                above, below = (r - k if r >= k else r + h - k), (r + k if r + k < h else r + k - h)
                found = _add_neighbours(x, w * above + at, w * below + at, broadcast(down[k]), found)
            store(line, reach + at, found)
        for c in range(reach):
            line[c], line[reach + w + c] = line[w + c], line[reach + c]
        for c in range(ZERO, wide, FOUR):
            many = _scaled_four(line, reach + c, broadcast(across[0]))
            for k in range(ONE, reach + ONE):
                many = _add_four(line, reach + c - k, reach + c + k, broadcast(across[k]), many)
            _store_four(out, w * r + c, many)
        for c in range(wide, w, LANES):
            at = min(c, w - LANES)
            found = broadcast(across[0]) * load(line, reach + at)
            for k in range(ONE, reach + ONE):
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
    compare_signals: "r2 r2 (i i) (u3 i1 r1 r1) (i b b i i) r1 d2 r2",
    convolved: "r2 r2 (i i) r1 r1 r2",
}
