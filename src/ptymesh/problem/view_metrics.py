"""Loss and residual sums of this rank's views, each as of its last batch, for the running values of an epoch.

n, B    this rank's views, views of a chunk
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

#: Columns of a view: loss, and the four sums of the residual.
COLUMNS = 5
#: Number of chunks whose values are written to the table together on a CPU. Each chunk's values are small and spread
#: over the caches of all cores; writing them together takes a tenth of the time.
WAITING = 64


class ViewMetrics:
    """Table of loss and residual sums of this rank's views, (n, COLUMNS) float64.

    Args:
        views: n.
        device: where the table is kept.
    """

    def __init__(self, views: int, device: torch.device) -> None:
        self._values = torch.zeros(views, COLUMNS, dtype=torch.float64, device=device)
        self._waiting: list[tuple[Tensor, Tensor]] = []

    def record(self, rows: Tensor, columns: Tensor) -> None:
        """Record the values of the views in these rows (B,).

        Args:
            rows: (B,) int64.
            columns: (B, 6) float64, columns of a pass over the detector; must not be changed afterwards.
        """
        columns = columns.detach()
        if self._values.device.type != "cpu":
            self._values.index_copy_(0, rows, columns[:, :COLUMNS])
            return
        self._waiting.append((rows, columns))
        if len(self._waiting) == WAITING:
            self._write_waiting()

    @property
    def values(self) -> Tensor:
        """The whole table; what is written to it is recorded."""
        if self._waiting:
            self._write_waiting()
        return self._values

    @values.setter
    def values(self, values: Tensor) -> None:
        self._waiting.clear()
        self._values = values

    def _write_waiting(self) -> None:
        """Write the waiting values in the order in which they were recorded.

        For a view that occurs twice, numpy keeps the last.
        """
        rows, columns = zip(*self._waiting, strict=True)
        self._waiting.clear()
        self._values.numpy()[np.concatenate(rows)] = np.concatenate(columns)[:, :COLUMNS]
