"""The loop that adds windows in fixed point (parallel/exact.py), compiled by numba for this CPU.

B, C, P   views, channels, parts of a number (1, or 2 of a complex one);  h, w; H, W  windows, array

None of the liberties are taken that compiled.py takes with sums: there are no sums of floats here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from ptymesh.kernels.jit import WITHIN, parallel

#: Called by the others alone, and kept with them.
alone: Any = njit(error_model="numpy", nogil=True, **WITHIN)


@alone
def _add_fixed(plane: int, values: Any, corners: Any, numbers: Any, out: Any, beyond: Any) -> None:
    B, C, h, w = values.shape[:4]
    part, channel = plane // C, plane % C
    scale, fine, limit = numbers[0], numbers[1], numbers[2]
    count = 0
    for j in range(B):
        y, x = corners[j, 0], corners[j, 1]
        for r in range(h):
            row = values[j, channel, r, :, part]
            whole, rest = out[0, part, channel, y + r, x : x + w], out[1, part, channel, y + r, x : x + w]
            for c in range(w):
                v = row[c] * scale
                a = np.rint(v)
                count += 0 if abs(v) <= limit else 1
                whole[c] += np.int64(a)
                rest[c] += np.int64(np.rint((v - a) * fine))
    beyond[plane] = count


@parallel
def add_fixed(values: Any, corners: Any, numbers: Any, out: Any, beyond: Any) -> None:
    """Adds values (B, C, h, w, P) at corners (B, 2) into out (2, P, C, H, W) int64; beyond (P C,): how many are not
    within the limit. numbers: scale, 2^bits, limit."""
    for i in prange(len(beyond)):
        _add_fixed(np.int64(i), values, corners, numbers, out, beyond)


#: See compiled.SIGNATURES.
SIGNATURES = {add_fixed: "r5 i2 r1 i5 i1"}
