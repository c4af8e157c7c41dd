"""Waves of a view carried on within its planes: from slice to slice, and to a detector in the near field.

h, w         window pixels;  h, w >= 8
kernel       (2 h w',) real, a transfer function over h w, panel after panel, with the scale of both transforms
panel, plane, row   see column_panels.py;  down, across   see shifts.py

Between rows that were transformed and rows that are to be transformed back, a wave needs its columns alone: they are
transformed, multiplied and transformed back eight at a time, while they are in the first cache.
"""

from __future__ import annotations

from ptymesh.kernels.arrays import IntArray, RealArray
from ptymesh.kernels.cpu.compiled.column_panels import PAIR, TWO, ZERO, row_panel_back, row_panel_from, transform
from ptymesh.kernels.cpu.compiled.jit import inlined
from ptymesh.kernels.cpu.compiled.row_panels import count_row_panels, first_row_of
from ptymesh.kernels.cpu.compiled.shifts import turned_by
from ptymesh.kernels.cpu.compiled.vectors import LANES, Vector, broadcast, load, store


@inlined
def columns_through(
    plane: RealArray,
    kernel: RealArray,
    sign: float,
    ramped: bool,
    down: RealArray,
    across: RealArray,
    h: int,
    w: int,
    spare: RealArray,
    plan: IntArray,
    twiddles: RealArray,
) -> None:
    """Propagate waves whose rows are transformed: transform columns, multiply by the kernel, transform back. They are
    conjugate afterwards.

    Args:
        plane: (2 h w',) real, rows transformed; changed in place.
        kernel: (2 h w',) real, transfer function.
        sign: 1, or -1 for the conjugate kernel, which is the adjoint.
        ramped: True to multiply by the factors down and across, too.
        down: (2, h) real, factors of rows.
        across: (2, w') real, factors of columns.
        h: rows of a window.
        w: columns of a window.
        spare: (4 max(h, w) 8,) real, workspace of `transform`.
        plan: (2, k) int64, radices by axis.
        twiddles: (2, 2 max(h, w)) real, by axis.
    """
    minus = broadcast(-sign)
    for start in range(ZERO, w, LANES):
        at = TWO * h * start
        transform(plane, at, spare, h, plan[0], twiddles[0])
        if ramped:
            c, d = load(across[0], start), load(across[1], start)
            for r in range(h):
                p, q = turned_by(plane, at + PAIR * r, c, d, down, r)
                store(plane, at + PAIR * r, p)
                store(plane, at + PAIR * r + LANES, q)
        panel_through(plane, at, kernel, minus, h, spare, plan, twiddles)


@inlined
def panel_through(
    plane: RealArray,
    at: int,
    kernel: RealArray,
    minus: Vector,
    h: int,
    spare: RealArray,
    plan: IntArray,
    twiddles: RealArray,
) -> None:
    """Multiply a panel in Fourier space by the kernel, and transform it back. It is conjugate afterwards.

    Args:
        plane: (2 h w',) real, a wave panel after panel.
        at: index of the panel's first number in `plane`.
        kernel: (2 h w',) real, transfer function.
        minus: vector of -1, or of 1 for the conjugate kernel.
        h: rows of a window.
        spare: (4 max(h, w) 8,) real, workspace of `transform`.
        plan: (2, k) int64, radices by axis.
        twiddles: (2, 2 max(h, w)) real, by axis.
    """
    turn = broadcast(-twiddles[0, 0])
    for i in range(at, at + PAIR * h, PAIR):
        p, q, s, t = load(plane, i), load(plane, i + LANES), load(kernel, i), minus * load(kernel, i + LANES)
        store(plane, i, p * s + q * t)
        store(plane, i + LANES, p * t + turn * (q * s))
    transform(plane, at, spare, h, plan[0], twiddles[0])


@inlined
def transform_rows(
    plane: RealArray,
    h: int,
    w: int,
    row: RealArray,
    late: RealArray,
    spare: RealArray,
    plan: IntArray,
    twiddles: RealArray,
) -> None:
    """Transform the rows of a plane, in place.

    Args:
        plane: (2 h w',) real, a wave panel after panel.
        h: rows of a window.
        w: columns of a window.
        row: (2 w' 8,) real, workspace of eight rows.
        late: (2 w' 8,) real, workspace of a second eight rows.
        spare: (4 max(h, w) 8,) real, workspace of `transform`.
        plan: (2, k) int64, radices by axis.
        twiddles: (2, 2 max(h, w)) real, by axis.
    """
    for i in range(count_row_panels(h)):
        first, overlaps = first_row_of(i, h), h % LANES > ZERO and i == 0
        eight = late if overlaps else row
        row_panel_from(plane, first, h, w, eight, ZERO)
        transform(eight, ZERO, spare, w, plan[1], twiddles[1])
        if not overlaps:  # rows that are still to be taken out
            row_panel_back(eight, ZERO, plane, first, h, w)
    if h % LANES > ZERO:
        row_panel_back(late, ZERO, plane, h - LANES, h, w)
