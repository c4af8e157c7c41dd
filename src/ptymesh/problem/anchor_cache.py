"""Where windows stand while no position moves, which in most epochs is from the first batch to the last.

N, B    views, views of a chunk
"""

from __future__ import annotations

import torch
from torch import Tensor

from ptymesh.distributed.layout import Layout
from ptymesh.estimate import Estimate


class AnchorCache:
    """Positions and anchors of an estimate as an epoch begins, and what follows from them until either is written to.

    Torch counts what it writes; what numpy writes into the same memory would not be seen.

    Args:
        estimate: its positions and anchors (N, 2).
        real: dtype of fractions.
        layout: from where anchors count.
    """

    def __init__(self, estimate: Estimate, real: torch.dtype, layout: Layout) -> None:
        self.real, self._corner, self._layout = real, estimate.corner, layout
        self._positions, self._anchors = estimate.positions, estimate.anchors
        self._versions = self._positions._version, self._anchors._version
        #: Read from a device once: within an epoch nobody waits for it.
        self._whole = _whole(estimate)
        self._every = self._places(estimate, estimate.positions, estimate.anchors)

    def known(self, estimate: Estimate) -> bool:
        """Whether these are the estimate's tensors, moved or not."""
        return self._positions is estimate.positions and self._anchors is estimate.anchors

    def holds(self, estimate: Estimate) -> bool:
        """Whether they are, and nothing has moved."""
        unmoved = self._versions == (self._positions._version, self._anchors._version)
        return unmoved and self._corner == estimate.corner and self.known(estimate)

    def whole(self, estimate: Estimate) -> bool:
        """Whether all positions are whole pixels.

        Where they have moved, only a CPU is asked again; elsewhere these are taken for fractions.
        """
        if self.holds(estimate):
            return self._whole
        return estimate.positions.device.type == "cpu" and _whole(estimate)

    def places(self, estimate: Estimate, views: Tensor) -> tuple[Tensor, Tensor]:
        """Anchors, from the first pixel of what windows are cut from, and fractions of these views, (B, 2) each."""
        if self.holds(estimate):
            anchors, fractions = self._every
            return anchors.index_select(0, views), fractions.index_select(0, views)
        positions, anchors = estimate.positions.index_select(0, views), estimate.anchors.index_select(0, views)
        return self._places(estimate, positions, anchors)

    def _places(self, estimate: Estimate, positions: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor]:
        return self._layout.here(estimate, anchors), (positions - anchors).to(self.real)


def _whole(estimate: Estimate) -> bool:
    return bool((estimate.positions == estimate.anchors).all())
