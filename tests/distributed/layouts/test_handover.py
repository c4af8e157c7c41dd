"""Who owns which view follows from how batches are drawn; views go to their owners with all that is kept of them."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ptymesh.distributed.layouts import handover
from ptymesh.distributed.layouts.handover import Handover, follow_draw
from ptymesh.distributed.layouts.layout import Replicated
from ptymesh.distributed.layouts.owners import owners
from ptymesh.distributed.world import Solo, World
from ptymesh.engines import DM, LSQML, RPIE
from ptymesh.errors import Interrupted
from ptymesh.io.checkpoint import store as checkpoint
from ptymesh.planning.batches import balance, draw, hold_out
from ptymesh.problem import Problem
from ptymesh.run.loop import Loop
from ptymesh.run.state import RunState
from ptymesh.storage.memory_budget import MemoryBudget
from toy import make


def scattered(views: int = 516) -> np.ndarray:
    """As many positions as the Siemens star has, denser in one corner."""
    return np.random.default_rng(0).random((views, 2)) ** 1.5 * 350


@pytest.mark.parametrize("order", ["random", "uniform", "compact"])
@pytest.mark.parametrize("size", [32, 64, 256, None])
def test_ranks_have_equal_shares_of_batches(order: Any, size: int | None) -> None:
    positions = scattered()
    held = hold_out(positions, 0.1, 7)
    for training in (np.arange(516), np.setdiff1d(np.arange(516), held)):
        drawn = [b for epoch in range(4) for b in draw(positions, size, 7, epoch, order, training)]
        for ranks, least in ((2, 0.97), (4, 0.93)):
            owner = owners(positions, ranks, order == "compact", training)
            assert balance(owner, drawn, ranks) >= least
    other = owners(positions, 2, order != "compact")
    assert size is None or balance(other, drawn, 2) < 0.97, "as owners that do not follow the draw cannot"


def test_balance_is_what_the_largest_share_leaves() -> None:
    assert balance(np.array([0, 0, 0, 1]), [np.array([0, 1, 3]), np.array([0, 3])], 2) == (3 / 2 / 2 + 1) / 2


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 40])
def test_shares_of_all_views_are_of_one_size_however_batches_are_drawn(ranks: int) -> None:
    positions = scattered(101)
    sizes = set()
    for fraction in (0.0, 0.2):
        training = np.setdiff1d(np.arange(101), hold_out(positions, fraction, 3))
        for compact in (False, True):
            counts = np.bincount(owners(positions, ranks, compact, training), minlength=ranks)
            sizes.add(tuple(counts))
    assert len(sizes) == 1 and max(counts) - min(counts) <= 1 and sum(counts) == 101


def moved(world: World, folder: str, budget: int | None) -> list[tuple[bool, int, int]]:
    """Whether patterns, notes and waves of own views are theirs after each of several moves; how often patterns were
    sent, and of how many views there is room."""
    toy = make(views=101, noise=True)
    layout = Replicated(world, toy.measurement.positions)
    problem = Problem(toy.model, toy.measurement, layout, torch.complex128, MemoryBudget(budget, Path(folder)))
    every = torch.arange(101.0, dtype=torch.float64)[:, None].repeat(1, 5)
    problem.evaluator.view_metrics.values = every[layout.own]
    waves, found = every[layout.own].to(torch.complex64), []
    for compact, count in ((True, 101), (True, 101), (True, 90), (False, 90)):
        move, sent = follow_draw(layout, problem.scan, np.arange(count), compact), 0
        if move is not None:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(handover, "STEP_BYTES", 5 * problem.loader.patterns.frame_bytes)
                before = world.messages
                problem.hand_over(move)
                sent = world.messages - before
            waves = move.carry_rows(waves)
        own = torch.as_tensor(layout.own)
        patterns = next(problem.loader.patterns.sweep(np.arange(len(own)), len(own)))
        well = torch.equal(patterns, torch.as_tensor(toy.measurement.patterns.read(layout.own)))
        well = (
            well
            and torch.equal(problem.evaluator.view_metrics.values, every[own])
            and torch.equal(waves.real, every[own].float())
        )
        found.append((well, sent, len(problem.loader.patterns)))
    problem.loader.patterns.close()
    return found


@pytest.mark.parametrize("budget", [None, 40_000])
def test_what_is_kept_of_views_goes_with_them(ranks, tmp_path: Path, budget: int | None) -> None:  # type: ignore[no-untyped-def]
    for rank, found in enumerate(ranks(3, moved, str(tmp_path), budget)):
        (first, sent, held), (second, none, _), *others = found
        assert first and second and all(well for well, _, _ in others)
        assert none == 0 and held == 34 - (rank == 2)
        assert sent > 2 * 3, "more than one message of patterns to each other rank"


def test_steps_keep_what_a_rank_holds_small() -> None:
    were, owner = owners(scattered(), 4), owners(scattered(), 4, compact=True)
    world = Solo()
    world.size = 4
    steps = list(Handover(world, were, owner)._steps(10))
    assert all(np.array_equal(a.owner, b.were) for a, b in pairwise(steps))
    assert np.array_equal(steps[0].were, were) and np.array_equal(steps[-1].owner, owner)
    for step in steps:
        gone = step.were != step.owner
        assert np.bincount(step.were[gone], minlength=4).max() <= 10 + 3
        assert abs(np.bincount(step.owner, minlength=4) - 129).max() <= 3


def stages() -> list[Any]:
    return [
        LSQML(epochs=2, batch=9, positions=True),
        DM(epochs=2),
        RPIE(epochs=2, batch=9, order="compact", positions=True, probe={"intensity": True}),
        RPIE(epochs=1, batch=7, order="uniform", coarsen=2),
    ]


def outcome(world: World, folder: str, stop: int | None = None, resume: bool = False) -> dict[str, np.ndarray]:
    """What a rank ends with: of a run, of one that stops after so many batches, or one that goes on from there."""
    toy = make(views=41, window=(32, 32), modes=2, dtype=torch.complex64, varying=True)
    problem, path, left = toy.problem(world), Path(folder), iter(range(stop or 1 << 30))
    state = RunState.load(checkpoint.load(path), problem) if resume else RunState(toy.start(position_error=0.5))
    loop = Loop(problem, state, stages(), seed=7, hold_out=0.1, stop=lambda: next(left, None) is None)
    loop.save = lambda: loop.state.save(path, loop.problem, {})
    if stop is not None:
        with pytest.raises(Interrupted):
            loop.run()
        return {}
    loop.run()
    e = state.estimate
    history = np.array([column for name, column in state.history.items() if name != "seconds"])
    arrays = {name: getattr(e, name).numpy() for name in ("object", "probe", "positions", "weights")}
    return {**arrays, "history": history, "residual": np.array(problem.residual(e))}


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    for name, array in one.items():
        assert np.array_equal(array, other[name]), name


@pytest.mark.sample(1)
@pytest.mark.parametrize("size", [2, 4])
def test_stages_that_share_views_differently_give_the_same_bits(ranks, tmp_path: Path, size: int) -> None:  # type: ignore[no-untyped-def]
    one = outcome(Solo(), str(tmp_path))
    for other in ranks(size, outcome, str(tmp_path)):
        same(one, other)


@pytest.mark.sample(1)
@pytest.mark.parametrize("stop", [3, 10, 14, 23])
def test_resumed_on_another_number_of_ranks_in_any_stage(ranks, tmp_path: Path, stop: int) -> None:  # type: ignore[no-untyped-def]
    """In the middle of the first stage, of difference maps, of compact batches and of coarse pixels."""
    one = outcome(Solo(), str(tmp_path / "none"))
    ranks(3, outcome, str(tmp_path / "half"), stop)
    for other in ranks(2, outcome, str(tmp_path / "half"), None, True):
        same(one, other)
