"""Waves to the detector and back, compiled by numba for this CPU.

B, M, h, w   views of the chunk, modes, window pixels;  h, w >= 8
waves        (B, M, h, w) complex
strip, plane, row, plan, turns, work   see strips.py

A view's waves are made, transformed, compared with its counts and brought back by one thread in one go, while they are
in its cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from ptymesh.kernels.jit import inlined, parallel
from ptymesh.kernels.strips import (
    PAIR,
    THREE,
    TWO,
    ZERO,
    U,
    plane_of,
    rows_back,
    rows_in,
    rows_of,
    strip_in,
    strip_out,
    transform,
)
from ptymesh.kernels.vectors import LANES, load, load_as, spread, store, where_at_least

#: Pixels that are summed in the precision of the waves before they join a sum in double precision.
PART = U(1024)
#: Fidelities as numbers.
KINDS = {"amplitude": 0, "poisson": 1, "intensity": 2}
#: Patterns of these dtypes are read as they are, others as floats. One function reads them all: `detector` is large,
#: and to compile it for each dtype would take a minute.
NATIVE = ("uint8", "uint16", "uint32", "float32", "float64")
#: What `detector` does with the waves.
WATCH, REVISE, DESCEND = 0, 1, 2


@inlined
def _data(planes: Any, j: int, h: int, w: int, good: Any, constants: Any, out: Any) -> None:
    """Plane j of (n, h, w), strip after strip, as real numbers; -1 where there are no data."""
    zero, one, none = spread(constants[0]), spread(constants[1]), spread(-constants[1])
    for start in range(ZERO, w, LANES):
        for r in range(h):
            i, o = w * (h * j + r) + start, h * start + r * LANES
            if start + LANES <= w:
                store(out, o, load_as(planes, i, out))
            else:
                for c in range(w - start):
                    out[o + c] = planes[j, r, start + c]
            y = where_at_least(load(good, o), one, load(out, o), none)
            store(out, o, where_at_least(y, zero, y, none))  # NaN is no datum either


@inlined
def _counts(counts: Any, j: int, code: int, h: int, w: int, good: Any, constants: Any, out: Any) -> None:
    """Pattern j (n, h, w times the bytes of one), strip after strip."""
    if code == 0:
        _data(counts, j, h, w, good, constants, out)
    elif code == 1:
        _data(counts.view(np.uint16), j, h, w, good, constants, out)
    elif code == 2:
        _data(counts.view(np.uint32), j, h, w, good, constants, out)
    elif code == 3:
        _data(counts.view(np.float32), j, h, w, good, constants, out)
    else:
        _data(counts.view(np.float64), j, h, w, good, constants, out)


@inlined
def _add_power(plane: Any, at: int, h: int, first: bool, scale: float, S: Any, own: int) -> None:
    """scale |Psi|^2 of a strip."""
    s = spread(scale)
    for r in range(h):
        p, q = load(plane, at + PAIR * r), load(plane, at + PAIR * r + LANES)
        power, i = s * (p * p + q * q), own + LANES * r
        store(S, i, power if first else load(S, i) + power)


@inlined
def _times(plane: Any, at: int, h: int, change: Any, own: int, real: float, imaginary: float) -> None:
    """A strip times real factors, and its parts times these."""
    s, t = spread(real), spread(imaginary)
    for r in range(h):
        i, f = at + PAIR * r, load(change, own + LANES * r)
        store(plane, i, s * f * load(plane, i))
        store(plane, i + LANES, t * f * load(plane, i + LANES))


@inlined
def _detector(
    j: int,
    work: Any,
    obj: Any,
    n: Any,
    beams: Any,
    a: Any,
    product: bool,
    counts: Any,
    place: int,
    code: int,
    good: Any,
    b: Any,
    constants: Any,
    has_background: bool,
    kind: int,
    task: int,
    plan: Any,
    turns: Any,
    out: Any,
    terms: Any,
) -> None:
    M, h, w = U(out.shape[1]), U(out.shape[2]), U(out.shape[3])
    scale = constants[6] * constants[6]
    size, strip, far = U(len(good)), LANES * h, plan[0, 0] > 0
    newton = task == 1 and kind != 0
    view = ZERO if len(beams) == 1 else j
    y, S, change = work[:size], work[size : TWO * size], work[TWO * size : THREE * size]
    row, spare, at = rows_of(work, THREE * size, h, w)
    planes = work[at:]
    for t in range(6):
        terms[j, t] = 0.0
    _counts(counts, place, code, h, w, good, constants, y)
    for m in range(M):
        beam = TWO * h * w * (view * M + m)
        if far:
            stride = TWO * U(obj.shape[1])
            window = stride * U(n[j, 0]) + TWO * U(n[j, 1])
            plane = plane_of(planes, m, size)
            rows_in(beams, beam, obj, window, stride, a[j], a[j], product, h, w, row, spare, plan, turns, plane)
        else:
            for start in range(ZERO, w, LANES):
                strip_in(beams, beam, h, w, start, plane_of(planes, m, size))
    for start in range(ZERO, w, LANES):
        at = h * start
        own = at if newton else ZERO
        for m in range(M):
            if far:
                transform(plane_of(planes, m, size), TWO * at, spare, h, plan[0], turns[0])
            _add_power(plane_of(planes, m, size), TWO * at, h, m == ZERO, scale, S, own)
        _compare(strip, S, change, own, y, b, at, constants, has_background, kind, task, j, terms)
        if task > 0 and not newton:
            for m in range(M):
                _changed(plane_of(planes, m, size), at, h, change, own, scale, far, spare, plan, turns)
    if newton:
        alpha = scale * _newton(kind, S, y, change, b, constants)
        for start in range(ZERO, w, LANES):
            for m in range(M):
                _changed(plane_of(planes, m, size), h * start, h, change, h * start, alpha, far, spare, plan, turns)
    if task > 0:
        for m in range(M):
            wave = TWO * h * w * (j * M + m)
            if far:
                rows_back(plane_of(planes, m, size), h, w, row, spare, plan, turns, out, wave)
            else:
                for start in range(ZERO, w, LANES):
                    strip_out(plane_of(planes, m, size), h, w, start, out, wave)


@inlined
def _changed(
    plane: Any, at: int, h: int, change: Any, own: int, scale: float, far: bool, spare: Any, plan: Any, turns: Any
) -> None:
    """A strip times its factors; where it has been transformed its conjugate, transformed again."""
    _times(plane, TWO * at, h, change, own, scale, -scale if far else scale)
    if far:
        transform(plane, TWO * at, spare, h, plan[0], turns[0])


@parallel
def detector(
    work: Any,
    obj: Any,
    n: Any,
    beams: Any,
    a: Any,
    product: bool,
    counts: Any,
    places: Any,
    code: int,
    good: Any,
    background: Any,
    constants: Any,
    has_background: bool,
    kind: int,
    task: int,
    plan: Any,
    turns: Any,
    out: Any,
    terms: Any,
) -> None:
    """From exit waves to the detector and back: sums for the history, and out (B, M, h, w) as the task says.

    obj (H, W), n (B, 2), beams (1 or B, M, h, w), a (B,): see compiled.py; with `product` exit waves are made of them,
    without it they are `beams`. counts: (n, h, w times the bytes of one) uint8, places (B,) in it, what they are: code.
    good, background: (h w',), strip after strip; not good is 0. task: 0 watches and leaves `out` alone, 1 makes
    D^H (Psi' - Psi), 2 makes -D^H dL/dI Psi. constants: real 0, 1, DARK, sqrt(DARK), BRIGHTEST_RATIO, the number of
    Newton steps, and the factor of the transform, there and back. Without a plan D is nothing: `beams` are waves on
    the detector, and may be `out`. terms: (B, 6), see Passes.revise.
    """
    count, bands = len(terms), len(work)
    for i in prange(bands):
        band = np.int64(i)
        for j in range(count * band // bands, count * (band + 1) // bands):
            _detector(
                U(j),
                work[band],
                obj,
                n,
                beams,
                a,
                product,
                counts,
                U(places[j]),
                code,
                good,
                background,
                constants,
                has_background,
                kind,
                task,
                plan,
                turns,
                out,
                terms,
            )


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


#: See compiled.SIGNATURES.
SIGNATURES = {detector: "r2 c2 i2 c4 r1 b u3 i1 i r1 r1 r1 b i i i2 r2 c4 d2"}
