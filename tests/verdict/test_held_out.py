"""Held-out views, and what each of them has for itself."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from ptymesh.distributed.world import World
from ptymesh.estimate import Estimate
from ptymesh.verdict import held_out
from ptymesh.verdict.held_out import Gains, Judged, judge_held_out
from toy import Toy, make, share

HELD = np.array([1, 8, 13, 21, 30])


@pytest.fixture(scope="module")
def toy() -> Toy:
    return make(window=(32, 32), views=36, noise=True, blocks=4, counts=2e4)


def moved(toy: Toy, by: float) -> Estimate:
    """The truth, but for the positions."""
    rng = torch.Generator().manual_seed(1)
    away = by * (2 * torch.rand(toy.truth.positions.shape, generator=rng, dtype=torch.float64) - 1)
    return replace(toy.truth, positions=toy.truth.positions + away)


def test_what_is_shared_is_judged_by_the_views_as_they_are(toy: Toy) -> None:
    problem = toy.problem()
    found = judge_held_out(problem, toy.truth, HELD, frozenset())
    assert found.residual == pytest.approx(problem.residual(toy.truth, HELD)[0], rel=1e-12)
    assert len(found.misfit) == len(HELD)


@pytest.mark.parametrize("window", [(24, 24), (32, 48), (30, 20), (8, 12)])
def test_either_half_has_half_of_the_light(window: tuple[int, int]) -> None:
    """Patterns have their centre in the corner, and may have nothing beyond the squares around it."""
    black = held_out.checkerboard(window, torch.device("cpu"))
    y, x = (torch.minimum(torch.arange(n) + 0.5, n - torch.arange(n) - 0.5) for n in window)
    light = torch.exp(-(y[:, None] ** 2 + x**2) / 9)
    assert 0.4 < float(light[black].sum() / light.sum()) < 0.6


def test_positions_are_fitted_where_they_are_not_judged(toy: Toy) -> None:
    problem, own = toy.problem(), frozenset({"positions"})
    true = judge_held_out(problem, toy.truth, HELD, frozenset()).residual
    wrong = moved(toy, 0.8)
    before = wrong.positions.clone()
    assert judge_held_out(problem, wrong, HELD, frozenset()).residual > 2 * true
    fitted = judge_held_out(problem, toy.truth, HELD, own).residual
    assert judge_held_out(problem, wrong, HELD, own).residual == pytest.approx(fitted, rel=0.05)
    assert torch.equal(wrong.positions, before), "the estimate stays"
    # what is fitted to the noise of one half is no gain on the other
    assert true < fitted < 1.05 * true


def test_fits_have_come_to_their_end(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where positions are off by up to 1.2 px; steps of one length would still be on their way."""
    problem, own, wrong = toy.problem(), frozenset({"positions", "intensity"}), moved(toy, 1.2)
    found = judge_held_out(problem, wrong, HELD, own).residual
    with monkeypatch.context() as change:
        change.setattr(held_out, "STEPS", 10 * held_out.STEPS)
        last = judge_held_out(problem, wrong, HELD, own).residual
    assert found == pytest.approx(last, rel=0.03)
    monkeypatch.setattr(held_out, "MOST_TIMES", 1)
    monkeypatch.setattr(held_out, "POSITION_GAINS", (4.0, 4.0, 4.0))
    assert judge_held_out(problem, wrong, HELD, own).residual > 1.1 * last


def test_views_that_are_pixels_away_take_more_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shadow images tell of moves by several pixels."""
    toy = make(propagation="angular_spectrum", views=60, window=(32, 32), noise=True, counts=2e4)
    problem, own = toy.problem(), frozenset({"positions"})
    true = judge_held_out(problem, toy.truth, HELD, own).residual
    wrong = moved(toy, 4.0)
    assert judge_held_out(problem, wrong, HELD, own).residual < 1.01 * true
    monkeypatch.setattr(held_out, "MOST_TIMES", 1)
    assert judge_held_out(problem, wrong, HELD, own).residual > 1.05 * true


def test_gains_find_the_curvature() -> None:
    """Of parabolas of different widths, one of which is a hill; and of a view that asks for nothing."""
    curvature = torch.tensor([[0.02, 0.02], [0.1, 0.1], [-0.1, -0.1], [0.0, 0.0]], dtype=torch.float64)
    x, gains = torch.ones(4, 2, dtype=torch.float64), Gains(8.0, 4.0, 100.0)
    first = gains(x, -curvature * x)
    assert torch.equal(first, -8 * curvature * x)
    x = x + first
    second = gains(x, -curvature * x)
    assert torch.allclose((x + second)[:2], torch.zeros(2, 2, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(second[2], 100 * 0.1 * x[2]) and not second[3].any()


def test_intensities_are_fitted_where_they_are_not_judged(toy: Toy) -> None:
    problem = toy.problem()
    true = judge_held_out(problem, toy.truth, HELD, frozenset()).residual
    weights = toy.truth.weights.clone()
    weights[HELD, 0] *= torch.tensor([0.8, 1.2, 1.1, 0.9, 0.7], dtype=weights.dtype)
    wrong = replace(toy.truth, weights=weights)
    assert judge_held_out(problem, wrong, HELD, frozenset()).residual > 1.5 * true
    assert judge_held_out(problem, wrong, HELD, frozenset({"intensity"})).residual == pytest.approx(true, rel=0.02)


def by_rank(world: World, layout: str) -> tuple[list[float], list[float]]:
    toy = make(window=(32, 32), views=36, noise=True, blocks=4, counts=2e4)
    problem = toy.problem(world, layout)
    estimate = share(moved(toy, 0.5), problem)
    problem.begin_epoch(estimate)
    found = judge_held_out(problem, estimate, HELD, frozenset({"positions", "intensity"}))
    return found.misfit.tolist(), found.counts.tolist()


@pytest.mark.long
def test_the_same_on_any_number_of_ranks(ranks) -> None:  # type: ignore[no-untyped-def]
    (alone,) = ranks(1, by_rank, "replicated")
    assert ranks(2, by_rank, "replicated") == [alone] * 2
    assert ranks(3, by_rank, "replicated") == [alone] * 3


def test_gains_and_how_sure_they_are() -> None:
    counts = np.full(4, 10.0)
    worse, better = Judged(np.array([1.0, 2.0, 1.0, 2.0]), counts), Judged(np.array([0.9, 1.8, 0.8, 1.9]), counts)
    gain, sure = better.gain_over(worse)
    assert gain == pytest.approx(0.1) and sure == pytest.approx(0.6 / (np.std([0.1, 0.2, 0.2, 0.1], ddof=1) * 2))
    assert worse.gain_over(better)[0] < 0 and worse.gain_over(worse) == (0.0, 0.0)
    assert Judged(np.array([math.nan] * 4), counts).gain_over(worse) == (-math.inf, -math.inf)


def test_gains_beside_gains() -> None:
    """Of shares of either base; one that is no more on some views than it is less on others is not sure."""
    counts = np.full(4, 10.0)
    base, other_base = Judged(np.full(4, 2.0), counts), Judged(np.full(4, 1.0), counts)
    half, other_half = Judged(np.full(4, 1.0), counts), Judged(np.full(4, 0.5), counts)
    assert half.gains_more(base, other_half, other_base) == 0
    more = Judged(np.array([0.8, 0.9, 0.8, 0.9]), counts)
    assert more.gains_more(base, other_half, other_base) == pytest.approx(0.15 / (np.std([2, 1, 2, 1], ddof=1) / 20))
    uneven = Judged(np.array([0.2, 1.7, 0.3, 1.6]), counts)
    assert 0 < uneven.gains_more(base, other_half, other_base) < 0.5


def test_a_few_views_do_not_decide() -> None:
    """A view without light gains all that it can, or nothing; the others say what helps."""
    rng = np.random.default_rng(0)
    counts = np.full(40, 1000.0)
    old = Judged(rng.uniform(20, 30, 40), counts)
    halved = old.misfit / 2
    old.misfit[3] = halved[3] = 1000.0
    blank = halved.copy()
    blank[3] = 1.0
    for new in (halved, blank):
        share, errors = Judged(new, counts).gain_over(old)
        assert 0.45 < share < 0.55 and errors > 10
    only = old.misfit + rng.normal(size=40)
    only[3] = 1.0
    share, errors = Judged(only, counts).gain_over(old)
    assert abs(share) < 0.03 and errors < 2, "one view alone has gained"
    assert Judged(only, counts).gain_over(old, clipped=False)[0] > 0.4
