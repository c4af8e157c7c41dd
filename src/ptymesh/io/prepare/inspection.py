"""Inspection of a data set: sampling, overlap, dose, detector, beam, and what is suspicious.

Distances are in object pixels where no unit suffix says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from ptymesh.files import size
from ptymesh.io.prepare.checks import check_marks, check_near_field, check_patterns, check_scan, scan_fault
from ptymesh.io.prepare.findings import apply_findings, stored_regions, stored_views
from ptymesh.io.prepare.noise_gain import UNUSUAL, noise_gain
from ptymesh.io.prepare.preprocess import centroid
from ptymesh.io.prepare.survey import (
    ScanStatistics,
    Survey,
    odd_pixels,
    probe_diameter_px,
    scan_statistics,
    survey,
    upright,
)
from ptymesh.limits import free_memory
from ptymesh.measurement import Measurement

#: Arrays for the figure; they are no part of the JSON.
ARRAYS = ("totals", "mean_pattern", "example_pattern", "odd")
#: A complex number in single precision.
SINGLE_BYTES = 8


@dataclass(frozen=True)
class InspectionReport:
    """The report of `ptymesh inspect`.

    Fields:
        window, object pixel, field of view: (y, x). dtype: of the patterns as they are read.
        probe_diameter_px: estimated; probe_diameter_from: file, speckle or window.
        oversampling: window over probe diameter; far-field intensities are sampled well from 2 on.
        overlap: 1 - step / diameter. views_per_point: how many views light a point of the scanned area.
        counts_per_view, counts_per_pixel: means. counts_per_m2: of a view over the area for each view
            (survey.ScanStatistics), as papers give dose and fluence; e_per_A2: the same for electrons.
        noise_gain: counts of each quantum, as the noise tells them; None where it does not.
        peak_counts: largest count. zeros, missing: shares of good pixel values.
        masked: pixels that the mask excludes. hot, dead, stuck: unmasked pixels that look wrong.
        beam_offset_px: (y, x) of the mean pattern's centroid from the middle of the window (far field).
        intensity_rms, intensity_drift: relative spread of the views' totals, and their linear trend over the scan.
        notes: what reading the file assumed. suspicious: one sentence each.
        refused: why no reconstruction would start, or None. left_out: views that it would leave out, as the file counts
            them. masked_regions: [row, end, column, end] of the detector's pixels that it would mask, as stored.
        totals (N,), mean_pattern, example_pattern (h, w), odd {kind: (n, 2)}: for the figure, DC in the middle.
    """

    name: str
    path: str
    views: int
    window: tuple[int, int]
    dtype: str
    propagation: str
    radiation: str | None
    energy_eV: float | None
    wavelength_m: float | None
    distance_m: float | None
    focus_distance_m: float | None
    detector_pixel_m: tuple[float, float] | None
    object_pixel_m: tuple[float, float] | None
    extent_px: tuple[float, float]
    field_of_view_m: tuple[float, float] | None
    step_px: float
    duplicates: int
    stray: tuple[int, ...]
    probe_modes: int
    probe_diameter_px: float
    probe_diameter_from: str
    oversampling: float
    overlap: float
    views_per_point: float
    counts_per_view: float
    counts_per_pixel: float
    counts_per_m2: float | None
    e_per_A2: float | None
    peak_counts: float
    values_at_peak: int
    whole_counts: bool
    noise_gain: float | None
    zeros: float
    missing: float
    masked: int
    hot: tuple[tuple[int, int], ...]
    dead: tuple[tuple[int, int], ...]
    stuck: tuple[tuple[int, int], ...]
    beam_offset_px: tuple[int, int] | None
    intensity_rms: float
    intensity_drift: float
    notes: tuple[str, ...]
    suspicious: tuple[str, ...] = ()
    refused: str | None = None
    left_out: tuple[int, ...] = ()
    masked_regions: tuple[tuple[int, int, int, int], ...] = ()
    totals: np.ndarray = field(default_factory=lambda: np.empty(0), repr=False)
    mean_pattern: np.ndarray = field(default_factory=lambda: np.empty((0, 0)), repr=False)
    example_pattern: np.ndarray = field(default_factory=lambda: np.empty((0, 0)), repr=False)
    odd: dict[str, np.ndarray] = field(default_factory=dict, repr=False)

    def as_json(self) -> dict[str, Any]:
        """Return the numbers and sentences, without the arrays; NaN and infinity become None."""
        plain = {key: value for key, value in asdict(self).items() if key not in ARRAYS}
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in plain.items()}


def summarise(measurement: Measurement) -> InspectionReport:
    """Look at all of a data set, reading it once, a bounded number of patterns at a time.

    Raises BadInput, naming the view, where a pattern holds what is not a count.
    """
    as_given, masked = measurement, int((~measurement.mask).sum())
    refused = scan_fault(as_given) if as_given.views > 1 and as_given.checks.scan != "off" else ""
    looks = [check_scan(replace(as_given, checks=replace(as_given.checks, scan="off"))), check_marks(as_given)]
    measurement = apply_findings(as_given, replace(looks[1], left_out=looks[0].left_out[:0]))
    pattern_survey = survey(measurement)
    looks += [check_patterns(measurement, pattern_survey), check_near_field(measurement)]
    left_out = np.unique(np.concatenate([look.left_out for look in looks]))
    bad = np.logical_or.reduce([look.masked for look in looks if look.masked.size] or [~as_given.mask & as_given.mask])
    diameter, origin = probe_diameter_px(measurement)
    scan = scan_statistics(measurement.positions, diameter)
    odd = odd_pixels(measurement, pattern_survey)
    offset = _beam_offset(measurement, pattern_survey)
    numbers = (
        _geometry(measurement)
        | _sampling(measurement, scan, diameter, origin)
        | _count_statistics(measurement, pattern_survey, scan, diameter)
        | {"masked": masked, "noise_gain": noise_gain(measurement, diameter)}
    )
    pixels: dict[str, Any] = {kind: tuple((int(y), int(x)) for y, x in places) for kind, places in odd.items()}
    summary = InspectionReport(
        **numbers,
        **pixels,
        beam_offset_px=offset,
        notes=measurement.notes,
        refused=refused or None,
        left_out=tuple(stored_views(as_given, left_out)),
        masked_regions=tuple(stored_regions(as_given, bad)),
        totals=pattern_survey.totals,
        mean_pattern=np.where(upright(measurement, measurement.mask), pattern_survey.mean, np.nan),
        example_pattern=_example(measurement, pattern_survey),
        odd=odd,
    )
    sentences = (
        *([refused] if refused else []),
        *(sentence for look in looks for sentence in (*look.would, *look.doubts)),
        *_about_scan(summary, np.setdiff1d(scan.stray, left_out)),
        *_about_sampling(summary),
        *_about_detector(summary),
        *_about_beam(summary, np.setdiff1d(np.arange(as_given.views), left_out)),
    )
    return InspectionReport(**{**summary.__dict__, "suspicious": sentences})


def _geometry(m: Measurement) -> dict[str, Any]:
    g = m.geometry
    names = ("propagation", "radiation", "energy_eV", "wavelength_m", "distance_m", "focus_distance_m")
    return {name: getattr(g, name) for name in (*names, "detector_pixel_m", "object_pixel_m")} | {
        "name": m.name,
        "path": m.path,
        "views": m.views,
        "window": m.window,
        "dtype": str(m.patterns.dtype),
    }


def _sampling(m: Measurement, scan: ScanStatistics, diameter: float, origin: str) -> dict[str, Any]:
    pixel = m.geometry.object_pixel_m
    area = _scanned_area(scan, diameter)
    return {
        "extent_px": scan.extent,
        "field_of_view_m": None if pixel is None else (scan.extent[0] * pixel[0], scan.extent[1] * pixel[1]),
        "step_px": scan.step,
        "duplicates": scan.duplicates,
        "stray": tuple(int(view) for view in scan.stray),
        "probe_modes": 0 if m.probe is None else len(m.probe),
        "probe_diameter_px": diameter,
        "probe_diameter_from": origin,
        "oversampling": min(m.window) / diameter if diameter > 0 else math.nan,
        "overlap": 1 - scan.step / diameter if diameter > 0 else math.nan,
        "views_per_point": m.views * math.pi * diameter**2 / 4 / area if area > 0 else math.nan,
    }


def _scanned_area(scan: ScanStatistics, diameter: float) -> float:
    """Return the number of object pixels within a probe's radius of the scan's convex hull."""
    return scan.hull_area + scan.hull_length * diameter / 2 + math.pi * diameter**2 / 4


def _count_statistics(m: Measurement, pattern_survey: Survey, scan: ScanStatistics, diameter: float) -> dict[str, Any]:
    pixel = m.geometry.object_pixel_m
    mean = float(pattern_survey.totals.mean())
    area = scan.area_per_view or scan.step * diameter  # a line lights a strip as wide as the beam
    per_m2 = None if pixel is None or area == 0 else mean / (area * pixel[0] * pixel[1])
    order = np.linspace(-0.5, 0.5, m.views)
    totals = pattern_survey.totals  # of several scans, whose doses differ, as all had the same
    if m.scan_index is not None and m.intensity is not None:
        totals = totals / m.intensity
    trend = float((order * totals).sum() / (order**2).sum()) if m.views > 1 else 0.0
    return {
        "counts_per_view": mean,
        "counts_per_pixel": mean / int(m.mask.sum()),
        "counts_per_m2": per_m2,
        "e_per_A2": per_m2 * 1e-20 if per_m2 is not None and m.geometry.radiation == "electron" else None,
        "peak_counts": pattern_survey.peak,
        "values_at_peak": pattern_survey.at_peak,
        "whole_counts": pattern_survey.whole,
        "zeros": pattern_survey.zeros,
        "missing": pattern_survey.missing,
        "masked": int((~m.mask).sum()),
        "intensity_rms": float(pattern_survey.totals.std() / mean) if mean > 0 else math.nan,
        "intensity_drift": trend / mean if mean > 0 else math.nan,
    }


def _beam_offset(m: Measurement, pattern_survey: Survey) -> tuple[int, int] | None:
    mask = upright(m, m.mask)
    if m.geometry.propagation != "far_field" or not (pattern_survey.mean[mask] > 0).any():
        return None
    y, x = centroid(pattern_survey.mean, mask)
    return y - m.window[0] // 2, x - m.window[1] // 2


def _example(m: Measurement, pattern_survey: Survey) -> np.ndarray:
    pattern = m.patterns.read(np.array([pattern_survey.example]))[0]
    return np.where(upright(m, m.mask & (pattern >= 0)), upright(m, pattern), np.nan)


def _about_scan(s: InspectionReport, stray: np.ndarray) -> Iterator[str]:
    sides = [math.ceil(extent) + pixels for extent, pixels in zip(s.extent_px, s.window, strict=True)]
    needed, free = SINGLE_BYTES * math.prod(sides), free_memory()
    if needed > free:
        yield (
            f"The scan spans {s.extent_px[0]:.3g} x {s.extent_px[1]:.3g} object pixels, and one slice of the object "
            f"needs {size(needed)} ({size(free)} are free here): check the unit of the positions (positions.unit)."
        )
    if s.duplicates:
        yield f"{s.duplicates} of {s.views} positions repeat another one; check that the scan was not read twice."
    if len(stray):
        numbers = ", ".join(str(view) for view in stray[:5]) + (" ..." if len(stray) > 5 else "")
        yield (
            f"{_count_of(len(stray), 'view lies', 'views lie')} further than a probe diameter from every other "
            f"({numbers}): "
            f"motor readings may be wrong."
        )
    if s.refused or s.probe_diameter_from == "window" or not s.overlap < 0.4:
        return
    origin = f"(about {s.probe_diameter_px:.0f} px, from the {_words_for_origin(s)})"
    if s.overlap < 0:
        yield (
            f"Neighbouring views are {s.step_px:.3g} px apart, further than the probe is wide {origin}: perhaps the "
            f"detector is in the near field, and these are images as wide as the window (data.propagation), or units "
            f"are wrong; else the scan is too coarse."
        )
    else:
        yield (
            f"Neighbouring views overlap by only {s.overlap:.0%} of the probe's diameter {origin}; 60 % and more "
            f"reconstruct reliably."
        )


def _about_sampling(s: InspectionReport) -> Iterator[str]:
    if s.propagation == "far_field" and s.oversampling < 1.3:
        yield (
            f"The probe (about {s.probe_diameter_px:.0f} px, from the {_words_for_origin(s)}) fills the window of "
            f"{min(s.window)} px: the diffraction patterns are undersampled; pad the detector or check the distance."
        )
    if s.radiation == "electron" and s.energy_eV is not None and not 1e4 <= s.energy_eV <= 2e6:
        yield f"Electrons of {s.energy_eV:.4g} eV are unusual: check data.energy_eV."
    if s.radiation == "photon" and s.energy_eV is not None and not 1 <= s.energy_eV <= 2e5:
        yield f"Photons of {s.energy_eV:.4g} eV are unusual: check data.energy_eV."


def _about_detector(s: InspectionReport) -> Iterator[str]:
    if s.peak_counts <= 0:
        yield f"None of the {s.views} views has counts: check which dataset is read (data.keys.patterns), and the mask."
        return
    if not s.whole_counts and s.counts_per_view < 1000:
        yield (
            f"Patterns hold {s.counts_per_view:.3g} in fractional units on average: if these are not counts, set "
            f"data.gain."
        )
    if s.noise_gain is not None and not 1 / UNUSUAL < s.noise_gain < UNUSUAL:
        yield (
            f"The noise of the patterns is that of {s.noise_gain:.3g} counts for each {s.radiation or 'quantum'}: set "
            f"data.gain={s.noise_gain:.3g}, unless most of it comes from the readout."
        )
    if s.counts_per_view < 100:
        yield f"There are only {s.counts_per_view:.3g} counts per view: expect a noisy reconstruction."
    if s.missing > 0.1:
        yield f"{s.missing:.0%} of the pixel values hold no data: check data.saturation."


def _about_beam(s: InspectionReport, views: np.ndarray) -> Iterator[str]:
    """Yield sentences about the light, and how it falls on `views`, which a run would not leave out."""
    if s.propagation == "far_field" and s.beam_offset_px is not None:
        h, w = s.window
        mean = np.nan_to_num(s.mean_pattern)
        if _rms_width(np.fft.fftshift(mean)) < 0.7 * _rms_width(mean):
            yield "The light lies in the corners of the patterns, not around the zero frequency: set data.dc."
        elif _rms_width(np.fft.fftshift(mean, axes=0)) < 0.7 * _rms_width(mean):
            yield (
                "The beam is double, at the upper and at the lower border: frames are read half a frame too early or "
                "too late; check what stands before the first one (data.raw.offset)."
            )
        elif max(abs(s.beam_offset_px[0]) / h, abs(s.beam_offset_px[1]) / w) > 1 / 16:
            yield (
                f"The mean pattern lies {s.beam_offset_px[0]:+d}, {s.beam_offset_px[1]:+d} pixels (y, x) off the "
                f"centre: set data.centre to find if the direct beam is off."
            )
        border = np.concatenate([mean[0], mean[-1], mean[:, 0], mean[:, -1]])
        if border.mean() > 0.1 * np.percentile(mean, 99):
            yield "The patterns are bright up to the detector's border: light is lost there, or a background is added."
    totals = s.totals[views]
    median = float(np.median(totals)) if len(totals) else 0.0
    weak, bright = views[totals < 0.3 * median], views[totals > 3 * median]
    if median > 0 and len(weak):
        yield (
            f"{_count_of(len(weak), 'view has', 'views have')} less than 30 % of the median counts (first: view "
            f"{weak[0]})."
        )
    if median > 0 and len(bright):
        yield (
            f"{_count_of(len(bright), 'view has', 'views have')} over 3 times the median counts (first: view "
            f"{bright[0]})."
        )
    if abs(s.intensity_drift) > 0.2:
        yield (
            f"The counts drift by {s.intensity_drift:+.0%} over the scan: give the incident intensity "
            f"(data.intensity) if the beam did."
        )


def _rms_width(pattern: np.ndarray) -> float:
    """Return the rms distance of the counts of a pattern (h, w) from its middle, in windows."""
    h, w = pattern.shape
    y, x = (np.arange(h) - h // 2)[:, None] / h, (np.arange(w) - w // 2) / w
    total = pattern.sum()
    return float(np.sqrt((pattern * (y**2 + x**2)).sum() / total)) if total > 0 else 0.0


def _words_for_origin(s: InspectionReport) -> str:
    return {"file": "file's probe", "speckle": "size of the speckles", "window": "window"}[s.probe_diameter_from]


def _count_of(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
