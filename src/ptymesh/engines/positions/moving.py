"""Moves of single positions, and what is done to the moves of an epoch once all ranks have theirs.

N, B     all views, views of a batch
p0_j     nominal position;  d_j = p_j - p0_j
v_j      velocity:  v_j <- eta v_j + the epoch's move of p_j,  which is then v_j
MAD      median of the distances from the median, along an axis
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ptymesh.engines.base import AFFINE_TERMS, AffineTerm, Engine, PositionRefinement
from ptymesh.estimate import Estimate
from ptymesh.models.scan_geometry import moves_of_terms
from ptymesh.physics.elementwise import means
from ptymesh.physics.rounding import total_of
from ptymesh.problem import Batch, Problem

#: `auto` gain: factors if moves of successive epochs agree or turn, least cosine of agreement, and bounds of the gain.
FASTER, SLOWER, AGREE, LOWEST, HIGHEST = 2.0, 0.5, 0.3, 0.25, 16.0
#: Standard deviations in a MAD, of a normal distribution.
DEVIATION = 1.4826
#: Share of the largest eigenvalue of normal equations below which columns depend on each other.
SINGULAR = 1e-12


def after_batch(engine: Engine, batch: Batch, estimate: Estimate, start: Tensor) -> None:
    """Move the positions of this rank's views in the batch by gain x step, within limit_px of the epoch's start.

    Args:
        engine: of the stage; its options and memory.
        batch: the views, with their steps.
        estimate: the unknowns, changed in place.
        start: (N, 2) positions at the epoch's start, in pixels.
    """
    for views, steps in batch.view_updates.positions:
        move(engine, estimate, views, steps, start)


def move(engine: Engine, estimate: Estimate, views: Tensor, steps: Tensor, start: Tensor) -> None:
    """Move positions of these views by gain x step, within limit_px of the epoch's start.

    Args:
        engine: of the stage; its options and memory.
        estimate: the unknowns, changed in place.
        views: (n,) int64, global indices.
        steps: (n, 2) float64, pixels.
        start: (N, 2) positions at the epoch's start, in pixels.
    """
    options = engine.positions
    assert options is not None
    gain = engine.state.get("position_gain", 1.0) if options.gain == "auto" else options.gain
    moved = estimate.positions[views] + gain * steps
    estimate.positions[views] = _within(moved, start[views], options.limit_px)


def after_epoch(engine: Engine, problem: Problem, estimate: Estimate, start: Tensor) -> None:
    """Merge the positions of all ranks; then apply momentum, affine model, drift and gain, over all views. Collective.

    Args:
        engine: of the stage; its options and memory.
        problem: the problem that is solved.
        estimate: the unknowns, changed in place.
        start: (N, 2) positions at the epoch's start, in pixels.
    """
    options = engine.positions
    assert options is not None
    estimate.positions.copy_(problem.layout.merge(estimate.positions))
    if options.momentum:
        _carry_on(engine, options, estimate, start)
    displacement = estimate.positions - estimate.nominal
    if options.clip_mad is not None:
        affine = affine_part(estimate.nominal, displacement)
        displacement = affine + clip_outliers(displacement - affine, options.clip_mad)
    if options.affine:
        displacement = affine_part(estimate.nominal, displacement, options.affine_terms)
    if options.drift:
        displacement = displacement - means(displacement)
    estimate.positions.copy_(estimate.nominal + displacement)
    if options.gain == "auto":
        _adapt(engine, estimate.positions - start)


def _within(positions: Tensor, centre: Tensor, limit: float) -> Tensor:
    """Return positions (n, 2), at most `limit` pixels from the centre (n, 2) along each axis."""
    return torch.minimum(torch.maximum(positions, centre - limit), centre + limit)


def _carry_on(engine: Engine, options: PositionRefinement, estimate: Estimate, start: Tensor) -> None:
    """Add what is left of the velocity of earlier epochs to the moves of this one, within limit_px."""
    velocity = estimate.positions - start
    if "position_velocity" in engine.state:
        velocity = velocity + options.momentum * engine.state["position_velocity"]
    engine.state["position_velocity"] = velocity.clamp(-options.limit_px, options.limit_px)
    estimate.positions.copy_(start + engine.state["position_velocity"])


def _adapt(engine: Engine, moved: Tensor) -> None:
    """Set the gain for the next epoch, from the angle between this epoch's moves (N, 2) and the last one's."""
    gain = engine.state.get("position_gain", torch.ones((), dtype=torch.float64, device=moved.device))
    last = engine.state.get("position_move")
    if last is not None:
        norms = (total_of(moved * moved) * total_of(last * last)).sqrt()
        cosine = total_of(moved * last) / norms.clamp(min=torch.finfo(moved.dtype).tiny)
        factor = torch.where(cosine > AGREE, FASTER, torch.where(cosine < 0, SLOWER, 1.0))
        gain = (gain * factor).clamp(LOWEST, HIGHEST)
    engine.state["position_gain"], engine.state["position_move"] = gain, moved


def clip_outliers(values: Tensor, times: float) -> Tensor:
    """Return values (N, 2), none further from the median of its axis than so many standard deviations of a MAD."""
    median = values.median(0).values
    spread = (values - median).abs().median(0).values * (DEVIATION * times)
    # Where most views stay, which is no spread, nothing can be called an outlier.
    return torch.where(spread > 0, torch.minimum(torch.maximum(values, median - spread), median + spread), values)


def affine_part(
    nominal: Tensor, displacement: Tensor, terms: Sequence[AffineTerm] = AFFINE_TERMS, fitted: Tensor | None = None
) -> Tensor:
    """Fit displacements by terms of an affine function of nominal positions and a common move, by least squares.

    Args:
        nominal: (N, 2) pixels, y before x.
        displacement: (N, 2) pixels.
        terms: what is fitted beside the common move.
        fitted: (N,) bool, views by which it is fitted; None for all.
    """
    centred = nominal - means(nominal)
    y, x = (centred / centred.abs().max().clamp(min=1.0)).unbind(1)
    along = moves_of_terms(y, x)
    one, none = torch.ones_like(y), torch.zeros_like(y)
    columns = [*(along[name] for name in terms), (one, none), (none, one)]
    design = torch.stack([torch.stack(column, dim=1) for column in columns], dim=2)
    chosen_columns, moved = (design, displacement) if fitted is None else (design[fitted], displacement[fitted])
    solution = fit_columns(chosen_columns.flatten(0, 1).T, moved.flatten())
    return (design * solution.to(design.device)).sum(2)


def fit_columns(columns: Tensor, target: Tensor) -> Tensor:
    """Fit numbers by columns, by least squares; of several solutions the least.

    By normal equations, whose sums are the same with any number of threads; those within a decomposition of all rows
    are not.

    Args:
        columns: (k, n) float64.
        target: (n,) float64.

    Returns:
        (k,) float64 on the host, the factors of the columns.
    """
    rows = [*columns, target]
    gram = torch.stack([torch.stack([total_of(a * b) for b in rows]) for a in rows[:-1]]).cpu()
    return torch.linalg.pinv(gram[:, :-1], hermitian=True, rtol=SINGULAR) @ gram[:, -1]
