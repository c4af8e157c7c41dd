"""Powers on the detector compared with counts, for each fidelity: what kernels of the detector are made of.

S, y, b      power of the waves, counts (-1 where there are no data), background: planes (h w',), panel after panel
kind         of the fidelity, see KINDS;  constants: real 0, 1, DARK, sqrt(DARK), BRIGHTEST_RATIO, Newton steps,
             scale of the transform, UNLIT over the window's pixels; of backgrounds FAINT over these, FAINTEST
least        power below which a pixel of the view has no light

The equations are those of physics/fidelity.py.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ptymesh.kernels.arrays import CountArray, IntArray, RealArray
from ptymesh.kernels.cpu.compiled.column_panels import ZERO, U
from ptymesh.kernels.cpu.compiled.jit import inlined
from ptymesh.kernels.cpu.compiled.vectors import LANES, broadcast, load, load_as, store, total, where_at_least

#: Pixels that are summed in the precision of the waves before they join a sum in double precision.
PART = U(1024)
#: Patterns of these dtypes are read as they are, others as floats. One function reads them all: `detector` is large,
#: and to compile it for each dtype would take a minute.
NATIVE = ("uint8", "uint16", "uint32", "float32", "float64")
#: Fidelities as numbers.
KINDS = {"amplitude": 0, "poisson": 1, "intensity": 2}


class Panel(NamedTuple):
    """Eight columns of powers and of what they are compared with.

    Attributes:
        size: pixels of the panel.
        S: real, power of the waves.
        change: real, factor by which waves are to change.
        own: index of the panel in `S` and `change`.
        y: (h w',) real, counts, -1 where there are no data.
        b: (h w',) real, background.
        at: index of the panel in `y` and `b`.
    """

    size: int
    S: RealArray
    change: RealArray
    own: int
    y: RealArray
    b: RealArray
    at: int


@inlined
def _data(counts: CountArray, h: int, w: int, good: RealArray, constants: RealArray, out: RealArray) -> float:
    """Write counts (h, w), panel after panel, as real numbers, -1 where there are no data; return their sum."""
    zero, one, none = broadcast(constants[0]), broadcast(constants[1]), broadcast(-constants[1])
    sums = zero
    for start in range(ZERO, w, LANES):
        for r in range(h):
            i, o = w * r + start, h * start + r * LANES
            if start + LANES <= w:
                store(out, o, load_as(counts, i, out))
            else:
                for c in range(w - start):
                    out[o + c] = counts[r, start + c]
            y = where_at_least(load(good, o), one, load(out, o), none)
            store(out, o, where_at_least(y, zero, y, none))  # NaN is no datum either
            sums = sums + where_at_least(y, zero, y, zero)
    return total(sums)


@inlined
def counts_in_panels(
    counts: IntArray, code: int, h: int, w: int, good: RealArray, constants: RealArray, out: RealArray
) -> float:
    """Write a pattern, panel after panel, as real numbers, -1 where there are no data; return the sum of its data.

    Args:
        counts: (h, w times the bytes of one) uint8.
        code: dtype of the counts, its place in NATIVE.
        h: rows of a window.
        w: columns of a window.
        good: (h w',) real, 1 where pixels are used, panel after panel.
        constants: (10,) real, see the module.
        out: (h w',) real, written.
    """
    if code == 0:
        return _data(counts, h, w, good, constants, out)
    if code == 1:
        return _data(counts.view(np.uint16), h, w, good, constants, out)
    if code == 2:
        return _data(counts.view(np.uint32), h, w, good, constants, out)
    if code == 3:
        return _data(counts.view(np.float32), h, w, good, constants, out)
    return _data(counts.view(np.float64), h, w, good, constants, out)


@inlined
def compare(panel: Panel, constants: RealArray, least: float, kind: int, task: int, terms: RealArray) -> None:
    """Add a panel's terms to the sums of a view, and write the factor by which its waves are to change.

    For Newton steps the factor is the direction of the step.

    Args:
        panel: powers, counts and background; `change` is written.
        constants: (10,) real, see comparison.py.
        least: power below which a pixel has no light.
        kind: fidelity, see KINDS.
        task: 0, 1 or 2, see detector.py.
        terms: (6,) float64, of the view; see Backend.at_detector.
    """
    size, S, change, own, y, b, at = panel
    zero, one, dark, dark_root = constants[0], constants[1], constants[2], constants[3]
    misfit, total, absolute, roots, squares = zero, zero, zero, zero, zero
    for i in range(size):
        good = y[at + i] >= zero
        counts = y[at + i] if good else zero
        root_y, root_I = np.sqrt(counts), np.sqrt(S[own + i] + b[at + i])
        difference = root_I - root_y if good else zero
        misfit += difference * difference
        absolute += abs(difference)
        total += counts
        roots += root_y
        squares += counts * counts
        change[own + i] = root_y / max(root_I, dark_root) - one if good and S[own + i] >= least else zero
    terms[1] += misfit
    terms[2] += total
    terms[3] += absolute
    terms[4] += roots
    terms[5] += squares
    if kind == 0:
        terms[0] += misfit
    else:
        terms[0] += _loss(kind, panel, dark, zero)
        _slope(kind, panel, constants, least, task == 1)


@inlined
def _loss(kind: int, panel: Panel, dark: float, zero: float) -> float:
    """Return the loss of a panel, for the fidelities with a likelihood of their own."""
    size, S, _, own, y, b, at = panel
    total = zero
    if kind == 1:
        for i in range(size):
            I = S[own + i] + b[at + i]
            total += I - y[at + i] * np.log(max(I, dark)) if y[at + i] >= zero else zero
    else:
        for i in range(size):
            difference = S[own + i] + b[at + i] - y[at + i] if y[at + i] >= zero else zero
            total += difference * difference
    return total


@inlined
def _slope(kind: int, panel: Panel, constants: RealArray, least: float, newton: bool) -> None:
    """Write -dL/dI; for a Newton step its direction xi = dL/dI, with y/I capped."""
    size, S, out, own, y, b, at = panel
    zero, one, dark, brightest = constants[0], constants[1], constants[2], constants[4]
    sign = -one if newton else one
    if kind == 1:
        for i in range(size):
            ratio = y[at + i] / max(S[own + i] + b[at + i], dark)
            ratio = min(ratio, brightest) if newton else ratio
            out[own + i] = sign * (ratio - one) if y[at + i] >= zero and S[own + i] >= least else zero
    else:
        for i in range(size):
            slope = (y[at + i] - S[own + i] - b[at + i]) * (one + one)
            out[own + i] = sign * slope if y[at + i] >= zero and S[own + i] >= least else zero


@inlined
def newton_step(kind: int, view: Panel, constants: RealArray) -> float:
    """Return -alpha of Psi' = (1 - alpha xi) Psi of a view; see fidelity._poisson_step.

    Args:
        kind: fidelity, see KINDS.
        view: all panels as one, with the direction of the step in `change`.
        constants: (10,) real, see comparison.py.
    """
    one, dark, steps = constants[1], constants[2], int(constants[5])
    alpha = np.empty(1, constants.dtype)  # a cell, so that alpha keeps its precision
    alpha[0] = one / (one + one)
    for _ in range(steps if kind == 1 else 1):
        first, second, size = 0.0, 0.0, view.size
        for k in range(ZERO, size, PART):
            parts = _newton_part(kind, view, k, min(k + PART, size), alpha[0], constants)
            first += parts[0]
            second += parts[1]
        if kind == 1:
            alpha[0] = min(max(alpha[0] - first / max(second, float(dark)), 0.0), 1.0)
        else:
            alpha[0] = first / max(second, float(dark)) if second > 0 else 0.0
    return -alpha[0]


@inlined
def _newton_part(kind: int, view: Panel, begin: int, end: int, a: float, constants: RealArray) -> tuple[float, float]:
    """Return the first and second derivative of the loss by alpha, over some pixels."""
    S, xi, y, b = view.S, view.change, view.y, view.b
    zero, one, dark = constants[0], constants[1], constants[2]
    two, first, second = one + one, zero, zero
    if kind == 1:
        for i in range(begin, end):
            scale = one - a * xi[i]
            over = one / max(S[i] * scale * scale + b[i], dark)
            dI, d2I, misfit = -two * S[i] * xi[i] * scale, two * S[i] * xi[i] * xi[i], one - y[i] * over
            first += misfit * dI
            second += y[i] * (dI * over) * (dI * over) + misfit * d2I
    else:
        for i in range(begin, end):
            first += two * S[i] * xi[i] * xi[i]
            second += two * S[i] * xi[i] * xi[i] * (two * two * S[i] + xi[i])
    return first, second
