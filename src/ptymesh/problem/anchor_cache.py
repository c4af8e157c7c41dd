"""Where windows stand while no position moves, which in most epochs is from the first batch to the last.

N, B    views, views of a chunk
"""

from __future__ import annotations

import torch
from torch import Tensor

from ptymesh.estimate import Estimate


class AnchorCache:
    """Positions and anchors of an estimate as an epoch begins, and what follows from them until either is written to.

    Torch counts what it writes; what numpy writes into the same memory would not be seen.

    Args:
        estimate: its positions and anchors (N, 2).
        real: dtype of fractions.
    """

    def __init__(self, estimate: Estimate, real: torch.dtype) -> None:
        self.real, self._corner = real, estimate.corner
        self._positions, self._anchors = estimate.positions, estimate.anchors
        self._versions = self._positions._version, self._anchors._version
        #: Read from a device once: within an epoch nobody waits for it.
        self._whole = _whole(estimate)
        self._every = _places(estimate, estimate.positions, estimate.anchors, real)

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
        """Anchors, from the first pixel of the estimate's object, and fractions of these views, (B, 2) each."""
        if self.holds(estimate):
            anchors, fractions = self._every
            return anchors.index_select(0, views), fractions.index_select(0, views)
        positions, anchors = estimate.positions.index_select(0, views), estimate.anchors.index_select(0, views)
        return _places(estimate, positions, anchors, self.real)


def _places(estimate: Estimate, positions: Tensor, anchors: Tensor, real: torch.dtype) -> tuple[Tensor, Tensor]:
    return estimate.here(anchors), (positions - anchors).to(real)


def _whole(estimate: Estimate) -> bool:
    return bool((estimate.positions == estimate.anchors).all())
