"""Sums over a batch of the slopes by tiled unknowns of the model's pieces, on the blocks of the object that it covers.

B, C     views of a chunk, planes of an unknown
b        side of an object block

Terms are rounded to a common step (physics/rounding.py), added at the views' windows, and summed over ranks as those of
the object are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from ptymesh.distributed.layouts.boxes import Blocks
from ptymesh.distributed.layouts.layout import BlockSparseField
from ptymesh.estimate import Estimate
from ptymesh.physics.backend import Chunk
from ptymesh.physics.blocks import blocked
from ptymesh.physics.kinds import OBJECT, OBJECT_WEIGHT, PROBE_WEIGHT
from ptymesh.physics.rounding import largest, narrowed, rounded, shifts_for, wide
from ptymesh.physics.window_shifts import add_back
from ptymesh.problem.object_fields import Fields
from ptymesh.problem.setup import Setup

#: Parts of each sum; and powers of two by which terms may exceed the expected ones, as their waves may be of any loss.
PARTS, HEADROOM_BITS = 2, 30
#: Sums of slopes and of norms on touched blocks, (C, n, b, b), by name of the unknown.
TiledSlopes = dict[str, tuple[BlockSparseField, BlockSparseField]]


class TiledSums:
    """Global sums of slopes and norms by tiled unknowns, to which the terms of chunks are added.

    Args:
        setup: what all parts of the problem share.
        fields: lends buffers.
        estimate: the unknowns.
        names: of those whose slopes are wanted.
        blocks: that the batch covers.
        views: of the batch, over all ranks.
    """

    def __init__(
        self, setup: Setup, fields: Fields, estimate: Estimate, names: Iterable[str], blocks: Blocks, views: int
    ) -> None:
        self.setup, self.blocks, self._views = setup, blocks, views
        #: Sums of slopes and of norms, (PARTS C, H, W) each, by name.
        self.sums: dict[str, tuple[Tensor, Tensor]] = {}
        wanted_names = set(names)
        for one in setup.model.tiled:
            if one.name in wanted_names:
                like = estimate.others[one.name]
                shape = setup.layout.shape(like)
                slopes = fields.buffer(f"slopes by {one.name}", like, wide(like.dtype), PARTS, shape)
                self.sums[one.name] = slopes, fields.buffer(f"norms by {one.name}", like, torch.float64, PARTS, shape)

    def reset(self, expected: Tensor) -> None:
        """Start with empty sums.

        Args:
            expected: (6,) float64, magnitudes expected of terms of the object's and the probe's sums.
        """
        for array in (array for pair in self.sums.values() for array in pair):
            blocked(array)[:, self.blocks.covered[0], self.blocks.covered[1]] = 0
        # A change of the unknown by its size changes waves by about themselves, as one of the object by itself does.
        like_object = torch.stack((expected[OBJECT] * expected[PROBE_WEIGHT].sqrt(), expected[OBJECT_WEIGHT]))
        like_object[1] *= expected[PROBE_WEIGHT]
        self._shifts, self._limits, self._reached = {}, {}, {}
        for name in self.sums:
            size = self.setup.model.sizes[name]
            bounds = like_object / like_object.new_tensor((size, size**2)) * 2.0**HEADROOM_BITS
            self._shifts[name], self._limits[name] = shifts_for(bounds, self._views)
            self._reached[name] = torch.zeros_like(self._limits[name])

    def add(self, chunk: Chunk, name: str, terms: tuple[Tensor, Tensor]) -> None:
        """Add slopes and norms by an unknown.

        Args:
            chunk: the views.
            name: of the unknown.
            terms: slopes and norms of the views, (B, C, h, w) each.
        """
        for kind, (total, values) in enumerate(zip(self.sums[name], terms, strict=True)):
            reached = self._reached[name][kind]
            torch.maximum(reached, largest(values), out=reached)
            add_back(total, rounded(values, self._shifts[name][kind], PARTS), chunk.anchors)

    def total(self) -> TiledSlopes:
        """Return the sums over all ranks; NaN where terms were beyond all limits. Collective."""
        if not self.sums:
            return {}
        exceeded = torch.stack([(self._reached[name] > self._limits[name]).any() for name in self.sums]).any()
        arrays = [array for pair in self.sums.values() for array in pair]
        *totals, beyond = self.setup.layout.reduce(arrays, self.blocks, exceeded.to(torch.float64))
        assert isinstance(beyond, Tensor)
        slopes: TiledSlopes = {}
        for number, name in enumerate(self.sums):
            pair = [self._narrowed(field, beyond) for field in totals[2 * number : 2 * number + 2]]
            slopes[name] = pair[0], pair[1]
        return slopes

    def _narrowed(self, field: BlockSparseField | Tensor, beyond: Tensor) -> BlockSparseField:
        """Return the sum of the parts of a field in the model's precision."""
        assert isinstance(field, BlockSparseField)
        dtype = self.setup.dtype if field.values.is_complex() else self.setup.real
        values = narrowed(field.values, dtype, len(field.values) // PARTS)
        return field.of(torch.where(beyond > 0, math.nan, values))
