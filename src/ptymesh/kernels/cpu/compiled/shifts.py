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

import numpy as np

from ptymesh.kernels.arrays import ComplexArray, IntArray, RealArray, Tables
from ptymesh.kernels.cpu.compiled.column_panels import (
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
from ptymesh.kernels.cpu.compiled.jit import inlined
from ptymesh.kernels.cpu.compiled.vectors import (
    LANES,
    Vector,
    add_number,
    add_rounded,
    broadcast,
    highest,
    larger,
    load,
    load_complex,
    magnitude,
    store,
)
from ptymesh.physics.kinds import PROBE


@inlined
def _ramp(f: float, out: ComplexArray) -> None:
    """Write exp(-2 pi i k f) over the FFT frequencies k of len(out) pixels, in double precision."""
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
    """Return the k-th frequency of the FFT of `size` pixels, in cycles per pixel."""
    return (k if k < (size + 1) // 2 else k - size) / size


@inlined
def ramps(f: RealArray, w: int, axis: int, factor: float, down: RealArray, across: RealArray) -> None:
    """Write the factors exp(-2 pi i k.f) of rows and columns; those of `axis` also times 2 pi i k.

    Args:
        f: (2,) real, the view's fraction y x in pixels.
        w: columns of a window, not padded.
        axis: 0 or 1 to take the derivative along y or x; -1 for none.
        factor: multiplies the factors of rows.
        down: (2, h) real, factors of rows: real parts, imaginary parts.
        across: (2, w') real, factors of columns: real parts, imaginary parts.
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
def split_shift_work(
    work: RealArray, h: int, w: int, dtype: np.dtype
) -> tuple[RealArray, RealArray, RealArray, RealArray, RealArray]:
    """Divide a band's workspace.

    Args:
        work: (k,) real, workspace of a band.
        h: rows of a window.
        w: columns of a window.
        dtype: of the factors.

    Returns:
        Row, workspace of transforms, plane, and factors of rows and of columns (0 beyond w).
    """
    wide = (w + LANES - ONE) // LANES * LANES
    row, spare, at = rows_of(work, ZERO, h, w)
    down, across = empty_factors(h, w, dtype)
    return row, spare, work[at : at + TWO * h * wide], down, across


@inlined
def empty_factors(h: int, w: int, dtype: np.dtype) -> tuple[RealArray, RealArray]:
    """Return arrays for the factors of rows and of columns (0 beyond w).

    Args:
        h: rows of a window.
        w: columns of a window.
        dtype: of the factors.
    """
    return np.empty((TWO, h), dtype), np.zeros((TWO, (w + LANES - ONE) // LANES * LANES), dtype)


@inlined
def turned_by(plane: RealArray, i: int, c: Vector, d: Vector, down: RealArray, r: int) -> tuple[Vector, Vector]:
    """Return eight pixels of a plane times the factors across, c + i d, and down.

    Args:
        plane: (2 h w',) real, a wave panel after panel.
        i: index of the first pixel in `plane`.
        c: vector, real parts of the factors across.
        d: vector, imaginary parts of the factors across.
        down: (2, h) real, factors of rows: real parts, imaginary parts.
        r: row of the pixels.
    """
    e, f = broadcast(down[0, r]), broadcast(down[1, r])
    s, t, p, q = load(plane, i), load(plane, i + LANES), e * c - f * d, e * d + f * c
    return p * s - q * t, p * t + q * s


@inlined
def beam_in(
    waves: ComplexArray, m: int, M: int, shares: RealArray, h: int, start: int, spare: RealArray, plane: RealArray
) -> None:
    """Write eight columns of mode m of a view's beam to a plane.

    Args:
        waves: (M + K, h, w) complex.
        m: which mode.
        M: number of modes.
        shares: (1 + K,) real, see the module.
        h: rows of a window.
        start: first of the eight columns.
        spare: (4 max(h, w) 8,) real, workspace of `transform`.
        plane: (2 h w',) real, a wave panel after panel.
    """
    w, at = U(waves.shape[2]), TWO * h * start
    panel_in(waves, TWO * h * w * m, h, w, start, plane)
    if len(shares) == 0:
        return
    f = broadcast(shares[0])
    for i in range(ZERO, PAIR * h, LANES):
        store(plane, at + i, f * load(plane, at + i))
    for k in range(ONE, U(len(shares)) if m == ZERO else ZERO):
        columns_of(waves, TWO * h * w * (M + k - ONE), h, w, start, spare, ZERO)
        f = broadcast(shares[k])
        for i in range(ZERO, PAIR * h, LANES):
            store(plane, at + i, load(plane, at + i) + f * load(spare, i))


@inlined
def columns_in(
    spectrum: ComplexArray,
    m: int,
    M: int,
    shares: RealArray,
    down: RealArray,
    across: RealArray,
    minus: Vector,
    h: int,
    spare: RealArray,
    plan: IntArray,
    twiddles: RealArray,
    plane: RealArray,
) -> None:
    """Write the columns of F^H of mode m times its factors to a plane, as conjugates.

    Args:
        spectrum: (M + K, h, w) complex, probes in Fourier space.
        m: which mode.
        M: number of modes.
        shares: (1 + K,) real, see the module.
        down: (2, h) real, factors of rows: real parts, imaginary parts.
        across: (2, w') real, factors of columns: real parts, imaginary parts.
        minus: vector of -1.
        h: rows of a window.
        spare: (4 max(h, w) 8,) real, workspace of `transform`.
        plan: (2, k) int64, radices by axis.
        twiddles: (2, 2 max(h, w)) real, by axis.
        plane: (2 h w',) real, written.
    """
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
def waves_in(
    probe: ComplexArray, m: int, M: int, shares: RealArray, f: float, h: int, spare: RealArray, plane: RealArray
) -> None:
    """Write mode m of a view's beam times f to a plane, as conjugates.

    Args:
        probe: (M + K, h, w) complex.
        m: which mode.
        M: number of modes.
        shares: (1 + K,) real, see the module.
        f: factor.
        h: rows of a window.
        spare: (4 max(h, w) 8,) real, workspace of `transform`.
        plane: (2 h w',) real, written.
    """
    w, by, back = U(probe.shape[2]), broadcast(f), broadcast(-f)
    for start in range(ZERO, w, LANES):
        beam_in(probe, m, M, shares, h, start, spare, plane)
        for i in range(TWO * h * start, TWO * h * (start + LANES), PAIR):
            store(plane, i, by * load(plane, i))
            store(plane, i + LANES, back * load(plane, i + LANES))


@inlined
def add_plane(
    plane: RealArray, f: float, kind: int, m: int, shifts: RealArray, sums: RealArray, half: int, reached: RealArray
) -> None:
    """Add f times the wave in a plane to the sums of mode m, rounded.

    Args:
        plane: (2 h w',) real, a wave panel after panel.
        f: factor.
        kind: kind of sum (physics/kinds.py).
        m: which mode.
        shifts: (n, 2) float64, rounding shifts by kind of sum and part.
        sums: (parts M 2 h w',) float64, panel after panel.
        half: numbers from the first part of the sums to the second; 0 if there is one part.
        reached: (n,) float64, largest terms so far by kind of sum, updated.
    """
    shift, fine, top, by = (
        broadcast(shifts[kind, 0]),
        broadcast(shifts[kind, 1]),
        broadcast(plane[0] - plane[0]),
        broadcast(f),
    )
    for i in range(ZERO, U(len(plane)), LANES):
        p = by * load(plane, i)
        top = larger(magnitude(p), top)
        add_rounded(sums, U(len(plane)) * m + i, half, p, shift, fine)
    reached[kind] = max(reached[kind], highest(top))


@inlined
def turn_columns(
    plane: RealArray,
    down: RealArray,
    across: RealArray,
    h: int,
    w: int,
    spare: RealArray,
    plan: IntArray,
    twiddles: RealArray,
) -> None:
    """Transform the columns of a wave whose rows are transformed, and multiply it by the factors.

    Args:
        plane: (2 h w',) real, a wave panel after panel.
        down: (2, h) real, factors of rows: real parts, imaginary parts.
        across: (2, w') real, factors of columns: real parts, imaginary parts.
        h: rows of a window.
        w: columns of a window.
        spare: (4 max(h, w) 8,) real, workspace of `transform`.
        plan: (2, k) int64, radices by axis.
        twiddles: (2, 2 max(h, w)) real, by axis.
    """
    for start in range(ZERO, w, LANES):
        transform(plane, TWO * h * start, spare, h, plan[0], twiddles[0])
        c, d = load(across[0], start), load(across[1], start)
        for r in range(h):
            i = TWO * h * start + PAIR * r
            p, q = turned_by(plane, i, c, d, down, r)
            store(plane, i, p)
            store(plane, i + LANES, q)


@inlined
def write_shifted_probes(
    work: RealArray,
    spectrum: ComplexArray,
    f: RealArray,
    a: float,
    axis: int,
    tables: Tables,
    out: ComplexArray,
    view: int,
) -> None:
    """Write the probes shifted to a view's position: F^H of a exp(-2 pi i k.f) spectrum_m.

    Args:
        work: (k,) real, workspace of a band.
        spectrum: (M, h, w) complex, probes in Fourier space.
        f: (2,) real, the view's fraction y x in pixels.
        a: amplitude.
        axis: 0 or 1 to take the derivative along y or x, which is times 2 pi i k_axis; -1 for none.
        tables: constants, plan and twiddles of the transform.
        out: (B, M, h, w) complex, out[view] is written.
        view: index of the view.
    """
    M, h, w = U(out.shape[1]), U(out.shape[2]), U(out.shape[3])
    constants, plan, twiddles = tables
    row, spare, plane, down, across = split_shift_work(work, h, w, constants.dtype)
    ramps(f, np.int64(w), axis, a * constants[6], down, across)
    minus = broadcast(-constants[1])
    for m in range(M):
        columns_in(spectrum, m, M, constants[:0], down, across, minus, h, spare, plan, twiddles, plane)
        rows_back(plane, h, w, row, spare, plan, twiddles, out, TWO * h * w * (view * M + m))


@inlined
def add_shifted_back(
    work: RealArray,
    waves: ComplexArray,
    view: int,
    obj: ComplexArray,
    y: int,
    x: int,
    a: float,
    f: RealArray,
    tables: Tables,
    shifts: RealArray,
    sums: RealArray,
    half: int,
    reached: RealArray,
) -> None:
    """Add exp(+2 pi i k.f) F conj(a O) waves[view] to the sums, O being the object in the view's window.

    Args:
        work: (k,) real, workspace of a band.
        waves: (B, M, h, w) complex.
        view: index of the view.
        obj: (H, W) complex, the object's slice.
        y: first row of the window in the object.
        x: first column of the window in the object.
        a: amplitude.
        f: (2,) real, the view's fraction y x in pixels.
        tables: constants, plan and twiddles of the transform.
        shifts: (n, 2) float64, rounding shifts by kind of sum and part.
        sums: (parts M 2 h w',) float64, panel after panel.
        half: numbers from the first part of the sums to the second; 0 if there is one part.
        reached: (n,) float64, largest terms so far by kind of sum, updated.
    """
    M, h, w = U(waves.shape[1]), U(waves.shape[2]), U(waves.shape[3])
    constants, plan, twiddles = tables
    row, spare, plane, down, across = split_shift_work(work, h, w, constants.dtype)
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
    obj: ComplexArray,
    y: int,
    x: int,
    a: float,
    kind: int,
    m: int,
    shifts: RealArray,
    h: int,
    w: int,
    out: RealArray,
    half: int,
    reached: RealArray,
) -> None:
    """Add |a O|^2 of the object's window to the m-th of several weights, rounded.

    Args:
        obj: (H, W) complex, the object's slice.
        y: first row of the window in the object.
        x: first column of the window in the object.
        a: amplitude.
        kind: kind of sum (physics/kinds.py).
        m: which of the weights.
        shifts: (n, 2) float64, rounding shifts by kind of sum and part.
        h: rows of a window.
        w: columns of a window.
        out: (parts n h w,) float64.
        half: numbers from the first part of the sums to the second; 0 if there is one part.
        reached: (n,) float64, largest terms so far by kind of sum, updated.
    """
    W, by2, full, at = U(obj.shape[1]), broadcast(a * a), w // LANES * LANES, h * w * m
    shift, fine, top = broadcast(shifts[kind, 0]), broadcast(shifts[kind, 1]), broadcast(a - a)
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
