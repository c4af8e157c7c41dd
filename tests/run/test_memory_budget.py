"""Reconstructions whose patterns are in memory, fetched, or on disk: the same bits, on any number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ptymesh as pm
from ptymesh.distributed.world import Solo, World
from ptymesh.engines import ENGINES, Engine
from ptymesh.errors import BadInput, Interrupted
from ptymesh.io.checkpoint import store as checkpoint
from ptymesh.problem import Problem
from ptymesh.problem.counts import mean_pattern
from ptymesh.run.loop import Loop
from ptymesh.run.state import RunState
from ptymesh.simulate import simulate
from ptymesh.storage.fetched import Hosted, Staged
from ptymesh.storage.memory_budget import MemoryBudget
from toy import make, relative

#: Multi-sweep, whole-batch, stored waves, coarse-to-fine: engines that ask for patterns in different ways.
STAGES: dict[str, list[dict[str, Any]]] = {
    "rpie": [{"engine": "rpie", "epochs": 2, "batch": 9, "positions": True}],
    "lsqml": [{"engine": "lsqml", "epochs": 2, "batch": 9}],
    "dm": [{"engine": "dm", "epochs": 2}],
    "cg": [{"engine": "cg", "epochs": 2}],
    "adam": [{"engine": "adam", "epochs": 2, "batch": 9}],
    "coarse": [{"engine": "rpie", "epochs": 1, "batch": 9, "coarsen": 2}, {"engine": "rpie", "epochs": 1, "batch": 9}],
}
WINDOW = (32, 32)
FRAME = 32 * 32 * 2


def engines(which: str) -> list[Engine]:
    return [
        ENGINES[stage["engine"]](**{key: value for key, value in stage.items() if key != "engine"})
        for stage in STAGES[which]
    ]


def problem_in(kind: str, world: World, folder: Path) -> Problem:
    """The toy problem with its patterns in memory, in the host's beyond a device, or on disk, 4 times the budget."""
    toy = make(window=WINDOW, views=80, modes=2, noise=True)
    problem = toy.problem(world)
    own = problem.loader.patterns.take(torch.arange(len(problem.loader.patterns)))
    if kind == "fetched":
        problem.loader.patterns = Hosted(tuple(own.shape), own.dtype, world.device, 12 * FRAME)
        problem.loader.patterns.fill(own.split(7))
    elif kind == "disk":
        budget = max(16, len(own) // 4) * FRAME
        staged = Problem(toy.model, toy.measurement, problem.layout, torch.complex128, MemoryBudget(budget, folder))
        problem.loader.patterns = staged.loader.patterns
        assert isinstance(problem.loader.patterns, Staged)
    return problem


def run(world: World, kind: str, which: str, folder: Path) -> dict[str, np.ndarray]:
    problem = problem_in(kind, world, folder)
    state = RunState(make(window=WINDOW, views=80, modes=2, noise=True).start())
    Loop(problem, state, engines(which), seed=1).run()
    final = problem.residual(state.estimate)
    problem.loader.patterns.close()
    return {
        **{name: getattr(state.estimate, name).numpy() for name in ("object", "probe", "positions")},
        "loss": np.asarray(state.history["loss"]),
        "final": np.asarray(final),
        "mean": mean_pattern(problem_in(kind, world, folder)),
    }


@pytest.mark.sample(3)
@pytest.mark.parametrize("which", STAGES)
def test_every_kind_gives_the_same_bits(which: str, tmp_path: Path) -> None:
    expected = run(Solo(), "memory", which, tmp_path)
    for kind in ("fetched", "disk"):
        for name, value in run(Solo(), kind, which, tmp_path).items():
            assert np.array_equal(value, expected[name]), (kind, name)


def test_on_ranks(ranks, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    expected = run(Solo(), "memory", "rpie", tmp_path)
    for memory, disk in zip(
        ranks(3, run, "memory", "rpie", tmp_path), ranks(3, run, "disk", "rpie", tmp_path), strict=True
    ):
        for name, value in expected.items():
            assert np.array_equal(disk[name], memory[name])
            assert relative(disk[name], value) < 1e-10
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("batch", [2, 9, 13])
def test_resumed_from_disk(tmp_path: Path, batch: int) -> None:
    expected, left = run(Solo(), "memory", "rpie", tmp_path), [batch]

    def stop() -> bool:
        left[0] -= 1
        return left[0] == 0

    problem = problem_in("disk", Solo(), tmp_path)
    state = RunState(make(window=WINDOW, views=80, modes=2, noise=True).start())
    with pytest.raises(Interrupted):
        saved = tmp_path / "saved"
        Loop(problem, state, engines("rpie"), seed=1, stop=stop, save=lambda: state.save(saved, problem, {})).run()
    problem = problem_in("disk", Solo(), tmp_path)
    state = RunState.load(checkpoint.load(tmp_path / "saved"), problem)
    Loop(problem, state, engines("rpie"), seed=1).run()
    for name in ("object", "probe", "positions"):
        assert np.array_equal(getattr(state.estimate, name).numpy(), expected[name])


def test_from_python(tmp_path: Path) -> None:
    scan = simulate(views=100, window=32, photons_per_view=3e4).measurement
    found = {}
    for budget, kind in ((None, "host"), ("1MB", "host"), (scan.views * FRAME // 4, "disk")):
        recon = pm.Reconstruction(scan, memory_budget=budget, scratch=tmp_path, seed=2)
        assert recon.problem.loader.patterns.kind == kind
        for _ in recon.run(pm.LSQML(epochs=2, batch=20)):
            pass
        result = recon.result()
        assert result.attrs["patterns"] == kind
        found[budget] = result.object
        recon.close()
    assert all(np.array_equal(one, found[None]) for one in found.values())


@pytest.mark.parametrize(
    ("budget", "sentence"),
    [
        ("4 potatoes", "memory_budget is '4 potatoes'; give a size, such as 500MB or 4GB."),
        (-3, "memory_budget is -3; give a size"),
        (1000, r"memory_budget is 1 kB, and one pattern takes 2.05 kB; give 16 patterns of room at least, 32.8 kB"),
    ],
)
def test_budgets_that_are_none(budget: Any, sentence: str) -> None:
    scan = simulate(views=20, window=32, photons_per_view=3e4).measurement
    with pytest.raises(BadInput, match=sentence):
        pm.Reconstruction(scan, memory_budget=budget)
