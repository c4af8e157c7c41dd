"""What a view asks of the background, added to sums: a part of what kernels of the detector do.

S, y, b, at, own, constants   see comparison.py;  h w'   numbers of a plane, panel after panel
told                          sums (bands, 4 h w'), of slopes, darkness, and both again in a second part; shifts (2, 2),
                              limits (2,); of no bands where nothing is told

The equations are those of physics/background.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ptymesh.kernels.column_panels import ONE, TWO, ZERO
from ptymesh.kernels.jit import inlined
from ptymesh.kernels.vectors import LANES, add_rounded, load, spread


@inlined
def tell(
    size: int,
    S: Any,
    slope: Any,
    own: int,
    y: Any,
    b: Any,
    at: int,
    constants: Any,
    counts: float,
    kind: int,
    band: int,
    told: Any,
) -> None:
    """Adds what a panel asks for, of a view with so many counts; nobody needs its S and `slope` any more."""
    sums, shifts, limits = told
    plane, mine = np.uint64(len(b)), sums[band]
    _slopes(size, S, slope, own, y, b, at, constants, constants[8] * counts, kind)
    for k, of in ((ZERO, slope), (ONE, S)):
        limit, shift, fine = limits[k], spread(shifts[k, 0]), spread(shifts[k, 1])
        for i in range(size):
            of[own + i] = min(max(of[own + i], -limit), limit)
        for i in range(ZERO, size, LANES):
            add_rounded(mine, plane * k + at + i, TWO * plane, load(of, own + i), shift, fine)


@inlined
def _slopes(
    size: int,
    S: Any,
    slope: Any,
    own: int,
    y: Any,
    b: Any,
    at: int,
    constants: Any,
    faint: float,
    kind: int,
) -> None:
    """dL/dI, and in the place of S darkness; faint: what I counts as at least."""
    zero, one, least = constants[0], constants[1], max(constants[9] * faint, constants[2])
    for i in range(size):
        S[own + i] = max(max(S[own + i], faint - b[at + i]), least) + b[at + i]
    if kind == 0:
        for i in range(size):
            root = np.sqrt(y[at + i] / S[own + i]) if y[at + i] >= zero else one
            slope[own + i] = one - root
    elif kind == 1:
        for i in range(size):
            slope[own + i] = one - y[at + i] / S[own + i] if y[at + i] >= zero else zero
    else:
        for i in range(size):
            slope[own + i] = (one + one) * (S[own + i] - y[at + i]) if y[at + i] >= zero else zero
    for i in range(size):
        S[own + i] = one / np.sqrt(S[own + i]) if y[at + i] >= zero else zero
