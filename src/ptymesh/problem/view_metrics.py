"""What is known of this rank's views, each as it was seen last: for the running values of an epoch.

n, B    own views, views of a chunk
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

#: Of a view: loss, and the four sums of the residual.
COLUMNS = 5
#: Notes that wait on a CPU. What one chunk has found is spread over the cores' caches, and small: to write down several
#: together takes a tenth.
WAITING = 64


class ViewMetrics:
    """Notes of own views, (n, COLUMNS) float64.

    Args:
        views: n.
        device: where they are.
    """

    def __init__(self, views: int, device: torch.device) -> None:
        self._values = torch.zeros(views, COLUMNS, dtype=torch.float64, device=device)
        self._waiting: list[tuple[Tensor, Tensor]] = []

    def note(self, rows: Tensor, found: Tensor) -> None:
        """Of the views in these rows (B,), what a pass found (B, 6); nobody may change that afterwards."""
        found = found.detach()
        if self._values.device.type != "cpu":
            self._values.index_copy_(0, rows, found[:, :COLUMNS])
            return
        self._waiting.append((rows, found))
        if len(self._waiting) == WAITING:
            self._catch_up()

    @property
    def values(self) -> Tensor:
        """The whole table; what is written there is noted."""
        if self._waiting:
            self._catch_up()
        return self._values

    @values.setter
    def values(self, values: Tensor) -> None:
        self._waiting.clear()
        self._values = values

    def _catch_up(self) -> None:
        """In the order in which it was noted: of a view that was seen twice, numpy keeps what comes last."""
        rows, found = zip(*self._waiting, strict=True)
        self._waiting.clear()
        self._values.numpy()[np.concatenate(rows)] = np.concatenate(found)[:, :COLUMNS]
