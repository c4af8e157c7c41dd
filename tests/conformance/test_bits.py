"""The number of ranks, threads or views in a chunk does not show in a single bit: engines of every family, in both
layouts, positions refined, and resumed elsewhere.

Runs are those of test_ranks.py, in single precision. The pixels of windows of 15 x 17 do not fill the vector unit;
those of 101 x 190 are many enough for torch to share them between threads.
"""

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from features import with_opr

from ptymesh.distributed.world import Solo, World
from ptymesh.engines import ENGINES, LSQML
from ptymesh.errors import Diverged, Interrupted
from ptymesh.io.checkpoint import store as checkpoint
from ptymesh.physics.rounding import shifts_for
from ptymesh.problem import accumulator
from ptymesh.problem.accumulator import expected_magnitudes
from ptymesh.run.loop import Loop
from ptymesh.run.state import RunState
from rounding import Forbidding
from toy import make, relative, share

POSITIONS = {"positions": True}
MODELS = {"aberrations": {"lr": 0.1}, "scan_geometry": {"lr": 0.5}}
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
    "smooth": (
        "sgd",
        dict(modes=2),
        {"regularisers": [{"kind": kind, "weight": 0.1} for kind in ("smoothness", "sparsity", "l1")]},
    ),
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
    "background": (
        "adam",
        dict(modes=2, background=1.0),
        {"unknowns": {"background": True, "positions": True}, "positions": {"gain": 1}},
    ),
    "background, opr": (
        "adam",
        dict(modes=2, background=1.0, fidelity="poisson", noise=True),
        {"unknowns": {"background": True}},
    ),
    "coarse to fine": ("rpie", dict(), {"coarsen": 2, **POSITIONS}),
    "interior views": ("lsqml", dict(modes=2, blocks=8), {"batch": 21, **POSITIONS}),
    "models": (
        "lsqml",
        dict(modes=2),
        {**POSITIONS, "models": MODELS},
    ),
    "models beside pixels": ("adam", dict(), {"models": {"aberrations": {"residue": True}, "scan_geometry": True}}),
    "geometry by patterns": (
        "adam",
        dict(slices=2, modes=2),
        {"models": {"scan_geometry": {"follow": "patterns"}}},
    ),
    "opr": ("rpie", dict(modes=2), {**POSITIONS, "probe": {"intensity": True}}),
    "between slices": (
        "adam",
        dict(slices=2),
        {"unknowns": {"slice_spacing": True, "tilt": True, "positions": True}, "positions": {"gain": 1}},
    ),
    "slices": ("lsqml", dict(modes=2, slices=3, varying=True), {**POSITIONS, "probe": {"intensity": True}}),
    "near field": (
        "lsqml",
        dict(modes=2, propagation="angular_spectrum", varying=True),
        {**POSITIONS, "probe": {"intensity": True}},
    ),
    "geometry by patterns of a near field": (
        "rpie",
        dict(propagation="angular_spectrum"),
        {"models": {"scan_geometry": {"terms": ["rotation"], "follow": "patterns"}}},
    ),
    "geometry by patterns beside positions": (
        "lsqml",
        dict(modes=2),
        {**POSITIONS, "models": {"scan_geometry": {"follow": "patterns"}}},
    ),
}
#: How a start is changed.
WITH = {"opr": with_opr, "background, opr": with_opr}


WINDOWS = {"coarse to fine": [(32, 32), (24, 28)], "interior views": [(32, 32)]}
LARGE = (101, 190)
#: Scans of few views: so many, and blocks a side of the object that they need.
FEW = {(15, 17): {"views": 25}, LARGE: {"views": 12, "blocks": 7}}


@contextlib.contextmanager
def threads_set(count: int) -> Iterator[None]:
    """So many threads; the data are made by one."""
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(1)


def unrounded(bounds: torch.Tensor, terms: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Shifts of nothing, and limits as they are."""
    shifts, limits = shifts_for(bounds, terms)
    return torch.zeros_like(shifts), limits


@contextlib.contextmanager
def plain_sums(plain: bool) -> Iterator[None]:
    """Terms are not rounded: sums in double precision as they come."""
    with pytest.MonkeyPatch.context() as patch:
        if plain:
            patch.setattr(accumulator, "shifts_for", unrounded)
        yield


@contextlib.contextmanager
def less_expected(powers: int) -> Iterator[None]:
    """Terms are expected to be so many powers of two smaller."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accumulator, "expected_magnitudes", lambda *given: expected_magnitudes(*given) * 2.0**-powers)
        yield


def outcome(world: World, run: str, window: tuple[int, int], layout: str = "replicated", **how: Any) -> dict:
    """What one rank ends with, as arrays; `how`: double; chunk, views in it; threads; plain,
    sums without rounding; halves, of waves that are kept; less, powers of two that terms are expected to be smaller;
    folder, from whose checkpoint it goes on, or where it leaves one after so many batches, stop."""
    engine, case, stage = RUNS[run]
    dtype = torch.complex128 if how.get("double") else torch.complex64
    toy = make(window=window, dtype=dtype, **{"views": 41, **case, **FEW.get(window, {})})
    options = {"epochs": 3, "batch": 9, "fidelity": toy.model.fidelity, **stage}
    if ENGINES[engine].model_fields["batch"].annotation is type(None):
        del options["batch"]
    problem = toy.problem(world, layout, bool(how.get("halves")))
    problem.loader.chunk_sizes.limit = how.get("chunk", 0)
    start = toy.start(position_error=0.5)
    if "folder" in how and "stop" not in how:
        state = RunState.load(checkpoint.load(how["folder"]), problem)
    else:
        state = RunState(share(WITH.get(run, lambda e: e)(start), problem))
    left = iter(range(how.get("stop", 1 << 30)))
    one, stop = ENGINES[engine](**options), lambda: next(left, None) is None
    loop = Loop(problem, state, [one], seed=7, hold_out=0.1, stop=stop)
    if "folder" in how:
        loop.save = lambda: loop.state.save(how["folder"], loop.problem, {})
    with contextlib.ExitStack() as stack:
        stack.enter_context(threads_set(how.get("threads", 1)))
        stack.enter_context(plain_sums(bool(how.get("plain"))))
        stack.enter_context(less_expected(how.get("less", 0)))
        if "stop" in how:
            stack.enter_context(contextlib.suppress(Interrupted))
        loop.run()
    if "stop" in how:
        return {}
    e = state.estimate
    arrays = {n: getattr(e, n).numpy() for n in ("probe", "positions", "background", "opr")}
    arrays["object"] = problem.layout.gather_whole(e.object, e).numpy()
    arrays["weights"] = problem.layout.merge(e.weights).numpy()
    arrays["slices"] = np.array([e.slice_spacing_m, *e.tilt_rad])
    arrays["numbers"] = np.array([number for numbers in e.parameters.values() for number in numbers.values()])
    history = {name: column for name, column in state.history.items() if name != "seconds"}
    return {**arrays, "history": np.array(list(history.values())), "residual": np.array(problem.residual(e))}


def outcome_with(world: World, how: dict, *arguments: Any) -> dict:
    """For the pool, which takes no keywords."""
    return outcome(world, *arguments, **how)


@functools.cache
def undisturbed(run: str, window: tuple[int, int]) -> dict:
    """On one rank with one thread."""
    return outcome(Solo(), run, window)


def same_bits(one: dict, other: dict) -> None:
    for name, array in one.items():
        assert array.shape == other[name].shape and np.array_equal(array, other[name], equal_nan=True), name


CELLS = [
    pytest.param(run, window, id=f"{run}-{window[0]}x{window[1]}", marks=[pytest.mark.long] * (window == (15, 17)))
    for run in RUNS
    for window in WINDOWS.get(run, [(32, 32), (15, 17)])
]


#: Numbers of ranks and layouts, of which runs take turns; some meet those of the others in `make long`.
WORLDS = [[(2, "panels"), (4, "replicated"), (3, "tiled")], [(3, "panels"), (2, "tiled"), (4, "tiled")]]
EVERYWHERE = ("rpie", "lsqml", "dm", "adam")


@pytest.mark.sample(3)
@pytest.mark.parametrize(("run", "window"), CELLS)
def test_bits(ranks, run: str, window: tuple[int, int]) -> None:  # type: ignore[no-untyped-def]
    one = undisturbed(run, window)
    worlds = [(3, "panels"), (3, "tiled")]
    if window == (32, 32):
        same_bits(one, outcome(Solo(), run, window))
        worlds = WORLDS[list(RUNS).index(run) % 2]
    for size, layout in worlds:
        for other in ranks(size, outcome, run, window, layout):
            same_bits(one, other)


@pytest.mark.long
@pytest.mark.parametrize("run", EVERYWHERE)
def test_bits_in_further_worlds(ranks, run: str) -> None:  # type: ignore[no-untyped-def]
    one = undisturbed(run, (32, 32))
    for size, layout in WORLDS[1 - list(RUNS).index(run) % 2]:
        for other in ranks(size, outcome, run, (32, 32), layout):
            same_bits(one, other)


@pytest.mark.sample(2)
@pytest.mark.parametrize("run", list(RUNS))
def test_threads_and_chunks(run: str) -> None:
    same_bits(undisturbed(run, (32, 32)), outcome(Solo(), run, (32, 32), threads=2, chunk=7))


#: Of windows that threads share; `make long` has the others.
SHARED = ("rpie", "lsqml, compact", "dm", "adam")


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "run",
    [pytest.param(run, marks=[pytest.mark.long] * (run not in SHARED)) for run in RUNS if run not in WINDOWS],
)
def test_windows_that_are_shared_between_threads(run: str) -> None:
    same_bits(undisturbed(run, LARGE), outcome(Solo(), run, LARGE, threads=3, chunk=1))


@pytest.mark.long
@pytest.mark.parametrize("run", list(RUNS))
def test_more_threads_and_chunks(run: str) -> None:
    same_bits(undisturbed(run, (32, 32)), outcome(Solo(), run, (32, 32), threads=3, chunk=1))
    if run not in WINDOWS:
        same_bits(undisturbed(run, LARGE), outcome(Solo(), run, LARGE, threads=2))


@pytest.mark.sample(3)
@pytest.mark.parametrize("run", [run for run in RUNS if run not in WINDOWS])
def test_what_rounds_by_its_place_is_not_asked_for(run: str) -> None:
    """Neither of torch by ptymesh, nor by what torch differentiates."""
    with Forbidding():
        outcome(Solo(), run, (15, 17))


def test_what_rounds_by_its_place_is_noticed() -> None:
    x = torch.ones(40, dtype=torch.complex64)
    for asked in (
        lambda: x * x,
        lambda: x.angle(),
        lambda: x.real**0.3,
        lambda: torch.vdot(x.repeat(30), x.repeat(30)),
    ):
        with pytest.raises(AssertionError, match="rounds by"), Forbidding():
            asked()


def test_terms_that_are_larger_than_expected(ranks) -> None:  # type: ignore[no-untyped-def]
    """The batch is done again on all ranks alike; terms beyond everything end the run."""
    wanted, one = undisturbed("lsqml", (32, 32)), outcome(Solo(), "lsqml", (32, 32), less=20)
    assert 0 < relative(one["object"], wanted["object"]) < 1e-5, "with larger steps"
    for size, layout in ((2, "tiled"), (3, "replicated"), (2, "panels")):
        for other in ranks(size, outcome_with, {"less": 20}, "lsqml", (32, 32), layout):
            same_bits(one, other)
    with_background, again = (outcome(Solo(), "background", (32, 32), less=less) for less in (0, 20))
    assert relative(again["background"], with_background["background"]) < 1e-5, "told once"
    for run in ("lsqml", "dm"):
        with pytest.raises(Diverged):
            outcome(Solo(), run, (32, 32), less=80)


def test_plain_sums_differ(ranks) -> None:  # type: ignore[no-untyped-def]
    """Else the tests above would prove nothing."""
    how = {"double": True, "plain": True}
    other, *_ = ranks(3, outcome_with, how, "rpie", (32, 32))
    assert not np.array_equal(other["object"], outcome(Solo(), "rpie", (32, 32), **how)["object"])


@pytest.mark.sample(1)
@pytest.mark.parametrize("run", ["rpie", "lsqml", "bh", "adam"])
def test_double_precision(ranks, run: str) -> None:  # type: ignore[no-untyped-def]
    """The same bits; and what plain sums give but for rounding."""
    one, plain = (outcome(Solo(), run, (32, 32), double=True, plain=plain) for plain in (False, True))
    for other in ranks(3, outcome_with, {"double": True}, run, (32, 32)):
        same_bits(one, other)
    for name in ("object", "probe", "positions"):
        assert relative(one[name], plain[name]) < 1e-12, name


@pytest.mark.sample(1)
@pytest.mark.parametrize("run", ["dm", "raar", "ap", "lsqml", "near field"])
def test_mixed_precision(ranks, tmp_path: Path, run: str) -> None:  # type: ignore[no-untyped-def]
    """Waves that are kept are halves: the same bits everywhere, which are not those of single precision."""
    one = outcome(Solo(), run, (32, 32), halves=True)
    assert 0 < relative(one["object"], outcome(Solo(), run, (32, 32))["object"]) < 0.02
    same_bits(one, outcome(Solo(), run, (32, 32), halves=True, chunk=7))
    for size, layout in ((2, "replicated"), (3, "tiled")):
        for other in ranks(size, outcome_with, {"halves": True}, run, (32, 32), layout):
            same_bits(one, other)
    ranks(3, outcome_with, {"halves": True, "folder": tmp_path, "stop": 2}, run, (32, 32))
    for other in ranks(2, outcome_with, {"halves": True, "folder": tmp_path}, run, (32, 32)):
        same_bits(one, other)


def resumed(world: World, folder: Path, batch: int | None, models: bool = False) -> dict:
    """A run that is saved in `folder` and ends after so many batches, or one that goes on from there."""
    toy = make(views=25, window=(32, 32), dtype=torch.complex64)
    engine = LSQML(epochs=4, batch=9, models=MODELS if models else {}, **POSITIONS)
    problem, asked = toy.problem(world), [0]
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
    numbers = [number for numbers in e.parameters.values() for number in numbers.values()]
    return {"numbers": np.array(numbers), **{n: getattr(e, n).numpy() for n in ("object", "probe", "positions")}}


@pytest.mark.parametrize("models", [False, True])
def test_resumed_on_another_number_of_ranks(ranks, tmp_path: Path, models: bool) -> None:  # type: ignore[no-untyped-def]
    whole = resumed(Solo(), tmp_path / "none", -1, models)
    ranks(3, resumed, tmp_path / "half", 8, models)
    for other in ranks(2, resumed, tmp_path / "half", None, models):
        same_bits(whole, other)
    assert models == bool(len(whole["numbers"]))


@pytest.mark.parametrize("shape", [(1, 128, 128), (4, 192, 200), (600, 128, 16)])
def test_what_is_expected_of_terms_is_free_of_threads(shape: tuple[int, ...]) -> None:
    """Torch shares a sum of more than 32,768 numbers out to threads; from these sums steps of rounding follow."""
    probe = torch.randn(shape, dtype=torch.complex128, generator=torch.Generator().manual_seed(1))
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(expected_magnitudes(probe, (30.0, 5.0), "amplitude", "exit_wave_update"))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    norm = (probe.real**2 + probe.imag**2).sum().sqrt()
    assert float(found[0][3]) == pytest.approx(float((30.0 / norm) ** 2), rel=1e-12)
