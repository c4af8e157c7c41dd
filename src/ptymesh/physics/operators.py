"""Pieces of the forward model between probe and detector, with unknowns of their own.

B, M       views of a chunk, modes;  h, w  window pixels
psi        waves (B, M, h, w) that come to the piece;  theta  its unknowns
G(theta)   the piece, linear in psi

A piece says what G does, what its adjoint does, and how G psi follows theta, view by view and without ranks. Everything
else (sums over views and ranks, steps, checkpoints, results) follows from the declaration of its unknowns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ptymesh.geometry import Geometry
from ptymesh.options import Options
from ptymesh.physics.propagate import try_transforms
from ptymesh.unknowns import Unknown

Values = Mapping[str, Tensor]
Tables = tuple[Tensor, ...]
Place = Literal["probe", "exit"]
#: Of a model without operators.
NOTHING: Values = MappingProxyType({})


class WaveOperator(Options):
    """One piece, with its options as they stand under `optics` of a recipe. Found by being in `ptymesh.models`.

    `values` holds theta by name: of an unknown of scope `view` the rows of the chunk's views, (B, ...); of a shared one
    the whole array.
    """

    #: Its key under `optics`.
    name: ClassVar[str]
    #: Where it stands: after the probe has been shifted to a view, or behind the last slice.
    at: ClassVar[Place] = "probe"
    unknowns: ClassVar[tuple[Unknown, ...]] = ()
    #: Unknowns that stay as they start where this is in the model, as its own take their part.
    replaces: ClassVar[frozenset[str]] = frozenset()

    def axes(self, window: tuple[int, int]) -> dict[str, int]:
        """How long axes are that no other unknown has, by name; window: (h, w)."""
        return {}

    def check(self, geometry: Geometry) -> None:
        """Raises BadInput where the measurement's geometry does not say what this needs."""

    def starts(self, sizes: dict[str, int], device: Any, real: torch.dtype) -> dict[str, Tensor]:
        """The unknowns where a reconstruction begins, where axes are so long: each as it is declared."""
        known = sizes | self.axes((sizes["h"], sizes["w"]))
        kinds = {u.name: real.to_complex() if u.complex else real for u in self.unknowns}
        return {u.name: torch.full(u.shape(known), u.start, dtype=kinds[u.name], device=device) for u in self.unknowns}

    def sizes(self, geometry: Geometry) -> dict[str, float]:
        """How large a change of each unknown matters, in its unit (1 unless named): learning rates count in these."""
        return {}

    def transforms(self, geometry: Geometry) -> tuple[tuple[int, int], ...]:
        """Sides of the arrays that are Fourier transformed, besides those of the window."""
        return ()

    def tables(self, geometry: Geometry) -> Tables:
        """Arrays that stay as they are, in float64 or complex128; they are brought to the model's precision."""
        return ()

    def forward(self, psi: Tensor, values: Values, tables: Tables) -> Tensor:
        """G(theta) psi."""
        raise NotImplementedError

    def adjoint(self, psi: Tensor, values: Values, tables: Tables) -> Tensor:
        """G(theta)^H psi."""
        raise NotImplementedError

    def slopes(self, psi: Tensor, values: Values, tables: Tables, back: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Of each unknown and view, Re <dG psi / d theta, back> and ||dG psi / d theta||^2, (B, ...) each.

        The dots are the unknown's own axes, without N; of a complex one the first is complex, by its real and its
        imaginary part. `back` (B, M, h, w) is what comes back to where G ends.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Placed:
    """A piece with its tables for one geometry, precision and device."""

    operator: WaveOperator
    tables: Tables
    sizes: dict[str, float]

    @classmethod
    def of(cls, operator: WaveOperator, geometry: Geometry, dtype: torch.dtype, device: Any) -> Placed:
        """Raises BadInput where the geometry does not say what the piece needs."""
        operator.check(geometry)
        if torch.device(device).type != "cpu":
            for sides in operator.transforms(geometry):
                try_transforms(torch.device(device), dtype, sides)
        real = torch.empty(0, dtype=dtype).real.dtype
        made = operator.tables(geometry)
        tables = tuple(t.to(device, dtype if t.is_complex() else real) for t in made)
        return cls(operator, tables, {u.name: 1.0 for u in operator.unknowns} | operator.sizes(geometry))


def through(placed: tuple[Placed, ...], at: Place, psi: Tensor, values: Values) -> Tensor:
    """psi behind all pieces that stand there."""
    for piece in placed:
        if piece.operator.at == at:
            psi = piece.operator.forward(psi, values, piece.tables)
    return psi


def back_through(placed: tuple[Placed, ...], at: Place, psi: Tensor, values: Values) -> Tensor:
    """The adjoint of `through`."""
    for piece in reversed(placed):
        if piece.operator.at == at:
            psi = piece.operator.adjoint(psi, values, piece.tables)
    return psi


def slopes(
    placed: tuple[Placed, ...], at: Place, psi: Tensor, values: Values, back: Tensor
) -> Iterator[tuple[str, tuple[Tensor, Tensor]]]:
    """What `WaveOperator.slopes` says of the unknowns of all pieces there; back: behind the last of them."""
    here = [piece for piece in placed if piece.operator.at == at]
    before = [psi]
    for piece in here[:-1]:
        before.append(piece.operator.forward(before[-1], values, piece.tables))
    for piece, wave in zip(reversed(here), reversed(before[: len(here)]), strict=True):
        yield from piece.operator.slopes(wave, values, piece.tables, back).items()
        back = piece.operator.adjoint(back, values, piece.tables)
