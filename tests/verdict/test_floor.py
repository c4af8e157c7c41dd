"""The noise floor against the truth's own residual, and against fits whose number of parameters is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from ptymesh.distributed.layouts.layout import Replicated
from ptymesh.distributed.world import Solo
from ptymesh.measurement import ArraySource, Measurement
from ptymesh.physics.detector.counting import expected_misfit, expected_spread, misfit_of
from ptymesh.physics.model import Model
from ptymesh.problem import Problem
from ptymesh.simulate import simulate
from ptymesh.verdict.floor import NoiseFloor, are_counts, measure_noise_floor


def problem_of(scan: Measurement) -> Problem:
    model = Model.for_geometry(scan.geometry, dtype=torch.complex128)
    return Problem(model, scan, Replicated(Solo(), scan.positions), torch.complex128)


@pytest.mark.parametrize("photons", [2e3, 1e6])
def test_the_level_of_noise_is_the_residual_of_the_truth(photons: float) -> None:
    made = simulate(views=60, window=48, photons_per_view=photons, seed=4)
    problem = problem_of(made.measurement)
    residual = problem.residual(made.truth.estimate())[0]
    floor = measure_noise_floor(problem)
    assert floor is not None
    assert floor.truth == pytest.approx(residual, rel=0.04)
    assert floor.spread <= floor.truth
    counts = sum(float(made.measurement.patterns.read(np.array([view])).sum()) for view in range(60))
    assert floor.counts == pytest.approx(counts), "all 60 views were looked at"


def test_patterns_that_are_no_counts_have_no_floor() -> None:
    made = simulate(views=4, window=32, noise=False)
    assert measure_noise_floor(problem_of(made.measurement)) is None


@pytest.mark.parametrize("times", [2, 100])
def test_multiples_of_counts_have_no_floor(times: int) -> None:
    """They are what a gain that is wrong makes of counts, whose noise is larger than theirs."""
    made = simulate(views=4, window=32).measurement
    counts = made.patterns.read(np.arange(4))
    assert measure_noise_floor(problem_of(replace(made, patterns=ArraySource(counts)))) is not None
    assert measure_noise_floor(problem_of(replace(made, patterns=ArraySource(times * counts)))) is None


@pytest.mark.parametrize("mean", [0.05, 0.4, 1.3, 5.0, 30.0, 400.0])
def test_tables_are_what_poisson_counts_do(mean: float) -> None:
    rng = np.random.default_rng(2)
    y = torch.from_numpy(rng.poisson(mean, 400_000).astype(np.float64))
    misfit = (y.sqrt() - mean**0.5) ** 2
    f, w = misfit_of(torch.tensor([mean]))
    assert float(f) == pytest.approx(float(misfit.mean()), rel=0.01)
    assert float(w) == pytest.approx(float(misfit.var()), rel=0.03)
    assert float(expected_misfit(y).mean()) == pytest.approx(float(f), rel=0.11)
    assert float(expected_spread(y).mean()) == pytest.approx(float(y.sqrt().var()), rel=0.01)


#: Sets of counts of the same intensities.
DRAWS = 20


def fitted_roots(mean: float, pixels: int, numbers: int) -> tuple[float, float, float, float]:
    """Roots of intensities that are linear in some numbers, fitted by least squares to those of counts: training and
    held-out residual, both over F, and the same that the formulas give."""
    rng = np.random.default_rng(7)
    directions = rng.standard_normal((pixels, numbers)) / np.sqrt(numbers)
    roots = np.sqrt(mean) * (1 + 0.1 * directions @ rng.standard_normal(numbers))
    seen, unseen = rng.poisson(roots**2, (2, DRAWS, pixels)).astype(float)
    basis = np.linalg.qr(np.column_stack([directions, np.ones(pixels)]))[0]
    model = np.sqrt(seen) @ basis @ basis.T
    f = DRAWS * float(misfit_of(torch.from_numpy(roots**2))[0].sum())
    v = float(expected_spread(torch.from_numpy(seen)).sum())
    floor = NoiseFloor(f / seen.sum(), v / seen.sum(), seen.sum() / DRAWS)
    training = ((np.sqrt(seen) - model) ** 2).sum() / seen.sum()
    held_out = ((np.sqrt(unseen) - model) ** 2).sum() / unseen.sum()
    bound = floor.fitted(numbers + 1)
    return training / floor.truth, held_out / floor.truth, bound / floor.truth, 2 - bound / floor.truth


def test_fitted_numbers_take_noise_away() -> None:
    """At 10 counts a pixel, and a twelfth as many numbers as pixels."""
    training, held_out, bound, above = fitted_roots(10, 6000, 504)
    assert bound == pytest.approx(0.92, abs=0.01) and above == pytest.approx(1.08, abs=0.01)
    assert training == pytest.approx(bound, abs=0.02) and held_out == pytest.approx(above, abs=0.02)
    assert (training + held_out) / 2 == pytest.approx(1, abs=0.03)


def test_dark_patterns_have_a_bound() -> None:
    """At 0.3 counts a pixel a fit lies far below what the truth would leave, without a mistake."""
    training, _, bound, _ = fitted_roots(0.3, 6000, 500)
    assert bound <= 1.02 * training < 0.8


def test_as_many_numbers_as_data_leave_half_of_the_noise() -> None:
    floor = NoiseFloor(0.1, 0.09, 1e4)
    assert floor.fitted(0) == 0.09
    assert floor.fitted(400) == pytest.approx(0.08)
    assert floor.fitted(1e9) == pytest.approx(0.045)


def test_large_numbers_are_whole_whatever_they_are() -> None:
    y = torch.tensor([0.0, 3.0, 7.0], dtype=torch.float64)
    assert are_counts(y, torch.float32) and are_counts(1e9 * y, torch.int64)
    assert not are_counts(1e9 * y, torch.float32), "no fraction would be left of it"
    assert not are_counts(1.5 * y, torch.float32)
