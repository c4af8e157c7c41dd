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
from typing import NamedTuple

import numpy as np

from ptymesh.kernels.arrays import ComplexArray, RealArray, Tables
from ptymesh.kernels.cpu.compiled.column_panels import (
    ONE,
    PAIR,
    TWO,
    ZERO,
    U,
    WindowPlace,
    WindowTransform,
    columns_of,
    panel_in,
    rows_back,
    rows_in,
    transform_in,
    transform_panel,
    wave_at,
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
    number,
    store,
)
from ptymesh.physics.kinds import PROBE


class Ramps(NamedTuple):
    """Factors of a plane: real parts, imaginary parts.

    Attributes:
        down: (2, h) real, factors of rows.
        across: (2, w') real, factors of columns, 0 beyond w.
        turns: (2 h w',) real, factors of pixels, of modulus 1, panel after panel; of no numbers where all are 1.
    """

    down: RealArray
    across: RealArray
    turns: RealArray


class ViewBeam(NamedTuple):
    """A view's beam.

    Attributes:
        waves: (M + K, h, w) complex, modes of the probe, then OPR modes.
        modes: number of modes M.
        shares: (1 + K,) real, see the module.
    """

    waves: ComplexArray
    modes: int
    shares: RealArray


class RoundedSums(NamedTuple):
    """Sums of rounded terms.

    Attributes:
        numbers: float64, changed in place.
        half: numbers from the first part of the sums to the second; 0 if there is one part.
        shifts: (n, 2) float64, rounding shifts by kind of sum and part.
        reached: (n,) float64, largest terms so far by kind of sum, updated.
    """

    numbers: RealArray
    half: int
    shifts: RealArray
    reached: RealArray


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
def ramps(f: RealArray, w: int, axis: int, factor: float, out: Ramps) -> None:
    """Write the factors exp(-2 pi i k.f) of rows and columns; those of `axis` also times 2 pi i k.

    Args:
        f: (2,) real, the view's fraction y x in pixels.
        w: columns of a window, not padded.
        axis: 0 or 1 to take the derivative along y or x; -1 for none.
        factor: multiplies the factors of rows.
        out: factors of rows and columns, written.
    """
    down, across, _ = out
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
def split_shift_work(work: RealArray, h: int, w: int, tables: Tables) -> tuple[WindowTransform, RealArray, Ramps]:
    """Divide a band's workspace: the transform, a plane, and factors.

    Args:
        work: (k,) real, workspace of a band.
        h: rows of a window.
        w: columns of a window.
        tables: constants, plan and twiddles of the transform.
    """
    wide = (w + LANES - ONE) // LANES * LANES
    fourier, at = transform_in(work, ZERO, h, w, tables)
    return fourier, work[at : at + TWO * h * wide], empty_factors(h, w, tables[0].dtype)


@inlined
def empty_factors(h: int, w: int, dtype: np.dtype) -> Ramps:
    """Return arrays for the factors of rows and of columns (0 beyond w).

    Args:
        h: rows of a window.
        w: columns of a window.
        dtype: of the factors.
    """
    wide = (w + LANES - ONE) // LANES * LANES
    return Ramps(np.empty((TWO, h), dtype), np.zeros((TWO, wide), dtype), np.empty(0, dtype))


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
def beam_in(beam: ViewBeam, m: int, start: int, fourier: WindowTransform, plane: RealArray) -> None:
    """Write eight columns of mode m of a view's beam to a plane.

    Args:
        beam: modes and shares.
        m: which mode.
        start: first of the eight columns.
        fourier: the transform, whose workspace is used.
        plane: (2 h w',) real, a wave panel after panel.
    """
    (waves, modes, shares), h, w, spare = beam, fourier.h, fourier.w, fourier.spare
    at = TWO * h * start
    panel_in(waves, TWO * h * w * m, h, w, start, plane)
    if len(shares) == 0:
        return
    f = broadcast(shares[0])
    for i in range(ZERO, PAIR * h, LANES):
        store(plane, at + i, f * load(plane, at + i))
    for k in range(ONE, U(len(shares)) if m == ZERO else ZERO):
        columns_of(waves, TWO * h * w * (modes + k - ONE), h, w, start, spare, ZERO)
        f = broadcast(shares[k])
        for i in range(ZERO, PAIR * h, LANES):
            store(plane, at + i, load(plane, at + i) + f * load(spare, i))


@inlined
def columns_in(beam: ViewBeam, m: int, factors: Ramps, fourier: WindowTransform, plane: RealArray) -> None:
    """Write the columns of F^H of mode m times its factors to a plane, as conjugates.

    Args:
        beam: modes in Fourier space, and shares.
        m: which mode.
        factors: of rows and columns.
        fourier: the transform.
        plane: (2 h w',) real, written.
    """
    h, (down, across, turns), minus = fourier.h, factors, broadcast(-fourier.twiddles[0, 0])
    for start in range(ZERO, fourier.w, LANES):
        beam_in(beam, m, start, fourier, plane)
        c, d = load(across[0], start), load(across[1], start)
        for r in range(h):
            i = TWO * h * start + PAIR * r
            p, q = turned_by(plane, i, c, d, down, r)
            if len(turns) > 0:
                s, t = load(turns, i), load(turns, i + LANES)
                p, q = p * s - q * t, p * t + q * s
            store(plane, i, p)
            store(plane, i + LANES, minus * q)
        transform_panel(plane, TWO * h * start, fourier)


@inlined
def waves_in(beam: ViewBeam, m: int, f: float, fourier: WindowTransform, plane: RealArray) -> None:
    """Write mode m of a view's beam times f to a plane, as conjugates.

    Args:
        beam: modes and shares.
        m: which mode.
        f: factor.
        fourier: the transform, whose workspace is used.
        plane: (2 h w',) real, written.
    """
    h, by, back = fourier.h, broadcast(f), broadcast(-f)
    for start in range(ZERO, fourier.w, LANES):
        beam_in(beam, m, start, fourier, plane)
        for i in range(TWO * h * start, TWO * h * (start + LANES), PAIR):
            store(plane, i, by * load(plane, i))
            store(plane, i + LANES, back * load(plane, i + LANES))


@inlined
def add_plane(plane: RealArray, f: float, kind: int, m: int, into: RoundedSums) -> None:
    """Add f times the wave in a plane to the sums of mode m, rounded.

    Args:
        plane: (2 h w',) real, a wave panel after panel.
        f: factor.
        kind: kind of sum (physics/kinds.py).
        m: which mode.
        into: sums of (parts M 2 h w',) numbers, panel after panel.
    """
    sums, half, shifts, reached = into
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
def turn_columns(plane: RealArray, factors: Ramps, fourier: WindowTransform) -> None:
    """Transform the columns of a wave whose rows are transformed, and multiply it by the factors.

    Args:
        plane: (2 h w',) real, a wave panel after panel.
        factors: of rows and columns, and conjugates of those of pixels.
        fourier: the transform.
    """
    h, (down, across, turns) = fourier.h, factors
    for start in range(ZERO, fourier.w, LANES):
        transform_panel(plane, TWO * h * start, fourier)
        c, d = load(across[0], start), load(across[1], start)
        for r in range(h):
            i = TWO * h * start + PAIR * r
            p, q = turned_by(plane, i, c, d, down, r)
            if len(turns) > 0:
                s, t = load(turns, i), load(turns, i + LANES)
                p, q = p * s + q * t, q * s - p * t
            store(plane, i, p)
            store(plane, i + LANES, q)


@inlined
def write_shifted_probes(
    work: RealArray,
    spectrum: ComplexArray,
    copy: tuple[RealArray, float, RealArray],
    axis: int,
    tables: Tables,
    out: ComplexArray,
) -> None:
    """Write the probes shifted to a view's position: F^H of a turns exp(-2 pi i k.f) spectrum_m.

    Args:
        work: (k,) real, workspace of a band.
        spectrum: (M, h, w) complex, probes in Fourier space.
        copy: f (2,) real, the view's fraction y x in pixels; amplitude a; factors of pixels, turns of `Ramps`.
        axis: 0 or 1 to take the derivative along y or x, which is times 2 pi i k_axis; -1 for none.
        tables: constants, plan and twiddles of the transform.
        out: (M, h, w) complex, written.
    """
    (M, h, w), constants, (f, a, turns) = (U(out.shape[0]), U(out.shape[1]), U(out.shape[2])), tables[0], copy
    fourier, plane, (down, across, _) = split_shift_work(work, h, w, tables)
    factors = Ramps(down, across, turns)
    ramps(f, np.int64(w), axis, a * constants[6], factors)
    for m in range(M):
        columns_in(ViewBeam(spectrum, M, constants[:0]), m, factors, fourier, plane)
        rows_back(plane, fourier, out, TWO * h * w * m)


@inlined
def add_shifted_back(
    work: RealArray,
    waves: ComplexArray,
    window: WindowPlace,
    copy: tuple[RealArray, float, RealArray],
    tables: Tables,
    into: RoundedSums,
) -> None:
    """Add exp(+2 pi i k.f) conj(turns) F conj(a O) waves to the sums, O being the object in the view's window.

    Args:
        work: (k,) real, workspace of a band.
        waves: (M, h, w) complex, the view's.
        window: the object's window.
        copy: f (2,) real, the view's fraction y x in pixels; amplitude a; factors of pixels, turns of `Ramps`.
        tables: constants, plan and twiddles of the transform.
        into: sums of (parts M 2 h w',) numbers, panel after panel.
    """
    fourier, plane, (down, across, _) = split_shift_work(work, window.h, window.w, tables)
    constants, (f, a, turns) = tables[0], copy
    factors = Ramps(down, across, turns)
    ramps(-f, np.int64(window.w), -1, constants[6], factors)
    for m in range(U(len(waves))):
        rows_in(wave_at(waves, m), window, a, -a, True, fourier, plane)
        turn_columns(plane, factors, fourier)
        add_plane(plane, constants[1], PROBE, m, into)


@inlined
def add_power(window: WindowPlace, a: float, kind: int, m: int, into: RoundedSums) -> None:
    """Add |a O|^2 of the object's window to the m-th of several weights, rounded.

    Args:
        window: the object's window.
        a: amplitude.
        kind: kind of sum (physics/kinds.py).
        m: which of the weights.
        into: sums of (parts n h w,) numbers.
    """
    obj, place, stride, h, w = window
    out, half, shifts, reached = into
    by2, full, at = broadcast(a * a), w // LANES * LANES, h * w * m
    shift, fine, top = broadcast(shifts[kind, 0]), broadcast(shifts[kind, 1]), broadcast(a - a)
    for r in range(h):
        o = place + stride * r
        for c in range(ZERO, full, LANES):
            u, v = load_complex(obj, o + TWO * c)
            power = by2 * (u * u + v * v)
            top = larger(power, top)
            add_rounded(out, at + w * r + c, half, power, shift, fine)
        for c in range(full, w):
            real, imaginary = number(obj, o + TWO * c), number(obj, o + TWO * c + ONE)
            light = a * a * (real * real + imaginary * imaginary)
            add_number(out, at + w * r + c, half, light, shifts[kind, 0], shifts[kind, 1])
            reached[kind] = max(reached[kind], light)
    reached[kind] = max(reached[kind], highest(top))
