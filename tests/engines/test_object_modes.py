"""Objects of several incoherent modes: what they fit, ranks, tiles, resuming, results, starts, what is refused."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

import ptymesh as pm
from ptymesh.distributed.world import Solo, World
from ptymesh.engines import ENGINES
from ptymesh.errors import BadInput
from ptymesh.io.checkpoint import store as checkpoint
from ptymesh.measurement import Measurement
from ptymesh.recipe.schema import Recipe
from ptymesh.run.simulate_file import truth_result
from ptymesh.run.state import read_estimate
from ptymesh.run_folder.patterns import model_of, modelled
from ptymesh.simulate import Simulated, simulate
from stopped_runs import run_to_end_or_stop

SLICES: dict[str, Any] = {"slices": 2, "slice_spacing_m": 2e-9}
quiet = {"say": lambda sentence: None}


@cache
def simulated(noise: bool = True, **options: Any) -> Simulated:
    """A scan of an object with two states."""
    known = {"views": 48, "window": 32, "overlap": 0.7, "object_modes": 2, "displacement_px": 1.0, "seed": 3}
    return simulate(**(known | {"probe_guess": "true", "noise": noise} | options))


def electrons() -> Measurement:
    return simulated(kind="electron", views=40, photons_per_view=1e5).measurement


def outcome(world: World, layout: str, engine: str, how: dict[str, Any]) -> dict[str, np.ndarray]:
    """What one rank ends with; folder: where a run leaves a checkpoint after so many batches, or goes on from one."""
    folder = how.get("folder")
    saved = checkpoint.load(folder, world) if folder and "stop" not in how else None
    options = {"modes": 2, **SLICES, **how.get("object", {})}
    recon = pm.Reconstruction(electrons(), device=world, layout=layout, seed=3, object=options, saved=saved, **quiet)
    recon.stages = [ENGINES[engine](epochs=2, batch=13, **how.get("stage", {}))]
    if not run_to_end_or_stop(recon, how):
        return {}
    estimate, gather = recon.state.estimate, recon.problem.layout.gather_whole
    result = recon.result()
    if "result" in how:
        recon.save(how["result"])
    assert result.object_modes is not None
    return {
        "object": gather(estimate.object, estimate).numpy(),
        "probe": estimate.probe.numpy(),
        "mean": result.object,
        "modes": result.object_modes,
        "residual": np.array(recon.problem.residual(estimate)),
    }


def same_bits(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    for name, array in one.items():
        assert np.array_equal(array, other[name]), name


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("engine", "options"), [("rpie", {"batch": 6}), ("adam", {"batch": 6}), ("lsqml", {"batch": 9}), ("ap", {})]
)
def test_two_states_are_explained_by_two_modes(engine: str, options: dict[str, Any]) -> None:
    scan, found = simulated(noise=False, views=30, overlap=0.8).measurement, []
    for modes in (1, 2):
        recon = pm.Reconstruction(scan, object={"modes": modes}, **quiet)
        list(recon.run(ENGINES[engine](epochs=12, **options)))
        found.append(recon.problem.residual(recon.state.estimate)[0])
    assert found[1] < 0.6 * found[0], found


CONSTRAINED: dict[str, Any] = {
    "positions": {"gain": 1},
    "object": {"smooth": True},
    "constraints": {"kz_filter": True, "depth_smoothness": True, "total_variation": {"depth_weight": 0.1}},
}
POTENTIAL: dict[str, Any] = {"object": {"kind": "potential"}}


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("engine", "how"),
    [
        ("adam", {"stage": CONSTRAINED}),
        ("rpie", {"stage": {"positions": {"gain": 1}}}),
        ("rpie", POTENTIAL),
        ("lsqml", {}),
        ("adam", {"stage": {"coarsen": 2}}),
        ("adam", POTENTIAL | {"stage": CONSTRAINED}),
    ],
)
def test_ranks_and_layouts_end_with_the_same_bits(ranks: Any, engine: str, how: dict[str, Any]) -> None:
    one = outcome(Solo(), "replicated", engine, how)
    assert not np.array_equal(one["modes"][0], one["modes"][1])
    for size, layout in ((2, "replicated"), (3, "tiled")):
        for other in ranks(size, outcome, layout, engine, how):
            same_bits(one, other)


@pytest.mark.sample(1)
@pytest.mark.parametrize("engine", ["rpie", "adam"])
def test_a_run_that_was_stopped_goes_on_with_the_same_bits(ranks: Any, tmp_path: Path, engine: str) -> None:
    one = outcome(Solo(), "replicated", engine, {})
    ranks(2, outcome, "tiled", engine, {"folder": tmp_path, "stop": 4})
    same_bits(one, outcome(Solo(), "replicated", engine, {"folder": tmp_path}))
    with pytest.raises(BadInput, match=r"has 4 planes, and the recipe asks for 3 modes of 2 slices"):
        outcome(Solo(), "replicated", engine, {"folder": tmp_path, "object": {"modes": 3}})
    recipe = Recipe.parse({"data": {"path": "scan.cxi"}, "object": {"modes": 2, **SLICES}})
    read = read_estimate(checkpoint.load(tmp_path), recipe, electrons())
    assert read.object_modes is not None and read.object_modes.shape == one["modes"].shape


def test_the_file_holds_the_modes_and_their_mean(ranks: Any, tmp_path: Path) -> None:
    path = tmp_path / "result.h5"
    found = ranks(2, outcome, "tiled", "rpie", {"result": path})[0]
    result = pm.Result.load(path)
    assert result.object_modes is not None and "2 object modes" in repr(result)
    assert np.array_equal(result.object_modes, found["modes"]) and np.array_equal(result.object, found["mean"])
    np.testing.assert_allclose(result.object, result.object_modes.mean(0), atol=0.02)
    with h5py.File(path) as file:
        assert file["object"].shape == file["object_modes"].shape[1:]
        assert list(file["object_modes"].attrs["axes"]) == ["object mode", "slice", "y", "x"]
    scan = electrons()
    views = np.arange(scan.views)
    counts, made = scan.patterns.read(views), modelled(model_of(result, scan.geometry), result, views, scan)
    misfit = (np.sqrt(made) - np.sqrt(counts)) ** 2 * scan.mask
    assert misfit.sum() / (counts * scan.mask).sum() == pytest.approx(result.attrs["final_residual"], rel=1e-3)

    again = pm.Reconstruction(scan, object={"modes": 2, "initial": str(path), **SLICES}, **quiet)
    modes = again.state.estimate.object.numpy().reshape(result.object_modes.shape)
    np.testing.assert_allclose(modes, result.object_modes, atol=1e-6)
    more = pm.Reconstruction(scan, object={"modes": 3, "initial": str(path), **SLICES}, **quiet)
    mean = more.state.estimate.object.numpy().reshape(3, *result.object.shape).mean(0)
    np.testing.assert_allclose(mean, result.object, atol=0.02)


def test_the_truth_of_a_simulation_explains_it() -> None:
    made = simulated(noise=False)
    result, views = truth_result(made.truth), np.arange(10)
    assert result.object_modes is not None and len(result.object_modes) == 2
    assert np.abs(result.object_modes[0] - result.object_modes[1]).max() > 0.1
    expected = modelled(model_of(result, made.truth.geometry), result, views)
    np.testing.assert_allclose(made.measurement.patterns.read(views), expected, rtol=1e-4, atol=1e-3)
    estimate = made.truth.estimate()
    assert (estimate.slices, estimate.object_modes, len(estimate.object)) == (1, 2, 2)
    assert torch.equal(estimate.object[0], next(estimate.by_object_mode()).object[0])


@pytest.mark.parametrize(
    ("object", "stage", "said"),
    [
        ({"modes": 2, **SLICES}, {"engine": "bh"}, r"bh does not know object\.modes; use another engine"),
        ({"modes": 2, **SLICES}, {"constraints": {"depth_recentring": True}}, "moves one object along the beam, and"),
    ],
)
def test_what_does_not_know_modes_is_refused(object: dict[str, Any], stage: dict[str, Any], said: str) -> None:
    recon = pm.Reconstruction(electrons(), object=object, **quiet)
    with pytest.raises(BadInput, match=said):
        list(recon.run({"engine": "adam", "epochs": 1, **stage}))


def test_pieces_that_take_the_part_of_the_object_are_refused() -> None:
    recon = pm.Reconstruction(simulated().measurement, object={"modes": 2}, optics={"rpi": True}, **quiet)
    with pytest.raises(BadInput, match=r"object\.modes asks for several objects, whose part a piece of the optics"):
        list(recon.run({"engine": "adam", "epochs": 1}))
    with pytest.raises(BadInput, match="object_modes asks for several objects"):
        simulate(views=4, window=32, object_modes=2, optics={"rpi": True})
    with pytest.raises(BadInput, match=r"whose atoms vibrate by crystal\.configurations"):
        simulate(kind="crystal", views=4, window=32, object_modes=2)


def test_a_result_of_other_modes_is_refused() -> None:
    result = truth_result(simulated().truth)
    assert result.object_modes is not None
    with pytest.raises(BadInput, match=r"object_modes has shape \(2, 1, 5, 5\); it must be \(modes, 1,"):
        pm.Result(
            object=result.object,
            probe=result.probe,
            positions_px=result.positions_px,
            object_modes=np.ones((2, 1, 5, 5), complex),
        )
