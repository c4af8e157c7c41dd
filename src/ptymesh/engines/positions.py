"""Positions: refinement within an epoch, and changes of anchors and ownership between epochs.

N, B     all views, views of a batch
p_j      = n_j + f_j, anchor and fraction; p0_j nominal

Discrete choices follow the merged positions, which are the same on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ptymesh.engines import waves
from ptymesh.engines.base import Engine
from ptymesh.estimate import BLOCK, REACH, Estimate
from ptymesh.physics.elementwise import means
from ptymesh.physics.rounding import total_of
from ptymesh.problem import Batch, Problem

#: |f_j| beyond which a view gets a new anchor.
HYSTERESIS = 1.0


#: `auto` gain: factors if moves of successive epochs agree or turn, least cosine of agreement, and bounds of the gain.
FASTER, SLOWER, AGREE, LOWEST, HIGHEST = 2.0, 0.5, 0.3, 0.25, 16.0


def after_batch(engine: Engine, batch: Batch, estimate: Estimate, start: Tensor) -> None:
    """Move the positions of this rank's views in the batch by gain x step, within limit_px of the epoch's start.

    Args:
        engine: of the stage; its options and memory.
        batch: the views, with their steps.
        estimate: the unknowns, changed in place.
        start: (N, 2) positions at the epoch's start, in pixels.
    """
    options = engine.positions
    assert options is not None
    gain = engine.state.get("position_gain", 1.0) if options.gain == "auto" else options.gain
    for views, steps in batch.view_updates.positions:
        moved = estimate.positions[views] + gain * steps
        low, high = start[views] - options.limit_px, start[views] + options.limit_px
        estimate.positions[views] = torch.minimum(torch.maximum(moved, low), high)


def after_epoch(engine: Engine, problem: Problem, estimate: Estimate, start: Tensor) -> None:
    """Merge the positions of all ranks; then apply affine model, drift and gain, over all views. Collective.

    Args:
        engine: of the stage; its options and memory.
        problem: the problem that is solved.
        estimate: the unknowns, changed in place.
        start: (N, 2) positions at the epoch's start, in pixels.
    """
    options = engine.positions
    assert options is not None
    estimate.positions.copy_(problem.layout.merge(estimate.positions))
    displacement = estimate.positions - estimate.nominal
    if options.affine:
        displacement = affine_part(estimate.nominal, displacement)
    if options.drift:
        displacement = displacement - means(displacement)
    estimate.positions.copy_(estimate.nominal + displacement)
    if options.gain == "auto":
        _adapt(engine, estimate.positions - start)


def _adapt(engine: Engine, move: Tensor) -> None:
    """Set the gain for the next epoch, from the angle between this epoch's moves (N, 2) and the last one's."""
    gain = engine.state.get("position_gain", torch.ones((), dtype=torch.float64, device=move.device))
    last = engine.state.get("position_move")
    if last is not None:
        norms = (total_of(move * move) * total_of(last * last)).sqrt()
        cosine = total_of(move * last) / norms.clamp(min=torch.finfo(move.dtype).tiny)
        factor = torch.where(cosine > AGREE, FASTER, torch.where(cosine < 0, SLOWER, 1.0))
        gain = (gain * factor).clamp(LOWEST, HIGHEST)
    engine.state["position_gain"], engine.state["position_move"] = gain, move


def affine_part(nominal: Tensor, displacement: Tensor) -> Tensor:
    """Fit displacements (N, 2) by an affine function of nominal positions (N, 2), in the least-squares sense."""
    centred = nominal - means(nominal)
    design = torch.cat((centred / centred.abs().max().clamp(min=1.0), torch.ones_like(centred[:, :1])), dim=1)
    solution = torch.linalg.lstsq(design.cpu(), displacement.cpu(), driver="gelsd").solution
    return (design[:, :, None] * solution.to(design.device)).sum(1)


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
    shape = estimate.object.shape
    for owner, memory in {id(m): (e, m) for e, m in (*memories, (engine, engine.state))}.values():
        for name, tensor in memory.items():
            if tensor.shape == shape:
                memory[name] = move.carry(tensor, owner.outside(name))
    estimate.object = move.carry(estimate.object, 1.0)
    if estimate.potential is not None:
        estimate.potential = move.carry(estimate.potential, 0.0)
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
