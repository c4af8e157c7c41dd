# mypy: disable-error-code="no-untyped-def"
"""Loops over pixels in Triton, for GPUs. `backend.py` launches them around torch's FFT; those over the detector
stand in detector.py, those over blocks of the object in blocks.py.

B, M, h, w   views of the chunk, modes, window pixels;  area = h w
obj          (H, W) one slice of the object;  n  (B, 2) int64, its pixel under each window's corner, y x
beams        (1 or B, M, h, w) probes, one for all views (SHARED) or one each;  a  (B,) real, amplitude of each beam
chi          (B, M, h, w) waves at the exit

Complex arrays are pairs of reals. A program works on TILE pixels of one view; programs of a view follow each other.
Offsets are 64-bit: objects may have more than 2^31 pixels. Sums over a view's pixels are left in parts that `summed`
adds up, so that they do not depend on which program comes first. Sums over views have rounded terms
(physics/rounding.py), which are added atomically, in any order to the same bits. Nothing here is CUDA's alone.

shifts       (6, 2) float64, by kind of sum and part;  PARTS  how many there are
reached      (programs, 2) float64: the largest terms that a program has met, of a sum and of its weight
"""

from __future__ import annotations

import math
import os

# multiplications are joined with additions, as on the CPU; Triton warns where nobody has said so
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

import triton
import triton.language as tl

from ptymesh.physics import kinds

TURN = tl.constexpr(2 * math.pi)
#: What views have of their own, a few numbers each. Chunks begin anywhere in what a batch has, and where that is
#: aligned makes these kernels no faster: they are not compiled for it once more.
OF_VIEWS = {"do_not_specialize_on_alignment": ["n", "a", "t", "d_a", "fractions"]}
#: Sums and their weights.
OBJECT, OBJECT_WEIGHT = tl.constexpr(kinds.OBJECT), tl.constexpr(kinds.OBJECT_WEIGHT)
PROBE, PROBE_WEIGHT = tl.constexpr(kinds.PROBE), tl.constexpr(kinds.PROBE_WEIGHT)


@triton.jit
def _load(array, at, inside):
    """Real and imaginary parts."""
    pairs = tl.load(array + 2 * at[:, None] + tl.arange(0, 2)[None, :], mask=inside[:, None], other=0.0)
    re, im = tl.split(pairs)
    return re, im


@triton.jit
def _store(array, at, re, im, inside):
    tl.store(array + 2 * at[:, None] + tl.arange(0, 2)[None, :], tl.join(re, im), mask=inside[:, None])


@triton.jit
def _place(area, TILE: tl.constexpr):
    """View, tile, pixels in the window, and which of them there are."""
    tiles = tl.cdiv(area, TILE)
    program = tl.program_id(0).to(tl.int64)
    pixels = (program % tiles).to(tl.int32) * TILE + tl.arange(0, TILE)
    return program // tiles, program % tiles, pixels, pixels < area


@triton.jit
def _under(n, j, pixels, w, W):
    """Offsets in an object of width W of these pixels of view j's window."""
    return (tl.load(n + 2 * j) + pixels // w) * W + tl.load(n + 2 * j + 1) + pixels % w


@triton.jit
def _part(parts, j, tile, area, column, columns: tl.constexpr, value, TILE: tl.constexpr):
    """One of a program's sums, in double precision; parts (B, tiles, columns)."""
    tl.store(parts + (j * tl.cdiv(area, TILE) + tile) * columns + column, tl.sum(value).to(tl.float64))


@triton.jit
def summed(parts, out, tiles, columns: tl.constexpr, TILE: tl.constexpr):
    """out (B, columns) = sums of parts (B, tiles, columns), in an order that does not depend on how many views there
    are; torch's does."""
    program = tl.program_id(0).to(tl.int64)
    j, column = program // columns, program % columns
    total = tl.zeros([TILE], tl.float64)
    for start in range(0, tiles, TILE):
        tile = start + tl.arange(0, TILE)
        total += tl.load(parts + (j * tiles + tile) * columns + column, mask=tile < tiles, other=0.0)
    tl.store(out + program, tl.sum(total))


@triton.jit
def _unit(waves, area):
    """1 / area, in the precision of the waves."""
    return 1.0 / area.to(waves.dtype.element_ty)


# --- exit waves and probes ---


@triton.jit(**OF_VIEWS)
def exit_waves(obj, n, beams, a, out, M, area, w, W, SHARED: tl.constexpr, TILE: tl.constexpr):
    """out_jm = a_j beams_jm S_j O."""
    j, _, pixels, inside = _place(area, TILE)
    o_re, o_im = _load(obj, _under(n, j, pixels, w, W), inside)
    f = tl.load(a + j)
    o_re, o_im = f * o_re, f * o_im
    for m in range(M):
        at = ((0 if SHARED else j * M) + m) * area + pixels
        re, im = _load(beams, at, inside)
        _store(out, (j * M + m) * area + pixels, re * o_re - im * o_im, re * o_im + im * o_re, inside)


@triton.jit
def _ramp(pixels, fractions, j, h, w):
    """cos and sin of -2 pi k.f_j, and k, in the precision of the fractions."""
    f_y, f_x = tl.load(fractions + 2 * j), tl.load(fractions + 2 * j + 1)
    k_y, k_x = tl.where(pixels // w < (h + 1) // 2, pixels // w, pixels // w - h), pixels % w
    k_x = tl.where(k_x < (w + 1) // 2, k_x, k_x - w)
    k_y, k_x = k_y.to(f_y.dtype) / h, k_x.to(f_y.dtype) / w
    angle = -TURN * (k_y * f_y + k_x * f_x)
    return tl.cos(angle), tl.sin(angle), k_y, k_x


@triton.jit(**OF_VIEWS)
def ramped(spectrum, fractions, a, out, M, h, w, AXIS: tl.constexpr, TILE: tl.constexpr):
    """out_jm = a_j exp(-2 pi i k.f_j) spectrum_m; times 2 pi i k_axis where AXIS is 0 or 1."""
    j, _, pixels, inside = _place(h * w, TILE)
    c, s, k_y, k_x = _ramp(pixels, fractions, j, h, w)
    f = tl.load(a + j)
    c, s = f * c, f * s
    if AXIS >= 0:
        k = TURN * (k_y if AXIS == 0 else k_x)
        c, s = -k * s, k * c
    for m in range(M):
        re, im = _load(spectrum, m * h * w + pixels, inside)
        _store(out, (j * M + m) * h * w + pixels, c * re - s * im, c * im + s * re, inside)


# --- adjoints ---


@triton.jit
def _rounded(term, shifts, KIND: tl.constexpr):
    """Return the two parts of a term, each rounded to the step of its kind, in double precision."""
    term = term.to(tl.float64)
    shift, fine = tl.load(shifts + 2 * KIND), tl.load(shifts + 2 * KIND + 1)
    first = (term + shift) - shift
    return first, ((term - first) + fine) - fine


@triton.jit
def _add_pairs(out, at, pairs, inside):
    """Adds real and imaginary parts (TILE, 2)."""
    tl.atomic_add(out + 2 * at[:, None] + tl.arange(0, 2)[None, :], pairs, mask=inside[:, None], sem="relaxed")


@triton.jit
def _reach(reached, pairs, light):
    """Notes how large the terms of this program were."""
    place = reached + 2 * tl.program_id(0).to(tl.int64)
    tl.store(place, tl.max(tl.max(tl.abs(pairs), 1), 0).to(tl.float64))
    tl.store(place + 1, tl.max(light, 0).to(tl.float64))


@triton.jit
def _share(out, weight, at, half, wave, light, shifts, inside, PARTS: tl.constexpr):
    """Adds a term, pairs (TILE, 2), and that of the weight; the second part is `half` pixels further."""
    first, second = _rounded(wave, shifts, OBJECT)
    bright, dim = _rounded(light, shifts, OBJECT_WEIGHT)
    _add_pairs(out, at, first, inside)
    tl.atomic_add(weight + at, bright, mask=inside, sem="relaxed")
    if PARTS == 2:
        _add_pairs(out, at + half, second, inside)
        tl.atomic_add(weight + at + half, dim, mask=inside, sem="relaxed")


@triton.jit(**OF_VIEWS)
def to_object(
    chi,
    n,
    t,
    beams,
    a,
    shifts,
    out,
    weight,
    reached,
    half,
    M,
    area,
    w,
    W,
    SHARED: tl.constexpr,
    BILINEAR: tl.constexpr,
    PARTS: tl.constexpr,
    TILE: tl.constexpr,
):
    """out += sum_j S_j^H sum_m conj(a_j beams_jm) chi_jm and weight += sum_j S_j^H sum_m |a_j beams_jm|^2.

    out, weight (PARTS, L, H, W) of double precision, from the slice on; half = L H W; t (B, 2): weights of the next
    pixel, down and right, where BILINEAR. What is shared out between pixels is noted whole: no pixel gets more of a
    view.
    """
    j, _, pixels, inside = _place(area, TILE)
    f = tl.load(a + j)
    re = tl.zeros([TILE], chi.dtype.element_ty)
    im = tl.zeros([TILE], chi.dtype.element_ty)
    light = tl.zeros([TILE], chi.dtype.element_ty)
    for m in range(M):
        p_re, p_im = _load(beams, ((0 if SHARED else j * M) + m) * area + pixels, inside)
        q_re, q_im = _load(chi, (j * M + m) * area + pixels, inside)
        re += p_re * q_re + p_im * q_im
        im += p_re * q_im - p_im * q_re
        light += p_re * p_re + p_im * p_im
    wave, light = f * tl.join(re, im), f * f * light
    _reach(reached, wave, light)
    at = _under(n, j, pixels, w, W)
    if BILINEAR:
        t_y, t_x = tl.load(t + 2 * j), tl.load(t + 2 * j + 1)
        for down in tl.static_range(2):
            for right in tl.static_range(2):
                k = (t_y if down else 1 - t_y) * (t_x if right else 1 - t_x)
                _share(out, weight, at + down * W + right, half, k * wave, k * light, shifts, inside, PARTS)
    else:
        _share(out, weight, at, half, wave, light, shifts, inside, PARTS)


# a chunk of a single view is no kernel of its own: another kernel might join other multiplications with additions
@triton.jit(do_not_specialize=["B", "splits"], **OF_VIEWS)
def to_probe(
    chi,
    obj,
    n,
    a,
    fractions,
    shifts,
    out,
    weight,
    reached,
    B,
    splits,
    M,
    h,
    w,
    W,
    SHIFTED: tl.constexpr,
    PARTS: tl.constexpr,
    TILE: tl.constexpr,
):
    """out += sum_j a_j conj(S_j O) chi_jm and weight += sum_j a_j^2 |S_j O|^2, (PARTS M, h, w) and (PARTS, h, w).

    Where SHIFTED, chi is F conj(S_j O) chi_jm, and multiplied by exp(+2 pi i k.f_j) instead. A program sums up a part
    of the views, of which there are `splits`, at the pixels of a tile of a mode.
    """
    area = h * w
    program, tiles = tl.program_id(0).to(tl.int64), tl.cdiv(area, TILE)
    pixels = (program % tiles).to(tl.int32) * TILE + tl.arange(0, TILE)
    inside, m, split = pixels < area, (program // tiles) % M, program // tiles // M
    first = tl.zeros([TILE, 2], tl.float64)
    second = tl.zeros([TILE, 2], tl.float64)
    bright = tl.zeros([TILE], tl.float64)
    dim = tl.zeros([TILE], tl.float64)
    high = tl.zeros([TILE, 2], chi.dtype.element_ty)
    highest = tl.zeros([TILE], chi.dtype.element_ty)
    for j in range(B * split // splits, B * (split + 1) // splits):
        f = tl.load(a + j)
        re, im = _load(obj, _under(n, j, pixels, w, W), inside)
        light = f * f * (re * re + im * im)
        if SHIFTED:
            re, im, _, _ = _ramp(pixels, fractions, j, h, w)
        q_re, q_im = _load(chi, (j * M + m) * area + pixels, inside)
        term = f * tl.join(re * q_re + im * q_im, re * q_im - im * q_re)
        high, highest = tl.maximum(high, tl.abs(term)), tl.maximum(highest, light)
        more, fine = _rounded(term, shifts, PROBE)
        more_light, fine_light = _rounded(light, shifts, PROBE_WEIGHT)
        first, second, bright, dim = first + more, second + fine, bright + more_light, dim + fine_light
    _reach(reached, high, highest)
    lit = pixels < tl.where(m == 0, area, 0)
    _add_pairs(out, m * area + pixels, first, inside)
    tl.atomic_add(weight + pixels, bright, mask=lit, sem="relaxed")
    if PARTS == 2:
        _add_pairs(out, (M + m) * area + pixels, second, inside)
        tl.atomic_add(weight + area + pixels, dim, mask=lit, sem="relaxed")


@triton.jit(**OF_VIEWS)
def to_probes(chi, obj, n, out, M, area, w, W, SCALED: tl.constexpr, TILE: tl.constexpr):
    """out_jm = conj(S_j O) chi_jm; SCALED: divided by sqrt(area)."""
    j, _, pixels, inside = _place(area, TILE)
    o_re, o_im = _load(obj, _under(n, j, pixels, w, W), inside)
    if SCALED:
        unit = tl.sqrt(_unit(chi, area))
        o_re, o_im = unit * o_re, unit * o_im
    for m in range(M):
        at = (j * M + m) * area + pixels
        re, im = _load(chi, at, inside)
        _store(out, at, o_re * re + o_im * im, o_re * im - o_im * re, inside)


# --- sums of single views ---


@triton.jit(**OF_VIEWS)
def along_positions(chi, obj, n, beams, a, by_y, by_x, parts, M, area, w, W, SHARED: tl.constexpr, TILE: tl.constexpr):
    """parts (B, tiles, 3): Re <d_y, chi>, Re <d_x, chi>, ||psi||^2; d_a = -O by_a, psi = a O beams."""
    j, tile, pixels, inside = _place(area, TILE)
    o_re, o_im = _load(obj, _under(n, j, pixels, w, W), inside)
    f = tl.load(a + j)
    light = o_re * o_re + o_im * o_im
    along_y, along_x, exit_norm = light * 0, light * 0, light * 0
    for m in range(M):
        at = (j * M + m) * area + pixels
        q_re, q_im = _load(chi, at, inside)
        re, im = o_re * q_re + o_im * q_im, o_re * q_im - o_im * q_re
        d_re, d_im = _load(by_y, at, inside)
        along_y -= d_re * re + d_im * im
        d_re, d_im = _load(by_x, at, inside)
        along_x -= d_re * re + d_im * im
        p_re, p_im = _load(beams, ((0 if SHARED else j * M) + m) * area + pixels, inside)
        exit_norm += f * f * light * (p_re * p_re + p_im * p_im)
    _part(parts, j, tile, area, 0, 3, along_y, TILE)
    _part(parts, j, tile, area, 1, 3, along_x, TILE)
    _part(parts, j, tile, area, 2, 3, exit_norm, TILE)


@triton.jit(**OF_VIEWS)
def step_systems(
    chi,
    obj,
    change,
    n,
    beams,
    a,
    d_beams,
    d_a,
    parts,
    M,
    area,
    w,
    W,
    SHARED: tl.constexpr,
    D_SHARED: tl.constexpr,
    TILE: tl.constexpr,
):
    """parts (B, tiles, 5): ||p||^2, ||q||^2, Re <p, q>, Re <p, chi>, Re <q, chi>.

    p = a beams S dO, q = d_a d_beams S O; change holds dO at the same pixels as obj holds O; beams, d_beams and chi
    have the same modes.
    """
    j, tile, pixels, inside = _place(area, TILE)
    under = _under(n, j, pixels, w, W)
    f, g = tl.load(a + j), tl.load(d_a + j)
    o_re, o_im = _load(obj, under, inside)
    v_re, v_im = _load(change, under, inside)
    o_re, o_im, v_re, v_im = g * o_re, g * o_im, f * v_re, f * v_im
    pp, qq, pq, px, qx = o_re * 0, o_re * 0, o_re * 0, o_re * 0, o_re * 0
    for m in range(M):
        re, im = _load(beams, ((0 if SHARED else j * M) + m) * area + pixels, inside)
        p_re, p_im = re * v_re - im * v_im, re * v_im + im * v_re
        re, im = _load(d_beams, ((0 if D_SHARED else j * M) + m) * area + pixels, inside)
        q_re, q_im = re * o_re - im * o_im, re * o_im + im * o_re
        z_re, z_im = _load(chi, (j * M + m) * area + pixels, inside)
        pp += p_re * p_re + p_im * p_im
        qq += q_re * q_re + q_im * q_im
        pq += p_re * q_re + p_im * q_im
        px += p_re * z_re + p_im * z_im
        qx += q_re * z_re + q_im * z_im
    _part(parts, j, tile, area, 0, 5, pp, TILE)
    _part(parts, j, tile, area, 1, 5, qq, TILE)
    _part(parts, j, tile, area, 2, 5, pq, TILE)
    _part(parts, j, tile, area, 3, 5, px, TILE)
    _part(parts, j, tile, area, 4, 5, qx, TILE)


#: Kernels and the types of their arguments, to compile them ahead of time: c pointer to reals (complex as pairs), d to
#: float64, n to int64, u to counts, b to bool, i integer, 0 ... constants.
SIGNATURES = {
    summed: "d d i 6 512",
    exit_waves: "c n c c c i i i i 0 512",
    ramped: "c c c c i i i 1 512",
    to_object: "c n c c c d d d d i i i i i 0 1 2 512",
    to_probe: "c c n c c d d d d i i i i i i 1 2 512",
    to_probes: "c c n c i i i i 1 512",
    along_positions: "c c n c c c c d i i i i 0 512",
    step_systems: "c c c n c c c c d i i i i 0 0 512",
}
