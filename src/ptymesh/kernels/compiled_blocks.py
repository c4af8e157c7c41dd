"""Loops over the blocks of an object that a batch touches, compiled by numba for this CPU. `blocks.py` calls them.

L, H, W   slices, object pixels;  n  blocks;  b  side of a block
rows, columns   (n,) int64, block coordinates

Blocks are independent of each other. All functions stand in this one file, as those of compiled.py do in theirs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from ptymesh.kernels.compiled import inlined, parallel

#: What `write` can do; registers are a complex C and a real R.
LOAD_C, LOAD_R, C_BY_NUMBER, R_BY_NUMBER, R_AND_NUMBER, C_AND_C, R_AND_R, R_BY_R, R_OVER_R, C_BY_R, C_OVER_R, ROOT_R = (
    range(12)
)
#: Registers of either kind, and fields of either kind that a program may load.
REGISTERS, COMPLEX_FIELDS, REAL_FIELDS = 4, 2, 2
SIDE = 32


@inlined
def _load(field: Any, l: int, y: int, x: int, out: Any) -> None:
    for r in range(SIDE):
        source = field[l, y * SIDE + r, x * SIDE : x * SIDE + SIDE]
        into = out[r * SIDE : r * SIDE + SIDE]
        for c in range(SIDE):
            into[c] = source[c]


@inlined
def _operate(op: int, c: Any, d: Any, r: Any, s: Any, number: float) -> None:
    """Registers c, d complex and r, s real; the first of each is changed."""
    size = SIDE * SIDE
    if op == C_BY_NUMBER:
        for i in range(size):
            c[i] = c[i] * number
    elif op == R_BY_NUMBER:
        for i in range(size):
            r[i] = r[i] * number
    elif op == R_AND_NUMBER:
        for i in range(size):
            r[i] = r[i] + number
    elif op == C_AND_C:
        for i in range(size):
            c[i] = c[i] + d[i]
    elif op == R_AND_R:
        for i in range(size):
            r[i] = r[i] + s[i]
    elif op == R_BY_R:
        for i in range(size):
            r[i] = r[i] * s[i]
    elif op == R_OVER_R:
        for i in range(size):
            r[i] = r[i] / s[i]
    elif op == C_BY_R:
        for i in range(size):
            c[i] = c[i] * s[i]
    elif op == C_OVER_R:
        for i in range(size):
            c[i] = c[i] * (number / s[i])
    elif op == ROOT_R:
        for i in range(size):
            r[i] = np.sqrt(r[i])


@inlined
def _write(
    i: int, program: Any, numbers: Any, c0: Any, c1: Any, r0: Any, r1: Any, places: Any, add: bool, target: Any
) -> None:
    C, R = np.empty((REGISTERS, SIDE * SIDE), c0.dtype), np.empty((REGISTERS, SIDE * SIDE), r0.dtype)
    for l in range(target.shape[0]):
        for k in range(len(program)):
            op, a, b = program[k, 0], program[k, 1], program[k, 2]
            if op == LOAD_C:
                _load(c0 if b == 0 else c1, l, places[b, 0, i], places[b, 1, i], C[a])
            elif op == LOAD_R:
                place = COMPLEX_FIELDS + b
                _load(r0 if b == 0 else r1, l, places[place, 0, i], places[place, 1, i], R[a])
            else:
                _operate(op, C[a], C[b], R[a], R[b], numbers[k, l])
        y, x = places[-1, 0, i], places[-1, 1, i]
        for r in range(SIDE):
            into, row = target[l, y * SIDE + r, x * SIDE : x * SIDE + SIDE], C[0, r * SIDE : r * SIDE + SIDE]
            if add:
                for c in range(SIDE):
                    into[c] += row[c]
            else:
                for c in range(SIDE):
                    into[c] = row[c]


@parallel
def write(program: Any, numbers: Any, c0: Any, c1: Any, r0: Any, r1: Any, places: Any, add: bool, target: Any) -> None:
    """target = (or +=) what the program leaves in the first complex register, on the blocks `places[-1]`.

    program: (k, 3) operation and two registers, or for loads a register and a field; numbers: (k, L) real, an
    operation's number in each slice. Fields (L, H', W'); places (5, 2, n): block coordinates y x in each field, then in
    the target.
    """
    for i in prange(places.shape[2]):
        _write(np.int64(i), program, numbers, c0, c1, r0, r1, places, add, target)


@inlined
def _clear(i: int, rows: Any, columns: Any, field: Any, weight: Any) -> None:
    y, x = rows[i] * SIDE, columns[i] * SIDE
    for l in range(len(field)):
        for r in range(SIDE):
            field[l, y + r, x : x + SIDE] = 0
            weight[l, y + r, x : x + SIDE] = 0


@parallel
def clear(rows: Any, columns: Any, field: Any, weight: Any) -> None:
    """Complex and real fields (L, H, W) become 0 on the blocks."""
    for i in prange(len(rows)):
        _clear(np.int64(i), rows, columns, field, weight)


@inlined
def _largest(i: int, rows: Any, columns: Any, field: Any, out: Any) -> None:
    y, x = rows[i] * SIDE, columns[i] * SIDE
    tops = np.empty(SIDE, out.dtype)  # of columns: one top for all would be found pixel after pixel
    for l in range(len(field)):
        for c in range(SIDE):
            tops[c] = field[l, y, x + c]
        for r in range(1, SIDE):
            row = field[l, y + r, x : x + SIDE]
            for c in range(SIDE):
                tops[c] = row[c] if row[c] > tops[c] else tops[c]
        top = tops[0]
        for c in range(1, SIDE):
            top = max(top, tops[c])
        out[l, i] = top


@parallel
def largest(rows: Any, columns: Any, field: Any, out: Any) -> None:
    """out (L, n): the largest value of a real field (L, H, W) in each block."""
    for i in prange(len(rows)):
        _largest(np.int64(i), rows, columns, field, out)


#: See compiled.SIGNATURES.
SIGNATURES = {write: "i2 r2 c3 c3 r3 r3 i3 b c3", clear: "i1 i1 c3 r3", largest: "i1 i1 r3 r2"}
