"""What the layout of the object must not change: constraints, growth, moves of views, coarse stages, checkpoints."""

from pathlib import Path

import numpy as np
import pytest
import torch
from test_ranks import CONSTRAINED, TOLERANCE, outcome, same

from ptymesh.distributed.world import Solo, World
from ptymesh.engines import DM, ENGINES, LBFGS, LSQML, RPIE, Adam, Engine
from ptymesh.errors import Interrupted
from ptymesh.io.checkpoint import store as checkpoint
from ptymesh.run.loop import Loop
from ptymesh.run.state import RunState
from ptymesh.storage.fetched import Staged
from ptymesh.storage.patterns import Patterns
from toy import make, relative, share


@pytest.mark.parametrize("size", [2, 4])
def test_all_constraints(ranks, size: int) -> None:  # type: ignore[no-untyped-def]
    given = {
        **CONSTRAINED,
        "object": {**CONSTRAINED["object"], "phase": {"low": -1.5}, "smooth": {"sigma_px": 5}},
    }
    given["probe"] = {name: value for name, value in given["probe"].items() if name != "power"}
    given["object"]["scale"] = True
    arguments = ("rpie", dict(modes=2, uneven=True), given, torch.complex128)
    same(outcome(Solo(), *arguments), ranks(size, outcome, *arguments, "tiled"), 1e-12)


REGULARISED = {
    "regularisers": [{"kind": kind, "weight": 0.1} for kind in ("tv", "smoothness", "l1", "l2", "sparsity")],
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("engine", ["adam", "lbfgs"])
@pytest.mark.parametrize("parametrisation", ["complex", "phase", "amplitude_phase"])
def test_regularisers(ranks, engine: str, parametrisation: str) -> None:  # type: ignore[no-untyped-def]
    stage = {**REGULARISED, "parametrisation": parametrisation}
    arguments = (engine, dict(uneven=True), stage, torch.complex128)
    same(outcome(Solo(), *arguments), ranks(3, outcome, *arguments, "tiled"), 1e-10)


@pytest.mark.sample(2)
@pytest.mark.parametrize("engine", ["rpie", "lsqml", "bh", "dm", "adam"])
def test_interior_views(ranks, engine: str) -> None:  # type: ignore[no-untyped-def]
    """An object so large that most views touch nothing that is shared: they are swept last, whatever the batch says."""
    unknowns = {"unknowns": {"positions": True}, "positions": {"gain": 1}} if engine == "adam" else {"positions": True}
    stage = {"batch": 21, **unknowns, "probe": {"intensity": True}}
    arguments = (engine, dict(blocks=8, uneven=True, varying=True), stage, torch.complex128)
    one = outcome(Solo(), *arguments)
    for size in (2, 4):
        same(one, ranks(size, outcome, *arguments, "tiled"), TOLERANCE.get(engine, 1e-12))


def test_single(ranks) -> None:  # type: ignore[no-untyped-def]
    arguments = ("lsqml", dict(modes=2, uneven=True), {"epochs": 1, "positions": True}, torch.complex64)
    same(outcome(Solo(), *arguments), ranks(3, outcome, *arguments, "tiled"), 1e-5)


@pytest.mark.parametrize("engine", ["rpie", "lsqml", "adam"])
def test_collectives_a_batch(ranks, engine: str) -> None:  # type: ignore[no-untyped-def]
    """One more than with the whole object for every maximum of a touched field."""
    few, more = (
        ranks(2, outcome, engine, {}, {"epochs": 1, "batch": batch}, torch.complex128, "tiled")[0]["collectives"]
        for batch in (41, 5)
    )
    assert more - few == 8 * {"rpie": 2, "lsqml": 2, "adam": 2}[engine]


#: Name: how far positions are off at the start, and stages.
WANDERING: dict[str, tuple[float, list[Engine]]] = {
    "momentum, growth": (
        9.0,
        [ENGINES["mpie"](epochs=5, batch=9, momentum_every=4, positions={"limit_px": 1.0}, probe={"centre": True})],
    ),
    "memory from call to call": (
        6.0,
        [
            Adam(epochs=2, batch=9),
            RPIE(epochs=3, batch=9, positions={"limit_px": 1.0}),
            Adam(epochs=2, batch=9, positions=True),
        ],
    ),
    "exit waves": (6.0, [DM(epochs=4, positions={"limit_px": 1.0}, object={"ramp": True})]),
    "accelerated": (6.0, [LSQML(epochs=5, batch=9, momentum={"memory": 1}, positions={"limit_px": 1.0})]),
    "compact": (2.0, [LSQML(epochs=3, batch=9, order="compact", positions=True)]),
    "coarse": (7.0, [RPIE(epochs=5, batch=9, coarsen=2, positions={"limit_px": 1.0}), RPIE(epochs=1, batch=9)]),
    "coarse to fine": (1.0, [RPIE(epochs=2, batch=9, coarsen=2), LBFGS(epochs=2, coarsen=2), RPIE(epochs=2, batch=9)]),
}


def wandering(world: World, name: str, layout: str, folder: str = "", stop_at: int = 0, scratch: str = "") -> dict:
    error, stages = WANDERING[name]
    stages = [stage.model_copy(deep=True) for stage in stages]
    toy = make(views=45, window=(24, 24), modes=2)
    problem = toy.problem(world, layout)
    owner = problem.layout.owner.copy()
    if scratch:
        problem.loader.patterns = _on_disk(problem.loader.patterns, Path(scratch))
    left = [stop_at]

    def stop() -> bool:
        left[0] -= 1
        return left[0] == 0

    if folder and checkpoint.exists(Path(folder)):
        saved = checkpoint.load(Path(folder))
        if saved.ranks == world.size and saved.meta["run"]["layout"] == layout == "tiled":
            problem = _with_owner(toy, world, saved.owner)
        state = RunState.load(saved, problem)
    else:
        start = toy.start(position_error=error)
        start.anchors = torch.floor(start.positions + 0.5).long()
        state = RunState(share(_padded(start), problem))
    save = (lambda: state.save(Path(folder), loop.problem, {})) if folder else None
    loop = Loop(problem, state, stages, seed=3, stop=stop, save=save)
    try:
        loop.run()
    except Interrupted:
        return {}
    e = state.estimate
    return {
        "object": problem.layout.gather_whole(e.object, e).numpy(),
        "probe": e.probe.numpy(),
        "positions": e.positions.numpy(),
        "anchors": e.anchors.numpy(),
        "shape": tuple(e.extent),
        "history": state.history,
        "residual": problem.residual(e),
        "own": len(problem.layout.own),
        "moved": int((problem.layout.owner != owner).sum()),
    }


def _with_owner(toy, world: World, owner: np.ndarray):  # type: ignore[no-untyped-def]
    from ptymesh.distributed.layouts.tiled import Tiled
    from ptymesh.problem import Problem

    layout = Tiled(world, toy.measurement.positions, toy.measurement.window)
    layout.assign(owner)
    return Problem(toy.model, toy.measurement, layout, torch.complex128)


def _on_disk(held: Patterns, folder: Path) -> Patterns:
    """The same patterns in a file; a third of them at most is in memory at a time."""
    staged = Staged(held.shape, held.dtype, torch.device("cpu"), held.nbytes // 3, folder)
    staged.fill([held.take(torch.arange(len(held)))])
    return staged


def _padded(start):  # type: ignore[no-untyped-def]
    """A frame with room for positions that are far off."""
    start.object = torch.nn.functional.pad(start.object, (32, 32, 32, 32), value=1.0)
    for name in ("positions", "anchors", "nominal"):
        setattr(start, name, getattr(start, name) + 32)
    start.origin, start.extent = (32.0, 32.0), tuple(start.object.shape[-2:])
    return start


_known: dict[tuple[int, str, str], list[dict]] = {}


def undisturbed(ranks, size: int, name: str, layout: str) -> list[dict]:  # type: ignore[no-untyped-def]
    """What the ranks come to, worked out once for several tests."""
    if (size, name, layout) not in _known:
        _known[size, name, layout] = ranks(size, wandering, name, layout)
    return _known[size, name, layout]


@pytest.mark.sample(5)
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", WANDERING)
def test_views_cross_borders(ranks, name: str, size: int) -> None:  # type: ignore[no-untyped-def]
    (one,), many = undisturbed(ranks, 1, name, "replicated"), undisturbed(ranks, size, name, "tiled")
    same(one, many, 1e-10)
    if WANDERING[name][0] > 5 and size == 3:
        assert many[0]["moved"] > 0


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["momentum, growth", "exit waves", "coarse"])
def test_patterns_on_disk_move_along(ranks, tmp_path: Path, name: str) -> None:  # type: ignore[no-untyped-def]
    expected, got = undisturbed(ranks, 3, name, "tiled"), ranks(3, wandering, name, "tiled", "", 0, str(tmp_path))
    assert expected[0]["moved"] > 0
    for one, other in zip(got, expected, strict=True):
        for key in ("object", "probe", "positions", "residual"):
            assert np.array_equal(one[key], other[key]), key


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", ["memory from call to call", "exit waves", "accelerated", "coarse to fine"])
@pytest.mark.parametrize(
    "ways",
    [
        pytest.param(("tiled", 3, "tiled", 3), marks=pytest.mark.long),
        ("tiled", 3, "replicated", 1),
        ("replicated", 2, "tiled", 2),
    ],
)
def test_stopped_and_resumed(ranks, tmp_path: Path, name: str, ways: tuple[str, int, str, int]) -> None:  # type: ignore[no-untyped-def]
    before, some, after, others = ways
    expected = undisturbed(ranks, some, name, before)
    ranks(some, wandering, name, before, str(tmp_path), 3 if name == "exit waves" else 12)
    assert checkpoint.exists(tmp_path)
    got = ranks(others, wandering, name, after, str(tmp_path))
    for one in got:
        for key in ("object", "probe", "positions"):
            if ways[:2] == ways[2:]:
                assert np.array_equal(one[key], expected[0][key]), key
            assert relative(one[key], expected[0][key]) < 1e-10, key
