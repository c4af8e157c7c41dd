"""Exit waves of this rank's views that an engine keeps between sweeps, in full or half precision.

n, B         this rank's views; views of a chunk
M, h, w      modes, window pixels

They lie in the engine's memory of views as tensors with a row per view, as everything that checkpoints hold and that
moves to other ranks with the views: `NAME` (n, M, h, w) complex, or, in mixed precision, `NAME` (n, M, h, w, 2) float16
and `NAME_scale` (n,) float32 (physics/half_precision.py).
"""

from __future__ import annotations

from collections.abc import MutableMapping

import torch
from torch import Tensor

from ptymesh.physics.half_precision import Halves

#: Suffix of the name of the scales.
SCALE = "_scale"


class KeptWaves:
    """Waves (n, M, h, w) that are read and written by their rows, as if they were a tensor.

    Args:
        memory: the engine's memory of views, which holds them.
        name: their name there.
    """

    def __init__(self, memory: MutableMapping[str, Tensor], name: str) -> None:
        self._rows, self._scale = memory[name], memory.get(name + SCALE)

    @classmethod
    def allocate(
        cls, memory: MutableMapping[str, Tensor], name: str, like: Tensor, views: int, *, halves: bool
    ) -> KeptWaves:
        """Allocate waves of value 0.

        Args:
            memory: the engine's memory of views, in which they are allocated.
            name: their name there.
            like: (M, h, w) complex, with their number for each view, window and dtype.
            views: n.
            halves: True for half precision.
        """
        if halves:
            memory[name] = like.new_zeros((views, *like.shape, 2), dtype=torch.float16)
            memory[name + SCALE] = like.new_ones(views, dtype=torch.float32)
        else:
            memory[name] = like.new_zeros((views, *like.shape))
        return cls(memory, name)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        """Return the waves of these rows, (B, M, h, w) complex; a view of the memory for a slice in full precision."""
        if self._scale is None:
            return self._rows[rows]
        return Halves(self._rows[rows], self._scale[rows]).waves

    def __setitem__(self, rows: Tensor | slice, waves: Tensor) -> None:
        """Write the waves of these rows, (B, M, h, w) complex."""
        if self._scale is None:
            self._rows[rows] = waves
        else:
            halves = Halves.of(waves)
            self._rows[rows], self._scale[rows] = halves.pairs, halves.scale
