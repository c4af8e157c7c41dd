"""Waves of a shifted view between planes, eight rows at a time: on with the object, and back to object and probe.

M, h, w      modes, window pixels;  h, w >= 8
panel, plane, row   see column_panels.py
row panels   real, rows of a wave eight by eight: of each eight what `row` holds, (2 w' 8,) numbers; of a real wave
             half of that. Where h is no multiple of eight, the first eight are the wave's last rows, which others
             overlap

Eight rows are taken out of a plane, transformed, multiplied, transformed and put back, while they are in the first
cache. Pixels stay in the order of the transform meanwhile: object and probes are brought into it once for each view.
"""

from __future__ import annotations

from typing import Any

from ptymesh.kernels.column_panels import (
    ONE,
    PAIR,
    TWO,
    WIDTH,
    ZERO,
    U,
    pixels,
    plane_of,
    row_panel_back,
    row_panel_from,
    row_panel_in,
    row_panel_out,
    rows_of,
    transform,
)
from ptymesh.kernels.jit import inlined
from ptymesh.kernels.vectors import (
    LANES,
    highest,
    larger,
    load,
    load_eight,
    magnitude,
    spread,
    store,
    store_eight,
    transposed,
)
from ptymesh.physics.kinds import OBJECT, OBJECT_WEIGHT

#: Ways through rows; numbers, as functions are compiled anew for True and for False.
ON, BACK = ZERO, ONE


@inlined
def counted(h: int) -> int:
    """How many row panels there are."""
    return (h + LANES - ONE) // LANES


@inlined
def first_of(k: int, h: int) -> int:
    """First row of the k-th eight."""
    if h % LANES == 0:
        return LANES * k
    return h - LANES if k == 0 else LANES * (k - ONE)


@inlined
def row_panels_of(room: Any, l: int, L: int, M: int, h: int, w: int) -> Any:
    """Behind the planes: a second row; row panels of slice l's window, of all modes that enter it, of what is gathered,
    of its light."""
    wide = (w + LANES - ONE) // LANES * LANES
    row, size = PAIR * wide, PAIR * wide * counted(h)
    window, modes, total = row + size * l, row + size * (L + M * l), row + size * L * (M + ONE)
    light = total + size
    return (
        room[:row],
        room[window : window + size],
        room[modes : modes + size * M],
        room[total:light],
        room[light : light + size // TWO],
    )


def room_for(waves: int, windows: int, h: int, w: int) -> int:
    """Numbers that a band works in where several waves go on together: see `rooms_of`; of so many windows."""
    rows = 4 * (pixels(WIDTH, w) + WIDTH * max(h, w)) + 2 * (2 * waves + 1) * pixels(WIDTH, w)
    return rows + 2 * waves * pixels(h, w) + 2 * windows * pixels(h + -h % WIDTH, w)


@inlined
def rooms_of(work: Any, waves: int, h: int, w: int) -> Any:
    """Room for transforms, planes of all waves, twice their rows and another row, windows."""
    _, spare, at = rows_of(work, ZERO, h, w)
    wide = (w + LANES - ONE) // LANES * LANES
    block, start = PAIR * wide, at + TWO * waves * h * wide
    late, other = start + block * waves, start + TWO * block * waves
    return (
        spare,
        work[at:start],
        (work[start:late], work[late:other], work[other : other + block]),
        work[other + block :],
    )


@inlined
def rows_on(
    rows: Any,
    planes: Any,
    size: int,
    begin: int,
    end: int,
    first: int,
    overlaps: bool,
    h: int,
    w: int,
    spare: Any,
    plan: Any,
    twiddles: Any,
) -> None:
    """Rows of several waves, transformed, back to their planes, unless they overlap some that are to be taken out."""
    block = PAIR * ((w + LANES - ONE) // LANES * LANES)
    for k in range(begin, end):
        transform(rows, block * k, spare, w, plan[1], twiddles[1])
    if not overlaps:
        rows_back(rows, planes, size, begin, end, first, h, w)


@inlined
def rows_back(rows: Any, planes: Any, size: int, begin: int, end: int, first: int, h: int, w: int) -> None:
    """Rows of several waves back to their planes."""
    block = PAIR * ((w + LANES - ONE) // LANES * LANES)
    for k in range(begin, end):
        row_panel_back(rows, block * k, plane_of(planes, k, size), first, h, w)


@inlined
def window_in(obj: Any, place: int, stride: int, h: int, w: int, window: Any) -> None:
    """The object's window that starts at a place, to row panels."""
    block = PAIR * ((w + LANES - ONE) // LANES * LANES)
    for k in range(counted(h)):
        row_panel_in(obj, place + stride * first_of(U(k), h), stride, w, window, block * U(k))


@inlined
def _lit(row: Any, at: int, w: int, minus: Any, window: Any, beam: Any) -> None:
    """A row of conjugate probes to row panels, from number `at` on, and itself times the object."""
    for i in range(ZERO, PAIR * w, PAIR):
        a, b, o = load(row, i), minus * load(row, i + LANES), at + i
        store(beam, o, a)
        store(beam, o + LANES, b)
        s, t = load(window, o), load(window, o + LANES)
        store(row, i, a * s - b * t)
        store(row, i + LANES, a * t + b * s)


@inlined
def _gathered(
    row: Any, at: int, w: int, minus: Any, window: Any, beam: Any, f: float, first: bool, total: Any, light: Any
) -> None:
    """A row of conjugate waves chi becomes f conj(O) chi; total = or += conj(P) chi, light = or += |P|^2."""
    by = spread(f)
    for i in range(ZERO, PAIR * w, PAIR):
        a, b, o = load(row, i), minus * load(row, i + LANES), at + i
        p, q, s, t = load(beam, o), load(beam, o + LANES), by * load(window, o), by * load(window, o + LANES)
        store(row, i, s * a + t * b)
        store(row, i + LANES, s * b - t * a)
        real, imaginary, power = p * a + q * b, p * b - q * a, p * p + q * q
        if not first:
            real, imaginary = load(total, o) + real, load(total, o + LANES) + imaginary
            power = load(light, o // TWO) + power
        store(total, o, real)
        store(total, o + LANES, imaginary)
        store(light, o // TWO, power)


@inlined
def through_rows(
    plane: Any,
    way: int,
    f: float,
    m: int,
    h: int,
    w: int,
    row: Any,
    spare: Any,
    row_panels: Any,
    plan: Any,
    twiddles: Any,
    plain: bool,
    keep: bool,
    waves: Any,
    place: int,
) -> None:
    """Rows of a plane, whose columns are transformed, to waves of mode m, what comes of these, transformed, in place.

    On the way ON to the detector waves that enter a slice become those that leave it; on the way BACK chi becomes
    f conj(O) chi, and its part in the window is gathered. Of `plain` probes, which no one has shifted, the plane holds
    the waves themselves before the one and after the other. With `keep` the waves are written, too: from that place on.
    """
    late, window, beams, total, light = row_panels
    block = PAIR * ((w + LANES - ONE) // LANES * LANES)
    size, minus = block * counted(h), spread(-twiddles[0, 0])
    beam = beams[size * m : size * (m + ONE)]
    for i in range(counted(h)):
        k = U(i)
        first, overlaps = first_of(k, h), h % LANES > 0 and i == 0
        eight = late if overlaps else row
        row_panel_from(plane, first, h, w, eight, ZERO)
        if way == BACK or not plain:
            transform(eight, ZERO, spare, w, plan[1], twiddles[1])
        if keep:
            row_panel_out(eight, ZERO, w, minus, waves, place + TWO * w * first)
        if way == BACK:
            _gathered(eight, block * k, w, minus, window, beam, f, m == ZERO, total, light)
        else:
            _lit(eight, block * k, w, minus, window, beam)
        if way == ON or not plain:
            transform(eight, ZERO, spare, w, plan[1], twiddles[1])
        if not overlaps:  # rows that are still to be taken out
            row_panel_back(eight, ZERO, plane, first, h, w)
    if h % LANES > 0:
        row_panel_back(late, ZERO, plane, h - LANES, h, w)


@inlined
def windows_out(
    total: Any, light: Any, h: int, w: int, one: Any, windows: Any, lights: Any, pixel: int, reached: Any
) -> None:
    """What has been gathered, from row panels to a complex and a real window that start at a pixel; reached: see
    `compiled.to_windows`."""
    block = PAIR * ((w + LANES - ONE) // LANES * LANES)
    top = light_top = one - one
    for i in range(counted(h)):
        k, first = U(i), pixel + w * first_of(U(i), h)
        row_panel_out(total, block * k, w, one, windows, TWO * first)
        for c in range(ZERO, w, LANES):
            start = min(c, w - LANES)
            rows = transposed(load_eight(light, block // TWO * k + LANES * start, LANES))
            store_eight(lights, first + start, w, rows)
        for c in range(ZERO, LANES * w, LANES):
            top = larger(magnitude(load(total, block * k + TWO * c)), top)
            top = larger(magnitude(load(total, block * k + TWO * c + LANES)), top)
            light_top = larger(load(light, block // TWO * k + c), light_top)
    reached[OBJECT] = max(reached[OBJECT], highest(top))
    reached[OBJECT_WEIGHT] = max(reached[OBJECT_WEIGHT], highest(light_top))
