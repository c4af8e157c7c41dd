"""Views that go to other ranks, with their patterns and whatever is kept of them.

N, R   views, ranks;  k   views that go

Which views go where follows from who owned them and who owns them now, which every rank knows: no message is needed to
agree on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from ptymesh.distributed.layout import CarriedPatterns, Layout, Migration
from ptymesh.distributed.owners import owners
from ptymesh.distributed.world import World

#: Bytes of patterns that go to other ranks at a time.
STEP_BYTES = 16 << 20


class Handover(Migration):
    """From owners (N,) that were to those that are now; what is kept of the object stays. Every rank takes part."""

    def __init__(self, world: World, were: np.ndarray, owner: np.ndarray) -> None:
        self.world, self.were, self.owner = world, were, owner
        #: Views of this rank, ascending: that were, and that are now.
        self._had, self._own = (np.flatnonzero(o == world.rank) for o in (were, owner))

    def exchange_rows(self, take: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor] | None:
        """Own views' new rows: where each was among the old ones, or -1, and those that have arrived, in order; None
        where all stay, on all ranks. take: old rows (k,) as a tensor (k, ...) on the device."""
        owner, were, me = self.owner, self.were, self.world.rank
        if np.array_equal(owner, were):
            return None
        moving = np.flatnonzero(owner != were)
        leaving = {r: moving[(were[moving] == me) & (owner[moving] == r)] for r in np.unique(owner[moving])}
        joining = {r: moving[(owner[moving] == me) & (were[moving] == r)] for r in np.unique(were[moving])}
        sends = {int(r): take(self._places(views)).contiguous() for r, views in leaving.items() if len(views)}
        like = take(self._places(self._had[:0]))
        arrived = {int(r): like.new_empty(len(v), *like.shape[1:]) for r, v in joining.items() if len(v)}
        self.world.post(sends, arrived)()
        own = self._own
        stayed = np.isin(own, self._had)
        source = np.full(len(own), -1, dtype=np.int64)
        source[stayed] = np.searchsorted(self._had, own[stayed])
        came = np.concatenate([joining[r] for r in arrived]) if arrived else own[:0]
        values = torch.cat(list(arrived.values())) if arrived else like
        order = torch.as_tensor(np.argsort(came, kind="stable"), device=values.device)
        return torch.as_tensor(source), values.index_select(0, order)

    def carry_patterns(self, patterns: CarriedPatterns, device: torch.device) -> None:
        """Patterns go with their views, so few at a time that those under way take little room."""
        steps = list(self._steps(max(1, STEP_BYTES // max(1, patterns.frame_bytes))))
        patterns.reserve(max((len(step._own) for step in steps), default=0))
        for step in steps:
            exchanged = step.exchange_rows(lambda rows: patterns.take(rows).to(device))
            assert exchanged is not None, "every step moves a view"
            source, arrived = exchanged
            patterns.replace(source, [arrived.cpu()])

    def _steps(self, most: int) -> Iterator[Handover]:
        """The same in steps, in which a rank sends and gets about so many views at most.

        Between any two ranks, the same share goes in each: what arrives has the room of what has left.
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
            some, owner = moving[step == number], were.copy()
            owner[some] = self.owner[some]
            yield Handover(self.world, were, owner)
            were = owner

    def _places(self, views: np.ndarray) -> Tensor:
        return torch.as_tensor(np.searchsorted(self._had, views))


def follow_draw(layout: Layout, nominal: np.ndarray, among: np.ndarray, compact: bool) -> Handover | None:
    """The views of a replicated layout go to ranks that have equal shares of each batch (`owners`), from here on.

    None where all stay where they are, as those of tiles do. Nothing has been sent yet.
    """
    if not layout.follows_draw:
        return None
    were, owner = layout.owner, owners(nominal, layout.world.size, compact, among)
    if np.array_equal(were, owner):
        return None
    layout.assign(owner)
    return Handover(layout.world, were, owner)
