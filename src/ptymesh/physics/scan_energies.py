"""Scans of one object at several energies, which share its potential: transmissions are powers of each other.

V        potential: phase of each pixel in the first scan, rad
s_j      phase of view j over that in the first scan: the ratio of interaction constants of its energy and the first
O, O_j   transmission in the first scan, and in the scan of view j

    O = exp((i - a) V),  O_j = exp((i - a) s_j V) = O^{s_j},  dO_j/dO = s_j O^{s_j - 1}

The power is that of the branch on which V lies within -pi and pi. As it is differentiable in O, the chain rule carries
slopes and weights of a window back to those of O, and with them to V. Electrons: s = sigma(E_j) / sigma(E_1), with
sigma = 2 pi m e lambda / h^2 (Kirkland, Advanced Computing in Electron Microscopy, sect. 5.1). Photons far from edges:
the refractive decrement goes with lambda^2, and the phase 2 pi delta / lambda with lambda.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from ptymesh.geometry import Geometry, electron_interaction
from ptymesh.measurement import Measurement
from ptymesh.physics.elementwise import phase, times
from ptymesh.physics.operators import Piece, Views


class ScanEnergies(Piece):
    """Powers of windows of an object, by the energy of each view's scan."""

    name: ClassVar[str] = "scan_energies"

    ratios: tuple[float, ...]
    first_views: tuple[int, ...]

    @property
    def label(self) -> str:
        """Words for messages."""
        return "scans of several energies"

    def powers(self, windows: Tensor, views: Views) -> tuple[Tensor, Tensor]:
        """Return O_j and dO_j/dO of each view, (B, L, h, w) complex.

        Args:
            windows: O, (B, L, h, w) complex, nowhere 0.
            views: the views.
        """
        firsts = torch.tensor(self.first_views, device=views.numbers.device)
        scan = torch.searchsorted(firsts, views.numbers, right=True) - 1
        ratio = torch.tensor(self.ratios, dtype=windows.real.dtype, device=windows.device)[scan][:, None, None, None]
        square = windows.real.square() + windows.imag.square()
        powers = torch.polar(torch.exp(0.5 * ratio * torch.log(square)), ratio * phase(windows))
        powers = torch.where(ratio == 1, windows, powers)
        return powers, times(powers, windows.conj().resolve_conj()) * (ratio / square)


def interaction_ratio(geometry: Geometry, first: Geometry) -> float:
    """Return the phase of a potential at the energy of a geometry, over that at another one's.

    Args:
        geometry: with wavelength and radiation.
        first: with wavelength and the same radiation.
    """
    assert geometry.wavelength_m is not None and first.wavelength_m is not None, "joint scans know their wavelengths"
    if geometry.radiation == "electron":
        return electron_interaction(geometry.wavelength_m) / electron_interaction(first.wavelength_m)
    return geometry.wavelength_m / first.wavelength_m


def with_energies(pieces: Sequence[Piece], measurement: Measurement) -> tuple[Piece, ...]:
    """Return the pieces of a model for scans of these energies; they stay as they are for a single energy.

    Args:
        pieces: of the model.
        measurement: the scans.
    """
    ratios, scans = measurement.interaction_ratios, measurement.scan_index
    if ratios is None or scans is None:
        return tuple(pieces)
    firsts = tuple(int((scans < scan).sum()) for scan in range(len(ratios)))
    return (*pieces, ScanEnergies(ratios=ratios, first_views=firsts))
