"""Learning rates that change by epoch: torch's schedulers in the engines that are torch's optimisers."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import ptymesh as pm
from ptymesh.engines import Adam
from ptymesh.engines.gradients.elementwise import Elementwise
from ptymesh.engines.gradients.schedulers import SHORT, Pace, Scheduler
from ptymesh.engines.optimisers import ELEMENTWISE, Moments
from ptymesh.errors import BadInput
from ptymesh.run.loop import Loop
from ptymesh.run.state import RunState
from ptymesh.simulate import simulate
from toy import Toy, make


def run(toy: Toy, engine: Adam) -> RunState:
    state = RunState(toy.start())
    Loop(toy.problem(), state, [engine]).run()
    return state


def rates(name: str, epochs: int = 6, losses: Tensor | None = None, **options: Any) -> list[float]:
    stage = Adam(epochs=epochs, lr=0.1, scheduler={"name": name, **options})
    pace = stage._new_pace()
    return [pace.options_in_epoch(epoch, losses)["object"]["lr"] for epoch in range(1, epochs + 1)]


def test_schedulers() -> None:
    cosine = [0.05 * (1 + np.cos(np.pi * epoch / 6)) for epoch in range(6)]
    assert rates("cosine") == pytest.approx(cosine)
    assert rates("CosineAnnealingLR", T_max=6) == pytest.approx(cosine)
    assert rates("step", step_size=2, gamma=0.5) == pytest.approx([0.1, 0.1, 0.05, 0.05, 0.025, 0.025])
    assert rates("polynomial") == pytest.approx([0.1 * (1 - epoch / 6) for epoch in range(6)])
    assert rates("one_cycle")[0] == pytest.approx(0.1 / 25) and max(rates("one_cycle")) > 0.09
    losses = torch.tensor([3.0, 2.0, 2.0, 2.0, 2.0, 1.0])
    found = rates("plateau", losses=losses, patience=1)
    assert found == pytest.approx([0.1, 0.1, 0.1, 0.1, 0.01, 0.01])
    assert set(SHORT) == {name for name in SHORT if Scheduler(name=name)}


def test_a_scheduler_can_be_entered_anywhere() -> None:
    pace = Pace(torch.optim.Adam, {"object": 0.1}, {}, Scheduler(name="exponential", gamma=0.5), 9)
    assert [pace.options_in_epoch(epoch)["object"]["lr"] for epoch in (5, 5, 7, 2)] == pytest.approx(
        [0.1 / 16, 0.1 / 16, 0.1 / 64, 0.05]
    )


def test_a_cycled_momentum_reaches_the_optimiser() -> None:
    stage = Adam(epochs=4, scheduler={"name": "one_cycle", "base_momentum": 0.5})
    pace = stage._new_pace()
    assert pace.options_in_epoch(1)["object"]["betas"][0] != pace.options_in_epoch(3)["object"]["betas"][0]


@pytest.mark.parametrize(
    ("scheduler", "words"),
    [
        ({"name": "cosin"}, "no scheduler of torch; there are constant, cosine"),
        ({"name": "LRScheduler"}, "no scheduler of torch"),
        ({"name": "SequentialLR"}, "several stages"),
        ({"name": "step", "gama": 0.5}, "StepLR has no option 'gama'; it has step_size, gamma"),
        ({"name": "step"}, "step_size"),
        ({"name": "cosine", "eta_min": "x"}, "CosineAnnealingLR does not accept {'eta_min': 'x'}"),
        ({"name": "step", "step_size": 0}, "StepLR does not accept {'step_size': 0}"),
        ({"name": "cyclic", "base_lr": 0.1, "max_lr": 0.2, "cycle_momentum": "x", "mode": "up"}, "mode"),
    ],
)
def test_schedulers_are_checked(scheduler: dict, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        Adam(scheduler=scheduler)


def test_plateau_looks_at_the_losses_of_the_run() -> None:
    toy = make()
    stage = dict(epochs=4, batch=20, lr=1e-6)
    options = {"name": "plateau", "patience": 0, "threshold": 0.5, "factor": 1e-3}
    state = run(toy, Adam(scheduler=options, **stage))
    assert state.engines[0]["losses"].tolist() == pytest.approx(state.history["loss"])
    assert state.history["rate"] == pytest.approx([1e-6, 1e-6, 1e-9, 1e-9])
    still, moving = (run(toy, Adam(scheduler=s, **stage)).estimate.object - 1 for s in (options, None))
    assert float(still.abs().max()) < 0.7 * float(moving.abs().max())


@pytest.mark.parametrize("engine", ELEMENTWISE)
def test_rates_that_nobody_named(engine: type[Elementwise]) -> None:
    """The probe's is larger than lr where steps are by means of slopes, and constant where they are not."""
    means = issubclass(engine, Moments)
    first, last = (engine(epochs=10, lr=0.1)._new_pace().options_in_epoch(epoch) for epoch in (1, 10))
    assert first["probe"]["lr"] == pytest.approx(0.25 if means else 0.1) and first["object"]["lr"] == 0.1
    assert last["object"]["lr"] == pytest.approx(0.1 * np.sin(np.pi / 20) ** 2 if means else 0.1)
    own = engine(lr=0.1, scheduler=False, unknowns={"probe": {"lr": 0.03}})._new_pace().options_in_epoch(40)  # type: ignore[arg-type]
    assert own["probe"]["lr"] == 0.03 and own["object"]["lr"] == own["amplitude"]["lr"] == 0.1


def test_usual_options_end_lower_than_torch_s() -> None:
    """In a near field and with few views, at most half as high."""
    torch_s = {"betas": (0.9, 0.999), "scheduler": None, "unknowns": {"probe": {"lr": 0.03}}, "lr": 0.03}
    scan = simulate(kind="near", views=49, window=32, seed=3).measurement
    usual, others = (
        pm.reconstruct(scan, pm.Adam(epochs=40, batch=16, **options)).history["residual"][-1]  # type: ignore[arg-type]
        for options in ({}, torch_s)
    )
    assert usual < others / 2
