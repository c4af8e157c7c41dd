"""An object as a potential: one real number V for each pixel, from which the transmission follows.

V       (L, H, W) real, the phase in rad that each slice adds; for electrons sigma times the projected potential
a       absorption: -log amplitude over phase, one number for the whole object
O       the transmission, which the forward model is made of

    O = exp((i - a) V),  dO = (i - a) O dV

V has no wraps: it may grow by any number of turns. The least-squares change of V for a wanted change D of O is

    dV = Re(conj((i - a) O) D) / ((1 + a^2) |O|^2)

and the slope of a loss of slope g = dL/dRe O + i dL/dIm O is dL/dV = Re(conj((i - a) O) g).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ptymesh.physics.elementwise import times


def transmission(potential: Tensor, absorption: float) -> Tensor:
    """Return O = exp((i - a) V), complex of the potential's precision.

    Args:
        potential: V, any shape, real, in rad.
        absorption: a.
    """
    amplitude = torch.exp(-absorption * potential) if absorption else torch.ones_like(potential)
    return torch.polar(amplitude, potential)


def along(obj: Tensor, change: Tensor, absorption: float) -> Tensor:
    """Return Re(conj((i - a) O) x), real: the part of x that a change of V makes.

    Args:
        obj: O, any shape, complex.
        change: x of the same shape, complex.
        absorption: a.
    """
    turned = times(obj.conj().resolve_conj(), change)
    return turned.imag - absorption * turned.real if absorption else turned.imag.clone()


def curvature(absorption: float) -> float:
    """Return |dO/dV|^2 / |O|^2 = 1 + a^2."""
    return 1 + absorption * absorption


def followed(potential: Tensor, changed: Tensor, absorption: float) -> Tensor:
    """Return the potential after the least-squares step towards a transmission that has been changed.

    Where nothing has changed the potential stays as it is, to the last bit.

    Args:
        potential: V before the change, any shape, real, in rad.
        changed: transmission after the change, of the same shape, complex.
        absorption: a.
    """
    before = transmission(potential, absorption)
    size = torch.view_as_real(before).square().sum(-1) * curvature(absorption)
    return potential + along(before, changed - before, absorption) / size
