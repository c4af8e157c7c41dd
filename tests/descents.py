"""What the tests of CG and BH share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from ptymesh.engines import Engine
from ptymesh.errors import Interrupted
from ptymesh.estimate import Estimate
from ptymesh.io.checkpoint import store as checkpoint
from ptymesh.physics import fidelity
from ptymesh.physics.model import power
from ptymesh.problem import Problem
from ptymesh.run.loop import Loop
from ptymesh.run.state import RunState
from toy import Toy, make

FEATURES = [
    dict(),
    dict(modes=2, background=1.0, varying=True),
    dict(subpixel="bilinear"),
    dict(subpixel="none"),
    dict(propagation="angular_spectrum"),
    dict(fidelity="poisson"),
    dict(slices=2),
]


def named(case: dict) -> str:
    return "-".join(f"{v}" for v in case.values()) or "plain"


def run(toy: Toy, engine: Engine, start: Estimate, seed: int = 0) -> RunState:
    state = RunState(start)
    Loop(toy.problem(), state, [engine], seed=seed).run()
    return state


def loss(problem: Problem, e: Estimate, views: np.ndarray | None = None) -> float:
    total = 0.0
    for chunk in problem.loader.chunks(e, np.arange(problem.views) if views is None else views):
        S = power(problem.evaluator.detect(chunk, problem.evaluator.forward(e, chunk).exit))
        total += float(fidelity.value(problem.model.fidelity, S, chunk.data).sum())
    return total


def position_error(toy: Toy, e: Estimate) -> float:
    off = e.positions - toy.truth.positions
    return float((off - off.mean(0)).norm(dim=1).mean())


def check_resume(folder: Path, kind: type[Engine], options: dict, batch: int) -> None:
    """Interrupted before this batch and resumed from the checkpoint: the same bits as in one go."""
    toy = make()
    expected = RunState(toy.start(position_error=0.5))
    Loop(toy.problem(), expected, [kind(**options)], seed=3).run()
    problem, state, asked = toy.problem(), RunState(toy.start(position_error=0.5)), []

    def stop() -> bool:
        asked.append(0)
        return len(asked) == batch

    with pytest.raises(Interrupted):
        save = lambda: state.save(folder, problem, {})  # noqa: E731
        Loop(problem, state, [kind(**options)], seed=3, stop=stop, save=save).run()
    problem = toy.problem()
    again = RunState.load(checkpoint.load(folder), problem)
    Loop(problem, again, [kind(**options)], seed=3).run()
    for name in ("object", "probe", "positions"):
        assert torch.equal(getattr(again.estimate, name), getattr(expected.estimate, name)), name
