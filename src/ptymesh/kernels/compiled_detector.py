"""Waves to the detector and back, compiled by numba for this CPU.

B, M, h, w   views of the chunk, modes, window pixels;  h, w >= 8
waves        (B, M, h, w) complex
panel, plane, row, work   see column_panels.py;  spectrum, tables   see shifts.py

A view's waves are made, transformed, compared with its counts, brought back and gathered by one thread in one go, while
they are in its cache: the fewer passes over them, the better.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from ptymesh.kernels.column_panels import (
    PAIR,
    THREE,
    TWO,
    ZERO,
    U,
    panel_in,
    panel_out,
    plane_of,
    rows_back,
    rows_in,
    rows_of,
    transform,
)
from ptymesh.kernels.comparison import compare, newton_step
from ptymesh.kernels.compiled_probes import halves
from ptymesh.kernels.jit import inlined, parallel
from ptymesh.kernels.row_panels import BACK, ON, row_panels_of, through_rows, window_in, windows_out
from ptymesh.kernels.shifts import add_columns, add_power, columns_in, factors, ramps
from ptymesh.kernels.vectors import (
    LANES,
    load,
    load_as,
    spread,
    store,
    total,
    where_at_least,
)

#: Patterns of these dtypes are read as they are, others as floats. One function reads them all: `detector` is large,
#: and to compile it for each dtype would take a minute.
NATIVE = ("uint8", "uint16", "uint32", "float32", "float64")
#: What `detector` does with the waves.
EVALUATE, EXIT_WAVE_UPDATE, LOSS_GRADIENT = 0, 1, 2


@inlined
def _data(planes: Any, j: int, h: int, w: int, good: Any, constants: Any, out: Any) -> float:
    """Plane j of (n, h, w), panel after panel, as real numbers; -1 where there are no data. Returns their sum."""
    zero, one, none = spread(constants[0]), spread(constants[1]), spread(-constants[1])
    sums = zero
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
            sums = sums + where_at_least(y, zero, y, zero)
    return total(sums)


@inlined
def _counts(counts: Any, j: int, code: int, h: int, w: int, good: Any, constants: Any, out: Any) -> float:
    """Pattern j (n, h, w times the bytes of one), panel after panel; returns the sum of its data."""
    if code == 0:
        return _data(counts, j, h, w, good, constants, out)
    if code == 1:
        return _data(counts.view(np.uint16), j, h, w, good, constants, out)
    if code == 2:
        return _data(counts.view(np.uint32), j, h, w, good, constants, out)
    if code == 3:
        return _data(counts.view(np.float32), j, h, w, good, constants, out)
    return _data(counts.view(np.float64), j, h, w, good, constants, out)


@inlined
def _add_power(plane: Any, at: int, h: int, first: bool, scale: float, S: Any, own: int) -> None:
    """scale |Psi|^2 of a panel."""
    s = spread(scale)
    for r in range(h):
        p, q = load(plane, at + PAIR * r), load(plane, at + PAIR * r + LANES)
        power, i = s * (p * p + q * q), own + LANES * r
        store(S, i, power if first else load(S, i) + power)


@inlined
def _times(plane: Any, at: int, h: int, change: Any, own: int, real: float, imaginary: float) -> None:
    """A panel times real factors, and its parts times these."""
    s, t = spread(real), spread(imaginary)
    for r in range(h):
        i, f = at + PAIR * r, load(change, own + LANES * r)
        store(plane, i, s * f * load(plane, i))
        store(plane, i + LANES, t * f * load(plane, i + LANES))


@inlined
def _rooms(work: Any, size: int, h: int, w: int) -> Any:
    """Counts, powers, factors, a row, room for transforms, and planes."""
    row, spare, at = rows_of(work, THREE * size, h, w)
    return (work[:size], work[size : TWO * size], work[TWO * size : THREE * size]), row, spare, work[at:]


@inlined
def _there_and_back(
    j: int, view: int, work: Any, intermediates: Any, data: Any, how: Any, tables: Any, out: Any, terms: Any
) -> None:
    """View j, whose beam is the `view`th: its sums, and what comes back in out[j]."""
    (obj, n, beams, a), product, task, (_, plan, twiddles) = intermediates, how[2], how[4], tables
    M, h, w = U(out.shape[1]), U(out.shape[2]), U(out.shape[3])
    size, far = U(len(data[2])), plan[0, 0] > 0
    rooms, row, spare, planes = _rooms(work, size, h, w)
    for m in range(M):
        beam, plane = TWO * h * w * (view * M + m), plane_of(planes, m, size)
        if far:
            stride, f = TWO * U(obj.shape[1]), a[j]
            window = stride * U(n[j, 0]) + TWO * U(n[j, 1])
            rows_in(beams, beam, obj, window, stride, f, f, product, h, w, row, spare, plan, twiddles, plane)
        else:
            for start in range(ZERO, w, LANES):
                panel_in(beams, beam, h, w, start, plane)
    _compared(j, M, h, w, rooms, spare, planes, data, how, tables, terms)
    if task > 0:
        for m in range(M):
            wave, plane = TWO * h * w * (j * M + m), plane_of(planes, m, size)
            if far:
                rows_back(plane, h, w, row, spare, plan, twiddles, out, wave)
            else:
                for start in range(ZERO, w, LANES):
                    panel_out(plane, h, w, start, out, wave)


@inlined
def _compared(
    j: int, M: int, h: int, w: int, rooms: Any, spare: Any, planes: Any, data: Any, how: Any, tables: Any, terms: Any
) -> None:
    """Waves in planes, rows transformed and columns not, to the detector, what the task makes of them there, and back
    as far: conjugates of it. Of waves that are on the detector already, what the task makes of them. And their sums."""
    (counts, places, good, b), (code, has_background, _, kind, task), (constants, plan, twiddles) = data, how, tables
    (y, S, change), scale = rooms, constants[6] * constants[6]
    size, panel, far = U(len(good)), LANES * h, plan[0, 0] > 0
    newton = task == 1 and kind != 0
    for t in range(6):
        terms[j, t] = 0.0
    least = constants[7] * _counts(counts, U(places[j]), code, h, w, good, constants, y)
    for start in range(ZERO, w, LANES):
        at = h * start
        own = at if newton else ZERO
        for m in range(M):
            if far:
                transform(plane_of(planes, m, size), TWO * at, spare, h, plan[0], twiddles[0])
            _add_power(plane_of(planes, m, size), TWO * at, h, m == ZERO, scale, S, own)
        compare(panel, S, change, own, y, b, at, constants, least, has_background, kind, task, j, terms)
        if task > 0 and not newton:
            for m in range(M):
                _changed(plane_of(planes, m, size), at, h, change, own, scale, far, spare, plan, twiddles)
    if newton:
        alpha = scale * newton_step(kind, S, y, change, b, constants)
        for start in range(ZERO, w, LANES):
            for m in range(M):
                _changed(plane_of(planes, m, size), h * start, h, change, h * start, alpha, far, spare, plan, twiddles)


@inlined
def _changed(
    plane: Any, at: int, h: int, change: Any, own: int, scale: float, far: bool, spare: Any, plan: Any, twiddles: Any
) -> None:
    """A panel times its factors; where it has been transformed its conjugate, transformed again."""
    _times(plane, TWO * at, h, change, own, scale, -scale if far else scale)
    if far:
        transform(plane, TWO * at, spare, h, plan[0], twiddles[0])


@inlined
def _there_and_further(
    j: int,
    band: int,
    work: Any,
    intermediates: Any,
    shift: Any,
    data: Any,
    how: Any,
    keep: bool,
    tables: Any,
    out: Any,
    terms: Any,
    into: Any,
) -> None:
    """View j, by a band, from the probe's spectrum to the detector and back to the sums."""
    (obj, n, beams, a), (spectrum, fractions), (windows, light, sums, lights, shifts, reached) = (
        intermediates,
        shift,
        into,
    )
    constants, plan, twiddles = tables
    M, h, w = U(out.shape[1]), U(out.shape[2]), U(out.shape[3])
    size, y, x, f, stride = U(len(data[2])), U(n[j, 0]), U(n[j, 1]), a[j], TWO * U(obj.shape[1])
    rooms, row, spare, planes = _rooms(work, size, h, w)
    row_panels = row_panels_of(planes[TWO * M * size :], M, h, w)
    (down, across), minus = factors(h, w, constants.dtype), spread(-constants[1])
    ramps(fractions[j], np.int64(w), -1, f * constants[6], down, across)
    window_in(obj, stride * y + TWO * x, stride, h, w, row_panels[1])
    for m in range(M):
        wave, plane = TWO * h * w * (j * M + m), plane_of(planes, m, size)
        columns_in(spectrum, m, down, across, minus, h, spare, plan, twiddles, plane)
        through_rows(plane, ON, f, m, h, w, row, spare, row_panels, plan, twiddles, keep, beams, wave)
    _compared(j, M, h, w, rooms, spare, planes, data, how, tables, terms)
    half, light_half = halves(sums, lights, out.shape[2] * out.shape[3])
    ramps(-fractions[j], np.int64(w), -1, constants[6], down, across)
    for m in range(M):
        wave, plane = TWO * h * w * (j * M + m), plane_of(planes, m, size)
        through_rows(plane, BACK, f, m, h, w, row, spare, row_panels, plan, twiddles, keep, out, wave)
        add_columns(plane, down, across, h, w, m, spare, plan, twiddles, shifts, sums[band], half, reached[j])
    windows_out(row_panels[3], row_panels[4], h, w, spread(constants[1]), windows, light, h * w * j, reached[j])
    add_power(obj, y, x, f, shifts, h, w, lights[band], light_half, reached[j])


@parallel
def detector(
    work: Any,
    intermediates: Any,
    shift: Any,
    data: Any,
    how: Any,
    keep: bool,
    tables: Any,
    out: Any,
    terms: Any,
    into: Any,
) -> None:
    """From exit waves to the detector and back, and further to object and probe.

    intermediates: obj (H, W), n (B, 2), beams (1 or B, M, h, w), a (B,), see compiled.py. data: counts (n, h, w times
    the bytes of one) uint8, places (B,) in it, good and background (h w',), panel after panel; not good is 0. how: what
    counts are (NATIVE); whether there is background; whether exit waves are made of beams and object, or are `beams`;
    fidelity (KINDS); task: 0 evaluates and leaves `out` alone, 1 makes D^H (Psi' - Psi), 2 makes -D^H dL/dI Psi.
    tables: constants, plan and twiddles; without a plan D is nothing: `beams` are waves on the detector, and may be
    `out`. out: (B, M, h, w). terms: (B, 6), see Backend.exit_wave_update.

    shift: spectrum (M, h, w) and fractions (B, 2). Of no modes, that is all. Otherwise beams are made here, and what
    comes back is gathered: into windows (B, h, w), sum_m conj(P_m) out_m of each view, and light (B, h, w),
    sum_m |P_m|^2; and into sums and lights, with shifts and reached, as in `to_spectrum`. `beams` and `out` are written
    with `keep` alone; without, they may have no views.
    """
    count, bands = len(terms), len(work)
    for i in prange(bands):
        band = np.int64(i)
        for j in range(count * band // bands, count * (band + 1) // bands):
            if len(shift[0]) > 0:
                _there_and_further(
                    U(j), band, work[band], intermediates, shift, data, how, keep, tables, out, terms, into
                )
            else:
                view = ZERO if len(intermediates[2]) == 1 else U(j)
                _there_and_back(U(j), view, work[band], intermediates, data, how, tables, out, terms)


#: See compiled.SIGNATURES; what stands in brackets is a tuple.
SIGNATURES = {
    detector: "r2 (c2 i2 c4 r1) (c3 r2) (u3 i1 r1 r1) (i b b i i) b (r1 i2 r2) c4 d2 (c3 r3 d2 d2 d2 d2)",
}
