"""Several scans of one object in one reconstruction."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import yaml

import ptymesh as pm
from joint import TwoScans, outcome, same_bits, two_scans
from ptymesh.distributed.world import Solo, World
from ptymesh.errors import BadInput
from ptymesh.io.joint_scans import join_measurements
from ptymesh.io.prepare.inspection import summarise
from ptymesh.measurement import NO_CHECKS, ArraySource, Checks, select_views
from ptymesh.recipe.scans import load_scan
from ptymesh.recipe.schema import Recipe, load_recipe
from ptymesh.run.session import run_recipe

NO_SHIFT = [(0.0, 0.0), (0.0, 0.0)]
SHIFT = {"scan_shift": True}


@pytest.fixture(scope="module")
def both() -> TwoScans:
    return two_scans(dose=2.0)


def test_views_of_all_scans_are_one_list(both: TwoScans) -> None:
    joint = join_measurements(both.scans, [(0.0, 0.0), (3.0, -2.0)])
    left, right = both.scans
    assert joint.views == left.views + right.views and joint.scans == 2 and joint.scan_names == ("left", "right")
    np.testing.assert_array_equal(joint.positions[left.views :], right.positions + np.array([3.0, -2.0]))
    views = np.array([left.views + 3, 2, joint.views - 1, 0])
    wanted = [right.patterns.read(np.array([3])), left.patterns.read(np.array([2]))]
    np.testing.assert_array_equal(joint.patterns.read(views)[:2], np.concatenate(wanted))
    assert joint.scan_index is not None and joint.scan_index[views].tolist() == [1, 0, 1, 0]


def test_a_measurement_that_a_program_made_is_checked(both: TwoScans) -> None:
    joint = join_measurements(both.scans, NO_SHIFT)
    counts = joint.patterns.read(np.arange(joint.views))
    counts[:, 3, 5] = 65535  # a pixel that never holds data
    made = pm.Measurement(
        patterns=counts,
        positions=joint.positions,
        geometry=joint.geometry,
        mask=joint.mask,
        scan_index=joint.scan_index,
        scan_names=joint.scan_names,
    )
    recon = pm.Reconstruction(made)
    mask = recon.problem.loader.mask
    assert not mask[3, 5] and int(mask.sum()) == joint.mask.sum() - 1


def test_what_views_have_for_themselves_is_selected_with_them(both: TwoScans) -> None:
    joint = replace(join_measurements(both.scans, NO_SHIFT), further_distance_m=None)
    joint = replace(joint, further_distance_m=np.arange(joint.views) * 1e-3)
    views = np.array([joint.views - 1, 4])
    some = select_views(joint, views)
    assert some.scan_index is not None and some.scan_index.tolist() == [1, 0]
    assert some.further_distance_m is not None and some.further_distance_m.tolist() == (views * 1e-3).tolist()
    np.testing.assert_array_equal(some.patterns.read(np.array([1])), joint.patterns.read(views[1:]))


def test_the_brighter_scan_has_the_larger_intensity(both: TwoScans) -> None:
    intensity = join_measurements(both.scans, NO_SHIFT).intensity
    assert intensity is not None and intensity.mean() == pytest.approx(1.0)
    assert intensity[-1] / intensity[0] == pytest.approx(2.0, rel=0.02)


def test_a_pixel_that_one_scan_masks_is_used_in_the_other(both: TwoScans) -> None:
    left, right = both.scans
    mask = left.mask.copy()
    mask[3, 5] = False
    joint = join_measurements([replace(left, mask=mask), right], NO_SHIFT)
    assert joint.mask.all() and joint.patterns.dtype.kind in "if"
    patterns = joint.patterns.read(np.array([0, left.views]))
    assert patterns[0, 3, 5] < 0 and (patterns[0] < 0).sum() == 1
    np.testing.assert_array_equal(patterns[1], right.patterns.read(np.array([0]))[0])
    pm.reconstruct(joint, pm.RPIE(epochs=1, batch=20))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"object_pixel_m": (1e-8, 1e-8)}, "object pixels"),
        ({"shape": (16, 16)}, "windows"),
    ],
)
def test_scans_that_cannot_share_an_object_are_refused(both: TwoScans, change: dict[str, object], said: str) -> None:
    left, right = both.scans
    other = replace(right, geometry=replace(right.geometry, **change)) if "shape" not in change else cropped(right)
    with pytest.raises(BadInput, match=f"{said}.* of left and right differ"):
        join_measurements([left, other], NO_SHIFT)


def test_energies_share_a_potential_alone(both: TwoScans) -> None:
    left, right = both.scans
    other = replace(right, geometry=replace(right.geometry, wavelength_m=2e-10))
    with pytest.raises(BadInput, match="The energies of the scans differ, and a transmission is not the same in all"):
        pm.Reconstruction([left, other])


def cropped(scan: pm.Measurement) -> pm.Measurement:
    patterns = scan.patterns.read(np.arange(scan.views))[:, :16, :16]
    geometry = replace(scan.geometry, shape=(16, 16))
    return replace(scan, patterns=ArraySource(patterns), geometry=geometry, mask=scan.mask[:16, :16], probe=None)


def test_a_scan_without_counts_is_refused(both: TwoScans) -> None:
    left, right = both.scans
    dark = replace(right, patterns=ArraySource(np.zeros(right.patterns.shape, np.uint16)))
    with pytest.raises(BadInput, match="right has no counts"):
        join_measurements([left, dark], NO_SHIFT)


def test_the_shift_is_found_and_both_together_explain_the_counts(both: TwoScans) -> None:
    stages = [pm.RPIE(epochs=10, batch=20, models=SHIFT), pm.Adam(epochs=40, batch=20, models=SHIFT)]
    found = pm.reconstruct(both.scans, stages, seed=1)
    numbers = found.parameters["scan_shift"]
    np.testing.assert_allclose([numbers["y1"], numbers["x1"]], both.shift_px, atol=0.05)
    still = pm.reconstruct(both.scans, [replace_models(stage) for stage in stages], seed=1)
    assert found.attrs["final_residual"] < 0.5 * still.attrs["final_residual"]
    assert found.attrs["final_residual"] < 1.4 * found.attrs["noise_floor"]


def test_scans_that_do_not_meet_are_said_and_their_shift_is_refused(
    both: TwoScans, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scans in a chain meet, and those without a view near any other's do not."""
    left, right = both.scans
    width = np.ptp(left.positions, axis=0).max()
    near, far = (replace(right, name=f"x{k}", positions=right.positions + np.array([0, k * width])) for k in (1, 2))
    pm.Reconstruction([left, near, replace(far, name="far")])
    assert "shows nothing" not in capsys.readouterr().err
    recon = pm.Reconstruction([left, replace(far, name="far")])
    assert "far shows nothing of what left does: their views are at least" in capsys.readouterr().err
    with pytest.raises(BadInput, match=r"models.scan_shift has nothing to go by: far shows nothing .* mend shift_px"):
        list(recon.run(pm.RPIE(epochs=1, models=SHIFT)))
    pm.Reconstruction([left, replace(far, name="far")], object={"scans": "own"})
    assert "shows nothing" not in capsys.readouterr().err


def replace_models(stage: pm.RPIE | pm.Adam) -> pm.RPIE | pm.Adam:
    return stage.model_copy(update={"models": {}}, deep=True)


def test_a_shift_needs_as_many_scans_as_it_is_for(both: TwoScans) -> None:
    with pytest.raises(BadInput, match="there is one"):
        pm.reconstruct(both.scans[0], pm.RPIE(epochs=1, models=SHIFT))
    with pytest.raises(BadInput, match="there are 2 scans; give 2"):
        pm.reconstruct(both.scans, pm.RPIE(epochs=1, models={"scan_shift": {"scans": 3}}))


@pytest.mark.sample(1)
@pytest.mark.parametrize("engine", ["rpie", "adam"])
def test_ranks_and_layouts_end_with_the_same_bits(ranks: Any, engine: str) -> None:
    one = outcome(Solo(), "replicated", engine, {})
    assert np.abs(one["numbers"]).max() > 0.01
    for size, layout in ((2, "replicated"), (3, "tiled")):
        for other in ranks(size, outcome, layout, engine, {}):
            same_bits(one, other)


@pytest.mark.sample(1)
@pytest.mark.parametrize("probe", ["shared", "own"])
def test_four_scans_on_three_ranks_in_tiles_end_with_the_same_bits(ranks: Any, probe: str) -> None:
    how = {"scans": 4, "probe": {"scans": probe}}
    one = outcome(Solo(), "replicated", "adam", how)
    assert one["numbers"].shape == (6,) and np.abs(one["numbers"]).min() > 0.003
    assert len(one["probe"]) == (4 if probe == "own" else 1)
    for other in ranks(3, outcome, "tiled", "adam", how):
        same_bits(one, other)


def test_a_run_of_scans_that_was_stopped_goes_on_with_the_same_bits(ranks: Any, tmp_path: Path) -> None:
    one = outcome(Solo(), "replicated", "adam", {})
    ranks(2, outcome, "tiled", "adam", {"folder": tmp_path, "stop": 11})
    same_bits(one, outcome(Solo(), "replicated", "adam", {"folder": tmp_path}))


def write(both: TwoScans, folder: Path) -> Path:
    """Write both scans and a recipe for them, and return its path."""
    for scan in both.scans:
        np.savez(
            folder / f"{scan.name}.npz",
            patterns=np.fft.fftshift(scan.patterns.read(np.arange(scan.views)), axes=(1, 2)),
            positions=scan.positions * np.array(scan.geometry.object_pixel_m),
        )
    geometry = both.scans[0].geometry
    data = {
        "keys": {"patterns": "patterns", "positions": "positions"},
        "wavelength_m": geometry.wavelength_m,
        "object_pixel_m": list(geometry.object_pixel_m or ()),
    }
    stages = [{"engine": name, "epochs": 3, "batch": 20, "models": SHIFT} for name in ("rpie", "adam")]
    recipe = {
        "scans": [{"data": {"path": f"{scan.name}.npz", **data}} for scan in both.scans],
        "probe": {"start": "auto"},
        "stages": stages,
        "output": {"dir": str(folder / "out"), "checkpoint_every": 2, "figures": False},
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return path


def test_a_recipe_of_scans_runs_and_its_result_has_a_group_of_each(both: TwoScans, tmp_path: Path) -> None:
    recipe = load_recipe(write(both, tmp_path))
    assert load_scan(recipe).scan_names == ("left", "right")
    outcome = run_recipe(recipe, device="cpu")
    result = pm.Result.load(outcome.path)
    views = [scan.views for scan in both.scans]
    assert result.scan_index is not None and np.bincount(result.scan_index).tolist() == views
    written = Recipe.from_yaml(result.recipe).scans
    assert [(one.data.path, one.shift_px) for one in written] == [(one.data.path, one.shift_px) for one in recipe.scans]
    assert all(one.data.checked is not None and not one.data.checked.without for one in written)
    with h5py.File(outcome.path) as file:
        for number, scan in enumerate(both.scans):
            group = file[f"scans/{number}"]
            assert group.attrs["name"] == scan.name and len(group["views"]) == scan.views
            np.testing.assert_array_equal(group["positions_px"][:], result.positions_px[group["views"][:]])
    numbers = result.parameters["scan_shift"]
    assert set(numbers) == {"y1", "x1"} and abs(numbers["y1"]) > 0.1


@pytest.mark.parametrize(
    ("scans", "said"),
    [
        ([{"data": {"path": "a.cxi"}}], "a single scan"),
        (3, "scans is 3"),
        ([{"shift_px": 1}, {"data": {"path": "a.cxi"}}], "scans.0.data is missing"),
    ],
)
def test_recipes_of_no_scans_are_refused(scans: object, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        Recipe.parse({"scans": scans})


def test_scans_and_data_or_auto_are_refused() -> None:
    scans = [{"data": {"path": "a.cxi"}}, {"data": {"path": "b.cxi"}}]
    with pytest.raises(BadInput, match="both data and scans"):
        Recipe.parse({"scans": scans, "data": {"path": "c.cxi"}})
    with pytest.raises(BadInput, match="name the stages for scans"):
        Recipe.parse({"scans": scans, "stages": "auto"})


def test_scans_of_other_doses_do_not_count_as_a_drift(both: TwoScans) -> None:
    joint = join_measurements(both.scans, NO_SHIFT)
    assert abs(summarise(joint).intensity_drift) < 0.05
    assert abs(summarise(replace(joint, scan_index=None, scan_names=())).intensity_drift) > 0.5


def test_a_recipe_of_one_scan_is_written_as_before() -> None:
    assert "scans" not in Recipe.parse({"data": {"path": "a.cxi"}}).as_values()


def test_rotation_and_scale_of_a_scan_are_found(both: TwoScans) -> None:
    """The second scan is told 0.5 degrees and 1 % wrong about its middle, beside its shift."""
    left, right = both.scans
    centre, angle = right.positions.mean(axis=0), np.deg2rad(0.5)
    turn = 1.01 * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    told = replace(right, positions=(right.positions - centre) @ np.linalg.inv(turn).T + centre)
    models = {"scan_shift": {"terms": ["shift", "rotation", "scale"]}}
    stages = [pm.RPIE(epochs=10, batch=20, models=models), pm.Adam(epochs=40, batch=20, models=models)]
    numbers = pm.reconstruct([left, told], stages, seed=1).parameters["scan_shift"]
    assert list(numbers) == ["y1", "x1", "rotation1", "scale1"]
    np.testing.assert_allclose([numbers["y1"], numbers["x1"]], both.shift_px, atol=0.05)
    assert np.rad2deg(numbers["rotation1"]) == pytest.approx(0.5, abs=0.05)
    assert numbers["scale1"] == pytest.approx(0.01, abs=0.001)


def faulty(scan: pm.Measurement) -> pm.Measurement:
    """The scan with two views without counts, and a pixel that is stuck."""
    counts = scan.patterns.read(np.arange(scan.views))
    counts[[7, 21]] = 0
    counts[:, 3, 5] = 9000
    return replace(scan, patterns=ArraySource(counts), checks=Checks())


def test_each_scan_is_checked_by_itself(both: TwoScans, ranks: Any) -> None:
    left, right = both.scans
    said: list[str] = []
    recon = pm.Reconstruction([left, faulty(right)], say=said.append, device="cpu")
    assert recon.scan.views == left.views + right.views - 2
    pixel = recon.scan.patterns.read(np.array([4, left.views + 4]))[:, 3, 5]
    assert pixel[0] >= 0 and pixel[1] < 0, "the pixel of one scan is used in the other"
    assert all(one.startswith("right: ") for one in said)
    assert any("Left out 2 views" in one for one in said) and any("Masked 1 pixel" in one for one in said)
    assert said == recon.findings
    kept = pm.Reconstruction([left, replace(faulty(right), checks=NO_CHECKS)], say=said.append, device="cpu")
    assert kept.scan.views == left.views + right.views
    for views in ranks(2, checked_views):
        np.testing.assert_array_equal(views, recon.scan.positions)


def checked_views(world: World) -> np.ndarray:
    """Positions of the views that one rank goes on with."""
    left, right = two_scans(dose=2.0).scans
    return pm.Reconstruction([left, faulty(right)], device=world, say=lambda _: None).scan.positions


def test_a_run_writes_down_what_checks_of_each_scan_have_found(both: TwoScans, tmp_path: Path) -> None:
    left, right = both.scans
    recipe = load_recipe(write(replace(both, scans=[left, faulty(right)]), tmp_path))
    result = pm.Result.load(run_recipe(recipe, device="cpu").path)
    assert len(result.positions_px) == left.views + right.views - 2
    assert any(one.startswith("right: Left out 2 views without counts (7, 21)") for one in result.attrs["findings"])
    first, second = (one.data.checked for one in Recipe.from_yaml(result.recipe).scans)
    assert first is not None and not first.without and second is not None and second.without == (7, 21)
    assert load_scan(Recipe.from_yaml(result.recipe)).views == left.views + right.views - 2
