"""An object as phase and absorption, both of each pixel: the logarithm of its transmission.

phi     (L, H, W) real, the phase in rad that each slice adds
mu      (L, H, W) real, the absorption: -log amplitude
V       phi + i mu, complex

    O = exp(i V) = exp(-mu) exp(i phi),  D = i O,  |D|^2 = |O|^2

phi has no wraps: it may grow by any number of turns. The step towards a changed transmission X is the logarithm itself,

    dphi = arg(X / O),  dmu = -log|X| - mu

which meets X, and turns phi by half a turn at most.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ptymesh.physics.elementwise import phase, times
from ptymesh.physics.object_models.base import ObjectModel
from ptymesh.physics.object_models.potential import unwrapped

#: Amplitude below which a transmission has no logarithm worth following.
FAINTEST = 1e-4


class AmplitudePhase(ObjectModel):
    """O = exp(i V), V complex."""

    name: ClassVar[str] = "amplitude_phase"
    is_phase: ClassVar[bool] = True
    is_complex: ClassVar[bool] = True

    def transmission(self, values: Tensor, absorption: float) -> Tensor:
        """Return O = exp(i V).

        Args:
            values: V, any shape, complex.
            absorption: not used.
        """
        return torch.polar(torch.exp(-values.imag), values.real.contiguous())

    def derivative(self, values: Tensor, obj: Tensor, absorption: float) -> Tensor:
        """Return i O.

        Args:
            values: not used.
            obj: O, any shape, complex.
            absorption: not used.
        """
        return torch.complex(-obj.imag, obj.real)

    def values_of(self, obj: np.ndarray) -> np.ndarray:
        """Return V (L, H, W) complex128, phases without wraps; amplitudes below the faintest are that."""
        return unwrapped(obj) - 1j * np.log(np.maximum(np.abs(obj), FAINTEST))

    def followed(self, values: Tensor, changed: Tensor, absorption: float) -> Tensor:
        """Return V of a transmission that has been changed; where it has not, V as it is, to the last bit.

        Args:
            values: V before the change, (..., H, W) complex.
            changed: the transmission after the change, complex.
            absorption: not used.
        """
        before = self.transmission(values, absorption)
        turned = phase(times(changed, before.conj().resolve_conj()))
        power = torch.view_as_real(changed).square().sum(-1).clamp(min=FAINTEST**2)
        moved = torch.complex(values.real + turned, -torch.log(power) / 2)
        return torch.where(changed == before, values, moved)
