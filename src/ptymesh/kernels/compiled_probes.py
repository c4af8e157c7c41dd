"""Probes at fractions of pixels and what they gather, compiled by numba for this CPU.

B, M, h, w   views of the chunk, modes, window pixels;  h, w >= 8
panel, plane, row, work   see column_panels.py;  spectrum, tables   see shifts.py

Views are written by one thread each, which sums up its own: sums of rounded terms do not depend on the order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from ptymesh.kernels.column_panels import TWO, ZERO, U, panel_out
from ptymesh.kernels.compiled import step_system
from ptymesh.kernels.jit import inlined, parallel
from ptymesh.kernels.shifts import add_power, add_shifted_back, shifted
from ptymesh.kernels.vectors import LANES, load, second_part, store
from ptymesh.physics.kinds import PROBE_WEIGHT


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
    work: Any,
    chi: Any,
    obj: Any,
    n: Any,
    a: Any,
    fractions: Any,
    tables: Any,
    shifts: Any,
    sums: Any,
    lights: Any,
    reached: Any,
) -> None:
    """Adds exp(+2 pi i k.f_j) F a_j conj(S_j O) chi_jm and a_j^2 |S_j O|^2, rounded, to the sums of a band each.

    sums (bands, parts M 2 h w') panel after panel, lights (bands, parts h w), of double precision; shifts (n, 2), by
    kind of sum and part; reached (B, n): see `compiled.to_windows`.
    """
    B, bands, (h, w) = len(chi), len(work), chi.shape[2:]
    for i in prange(bands):
        band = np.int64(i)
        half, light_half = halves(sums, lights, lights.shape[1] // (h * w))
        for j in range(B * band // bands, B * (band + 1) // bands):
            y, x, view = U(n[j, 0]), U(n[j, 1]), U(j)
            given, found = (a[j], fractions[j], tables, shifts), (sums[band], half, reached[j])
            add_shifted_back(work[band], chi, view, obj, y, x, *given, *found)
            power = (PROBE_WEIGHT, ZERO, shifts, U(h), U(w), lights[band], light_half, reached[j])
            add_power(obj, y, x, a[j], *power)


@inlined
def halves(sums: Any, lights: Any, parts: int) -> Any:
    """Numbers from the first to the second part of a band's sums and lights, where they have so many."""
    return second_part(sums.shape[1], parts), second_part(lights.shape[1], parts)


@inlined
def _gather_strip(m: int, start: int, h: int, sums: Any, plane: Any) -> None:
    """A panel of what bands have summed of a mode (or of its second part) to its place in a plane."""
    size, mode = U(sums.shape[1]), U(len(plane))
    for k in range(TWO * h * start, TWO * h * (start + LANES), LANES):
        found = load(sums, mode * m + k)
        for g in range(U(1), U(len(sums))):
            found = found + load(sums, size * g + mode * m + k)
        store(plane, k, found)


@parallel
def gather(bands: int, sums: Any, lights: Any, out: Any, weight: Any) -> None:
    """out (parts M, h, w) += the sums of all bands, weight (parts h w) += their lights."""
    count, h, w = len(out), U(out.shape[1]), U(out.shape[2])
    for i in prange(bands):
        band = np.int64(i)
        plane = np.empty(sums.shape[1] // count, sums.dtype)
        for m in range(count * band // bands, count * (band + 1) // bands):
            for start in range(ZERO, w, LANES):
                _gather_strip(U(m), start, h, sums, plane)
                panel_out(plane, h, w, start, out, TWO * h * w * U(m))
        for k in range(len(weight) * band // bands, len(weight) * (band + 1) // bands):
            for g in range(len(lights)):
                weight[k] += lights[g, k]


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
    to_spectrum: "r2 c4 c2 i2 r1 r2 (r1 i2 r2) d2 d2 d2 d2",
    gather: "i d2 d2 z3 d1",
    add_quotient: "c3 r2 r1 i c3",
    shifted_systems: "r2 c4 c2 c2 i2 c4 r1 c3 (r2 r1) (r1 i2 r2) c4 d2",
}
