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

from ptymesh.kernels.arrays import BackInputs, ComplexArray, PathInputs, RealArray, Tables
from ptymesh.kernels.cpu.compiled.column_panels import (
    ONE,
    PAIR,
    TWO,
    WIDTH,
    ZERO,
    U,
    WavePlanes,
    WindowPlace,
    WindowTransform,
    plane_of,
    row_panel_from,
    row_panel_in,
    transform_panel,
    transform_row,
    wave_at,
    window_at,
)
from ptymesh.kernels.cpu.compiled.jit import inlined, parallel
from ptymesh.kernels.cpu.compiled.propagation import panel_through
from ptymesh.kernels.cpu.compiled.row_panels import (
    SystemsWork,
    count_row_panels,
    first_row_of,
    rows_on,
    rows_to_planes,
    split_systems_work,
    window_in,
)
from ptymesh.kernels.cpu.compiled.shifts import ViewBeam, columns_in, empty_factors, ramps, waves_in
from ptymesh.kernels.cpu.compiled.vectors import LANES, Vector, broadcast, load, store, total

#: Spectrum of the probe, fractions, amplitudes, shares.
StartInputs = tuple[ComplexArray, RealArray, RealArray, RealArray]


@inlined
def _over_gap(planes: WavePlanes, begins: bool, rates: RealArray, kernel: RealArray, fourier: WindowTransform) -> None:
    """Propagate all waves, whose rows are transformed, to the next slice. They are conjugate afterwards.

    begins: nothing has changed before this gap.
    """
    h, w, wave, minus = fourier.h, fourier.w, plane_of(planes, ZERO), broadcast(-fourier.twiddles[0, 0])
    for start in range(ZERO, w, LANES):
        at, end = TWO * h * start, TWO * h * start + PAIR * h
        transform_panel(wave, at, fourier)
        for k in range(ONE, planes.waves):
            change, ahead = plane_of(planes, k), planes.size * (k - ONE)
            if not begins:
                transform_panel(change, at, fourier)
            for i in range(at, end, PAIR):
                rate = load(rates, ahead + i // TWO)
                p, q = minus * rate * load(wave, i + LANES), rate * load(wave, i)
                if not begins:
                    p, q = p + load(change, i), q + load(change, i + LANES)
                store(change, i, p)
                store(change, i + LANES, q)
            panel_through(change, at, kernel, minus, fourier)
        panel_through(wave, at, kernel, minus, fourier)


@inlined
def _times(
    rows: RealArray, block: int, first: int, waves: int, windows: RealArray, at: int, fourier: WindowTransform
) -> None:
    """Multiply rows of conjugate waves, `block` numbers each, from the first wave on, by the object, as waves."""
    minus = broadcast(-fourier.twiddles[0, 0])
    for i in range(ZERO, PAIR * fourier.w, PAIR):
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
    work: SystemsWork, l: int, L: int, plain: bool, chi: WindowPlace, mask: RealArray, sums: RealArray
) -> None:
    """Take rows of all waves, whose columns are transformed, through a slice, and transform them again.

    Of the last slice the products with chi are taken instead. plain: rows are not transformed
    before.
    """
    fourier, planes, (usual, late, other), windows = work
    h, w, waves, last = fourier.h, fourier.w, planes.waves, l + ONE == L
    block = U(len(other))
    panels = block * count_row_panels(h)
    # nothing has changed before the first gap, and of the last slice the wave itself is not wanted
    begin, end = ONE if last else ZERO, ONE if l == ZERO else waves
    for i in range(count_row_panels(h)):
        first, overlaps = first_row_of(i, h), h % LANES > ZERO and i == 0
        rows = late if overlaps else usual
        for k in range(begin, end):
            row_panel_from(plane_of(planes, k), first, h, w, rows, block * k)
            if not plain:
                transform_row(rows, block * k, fourier)
        _times(rows, block, begin, end, windows, panels * l + block * U(i), fourier)
        if last:
            row_panel_in(chi.array, chi.place + chi.stride * first, chi.stride, w, other, ZERO)
            by = load(mask, ZERO) if overlaps else broadcast(fourier.twiddles[0, 0])
            _add_products(rows, block, waves, w, by, other, sums)
            continue
        rows_on(rows, planes, begin, end, first, overlaps, fourier)
    if h % LANES > ZERO and not last:
        rows_to_planes(late, planes, begin, end, h - LANES, fourier)


@inlined
def _products(
    j: int,
    work: RealArray,
    back: BackInputs,
    start: tuple[StartInputs, PathInputs, RealArray],
    tables: Tables,
    mask: RealArray,
    out: RealArray,
) -> None:
    """Write row j of `gap_products`; start: shift, path and rates."""
    (chi, obj, n), (shift, path, rates), constants = back, start, tables[0]
    (spectrum, fractions, a, shares), (slices, between, _, ramped) = shift, path
    M, h, w, L = U(chi.shape[1]), U(chi.shape[2]), U(chi.shape[3]), U(slices)
    parts = split_systems_work(work, U(out.shape[1]) + ONE, h, w, tables)
    factors, (fourier, planes, rooms, windows) = empty_factors(h, w, constants.dtype), parts
    panels, ahead = U(len(rooms[2])) * count_row_panels(h), TWO * U(obj.shape[1]) * (U(obj.shape[0]) // L)
    window, wave, beam = window_at(obj, n[j], h, w), plane_of(planes, ZERO), ViewBeam(spectrum, M, shares[j])
    for l in range(L):
        window_in(window, ahead * l, windows[panels * l : panels * (l + ONE)])
    out[j] = 0.0
    if ramped:
        ramps(fractions[j], np.int64(w), -1, a[j] * constants[6], factors)
    for m in range(M):
        if ramped:
            columns_in(beam, m, factors, fourier, wave)
        else:
            waves_in(beam, m, a[j], fourier, wave)
        for l in range(L):
            _through_slice(parts, l, L, l == ZERO and not ramped, wave_at(chi, j * M + m), mask, out[j])
            if l + ONE < L:
                _over_gap(planes, l == ZERO, rates, between, fourier)


@parallel
def gap_products(
    work: RealArray,
    back: BackInputs,
    shift: StartInputs,
    path: PathInputs,
    rates: RealArray,
    tables: Tables,
    out: RealArray,
) -> None:
    """Write out (B, K, 2): Re <c_k, chi>, ||c_k||^2 of waves behind the last slice.

    Args:
        work: (bands, k) real, workspace of each band.
        back: changes of the exit waves (B, M, h, w); slices one below the other, (L H, W); corners (B, 2).
        shift: spectrum of the probe, with OPR modes if the beam varies, or the probe itself if views do not shift it;
            fractions (B, 2); amplitudes (B,); shares (B, 1 + K), or (B, 0).
        path: see compiled_detector.detector.
        rates: (K h w',) real, rate of the phase by each unknown, panel after panel.
        tables: constants, plan and twiddles of the transform.
        out: (B, K, 2) float64, written.
    """
    count, bands, rest = len(out), len(work), back[0].shape[2] % WIDTH
    for i in prange(bands):
        band = np.int64(i)
        mask = np.zeros(WIDTH, work.dtype)
        mask[WIDTH - rest :] = 1  # of the last eight rows, those that are in no other eight
        for j in range(count * band // bands, count * (band + 1) // bands):
            _products(U(j), work[band], back, (shift, path, rates), tables, mask, out)


#: See compiled.SIGNATURES; what stands in brackets is a tuple.
SIGNATURES = {
    gap_products: "r2 (c4 c2 i2) (c3 r2 r1 r2) (i r1 r1 b) r1 (r1 i2 r2) d3",
}
