"""Loops over pixels, compiled by numba for this CPU. `cpu.py` calls them.

B, M, h, w   views of the chunk, modes, window pixels
obj          (H, W) one slice of the object;  n  (B, 2) int64, its pixel under each window's corner, y x
beams        (1 or B, M, h, w) probes, one for all views or one each;  a  (B,) real, amplitude of each view's beam
chi          (B, M, h, w) waves at the exit
real, complex   of one precision

Views are written by one thread each; sums over views are made by bands of rows, every pixel adding view after view.
So nothing that is computed depends on the number of threads. Bands and views are independent: there are no races.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from ptymesh.kernels.compiled_blocks import AHEAD
from ptymesh.kernels.jit import inlined, parallel
from ptymesh.kernels.vectors import (
    LANES,
    add_complex,
    fetch,
    load,
    load_complex,
    spread,
    store,
    store_complex,
    total,
)

U: Any = np.uint64
ZERO, TWO = U(0), U(2)
# What one thread does stands in a function of its own: numba takes several times longer over the body of a parallel
# loop. The index of such a loop is unsigned, and with a signed one it would make a float.


# --- exit waves and probes ---


@inlined
def _exit_waves(j: int, obj: Any, n: Any, beams: Any, a: Any, out: Any) -> None:
    M, h, w = out.shape[1:]
    shared = beams.shape[0] == 1
    y, x, f = n[j, 0], n[j, 1], a[j]
    for m in range(M):
        for r in range(h):
            o, p, e = obj[y + r, x : x + w], beams[0 if shared else j, m, r], out[j, m, r]
            for c in range(w):
                e[c] = (f * p[c]) * o[c]


@parallel
def exit_waves(obj: Any, n: Any, beams: Any, a: Any, out: Any) -> None:
    """out_jm = a_j beams_jm S_j O."""
    for i in prange(len(out)):
        _exit_waves(np.int64(i), obj, n, beams, a, out)


@inlined
def _interpolated(j: int, obj: Any, n: Any, t: Any, constants: Any, out: Any) -> None:
    h, w = out.shape[1:]
    y, x, ty, tx = n[j, 0], n[j, 1], t[j, 0], t[j, 1]
    one = constants[1]
    c00, c01, c10, c11 = (one - ty) * (one - tx), (one - ty) * tx, ty * (one - tx), ty * tx
    for r in range(h):
        upper, lower, o = obj[y + r, x : x + w + 1], obj[y + r + 1, x : x + w + 1], out[j, r]
        for c in range(w):
            o[c] = c00 * upper[c] + c01 * upper[c + 1] + c10 * lower[c] + c11 * lower[c + 1]


@parallel
def interpolated(obj: Any, n: Any, t: Any, constants: Any, out: Any) -> None:
    """out_j = object at n_j + t_j + r, t (B, 2) in [0, 1)."""
    for i in prange(len(out)):
        _interpolated(np.int64(i), obj, n, t, constants, out)


# --- adjoints ---


@inlined
def _add_light_of(r: int, beams: Any, light: Any) -> None:
    """Row r of light (1, h, w): sum_m |P_m|^2."""
    light[0, r] = 0
    for m in range(beams.shape[1]):
        p, k = beams[0, m, r], light[0, r]
        for c in range(len(k)):
            k[c] += p[c].real * p[c].real + p[c].imag * p[c].imag


@inlined
def _meet(j: int, r: int, chi: Any, f: float, beams: Any, windows: Any) -> None:
    """Row r of view j: sum_m conj(f P_m) chi_m, which may take the place of the only chi."""
    M, h, w = U(chi.shape[1]), U(chi.shape[2]), U(chi.shape[3])
    mode, i, e, o = TWO * h * w, TWO * w * (h * M * j + r), TWO * w * r, TWO * w * (h * j + r)
    by, full = spread(f), w // LANES * LANES
    for c in range(ZERO, TWO * full, TWO * LANES):
        (p, q), (s, t) = load_complex(beams, e + c), load_complex(chi, i + c)
        real, imaginary = p * s + q * t, p * t - q * s
        for m in range(U(1), M):
            (p, q), (s, t) = load_complex(beams, e + c + m * mode), load_complex(chi, i + c + m * mode)
            real, imaginary = real + (p * s + q * t), imaginary + (p * t - q * s)
        store_complex(windows, o + c, by * real, by * imaginary)
    for c in range(full, w):
        found = np.conj(f * beams[0, 0, r, c]) * chi[j, 0, r, c]
        for m in range(U(1), M):
            found += np.conj(f * beams[0, m, r, c]) * chi[j, m, r, c]
        windows[j, r, c] = found


@inlined
def _to_probe(
    band: int,
    chi: Any,
    obj: Any,
    n: Any,
    a: Any,
    beams: Any,
    bands: int,
    blank: bool,
    out: Any,
    weight: Any,
    windows: Any,
    light: Any,
) -> None:
    M, h, w, W = U(chi.shape[1]), U(chi.shape[2]), U(chi.shape[3]), U(obj.shape[1])
    full, start, stop = w // LANES * LANES, h * band // bands, h * (band + U(1)) // bands
    for r in range(start, stop):
        if blank:
            for m in range(M):
                out[m, r] = 0
            weight[r] = 0
        if len(windows) > 0:
            _add_light_of(r, beams, light)
    for j in range(U(len(chi))):
        f = a[j]
        by, by2 = spread(f), spread(f * f)
        for r in range(start, stop):
            y, x = U(n[j, 0]) + r, U(n[j, 1])
            fetch(obj, TWO * (W * (y + AHEAD) + x), TWO * w)
            for c in range(ZERO, full, LANES):
                u, v = load_complex(obj, TWO * (W * y + x + c))
                k = w * r + c
                store(weight, k, load(weight, k) + by2 * (u * u + v * v))
                u, v = by * u, by * v
                for m in range(M):
                    s, t = load_complex(chi, TWO * (h * w * (j * M + m) + k))
                    add_complex(out, TWO * (h * w * m + k), u * s + v * t, u * t - v * s)
            for c in range(full, w):
                O = f * obj[y, x + c]
                weight[r, c] += O.real * O.real + O.imag * O.imag
                for m in range(M):
                    out[m, r, c] += np.conj(O) * chi[j, m, r, c]
            if len(windows) > 0:
                _meet(j, r, chi, f, beams, windows)


@parallel
def to_probe(
    chi: Any,
    obj: Any,
    n: Any,
    a: Any,
    beams: Any,
    bands: int,
    blank: bool,
    out: Any,
    weight: Any,
    windows: Any,
    light: Any,
) -> None:
    """out_m += sum_j a_j conj(S_j O) chi_jm and weight += sum_j a_j^2 |S_j O|^2; both start at 0 if they are blank.

    windows (0 or B, h, w): of views, sum_m conj(a_j beams_m) chi_jm, and light (1, h, w), sum_m |beams_m|^2, while chi
    is in the cache; beams (1, M, h, w). Windows may be the memory of chi, if there is one mode.
    """
    for i in prange(bands):
        _to_probe(U(i), chi, obj, n, a, beams, U(bands), blank, out, weight, windows, light)


@inlined
def _to_probes(band: int, chi: Any, obj: Any, n: Any, a: Any, bands: int, out: Any, weight: Any) -> None:
    B, M, h, w = chi.shape
    for j in range(B):
        y, x, f = n[j, 0], n[j, 1], a[j]
        f2 = f * f
        for r in range(h * band // bands, h * (band + 1) // bands):
            o, k = obj[y + r, x : x + w], weight[r]
            for c in range(w):
                k[c] += f2 * (o[c].real * o[c].real + o[c].imag * o[c].imag)
            for m in range(M):
                p, q = out[j, m, r], chi[j, m, r]
                for c in range(w):
                    p[c] = f * (np.conj(o[c]) * q[c])


@parallel
def to_probes(chi: Any, obj: Any, n: Any, a: Any, bands: int, out: Any, weight: Any) -> None:
    """out_jm = a_j conj(S_j O) chi_jm and weight += sum_j a_j^2 |S_j O|^2."""
    for i in prange(bands):
        _to_probes(np.int64(i), chi, obj, n, a, bands, out, weight)


# --- sums of single views ---


@inlined
def _along_positions(
    j: int, chi: Any, obj: Any, n: Any, beams: Any, a: Any, by_y: Any, by_x: Any, constants: Any, out: Any
) -> None:
    M, h, w = chi.shape[1:]
    shared = beams.shape[0] == 1
    zero = constants[0]
    y, x = n[j, 0], n[j, 1]
    s0, s1, s2, s3, s4 = 0.0, 0.0, 0.0, 0.0, 0.0
    for m in range(M):
        for r in range(h):
            o, q, p = obj[y + r, x : x + w], chi[j, m, r], beams[0 if shared else j, m, r]
            dy, dx = by_y[j, m, r], by_x[j, m, r]
            t0, t1, t2, t3, t4 = zero, zero, zero, zero, zero
            for c in range(w):
                light = o[c].real * o[c].real + o[c].imag * o[c].imag
                re = o[c].real * q[c].real + o[c].imag * q[c].imag
                im = o[c].real * q[c].imag - o[c].imag * q[c].real
                t0 += dy[c].real * re + dy[c].imag * im
                t1 += light * (dy[c].real * dy[c].real + dy[c].imag * dy[c].imag)
                t2 += dx[c].real * re + dx[c].imag * im
                t3 += light * (dx[c].real * dx[c].real + dx[c].imag * dx[c].imag)
                t4 += light * (p[c].real * p[c].real + p[c].imag * p[c].imag)
            s0 -= t0
            s1 += t1
            s2 -= t2
            s3 += t3
            s4 += t4
    out[j, 0], out[j, 1], out[j, 2], out[j, 3], out[j, 4] = s0, s1, s2, s3, s4 * a[j] * a[j]


@parallel
def along_positions(
    chi: Any, obj: Any, n: Any, beams: Any, a: Any, by_y: Any, by_x: Any, constants: Any, out: Any
) -> None:
    """out_j: Re <d_y, chi>, ||d_y||^2, Re <d_x, chi>, ||d_x||^2, ||psi||^2 with d_a = -O by_a, psi = a O beams."""
    for i in prange(len(out)):
        _along_positions(np.int64(i), chi, obj, n, beams, a, by_y, by_x, constants, out)


@inlined
def step_system(
    j: int,
    d_view: int,
    chi: Any,
    obj: Any,
    change: Any,
    n: Any,
    beams: Any,
    a: Any,
    d_beams: Any,
    d_a: Any,
    constants: Any,
    out: Any,
) -> None:
    """Row j of `step_systems`; d_view: which of d_beams is the view's."""
    M, h, w, W = U(chi.shape[1]), U(chi.shape[2]), U(chi.shape[3]), U(obj.shape[1])
    y, x, full = U(n[j, 0]), U(n[j, 1]), w // LANES * LANES
    f, g, nothing = spread(a[j]), spread(d_a[j]), spread(constants[0])
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
    chi: Any, obj: Any, change: Any, n: Any, beams: Any, a: Any, d_beams: Any, d_a: Any, constants: Any, out: Any
) -> None:
    """out_j: ||p||^2, ||q||^2, Re <p, q>, Re <p, chi>, Re <q, chi>, p = a beams S dO, q = d_a d_beams S O.

    change (H, W) holds dO at the same pixels as obj holds O.
    """
    for i in prange(len(out)):
        d_view = ZERO if len(d_beams) == 1 else U(i)
        step_system(U(i), d_view, chi, obj, change, n, beams, a, d_beams, d_a, constants, out)


# --- types of arguments: c complex, r real, d float64, u uint8, i int64, b bool; behind arrays their dimensions ---

SIGNATURES = {
    exit_waves: "c2 i2 c4 r1 c4",
    interpolated: "c2 i2 r2 r1 c3",
    to_probe: "c4 c2 i2 r1 c4 i b c3 r2 c3 r3",
    to_probes: "c4 c2 i2 r1 i c4 r2",
    along_positions: "c4 c2 i2 c4 r1 c4 c4 r1 d2",
    step_systems: "c4 c2 c2 i2 c4 r1 c4 r1 r1 d2",
}
