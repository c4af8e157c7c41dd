# mypy: disable-error-code="no-untyped-def"
"""Loops over the blocks of an object in Triton, for GPUs, and what else a batch does once; `backend.py` launches
them.

count        blocks that a batch touches, which are those of rows and columns (count,) int64;  SIDE  of a block
(L, H, W)    slices and pixels of arrays;  PARTS  of sums in double precision, one after the other

Complex arrays are pairs of reals. A program works on one block of one slice, and blocks are not twice in a batch.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ptymesh.kernels import block_forms
from ptymesh.kernels.gpu.windows import _load, _store
from ptymesh.physics import blocks

TINY = tl.constexpr(blocks.TINY)
#: Batches touch ever other numbers of blocks, which begin anywhere in an array of several batches'; chunks have ever
#: other views. No kernel is compiled anew where 16 divides one of these, or where it is 1.
OF_BATCHES = {"do_not_specialize": ["count"], "do_not_specialize_on_alignment": ["rows", "columns"]}
OF_CHUNKS = {
    "do_not_specialize": ["count", "size"],
    "do_not_specialize_on_alignment": ["anchors", "fractions", "weights", "places"],
}
#: Forms that `write` knows.
QUOTIENT, SCALED = tl.constexpr(block_forms.QUOTIENT), tl.constexpr(block_forms.SCALED)


@triton.jit
def _pixels(rows, columns, count, H, W, SIDE: tl.constexpr):
    """Slice, and offsets of the program's pixels."""
    program = tl.program_id(0).to(tl.int64)
    at, block = tl.arange(0, SIDE * SIDE), program % count
    y = tl.load(rows + block) * SIDE + at // SIDE
    x = tl.load(columns + block) * SIDE + at % SIDE
    return program // count, (program // count * H + y) * W + x


@triton.jit(**OF_BATCHES)
def clear(field, weight, rows, columns, count, H, W, SIDE: tl.constexpr):
    """A complex and a real array become 0 on these blocks; the slices of all parts follow each other."""
    _, at = _pixels(rows, columns, count, H, W, SIDE)
    nothing = tl.zeros([SIDE * SIDE], weight.dtype.element_ty)
    _store(field, at, nothing, nothing, at >= 0)
    tl.store(weight + at, nothing)


@triton.jit(**OF_BATCHES)
def narrow(
    field, weight, out, out_weight, tops, rows, columns, count, half, H, W, PARTS: tl.constexpr, SIDE: tl.constexpr
):
    """out and out_weight become the sum of all parts, of which the second lies `half` pixels further; tops (L, count):
    the largest weight of each block."""
    _, at = _pixels(rows, columns, count, H, W, SIDE)
    real = out_weight.dtype.element_ty
    re, im = _load(field, at, at >= 0)
    light = tl.load(weight + at)
    if PARTS == 2:
        more_re, more_im = _load(field, at + half, at >= 0)
        re, im, light = re + more_re, im + more_im, light + tl.load(weight + at + half)
    light = light.to(real)
    _store(out, at, re.to(real), im.to(real), at >= 0)
    tl.store(out_weight + at, light)
    tl.store(tops + tl.program_id(0), tl.max(light, 0))


@triton.jit(**OF_BATCHES)
def write(
    target,
    field,
    weight,
    numbers,
    rows,
    columns,
    count,
    H,
    W,
    TIMES: tl.constexpr,
    BLEND: tl.constexpr,
    KIND: tl.constexpr,
    EACH: tl.constexpr,
    ADD: tl.constexpr,
    SIDE: tl.constexpr,
):
    """target = or, where ADD, += what KIND makes of a field; numbers: one for all slices or, where EACH, one each: top
    or number."""
    slice_, at = _pixels(rows, columns, count, H, W, SIDE)
    re, im = _load(field, at, at >= 0)
    number = tl.load(numbers + (slice_ if EACH else 0))
    if KIND == SCALED:
        number = (number * TIMES).to(re.dtype)
        re, im = re * number, im * number
    else:
        light = tl.load(weight + at)
        if KIND == QUOTIENT:
            top = (number.to(tl.float64) * BLEND + TINY).to(light.dtype)
            divisor = light * (1 - BLEND) + top
            re, im = re * TIMES, im * TIMES
        else:
            divisor = tl.sqrt(light * light + number.to(light.dtype))
        re, im = re / divisor, im / divisor
    if ADD:
        old_re, old_im = _load(target, at, at >= 0)
        re, im = old_re + re, old_im + im
    _store(target, at, re, im, at >= 0)


@triton.jit
def add_quotient(target, change, weight, top, M, area, TIMES: tl.constexpr, BLEND: tl.constexpr, TILE: tl.constexpr):
    """target (M, h, w) += TIMES change / ((1 - BLEND) weight + BLEND top), weight (h, w) real, top its largest value; a
    program for each tile of a window."""
    pixels = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = pixels < area
    light = tl.load(weight + pixels, mask=inside, other=1.0)
    divisor = light + BLEND * (tl.load(top) - light) + TINY
    for m in range(M):
        at = m * area + pixels
        re, im = _load(change, at, inside)
        old_re, old_im = _load(target, at, inside)
        _store(target, at, old_re + re * TIMES / divisor, old_im + im * TIMES / divisor, inside)


@triton.jit(**OF_CHUNKS)
def bring(
    anchors,
    fractions,
    weights,
    places,
    to_anchors,
    to_fractions,
    to_weights,
    to_places,
    count,
    size,
    PLACES: tl.constexpr,
    TILE: tl.constexpr,
):
    """Copy what `count` views have of their own to where `size` views are swept; the others have no light."""
    view = tl.program_id(0) * TILE + tl.arange(0, TILE)
    here, there = view < count, view < size
    for axis in tl.static_range(2):
        tl.store(to_anchors + 2 * view + axis, tl.load(anchors + 2 * view + axis, mask=here), mask=here)
        tl.store(to_fractions + 2 * view + axis, tl.load(fractions + 2 * view + axis, mask=here), mask=here)
    tl.store(to_weights + view, tl.load(weights + view, mask=here, other=0.0), mask=there)
    if PLACES:
        tl.store(to_places + view, tl.load(places + view, mask=here), mask=here)


#: As in windows.py.
SIGNATURES = {
    clear: "d d n n i i i 32",
    narrow: "d d c c c n n i i i i 2 32",
    write: "c c c c n n i i i 2 0 1 1 1 32",
    add_quotient: "c c c c i i 2 0 512",
    bring: "n c c n n c c n i i 1 512",
}
