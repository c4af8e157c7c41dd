"""L-BFGS: directions against the dense formula, phantoms, memory, options, resumption."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ptymesh.distributed.world import World
from ptymesh.engines import LBFGS, RPIE
from ptymesh.errors import BadInput, Interrupted
from ptymesh.estimate import Estimate
from ptymesh.io.checkpoint import store as checkpoint
from ptymesh.problem import Batch
from ptymesh.run.loop import Loop
from ptymesh.run.state import RunState
from toy import Toy, make, relative, share


def run(toy: Toy, engine: LBFGS, start: Estimate, seed: int = 0) -> RunState:
    state = RunState(start)
    Loop(toy.problem(), state, [engine], seed=seed).run()
    return state


def object_of(**change: Any) -> torch.Tensor:
    """Return the object of twelve epochs on few counts, with changed options."""
    toy = make(noise=True, counts=300)
    return run(toy, LBFGS(**{"epochs": 12, "fidelity": "poisson", **change}), toy.start()).estimate.object


#: Every changed option is compared with one and the same run.
unchanged = functools.cache(object_of)


def test_direction_is_that_of_the_dense_update() -> None:
    """-H g with H from the BFGS formula (Nocedal & Wright, eq. 6.17), H_0 = <s, y> / <y, y> of the newest pair."""
    rng = torch.Generator().manual_seed(1)
    toy = make()
    engine, problem, e = LBFGS(memory=3), toy.problem(), toy.truth
    shapes = {"object": (1, 2, 3, 2), "probe": (2, 2, 2, 2)}
    n = sum(int(np.prod(shape)) for shape in shapes.values())
    root = torch.randn(n, n, generator=rng, dtype=torch.float64)
    hessian = root @ root.T + torch.eye(n, dtype=torch.float64)

    def split(flat: torch.Tensor) -> dict[str, torch.Tensor]:
        parts = flat.split([int(np.prod(shape)) for shape in shapes.values()])
        return {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}

    pairs = []
    x = split(torch.zeros(n, dtype=torch.float64))
    for _ in range(5):  # more than are remembered
        s = torch.randn(n, generator=rng, dtype=torch.float64)
        pairs.append((s, hessian @ s))
        engine._remember(problem, e, x, split(pairs[-1][0]), split(pairs[-1][1]))
    pairs = pairs[-3:]
    s, y = pairs[-1]
    H = torch.eye(n, dtype=torch.float64) * (s @ y) / (y @ y)
    for s, y in pairs:
        V = torch.eye(n, dtype=torch.float64) - torch.outer(y, s) / (s @ y)
        H = V.T @ H @ V + torch.outer(s, s) / (s @ y)
    g = torch.randn(n, generator=rng, dtype=torch.float64)
    d, slope = engine._direction(problem, e, x, split(g))
    assert relative(torch.cat([part.reshape(-1) for part in d.values()]), -H @ g) < 1e-12
    assert slope == pytest.approx(float(-g @ H @ g), rel=1e-12)
    engine._remember(problem, e, x, split(s), split(-y))  # no positive curvature: nothing to learn
    assert torch.equal(engine._recall("object.s2", x["object"]), split(s)["object"])


def asked(world: World) -> list[tuple[int, int]]:
    """How often four steps ask for inner products, and how many collectives that takes."""
    toy = make()
    problem = toy.problem(world, "tiled")
    e = share(toy.start(), problem)
    problem.begin_epoch(e)
    engine, dots, counts = LBFGS(), problem.fields.dots, []

    def counted(pairs, estimate):  # type: ignore[no-untyped-def]
        before = world.collectives
        found = dots(pairs, estimate)
        counts[-1] = (counts[-1][0] + 1, counts[-1][1] + world.collectives - before)
        return found

    problem.fields.dots = counted  # type: ignore[method-assign]
    for _ in range(4):
        counts.append((0, 0))
        engine.step(problem, e, Batch(np.arange(problem.views)))
    assert engine.state["products"].shape == (2, 2, 4, 4), "every step has taught a pair"
    return counts


def test_messages_do_not_grow_with_memory(ranks) -> None:  # type: ignore[no-untyped-def]
    for counts in ranks(2, asked):
        assert counts == [(2, 4)] * 4, "how large the terms are, then their sums: two messages each time"


CASES = {
    "plain": dict(),
    "two modes, background": dict(case=dict(modes=2, background=1.0, varying=True)),
    "bilinear, nrmse": dict(case=dict(subpixel="bilinear"), loss="nrmse"),
    "near field, phase and amplitude": dict(
        case=dict(propagation="angular_spectrum"), parametrisation="amplitude_phase"
    ),
    "poisson": dict(case=dict(fidelity="poisson")),
    "two slices": dict(case=dict(slices=2)),
    "batches": dict(batch=30, epochs=15),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", CASES)
def test_phantom(name: str) -> None:
    options = {"epochs": 25, **CASES[name]}
    toy = make(**{"views": 60, "counts": 1e5, **options.pop("case", {})})
    start = toy.start()
    before, _ = toy.problem().residual(start)
    state = run(toy, LBFGS(fidelity=toy.model.fidelity, **options), start)
    after, _ = toy.problem().residual(state.estimate)
    assert after < before / 20
    if state.estimate.object.shape[0] == 1 and name != "batches" and "loss" not in options:
        losses = state.history["loss"]
        assert losses == sorted(losses, reverse=True)  # of all views: never up


@pytest.mark.long
def test_memory_is_worth_it() -> None:
    """Against the same descent with hardly any memory, and against rPIE with one batch of all views."""
    toy = make(views=60, counts=1e5)
    with_memory, without, rpie = (
        run(toy, engine, toy.start()).history["residual"][-1]
        for engine in (LBFGS(epochs=30), LBFGS(epochs=30, memory=1), RPIE(epochs=30, batch=60))
    )
    assert with_memory < 0.9 * without and with_memory < 0.7 * rpie


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "change",
    [
        dict(memory=1),
        dict(armijo=0.49),
        dict(tries=1),
        dict(batch=20),
        dict(regularisers=[{"kind": "l2", "weight": 1}]),
        dict(probe={"frozen": 9}),
    ],
    ids=str,
)
def test_every_option_matters(change: dict) -> None:
    assert relative(object_of(**change), unchanged()) > 1e-6


def test_refusals() -> None:
    for options, words in [(dict(memory=0), "memory"), (dict(armijo=0.6), "armijo"), (dict(lr=0.1), "lr")]:
        with pytest.raises(BadInput, match=words):
            LBFGS(**options)  # type: ignore[arg-type]


RESUMED = dict(
    epochs=5, batch=20, memory=3, positions={"start": 2}, probe={"frozen": 1, "centre": True}, parametrisation="phase"
)


@pytest.mark.sample(2)
@pytest.mark.parametrize("batch", [1, 3, 8, 9])
def test_resumed_runs_end_with_the_same_bits(tmp_path: Path, batch: int) -> None:
    toy = make()
    expected = RunState(toy.start(position_error=0.5))
    Loop(toy.problem(), expected, [LBFGS(**RESUMED)], seed=3).run()
    assert sum(key.startswith("object.s") for key in expected.engines[0]) == 3
    problem, state, asked = toy.problem(), RunState(toy.start(position_error=0.5)), []

    def stop() -> bool:
        asked.append(0)
        return len(asked) == batch

    def save() -> None:
        state.save(tmp_path, problem, {})

    with pytest.raises(Interrupted):
        Loop(problem, state, [LBFGS(**RESUMED)], seed=3, stop=stop, save=save).run()
    problem = toy.problem()
    again = RunState.load(checkpoint.load(tmp_path), problem)
    Loop(problem, again, [LBFGS(**RESUMED)], seed=3).run()
    for name in ("object", "probe", "positions"):
        assert torch.equal(getattr(again.estimate, name), getattr(expected.estimate, name)), name


def test_memory_grows_with_the_object() -> None:
    toy = make(views=41)
    start = toy.start()
    start.probe.copy_(torch.roll(start.probe, (6, 5), (-2, -1)))
    state = run(toy, LBFGS(epochs=4, batch=20, probe={"centre": True}), start, seed=7)
    assert state.estimate.object.shape != (1, 96, 96)
    assert state.engines[0]["object.y0"].shape == state.estimate.object.shape
