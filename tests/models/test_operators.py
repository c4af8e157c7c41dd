"""What holds for every operator of the model, found by being in the package: adjoints, derivatives, ranks, files.

Nothing but OPTIONS names one of them; the tests of a single one are beside its name.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ptymesh as pm
from ptymesh import models
from ptymesh.engines import BH, CG, LBFGS, LSQML, RPIE, Adam, sweeping
from ptymesh.errors import BadInput
from ptymesh.io.results import Result
from ptymesh.models import OPTICS, WaveOperator, declared
from ptymesh.physics.model import Intermediates, Model
from ptymesh.physics.operators import Placed, ViewWindows, values_for_views
from ptymesh.physics.window_shifts import derivative
from ptymesh.problem import Batch
from ptymesh.recipe.schema import Recipe
from ptymesh.registry import register_classes
from ptymesh.unknowns import Unknown
from toy import Toy, make, relative, share

NAMES = [name for name, kind in OPTICS.items() if issubclass(kind, WaveOperator)]
#: Of those that need some; the scan is of 50 nm pixels, with no lines.
OPTIONS: dict[str, dict[str, Any]] = {"fly_scan": {"path": [1e-7, 5e-8], "points": 3}, "mode_mixing": {"rank": 2}}


#: Of the toys of those that are for other scans than those of one slice in a far field.
TOYS: dict[str, dict[str, Any]] = {"view_distance": {"propagation": "angular_spectrum"}, "view_tilt": {"slices": 3}}


#: Objects of those that are for several slices.
OBJECTS: dict[str, dict[str, Any]] = {"view_tilt": {"slices": 3, "slice_spacing_m": 2e-5}}
#: Angles of the surface in the toys of those that are for one.
SURFACES = {"surface_propagation": (0.0, 40.0), "tilted_waves": (0.0, 40.0)}


def randn(*shape: int, seed: int, dtype: torch.dtype = torch.complex128) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def noise(shape: tuple[int, ...], one: Unknown, seed: int) -> torch.Tensor:
    """Of the unknown's kind."""
    return randn(*shape, seed=seed, dtype=torch.complex128 if one.complex else torch.float64)


def case(name: str, seed: int = 0, **options: Any) -> tuple[Toy, dict[str, torch.Tensor]]:
    """A toy whose model has the operator, and values of its unknowns that are not where they start."""
    toy = make(modes=2, **{**TOYS.get(name, {}), **options})
    leaning = replace(toy.measurement.geometry, surface_deg=SURFACES.get(name, (0.0, 0.0)))
    toy.measurement = replace(toy.measurement, geometry=leaning)
    operator = OPTICS[name](**OPTIONS.get(name, {}))
    placed = Placed.of(operator, toy.measurement.geometry, torch.complex128, "cpu")
    toy.model = replace(toy.model, operators=(placed,))
    sizes = toy.truth.sizes() | toy.model.axes(toy.truth.window)
    values, starts = {}, operator.start_values(toy.measurement)
    for number, one in enumerate(operator.unknowns):
        off = noise(one.shape(sizes), one, seed + number)
        values[one.name] = torch.as_tensor(starts.get(one.name, one.start)) + 0.3 * toy.model.sizes[one.name] * off
    return toy, values


def moving(name: str) -> set[str]:
    """Names of its unknowns that engines can move."""
    return {one.name for one in OPTICS[name].unknowns if not one.is_fixed}


def chunk_of(toy: Toy, values: dict[str, torch.Tensor], views: int = 5) -> tuple[Intermediates, torch.Tensor, Model]:
    some = torch.arange(views)
    e, model = toy.truth, toy.model
    placed = ViewWindows(some, e.anchors[:views], e.window)
    given = {one.name: values_for_views(one, values[one.name], placed, None) for one in model.unknowns}
    fractions = e.fractions(some)
    windows = model.windows(e.object, e.anchors[:views], fractions, e.window)
    return model.forward(windows, model.probes(e.probe, fractions, e.weights[:views]), given), fractions, model


@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_the_adjoint_of_the_whole_model(name: str, slices: int) -> None:
    """<d psi, chi> by probe and object is <dP, to probes> and <dO, to windows>."""
    toy, values = case(name, slices=slices)
    waves, _, model = chunk_of(toy, values)
    assert waves.exit.shape[1] == 2 * model.fan_out and waves.probes is not None
    chi, d_probes, d_windows = (
        randn(*x.shape, seed=7 + i) for i, x in enumerate((waves.exit, waves.probes, waves.windows))
    )
    to_windows, to_probes = model.forward_adjoint(waves, chi)
    for change, other, found in (
        (model.exit_change(waves, d_probes, None), d_probes, to_probes),
        (model.exit_change(waves, None, d_windows), d_windows, to_windows),
    ):
        assert (
            abs(torch.vdot(change.flatten(), chi.flatten()) - torch.vdot(other.flatten(), found.flatten()))
            < 1e-10 * float(chi.abs().square().sum() * change.abs().square().sum()) ** 0.5
        )


@pytest.mark.parametrize("name", NAMES)
def test_derivatives_by_its_unknowns(name: str) -> None:
    """Against central differences of the exit wave, of every unknown, view by view."""
    toy, values = case(name)
    waves, _, model = chunk_of(toy, values)
    chi = randn(*waves.exit.shape, seed=9)
    found = model.operator_slopes(waves, chi)
    assert found.keys() >= moving(name) and values.keys() == {one.name for one in model.unknowns}
    for one in (one for one in model.unknowns if one.name in moving(name)):
        step = 1e-4 * model.sizes[one.name]
        direction = noise(values[one.name].shape, one, seed=11)
        there, back = (
            chunk_of(toy, values | {one.name: values[one.name] + sign * step * direction})[0].exit for sign in (1, -1)
        )
        wanted = ((there - back) / (2 * step) * chi.conj()).real.sum((1, 2, 3))
        placed = ViewWindows(torch.arange(len(chi)), toy.truth.anchors[: len(chi)], toy.truth.window)
        along = values_for_views(one, direction, placed, None)
        slope, norm = found[one.name]
        got = (slope * along.conj()).real.reshape(len(chi), -1).sum(1)
        assert torch.allclose(got, wanted, rtol=1e-5, atol=1e-6 * float(wanted.abs().max()))
        assert bool((norm >= 0).all()) and bool((norm > 0).any())


@pytest.mark.parametrize("name", NAMES)
def test_positions_go_through_it(name: str) -> None:
    toy, values = case(name)
    waves, fractions, model = chunk_of(toy, values)
    e, some, step = toy.truth, torch.arange(5), 1e-5
    for axis in (0, 1):
        exits = []
        for sign in (1, -1):
            moved = fractions.clone()
            moved[:, axis] += sign * step
            exits.append(model.forward(waves.windows, model.probes(e.probe, moved, e.weights[some]), waves.values).exit)
        wanted = (exits[0] - exits[1]) / (2 * step)
        if model.kernel is not None:  # the detector's image moves back with the probe
            wanted = wanted + derivative(waves.exit, axis)
        assert relative(model.position_derivative(e.object, e.anchors[some], fractions, waves, axis), wanted) < 1e-6


def told_wrong(name: str, **options: Any) -> tuple[Toy, dict[str, torch.Tensor]]:
    """Counts that the operator has made, and the true values of its unknowns."""
    toy, values = case(name, seed=3, **options)
    e, every = toy.truth, torch.arange(len(toy.truth.positions))
    placed = ViewWindows(every, e.anchors, e.window)
    given = {one.name: values_for_views(one, values[one.name], placed, None) for one in toy.model.unknowns}
    made = toy.model.intensity(
        e.object, e.probe, e.anchors, e.fractions(every), e.weights, e.background, values=given
    ).numpy()
    toy.measurement = replace(toy.measurement, patterns=type(toy.measurement.patterns)(made))
    return toy, values


def refined(world: Any, name: str, layout: str, engine: str, slices: int | None = None) -> list[np.ndarray]:
    """Object, probe and the operator's unknowns after some batches."""
    toy = told_wrong(name, **({} if slices is None else {"slices": slices}))[0]
    problem = toy.problem(world, layout)
    e = share(toy.start(), problem)
    operator = toy.model.operators[0].operator
    e.others = operator.starts(e.sizes(), "cpu", torch.float64)
    for told, value in operator.start_values(toy.measurement).items():
        e.others[told].copy_(torch.as_tensor(value))
    on = dict.fromkeys(moving(name), True)
    kinds = {
        "adam": Adam(unknowns={"object": True, "probe": True, **on}),
        "lbfgs": LBFGS(),
        "rpie": RPIE(unknowns=on),
        "lsqml": LSQML(unknowns=on),
    }
    made, frozen = kinds[engine], toy.model.replaced
    made.check(problem)
    problem.begin_epoch(e)
    made.before_epoch(problem, e)
    gains = made.due_unknowns(1)
    for number in range(4):
        views = np.arange(len(e.positions))[number::4]
        batch = Batch(views, False, 1, frozen=frozen, pieces=frozenset(gains))
        made.step(problem, e, batch)
        sweeping.after_batch(problem, e, batch, gains)
    tiled = {one.name for one in toy.model.tiled}
    others = [problem.layout.gather_whole(x, e) if name in tiled else x for name, x in e.others.items()]
    return [x.numpy().copy() for x in (problem.layout.gather_whole(e.object, e), e.probe, *others)]


@pytest.mark.sample(8)
@pytest.mark.parametrize("engine", ["adam", "lbfgs", "rpie", "lsqml"])
@pytest.mark.parametrize("name", NAMES)
def test_ranks_and_layouts_have_the_same_bits(ranks, name: str, engine: str) -> None:  # type: ignore[no-untyped-def]
    if engine in ("rpie", "lsqml") and OPTICS[name].replaces:
        pytest.skip("they move nothing there, and say so")
    wanted = ranks(1, refined, name, "replicated", engine)[0]
    toy, operator = told_wrong(name)[0], OPTICS[name](**OPTIONS.get(name, {}))
    told = operator.start_values(toy.measurement)
    for first in [one.name for one in operator.unknowns][:1]:
        start = np.asarray(told.get(first, operator.starts(toy.truth.sizes(), "cpu", torch.float64)[first].numpy()))
        assert bool((wanted[2] != start).any()), "all of them move it"
    for size in (2, 3):
        for layout in ("replicated", "tiled"):
            for found in ranks(size, refined, name, layout, engine):
                assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True)), (size, layout)


@pytest.mark.parametrize(
    ("name", "engine"),
    [("source_size", "adam"), ("view_defocus", "rpie"), ("tilted_waves", "lsqml"), ("view_tilt", "adam")],
)
def test_several_slices_have_the_same_bits(ranks, name: str, engine: str) -> None:  # type: ignore[no-untyped-def]
    """Kernels go slice by slice, before and behind which operators stand."""
    (wanted,) = ranks(1, refined, name, "replicated", engine, 3)
    for layout in ("replicated", "tiled"):
        for found in ranks(2, refined, name, layout, engine, 3):
            assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True)), layout


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", NAMES)
def test_a_run_keeps_it(name: str, tmp_path: Path) -> None:
    """Recipe, checkpoint and result know of it: a run that was stopped and goes on ends with the same bits."""
    toy, values = told_wrong(name)
    scan, on = toy.measurement, dict.fromkeys(moving(name), True)
    options: dict[str, Any] = {"precision": "double", "seed": 1, "probe_modes": 2 if name == "mode_mixing" else None}
    options |= {"object": OBJECTS[name]} if name in OBJECTS else {}
    optics = {name: OPTIONS.get(name, True)}
    stage = {"engine": "adam", "epochs": 4, "batch": 20, "unknowns": {"object": True, "probe": True, **on}}
    recipe = Recipe.parse({"data": {"path": "scan.cxi"}, "optics": optics, "stages": [stage]})
    again = Recipe.from_yaml(recipe.to_yaml())
    assert again.optics == recipe.optics and again.stages == recipe.stages
    whole = pm.Reconstruction(scan, optics=optics, **options)
    list(whole.run(stage))
    result = whole.result(recipe.to_yaml())
    result.save(tmp_path / "result.h5")
    read = Result.load(tmp_path / "result.h5")
    assert read.unknowns.keys() == values.keys()
    assert all(np.array_equal(read.unknowns[n], whole.state.estimate.others[n].numpy()) for n in values)

    from ptymesh.io.checkpoint import store as checkpoint

    half = pm.Reconstruction(scan, optics=optics, **options)
    half.stages = [Adam(**{k: v for k, v in stage.items() if k != "engine"})]
    for report in half.loop().epochs():
        if report.epoch == 2:
            half.state.save(tmp_path / "checkpoint", half.problem, {})
            break
    saved = checkpoint.load(tmp_path / "checkpoint")
    resumed = pm.Reconstruction(scan, optics=optics, saved=saved, **options)
    resumed.stages = half.stages
    list(resumed.loop().epochs())
    for n in values:
        assert torch.equal(resumed.state.estimate.others[n], whole.state.estimate.others[n])
    assert torch.equal(resumed.state.estimate.object, whole.state.estimate.object)
    if not values:
        return
    with pytest.raises(BadInput, match="which no optics of the recipe have; add them, or start anew"):
        pm.Reconstruction(scan, saved=saved, **options)
    with pytest.raises(BadInput, match="unknown/"):
        plain = pm.Reconstruction(scan, **options)
        list(plain.run(stage | {"unknowns": {"object": True}, "epochs": 1}))
        plain.state.save(tmp_path / "plain", plain.problem, {})
        pm.Reconstruction(scan, optics=optics, saved=checkpoint.load(tmp_path / "plain"), **options)


@pytest.mark.parametrize("name", NAMES)
def test_engines_that_do_not_know_operators_say_so(name: str) -> None:
    toy, _ = case(name)
    problem = toy.problem()
    for engine in (BH(), CG()):
        with pytest.raises(BadInput, match=rf"{engine.name} does not know optics\.{name}; use another engine"):
            engine.check(problem)
    if problem.model.replaced:
        with pytest.raises(BadInput, match=rf"lsqml would move nothing, as optics\.{name} takes the object's part"):
            LSQML().check(problem)
        with pytest.raises(BadInput, match=rf"Nothing would move: optics\.{name} takes the part of object, probe; add"):
            Adam().check(problem)
    else:
        LSQML().check(problem)
    for unknown in moving(name):
        with pytest.raises(
            BadInput, match=rf"unknowns.{unknown} belongs to optics.{name}, which the recipe does not have"
        ):
            Adam(unknowns={unknown: True}).check(make().problem())


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(BadInput, match=r"unknowns\.objekt is unknown; did you mean unknowns\.object\?"):
        Adam(unknowns={"objekt": True})
    with pytest.raises(BadInput, match=r"optics: .*'viewdefocus' is not an operator; did you mean view_defocus"):
        pm.Reconstruction(make().measurement, optics={"viewdefocus": True})
    with pytest.raises(BadInput, match="optics is 3; give a dict of operators"):
        pm.Reconstruction(make().measurement, optics=3)  # type: ignore[arg-type]


def test_a_file_of_the_package_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator is found by being in the package, and its unknown by being declared there."""
    (tmp_path / "dimmer.py").write_text(
        "from ptymesh.models import WaveOperator\n"
        "from ptymesh.unknowns import Unknown\n\n"
        "class Dimmer(WaveOperator):\n"
        "    name = 'dimmer'\n"
        "    unknowns = (Unknown('dimness', ('N',), 'view'),)\n"
    )
    monkeypatch.setattr(models, "__path__", [*models.__path__, str(tmp_path)])
    monkeypatch.setattr(OPTICS, "_own", dict(OPTICS._own))
    register_classes(OPTICS, models.Piece, models.__name__, models.__path__)
    assert "dimmer" in OPTICS and issubclass(OPTICS["dimmer"], WaveOperator)
    assert declared()["dimness"].operator == "dimmer"
    assert Adam(unknowns={"dimness": {"lr": 0.2}}).unknowns.moving()["dimness"].lr == 0.2
