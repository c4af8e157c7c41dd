"""Probes at fractions of pixels and what they gather, compiled by numba for this CPU.

B, M, h, w   views of the chunk, modes, window pixels;  h, w >= 8
strip, plane, row, plan, turns, work   see strips.py

Views are written by one thread each. Sums over views are made in groups of neighbours, which are the same for any
number of threads.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import prange

from ptymesh.kernels.jit import inlined, parallel
from ptymesh.kernels.strips import ONE, PAIR, TWO, ZERO, U, rows_back, rows_in, rows_of, strip_in, transform
from ptymesh.kernels.vectors import LANES, load, spread, store


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
def _frequency(k: int, size: int) -> float:
    return (k if k < (size + 1) // 2 else k - size) / size


@inlined
def _ramps(f: Any, w: int, axis: int, factor: float, down: Any, across: Any) -> None:
    """Factors exp(-2 pi i k.f) of rows, times `factor`, down (2, h), and of columns, across (2, w' >= w).

    Real parts, imaginary parts; those of the axis also times 2 pi i k.
    """
    ry, rx = np.empty(down.shape[1], np.complex128), np.empty(w, np.complex128)
    _ramp(f[0], ry)
    _ramp(f[1], rx)
    for r in range(len(ry)):
        value = factor * (ry[r] * (2j * math.pi * _frequency(r, len(ry))) if axis == 0 else ry[r])
        down[0, r], down[1, r] = value.real, value.imag
    for c in range(w):
        value = rx[c] * (2j * math.pi * _frequency(c, w)) if axis == 1 else rx[c]
        across[0, c], across[1, c] = value.real, value.imag


@inlined
def _prepared(work: Any, h: int, w: int, dtype: Any) -> Any:
    """A row, room for transforms, a plane, and the factors of rows and of columns (0 beyond w)."""
    wide = (w + LANES - ONE) // LANES * LANES
    row, spare, at = rows_of(work, ZERO, h, w)
    return row, spare, work[at : at + TWO * h * wide], np.empty((TWO, h), dtype), np.zeros((TWO, wide), dtype)


@inlined
def _turned_by(plane: Any, i: int, c: Any, d: Any, down: Any, r: int) -> Any:
    """Eight pixels of row r, from number i of a plane on, times the factors across, c + id, and down."""
    e, f = spread(down[0, r]), spread(down[1, r])
    s, t, p, q = load(plane, i), load(plane, i + LANES), e * c - f * d, e * d + f * c
    return p * s - q * t, p * t + q * s


@inlined
def _ramped(
    j: int, work: Any, spectrum: Any, fractions: Any, a: Any, axis: int, constants: Any, plan: Any, turns: Any, out: Any
) -> None:
    M, h, w, dtype = U(out.shape[1]), U(out.shape[2]), U(out.shape[3]), constants.dtype
    row, spare, plane, down, across = _prepared(work, h, w, dtype)
    _ramps(fractions[j], np.int64(w), axis, a[j] * constants[6], down, across)
    minus = spread(-constants[1])
    for m in range(M):
        for start in range(ZERO, w, LANES):
            strip_in(spectrum, TWO * h * w * m, h, w, start, plane)
            c, d = load(across[0], start), load(across[1], start)
            for r in range(h):
                i = TWO * h * start + PAIR * r
                p, q = _turned_by(plane, i, c, d, down, r)
                store(plane, i, p)
                store(plane, i + LANES, minus * q)
            transform(plane, TWO * h * start, spare, h, plan[0], turns[0])
        rows_back(plane, h, w, row, spare, plan, turns, out, TWO * h * w * (j * M + m))


@parallel
def ramped(
    work: Any, spectrum: Any, fractions: Any, a: Any, axis: int, constants: Any, plan: Any, turns: Any, out: Any
) -> None:
    """out_jm = F^H of a_j exp(-2 pi i k.f_j) spectrum_m, times 2 pi i k_axis where axis is 0 or 1."""
    count, bands = len(out), len(work)
    for i in prange(bands):
        band = np.int64(i)
        for j in range(count * band // bands, count * (band + 1) // bands):
            _ramped(U(j), work[band], spectrum, fractions, a, axis, constants, plan, turns, out)


@inlined
def _add_view(
    j: int,
    work: Any,
    chi: Any,
    obj: Any,
    n: Any,
    a: Any,
    fractions: Any,
    constants: Any,
    plan: Any,
    turns: Any,
    sums: Any,
    light: Any,
) -> None:
    """One view's share of a group's sums (M, 2 h w') and light (h, w)."""
    M, h, w, dtype = U(chi.shape[1]), U(chi.shape[2]), U(chi.shape[3]), constants.dtype
    row, spare, plane, down, across = _prepared(work, h, w, dtype)
    _ramps(-fractions[j], np.int64(w), -1, constants[6], down, across)
    y, x, f2, stride = U(n[j, 0]), U(n[j, 1]), a[j] * a[j], TWO * U(obj.shape[1])
    window = stride * y + TWO * x
    for m in range(M):
        wave = TWO * h * w * (j * M + m)
        rows_in(chi, wave, obj, window, stride, a[j], -a[j], True, h, w, row, spare, plan, turns, plane)
        for start in range(ZERO, w, LANES):
            transform(plane, TWO * h * start, spare, h, plan[0], turns[0])
            c, d = load(across[0], start), load(across[1], start)
            for r in range(h):
                i = TWO * h * start + PAIR * r
                p, q = _turned_by(plane, i, c, d, down, r)
                store(sums[m], i, load(sums[m], i) + p)
                store(sums[m], i + LANES, load(sums[m], i + LANES) + q)
    for r in range(h):
        o, k = obj[y + r, x : x + w], light[r]
        for c in range(w):
            k[c] += f2 * (o[c].real * o[c].real + o[c].imag * o[c].imag)


@inlined
def _gather_groups(r: int, sums: Any, lights: Any, out: Any, weight: Any) -> None:
    """Row r of what groups have summed."""
    M, h, w = U(out.shape[0]), U(out.shape[1]), U(out.shape[2])
    for g in range(U(len(sums))):
        for m in range(M):
            for start in range(ZERO, w, LANES):
                i = TWO * h * start + PAIR * r
                for c in range(min(LANES, w - start)):
                    out[m, r, start + c] += complex(sums[g, m, i + c], sums[g, m, i + LANES + c])
        for c in range(w):
            weight[r, c] += lights[g, r, c]


@parallel
def to_spectrum(
    work: Any,
    chi: Any,
    obj: Any,
    n: Any,
    a: Any,
    fractions: Any,
    constants: Any,
    plan: Any,
    turns: Any,
    sums: Any,
    lights: Any,
    out: Any,
    weight: Any,
) -> None:
    """out_m += sum_j exp(+2 pi i k.f_j) F a_j conj(S_j O) chi_jm and weight += sum_j a_j^2 |S_j O|^2.

    sums (groups, M, 2 h w') and lights (groups, h, w), to work in: neighbouring views are summed in groups, and then
    those. A band of `work` is one of a group.
    """
    B, groups = len(chi), len(work)
    for i in prange(groups):
        group = np.int64(i)
        sums[group] = 0
        lights[group] = 0
        for j in range(B * group // groups, B * (group + 1) // groups):
            _add_view(U(j), work[group], chi, obj, n, a, fractions, constants, plan, turns, sums[group], lights[group])
    for i in prange(out.shape[1]):
        _gather_groups(U(i), sums, lights, out, weight)


#: See compiled.SIGNATURES.
SIGNATURES = {ramped: "r2 c3 r2 r1 i r1 i2 r2 c4", to_spectrum: "r2 c4 c2 i2 r1 r2 r1 i2 r2 r3 r3 c3 r2"}
