"""Shifts of waves by fractions of a pixel in Fourier space: what kernels that shift are made of.

M, h, w      modes, window pixels;  h, w >= 8;  K  OPR modes
spectrum     (M, h, w) complex, probes in Fourier space;  f  (2,) fraction, y x;  where the beam varies from view to
             view, (M + K, h, w), with those of OPR modes behind
shares       (1 + K,) of a view, w_j0 of all modes and w_jk of the OPR modes, which are part of the first one; of no
             numbers where the beam does not vary
constants, plan, twiddles   what transforms are told by (arguments.Transform); together they are `tables`
panel, plane, row, work  see column_panels.py
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ptymesh.kernels.column_panels import (
    ONE,
    PAIR,
    TWO,
    ZERO,
    U,
    columns_of,
    panel_in,
    rows_back,
    rows_in,
    rows_of,
    transform,
)
from ptymesh.kernels.jit import inlined
from ptymesh.kernels.vectors import (
    LANES,
    add_number,
    add_rounded,
    highest,
    larger,
    load,
    load_complex,
    magnitude,
    spread,
    store,
)
from ptymesh.physics.kinds import PROBE


@inlined
def _ramp(f: float, out: Any) -> None:
    """exp(-2 pi i k f) over the FFT frequencies k of len(out) pixels, in double precision."""
    size = len(out)
    phase = -2.0 * math.pi * f / size
    turn, value = complex(math.cos(phase), math.sin(phase)), complex(1.0, 0.0)
    out[0] = value
    for k in range(1, (size + 1) // 2):
        value *= turn
        out[k] = value
        out[size - k] = value.conjugate()
    if size % 2 == 0:
        phase = math.pi * f
        out[size // 2] = complex(math.cos(phase), math.sin(phase))


@inlined
def frequency(k: int, size: int) -> float:
    """The k-th of the FFT of so many pixels, in cycles per pixel."""
    return (k if k < (size + 1) // 2 else k - size) / size


@inlined
def ramps(f: Any, w: int, axis: int, factor: float, down: Any, across: Any) -> None:
    """Factors exp(-2 pi i k.f) of rows, times `factor`, down (2, h), and of columns, across (2, w' >= w).

    Real parts, imaginary parts; those of the axis also times 2 pi i k.
    """
    ry, rx = np.empty(down.shape[1], np.complex128), np.empty(w, np.complex128)
    _ramp(f[0], ry)
    _ramp(f[1], rx)
    for r in range(len(ry)):
        value = factor * (ry[r] * (2j * math.pi * frequency(r, len(ry))) if axis == 0 else ry[r])
        down[0, r], down[1, r] = value.real, value.imag
    for c in range(w):
        value = rx[c] * (2j * math.pi * frequency(c, w)) if axis == 1 else rx[c]
        across[0, c], across[1, c] = value.real, value.imag


@inlined
def prepared(work: Any, h: int, w: int, dtype: Any) -> Any:
    """A row, room for transforms, a plane, and the factors of rows and of columns (0 beyond w)."""
    wide = (w + LANES - ONE) // LANES * LANES
    row, spare, at = rows_of(work, ZERO, h, w)
    down, across = factors(h, w, dtype)
    return row, spare, work[at : at + TWO * h * wide], down, across


@inlined
def factors(h: int, w: int, dtype: Any) -> Any:
    """Room for those of rows and of columns (0 beyond w)."""
    return np.empty((TWO, h), dtype), np.zeros((TWO, (w + LANES - ONE) // LANES * LANES), dtype)


@inlined
def turned_by(plane: Any, i: int, c: Any, d: Any, down: Any, r: int) -> Any:
    """Eight pixels of row r, from number i of a plane on, times the factors across, c + id, and down."""
    e, f = spread(down[0, r]), spread(down[1, r])
    s, t, p, q = load(plane, i), load(plane, i + LANES), e * c - f * d, e * d + f * c
    return p * s - q * t, p * t + q * s


@inlined
def beam_in(waves: Any, m: int, M: int, shares: Any, h: int, start: int, spare: Any, plane: Any) -> None:
    """Columns from `start` on of mode m of a view's beam, made of waves (M + K, h, w), to a plane; see `shares`."""
    w, at = U(waves.shape[2]), TWO * h * start
    panel_in(waves, TWO * h * w * m, h, w, start, plane)
    if len(shares) == 0:
        return
    f = spread(shares[0])
    for i in range(ZERO, PAIR * h, LANES):
        store(plane, at + i, f * load(plane, at + i))
    for k in range(ONE, U(len(shares)) if m == ZERO else ZERO):
        columns_of(waves, TWO * h * w * (M + k - ONE), h, w, start, spare, ZERO)
        f = spread(shares[k])
        for i in range(ZERO, PAIR * h, LANES):
            store(plane, at + i, load(plane, at + i) + f * load(spare, i))


@inlined
def columns_in(
    spectrum: Any,
    m: int,
    M: int,
    shares: Any,
    down: Any,
    across: Any,
    minus: Any,
    h: int,
    spare: Any,
    plan: Any,
    twiddles: Any,
    plane: Any,
) -> None:
    """Columns of F^H of mode m times its factors, to a plane; conjugate."""
    w = U(spectrum.shape[2])
    for start in range(ZERO, w, LANES):
        beam_in(spectrum, m, M, shares, h, start, spare, plane)
        c, d = load(across[0], start), load(across[1], start)
        for r in range(h):
            i = TWO * h * start + PAIR * r
            p, q = turned_by(plane, i, c, d, down, r)
            store(plane, i, p)
            store(plane, i + LANES, minus * q)
        transform(plane, TWO * h * start, spare, h, plan[0], twiddles[0])


@inlined
def waves_in(probe: Any, m: int, M: int, shares: Any, f: float, h: int, spare: Any, plane: Any) -> None:
    """f conj of mode m, as it is, to a plane."""
    w, by, back = U(probe.shape[2]), spread(f), spread(-f)
    for start in range(ZERO, w, LANES):
        beam_in(probe, m, M, shares, h, start, spare, plane)
        for i in range(TWO * h * start, TWO * h * (start + LANES), PAIR):
            store(plane, i, by * load(plane, i))
            store(plane, i + LANES, back * load(plane, i + LANES))


@inlined
def add_plane(plane: Any, f: float, kind: int, m: int, shifts: Any, sums: Any, half: int, reached: Any) -> None:
    """sums (parts M 2 h w') of mode m += f times the wave in a plane, rounded. kind: of sum; half: numbers to the
    second part; reached: see `compiled.to_windows`."""
    shift, fine, top, by = spread(shifts[kind, 0]), spread(shifts[kind, 1]), spread(plane[0] - plane[0]), spread(f)
    for i in range(ZERO, U(len(plane)), LANES):
        p = by * load(plane, i)
        top = larger(magnitude(p), top)
        add_rounded(sums, U(len(plane)) * m + i, half, p, shift, fine)
    reached[kind] = max(reached[kind], highest(top))


@inlined
def turn_columns(plane: Any, down: Any, across: Any, h: int, w: int, spare: Any, plan: Any, twiddles: Any) -> None:
    """A wave in a plane, whose rows are transformed and columns not, becomes factors times its transform."""
    for start in range(ZERO, w, LANES):
        transform(plane, TWO * h * start, spare, h, plan[0], twiddles[0])
        c, d = load(across[0], start), load(across[1], start)
        for r in range(h):
            i = TWO * h * start + PAIR * r
            p, q = turned_by(plane, i, c, d, down, r)
            store(plane, i, p)
            store(plane, i + LANES, q)


@inlined
def shifted(work: Any, spectrum: Any, f: Any, a: float, axis: int, tables: Any, out: Any, view: int) -> None:
    """out[view] (M, h, w) = F^H of a exp(-2 pi i k.f) spectrum_m, times 2 pi i k_axis where axis is 0 or 1."""
    M, h, w = U(out.shape[1]), U(out.shape[2]), U(out.shape[3])
    constants, plan, twiddles = tables
    row, spare, plane, down, across = prepared(work, h, w, constants.dtype)
    ramps(f, np.int64(w), axis, a * constants[6], down, across)
    minus = spread(-constants[1])
    for m in range(M):
        columns_in(spectrum, m, M, constants[:0], down, across, minus, h, spare, plan, twiddles, plane)
        rows_back(plane, h, w, row, spare, plan, twiddles, out, TWO * h * w * (view * M + m))


@inlined
def add_shifted_back(
    work: Any,
    waves: Any,
    view: int,
    obj: Any,
    y: int,
    x: int,
    a: float,
    f: Any,
    tables: Any,
    shifts: Any,
    sums: Any,
    half: int,
    reached: Any,
) -> None:
    """sums (parts M 2 h w') += exp(+2 pi i k.f) F conj(a O) waves[view], O the object's window at y x."""
    M, h, w = U(waves.shape[1]), U(waves.shape[2]), U(waves.shape[3])
    constants, plan, twiddles = tables
    row, spare, plane, down, across = prepared(work, h, w, constants.dtype)
    ramps(-f, np.int64(w), -1, constants[6], down, across)
    stride = TWO * U(obj.shape[1])
    window = stride * y + TWO * x
    for m in range(M):
        wave = TWO * h * w * (view * M + m)
        rows_in(waves, wave, obj, window, stride, a, -a, True, h, w, row, spare, plan, twiddles, plane)
        turn_columns(plane, down, across, h, w, spare, plan, twiddles)
        add_plane(plane, constants[1], PROBE, m, shifts, sums, half, reached)


@inlined
def add_power(
    obj: Any,
    y: int,
    x: int,
    a: float,
    kind: int,
    m: int,
    shifts: Any,
    h: int,
    w: int,
    out: Any,
    half: int,
    reached: Any,
) -> None:
    """out (parts n h w) of the m-th += |a O|^2, O the object's window at y x; rounded. kind: of sum."""
    W, by2, full, at = U(obj.shape[1]), spread(a * a), w // LANES * LANES, h * w * m
    shift, fine, top = spread(shifts[kind, 0]), spread(shifts[kind, 1]), spread(a - a)
    for r in range(h):
        o = TWO * (W * (y + r) + x)
        for c in range(ZERO, full, LANES):
            u, v = load_complex(obj, o + TWO * c)
            power = by2 * (u * u + v * v)
            top = larger(power, top)
            add_rounded(out, at + w * r + c, half, power, shift, fine)
        for c in range(full, w):
            O = obj[y + r, x + c]
            power = a * a * (O.real * O.real + O.imag * O.imag)
            add_number(out, at + w * r + c, half, power, shifts[kind, 0], shifts[kind, 1])
            reached[kind] = max(reached[kind], power)
    reached[kind] = max(reached[kind], highest(top))
