"""Pieces of the forward model with unknowns of their own: what all have in common, and operators on waves.

B, M       views of a chunk, modes;  h, w  window pixels
psi        waves (B, M, h, w) that enter the operator;  theta  its unknowns
G(theta)   the operator, linear in psi

An operator between probe and detector defines G, its adjoint, and how G psi follows theta, view by view and without
ranks; a piece between intensities and counts is in detector/pieces.py. Everything else (sums over views and ranks,
steps, checkpoints, results) follows from the declaration of its unknowns. Methods of an operator that have an argument
`views` are told which views the waves belong to (`Views`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from inspect import signature
from types import MappingProxyType
from typing import ClassVar, Generic, Literal, TypeVar

import numpy as np
import torch
from pydantic import Field, field_validator
from torch import Tensor

from ptymesh.errors import BadInput
from ptymesh.geometry import Geometry
from ptymesh.measurement import Measurement
from ptymesh.options import Options
from ptymesh.physics.elementwise import times
from ptymesh.physics.propagate import fft, ifft, try_transforms, turn_phases
from ptymesh.physics.window_shifts import cut, ramps
from ptymesh.units import BY_ENDING, read_quantity
from ptymesh.unknowns import Unknown

Values = Mapping[str, Tensor]
Tables = tuple[Tensor, ...]
Place = Literal["probe", "between", "exit"]
#: Values of a model without operators.
NOTHING: Values = MappingProxyType({})


@dataclass(frozen=True)
class Views:
    """Views of a chunk, for operators that depend on where and when a view was taken.

    Attributes:
        positions: (B, 2) float64, y x, present positions: object pixels under the windows' top-left corners.
        fractions: (B, 2) real, their sub-pixel parts.
        scan: (B, 2) float64, y x, positions as they were measured, in object pixels from the scan's own origin.
        numbers: (B,) int64, indices of the views in the scan.
    """

    positions: Tensor
    fractions: Tensor
    scan: Tensor
    numbers: Tensor


class ViewValues(dict[str, Tensor]):
    """Values of the operators' unknowns for some views, by name, with these views.

    Attributes:
        views: the views.
    """

    def __init__(self, values: Values, views: Views) -> None:
        super().__init__(values)
        self.views = views


def with_value(values: Values, name: str, value: Tensor) -> Values:
    """Return the values with another one of an unknown, of the same views.

    Args:
        values: unknowns by name.
        name: of the unknown.
        value: its value, as the others are.
    """
    changed = {**values, name: value}
    return ViewValues(changed, values.views) if isinstance(values, ViewValues) else changed


class Piece(Options):
    """A piece of the forward model, with its options as they stand under `optics` of a recipe.

    Pieces are registered in `ptymesh.models`. `values` holds theta by name: for an unknown of scope `view` the rows
    of the chunk's views, (B, ...), for one with a row per scan (axis S) those of their scans, (B, ...); for a tiled one
    the views' windows, (B, C, h, w), cut at their anchors; for another shared one the whole array.
    """

    #: Its key under `optics`.
    name: ClassVar[str]
    unknowns: ClassVar[tuple[Unknown, ...]] = ()
    #: Unknowns that keep their start if this operator is in the model, as its own unknowns replace them.
    replaces: ClassVar[frozenset[str]] = frozenset()
    #: True if its methods take few passes over the waves, or kernels compute them: a log says what others cost.
    is_fast: ClassVar[bool] = False
    #: False if it makes no sense where each scan has a probe of its own.
    for_own_probes: ClassVar[bool] = True
    #: True if it is another one at another energy.
    depends_on_wavelength: ClassVar[bool] = False

    start: dict[str, float] = Field(
        default_factory=dict,
        description="values at which its unknowns start, by name, one for all views and elements; else as declared",
    )

    @field_validator("start", mode="before")
    @classmethod
    def _in_units(cls, start: object) -> object:
        """Return the numbers of texts such as `5 nm`, of unknowns in metres or degrees."""
        if not isinstance(start, dict):
            return start
        quantities = {one.name: BY_ENDING[one.unit] for one in cls.unknowns if one.unit in BY_ENDING}
        return {
            name: read_quantity(name, value, quantities[name]) if name in quantities else value
            for name, value in start.items()
        }

    @field_validator("start")
    @classmethod
    def _known(cls, start: dict[str, float]) -> dict[str, float]:
        names = [one.name for one in cls.unknowns]
        for name in start:
            if name not in names:
                raise ValueError(f"{cls.name} has no unknown {name}; it has {', '.join(names) or 'none'}")
        return start

    def axes(self, window: tuple[int, int]) -> dict[str, int]:
        """Return the lengths of axes that no other unknown has, by name; window is (h, w)."""
        return {}

    def check(self, geometry: Geometry) -> None:
        """Check that the measurement's geometry has what this operator needs.

        Raises:
            BadInput: something that it needs is missing.
        """

    @property
    def label(self) -> str:
        """Key in a recipe, for messages."""
        return f"optics.{self.name}"

    @property
    def needs_whole_scan(self) -> bool:
        """True if what it takes from the scan is not to be had from some of the views."""
        return False

    def for_scan(self, measurement: Measurement) -> tuple[Piece, str]:
        """Return the piece with the options that it takes from the scan, and a sentence that says so; or itself and "".

        Args:
            measurement: the scan.

        Raises:
            BadInput: the scan does not have what it needs.
        """
        return self, ""

    def starts(self, sizes: dict[str, int], device: torch.device | str, real: torch.dtype) -> dict[str, Tensor]:
        """Return the unknowns at the start of a reconstruction, each at the value that it declares.

        Args:
            sizes: lengths of the axes, by name.
            device: where the arrays are kept.
            real: real dtype of the model.
        """
        known_sizes = sizes | self.axes((sizes["h"], sizes["w"]))
        kinds = {u.name: real.to_complex() if u.complex else real for u in self.unknowns}
        return {
            u.name: torch.full(u.shape(known_sizes), u.start, dtype=kinds[u.name], device=device) for u in self.unknowns
        }

    def start_values(self, measurement: Measurement) -> Mapping[str, float | np.ndarray]:
        """Return what unknowns start at, by name, where the measurement or the recipe tells it.

        An operator that reads them from the measurement adds what this returns, so that the recipe's word counts.

        Args:
            measurement: the scan.

        Returns:
            Numbers, or arrays of the unknown's shape; unknowns that are left out start as `starts` says.
        """
        return self.start

    def sizes(self, geometry: Geometry) -> dict[str, float]:
        """Return the size of a change that matters, by unknown and in its unit (1 if not named).

        Learning rates count in it.
        """
        return {}

    def rotate_modes(self, values: dict[str, Tensor], rotation: Tensor) -> None:
        """Change unknowns that belong to single modes, where the probe's modes P become U P.

        Args:
            values: unknowns of all operators by name, changed in place.
            rotation: U (M, M) complex128, unitary.
        """

    def transforms(self, geometry: Geometry) -> tuple[tuple[int, int], ...]:
        """Return the shapes of the arrays that are Fourier transformed, besides that of the window."""
        return ()

    def tables(self, geometry: Geometry) -> Tables:
        """Return constant arrays in float64 or complex128; they are cast to the model's precision."""
        return ()


class WaveOperator(Piece):
    """A piece between probe and detector, which is linear in the wave."""

    #: Where it acts: after the probe has been shifted to a view, behind the way from each slice to the next, with which
    #: it commutes (its last table is then the distance, in metres, and its sizes are those over a metre), or behind the
    #: last slice.
    at: ClassVar[Place] = "probe"
    #: True if waves behind it are no longer of one mode each, so that engines cannot keep them by mode.
    mixes_modes: ClassVar[bool] = False
    #: True if G^H G = 1, so that kernels may take products with waves behind it where it begins.
    keeps_products: ClassVar[bool] = False

    @property
    def fan_out(self) -> int:
        """Number of waves that it makes of each wave, which are summed incoherently; those of a mode lie together."""
        return 1

    def forward(self, psi: Tensor, values: Values, tables: Tables) -> Tensor:
        """Return G(theta) psi, (B, M K, h, w) with K = `fan_out`.

        Args:
            psi: (B, M, h, w) complex.
            values: theta, by name.
            tables: from `tables`, in the model's precision.
        """
        raise NotImplementedError

    def adjoint(self, psi: Tensor, values: Values, tables: Tables) -> Tensor:
        """Return G(theta)^H psi, (B, M, h, w): the sum over the K waves that each came to.

        Args:
            psi: (B, M K, h, w) complex, where G ends.
            values: theta, by name.
            tables: from `tables`, in the model's precision.
        """
        raise NotImplementedError

    def slopes(self, psi: Tensor, values: Values, tables: Tables, back: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Return Re <dG psi / d theta, back> and ||dG psi / d theta||^2 of each view, by unknown.

        Args:
            psi: (B, M, h, w) complex, where G begins.
            values: theta, by name.
            tables: from `tables`, in the model's precision.
            back: (B, M K, h, w) complex, wave taken back to where G ends.

        Returns:
            Two arrays (B, ...) for each unknown; the dots are its own axes without N, C, h, w of a tiled one. For a
            complex unknown the first array is complex: slope by its real part plus i times slope by its imaginary part.
            One that is fixed may be left out.
        """
        raise NotImplementedError


class MirrorPiece(Piece):
    """A mirror behind an object of a single slice, from which waves come back through the same pixels.

    `tables` holds its transfer function (h, w) complex, of the way from the object to the mirror and back.
    """


class ShiftedCopies:
    """The methods of a `WaveOperator` that makes K copies of each wave at places of their own: psi -> c_k T_{d_k} psi.

    Copies may be propagated instead, each by a distance of its own: psi -> c_k F^H exp(i z_k r) F psi. It comes before
    `WaveOperator` among the bases. Kernels make the copies together with the shift of the probe to the view
    (kernels/cpu/operators.py).
    """

    is_fast: ClassVar[bool] = True

    def copies(self, values: Values, tables: Tables) -> tuple[Tensor, Tensor]:
        """Return the places d_k of the copies, (1 or B, K, 2) in pixels y x, and their factors c_k, (K,).

        Args:
            values: theta, by name.
            tables: from `tables`, in the model's precision.
        """
        raise NotImplementedError

    def distances(self, values: Values, tables: Tables) -> tuple[Tensor, Tensor] | None:
        """Return the distances z_k, (1 or B, K) in metres, by which copies are propagated, and r, (h, w) rad/m.

        None of copies that are shifted: those that are propagated have no places, (1, K, 2) zeros.

        Args:
            values: theta, by name.
            tables: from `tables`, in the model's precision.
        """
        return None

    def forward(self, psi: Tensor, values: Values, tables: Tables) -> Tensor:
        """Return c_k T_{d_k} psi, (B, M K, h, w), the K copies of a mode beside each other.

        Args:
            psi: (B, M, h, w) complex.
            values: theta, by name.
            tables: from `tables`.
        """
        return ifft(times(fft(psi)[:, :, None], self.turns(psi, values, tables))).flatten(1, 2)

    def adjoint(self, psi: Tensor, values: Values, tables: Tables) -> Tensor:
        """Return sum_k c_k T_{-d_k} psi_k.

        Args:
            psi: (B, M K, h, w) complex.
            values: theta, by name.
            tables: from `tables`.
        """
        turned = self.turns(psi, values, tables).conj()
        return ifft(sum_in_order(times(fft(psi).unflatten(1, (-1, turned.shape[2])), turned), 2))

    def turns(self, psi: Tensor, values: Values, tables: Tables) -> Tensor:
        """Return c_k exp(-2 pi i k.d_k) or c_k exp(i z_k r), (1 or B, 1, K, h, w) complex.

        Args:
            psi: (B, M, h, w) complex, for its window.
            values: theta, by name.
            tables: from `tables`.
        """
        (places, factors), propagated = self.copies(values, tables), self.distances(values, tables)
        if propagated is not None:
            z, rate = propagated
            turned = turn_phases(z.flatten(), rate).unflatten(0, z.shape)
            return (turned * factors[:, None, None])[:, None]
        window, many = (psi.shape[-2], psi.shape[-1]), factors.repeat(len(places))
        return ramps(places.flatten(0, 1), window, many).unflatten(0, (len(places), 1, -1))


class ShiftOperator(ShiftedCopies, WaveOperator):
    """An operator of `ShiftedCopies`, for plug-ins, which have it as their only base."""


def pieces_for_scan(pieces: Iterable[Piece], measurement: Measurement) -> tuple[tuple[Piece, ...], list[str]]:
    """Return the pieces with the options that they take from the scan, and sentences that say so. Raises BadInput."""
    of_scan = [one.for_scan(measurement) for one in pieces]
    return tuple(piece for piece, _ in of_scan), [sentence for _, sentence in of_scan if sentence]


def fan_out_of(pieces: Iterable[Piece]) -> int:
    """Return the number of waves on the detector that the operators among these pieces make of each mode."""
    return math.prod(one.fan_out for one in pieces if isinstance(one, WaveOperator))


Kind = TypeVar("Kind", bound=Piece)


@dataclass(frozen=True)
class Placed(Generic[Kind]):
    """A piece of the model with its tables for one geometry, precision and device.

    Attributes:
        operator: the piece.
        tables: its constant arrays, in the model's precision.
        sizes: size of a change that matters, by unknown.
    """

    operator: Kind
    tables: Tables
    sizes: dict[str, float]

    @classmethod
    def of(cls, operator: Kind, geometry: Geometry, dtype: torch.dtype, device: torch.device | str) -> Placed[Kind]:
        """Prepare a piece for a geometry, precision and device.

        Args:
            operator: the piece.
            geometry: window, pixel sizes, wavelength and distances.
            dtype: complex dtype of the waves.
            device: where tables are kept.

        Raises:
            BadInput: the geometry does not have what the operator needs.
        """
        operator.check(geometry)
        if torch.device(device).type != "cpu":
            for sides in operator.transforms(geometry):
                try_transforms(torch.device(device), dtype, sides)
        real = torch.empty(0, dtype=dtype).real.dtype
        operator_tables = operator.tables(geometry)
        tables = tuple(t.to(device, dtype if t.is_complex() else real) for t in operator_tables)
        return cls(operator, tables, {u.name: 1.0 for u in operator.unknowns} | operator.sizes(geometry))


def sum_in_order(waves: Tensor, axis: int) -> Tensor:
    """Return the sum along an axis, term by term: the order of the sum must not depend on how many views there are.

    Args:
        waves: (..., K, ...).
        axis: of the K terms.
    """
    first, *further_waves = waves.unbind(axis)
    total = first.clone()
    for term in further_waves:
        total += term
    return total


@dataclass(frozen=True)
class ViewWindows:
    """Views of a chunk, and where their windows lie.

    Attributes:
        views: (B,) int64, indices.
        anchors: (B, 2) int64, corners of the windows, in pixels of the arrays that these are cut from.
        window: (h, w).
    """

    views: Tensor
    anchors: Tensor
    window: tuple[int, int]


def values_for_views(one: Unknown, array: Tensor, windows: ViewWindows, scan_index: Tensor | None) -> Tensor:
    """Return what the methods of a piece are given of an unknown: rows of views or scans, windows, or all of it.

    Args:
        one: the unknown.
        array: its values, of all views, scans, or whatever else its axes are; of a tiled one the array (C, H, W) that
            windows are cut from.
        windows: the views, and where their windows lie.
        scan_index: (N,) int64, number of the scan that each view is of; None for a single scan.
    """
    views = windows.views
    if one.scope == "tiled":
        return cut(array, windows.anchors, windows.window)
    if one.scope == "view":
        return array.index_select(0, views)
    if one.is_per_scan:
        return array.index_select(
            0, torch.zeros_like(views) if scan_index is None else scan_index.index_select(0, views)
        )
    return array


@cache
def takes_views(kind: type[Piece], method: str) -> bool:
    """Return True if a method of these operators has an argument `views`."""
    return "views" in signature(getattr(kind, method)).parameters


def views_for(operator: Piece, method: str, values: Values) -> dict[str, Views]:
    """Return the argument `views` of a piece's method, nothing if it has none.

    Args:
        operator: the piece.
        method: name of its method.
        values: unknowns by name, with the views.

    Raises:
        BadInput: the values do not say to which views they belong.
    """
    if not takes_views(type(operator), method):
        return {}
    if not isinstance(values, ViewValues):
        raise BadInput(f"optics.{operator.name} depends on the views; give its values as ViewValues, with their views.")
    return {"views": values.views}


def apply_operators(placed: tuple[Placed[WaveOperator], ...], at: Place, psi: Tensor, values: Values) -> Tensor:
    """Apply all operators at a place, in their order.

    Args:
        placed: the model's operators.
        at: place where they act.
        psi: (B, M, h, w) complex.
        values: unknowns of the operators, by name.
    """
    for piece in placed:
        if piece.operator.at == at:
            psi = piece.operator.forward(psi, values, piece.tables, **views_for(piece.operator, "forward", values))
    return psi


def apply_operator_adjoints(placed: tuple[Placed[WaveOperator], ...], at: Place, psi: Tensor, values: Values) -> Tensor:
    """Apply the adjoint of `apply_operators`.

    Args:
        placed: the model's operators.
        at: place where they act.
        psi: (B, M, h, w) complex, behind the last operator there.
        values: unknowns of the operators, by name.
    """
    for piece in reversed(placed):
        if piece.operator.at == at:
            psi = piece.operator.adjoint(psi, values, piece.tables, **views_for(piece.operator, "adjoint", values))
    return psi


def slopes(
    placed: tuple[Placed[WaveOperator], ...], at: Place, psi: Tensor, values: Values, back: Tensor
) -> Iterator[tuple[str, tuple[Tensor, Tensor]]]:
    """Yield the name and the `WaveOperator.slopes` of each unknown of the operators at a place.

    Args:
        placed: the model's operators.
        at: place where they act.
        psi: (B, M, h, w) complex, before the first operator there.
        values: unknowns of the operators, by name.
        back: (B, M, h, w) complex, wave taken back to behind the last operator there.
    """
    pieces_there = [piece for piece in placed if piece.operator.at == at]
    before = [psi]
    for piece in pieces_there[:-1]:
        before.append(apply_operators((piece,), at, before[-1], values))
    for piece, wave in zip(reversed(pieces_there), reversed(before[: len(pieces_there)]), strict=True):
        views = views_for(piece.operator, "slopes", values)
        yield from piece.operator.slopes(wave, values, piece.tables, back, **views).items()
        back = apply_operator_adjoints((piece,), at, back, values)
