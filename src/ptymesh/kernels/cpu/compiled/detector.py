"""Waves to the detector and back, compiled by numba for this CPU.

B, M, h, w   views of the chunk, modes, window pixels;  h, w >= 8
waves        (B, M, h, w) complex
panel, plane, row, work   see column_panels.py;  spectrum, tables   see shifts.py

A view's waves are made, transformed, compared with its counts, brought back and gathered by one thread in one go, while
they are in its cache: the fewer passes over them, the better.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from ptymesh.kernels.arrays import (
    BackgroundArrays,
    ComplexArray,
    DetectorInputs,
    DetectorOptions,
    ExitInputs,
    IntArray,
    PathInputs,
    RealArray,
    ShiftInputs,
    SumArrays,
    Tables,
)
from ptymesh.kernels.cpu.compiled.background import add_background_terms
from ptymesh.kernels.cpu.compiled.column_panels import (
    ONE,
    PAIR,
    THREE,
    TWO,
    ZERO,
    U,
    panel_in,
    panel_out,
    plane_of,
    rows_back,
    rows_in,
    rows_of,
    transform,
)
from ptymesh.kernels.cpu.compiled.comparison import compare, counts_in_panels, newton_step
from ptymesh.kernels.cpu.compiled.jit import inlined, parallel
from ptymesh.kernels.cpu.compiled.moves import add_products, power_behind
from ptymesh.kernels.cpu.compiled.probes import halves
from ptymesh.kernels.cpu.compiled.propagation import columns_through, transform_rows
from ptymesh.kernels.cpu.compiled.row_panels import BACK, ON, row_panels_of, through_rows, window_in, windows_out
from ptymesh.kernels.cpu.compiled.shifts import (
    add_plane,
    add_power,
    columns_in,
    empty_factors,
    ramps,
    turn_columns,
    waves_in,
)
from ptymesh.kernels.cpu.compiled.vectors import (
    LANES,
    broadcast,
    load,
    store,
)
from ptymesh.physics.kinds import OPR, OPR_WEIGHT, PROBE, PROBE_WEIGHT

#: What `detector` does with the waves.
EVALUATE, EXIT_WAVE_UPDATE, LOSS_GRADIENT = 0, 1, 2


@inlined
def _add_power(plane: RealArray, at: int, h: int, first: bool, scale: float, S: RealArray, own: int) -> None:
    """Write, or add, scale |Psi|^2 of a panel."""
    s = broadcast(scale)
    for r in range(h):
        p, q = load(plane, at + PAIR * r), load(plane, at + PAIR * r + LANES)
        power, i = s * (p * p + q * q), own + LANES * r
        store(S, i, power if first else load(S, i) + power)


@inlined
def _times(plane: RealArray, at: int, h: int, change: RealArray, own: int, real: float, imaginary: float) -> None:
    """Multiply a panel by real factors, and its real and imaginary parts by two numbers."""
    s, t = broadcast(real), broadcast(imaginary)
    for r in range(h):
        i, f = at + PAIR * r, load(change, own + LANES * r)
        store(plane, i, s * f * load(plane, i))
        store(plane, i + LANES, t * f * load(plane, i + LANES))


@inlined
def _split_work(
    work: RealArray, size: int, h: int, w: int
) -> tuple[tuple[RealArray, RealArray, RealArray], RealArray, RealArray, RealArray]:
    """Divide a band's workspace: counts, powers and factors; a row; workspace of transforms; planes."""
    row, spare, at = rows_of(work, THREE * size, h, w)
    return (work[:size], work[size : TWO * size], work[TWO * size : THREE * size]), row, spare, work[at:]


@inlined
def _apply_at_detector(
    j: int,
    view: int,
    band: int,
    work: RealArray,
    intermediates: ExitInputs,
    data: DetectorInputs,
    how: DetectorOptions,
    tables: Tables,
    out: ComplexArray,
    terms: RealArray,
    background_sums: BackgroundArrays,
) -> None:
    """Take view j, whose beam is the `view`th, to the detector: its sums, and with a task what comes back in out[j]."""
    (obj, n, beams, a), product, task, (_, plan, twiddles) = intermediates, how[2], how[4], tables
    M, h, w = U(out.shape[1]), U(out.shape[2]), U(out.shape[3])
    size, far = U(len(data[2])), plan[0, 0] > 0
    rooms, row, spare, planes = _split_work(work, size, h, w)
    for m in range(M):
        beam, plane = TWO * h * w * (view * M + m), plane_of(planes, m, size)
        if far:
            stride, f = TWO * U(obj.shape[1]), a[j]
            window = stride * U(n[j, 0]) + TWO * U(n[j, 1])
            rows_in(beams, beam, obj, window, stride, f, f, product, h, w, row, spare, plan, twiddles, plane)
        else:
            for start in range(ZERO, w, LANES):
                panel_in(beams, beam, h, w, start, plane)
    _compare(j, band, M, h, w, far, rooms, spare, planes, data, how, tables, terms, background_sums)
    if task > 0:
        for m in range(M):
            wave, plane = TWO * h * w * (j * M + m), plane_of(planes, m, size)
            if far:
                rows_back(plane, h, w, row, spare, plan, twiddles, out, wave)
            else:
                for start in range(ZERO, w, LANES):
                    panel_out(plane, h, w, start, out, wave)


@inlined
def _compare(
    j: int,
    band: int,
    M: int,
    h: int,
    w: int,
    far: bool,
    rooms: tuple[RealArray, RealArray, RealArray],
    spare: RealArray,
    planes: RealArray,
    data: DetectorInputs,
    how: DetectorOptions,
    tables: Tables,
    terms: RealArray,
    background_sums: BackgroundArrays,
) -> None:
    """Apply the task to the waves of a view, which stand in planes on the detector, and write their sums.

    far: rows are transformed and columns not, and conjugates come back the same way. Otherwise planes hold waves on the
    detector, or their conjugates if our own transform made them. background_sums: see background.py.
    """
    (counts, places, good, b), (code, has_background, _, kind, task), (constants, plan, twiddles) = data, how, tables
    (y, S, change), scale = rooms, constants[1]
    if far:
        scale = constants[6] * constants[6]
    size, panel = U(len(good)), LANES * h
    newton = task == 1 and kind != 0
    for t in range(6):
        terms[j, t] = 0.0
    total_counts = counts_in_panels(counts, U(places[j]), code, h, w, good, constants, y)
    least = constants[7] * total_counts
    for start in range(ZERO, w, LANES):
        at = h * start
        own = at if newton else ZERO
        for m in range(M):
            if far:
                transform(plane_of(planes, m, size), TWO * at, spare, h, plan[0], twiddles[0])
            _add_power(plane_of(planes, m, size), TWO * at, h, m == ZERO, scale, S, own)
        compare(panel, S, change, own, y, b, at, constants, least, has_background, kind, task, j, terms)
        if task > 0 and not newton:
            for m in range(M):
                _change_panel(plane_of(planes, m, size), at, h, change, own, scale, far, spare, plan, twiddles)
        if len(background_sums[0]) > 0:
            add_background_terms(panel, S, change, own, y, b, at, constants, total_counts, kind, band, background_sums)
    if newton:
        alpha = scale * newton_step(kind, S, y, change, b, constants)
        for start in range(ZERO, w, LANES):
            for m in range(M):
                _change_panel(
                    plane_of(planes, m, size), h * start, h, change, h * start, alpha, far, spare, plan, twiddles
                )


@inlined
def _change_panel(
    plane: RealArray,
    at: int,
    h: int,
    change: RealArray,
    own: int,
    scale: float,
    far: bool,
    spare: RealArray,
    plan: IntArray,
    twiddles: RealArray,
) -> None:
    """Multiply a panel by its factors, which leaves the conjugate if our own transform made it; with `far`, transform
    it."""
    _times(plane, TWO * at, h, change, own, scale, -scale if plan[0, 0] > 0 else scale)
    if far:
        transform(plane, TWO * at, spare, h, plan[0], twiddles[0])


@inlined
def _through_slices(
    j: int,
    planes: RealArray,
    size: int,
    M: int,
    row: RealArray,
    spare: RealArray,
    room: RealArray,
    intermediates: ExitInputs,
    shift: ShiftInputs,
    path: PathInputs,
    keep: bool,
    tables: Tables,
    ramps_of: tuple[RealArray, RealArray],
) -> None:
    """Take view j's waves from the probe, or its spectrum, through all slices, to planes; their rows are transformed
    then."""
    (obj, n, beams, a), (spectrum, fractions, shares), (slices, between, _, ramped) = intermediates, shift, path
    (constants, plan, twiddles), (down, across) = tables, ramps_of
    L, h, w, one = U(slices), U(spectrum.shape[1]), U(spectrum.shape[2]), constants[1]
    stride, minus = TWO * U(obj.shape[1]), broadcast(-one)
    window, height = stride * U(n[j, 0]) + TWO * U(n[j, 1]), stride * (U(obj.shape[0]) // L)
    if ramped:
        ramps(fractions[j], np.int64(w), -1, a[j] * constants[6], down, across)
    for l in range(L):
        row_panels = row_panels_of(room, l, L, M, h, w)
        window_in(obj, window + height * l, stride, h, w, row_panels[1])
        for m in range(M):
            wave, plane, start = TWO * h * w * (j * M + m), plane_of(planes, m, size), l == ZERO
            if start and ramped:
                columns_in(spectrum, m, M, shares[j], down, across, minus, h, spare, plan, twiddles, plane)
            elif start:
                waves_in(spectrum, m, M, shares[j], a[j], h, spare, plane)
            plain, kept = start and not ramped, keep and ramped and L == ONE
            through_rows(plane, ON, one, m, h, w, row, spare, row_panels, plan, twiddles, plain, kept, beams, wave)
            if l + ONE < L:
                columns_through(plane, between, one, False, down, across, h, w, spare, plan, twiddles)


@inlined
def _near_field(
    planes: RealArray,
    size: int,
    M: int,
    sign: float,
    h: int,
    w: int,
    row: RealArray,
    room: RealArray,
    spare: RealArray,
    path: PathInputs,
    tables: Tables,
    ramps_of: tuple[RealArray, RealArray],
) -> None:
    """Propagate waves in planes, whose rows are transformed, to a detector in the near field, as conjugates; with sign
    -1 from there back, where their rows are transformed again."""
    (_, _, near, ramped), (_, plan, twiddles), (down, across) = path, tables, ramps_of
    for m in range(M):
        plane = plane_of(planes, m, size)
        if sign < 0:
            transform_rows(plane, h, w, row, room, spare, plan, twiddles)
        columns_through(plane, near, sign, ramped, down, across, h, w, spare, plan, twiddles)
        if sign > 0:
            transform_rows(plane, h, w, row, room, spare, plan, twiddles)


@inlined
def _back_through_slices(
    j: int,
    band: int,
    planes: RealArray,
    size: int,
    M: int,
    row: RealArray,
    spare: RealArray,
    room: RealArray,
    intermediates: ExitInputs,
    shift: ShiftInputs,
    path: PathInputs,
    keep: bool,
    tables: Tables,
    ramps_of: tuple[RealArray, RealArray],
    out: ComplexArray,
    into: SumArrays,
) -> None:
    """Take conjugates of chi in planes, columns transformed, back to the sums of the slices and of the probe."""
    (obj, n, _, a), (spectrum, fractions, shares), (slices, between, _, ramped) = intermediates, shift, path
    (constants, plan, twiddles), (down, across) = tables, ramps_of
    windows, light, sums, lights, opr_sums, opr_lights, shifts, reached, probes, asked = into
    L, h, w, one = U(slices), U(spectrum.shape[1]), U(spectrum.shape[2]), constants[1]
    parts, parts_of_beam = lights.shape[1] // (out.shape[2] * out.shape[3]), max(U(shares.shape[1]), ONE)
    (half, light_half), (opr_half, opr_light_half) = halves(sums, lights, parts), halves(opr_sums, opr_lights, parts)
    varies = shares.shape[1] > 0
    if ramped:
        ramps(-fractions[j], np.int64(w), -1, constants[6], down, across)
    for k in range(L):
        l = L - ONE - k
        row_panels = row_panels_of(room, l, L, M, h, w)
        for m in range(M):
            wave, plane, end = TWO * h * w * (j * M + m), plane_of(planes, m, size), l == ZERO
            f, plain, kept = a[j] if end else one, end and not ramped, keep and k == ZERO
            through_rows(plane, BACK, f, m, h, w, row, spare, row_panels, plan, twiddles, plain, kept, out, wave)
            if not end:
                columns_through(plane, between, -one, False, down, across, h, w, spare, plan, twiddles)
                continue
            if ramped:
                turn_columns(plane, down, across, h, w, spare, plan, twiddles)
            for i in range(parts_of_beam if m == ZERO else ONE):
                first, share = i == ZERO, shares[j, i] if varies else one
                kind, which, behind = (PROBE, m, half) if first else (OPR, i - ONE, opr_half)
                add_plane(plane, share, kind, which, shifts, (sums if first else opr_sums)[band], behind, reached[j])
                if len(asked) > 0:
                    add_products(plane, m if first else M + i - ONE, h, w, probes, asked[j], THREE * i)
        pixel = h * w * (j * L + l)
        windows_out(row_panels[3], row_panels[4], h, w, broadcast(one), windows, light, pixel, reached[j])
        if len(asked) > 0 and l == ZERO:
            asked[j, THREE * parts_of_beam] = power_behind(row_panels[1], row_panels[4], h, w)
        if len(asked) > 0 and k == ZERO:
            asked[j, THREE * parts_of_beam + ONE] = power_behind(row_panels[1], row_panels[4], h, w)
    for i in range(parts_of_beam):
        first, share = i == ZERO, shares[j, i] if varies else a[j]
        kind, which, behind = (PROBE_WEIGHT, ZERO, light_half) if first else (OPR_WEIGHT, i - ONE, opr_light_half)
        into_light = (lights if first else opr_lights)[band]
        add_power(obj, U(n[j, 0]), U(n[j, 1]), share, kind, which, shifts, h, w, into_light, behind, reached[j])


@inlined
def _sweep_view(
    j: int,
    band: int,
    work: RealArray,
    intermediates: ExitInputs,
    shift: ShiftInputs,
    path: PathInputs,
    data: DetectorInputs,
    how: DetectorOptions,
    keep: bool,
    tables: Tables,
    out: ComplexArray,
    terms: RealArray,
    into: SumArrays,
    background_sums: BackgroundArrays,
) -> None:
    """Take view j from the probe to the detector and back to the sums, or to waves if there are no sums."""
    (constants, plan, twiddles), (_, fractions, _), (_, _, near, ramped) = tables, shift, path
    M, h, w, size = U(out.shape[1]), U(out.shape[2]), U(out.shape[3]), U(len(data[2]))
    rooms, row, spare, planes = _split_work(work, size, h, w)
    ramps_of, room, one, far = (
        empty_factors(h, w, constants.dtype),
        planes[TWO * M * size :],
        constants[1],
        len(near) == 0,
    )
    given = (row, spare, room, intermediates, shift, path, keep, tables, ramps_of)
    _through_slices(j, planes, size, M, *given)
    if not far:
        if ramped:  # on the detector the image moves back with the probe
            ramps(-fractions[j], np.int64(w), -1, one, *ramps_of)
        _near_field(planes, size, M, one, h, w, row, room, spare, path, tables, ramps_of)
    _compare(j, band, M, h, w, far, rooms, spare, planes, data, how, tables, terms, background_sums)
    if how[4] == 0:
        return
    if not far:
        if ramped:
            ramps(fractions[j], np.int64(w), -1, one, *ramps_of)
        _near_field(planes, size, M, -one, h, w, row, room, spare, path, tables, ramps_of)
    if len(into[0]) > 0:
        _back_through_slices(j, band, planes, size, M, *given, out, into)
        return
    for m in range(M):
        rows_back(plane_of(planes, m, size), h, w, row, spare, plan, twiddles, out, TWO * h * w * (j * M + m))


@parallel
def detector(
    work: RealArray,
    intermediates: ExitInputs,
    shift: ShiftInputs,
    path: PathInputs,
    data: DetectorInputs,
    how: DetectorOptions,
    keep: bool,
    tables: Tables,
    out: ComplexArray,
    terms: RealArray,
    into: SumArrays,
    background_sums: BackgroundArrays,
) -> None:
    """Take views to the detector, apply a task there, bring the result back, and add it to the sums of object and
    probe.

    If `shift` has a spectrum of no modes, exit waves are read or made from beams and object, and what comes back is
    `out`. Otherwise beams are made here, and what comes back is added to `into`; if `into` has no windows, it is `out`.
    Without a plan no transform is made: `beams` are waves on the detector, and may be `out`.

    Where beams vary, the spectrum is (M + K, h, w), amplitudes are 1, sums and lights of OPR modes follow those of the
    probe, and `asked` is (B, 3 (1 + K) + 2): three numbers for each part of a beam, as if views had it in full.

    Args:
        work: (bands, k) real, workspace of each band.
        intermediates: object (H, W), corners (B, 2), beams (1 or B, M, h, w) and amplitudes (B,), see windows.py;
            beams of shifted probes and a single slice are written with `keep`, and may have no views without.
        shift: spectrum of the probe, or the probe, (M, h, w); fractions (B, 2); shares (B, 1 + K), or (B, 0).
        path: number of slices, whose objects lie one below the other; kernels between them and to a near field
            (propagation.py), of no numbers if there is none; True if probes are shifted, False if the spectrum is the
            probe itself.
        data: counts (n, h, w times the bytes of one) uint8; indices (B,) of the views' patterns; mask and background (h
            w',), panel after panel.
        how: dtype of the counts (NATIVE); True with a background; True if exit waves are made of beams and object,
            False if they are `beams`; fidelity (KINDS); task: 0 evaluates, 1 makes D^H (Psi' - Psi), 2 makes -D^H dL/dI
            Psi.
        keep: True to write the waves that come back to `out`.
        tables: constants, plan and twiddles of the transform.
        out: (B, M, h, w) complex, written; without `keep` or for task 0 it may have no views.
        terms: (B, 6) float64, written; see Backend.at_detector.
        into: windows (B L, h, w), sum_m conj(P_m) out_m of each view and slice, and their light sum_m |P_m|^2; sums and
            lights of the probe and of OPR modes, with shifts and reached, as in `to_spectrum`; the probes and `asked`
            of compiled_moves.add_products: if `asked` has rows, the last two numbers of each are ||psi_1||^2 and
            ||psi||^2.
        background_sums: sums of the background, see background.py.
    """
    count, bands = len(terms), len(work)
    for i in prange(bands):
        band = np.int64(i)
        for j in range(count * band // bands, count * (band + 1) // bands):
            if len(shift[0]) > 0:
                given, found = (shift, path, data, how, keep, tables), (out, terms, into, background_sums)
                _sweep_view(U(j), band, work[band], intermediates, *given, *found)
            else:
                view = ZERO if len(intermediates[2]) == 1 else U(j)
                made = (work[band], intermediates, data, how, tables)
                _apply_at_detector(U(j), view, band, *made, out, terms, background_sums)


#: See compiled.SIGNATURES; what stands in brackets is a tuple.
SIGNATURES = {
    detector: "r2 (c2 i2 c4 r1) (c3 r2 r2) (i r1 r1 b) (u3 i1 r1 r1) (i b b i i) b (r1 i2 r2) c4 d2 "
    "(c3 r3 d2 d2 d2 d2 d2 d2 r1 d2) (d2 d2 r1)",
}
