"""Systems of step lengths through several slices, compiled by numba for this CPU.

phi, p, q    a mode's wave, and how it changes with the object and with the probe
L, M, h, w   slices, modes, window pixels;  h, w >= 8
panel, plane, row   see column_panels.py;  row panels   see row_panels.py;  path   see detector.py

The three go through the slices together, view by view and mode by mode, in one core's cache. What a sweep has kept of a
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
    WindowPlace,
    plane_of,
    row_panel_from,
    row_panel_in,
    transform_row,
    wave_at,
    window_at,
)
from ptymesh.kernels.cpu.compiled.jit import inlined, parallel
from ptymesh.kernels.cpu.compiled.propagation import columns_through
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

#: Spectra of the probe and of its direction, fractions, amplitudes, shares.
StartInputs = tuple[ComplexArray, ComplexArray, RealArray, RealArray, RealArray]


@inlined
def _multiply_tangents(
    rows: RealArray, block: int, at: int, w: int, minus: Vector, windows: RealArray, change: int
) -> None:
    """Turn rows of conjugate phi, p and q, `block` numbers each, into those of phi O, p O + phi dO and q O.

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
def _add_products(rows: RealArray, block: int, w: int, by: Vector, chi: RealArray, sums: RealArray) -> None:
    """Add ||p||^2, ||q||^2, Re <p, q>, Re <p, chi>, Re <q, chi> to sums (5,); `by` is 1 in rows that count, otherwise
    0."""
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
    work: SystemsWork, l: int, L: int, plain: bool, chi: WindowPlace, mask: RealArray, sums: RealArray
) -> None:
    """Take rows of phi, p and q, whose columns are transformed, through a slice, and transform them again.

    Of the last slice the products with chi are taken instead. plain: rows are not transformed
    before.
    """
    fourier, planes, (usual, late, other), windows = work
    h, w, minus, last = fourier.h, fourier.w, broadcast(-fourier.twiddles[0, 0]), l + ONE == L
    block = U(len(other))
    panels = block * count_row_panels(h)
    for i in range(count_row_panels(h)):
        first, overlaps = first_row_of(i, h), h % LANES > ZERO and i == 0
        rows = late if overlaps else usual
        for k in range(THREE):
            if l == ZERO and k == ONE:  # the object has not changed the wave yet
                rows[block : TWO * block] = 0
            else:
                row_panel_from(plane_of(planes, k), first, h, w, rows, block * k)
                if not plain:
                    transform_row(rows, block * k, fourier)
        _multiply_tangents(rows, block, panels * l + block * U(i), w, minus, windows, panels * L)
        if last:
            row_panel_in(chi.array, chi.place + chi.stride * first, chi.stride, w, other, ZERO)
            by = load(mask, ZERO) if overlaps else broadcast(fourier.twiddles[0, 0])
            _add_products(rows, block, w, by, other, sums)
            continue
        rows_on(rows, planes, ZERO, THREE, first, overlaps, fourier)
    if h % LANES > ZERO and not last:
        rows_to_planes(late, planes, ZERO, THREE, h - LANES, fourier)


@inlined
def _system(
    j: int,
    work: RealArray,
    back: BackInputs,
    direction: tuple[ComplexArray, StartInputs, PathInputs],
    tables: Tables,
    mask: RealArray,
    out: RealArray,
) -> None:
    """Write row j of `sliced_systems`; direction: change, shift and path."""
    (chi, obj, n), (change, shift, path), constants = back, direction, tables[0]
    (spectrum, d_spectrum, fractions, a, shares), (slices, between, _, ramped) = shift, path
    M, h, w, L = U(chi.shape[1]), U(chi.shape[2]), U(chi.shape[3]), U(slices)
    parts, factors = split_systems_work(work, THREE, h, w, tables), empty_factors(h, w, constants.dtype)
    fourier, planes, rooms, windows = parts
    one, panels = constants[1], U(len(rooms[2])) * count_row_panels(h)
    window, d_window = window_at(obj, n[j], h, w), window_at(change, n[j], h, w)
    ahead = TWO * U(obj.shape[1]) * (U(obj.shape[0]) // L)
    for l in range(L):
        window_in(window, ahead * l, windows[panels * l : panels * (l + ONE)])
        window_in(d_window, ahead * l, windows[panels * (L + l) : panels * (L + l + ONE)])
    out[j] = 0.0
    if ramped:
        ramps(fractions[j], np.int64(w), -1, a[j] * constants[6], factors)
    beam, d_beam = ViewBeam(spectrum, M, shares[j]), ViewBeam(d_spectrum, M, shares[j, :1])
    for m in range(M):
        wave, by_probe = plane_of(planes, ZERO), plane_of(planes, TWO)
        if ramped:
            columns_in(beam, m, factors, fourier, wave)
            columns_in(d_beam, m, factors, fourier, by_probe)
        else:
            waves_in(beam, m, a[j], fourier, wave)
            waves_in(d_beam, m, a[j], fourier, by_probe)
        for l in range(L):
            _through_slice(parts, l, L, l == ZERO and not ramped, wave_at(chi, j * M + m), mask, out[j])
            for k in range(THREE if l + ONE < L else ZERO):
                columns_through(plane_of(planes, k), between, one, False, factors, fourier)


@parallel
def sliced_systems(
    work: RealArray,
    back: BackInputs,
    change: ComplexArray,
    shift: StartInputs,
    path: PathInputs,
    tables: Tables,
    out: RealArray,
) -> None:
    """Write out_j: ||p||^2, ||q||^2, Re <p, q>, Re <p, chi>, Re <q, chi> of waves behind the last slice.

    Args:
        work: (bands, k) real, workspace of each band.
        back: changes of the exit waves (B, M, h, w); slices one below the other, (L H, W); corners (B, 2).
        change: (L H, W) complex, direction of the slices at the same pixels.
        shift: spectra of the probe, with OPR modes if the beam varies, and of its direction (M, h, w), or they
            themselves if views do not shift them; fractions (B, 2); amplitudes (B,); shares (B, 1 + K), or (B, 0).
        path: see compiled_detector.detector.
        tables: constants, plan and twiddles of the transform.
        out: (B, 5) float64, written.
    """
    count, bands, rest = len(out), len(work), back[0].shape[2] % WIDTH
    for i in prange(bands):
        band = np.int64(i)
        mask = np.zeros(WIDTH, work.dtype)
        mask[WIDTH - rest :] = 1  # of the last eight rows, those that are in no other eight
        for j in range(count * band // bands, count * (band + 1) // bands):
            _system(U(j), work[band], back, (change, shift, path), tables, mask, out)


#: See compiled.SIGNATURES; what stands in brackets is a tuple.
SIGNATURES = {
    sliced_systems: "r2 (c4 c2 i2) c2 (c3 c3 r2 r1 r2) (i r1 r1 b) (r1 i2 r2) d2",
}
