"""Probes at fractions of pixels and what they gather, compiled by numba for this CPU.

B, M, h, w   views of the chunk, modes, window pixels;  h, w >= 8
strip, plane, row, work   see strips.py;  spectrum, tables   see shifts.py

Views are written by one thread each. Sums over views are made in groups of neighbours, which are the same for any
number of threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from ptymesh.kernels.compiled import step_system
from ptymesh.kernels.jit import inlined, parallel
from ptymesh.kernels.shifts import add_power, add_shifted_back, prepared, shifted
from ptymesh.kernels.strips import PAIR, TWO, ZERO, U, rows_back, transform
from ptymesh.kernels.vectors import LANES, load, spread, store


@parallel
def ramped(work: Any, spectrum: Any, fractions: Any, a: Any, axis: int, tables: Any, out: Any) -> None:
    """out_jm = F^H of a_j exp(-2 pi i k.f_j) spectrum_m, times 2 pi i k_axis where axis is 0 or 1."""
    count, bands = len(out), len(work)
    for i in prange(bands):
        band = np.int64(i)
        for j in range(count * band // bands, count * (band + 1) // bands):
            shifted(work[band], spectrum, fractions[j], a[j], axis, tables, out, U(j))


@parallel
def to_spectrum(
    work: Any, chi: Any, obj: Any, n: Any, a: Any, fractions: Any, tables: Any, sums: Any, lights: Any, added: Any
) -> None:
    """Adds exp(+2 pi i k.f_j) F a_j conj(S_j O) chi_jm and a_j^2 |S_j O|^2 to the sums of each view's group.

    Neighbouring views are in a group, which one thread goes through. sums (groups, M, 2 h w') and lights
    (groups, h, w): whatever they hold before the first view of a group is forgotten; added (groups,): views of each
    so far.
    """
    B, groups, bands = len(chi), len(added), len(work)
    for i in prange(bands):
        band = np.int64(i)
        for g in range(groups * band // bands, groups * (band + 1) // bands):
            for j in range(B * g // groups, B * (g + 1) // groups):
                y, x, view = U(n[j, 0]), U(n[j, 1]), U(j)
                begin_group(g, sums, lights, added)
                add_shifted_back(work[band], chi, view, obj, y, x, a[j], fractions[j], tables, sums[g])
                add_power(obj, y, x, a[j], lights[g])


@inlined
def begin_group(g: int, sums: Any, lights: Any, added: Any) -> None:
    """Counts a view of a group; before its first one the sums become zero."""
    if added[g] == 0:
        sums[g] = 0
        lights[g] = 0
    added[g] += 1


@inlined
def _gather_strip(m: int, start: int, h: int, constants: Any, sums: Any, added: Any, plane: Any) -> None:
    """A strip of what groups have summed of a mode to its place in a plane, conjugate."""
    size, count, scale, minus = U(sums.shape[2]), U(sums.shape[1]), spread(constants[6]), spread(-constants[6])
    for k in range(TWO * h * start, TWO * h * (start + LANES), PAIR):
        a = b = spread(constants[0])
        for g in range(U(len(sums))):
            if added[g] > 0:
                at = size * (count * g + m) + k
                a, b = a + load(sums, at), b + load(sums, at + LANES)
        store(plane, k, scale * a)
        store(plane, k + LANES, minus * b)


@parallel
def gather_groups(
    work: Any, tables: Any, sums: Any, lights: Any, added: Any, found: Any, blank: bool, out: Any, weight: Any
) -> None:
    """out (M, h, w) += F^H of the sums of all groups to which any view was added, weight (h, w) += their lights.

    found (M, h, w): to work in; blank: out and weight are 0 before.
    """
    count, bands, h, w = len(out), len(work), U(out.shape[1]), U(out.shape[2])
    constants, plan, turns = tables
    for i in prange(bands):
        band = np.int64(i)
        row, spare, plane, _, _ = prepared(work[band], h, w, constants.dtype)
        for m in range(count * band // bands, count * (band + 1) // bands):
            for start in range(ZERO, w, LANES):
                _gather_strip(U(m), start, h, constants, sums, added, plane)
                transform(plane, TWO * h * start, spare, h, plan[0], turns[0])
            rows_back(plane, h, w, row, spare, plan, turns, found, TWO * h * w * U(m))
            for r in range(out.shape[1]):
                if blank:
                    out[m, r] = 0
                for c in range(out.shape[2]):
                    out[m, r, c] += found[m, r, c]
        for r in range(len(weight) * band // bands, len(weight) * (band + 1) // bands):
            if blank:
                weight[r] = 0
            for g in range(len(added)):
                if added[g] > 0:
                    for c in range(weight.shape[1]):
                        weight[r, c] += lights[g, r, c]


@parallel
def add_quotient(change: Any, weight: Any, numbers: Any, bands: int, out: Any) -> None:
    """out (M, h, w) += numbers[0] change / (numbers[1] weight + numbers[2]); change (M, h, w), weight (h, w) real."""
    M, h, w = out.shape
    for i in prange(bands):
        band = np.int64(i)
        for m in range(M):
            for r in range(h * band // bands, h * (band + 1) // bands):
                o, x, f = out[m, r], change[m, r], weight[r]
                for c in range(w):
                    factor = numbers[0] / (numbers[1] * f[c] + numbers[2])
                    o[c] += complex(x[c].real * factor, x[c].imag * factor)


@parallel
def shifted_systems(
    work: Any,
    chi: Any,
    obj: Any,
    change: Any,
    n: Any,
    beams: Any,
    a: Any,
    spectrum: Any,
    shift: Any,
    tables: Any,
    d_beams: Any,
    out: Any,
) -> None:
    """`step_systems` with d_beams of these spectra (M, h, w), at a view's fraction and times its amplitude.

    shift: fractions (B, 2) and amplitudes (B,); d_beams: room for one of each band.
    """
    count, bands = len(out), len(work)
    for i in prange(bands):
        band = np.int64(i)
        for j in range(count * band // bands, count * (band + 1) // bands):
            (fractions, amplitudes), constants = shift, tables[0]
            shifted(work[band], spectrum, fractions[j], constants[1], -1, tables, d_beams, U(i))
            step_system(U(j), U(i), chi, obj, change, n, beams, a, d_beams, amplitudes, constants, out)


#: See compiled.SIGNATURES; what stands in brackets is a tuple.
SIGNATURES = {
    ramped: "r2 c3 r2 r1 i (r1 i2 r2) c4",
    to_spectrum: "r2 c4 c2 i2 r1 r2 (r1 i2 r2) r3 r3 i1",
    gather_groups: "r2 (r1 i2 r2) r3 r3 i1 c3 b c3 r2",
    add_quotient: "c3 r2 r1 i c3",
    shifted_systems: "r2 c4 c2 c2 i2 c4 r1 c3 (r2 r1) (r1 i2 r2) c4 d2",
}
