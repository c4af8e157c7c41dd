"""Elementwise torch optimisers as engines: against torch itself, on phantoms, through checkpoints, growth and ranks."""

import functools
import importlib
import inspect
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ptymesh.distributed.world import Solo, World
from ptymesh.engines import ENGINES, REFUSED, SGD, Adam, NAdam, RMSprop
from ptymesh.engines.gradients.elementwise import Elementwise
from ptymesh.engines.gradients.sweep import packed, unpacked
from ptymesh.engines.optimisers import ELEMENTWISE
from ptymesh.errors import BadInput, Interrupted
from ptymesh.estimate import Estimate
from ptymesh.io.checkpoint import store as checkpoint
from ptymesh.problem import Batch
from ptymesh.recipe.schema import Recipe
from ptymesh.run.loop import Loop
from ptymesh.run.state import RunState
from toy import Toy, make, relative

BATCHES = [np.arange(start, 40, 4) for start in range(4)]


def run(toy: Toy, engine: Elementwise, start: Estimate, seed: int = 0) -> RunState:
    state = RunState(start)
    Loop(toy.problem(), state, [engine], seed=seed).run()
    return state


def test_an_array_is_gone_over_once_where_torch_can(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    module = importlib.import_module("torch.optim.adam")
    fused = module._fused_adam
    monkeypatch.setattr(module, "_fused_adam", lambda *a, **how: steps.append(1) or fused(*a, **how))
    toy = make()
    run(toy, Adam(epochs=1, batch=10), toy.start())
    assert len(steps) == 2 * toy.measurement.views // 10  # object and probe of every batch


def test_nothing_is_loaded_that_only_compilation_needs() -> None:
    """It takes torch longer to load its compiler than a first epoch should."""
    step = """
import sys, torch
from ptymesh.engines import Adam
leaf = torch.ones(2)
leaf.grad = torch.ones(2)
Adam()._update({"object": leaf}, epoch=1, fused=True)
assert leaf[0] < 1
sys.exit("torch._dynamo" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", step], check=True)


def test_memory_costs_the_same_in_every_batch() -> None:
    """torch keeps of a view how it was made, of views of views the whole tale; none may grow from batch to batch."""

    def fastest(memory: Tensor) -> float:
        times = []
        for _ in range(50):
            began = time.perf_counter()
            packed(unpacked(memory, leaf), leaf)
            times.append(time.perf_counter() - began)
        return min(times)

    leaf = torch.zeros(1, 8, 8, 2)
    memory = torch.zeros(1, 8, 8, dtype=torch.complex64)
    first = fastest(memory)
    for _ in range(3000):
        memory = packed(unpacked(memory, leaf), leaf)
    assert fastest(memory) < 20 * first


def test_without_decay_the_object_moves_where_it_is() -> None:
    """Counted from vacuum, or in its own memory: the same to rounding."""
    toy = make(dtype=torch.complex128)
    found = []
    for decay in (0.0, 1e-300):
        engine = Adam(epochs=1, batch=10, weight_decay=decay)
        assert engine.from_vacuum == (decay > 0)
        found.append(run(toy, engine, toy.start()).estimate.object)
    assert relative(*found) < 1e-12


# --- against torch ---


def literal(toy: Toy, e: Estimate, kind: type[torch.optim.Optimizer], rates: dict[str, float], **options: Any) -> None:
    """torch's optimiser on torch's own gradients of the model, one unknown per group, in the same units."""
    groups = [{"params": [torch.zeros(1)], "lr": rate} for rate in rates.values()]
    optimiser = kind(groups, **options)  # type: ignore[call-arg]
    memory: dict[str, dict] = {name: {} for name in rates}
    for batch in BATCHES * 2:
        views = torch.as_tensor(batch)
        obj, probe = e.object.clone().requires_grad_(), e.probe.clone().requires_grad_()
        I = toy.model.intensity(obj, probe, e.anchors[views], e.fractions(views))
        y = torch.as_tensor(toy.measurement.patterns.read(batch))
        loss = ((I.sqrt() - y.sqrt()) ** 2).sum()
        loss.backward()
        lit, seen = torch.zeros_like(e.object.real), torch.zeros(e.window, dtype=torch.float64)
        probes = toy.model.probes(e.probe, e.fractions(views), torch.ones(len(views), 1, dtype=torch.float64))
        for (y0, x0), shifted in zip(e.anchors[views].tolist(), probes, strict=True):
            where = (slice(None), slice(y0, y0 + e.window[0]), slice(x0, x0 + e.window[1]))
            lit[where] += shifted.abs().square().sum(0)
            seen += e.object[where][0].abs().square()
        rms = e.probe.abs().square().mean().sqrt()
        assert obj.grad is not None and probe.grad is not None
        for index, (name, leaf, gradient) in enumerate(
            [
                ("object", e.object - 1, obj.grad / (2 * lit.max())),
                ("probe", e.probe / rms, probe.grad / (2 * seen.max() * rms)),
            ]
        ):
            moved = torch.view_as_real(leaf.clone())
            moved.grad = torch.view_as_real(gradient)
            optimiser.param_groups[index]["params"] = [moved]
            if memory[name]:
                optimiser.state[moved] = memory[name]
            other = optimiser.param_groups[1 - index]["params"]
            optimiser.param_groups[1 - index]["params"] = []
            optimiser.step()
            optimiser.param_groups[1 - index]["params"] = other
            memory[name] = optimiser.state[moved]
            if name == "object":
                e.object.copy_(torch.view_as_complex(moved) + 1)
            else:
                e.probe.copy_(torch.view_as_complex(moved) * rms)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("engine", "options"),
    [
        (Adam, dict(betas=(0.8, 0.95), eps=1e-2, weight_decay=0.1, amsgrad=True)),
        (SGD, dict(momentum=0.7, nesterov=True)),
        (NAdam, dict(betas=(0.9, 0.99), eps=1e-3, momentum_decay=0.01)),
        (RMSprop, dict(alpha=0.9, eps=1e-3, momentum=0.3, centered=True)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_steps_are_those_of_torch(engine: type[Elementwise], options: dict) -> None:
    toy = make(modes=2)
    expected, found = toy.start(), toy.start()
    literal(toy, expected, getattr(torch.optim, engine.__name__), {"object": 0.05, "probe": 0.02}, **options)
    problem = toy.problem()
    problem.begin_epoch(found)
    stage = engine(lr=0.05, unknowns={"probe": {"lr": 0.02}}, **options)
    for batch in BATCHES * 2:
        stage.step(problem, found, Batch(batch))
    assert relative(found.object, expected.object) < 1e-11 and relative(found.probe, expected.probe) < 1e-11


@pytest.mark.parametrize("engine", ELEMENTWISE)
def test_options_are_those_of_torch(engine: type[Elementwise]) -> None:
    """Every hyperparameter of torch's that concerns the mathematics, and no other."""
    execution = {"params", "lr", "foreach", "maximize", "capturable", "differentiable", "fused"}
    signature = set(inspect.signature(engine.torch_class).parameters) - execution
    # Adam with it is AdamW
    assert set(engine()._hyperparameters()) == signature - ({"decoupled_weight_decay"} if engine is Adam else set())


def test_every_torch_optimiser_is_an_engine_or_refused() -> None:
    kinds = vars(torch.optim).values()
    names = {k.__name__.lower() for k in kinds if inspect.isclass(k) and issubclass(k, torch.optim.Optimizer)}
    assert names - {"optimizer"} == {engine.name for engine in ELEMENTWISE} | set(REFUSED) | {"lbfgs"}
    with pytest.raises(BadInput, match=r"stages.0.engine is 'rprop'.*signs"):
        Recipe.parse({"data": {"path": "x"}, "stages": [{"engine": "rprop"}]})


# --- what they do ---


@pytest.mark.sample(2)
@pytest.mark.parametrize("engine", ELEMENTWISE)
def test_phantom(engine: type[Elementwise]) -> None:
    """At the shipped learning rate the residual falls by a stated factor; slowest are Adagrad, Adadelta and RAdam."""
    toy = make(views=60, counts=1e5)
    start = toy.start()
    before, _ = toy.problem().residual(start)
    state = run(toy, engine(epochs=20, batch=10), start)
    after, _ = toy.problem().residual(state.estimate)
    slow = engine.name in ("adagrad", "adadelta", "radam", "adamax")
    assert after < before / (3 if slow else 10)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "case", [dict(modes=2, background=1.0, varying=True), dict(subpixel="bilinear"), dict(fidelity="poisson")], ids=str
)
def test_adam_with_every_feature(case: dict) -> None:
    toy = make(**{"views": 60, "counts": 1e5, **case})
    start = toy.start()
    before, _ = toy.problem().residual(start)
    state = run(toy, Adam(epochs=25, batch=10, lr=0.05, fidelity=toy.model.fidelity), start)
    after, _ = toy.problem().residual(state.estimate)
    assert after < before / 20


CHANGES = {
    Adam: dict(
        lr=0.1,
        betas=(0.5, 0.999),
        eps=0.1,
        weight_decay=0.5,
        amsgrad=True,
        loss=lambda intensity, counts: (intensity.sqrt() - counts.sqrt()).abs(),
        power=0.3,
        averaged=2.0,
        parametrisation="phase",
        regularisers=[{"kind": "tv", "weight": 0.1}],
        scheduler={"name": "exponential", "gamma": 0.3},
        unknowns={"object": {"stop": 1}},
    ),
    ENGINES["adamw"]: dict(betas=(0.5, 0.999), eps=0.1, weight_decay=0.5, amsgrad=True),
    ENGINES["nadam"]: dict(
        betas=(0.5, 0.999), eps=0.1, weight_decay=0.5, momentum_decay=0.2, decoupled_weight_decay=True
    ),
    ENGINES["radam"]: dict(betas=(0.5, 0.9), eps=0.1, weight_decay=0.5, decoupled_weight_decay=True),
    ENGINES["adamax"]: dict(betas=(0.5, 0.999), eps=0.1, weight_decay=0.5),
    ENGINES["adagrad"]: dict(lr_decay=0.5, weight_decay=0.5, initial_accumulator_value=0.1, eps=0.1),
    ENGINES["adadelta"]: dict(rho=0.5, eps=1e-3, weight_decay=0.5),
    ENGINES["rmsprop"]: dict(alpha=0.5, eps=0.1, weight_decay=0.5, momentum=0.5, centered=True),
    ENGINES["sgd"]: dict(momentum=0.5, dampening=0.5, weight_decay=0.5, nesterov=True),
}
#: What an option needs beside itself to have an effect.
WITH = {
    "dampening": dict(momentum=0.5),
    "nesterov": dict(momentum=0.5),
    "decoupled_weight_decay": dict(weight_decay=0.5),
    "amsgrad": dict(betas=(0.9, 0.5), epochs=6),
    "power": dict(loss="nrmse"),
    "eps": dict(epochs=3),  # radam divides by nothing in its first six batches
}


def object_of(engine: type[Elementwise], needed: str | None, **change: Any) -> torch.Tensor:
    """Return the object of a short run with what an option needs beside it, and with a change."""
    toy = make(views=30, noise=True)
    options = {"epochs": 2, "batch": 10, **WITH.get(needed or "", {}), **change}
    return run(toy, engine(**options), toy.start()).estimate.object


#: Options that need nothing are compared with one and the same run.
unchanged = functools.cache(object_of)


@pytest.mark.sample(23)
@pytest.mark.parametrize(("engine", "option"), [(engine, option) for engine, o in CHANGES.items() for option in o])
def test_every_option_matters(engine: type[Elementwise], option: str) -> None:
    needed = option if option in WITH else None
    changed = object_of(engine, needed, **{option: CHANGES[engine][option]})
    assert relative(changed, unchanged(engine, needed)) > 1e-6


# --- unknowns ---


def test_unknowns_start_stop_and_have_rates_of_their_own() -> None:
    toy = make()
    start = toy.start()
    none = run(toy, Adam(epochs=2, batch=20, unknowns={"probe": {"start": 3}}), toy.start()).estimate
    assert torch.equal(none.probe, start.probe) and not torch.equal(none.object, start.object)
    none = run(toy, Adam(epochs=2, batch=20, unknowns={"object": False}), toy.start()).estimate
    assert torch.equal(none.object, start.object) and not torch.equal(none.probe, start.probe)
    stopped = run(toy, Adam(epochs=3, batch=20, unknowns={"object": {"stop": 1}}), toy.start())
    assert int(stopped.engines[0]["object.step"]) == 2 and int(stopped.engines[0]["probe.step"]) == 6
    frozen = run(toy, Adam(epochs=2, batch=20, probe={"frozen": 1}), toy.start())
    assert int(frozen.engines[0]["probe.step"]) == 2
    slow, fast = (
        run(toy, Adam(epochs=1, batch=40, unknowns={"probe": {"lr": rate}}), toy.start()).estimate.probe - start.probe
        for rate in (0.001, 0.01)
    )
    assert relative(slow * 10, fast) < 1e-12


def test_amplitude_has_a_rate_of_its_own() -> None:
    toy, options = make(), dict(epochs=1, batch=40, lr=0.03, parametrisation="amplitude_phase")
    changes = [
        run(toy, Adam(unknowns=u, **options), toy.start()).estimate.object.abs() - 1  # type: ignore[arg-type]
        for u in ({}, {"amplitude": {"lr": 0.003}})
    ]
    assert relative(changes[1] * 10, changes[0]) < 1e-12


def known(toy: Toy) -> Estimate:
    """The truth's object and probe."""
    start = toy.start(probe_error=0.0)
    start.object.copy_(toy.truth.object)
    return start


FIXED = {"object": False, "probe": False}


def test_background_is_found() -> None:
    toy = make(background=20.0)
    start = known(toy)
    start.background.zero_()
    start.background[0] = 40
    e = run(toy, Adam(epochs=20, batch=10, lr=0.1, unknowns={"background": True, **FIXED}), start).estimate
    assert relative(e.background, toy.truth.background) < 0.05 and torch.equal(e.object, toy.truth.object)
    dark = make()
    e = run(dark, Adam(epochs=10, batch=10, unknowns={"background": True}), dark.start()).estimate
    assert float(e.background.min()) >= 0


def test_intensities_are_found() -> None:
    toy = make(varying=True)
    start = known(toy)
    start.weights = torch.ones_like(start.weights)
    stage = Adam(epochs=20, batch=10, lr=0.03, unknowns={"weights": {"start": 3}, **FIXED}, probe={"opr": False})
    assert relative(run(toy, stage, start).estimate.weights, toy.truth.weights) < 0.01


def test_opr_modes_move_by_their_own_rate() -> None:
    toy = make()
    start = toy.start()
    start.opr = 0.1 * start.probe[:1].flip(-1)
    start.weights = torch.cat((start.weights, torch.linspace(-1, 1, 40, dtype=torch.float64)[:, None]), dim=1)
    opr, weights = start.opr.clone(), start.weights.clone()
    stage = Adam(epochs=1, batch=40, unknowns={"opr": {"lr": 0.01}, "weights": True}, probe={"opr": False})
    e = run(toy, stage, start).estimate
    rms = toy.start().probe.abs().square().mean().sqrt()
    step = torch.view_as_real(e.opr - opr).abs() / rms
    assert float(step.max()) == pytest.approx(0.01, rel=0.2)
    assert not torch.equal(e.weights[:, 1], weights[:, 1])


@pytest.mark.parametrize("slices", [1, 2, 4])
def test_slices_that_are_moved_alike_share_the_rate(slices: int) -> None:
    """A first step of Adam is lr in every pixel with light; of slices, which move together, lr / sqrt(L)."""
    toy = make(slices=slices)
    start = toy.start()
    before = torch.view_as_real(start.object.clone())
    found = run(toy, Adam(epochs=1, batch=toy.measurement.views, lr=0.02), start).estimate
    moved = (torch.view_as_real(found.object) - before).abs().max()
    assert float(moved) == pytest.approx(0.02 / slices**0.5, rel=0.05)


def test_slices_take_whole_steps_of_gradient_descent() -> None:
    """Whose steps follow the gradient, which says by how much they move: lr x scale x slope."""
    toy = make(slices=4)
    problem, estimate, batch = toy.problem(), toy.start(), Batch(np.arange(0, 40, 2))
    problem.begin_epoch(estimate)
    engine = SGD(lr=0.2, unknowns={"probe": False})
    part = engine.gradient(problem, estimate, batch, {"object"}, note=False).parts["object"]
    before = torch.view_as_real(estimate.object.clone())
    engine.step(problem, estimate, batch)
    assert relative(torch.view_as_real(estimate.object) - before, -0.2 * part.scale * part.slope) < 1e-6


def test_slice_spacing_is_found() -> None:
    toy = make(views=60, slices=2, window=(32, 32), counts=1e6, seed=4)
    truth = toy.truth.slice_spacing_m
    start = toy.start(probe_error=0.0)
    start.object.copy_(toy.truth.object)
    start.slice_spacing_m = 1.3 * truth
    stage = Adam(epochs=20, batch=10, unknowns={"object": False, "probe": False, "slice_spacing": {"lr": 0.02}})
    found = run(toy, stage, start).estimate
    assert found.slice_spacing_m == pytest.approx(truth, rel=0.02)
    with pytest.raises(BadInput, match="slice_spacing has no meaning for a single slice"):
        run(make(), Adam(unknowns={"slice_spacing": True}), make().start())


@pytest.mark.sample(1)
@pytest.mark.parametrize("slices", [2, 3])
def test_tilt_is_found(slices: int) -> None:
    """From none, to a hundredth of the pixel by which it moves the wave from slice to slice; measured: 0.001."""
    toy = make(views=60, slices=slices, window=(32, 32), counts=1e6, seed=4, tilt_rad=(8e-3, -5e-3))
    start = known(toy)
    start.tilt_rad = (0.0, 0.0)
    stage = Adam(
        epochs=20, batch=10, scheduler={"name": "cosine"}, unknowns={**FIXED, "tilt": {"lr": 0.05, "start": 2}}
    )
    state = run(toy, stage, start)
    pixel = toy.measurement.geometry.object_pixel_m
    assert pixel is not None and int(state.engines[0]["tilt.step"]) == 19 * 6
    for found, truth, d in zip(state.estimate.tilt_rad, toy.truth.tilt_rad, pixel, strict=True):
        assert abs(found - truth) * start.slice_spacing_m / d < 0.01
    with pytest.raises(BadInput, match="tilt has no meaning for a single slice"):
        run(make(), Adam(unknowns={"tilt": True}), make().start())


def test_positions_through_the_optimiser() -> None:
    toy = make()

    def moved(**options: Any) -> RunState:
        start = toy.start(probe_error=0.0, position_error=0.8)
        start.object.copy_(toy.truth.object)
        stage = Adam(epochs=30, batch=10, positions={"start": 3, "gain": 1}, scheduler={"name": "cosine"}, **options)
        return run(toy, stage, start)

    def error(e: Estimate) -> float:
        off = e.positions - toy.truth.positions
        return float((off - off.mean(0)).norm(dim=1).mean())

    before = error(toy.start(position_error=0.8))
    state = moved(unknowns={"positions": {"lr": 0.05}, **FIXED})
    assert error(state.estimate) < before / 10
    assert state.engines[0]["positions.exp_avg"].shape == (40, 2)
    plain = moved(unknowns={"object": {"lr": 1e-9}, "probe": False})
    assert error(plain.estimate) < before / 10 and "positions.exp_avg" not in plain.engines[0]


# --- memory ---

RESUMED = dict(
    epochs=4,
    batch=11,
    lr=0.05,
    averaged=0.5,
    positions={"start": 2, "gain": 1},
    probe={"frozen": 1, "centre": True, "opr": False},
    scheduler={"name": "plateau", "patience": 0, "threshold": 0.5},
    regularisers=[{"kind": "tv", "weight": 0.01}],
    unknowns={"positions": {"start": 3}, "weights": {"start": 2}, "background": {"start": 2, "lr": 0.01}}
    | {"slice_spacing": {"lr": 0.01}, "tilt": {"start": 2}},
)


def bits(state: RunState) -> dict[str, np.ndarray]:
    e = state.estimate
    names = ("object", "probe", "positions", "weights", "background")
    slices = np.array([e.slice_spacing_m, *e.tilt_rad])
    return {**{n: getattr(e, n).numpy() for n in names}, "loss": np.array(state.history["loss"]), "slices": slices}


@pytest.mark.sample(1)
@pytest.mark.parametrize("batch", [1, 5, 10, 14])
def test_resumed_runs_end_with_the_same_bits(tmp_path: Path, batch: int) -> None:
    toy = make(background=1.0, slices=2)
    expected = RunState(toy.start(position_error=0.5))
    Loop(toy.problem(), expected, [NAdam(**RESUMED)], seed=3).run()
    problem, state, asked = toy.problem(), RunState(toy.start(position_error=0.5)), []

    def stop() -> bool:
        asked.append(0)
        return len(asked) == batch

    with pytest.raises(Interrupted):
        Loop(
            problem, state, [NAdam(**RESUMED)], seed=3, stop=stop, save=lambda: state.save(tmp_path, problem, {})
        ).run()
    problem = toy.problem()
    state = RunState.load(checkpoint.load(tmp_path), problem)
    Loop(problem, state, [NAdam(**RESUMED)], seed=3).run()
    for name, value in bits(expected).items():
        assert np.array_equal(bits(state)[name], value), name


def late(world: World) -> dict[str, np.ndarray]:
    """Unknowns that start late, or are seen by some ranks only."""
    toy = make(views=25, background=1.0, uneven=True, slices=2)
    state = RunState(toy.start(position_error=0.5))
    Loop(toy.problem(world), state, [NAdam(**{**RESUMED, "batch": 3})], seed=3).run()
    return bits(state)


@pytest.mark.sample(1)
@pytest.mark.parametrize("size", [2, 3])
def test_what_starts_late_is_the_same_on_all_ranks(ranks, size: int) -> None:  # type: ignore[no-untyped-def]
    expected = late(Solo())
    for found in ranks(size, late):
        for name, value in expected.items():
            if name != "weights":  # of each view, its owner's are valid
                assert relative(found[name], value) < 1e-12, name


def test_memory_grows_with_the_object() -> None:
    toy = make(views=41)
    start = toy.start()
    start.probe.copy_(torch.roll(start.probe, (6, 5), (-2, -1)))
    state = run(toy, Adam(epochs=3, batch=9, probe={"centre": True}, positions=True), start, seed=7)
    e = state.estimate
    assert e.object.shape != (1, 96, 96)
    assert state.engines[0]["object.exp_avg"].shape == e.object.shape
    assert state.engines[0]["object.exp_avg_sq"].dtype == e.object.dtype


def test_a_later_call_goes_on_with_the_memory() -> None:
    toy = make()
    problem, state = toy.problem(), RunState(toy.start())
    Loop(problem, state, [Adam(epochs=2, batch=20)]).run()
    state.engines[1] = state.engines[0]
    Loop(problem, state, [Adam(epochs=2, batch=20), Adam(epochs=1, batch=10, lr=1e-3)]).run()
    assert int(state.engines[1]["object.step"]) == 8


@pytest.mark.parametrize("engine", [Adam, ENGINES["lbfgs"]])
def test_a_later_call_on_other_pixels_starts_anew(engine: type) -> None:
    toy = make(window=(24, 24))
    problem, state = toy.problem(), RunState(toy.start())
    Loop(problem, state, [engine(epochs=2, batch=20, coarsen=2)]).run()
    state.engines[1] = state.engines[0]
    Loop(problem, state, [engine(epochs=2, batch=20), engine(epochs=1, batch=20)]).run()
    fine = {"adam": "object.exp_avg", "lbfgs": "object.s0"}[engine.name]
    assert state.engines[1][fine].shape == state.estimate.object.shape
