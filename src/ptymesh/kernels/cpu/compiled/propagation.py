"""Waves of a view carried on within its planes: from slice to slice, and to a detector in the near field.

h, w         window pixels;  h, w >= 8
kernel       (2 h w',) real, a transfer function over h w, panel after panel, with the scale of both transforms
panel, plane, row   see column_panels.py

Between rows that were transformed and rows that are to be transformed back, a wave needs its columns alone: they are
transformed, multiplied and transformed back eight at a time, while they are in the first cache.
"""

from __future__ import annotations

from ptymesh.kernels.arrays import RealArray
from ptymesh.kernels.cpu.compiled.column_panels import (
    PAIR,
    TWO,
    ZERO,
    WindowTransform,
    row_panel_back,
    row_panel_from,
    transform_panel,
    transform_row,
)
from ptymesh.kernels.cpu.compiled.jit import inlined
from ptymesh.kernels.cpu.compiled.row_panels import count_row_panels, first_row_of
from ptymesh.kernels.cpu.compiled.shifts import Ramps, turned_by
from ptymesh.kernels.cpu.compiled.vectors import LANES, Vector, broadcast, load, store


@inlined
def columns_through(
    plane: RealArray,
    kernel: RealArray,
    sign: float,
    ramped: bool,
    factors: Ramps,
    fourier: WindowTransform,
) -> None:
    """Propagate waves whose rows are transformed: transform columns, multiply by the kernel, transform back. They are
    conjugate afterwards.

    Args:
        plane: (2 h w',) real, rows transformed; changed in place.
        kernel: (2 h w',) real, transfer function.
        sign: 1, or -1 for the conjugate kernel, which is the adjoint.
        ramped: True to multiply by the factors, too.
        factors: of rows and columns.
        fourier: the transform.
    """
    h, w, (down, across, _), minus = fourier.h, fourier.w, factors, broadcast(-sign)
    for start in range(ZERO, w, LANES):
        at = TWO * h * start
        transform_panel(plane, at, fourier)
        if ramped:
            c, d = load(across[0], start), load(across[1], start)
            for r in range(h):
                p, q = turned_by(plane, at + PAIR * r, c, d, down, r)
                store(plane, at + PAIR * r, p)
                store(plane, at + PAIR * r + LANES, q)
        panel_through(plane, at, kernel, minus, fourier)


@inlined
def panel_through(plane: RealArray, at: int, kernel: RealArray, minus: Vector, fourier: WindowTransform) -> None:
    """Multiply a panel in Fourier space by the kernel, and transform it back. It is conjugate afterwards.

    Args:
        plane: (2 h w',) real, a wave panel after panel.
        at: index of the panel's first number in `plane`.
        kernel: (2 h w',) real, transfer function.
        minus: vector of -1, or of 1 for the conjugate kernel.
        fourier: the transform.
    """
    turn = broadcast(-fourier.twiddles[0, 0])
    for i in range(at, at + PAIR * fourier.h, PAIR):
        p, q, s, t = load(plane, i), load(plane, i + LANES), load(kernel, i), minus * load(kernel, i + LANES)
        store(plane, i, p * s + q * t)
        store(plane, i + LANES, p * t + turn * (q * s))
    transform_panel(plane, at, fourier)


@inlined
def transform_rows(plane: RealArray, late: RealArray, fourier: WindowTransform) -> None:
    """Transform the rows of a plane, in place.

    Args:
        plane: (2 h w',) real, a wave panel after panel.
        late: (2 w' 8,) real, workspace of a second eight rows.
        fourier: the transform.
    """
    h, w = fourier.h, fourier.w
    for i in range(count_row_panels(h)):
        first, overlaps = first_row_of(i, h), h % LANES > ZERO and i == 0
        eight = late if overlaps else fourier.row
        row_panel_from(plane, first, h, w, eight, ZERO)
        transform_row(eight, ZERO, fourier)
        if not overlaps:  # rows that are still to be taken out
            row_panel_back(eight, ZERO, plane, first, h, w)
    if h % LANES > ZERO:
        row_panel_back(late, ZERO, plane, h - LANES, h, w)
