"""Several scans that share the probe, each with an object of its own."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import ptymesh as pm
from joint import four_scans, outcome, same_bits
from ptymesh.compare import compare_results
from ptymesh.distributed.world import Solo
from ptymesh.errors import BadInput
from ptymesh.io.joint_scans import join_measurements, lay_side_by_side
from ptymesh.recipe.starts import ObjectOptions
from ptymesh.simulate.simulation import Simulation, Truth, patterns, truth

OWN: dict[str, Any] = {"scans": "own"}


@pytest.fixture(scope="module")
def samples() -> list[Truth]:
    """Two samples and few views of each, by one beam."""
    options = Simulation(kind="xray", views=24, window=32, photons_per_view=1e5, overlap=0.6, seed=4)
    return [truth(options.model_copy(update={"seed": seed})) for seed in (4, 9)]


def measured(samples: list[Truth]) -> list[pm.Measurement]:
    scans = [one.measurement(np.concatenate(list(patterns(one)))) for one in samples]
    return [replace(scan, name=name, fingerprint=name) for scan, name in zip(scans, ("left", "right"), strict=True)]


def test_no_two_windows_of_two_scans_meet() -> None:
    joint = join_measurements(four_scans(), [(0.0, 0.0), (0.0, 5.0), (3.5, 0.0), (-2.0, 1.0)])
    apart = lay_side_by_side(joint)
    assert lay_side_by_side(apart) is apart
    assert joint.scan_index is not None and apart.displaced_px is not None
    spans = [apart.positions[joint.scan_index == scan, 1] for scan in range(4)]
    for left, right in pairwise(spans):
        assert right.min() - (left.max() + joint.window[1]) >= 63
    np.testing.assert_allclose(apart.scan_coordinates(apart.positions), joint.positions, atol=1e-9)
    assert not (apart.displaced_px % 1).any()


def test_one_probe_of_two_scans_leads_to_better_objects(samples: list[Truth], tmp_path: Path) -> None:
    scans = measured(samples)
    stages = [pm.RPIE(epochs=15, batch=8), pm.Adam(epochs=30, batch=8, lr=0.005)]
    together = pm.reconstruct(scans, stages, object=OWN, seed=1)
    assert together.attrs["final_residual"] < 1.4 * together.attrs["noise_floor"]
    for number, (scan, sample) in enumerate(zip(scans, samples, strict=True)):
        known = pm.Result(sample.object, sample.probe, sample.positions, pixel_size_m=scan.geometry.object_pixel_m)
        alone = compare_results(pm.reconstruct(scan, stages, seed=1), known).nrmse
        assert compare_results(together.of_scan(number), known).nrmse < 0.9 * alone
        metres = together.of_scan(number).positions_m
        assert metres is not None and scan.geometry.object_pixel_m is not None
        np.testing.assert_allclose(metres, scan.positions * np.array(scan.geometry.object_pixel_m), atol=1e-12)
    together.save(tmp_path / "result.h5")
    with h5py.File(tmp_path / "result.h5") as file:
        top, left, bottom, right = file["scans/1"].attrs["object_box_px"]
        np.testing.assert_array_equal(file["object"][:, top:bottom, left:right], together.of_scan(1).object)


@pytest.mark.sample(1)
@pytest.mark.parametrize("engine", ["rpie", "adam"])
def test_ranks_and_layouts_end_with_the_same_bits(ranks: Any, engine: str) -> None:
    one = outcome(Solo(), "replicated", engine, {"object": OWN})
    for size, layout in ((2, "replicated"), (3, "tiled")):
        for other in ranks(size, outcome, layout, engine, {"object": OWN}):
            same_bits(one, other)


def test_objects_and_probes_may_both_be_own(ranks: Any) -> None:
    how = {"object": OWN, "probe": {"scans": "own"}}
    one = outcome(Solo(), "replicated", "rpie", how)
    assert len(one["probe"]) == 2
    for other in ranks(2, outcome, "tiled", "rpie", how):
        same_bits(one, other)


def test_a_run_that_was_stopped_goes_on_with_the_same_bits(ranks: Any, tmp_path: Path) -> None:
    one = outcome(Solo(), "replicated", "adam", {"object": OWN})
    ranks(2, outcome, "tiled", "adam", {"object": OWN, "folder": tmp_path, "stop": 11})
    same_bits(one, outcome(Solo(), "replicated", "adam", {"object": OWN, "folder": tmp_path}))


def test_what_objects_side_by_side_do_not_allow_is_refused(samples: list[Truth]) -> None:
    scans = measured(samples)
    with pytest.raises(BadInput, match="single scan; give several"):
        pm.Reconstruction(scans[0], object=OWN)
    with pytest.raises(BadInput, match="initial is a single object"):
        ObjectOptions.parse({"scans": "own", "initial": "earlier.h5"}, "object")
    recon = pm.Reconstruction(scans, object=OWN)
    for stage in (
        pm.RPIE(epochs=1, models={"scan_geometry": True}),
        pm.RPIE(epochs=1, positions={"affine": ["scale"]}),
    ):
        with pytest.raises(BadInput, match="about one middle"):
            next(recon.run(stage))
    with pytest.raises(BadInput, match="There is no scan 2"):
        pm.Result(np.ones((1, 64, 64), complex), np.ones((1, 8, 8), complex), np.zeros((2, 2))).of_scan(2)
