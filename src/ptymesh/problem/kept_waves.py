"""Exit waves of this rank's own views that an engine keeps between sweeps, in whole or as halves.

n, B         own views; views of a chunk
M, h, w      modes, window pixels

They lie in the engine's memory of views as tensors with a row per view, as all that checkpoints hold and that goes to
other ranks with the views: `NAME` (n, M, h, w) complex, or, where precision is mixed, `NAME` (n, M, h, w, 2) float16
and `NAME_scale` (n,) float32 (physics/halves.py).
"""

from __future__ import annotations

from collections.abc import MutableMapping

import torch
from torch import Tensor

from ptymesh.physics.halves import Halves

#: What comes after the name of waves in that of their scales.
SCALE = "_scale"


class KeptWaves:
    """Waves (n, M, h, w) that are read and written by their rows, as if they were a tensor.

    Args:
        memory: where they lie; name: theirs.
    """

    def __init__(self, memory: MutableMapping[str, Tensor], name: str) -> None:
        self._rows, self._scale = memory[name], memory.get(name + SCALE)

    @classmethod
    def made(
        cls, memory: MutableMapping[str, Tensor], name: str, like: Tensor, views: int, *, halves: bool
    ) -> KeptWaves:
        """New ones of so many views, 0, with the modes and windows of `like` (M, h, w)."""
        if halves:
            memory[name] = like.new_zeros((views, *like.shape, 2), dtype=torch.float16)
            memory[name + SCALE] = like.new_ones(views, dtype=torch.float32)
        else:
            memory[name] = like.new_zeros((views, *like.shape))
        return cls(memory, name)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        """Those of these rows, (B, M, h, w) complex; of a slice of whole waves, the same memory."""
        if self._scale is None:
            return self._rows[rows]
        return Halves(self._rows[rows], self._scale[rows]).waves

    def __setitem__(self, rows: Tensor | slice, waves: Tensor) -> None:
        if self._scale is None:
            self._rows[rows] = waves
        else:
            halves = Halves.of(waves)
            self._rows[rows], self._scale[rows] = halves.pairs, halves.scale
