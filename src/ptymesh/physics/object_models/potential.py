"""An object as a potential: the phase of each pixel, of which the amplitude is a fixed power.

V       (L, H, W) real, the phase in rad that each slice adds; for electrons sigma times the projected potential
a       absorption: -log amplitude over phase, one number for the whole object

    O = exp((i - a) V),  D = (i - a) O,  |D|^2 = (1 + a^2) |O|^2,  dO/da = -V O

V has no wraps: it may grow by any number of turns.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ptymesh.physics.elementwise import times
from ptymesh.physics.object_models.base import ObjectModel


class Potential(ObjectModel):
    """O = exp((i - a) V)."""

    name: ClassVar[str] = "potential"
    has_absorption: ClassVar[bool] = True
    is_phase: ClassVar[bool] = True

    def transmission(self, values: Tensor, absorption: float) -> Tensor:
        """Return O = exp((i - a) V), complex of the potential's precision.

        Args:
            values: V, any shape, real, in rad.
            absorption: a.
        """
        amplitude = torch.exp(-absorption * values) if absorption else torch.ones_like(values)
        return torch.polar(amplitude, values)

    def derivative(self, values: Tensor, obj: Tensor, absorption: float) -> Tensor:
        """Return (i - a) O.

        Args:
            values: not used.
            obj: O, any shape, complex.
            absorption: a.
        """
        return times(torch.tensor(1j - absorption, dtype=obj.dtype, device=obj.device), obj)

    def values_of(self, obj: np.ndarray) -> np.ndarray:
        """Return the phases (L, H, W) float64 of an object without wraps; a pixel outside of it, 1, stays at 0."""
        return unwrapped(obj)

    def slope(self, values: Tensor, obj: Tensor, change: Tensor, absorption: float) -> Tensor:
        """Return Re(conj((i - a) O) x), real.

        Args:
            values: not used.
            obj: O, any shape, complex.
            change: x of the same shape, complex.
            absorption: a.
        """
        turned = times(obj.conj().resolve_conj(), change)
        return turned.imag - absorption * turned.real if absorption else turned.imag.clone()

    def power(self, values: Tensor, obj: Tensor, absorption: float) -> Tensor:
        """Return (1 + a^2) |O|^2.

        Args:
            values: not used.
            obj: O, any shape, complex.
            absorption: a.
        """
        return torch.view_as_real(obj).square().sum(-1) * self.vacuum_power(absorption)

    def vacuum_power(self, absorption: float) -> float:
        """Return 1 + a^2."""
        return 1 + absorption * absorption

    def absorption_terms(self, values: Tensor, obj: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        """Return -V Re(conj(O) g) and (V |O|)^2.

        Args:
            values: V, any shape, real, in rad.
            obj: O, complex.
            slope: g, complex.
        """
        return -values * (obj.real * slope.real + obj.imag * slope.imag), (values * obj.abs()).square()


def unwrapped(obj: np.ndarray) -> np.ndarray:
    """Return the phases (L, H, W) float64, in rad, of complex slices of the same shape, without wraps."""
    from skimage.restoration import unwrap_phase

    phases = np.angle(obj)
    result: np.ndarray = np.empty_like(phases, dtype=np.float64)
    for index, phase in enumerate(phases):
        free = unwrap_phase(phase, rng=0) if phase.any() else phase
        # whole turns are free: most pixels keep theirs
        result[index] = free - 2 * np.pi * np.round(np.median(free - phase) / (2 * np.pi))
    return result
