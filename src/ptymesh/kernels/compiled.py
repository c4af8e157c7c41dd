"""Loops over pixels, compiled by numba for this CPU. `cpu.py` calls them around torch's FFT.

B, M, h, w   views of the chunk, modes, window pixels
obj          (H, W) one slice of the object;  n  (B, 2) int64, its pixel under each window's corner, y x
beams        (1 or B, M, h, w) probes, one for all views or one each;  a  (B,) real, amplitude of each view's beam
chi          (B, M, h, w) waves at the exit
real, complex   of one precision

Views are written by one thread each; sums over views are made by bands of rows, every pixel adding view after view.
So nothing that is computed depends on the number of threads. Bands and views are independent: there are no races.

All functions stand in this one file, because numba looks at a function's own file alone to see whether its cache is
of date.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, prange

#: Sums may be reordered and multiplications joined with additions (that is what makes loops into vector code), but
#: NaN and infinity keep their meaning: counts may be NaN.
FAST = {"reassoc", "contract", "nsz", "arcp"}
#: Divisions are numpy's: by zero they give infinity, not an exception.
OPTIONS: dict[str, Any] = {"fastmath": FAST, "error_model": "numpy", "nogil": True}
#: Fidelities as numbers.
KINDS = {"amplitude": 0, "poisson": 1, "intensity": 2}
#: Patterns of these dtypes are read as they are, others as floats. One function reads them all: `detector` is large,
#: and to compile it for each dtype would take a minute.
NATIVE = ("uint8", "uint16", "uint32", "int32", "float32", "float64")
#: What `detector` does with the waves.
WATCH, REVISE, DESCEND = 0, 1, 2


def parallel(function: Any) -> Any:
    """Compiled when first called or told to; kept on disk where numba finds a place to write."""
    try:
        return njit(parallel=True, cache=True, **OPTIONS)(function)
    except RuntimeError:  # numba's word for: neither beside this file nor in the user's cache folder
        return njit(parallel=True, **OPTIONS)(function)


#: Called by the others alone, and kept with them.
inlined = njit(**OPTIONS)
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
def _ramped(j: int, spectrum: Any, fractions: Any, a: Any, axis: int, out: Any) -> None:
    M, h, w = out.shape[1:]
    ry, rx = np.empty(h, np.complex128), np.empty(w, np.complex128)
    _ramp(fractions[j, 0], ry)
    _ramp(fractions[j, 1], rx)
    if axis == 0:
        for r in range(h):
            ry[r] *= 2j * math.pi * _frequency(r, h)
    if axis == 1:
        for c in range(w):
            rx[c] *= 2j * math.pi * _frequency(c, w)
    row = np.empty(w, out.dtype)
    for r in range(h):
        factor = a[j] * ry[r]
        for c in range(w):
            row[c] = factor * rx[c]
        for m in range(M):
            s, o = spectrum[m, r], out[j, m, r]
            for c in range(w):
                o[c] = row[c] * s[c]


@parallel
def ramped(spectrum: Any, fractions: Any, a: Any, axis: int, out: Any) -> None:
    """out_jm = a_j exp(-2 pi i k.f_j) spectrum_m; times 2 pi i k_axis where axis is 0 or 1."""
    for i in prange(len(out)):
        _ramped(np.int64(i), spectrum, fractions, a, axis, out)


@inlined
def _unramped(band: int, waves: Any, fractions: Any, bands: int, out: Any) -> None:
    B, M, h, w = waves.shape
    ry, rx, row = np.empty(h, np.complex128), np.empty(w, np.complex128), np.empty(w, out.dtype)
    for j in range(B):
        _ramp(-fractions[j, 0], ry)
        _ramp(-fractions[j, 1], rx)
        for r in range(h * band // bands, h * (band + 1) // bands):
            for c in range(w):
                row[c] = ry[r] * rx[c]
            for m in range(M):
                s, o = waves[j, m, r], out[m, r]
                for c in range(w):
                    o[c] += row[c] * s[c]


@parallel
def unramped(waves: Any, fractions: Any, bands: int, out: Any) -> None:
    """out_m += sum_j exp(+2 pi i k.f_j) waves_jm."""
    for i in prange(bands):
        _unramped(np.int64(i), waves, fractions, bands, out)


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


# --- the detector ---


@inlined
def _load(row: Any, code: int, out: Any) -> None:
    """Bytes of a row of counts as real numbers; code: place of the dtype in NATIVE."""
    if code == 0:
        _cast(row, out)
    elif code == 1:
        _cast(row.view(np.uint16), out)
    elif code == 2:
        _cast(row.view(np.uint32), out)
    elif code == 3:
        _cast(row.view(np.int32), out)
    elif code == 4:
        _cast(row.view(np.float32), out)
    else:
        _cast(row.view(np.float64), out)


@inlined
def _cast(row: Any, out: Any) -> None:
    for c in range(len(out)):
        out[c] = row[c]


@inlined
def _detector(
    j: int,
    waves: Any,
    counts: Any,
    code: int,
    mask: Any,
    background: Any,
    constants: Any,
    has_background: bool,
    kind: int,
    task: int,
    terms: Any,
) -> None:
    M, h, w = waves.shape[1:]
    zero, one, dark, dark_root = constants[0], constants[1], constants[2], constants[3]
    newton = task == 1 and kind != 0
    S, Y, change, G = (
        np.empty(w, background.dtype),
        np.empty(w, background.dtype),
        np.empty(w, background.dtype),
        np.empty(w, np.bool_),
    )
    planes = np.empty((3, h if newton else 1, w), background.dtype)
    for t in range(6):
        terms[j, t] = 0.0
    for r in range(h):
        g, b = mask[r], background[r]
        d = waves[j, 0, r]
        for c in range(w):
            S[c] = d[c].real * d[c].real + d[c].imag * d[c].imag
        for m in range(1, M):
            d = waves[j, m, r]
            for c in range(w):
                S[c] += d[c].real * d[c].real + d[c].imag * d[c].imag
        _load(counts[j, r], code, Y)
        for c in range(w):
            good = g[c] & (Y[c] >= zero)
            Y[c] = Y[c] if good else zero
            G[c] = good
        misfit, total, absolute, roots, squares = zero, zero, zero, zero, zero
        for c in range(w):
            I = S[c] + b[c] if has_background else S[c]
            root_y, root_I = np.sqrt(Y[c]), np.sqrt(I)
            difference = root_I - root_y if G[c] else zero
            misfit += difference * difference
            absolute += abs(difference)
            total += Y[c]
            roots += root_y
            squares += Y[c] * Y[c]
            if kind == 0:  # 1 - sqrt(y/I), or without background the same as the projection
                change[c] = root_y / max(root_I, dark_root) - one if G[c] else zero
        terms[j, 1] += misfit
        terms[j, 2] += total
        terms[j, 3] += absolute
        terms[j, 4] += roots
        terms[j, 5] += squares
        if kind == 0:
            terms[j, 0] += misfit
            if has_background and task == 1:
                for c in range(w):
                    signal = max(Y[c] - b[c], zero)
                    change[c] = np.sqrt(signal / max(S[c], dark)) - one if G[c] else zero
        else:
            terms[j, 0] += _loss_row(kind, S, Y, G, b, dark, zero)
            _slope_row(kind, S, Y, G, b, constants, newton, change)
        if newton:
            for c in range(w):
                planes[0, r, c], planes[1, r, c], planes[2, r, c] = S[c], Y[c], -change[c]
        elif task > 0:
            for m in range(M):
                d = waves[j, m, r]
                for c in range(w):
                    d[c] = d[c] * change[c]
    if newton:
        alpha = _newton(kind, planes, background, constants)
        for m in range(M):
            for r in range(h):
                d, xi = waves[j, m, r], planes[2, r]
                for c in range(w):
                    d[c] = d[c] * (-alpha * xi[c])


@parallel
def detector(
    waves: Any,
    counts: Any,
    code: int,
    mask: Any,
    background: Any,
    constants: Any,
    has_background: bool,
    kind: int,
    task: int,
    terms: Any,
) -> None:
    """One pass over Psi and counts: power of all modes, sums for the history, and the change of Psi, in place.

    counts: (B, h, w times the bytes of one) uint8, what they are: code.
    task: 0 watches, 1 makes Psi' - Psi, 2 makes -dL/dI Psi. constants: real 0, 1, DARK, sqrt(DARK), BRIGHTEST_RATIO
    and the number of Newton steps. terms: (B, 6), see Passes.revise.
    """
    for i in prange(len(waves)):
        _detector(np.int64(i), waves, counts, code, mask, background, constants, has_background, kind, task, terms)


@inlined
def _loss_row(kind: int, S: Any, Y: Any, G: Any, b: Any, dark: float, zero: float) -> float:
    total = zero
    if kind == 1:
        for c in range(len(S)):
            I = S[c] + b[c]
            total += I - Y[c] * np.log(max(I, dark)) if G[c] else zero
    else:
        for c in range(len(S)):
            difference = S[c] + b[c] - Y[c] if G[c] else zero
            total += difference * difference
    return total


@inlined
def _slope_row(kind: int, S: Any, Y: Any, G: Any, b: Any, constants: Any, capped: bool, out: Any) -> None:
    """-dL/dI, with y/I capped where it is to be a step's direction."""
    zero, one, dark, brightest = constants[0], constants[1], constants[2], constants[4]
    if kind == 1:
        for c in range(len(S)):
            ratio = Y[c] / max(S[c] + b[c], dark)
            ratio = min(ratio, brightest) if capped else ratio
            out[c] = ratio - one if G[c] else zero
    else:
        for c in range(len(S)):
            out[c] = (Y[c] - S[c] - b[c]) * (one + one) if G[c] else zero


@inlined
def _newton(kind: int, planes: Any, b: Any, constants: Any) -> float:
    """alpha of Psi' = (1 - alpha xi) Psi, from planes S, y, xi (3, h, w); see fidelity._poisson_step."""
    zero, one, dark, steps = constants[0], constants[1], constants[2], int(constants[5])
    two, alpha = one + one, np.empty(1, b.dtype)  # a cell, so that alpha keeps its precision
    if kind == 2:
        first, second = 0.0, 0.0
        for r in range(planes.shape[1]):
            S, xi = planes[0, r], planes[2, r]
            row1, row2 = zero, zero
            for c in range(len(S)):
                row1 += two * S[c] * xi[c] * xi[c]
                row2 += two * two * two * S[c] * S[c] * xi[c] * xi[c] + two * S[c] * xi[c] * xi[c] * xi[c]
            first += row1
            second += row2
        alpha[0] = first / max(second, float(dark)) if second > 0 else 0.0
        return alpha[0]
    alpha[0] = one / two
    for _ in range(steps):
        first, second, a = 0.0, 0.0, alpha[0]
        for r in range(planes.shape[1]):
            S, Y, xi, dark_counts = planes[0, r], planes[1, r], planes[2, r], b[r]
            row1, row2 = zero, zero
            for c in range(len(S)):
                scale = one - a * xi[c]
                I = max(S[c] * scale * scale + dark_counts[c], dark)
                dI, d2I = -two * S[c] * xi[c] * scale, two * S[c] * xi[c] * xi[c]
                misfit = one - Y[c] / I
                row1 += misfit * dI
                row2 += Y[c] * (dI / I) * (dI / I) + misfit * d2I
            first += row1
            second += row2
        alpha[0] = min(max(a - first / max(second, float(dark)), 0.0), 1.0)
    return alpha[0]


# --- adjoints ---


@inlined
def _reach(n: Any, h: int) -> Any:
    """First row that windows of h + 1 rows at n (B, 2) reach, and the one after the last."""
    top, bottom = n[0, 0], n[0, 0]
    for j in range(1, len(n)):
        top, bottom = min(top, n[j, 0]), max(bottom, n[j, 0])
    return top, bottom + h + 1


@inlined
def _to_object(
    band: int,
    chi: Any,
    n: Any,
    t: Any,
    beams: Any,
    a: Any,
    top: int,
    bottom: int,
    bands: int,
    constants: Any,
    out: Any,
    weight: Any,
) -> None:
    B, M, h, w = chi.shape
    shared = beams.shape[0] == 1
    start, stop = top + (bottom - top) * band // bands, top + (bottom - top) * (band + 1) // bands
    wave, light = np.empty(w, out.dtype), np.empty(w, weight.dtype)
    for j in range(B):
        y, x, f, ty, tx = n[j, 0], n[j, 1], a[j], t[j, 0], t[j, 1]
        bilinear = (ty != 0) | (tx != 0)
        f2, one = f * f, constants[1]
        for r in range(max(0, start - y - 1), min(h, stop - y)):
            for m in range(M):
                p, q = beams[0 if shared else j, m, r], chi[j, m, r]
                if m == 0:
                    for c in range(w):
                        wave[c] = f * (np.conj(p[c]) * q[c])
                        light[c] = f2 * (p[c].real * p[c].real + p[c].imag * p[c].imag)
                else:
                    for c in range(w):
                        wave[c] += f * (np.conj(p[c]) * q[c])
                        light[c] += f2 * (p[c].real * p[c].real + p[c].imag * p[c].imag)
            for down in range(2 if bilinear else 1):
                row = y + r + down
                if row < start or row >= stop:
                    continue
                o, k = out[row, x : x + w], weight[row, x : x + w]
                left = (ty if down else one - ty) * (one - tx)
                for c in range(w):
                    o[c] += left * wave[c]
                    k[c] += left * light[c]
                if bilinear:
                    o, k = out[row, x + 1 : x + 1 + w], weight[row, x + 1 : x + 1 + w]
                    right = (ty if down else one - ty) * tx
                    for c in range(w):
                        o[c] += right * wave[c]
                        k[c] += right * light[c]


@parallel
def to_object(
    chi: Any,
    n: Any,
    t: Any,
    beams: Any,
    a: Any,
    bands: int,
    constants: Any,
    out: Any,
    weight: Any,
) -> None:
    """out += sum_j S_j^H sum_m conj(a_j beams_jm) chi_jm and weight += sum_j S_j^H sum_m |a_j beams_jm|^2.

    t (B, 2): weights of the next pixel, down and right (bilinear), or zero.
    """
    top, bottom = _reach(n, chi.shape[2])
    for i in prange(bands):
        _to_object(np.int64(i), chi, n, t, beams, a, top, bottom, bands, constants, out, weight)


@inlined
def _add_light(band: int, light: Any, n: Any, a: Any, top: int, bottom: int, bands: int, out: Any) -> None:
    h, w = light.shape
    start, stop = top + (bottom - top) * band // bands, top + (bottom - top) * (band + 1) // bands
    for j in range(len(n)):
        y, x, f2 = n[j, 0], n[j, 1], a[j] * a[j]
        for r in range(max(0, start - y), min(h, stop - y)):
            k, source = out[y + r, x : x + w], light[r]
            for c in range(w):
                k[c] += f2 * source[c]


@parallel
def add_light(light: Any, n: Any, a: Any, bands: int, out: Any) -> None:
    """out += sum_j a_j^2 S_j^H light, light (h, w) real."""
    top, bottom = _reach(n, light.shape[0])
    for i in prange(bands):
        _add_light(np.int64(i), light, n, a, top, bottom, bands, out)


@inlined
def _to_probe(band: int, chi: Any, obj: Any, n: Any, a: Any, bands: int, out: Any, weight: Any) -> None:
    B, M, h, w = chi.shape
    for j in range(B):
        y, x, f = n[j, 0], n[j, 1], a[j]
        f2 = f * f
        for r in range(h * band // bands, h * (band + 1) // bands):
            o, k = obj[y + r, x : x + w], weight[r]
            for c in range(w):
                k[c] += f2 * (o[c].real * o[c].real + o[c].imag * o[c].imag)
            for m in range(M):
                p, q = out[m, r], chi[j, m, r]
                for c in range(w):
                    p[c] += f * (np.conj(o[c]) * q[c])


@parallel
def to_probe(chi: Any, obj: Any, n: Any, a: Any, bands: int, out: Any, weight: Any) -> None:
    """out_m += sum_j a_j conj(S_j O) chi_jm and weight += sum_j a_j^2 |S_j O|^2."""
    for i in prange(bands):
        _to_probe(np.int64(i), chi, obj, n, a, bands, out, weight)


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
def _step_systems(
    j: int,
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
    M, h, w = chi.shape[1:]
    shared, d_shared = beams.shape[0] == 1, d_beams.shape[0] == 1
    zero = constants[0]
    y, x, f, g = n[j, 0], n[j, 1], a[j], d_a[j]
    s0, s1, s2, s3, s4 = 0.0, 0.0, 0.0, 0.0, 0.0
    for m in range(M):
        for r in range(h):
            o, v, z = obj[y + r, x : x + w], change[y + r, x : x + w], chi[j, m, r]
            b, e = beams[0 if shared else j, m, r], d_beams[0 if d_shared else j, m, r]
            t0, t1, t2, t3, t4 = zero, zero, zero, zero, zero
            for c in range(w):
                p, q = f * (b[c] * v[c]), g * (e[c] * o[c])
                t0 += p.real * p.real + p.imag * p.imag
                t1 += q.real * q.real + q.imag * q.imag
                t2 += p.real * q.real + p.imag * q.imag
                t3 += p.real * z[c].real + p.imag * z[c].imag
                t4 += q.real * z[c].real + q.imag * z[c].imag
            s0 += t0
            s1 += t1
            s2 += t2
            s3 += t3
            s4 += t4
    out[j, 0], out[j, 1], out[j, 2], out[j, 3], out[j, 4] = s0, s1, s2, s3, s4


@parallel
def step_systems(
    chi: Any, obj: Any, change: Any, n: Any, beams: Any, a: Any, d_beams: Any, d_a: Any, constants: Any, out: Any
) -> None:
    """out_j: ||p||^2, ||q||^2, Re <p, q>, Re <p, chi>, Re <q, chi>, p = a beams S dO, q = d_a d_beams S O.

    change (H, W) holds dO at the same pixels as obj holds O.
    """
    for i in prange(len(out)):
        _step_systems(np.int64(i), chi, obj, change, n, beams, a, d_beams, d_a, constants, out)


# --- types of arguments: c complex, r real, d float64, u uint8, i int64, b bool; behind arrays their dimensions ---

SIGNATURES = {
    exit_waves: "c2 i2 c4 r1 c4",
    ramped: "c3 r2 r1 i c4",
    unramped: "c4 r2 i c3",
    interpolated: "c2 i2 r2 r1 c3",
    detector: "c4 u3 i b2 r2 r1 b i i d2",
    to_object: "c4 i2 r2 c4 r1 i r1 c2 r2",
    add_light: "r2 i2 r1 i r2",
    to_probe: "c4 c2 i2 r1 i c3 r2",
    to_probes: "c4 c2 i2 r1 i c4 r2",
    along_positions: "c4 c2 i2 c4 r1 c4 c4 r1 d2",
    step_systems: "c4 c2 c2 i2 c4 r1 c4 r1 r1 d2",
}
