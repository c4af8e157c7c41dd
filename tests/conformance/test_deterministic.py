"""With exact sums the number of ranks does not show in a single bit: engines of every family, positions refined.

Runs are those of test_ranks.py, in single precision; what is compared are bytes. Windows of 32 x 32 are swept in chunks
of many views, those of 24 x 28 one view at a time.
"""

import numpy as np
import pytest
import torch

from ptymesh.engines import ENGINES
from ptymesh.parallel.world import Solo, World
from ptymesh.run.loop import Loop
from ptymesh.run.state import RunState
from toy import make, relative

POSITIONS = {"positions": True}
#: One engine of each family, with the parts of the model that it sums over.
RUNS = {
    "rpie": ("rpie", dict(modes=3, uneven=True, varying=True), {**POSITIONS, "probe": {"intensity": True}}),
    "mpie": ("mpie", dict(subpixel="bilinear", background=2.0), {**POSITIONS, "momentum_every": 2}),
    "epie": ("epie", dict(slices=2, tilt_rad=(8e-3, -5e-3), propagation="angular_spectrum"), POSITIONS),
    "lsqml": ("lsqml", dict(modes=2), {**POSITIONS, "momentum": {"memory": 1}}),
    "lsqml, compact": ("lsqml", dict(fidelity="poisson", noise=True), {"order": "compact", **POSITIONS}),
    "dm": ("dm", dict(modes=2), {**POSITIONS, "object": {"ramp": True}}),
    "raar": ("raar", dict(subpixel="bilinear"), {**POSITIONS, "probe": {"centre": True}}),
    "ap": ("ap", dict(modes=2), POSITIONS),
    "bh": ("bh", dict(modes=2), {"batch": 21, **POSITIONS}),
    "cg": ("cg", dict(fidelity="intensity", noise=True, slices=2), {"batch": None}),
    "lbfgs": ("lbfgs", dict(modes=2), {"batch": 21, "regularisers": [{"kind": "tv", "weight": 0.1}]}),
    "adam": (
        "adam",
        dict(slices=2, background=1.0),
        {"unknowns": {"slice_spacing": True, "tilt": True, "background": True, "positions": True}}
        | {"positions": {"gain": 1}, "averaged": 0.5},
    ),
    "sgd": (
        "sgd",
        dict(modes=2, background=1.0, varying=True),
        {"loss": "nrmse", "unknowns": {"weights": True}, "probe": {"opr": False}},
    ),
    "coarse to fine": ("rpie", dict(), {"coarsen": 2, **POSITIONS}),
}


def outcome(world: World, run: str, window: tuple[int, int], dtype: torch.dtype, exact: bool = True) -> dict:
    """What one rank ends with, as bytes where it can."""
    engine, case, stage = RUNS[run]
    toy = make(views=41, window=window, dtype=dtype, **case)
    options = {"epochs": 3, "batch": 9, "fidelity": toy.model.fidelity, **stage}
    if ENGINES[engine].model_fields["batch"].annotation is type(None):
        del options["batch"]
    problem, state = toy.problem(world, exact), RunState(toy.start(position_error=0.5))
    loop = Loop(problem, state, [ENGINES[engine](**options)], seed=7, hold_out=0.1)
    loop.run()
    e, found = state.estimate, problem.residual(state.estimate)
    weights = problem.layout.merge(e.weights)
    arrays = {n: getattr(e, n).numpy() for n in ("object", "probe", "positions", "background")}
    arrays |= {"weights": weights.numpy(), "slices": np.array([e.slice_spacing_m, *e.tilt_rad])}
    history = {name: column for name, column in state.history.items() if name != "seconds"}
    return {**arrays, "history": np.array(list(history.values())), "residual": np.array(found)}


def same_bits(one: dict, other: dict) -> None:
    for name, array in one.items():
        assert array.shape == other[name].shape and np.array_equal(array, other[name], equal_nan=True), name


@pytest.mark.parametrize("window", [(32, 32), (24, 28)], ids=str)
@pytest.mark.parametrize("run", RUNS)
def test_bits(ranks, run: str, window: tuple[int, int]) -> None:  # type: ignore[no-untyped-def]
    arguments = (run, window, torch.complex64)
    one = outcome(Solo(), *arguments)
    same_bits(one, outcome(Solo(), *arguments))
    for size in (2, 3, 4):
        for other in ranks(size, outcome, *arguments):
            same_bits(one, other)


@pytest.mark.parametrize("run", ["rpie", "bh"])
def test_bits_in_double_precision(ranks, run: str) -> None:  # type: ignore[no-untyped-def]
    """The same, and what plain sums give but for rounding: fixed point is no coarser."""
    arguments = (run, (24, 28), torch.complex128)
    one, plain = outcome(Solo(), *arguments), outcome(Solo(), *arguments, False)
    for other in ranks(3, outcome, *arguments):
        same_bits(one, other)
    for name in ("object", "probe", "positions"):
        assert relative(one[name], plain[name]) < 1e-12, name
