"""Causes in the positions, by what views ask of them: wrong scale or rotation, drift, vibration.

d       what a view asks of its position (B, 2) y x, pixels
p, t    its position, about the scan's middle; its time, -1 to 1
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ptymesh.diagnosis.base import Cause
from ptymesh.diagnosis.look import Look

#: Standard errors by which a rotation or a scale must stand out; how far what is smooth in time may exceed it.
SURE, ALIKE = 3.5, 1.3


class _Moves(Cause):
    """Part of what views ask for, in pixels."""

    threshold: ClassVar[float] = 0.08
    weight: ClassVar[float] = 1.5

    def number(self, look: Look) -> float:
        """Root mean square of this part of d, pixels; 0 where another part says more."""
        if len(look.views) < 12:
            return float("nan")
        asked = Asked.of(look)
        return asked.parts[self.name] if self.name == asked.kind else 0.0

    def sentence(self, look: Look, number: float) -> str:
        return f"views ask to be moved by {number:.2g} px {self.how(look)} (more than {self.threshold:g} px)"

    @abstractmethod
    def how(self, look: Look) -> str:
        """In which way views ask to be moved, as a clause."""


class ScanGeometry(_Moves):
    """Moves are a rotation or a scale of the positions."""

    name: ClassVar[str] = "geometry"
    title: ClassVar[str] = "Wrong scale or rotation of the positions"
    threshold: ClassVar[float] = 0.05

    def how(self, look: Look) -> str:
        return f"as {'a rotation' if Asked.of(look).turned else 'another scale'} of the whole scan would"

    def recipe(self, look: Look) -> str:
        return "stages: [{..., models: {scan_geometry: true}}]"


class Drift(_Moves):
    """Moves are a smooth function of time."""

    name: ClassVar[str] = "drift"
    title: ClassVar[str] = "Drift"

    def how(self, look: Look) -> str:
        return "smoothly with time"

    def recipe(self, look: Look) -> str:
        return "stages: [{..., positions: {start: 5, gain: auto}}]"


class Vibration(_Moves):
    """Moves that neither a rotation or scale of the scan nor a drift explains."""

    name: ClassVar[str] = "vibration"
    title: ClassVar[str] = "Vibration, or positions not as told"

    def how(self, look: Look) -> str:
        return "each in its own direction"

    def recipe(self, look: Look) -> str:
        return "stages: [{..., positions: {start: 5}}]"


@dataclass(frozen=True)
class Asked:
    """parts: root mean squares, in pixels, of what is a rotation or a scale of p, what is smooth in t, and the rest;
    kind: which of them says most; turned: whether rotation is more than scale."""

    parts: dict[str, float]
    kind: str
    turned: bool

    @classmethod
    def of(cls, look: Look) -> Asked:
        """What the views of a scan ask for, beyond counting; a few that ask for far more than others are left out."""
        d, error = look.moves
        size = np.linalg.norm(d, axis=1)
        kept = size <= 5 * np.median(size) + 1e-12
        d, noise = d[kept] - d[kept].mean(axis=0), float((error[kept] ** 2).sum(axis=1).mean())
        p = look.result.positions_px[look.views][kept]
        p = (p - p.mean(axis=0)) / max(float(p.std()), 1e-12)
        t = np.linspace(-1, 1, len(look.views))[kept]
        smooth = _explained(d, np.stack([t, t**2, t**3], axis=1))
        across = np.stack([-p[:, 1], p[:, 0]], axis=1)
        power = max(float((p**2).sum()), 1e-12)
        turn, scale = (float((d * along).sum()) / power for along in (across, p))
        left = d - turn * across - scale * p
        surely = float(np.sqrt((left**2).mean() / power))
        rigid = float(np.hypot(turn, scale) * np.sqrt(power / len(p)))
        rest = max(0.0, float((d**2).sum(axis=1).mean()) - max(rigid**2, smooth) - noise)
        parts = {"geometry": rigid, "drift": smooth**0.5, "vibration": rest**0.5}
        if max(abs(turn), abs(scale)) > SURE * surely and smooth**0.5 <= ALIKE * rigid:
            kind = "geometry"
        else:
            kind = "drift" if parts["drift"] >= parts["vibration"] else "vibration"
        return cls(parts, kind, abs(turn) > abs(scale))


def _explained(d: np.ndarray, basis: np.ndarray) -> float:
    """Mean square of d that the basis (n, k) explains, less what it would by chance."""
    basis = basis - basis.mean(axis=0)
    fitted = basis @ np.linalg.lstsq(basis, d, rcond=None)[0]
    explained, whole = (float((part**2).sum(axis=1).mean()) for part in (fitted, d))
    chance = basis.shape[1] / max(1, len(d) - 1 - basis.shape[1]) * (whole - explained)
    return max(0.0, explained - chance)
