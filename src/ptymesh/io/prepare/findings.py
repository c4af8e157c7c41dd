"""Findings of checks (checks.py), and how they are applied to a scan and recorded in a recipe.

N       views
h, w    window pixels, laid out as the patterns
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from ptymesh.errors import BadInput
from ptymesh.io.options import MOST_WITHOUT, CheckedData, DataOptions
from ptymesh.io.prepare.outliers import regions_of
from ptymesh.io.prepare.preprocess import PreparedSource
from ptymesh.measurement import Measurement, PatternSource, select_views


@dataclass(frozen=True)
class Findings:
    """The outcome of one check.

    Attributes:
        left_out: (k,) int64, indices of views to be left out.
        masked: (h, w) bool, pixels to be masked.
        done: sentences about what is done.
        would: the same sentences about what a run would do.
        doubts: sentences about what is reported only.
    """

    left_out: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    masked: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), bool))
    done: tuple[str, ...] = ()
    would: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

    @property
    def changes(self) -> bool:
        """True if views are left out or pixels masked."""
        return bool(len(self.left_out) or self.masked.any())

    @property
    def sentences(self) -> tuple[str, ...]:
        """All sentences of a run: what is done, and what is reported only."""
        return self.done + self.doubts


@dataclass(frozen=True)
class SelectedSource:
    """Some of the patterns of another source: view i is its view `views[i]`."""

    source: PatternSource
    views: np.ndarray

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape (N, h, w)."""
        _, h, w = self.source.shape
        return len(self.views), h, w

    @property
    def dtype(self) -> np.dtype:
        """Type of the counts, as in the other source."""
        return self.source.dtype

    def read(self, views: np.ndarray) -> np.ndarray:
        """Return patterns (len(views), h, w)."""
        return self.source.read(self.views[views])


def apply_findings(measurement: Measurement, findings: Findings) -> Measurement:
    """Return the measurement without the views that findings leave out, with the pixels masked that they mask."""
    m = measurement
    if findings.masked.any():
        mask, source = m.mask & ~findings.masked, m.patterns
        if isinstance(source, PreparedSource):
            b = source.window.binning
            bad = np.repeat(np.repeat(findings.masked, b, axis=0), b, axis=1)
            source = replace(source, good=source.good & ~bad, mask=mask)
        m = replace(m, mask=mask, patterns=source)
    if len(findings.left_out):
        kept_views = np.setdiff1d(np.arange(m.views), findings.left_out)
        lost_views = tuple(stored_views(m, findings.left_out))
        source = m.patterns
        if isinstance(source, PreparedSource):
            source = replace(source, selected=source.selected[kept_views])
        else:
            source = SelectedSource(source, kept_views)
        left_out = tuple(sorted((*m.left_out, *lost_views)))
        m = replace(select_views(m, kept_views, source), left_out=left_out)
    return m


def stored_views(measurement: Measurement, views: np.ndarray) -> list[int]:
    """Return the numbers that views (k,) have in the file."""
    source = measurement.patterns
    if isinstance(source, PreparedSource):
        views = source.selected[views]
    elif isinstance(source, SelectedSource):
        views = source.views[views]
    return [int(view) for view in views]


def stored_regions(measurement: Measurement, pixels: np.ndarray) -> list[tuple[int, int, int, int]]:
    """Return rectangles [row, end, column, end] of stored detector pixels that make up pixels (h, w) of the window."""
    source = measurement.patterns
    if not isinstance(source, PreparedSource):
        return regions_of(pixels)
    window = source.window
    pixels = pixels.T if window.transpose else pixels
    stored = np.zeros(source.raw.shape[1:], bool)
    pieces = np.repeat(np.repeat(pixels, window.binning, axis=0), window.binning, axis=1)
    rows, columns = window.y.ordered.ravel(), window.x.ordered.ravel()
    stored[np.ix_(rows[rows >= 0], columns[columns >= 0])] |= pieces[np.ix_(rows >= 0, columns >= 0)]
    return regions_of(stored)


def checked_options(data: DataOptions, measurement: Measurement, unchecked: Measurement) -> DataOptions:
    """Return the options with which the file is read as `measurement`, which checks have made of `unchecked`.

    Args:
        data: options of the file.
        measurement: the scan after the checks.
        unchecked: the scan before.

    Raises:
        BadInput: more views were left out than a recipe can name.
    """
    if len(measurement.left_out) > MOST_WITHOUT:
        raise BadInput(
            f"{len(measurement.left_out)} views of {measurement.name} look wrong, more than can be left out by their "
            f"numbers: leave them out by data.views, or keep them by data.checks.views=warn."
        )
    checked = CheckedData(
        fingerprint=measurement.fingerprint or None,
        without=measurement.left_out,
        regions=tuple(stored_regions(unchecked, unchecked.mask & ~measurement.mask)),
    )
    return data.model_copy(update={"checked": checked})
