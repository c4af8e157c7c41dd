"""A batch, and what a sweep over it gives.

B        views of a batch, over all ranks
L, M     slices, modes
chi_jm   change of view j's exit wave that its counts ask for
b        side of an object block
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ptymesh.distributed.layout import BlockSparseField
from ptymesh.physics.backend import Chunk
from ptymesh.physics.model import Intermediates


@dataclass(frozen=True)
class Batch:
    """Views (B,) of one update, global indices.

    refine, vary: whether steps of their positions, of their beam weights are wanted too; epoch: of the stage, from 1.
    """

    views: np.ndarray
    refine: bool = False
    epoch: int = 1
    vary: bool = False


@dataclass(frozen=True)
class Sums:
    """Global sums over a batch.

    object: sum_j S_j^H sum_m conj(phi_jlm) chi_jlm, touched (L, n, b, b); object_weight: sum_j S_j^H sum_m |phi_jlm|^2;
    probe: sum_j w_j0 T_{-f_j}(conj(S_j O) chi_jm), (M, h, w); probe_weight: sum_j w_j0^2 |S_j O|^2, (h, w);
    For variable probes (OPR) the same with w_jk and the first mode: opr and opr_weight, (K, h, w).
    others: what else was handed to `total`.
    """

    object: BlockSparseField
    object_weight: BlockSparseField
    probe: Tensor
    probe_weight: Tensor
    opr: Tensor
    opr_weight: Tensor
    others: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class CachedChunk:
    """A chunk that was swept: its intermediates, where that is worth the memory, and chi (B, M, h, w)."""

    chunk: Chunk
    intermediates: Intermediates | None
    chi: Tensor
