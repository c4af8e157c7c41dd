# mypy: disable-error-code="no-untyped-def"
"""Loops over the detector's pixels in Triton, for GPUs; see windows.py.

B, M, h, w   views of the chunk, modes, window pixels;  area = h w
S            (B, h, w) power of all modes;  y, b  counts and background;  xi, alpha  see physics/fidelity.py
"""

from __future__ import annotations

import triton
import triton.language as tl

from ptymesh.kernels.gpu.windows import _load, _part, _place, _store, _unit
from ptymesh.physics import fidelity

DARK = tl.constexpr(fidelity.DARK)
BRIGHTEST = tl.constexpr(fidelity.BRIGHTEST_RATIO)
#: Fidelities, and what `detector` does with the waves.
AMPLITUDE, POISSON, INTENSITY = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
EVALUATE, EXIT_WAVE_UPDATE, LOSS_GRADIENT = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def _counts(counts, mask, j, pixels, area, like, inside):
    """Counts as reals, 0 where there are none to be believed, and where there are."""
    y = tl.load(counts + j * area + pixels, mask=inside, other=0).to(like.dtype)
    good = inside & (tl.load(mask + pixels, mask=inside, other=0) != 0) & (y >= 0)
    return tl.where(good, y, 0.0), good


@triton.jit
def detector(
    waves,
    counts,
    mask,
    background,
    least,
    S_out,
    parts,
    M,
    area,
    KIND: tl.constexpr,
    TASK: tl.constexpr,
    SCALED: tl.constexpr,
    TILE: tl.constexpr,
):
    """One pass over Psi and counts: power of all modes, sums for the history, and the change of Psi, in place.

    SCALED: Psi is sqrt(area) times what it should be, and its change is to be divided by that.

    least: (B,) power below which a pixel has no light. parts: (B, tiles, 6), see Backend.at_detector. TASK
    EXIT_WAVE_UPDATE makes Psi' - Psi, LOSS_GRADIENT -dL/dI Psi. Where the revision has a step length (Poisson,
    intensity) it only leaves the power in S_out (B, h, w), for `step_slopes` and `step`.
    """
    j, tile, pixels, inside = _place(area, TILE)
    re, im = _load(waves, j * M * area + pixels, inside)
    S = re * re + im * im
    for m in range(1, M):
        re, im = _load(waves, (j * M + m) * area + pixels, inside)
        S += re * re + im * im
    if SCALED:
        S *= _unit(waves, area)
    y, good = _counts(counts, mask, j, pixels, area, S, inside)
    b = tl.load(background + pixels, mask=inside, other=0.0)
    I = S + b
    root = tl.sqrt(y)
    difference = tl.where(good, tl.sqrt(I) - root, 0.0)
    if KIND == AMPLITUDE:
        loss = difference * difference
    elif KIND == POISSON:
        loss = tl.where(good, I - y * tl.log(tl.maximum(I, DARK)), 0.0)
    else:
        loss = tl.where(good, (I - y) * (I - y), 0.0)
    _part(parts, j, tile, area, 0, 6, loss, TILE)
    _part(parts, j, tile, area, 1, 6, difference * difference, TILE)
    _part(parts, j, tile, area, 2, 6, y, TILE)
    _part(parts, j, tile, area, 3, 6, tl.abs(difference), TILE)
    _part(parts, j, tile, area, 4, 6, root, TILE)
    _part(parts, j, tile, area, 5, 6, y * y, TILE)
    if TASK == EXIT_WAVE_UPDATE and KIND != AMPLITUDE:
        tl.store(S_out + j * area + pixels, S, mask=inside)
    elif TASK != EVALUATE:
        if KIND == AMPLITUDE:
            change = tl.sqrt(y / tl.maximum(I, DARK)) - 1
        elif KIND == POISSON:
            change = y / tl.maximum(I, DARK) - 1
        else:
            change = 2 * (y - I)
        _scale(waves, tl.where(good & (tl.load(least + j) <= S), change, 0.0), j, pixels, M, area, inside, SCALED)


@triton.jit
def brightness(counts, mask, parts, like, area, TILE: tl.constexpr):
    """Sums of the counts of each view, parts (B, tiles, 1), in the precision of `like`."""
    j, tile, pixels, inside = _place(area, TILE)
    y, _ = _counts(counts, mask, j, pixels, area, tl.load(like), inside)
    _part(parts, j, tile, area, 0, 1, y, TILE)


@triton.jit
def _scale(waves, change, j, pixels, M, area, inside, SCALED: tl.constexpr):
    if SCALED:
        change *= _unit(waves, area)
    for m in range(M):
        at = (j * M + m) * area + pixels
        re, im = _load(waves, at, inside)
        _store(waves, at, change * re, change * im, inside)


@triton.jit
def _direction(S, y, good, b, least, KIND: tl.constexpr):
    """xi of Psi' = (1 - alpha xi) Psi, see fidelity."""
    if KIND == POISSON:
        xi = 1 - tl.minimum(y / tl.maximum(S + b, DARK), BRIGHTEST)
    else:
        xi = 2 * (S + b - y)
    return tl.where(good & (least <= S), xi, 0.0)


@triton.jit
def _step_length(before, slopes, j, spans, KIND: tl.constexpr, TILE: tl.constexpr):
    """Return the step length alpha of view j after another step of Newton's method (see physics/fidelity).

    before: (B,) alpha of each view before. slopes: (B, spans, 2) parts of numerator and denominator of the step, one
    pair for each span of pixels; they are always added up in the same order.
    """
    first = tl.zeros([TILE], tl.float64)
    second = tl.zeros([TILE], tl.float64)
    for start in range(0, spans, TILE):
        span = start + tl.arange(0, TILE)
        at = 2 * (j * spans + span)
        first += tl.load(slopes + at, mask=span < spans, other=0.0)
        second += tl.load(slopes + at + 1, mask=span < spans, other=0.0)
    top, bottom = tl.sum(first), tl.sum(second)
    a = top / tl.maximum(bottom, DARK)
    if KIND == POISSON:
        a = tl.minimum(tl.maximum(tl.load(before + j).to(tl.float64) - a, 0.0), 1.0)
    else:
        a = tl.where(bottom > 0, a, 0.0)
    return a


@triton.jit
def step_slopes(
    S_in,
    counts,
    mask,
    background,
    least,
    before,
    slopes_before,
    alpha,
    slopes,
    area,
    spans,
    FIRST: tl.constexpr,
    KIND: tl.constexpr,
    SPAN: tl.constexpr,
    TILE: tl.constexpr,
):
    """slopes (B, spans, 2): of the view's loss at alpha, its derivative and what Newton's method divides that by, each
    summed over a span of SPAN tiles; a program for each. alpha (B,) follows from what the launch before has found, or
    is 1/2 where FIRST; the first span notes it."""
    program = tl.program_id(0).to(tl.int64)
    j, span = program // spans, (program % spans).to(tl.int32)
    if FIRST:
        a = tl.full([], 0.5, S_in.dtype.element_ty)
    else:
        a = _step_length(before, slopes_before, j, spans, KIND, TILE).to(S_in.dtype.element_ty)
    tl.store(alpha + j, a, mask=span == 0)
    lit = tl.load(least + j)
    first = tl.zeros([TILE], S_in.dtype.element_ty)
    second = tl.zeros([TILE], S_in.dtype.element_ty)
    for tile in range(SPAN):
        pixels = (span * SPAN + tile) * TILE + tl.arange(0, TILE)
        inside = pixels < area
        S = tl.load(S_in + j * area + pixels, mask=inside, other=0.0)
        b = tl.load(background + pixels, mask=inside, other=0.0)
        y, good = _counts(counts, mask, j, pixels, area, S, inside)
        xi = _direction(S, y, good, b, lit, KIND)
        if KIND == POISSON:
            scale = 1 - a * xi
            I = tl.maximum(S * scale * scale + b, DARK)
            slope, misfit = -2 * S * xi * scale, 1 - y / I
            first += misfit * slope
            second += y * (slope / I) * (slope / I) + misfit * 2 * S * xi * xi
        else:
            first += 2 * S * xi * xi
            second += 8 * S * S * xi * xi + 2 * S * xi * xi * xi
    tl.store(slopes + 2 * program, tl.sum(first).to(tl.float64))
    tl.store(slopes + 2 * program + 1, tl.sum(second).to(tl.float64))


@triton.jit
def step(
    waves,
    S_in,
    counts,
    mask,
    background,
    least,
    before,
    slopes,
    M,
    area,
    spans,
    KIND: tl.constexpr,
    SCALED: tl.constexpr,
    TILE: tl.constexpr,
):
    """Psi becomes Psi' - Psi = -alpha xi Psi, in place, with the step length that the last slopes ask for; SCALED as in
    `detector`."""
    j, _, pixels, inside = _place(area, TILE)
    S = tl.load(S_in + j * area + pixels, mask=inside, other=0.0)
    b = tl.load(background + pixels, mask=inside, other=0.0)
    y, good = _counts(counts, mask, j, pixels, area, S, inside)
    xi = _direction(S, y, good, b, tl.load(least + j), KIND)
    a = _step_length(before, slopes, j, spans, KIND, TILE).to(S_in.dtype.element_ty)
    _scale(waves, -a * xi, j, pixels, M, area, inside, SCALED)


#: As in windows.py.
SIGNATURES = {
    detector: "c u b c c c d i i 0 1 1 512",
    brightness: "u b d c i 512",
    step_slopes: "c u b c c c d c d i i 0 1 8 512",
    step: "c c u b c c c d i i i 1 1 512",
}
