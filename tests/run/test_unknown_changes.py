"""Changes per epoch: what they are, that ranks and layouts do not show in them, and that a resumed epoch has them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from ptymesh.distributed.world import Solo, World
from ptymesh.engines import RPIE
from ptymesh.errors import Interrupted
from ptymesh.io.checkpoint import store as checkpoint
from ptymesh.run.loop import Loop
from ptymesh.run.state import RunState
from ptymesh.run.unknown_changes import COLUMNS, measure_changes, sample_unknowns
from toy import make, share


def test_changes_are_those_of_the_unknowns() -> None:
    toy = make(views=20)
    problem, estimate = toy.problem(), toy.start()
    before = sample_unknowns(problem, estimate)
    same = measure_changes(before, sample_unknowns(problem, estimate))
    assert set(same) == set(COLUMNS) and max(same.values()) < 1e-7

    estimate.object *= 2j  # what object and probe may trade is no change
    estimate.positions += torch.tensor([0.3, -0.4])
    estimate.weights *= 1.25
    found = measure_changes(before, sample_unknowns(problem, estimate))
    assert found["change_object"] < 1e-6
    assert found["change_positions_px"] == pytest.approx(0.5)
    assert found["change_weights"] == pytest.approx(0.2) and found["change_probe"] == same["change_probe"]

    angle = 0.1
    wave = estimate.probe.clone()
    across = torch.roll(wave, 3, -1)
    across -= (wave.conj() * across).sum() / (wave.conj() * wave).sum() * wave
    estimate.probe.copy_(wave * math.cos(angle) + across * (wave.norm() / across.norm()) * math.sin(angle))
    assert measure_changes(before, sample_unknowns(problem, estimate))["change_probe"] == pytest.approx(
        math.sin(angle), rel=1e-4
    )
    assert all(math.isnan(value) for value in measure_changes({}, before).values())


def history(world: World, layout: str = "replicated", folder: str = "", stop: int = 0) -> dict[str, np.ndarray]:
    toy = make(views=30, modes=2)
    problem = toy.problem(world, layout)
    if folder and not stop:
        state = RunState.load(checkpoint.load(Path(folder)), problem)
    else:
        state = RunState(share(toy.start(position_error=0.5), problem))
    asked = iter(range(1, 1000))
    loop = Loop(problem, state, [RPIE(epochs=3, batch=8, positions=True)], stop=lambda: next(asked) == stop)
    if folder:
        loop.save = lambda: state.save(Path(folder), problem, {})
    try:
        loop.run()
    except Interrupted:
        return {}
    return {name: np.array(state.history[name]) for name in COLUMNS}


def test_ranks_and_layouts_do_not_show(ranks, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    one = history(Solo())
    assert (one["change_object"] > 0).all() and (np.diff(one["change_object"]) < 0).all()
    assert (one["change_positions_px"] > 0).all() and not one["change_background"].any()
    for layout in ("replicated", "tiled"):
        for other in ranks(2, history, layout):
            assert all(np.array_equal(one[name], other[name]) for name in COLUMNS), layout
    assert history(Solo(), folder=str(tmp_path), stop=6) == {}
    resumed = history(Solo(), folder=str(tmp_path))
    assert all(np.array_equal(one[name], resumed[name]) for name in COLUMNS), "stopped within the second epoch"
