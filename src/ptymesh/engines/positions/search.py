"""Positions that are looked for between epochs, while nothing else moves: by cross-correlation, or by trials.

correlation  Zhang et al., Opt. Express 21, 13592 (2013)
annealing    Maiden, Humphry, Sarahan, Kraus & Rodenburg, Ultramicroscopy 120, 64 (2012)

O_j      object under view j;  phi_jm the wave on it;  w_j = sum_m |phi_jm|^2;  chi_jm wanted change of the exit wave
u_j      = sum_m conj(phi_jm) chi_jm / max w_j, change of the object that view j asks for
r        radius of trials, which shrinks from radius_px to 0 over the epochs in which positions move

    correlation   step_j = e / mean (w_j / max w_j), e for which lit O_j + u_j looks most like O_j moved by e
    annealing     p_j <- the best of p_j and of `trials` random ones in the square of half side r around it

A change is as small as the light where it is asked for, which the mean of the light over the lit region makes up for.
Means of the object are left out of the correlation, as a constant looks alike wherever it lies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ptymesh.engines.base import Engine
from ptymesh.engines.positions.moving import move
from ptymesh.estimate import Estimate
from ptymesh.physics.backend import MISFIT, Chunk
from ptymesh.physics.correlation import find_shifts
from ptymesh.physics.elementwise import over_window
from ptymesh.problem import Problem

#: Pixels from a view's anchor within which the object is interpolated, where it is (`bilinear`).
INTERPOLATED = 1.5
#: Least intensity of the beam where objects are compared, as a share of the largest.
LIT = 0.01


def search(
    engine: Engine, problem: Problem, estimate: Estimate, views: np.ndarray, start: Tensor, draw: tuple[int, int, int]
) -> None:
    """Move the positions of this rank's views by the method of the stage, in passes in which nothing else moves.

    Collective.

    Args:
        engine: of the stage; its options and memory.
        problem: the problem that is solved.
        estimate: the unknowns, changed in place.
        views: global indices of the views that are reconstructed from.
        start: (N, 2) positions at the epoch's start, in pixels.
        draw: seed of the run, epochs of the run that are done, and epoch of the stage (from 1).
    """
    options = engine.positions
    assert options is not None
    if options.method == "correlation":
        mine = torch.as_tensor(problem.layout.local_views(views), device=problem.device)
        move(engine, estimate, mine, _correlation_steps(problem, estimate, views)[mine], start)
    elif options.method == "annealing":
        seed, done, epoch = draw
        last = min(options.stop or engine.epochs, engine.epochs)
        radius = options.first_radius_px * (last - epoch + 1) / (last - options.start + 1)
        try_moves(problem, estimate, views, radius * _random_moves(options.trial_count, problem, seed, done))


def _random_moves(trials: int, problem: Problem, seed: int, done: int) -> Tensor:
    """Return moves of all views, (trials, N, 2) float64 in -1 to 1, the same on all ranks, others in each epoch."""
    rng = np.random.default_rng((seed, done))
    return torch.from_numpy(rng.uniform(-1.0, 1.0, (trials, problem.views, 2))).to(problem.device)


def try_moves(problem: Problem, estimate: Estimate, views: np.ndarray, moves: Iterable[Tensor]) -> None:
    """Leave each of this rank's views at the best of where it is and its trials. Collective.

    Args:
        problem: the problem that is solved.
        estimate: the unknowns, whose positions are set.
        views: global indices of the views that are tried.
        moves: (N, 2) float64 each, a trial of every view, pixels from where it is.
    """
    filled = problem.loader.fill_halos(estimate)
    positions_before = estimate.positions.clone()
    best, least = positions_before.clone(), _misfits(problem, estimate, views, filled)
    reach = INTERPOLATED if problem.model.subpixel == "bilinear" else float("inf")
    for moved in moves:
        tried = torch.clamp(positions_before + moved, estimate.anchors - reach, estimate.anchors + reach)
        misfit = _misfits(problem, replace(estimate, positions=tried), views, filled)
        better = misfit < least
        best, least = torch.where(better[:, None], tried, best), torch.where(better, misfit, least)
    estimate.positions.copy_(best)


def _misfits(problem: Problem, estimate: Estimate, views: np.ndarray, filled: Mapping[str, Tensor]) -> Tensor:
    """Return sum (sqrt I - sqrt y)^2 of this rank's views among these, (N,) float64; 0 for all others."""

    def sweep() -> Tensor:
        misfits = torch.zeros(problem.views, dtype=torch.float64, device=problem.device)
        for chunk in problem.loader.chunks(estimate, views, filled=filled):
            waves = problem.evaluator.forward(estimate, chunk)
            columns = problem.backend.detector(problem.model, chunk, waves, "evaluate")[1]
            misfits[chunk.views] = columns[:, MISFIT].to(misfits.dtype)
        return misfits

    return problem.evaluator.in_memory(sweep)


def _correlation_steps(problem: Problem, estimate: Estimate, views: np.ndarray) -> Tensor:
    """Return the steps of this rank's views among these, (N, 2) float64 in pixels; 0 for all others. Collective."""
    filled = problem.loader.fill_halos(estimate)

    def sweep() -> Tensor:
        steps = torch.zeros(problem.views, 2, dtype=torch.float64, device=problem.device)
        for chunk in problem.loader.chunks(estimate, views, filled=filled):
            steps[chunk.views] = _shifts_of_chunk(problem, estimate, chunk)
        return steps

    return problem.evaluator.in_memory(sweep)


def _shifts_of_chunk(problem: Problem, estimate: Estimate, chunk: Chunk) -> Tensor:
    """Return by how much the objects that a chunk's views ask for are moved from those they have, (B, 2) float64."""
    model = problem.model
    intermediates = problem.evaluator.forward(estimate, chunk)
    chi = problem.backend.detector(model, chunk, intermediates, "exit_wave_update")[0]
    change = model.forward_adjoint(intermediates, chi)[0]
    light = model.illumination(intermediates)
    largest = light.amax((-2, -1), keepdim=True).clamp(min=torch.finfo(light.dtype).tiny)
    # A region with sharp edges: graded weights would not leave out moves of the whole exit wave, which no pattern sees.
    illuminated = (light > LIT * largest).to(light.dtype)
    centred_windows = intermediates.windows - _means(intermediates.windows, illuminated)
    share = over_window(illuminated * light / largest).sum(1) / over_window(illuminated).sum(1).clamp(min=1)
    return find_shifts(illuminated * centred_windows, illuminated * (centred_windows + change / largest)) / share[
        :, None
    ].clamp(min=LIT)


def _means(windows: Tensor, illuminated: Tensor) -> Tensor:
    """Return the means (B, L, 1, 1) complex of windows (B, L, h, w) over pixels that are lit, 1 or 0."""
    count = over_window(illuminated).clamp(min=1)
    real, imaginary = over_window(illuminated * windows.real) / count, over_window(illuminated * windows.imag) / count
    return torch.complex(real, imaginary).to(windows.dtype)[..., None, None]
