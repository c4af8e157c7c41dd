"""Changes of anchors and of ownership between epochs, which follow the merged positions.

N        all views
p_j      = n_j + f_j, anchor and fraction

Discrete choices follow the merged positions, which are the same on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ptymesh.engines import waves
from ptymesh.engines.base import Engine
from ptymesh.estimate import BLOCK, REACH, Estimate
from ptymesh.problem import Problem

#: |f_j| beyond which a view gets a new anchor.
HYSTERESIS = 1.0


def reanchor(
    engine: Engine,
    problem: Problem,
    estimate: Estimate,
    memories: Sequence[tuple[Engine, dict[str, Tensor]]] = (),
) -> None:
    """Set new anchors n_j = floor(p_j + 1/2) where |f_j| > 1; the object grows if windows would leave it. Collective.

    Other arrays follow: exit waves in the engine's memory, with their windows; tensors of the object's shape in the
    memories, with the values that engines declare outside of the object (`remembers`); all rows of views that go to
    another rank.

    Args:
        engine: of the stage.
        problem: the problem that is solved.
        estimate: the unknowns, changed in place.
        memories: other engines with tensors that follow, too.
    """
    far = ((estimate.positions - estimate.anchors).abs() > HYSTERESIS).any(1)
    if bool(far.any()):
        old = estimate.anchors.clone()
        estimate.anchors[far] = torch.floor(estimate.positions[far] + 0.5).to(estimate.anchors.dtype)
        waves.roll(engine, problem, estimate.anchors - old)
    before = _grown(estimate)
    redistribute(engine, problem, estimate, before, memories)


def redistribute(
    engine: Engine,
    problem: Problem,
    estimate: Estimate,
    before: tuple[int, int],
    memories: Sequence[tuple[Engine, dict[str, Tensor]]] = (),
) -> None:
    """Redistribute object and views over ranks after a change of anchors or of the object's size. Collective.

    Args:
        engine: of the stage.
        problem: the problem that is solved.
        estimate: the unknowns, changed in place.
        before: rows and columns by which the object has grown before its first ones.
        memories: other engines with tensors that follow, too.
    """
    move = problem.layout.adapt_parts(estimate, before)
    if move is None:
        return
    for owner, memory in {id(m): (e, m) for e, m in (*memories, (engine, engine.state))}.values():
        for name, tensor in memory.items():
            if problem.fields.is_of_object(tensor, estimate):
                memory[name] = move.carry(tensor, owner.outside(name))
    for one in problem.model.tiled:
        estimate.others[one.name] = move.carry(estimate.others[one.name], one.outside)
    estimate.object = move.carry(estimate.object, 1.0)
    if estimate.object_values is not None:
        estimate.object_values = move.carry(estimate.object_values, 0.0)
    estimate.corner = move.new.corner
    problem.hand_over(move)
    for name, rows in engine.per_view.items():
        engine.per_view[name] = move.carry_rows(rows)


def _grown(estimate: Estimate) -> tuple[int, int]:
    """Grow the object's extent in whole blocks to hold all windows.

    Returns:
        The rows and columns that were put before the first ones.
    """
    before, after = [], []
    for axis, (side, window) in enumerate(zip(estimate.extent, estimate.window, strict=True)):
        low, high = int(estimate.anchors[:, axis].min()), int(estimate.anchors[:, axis].max())
        before.append(_blocks(REACH - low))
        after.append(_blocks(high + window + REACH - side))
    if any(before):
        offset = torch.tensor(before, device=estimate.positions.device)
        estimate.positions += offset
        estimate.nominal += offset
        estimate.anchors += offset
        estimate.origin = (estimate.origin[0] + before[0], estimate.origin[1] + before[1])
    height, width = (b + n + a for b, n, a in zip(before, estimate.extent, after, strict=True))
    estimate.extent = (height, width)
    return before[0], before[1]


def _blocks(pixels: int) -> int:
    """Round pixels up to whole blocks; 0 if negative."""
    return max(0, -(-pixels // BLOCK)) * BLOCK
