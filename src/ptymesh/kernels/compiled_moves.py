"""What views ask of their positions and intensities, compiled by numba for this CPU.

psi_1, psi   a view's waves behind the first slice and behind the last one;  chi, chi_1  their changes
P            probe before it is shifted by f and multiplied by the view's amplitude a
T            what comes back to it, a exp(+2 pi i k.f) F conj(O_1) chi_1, which the probe's sums are made of;
             a conj(O_1) chi_1 where views do not shift the probe, and P stands for F P
M, h, w      modes, window pixels;  h, w >= 8
panel, plane, row, work   see column_panels.py;  row panels   see row_panels.py;  spectrum, tables   see shifts.py

    Re <d_a psi, chi> = -Re <2 pi i k_a F P, T>        Re <psi, chi> = Re <F P, T>

So a sweep that has come back to the probe needs no transform to know them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from ptymesh.kernels.column_panels import ONE, PAIR, TWO, WIDTH, ZERO, U, pixels, row_panel_from, rows_of, transform
from ptymesh.kernels.jit import inlined, parallel
from ptymesh.kernels.row_panels import counted, first_of, window_in
from ptymesh.kernels.shifts import columns_in, factors, ramps, turned_by
from ptymesh.kernels.vectors import LANES, load, spread, store, total


def room(h: int, w: int) -> int:
    """Numbers that a band of `moved_powers` works in: a row and two spare ones, a plane, a window."""
    rows = 2 * pixels(WIDTH, w) + 4 * WIDTH * max(h, w)
    return rows + 2 * pixels(h, w) + 2 * pixels(h + -h % WIDTH, w)


@inlined
def rows_that_count(h: int, dtype: Any) -> Any:
    """Of the first eight rows, where these are the wave's last ones: 1 in those that are in no other eight."""
    mask = np.zeros(WIDTH, dtype)
    mask[LANES - h % LANES :] = 1
    return mask


@inlined
def add_asked(
    plane: Any, m: int, ramped: bool, down: Any, across: Any, h: int, w: int, probes: Any, asked: Any
) -> None:
    """asked (5,): += Re <d_y psi, chi>, Re <d_x psi, chi>, Re <psi, chi> of mode m, whose T, of shifted probes before
    it is multiplied by factors down and across, stands in a plane.

    probes: F P or P, a plane for each mode; then 2 pi k_y (h,) and 2 pi k_x (w',), which is 0 beyond w.
    """
    place, across_at = U(len(plane)) * m, U(len(probes)) - U(across.shape[1])
    down_at, zero = across_at - h, spread(down[0, 0] - down[0, 0])
    for start in range(ZERO, w, LANES):
        by_y = by_x = along = zero
        c, d = load(across[0], start), load(across[1], start)
        for r in range(h):
            i = TWO * h * start + PAIR * r
            u, v = load(probes, place + i), load(probes, place + i + LANES)
            if ramped:
                p, q = turned_by(plane, i, c, d, down, r)
            else:
                p, q = load(plane, i), load(plane, i + LANES)
            turned = v * p - u * q
            by_y, by_x = by_y + spread(probes[down_at + r]) * turned, by_x + turned
            along = along + (u * p + v * q)
        asked[0] += total(by_y)
        asked[1] += total(load(probes, across_at + start) * by_x)
        asked[2] += total(along)


@inlined
def power_behind(window: Any, beams: Any, M: int, h: int, w: int) -> float:
    """sum_m ||O phi_m||^2 of a slice's window and the M waves that enter it, in row panels."""
    block, mask, found = PAIR * ((w + LANES - ONE) // LANES * LANES), rows_that_count(h, window.dtype), 0.0
    size = block * counted(h)
    for i in range(counted(h)):
        at = block * U(i)
        for m in range(M):
            power = spread(window[0] - window[0])
            for o in range(at, at + PAIR * w, PAIR):
                s, t, p, q = (
                    load(window, o),
                    load(window, o + LANES),
                    load(beams, size * m + o),
                    load(beams, size * m + o + LANES),
                )
                power = power + (s * s + t * t) * (p * p + q * q)
            found += total(load(mask, ZERO) * power if h % LANES > ZERO and i == 0 else power)
    return found


@inlined
def _moved(j: int, work: Any, obj: Any, n: Any, shift: Any, tables: Any, out: Any) -> None:
    (spectrum, fractions, a), (constants, plan, twiddles) = shift, tables
    M, h, w = U(spectrum.shape[0]), U(spectrum.shape[1]), U(spectrum.shape[2])
    (row, spare, at), (down, across) = rows_of(work, ZERO, h, w), factors(h, w, constants.dtype)
    mask, minus, stride = rows_that_count(h, constants.dtype), spread(-constants[1]), TWO * U(obj.shape[1])
    block = PAIR * U(across.shape[1])
    plane, window = work[at : at + TWO * h * U(across.shape[1])], work[at + TWO * h * U(across.shape[1]) :]
    window_in(obj, stride * U(n[j, 0]) + TWO * U(n[j, 1]), stride, h, w, window)
    for i in range(ZERO, block * counted(h), PAIR):
        s, t = load(window, i), load(window, i + LANES)
        store(window, i, s * s + t * t)
    for axis in range(2):
        ramps(fractions[j], np.int64(w), axis, a[j] * constants[6], down, across)
        found = 0.0
        for m in range(M):
            columns_in(spectrum, m, down, across, minus, h, spare, plan, twiddles, plane)
            for i in range(counted(h)):
                row_panel_from(plane, first_of(U(i), h), h, w, row, ZERO)
                transform(row, ZERO, spare, w, plan[1], twiddles[1])
                power = spread(constants[0])
                for c in range(ZERO, PAIR * w, PAIR):
                    p, q = load(row, c), load(row, c + LANES)
                    power = power + load(window, block * U(i) + c) * (p * p + q * q)
                found += total(load(mask, ZERO) * power if h % LANES > ZERO and i == 0 else power)
        out[j, axis] = found


@parallel
def moved_powers(work: Any, obj: Any, n: Any, shift: Any, tables: Any, out: Any) -> None:
    """out_j: ||O_1 d_y P_j||^2 and ||O_1 d_x P_j||^2, summed over modes, P_j shifted and of the view's amplitude.

    obj (H, W), of which the first slice is the top; n (B, 2); shift: spectrum (M, h, w), fractions (B, 2), amplitudes.
    """
    count, bands = len(out), len(work)
    for i in prange(bands):
        band = np.int64(i)
        for j in range(count * band // bands, count * (band + 1) // bands):
            _moved(U(j), work[band], obj, n, shift, tables, out)


#: See compiled.SIGNATURES; what stands in brackets is a tuple.
SIGNATURES = {
    moved_powers: "r2 c2 i2 (c3 r2 r1) (r1 i2 r2) d2",
}
