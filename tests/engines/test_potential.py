"""Objects that are potentials: slopes, truths of several turns, what is refused, and what constraints do to them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

import ptymesh as pm
from ptymesh.distributed.world import Solo, World
from ptymesh.engines import ENGINES, Adam, Engine
from ptymesh.errors import BadInput
from ptymesh.estimate import Estimate
from ptymesh.geometry import electron_interaction, electron_wavelength_m
from ptymesh.io.checkpoint import store as checkpoint
from ptymesh.measurement import ArraySource
from ptymesh.physics.object_models.potential import Potential
from ptymesh.problem import Batch
from ptymesh.recipe.schema import Recipe
from ptymesh.recipe.starts import ObjectOptions
from ptymesh.run.loop import Loop
from ptymesh.run.state import RunState
from toy import Toy, make, smooth
from value_runs import outcome, same_bits, simulated

ABSORPTION = 0.1
POTENTIAL = Potential()


def toy_of(
    slices: int = 1, turns: float = 6.0, absorption: float = 0.0, vacuum: float = 0.0, **options: Any
) -> tuple[Toy, torch.Tensor]:
    """A scan of a smooth potential between 0 and `turns` rad in all, 0 below a share of this range, and it."""
    toy = make(slices=slices, views=60, window=(32, 32), **options)
    shape, e = tuple(toy.truth.object.shape), toy.truth
    values = torch.as_tensor(smooth(shape, 5.0, np.random.default_rng(8)))
    low, high = values.amin((1, 2), keepdim=True), values.amax((1, 2), keepdim=True)
    potential = (turns / slices) * ((values - low) / (high - low) - vacuum).clamp(min=0)
    e.object = POTENTIAL.transmission(potential, absorption)
    y, x = np.mgrid[:32, :32] - 16.0
    probe = np.exp(-(y**2 + x**2) / 72) * np.exp(0.04j * (y**2 + x**2))
    e.probe = torch.as_tensor(100 * probe / np.linalg.norm(probe))[None]
    views = torch.arange(len(e.positions))
    data = toy.model.intensity(e.object, e.probe, e.anchors, e.fractions(views), e.weights).numpy()
    return replace(toy, measurement=replace(toy.measurement, patterns=ArraySource(data))), potential


def begun(toy: Toy, absorption: float = 0.0) -> Estimate:
    """The true probe, and a potential of zero."""
    start = toy.start(probe_error=0.0)
    start.object_kind, start.absorption = "potential", absorption
    start.object_values = torch.zeros_like(start.object.real)
    return start


def run(toy: Toy, engine: Engine, absorption: float = 0.0) -> tuple[Estimate, float]:
    problem, state = toy.problem(), RunState(begun(toy, absorption))
    Loop(problem, state, [engine], seed=1).run()
    return state.estimate, problem.residual(state.estimate)[0]


def error(toy: Toy, found: Estimate, truth: torch.Tensor) -> float:
    """Root mean square error (rad) of the sum over slices where light is, without its mean."""
    assert found.object_values is not None
    problem = toy.problem()
    problem.begin_epoch(found)
    light = problem.evaluator.illumination(found)
    lit = light > 0.1 * light.max()
    apart = (found.object_values.sum(0) - truth.sum(0))[lit]
    return float((apart - apart.mean()).square().mean().sqrt())


def test_a_change_of_the_transmission_is_followed_to_first_order() -> None:
    rng = torch.Generator().manual_seed(1)
    v, dv = (torch.randn(2, 5, 7, generator=rng, dtype=torch.float64) for _ in range(2))
    step = 1e-5
    for absorption in (0.0, 0.3):
        moved = POTENTIAL.followed(v, POTENTIAL.transmission(v + step * dv, absorption), absorption)
        torch.testing.assert_close((moved - v) / step, dv, rtol=1e-4, atol=1e-4)
    assert torch.equal(POTENTIAL.followed(v, POTENTIAL.transmission(v, 0.3), 0.3), v)


def test_what_no_potential_can_follow_leaves_it_where_it_is() -> None:
    """A change of the amplitude alone, without absorption."""
    v = torch.linspace(-9, 9, 50, dtype=torch.float64)
    torch.testing.assert_close(POTENTIAL.followed(v, 1.3 * POTENTIAL.transmission(v, 0.0), 0.0), v, rtol=0, atol=1e-14)


@pytest.mark.parametrize("slices", [1, 3])
@pytest.mark.parametrize("absorption", [0.0, ABSORPTION])
def test_slopes_by_the_potential_are_finite_differences(slices: int, absorption: float) -> None:
    toy, truth = toy_of(slices, absorption=absorption)
    problem, start = toy.problem(), begun(toy, absorption)
    assert start.object_values is not None
    start.object_values.copy_(0.7 * truth)
    start.object.copy_(POTENTIAL.transmission(start.object_values, absorption))
    problem.begin_epoch(start)
    batch, engine = Batch(np.arange(20)), Adam()
    found = engine.gradient(problem, start, batch, {"object"})
    rng = torch.Generator().manual_seed(2)
    direction = torch.randn(truth.shape, generator=rng, dtype=torch.float64)

    def loss(step: float) -> float:
        assert start.object_values is not None
        moved = POTENTIAL.transmission(start.object_values + step * direction, absorption)
        return float(engine.gradient(problem, replace(start, object=moved), batch, {"object"}).value)

    slope, step = found.parts["object"].slope, 1e-4
    direction += slope * (direction.norm() / slope.norm())
    wanted = (loss(step) - loss(-step)) / (2 * step)
    assert float((slope * direction).sum()) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("slices", [1, 3])
def test_the_slope_by_the_absorption_is_a_finite_difference(slices: int) -> None:
    toy, truth = toy_of(slices, absorption=ABSORPTION)
    problem, start = toy.problem(), begun(toy, 0.04)
    assert start.object_values is not None
    start.object_values.copy_(0.9 * truth)
    start.object.copy_(POTENTIAL.transmission(start.object_values, 0.04))
    problem.begin_epoch(start)
    batch, engine = Batch(np.arange(20)), Adam()

    def loss(absorption: float) -> float:
        moved = POTENTIAL.transmission(0.9 * truth, absorption)
        return float(engine.gradient(problem, replace(start, object=moved), batch, {"probe"}).value)

    part = engine.gradient(problem, start, batch, {"absorption"}).parts["absorption"]
    wanted = (loss(0.04 + 1e-5) - loss(0.04 - 1e-5)) / 2e-5
    assert float(part.slope) == pytest.approx(wanted, rel=1e-5)
    assert wanted < 0 < float(part.scale), "towards the truth"


@pytest.mark.long
def test_an_absorption_that_nobody_knows_is_found() -> None:
    """Where a part of the sample is vacuum, which tells how much light there was."""
    toy, _ = toy_of(absorption=ABSORPTION, turns=6.0, vacuum=0.5)
    options: dict[str, Any] = {"epochs": 40, "batch": 6, "probe": {"frozen": 1000}}
    found, residual = run(toy, Adam(**options, unknowns={"absorption": True}), 0.0)
    _, without = run(toy, Adam(**options), 0.0)
    assert found.absorption == pytest.approx(ABSORPTION, rel=0.1)
    assert residual < 0.02 * without
    assert found.object_values is not None
    torch.testing.assert_close(found.object, POTENTIAL.transmission(found.object_values, found.absorption))


def test_along_is_the_adjoint_of_the_change() -> None:
    rng = torch.Generator().manual_seed(3)
    v, dv = (torch.randn(4, 6, generator=rng, dtype=torch.float64) for _ in range(2))
    x = torch.randn(4, 6, generator=rng, dtype=torch.complex128)
    obj = POTENTIAL.transmission(v, ABSORPTION)
    change = (1j - ABSORPTION) * obj * dv
    assert float((change.conj() * x).real.sum()) == pytest.approx(
        float((dv * POTENTIAL.slope(v, obj, x, ABSORPTION)).sum())
    )


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("slices", "name", "options"),
    [
        (1, "rpie", {"epochs": 60, "batch": 6, "alpha": 0.1}),
        (1, "lsqml", {"epochs": 60, "batch": 20, "order": "compact", "momentum": True}),
        (1, "adam", {"epochs": 50, "batch": 6}),
        (1, "lbfgs", {"epochs": 80}),
        (3, "lsqml", {"epochs": 40, "batch": 20, "order": "compact", "momentum": True}),
        (3, "adam", {"epochs": 12, "batch": 6}),
    ],
)
def test_more_than_a_turn_is_found_without_unwrapping(slices: int, name: str, options: dict[str, Any]) -> None:
    toy, truth = toy_of(slices, turns=8.0)
    found, residual = run(toy, ENGINES[name](probe={"frozen": 1000}, **options))
    assert found.object_values is not None
    total = found.object_values.sum(0)
    assert residual < 3e-3
    assert error(toy, found, truth) < 0.3
    if slices == 1:
        assert float(total.max() - total.min()) > 2 * np.pi
    torch.testing.assert_close(found.object, POTENTIAL.transmission(found.object_values, 0.0))


@pytest.mark.long
def test_a_known_absorption_makes_the_amplitude(tmp_path: Path) -> None:
    toy, truth = toy_of(absorption=ABSORPTION, turns=3.0)
    options: dict[str, Any] = {"epochs": 40, "batch": 6, "probe": {"frozen": 1000}}
    with_it, residual = run(toy, Adam(**options), ABSORPTION)
    _, without = run(toy, Adam(**options), 0.0)
    assert residual < 0.1 * without
    # the mean is no gauge here: a potential that is nowhere zero dims the beam
    assert with_it.object_values is not None and error(toy, with_it, truth) < 0.1


def test_a_coarse_stage_comes_as_far_as_a_fine_one() -> None:
    """On half the detector's pixels each way; the transmission is that of the potential afterwards, too."""
    toy, truth = toy_of(absorption=ABSORPTION)
    options: dict[str, Any] = {"epochs": 8, "batch": 6, "probe": {"frozen": 1000}}
    found, _ = run(toy, Adam(**options, coarsen=2), ABSORPTION)
    fine, _ = run(toy, Adam(**options), ABSORPTION)
    assert found.object_values is not None
    grown = torch.zeros_like(found.object_values)  # to whole coarse blocks, behind its end
    grown[:, : truth.shape[1], : truth.shape[2]] = truth
    assert error(toy, found, grown) < 1.1 * error(toy, fine, truth) < 0.8 * error(toy, begun(toy), truth)
    torch.testing.assert_close(found.object, POTENTIAL.transmission(found.object_values, ABSORPTION))


# --- ranks, layouts, resuming ---


CONSTRAINED: dict[str, Any] = {
    "positions": {"gain": 1},
    "object": {"smooth": True, "phase": {"high": 3.0}},
    "constraints": {"total_variation": True, "positivity": True, "field_of_view": True},
}


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("engine", "stage"),
    [
        ("rpie", {}),
        ("adam", {"coarsen": 2}),
        ("lsqml", {"order": "compact"}),
        ("rpie", {"coarsen": 2}),
        ("adam", {}),
        ("adam", {"unknowns": {"absorption": True}}),
        ("rpie", CONSTRAINED),
    ],
)
def test_ranks_and_layouts_end_with_the_same_bits(ranks: Any, engine: str, stage: dict[str, Any]) -> None:
    how = {"stage": stage}
    one = outcome(Solo(), "replicated", engine, how)
    for size, layout in ((2, "replicated"), (3, "tiled")):
        for other in ranks(size, outcome, layout, engine, how):
            same_bits(one, other)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("engine", "stage"),
    [("rpie", {}), ("adam", {}), ("adam", {"coarsen": 2}), ("adam", {"unknowns": {"absorption": True}})],
)
def test_a_run_that_was_stopped_goes_on_with_the_same_bits(
    ranks: Any, tmp_path: Path, engine: str, stage: dict[str, Any]
) -> None:
    one = outcome(Solo(), "replicated", engine, {"stage": stage})
    ranks(2, outcome, "tiled", engine, {"folder": tmp_path, "stop": 6, "stage": stage})
    same_bits(one, outcome(Solo(), "replicated", engine, {"folder": tmp_path, "stage": stage}))
    with pytest.raises(BadInput, match="The checkpoint holds a potential"):
        outcome(Solo(), "replicated", engine, {"folder": tmp_path, "object": {"kind": "transmission", "absorption": 0}})


def test_a_checkpoint_that_names_the_potential_alone_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As versions wrote it to which a potential was the only object with values."""
    whole = checkpoint.save

    def save_as_before(directory: Path, world: World, arrays: Any, meta: dict[str, Any]) -> None:
        tiles = {{"object_values": "potential"}.get(name, name): tile for name, tile in arrays.tiles.items()}
        counters = {name: value for name, value in meta["run"].items() if name != "object_kind"}
        whole(directory, world, replace(arrays, tiles=tiles), {**meta, "run": counters})

    one = outcome(Solo(), "replicated", "adam", {})
    with monkeypatch.context() as patched:
        patched.setattr("ptymesh.io.checkpoint.store.save", save_as_before)
        outcome(Solo(), "replicated", "adam", {"folder": tmp_path, "stop": 6})
    same_bits(one, outcome(Solo(), "replicated", "adam", {"folder": tmp_path}))


# --- results and starts ---


def test_the_file_holds_potential_and_transmission(ranks: Any, tmp_path: Path) -> None:
    path = tmp_path / "result.h5"
    found = ranks(2, outcome, "tiled", "rpie", {"result": path})[0]
    result = pm.Result.load(path)
    assert result.potential is not None and result.potential_V_nm is not None
    np.testing.assert_array_equal(result.potential, found["potential"])
    np.testing.assert_array_equal(result.object, found["object"])
    np.testing.assert_array_equal(result.phase, result.potential)
    np.testing.assert_allclose(result.object, np.exp((1j - 0.05) * result.potential), atol=1e-6)
    assert result.attrs["absorption"] == 0.05
    with h5py.File(path) as file:
        assert file["potential"].attrs["unit"] == "rad"
    np.testing.assert_allclose(
        result.potential_V_nm * result.attrs["interaction_rad_per_V_nm"], result.potential, rtol=1e-6
    )
    again = pm.Reconstruction(
        simulated(), object={"kind": "potential", "absorption": 0.05, "initial": str(path)}, device="cpu"
    )
    assert again.state.estimate.object_values is not None
    np.testing.assert_allclose(again.state.estimate.object_values.numpy(), result.potential, atol=1e-6)


def test_electrons_of_200_keV_turn_by_7_mrad_per_volt_and_nanometre() -> None:
    """Kirkland's table: 0.00729 rad / (V nm); 300 keV: 0.00653."""
    for energy, wanted in ((200e3, 0.00729), (300e3, 0.00653)):
        assert electron_interaction(electron_wavelength_m(energy)) * 1e-9 == pytest.approx(wanted, rel=2e-3)


def test_a_complex_start_is_unwrapped(tmp_path: Path) -> None:
    y, x = np.mgrid[:120, :120] - 60.0
    phase = 9 * np.exp(-(y**2 + x**2) / 200)
    np.save(tmp_path / "start.npy", np.exp(1j * phase)[None])
    options = {"kind": "potential", "initial": str(tmp_path / "start.npy")}
    potential = pm.Reconstruction(simulated(), object=options, device="cpu").state.estimate.object_values
    assert potential is not None
    assert float(potential.max()) == pytest.approx(9, abs=1e-3) and float(potential.min()) == pytest.approx(0, abs=1e-3)


# --- constraints, and what is refused ---


def test_constraints_act_on_the_potential_beyond_a_turn() -> None:
    """Positivity would take 8 rad, seen as a phase, for 1.7, and -2 rad for what it is."""
    toy, _ = toy_of()
    problem, start = toy.problem(), begun(toy)
    problem.begin_epoch(start)
    assert start.object_values is not None
    start.object_values[:, 40:60, 40:60] = 8.0
    start.object_values[:, 30:35, 30:35] = -2.0
    start.object.copy_(POTENTIAL.transmission(start.object_values, 0.0))
    engine = Adam(constraints={"positivity": {"baseline": None}})
    engine.apply_constraints(problem, start, 1)
    assert float(start.object_values.min()) == 0 and float(start.object_values.max()) == 8
    torch.testing.assert_close(start.object, POTENTIAL.transmission(start.object_values, 0.0))
    Adam(object={"phase": {"high": 5.0}}).apply_constraints(problem, start, 1)
    assert float(start.object_values.max()) == 5
    start.object_values += 0.5
    Adam(constraints={"field_of_view": True}).apply_constraints(problem, start, 1)
    assert float(start.object_values[0, 0, 0]) == 0


def test_recentring_moves_the_potential_and_keeps_intensities() -> None:
    toy, potential = toy_of(slices=6, turns=9.0)
    problem, e = toy.problem(), begun(toy)
    problem.begin_epoch(e)
    assert e.object_values is not None
    e.object_values[4:] = potential[4:]  # the specimen is in the last two slices
    e.object.copy_(POTENTIAL.transmission(e.object_values, 0.0))
    views = torch.arange(len(e.positions))
    before = toy.model.intensity(e.object, e.probe, e.anchors, e.fractions(views), e.weights)
    Adam(constraints={"depth_recentring": True}).apply_constraints(problem, e, 1)
    assert torch.equal(e.object_values[2:4], potential[4:]) and not e.object_values[[0, 1, 4, 5]].any()
    assert e.parameters["depth_recentring"]["defocus_m"] == pytest.approx(2 * e.slice_spacing_m)
    torch.testing.assert_close(e.object, POTENTIAL.transmission(e.object_values, 0.0))
    after = toy.model.intensity(e.object, e.probe, e.anchors, e.fractions(views), e.weights)
    torch.testing.assert_close(after, before, rtol=0, atol=1e-8 * float(before.max()))


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        (pm.RPIE(object={"scale": True}), "object.scale changes amplitudes"),
        (pm.RPIE(object={"ramp": True}), "object.ramp changes amplitudes or turns phases"),
        (pm.RPIE(object={"amplitude": {"high": 1.0}}), "object.amplitude changes amplitudes"),
        (pm.RPIE(constraints={"complex_ratio": True}), "constraints.complex_ratio changes amplitudes"),
        (pm.RPIE(constraints={"mirrored_amplitude": True}), "constraints.mirrored_amplitude changes amplitudes"),
        (pm.Adam(parametrisation="phase"), "parametrisation phase is of a transmission"),
        *((ENGINES[name](), f"{name} cannot move a potential") for name in ("dm", "raar", "ap", "mpie", "cg", "bh")),
    ],
)
def test_what_has_no_meaning_for_a_potential_is_refused(engine: Engine, said: str) -> None:
    toy, _ = toy_of()
    with pytest.raises(BadInput, match=said):
        Loop(toy.problem(), RunState(begun(toy)), [engine], seed=1)


def test_absorption_belongs_to_a_potential() -> None:
    with pytest.raises(BadInput, match="absorption is not of a transmission"):
        ObjectOptions.parse({"absorption": 0.1}, "object")


def test_stages_of_a_potential_are_found_or_default() -> None:
    values: dict[str, Any] = {"data": {"path": "scan.h5"}, "object": {"kind": "potential"}}
    assert len(Recipe.parse({**values, "stages": "default"}).stages) == 2
    assert Recipe.parse({**values, "stages": "auto"}).auto is not None


def test_an_absorption_of_a_transmission_is_refused() -> None:
    recon = pm.Reconstruction(simulated(), device="cpu")
    with pytest.raises(BadInput, match=r"unknowns\.absorption is not of an object that is a transmission") as refused:
        list(recon.run(Adam(epochs=1, unknowns={"absorption": True})))
    assert "\n" not in str(refused.value)
