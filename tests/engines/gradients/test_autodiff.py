"""Gradient engines: slopes of every unknown against finite differences; losses, regularisers, scales and units."""

import math
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from ptymesh import registry
from ptymesh.distributed.world import Solo, World
from ptymesh.engines import ENGINES, EPIE, SGD, Adam
from ptymesh.engines.gradients import regularisers
from ptymesh.engines.gradients.autodiff import Autodiff
from ptymesh.engines.gradients.losses import LOSSES, OfFunction
from ptymesh.engines.gradients.regularisers import COMPARING, REGULARISERS
from ptymesh.engines.gradients.sweep import pixels_under_windows
from ptymesh.errors import BadInput, Interrupted
from ptymesh.estimate import Estimate
from ptymesh.io.checkpoint import store as checkpoint
from ptymesh.physics import fidelity
from ptymesh.physics.fidelity import Data
from ptymesh.problem import Batch, Problem
from ptymesh.run.loop import Loop
from ptymesh.run.state import RunState
from toy import Toy, make, relative, share

BATCH = Batch(np.arange(0, 12, 2))
STEP = 1e-6


def copy(e: Estimate) -> Estimate:
    return replace(e, **{k: v.clone() for k, v in vars(e).items() if isinstance(v, Tensor)})


def disturbed(toy: Toy) -> Estimate:
    """Away from the truth, so that no slope vanishes; with a background and two OPR modes."""
    rng = torch.Generator().manual_seed(1)
    e = toy.start()
    e.object += 0.1 * torch.randn(e.object.shape, generator=rng, dtype=e.object.dtype)
    e.background += 1.0
    e.opr = 0.3 * e.probe[:1].flip(0, 1).repeat(2, 1, 1) * torch.tensor([1, 1j])[:, None, None]
    shares = 0.3 * torch.randn(len(e.weights), 2, generator=rng, dtype=torch.float64)
    e.weights = torch.cat((e.weights, shares), dim=1)
    return e


def value(engine: Autodiff, problem: Problem, e: Estimate, batch: Batch = BATCH) -> float:
    return float(engine.gradient(problem, e, batch, {"object"}).value)


def absolute(intensity: Tensor, counts: Tensor) -> Tensor:
    """A user's own loss."""
    return torch.sqrt((intensity.sqrt() - counts.sqrt()) ** 2 + 0.1)


SLOPES = {
    "amplitude": dict(),
    "poisson": dict(fidelity="poisson"),
    "anscombe": dict(fidelity="anscombe", averaged=0.5),
    "intensity, two slices": dict(fidelity="intensity", case=dict(slices=2)),
    "three slices, tilted": dict(case=dict(slices=3, tilt_rad=(8e-3, -5e-3))),
    "nrmse": dict(loss="nrmse", power=0.3),
    "own loss": dict(loss=absolute),
    "averaged": dict(averaged=3.0, fidelity="poisson"),
    "phase": dict(parametrisation="phase", case=dict(subpixel="bilinear")),
    "amplitude and phase, near field": dict(
        parametrisation="amplitude_phase", case=dict(propagation="angular_spectrum")
    ),
    "tv and l1": dict(regularisers=[{"kind": "tv", "weight": 0.3}, {"kind": "l1", "weight": 0.1}]),
    "similar slices": dict(regularisers=[{"kind": "similar_slices", "weight": 0.3}], case=dict(slices=3)),
}


@pytest.mark.parametrize("name", SLOPES)
def test_slopes(name: str) -> None:
    """Of object, amplitude, probe, OPR modes, background, slice spacing and tilt: d value / d leaf = unit x slope."""
    options = dict(SLOPES[name])
    case = options.pop("case", {})
    toy = make(views=12, window=(16, 18), modes=2, varying=True, counts=3e3, **case)
    engine, problem, e = Adam(**options), toy.problem(), disturbed(toy)
    problem.model = replace(problem.model, fidelity=engine.fidelity)
    problem.begin_epoch(e)
    engine.before_epoch(problem, e)
    wanted = {"object", "amplitude", "probe", "opr", "background"} | (
        {"slice_spacing", "tilt"} if case.get("slices") else set()
    )
    parts = engine.gradient(problem, e, BATCH, wanted).parts
    assert parts.keys() == wanted - ({"amplitude"} if engine.parametrisation != "amplitude_phase" else set())
    rng = torch.Generator().manual_seed(2)
    for unknown, part in parts.items():
        one = {unknown: part}
        leaf = engine.leaves(e, one)
        direction = torch.randn(part.slope.shape, generator=rng, dtype=torch.float64)
        if unknown == "object":
            direction[:, ~pixels_under_windows(e)] = 0  # pixels that no window covers are no unknowns
        values = []
        for sign in (1, -1):
            moved = copy(e)
            engine.write(problem, moved, {unknown: leaf[unknown] + sign * STEP * direction}, one)
            values.append(value(engine, problem, moved))
        numeric = (values[0] - values[1]) / (2 * STEP)
        # cancellation in a loss of order 1 limits central differences to some digits
        assert numeric == pytest.approx(float((part.slope * part.unit * direction).sum()), rel=1e-4, abs=1e-9), unknown
        assert bool((part.scale > 0).all())


def test_slopes_of_positions_and_weights_are_normalised() -> None:
    """Each is the derivative over twice the view's own ||d psi||^2, of beams before they are shifted."""
    toy = make(views=12, window=(16, 18), modes=2, varying=True, counts=3e3)
    engine, problem, e = Adam(), toy.problem(), disturbed(toy)
    problem.begin_epoch(e)
    batch = Batch(np.array([3, 7]), refine=True)
    parts = engine.gradient(problem, e, batch, {"positions", "weights"}).parts
    (chunk,) = problem.loader.chunks(e, batch.views)
    intermediates = problem.evaluator.forward(e, chunk)
    counts = chunk.data.y.sum()
    given = problem.model, chunk, intermediates, e.probe, e.opr
    moves, parts_of_beam = problem.backend.position_derivative_norms(*given), problem.backend.mode_norms(*given)
    for unknown, column, norms in [
        ("positions", 1, moves[:, 1]),
        ("weights", 0, parts_of_beam[:, 0]),
        ("weights", 2, parts_of_beam[:, 2]),
    ]:
        for row, view in enumerate(batch.views):
            values = []
            for sign in (1, -1):
                changed = copy(e)
                getattr(changed, unknown)[view, column] += sign * STEP
                values.append(value(engine, problem, changed, batch))
            numeric = (values[0] - values[1]) / (2 * STEP)
            slope = float(parts[unknown].slope[view, column] * 2 * norms[row] / counts)
            assert numeric == pytest.approx(slope, rel=1e-4, abs=1e-9), (unknown, column)
    assert int((parts["positions"].slope != 0).any(1).sum()) == 2


@pytest.mark.parametrize("name", list(REGULARISERS))
def test_regularisers(name: str) -> None:
    """Zero on vacuum, positive elsewhere, slope as finite differences say, none outside of the pixels under windows."""
    rng = torch.Generator().manual_seed(3)
    obj = 1 + 0.3 * torch.randn(2, 20, 24, generator=rng, dtype=torch.complex128)
    where = torch.zeros(20, 24, dtype=torch.bool)
    where[3:15, 2:20] = True
    pixels = 2 * where.sum()

    def penalty(obj: torch.Tensor) -> tuple[float, torch.Tensor]:
        densities, slope = regularisers.gradient([(REGULARISERS[name], 0.7)], obj, where, pixels)
        return float(densities.sum() / pixels), slope

    assert penalty(torch.ones_like(obj))[0] == 0
    found, slope = penalty(obj)
    assert found > 0
    slope = slope * where  # differences reach a pixel beyond
    assert found == pytest.approx(0.7 * float(REGULARISERS[name](obj)[:, where].mean()))
    direction = torch.randn(obj.shape, generator=rng, dtype=obj.dtype) * where
    ahead, behind = (penalty(obj + s * STEP * direction)[0] for s in (1, -1))
    along = float((slope.conj() * direction).real.sum())
    assert (ahead - behind) / (2 * STEP) == pytest.approx(along, rel=1e-6)


def test_regularisers_mean_what_they_say() -> None:
    edge = torch.ones(1, 8, 8, dtype=torch.complex128)
    edge[..., 4:] = 1 + 0.5j
    assert float(regularisers.tv(edge).sum()) == pytest.approx(8 * 0.5, rel=5e-3)
    assert float(regularisers.smoothness(edge).sum()) == pytest.approx(8 * 0.25)
    assert float(regularisers.l1(edge).sum()) == pytest.approx(32 * 0.5, rel=5e-3)
    assert float(regularisers.l2(edge).sum()) == pytest.approx(32 * 0.25)
    assert float(regularisers.sparsity(edge).sum()) == pytest.approx(32 * np.arctan(0.5), rel=5e-3)


def test_similar_planes_cost_what_they_differ_by() -> None:
    """Two modes of two slices, which differ by a constant each; single pixels count less after a blur."""
    obj = torch.ones(4, 24, 24, dtype=torch.complex128)
    obj[0] += 0.3j  # the first mode's first slice against its second, and against the second mode's
    obj[3] += 0.5
    slices, modes = (f(obj, slices=2, blur_px=1.0)[:, 12, 12] for f in COMPARING.values())
    assert slices.tolist() == pytest.approx([0.15, 0.15, 0.25, 0.25], abs=1e-3)
    assert modes.tolist() == pytest.approx([0.15, 0.25, 0.15, 0.25], abs=1e-3)
    whole = regularisers.similar_slices(obj, blur_px=0.0)[:, 12, 12]
    assert whole.tolist() == pytest.approx([float(obj[:, 12, 12].std(correction=0))] * 4, abs=1e-3)
    obj = torch.ones(2, 24, 24, dtype=torch.complex128)
    obj[0, 12, 12] += 100  # so much that roots are not rounded
    sums = [float(regularisers.similar_slices(obj, blur_px=blur).square().sum()) for blur in (0.0, 1.0, 2.0)]
    power = [100**2 / 2 * share for share in (1, 1 / (4 * math.pi), 1 / (16 * math.pi))]  # the Gaussians' own
    assert sums == pytest.approx(power, rel=0.01)


def similar(world: World, layout: str, engine: str, kind: str, weight: float) -> Tensor:
    """The whole object, three slices of two modes each, after four batches with a regulariser; weight 0: without."""
    toy = make(slices=3, object_modes=2, views=30, uneven=True, dtype=torch.complex64)
    problem = toy.problem(world, layout)
    state = RunState(share(toy.start(), problem))
    terms = [{"kind": kind, "weight": weight, "blur_px": 1.5}] if weight else []
    batch = None if engine == "lbfgs" else 15
    Loop(problem, state, [ENGINES[engine](epochs=2, batch=batch, regularisers=terms)]).run()
    return problem.layout.gather_whole(state.estimate.object, state.estimate)


@pytest.mark.parametrize("engine", ["adam", "lbfgs"])
@pytest.mark.parametrize("kind", COMPARING)
def test_similar_planes_differ_less(kind: str, engine: str) -> None:
    found = [similar(Solo(), "replicated", engine, kind, weight) for weight in (0, 3.0)]
    without, with_it = (float(COMPARING[kind](obj, slices=3, blur_px=1.5).mean()) for obj in found)
    assert with_it < 0.8 * without


@pytest.mark.sample(1)
@pytest.mark.parametrize("engine", ["adam", "lbfgs"])
@pytest.mark.parametrize("kind", COMPARING)
def test_similar_planes_on_ranks(ranks, kind: str, engine: str) -> None:  # type: ignore[no-untyped-def]
    one = similar(Solo(), "replicated", engine, kind, 0.3)
    for size, layout in ((2, "replicated"), (2, "tiled"), (3, "tiled")):
        for other in ranks(size, similar, layout, engine, kind, 0.3):
            assert torch.equal(other, one), (size, layout)


def test_a_comparison_given_as_a_function_is_the_one_of_its_name() -> None:
    (given,) = Adam(regularisers=[{"kind": regularisers.similar_modes, "weight": 1, "blur_px": 0.5}]).regularisers
    assert given.kind == "similar_modes" and given.blur_px == 0.5


@pytest.mark.parametrize("engine", ["adam", "lbfgs"])
def test_planes_that_cannot_be_compared_are_refused(engine: str) -> None:
    for kind, key in (("similar_slices", "slices"), ("similar_modes", "modes")):
        stage = ENGINES[engine](regularisers=[{"kind": kind, "weight": 1}])
        with pytest.raises(BadInput, match=f"{kind} compares {key} of the object, and there is one; set object.{key}"):
            stage.check(make().problem())
        stage.check(make(slices=2, object_modes=2).problem())


def test_covered_pixels() -> None:
    e = make(views=7).truth
    expected = torch.zeros(e.object.shape[-2:], dtype=torch.bool)
    for y, x in e.anchors.tolist():
        expected[y : y + 24, x : x + 28] = True
    assert torch.equal(pixels_under_windows(e), expected)


def test_own_loss_is_the_same_as_the_built_in_one() -> None:
    rng = torch.Generator().manual_seed(4)
    S, y = torch.rand(2, 3, 6, 7, generator=rng, dtype=torch.float64) * 5
    good = torch.ones(6, 7, dtype=torch.bool)
    good[2, 3] = False
    data = Data(torch.where(good, y, 0.0), good.expand_as(y), torch.full((6, 7), 0.5, dtype=torch.float64))
    own = OfFunction(lambda intensity, counts: counts * torch.log(counts / intensity) + intensity - counts)
    assert torch.allclose(own.slope(S, data), fidelity.slope("poisson", S, data), rtol=1e-12)
    assert bool(torch.isfinite(own.sums(S, data)).all())


def test_functions_by_name() -> None:
    @LOSSES.register("mine")
    def mine(intensity: Tensor, counts: Tensor) -> Tensor:
        return (intensity - counts).abs()

    @regularisers.register("amplitude 1")
    def flat(obj: Tensor) -> Tensor:
        return (obj.abs() - 1) ** 2

    engine = Adam(loss=mine, regularisers=[{"kind": flat, "weight": 1}, {"kind": absolute, "weight": 1}])
    dumped = engine.model_dump(mode="json")
    assert dumped["loss"] == "mine" and dumped["regularisers"][0]["kind"] == "amplitude 1"
    assert dumped["regularisers"][1]["kind"].endswith(":absolute")
    assert Adam(**Adam(loss="mine").model_dump(mode="json")).loss == "mine"
    with pytest.raises(ValueError, match="already"):
        LOSSES.register("mine")(absolute)
    again = Adam(**engine.model_dump())
    assert again.loss is mine and again.regularisers[1].density is absolute


def test_functions_of_installed_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    def offered(group: str) -> list[EntryPoint]:
        return [EntryPoint("theirs", "ptymesh.engines.gradients.regularisers:l2", group)]

    monkeypatch.setattr(registry, "entry_points", offered)
    assert Adam(regularisers=[{"kind": "theirs", "weight": 1}]).regularisers[0].density is regularisers.l2
    with pytest.raises(BadInput, match="there are l1, l2, tv, smoothness, sparsity"):
        Adam(regularisers=[{"kind": "xyz", "weight": 1}])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(loss="nrms"), "did you mean nrmse"),
        (dict(power=0.5), "belongs to loss nrmse"),
        (dict(averaged=1, fidelity="intensity"), "cannot be added to intensity"),
        (dict(regularisers=[{"kind": "tw", "weight": 1}]), "did you mean tv"),
        (dict(regularisers=[{"kind": "tv", "weight": 0}]), "greater than 0"),
        (dict(regularisers=[{"kind": "tv", "weight": 1, "blur_px": 1}]), "belongs to similar_slices and similar_modes"),
        (dict(regularisers=[{"kind": "similar_modes", "weight": 1, "blur_px": 3}]), "less than or equal to 2"),
        (
            dict(regularisers=[{"kind": "similar_modes", "weight": 1, "of": "object_change"}]),
            "similar_modes compares planes of the object",
        ),
        (dict(parametrisation="polar"), "amplitude_phase"),
        (dict(unknowns={"amplitude": {"lr": 0.1}}), "no meaning with parametrisation complex"),
        (dict(unknowns={"positions": True}), "needs positions: {gain: 1}"),
        (dict(unknowns={"positions": True}, positions=True), "needs positions: {gain: 1}"),
        (dict(unknowns={"weights": True}), "probe.opr"),
        (dict(unknowns={"object": False, "probe": False}), "nothing to move"),
        (dict(lr=-1), "greater than 0"),
        (dict(betas=[0.9, 1.0]), "less than 1"),
    ],
)
def test_options_are_checked(options: dict, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        Adam(**options)


def first_batch(engine: Autodiff | EPIE, toy: Toy, start: Estimate) -> Estimate:
    e, problem = copy(start), toy.problem()
    problem.begin_epoch(e)
    engine.before_epoch(problem, e)
    engine.step(problem, e, Batch(np.arange(0, 40, 3)))
    return e


def test_gradient_descent_at_rate_1_is_epie() -> None:
    toy = make(modes=2)
    found, expected = (first_batch(engine, toy, toy.start()) for engine in (SGD(lr=1), EPIE()))
    assert relative(found.object, expected.object) < 1e-13 and relative(found.probe, expected.probe) < 1e-13


@pytest.mark.parametrize("options", [dict(), dict(fidelity="intensity"), dict(loss="nrmse"), dict(fidelity="poisson")])
def test_one_learning_rate_means_the_same_at_every_dose(options: dict) -> None:
    results = []
    for counts in (1e4, 4e6):
        toy = make(counts=counts, fidelity=options.get("fidelity", "amplitude"))
        results.append(first_batch(SGD(lr=0.5, **options), toy, toy.start()))
    assert relative(results[0].object, results[1].object) < 1e-12
    assert relative(results[0].probe * 20, results[1].probe) < 1e-12


def test_a_parametrisation_keeps_its_object() -> None:
    toy = make()
    flat = first_batch(Adam(parametrisation="phase"), toy, toy.start()).object
    assert float((flat.abs() - 1).abs().max()) < 1e-12
    free = first_batch(Adam(parametrisation="amplitude_phase"), toy, toy.start()).object
    assert float((free.abs() - 1).abs().max()) > 1e-3
    assert float((free.abs() - 1).abs().max()) > 1e-3
    kept = first_batch(
        Adam(parametrisation="amplitude_phase", unknowns={"amplitude": {"start": 2}}), toy, toy.start()
    ).object
    assert float((kept.abs() - 1).abs().max()) < 1e-12


def test_what_nobody_lights_stays_where_it_is() -> None:
    """Outside of all windows to the bit; where windows are dark, the less it is lit, the less it moves."""
    toy = make(views=5)
    terms = [{"kind": "tv", "weight": 1}, {"kind": "l2", "weight": 1}]
    start = toy.start()
    start.object *= 0.9
    e, problem = copy(start), toy.problem()
    problem.begin_epoch(e)
    engine = Adam(lr=0.1, regularisers=terms)
    engine.before_epoch(problem, e)
    for _ in range(5):
        engine.step(problem, e, Batch(np.arange(5)))
    outside = ~pixels_under_windows(e)
    assert bool(outside.any()) and torch.equal(e.object[:, outside], start.object[:, outside])
    assert not torch.equal(e.object[:, ~outside], start.object[:, ~outside])


def test_where_windows_are_dark_the_object_stays_too() -> None:
    """Adam's own eps would move every pixel that has any gradient at all by the whole learning rate."""
    toy = make(subpixel="none")
    start = toy.start()
    lit = start.probe[0].abs() > 0.1 * start.probe.abs().max()
    start.probe[:, ~lit] *= 1e-6
    light = toy.problem().evaluator.illumination(start)
    dark = pixels_under_windows(start) & (light < 1e-9 * light.max())
    assert bool(dark.any())
    moved = {
        eps: float((first_batch(Adam(lr=0.1, eps=eps), toy, start).object - 1)[:, dark].abs().max())
        for eps in (1e-8, Adam().eps)
    }
    assert moved[1e-8] > 0.05 and moved[Adam().eps] < 1e-3


def regularised(world: World, folder: str, stop: int = 0) -> Tensor:
    """The whole object after three epochs; stopped before batch `stop`, or from a checkpoint that is there."""
    toy = make(views=30)
    problem = toy.problem(world, "tiled")
    if (Path(folder) / "manifest.json").exists():
        state = RunState.load(checkpoint.load(Path(folder)), problem)
    else:
        state = RunState(share(toy.start(), problem))
    asked = iter(range(1, 1000))
    engine = Adam(epochs=3, batch=8, regularisers=[{"kind": "tv", "weight": 0.3}])
    loop = Loop(problem, state, [engine], stop=lambda: next(asked) == stop)
    loop.save = lambda: state.save(Path(folder), problem, {})
    with suppress(Interrupted):
        loop.run()
    return problem.layout.gather_whole(state.estimate.object, state.estimate)


def test_regularisers_go_on_within_an_epoch(ranks, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """On other ranks than before, whose parts of the object are others."""
    wanted = regularised(Solo(), str(tmp_path / "none"))
    ranks(2, regularised, str(tmp_path / "some"), 6)
    for found in ranks(3, regularised, str(tmp_path / "some")):
        assert torch.equal(found, wanted)
