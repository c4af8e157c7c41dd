"""Scalar products for the steps of positions and intensities, compiled by numba for this CPU.

psi_1, psi   a view's waves behind the first slice and behind the last one;  chi, chi_1  their changes
P            probe before it is shifted by f and multiplied by the view's amplitude a
T            what comes back to it, a exp(+2 pi i k.f) F conj(O_1) chi_1, which the probe's sums are made of;
             a conj(O_1) chi_1 where views do not shift the probe, and P stands for F P
M, h, w      modes, window pixels;  h, w >= 8
panel, plane, row, work   see column_panels.py;  row panels   see row_panels.py;  spectrum, tables   see shifts.py

    Re <d_a psi, chi> = -Re <2 pi i k_a F P, T>        Re <psi, chi> = Re <F P, T>

So a sweep that has come back to the probe needs no transform to know them.

In the near field the image moves back with the probe, and d_a psi = d_a (O P) - O d_a P: differences of waves that are
nearly alike, taken pixel by pixel. Either derivative needs transforms along its own axis alone.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from ptymesh.kernels.arrays import ComplexArray, ExitInputs, IntArray, RealArray, Tables
from ptymesh.kernels.cpu.compiled.column_panels import (
    ONE,
    PAIR,
    THREE,
    TWO,
    WIDTH,
    ZERO,
    U,
    WindowPlace,
    row_panel_in,
    transform,
    wave_at,
    window_at,
)
from ptymesh.kernels.cpu.compiled.jit import inlined, parallel
from ptymesh.kernels.cpu.compiled.row_panels import count_row_panels, first_row_of
from ptymesh.kernels.cpu.compiled.shifts import frequency
from ptymesh.kernels.cpu.compiled.vectors import LANES, broadcast, load, load_complex, store, total


@inlined
def mask_of_first_rows(h: int, dtype: np.dtype) -> RealArray:
    """Return 1 in those of the first eight rows that are in no other eight, and 0 in the others; for h that is no
    multiple of 8."""
    mask = np.zeros(WIDTH, dtype)
    mask[LANES - h % LANES :] = 1
    return mask


@inlined
def add_products(plane: RealArray, m: int, h: int, w: int, probes: RealArray, asked: RealArray, at: int) -> None:
    """Add Re <d_y psi, chi>, Re <d_x psi, chi> and Re <psi, chi> of mode m, whose T stands in a plane.

    Args:
        plane: (2 h w',) real, a wave panel after panel.
        m: which mode.
        h: rows of a window.
        w: columns of a window.
        probes: F P or P, a plane for each mode and each OPR mode; then 2 pi k_y (h,) and 2 pi k_x (w',), which is 0
            beyond w.
        asked: (k,) float64, changed in place.
        at: index in `asked` of the first of the three.
    """
    place, across_at = U(len(plane)) * m, U(len(probes)) - (w + LANES - ONE) // LANES * LANES
    down_at, zero = across_at - h, broadcast(plane[0] - plane[0])
    for start in range(ZERO, w, LANES):
        by_y = by_x = along = zero
        for r in range(h):
            i = TWO * h * start + PAIR * r
            u, v = load(probes, place + i), load(probes, place + i + LANES)
            p, q = load(plane, i), load(plane, i + LANES)
            turned = v * p - u * q
            by_y, by_x = by_y + broadcast(probes[down_at + r]) * turned, by_x + turned
            along = along + (u * p + v * q)
        asked[at] += total(by_y)
        asked[at + ONE] += total(load(probes, across_at + start) * by_x)
        asked[at + TWO] += total(along)


@inlined
def power_behind(window: RealArray, light: RealArray, h: int, w: int) -> float:
    """Return sum_m ||O phi_m||^2 behind a slice.

    Args:
        window: row panels of the object.
        light: row panels of sum_m |phi_m|^2.
        h: rows of a window.
        w: columns of a window.
    """
    block, mask, found = PAIR * ((w + LANES - ONE) // LANES * LANES), mask_of_first_rows(h, window.dtype), 0.0
    for i in range(count_row_panels(h)):
        at, power = block * U(i), broadcast(window[0] - window[0])
        for c in range(ZERO, LANES * w, LANES):
            s, t = load(window, at + TWO * c), load(window, at + TWO * c + LANES)
            power = power + (s * s + t * t) * load(light, at // TWO + c)
        found += total(load(mask, ZERO) * power if h % LANES > ZERO and i == 0 else power)
    return found


@inlined
def _sum_illumination(
    j: int, light: RealArray, obj: ComplexArray, n: IntArray, maps: RealArray, out: RealArray
) -> None:
    """Write row j of `sum_illumination`."""
    h, w, y, x = U(maps.shape[1]), U(maps.shape[2]), U(n[j, 0]), U(n[j, 1])
    for r in range(h):
        for c in range(w):
            O = obj[y + r, x + c]
            light[r, c] = O.real * O.real + O.imag * O.imag
    for k in range(U(len(maps))):
        found = 0.0
        for r in range(h):
            row, by = light[r], maps[k, r]
            along = row[0] - row[0]
            for c in range(w):
                along += row[c] * by[c]
            found += along
        out[j, k] = found


@parallel
def sum_illumination(work: RealArray, obj: ComplexArray, n: IntArray, maps: RealArray, out: RealArray) -> None:
    """Write out_jk: sum |S_j O|^2 maps_k over each view's window.

    Args:
        work: (bands, h, w) real, workspace.
        obj: (H, W) complex, the object's slice.
        n: (B, 2) int64, object pixel y x under each window's corner.
        maps: (K, h, w) real.
        out: (B, K) float64, written.
    """
    count, bands = len(n), len(work)
    for i in prange(bands):
        band = np.int64(i)
        for j in range(count * band // bands, count * (band + 1) // bands):
            _sum_illumination(np.int64(j), work[band], obj, n, maps, out)


# --- where the image moves with the probe ---


def image_work_size(h: int, w: int) -> int:
    """Return the number of reals that a band of `moves_of_images` works in: eights of P, O P, O and chi, and two spare
    ones."""
    return 6 * 2 * WIDTH * max(h, w)


@inlined
def _eight_in(window: WindowPlace, axis: int, first: int, size: int, room: RealArray, at: int) -> None:
    """Copy eight lines of `size` pixels of a window along an axis, from line `first` on, to room[at] on."""
    waves, place, stride = window.array, window.place, window.stride
    if axis == 1:
        row_panel_in(waves, place + stride * first, stride, size, room, at)
        return
    start = place + TWO * first
    for r in range(size):
        p, q = load_complex(waves, start + stride * r)
        store(room, at + PAIR * r, p)
        store(room, at + PAIR * r + LANES, q)


@inlined
def _derive(
    room: RealArray, at: int, size: int, rates: RealArray, spare: RealArray, plan: IntArray, twiddles: RealArray
) -> None:
    """Turn eight lines of pixels into the conjugates of their derivatives; rates: 2 pi k over the number of pixels."""
    transform(room, at, spare, size, plan, twiddles)
    for r in range(size):
        i, by = at + PAIR * r, broadcast(-rates[r])
        p, q = load(room, i), load(room, i + LANES)
        store(room, i, by * q)
        store(room, i + LANES, by * p)
    transform(room, at, spare, size, plan, twiddles)


@inlined
def _add_beside(room: RealArray, far: int, size: int, mask: RealArray, sums: RealArray) -> None:
    """Add Re <d, chi> and ||d||^2 of d = d_a (O P) - O d_a P to sums (2,), over lines that count.

    In room, `far` numbers apart: conjugate d_a P, conjugate d_a (O P), O, chi.
    """
    zero = broadcast(room[0] - room[0])
    along = norm = zero
    for i in range(ZERO, PAIR * size, PAIR):
        p, q, s, t = load(room, i), load(room, i + LANES), load(room, far + i), load(room, far + i + LANES)
        o = TWO * far + i
        u, v = load(room, o), load(room, o + LANES)
        s, t = s - (u * p + v * q), t - (u * q - v * p)
        u, v = load(room, far + o), load(room, far + o + LANES)
        along, norm = along + (s * u - t * v), norm + (s * s + t * t)
    counts = load(mask, ZERO)
    sums[0] += total(counts * along)
    sums[1] += total(counts * norm)


@inlined
def _multiply_beside(room: RealArray, far: int, size: int, mask: RealArray) -> float:
    """Write O P, `far` numbers behind P, where O is as far behind; return ||O P||^2 over lines that count."""
    power = broadcast(room[0] - room[0])
    for i in range(ZERO, PAIR * size, PAIR):
        p, q, u, v = load(room, i), load(room, i + LANES), load(room, TWO * far + i), load(room, TWO * far + i + LANES)
        s, t = p * u - q * v, p * v + q * u
        store(room, far + i, s)
        store(room, far + i + LANES, t)
        power = power + (s * s + t * t)
    return total(load(mask, ZERO) * power)


@inlined
def _moves_of_image(
    j: int,
    room: RealArray,
    chi: ComplexArray,
    made_of: ExitInputs,
    tables: Tables,
    rates: RealArray,
    out: RealArray,
) -> None:
    """Write row j of `moves_of_images`."""
    (constants, plan, twiddles), (obj, n, beams, a) = tables, made_of
    M, h, w = U(chi.shape[1]), U(chi.shape[2]), U(chi.shape[3])
    far, window, view = PAIR * max(h, w), window_at(obj, n[j], h, w), ZERO if len(beams) == 1 else j
    spare, found, ones = room[U(4) * far :], np.zeros(5), np.ones(WIDTH, constants.dtype)
    for axis in range(2):
        size, lines = (h, w) if axis == 0 else (w, h)
        last = mask_of_first_rows(lines, constants.dtype)
        for i in range(count_row_panels(lines)):
            first, overlaps = first_row_of(U(i), lines), lines % LANES > ZERO and i == 0
            mask = last if overlaps else ones
            _eight_in(window, axis, first, size, room, TWO * far)
            for m in range(M):
                _eight_in(wave_at(beams, view * M + m), axis, first, size, room, ZERO)
                _eight_in(wave_at(chi, j * M + m), axis, first, size, room, THREE * far)
                power = _multiply_beside(room, far, size, mask)
                if axis == 0:
                    found[4] += power
                for k in range(TWO):
                    _derive(room, far * k, size, rates[axis], spare, plan[axis], twiddles[axis])
                _add_beside(room, far, size, mask, found[2 * axis : 2 * axis + 2])
    for k in range(5):
        out[j, k] = found[k] * (a[j] if k % 2 == 0 and k < 4 else a[j] * a[j])


@parallel
def moves_of_images(
    work: RealArray,
    chi: ComplexArray,
    made_of: ExitInputs,
    tables: Tables,
    out: RealArray,
) -> None:
    """Write out_j: Re <d_y, chi>, ||d_y||^2, Re <d_x, chi>, ||d_x||^2, ||psi||^2 with d_a = d_a psi - O d_a P, psi = O
    P.

    Args:
        work: (bands, k) real, workspace of each band.
        chi: (B, M, h, w) complex, changes of the exit waves.
        made_of: object (H, W), corners (B, 2), beams (1 or B, M, h, w) and amplitudes (B,), see windows.py.
        tables: constants, plan and twiddles of the transform.
        out: (B, 5) float64, written.
    """
    count, bands, (h, w) = len(out), len(work), chi.shape[2:]
    for i in prange(bands):
        band, rates = np.int64(i), np.zeros((2, max(h, w)), work.dtype)
        for axis in range(2):
            size = h if axis == 0 else w
            for k in range(size):
                rates[axis, k] = 2 * np.pi * frequency(k, size) / size
        for j in range(count * band // bands, count * (band + 1) // bands):
            _moves_of_image(U(j), work[band], chi, made_of, tables, rates, out)


#: See compiled.SIGNATURES; what stands in brackets is a tuple.
SIGNATURES = {
    sum_illumination: "r3 c2 i2 r3 d2",
    moves_of_images: "r2 c4 (c2 i2 c4 r1) (r1 i2 r2) d2",
}
