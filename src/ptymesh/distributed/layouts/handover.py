"""Transfer of views, with their patterns and per-view arrays, from their former owners to the new ones.

N, R   views, ranks;  k   views that move

Every rank knows the former and the new owner of every view, so that ranks need no message to agree on what moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from ptymesh.distributed.layouts.layout import CarriedPatterns, Layout, Migration
from ptymesh.distributed.layouts.owners import owners
from ptymesh.distributed.world import World

#: Bytes of patterns that a rank sends at a time.
STEP_BYTES = 16 << 20


class Handover(Migration):
    """Migration of views to new owners; the object's layout stays. Every rank must take part in each transfer.

    Args:
        world: the ranks.
        were: (N,) int64, former owner of each view.
        owner: (N,) int64, new owner of each view.
    """

    def __init__(self, world: World, were: np.ndarray, owner: np.ndarray) -> None:
        self.world, self.were, self.owner = world, were, owner
        #: This rank's views before and after, ascending.
        self._had, self._own = (np.flatnonzero(o == world.rank) for o in (were, owner))

    def exchange_rows(self, take: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor] | None:
        """Exchange one row per moving view and return the new arrangement of this rank's rows. Collective.

        Args:
            take: function from old row numbers (k,) int64 to their values (k, ...), on the device.

        Returns:
            For each of this rank's new views the old row number, or -1 where the row has arrived; and the arrived rows
            in the order of the views. None on all ranks where no view moves.
        """
        owner, were, me = self.owner, self.were, self.world.rank
        if np.array_equal(owner, were):
            return None
        moving = np.flatnonzero(owner != were)
        leaving = {r: moving[(were[moving] == me) & (owner[moving] == r)] for r in np.unique(owner[moving])}
        joining = {r: moving[(owner[moving] == me) & (were[moving] == r)] for r in np.unique(were[moving])}
        sends = {int(r): take(self._places(views)).contiguous() for r, views in leaving.items() if len(views)}
        like = take(self._places(self._had[:0]))
        arrived = {int(r): like.new_empty(len(v), *like.shape[1:]) for r, v in joining.items() if len(v)}
        self.world.start_messages(sends, arrived)()
        local_rows = self._own
        stayed = np.isin(local_rows, self._had)
        source = np.full(len(local_rows), -1, dtype=np.int64)
        source[stayed] = np.searchsorted(self._had, local_rows[stayed])
        came = np.concatenate([joining[r] for r in arrived]) if arrived else local_rows[:0]
        values = torch.cat(list(arrived.values())) if arrived else like
        order = torch.as_tensor(np.argsort(came, kind="stable"), device=values.device)
        return torch.as_tensor(source), values.index_select(0, order)

    def carry_patterns(self, patterns: CarriedPatterns, device: torch.device) -> None:
        """Send patterns to the new owners of their views, in steps so small that those in transit need little memory.

        Collective.

        Args:
            patterns: patterns of this rank's views, updated in place.
            device: device through which they are sent.
        """
        steps = list(self._steps(max(1, STEP_BYTES // max(1, patterns.frame_bytes))))
        patterns.reserve(max((len(step._own) for step in steps), default=0))
        for step in steps:
            exchanged = step.exchange_rows(lambda rows: patterns.take(rows).to(device))
            assert exchanged is not None, "every step moves a view"
            source, arrived = exchanged
            patterns.replace(source, [arrived.cpu()])

    def _steps(self, most: int) -> Iterator[Handover]:
        """Yield migrations that together make this one; in each, a rank sends and receives about `most` views at most.

        Between any two ranks, each step moves the same share, so that arriving views fit in the memory of those that
        left.
        """
        moving = np.flatnonzero(self.owner != self.were)
        if not len(moving):
            return
        pairs = self.were[moving] * self.world.size + self.owner[moving]
        order = np.argsort(pairs, kind="stable")
        _, first, counts = np.unique(pairs[order], return_index=True, return_counts=True)
        busiest = max(int(np.bincount(of[moving]).max()) for of in (self.were, self.owner))
        count = min(-(-busiest // most), int(counts.max()))
        place = np.arange(len(moving)) - np.repeat(first, counts)
        step = np.empty(len(moving), dtype=np.int64)
        step[order] = place * count // np.repeat(counts, counts)
        were = self.were
        for number in range(count):
            of_step, owner = moving[step == number], were.copy()
            owner[of_step] = self.owner[of_step]
            yield Handover(self.world, were, owner)
            were = owner

    def _places(self, views: np.ndarray) -> Tensor:
        return torch.as_tensor(np.searchsorted(self._had, views))


def follow_draw(layout: Layout, nominal: np.ndarray, among: np.ndarray, compact: bool) -> Handover | None:
    """Reassign the views of a replicated layout so that ranks have equal shares of each batch (`owners`).

    Args:
        layout: changed in place.
        nominal: (N, 2) positions in pixels from which batches are drawn.
        among: (n,) indices of the views that take part in the stage.
        compact: True if batches are clusters of neighbours.

    Returns:
        The migration, of which nothing has been sent yet; None where no view changes its owner, as in tiles.
    """
    if not layout.follows_draw:
        return None
    were, owner = layout.owner, owners(nominal, layout.world.size, compact, among)
    if np.array_equal(were, owner):
        return None
    layout.assign(owner)
    return Handover(layout.world, were, owner)
