"""Loops that add windows of views to an object, compiled by numba for this CPU.

windows            (B, h, w) complex, sum_m conj(P_jm) chi_jm of each view, with its amplitude
light              (1 or B, h, w) real, sum_m |P_m|^2 of all of them alike, or of each, without the amplitudes
n, t, a            (B, 2) pixel under each corner; (B, 2) weights of the next one (bilinear), or 0; (B,) amplitudes
H, W               object pixels
sums, weight       (parts, H, W) of double precision, complex and real: terms are rounded (physics/rounding.py)
shifts             (n, 2) float64, by kind of sum and part

Bands of rows are independent of each other, and every pixel adds view after view; no sum depends on the order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from ptymesh.kernels.arrays import ComplexArray, IntArray, RealArray
from ptymesh.kernels.cpu.compiled.blocks import AHEAD
from ptymesh.kernels.cpu.compiled.jit import inlined, parallel
from ptymesh.kernels.cpu.compiled.vectors import (
    LANES,
    add_number,
    add_rounded,
    broadcast,
    fetch,
    load,
    second_part,
)
from ptymesh.physics.kinds import OBJECT, OBJECT_WEIGHT

U: Any = np.uint64
ZERO, ONE, TWO = U(0), U(1), U(2)
WIDTH = int(LANES)
#: Windows, light, corners, weights of the next pixels, amplitudes.
PlacedWindows = tuple[ComplexArray, RealArray, IntArray, RealArray, RealArray]


@inlined
def _reach(n: IntArray, h: int, rows: int) -> tuple[int, int]:
    """Return the first of `rows` rows that windows of h + 1 rows at n (B, 2) reach, and the one after the last."""
    top, bottom = n[0, 0], n[0, 0]
    for j in range(1, len(n)):
        top, bottom = min(top, n[j, 0]), max(bottom, n[j, 0])
    top, bottom = min(max(top, 0), rows), min(bottom + h + 1, rows)
    return top, max(top, bottom)


@inlined
def _rows_of_band(band: int, bands: int, top: int, bottom: int) -> tuple[int, int]:
    """Return the first row of a band's share of rows top ... bottom - 1, and the one after the last."""
    return top + (bottom - top) * band // bands, top + (bottom - top) * (band + 1) // bands


# --- to sums ---


@inlined
def _add_row(windows: ComplexArray, i: int, w: int, shifts: RealArray, sums: ComplexArray, half: int, k: int) -> None:
    """Add whole vectors of a row of w pixels of a window, from number i on, to pixel k of the sums."""
    shift, fine = broadcast(shifts[OBJECT, 0]), broadcast(shifts[OBJECT, 1])
    for c in range(ZERO, TWO * (w // LANES * LANES), LANES):
        add_rounded(sums, TWO * k + c, half, load(windows, TWO * i + c), shift, fine)


@inlined
def _light_row(
    light: RealArray, e: int, squared: float, w: int, into: tuple[RealArray, int, RealArray], k: int
) -> None:
    """Add whole vectors of a row of a window's light, times a number, to pixel k of the weight.

    into: weight, numbers from its first part to the second, rounding shifts.
    """
    weight, half, shifts = into
    shift, fine, by = broadcast(shifts[OBJECT_WEIGHT, 0]), broadcast(shifts[OBJECT_WEIGHT, 1]), broadcast(squared)
    for c in range(ZERO, w // LANES * LANES, LANES):
        add_rounded(weight, k + c, half, by * load(light, e + c), shift, fine)


@inlined
def _add_rest(
    source: ComplexArray, share: float, first: int, shifts: RealArray, sums: ComplexArray, half: int, k: int
) -> None:
    """Add pixels from `first` on of a row of a window (w,), times a share, one by one."""
    shift, fine = shifts[OBJECT, 0], shifts[OBJECT, 1]
    for c in range(first, len(source)):
        z, at = source[c], TWO * (k + U(c))
        add_number(sums, at, half, share * z.real, shift, fine)
        add_number(sums, at + ONE, half, share * z.imag, shift, fine)


@inlined
def _light_rest(
    lit: RealArray, factor: float, first: int, shifts: RealArray, weight: RealArray, half: int, k: int
) -> None:
    """Add pixels from `first` on of a row of a window's light (w,), times a factor, one by one."""
    for c in range(first, len(lit)):
        at = k + U(c)
        add_number(weight, at, half, factor * lit[c], shifts[OBJECT_WEIGHT, 0], shifts[OBJECT_WEIGHT, 1])


@inlined
def _add_windows(
    start: int,
    stop: int,
    placed: PlacedWindows,
    shifts: RealArray,
    one: float,
    sums: ComplexArray,
    weight: RealArray,
) -> None:
    """Add the windows to rows start ... stop - 1."""
    windows, light, n, t, a = placed
    half, light_half = second_part(2 * sums.size, len(weight)), second_part(weight.size, len(weight))
    h, w, W = U(windows.shape[1]), U(windows.shape[2]), U(weight.shape[2])
    full = int(w // LANES * LANES)
    for j in range(len(n)):
        y, x, squared, ty, tx = n[j, 0], n[j, 1], a[j] * a[j], t[j, 0], t[j, 1]
        more, lit = 1 if (ty != 0) | (tx != 0) else 0, min(j, len(light) - 1)
        for r in range(max(0, start - y - more), min(windows.shape[1], stop - y)):
            k = W * U(y + r) + U(x)
            if more > 0:  # between pixels, shared out to those of this band's rows
                for corner in range(4):
                    down, across = corner // 2, corner % 2
                    share = (ty if down else one - ty) * (tx if across else one - tx)
                    if start <= y + r + down < stop:
                        at = k + W * U(down) + U(across)
                        _add_rest(windows[j, r], share, 0, shifts, sums, half, at)
                        _light_rest(light[lit, r], share * squared, 0, shifts, weight, light_half, at)
                continue
            fetch(sums, TWO * (k + AHEAD * W), TWO * w)
            fetch(weight, k + AHEAD * W, w)
            e = w * (h * U(lit) + U(r))
            _add_row(windows, w * (h * U(j) + U(r)), w, shifts, sums, half, k)
            _add_rest(windows[j, r], one, full, shifts, sums, half, k)
            _light_row(light, e, squared, w, (weight, light_half, shifts), k)
            _light_rest(light[lit, r], squared, full, shifts, weight, light_half, k)


@parallel
def add_windows(
    placed: PlacedWindows,
    shifts: RealArray,
    bands: int,
    constants: RealArray,
    sums: ComplexArray,
    weight: RealArray,
) -> None:
    """Add sum_j S_j^H windows_j to the sums, and sum_j a_j^2 S_j^H light_j to the weight, on rows that they have.

    Args:
        placed: windows (B, h, w); their light (1 or B, h, w); object pixels y x under their corners (B, 2); weights of
            the next pixel down and right (B, 2) (bilinear), or 0; amplitude of each view's beam (B,).
        shifts: (n, 2) float64, rounding shifts by kind of sum and part.
        bands: number of bands that threads share.
        constants: (10,) real, see comparison.py.
        sums: (parts, H, W) complex128, changed in place.
        weight: (parts, H, W) float64, changed in place.
    """
    top, bottom = _reach(placed[2], placed[0].shape[1], weight.shape[1])
    for i in prange(bands):
        start, stop = _rows_of_band(np.int64(i), bands, top, bottom)
        _add_windows(start, stop, placed, shifts, constants[1], sums, weight)


@inlined
def _add_light(
    start: int, stop: int, light: RealArray, n: IntArray, a: RealArray, shifts: RealArray, out: RealArray
) -> None:
    """Add the light to rows start ... stop - 1."""
    h, w, W, half = light.shape[0], light.shape[1], U(out.shape[2]), second_part(out.size, len(out))
    for j in range(len(n)):
        y, x, squared = n[j, 0], n[j, 1], a[j] * a[j]
        for r in range(max(0, start - y), min(h, stop - y)):
            k = W * U(y + r) + U(x)
            for c in range(w):
                add_number(
                    out, k + U(c), half, squared * light[r, c], shifts[OBJECT_WEIGHT, 0], shifts[OBJECT_WEIGHT, 1]
                )


@parallel
def add_light(light: RealArray, n: IntArray, a: RealArray, shifts: RealArray, bands: int, out: RealArray) -> None:
    """Add sum_j a_j^2 S_j^H light to a weight.

    Args:
        light: (h, w) real.
        n: (B, 2) int64, object pixel y x under each window's corner.
        a: (B,) real, amplitude of each view's beam.
        shifts: (n, 2) float64, rounding shifts by kind of sum and part.
        bands: number of bands that threads share.
        out: (parts, H, W) float64, changed in place.
    """
    top, bottom = _reach(n, light.shape[0], out.shape[1])
    for i in prange(bands):
        start, stop = _rows_of_band(np.int64(i), bands, top, bottom)
        _add_light(start, stop, light, n, a, shifts, out)


#: See compiled.SIGNATURES; what stands in brackets is a tuple.
SIGNATURES = {
    add_windows: "(c3 r3 i2 r2 r1) d2 i r1 z3 d3",
    add_light: "r2 i2 r1 d2 i d3",
}
