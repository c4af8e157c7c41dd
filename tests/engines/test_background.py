"""A background at its default rate: it is found where there is one, and does no harm where there is none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptymesh.engines import Adam
from ptymesh.run.loop import Loop
from ptymesh.run.state import RunState
from toy import make


def held_out(toy: Any, **options: Any) -> float:
    """Residual of views that were left out, after some epochs from a probe that is a little wrong."""
    start = toy.start(probe_error=0.05)
    start.background.zero_()
    problem = toy.problem()
    loop = Loop(problem, RunState(start), [Adam(epochs=25, batch=12, **options)], hold_out=0.15)
    loop.run()
    return problem.residual(loop.state.estimate, loop.held_out)[0]


CASES = {
    "near field": dict(propagation="angular_spectrum"),
    "far field": dict(),
    "few counts": dict(counts=300.0),
    "two modes": dict(modes=2),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_does_no_harm(case: str) -> None:
    toy = make(views=48, noise=True, **CASES[case])
    without, with_it = held_out(toy), held_out(toy, unknowns={"background": True})
    assert with_it < 1.02 * without  # what is promised of every unknown at its default rate


def test_it_is_found() -> None:
    """Also in pixels that the beam never reaches."""
    toy = make(views=48, noise=True, counts=1e5, background=30.0)
    without = held_out(toy)
    assert held_out(toy, unknowns={"background": True}) < 0.85 * without
    assert held_out(toy, unknowns={"background": {"lr": 0.1}}) < 0.7 * without


def test_a_pixel_without_data_keeps_its_background() -> None:
    toy = make(views=20, noise=True)
    toy.measurement.mask[3:5, 7] = False
    start = toy.start()
    start.background[:] = 2.0
    problem = toy.problem()
    Loop(problem, RunState(start), [Adam(epochs=2, batch=10, unknowns={"background": True})]).run()
    kept = start.background.numpy()
    assert (kept[3:5, 7] == 2.0).all() and np.isfinite(kept).all() and (kept != 2.0).sum() == kept.size - 2
