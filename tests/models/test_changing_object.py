"""An object that changes during its scan, and what holds for any tiled unknown: layouts, growth, checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import ptymesh as pm
from ptymesh.distributed.world import Solo, World
from ptymesh.engines import ENGINES, LBFGS, LSQML, RPIE, Adam, Engine, positions
from ptymesh.engines.gradients.sweep import pixels_under_windows
from ptymesh.errors import BadInput
from ptymesh.io.checkpoint import store as checkpoint
from ptymesh.io.results import Result
from ptymesh.measurement import ArraySource, Measurement
from ptymesh.models import OPTICS, WaveOperator
from ptymesh.models.exit_wave.changing_object import ChangingObject, elapsed
from ptymesh.physics.detector.pieces import DetectorPiece
from ptymesh.physics.elementwise import overlap, times
from ptymesh.physics.model import Model
from ptymesh.physics.operators import Placed, Tables, Values, ViewWindows, values_for_views
from ptymesh.planning.plan import plan_layouts, scan_of
from ptymesh.problem import Batch
from ptymesh.recipe.starts import ObjectOptions, ProbeOptions
from ptymesh.run.loop import Loop
from ptymesh.run.simulate_file import write
from ptymesh.run.state import RunState
from ptymesh.simulate import checked
from ptymesh.unknowns import Unknown
from toy import Toy, make, share, smooth

ON = {"changing_object": True}
MOVED = {"object": True, "probe": True, "object_change": True}


class TwoFields(WaveOperator):
    """psi exp(s_j (a + i b)) with two real fields a, b: a tiled unknown of two planes."""

    name: ClassVar[str] = "two_fields"
    at: ClassVar[str] = "exit"  # type: ignore[assignment]
    unknowns: ClassVar[tuple[Unknown, ...]] = (
        Unknown("fields", ("2", "H", "W"), "tiled", outside=0.25, least=-1.0, largest=1.0),
        Unknown("share", ("N",), "view", is_fixed=True, may_rest=True),
    )

    def start_values(self, measurement: Measurement) -> Mapping[str, float | np.ndarray]:
        return {"share": np.cos(np.arange(measurement.views)), **self.start}

    def forward(self, psi: Tensor, values: Values, tables: Tables) -> Tensor:
        return times(psi, self._factors(values, 1))

    def adjoint(self, psi: Tensor, values: Values, tables: Tables) -> Tensor:
        return times(psi, self._factors(values, -1))

    def slopes(self, psi: Tensor, values: Values, tables: Tables, back: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        moved, s = self.forward(psi, values, tables), values["share"][:, None, None, None]
        turned = torch.complex(-moved.imag, moved.real)
        along = torch.stack([overlap(x, back).sum(1) for x in (moved, turned)], dim=1)
        norm = overlap(moved, moved).sum(1, keepdim=True).expand_as(along)
        return {"fields": (s * along, s * s * norm)}

    def _factors(self, values: Values, sign: int) -> Tensor:
        exponent = values["share"][:, None, None, None] * values["fields"]
        return torch.polar(exponent[:, :1].exp(), sign * exponent[:, 1:])


class OfCounts(DetectorPiece):
    """A piece between intensities and counts, which sees nothing of the object's pixels."""

    name: ClassVar[str] = "of_counts"
    unknowns: ClassVar[tuple[Unknown, ...]] = (Unknown("stain", ("H", "W"), "tiled"),)


def changing(views: int = 40, kind: type[WaveOperator] = ChangingObject, **options: Any) -> tuple[Toy, Tensor]:
    """A scan, in no order of places, of an object that changes, with noise, and the change."""
    toy, operator = make(views=views, **options), kind()
    toy.model = with_operator(toy, operator)
    e, rng = toy.truth, np.random.default_rng(3)
    a, b = (torch.as_tensor(0.5 * smooth((1, *e.extent), 4.0, rng)) for _ in range(2))
    change = torch.complex(-0.3 * a, b) if kind is ChangingObject else torch.cat((-0.3 * a, b))
    told = {name: torch.as_tensor(value) for name, value in operator.start_values(toy.measurement).items()}
    first, second = operator.unknowns
    every = torch.arange(views)
    windows, values = ViewWindows(every, e.anchors, e.window), {first.name: change, second.name: told[second.name]}
    given = {one.name: values_for_views(one, values[one.name], windows, None) for one in operator.unknowns}
    made = toy.model.intensity(e.object, e.probe, e.anchors, e.fractions(every), e.weights, values=given).numpy()
    toy.measurement = replace(toy.measurement, patterns=ArraySource(rng.poisson(made).astype(np.uint32)))
    return toy, change


def with_operator(toy: Toy, operator: WaveOperator) -> Model:
    placed = Placed.of(operator, toy.measurement.geometry, torch.complex128, "cpu")
    return replace(toy.model, operators=(placed,))


def started(toy: Toy, world: World, layout: str) -> tuple[Any, Any]:
    """A problem, and an estimate whose pieces' unknowns start where they say."""
    problem = toy.problem(world, layout)
    e, operator = share(toy.start(), problem), toy.model.operators[0].operator
    e.others = operator.starts(e.sizes(), "cpu", torch.float64)
    for name, value in operator.start_values(toy.measurement).items():
        e.others[name].copy_(torch.as_tensor(value))
    return problem, e


def test_the_share_that_has_passed_is_of_each_scan() -> None:
    assert elapsed(np.array([0, 0, 0, 1, 1, 2])).tolist() == [-0.5, 0.0, 0.5, -0.5, 0.5, 0.0]
    recon = pm.Reconstruction(changing(20)[0].measurement, optics=ON)
    assert np.allclose(recon.state.estimate.others["elapsed"].numpy(), np.linspace(-0.5, 0.5, 20))


def error_of(recon: pm.Reconstruction, toy: Toy, change: Tensor) -> float:
    """Relative error of the change where there is light, without a phase of all pixels, which nothing sees."""
    e, (height, width) = recon.state.estimate, toy.truth.extent
    y, x = (e.positions[0] - toy.truth.positions[0]).round().long().tolist()
    found, light = (
        field[y : y + height, x : x + width]
        for field in (e.others["object_change"][0], recon.problem.evaluator.illumination(e))
    )
    lit = light > 0.2 * light.max()
    a, b = (torch.complex(c.real, c.imag - c.imag.mean()) for c in (found[lit], change[0, :height, :width][lit]))
    return float(torch.linalg.vector_norm(a - b) / torch.linalg.vector_norm(b))


@pytest.mark.sample(1)
@pytest.mark.parametrize(("engine", "most"), [("adam", 0.25), ("rpie", 0.42), ("lsqml", 0.36)])
def test_the_change_is_found(engine: str, most: float) -> None:
    """Views that no engine has seen are explained, which without the change they are not."""
    toy, change = changing(views=150, window=(40, 40), counts=1e6)
    toy.measurement = replace(toy.measurement, probe=toy.truth.probe.numpy())
    options: dict[str, Any] = {"epochs": 20, "batch": 15}
    held_out = []
    for optics, unknowns in (({}, {}), (ON, MOVED if engine == "adam" else {"object_change": True})):
        recon = pm.Reconstruction(toy.measurement, optics=optics, seed=1)
        recon.stages = [ENGINES[engine](**options, **({"unknowns": unknowns} if unknowns else {}))]
        recon.loop(hold_out=0.1).run()
        held_out.append(recon.state.history["held_out"][-1])
    assert held_out[1] < 0.15 * held_out[0]
    assert error_of(recon, toy, change) < most


def refined(world: World, layout: str, engine: str, kind: type[WaveOperator] = TwoFields) -> list[np.ndarray]:
    """Object and tiled unknown of the whole after two epochs in which positions move, and decisions of the run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OPTICS, "_own", {**OPTICS._own, "two_fields": TwoFields})
        toy = changing(kind=kind)[0]
        problem, e = started(toy, world, layout)
        name = kind.unknowns[0].name
        stages: dict[str, Engine] = {
            "adam": Adam(
                epochs=2,
                batch=10,
                unknowns=dict.fromkeys(("object", "probe", name), True),
                positions=True,
                regularisers=[{"kind": kind, "weight": 0.1, "of": name} for kind in ("tv", "l2")],
            ),
            "rpie": RPIE(epochs=2, batch=10, unknowns={name: True}, positions=True),
            "lbfgs": LBFGS(epochs=2),
            "lsqml": LSQML(epochs=2, batch=10, unknowns={name: True}, positions=True),
        }
        state = RunState(e)
        Loop(problem, state, [stages[engine]], seed=1).run()
    found = [
        problem.layout.gather_whole(x, state.estimate) for x in (state.estimate.object, state.estimate.others[name])
    ]
    return [*(x.numpy().copy() for x in found), np.array(state.history[f"change_{name}"])]


@pytest.mark.parametrize("engine", ["adam", "rpie", "lbfgs", "lsqml"])
def test_all_layouts_have_the_same_bits(ranks, engine: str) -> None:  # type: ignore[no-untyped-def]
    """Panels and messages, too; a real unknown of two planes."""
    wanted = ranks(1, refined, "replicated", engine)[0]
    assert wanted[2].all() and float(np.abs(wanted[1]).max()) <= 1.0
    for size, layout in ((2, "panels"), (3, "panels"), (2, "tiled"), (3, "sent"), (3, "replicated")):
        for found in ranks(size, refined, layout, engine):
            assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True)), (size, layout)


def grown(world: World, layout: str) -> tuple[np.ndarray, np.ndarray, tuple[int, int]]:
    """A tiled unknown before and after views have left the object, and how far the first pixel is from where it was."""
    problem, e = started(changing(kind=TwoFields)[0], world, layout)
    part = problem.layout.place(e.extent, e.origin, e.anchors.numpy())
    pixels = torch.arange(2 * e.extent[0] * e.extent[1], dtype=torch.float64).view(2, *e.extent)
    e.others["fields"] = pixels[(slice(None), *part.inside((0, 0)))].clone()
    engine, origin = RPIE(), e.origin
    engine.state["memory"] = e.others["fields"].clone()
    before = problem.layout.gather_whole(e.others["fields"], e).numpy().copy()
    e.positions[0] -= 40.0
    positions.reanchor(engine, problem, e)
    assert engine.state["memory"].shape == e.others["fields"].shape
    after = problem.layout.gather_whole(e.others["fields"], e).numpy().copy()
    return before, after, (int(e.origin[0] - origin[0]), int(e.origin[1] - origin[1]))


@pytest.mark.parametrize(("size", "layout"), [(1, "replicated"), (2, "tiled"), (3, "panels")])
def test_it_grows_with_the_object(ranks, size: int, layout: str) -> None:  # type: ignore[no-untyped-def]
    for before, after, (top, left) in ranks(size, grown, layout):
        assert (top, left) == (64, 64) or min(top, left) >= 32
        height, width = before.shape[1:]
        assert np.array_equal(after[:, top : top + height, left : left + width], before)
        assert (after[:, :top] == 0.25).all() and (after[:, :, :left] == 0.25).all()


def broken(world: World, folder: str, layout: str) -> None:
    """Write a checkpoint in the middle of the second epoch."""
    toy = changing()[0]
    problem, e = started(toy, world, layout)
    state, asked = RunState(e), iter(range(100))
    save = lambda: state.save(Path(folder), problem, {})  # noqa: E731
    with pytest.raises(pm.Interrupted):
        Loop(problem, state, [stage()], seed=1, stop=lambda: next(asked) == 5, save=save).run()


def stage() -> Engine:
    return Adam(epochs=3, batch=10, unknowns=MOVED)


def resumed(world: World, folder: str, layout: str) -> list[np.ndarray]:
    """Object and change at the end of the run that a checkpoint is of; of a whole run without one."""
    problem, e = started(changing()[0], world, layout)
    state = RunState.load(checkpoint.load(Path(folder)), problem) if folder else RunState(e)
    Loop(problem, state, [stage()], seed=1).run()
    e = state.estimate
    return [problem.layout.gather_whole(x, e).numpy().copy() for x in (e.object, e.others["object_change"])]


def test_a_run_goes_on_with_other_ranks(ranks, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    wanted = ranks(1, resumed, "", "replicated")[0]
    ranks(2, broken, str(tmp_path), "tiled")
    for size, layout in ((1, "replicated"), (2, "tiled"), (3, "tiled"), (2, "panels")):
        for found in ranks(size, resumed, str(tmp_path), layout):
            assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True)), (size, layout)


def saved(world: World, scan: str, folder: str) -> tuple[int, ...]:
    """Write a result tile by tile, and return the shape of the part of the change that this rank holds."""
    recon = pm.Reconstruction(pm.load(scan), optics=ON, seed=1, device=world, layout="replicated")
    list(recon.run({"engine": "adam", "epochs": 2, "batch": 10, "unknowns": MOVED}))
    return recon.save(f"{folder}/{world.size}.h5").unknowns["object_change"].shape


def test_results_hold_all_of_it(ranks, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """The same bits from one rank as from two, which hold panels of it."""
    options = checked(views=20, window=32, optics=ON, unknown_errors={"object_change": 0.4}, seed=2)
    write(options, tmp_path / "scan.cxi")
    shapes = {size: ranks(size, saved, str(tmp_path / "scan.cxi"), str(tmp_path)) for size in (1, 2)}
    alone, found = (Result.load(tmp_path / f"{size}.h5") for size in (1, 2))
    change = found.unknowns["object_change"]
    assert change.any() and np.array_equal(change, alone.unknowns["object_change"])
    assert shapes[1] == [change.shape] and all(math.prod(shape) < change.size for shape in shapes[2])
    for name in ("noise_floor", "final_residual"):
        assert found.attrs[name] == alone.attrs[name], "numbers that were fitted are counted over all ranks"


def test_slopes_against_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a loss with regularisers, in double precision, on the pixels under windows: others stay."""
    monkeypatch.setattr(OPTICS, "_own", {**OPTICS._own, "two_fields": TwoFields})
    terms = [{"kind": kind, "weight": 50.0, "of": "fields"} for kind in ("smoothness", "l2")]
    engine = Adam(unknowns={"fields": True}, regularisers=terms)
    problem, e = started(changing(20, TwoFields)[0], Solo(), "replicated")
    e.others["fields"].copy_(torch.as_tensor(0.2 * smooth((2, *e.extent), 4.0, np.random.default_rng(1))))
    problem.begin_epoch(e)
    engine.before_epoch(problem, e)
    batch, here = Batch(np.arange(20)), e.others["fields"].clone()
    slope = engine.gradient(problem, e, batch, {"fields"}).parts["fields"].slope
    direction = torch.randn(
        here.shape, generator=torch.Generator().manual_seed(2), dtype=here.dtype
    ) * pixels_under_windows(e)
    values = []
    for step in (1e-5, -1e-5):
        e.others["fields"].copy_(here + step * direction)
        values.append(float(engine.gradient(problem, e, batch, {"fields"}).value))
    assert (values[0] - values[1]) / 2e-5 == pytest.approx(float((slope * direction).sum()), rel=1e-6)


def test_numbers_that_cannot_be_are_refused(tmp_path: Path) -> None:
    problem, e = started(changing()[0], Solo(), "replicated")
    e.others["object_change"][0, 50, 50] = 1e3
    RunState(e).save(tmp_path, problem, {})
    with pytest.raises(BadInput, match="object_change holds numbers that cannot be"):
        RunState.load(checkpoint.load(tmp_path), problem)


def test_a_plan_counts_it() -> None:
    scan, engine = changing()[0].measurement, Adam(batch=10)
    without, with_it = (
        scan_of(scan, ObjectOptions(), ProbeOptions(), "fourier", "single", 8, optics)
        for optics in ((), (ChangingObject(),))
    )
    pixels = math.prod(without.extent)
    for layout, plan in plan_layouts(without, engine, 0, 2).items():
        more = plan_layouts(with_it, engine, 0, 2)[layout]
        assert more.memory - plan.memory > 40 * pixels / (1 if layout == "replicated" else 2)
        assert more.bytes_per_batch > plan.bytes_per_batch


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="a tiled unknown has C, H, W or H, W"):
        Unknown("odd", ("h", "w"), "tiled")
    toy = changing(10)[0]
    with pytest.raises(BadInput, match=r"optics\.changing_object is not interpolated between pixels"):
        pm.Reconstruction(toy.measurement, optics=ON, subpixel="bilinear")
    with pytest.raises(BadInput, match=r"optics\.of_counts acts on no wave, and has an unknown on the object's pixels"):
        pm.Reconstruction(toy.measurement, optics={"of_counts": OfCounts()})
    with pytest.raises(BadInput, match="A regulariser is of object_change, which stays; add unknowns"):
        Adam(regularisers=[{"kind": "tv", "weight": 0.1, "of": "object_change"}])
    with pytest.raises(BadInput, match="there is no sample on the object's pixels; there are object, object_change"):
        Adam(regularisers=[{"kind": "tv", "weight": 0.1, "of": "sample"}])
    with pytest.raises(BadInput, match=r"unknowns\.object_change belongs to optics\.changing_object"):
        LBFGS(regularisers=[{"kind": "tv", "weight": 0.1, "of": "object_change"}]).check(make().problem())
    recon = pm.Reconstruction(toy.measurement, optics=ON)
    with pytest.raises(BadInput, match="coarsen: 2 does not know how object_change of the optics looks there"):
        list(recon.run({"engine": "adam", "epochs": 1, "coarsen": 2}))
    with pytest.raises(BadInput, match=r"object_change of optics\.changing_object would stay as it starts"):
        list(pm.Reconstruction(toy.measurement, optics=ON).run({"engine": "dm", "epochs": 1}))
