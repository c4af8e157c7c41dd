"""With exact sums the number of ranks does not show in a single bit: engines of every family, positions refined.

Runs are those of test_ranks.py, in single precision, in both layouts. Windows of 32 x 32 are swept in chunks of many
views, those of 15 x 17, which do not fill the vector unit, one view at a time.
"""

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from features import with_opr

from ptymesh.engines import ENGINES, LSQML, RPIE
from ptymesh.errors import Interrupted
from ptymesh.io import checkpoint
from ptymesh.parallel.world import Solo, World
from ptymesh.run.loop import Loop
from ptymesh.run.state import RunState
from toy import make, relative, share

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
    "lbfgs": ("lbfgs", dict(modes=2), {"batch": 21}),
    "total variation": ("adam", dict(), {"regularisers": [{"kind": "tv", "weight": 0.1}]}),
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
    "interior views": ("lsqml", dict(modes=2, blocks=8), {"batch": 21, **POSITIONS}),
    "opr": ("rpie", dict(modes=2), {**POSITIONS, "probe": {"intensity": True}}),
}
#: How a start is changed.
WITH = {"opr": with_opr}


#: Regularisers of neighbouring pixels are summed at the borders of tiles in floats (docs/deterministic.md).
REPLICATED = ("total variation",)
WINDOWS = {"coarse to fine": [(32, 32), (24, 28)], "interior views": [(32, 32)]}


def views_of(window: tuple[int, int]) -> int:
    """Fewer of the windows that are swept one at a time, which take longer."""
    return 25 if window == (15, 17) else 41


def outcome(world: World, run: str, window: tuple[int, int], layout: str = "replicated", **how: bool) -> dict:
    """What one rank ends with, as arrays; `how`: exact, double."""
    engine, case, stage = RUNS[run]
    dtype = torch.complex128 if how.get("double") else torch.complex64
    toy = make(views=views_of(window), window=window, dtype=dtype, **case)
    options = {"epochs": 3, "batch": 9, "fidelity": toy.model.fidelity, **stage}
    if ENGINES[engine].model_fields["batch"].annotation is type(None):
        del options["batch"]
    problem = toy.problem(world, layout, how.get("exact", True))
    start = toy.start(position_error=0.5)
    state = RunState(share(WITH.get(run, lambda e: e)(start), problem))
    Loop(problem, state, [ENGINES[engine](**options)], seed=7, hold_out=0.1).run()
    e = state.estimate
    arrays = {n: getattr(e, n).numpy() for n in ("probe", "positions", "background", "opr")}
    arrays["object"] = problem.layout.whole(e.object, e).numpy()
    arrays["weights"] = problem.layout.merge(e.weights).numpy()
    arrays["slices"] = np.array([e.slice_spacing_m, *e.tilt_rad])
    history = {name: column for name, column in state.history.items() if name != "seconds"}
    return {**arrays, "history": np.array(list(history.values())), "residual": np.array(problem.residual(e))}


def outcome_with(world: World, how: dict, *arguments: Any) -> dict:
    """For the pool, which takes no keywords."""
    return outcome(world, *arguments, **how)


def same_bits(one: dict, other: dict) -> None:
    for name, array in one.items():
        assert array.shape == other[name].shape and np.array_equal(array, other[name], equal_nan=True), name


CELLS = [
    pytest.param(run, window, id=f"{run}-{window[0]}x{window[1]}")
    for run in RUNS
    for window in WINDOWS.get(run, [(32, 32), (15, 17)])
]


#: Numbers of ranks and layouts: some runs meet them all, the others take turns.
WORLDS = [[(2, "replicated"), (4, "replicated"), (3, "tiled")], [(3, "replicated"), (2, "tiled"), (4, "tiled")]]
EVERYWHERE = ("rpie", "lsqml", "dm", "adam")


@pytest.mark.parametrize(("run", "window"), CELLS)
def test_bits(ranks, run: str, window: tuple[int, int]) -> None:  # type: ignore[no-untyped-def]
    one = outcome(Solo(), run, window)
    worlds = [(3, "replicated"), (3, "tiled")]
    if window == (32, 32):
        same_bits(one, outcome(Solo(), run, window))
        worlds = [*WORLDS[0], *WORLDS[1]] if run in EVERYWHERE else WORLDS[list(RUNS).index(run) % 2]
    for size, layout in worlds:
        if layout == "replicated" or run not in REPLICATED:
            for other in ranks(size, outcome, run, window, layout):
                same_bits(one, other)


def test_plain_sums_differ(ranks) -> None:  # type: ignore[no-untyped-def]
    """Else the tests above would prove nothing."""
    one, *_ = ranks(3, outcome_with, {"exact": False}, "rpie", (32, 32))
    assert not np.array_equal(one["object"], outcome(Solo(), "rpie", (32, 32), exact=False)["object"])


@pytest.mark.parametrize("run", ["rpie", "lsqml", "bh", "adam"])
def test_double_precision(ranks, run: str) -> None:  # type: ignore[no-untyped-def]
    """The same bits; and what plain sums give but for rounding, for fixed point is no coarser."""
    one, plain = (outcome(Solo(), run, (15, 17), double=True, exact=exact) for exact in (True, False))
    for other in ranks(3, outcome_with, {"double": True}, run, (15, 17)):
        same_bits(one, other)
    for name in ("object", "probe", "positions"):
        assert relative(one[name], plain[name]) < 1e-12, name


def resumed(world: World, folder: Path, batch: int | None) -> dict:
    """A run that is saved in `folder` and ends after so many batches, or one that goes on from there."""
    toy, engine = make(views=25, window=(15, 17), dtype=torch.complex64), LSQML(epochs=4, batch=9, **POSITIONS)
    problem, asked = toy.problem(world, exact=True), [0]
    state = RunState(toy.start(position_error=0.5))

    def stop() -> bool:
        asked[0] += 1
        return asked[0] == batch

    if batch is None:
        state = RunState.load(checkpoint.load(folder), problem)
    loop = Loop(problem, state, [engine], seed=3, stop=stop, save=lambda: state.save(folder, problem, {}))
    with contextlib.suppress(Interrupted):
        loop.run()
    e = state.estimate
    return {name: getattr(e, name).numpy() for name in ("object", "probe", "positions")}


def test_resumed_on_another_number_of_ranks(ranks, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    whole = resumed(Solo(), tmp_path / "none", -1)
    ranks(3, resumed, tmp_path / "half", 8)
    for other in ranks(2, resumed, tmp_path / "half", None):
        same_bits(whole, other)


def test_threads_share_no_array() -> None:
    """Where vectors end depends on how many share an array; threads outside are left as they are."""
    seen = []

    class Watching(RPIE):
        def step(self, problem, estimate, batch) -> None:  # type: ignore[no-untyped-def]
            seen.append(torch.get_num_threads())
            super().step(problem, estimate, batch)

    toy = make()
    torch.set_num_threads(2)
    try:
        for exact in (True, False):
            Loop(toy.problem(exact=exact), RunState(toy.start()), [Watching(epochs=1, batch=40)]).run()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert seen == [1, 2]
