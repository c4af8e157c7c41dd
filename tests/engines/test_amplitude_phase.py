"""Objects of phase and absorption: slopes, truths of several turns, ranks, resuming, results, starts, constraints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ptymesh as pm
from ptymesh.distributed.world import Solo
from ptymesh.engines import ENGINES, Adam, Engine
from ptymesh.errors import BadInput
from ptymesh.estimate import Estimate
from ptymesh.measurement import ArraySource
from ptymesh.physics.object_models.amplitude_phase import FAINTEST, AmplitudePhase
from ptymesh.problem import Batch
from ptymesh.run.loop import Loop
from ptymesh.run.state import RunState
from toy import Toy, make, smooth
from value_runs import outcome, same_bits, simulated

MODEL = AmplitudePhase()
OBJECT: dict[str, Any] = {"kind": "amplitude_phase", "absorption": 0.0}


def toy_of(slices: int = 1, turns: float = 7.0, depth: float = 0.3) -> tuple[Toy, torch.Tensor]:
    """A scan of smooth phases of up to `turns` rad, of another smooth absorption of up to `depth`, and V."""
    toy = make(slices=slices, views=60, window=(32, 32))
    e = toy.truth

    def field(seed: int) -> torch.Tensor:
        drawn = torch.as_tensor(smooth(tuple(e.object.shape), 5.0, np.random.default_rng(seed)))
        low, high = drawn.amin((1, 2), keepdim=True), drawn.amax((1, 2), keepdim=True)
        return (drawn - low) / ((high - low) * slices)

    values = torch.complex(turns * field(8), depth * field(9))
    e.object = MODEL.transmission(values, 0.0)
    y, x = np.mgrid[:32, :32] - 16.0
    probe = np.exp(-(y**2 + x**2) / 72) * np.exp(0.04j * (y**2 + x**2))
    e.probe = torch.as_tensor(100 * probe / np.linalg.norm(probe))[None]
    views = torch.arange(len(e.positions))
    data = toy.model.intensity(e.object, e.probe, e.anchors, e.fractions(views), e.weights).numpy()
    return replace(toy, measurement=replace(toy.measurement, patterns=ArraySource(data))), values


def begun(toy: Toy) -> Estimate:
    """The true probe, and vacuum."""
    start = toy.start(probe_error=0.0)
    start.object_kind, start.object_values = "amplitude_phase", torch.zeros_like(start.object)
    return start


def test_an_exact_step_follows_turns_and_absorption() -> None:
    v = torch.tensor([7.0 + 0.5j, -9.0 - 0.2j, 3.0 + 1.0j], dtype=torch.complex128)
    wanted = v + torch.tensor([3.0 + 2.0j, -3.0 - 1.0j, 0.5j])
    moved = MODEL.followed(v, MODEL.transmission(wanted, 0.0), 0.0)
    torch.testing.assert_close(moved, wanted, rtol=1e-12, atol=1e-12)
    dark = MODEL.followed(v, torch.zeros_like(v), 0.0)
    torch.testing.assert_close(dark.imag, torch.full((3,), -np.log(FAINTEST), dtype=torch.float64))


@pytest.mark.parametrize("slices", [1, 3])
def test_slopes_by_phase_and_absorption_are_finite_differences(slices: int) -> None:
    toy, truth = toy_of(slices)
    problem, start = toy.problem(), begun(toy)
    assert start.object_values is not None
    start.object_values.copy_(0.7 * truth)
    start.object.copy_(MODEL.transmission(start.object_values, 0.0))
    problem.begin_epoch(start)
    batch, engine = Batch(np.arange(20)), Adam()
    slope = engine.gradient(problem, start, batch, {"object"}).parts["object"].slope
    assert slope.shape == (*truth.shape, 2)

    def loss(change: torch.Tensor) -> float:
        moved = MODEL.transmission(0.7 * truth + torch.view_as_complex(change), 0.0)
        return float(engine.gradient(problem, replace(start, object=moved), batch, {"object"}).value)

    for part in (0, 1):
        direction = torch.randn(slope.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        direction[..., 1 - part] = 0
        direction[..., part] += slope[..., part] * (direction.norm() / slope[..., part].norm())
        wanted = (loss(1e-4 * direction) - loss(-1e-4 * direction)) / 2e-4
        assert float((slope * direction).sum()) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("slices", "name", "options"),
    [
        (1, "lsqml", {"epochs": 40, "batch": 20, "order": "compact", "momentum": True}),
        (1, "adam", {"epochs": 40, "batch": 6}),
        (1, "rpie", {"epochs": 60, "batch": 6, "alpha": 0.1}),
        (1, "lbfgs", {"epochs": 80}),
        (3, "adam", {"epochs": 12, "batch": 6}),
    ],
)
def test_more_than_a_turn_is_found_without_unwrapping(slices: int, name: str, options: dict[str, Any]) -> None:
    """Beside an absorption; engines that move the transmission leave a few pixels in a thousand a turn off."""
    toy, truth = toy_of(slices)
    problem, state = toy.problem(), RunState(begun(toy))
    Loop(problem, state, [ENGINES[name](probe={"frozen": 1000}, **options)], seed=1).run()
    found = state.estimate
    assert found.object_values is not None and problem.residual(found)[0] < 3e-3
    problem.begin_epoch(found)
    light = problem.evaluator.illumination(found)
    lit = light > 0.1 * light.max()
    apart = (found.object_values - truth).sum(0)[lit]
    phases = apart.real - apart.real.median()
    right = phases.abs() < np.pi
    assert (~right).double().mean() < (0.003 if name in ("rpie", "lsqml") else 1e-9)
    assert phases[right].square().mean().sqrt() < 0.5 and apart.imag.square().mean().sqrt() < 0.07
    total = found.object_values.sum(0).real[lit]
    assert slices > 1 or float(total.quantile(0.99) - total.quantile(0.01)) > 4
    torch.testing.assert_close(found.object, MODEL.transmission(found.object_values, 0.0))


LIMITED: dict[str, Any] = {
    "positions": {"gain": 1},
    "object": {"smooth": True, "phase": {"high": 3.0}, "amplitude": {"high": 1.0}},
    "probe": {"power": True},
    "constraints": {"total_variation": True, "positivity": True, "field_of_view": True},
}


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("engine", "stage"),
    [
        ("rpie", LIMITED),
        ("adam", {"coarsen": 2}),
        ("lsqml", {"order": "compact"}),
        ("rpie", {"coarsen": 2}),
        ("adam", {}),
        ("lbfgs", {}),
    ],
)
def test_ranks_and_layouts_end_with_the_same_bits(ranks: Any, engine: str, stage: dict[str, Any]) -> None:
    how = {"stage": stage, "object": OBJECT}
    one = outcome(Solo(), "replicated", engine, how)
    assert abs(one["potential"].imag).max() > 1e-3
    for size, layout in ((2, "replicated"), (3, "tiled")):
        for other in ranks(size, outcome, layout, engine, how):
            same_bits(one, other)


def test_object_modes_have_values_each(ranks: Any) -> None:
    how = {"object": {**OBJECT, "modes": 2}}
    one = outcome(Solo(), "replicated", "adam", how)
    assert len(one["potential"]) == 2 and np.iscomplexobj(one["potential"])
    np.testing.assert_allclose(one["result"][0], one["potential"].real.mean(0), atol=1e-6)
    same_bits(one, ranks(2, outcome, "tiled", "adam", how)[1])


@pytest.mark.parametrize(("engine", "stage"), [("rpie", {}), ("adam", {"coarsen": 2})])
def test_a_run_that_was_stopped_goes_on_with_the_same_bits(
    ranks: Any, tmp_path: Path, engine: str, stage: dict[str, Any]
) -> None:
    how = {"stage": stage, "object": OBJECT}
    one = outcome(Solo(), "replicated", engine, how)
    ranks(2, outcome, "tiled", engine, {"folder": tmp_path, "stop": 6, **how})
    same_bits(one, outcome(Solo(), "replicated", engine, {"folder": tmp_path, **how}))
    with pytest.raises(BadInput, match="The checkpoint holds an amplitude_phase"):
        outcome(Solo(), "replicated", engine, {"folder": tmp_path})


def test_the_file_holds_phases_and_transmission(ranks: Any, tmp_path: Path) -> None:
    """And another run, of this kind or of a potential, starts from both."""
    path = tmp_path / "result.h5"
    found = ranks(2, outcome, "tiled", "rpie", {"result": path, "object": OBJECT})[0]
    result = pm.Result.load(path)
    assert result.potential is not None and not np.iscomplexobj(result.potential)
    np.testing.assert_array_equal(result.potential, found["potential"].real)
    np.testing.assert_array_equal(result.object, found["object"])
    np.testing.assert_allclose(result.object, abs(result.object) * np.exp(1j * result.phase), atol=1e-6)
    assert result.attrs["object_kind"] == "amplitude_phase" and "absorption" not in result.attrs
    for kind, wanted in (("amplitude_phase", found["potential"]), ("potential", result.potential)):
        again = pm.Reconstruction(simulated(), object={"kind": kind, "initial": str(path)}, device="cpu")
        assert again.state.estimate.object_values is not None
        np.testing.assert_allclose(again.state.estimate.object_values.numpy(), wanted, atol=1e-6)


def test_an_array_is_unwrapped_and_its_amplitude_kept(tmp_path: Path) -> None:
    y, x = np.mgrid[:120, :120] - 60.0
    bump = np.exp(-(y**2 + x**2) / 200)
    np.save(tmp_path / "start.npy", np.exp(1j * (9 + 0.5j) * bump)[None])
    options = {"kind": "amplitude_phase", "initial": str(tmp_path / "start.npy")}
    found = pm.Reconstruction(simulated(), object=options, device="cpu").state.estimate.object_values
    assert found is not None
    assert float(found.real.max()) == pytest.approx(9, abs=1e-3) and float(found.real.min()) == pytest.approx(
        0, abs=1e-3
    )
    assert float(found.imag.max()) == pytest.approx(0.5, abs=1e-3)


def test_each_constraint_acts_on_its_part() -> None:
    toy, _ = toy_of()
    problem, start = toy.problem(), begun(toy)
    problem.begin_epoch(start)
    values = start.object_values
    assert values is not None
    values[:, 40:60, 40:60], values[:, 30:35, 30:35] = 8.0 - 0.4j, -2.0 + 0.3j
    start.object.copy_(MODEL.transmission(values, 0.0))
    Adam(constraints={"positivity": {"baseline": None}}).apply_constraints(problem, start, 1)
    assert values[0, 50, 50] == 8 - 0.4j and values[0, 32, 32] == 0.3j
    Adam(object={"amplitude": {"high": 1.0}}).apply_constraints(problem, start, 1)
    torch.testing.assert_close(values[0, 50, 50], torch.tensor(8 + 0j, dtype=values.dtype), rtol=0, atol=1e-12)
    assert values[0, 32, 32] == 0.3j
    Adam(object={"phase": {"high": 5.0}}).apply_constraints(problem, start, 1)
    assert float(values.real.max()) == 5 and values[0, 32, 32] == 0.3j
    torch.testing.assert_close(start.object, MODEL.transmission(values, 0.0))
    for name, given, absorbed in (
        ("complex_ratio", {"ratio": 0.1}, 0.1 * 5),
        ("mirrored_amplitude", {"scale": 0.01, "power": 2}, 0.01 * 25),
    ):
        Adam(constraints={name: given}).apply_constraints(problem, start, 1)
        assert complex(values[0, 50, 50]) == pytest.approx(5 + 1j * absorbed, abs=1e-9), "beyond half a turn"
        torch.testing.assert_close(start.object, MODEL.transmission(values, 0.0))


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        (pm.RPIE(object={"ramp": True}), "object.ramp is of phases between"),
        (pm.Adam(parametrisation="amplitude_phase"), "parametrisation amplitude_phase is of a transmission"),
        (pm.Adam(unknowns={"absorption": True}), "absorption is not of an object that is an amplitude_phase"),
        (pm.DM(), "dm cannot move an amplitude_phase"),
    ],
)
def test_what_has_no_meaning_is_refused(engine: Engine, said: str) -> None:
    toy, _ = toy_of()
    with pytest.raises(BadInput, match=said):
        Loop(toy.problem(), RunState(begun(toy)), [engine], seed=1)
