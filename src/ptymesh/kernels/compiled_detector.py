"""Waves to the detector and back, compiled by numba for this CPU.

B, M, h, w   views of the chunk, modes, window pixels;  h, w >= 8
waves        (B, M, h, w) complex
strip, plane, row, work   see strips.py;  spectrum, tables   see shifts.py

A view's waves are made, transformed, compared with its counts, brought back and gathered by one thread in one go, while
they are in its cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from ptymesh.kernels.comparison import compare, newton_step
from ptymesh.kernels.compiled_probes import begin_group
from ptymesh.kernels.jit import inlined, parallel
from ptymesh.kernels.shifts import add_power, add_shifted_back, shifted
from ptymesh.kernels.strips import (
    ONE,
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
from ptymesh.kernels.vectors import (
    LANES,
    load,
    load_as,
    load_complex,
    spread,
    store,
    store_complex,
    where_at_least,
)

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
def _there_and_back(
    j: int,
    slot: int,
    work: Any,
    scene: Any,
    view: int,
    f: float,
    data: Any,
    how: Any,
    tables: Any,
    out: Any,
    terms: Any,
) -> None:
    """View j, whose beam is the `view`th, times f: its sums, and what comes back in out[slot]."""
    (obj, n, beams, _), (counts, places, good, b) = scene, data
    (code, has_background, product, kind, task), (constants, plan, turns) = how, tables
    M, h, w = U(out.shape[1]), U(out.shape[2]), U(out.shape[3])
    scale = constants[6] * constants[6]
    size, strip, far = U(len(good)), LANES * h, plan[0, 0] > 0
    newton = task == 1 and kind != 0
    y, S, change = work[:size], work[size : TWO * size], work[TWO * size : THREE * size]
    row, spare, at = rows_of(work, THREE * size, h, w)
    planes = work[at:]
    for t in range(6):
        terms[j, t] = 0.0
    _counts(counts, U(places[j]), code, h, w, good, constants, y)
    for m in range(M):
        beam = TWO * h * w * (view * M + m)
        if far:
            stride = TWO * U(obj.shape[1])
            window = stride * U(n[j, 0]) + TWO * U(n[j, 1])
            plane = plane_of(planes, m, size)
            rows_in(beams, beam, obj, window, stride, f, f, product, h, w, row, spare, plan, turns, plane)
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
        compare(strip, S, change, own, y, b, at, constants, has_background, kind, task, j, terms)
        if task > 0 and not newton:
            for m in range(M):
                _changed(plane_of(planes, m, size), at, h, change, own, scale, far, spare, plan, turns)
    if newton:
        alpha = scale * newton_step(kind, S, y, change, b, constants)
        for start in range(ZERO, w, LANES):
            for m in range(M):
                _changed(plane_of(planes, m, size), h * start, h, change, h * start, alpha, far, spare, plan, turns)
    if task > 0:
        for m in range(M):
            wave = TWO * h * w * (slot * M + m)
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


@inlined
def _to_window(j: int, slot: int, beams: Any, waves: Any, windows: Any, light: Any) -> None:
    """windows[j] = sum_m conj(P_m) waves_m, light[j] = sum_m |P_m|^2, of beams and waves in a slot."""
    M, h, w = U(waves.shape[1]), U(waves.shape[2]), U(waves.shape[3])
    mode = TWO * h * w
    for r in range(h):
        for c in range(ZERO, w, LANES):
            k = w * r + min(c, w - LANES)  # the last eight, though some of them have been written
            at = mode * M * slot + TWO * k
            (p, q), (s, t) = load_complex(beams, at), load_complex(waves, at)
            real, imaginary, power = p * s + q * t, p * t - q * s, p * p + q * q
            for m in range(ONE, M):
                (p, q), (s, t) = load_complex(beams, at + mode * m), load_complex(waves, at + mode * m)
                real, imaginary, power = real + (p * s + q * t), imaginary + (p * t - q * s), power + (p * p + q * q)
            store_complex(windows, mode * U(j) + TWO * k, real, imaginary)
            store(light, h * w * U(j) + k, power)


@inlined
def _view(
    j: int,
    slot: int,
    g: int,
    work: Any,
    scene: Any,
    shift: Any,
    data: Any,
    how: Any,
    tables: Any,
    out: Any,
    terms: Any,
    into: Any,
) -> None:
    """All that is done to view j, of group g."""
    (obj, n, beams, a), (spectrum, fractions), (windows, light, sums, lights, added) = scene, shift, into
    if len(spectrum) == 0:
        view = ZERO if len(beams) == 1 else U(j)
        _there_and_back(j, U(slot), work, scene, view, a[j], data, how, tables, out, terms)
        return
    y, x, own = U(n[j, 0]), U(n[j, 1]), U(slot)
    shifted(work, spectrum, fractions[j], a[j], -1, tables, beams, own)
    _there_and_back(j, own, work, scene, own, tables[0][1], data, how, tables, out, terms)
    _to_window(j, own, beams, out, windows, light)
    begin_group(g, sums, lights, added)
    add_shifted_back(work, out, own, obj, y, x, a[j], fractions[j], tables, sums[g])
    add_power(obj, y, x, a[j], lights[g])


@parallel
def detector(
    work: Any, scene: Any, shift: Any, data: Any, how: Any, keep: bool, tables: Any, out: Any, terms: Any, into: Any
) -> None:
    """From exit waves to the detector and back, and further to object and probe.

    scene: obj (H, W), n (B, 2), beams (1 or B, M, h, w), a (B,), see compiled.py. data: counts (n, h, w times the
    bytes of one) uint8, places (B,) in it, good and background (h w',), strip after strip; not good is 0. how: what
    counts are (NATIVE); whether there is background; whether exit waves are made of beams and object, or are `beams`;
    fidelity (KINDS); task: 0 watches and leaves `out` alone, 1 makes D^H (Psi' - Psi), 2 makes -D^H dL/dI Psi.
    tables: constants, plan and turns; without a plan D is nothing: `beams` are waves on the detector, and may be `out`.
    out: (B, M, h, w) with `keep`, else room for a view of each band. terms: (B, 6), see Passes.revise.

    shift: spectrum (M, h, w) and fractions (B, 2). Of no modes, that is all. Otherwise `beams`, room like `out`, are
    made here, and what comes back is gathered: into windows (B, h, w), sum_m conj(P_m) out_m of each view, and light
    (B, h, w), sum_m |P_m|^2; and into sums, lights and added as in `to_spectrum`.
    """
    count, bands = len(terms), len(work)
    groups = len(into[4]) if len(into[4]) > 0 else bands
    for i in prange(bands):
        band = np.int64(i)
        for g in range(groups * band // bands, groups * (band + 1) // bands):
            for j in range(count * g // groups, count * (g + 1) // groups):
                slot = j if keep else band
                _view(j, slot, g, work[band], scene, shift, data, how, tables, out, terms, into)


#: See compiled.SIGNATURES; what stands in brackets is a tuple.
SIGNATURES = {
    detector: "r2 (c2 i2 c4 r1) (c3 r2) (u3 i1 r1 r1) (i b b i i) b (r1 i2 r2) c4 d2 (c3 r3 r3 r3 i1)",
}
