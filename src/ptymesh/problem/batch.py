"""A batch, and the results of a sweep over it.

B        views of a batch, over all ranks
L, M     slices, modes
chi_jm   change of view j's exit wave towards its counts
b        side of an object block
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from ptymesh.distributed.layouts.layout import BlockSparseField
from ptymesh.physics.backend import Chunk
from ptymesh.physics.half_precision import Halves
from ptymesh.physics.model import Intermediates
from ptymesh.problem.tiled_sums import TiledSlopes

#: Pairs of this rank's views (B,) and their steps, a row each.
RowsByChunk = list[tuple[Tensor, Tensor]]


@dataclass
class ViewUpdates:
    """Steps of unknowns that move after the engine's step, whichever engine it is; for this rank's views alone.

    Attributes:
        positions: steps (B, 2) in pixels, with the views (B,), chunk by chunk.
        weights: steps (B, 1 + K) of the beam's intensity and the weights of OPR modes, with the views (B,).
        pieces: slopes and norms (B, 2, ...) of the unknowns of the model's pieces, by name, with the views.
        tiled: their sums over the batch, of those unknowns that are tiled.
        gradients: sums of the whole batch, of the last summation.
        stop: 0-d, number of ranks that were asked to stop; None if nothing was summed.
    """

    positions: RowsByChunk = field(default_factory=list)
    weights: RowsByChunk = field(default_factory=list)
    pieces: dict[str, RowsByChunk] = field(default_factory=dict)
    tiled: TiledSlopes = field(default_factory=dict)
    gradients: Gradients | None = None
    stop: Tensor | None = None

    def clear(self) -> None:
        """Remove steps and gradients."""
        self.positions, self.weights, self.pieces, self.tiled, self.gradients = [], [], {}, {}, None

    def scaled(self, by: Tensor | float) -> None:
        """Multiply the steps of positions and weights by a number."""
        self.positions = [(views, by * steps) for views, steps in self.positions]
        self.weights = [(views, by * steps) for views, steps in self.weights]


@dataclass(frozen=True)
class Batch:
    """Views of one update.

    Attributes:
        views: (B,) global indices.
        refine: True if steps of their positions are wanted.
        epoch: of the stage, from 1.
        vary: True if steps of their beam weights are wanted.
        frozen: names of unknowns that no engine may move.
        stop: True if this rank was asked to stop; the other ranks learn it with the sums.
        view_updates: steps for the unknowns that the loop moves.
        pieces: names of unknowns of the model's pieces whose slopes and norms are wanted.
    """

    views: np.ndarray
    refine: bool = False
    epoch: int = 1
    vary: bool = False
    frozen: frozenset[str] = frozenset()
    stop: bool = False
    view_updates: ViewUpdates = field(default_factory=lambda: ViewUpdates())
    pieces: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Gradients:
    """Global sums over a batch, by the name of the unknown.

    Attributes:
        object: sum_j S_j^H sum_m conj(phi_jlm) chi_jlm, on touched blocks (L, n, b, b).
        object_weight: sum_j S_j^H sum_m |phi_jlm|^2, on the same blocks.
        probe: sum_j w_j0 T_{-f_j}(conj(S_j O) chi_jm), (M, h, w); of S scans with probes of their own, (S M, h, w).
        probe_weight: sum_j w_j0^2 |S_j O|^2, (h, w), or (S, h, w).
        opr: as `probe` with w_jk and the first mode, for variable probes, (K, h, w).
        opr_weight: as `probe_weight` with w_jk, (K, h, w).
        others: sums of the other quantities that were given to `Accumulator.total`.
        background: slope and darkness (2, h, w) (background.py), or (2, S, h, w) where each scan has its own; None if
            they were not summed.
    """

    object: BlockSparseField
    object_weight: BlockSparseField
    probe: Tensor
    probe_weight: Tensor
    opr: Tensor
    opr_weight: Tensor
    others: tuple[Tensor, ...] = ()
    background: Tensor | None = None

    def by_probe(self, count: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return the sums (M, h, w) and the weights (h, w) of each of so many probes."""
        if count == 1:
            return (self.probe,), (self.probe_weight,)
        return self.probe.chunk(count), self.probe_weight.unbind(0)


@dataclass(frozen=True)
class CachedChunk:
    """A chunk that was swept, for a second sweep.

    Attributes:
        chunk: the views.
        intermediates: function that gives their intermediates back; None if they are to be recomputed.
        chi: (B, M, h, w); None if there is no memory for it.
    """

    chunk: Chunk
    intermediates: Callable[[], Intermediates] | None
    chi: Tensor | Halves | None
