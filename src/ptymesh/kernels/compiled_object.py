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

from ptymesh.kernels.compiled_blocks import AHEAD
from ptymesh.kernels.jit import inlined, parallel
from ptymesh.kernels.vectors import (
    LANES,
    add_number,
    add_rounded,
    fetch,
    load,
    second_part,
    spread,
)
from ptymesh.physics.kinds import OBJECT, OBJECT_WEIGHT

U: Any = np.uint64
ZERO, ONE, TWO = U(0), U(1), U(2)
WIDTH = int(LANES)


@inlined
def _reach(n: Any, h: int, rows: int) -> Any:
    """First row that windows of h + 1 rows at n (B, 2) reach, of so many, and the one after the last."""
    top, bottom = n[0, 0], n[0, 0]
    for j in range(1, len(n)):
        top, bottom = min(top, n[j, 0]), max(bottom, n[j, 0])
    top, bottom = min(max(top, 0), rows), min(bottom + h + 1, rows)
    return top, max(top, bottom)


# --- to sums ---


@inlined
def _add_row(windows: Any, i: int, w: int, shifts: Any, sums: Any, half: int, k: int) -> None:
    """Whole vectors of a row of w pixels of a window, from number i on, to pixel k of the sums."""
    shift, fine = spread(shifts[OBJECT, 0]), spread(shifts[OBJECT, 1])
    for c in range(ZERO, TWO * (w // LANES * LANES), LANES):
        add_rounded(sums, TWO * k + c, half, load(windows, TWO * i + c), shift, fine)


@inlined
def _light_row(light: Any, e: int, squared: float, w: int, shifts: Any, weight: Any, half: int, k: int) -> None:
    """The same of its light, times a number, and the weight."""
    shift, fine, by = spread(shifts[OBJECT_WEIGHT, 0]), spread(shifts[OBJECT_WEIGHT, 1]), spread(squared)
    for c in range(ZERO, w // LANES * LANES, LANES):
        add_rounded(weight, k + c, half, by * load(light, e + c), shift, fine)


@inlined
def _add_rest(source: Any, share: float, first: int, shifts: Any, sums: Any, half: int, k: int) -> None:
    """Pixels from `first` on of a row of a window (w,), times a share, one by one."""
    shift, fine = shifts[OBJECT, 0], shifts[OBJECT, 1]
    for c in range(first, len(source)):
        z, at = source[c], TWO * (k + U(c))
        add_number(sums, at, half, share * z.real, shift, fine)
        add_number(sums, at + ONE, half, share * z.imag, shift, fine)


@inlined
def _light_rest(lit: Any, factor: float, first: int, shifts: Any, weight: Any, half: int, k: int) -> None:
    """The same of its light (w,), and the weight."""
    for c in range(first, len(lit)):
        at = k + U(c)
        add_number(weight, at, half, factor * lit[c], shifts[OBJECT_WEIGHT, 0], shifts[OBJECT_WEIGHT, 1])


@inlined
def _add_windows(
    band: int,
    windows: Any,
    light: Any,
    n: Any,
    t: Any,
    a: Any,
    shifts: Any,
    top: int,
    bottom: int,
    bands: int,
    one: float,
    sums: Any,
    weight: Any,
) -> None:
    half, light_half = second_part(2 * sums.size, len(weight)), second_part(weight.size, len(weight))
    h, w, W = U(windows.shape[1]), U(windows.shape[2]), U(weight.shape[2])
    start, stop = top + (bottom - top) * band // bands, top + (bottom - top) * (band + 1) // bands
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
            _light_row(light, e, squared, w, shifts, weight, light_half, k)
            _light_rest(light[lit, r], squared, full, shifts, weight, light_half, k)


@parallel
def add_windows(
    windows: Any,
    light: Any,
    n: Any,
    t: Any,
    a: Any,
    shifts: Any,
    bands: int,
    constants: Any,
    sums: Any,
    weight: Any,
) -> None:
    """sums += sum_j S_j^H windows_j and weight += sum_j a_j^2 S_j^H light_j, where there are rows of them."""
    top, bottom = _reach(n, windows.shape[1], weight.shape[1])
    for i in prange(bands):
        _add_windows(np.int64(i), windows, light, n, t, a, shifts, top, bottom, bands, constants[1], sums, weight)


@inlined
def _add_light(band: int, light: Any, n: Any, a: Any, shifts: Any, top: int, bottom: int, bands: int, out: Any) -> None:
    h, w, W, half = light.shape[0], light.shape[1], U(out.shape[2]), second_part(out.size, len(out))
    start, stop = top + (bottom - top) * band // bands, top + (bottom - top) * (band + 1) // bands
    for j in range(len(n)):
        y, x, squared = n[j, 0], n[j, 1], a[j] * a[j]
        for r in range(max(0, start - y), min(h, stop - y)):
            k = W * U(y + r) + U(x)
            for c in range(w):
                add_number(
                    out, k + U(c), half, squared * light[r, c], shifts[OBJECT_WEIGHT, 0], shifts[OBJECT_WEIGHT, 1]
                )


@parallel
def add_light(light: Any, n: Any, a: Any, shifts: Any, bands: int, out: Any) -> None:
    """out (parts, H, W) += sum_j a_j^2 S_j^H light, light (h, w) real."""
    top, bottom = _reach(n, light.shape[0], out.shape[1])
    for i in prange(bands):
        _add_light(np.int64(i), light, n, a, shifts, top, bottom, bands, out)


#: See compiled.SIGNATURES.
SIGNATURES = {
    add_windows: "c3 r3 i2 r2 r1 d2 i r1 z3 d3",
    add_light: "r2 i2 r1 d2 i d3",
}
