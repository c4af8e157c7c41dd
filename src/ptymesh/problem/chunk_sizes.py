"""Sizes of chunks: how many of this rank's views are computed at once, by the memory that their waves take.

B       views of a chunk
h, w    window pixels
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import numpy as np
import torch

from ptymesh.estimate import Estimate
from ptymesh.problem.setup import Setup
from ptymesh.storage.patterns import Patterns

#: Bytes of one array of waves of a chunk; about ten such arrays are alive at a time, on a CPU with kernels fewer.
#: Torch's operations on a CPU are up to three times slower if a chunk does not fit the cache.
CHUNK_BYTES = {"cpu": 4 << 20, "cuda": 128 << 20}
#: Number of such arrays, for estimates of memory.
CHUNK_ARRAYS = 10
#: Factor by which arrays may be larger that are read once in a sweep, or written for the batch's second sweep.
KEPT_CHUNKS = 4
WaveUse = Literal["used", "kept", "dropped"]


class ChunkSizes:
    """Sizes of the chunks in which a rank sweeps its views.

    Args:
        setup: what all parts of the problem share.
        patterns: of this rank's views.

    Attributes:
        limit: most views in a chunk since memory ran out; 0 for as many as CHUNK_BYTES allows.
        last_largest: most views of a chunk in the last sweep.
    """

    def __init__(self, setup: Setup, patterns: Patterns) -> None:
        self.setup, self.patterns = setup, patterns
        self.limit, self.last_largest = 0, 1
        #: Most views of a chunk in this epoch, by the use of its waves.
        self._known: dict[tuple[WaveUse, bool, bool, torch.Size], int] = {}

    def begin_epoch(self) -> None:
        """Forget the sizes of the epoch before, as its probe may have had more modes."""
        self._known = {}

    def most_views(self, estimate: Estimate, waves: WaveUse, steps: bool, integer_positions: bool) -> int:
        """Return the largest number of views of a chunk.

        Args:
            estimate: the unknowns.
            waves: as in `ViewLoader.chunks`.
            steps: True if the pass also finds steps of the views' positions and weights.
            integer_positions: True if all views lie on whole pixels.
        """
        case = waves, steps, integer_positions, estimate.probe.shape
        size = self._known.get(case)
        if size is None:
            memory = CHUNK_BYTES.get(self.setup.device.type, CHUNK_BYTES["cuda"])
            size = self._known[case] = max(1, memory // self._view_bytes(estimate, waves, steps, integer_positions))
        return min(size, self.limit or size)

    def cut(self, views: np.ndarray, border: int, size: int) -> list[int]:
        """Return the sizes of chunks of at most `size` views.

        Border views come first. None of the chunks holds both border views and others, or views of two settings.

        Args:
            views: (n,) this rank's views, in the order in which they are swept.
            border: number of border views.
            size: largest number of views.
        """
        count, settings = len(views), self.setup.settings
        cuts = [0, border, count]
        if settings is not None:
            cuts = sorted({*cuts, *(np.flatnonzero(np.diff(settings[views])) + 1).tolist()})
        return [min(size, end - at) for start, end in pairwise(cuts) for at in range(start, end, size)]

    def halve(self) -> bool:
        """Halve the number of views in a chunk from here on; return False if the last one had a single view."""
        if self.last_largest == 1:
            return False
        self.limit = self.last_largest // 2
        return True

    def _view_bytes(self, estimate: Estimate, waves: WaveUse, steps: bool, integer_positions: bool) -> int:
        """Return the bytes of a view that count against CHUNK_BYTES."""
        probe = estimate.probes[0]
        beam = probe.numel() * probe.element_size()
        used = beam * self.setup.model.fan_out
        if waves == "used":
            return used
        # Patterns that are fetched come chunk by chunk; small chunks let reading and computing overlap.
        read_bytes = beam // len(probe) if self.patterns.fetched else self.patterns.frame_bytes // KEPT_CHUNKS
        written_bytes = used // KEPT_CHUNKS if waves == "kept" else 0
        swept = self.setup.backend.sweep_bytes(self.setup.model, probe, steps, integer_positions)
        return max(swept, read_bytes, written_bytes)
