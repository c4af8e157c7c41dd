"""The number of ranks is not a parameter of the answer.

Each case runs on 1, 2, 3 and 4 ranks from the same start; sums over ranks differ in their order alone, so after three
epochs in double precision results agree to 1e-12 (measured: about 1e-15 to 1e-14), in single precision, after one
epoch, to 1e-5 (measured: about 1e-7).
"""

from dataclasses import asdict

import numpy as np
import pytest
import torch

from ptymesh.distributed.world import Solo, World
from ptymesh.engines import ENGINES
from ptymesh.run.loop import Loop
from ptymesh.run.state import RunState
from toy import make, relative, share

CASES = {
    "plain": dict(),
    "uneven density, three modes, varying beam": dict(uneven=True, modes=3, varying=True),
    "bilinear, background": dict(subpixel="bilinear", background=2.0),
    "two tilted slices, near field": dict(slices=2, tilt_rad=(8e-3, -5e-3), propagation="angular_spectrum"),
    "poisson": dict(fidelity="poisson", noise=True),
}


def outcome(world: World, engine: str, case: dict, stage: dict, dtype: torch.dtype, layout: str = "replicated") -> dict:
    """What one rank ends with, and the decisions that it took."""
    toy = make(views=41, dtype=dtype, **case)
    problem = toy.problem(world, layout)
    options = {"epochs": 3, "batch": 9, "fidelity": toy.model.fidelity, **OPTIONS.get(engine, {}), **stage}
    if engine in ALL_VIEWS:
        del options["batch"]
    state = RunState(share(toy.start(position_error=0.5), problem))
    Loop(problem, state, [ENGINES[engine](**options)], seed=7).run()
    e = state.estimate
    return {
        "object": problem.layout.gather_whole(e.object, e).numpy(),
        "probe": e.probe.numpy(),
        "positions": e.positions.numpy(),
        "anchors": e.anchors.numpy(),
        "shape": tuple(e.extent),
        "slices": np.array([e.slice_spacing_m, *e.tilt_rad]),
        "history": state.history,
        "residual": problem.residual(e),
        "own": len(problem.layout.own),
        "collectives": world.collectives,
    }


def same(one: dict, many: list[dict], tolerance: float) -> None:
    for other in many:
        for name in ("object", "probe", "positions"):
            assert relative(other[name], one[name]) <= tolerance, name
        assert np.allclose(other.get("slices", 0), one.get("slices", 0), rtol=tolerance, atol=0)
        assert np.array_equal(other["anchors"], one["anchors"]) and other["shape"] == one["shape"]
        for column in ("loss", "residual"):
            assert np.allclose(other["history"][column], one["history"][column], rtol=10 * tolerance)
        assert other["residual"] == pytest.approx(one["residual"], rel=10 * tolerance)
    for other in many[1:]:  # ranks of one run hold the same bits
        assert (
            np.array_equal(other["object"], many[0]["object"])
            and other["history"]["loss"] == many[0]["history"]["loss"]
        )
    assert sum(other["own"] for other in many) == one["own"]


#: Engines with trims, gates or line searches may differ by 1e-10; the others, 1e-12.
TOLERANCE = {"lsqml": 1e-10, "lbfgs": 1e-10, "bh": 1e-10, "cg": 1e-10}
#: Collectives per batch, where it is not one.
COLLECTIVES = {"lsqml": 2, "lbfgs": 2, "bh": 2, "cg": 2}
#: Options that make a conformance run meaningful for an engine.
OPTIONS = {"lsqml": {"momentum": {"memory": 1}}, "lbfgs": {"batch": 21}, "bh": {"batch": 21}, "cg": {"batch": None}}

#: Engines without batches, and those for which several slices have no meaning.
ALL_VIEWS = [name for name, engine in ENGINES.items() if engine.model_fields["batch"].annotation is type(None)]
SINGLE_SLICE = ("dm", "raar", "ap")
#: Differ from adam in torch's own arithmetic alone: one case on one number of ranks.
LIKE_ADAM = ("sgd", "adamw", "nadam", "radam", "adamax", "adagrad", "adadelta", "rmsprop")
CELLS = [
    (engine, case)
    for engine in ENGINES
    for case in CASES
    if engine not in LIKE_ADAM or case == "uneven density, three modes, varying beam"
    if engine not in SINGLE_SLICE or "slices" not in CASES[case]
]
#: Layouts of the object and numbers of ranks: cases take turns, and few runs meet many of them.
FEW = [[("panels", 3)], [("tiled", 3)]]
MORE = [("panels", 2), ("panels", 3), ("replicated", 4), ("tiled", 2), ("tiled", 4)]
#: Engines of which `make test` has all cases; of the others, those but like Adam, it has the thorough one.
ALL_CASES = ("rpie", "lsqml", "adam")
#: The case that every engine runs on all of them; others run on few.
THOROUGH = "uneven density, three modes, varying beam"
OFTEN = [(engine, THOROUGH) for engine in ENGINES if engine not in LIKE_ADAM]

CONSTRAINED = {
    "epochs": 5,
    "positions": {"limit_px": 0.8},
    "probe": {"centre": True, "orthogonalise": True, "support": {"radius": 0.95}, "power": {"every": 2}},
    "object": {"ramp": {"start": 2}, "amplitude": {"high": 1.5}, "smooth": {"sigma_px": 0.7}},
}


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("engine", "case"),
    [
        pytest.param(*cell, marks=[pytest.mark.long] * (cell[0] not in ALL_CASES and cell not in OFTEN))
        for cell in CELLS
    ],
)
def test_double(ranks, engine: str, case: str) -> None:  # type: ignore[no-untyped-def]
    """Batches of 9, which 2 and 4 do not divide, positions refined (across the borders of tiles, too)."""
    arguments = (engine, CASES[case], {"positions": True}, torch.complex128)
    one = outcome(Solo(), *arguments)
    thorough = case == THOROUGH and engine not in LIKE_ADAM
    for layout, size in MORE if thorough else FEW[CELLS.index((engine, case)) % 2]:
        same(one, ranks(size, outcome, *arguments, layout), TOLERANCE.get(engine, 1e-12))


@pytest.mark.sample(2)
@pytest.mark.parametrize("layout", ["replicated", "tiled"])
@pytest.mark.parametrize("size", [2, 3])
def test_between_slices(ranks, size: int, layout: str) -> None:  # type: ignore[no-untyped-def]
    stage = {"unknowns": {"slice_spacing": {"lr": 0.01}, "tilt": {"lr": 0.02, "start": 2}}}
    arguments = ("adam", dict(slices=3, tilt_rad=(8e-3, -5e-3)), stage, torch.complex128)
    one = outcome(Solo(), *arguments)
    assert relative(one["slices"], [2e-6, 8e-3, -5e-3]) > 1e-3
    same(one, ranks(size, outcome, *arguments, layout), 1e-12)


@pytest.mark.parametrize("size", [2, 4])
def test_all_constraints(ranks, size: int) -> None:  # type: ignore[no-untyped-def]
    arguments = ("rpie", dict(modes=2, uneven=True), CONSTRAINED, torch.complex128)
    same(outcome(Solo(), *arguments), ranks(size, outcome, *arguments), 1e-12)


@pytest.mark.sample(2)
@pytest.mark.parametrize("batch", [1, 3, 41, 64])
def test_batches_smaller_than_the_number_of_ranks_and_larger_than_the_scan(ranks, batch: int) -> None:  # type: ignore[no-untyped-def]
    stage = {"batch": batch, "positions": True, "epochs": 2}
    arguments = ("rpie", dict(uneven=True), stage, torch.complex128)
    same(outcome(Solo(), *arguments), ranks(4, outcome, *arguments), 1e-12)


@pytest.mark.sample(7)
@pytest.mark.parametrize("engine", ENGINES)
def test_single(ranks, engine: str) -> None:  # type: ignore[no-untyped-def]
    arguments = (engine, dict(modes=2, uneven=True), {"epochs": 1, "positions": True}, torch.complex64)
    same(outcome(Solo(), *arguments), ranks(3, outcome, *arguments), 1e-5)


@pytest.mark.sample(6)
@pytest.mark.parametrize("engine", [name for name in ENGINES if name not in ALL_VIEWS])
def test_collectives_a_batch(ranks, engine: str) -> None:  # type: ignore[no-untyped-def]
    few, more = (
        ranks(2, outcome, engine, {}, {"epochs": 1, "batch": batch}, torch.complex128)[0]["collectives"]
        for batch in (41, 5)
    )
    assert more - few == 8 * COLLECTIVES.get(engine, 1)  # 9 batches instead of 1


def test_growth_is_the_same_on_all_ranks(ranks) -> None:  # type: ignore[no-untyped-def]
    """Centring moves all positions at once, so that some windows leave the object."""
    stage = {"probe": {"centre": True}, "positions": True}
    case = dict(views=41)
    one, many = outcome_off_axis(Solo(), case, stage), ranks(3, outcome_off_axis, case, stage)
    assert one["shape"] != (1, 96, 96)
    same(one, many, 1e-12)


def outcome_off_axis(world: World, case: dict, stage: dict) -> dict:
    toy = make(**case)
    problem, start = toy.problem(world), toy.start()
    start.probe.copy_(torch.roll(start.probe, (6, 5), (-2, -1)))
    state = RunState(start)
    engine = ENGINES["mpie"](epochs=4, batch=9, momentum_every=4, **stage)
    Loop(problem, state, [engine], seed=7).run()
    e = asdict(state.estimate)
    return {
        **{name: e[name].numpy() for name in ("object", "probe", "positions", "anchors")},
        "shape": tuple(state.estimate.object.shape),
        "history": state.history,
        "residual": problem.residual(state.estimate),
        "own": len(problem.layout.own),
    }
