"""Causes in the estimate itself: vortices, what object and probe have traded, too many modes, over-fitting."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ptymesh.diagnosis.base import Cause
from ptymesh.diagnosis.look import Look


class Vortices(Cause):
    """The object's phase winds around points."""

    name: ClassVar[str] = "vortices"
    title: ClassVar[str] = "Phase vortices in the object"
    patterns: ClassVar[bool] = False
    threshold: ClassVar[float] = 0.5
    weight: ClassVar[float] = 4.0  # nothing else winds a phase where there is light

    def number(self, look: Look) -> float:
        """How many where the scan is well lit."""
        return float(self._places(look).sum())

    @staticmethod
    def _places(look: Look) -> np.ndarray:
        o = look.object
        turn = [
            np.angle(o[:-1, 1:] * o[:-1, :-1].conj()),
            np.angle(o[1:, 1:] * o[:-1, 1:].conj()),
            np.angle(o[1:, :-1] * o[1:, 1:].conj()),
            np.angle(o[:-1, :-1] * o[1:, :-1].conj()),
        ]
        winding = np.abs(np.round(sum(turn) / (2 * np.pi)))
        lit = look.light > 0.2 * look.light.max()
        return np.asarray(winding * (lit[:-1, :-1] & lit[1:, 1:]))

    def sentence(self, look: Look, number: float) -> str:
        y, x = (int(index[0]) for index in np.nonzero(self._places(look)))
        return f"its phase winds around {number:.0f} point{'s' * (number > 1)}, such as row {y}, column {x}"

    def recipe(self, look: Look) -> str:
        return "object: {initial: ones}  # and a first stage with coarsen: 2"


class Traded(Cause):
    """A shift or a ramp that the object has taken from the probe."""

    name: ClassVar[str] = "confused"
    title: ClassVar[str] = "Object and probe confused"
    patterns: ClassVar[bool] = False
    threshold: ClassVar[float] = 1.0

    def number(self, look: Look) -> float:
        """The larger of the probe's offset in its window, over 6 %, and the object's ramp, over half a pixel."""
        return max(self._shift(look) / 0.06, self._ramp(look) / 0.5)

    @staticmethod
    def _shift(look: Look) -> float:
        """Offset of the probe's centre of mass from the window's, over the window."""
        power = look.power
        offsets = []
        for axis, n in enumerate(power.shape):
            profile = power.sum(axis=1 - axis)
            offsets.append(((np.arange(n) - n // 2) * profile).sum() / max(profile.sum(), 1e-30) / n)
        return float(np.hypot(*offsets))

    @staticmethod
    def _ramp(look: Look) -> float:
        """Mean slope of the object's phase, in detector pixels."""
        o, lit = look.object, look.light > 0.3 * look.light.max()
        window = look.result.probe.shape[-2:]
        slopes = []
        for axis in range(2):
            both = lit & np.roll(lit, -1, axis)
            slopes.append(np.angle((np.roll(o, -1, axis) * o.conj())[both].sum()) / (2 * np.pi) * window[axis])
        return float(np.hypot(*slopes))

    def sentence(self, look: Look, number: float) -> str:
        shift, ramp = self._shift(look), self._ramp(look)
        if shift / 0.06 > ramp / 0.5:
            return f"the probe lies off the middle of its window by {100 * shift:.2g} % of it, and the object with it"
        return f"the object's phase has a slope of {ramp:.2g} detector pixels, which belongs to the probe"

    def recipe(self, look: Look) -> str:
        return "stages: [{..., probe: {centre: true}, object: {ramp: true}}]"


class ManyModes(Cause):
    """The weakest modes hold next to nothing."""

    name: ClassVar[str] = "many_modes"
    title: ClassVar[str] = "Too many modes"
    patterns: ClassVar[bool] = False
    threshold: ClassVar[float] = 1.5

    def number(self, look: Look) -> float:
        """How many modes hold less than half a per cent of the light."""
        return float((self._powers(look) < 0.005).sum())

    @staticmethod
    def _powers(look: Look) -> np.ndarray:
        powers = (np.abs(look.result.probe.astype(np.complex128)) ** 2).sum(axis=(1, 2))
        return np.asarray(powers / powers.sum())

    def sentence(self, look: Look, number: float) -> str:
        powers = np.sort(self._powers(look))
        weakest = f"the weakest {100 * powers[0]:.2g} %"
        return f"{number:.0f} of {len(powers)} modes hold less than half a per cent of the light each, {weakest}"

    def recipe(self, look: Look) -> str:
        return f"probe: {{modes: {max(1, int((self._powers(look) >= 0.005).sum()))}}}"


class OverFitting(Cause):
    """The residual is below what counting leaves, or that of held-out views far above it."""

    name: ClassVar[str] = "over_fitting"
    title: ClassVar[str] = "Over-fitting"
    patterns: ClassVar[bool] = False
    threshold: ClassVar[float] = 1.0
    weight: ClassVar[float] = 4.0

    def number(self, look: Look) -> float:
        """The larger of noise floor / residual, over 1.08, and held-out / running residual at the end, over 1.5.

        Where positions were refined the second one is left out: held-out views keep theirs, which may be wrong.
        """
        return max(self._below(look) / 1.08, self._held(look) / 1.5)

    @staticmethod
    def _below(look: Look) -> float:
        floor, residual = (look.result.attrs.get(name) for name in ("noise_floor", "final_residual"))
        return float(floor / residual) if floor and residual else 0.0

    @staticmethod
    def _held(look: Look) -> float:
        history = look.result.history
        if look.result.nominal_px is not None:
            return 0.0
        held = np.asarray(history.get("held_out", [np.nan]), dtype=float)
        if not len(held) or not np.isfinite(held[-1]) or not len(history.get("residual", ())):
            return 0.0
        return float(held[-1] / max(float(history["residual"][-1]), 1e-30))

    def sentence(self, look: Look, number: float) -> str:
        if self._held(look) / 1.5 >= number:
            return f"views that no update saw have {self._held(look):.2g} times the residual of the others"
        return f"the residual is {1 / self._below(look):.2g} of what counting alone leaves: noise has been fitted"

    def recipe(self, look: Look) -> str:
        if np.isfinite(np.asarray(look.result.history.get("held_out", ()), dtype=float)).any():
            return "stages: [{..., object: {smooth: true}}]  # or fewer epochs or modes"
        return "hold_out: 0.05  # and fewer epochs or modes, or stages: [{..., object: {smooth: true}}]"
