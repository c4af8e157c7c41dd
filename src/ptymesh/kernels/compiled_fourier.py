"""Waves to the detector and back, and probes at fractions of pixels, compiled by numba for this CPU.

B, M, h, w   views of the chunk, modes, window pixels
waves        (B, M, h, w) complex; with `stages`, their rows are in Fourier space already and their columns not yet
strip        V neighbouring columns of one view, all its rows: real and imaginary parts apart, pixel after pixel, so
             that the loops over a strip are vector code and what they touch stays in the cache
stages       radices whose product is h, or none where waves have been transformed by other means
turns        (2, h) cos and -sin of 2 pi k / h

The transform of columns is Stockham's: every stage reads one strip and writes another, and nothing has to be sorted
(Van Loan, Computational Frameworks for the Fast Fourier Transform, 1992, sec. 1.7). The inverse is the same with real
and imaginary parts exchanged. Every view is done by one thread or, in sums over views, every strip.
All that transforms columns stands in this one file, for the reason given in compiled.py.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import prange

from ptymesh.kernels.compiled import inlined, parallel

U = np.uint64
ZERO = U(0)
#: Columns in a strip: a strip of 128 rows and its transform are 64 KB in single precision.
STRIP = U(32)
#: The same where strips of all views, not views, are shared out among threads.
NARROW = 16
#: Pixels that are summed in the precision of the waves before they join a sum in double precision.
PART = U(1024)
#: Stages that `_transform` knows, in this order: that of radix 2 is the last.
RADICES = (3, 5, 4, 2)
#: Fidelities as numbers.
KINDS = {"amplitude": 0, "poisson": 1, "intensity": 2}
#: Patterns of these dtypes are read as they are, others as floats. One function reads them all: `detector` is large,
#: and to compile it for each dtype would take a minute.
NATIVE = ("uint8", "uint16", "uint32", "int32", "float32", "float64")
#: What `detector` does with the waves.
WATCH, REVISE, DESCEND = 0, 1, 2


def in_strips(plane: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A plane (h, w) strip after strip, (h w,)."""
    width = int(STRIP)
    return np.concatenate([plane[:, x : x + width].ravel() for x in range(0, plane.shape[1], width)])


def stages(height: int) -> list[int]:
    """Radices of a transform of this length; none where it has other prime factors than 2, 3 and 5."""
    found = []
    for radix in RADICES:
        while height % radix == 0 and height > 1:
            found.append(radix)
            height //= radix
    return found if height == 1 else []


# --- the transform of a strip ---


@inlined
def _stage4(x: Any, u: Any, y: Any, v: Any, n: int, s: int, turns: Any, step: int) -> None:
    """x + i u to y + i v: n / 4 butterflies, each over a run of s numbers; step: of the twiddles."""
    m = n // 4
    for p in range(m):
        c1, d1 = turns[0, p * step], turns[1, p * step]
        c2, d2 = turns[0, 2 * p * step], turns[1, 2 * p * step]
        c3, d3 = turns[0, 3 * p * step], turns[1, 3 * p * step]
        i0, i1, i2, i3, o = s * p, s * (p + m), s * (p + 2 * m), s * (p + 3 * m), 4 * s * p
        x0, x1, x2, x3 = x[i0 : i0 + s], x[i1 : i1 + s], x[i2 : i2 + s], x[i3 : i3 + s]
        u0, u1, u2, u3 = u[i0 : i0 + s], u[i1 : i1 + s], u[i2 : i2 + s], u[i3 : i3 + s]
        y0, y1, y2, y3 = y[o : o + s], y[o + s : o + 2 * s], y[o + 2 * s : o + 3 * s], y[o + 3 * s : o + 4 * s]
        v0, v1, v2, v3 = v[o : o + s], v[o + s : o + 2 * s], v[o + 2 * s : o + 3 * s], v[o + 3 * s : o + 4 * s]
        for q in range(s):
            a, b = x0[q] + x2[q], u0[q] + u2[q]
            c, d = x0[q] - x2[q], u0[q] - u2[q]
            e, f = x1[q] + x3[q], u1[q] + u3[q]
            g, k = u1[q] - u3[q], x3[q] - x1[q]
            y0[q], v0[q] = a + e, b + f
            a, b = a - e, b - f
            y2[q], v2[q] = c2 * a - d2 * b, c2 * b + d2 * a
            a, b = c + g, d + k
            y1[q], v1[q] = c1 * a - d1 * b, c1 * b + d1 * a
            a, b = c - g, d - k
            y3[q], v3[q] = c3 * a - d3 * b, c3 * b + d3 * a


@inlined
def _stage2(x: Any, u: Any, y: Any, v: Any, s: int) -> None:
    """The last stage of an even length: sums and differences."""
    x0, x1, u0, u1 = x[:s], x[s : 2 * s], u[:s], u[s : 2 * s]
    y0, y1, v0, v1 = y[:s], y[s : 2 * s], v[:s], v[s : 2 * s]
    for q in range(s):
        a, b, c, d = x0[q], u0[q], x1[q], u1[q]
        y0[q], v0[q], y1[q], v1[q] = a + c, b + d, a - c, b - d


@inlined
def _stage(radix: int, x: Any, u: Any, y: Any, v: Any, n: int, s: int, turns: Any, step: int) -> None:
    """The same with any radix, term by term."""
    h, m = turns.shape[1], n // radix
    for p in range(m):
        for k in range(radix):
            o = s * (radix * p + k)
            yk, vk = y[o : o + s], v[o : o + s]
            for q in range(s):
                yk[q], vk[q] = 0, 0
            for j in range(radix):
                # exp(-2 pi i (j / radix + p / n) k): the butterfly's, and the twiddle of what it gives
                place = (j * k * (h // radix) + p * k * step) % h
                c, d, i = turns[0, place], turns[1, place], s * (p + j * m)
                xj, uj = x[i : i + s], u[i : i + s]
                for q in range(s):
                    yk[q] += c * xj[q] - d * uj[q]
                    vk[q] += c * uj[q] + d * xj[q]


@inlined
def _transform(x: Any, u: Any, y: Any, v: Any, V: int, stages: Any, turns: Any) -> None:
    """Columns of the strip x + i u (h V,); the result is in y + i v if there is an odd number of stages, else in x."""
    n, s, step = turns.shape[1], V, 1
    for radix in stages:
        if radix == 4:
            _stage4(x, u, y, v, n, s, turns, step)
        elif radix == 2:
            _stage2(x, u, y, v, s)
        else:
            _stage(radix, x, u, y, v, n, s, turns, step)
        n, s, step = n // radix, s * radix, step * radix
        x, u, y, v = y, v, x, u


@inlined
def _gather(waves: Any, j: int, m: int, start: int, V: int, scale: float, x: Any, u: Any) -> None:
    """A strip of mode m of view j, times `scale`."""
    for r in range(U(waves.shape[2])):
        for c in range(V):
            value = waves[j, m, r, start + c]
            x[r * V + c], u[r * V + c] = scale * value.real, scale * value.imag


@inlined
def _scatter(x: Any, u: Any, j: int, m: int, start: int, V: int, scale: float, waves: Any) -> None:
    """The strip times `scale` back to its place."""
    for r in range(U(waves.shape[2])):
        for c in range(V):
            waves[j, m, r, start + c] = complex(scale * x[r * V + c], scale * u[r * V + c])


# --- the detector ---


@inlined
def _strips_of(planes: Any, j: int, out: Any) -> None:
    """Plane j of (n, h, w), strip after strip, though read row by row as it lies in memory."""
    h, w = U(planes.shape[1]), U(planes.shape[2])
    for r in range(h):
        for start in range(ZERO, w, STRIP):
            V = min(STRIP, w - start)
            first = h * start + r * V
            for c in range(V):
                out[first + c] = planes[j, r, start + c]


@inlined
def _counts(counts: Any, j: int, code: int, good: Any, constants: Any, out: Any) -> None:
    """Pattern j (n, h, w times the bytes of one), strip after strip, as real numbers; -1 where there are no data."""
    if code == 0:
        _strips_of(counts, j, out)
    elif code == 1:
        _strips_of(counts.view(np.uint16), j, out)
    elif code == 2:
        _strips_of(counts.view(np.uint32), j, out)
    elif code == 3:
        _strips_of(counts.view(np.int32), j, out)
    elif code == 4:
        _strips_of(counts.view(np.float32), j, out)
    else:
        _strips_of(counts.view(np.float64), j, out)
    zero, none = constants[0], -constants[1]
    for i in range(U(len(out))):
        keep = (good[i] > zero) & (out[i] >= zero)  # NaN is no datum either
        out[i] = out[i] if keep else none


@inlined
def _detector(
    j: int,
    waves: Any,
    counts: Any,
    place: int,
    code: int,
    good: Any,
    b: Any,
    constants: Any,
    has_background: bool,
    kind: int,
    task: int,
    stages: Any,
    turns: Any,
    terms: Any,
) -> None:
    M, h, w = U(waves.shape[1]), U(waves.shape[2]), U(waves.shape[3])
    one, scale, dtype = constants[1], constants[6], constants.dtype
    newton = task == 1 and kind != 0
    x, u, y = np.empty((M, h * STRIP), dtype), np.empty((M, h * STRIP), dtype), np.empty(h * w, dtype)
    spare_x, spare_u = np.empty(h * STRIP, dtype), np.empty(h * STRIP, dtype)
    # a Newton step needs those of the whole view at once
    S, change = np.empty(h * (w if newton else STRIP), dtype), np.empty(h * (w if newton else STRIP), dtype)
    for t in range(6):
        terms[j, t] = 0.0
    _counts(counts, place, code, good, constants, y)
    for start in range(ZERO, w, STRIP):
        V, at = min(STRIP, w - start), h * start
        size, own = h * V, at if newton else ZERO
        for m in range(M):
            _there(waves, j, m, start, V, scale, stages, turns, x[m], u[m], spare_x, spare_u)
            _add_power(x[m], u[m], m == ZERO, size, S, own)
        _compare(size, S, change, own, y, b, at, constants, has_background, kind, task, j, terms)
        for m in range(M):
            if newton:
                _scatter(x[m], u[m], j, m, start, V, one, waves)
            elif task > 0:
                _times(x[m], u[m], size, change, ZERO)
                _back(x[m], u[m], spare_x, spare_u, j, m, start, V, scale, stages, turns, waves)
    if newton:
        alpha = _newton(kind, S, y, change, b, constants)
        for start in range(ZERO, w, STRIP):
            V = min(STRIP, w - start)
            for m in range(M):
                _gather(waves, j, m, start, V, alpha, x[m], u[m])
                _times(x[m], u[m], h * V, change, h * start)
                _back(x[m], u[m], spare_x, spare_u, j, m, start, V, scale, stages, turns, waves)


@inlined
def _there(
    waves: Any,
    j: int,
    m: int,
    start: int,
    V: int,
    scale: float,
    stages: Any,
    turns: Any,
    x: Any,
    u: Any,
    spare_x: Any,
    spare_u: Any,
) -> None:
    """A strip of mode m of view j times `scale`, transformed, in x + i u."""
    if len(stages) % 2 == 1:
        _gather(waves, j, m, start, V, scale, spare_x, spare_u)
        _transform(spare_x, spare_u, x, u, np.int64(V), stages, turns)
    else:
        _gather(waves, j, m, start, V, scale, x, u)
        _transform(x, u, spare_x, spare_u, np.int64(V), stages, turns)


@inlined
def _back(
    x: Any,
    u: Any,
    spare_x: Any,
    spare_u: Any,
    j: int,
    m: int,
    start: int,
    V: int,
    scale: float,
    stages: Any,
    turns: Any,
    waves: Any,
) -> None:
    """The strip x + i u, transformed inversely, at its place in mode m of view j."""
    _transform(u, x, spare_u, spare_x, np.int64(V), stages, turns)
    if len(stages) % 2 == 1:
        _scatter(spare_x, spare_u, j, m, start, V, scale, waves)
    else:
        _scatter(x, u, j, m, start, V, scale, waves)


@parallel
def detector(
    waves: Any,
    counts: Any,
    places: Any,
    code: int,
    good: Any,
    background: Any,
    constants: Any,
    has_background: bool,
    kind: int,
    task: int,
    stages: Any,
    turns: Any,
    terms: Any,
) -> None:
    """One pass over waves and counts: power of all modes, sums for the history, and the change of the waves, in place.

    counts: (n, h, w times the bytes of one) uint8, places (B,) in it, what they are: code. good, background: (h w,),
    strip after strip; not good is 0. task: 0 watches, 1 makes Psi' - Psi, 2 makes -dL/dI Psi. constants: real 0, 1,
    DARK, sqrt(DARK), BRIGHTEST_RATIO, the number of Newton steps, and the factor of the transform, there and back.
    stages (k,): waves are rows' transforms and become such again; none: they are at the detector and stay there.
    terms: (B, 6), see Passes.revise.
    """
    for i in prange(len(waves)):
        _detector(
            U(i),
            waves,
            counts,
            U(places[i]),
            code,
            good,
            background,
            constants,
            has_background,
            kind,
            task,
            stages,
            turns,
            terms,
        )


@inlined
def _add_power(x: Any, u: Any, first: bool, size: int, S: Any, own: int) -> None:
    if first:
        for i in range(size):
            S[own + i] = x[i] * x[i] + u[i] * u[i]
    else:
        for i in range(size):
            S[own + i] += x[i] * x[i] + u[i] * u[i]


@inlined
def _times(x: Any, u: Any, size: int, factor: Any, first: int) -> None:
    for i in range(size):
        x[i] *= factor[first + i]
        u[i] *= factor[first + i]


@inlined
def _compare(
    size: int,
    S: Any,
    change: Any,
    own: int,
    y: Any,
    b: Any,
    at: int,
    constants: Any,
    has_background: bool,
    kind: int,
    task: int,
    j: int,
    terms: Any,
) -> None:
    """Sums of a strip, and the factor by which its waves are to change (for Newton steps: their direction).

    The strip starts at pixel `own` of S and `change`, and at pixel `at` of y and b.
    """
    zero, one, dark, dark_root = constants[0], constants[1], constants[2], constants[3]
    misfit, total, absolute, roots, squares = zero, zero, zero, zero, zero
    for i in range(size):
        good = y[at + i] >= zero
        counts = y[at + i] if good else zero
        root_y, root_I = np.sqrt(counts), np.sqrt(S[own + i] + b[at + i])
        difference = root_I - root_y if good else zero
        misfit += difference * difference
        absolute += abs(difference)
        total += counts
        roots += root_y
        squares += counts * counts
        # 1 - sqrt(y / I), or without background the same as the projection
        change[own + i] = root_y / max(root_I, dark_root) - one if good else zero
    terms[j, 1] += misfit
    terms[j, 2] += total
    terms[j, 3] += absolute
    terms[j, 4] += roots
    terms[j, 5] += squares
    if kind == 0:
        terms[j, 0] += misfit
        if has_background and task == 1:
            for i in range(size):
                signal = max(y[at + i] - b[at + i], zero)
                change[own + i] = np.sqrt(signal / max(S[own + i], dark)) - one if y[at + i] >= zero else zero
    else:
        terms[j, 0] += _loss(kind, size, S, own, y, b, at, dark, zero)
        _slope(kind, size, S, change, own, y, b, at, constants, task == 1)


@inlined
def _loss(kind: int, size: int, S: Any, own: int, y: Any, b: Any, at: int, dark: float, zero: float) -> float:
    total = zero
    if kind == 1:
        for i in range(size):
            I = S[own + i] + b[at + i]
            total += I - y[at + i] * np.log(max(I, dark)) if y[at + i] >= zero else zero
    else:
        for i in range(size):
            difference = S[own + i] + b[at + i] - y[at + i] if y[at + i] >= zero else zero
            total += difference * difference
    return total


@inlined
def _slope(
    kind: int, size: int, S: Any, out: Any, own: int, y: Any, b: Any, at: int, constants: Any, newton: bool
) -> None:
    """-dL/dI; for a Newton step its direction xi = dL/dI, with y/I capped."""
    zero, one, dark, brightest = constants[0], constants[1], constants[2], constants[4]
    sign = -one if newton else one
    if kind == 1:
        for i in range(size):
            ratio = y[at + i] / max(S[own + i] + b[at + i], dark)
            ratio = min(ratio, brightest) if newton else ratio
            out[own + i] = sign * (ratio - one) if y[at + i] >= zero else zero
    else:
        for i in range(size):
            out[own + i] = sign * (y[at + i] - S[own + i] - b[at + i]) * (one + one) if y[at + i] >= zero else zero


@inlined
def _newton(kind: int, S: Any, y: Any, xi: Any, b: Any, constants: Any) -> float:
    """-alpha of Psi' = (1 - alpha xi) Psi, from planes (h w,) of a view; see fidelity._poisson_step."""
    one, dark, steps = constants[1], constants[2], int(constants[5])
    alpha = np.empty(1, S.dtype)  # a cell, so that alpha keeps its precision
    alpha[0] = one / (one + one)
    for _ in range(steps if kind == 1 else 1):
        first, second, size = 0.0, 0.0, U(len(S))
        for k in range(ZERO, size, PART):
            parts = _newton_part(kind, S, y, xi, b, k, min(k + PART, size), alpha[0], constants)
            first += parts[0]
            second += parts[1]
        if kind == 1:
            alpha[0] = min(max(alpha[0] - first / max(second, float(dark)), 0.0), 1.0)
        else:
            alpha[0] = first / max(second, float(dark)) if second > 0 else 0.0
    return -alpha[0]


@inlined
def _newton_part(
    kind: int, S: Any, y: Any, xi: Any, b: Any, begin: int, end: int, a: float, constants: Any
) -> tuple[float, float]:
    """First and second derivative of the loss by alpha, over some pixels."""
    zero, one, dark = constants[0], constants[1], constants[2]
    two, first, second = one + one, zero, zero
    if kind == 1:
        for i in range(begin, end):
            scale = one - a * xi[i]
            over = one / max(S[i] * scale * scale + b[i], dark)
            dI, d2I, misfit = -two * S[i] * xi[i] * scale, two * S[i] * xi[i] * xi[i], one - y[i] * over
            first += misfit * dI
            second += y[i] * (dI * over) * (dI * over) + misfit * d2I
    else:
        for i in range(begin, end):
            first += two * S[i] * xi[i] * xi[i]
            second += two * S[i] * xi[i] * xi[i] * (two * two * S[i] + xi[i])
    return first, second


# --- probes at fractions of pixels ---


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
def _plane(ry: Any, rx: Any, start: int, V: int, p: Any, q: Any) -> None:
    """A strip of ry rx, real and imaginary parts."""
    for r in range(U(len(ry))):
        factor = ry[r]
        for c in range(V):
            value = factor * rx[start + c]
            p[r * V + c], q[r * V + c] = value.real, value.imag


@inlined
def _ramped(
    j: int, spectrum: Any, fractions: Any, a: Any, axis: int, constants: Any, stages: Any, turns: Any, out: Any
) -> None:
    M, h, w = U(out.shape[1]), U(out.shape[2]), U(out.shape[3])
    ry, rx = np.empty(h, np.complex128), np.empty(w, np.complex128)
    _ramp(fractions[j, 0], ry)
    _ramp(fractions[j, 1], rx)
    if axis == 0:
        for r in range(len(ry)):
            ry[r] *= 2j * math.pi * _frequency(r, len(ry))
    if axis == 1:
        for c in range(len(rx)):
            rx[c] *= 2j * math.pi * _frequency(c, len(rx))
    factor, one = a[j] * constants[6], constants[1]
    for r in range(len(ry)):
        ry[r] *= factor
    strip = np.empty((6, h * STRIP), a.dtype)
    p, q, x, u, spare_x, spare_u = strip[0], strip[1], strip[2], strip[3], strip[4], strip[5]
    for start in range(ZERO, w, STRIP):
        V = min(STRIP, w - start)
        _plane(ry, rx, start, V, p, q)
        for m in range(M):
            for r in range(h):
                for c in range(V):
                    i, s = r * V + c, spectrum[m, r, start + c]
                    x[i], u[i] = p[i] * s.real - q[i] * s.imag, p[i] * s.imag + q[i] * s.real
            _back(x, u, spare_x, spare_u, j, m, start, V, one, stages, turns, out)


@parallel
def ramped(spectrum: Any, fractions: Any, a: Any, axis: int, constants: Any, stages: Any, turns: Any, out: Any) -> None:
    """out_jm = a_j exp(-2 pi i k.f_j) spectrum_m, columns transformed inversely; times 2 pi i k_axis, axis 0 or 1."""
    for i in prange(len(out)):
        _ramped(U(i), spectrum, fractions, a, axis, constants, stages, turns, out)


@inlined
def _unramped(part: int, waves: Any, fractions: Any, constants: Any, stages: Any, turns: Any, out: Any) -> None:
    M, h, w, dtype = U(waves.shape[1]), U(waves.shape[2]), U(waves.shape[3]), constants.dtype
    start = part * U(NARROW)
    V = min(U(NARROW), w - start)
    ry, rx = np.empty(h, np.complex128), np.empty(w, np.complex128)
    strip, sums = np.empty((6, h * V), dtype), np.zeros((2, M, h * V), dtype)
    p, q, x, u, spare_x, spare_u = strip[0], strip[1], strip[2], strip[3], strip[4], strip[5]
    for j in range(U(len(waves))):
        _ramp(-fractions[j, 0], ry)
        _ramp(-fractions[j, 1], rx)
        _plane(ry, rx, start, V, p, q)
        for m in range(M):
            _there(waves, j, m, start, V, constants[6], stages, turns, x, u, spare_x, spare_u)
            real, imaginary = sums[0, m], sums[1, m]
            for i in range(h * V):
                real[i] += p[i] * x[i] - q[i] * u[i]
                imaginary[i] += p[i] * u[i] + q[i] * x[i]
    for m in range(M):
        for r in range(h):
            for c in range(V):
                out[m, r, start + c] += complex(sums[0, m, r * V + c], sums[1, m, r * V + c])


@parallel
def unramped(waves: Any, fractions: Any, constants: Any, stages: Any, turns: Any, out: Any) -> None:
    """out_m += sum_j exp(+2 pi i k.f_j) waves_jm, whose columns are transformed first."""
    for i in prange((waves.shape[3] + NARROW - 1) // NARROW):
        _unramped(U(i), waves, fractions, constants, stages, turns, out)


#: See compiled.SIGNATURES.
SIGNATURES = {
    detector: "c4 u3 i1 i r1 r1 r1 b i i i1 r2 d2",
    ramped: "c3 r2 r1 i r1 i1 r2 c4",
    unramped: "c4 r2 r1 i1 r2 c3",
}
