"""An object that changes while it is scanned: radiation damage, drying, a reaction that proceeds.

t_j     share of its scan that has passed at view j, from its middle: -1/2 at the first view, 1/2 at the last
C       change of the object over the scan, of log amplitude (real part) and of phase in rad (imaginary part), on the
        object's pixels;  S_j C its window at view j's anchor

    psi_j -> psi_j exp(t_j S_j C) behind the last slice

So the object is the one in the middle of the scan, exp(C) what comes to it from the first view to the last. Only pixels
that are seen early and late can tell both apart: a scan that returns to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ptymesh.measurement import Measurement
from ptymesh.physics.elementwise import times
from ptymesh.physics.operators import Place, Tables, Values, WaveOperator
from ptymesh.unknowns import Unknown


class ChangingObject(WaveOperator):
    """Change of log amplitude and phase (`object_change`) of each pixel of the object from the first to the last view.

    It is refined if a stage has `unknowns: {object_change: true}`.
    """

    name: ClassVar[str] = "changing_object"
    at: ClassVar[Place] = "exit"
    unknowns: ClassVar[tuple[Unknown, ...]] = (
        Unknown("object_change", ("H", "W"), "tiled", complex=True, largest=100.0),
        Unknown("elapsed", ("N",), "view", largest=1.0, may_rest=True, is_fixed=True),
    )

    @property
    def needs_whole_scan(self) -> bool:
        """True: before its last view is there, nobody knows which share of a scan has passed."""
        return True

    def start_values(self, measurement: Measurement) -> Mapping[str, float | np.ndarray]:
        """Return the share of its scan that has passed at each view, from its middle, (N,).

        Args:
            measurement: one scan or several, whose views are in the order in which they were taken.
        """
        index = measurement.scan_index
        return {"elapsed": elapsed(np.zeros(measurement.views, int) if index is None else index), **self.start}

    def forward(self, psi: Tensor, values: Values, tables: Tables) -> Tensor:
        """Return psi exp(t C).

        Args:
            psi: (B, M, h, w) complex.
            values: `object_change` (B, 1, h, w) complex, windows of C; `elapsed` (B,), t.
            tables: not used.
        """
        return times(psi, _factors(values))

    def adjoint(self, psi: Tensor, values: Values, tables: Tables) -> Tensor:
        """Return psi conj(exp(t C)).

        Args:
            psi: (B, M, h, w) complex.
            values: `object_change` (B, 1, h, w) complex, windows of C; `elapsed` (B,), t.
            tables: not used.
        """
        return times(psi, _factors(values).conj().resolve_conj())

    def slopes(self, psi: Tensor, values: Values, tables: Tables, back: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Return t sum_m conj(psi_m exp(t C)) back_m and t^2 sum_m |psi_m exp(t C)|^2, (B, 1, h, w) each.

        Args:
            psi: (B, M, h, w) complex, where the operator begins.
            values: `object_change` (B, 1, h, w) complex, windows of C; `elapsed` (B,), t.
            tables: not used.
            back: (B, M, h, w) complex, wave taken back to where it ends.
        """
        changed, t = self.forward(psi, values, tables), values["elapsed"][:, None, None, None]
        slope = times(changed.conj().resolve_conj(), back).sum(1, keepdim=True)
        power = (changed.real.square() + changed.imag.square()).sum(1, keepdim=True)
        return {"object_change": (t * slope, t.square() * power)}


def elapsed(scan_index: np.ndarray) -> np.ndarray:
    """Return the share of its scan that has passed at each view, from its middle, (N,) float64.

    Args:
        scan_index: (N,) int, number of the scan that each view is of.
    """
    shares = np.zeros(len(scan_index))
    for number in np.unique(scan_index):
        views = np.flatnonzero(scan_index == number)
        if len(views) > 1:
            shares[views] = np.linspace(-0.5, 0.5, len(views))
    return shares


def _factors(values: Values) -> Tensor:
    """Return exp(t C), (B, 1, h, w) complex."""
    change, t = values["object_change"], values["elapsed"][:, None, None, None]
    modulus, phase = (t * change.real).exp(), t * change.imag
    return torch.complex(modulus * phase.cos(), modulus * phase.sin())  # torch.polar takes twice as long
