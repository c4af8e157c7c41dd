"""Positions of the windows, cached while no position moves, which in most epochs is from the first to the last batch.

N, B    views, views of a chunk
"""

from __future__ import annotations

import torch
from torch import Tensor

from ptymesh.distributed.layouts.layout import Layout
from ptymesh.estimate import Estimate


class AnchorCache:
    """Positions and anchors of an estimate at the start of an epoch, and values that follow from them.

    The values are valid until positions or anchors are written to. Writes are recognised by torch's version counters;
    writes by numpy to the same memory are not noticed.

    Args:
        estimate: its positions and anchors (N, 2).
        real: dtype of fractions.
        layout: gives the pixel from which anchors count.
    """

    def __init__(self, estimate: Estimate, real: torch.dtype, layout: Layout) -> None:
        self.real, self._corner, self._layout = real, estimate.corner, layout
        self._positions, self._anchors = estimate.positions, estimate.anchors
        self._versions = self._positions._version, self._anchors._version
        #: Read once, so that no batch of the epoch waits for the device.
        self._on_whole_pixels = _are_whole_pixels(estimate)
        self._every = self._places(estimate, estimate.positions, estimate.anchors)

    def known(self, estimate: Estimate) -> bool:
        """Return True if these are the estimate's tensors, whether they have moved or not."""
        return self._positions is estimate.positions and self._anchors is estimate.anchors

    def holds(self, estimate: Estimate) -> bool:
        """Return True if these are the estimate's tensors, and nothing has moved."""
        unmoved = self._versions == (self._positions._version, self._anchors._version)
        return unmoved and self._corner == estimate.corner and self.known(estimate)

    def integer_positions(self, estimate: Estimate) -> bool:
        """Return True if all positions are whole pixels.

        After positions have moved they are only compared again on a CPU; on other devices the result is False then.
        """
        if self.holds(estimate):
            return self._on_whole_pixels
        return estimate.positions.device.type == "cpu" and _are_whole_pixels(estimate)

    def places(self, estimate: Estimate, views: Tensor) -> tuple[Tensor, Tensor]:
        """Return anchors, counted in the array that windows are cut from, and fractions of these views, (B, 2) each."""
        if self.holds(estimate):
            anchors, fractions = self._every
            return anchors.index_select(0, views), fractions.index_select(0, views)
        positions, anchors = estimate.positions.index_select(0, views), estimate.anchors.index_select(0, views)
        return self._places(estimate, positions, anchors)

    def _places(self, estimate: Estimate, positions: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor]:
        return self._layout.anchors_in_part(estimate, anchors), (positions - anchors).to(self.real)


def _are_whole_pixels(estimate: Estimate) -> bool:
    """Return True if all positions of an estimate are whole pixels."""
    return bool((estimate.positions == estimate.anchors).all())
