"""Derivatives of waves by the distance and the tilt of slices, compiled by numba for this CPU.

phi          a mode's wave
c_k          its derivative by the k-th of K unknowns of the gaps between slices
r_k          rate of the phase of the transfer function from slice to slice, which is changed by i r_k times itself
L, M, h, w   slices, modes, window pixels;  h, w >= 8
panel, plane, row   see column_panels.py;  row panels   see row_panels.py;  path   see detector.py

From one slice to the next, in Fourier space, before the transfer function is applied to both:

    c_k <- c_k + i r_k phi

All go through the slices together, view by view and mode by mode, in one core's cache.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from ptymesh.kernels.arrays import ComplexArray, IntArray, PathInputs, RealArray, Tables
from ptymesh.kernels.cpu.compiled.column_panels import (
    ONE,
    PAIR,
    TWO,
    WIDTH,
    ZERO,
    U,
    plane_of,
    row_panel_from,
    row_panel_in,
    transform,
)
from ptymesh.kernels.cpu.compiled.jit import inlined, parallel
from ptymesh.kernels.cpu.compiled.propagation import panel_through
from ptymesh.kernels.cpu.compiled.row_panels import (
    count_row_panels,
    first_row_of,
    rows_on,
    rows_to_planes,
    split_systems_work,
    window_in,
)
from ptymesh.kernels.cpu.compiled.shifts import columns_in, empty_factors, ramps, waves_in
from ptymesh.kernels.cpu.compiled.vectors import LANES, Vector, broadcast, load, store, total


@inlined
def _over_gap(
    planes: RealArray,
    size: int,
    waves: int,
    begins: bool,
    rates: RealArray,
    kernel: RealArray,
    h: int,
    w: int,
    spare: RealArray,
    plan: IntArray,
    twiddles: RealArray,
) -> None:
    """Propagate all waves, whose rows are transformed, to the next slice. They are conjugate afterwards.

    begins: nothing has changed before this gap.
    """
    wave, minus = plane_of(planes, ZERO, size), broadcast(-twiddles[0, 0])
    for start in range(ZERO, w, LANES):
        at, end = TWO * h * start, TWO * h * start + PAIR * h
        transform(wave, at, spare, h, plan[0], twiddles[0])
        for k in range(ONE, waves):
            change, ahead = plane_of(planes, k, size), size * (k - ONE)
            if not begins:
                transform(change, at, spare, h, plan[0], twiddles[0])
            for i in range(at, end, PAIR):
                rate = load(rates, ahead + i // TWO)
                p, q = minus * rate * load(wave, i + LANES), rate * load(wave, i)
                if not begins:
                    p, q = p + load(change, i), q + load(change, i + LANES)
                store(change, i, p)
                store(change, i + LANES, q)
            panel_through(change, at, kernel, minus, h, spare, plan, twiddles)
        panel_through(wave, at, kernel, minus, h, spare, plan, twiddles)


@inlined
def _times(
    rows: RealArray, block: int, first: int, waves: int, minus: Vector, windows: RealArray, at: int, w: int
) -> None:
    """Multiply rows of conjugate waves, `block` numbers each, from the first wave on, by the object, as waves."""
    for i in range(ZERO, PAIR * w, PAIR):
        s, t = load(windows, at + i), load(windows, at + i + LANES)
        for k in range(block * first + i, block * waves, block):
            a, b = load(rows, k), minus * load(rows, k + LANES)
            store(rows, k, a * s - b * t)
            store(rows, k + LANES, a * t + b * s)


@inlined
def _add_products(rows: RealArray, block: int, waves: int, w: int, by: Vector, chi: RealArray, sums: RealArray) -> None:
    """Add Re <c_k, chi> and ||c_k||^2 to sums (K, 2); `by` is 1 in rows that count, otherwise 0."""
    for k in range(ONE, waves):
        along = norm = by - by
        for i in range(ZERO, PAIR * w, PAIR):
            o = block * k + i
            p, q, u, v = by * load(rows, o), by * load(rows, o + LANES), load(chi, i), load(chi, i + LANES)
            along, norm = along + (p * u + q * v), norm + (p * p + q * q)
        sums[k - ONE, 0] += total(along)
        sums[k - ONE, 1] += total(norm)


@inlined
def _through_slice(
    planes: RealArray,
    size: int,
    waves: int,
    l: int,
    L: int,
    h: int,
    w: int,
    rooms: tuple[RealArray, RealArray, RealArray],
    spare: RealArray,
    windows: RealArray,
    plan: IntArray,
    twiddles: RealArray,
    plain: bool,
    chi: ComplexArray,
    place: int,
    mask: RealArray,
    sums: RealArray,
) -> None:
    """Take rows of all waves, whose columns are transformed, through a slice, and transform them again.

    Of the last slice the products with chi, whose wave starts at `place`, are taken instead. plain: rows are not
    transformed before.
    """
    (usual, late, other), minus, last = rooms, broadcast(-twiddles[0, 0]), l + ONE == L
    block = U(len(other))
    panels = block * count_row_panels(h)
    # nothing has changed before the first gap, and of the last slice the wave itself is not wanted
    begin, end = ONE if last else ZERO, ONE if l == ZERO else waves
    for i in range(count_row_panels(h)):
        first, overlaps = first_row_of(i, h), h % LANES > ZERO and i == 0
        rows = late if overlaps else usual
        for k in range(begin, end):
            row_panel_from(plane_of(planes, k, size), first, h, w, rows, block * k)
            if not plain:
                transform(rows, block * k, spare, w, plan[1], twiddles[1])
        _times(rows, block, begin, end, minus, windows, panels * l + block * U(i), w)
        if last:
            row_panel_in(chi, place + TWO * w * first, TWO * w, w, other, ZERO)
            by = load(mask, ZERO) if overlaps else broadcast(twiddles[0, 0])
            _add_products(rows, block, waves, w, by, other, sums)
            continue
        rows_on(rows, planes, size, begin, end, first, overlaps, h, w, spare, plan, twiddles)
    if h % LANES > ZERO and not last:
        rows_to_planes(late, planes, size, begin, end, h - LANES, h, w)


@inlined
def _products(
    j: int,
    work: RealArray,
    chi: ComplexArray,
    obj: ComplexArray,
    n: IntArray,
    shift: tuple[ComplexArray, RealArray, RealArray, RealArray],
    path: PathInputs,
    rates: RealArray,
    tables: Tables,
    mask: RealArray,
    out: RealArray,
) -> None:
    """Write row j of `gap_products`."""
    (spectrum, fractions, a, shares), (slices, between, _, ramped) = shift, path
    constants, plan, twiddles = tables
    M, h, w, L, waves = U(chi.shape[1]), U(chi.shape[2]), U(chi.shape[3]), U(slices), U(out.shape[1]) + ONE
    (spare, planes, rooms, windows), (down, across) = (
        split_systems_work(work, waves, h, w),
        empty_factors(h, w, constants.dtype),
    )
    minus, stride, panels = broadcast(-constants[1]), TWO * U(obj.shape[1]), U(len(rooms[2])) * count_row_panels(h)
    window, height = stride * U(n[j, 0]) + TWO * U(n[j, 1]), stride * (U(obj.shape[0]) // L)
    size, wave = U(len(planes)) // (TWO * waves), planes[: U(len(planes)) // waves]
    for l in range(L):
        window_in(obj, window + height * l, stride, h, w, windows[panels * l : panels * (l + ONE)])
    out[j] = 0.0
    if ramped:
        ramps(fractions[j], np.int64(w), -1, a[j] * constants[6], down, across)
    for m in range(M):
        if ramped:
            columns_in(spectrum, m, M, shares[j], down, across, minus, h, spare, plan, twiddles, wave)
        else:
            waves_in(spectrum, m, M, shares[j], a[j], h, spare, wave)
        place = TWO * h * w * (j * M + m)
        for l in range(L):
            begins, plain = l == ZERO, l == ZERO and not ramped
            given = planes, size, waves, l, L, h, w, rooms, spare, windows, plan, twiddles
            _through_slice(*given, plain, chi, place, mask, out[j])
            if l + ONE < L:
                _over_gap(planes, size, waves, begins, rates, between, h, w, spare, plan, twiddles)


@parallel
def gap_products(
    work: RealArray,
    chi: ComplexArray,
    obj: ComplexArray,
    n: IntArray,
    shift: tuple[ComplexArray, RealArray, RealArray, RealArray],
    path: PathInputs,
    rates: RealArray,
    tables: Tables,
    out: RealArray,
) -> None:
    """Write out (B, K, 2): Re <c_k, chi>, ||c_k||^2 of waves behind the last slice.

    Args:
        work: (bands, k) real, workspace of each band.
        chi: (B, M, h, w) complex, changes of the exit waves.
        obj: (L H, W) complex, slices one below the other.
        n: (B, 2) int64, object pixel y x under each window's corner.
        shift: spectrum of the probe, with OPR modes if the beam varies, or the probe itself if views do not shift it;
            fractions (B, 2); amplitudes (B,); shares (B, 1 + K), or (B, 0).
        path: see compiled_detector.detector.
        rates: (K h w',) real, rate of the phase by each unknown, panel after panel.
        tables: constants, plan and twiddles of the transform.
        out: (B, K, 2) float64, written.
    """
    count, bands = len(out), len(work)
    rest = chi.shape[2] % WIDTH
    for i in prange(bands):
        band = np.int64(i)
        mask = np.zeros(WIDTH, work.dtype)
        mask[WIDTH - rest :] = 1  # of the last eight rows, those that are in no other eight
        for j in range(count * band // bands, count * (band + 1) // bands):
            _products(U(j), work[band], chi, obj, n, shift, path, rates, tables, mask, out)


#: See compiled.SIGNATURES; what stands in brackets is a tuple.
SIGNATURES = {
    gap_products: "r2 c4 c2 i2 (c3 r2 r1 r2) (i r1 r1 b) r1 (r1 i2 r2) d3",
}
