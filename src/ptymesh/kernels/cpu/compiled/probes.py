"""Probes at fractions of pixels and what they gather, compiled by numba for this CPU.

B, M, h, w   views of the chunk, modes, window pixels;  h, w >= 8
panel, plane, row, work   see column_panels.py;  spectrum, tables   see shifts.py

Views are written by one thread each, which sums up its own: sums of rounded terms do not depend on the order.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from ptymesh.kernels.arrays import BackInputs, ComplexArray, CopyInputs, ExitInputs, RealArray, Tables
from ptymesh.kernels.cpu.compiled.column_panels import TWO, ZERO, U, panel_out, window_at
from ptymesh.kernels.cpu.compiled.jit import inlined, parallel
from ptymesh.kernels.cpu.compiled.shifts import RoundedSums, add_power, add_shifted_back, write_shifted_probes
from ptymesh.kernels.cpu.compiled.vectors import LANES, load, second_part, store
from ptymesh.kernels.cpu.compiled.windows import step_system
from ptymesh.physics.kinds import PROBE_WEIGHT


@parallel
def ramped(
    work: RealArray,
    spectrum: ComplexArray,
    copies: CopyInputs,
    axis: int,
    tables: Tables,
    out: ComplexArray,
) -> None:
    """Write out_jm: F^H of a_j turns_j exp(-2 pi i k.f_j) spectrum_m.

    Args:
        work: (bands, k) real, workspace of each band.
        spectrum: (M, h, w) complex, probes in Fourier space.
        copies: f (B, 2) real, sub-pixel parts of the positions in pixels; a (B,) real, amplitude of each view's beam;
            turns, factors of pixels, (n, 2 h w') or (1, 0) real, panel after panel: view j has those of row j mod n.
        axis: 0 or 1 to take the derivative along y or x, which is times 2 pi i k_axis; -1 for none.
        tables: constants, plan and twiddles of the transform.
        out: (B, M, h, w) complex, written.
    """
    count, bands = len(out), len(work)
    for i in prange(bands):
        band, (f, a, turns) = np.int64(i), copies
        for j in range(count * band // bands, count * (band + 1) // bands):
            write_shifted_probes(work[band], spectrum, (f[j], a[j], turns[j % len(turns)]), axis, tables, out[j])


@parallel
def to_spectrum(
    work: RealArray,
    back: BackInputs,
    copies: CopyInputs,
    tables: Tables,
    into: tuple[RealArray, RealArray, RealArray, RealArray],
) -> None:
    """Add exp(+2 pi i k.f_j) conj(turns_j) F a_j conj(S_j O) chi_jm and a_j^2 |S_j O|^2, rounded, to the sums and
    lights of each band.

    Args:
        work: (bands, k) real, workspace of each band.
        back: changes of the exit waves (B, M, h, w), the object's slice (H, W), corners (B, 2).
        copies: f, a and turns, as in `ramped`.
        tables: constants, plan and twiddles of the transform.
        into: rounding shifts (n, 2) float64 by kind of sum and part; sums (bands, parts M 2 h w') float64, panel after
            panel; lights (bands, parts h w) float64; largest terms (B, n) float64 of each view by kind of sum, updated.
    """
    (chi, obj, n), (f, a, turns), (shifts, sums, lights, reached) = back, copies, into
    B, bands, (h, w) = len(chi), len(work), chi.shape[2:]
    for i in prange(bands):
        band = np.int64(i)
        half, light_half = halves(sums, lights, lights.shape[1] // (h * w))
        for j in range(B * band // bands, B * (band + 1) // bands):
            window = window_at(obj, n[j], U(h), U(w))
            to_sums = RoundedSums(sums[band], half, shifts, reached[j])
            add_shifted_back(work[band], chi[j], window, (f[j], a[j], turns[j % len(turns)]), tables, to_sums)
            to_lights = RoundedSums(lights[band], light_half, shifts, reached[j])
            add_power(window, a[j], PROBE_WEIGHT, ZERO, to_lights)


@inlined
def halves(sums: RealArray, lights: RealArray, parts: int) -> tuple[int, int]:
    """Return how many numbers the second part lies behind the first in a band's sums and lights.

    Args:
        sums: (bands, parts M 2 h w') float64, panel after panel.
        lights: (bands, parts h w) float64.
        parts: 1 or 2.
    """
    return second_part(sums.shape[1], parts), second_part(lights.shape[1], parts)


@inlined
def _gather_strip(m: int, start: int, h: int, sums: RealArray, plane: RealArray) -> None:
    """Add a panel of all bands' sums of a mode (or of its second part), and write it to its place in a plane."""
    size, mode = U(sums.shape[1]), U(len(plane))
    for k in range(TWO * h * start, TWO * h * (start + LANES), LANES):
        found = load(sums, mode * m + k)
        for g in range(U(1), U(len(sums))):
            found = found + load(sums, size * g + mode * m + k)
        store(plane, k, found)


@parallel
def gather(bands: int, sums: RealArray, lights: RealArray, out: ComplexArray, weight: RealArray) -> None:
    """Add the sums of all bands to a probe's, and their lights to its weight.

    Args:
        bands: number of bands that threads share.
        sums: (bands, parts M 2 h w') float64, panel after panel.
        lights: (bands, parts h w) float64.
        out: (parts M, h, w) complex128, changed in place.
        weight: (parts h w,) float64, changed in place.
    """
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
def add_quotient(change: ComplexArray, weight: RealArray, numbers: RealArray, bands: int, out: ComplexArray) -> None:
    """Add numbers[0] change / (numbers[1] weight + numbers[2]) to a probe.

    Args:
        change: (M, h, w) complex.
        weight: (h, w) real.
        numbers: (3,) real.
        bands: number of bands that threads share.
        out: (M, h, w) complex, changed in place.
    """
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
    work: RealArray,
    chi: ComplexArray,
    made_of: ExitInputs,
    direction: tuple[ComplexArray, ComplexArray, RealArray, RealArray],
    tables: Tables,
    d_beams: ComplexArray,
    out: RealArray,
) -> None:
    """Write `step_systems` with d_beams of a spectrum, at each view's fraction and times its amplitude.

    Args:
        work: (bands, k) real, workspace of each band.
        chi: (B, M, h, w) complex, changes of the exit waves.
        made_of: object (H, W), corners (B, 2), beams (1 or B, M, h, w) and amplitudes (B,), see windows.py.
        direction: of the object at the same pixels, (H, W); of the probe in Fourier space, (M, h, w); fractions (B, 2)
            and amplitudes (B,) of the latter.
        tables: constants, plan and twiddles of the transform.
        d_beams: (bands, M, h, w) complex, workspace.
        out: (B, 5) float64, written.
    """
    count, bands = len(out), len(work)
    for i in prange(bands):
        band = np.int64(i)
        for j in range(count * band // bands, count * (band + 1) // bands):
            (change, spectrum, fractions, amplitudes), constants = direction, tables[0]
            copy = fractions[j], constants[1], constants[:0]
            write_shifted_probes(work[band], spectrum, copy, -1, tables, d_beams[band])
            step_system(U(j), U(i), chi, made_of, (change, d_beams, amplitudes), constants, out)


#: See compiled.SIGNATURES; what stands in brackets is a tuple.
SIGNATURES = {
    ramped: "r2 c3 (r2 r1 r2) i (r1 i2 r2) c4",
    to_spectrum: "r2 (c4 c2 i2) (r2 r1 r2) (r1 i2 r2) (d2 d2 d2 d2)",
    gather: "i d2 d2 z3 d1",
    add_quotient: "c3 r2 r1 i c3",
    shifted_systems: "r2 c4 (c2 i2 c4 r1) (c2 c3 r2 r1) (r1 i2 r2) c4 d2",
}
