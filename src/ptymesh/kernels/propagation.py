"""Waves of a view carried on within its planes: from slice to slice, and to a detector in the near field.

h, w         window pixels;  h, w >= 8
kernel       (2 h w',) real, a transfer function over h w, panel after panel, with the scale of both transforms
panel, plane, row   see column_panels.py;  down, across   see shifts.py

Between rows that were transformed and rows that are to be transformed back, a wave needs its columns alone: they are
transformed, multiplied and transformed back eight at a time, while they are in the first cache.
"""

from __future__ import annotations

from typing import Any

from ptymesh.kernels.column_panels import PAIR, TWO, ZERO, row_panel_back, row_panel_from, transform
from ptymesh.kernels.jit import inlined
from ptymesh.kernels.row_panels import counted, first_of
from ptymesh.kernels.shifts import turned_by
from ptymesh.kernels.vectors import LANES, load, spread, store


@inlined
def columns_through(
    plane: Any,
    kernel: Any,
    sign: float,
    ramped: bool,
    down: Any,
    across: Any,
    h: int,
    w: int,
    spare: Any,
    plan: Any,
    twiddles: Any,
) -> None:
    """Columns of waves whose rows are transformed, to Fourier space, times the kernel, and back; conjugate then.

    sign: 1, or -1 for the conjugate kernel, which is the adjoint; ramped: whether times factors down and across, too.
    """
    minus = spread(-sign)
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
def panel_through(plane: Any, at: int, kernel: Any, minus: Any, h: int, spare: Any, plan: Any, twiddles: Any) -> None:
    """A panel in Fourier space that starts at number `at`, times the kernel, and back; conjugate then. minus: -1, or 1
    for the conjugate kernel."""
    turn = spread(-twiddles[0, 0])
    for i in range(at, at + PAIR * h, PAIR):
        p, q, s, t = load(plane, i), load(plane, i + LANES), load(kernel, i), minus * load(kernel, i + LANES)
        store(plane, i, p * s + q * t)
        store(plane, i + LANES, p * t + turn * (q * s))
    transform(plane, at, spare, h, plan[0], twiddles[0])


@inlined
def rows_transformed(plane: Any, h: int, w: int, row: Any, late: Any, spare: Any, plan: Any, twiddles: Any) -> None:
    """Rows of a plane, in place; late: room for a second row."""
    for i in range(counted(h)):
        first, overlaps = first_of(i, h), h % LANES > ZERO and i == 0
        eight = late if overlaps else row
        row_panel_from(plane, first, h, w, eight, ZERO)
        transform(eight, ZERO, spare, w, plan[1], twiddles[1])
        if not overlaps:  # rows that are still to be taken out
            row_panel_back(eight, ZERO, plane, first, h, w)
    if h % LANES > ZERO:
        row_panel_back(late, ZERO, plane, h - LANES, h, w)
