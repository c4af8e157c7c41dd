"""Pieces of the forward model between intensities and counts: what the detector makes of the light that reaches it.

B, h, w    views of a chunk, window pixels
S          sum_m |Psi_m|^2, signal that reaches the detector (B, h, w)
R(theta)   the pieces in their order, linear in S;  theta  their unknowns
b          counts that are there without light: the estimate's background, and what pieces add
I, y       R S + b, modelled intensity; counts
L          loss of the counts (physics/fidelity), a function of I

A piece defines R, its adjoint, and how R S follows theta, view by view and without ranks; or it adds counts, behind all
that act on light. dL/dS is R^T dL/dI, which is all that engines of gradients need. Engines that revise waves take
Psi' = f Psi with a factor that goes through R:

    amplitude   f = R^T r / R^T 1,  r = sqrt(y / I), 1 at masked pixels and where R^T 1 = 0
    poisson     f = 1 - alpha R^T xi,  xi = 1 - y / I, alpha the minimum of L along it
    intensity   f = 1 - alpha R^T 2 (I - y), alpha the Newton step of L along it

The first never raises the loss, as -sum sqrt(y I) is convex in the shares that each pixel has from others and from b
(the majorisation of expectation maximisation); without pieces all three are those without R. Unknowns move along

    slope = -1/2 sum dL/dI dI/dtheta,   norm = 1/2 sum d^2L/dI^2 (at y = I) (dI/dtheta)^2

whose quotient is the Gauss-Newton step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ptymesh.physics.elementwise import over_window
from ptymesh.physics.fidelity import DARK, Saturation
from ptymesh.physics.operators import Piece, Placed, Tables, Values, takes_views, views_for


class DetectorPiece(Piece):
    """A piece between intensities and counts, linear in the intensities, or one that adds counts behind all others.

    Attributes:
        adds_counts: True if it adds counts that are there without light, the same in all views, and does nothing else.
    """

    adds_counts: ClassVar[bool] = False

    def forward(self, S: Tensor, values: Values, tables: Tables) -> Tensor:
        """Return R(theta) S, which is nowhere negative where S is not; S itself of a piece that does not say otherwise.

        Args:
            S: (B, ..., h, w) real; changes of intensities come here, too, which may be negative.
            values: theta, by name.
            tables: from `tables`, in the model's precision.
        """
        return S

    def adjoint(self, x: Tensor, values: Values, tables: Tables) -> Tensor:
        """Return R(theta)^T x; x itself of a piece that does not say otherwise.

        Args:
            x: (B, ..., h, w) real.
            values: theta, by name.
            tables: from `tables`, in the model's precision.
        """
        return x

    def added(self, values: Values, tables: Tables) -> Tensor:
        """Return the counts that it adds, at least 0 and (h, w) or less by broadcasting; 0 of one that adds none.

        Args:
            values: theta, by name.
            tables: from `tables`, in the model's precision.
        """
        return torch.zeros(())

    def derivatives(self, S: Tensor, values: Values, tables: Tables) -> dict[str, Tensor]:
        """Return dR S / d theta, by unknown, (B, ..., h, w) real; the dots are its own axes without N.

        Args:
            S: (B, h, w) real.
            values: theta, by name.
            tables: from `tables`, in the model's precision.
        """
        return {}

    @property
    def binning(self) -> int:
        """Number of pixels along a side that it sums to one, on which the pieces behind it act."""
        return 1

    @property
    def saturation(self) -> Saturation | None:
        """Counts from which on the detector counts no further; None if it has no such limit."""
        return None

    def reach_px(self, values: Values) -> float:
        """Return the width over which a pixel's light is spread, in pixels; 0 if none goes to another one."""
        return 0.0


@dataclass(frozen=True)
class Response:
    """The pieces of a model's detector, with the values of their unknowns for the views of a chunk.

    Attributes:
        pieces: in their order.
        values: unknowns by name.
    """

    pieces: tuple[Placed[DetectorPiece], ...]
    values: Values

    def signal(self, S: Tensor) -> Tensor:
        """Return R S, (B, h, w); rounding leaves none of it negative."""
        return self.apply(S).clamp(min=0)

    def apply(self, S: Tensor) -> Tensor:
        """Return R S of intensities or of their changes, (B, ..., h, w) real."""
        for piece in self.pieces:
            views = views_for(piece.operator, "forward", self.values)
            S = piece.operator.forward(S, self.values, piece.tables, **views)
        return S

    def adjoint(self, x: Tensor) -> Tensor:
        """Return R^T x, (B, ..., h, w) real."""
        for piece in reversed(self.pieces):
            views = views_for(piece.operator, "adjoint", self.values)
            x = piece.operator.adjoint(x, self.values, piece.tables, **views)
        return x

    def derivatives(self, S: Tensor) -> dict[str, Tensor]:
        """Return d (R S + b) / d theta by unknown, (B, ..., h, w) real; S is (B, h, w)."""
        derivatives: dict[str, Tensor] = {}
        for piece in self.pieces:
            one = Response((piece,), self.values)
            views = views_for(piece.operator, "derivatives", self.values)
            of_piece = piece.operator.derivatives(S, self.values, piece.tables, **views)
            derivatives = {name: one.apply(change) for name, change in derivatives.items()} | of_piece
            S = one.apply(S)
        return derivatives

    def shared_change(self, change: Tensor) -> Tensor:
        """Return R^T change / R^T 1 (B, h, w): changes of a factor at the counts, shared among the light of each.

        Args:
            change: (B, h, w) real.
        """
        are_alike = not any(_differs_by_view(placed.operator) for placed in self.pieces)
        full_adjoint = self.adjoint(torch.ones_like(change[:1] if are_alike else change))
        # light that no pixel counts says nothing, and stays
        return self.adjoint(change) * torch.where(
            full_adjoint > DARK, 1 / full_adjoint.clamp(min=DARK), full_adjoint.new_zeros(())
        )

    def slopes(self, S: Tensor, slope: Tensor, weight: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Return -1/2 sum slope dI/dtheta and sum weight (dI/dtheta)^2 of each view, (B, ...) float64, by unknown.

        Args:
            S: (B, h, w) real, signal before the pieces.
            slope: real, dL/dI of each pixel of the detector, (B, h, w) or less where pieces bin.
            weight: real, of the same shape, half of the loss's second derivative.
        """
        slopes = {}
        for name, change in self.derivatives(S).items():
            like = (len(S), *[1] * (change.ndim - 3), *slope.shape[1:])
            along, norm = change * slope.view(like), change.square() * weight.view(like)
            slopes[name] = (-over_window(along) / 2, over_window(norm))
        return slopes


def binning_of(pieces: Iterable[Piece]) -> int:
    """Return the number of pixels along a side that the pieces of the detector among these sum to one."""
    return math.prod(one.binning for one in pieces if isinstance(one, DetectorPiece))


def _differs_by_view(piece: DetectorPiece) -> bool:
    """Return True if what a piece does may differ from view to view."""
    return takes_views(type(piece), "adjoint") or any(one.scope == "view" or one.is_per_scan for one in piece.unknowns)
