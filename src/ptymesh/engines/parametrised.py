"""Steps of the numbers that make up probe or positions (`models` of a stage), after each batch of any engine.

s         the batch's steps of x: sums of its adjoints by the probe's pixels, or steps of its views' positions
J, theta  directions and numbers of a parametrisation (models/base.py);  T  independent combinations, (n, n)
w, t      widths of the priors of the numbers, and the values at the start of the run that they are about
g         = -T^T (J^T s - share (theta - t) / 4 w^2) over the batch, whose share of all views this is

    z <- Adam's step by g (Kingma & Ba, ICLR 2015);  theta += T (change of z)

The object soon agrees with wrong numbers, which makes their slopes small: Gauss-Newton steps would need thousands
of batches where Adam's, which do not depend on how large slopes are, need tens. T makes the directions orthogonal, of
rms 1, at the start of the stage: defocus and spherical aberration do nearly the same, and along neither of them alone
would the minimum be found.

J^T s is a quarter of the slope of the counts' chi-square / 2, since a count's root has a variance of 1/4; that of
positions, whose steps are each divided by the norm of the view's derivative, is so divided by the beam's own norm.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from ptymesh.engines.base import Engine
from ptymesh.engines.positions.moving import fit_columns
from ptymesh.engines.strain import measure_strain, views_of_epoch
from ptymesh.estimate import Estimate
from ptymesh.models import Parametrisation
from ptymesh.physics.elementwise import means, over_window, overlap
from ptymesh.physics.rounding import total_of
from ptymesh.physics.window_shifts import derivative
from ptymesh.problem import Batch, Problem

#: Adam's decay of means of slopes and of their squares; least divisor.
DECAY, DECAY_SQUARES, TINY = 0.9, 0.99, 1e-300
#: Least eigenvalue of the directions' normalised products; combinations below it are taken as zero, and stay.
INDEPENDENT = 1e-9


def due(engine: Engine, epoch: int) -> list[Parametrisation]:
    """Return the parametrisations that move in this epoch (from 1)."""
    frozen = epoch <= engine.probe.frozen
    return [one for one in engine.models.values() if one.active(epoch) and not (frozen and one.of == "probe")]


def after_batch(
    engine: Engine,
    problem: Problem,
    estimate: Estimate,
    batch: Batch,
    due: list[Parametrisation],
    probe: Tensor,
    start: Tensor,
) -> None:
    """Take one step of each parametrisation that is due. Collective.

    Args:
        engine: of the stage; its options and memory.
        problem: the problem that is solved.
        estimate: the unknowns, changed in place.
        batch: the views, with their sums or steps of positions.
        due: parametrisations that move.
        probe: (M, h, w) complex, the probe before the batch.
        start: (N, 2) positions at the epoch's start, which are moved along.
    """
    for one in due:
        if one.moves_between_epochs:
            continue
        numbers = estimate.parameters.setdefault(one.name, {})
        before = _numbers(one, numbers)
        after = before + _step(engine, problem, estimate, batch, one, probe)
        if one.of == "positions":
            start.copy_(one.moved(problem.geometry, estimate, start, before, after))
            _move_positions(problem, estimate, one, (before, after))
        else:
            x = probe if one.moves_alone else estimate.probe
            estimate.probe.copy_(one.moved(problem.geometry, estimate, x, before, after))
        numbers |= dict(zip(one.units(), after.tolist(), strict=True))


def after_epoch(
    engine: Engine,
    problem: Problem,
    estimate: Estimate,
    models: list[Parametrisation],
    views: np.ndarray,
    epoch: int,
) -> None:
    """Fit the numbers to the probe, if the engine moves its pixels, too; strain the scan by its patterns. Collective.

    Args:
        engine: of the stage.
        problem: the problem that is solved.
        estimate: the unknowns, whose `parameters` are set.
        models: parametrisations that move in this epoch.
        views: global indices of the views that are reconstructed from.
        epoch: of the stage, from 1.
    """
    for one in models:
        if one.moves_between_epochs:
            numbers = estimate.parameters.setdefault(one.name, {})
            before = _numbers(one, numbers)
            chosen_views, factor = views_of_epoch(views, epoch), _rate_factor(one, epoch, engine.epochs)
            away = before - _numbers(one, estimate.initial_parameters.get(one.name, {}))
            after = before + measure_strain(problem, estimate, chosen_views, one, factor, away)
            _move_positions(problem, estimate, one, (before, after))
            before, after = after, after + _part_of_moves(problem, estimate, one, views)
            estimate.nominal.copy_(one.moved(problem.geometry, estimate, estimate.nominal, before, after))
            numbers |= dict(zip(one.units(), after.tolist(), strict=True))
            continue
        key = _key_of(one)
        if f"{key}.reference" not in engine.state:
            continue
        numbers, origin = estimate.parameters[one.name], engine.state[f"{key}.origin"].cpu()
        now = torch.tensor([numbers[name] for name in one.units()], dtype=torch.float64)
        reference = engine.state[f"{key}.reference"]
        values = origin + one.read(problem.geometry, reference, estimate.probe, now - origin)
        numbers |= dict(zip(one.units(), values.tolist(), strict=True))


def _numbers(one: Parametrisation, numbers: dict[str, float]) -> Tensor:
    """Return the numbers of a parametrisation, (n,) float64 on the host; 0 for those that have none yet."""
    return torch.tensor([numbers.get(name, 0.0) for name in one.units()], dtype=torch.float64)


def _move_positions(problem: Problem, estimate: Estimate, one: Parametrisation, numbers: tuple[Tensor, Tensor]) -> None:
    """Move positions, and nominal ones last, as the centre is computed from these, by a change of the numbers."""
    for x in (estimate.positions, estimate.nominal):
        x.copy_(one.moved(problem.geometry, estimate, x, *numbers))


def _part_of_moves(problem: Problem, estimate: Estimate, one: Parametrisation, views: np.ndarray) -> Tensor:
    """Return what the moves of single positions have of the numbers' directions, (n,) float64 on the host.

    Nominal positions take it over. Otherwise steps of single positions and of the numbers carry these away, each step
    against the other, and with them the views that are held out.

    Args:
        problem: the problem that is solved.
        estimate: the unknowns.
        one: the parametrisation, of positions.
        views: global indices of the views whose positions move.
    """
    chosen = torch.as_tensor(views, device=problem.device)
    moves = estimate.positions - estimate.nominal, *one.directions(problem.geometry, estimate)
    target, *directions = ((of_all[chosen] - means(of_all[chosen])).flatten() for of_all in moves)
    return fit_columns(torch.stack(directions), target)


def _key_of(one: Parametrisation) -> str:
    """Return the key of a parametrisation's memory, with its terms: an engine that is used again may move others."""
    return ".".join(("models", one.name, *one.units()))


def _step(
    engine: Engine, problem: Problem, estimate: Estimate, batch: Batch, one: Parametrisation, probe: Tensor
) -> Tensor:
    """Return the change of the numbers, (n,) float64 on the host; probe is that before the batch."""
    J = one.directions(problem.geometry, estimate)
    state, key = engine.state, _key_of(one)
    if f"{key}.combinations" not in state:
        state[f"{key}.combinations"] = _orthogonalise(J, _size(one, estimate))
        state[f"{key}.memory"] = torch.zeros(2, len(J), dtype=torch.float64)
        state[f"{key}.steps"] = torch.zeros((), dtype=torch.int64)
        if one.of == "probe" and not one.moves_alone:
            state[f"{key}.origin"] = _numbers(one, estimate.parameters[one.name])
            state[f"{key}.reference"] = probe[:1].clone()
    T = state[f"{key}.combinations"].cpu()
    along = _project_probe_step(batch, J) if one.of == "probe" else _project_position_steps(problem, batch, J)
    if one.widths:
        along = along + _pull_of_prior(problem, estimate, batch, one)
    slope = -(T * along[:, None]).sum(0)
    first, second = state[f"{key}.memory"].cpu()
    first, second = first.lerp(slope, 1 - DECAY), second.lerp(slope * slope, 1 - DECAY_SQUARES)
    count = int(state[f"{key}.steps"]) + 1
    state[f"{key}.memory"], state[f"{key}.steps"] = torch.stack((first, second)), torch.tensor(count)
    mean, square = first / (1 - DECAY**count), second / (1 - DECAY_SQUARES**count)
    rate = one.lr * _rate_factor(one, batch.epoch, engine.epochs)
    return (T * (-rate * mean / square.sqrt().clamp(min=TINY))).sum(1)


def _project_probe_step(batch: Batch, J: Tensor) -> Tensor:
    """Return J^T s of the probe's pixels, (n,) on the host."""
    assert batch.view_updates.gradients is not None, "engines that move numbers of the probe sum its adjoints"
    return over_window(overlap(J, batch.view_updates.gradients.probe.to(J.dtype))).sum(1).cpu()


def _project_position_steps(problem: Problem, batch: Batch, J: Tensor) -> Tensor:
    """Return J^T s over the views of all ranks, (n,) on the host. Collective."""
    reduction = problem.fields.reduction(len(J))
    for views, steps in batch.view_updates.positions:
        reduction.add((J[:, views] * steps.to(J.dtype)).sum(-1).T)
    return problem.fields.totals(reduction)[0].cpu()


def _pull_of_prior(problem: Problem, estimate: Estimate, batch: Batch, one: Parametrisation) -> Tensor:
    """Return -share (theta - t) / 4 w^2, (n,) on the host, for positions over the beam's ||d psi/d p||^2."""
    share, norm = len(batch.views) / problem.views, 1.0
    if one.of == "positions":
        slopes = torch.stack([torch.view_as_real(derivative(estimate.probe, axis)) for axis in (0, 1)])
        norm = float(total_of(slopes.square())) / 2
    away = _numbers(one, estimate.parameters[one.name]) - _numbers(one, estimate.initial_parameters.get(one.name, {}))
    return -share * away * one.precisions() / (4 * norm)


def _orthogonalise(J: Tensor, size: float) -> Tensor:
    """Return n orthogonal combinations of n directions, each of norm `size`.

    Args:
        J: (n, ...) real or complex, derivatives of positions or probe by each of the numbers.
        size: norm of each combination.

    Returns:
        T (n, n) on the host, float64, a combination a column; a column is 0 where directions depend on each other.
    """
    pairs = torch.view_as_real(J) if J.is_complex() else J
    gram = torch.stack([torch.stack([total_of(a * b) for b in pairs]) for a in pairs]).cpu()
    norms = gram.diagonal().clamp(min=TINY).sqrt()
    strengths, turn = torch.linalg.eigh(gram / (norms[:, None] * norms))
    scaled = size * turn / (norms[:, None] * strengths.clamp(min=INDEPENDENT).sqrt())
    # Contiguous, as from a checkpoint: torch sums in the order of the memory, and eigh's result lies column by column.
    return torch.where(strengths > INDEPENDENT, scaled, 0.0).contiguous()


def _size(one: Parametrisation, estimate: Estimate) -> float:
    """Return the norm of a change of x by 1.

    It changes every pixel of the probe by a radian, or every position by a pixel.
    """
    if one.of == "positions":
        return math.sqrt(len(estimate.positions))
    return float(total_of(torch.view_as_real(estimate.probe).square()).sqrt())


def _rate_factor(one: Parametrisation, epoch: int, epochs: int) -> float:
    """Return the factor of the learning rate: half a cosine from 1 to 0 over the epochs in which it moves."""
    last = min(one.stop or epochs, epochs)
    return 0.5 * (1 + math.cos(math.pi * (epoch - one.start) / max(1, last - one.start + 1)))
