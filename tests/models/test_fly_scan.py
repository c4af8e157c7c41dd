"""Fly scans: the sum over a path, where the path comes from, and what is recovered where the motion is in the model."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ptymesh as pm
from ptymesh.compare import compare_results
from ptymesh.distributed.world import World
from ptymesh.engines import DM, ENGINES, Adam
from ptymesh.errors import BadInput
from ptymesh.io import load_measurement
from ptymesh.io.formats.cxi_writer import write_measurement
from ptymesh.io.joint_scans import join_measurements
from ptymesh.io.options import DataOptions, PositionOptions
from ptymesh.io.results import Result
from ptymesh.measurement import steps_along_lines
from ptymesh.models.fly_scan import FlyScan
from ptymesh.physics.operators import Placed
from ptymesh.planning.plan import plan_layouts, scan_of
from ptymesh.problem.chunk_sizes import CHUNK_BYTES
from ptymesh.recipe.starts import ObjectOptions, ProbeOptions
from ptymesh.simulate import Simulated, simulate
from toy import Toy, make, relative

#: Three to eight rows of views, 8 px apart, each counted over the whole step; the beam is 17 px wide.
SCAN: dict[str, Any] = {"scan": "raster", "window": 48, "overlap": 1 - 8 / (0.35 * 48), "photons_per_view": 1e6}


def moving(toy: Toy, fly: FlyScan) -> tuple[torch.Tensor, dict[str, Any]]:
    """The intensities that the model makes of the truth of a toy, and its paths."""
    model = replace(toy.model, operators=(Placed.of(fly, toy.measurement.geometry, torch.complex128, "cpu"),))
    e, every = toy.truth, torch.arange(len(toy.truth.positions))
    values = {"fly_length": torch.tensor(1.0, dtype=torch.float64)}
    values["fly_bend"] = torch.zeros(len(every), fly.fan_out, 2, dtype=torch.float64)
    values |= {name: torch.as_tensor(v) for name, v in fly.start_values(toy.measurement).items()}
    return model.intensity(e.object, e.probe, e.anchors, e.fractions(every), e.weights, values=values), values


@pytest.mark.parametrize("position_at", ["start", "middle", "end"])
def test_a_pattern_is_the_mean_over_the_places_of_its_path(position_at: str) -> None:
    """Of a probe so small that its window does not tell whether the probe or the window moves: by whole pixels."""
    toy = make(views=6, modes=2, window=(48, 48))
    y, x = (torch.arange(48) - 24 for _ in range(2))
    toy.truth.probe *= torch.exp(-(y[:, None] ** 2 + x**2) / 16)
    pixels = toy.measurement.geometry.object_pixel_m
    assert pixels is not None
    fly = FlyScan(points=4, path=(2 * pixels[0], 4 * pixels[1]), position_at=position_at)  # type: ignore[arg-type]
    found, _ = moving(toy, fly)
    e, total = toy.truth, torch.zeros_like(found)
    begin = {"start": 0.0, "middle": -0.5, "end": -1.0}[position_at]
    for k in range(4):
        at = e.positions + ((k + 0.5) / 4 + begin) * torch.tensor([2.0, 4.0])
        anchors = torch.floor(at + 0.5).long()
        total += toy.model.intensity(e.object, e.probe, anchors, at - anchors, e.weights) / 4
    assert relative(found, total) < 1e-6


def test_weights_are_exposures() -> None:
    toy = make(views=3, window=(24, 24))
    one = {"points": 2, "path": (1e-7, 0.0)}
    total = sum(
        weight * moving(toy, FlyScan(**one, weights=only))[0]  # type: ignore[arg-type]
        for weight, only in ((0.75, [1.0, 0.0]), (0.25, [0.0, 1.0]))
    )
    assert relative(moving(toy, FlyScan(**one, weights=[3.0, 1.0]))[0], total) < 1e-12  # type: ignore[arg-type]


def test_steps_of_rows() -> None:
    """At the end of a row, and before a position that was left out, a path is as long as the one before it."""
    rows = np.array([[8.0 * y, 3.0 * x] for y in range(3) for x in range(5)])
    there_and_back = np.array([[8.0 * y, 3.0 * (x if y % 2 == 0 else 4 - x)] for y in range(3) for x in range(5)])
    assert (steps_along_lines(rows) == [0.0, 3.0]).all()
    found = steps_along_lines(there_and_back)
    assert (found[:5] == [0, 3]).all() and (found[5:10] == [0, -3]).all() and (found[10:] == [0, 3]).all()
    long = np.stack((np.zeros(9), np.arange(9.0)), axis=1)
    assert (steps_along_lines(np.delete(long, 4, 0)) == [0, 1]).all()
    turns = np.linspace(0, 4 * np.pi, 60)
    spiral = np.stack((turns * np.cos(turns), turns * np.sin(turns)), axis=1)
    assert np.allclose(steps_along_lines(spiral)[:-1], np.diff(spiral, axis=0))
    assert (steps_along_lines(rows[:1]) == 0).all() and (steps_along_lines(rows[:2]) == 0).all()


def test_points_off_the_line_are_the_places_of_the_file() -> None:
    """Five places on an arc, which the unknowns give back as straight path and bend."""
    toy = make(views=4, window=(24, 24))
    t = np.linspace(-1, 1, 5)
    arc = np.stack((3 * t, 2 * t**2 - 1), axis=1)[None] * np.arange(1, 5)[:, None, None] / 4
    scan = replace(toy.measurement, paths=arc)
    fly, sentence = FlyScan(path="file").for_scan(scan)
    assert fly.points == 5 and not sentence
    starts = fly.start_values(scan)
    at = (np.arange(5) + 0.5) / 5 - 0.5
    assert np.allclose(at[:, None] * starts["fly_path"][:, None] + starts["fly_bend"], arc)  # type: ignore[index]
    assert abs(np.einsum("k,nki->ni", at, starts["fly_bend"])).max() < 1e-12
    straight = replace(toy.measurement, paths=np.stack((t, 2 * t), axis=1)[None].repeat(4, axis=0))
    for points in (2, 3, 5, 9):
        found = FlyScan(path="file", points=points).start_values(straight)
        assert np.allclose(found["fly_path"], [2.5, 5]) and np.allclose(found["fly_bend"], 0)


def test_points_follow_path_and_beam() -> None:
    """A pixel apart without a beam; with a beam of few frequencies, three for each of the fringes that it makes."""
    made = simulate(**SCAN, views=16)
    fly, sentence = FlyScan().for_scan(made.measurement)
    assert fly.points == 8 and sentence.startswith("optics.fly_scan takes 8 points along a path of 8 px, 1 px apart at")
    unknown = replace(made.measurement, probe=None)
    assert FlyScan(duty=0.5).for_scan(unknown)[0].points == 4
    frequency = np.fft.fftfreq(48)
    smooth = np.fft.ifft2(np.exp(-(frequency[:, None] ** 2 + frequency**2) / 2 / 0.02**2))[None]
    assert FlyScan().for_scan(replace(unknown, probe=smooth))[0].points == 2  # of two cycles per window
    assert FlyScan(weights=[1.0, 2.0, 1.0]).for_scan(unknown)[0].points == 3
    with pytest.raises(BadInput, match=r"would need 80 points for a path of 80 px; give points, 64 at most"):
        FlyScan().for_scan(replace(unknown, positions=10 * unknown.positions))
    with pytest.raises(BadInput, match=r"path is file, and there is one position for each view; set positions\.per_v"):
        FlyScan(path="file").for_scan(unknown)
    with pytest.raises(BadInput, match=r"points is auto, and no scan is there to choose it from; give a number"):
        FlyScan().tables(made.truth.geometry)


def test_paths_are_those_of_the_whole_file(tmp_path: Path) -> None:
    """Where every second view is read, or one is left out, the stage moved as far as without that."""
    made = simulate(**SCAN, views=25)
    write_measurement(made.measurement, tmp_path / "scan.cxi")
    for views in ({"step": 2}, {"without": [3, 11]}):
        scan = load_measurement(DataOptions.parse({"path": str(tmp_path / "scan.cxi"), "views": views}, "data"))
        assert scan.views < 25
        assert np.allclose(FlyScan(points=2).start_values(scan)["fly_path"], [0, 8], atol=1e-4)


def test_paths_do_not_lead_from_scan_to_scan() -> None:
    rows = simulate(**SCAN, views=9).measurement
    columns = replace(rows, positions=rows.positions[:, ::-1].copy(), name="columns")
    found = FlyScan(points=2).start_values(join_measurements([rows, columns], [(0, 0), (1, 2)]))["fly_path"]
    assert np.allclose(found[:9], [0, 8]) and np.allclose(found[9:], [8, 0])  # type: ignore[index]
    curved = replace(rows, paths=np.zeros((9, 3, 2)))
    assert join_measurements([curved, rows], [(0, 0), (0, 0)]).paths is None
    paths = join_measurements([curved, curved], [(0, 0), (0, 0)]).paths
    assert paths is not None and paths.shape == (18, 3, 2)


def test_places_of_the_file(tmp_path: Path) -> None:
    """Positions of a file that has four for each view become means and paths, turned as the recipe says."""
    made = simulate(**SCAN, views=9, noise=False)
    scan, pixel = made.measurement, 20e-9
    along = np.array([[0.0, -3.0], [0.5, -1.0], [0.5, 1.0], [0.0, 3.0]])
    places = (scan.positions[:, None] + along - [0.25, 0]) * pixel
    np.savez(tmp_path / "scan.npz", patterns=scan.patterns.read(np.arange(9)), places=places)
    data = {
        "path": str(tmp_path / "scan.npz"),
        "keys": {"patterns": "patterns", "positions": "places"},
        "object_pixel_m": [pixel, pixel],
        "dc": "corner",
    }
    with pytest.raises(BadInput, match=r"36 positions, 4 for each: set positions.per_view=4, which takes their means"):
        load_measurement(DataOptions.parse(data, "data"))
    with pytest.raises(BadInput, match=r"36 positions, and positions.per_view is 3: give 27, or correct it"):
        load_measurement(DataOptions.parse(data, "data"), PositionOptions(per_view=3))
    for transpose in (False, True):
        options = PositionOptions(per_view=4, transpose=transpose)
        found = load_measurement(DataOptions.parse(data, "data"), options)
        assert found.paths is not None
        turned = slice(None, None, -1 if transpose else 1)
        assert np.allclose(found.paths, (along - [0.25, 0])[:, turned])
        assert np.allclose(np.diff(found.positions, axis=0), np.diff(scan.positions, axis=0)[:, turned])
    with pytest.raises(BadInput, match="per_view is 4, and a raster has one position for each view; give o"):
        PositionOptions.parse({"per_view": 4, "raster": {"step_px": [1, 1]}}, "positions")
    recon = pm.Reconstruction(found, optics={"fly_scan": {"path": "file"}})
    assert recon.optics["fly_scan"].fan_out == 4


@pytest.mark.forked
def test_a_run_writes_down_its_points(tmp_path: Path) -> None:
    """What the scan says of the number of points is in the log, in the recipe of the result, and in figures of it."""
    made = simulate(**SCAN, views=16)
    write_measurement(made.measurement, tmp_path / "scan.cxi")
    (tmp_path / "recipe.yaml").write_text(
        "data: {path: scan.cxi}\noptics: {fly_scan: true}\nstages: [{engine: rpie, epochs: 2, batch: 8}]\n"
    )
    options = ["run", str(tmp_path / "recipe.yaml"), "--out", str(tmp_path / "out")]
    done = subprocess.run([sys.executable, "-m", "ptymesh", *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "optics.fly_scan takes 8 points along a path of 8 px" in (tmp_path / "out" / "log.txt").read_text()
    result = Result.load(tmp_path / "out" / "result.h5")
    assert "points: 8" in result.recipe and result.unknowns["fly_bend"].shape == (16, 8, 2)
    assert (tmp_path / "out" / "patterns.png").exists()


def test_what_cannot_be_is_refused() -> None:
    scan = make(views=12).measurement
    with pytest.raises(BadInput, match=r"optics\.fly_scan finds no line at \d+ of 12 positions, in the order of the f"):
        pm.Reconstruction(scan, optics={"fly_scan": True})
    with pytest.raises(BadInput, match=r"Weights has 2 numbers of sum 1 for 8 points; give one for each, not all 0"):
        FlyScan(points=8, weights=[0.5, 0.5])
    with pytest.raises(BadInput, match=r"Duty is 0\.5, and is of path: line alone; give the path that is counted ov"):
        FlyScan(path=(1e-7, 0.0), duty=0.5)
    with pytest.raises(BadInput, match="points is 1"):
        FlyScan(points=1)
    with pytest.raises(BadInput, match="Position_at is end, and path: file says it by itself"):
        FlyScan(path="file", position_at="end")
    with pytest.raises(BadInput, match=r"optics\.fly_scan is for far-field scans, and this one is in the near field"):
        pm.Reconstruction(make(propagation="fresnel").measurement, optics={"fly_scan": {"path": [1e-7, 0]}})
    nowhere = replace(scan, geometry=replace(scan.geometry, wavelength_m=None, detector_pixel_m=None))
    if nowhere.geometry.object_pixel_m is None:
        with pytest.raises(BadInput, match=r"optics\.fly_scan\.path is in metres, and the object pixel of this data"):
            pm.Reconstruction(nowhere, optics={"fly_scan": {"path": [1e-7, 0]}})


def test_chunks_and_plans_count_the_waves() -> None:
    """Eight points take the room of eight modes."""
    scan = simulate(**SCAN, views=9).measurement
    plain, fly = (pm.Reconstruction(scan, optics=o) for o in (None, {"fly_scan": {"points": 8}}))
    sizes = [r.problem.loader.chunk_sizes.most_views(r.state.estimate, "used", False, False) for r in (plain, fly)]
    assert sizes[1] == max(1, CHUNK_BYTES["cpu"] // (8 * 8 * 48 * 48)) < sizes[0]
    given = scan, ObjectOptions(), ProbeOptions(), "fourier", "single", 3
    known = [scan_of(*given, optics=optics) for optics in ((), (FlyScan(points=8),))]  # type: ignore[arg-type]
    chunks = [plan_layouts(one, ENGINES["dm"](), 0, 1)["replicated"] for one in known]
    assert chunks[1].memory - chunks[0].memory > 7 * 9 * 8 * 48 * 48, "the difference map keeps all waves"


def test_the_difference_map_keeps_all_waves() -> None:
    scan = simulate(**SCAN, views=9, noise=False).measurement
    recon = pm.Reconstruction(scan, optics={"fly_scan": {"points": 3}}, precision="double", probe={"modes": 2})
    first, *_, last = (report.residual for report in recon.run(DM(epochs=6)))
    assert last < first


def error(made: Simulated, engine: Any, **options: Any) -> float:
    """The error of a reconstruction's object."""
    truth = made.truth
    return float(compare_results(pm.reconstruct(made.measurement, engine, seed=1, **options), truth).nrmse)


@pytest.mark.long
def test_the_motion_in_the_model_makes_good_for_it() -> None:
    """Counts of 32 places over 8 px, in a model of 8 places, and in one that does not know of the motion."""
    engine = Adam(epochs=200, batch=8)
    fly = simulate(**SCAN, views=36, optics={"fly_scan": {"points": 32}})
    still, modelled = error(simulate(**SCAN, views=36), engine), error(fly, engine, optics={"fly_scan": True})
    ignored = error(fly, engine)
    assert modelled < 1.3 * still and ignored > 3 * modelled, (still, modelled, ignored)


@pytest.mark.long
@pytest.mark.parametrize(("engine", "epochs"), [("adam", 35), ("rpie", 60), ("lsqml", 60)])
def test_a_length_is_found(engine: str, epochs: int) -> None:
    """Counted over 0.7 of the step, with 1 given."""
    made = simulate(**SCAN, views=36, optics={"fly_scan": {"points": 16, "duty": 0.7}})
    recon = pm.Reconstruction(made.measurement, optics={"fly_scan": True}, seed=1)
    moved = {"object": True, "probe": True} if engine == "adam" else {}
    list(recon.run(ENGINES[engine].parse({"epochs": epochs, "batch": 8, "unknowns": moved | {"fly_length": True}}, "")))
    assert abs(float(recon.state.estimate.others["fly_length"]) - 0.7) < 0.05


@pytest.mark.parametrize(("name", "epochs", "true"), [("fly_length", 4, 0.7), ("fly_path", 7, 0.7 * 8)])
def test_lengths_are_found_soon_where_all_else_is_known(name: str, epochs: int, true: float, tmp_path: Path) -> None:
    """From that of a whole step; object and probe are the truth's, and move by next to nothing."""
    made = simulate(**SCAN, views=36, optics={"fly_scan": {"points": 4, "duty": 0.7}})
    truth, path = made.truth, str(tmp_path / "truth.h5")
    pixel = truth.geometry.object_pixel_m
    Result(truth.object, truth.probe, truth.positions, pixel_size_m=pixel).save(path)
    start: dict[str, Any] = {"object": {"initial": path}, "probe": {"start": {"kind": "result", "path": path}}}
    recon = pm.Reconstruction(made.measurement, optics={"fly_scan": {"points": 4}}, **start)
    still = {"gamma_object": 1e-9, "gamma_probe": 1e-9}
    *_, last = recon.run(pm.RPIE(epochs=epochs, batch=8, unknowns={name: True}, **still))
    found = recon.state.estimate.others[name]
    along = found[:, 1] if name == "fly_path" else found  # rows go along x
    assert abs(float(along.mean()) / true - 1) < 0.015, last


@pytest.mark.parametrize("name", ["fly_length", "fly_path"])
@pytest.mark.parametrize("fidelity", ["amplitude", "poisson", "intensity"])
def test_steps_have_the_norm_of_the_counts(fidelity: str, name: str) -> None:
    """That of the loss's Gauss-Newton curvature, from derivatives of the intensities, where changes are small."""
    toy = make(views=6, modes=2, window=(24, 24))
    pixels = toy.measurement.geometry.object_pixel_m
    assert pixels is not None
    fly = FlyScan(points=3, path=(2 * pixels[0], 3 * pixels[1]))
    placed = Placed.of(fly, toy.measurement.geometry, torch.complex128, "cpu")
    placed = replace(placed, sizes={one: 1e-5 for one in placed.sizes})
    toy = replace(toy, model=replace(toy.model, operators=(placed,), fidelity=fidelity))
    problem, e, every = toy.problem(), toy.truth, torch.arange(6)
    e.others |= fly.starts({"N": 6, "h": 24, "w": 24}, "cpu", torch.float64)
    e.others["fly_path"].copy_(torch.as_tensor(fly.start_values(toy.measurement)["fly_path"]))

    def intensity(values: dict[str, torch.Tensor]) -> torch.Tensor:
        return toy.model.intensity(e.object, e.probe, e.anchors, e.fractions(every), e.weights, values=values)

    I, found, step = intensity(e.others), [], 1e-5
    weight = {"amplitude": 1 / (4 * I), "poisson": 1 / (2 * I), "intensity": torch.ones_like(I)}[fidelity]
    for change in [torch.tensor(step)] if name == "fly_length" else step * torch.eye(2, dtype=torch.float64):
        ends = [intensity({**e.others, name: e.others[name] + sign * change}) for sign in (1, -1)]
        found.append((weight * ((ends[0] - ends[1]) / (2 * step)).square()).sum((1, 2)))
    problem.begin_epoch(e)
    (chunk,) = problem.loader.chunks(e, np.arange(6))
    intermediates = problem.evaluator.forward(e, chunk)
    _, norm = problem.evaluator.operator_pairs(chunk, intermediates, intermediates.exit, frozenset({name}))[name]
    assert relative(norm.reshape(6, -1), torch.stack(found, 1)) < 1e-3


@pytest.mark.sample(1)
@pytest.mark.parametrize("engine", ["rpie", "lsqml", "adam"])
def test_held_out_views_are_explained_better(engine: str) -> None:
    """By a model that knows of the motion, whichever engine moves object and probe."""
    scan = simulate(**SCAN, views=36, optics={"fly_scan": {"points": 16}}).measurement
    held_out = []
    for optics in (None, {"fly_scan": {"points": 4}}):
        recon = pm.Reconstruction(scan, optics=optics, seed=1)
        recon.stages = [ENGINES[engine](epochs=12, batch=8)]
        recon.loop(hold_out=0.15).run()
        held_out.append(recon.state.history["held_out"][-1])
    assert held_out[1] < 0.8 * held_out[0], held_out


FLY: dict[str, Any] = {"fly_scan": {"points": 3}}


def together(world: World, layout: str, engine: str) -> list[np.ndarray]:
    """All unknowns after some epochs in which positions, two modes and a variable probe move; last, the residuals."""
    scan = simulate(**SCAN, views=16, modes=2, position_error_px=1.0, optics=FLY).measurement
    options: dict[str, Any] = {"device": world, "layout": layout, "precision": "double", "seed": 1}
    recon = pm.Reconstruction(scan, optics=FLY, probe={"modes": 2, "opr_modes": 1}, **options)
    moved = {"fly_length": True} | ({"object": True, "probe": True} if engine == "adam" else {})
    stage = ENGINES[engine](epochs=4, batch=8, positions=True, unknowns=moved)
    residuals = np.array([report.residual for report in recon.run(stage)])
    e = recon.state.estimate
    positions = recon.result().positions_px  # of all views; collective
    return [recon.object, e.probe.numpy(), e.opr.numpy(), positions, e.others["fly_length"].numpy(), residuals]


@pytest.mark.sample(1)
@pytest.mark.parametrize("worlds", [[(2, "tiled"), (3, "replicated")], [(2, "replicated"), (3, "tiled")]], ids=str)
@pytest.mark.parametrize("engine", ["adam", "rpie", "lsqml"])
def test_positions_modes_and_variable_probes_move_together(ranks, engine: str, worlds: list[tuple[int, str]]) -> None:  # type: ignore[no-untyped-def]
    wanted = ranks(1, together, "replicated", engine)[0]
    residuals = wanted[-1]
    assert residuals[-1] < residuals[0] and np.abs(wanted[2]).max() > 0
    assert np.abs(wanted[3] - wanted[3][0] - (simulate(**SCAN, views=16).measurement.positions)).std() > 1e-3
    assert wanted[4] != 1
    for size, layout in worlds:
        found = ranks(size, together, layout, engine)[0]
        assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True)), (size, layout)
