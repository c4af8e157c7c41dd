"""Incoherent states of an object, such as the frozen phonons of a vibrating crystal.

Q, L, M     object modes, slices of each, probe modes
B           views of a chunk

Every probe mode passes through every object mode, all of which are equally likely:

    I = 1/Q sum_q sum_m |D psi_qm|^2

An object holds Q L planes, the slices of the first mode, then those of the second, and so on. Waves are copied Q times
in front of the first slice, with the factor Q^(-1/2): the copies of a probe mode lie beside each other, and copy q only
meets the planes of object mode q (Thibault & Menzel, Nature 494, 68, 2013, with states of the object; Chen et al.,
Science 372, 826, 2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from ptymesh.estimate import BLOCK
from ptymesh.physics.operators import Piece, Tables, Values, WaveOperator, sum_in_order

#: Standard deviation (rad) of the phases by which modes of an object differ at the start: equal ones would stay equal.
START_SPREAD_RAD = 0.05


class ObjectModes(WaveOperator):
    """Copies of each wave, one for each object mode."""

    name: ClassVar[str] = "object_modes"
    keeps_products: ClassVar[bool] = True

    modes: int = Field(2, ge=2)

    @property
    def label(self) -> str:
        """Key in a recipe."""
        return "object.modes"

    @property
    def fan_out(self) -> int:
        """Number of waves that it makes of each wave."""
        return self.modes

    def forward(self, psi: Tensor, values: Values, tables: Tables) -> Tensor:
        """Return Q^(-1/2) psi for each object mode, (B, M Q, h, w).

        Args:
            psi: (B, M, h, w) complex.
            values: not used.
            tables: not used.
        """
        return (psi * self.modes**-0.5).repeat_interleave(self.modes, dim=1)

    def adjoint(self, psi: Tensor, values: Values, tables: Tables) -> Tensor:
        """Return Q^(-1/2) times the sum over the object modes, (B, M, h, w).

        Args:
            psi: (B, M Q, h, w) complex.
            values: not used.
            tables: not used.
        """
        return sum_in_order(psi.unflatten(1, (-1, self.modes)), 2) * self.modes**-0.5

    def slopes(self, psi: Tensor, values: Values, tables: Tables, back: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Return nothing: it has no unknowns.

        Args:
            psi: (B, M, h, w) complex.
            values: not used.
            tables: not used.
            back: (B, M Q, h, w) complex.
        """
        return {}


def with_object_modes(pieces: Sequence[Piece], modes: int) -> tuple[Piece, ...]:
    """Return the pieces of a model for an object of so many modes, which copy waves behind all that acts on the probe.

    Args:
        pieces: of the optics.
        modes: Q; the pieces stay as they are for 1.
    """
    return tuple(pieces) if modes == 1 else (*pieces, ObjectModes(modes=modes))


def spread_phases(modes: int, slices: int, part: tuple[slice, slice], width: int, seed: int) -> np.ndarray:
    """Return random phases by which the modes of an object start apart, with a mean of 0 over the modes.

    They depend on the pixel of the whole object alone, whichever part of it is asked for.

    Args:
        modes: Q.
        slices: L.
        part: rows and columns of the whole object.
        width: W of the whole object.
        seed: of the random numbers.

    Returns:
        (Q, L, h, w) float64, rad, h and w the sides of the part.
    """
    rows, columns = part
    phases = np.empty((modes, slices, max(0, rows.stop - rows.start), max(0, columns.stop - columns.start)))
    for block in range(rows.start // BLOCK, -(-rows.stop // BLOCK)):
        numbers = np.random.default_rng([seed, 12, block]).normal(0, START_SPREAD_RAD, (modes, slices, BLOCK, width))
        first, last = max(rows.start, block * BLOCK), min(rows.stop, (block + 1) * BLOCK)
        inside = numbers[:, :, first - block * BLOCK : last - block * BLOCK, columns]
        phases[:, :, first - rows.start : last - rows.start] = inside - inside.mean(axis=0)
    return phases


def mean_of_modes(planes: Tensor, modes: int, phases: Tensor | None = None) -> Tensor:
    """Return the mean object over all modes, (L, H, W).

    Args:
        planes: (Q L, H, W), complex or real.
        modes: Q.
        phases: (Q L,) complex, factors of modulus 1 that turn each plane to that of the first mode; None for no turn.
    """
    turned = planes if phases is None else planes * phases.to(planes.dtype)[:, None, None]
    return sum_in_order(turned.unflatten(0, (modes, -1)), 0) / modes


def phases_to_first(products: Tensor) -> Tensor:
    """Return the factors of modulus 1 that turn planes to those of the first mode, (Q L,) complex128.

    No pattern tells a constant phase of one mode from another.

    Args:
        products: (Q L,) complex128, sum O_q^* O_1 of each plane.
    """
    size = products.abs()
    return torch.where(size > 0, products / size.clamp(min=torch.finfo(size.dtype).tiny), torch.ones_like(products))


def mean_object(modes: np.ndarray) -> np.ndarray:
    """Return the mean of whole object modes, each plane turned to that of the first mode.

    Args:
        modes: (Q, L, H, W) complex.

    Returns:
        (L, H, W) complex.
    """
    stack = torch.from_numpy(np.ascontiguousarray(modes))
    products = (stack.conj() * stack[:1]).sum((-2, -1), dtype=torch.complex128)
    return mean_of_modes(stack.flatten(0, 1), len(stack), phases_to_first(products.flatten())).numpy()
