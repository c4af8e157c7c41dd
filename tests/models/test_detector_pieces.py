"""What holds for every piece between intensities and counts: adjoints, derivatives, revised waves, ranks, files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import ptymesh as pm
from ptymesh.engines import ENGINES, LBFGS, LSQML, RPIE, Adam, sweeping
from ptymesh.engines.autodiff_function import intensities
from ptymesh.errors import BadInput
from ptymesh.io.results import Result
from ptymesh.models import OPTICS, DetectorPiece
from ptymesh.physics import fidelity
from ptymesh.physics.detector.pieces import Response
from ptymesh.physics.fidelity import FIDELITIES, Data
from ptymesh.physics.operators import Placed, Tables, Values
from ptymesh.problem import Batch
from ptymesh.recipe.schema import Recipe
from toy import Toy, make, share

NAMES = [name for name, kind in OPTICS.items() if issubclass(kind, DetectorPiece)]
#: Those with unknowns that engines move.
MOVING = [name for name in NAMES if any(not one.is_fixed for one in OPTICS[name].unknowns)]
#: Options of those that do nothing without.
OPTIONS: dict[str, dict[str, Any]] = {
    "detector_transfer": {"pixel_side": 0.7, "table": ((0, 1), (0.5, 0.7))},
    "detector_saturation": {"level": 40.0},
}
#: Geometries of those that do next to nothing in that of the toy.
GEOMETRIES: dict[str, dict[str, Any]] = {"tilted_surface": {"distance_m": 4e-3, "surface_deg": (0.0, 50.0)}}
KINDS = ("amplitude", "poisson", "intensity")


class Same(DetectorPiece):
    """It does nothing."""

    name: ClassVar[str] = "same"

    def forward(self, S: Tensor, values: Values, tables: Tables) -> Tensor:
        return S

    def adjoint(self, x: Tensor, values: Values, tables: Tables) -> Tensor:
        return x


def uniform(*shape: int, seed: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def case(name: str, **options: Any) -> tuple[Toy, dict[str, Tensor]]:
    """A toy whose model has the piece, and values of its unknowns that are not where they start."""
    toy = make(modes=2, **options)
    geometry = replace(toy.measurement.geometry, **GEOMETRIES.get(name, {}))
    toy.measurement = replace(toy.measurement, geometry=geometry)
    piece: Any = OPTICS[name](**OPTIONS.get(name, {})).for_scan(toy.measurement)[0]
    placed = Placed.of(piece, geometry, torch.complex128, "cpu")
    if piece.binning > 1:  # the toy's window is the model's
        scan = toy.measurement
        sums = piece.forward(torch.from_numpy(scan.patterns.read(np.arange(scan.views))), {}, ())
        toy.measurement = replace(scan, patterns=sums.numpy(), mask=np.ones(sums.shape[1:], bool))
        toy.truth.background = piece.forward(toy.truth.background, {}, ())
    toy.model = replace(toy.model, detector=(placed,))
    sizes = toy.truth.sizes() | toy.model.axes(toy.truth.window)
    values = {}
    for number, one in enumerate(placed.operator.unknowns):
        off = 0.4 * placed.sizes[one.name] * (0.5 + uniform(*one.shape(sizes), seed=number))
        values[one.name] = piece.start.get(one.name, one.start) + off
    return toy, values


def response_of(toy: Toy, values: dict[str, Tensor]) -> Response:
    return Response(toy.model.detector, values)


@pytest.mark.parametrize("name", NAMES)
def test_adjoint_and_sign(name: str) -> None:
    toy, values = case(name)
    response = response_of(toy, values)
    S = uniform(3, 24, 28, seed=1) ** 8
    x = uniform(*response.apply(S).shape, seed=2) - 0.5
    there, back = (response.apply(S) * x).sum(), (S * response.adjoint(x)).sum()
    assert abs(there - back) < 1e-12 * there.abs()
    assert response.signal(S).min() >= 0
    assert torch.equal(response.apply(S)[1:2], response.apply(S[1:2])), "a view's bits do not depend on the others"


@pytest.mark.parametrize("name", MOVING)
def test_derivatives_by_its_unknowns(name: str) -> None:
    toy, values = case(name)
    S = uniform(3, 24, 28, seed=1)
    found = response_of(toy, values).derivatives(S)
    assert found.keys() == values.keys()
    for one, change in found.items():
        assert values[one].ndim == 0, "write the test for arrays"
        step = 1e-5
        moved = [values | {one: values[one] + sign * step} for sign in (1, -1)]
        ends = [toy.model.signal(S, at) + toy.model.counts_without_light(torch.zeros(()), at) for at in moved]
        assert torch.allclose(change, (ends[0] - ends[1]) / (2 * step), atol=1e-8)


@pytest.mark.parametrize("kind", FIDELITIES)
def test_revised_waves_without_effect_are_those_of_the_fidelity(kind: Any) -> None:
    toy = make()
    response = Response((Placed.of(Same(), toy.measurement.geometry, torch.complex128, "cpu"),), {})
    S, y, good = uniform(3, 24, 28, seed=1), uniform(3, 24, 28, seed=2), uniform(24, 28, seed=3) < 0.8
    data = Data.of(y, good, 0.1 * torch.ones(24, 28, dtype=torch.float64), torch.float64)
    wanted = fidelity.revision(kind, S, data)
    assert torch.allclose(fidelity.revision_through(kind, response, S, data), wanted, rtol=1e-12)


@pytest.mark.parametrize("kind", FIDELITIES)
@pytest.mark.parametrize("name", NAMES)
def test_revised_waves_lower_the_loss(name: str, kind: Any) -> None:
    """Down to less than a tenth of where it starts; with amplitudes, step after step.

    Pixels with next to all light of one point can be darkened for good by a step of the intensity: half is asked then.
    """
    toy, values = case(name)
    response = response_of(toy, values)
    S = uniform(3, 24, 28, seed=1) ** 4 + 1e-3
    sides = response.apply(S).shape[1:]
    good = uniform(*sides, seed=3) < 0.8
    background = toy.model.counts_without_light(torch.full(sides, 0.05, dtype=torch.float64), values)
    y = response.signal(uniform(3, 24, 28, seed=2) ** 4) + background
    data = Data.of(y, good, background, torch.float64)
    least = fidelity.value(kind, y - background, data)
    losses = [fidelity.value(kind, response.signal(S), data) - least]
    for _ in range(30):
        S = S * fidelity.revision_through(kind, response, S, data) ** 2
        losses.append(fidelity.value(kind, response.signal(S), data) - least)
    losses = torch.stack(losses)
    rises = (losses[1:] - losses[:-1]).amax(1)
    assert float((rises if kind in ("amplitude", "anscombe") else rises[:1]).max()) < 1e-9 * float(losses[0].max())
    points = torch.eye(24 * 28, dtype=torch.float64).reshape(-1, 24, 28)
    alone = kind == "intensity" and float(response.apply(points).amax() / response.apply(S * 0 + 1).amax()) > 0.9
    left = 0.5 if alone else 0.15 if kind == "anscombe" else 0.1  # its 3/8 of a count is much beside counts below 1
    assert bool((losses[-1] < left * losses[0]).all())


@pytest.mark.sample(19)
@pytest.mark.parametrize("engine", [{}, {"loss": "nrmse"}, {"averaged": 0.1}, *({"fidelity": kind} for kind in KINDS)])
@pytest.mark.parametrize("name", NAMES)
def test_slopes_of_the_loss(name: str, engine: dict[str, Any]) -> None:
    """By probe, background and its own unknowns, against central differences of the loss."""
    toy, values = case(name, background=0.5, views=6)
    toy.model = replace(toy.model, fidelity=engine.get("fidelity", "amplitude"))
    problem, e = toy.problem(), toy.start()
    e.others = {n: v.clone() for n, v in values.items()}
    e.background = e.background + 0.3
    problem.begin_epoch(e)
    values = {n: v for n, v in values.items() if name in MOVING}
    batch, wanted = Batch(np.arange(6)), {"probe", "background", *values}
    engine_ = Adam(**engine)
    found = engine_.gradient(problem, e, batch, wanted)
    for name_, step in (("probe", 1e-4), ("background", 1e-4), *((n, 1e-5) for n in values)):
        array = e[name_]
        real = torch.view_as_real(array) if array.is_complex() else array
        direction = torch.randn(real.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
        ends = []
        for sign in (1, -1):
            real += sign * step * direction
            ends.append(float(engine_.gradient(problem, e, batch, {"probe"}).value))
            real -= sign * step * direction
        got = float((found.parts[name_].slope * direction).sum())
        assert got == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=3e-4), name_


def test_intensities_of_a_users_own_model_go_through_it() -> None:
    toy, values = case("detector_blur", views=4)
    problem, e = toy.problem(), toy.start()
    e.others = values
    problem.begin_epoch(e)
    (chunk,) = problem.loader.chunks(e, np.arange(4))
    wanted = toy.model.intensity(e.object, e.probe, chunk.anchors, chunk.fractions, values=chunk.values)
    probe = e.probe.clone().requires_grad_()
    I = intensities(problem.model, chunk, e.object, probe)
    assert torch.allclose(I, wanted, rtol=1e-10)
    weights = uniform(*I.shape, seed=3)
    (I * weights).sum().backward()
    direction = torch.randn(e.probe.shape, generator=torch.Generator().manual_seed(4), dtype=torch.complex128)
    ends = [
        (weights * intensities(problem.model, chunk, e.object, e.probe + sign * 1e-4 * direction)).sum()
        for sign in (1, -1)
    ]
    assert probe.grad is not None
    got = float((probe.grad.conj() * direction).real.sum())
    assert got == pytest.approx(float(ends[0] - ends[1]) / 2e-4, rel=1e-6)


def blurred(name: str) -> tuple[Toy, dict[str, Tensor]]:
    """Counts that the piece has made, and the true values of its unknowns."""
    toy, values = case(name)
    e, every = toy.truth, torch.arange(len(toy.truth.positions))
    made = toy.model.intensity(
        e.object, e.probe, e.anchors, e.fractions(every), e.weights, e.background, values=values
    ).numpy()
    toy.measurement = replace(toy.measurement, patterns=type(toy.measurement.patterns)(made))
    return toy, values


def refined(world: Any, name: str, layout: str, engine: str) -> list[np.ndarray]:
    """Object, probe and the piece's unknowns after some batches."""
    toy, values = blurred(name)
    problem = toy.problem(world, layout)
    e = share(toy.start(), problem)
    e.others = OPTICS[name]().starts(e.sizes(), "cpu", torch.float64)
    on = dict.fromkeys(values, True)
    kinds = {
        "adam": Adam(unknowns={"object": True, "probe": True, **on}),
        "lbfgs": LBFGS(),
        "rpie": RPIE(unknowns=on),
        "lsqml": LSQML(unknowns=on),
    }
    made = kinds[engine]
    made.check(problem)
    problem.begin_epoch(e)
    made.before_epoch(problem, e)
    for number in range(4):
        gains = made.due_unknowns(1)
        batch = Batch(np.arange(len(e.positions))[number::4], pieces=frozenset(gains))
        made.step(problem, e, batch)
        sweeping.after_batch(problem, e, batch, gains)
    whole = problem.layout.gather_whole(e.object, e)
    return [x.numpy().copy() for x in (whole, e.probe, *e.others.values())]


@pytest.mark.sample(3)
@pytest.mark.parametrize("engine", ["adam", "lbfgs", "rpie", "lsqml"])
@pytest.mark.parametrize("name", MOVING)
def test_ranks_and_layouts_have_the_same_bits(ranks, name: str, engine: str) -> None:  # type: ignore[no-untyped-def]
    wanted = ranks(1, refined, name, "replicated", engine)[0]
    assert wanted[2] != OPTICS[name].unknowns[0].start
    for size in (2, 3):
        for layout in ("replicated", "tiled"):
            for found in ranks(size, refined, name, layout, engine):
                assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True)), (size, layout)


@pytest.mark.sample(3)
@pytest.mark.parametrize("engine", ["adam", "rpie"])
@pytest.mark.parametrize("name", MOVING)
def test_a_run_keeps_it(name: str, engine: str, tmp_path: Path) -> None:
    """Recipe, checkpoint and result know of it: a run that was stopped and goes on ends with the same bits."""
    toy, values = blurred(name)
    scan, on = toy.measurement, dict.fromkeys(values, True)
    on = {"object": True, "probe": True, **on} if engine == "adam" else on
    stage = {"engine": engine, "epochs": 4, "batch": 20, "unknowns": on}
    recipe = Recipe.parse({"data": {"path": "scan.cxi"}, "optics": {name: True}, "stages": [stage]})
    again = Recipe.from_yaml(recipe.to_yaml())
    assert again.optics == recipe.optics and again.stages == recipe.stages
    whole = pm.Reconstruction(scan, precision="double", optics={name: True}, seed=1)
    list(whole.run(stage))
    whole.result(recipe.to_yaml()).save(tmp_path / "result.h5")
    read = Result.load(tmp_path / "result.h5")
    assert all(np.array_equal(read.unknowns[n], whole.state.estimate.others[n].numpy()) for n in values)

    from ptymesh.io.checkpoint import store as checkpoint

    half = pm.Reconstruction(scan, precision="double", optics={name: True}, seed=1)
    half.stages = [ENGINES[engine](**{k: v for k, v in stage.items() if k != "engine"})]
    for report in half.loop().epochs():
        if report.epoch == 2:
            half.state.save(tmp_path / "checkpoint", half.problem, {})
            break
    saved = checkpoint.load(tmp_path / "checkpoint")
    resumed = pm.Reconstruction(scan, precision="double", optics={name: True}, seed=1, saved=saved)
    resumed.stages = half.stages
    list(resumed.loop().epochs())
    for n in values:
        assert torch.equal(resumed.state.estimate.others[n], whole.state.estimate.others[n])
        assert not torch.equal(resumed.state.estimate.others[n], torch.tensor(0.5, dtype=torch.float64))
    assert torch.equal(resumed.state.estimate.object, whole.state.estimate.object)


def test_what_cannot_be_is_refused() -> None:
    scan = make(views=6).measurement
    with pytest.raises(BadInput, match=r"unknowns names blurwidth, which no piece of the model declares"):
        RPIE.parse({"unknowns": {"blurwidth": True}}, "stages.0")
    with pytest.raises(BadInput, match=r"optics\.detector_blur starts blur_width with values beyond its bounds"):
        pm.Reconstruction(scan, optics={"detector_blur": {"start": {"blur_width": 0}}})
    recon = pm.Reconstruction(scan, optics={"detector_blur": True})
    with pytest.raises(BadInput, match=r"blur_width of optics\.detector_blur would stay as it starts; add unknowns: "):
        list(recon.run(RPIE(epochs=1)))
    with pytest.raises(BadInput, match="add a stage of rpie, lsqml or adam with unknowns"):
        list(recon.run(pm.DM(epochs=1)))
    with pytest.raises(BadInput, match=r"cg does not know optics\.detector_blur"):
        list(recon.run(pm.CG(epochs=1)))
    plain = pm.Reconstruction(scan)
    with pytest.raises(BadInput, match=r"unknowns\.blur_width belongs to optics\.detector_blur, which the recipe does"):
        list(plain.run(RPIE(epochs=1, unknowns={"blur_width": True})))
