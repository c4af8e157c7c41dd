"""A batch, and what a sweep over it gives.

B        views of a batch, over all ranks
L, M     slices, modes
chi_jm   change of view j's exit wave that its counts ask for
b        side of an object block
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from ptymesh.distributed.layout import BlockSparseField
from ptymesh.physics.backend import Chunk
from ptymesh.physics.halves import Halves
from ptymesh.physics.model import Intermediates

#: Own views (B,), and what they ask for, a row each.
Rows = list[tuple[Tensor, Tensor]]


@dataclass
class Asked:
    """What a batch asks of unknowns that move after the engine's step, whichever engine it is; own views alone.

    positions: steps (B, 2) in pixels; weights: steps (B, 1 + K) of the beam's intensity and shares of OPR modes;
    gradients: of the whole batch, as last summed; stop: how many ranks were asked to stop, None where nothing was
    summed.
    """

    positions: Rows = field(default_factory=list)
    weights: Rows = field(default_factory=list)
    gradients: Gradients | None = None
    stop: Tensor | None = None

    def clear(self) -> None:
        """Forgets what was asked for."""
        self.positions, self.weights, self.gradients = [], [], None

    def scaled(self, by: Tensor | float) -> None:
        """Steps of positions and weights times a number."""
        self.positions = [(views, by * steps) for views, steps in self.positions]
        self.weights = [(views, by * steps) for views, steps in self.weights]


@dataclass(frozen=True)
class Batch:
    """Views (B,) of one update, global indices.

    refine, vary: whether steps of their positions, of their beam weights are wanted too; epoch: of the stage, from 1;
    frozen: names of unknowns that no engine is to move; stop: whether this rank was asked to stop, which the sums tell
    the others; asked: what the batch asks of those that the loop moves.
    """

    views: np.ndarray
    refine: bool = False
    epoch: int = 1
    vary: bool = False
    frozen: frozenset[str] = frozenset()
    stop: bool = False
    asked: Asked = field(default_factory=lambda: Asked())


@dataclass(frozen=True)
class Gradients:
    """Global sums over a batch, by the name of the unknown.

    object: sum_j S_j^H sum_m conj(phi_jlm) chi_jlm, touched (L, n, b, b); object_weight: sum_j S_j^H sum_m |phi_jlm|^2;
    probe: sum_j w_j0 T_{-f_j}(conj(S_j O) chi_jm), (M, h, w); probe_weight: sum_j w_j0^2 |S_j O|^2, (h, w);
    For variable probes (OPR) the same with w_jk and the first mode: opr and opr_weight, (K, h, w).
    others: what else was handed to `total`. background: slope and darkness (2, h, w), where it is told (background.py).
    """

    object: BlockSparseField
    object_weight: BlockSparseField
    probe: Tensor
    probe_weight: Tensor
    opr: Tensor
    opr_weight: Tensor
    others: tuple[Tensor, ...] = ()
    background: Tensor | None = None


@dataclass(frozen=True)
class CachedChunk:
    """A chunk that was swept: what gives its intermediates back, where these are worth the memory; chi (B, M, h, w),
    None where there is no memory for it."""

    chunk: Chunk
    intermediates: Callable[[], Intermediates] | None
    chi: Tensor | Halves | None
