"""Waves to the detector and back, compiled by numba for this CPU.

B, M, h, w   views of the chunk, modes, window pixels;  h, w >= 8
waves        (B, M, h, w) complex
panel, plane, row, work   see column_panels.py;  spectrum, tables   see shifts.py

A view's waves are made, transformed, compared with its counts, brought back and gathered by one thread in one go, while
they are in its cache: the fewer passes over them, the better.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import prange

from ptymesh.kernels.arrays import (
    BackgroundArrays,
    ComplexArray,
    DetectorInputs,
    DetectorOptions,
    ExitInputs,
    HeldArrays,
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
    WavePlanes,
    WindowTransform,
    panel_in,
    panel_out,
    plane_of,
    real_panel_in,
    real_panel_out,
    rows_back,
    rows_in,
    transform_in,
    transform_panel,
    wave_at,
    window_at,
)
from ptymesh.kernels.cpu.compiled.comparison import Panel, compare, counts_in_panels, newton_step
from ptymesh.kernels.cpu.compiled.jit import inlined, parallel
from ptymesh.kernels.cpu.compiled.moves import add_products, power_behind
from ptymesh.kernels.cpu.compiled.probes import halves
from ptymesh.kernels.cpu.compiled.propagation import columns_through, transform_rows
from ptymesh.kernels.cpu.compiled.row_panels import (
    BACK,
    ON,
    Passage,
    row_panels_of,
    through_rows,
    window_in,
    windows_out,
)
from ptymesh.kernels.cpu.compiled.shifts import (
    Ramps,
    RoundedSums,
    ViewBeam,
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


class View(NamedTuple):
    """A view and its indices.

    Attributes:
        j: index of the view.
        beam: index of its beam.
        band: index of the thread's band.
    """

    j: int
    beam: int
    band: np.int64


class ComparedData(NamedTuple):
    """The data that waves on the detector are compared with, and the results; see `detector`.

    Attributes:
        constants: (10,) real, see comparison.py.
        data: counts, indices of patterns, mask, background.
        how: dtype of the counts, product, fidelity, task.
        terms: (B, 6) float64, written.
        background_sums: see background.py.
        held: what views hold while pieces of the detector are computed.
    """

    constants: RealArray
    data: DetectorInputs
    how: DetectorOptions
    terms: RealArray
    background_sums: BackgroundArrays
    held: HeldArrays


class DetectorWork(NamedTuple):
    """Workspace of a band.

    Attributes:
        panels: counts, powers and factors, (h w',) real each.
        fourier: the transform.
        planes: waves of all modes.
        behind: real, what lies behind the planes: a second row and row panels (row_panels.py).
        factors: of rows and columns.
    """

    panels: tuple[RealArray, RealArray, RealArray]
    fourier: WindowTransform
    planes: WavePlanes
    behind: RealArray
    factors: Ramps


class Journey(NamedTuple):
    """The parts that a view's waves are made of, and their path; see `detector`.

    Attributes:
        intermediates: object, corners, beams, amplitudes.
        shift: spectrum or probe, fractions, shares.
        path: number of slices, kernels, True if probes are shifted.
        constants: (10,) real, see comparison.py.
        keep: True to write waves.
    """

    intermediates: ExitInputs
    shift: ShiftInputs
    path: PathInputs
    constants: RealArray
    keep: bool


@inlined
def _split_work(j: int, work: RealArray, kept: RealArray, out: ComplexArray, tables: Tables) -> DetectorWork:
    """Divide a band's workspace for waves of so many modes and pixels as `out` has.

    Waves are in `kept`, of view j, where views hold them between two calls.
    """
    M, h, w = U(out.shape[1]), U(out.shape[2]), U(out.shape[3])
    size = h * ((w + LANES - ONE) // LANES * LANES)
    fourier, at = transform_in(work, THREE * size, h, w, tables)
    panels = work[:size], work[size : TWO * size], work[TWO * size : THREE * size]
    waves = kept[j] if len(kept) > 0 else work[at:]
    behind, factors = waves[TWO * M * size :], empty_factors(h, w, tables[0].dtype)
    return DetectorWork(panels, fourier, WavePlanes(waves, size, M), behind, factors)


@inlined
def _apply_at_detector(
    view: View, work: RealArray, intermediates: ExitInputs, tables: Tables, out: ComplexArray, comparison: ComparedData
) -> None:
    """Take a view to the detector: its sums, and with a task what comes back in out[j]."""
    (obj, n, beams, a), product, task = intermediates, comparison.how[1], comparison.how[3]
    M, h, w, j = U(out.shape[1]), U(out.shape[2]), U(out.shape[3]), view.j
    far, parts = tables[1][0, 0] > 0, _split_work(j, work, comparison.held[0], out, tables)
    for m in range(ZERO if _has_factors(comparison) else M):
        beam, plane = wave_at(beams, view.beam * M + m), plane_of(parts.planes, m)
        if far:
            rows_in(beam, window_at(obj, n[j], h, w), a[j], a[j], product, parts.fourier, plane)
        else:
            for start in range(ZERO, w, LANES):
                panel_in(beams, beam.place, h, w, start, plane)
    _compare(view, far, parts, comparison)
    if task > 0:
        for m in range(M):
            wave, plane = TWO * h * w * (j * M + m), plane_of(parts.planes, m)
            if far:
                rows_back(plane, parts.fourier, out, wave)
            else:
                for start in range(ZERO, w, LANES):
                    panel_out(plane, h, w, start, out, wave)


@inlined
def _has_factors(comparison: ComparedData) -> bool:
    """Return True if waves are on the detector already, and their factors known."""
    return len(comparison.held[0]) > 0 and comparison.how[3] > 0


@inlined
def _exchange(view: View, far: bool, work: DetectorWork, comparison: ComparedData) -> None:
    """Write the powers of a view's waves, or multiply these by the factors that have been made of the powers."""
    constants, signals, (_, S, change) = comparison.constants, comparison.held[1][view.j], work.panels
    fourier, planes, scale = work.fourier, work.planes, constants[6] * constants[6] if far else constants[1]
    h, w = fourier.h, fourier.w
    for start in range(ZERO, w, LANES):
        if _has_factors(comparison):
            real_panel_in(signals, h, w, start, change, ZERO, LANES)
        for m in range(planes.waves):
            plane = plane_of(planes, m)
            if _has_factors(comparison):
                _change_panel(plane, h * start, change, ZERO, scale, far, fourier)
                continue
            if far:
                transform_panel(plane, TWO * h * start, fourier)
            _add_power(plane, TWO * h * start, h, m == ZERO, scale, S, ZERO)
        if not _has_factors(comparison):
            real_panel_out(S, ZERO, LANES, h, w, start, signals)


@inlined
def _compare(view: View, far: bool, work: DetectorWork, comparison: ComparedData) -> None:
    """Apply the task to the waves of a view, which stand in planes on the detector, and write their sums.

    far: rows are transformed and columns not, and conjugates come back the same way. Otherwise planes hold waves on the
    detector, or their conjugates if our own transform made them.
    """
    if len(comparison.held[0]) > 0:
        _exchange(view, far, work, comparison)
        return
    constants, (counts, places, good, b), how, all_terms, background_sums, _ = comparison
    (code, _, kind, task), terms = how, all_terms[view.j]
    (y, S, change), fourier, planes, scale = work.panels, work.fourier, work.planes, constants[1]
    if far:
        scale = constants[6] * constants[6]
    h, w, M, newton = fourier.h, fourier.w, planes.waves, task == 1 and kind != 0
    whole = newton or len(background_sums[0]) > 0  # powers of all panels are needed in the end
    for t in range(6):
        terms[t] = 0.0
    total_counts = counts_in_panels(counts[places[view.j]], code, h, w, good, constants, y)
    least = constants[7] * total_counts
    for start in range(ZERO, w, LANES):
        at = h * start
        own = at if whole else ZERO
        for m in range(M):
            if far:
                transform_panel(plane_of(planes, m), TWO * at, fourier)
            _add_power(plane_of(planes, m), TWO * at, h, m == ZERO, scale, S, own)
        panel = Panel(LANES * h, S, change, own, y, b, at)
        compare(panel, constants, least, kind, task, terms)
        if task > 0 and not newton:
            for m in range(M):
                _change_panel(plane_of(planes, m), at, change, own, scale, far, fourier)
    all_panels = Panel(U(len(good)), S, change, ZERO, y, b, ZERO)
    if newton:
        alpha = scale * newton_step(kind, all_panels, constants)
        for start in range(ZERO, w, LANES):
            for m in range(M):
                _change_panel(plane_of(planes, m), h * start, change, h * start, alpha, far, fourier)
    if len(background_sums[0]) > 0:
        add_background_terms(all_panels, constants, total_counts, kind, view.band, background_sums)


@inlined
def _change_panel(
    plane: RealArray, at: int, change: RealArray, own: int, scale: float, far: bool, fourier: WindowTransform
) -> None:
    """Multiply a panel by its factors, which leaves the conjugate if our own transform made it; with `far`, transform
    it."""
    _times(plane, TWO * at, fourier.h, change, own, scale, -scale if fourier.plan[0, 0] > 0 else scale)
    if far:
        transform_panel(plane, TWO * at, fourier)


@inlined
def _through_slices(j: int, journey: Journey, work: DetectorWork) -> None:
    """Take view j's waves from the probe, or its spectrum, through all slices, to planes; their rows are transformed
    then."""
    (obj, n, beams, a), (spectrum, fractions, shares), (slices, between, _, ramped), constants, keep = journey
    fourier, planes, factors = work.fourier, work.planes, work.factors
    L, h, w, M, one = U(slices), fourier.h, fourier.w, planes.waves, constants[1]
    window, height = window_at(obj, n[j], h, w), TWO * U(obj.shape[1]) * (U(obj.shape[0]) // L)
    beam = ViewBeam(spectrum, M, shares[j])
    if ramped:
        ramps(fractions[j], np.int64(w), -1, a[j] * constants[6], factors)
    for l in range(L):
        row_panels = row_panels_of(work.behind, l, L, M, h, w)
        window_in(window, height * l, row_panels.window)
        for m in range(M):
            plane, start = plane_of(planes, m), l == ZERO
            if start and ramped:
                columns_in(beam, m, factors, fourier, plane)
            elif start:
                waves_in(beam, m, a[j], fourier, plane)
            passage = Passage(ON, start and not ramped, keep and ramped and L == ONE)
            through_rows(plane, passage, one, m, fourier, row_panels, wave_at(beams, j * M + m))
            if l + ONE < L:
                columns_through(plane, between, one, False, factors, fourier)


@inlined
def _near_field(sign: float, path: PathInputs, work: DetectorWork) -> None:
    """Propagate waves in planes, whose rows are transformed, to a detector in the near field, as conjugates; with sign
    -1 from there back, where their rows are transformed again."""
    (_, _, near, ramped), fourier = path, work.fourier
    for m in range(work.planes.waves):
        plane = plane_of(work.planes, m)
        if sign < 0:
            transform_rows(plane, work.behind, fourier)
        columns_through(plane, near, sign, ramped, work.factors, fourier)
        if sign > 0:
            transform_rows(plane, work.behind, fourier)


@inlined
def _back_through_slices(view: View, journey: Journey, work: DetectorWork, out: ComplexArray, into: SumArrays) -> None:
    """Take conjugates of chi in planes, columns transformed, back to the sums of the slices and of the probe."""
    (obj, n, _, a), (_, fractions, shares), (slices, between, _, ramped), constants, keep = journey
    windows, light, sums, lights, opr_sums, opr_lights, shifts, all_reached, probes, all_asked = into
    fourier, planes, factors, j, band = work.fourier, work.planes, work.factors, view.j, view.band
    L, h, w, M, one, reached = U(slices), fourier.h, fourier.w, planes.waves, constants[1], all_reached[j]
    parts, parts_of_beam = lights.shape[1] // (out.shape[2] * out.shape[3]), max(U(shares.shape[1]), ONE)
    (half, light_half), (opr_half, opr_light_half) = halves(sums, lights, parts), halves(opr_sums, opr_lights, parts)
    varies, asks = shares.shape[1] > 0, len(all_asked) > 0
    if ramped:
        ramps(-fractions[j], np.int64(w), -1, constants[6], factors)
    for k in range(L):
        l = L - ONE - k
        row_panels = row_panels_of(work.behind, l, L, M, h, w)
        for m in range(M):
            plane, end = plane_of(planes, m), l == ZERO
            passage = Passage(BACK, end and not ramped, keep and k == ZERO)
            f = a[j] if end else one
            through_rows(plane, passage, f, m, fourier, row_panels, wave_at(out, j * M + m))
            if not end:
                columns_through(plane, between, -one, False, factors, fourier)
                continue
            if ramped:
                turn_columns(plane, factors, fourier)
            for i in range(parts_of_beam if m == ZERO else ONE):
                first, share = i == ZERO, shares[j, i] if varies else one
                kind, which, behind = (PROBE, m, half) if first else (OPR, i - ONE, opr_half)
                to = RoundedSums((sums if first else opr_sums)[band], behind, shifts, reached)
                add_plane(plane, share, kind, which, to)
                if asks:
                    add_products(plane, m if first else M + i - ONE, h, w, probes, all_asked[j], THREE * i)
        windows_out(row_panels, fourier, windows, light, h * w * (j * L + l), reached)
        if asks and l == ZERO:
            all_asked[j, THREE * parts_of_beam] = power_behind(row_panels.window, row_panels.light, h, w)
        if asks and k == ZERO:
            all_asked[j, THREE * parts_of_beam + ONE] = power_behind(row_panels.window, row_panels.light, h, w)
    for i in range(parts_of_beam):
        first, share = i == ZERO, shares[j, i] if varies else a[j]
        kind, which, behind = (PROBE_WEIGHT, ZERO, light_half) if first else (OPR_WEIGHT, i - ONE, opr_light_half)
        to = RoundedSums((lights if first else opr_lights)[band], behind, shifts, reached)
        add_power(window_at(obj, n[j], h, w), share, kind, which, to)


@inlined
def _sweep_view(
    view: View,
    work: RealArray,
    journey: Journey,
    tables: Tables,
    comparison: ComparedData,
    out: ComplexArray,
    into: SumArrays,
) -> None:
    """Take a view from the probe to the detector and back to the sums, or to waves if there are no sums."""
    (_, fractions, _), path, one, j = journey.shift, journey.path, journey.constants[1], view.j
    parts, far, ramped = _split_work(j, work, comparison.held[0], out, tables), len(path[2]) == 0, path[3]
    w, M = parts.fourier.w, parts.planes.waves
    if not _has_factors(comparison):
        _through_slices(j, journey, parts)
    if not far and not _has_factors(comparison):
        if ramped:  # on the detector the image moves back with the probe
            ramps(-fractions[j], np.int64(w), -1, one, parts.factors)
        _near_field(one, path, parts)
    _compare(view, far, parts, comparison)
    if comparison.how[3] == 0:
        return
    if not far:
        if ramped:
            ramps(fractions[j], np.int64(w), -1, one, parts.factors)
        _near_field(-one, path, parts)
    if len(into[0]) > 0:
        _back_through_slices(view, journey, parts, out, into)
        return
    for m in range(M):
        rows_back(plane_of(parts.planes, m), parts.fourier, out, wave_at(out, j * M + m).place)


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
    held: HeldArrays,
) -> None:
    """Take views to the detector, apply a task there, bring the result back, and add it to the sums of object and
    probe.

    If `shift` has a spectrum of no modes, exit waves are read or made from beams and object, and what comes back is
    `out`. Otherwise beams are made here, and what comes back is added to `into`; if `into` has no windows, it is `out`.
    Without a plan no transform is made: `beams` are waves on the detector, and may be `out`.

    With pieces between powers and counts, which are computed elsewhere, it takes two calls: task 0 writes powers, task
    1 multiplies waves by factors and brings them back.

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
        how: dtype of the counts (NATIVE); True if exit waves are made of beams and object, False if they are `beams`;
            fidelity (KINDS); task: 0 evaluates, 1 makes D^H (Psi' - Psi), 2 makes -D^H dL/dI Psi.
        keep: True to write the waves that come back to `out`.
        tables: constants, plan and twiddles of the transform.
        out: (B, M, h, w) complex, written; without `keep` or for task 0 it may have no views.
        terms: (B, 6) float64, written; see Backend.at_detector.
        into: windows (B L, h, w), sum_m conj(P_m) out_m of each view and slice, and their light sum_m |P_m|^2; sums and
            lights of the probe and of OPR modes, with shifts and reached, as in `to_spectrum`; the probes and `asked`
            of compiled_moves.add_products: if `asked` has rows, the last two numbers of each are ||psi_1||^2 and
            ||psi||^2.
        background_sums: sums of the background, see background.py.
        held: what views hold between two calls, (B, kept_size) real, and powers, then factors, (B, h w) real; no views
            without pieces.
    """
    count, bands = len(terms), len(work)
    for i in prange(bands):
        band = np.int64(i)
        for j in range(count * band // bands, count * (band + 1) // bands):
            beam = ZERO if len(intermediates[2]) == 1 else U(j)
            view, comparison = View(U(j), beam, band), ComparedData(tables[0], data, how, terms, background_sums, held)
            if len(shift[0]) > 0:
                journey = Journey(intermediates, shift, path, tables[0], keep)
                _sweep_view(view, work[band], journey, tables, comparison, out, into)
            else:
                _apply_at_detector(view, work[band], intermediates, tables, out, comparison)


#: See compiled.SIGNATURES; what stands in brackets is a tuple.
SIGNATURES = {
    detector: "r2 (c2 i2 c4 r1) (c3 r2 r2) (i r1 r1 b) (u3 i1 r1 r1) (i b i i) b (r1 i2 r2) c4 d2 "
    "(c3 r3 d2 d2 d2 d2 d2 d2 r1 d2) (d2 d2 r1) (r2 r2)",
}
