"""Causes in how the scan samples the object: too little overlap, a probe in another plane, a regular grid, a beam
larger than its window."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ptymesh.diagnosis.base import Cause
from ptymesh.diagnosis.look import Look

#: Width by the patterns' speckles over that of a disc of the same effective area: at least so much for the beams that
#: are known (1.1 to 1.8 where these were found, 5.4 to 6.2 where they stayed in focus, simulated).
SPECKLES = 2.0


class Overlap(Cause):
    """Neighbouring views share too little light."""

    name: ClassVar[str] = "overlap"
    title: ClassVar[str] = "Too little overlap"
    patterns: ClassVar[bool] = False
    threshold: ClassVar[float] = 0.6
    weight: ClassVar[float] = 3.0

    def number(self, look: Look) -> float:
        """Distance of neighbouring views over the beam's diameter, of a disc of the same effective area; or half the
        diameter that speckles tell, where that is larger: a probe that was not found says nothing about the scan."""
        return float(np.median(look.nearest_px) / max(_diameter(look.power), look.speckle_px / SPECKLES))

    def sentence(self, look: Look, number: float) -> str:
        beam = "the beam's" if look.scan is not None else "this probe's"
        return f"neighbouring views are {number:.2g} of {beam} width apart (more than {self.threshold:g})"

    def recipe(self, look: Look) -> str:
        return "probe: {start: {kind: file}}  # a well-known probe; the next scan with steps of a third of the beam"


class Plane(Cause):
    """Far field: the probe is too narrow for the patterns' speckles, as one in focus is where the beam is not."""

    name: ClassVar[str] = "plane"
    title: ClassVar[str] = "The probe is not that of the sample's plane"
    threshold: ClassVar[float] = 4.0
    weight: ClassVar[float] = 10.0  # nothing else makes a probe so narrow

    def number(self, look: Look) -> float:
        """Width that the speckles tell, over that of a disc of the probe's effective area."""
        if look.scan is None or look.scan.geometry.propagation != "far_field":
            return float("nan")
        return look.speckle_px / _diameter(look.power)

    def sentence(self, look: Look, number: float) -> str:
        return (
            f"the patterns have speckles of a beam of about {look.speckle_px:.0f} px, and the probe has "
            f"{_diameter(look.power):.2g} px (less than a {self.threshold:g}th)"
        )

    def recipe(self, look: Look) -> str:
        return "probe: {start: {kind: data, defocus_m: ...}}  # `stages: auto` looks for the defocus"


class Raster(Cause):
    """Positions lie on a regular grid, whose period the object shows."""

    name: ClassVar[str] = "raster"
    title: ClassVar[str] = "Raster-grid pathology"
    patterns: ClassVar[bool] = False
    threshold: ClassVar[float] = 4.0
    weight: ClassVar[float] = 2.0

    def number(self, look: Look) -> float:
        """Power of log |O| at the grid's frequencies over that beside them; 0 where the positions are no grid."""
        steps = grid(look.result.positions_px)
        if steps is None:
            return 0.0
        lit = look.light > 0.3 * look.light.max()
        rows, columns = (np.flatnonzero(lit.any(axis=1 - axis)) for axis in range(2))
        part = (slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1))
        log = np.where(lit, np.log(np.maximum(np.abs(look.object), 1e-6)), 0)[part]
        log = np.where(lit[part], log - log[lit[part]].mean(), 0) * np.outer(*(np.hanning(n) for n in log.shape))
        y, x = np.ogrid[: log.shape[0], : log.shape[1]]

        def power(fy: float, fx: float) -> float:
            return float(np.abs((log * np.exp(-2j * np.pi * (fy * y + fx * x))).sum()) ** 2)

        at, beside = 0.0, 0.0
        for a, b in ((1, 0), (0, 1), (1, 1), (1, -1)):
            fy, fx = a / steps[0], b / steps[1]
            at += power(fy, fx)
            beside += float(np.mean([power(fy * s, fx * s) for s in (0.65, 0.75, 1.3, 1.4)]))
        return at / max(beside, 1e-30)

    def sentence(self, look: Look, number: float) -> str:
        steps = grid(look.result.positions_px)
        assert steps is not None
        return (
            f"the scan is a grid of {steps[0]:.3g} x {steps[1]:.3g} px, and at its period the object has {number:.2g} "
            "times the power beside it"
        )

    def recipe(self, look: Look) -> str:
        return "probe: {start: {kind: file}}  # a well-known probe; the next scan as a spiral"


class Border(Cause):
    """The beam is so wide in its window that its fringes are finer than the detector's pixels."""

    name: ClassVar[str] = "border"
    title: ClassVar[str] = "Trouble at the border: the beam hardly fits into its window"
    threshold: ClassVar[float] = 0.38
    weight: ClassVar[float] = 20.0  # a little more of the window is much less contrast

    def number(self, look: Look) -> float:
        """Part of the window's side in which four fifths of the beam lie; NaN in the near field, whose windows are as
        large as the detector."""
        assert look.scan is not None
        if look.scan.geometry.propagation != "far_field":
            return float("nan")
        h, w = look.power.shape
        rim = np.ones((h, w), bool)
        rim[h // 12 : h - h // 12, w // 12 : w - w // 12] = False
        core = np.maximum(look.power - 2 * look.power[rim].mean(), 0)  # without a halo, which has other causes
        return max(_width(core.sum(axis=1 - axis)) for axis in range(2))

    def sentence(self, look: Look, number: float) -> str:
        most = f"more than {100 * self.threshold:.0f} %"
        part = f"{100 * number:.0f} % of the window"
        return f"four fifths of the beam take {part} ({most}): its fringes are finer than the pixels"

    def recipe(self, look: Look) -> str:
        return (
            "data: {bin: 1}  # finer detector pixels make a wider window: no binning, a longer distance, a smaller beam"
        )


def _diameter(power: np.ndarray) -> float:
    """Of a disc of the effective area of this (h, w) light, in pixels."""
    area = power.sum() ** 2 / max((power**2).sum(), 1e-30)
    return float(2 * np.sqrt(area / np.pi))


def _width(profile: np.ndarray) -> float:
    """Share of its length in which the middle four fifths of a profile's sum lie."""
    grown = np.concatenate([[0.0], np.cumsum(profile) / max(float(profile.sum()), 1e-30)])
    edges = np.interp([0.1, 0.9], grown, np.arange(len(grown)))
    return float((edges[1] - edges[0]) / len(profile))


def grid(positions: np.ndarray) -> tuple[float, float] | None:
    """Steps (y, x) of positions (N, 2) that lie on a grid along the axes, None where they do not."""
    steps = []
    for axis in range(2):
        values = np.sort(positions[:, axis])
        jumps = np.diff(values)
        wide = jumps[jumps > 0.25 * jumps.max()]
        if len(wide) < 2 or len(wide) > len(values) / 3 or wide.std() > 0.1 * wide.mean():
            return None
        steps.append(float(wide.mean()))
    return steps[0], steps[1]
