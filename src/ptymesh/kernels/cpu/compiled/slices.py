"""Derivatives of waves through several slices, compiled by numba for this CPU.

phi, d_k     a mode's wave, and its derivatives, from k = 1 on: by the object's and by the probe's step (systems of step
             lengths); or by the k-th of K unknowns of the gaps between slices
r_k          rate of the phase of the transfer function from slice to slice, which is changed by i r_k times itself
L, M, h, w   slices, modes, window pixels;  h, w >= 8
panel, plane, row   see column_panels.py;  row panels   see row_panels.py;  path   see detector.py

In a slice, and from one slice to the next, in Fourier space, before the transfer function is applied to both:

    d_1 <- O d_1 + phi dO  by the object's step, otherwise  d_k <- O d_k;        d_k <- d_k + i r_k phi  by the gap's

All go through the slices together, view by view and mode by mode, in one core's cache. What a sweep has kept of a
batch would be read from memory, and that takes as long as to make it again.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from ptymesh.kernels.arrays import BackInputs, ComplexArray, PathInputs, RealArray, Tables
from ptymesh.kernels.cpu.compiled.column_panels import (
    ONE,
    PAIR,
    THREE,
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
from ptymesh.kernels.cpu.compiled.propagation import columns_through, panel_through
from ptymesh.kernels.cpu.compiled.row_panels import (
    SystemsWork,
    count_row_panels,
    first_row_of,
    rows_on,
    rows_to_planes,
    split_systems_work,
    window_in,
)
from ptymesh.kernels.cpu.compiled.shifts import Ramps, ViewBeam, columns_in, empty_factors, ramps, waves_in
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
def _multiply_tangents(
    rows: RealArray, block: int, at: int, w: int, minus: Vector, windows: RealArray, change: int
) -> None:
    """Turn rows of conjugate phi, d_1 and d_2, `block` numbers each, into those of phi O, d_1 O + phi dO and d_2 O.

    windows: row panels of O from number `at` on, and of dO `change` numbers further on.
    """
    for i in range(ZERO, PAIR * w, PAIR):
        o, k = at + i, block + i
        s, t, u, v = (
            load(windows, o),
            load(windows, o + LANES),
            load(windows, o + change),
            load(windows, o + change + LANES),
        )
        a, b, c, d = load(rows, i), minus * load(rows, i + LANES), load(rows, k), minus * load(rows, k + LANES)
        store(rows, i, a * s - b * t)
        store(rows, i + LANES, a * t + b * s)
        store(rows, k, (c * s - d * t) + (a * u - b * v))
        store(rows, k + LANES, (c * t + d * s) + (a * v + b * u))
        k += block
        c, d = load(rows, k), minus * load(rows, k + LANES)
        store(rows, k, c * s - d * t)
        store(rows, k + LANES, c * t + d * s)


@inlined
def _add_products(rows: RealArray, block: int, waves: int, w: int, by: Vector, chi: RealArray, sums: RealArray) -> None:
    """Add Re <d_k, chi> and ||d_k||^2 to sums (2 K,); `by` is 1 in rows that count, otherwise 0."""
    for k in range(ONE, waves):
        along = norm = by - by
        for i in range(ZERO, PAIR * w, PAIR):
            o = block * k + i
            p, q, u, v = by * load(rows, o), by * load(rows, o + LANES), load(chi, i), load(chi, i + LANES)
            along, norm = along + (p * u + q * v), norm + (p * p + q * q)
        sums[TWO * (k - ONE)] += total(along)
        sums[TWO * (k - ONE) + ONE] += total(norm)


@inlined
def _add_system(rows: RealArray, block: int, w: int, by: Vector, chi: RealArray, sums: RealArray) -> None:
    """Add ||p||^2, ||q||^2, Re <p, q>, Re <p, chi>, Re <q, chi> of p = d_1, q = d_2 to sums (5,); `by` likewise."""
    t0 = t1 = t2 = t3 = t4 = by - by
    for i in range(ZERO, PAIR * w, PAIR):
        k = block + i
        p, r, q, s = load(rows, k), load(rows, k + LANES), load(rows, block + k), load(rows, block + k + LANES)
        p, r, q, s, u, v = by * p, by * r, by * q, by * s, load(chi, i), load(chi, i + LANES)
        t0, t1, t2 = t0 + (p * p + r * r), t1 + (q * q + s * s), t2 + (p * q + r * s)
        t3, t4 = t3 + (p * u + r * v), t4 + (q * u + s * v)
    sums[0] += total(t0)
    sums[1] += total(t1)
    sums[2] += total(t2)
    sums[3] += total(t3)
    sums[4] += total(t4)


@inlined
def _through_slice(
    steps: bool, work: SystemsWork, l: int, L: int, plain: bool, chi: WindowPlace, mask: RealArray, sums: RealArray
) -> None:
    """Take rows of all waves, whose columns are transformed, through a slice, and transform them again.

    Of the last slice the products with chi are taken instead. steps: derivatives are by the steps of object and probe.
    plain: rows are not transformed before.
    """
    fourier, planes, (usual, late, other), windows = work
    h, w, waves, last = fourier.h, fourier.w, planes.waves, l + ONE == L
    block, minus = U(len(other)), broadcast(-fourier.twiddles[0, 0])
    panels = block * count_row_panels(h)
    # nothing has changed before the first slice, or gap, and behind the last slice the wave itself is only for steps
    begin, end = ONE if last and not steps else ZERO, ONE if l == ZERO and not steps else waves
    for i in range(count_row_panels(h)):
        first, overlaps = first_row_of(i, h), h % LANES > ZERO and i == 0
        rows = late if overlaps else usual
        for k in range(begin, end):
            if steps and l == ZERO and k == ONE:
                rows[block : TWO * block] = 0
                continue
            row_panel_from(plane_of(planes, k), first, h, w, rows, block * k)
            if not plain:
                transform_row(rows, block * k, fourier)
        if steps:
            _multiply_tangents(rows, block, panels * l + block * U(i), w, minus, windows, panels * L)
        else:
            _times(rows, block, begin, end, windows, panels * l + block * U(i), fourier)
        if last:
            row_panel_in(chi.array, chi.place + chi.stride * first, chi.stride, w, other, ZERO)
            by = load(mask, ZERO) if overlaps else broadcast(fourier.twiddles[0, 0])
            if steps:
                _add_system(rows, block, w, by, other, sums)
            else:
                _add_products(rows, block, waves, w, by, other, sums)
            continue
        rows_on(rows, planes, begin, end, first, overlaps, fourier)
    if h % LANES > ZERO and not last:
        rows_to_planes(late, planes, begin, end, h - LANES, fourier)


@inlined
def _beam_in(
    beam: ViewBeam, m: int, a: float, ramped: bool, factors: Ramps, fourier: WindowTransform, plane: RealArray
) -> None:
    """Write mode m of a beam, shifted by its factors or times a, to a plane."""
    if ramped:
        columns_in(beam, m, factors, fourier, plane)
    else:
        waves_in(beam, m, a, fourier, plane)


@inlined
def _products(
    j: int,
    work: RealArray,
    back: BackInputs,
    direction: tuple[ComplexArray, ComplexArray, RealArray],
    start: tuple[StartInputs, PathInputs],
    tables: Tables,
    mask: RealArray,
    out: RealArray,
) -> None:
    """Write row j of `sliced_products`; start: shift and path."""
    (chi, obj, n), (change, d_spectrum, rates), (shift, path), constants = back, direction, start, tables[0]
    (spectrum, fractions, a, shares), (slices, between, _, ramped) = shift, path
    M, h, w, L, steps = U(chi.shape[1]), U(chi.shape[2]), U(chi.shape[3]), U(slices), len(rates) == 0
    waves = THREE if steps else U(out.shape[1]) // TWO + ONE
    parts, factors = split_systems_work(work, waves, h, w, tables), empty_factors(h, w, constants.dtype)
    fourier, planes, rooms, windows = parts
    panels, ahead = U(len(rooms[2])) * count_row_panels(h), TWO * U(obj.shape[1]) * (U(obj.shape[0]) // L)
    for l in range(L):
        window_in(window_at(obj, n[j], h, w), ahead * l, windows[panels * l : panels * (l + ONE)])
        if steps:
            of_change = windows[panels * (L + l) : panels * (L + l + ONE)]
            window_in(window_at(change, n[j], h, w), ahead * l, of_change)
    out[j] = 0.0
    if ramped:
        ramps(fractions[j], np.int64(w), -1, a[j] * constants[6], factors)
    for m in range(M):
        _beam_in(ViewBeam(spectrum, M, shares[j]), m, a[j], ramped, factors, fourier, plane_of(planes, ZERO))
        if steps:
            d_beam = ViewBeam(d_spectrum, M, shares[j, :1])
            _beam_in(d_beam, m, a[j], ramped, factors, fourier, plane_of(planes, TWO))
        for l in range(L):
            _through_slice(steps, parts, l, L, l == ZERO and not ramped, wave_at(chi, j * M + m), mask, out[j])
            if l + ONE == L:
                continue
            if not steps:
                _over_gap(planes, l == ZERO, rates, between, fourier)
            for k in range(THREE if steps else ZERO):
                columns_through(plane_of(planes, k), between, constants[1], False, factors, fourier)


@parallel
def sliced_products(
    work: RealArray,
    back: BackInputs,
    direction: tuple[ComplexArray, ComplexArray, RealArray],
    shift: StartInputs,
    path: PathInputs,
    tables: Tables,
    out: RealArray,
) -> None:
    """Write products of a view's derivatives behind the last slice, and of chi.

    By steps of object and probe, p and q: ||p||^2, ||q||^2, Re <p, q>, Re <p, chi>, Re <q, chi>. By unknowns of gaps:
    Re <d_k, chi> and ||d_k||^2 of each.

    Args:
        work: (bands, k) real, workspace of each band.
        back: changes of the exit waves (B, M, h, w); slices one below the other, (L H, W); corners (B, 2).
        direction: steps of the slices at the same pixels (L H, W) and of the probe, as it is in `shift`; rate of the
            phase by each unknown of gaps, (K h w',) real, panel after panel. If there are rates, nothing else is read.
        shift: spectrum of the probe, with OPR modes if the beam varies, or the probe itself if views do not shift it;
            fractions (B, 2); amplitudes (B,); shares (B, 1 + K), or (B, 0).
        path: see compiled_detector.detector.
        tables: constants, plan and twiddles of the transform.
        out: (B, 5) float64, or (B, 2 K), written.
    """
    count, bands, rest = len(out), len(work), back[0].shape[2] % WIDTH
    for i in prange(bands):
        band = np.int64(i)
        mask = np.zeros(WIDTH, work.dtype)
        mask[WIDTH - rest :] = 1  # of the last eight rows, those that are in no other eight
        for j in range(count * band // bands, count * (band + 1) // bands):
            _products(U(j), work[band], back, direction, (shift, path), tables, mask, out)


#: See compiled.SIGNATURES; what stands in brackets is a tuple.
SIGNATURES = {
    sliced_products: "r2 (c4 c2 i2) (c2 c3 r1) (c3 r2 r1 r2) (i r1 r1 b) (r1 i2 r2) d2",
}
