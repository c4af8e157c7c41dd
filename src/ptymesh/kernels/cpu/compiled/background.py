"""Terms of the background's sums: a part of the detector's kernel.

constants   see comparison.py;  h w'   numbers of a plane, panel after panel
background_sums               sums (bands, 4 h w'), of slopes, darkness, and both again in a second part; shifts
                              (2, 2), limits (2,); no bands if the background stays as it is

The equations are those of physics/background.py.
"""

from __future__ import annotations

import numpy as np

from ptymesh.kernels.arrays import BackgroundArrays, RealArray
from ptymesh.kernels.cpu.compiled.column_panels import ONE, TWO, ZERO
from ptymesh.kernels.cpu.compiled.comparison import Panel
from ptymesh.kernels.cpu.compiled.jit import inlined
from ptymesh.kernels.cpu.compiled.vectors import LANES, add_rounded, broadcast, load


@inlined
def add_background_terms(
    panel: Panel, constants: RealArray, counts: float, kind: int, band: int, background_sums: BackgroundArrays
) -> None:
    """Add a panel's slopes and darkness to the background's sums. `S` and `change` are overwritten.

    Args:
        panel: powers, counts and background.
        constants: (10,) real, see comparison.py.
        counts: sum of the view's counts.
        kind: fidelity, see comparison.KINDS.
        band: index of the thread's band.
        background_sums: sums, shifts and limits, see the module.
    """
    (sums, shifts, limits), (size, S, slope, own, _, b, at) = background_sums, panel
    plane, mine = np.uint64(len(b)), sums[band]
    _slopes(panel, constants, constants[8] * counts, kind)
    for k, of in ((ZERO, slope), (ONE, S)):
        limit, shift, fine = limits[k], broadcast(shifts[k, 0]), broadcast(shifts[k, 1])
        for i in range(size):
            of[own + i] = min(max(of[own + i], -limit), limit)
        for i in range(ZERO, size, LANES):
            add_rounded(mine, plane * k + at + i, TWO * plane, load(of, own + i), shift, fine)


@inlined
def _slopes(panel: Panel, constants: RealArray, faint: float, kind: int) -> None:
    """Write dL/dI, and darkness in the place of S; `faint` is the least that I counts as."""
    size, S, slope, own, y, b, at = panel
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
