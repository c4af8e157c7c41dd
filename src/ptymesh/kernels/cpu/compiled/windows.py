"""Loops over pixels, compiled by numba for this CPU. `backend.py` calls them.

B, M, h, w   views of the chunk, modes, window pixels
obj          (H, W) one slice of the object;  n  (B, 2) int64, its pixel under each window's corner, y x
beams        (1 or B, M, h, w) probes, one for all views or one each;  a  (B,) real, amplitude of each view's beam
chi          (B, M, h, w) waves at the exit
real, complex   of one precision

Views are written by one thread each; sums over views are made by bands of rows, of terms that are rounded
(physics/rounding.py): they do not depend on the order. Bands and views are independent: there are no races.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from ptymesh.kernels.arrays import ComplexArray, ExitInputs, IntArray, RealArray
from ptymesh.kernels.cpu.compiled.blocks import AHEAD
from ptymesh.kernels.cpu.compiled.jit import inlined, parallel, plainly_inlined, plainly_parallel
from ptymesh.kernels.cpu.compiled.vectors import (
    LANES,
    add_complex_rounded,
    add_number,
    add_rounded,
    broadcast,
    fetch,
    highest,
    larger,
    load_complex,
    magnitude,
    second_part,
    store_complex,
    total,
)
from ptymesh.physics.kinds import OBJECT, OBJECT_WEIGHT, PROBE, PROBE_WEIGHT

U: Any = np.uint64
ZERO, ONE, TWO = U(0), U(1), U(2)
#: Directions of the object and of the beams, amplitudes of the latter.
DirectionInputs = tuple[ComplexArray, ComplexArray, RealArray]
#: Rounding shifts, sums of the probe, their weight.
ProbeSums = tuple[RealArray, ComplexArray, RealArray]
# What one thread does stands in a function of its own: numba takes several times longer over the body of a parallel
# loop. The index of such a loop is unsigned, and with a signed one it would make a float.


# --- exit waves and probes ---


@inlined
def _exit_waves(j: int, obj: ComplexArray, n: IntArray, beams: ComplexArray, a: RealArray, out: ComplexArray) -> None:
    """Write row j of `exit_waves`."""
    M, h, w = out.shape[1:]
    shared = beams.shape[0] == 1
    y, x, f = n[j, 0], n[j, 1], a[j]
    for m in range(M):
        for r in range(h):
            o, p, e = obj[y + r, x : x + w], beams[0 if shared else j, m, r], out[j, m, r]
            for c in range(w):
                e[c] = (f * p[c]) * o[c]


@parallel
def exit_waves(obj: ComplexArray, n: IntArray, beams: ComplexArray, a: RealArray, out: ComplexArray) -> None:
    """Write out_jm = a_j beams_jm S_j O.

    Args:
        obj: (H, W) complex, the object's slice.
        n: (B, 2) int64, object pixel y x under each window's corner.
        beams: (1 or B, M, h, w) complex, probes.
        a: (B,) real, amplitude of each view's beam.
        out: (B, M, h, w) complex, written.
    """
    for i in prange(len(out)):
        _exit_waves(np.int64(i), obj, n, beams, a, out)


@inlined
def _interpolated(
    j: int, obj: ComplexArray, n: IntArray, t: RealArray, constants: RealArray, out: ComplexArray
) -> None:
    """Write window j of `interpolated`."""
    h, w = out.shape[1:]
    y, x, ty, tx = n[j, 0], n[j, 1], t[j, 0], t[j, 1]
    one = constants[1]
    c00, c01, c10, c11 = (one - ty) * (one - tx), (one - ty) * tx, ty * (one - tx), ty * tx
    for r in range(h):
        upper, lower, o = obj[y + r, x : x + w + 1], obj[y + r + 1, x : x + w + 1], out[j, r]
        for c in range(w):
            o[c] = c00 * upper[c] + c01 * upper[c + 1] + c10 * lower[c] + c11 * lower[c + 1]


@parallel
def interpolated(obj: ComplexArray, n: IntArray, t: RealArray, constants: RealArray, out: ComplexArray) -> None:
    """Write out_j: the object at n_j + t_j + r, by bilinear interpolation.

    Args:
        obj: (H, W) complex, the object's slice.
        n: (B, 2) int64, object pixel y x under each window's corner.
        t: (B, 2) real in [0, 1), weights of the next pixel down and right.
        constants: (10,) real, see comparison.py.
        out: (B, h, w) complex, written.
    """
    for i in prange(len(out)):
        _interpolated(np.int64(i), obj, n, t, constants, out)


# --- adjoints ---


@inlined
def _light_of(b: int, r: int, beams: ComplexArray, light: RealArray, reached: RealArray) -> None:
    """Write row r of light (n, h, w) of beam b: sum_m |P_m|^2."""
    k, top = light[b, r], light.dtype.type(0)
    k[:] = 0
    for m in range(beams.shape[1]):
        p = beams[b, m, r]
        for c in range(len(k)):
            k[c] += p[c].real * p[c].real + p[c].imag * p[c].imag
    for c in range(len(k)):
        top = max(top, k[c])
    reached[OBJECT_WEIGHT] = max(reached[OBJECT_WEIGHT], top)


@inlined
def _gather_row(
    j: int, r: int, chi: ComplexArray, f: float, beams: ComplexArray, windows: ComplexArray, reached: RealArray
) -> None:
    """Write row r of view j: sum_m conj(f P_m) chi_m, which may take the place of the only chi."""
    b = ZERO if len(beams) == 1 else j
    M, h, w = U(chi.shape[1]), U(chi.shape[2]), U(chi.shape[3])
    mode, i, e, o = TWO * h * w, TWO * w * (h * M * j + r), TWO * w * (h * M * b + r), TWO * w * (h * j + r)
    by, full, top = broadcast(f), w // LANES * LANES, broadcast(f - f)
    for c in range(ZERO, TWO * full, TWO * LANES):
        (p, q), (s, t) = load_complex(beams, e + c), load_complex(chi, i + c)
        real, imaginary = p * s + q * t, p * t - q * s
        for m in range(U(1), M):
            (p, q), (s, t) = load_complex(beams, e + c + m * mode), load_complex(chi, i + c + m * mode)
            real, imaginary = real + (p * s + q * t), imaginary + (p * t - q * s)
        real, imaginary = by * real, by * imaginary
        top = larger(magnitude(real), larger(magnitude(imaginary), top))
        store_complex(windows, o + c, real, imaginary)
    most = highest(top)
    for c in range(full, w):
        found = np.conj(f * beams[b, 0, r, c]) * chi[j, 0, r, c]
        for m in range(U(1), M):
            found += np.conj(f * beams[b, m, r, c]) * chi[j, m, r, c]
        windows[j, r, c] = found
        most = max(most, abs(found.real), abs(found.imag))
    reached[OBJECT] = max(reached[OBJECT], most)


@inlined
def _to_windows(
    j: int,
    chi: ComplexArray,
    beams: ComplexArray,
    a: RealArray,
    windows: ComplexArray,
    light: RealArray,
    reached: RealArray,
) -> None:
    """Write window j of `to_windows`, and its light."""
    b = ZERO if len(beams) == 1 else j
    for r in range(U(chi.shape[2])):
        _gather_row(j, r, chi, a[j], beams, windows, reached)
        if b < U(len(light)) and (j == ZERO or b == j):
            _light_of(b, r, beams, light, reached)


@parallel
def to_windows(
    chi: ComplexArray, beams: ComplexArray, a: RealArray, windows: ComplexArray, light: RealArray, reached: RealArray
) -> None:
    """Write windows_j = sum_m conj(a_j beams_jm) chi_jm, and light = sum_m |beams_jm|^2.

    Args:
        chi: (B, M, h, w) complex, changes of the exit waves.
        beams: (1 or B, M, h, w) complex, probes.
        a: (B,) real, amplitude of each view's beam.
        windows: (B, h, w) complex, written; may be the memory of chi if there is one mode.
        light: (1 or B, h, w) real, written.
        reached: (B, n) float64, largest terms of each view by kind of sum (physics/rounding.py), updated.
    """
    for i in prange(len(chi)):
        _to_windows(U(i), chi, beams, a, windows, light, reached[i])


@inlined
def _probe_row(
    j: int,
    r: int,
    chi: ComplexArray,
    made_of: ExitInputs,
    sums: ProbeSums,
    halves: tuple[int, int],
    reached: RealArray,
) -> None:
    """Add f conj(S_j O) chi_jm and f^2 |S_j O|^2 of row r of view j, f = a_j, rounded.

    halves: numbers from the first part of the sums, and of the weight, to the second.
    """
    (obj, n, _, a), (shifts, out, weight), (half, light_half) = made_of, sums, halves
    f = a[j]
    M, h, w, W = U(chi.shape[1]), U(chi.shape[2]), U(chi.shape[3]), U(obj.shape[1])
    y, x, full, by, by2 = U(n[j, 0]) + r, U(n[j, 1]), w // LANES * LANES, broadcast(f), broadcast(f * f)
    shift, fine = broadcast(shifts[PROBE, 0]), broadcast(shifts[PROBE, 1])
    light_shift, light_fine = broadcast(shifts[PROBE_WEIGHT, 0]), broadcast(shifts[PROBE_WEIGHT, 1])
    top = light_top = broadcast(f - f)
    fetch(obj, TWO * (W * (y + AHEAD) + x), TWO * w)
    for c in range(ZERO, full, LANES):
        u, v = load_complex(obj, TWO * (W * y + x + c))
        k, power = w * r + c, by2 * (u * u + v * v)
        light_top = larger(power, light_top)
        add_rounded(weight, k, light_half, power, light_shift, light_fine)
        u, v = by * u, by * v
        for m in range(M):
            s, t = load_complex(chi, TWO * (h * w * (j * M + m) + k))
            real, imaginary = u * s + v * t, u * t - v * s
            top = larger(magnitude(real), larger(magnitude(imaginary), top))
            add_complex_rounded(out, TWO * (h * w * m + k), half, real, imaginary, shift, fine)
    most, light_most = highest(top), highest(light_top)
    for c in range(full, w):
        O, k = f * obj[y, x + c], w * r + c
        light = O.real * O.real + O.imag * O.imag
        add_number(weight, k, light_half, light, shifts[PROBE_WEIGHT, 0], shifts[PROBE_WEIGHT, 1])
        light_most = max(light_most, light)
        for m in range(M):
            z, at = np.conj(O) * chi[j, m, r, c], TWO * (h * w * m + k)
            add_number(out, at, half, z.real, shifts[PROBE, 0], shifts[PROBE, 1])
            add_number(out, at + ONE, half, z.imag, shifts[PROBE, 0], shifts[PROBE, 1])
            most = max(most, abs(z.real), abs(z.imag))
    reached[PROBE], reached[PROBE_WEIGHT] = max(reached[PROBE], most), max(reached[PROBE_WEIGHT], light_most)


@inlined
def _to_probe(
    band: int,
    bands: int,
    chi: ComplexArray,
    made_of: ExitInputs,
    sums: ProbeSums,
    gathered: tuple[ComplexArray, RealArray],
    reached: RealArray,
) -> None:
    """Add a band of rows of `to_probe`."""
    (_, _, beams, a), (_, out, weight), (windows, light), h = made_of, sums, gathered, U(chi.shape[2])
    halves = second_part(2 * out.size, len(weight)), second_part(weight.size, len(weight))
    start, stop = h * band // bands, h * (band + U(1)) // bands
    for r in range(start, stop if len(windows) > 0 else start):
        _light_of(ZERO, r, beams, light, reached)
    for j in range(U(len(chi))):
        for r in range(start, stop):
            _probe_row(j, r, chi, made_of, sums, halves, reached)
            if len(windows) > 0:
                _gather_row(j, r, chi, a[j], beams, windows, reached)


@parallel
def to_probe(
    chi: ComplexArray,
    made_of: ExitInputs,
    sums: ProbeSums,
    gathered: tuple[ComplexArray, RealArray],
    reached: RealArray,
) -> None:
    """Add sum_j a_j conj(S_j O) chi_jm to a probe's sums, and sum_j a_j^2 |S_j O|^2 to its weight, rounded.

    Windows of the views and their light are written meanwhile, while chi is in the cache.

    Args:
        chi: (B, M, h, w) complex, changes of the exit waves.
        made_of: object, corners, beams (1, M, h, w) and amplitudes: obj, n, beams, a.
        sums: rounding shifts (n, 2) float64 by kind of sum and part; sums (parts M, h, w) complex128 and weight (parts,
            h, w) float64, changed in place.
        gathered: windows (0 or B, h, w) complex, sum_m conj(a_j beams_m) chi_jm, written, which may be the memory of
            chi if there is one mode; light (1, h, w) real, sum_m |beams_m|^2, written.
        reached: (bands, n) float64, largest terms of each band by kind of sum, updated.
    """
    for i in prange(len(reached)):
        _to_probe(U(i), U(len(reached)), chi, made_of, sums, gathered, reached[i])


@inlined
def _to_probes(band: int, chi: ComplexArray, obj: ComplexArray, n: IntArray, bands: int, out: ComplexArray) -> None:
    """Write a band of rows of `to_probes`."""
    B, M, h, w = chi.shape
    for j in range(B):
        y, x = n[j, 0], n[j, 1]
        for r in range(h * band // bands, h * (band + 1) // bands):
            o = obj[y + r, x : x + w]
            for m in range(M):
                p, q = out[j, m, r], chi[j, m, r]
                for c in range(w):
                    p[c] = np.conj(o[c]) * q[c]


@parallel
def to_probes(chi: ComplexArray, obj: ComplexArray, n: IntArray, bands: int, out: ComplexArray) -> None:
    """Write out_jm = conj(S_j O) chi_jm.

    Args:
        chi: (B, M, h, w) complex, changes of the exit waves.
        obj: (H, W) complex, the object's slice.
        n: (B, 2) int64, object pixel y x under each window's corner.
        bands: number of bands that threads share.
        out: (B, M, h, w) complex, written.
    """
    for i in prange(bands):
        _to_probes(np.int64(i), chi, obj, n, bands, out)


# --- sums of single views ---


@inlined
def _along_positions(
    j: int,
    chi: ComplexArray,
    made_of: ExitInputs,
    by_y: ComplexArray,
    by_x: ComplexArray,
    constants: RealArray,
    out: RealArray,
) -> None:
    """Write row j of `along_positions`."""
    (obj, n, beams, a), (M, h, w) = made_of, chi.shape[1:]
    shared = beams.shape[0] == 1
    zero = constants[0]
    y, x = n[j, 0], n[j, 1]
    s0, s1, s2 = 0.0, 0.0, 0.0
    for m in range(M):
        for r in range(h):
            o, q, p = obj[y + r, x : x + w], chi[j, m, r], beams[0 if shared else j, m, r]
            dy, dx = by_y[j, m, r], by_x[j, m, r]
            t0, t1, t2 = zero, zero, zero
            for c in range(w):
                light = o[c].real * o[c].real + o[c].imag * o[c].imag
                re = o[c].real * q[c].real + o[c].imag * q[c].imag
                im = o[c].real * q[c].imag - o[c].imag * q[c].real
                t0 += dy[c].real * re + dy[c].imag * im
                t1 += dx[c].real * re + dx[c].imag * im
                t2 += light * (p[c].real * p[c].real + p[c].imag * p[c].imag)
            s0 -= t0
            s1 -= t1
            s2 += t2
    out[j, 0], out[j, 1], out[j, 2] = s0, s1, s2 * a[j] * a[j]


@parallel
def along_positions(
    chi: ComplexArray,
    made_of: ExitInputs,
    by_y: ComplexArray,
    by_x: ComplexArray,
    constants: RealArray,
    out: RealArray,
) -> None:
    """Write out_j: Re <d_y, chi>, Re <d_x, chi>, ||psi||^2 with d_a = -O by_a, psi = a O beams.

    Args:
        chi: (B, M, h, w) complex, changes of the exit waves.
        made_of: object, corners, beams and amplitudes: obj, n, beams, a.
        by_y: (B, M, h, w) complex, derivative of the beams along y.
        by_x: (B, M, h, w) complex, derivative of the beams along x.
        constants: (10,) real, see comparison.py.
        out: (B, 3) float64, written.
    """
    for i in prange(len(out)):
        _along_positions(np.int64(i), chi, made_of, by_y, by_x, constants, out)


@inlined
def step_system(
    j: int,
    d_view: int,
    chi: ComplexArray,
    made_of: ExitInputs,
    direction: DirectionInputs,
    constants: RealArray,
    out: RealArray,
) -> None:
    """Write row j of `step_systems`.

    Args:
        j: index of the view.
        d_view: index in `d_beams` of the view's beam.
        chi: (B, M, h, w) complex, changes of the exit waves.
        made_of: object, corners, beams and amplitudes: obj, n, beams, a.
        direction: dO of the object at the same pixels (H, W); of the beams (n, M, h, w); amplitudes of the latter (B,).
        constants: (10,) real, see comparison.py.
        out: (B, 5) float64, written.
    """
    (obj, n, beams, a), (change, d_beams, d_a) = made_of, direction
    M, h, w, W = U(chi.shape[1]), U(chi.shape[2]), U(chi.shape[3]), U(obj.shape[1])
    y, x, full = U(n[j, 0]), U(n[j, 1]), w // LANES * LANES
    f, g, nothing = broadcast(a[j]), broadcast(d_a[j]), broadcast(constants[0])
    beam, d_beam = ZERO if len(beams) == 1 else j * M, d_view * M
    s0, s1, s2, s3, s4 = 0.0, 0.0, 0.0, 0.0, 0.0
    for m in range(M):
        for r in range(h):
            i, b, e = TWO * w * (h * (j * M + m) + r), TWO * w * (h * (beam + m) + r), TWO * w * (h * (d_beam + m) + r)
            o = TWO * (W * (y + r) + x)
            t0, t1, t2, t3, t4 = nothing, nothing, nothing, nothing, nothing
            for c in range(ZERO, TWO * full, TWO * LANES):
                (k, l), (u, v) = load_complex(beams, b + c), load_complex(change, o + c)
                p, p2 = f * (k * u - l * v), f * (k * v + l * u)
                (k, l), (u, v) = load_complex(d_beams, e + c), load_complex(obj, o + c)
                q, q2 = g * (k * u - l * v), g * (k * v + l * u)
                u, v = load_complex(chi, i + c)
                t0, t1, t2 = t0 + (p * p + p2 * p2), t1 + (q * q + q2 * q2), t2 + (p * q + p2 * q2)
                t3, t4 = t3 + (p * u + p2 * v), t4 + (q * u + q2 * v)
            s0 += total(t0)
            s1 += total(t1)
            s2 += total(t2)
            s3 += total(t3)
            s4 += total(t4)
            for c in range(full, w):
                P = a[j] * (beams[beam // M, m, r, c] * change[y + r, x + c])
                Q, z = d_a[j] * (d_beams[d_view, m, r, c] * obj[y + r, x + c]), chi[j, m, r, c]
                s0 += P.real * P.real + P.imag * P.imag
                s1 += Q.real * Q.real + Q.imag * Q.imag
                s2 += P.real * Q.real + P.imag * Q.imag
                s3 += P.real * z.real + P.imag * z.imag
                s4 += Q.real * z.real + Q.imag * z.imag
    out[j, 0], out[j, 1], out[j, 2], out[j, 3], out[j, 4] = s0, s1, s2, s3, s4


@parallel
def step_systems(
    chi: ComplexArray, made_of: ExitInputs, direction: DirectionInputs, constants: RealArray, out: RealArray
) -> None:
    """Write out_j: ||p||^2, ||q||^2, Re <p, q>, Re <p, chi>, Re <q, chi> with p = a beams S dO, q = d_a d_beams S O.

    Args:
        chi: (B, M, h, w) complex, changes of the exit waves.
        made_of: object, corners, beams and amplitudes: obj, n, beams, a.
        direction: dO of the object at the same pixels (H, W); of the beams (1 or B, M, h, w); amplitudes of the latter
            (B,).
        constants: (10,) real, see comparison.py.
        out: (B, 5) float64, written.
    """
    for i in prange(len(out)):
        d_view = ZERO if len(direction[1]) == 1 else U(i)
        step_system(U(i), d_view, chi, made_of, direction, constants, out)


# --- products ---


@plainly_inlined
def _product(a: ComplexArray, s: float, b: ComplexArray, t: float, out: ComplexArray) -> None:
    """Write the products of one plane, s and t being the signs of imaginary parts."""
    for c in range(len(out)):
        x, y, u, v = a[c].real, s * a[c].imag, b[c].real, t * b[c].imag
        out[c] = complex(x * u - y * v, x * v + y * u)


@plainly_parallel
def products(
    a: ComplexArray, of_a: IntArray, s: float, b: ComplexArray, of_b: IntArray, t: float, out: ComplexArray
) -> None:
    """Write out_p = a_i b_k of planes, i = of_a[p], k = of_b[p].

    Args:
        a: (i, n) complex planes.
        of_a: (p,) int64, which plane of a.
        s: -1 to conjugate a, otherwise 1.
        b: (k, n) complex planes.
        of_b: (p,) int64, which plane of b.
        t: -1 to conjugate b, otherwise 1.
        out: (p, n) complex, written.
    """
    for p in prange(len(out)):
        _product(a[of_a[p]], s, b[of_b[p]], t, out[p])


@plainly_inlined
def _turned(a: ComplexArray, rows: ComplexArray, columns: ComplexArray, t: float, out: ComplexArray) -> None:
    """Write one plane of `turned`."""
    w = len(columns)
    for r in range(len(rows)):
        p, q, own, o = rows[r].real, rows[r].imag, a[r * w : r * w + w], out[r * w : r * w + w]
        for c in range(w):
            u = p * columns[c].real - q * columns[c].imag
            v = t * (p * columns[c].imag + q * columns[c].real)
            x, y = own[c].real, own[c].imag
            o[c] = complex(x * u - y * v, x * v + y * u)


@plainly_parallel
def turned(a: ComplexArray, each: int, rows: ComplexArray, columns: ComplexArray, t: float, out: ComplexArray) -> None:
    """Write out_p = a_p rows_j columns_j, j = p // each.

    Args:
        a: (p, h w) complex planes.
        each: number of planes of a view.
        rows: (B, h) complex, factors of the views' rows.
        columns: (B, w) complex, factors of the views' columns.
        t: -1 to conjugate the factors, otherwise 1.
        out: (p, h w) complex, written.
    """
    for p in prange(len(out)):
        j = np.int64(p) // each
        _turned(a[p], rows[j], columns[j], t, out[p])


#: Types of arguments, kernel by kernel: c complex, r real, z complex128, d float64, u uint8, i int64, b bool; behind
#: those of arrays, their dimensions; what stands in brackets is a tuple.
SIGNATURES = {
    products: "c2 i1 r c2 i1 r c2",
    turned: "c2 i c2 c2 r c2",
    exit_waves: "c2 i2 c4 r1 c4",
    interpolated: "c2 i2 r2 r1 c3",
    to_windows: "c4 c4 r1 c3 r3 d2",
    to_probe: "c4 (c2 i2 c4 r1) (d2 z3 d3) (c3 r3) d2",
    to_probes: "c4 c2 i2 i c4",
    along_positions: "c4 (c2 i2 c4 r1) c4 c4 r1 d2",
    step_systems: "c4 (c2 i2 c4 r1) (c2 c4 r1) r1 d2",
}
