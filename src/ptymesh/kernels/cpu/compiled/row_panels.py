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

from typing import NamedTuple

from ptymesh.kernels.arrays import ComplexArray, RealArray, Tables
from ptymesh.kernels.cpu.compiled.column_panels import (
    ONE,
    PAIR,
    TWO,
    WIDTH,
    ZERO,
    U,
    WavePlanes,
    WindowPlace,
    WindowTransform,
    panel_pixels,
    plane_of,
    row_panel_back,
    row_panel_from,
    row_panel_in,
    row_panel_out,
    transform_in,
    transform_row,
)
from ptymesh.kernels.cpu.compiled.jit import inlined
from ptymesh.kernels.cpu.compiled.vectors import (
    LANES,
    Vector,
    broadcast,
    highest,
    larger,
    load,
    load_eight,
    magnitude,
    store,
    store_eight,
    transposed,
)
from ptymesh.physics.kinds import OBJECT, OBJECT_WEIGHT

#: Ways through rows; numbers, as functions are compiled anew for True and for False.
ON, BACK = ZERO, ONE


class RowPanels(NamedTuple):
    """Row panels that belong to a slice, which waves go through.

    Attributes:
        late: a second row.
        window: the object's window.
        beams: conjugates of all modes that enter the slice.
        total: the gathered window.
        light: its light.
    """

    late: RealArray
    window: RealArray
    beams: RealArray
    total: RealArray
    light: RealArray


class Passage(NamedTuple):
    """The way of waves through a slice, and what is done on it.

    Attributes:
        way: ON or BACK.
        plain: True if nobody has shifted the probes.
        keep: True to write the waves, too.
    """

    way: int
    plain: bool
    keep: bool


class SystemsWork(NamedTuple):
    """Workspace of a band where several waves are carried on together.

    Attributes:
        fourier: the transform.
        planes: planes of all waves.
        rows: real, rows of all waves, the same again, and another row.
        windows: row panels of objects.
    """

    fourier: WindowTransform
    planes: WavePlanes
    rows: tuple[RealArray, RealArray, RealArray]
    windows: RealArray


@inlined
def count_row_panels(h: int) -> int:
    """Return the number of row panels of a wave."""
    return (h + LANES - ONE) // LANES


@inlined
def first_row_of(k: int, h: int) -> int:
    """Return the first row of the k-th eight."""
    if h % LANES == 0:
        return LANES * k
    return h - LANES if k == 0 else LANES * (k - ONE)


@inlined
def row_panels_of(room: RealArray, l: int, L: int, M: int, h: int, w: int) -> RowPanels:
    """Return what lies behind the planes: a second row, and row panels of a slice.

    Args:
        room: (k,) real, workspace behind the planes.
        l: which slice.
        L: number of slices.
        M: number of modes.
        h: rows of a window.
        w: columns of a window.
    """
    wide = (w + LANES - ONE) // LANES * LANES
    row, size = PAIR * wide, PAIR * wide * count_row_panels(h)
    window, modes, total = row + size * l, row + size * (L + M * l), row + size * L * (M + ONE)
    light = total + size
    return RowPanels(
        room[:row],
        room[window : window + size],
        room[modes : modes + size * M],
        room[total:light],
        room[light : light + size // TWO],
    )


def systems_work_size(waves: int, windows: int, h: int, w: int) -> int:
    """Return the number of reals that a band works in where several waves are carried on together
    (`split_systems_work`).

    Args:
        waves: number of waves.
        windows: number of windows.
        h: rows of a window.
        w: columns of a window.
    """
    rows = 4 * (panel_pixels(WIDTH, w) + WIDTH * max(h, w)) + 2 * (2 * waves + 1) * panel_pixels(WIDTH, w)
    return rows + 2 * waves * panel_pixels(h, w) + 2 * windows * panel_pixels(h + -h % WIDTH, w)


@inlined
def split_systems_work(work: RealArray, waves: int, h: int, w: int, tables: Tables) -> SystemsWork:
    """Divide a band's workspace where several waves are carried on together.

    Args:
        work: (k,) real, workspace of a band.
        waves: number of waves.
        h: rows of a window.
        w: columns of a window.
        tables: constants, plan and twiddles of the transform.
    """
    fourier, at = transform_in(work, ZERO, h, w, tables)
    wide = (w + LANES - ONE) // LANES * LANES
    block, start = PAIR * wide, at + TWO * waves * h * wide
    late, other = start + block * waves, start + TWO * block * waves
    return SystemsWork(
        fourier,
        WavePlanes(work[at:start], h * wide, waves),
        (work[start:late], work[late:other], work[other : other + block]),
        work[other + block :],
    )


@inlined
def rows_on(
    rows: RealArray, planes: WavePlanes, begin: int, end: int, first: int, overlaps: bool, fourier: WindowTransform
) -> None:
    """Transform rows of several waves, and write them to their planes, unless they overlap rows that are still to be
    read.

    Args:
        rows: real, rows of several waves, read and overwritten.
        planes: planes of the waves.
        begin: first of the waves.
        end: one after the last of the waves.
        first: first of the eight rows.
        overlaps: True if they overlap rows that are still to be read.
        fourier: the transform.
    """
    block = PAIR * ((fourier.w + LANES - ONE) // LANES * LANES)
    for k in range(begin, end):
        transform_row(rows, block * k, fourier)
    if not overlaps:
        rows_to_planes(rows, planes, begin, end, first, fourier)


@inlined
def rows_to_planes(
    rows: RealArray, planes: WavePlanes, begin: int, end: int, first: int, fourier: WindowTransform
) -> None:
    """Write rows of several waves to their planes.

    Args:
        rows: real, rows of several waves, read and overwritten.
        planes: planes of the waves.
        begin: first of the waves.
        end: one after the last of the waves.
        first: first of the eight rows.
        fourier: the transform.
    """
    h, w = fourier.h, fourier.w
    block = PAIR * ((w + LANES - ONE) // LANES * LANES)
    for k in range(begin, end):
        row_panel_back(rows, block * k, plane_of(planes, k), first, h, w)


@inlined
def window_in(window: WindowPlace, ahead: int, out: RealArray) -> None:
    """Copy a window of the object to row panels.

    Args:
        window: the window in the first slice.
        ahead: reals from there to the same window of another slice.
        out: row panels, written.
    """
    w, place, stride = window.w, window.place + ahead, window.stride
    block = PAIR * ((w + LANES - ONE) // LANES * LANES)
    for k in range(count_row_panels(window.h)):
        row_panel_in(window.array, place + stride * first_row_of(U(k), window.h), stride, w, out, block * U(k))


@inlined
def _multiply_by_object(row: RealArray, at: int, w: int, minus: Vector, window: RealArray, beam: RealArray) -> None:
    """Write a row of conjugate probes to row panels, from number `at` on, and multiply it by the object."""
    for i in range(ZERO, PAIR * w, PAIR):
        a, b, o = load(row, i), minus * load(row, i + LANES), at + i
        store(beam, o, a)
        store(beam, o + LANES, b)
        s, t = load(window, o), load(window, o + LANES)
        store(row, i, a * s - b * t)
        store(row, i + LANES, a * t + b * s)


@inlined
def _multiply_back(
    row: RealArray, at: int, f: float, m: int, beam: RealArray, row_panels: RowPanels, fourier: WindowTransform
) -> None:
    """Turn a row of conjugate waves chi into f conj(O) chi; total = or += conj(P) chi, light = or += |P|^2.

    Gathering begins with mode m = 0.
    """
    _, window, _, total, light = row_panels
    by, minus, first = broadcast(f), broadcast(-fourier.twiddles[0, 0]), m == ZERO
    for i in range(ZERO, PAIR * fourier.w, PAIR):
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
    plane: RealArray,
    passage: Passage,
    f: float,
    m: int,
    fourier: WindowTransform,
    row_panels: RowPanels,
    wave: WindowPlace,
) -> None:
    """Take mode m through a slice, or back through it, eight rows at a time and in place.

    The plane's columns are transformed before and after. On the way ON to the detector waves that enter the slice
    become those that leave it. On the way BACK chi becomes f conj(O) chi, and its share of the window is gathered.

    Args:
        plane: (2 h w',) real, columns transformed; for a plain passage the waves themselves before the way ON and after
            the way BACK.
        passage: way, and what is done on it.
        f: amplitude by which chi is multiplied.
        m: which mode.
        fourier: the transform.
        row_panels: from `row_panels_of`.
        wave: written if the passage keeps waves.
    """
    (way, plain, keep), h, w = passage, fourier.h, fourier.w
    block = PAIR * ((w + LANES - ONE) // LANES * LANES)
    size, minus = block * count_row_panels(h), broadcast(-fourier.twiddles[0, 0])
    beam = row_panels.beams[size * m : size * (m + ONE)]
    for i in range(count_row_panels(h)):
        k = U(i)
        first, overlaps = first_row_of(k, h), h % LANES > 0 and i == 0
        eight = row_panels.late if overlaps else fourier.row
        row_panel_from(plane, first, h, w, eight, ZERO)
        if way == BACK or not plain:
            transform_row(eight, ZERO, fourier)
        if keep:
            row_panel_out(eight, ZERO, w, minus, wave.array, wave.place + TWO * w * first)
        if way == BACK:
            _multiply_back(eight, block * k, f, m, beam, row_panels, fourier)
        else:
            _multiply_by_object(eight, block * k, w, minus, row_panels.window, beam)
        if way == ON or not plain:
            transform_row(eight, ZERO, fourier)
        if not overlaps:  # rows that are still to be taken out
            row_panel_back(eight, ZERO, plane, first, h, w)
    if h % LANES > 0:
        row_panel_back(row_panels.late, ZERO, plane, h - LANES, h, w)


@inlined
def windows_out(
    row_panels: RowPanels,
    fourier: WindowTransform,
    windows: ComplexArray,
    lights: RealArray,
    pixel: int,
    reached: RealArray,
) -> None:
    """Write what has been gathered from row panels to a window of complex and one of real pixels.

    Args:
        row_panels: what has been gathered.
        fourier: the transform.
        windows: complex, written.
        lights: real, written.
        pixel: index of the first pixel in both.
        reached: (n,) float64, largest terms so far by kind of sum, updated.
    """
    h, w, one, total, light = (
        fourier.h,
        fourier.w,
        broadcast(fourier.twiddles[0, 0]),
        row_panels.total,
        row_panels.light,
    )
    block = PAIR * ((w + LANES - ONE) // LANES * LANES)
    top = light_top = one - one
    for i in range(count_row_panels(h)):
        k, first = U(i), pixel + w * first_row_of(U(i), h)
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
