"""Several scans of one object, each with a probe of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

import ptymesh as pm
from joint import TwoScans, outcome, same_bits, two_scans
from ptymesh.compare import compare_results
from ptymesh.distributed.world import Solo
from ptymesh.engines import ENGINES
from ptymesh.errors import BadInput
from ptymesh.io.joint_scans import join_measurements
from ptymesh.models import MODELS
from ptymesh.physics.backend import Backend
from ptymesh.problem import Batch
from ptymesh.run_folder.figures import write_products
from ptymesh.run_folder.patterns import compared_patterns, model_of, modelled

OWN = {"scans": "own"}
CENTRED: dict[str, Any] = {"models": {"scan_shift": True}, "probe": {"centre": True}}


@pytest.fixture(scope="module")
def both() -> TwoScans:
    return two_scans(own_probes=True)


def stages(**options: Any) -> list[Any]:
    return [pm.RPIE(epochs=15, batch=20, **options), pm.Adam(epochs=40, batch=20, **options)]


@pytest.fixture(scope="module")
def together(both: TwoScans) -> pm.Result:
    return pm.reconstruct(both.scans, stages(**CENTRED), probe=OWN, seed=1)


def off_centre(probe: np.ndarray) -> np.ndarray:
    """By how much (y, x) the centre of mass of a probe (M, h, w) is away from the middle of its window."""
    power = (np.abs(probe) ** 2).sum(axis=0)
    axes = np.indices(power.shape)
    return np.array([(power * r).sum() / power.sum() - n // 2 for r, n in zip(axes, power.shape, strict=True)])


@pytest.mark.long
def test_the_shift_is_found_up_to_where_the_probes_lie(both: TwoScans, together: pm.Result) -> None:
    """A shift of a scan's probe and one of its positions are the same in the far field: `centre` chooses."""
    first, second = (off_centre(one.probe) for one in both.truths)
    numbers = together.parameters["scan_shift"]
    np.testing.assert_allclose([numbers["y1"], numbers["x1"]], both.shift_px + second - first, atol=0.05)
    apart = (together.positions_px - together.positions_px[0])[both.scans[0].views :]
    nominal = join_measurements(both.scans, [(0.0, 0.0), (0.0, 0.0)]).positions
    wanted = (nominal - nominal[0])[both.scans[0].views :] + np.array([numbers["y1"], numbers["x1"]])
    np.testing.assert_allclose(apart, wanted, atol=1e-6)


@pytest.mark.long
def test_both_together_are_better_than_either_alone_and_than_one_probe(both: TwoScans, together: pm.Result) -> None:
    pixel = both.scans[0].geometry.object_pixel_m
    first = both.truths[0]
    truth = pm.Result(first.object, first.probe, first.positions, pixel_size_m=pixel)
    alone = [pm.reconstruct(scan, stages(), seed=1) for scan in both.scans]
    shared = pm.reconstruct(both.scans, stages(**CENTRED), seed=1)
    errors = [compare_results(other, truth).nrmse for other in (*alone, shared)]
    assert compare_results(together, truth).nrmse < 0.85 * min(errors)
    assert together.attrs["final_residual"] < 0.6 * shared.attrs["final_residual"]


@pytest.mark.parametrize("modes", [1, 2])
def test_kernels_sum_as_the_reference_does(both: TwoScans, modes: int) -> None:
    recon = pm.Reconstruction(both.scans, probe={**OWN, "modes": modes}, precision="double", device="cpu")
    problem, estimate = recon.problem, recon.state.estimate
    assert estimate.probe.shape[0] == 2 * modes and [len(one) for one in estimate.probes] == [modes, modes]
    problem.begin_epoch(estimate)
    batch = Batch(np.random.default_rng(0).permutation(problem.views)[:50], refine=True)
    found = problem.gradients(estimate, batch)
    sums = found.probe.clone(), found.probe_weight.clone(), found.object.values.clone()
    problem.backend = Backend()
    wanted = problem.gradients(estimate, batch)
    for one, other in zip(sums, (wanted.probe, wanted.probe_weight, wanted.object.values), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9 * float(other.abs().max()))
    assert sums[1].shape == (2, *problem.window) and not torch.allclose(sums[0][:modes], sums[0][modes:])


def test_each_scan_alone_moves_its_own_probe_alone(both: TwoScans) -> None:
    recon = pm.Reconstruction(both.scans, probe=OWN, device="cpu")
    problem, estimate = recon.problem, recon.state.estimate
    problem.begin_epoch(estimate)
    found = problem.gradients(estimate, Batch(np.arange(both.scans[0].views)))
    assert float(found.probe[0].abs().max()) > 0 and float(found.probe[1].abs().max()) == 0


@pytest.mark.sample(1)
@pytest.mark.parametrize("engine", ["rpie", "adam"])
def test_ranks_and_layouts_end_with_the_same_bits(ranks: Any, engine: str) -> None:
    how = {"probe": {**OWN, "modes": 2}}
    one = outcome(Solo(), "replicated", engine, how)
    for size, layout in ((2, "replicated"), (3, "tiled")):
        for other in ranks(size, outcome, layout, engine, how):
            same_bits(one, other)


def test_a_run_that_was_stopped_goes_on_with_the_same_bits(ranks: Any, tmp_path: Path) -> None:
    one = outcome(Solo(), "replicated", "adam", {"probe": OWN})
    ranks(2, outcome, "tiled", "adam", {"probe": OWN, "folder": tmp_path, "stop": 11})
    same_bits(one, outcome(Solo(), "replicated", "adam", {"probe": OWN, "folder": tmp_path}))


def test_the_result_holds_the_probe_of_each_scan(together: pm.Result, tmp_path: Path) -> None:
    together.save(tmp_path / "result.h5")
    result = pm.Result.load(tmp_path / "result.h5")
    assert result.scan_probes is not None and together.scan_probes is not None
    np.testing.assert_array_equal(result.scan_probes, together.scan_probes)
    np.testing.assert_array_equal(result.probe, result.scan_probes[0])
    with h5py.File(tmp_path / "result.h5") as file:
        np.testing.assert_array_equal(file["scans/1/probe"][:], result.scan_probes[1])


@pytest.mark.usefixtures("coarse_figures")
def test_patterns_are_modelled_with_the_probe_of_their_scan(both: TwoScans, tmp_path: Path) -> None:
    result = pm.reconstruct(both.scans, pm.RPIE(epochs=3, batch=20), probe=OWN, seed=1)
    result.save(tmp_path / "result.h5")
    joint = join_measurements(both.scans, [(0.0, 0.0), (0.0, 0.0)])
    views = np.array([3, both.scans[0].views + 5])
    model, counts = model_of(result, joint.geometry), joint.patterns.read(views).astype(np.float64)
    misfit = ((np.sqrt(modelled(model, result, views, joint)) - np.sqrt(counts)) ** 2).sum(axis=(1, 2))
    assert result.residuals is not None
    np.testing.assert_allclose(misfit / counts.sum(axis=(1, 2)), result.residuals[views], rtol=1e-3)
    made = write_products(tmp_path / "result.h5", figures=True, writers=(), patterns=compared_patterns(result, joint))
    assert {"probe_of_scan_0.png", "probe_of_scan_1.png"} <= {path.name for path in made}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"probe": {**OWN, "opr_modes": 1}}, "probe.opr_modes are of a single probe"),
        ({"probe": {**OWN, "start": {"kind": "result", "path": "r.h5"}}}, "An earlier result is no start"),
    ],
)
def test_options_of_a_single_probe_are_refused(both: TwoScans, options: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        pm.Reconstruction(both.scans, device="cpu", **options)


def test_a_single_scan_has_no_probes_of_scans(both: TwoScans) -> None:
    with pytest.raises(BadInput, match="there is a single scan"):
        pm.Reconstruction(both.scans[0], probe=OWN, device="cpu")


def test_what_moves_a_single_probe_is_refused(both: TwoScans) -> None:
    recon = pm.Reconstruction(both.scans, probe=OWN, device="cpu")
    for name, options, said in (
        ("lsqml", {}, "lsqml moves a single probe"),
        ("dm", {}, "dm moves a single probe"),
        ("lbfgs", {}, "lbfgs moves a single probe"),
        ("rpie", {"probe": {"power": True}}, "probe.power is a constraint of a single probe"),
        ("adam", {"models": {"aberrations": True}}, "models.aberrations makes up a single probe"),
    ):
        with pytest.raises(BadInput, match=said):
            ENGINES[name](**options).check(recon.problem)
    assert MODELS["scan_shift"]().of == "positions"


def test_modes_of_each_probe_are_orthogonal_by_themselves(both: TwoScans) -> None:
    result = pm.reconstruct(both.scans, pm.RPIE(epochs=3, batch=20), probe={**OWN, "modes": 2}, seed=1)
    assert result.scan_probes is not None and result.scan_probes.shape[:2] == (2, 2)
    for modes in result.scan_probes:
        products = np.einsum("mhw,nhw->mn", modes.conj(), modes)
        assert abs(products[0, 1]) < 1e-3 * products[0, 0].real
    across = np.vdot(result.scan_probes[0, 0], result.scan_probes[1, 0])
    assert abs(across) > 1e-2 * np.linalg.norm(result.scan_probes[0, 0]) * np.linalg.norm(result.scan_probes[1, 0])


@pytest.mark.parametrize(
    ("stage", "options"),
    [
        (pm.RPIE(epochs=3, batch=20, positions=True, probe={"intensity": True}), {}),
        (pm.EPIE(epochs=3, batch=20, coarsen=2), {}),
        (pm.MPIE(epochs=3, batch=20, object={"scale": True, "ramp": True}, probe={"support": True}), {}),
        (pm.Adam(epochs=4, batch=20, fidelity="poisson", unknowns={"background": True}), {"subpixel": "bilinear"}),
        (pm.SGD(epochs=3, batch=20), {"object": {"slices": 2, "slice_spacing_m": 1e-6}}),
    ],
)
def test_options_of_a_stage_go_with_probes_of_scans(both: TwoScans, stage: Any, options: dict[str, Any]) -> None:
    recon = pm.Reconstruction(both.scans, probe=OWN, device="cpu", seed=1, **options)
    begun = recon.state.estimate.probe.clone()
    residuals = [report.residual for report in recon.run(stage)]
    assert residuals[-1] < 0.95 * residuals[0]
    first, second = (recon.state.estimate.probe - begun).abs().amax((1, 2))
    assert float(first) > 0 and float(second) > 0


def test_three_scans_have_three_probes_and_two_shifts(both: TwoScans) -> None:
    left, right = both.scans
    third = replace(right, name="third", positions=right.positions + np.array([0.4, -0.3]))
    engine = pm.RPIE(epochs=3, batch=20, models={"scan_shift": {"scans": 3}})
    result = pm.reconstruct([left, right, third], engine, probe=OWN, seed=1)
    assert set(result.parameters["scan_shift"]) == {"y1", "x1", "y2", "x2"}
    assert result.scan_probes is not None and len(result.scan_probes) == 3
