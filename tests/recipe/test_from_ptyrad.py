"""PtyRAD's params as recipes: values and units, what has no counterpart, and files that are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from ptymesh.cli.main import app
from ptymesh.errors import BadInput
from ptymesh.geometry import electron_wavelength_m
from ptymesh.recipe.from_ptyrad import convert_ptyrad
from ptymesh.recipe.schema import Recipe, load_recipe
from ptymesh.recipe.starts import ResultStart

OFF = {"start_iter": None, "step": 1, "end_iter": None}


def params(init: dict[str, Any] | None = None, **groups: Any) -> dict[str, Any]:
    """Return params with what every file must have."""
    must = {
        "probe_kv": 80,
        "probe_conv_angle": 24.9,
        "meas_Npix": 128,
        "pos_N_scan_slow": 32,
        "pos_N_scan_fast": 64,
        "pos_scan_step_size": 0.429,
        "obj_Nlayer": 1,
        "obj_slice_thickness": 2,
        "meas_params": {"path": "/data/scan_x64_y32.raw"},
    }
    return {"init_params": must | (init or {}), "recon_params": {"NITER": 10}, **groups}


def converted(values: dict[str, Any]) -> tuple[Recipe, list[str]]:
    made = convert_ptyrad(values, "p.yaml")
    return Recipe.parse(made.recipe), made.report()


def test_beam_scan_and_lens() -> None:
    lens = {"defocus": 200, "C12": 50, "phi12": 90, "Cs": 10000, "C21": 0}
    recipe, report = converted(params({"probe_aberrations": lens}))
    assert recipe.data.energy_eV == 80e3 and recipe.data.radiation == "electron"
    assert recipe.positions.raster is not None and recipe.positions.raster.shape == (32, 64)
    assert recipe.positions.raster.step_m == pytest.approx((4.29e-11, 4.29e-11))
    start: Any = recipe.probe.start
    assert start.semiangle_rad == pytest.approx(24.9e-3)
    assert start.aberrations_m["C10"] == pytest.approx(-2e-8) and start.aberrations_m["C30"] == pytest.approx(1e-6)
    assert start.aberrations_m["C12"] == pytest.approx((5e-9, 1.5707963), rel=1e-6)
    assert any("data.object_pixel_m is missing, for the calibration is fitRBF" in line for line in report)
    assert not any("No counterpart" in line for line in report)


WAVELENGTH = electron_wavelength_m(80e3)


@pytest.mark.parametrize(
    ("mode", "value", "pixel"),
    [
        ("dx", 0.15, 0.15e-10),
        ("dk", 0.05, 1e-10 / (128 * 0.05)),
        ("kMax", 3.2, 1e-10 / 6.4),
        ("da", 1.5, WAVELENGTH / (128 * 1.5e-3)),
        ("angleMax", 96, WAVELENGTH / (2 * 96e-3)),
        ("n_alpha", 4, WAVELENGTH / (2 * 4 * 24.9e-3)),
        ("RBF", 20, WAVELENGTH / (128 * 24.9e-3 / 20)),
    ],
)
def test_calibrations(mode: str, value: float, pixel: float) -> None:
    recipe, _ = converted(params({"meas_calibration": {"mode": mode, "value": value}}))
    assert recipe.data.object_pixel_m == pytest.approx((pixel, pixel), rel=1e-6)


def test_preparation() -> None:
    prepared = {
        "meas_flipT": [1, 0, 1],
        "meas_crop": [None, None, [32, 96], [24, 104]],
        "meas_pad": {"mode": "on_the_fly", "padding_type": "power", "target_Npix": 160},
    }
    recipe, report = converted(params(prepared))
    data = recipe.data
    assert (data.flip_y, data.flip_x, data.transpose) == (True, False, True)
    assert data.crop == (64, 80) and data.pad == (160, 160) and data.invalid == "zero"
    assert any("Padded pixels are masked here, and filled (power)" in line for line in report)
    _, report = converted(params({"meas_crop": [None, None, [0, 64], [0, 64]]}))
    assert any("No counterpart: init_params.meas_crop" in line for line in report)


def test_what_a_file_leaves_out_has_ptyrads_default() -> None:
    stage: Any = converted(params())[0].stages[0]
    assert (stage.name, stage.epochs, stage.batch, stage.loss, stage.power) == ("adam", 10, 32, "nrmse", 0.5)
    assert stage.probe.power and stage.probe.orthogonalise and stage.object.smooth.sigma_px == 0.4
    assert stage.positions.drift and stage.object.amplitude is None
    assert converted(params())[0].probe.modes == 4


def test_stage() -> None:
    values = params(
        {"obj_Nlayer": 6},
        model_params={
            "optimizer_params": {"name": "AdamW"},
            "update_params": {
                "obja": {"start_iter": None, "lr": 0},
                "probe": {"start_iter": 5, "lr": 1e-4, "end_iter": 9},
                "probe_pos_shifts": {"start_iter": 3, "lr": 5e-4},
                "obj_tilts": {"start_iter": 2, "lr": 1e-4},
            },
            "detector_blur_std": 0.7,
        },
        loss_params={"loss_single": {"state": False}, "loss_poissn": {"state": True}},
        constraint_params={
            "fix_probe_int": OFF,
            "obj_rblur": OFF,
            "obj_zblur": {"start_iter": 2, "step": 3, "end_iter": 8},
            "kr_filter": {"start_iter": 1, "radius": 0.2},
            "objp_postiv": {"start_iter": 1, "relax": 0.25},
            "obja_thresh": {"start_iter": 1, "thresh": [0.9, 1.1]},
            "mirrored_amp": {"start_iter": 1, "scale": 0.03},
            "tilt_smooth": OFF,
        },
    )
    values["recon_params"] |= {"BATCH_SIZE": {"size": 16, "grad_accumulation": 2}, "GROUP_MODE": "compact"}
    recipe, report = converted(values)
    stage: Any = recipe.stages[0]
    assert (stage.name, stage.batch, stage.order, stage.fidelity) == ("adamw", 32, "compact", "poisson")
    assert stage.parametrisation == "phase" and stage.unknowns.tilt.start == 2
    assert (stage.unknowns.probe.start, stage.unknowns.probe.stop) == (5, 8)  # PtyRAD's end is excluded
    assert stage.positions.start == 3 and stage.probe.power is None and stage.object.smooth is None
    smooth = stage.constraints["depth_smoothness"]
    assert (smooth.start, smooth.every, smooth.stop) == (2, 3, 7)
    assert stage.constraints["kr_filter"].cutoff == 0.4 and stage.constraints["positivity"].strength == 0.75
    assert (stage.object.amplitude.low, stage.object.amplitude.high) == (0.9, 1.1)
    assert recipe.object.slices == 6 and recipe.object.slice_spacing_m == pytest.approx(2e-10)
    assert "detector_blur" in recipe.optics
    assert any("No counterpart: constraint_params.mirrored_amp" in line for line in report)
    assert not any("tilt_smooth" in line for line in report)


def test_frequencies_amplitudes_and_modes() -> None:
    on = {"start_iter": 3}
    values = params(
        {"obj_omode_max": 2},
        loss_params={"loss_simlar": {"state": True, "weight": 0.2, "blur_std": 0.5, "scale_factor": [1, 2, 2]}},
        constraint_params={
            "kr_thresh": {**on, "thresh": 0.2},
            "mirrored_amp": on,
            "obja_thresh": {**on, "relax": 0.25},
            "objp_postiv": {**on, "relax": 1},
            "complex_ratio": {**on, "alpha1": 0.4, "alpha2": 0},
        },
    )
    recipe, report = converted(values)
    stage: Any = recipe.stages[0]
    threshold, mirrored = stage.constraints["kr_threshold"], stage.constraints["mirrored_amplitude"]
    assert (threshold.keep, threshold.start, mirrored.start) == (0.2, 3, 3)
    assert (mirrored.scale, mirrored.power, mirrored.strength) == (0.03, 4, 0.9)
    assert stage.object.amplitude.strength == 0.75 and "positivity" not in stage.constraints
    assert stage.constraints["complex_ratio"].strength == 0.4
    similar = stage.regularisers[-1]
    assert (similar.kind, similar.weight, similar.blur_px) == ("similar_modes", 0.2, 0.5)
    assert any("loss_simlar.scale_factor: [1, 2, 2]" in line for line in report)
    assert sum("No counterpart" in line for line in report) == 1
    values["init_params"].pop("obj_omode_max")
    values["constraint_params"] |= {"kr_thresh": {**on, "thresh": 1}, "mirrored_amp": {**on, "scale": 0}}
    values["constraint_params"]["complex_ratio"]["alpha2"] = 0.5
    recipe, report = converted(values)
    assert any("No counterpart: constraint_params.complex_ratio.alpha2: 0.5" in line for line in report)
    assert recipe.stages[0].constraints.keys() == {"complex_ratio"} and not recipe.stages[0].regularisers
    assert any("No counterpart: loss_params.loss_simlar" in line for line in report)
    assert any("No counterpart: constraint_params.mirrored_amp" in line for line in report)


def test_a_mask_of_the_probe_in_real_space_and_smooth_tilts() -> None:
    """Radii are shares of the window there, of half the window here; tilts of views are smoothed, one of all is not."""
    on = {"start_iter": 3, "radius": 0.3, "width": 0.1}
    smooth = {"start_iter": 1, "std": 2}
    values = params(constraint_params={"probe_mask_r": on, "tilt_smooth": smooth})
    recipe, report = converted(values)
    support: Any = recipe.stages[0].probe.support
    assert (support.radius, support.edge, support.start) == (0.6, 0.1, 3)
    assert not any("No counterpart" in line for line in report)
    values = params(
        {"tilt_params": {"tilt_type": "each"}, "obj_Nlayer": 6},
        model_params={"update_params": {"obj_tilts": {"start_iter": 2, "lr": 1e-4}}},
        constraint_params={"probe_mask_r": {"start_iter": 1}, "tilt_smooth": smooth},
    )
    recipe, report = converted(values)
    stage: Any = recipe.stages[0]
    assert stage.probe.support is None
    assert [line for line in report if "No counterpart: constraint_params" in line] == [
        line for line in report if "No counterpart: constraint_params.probe_mask_r" in line
    ]
    assert recipe.optics["view_tilt"] and stage.unknowns.moving()["view_tilt"].start == 2
    tilts = stage.constraints["unknown_smoothness"]
    assert tilts.sigma == {"view_tilt": 2} and tilts.over == "scan"


@pytest.mark.parametrize(
    ("along", "slices", "spacing_m", "depth_m"),
    [
        ({"obj_z_pad": {"pad_layers": [2, 1], "pad_types": ["vacuum", "vacuum"]}}, 9, 2e-10, 4e-10),
        ({"obj_z_crop": [1, -1]}, 4, 2e-10, -2e-10),
        ({"obj_z_crop": [0, 5]}, 5, 2e-10, 0.0),
        ({"obj_z_crop": [1, 6], "obj_z_pad": {"pad_layers": [3, None]}}, 8, 2e-10, 4e-10),
        ({"obj_z_resample": {"mode": "scale_Nlayer", "value": 2}}, 12, 1e-10, None),
        ({"obj_z_resample": {"mode": "scale_slice_thickness", "value": 0.5}}, 12, 1e-10, None),
        ({"obj_z_resample": {"mode": "target_Nlayer", "value": 4}}, 4, 3e-10, None),
        ({"obj_z_resample": {"mode": "target_slice_thickness", "value": 2.5}}, 4, 3e-10, None),
        (
            {"obj_z_pad": {"pad_layers": [2, 2]}, "obj_z_resample": {"mode": "scale_Nlayer", "value": 2}},
            20,
            1e-10,
            4e-10,
        ),
    ],
)
def test_an_earlier_result_along_the_beam(
    along: dict[str, Any], slices: int, spacing_m: float, depth_m: float | None
) -> None:
    model = "out/model.hdf5"
    start = {f"{name}_source": "PtyRAD" for name in ("obj", "probe", "pos")}
    start |= {f"{name}_params": model for name in ("obj", "probe", "pos")}
    recipe, report = converted(params({"obj_Nlayer": 6, **start, **along, "probe_z_shift": -4 if depth_m else None}))
    obj, probe_start = recipe.object, recipe.probe.start
    assert isinstance(probe_start, ResultStart)
    assert (obj.slices, obj.initial_depth_m) == (slices, depth_m)
    assert obj.slice_spacing_m == pytest.approx(spacing_m) and obj.result_positions
    assert obj.initial == "out/model.h5" and Path(probe_start.path) == Path("out/model.h5")
    assert any("ptymesh convert out/model.hdf5 out/model.h5" in line for line in report)
    assert not any("No counterpart" in line for line in report)


def test_ones_are_padded_and_resampled_too() -> None:
    along = {"obj_Nlayer": 6, "obj_z_pad": {"pad_layers": [1, 1], "pad_types": ["edge", "vacuum"]}}
    recipe, report = converted(params(along))
    assert recipe.object.slices == 8 and recipe.object.initial_depth_m is None
    assert any("No counterpart: init_params.obj_z_pad.pad_types: ['edge', 'vacuum']" in line for line in report)


@pytest.mark.parametrize(
    ("init", "named"),
    [
        ({"pos_scan_rand_std": 0.15}, "init_params.pos_scan_rand_std: 0.15"),
        (
            {"obj_omode_max": 2, "obj_omode_init_occu": {"occu_type": "custom", "init_occu": [0.7, 0.3]}},
            "init_params.obj_omode_init_occu: [0.7, 0.3]",
        ),
        ({"pos_scan_affine": [1, 0, 3, 0]}, "init_params.pos_scan_affine"),
        ({"probe_source": "PtyShv", "probe_params": "Niter200.mat"}, "probe_source: PtyShv (Niter200.mat)"),
        ({"meas_add_source_size": 0.34}, "init_params.meas_add_source_size: 0.34"),
        ({"a_key_of_tomorrow": 3}, "init_params.a_key_of_tomorrow: 3"),
    ],
)
def test_what_has_no_counterpart_is_named(init: dict[str, Any], named: str) -> None:
    _, report = converted(params(init))
    assert any(line.startswith("No counterpart: ") and named in line for line in report)


@pytest.mark.parametrize(
    ("init", "said"),
    [
        ({"pos_N_scans": 2000}, "says 32 x 64 = 2048 positions, and pos_N_scans 2000"),
        ({"probe_kv": None}, "has no init_params.probe_kv"),
        ({"probe_kv": "80 kV"}, "init_params.probe_kv in p.yaml is '80 kV'; it should be a number"),
        ({"probe_illum_type": "xray"}, "is of X-rays"),
        ({"meas_params": None}, "has no init_params.meas_params.path"),
        ({"obj_Nlayer": 6, "obj_z_crop": [4, 2]}, "obj_z_crop keeps none of 6 slices"),
        ({"obj_z_crop": [4]}, "it should be two whole numbers"),
        ({"obj_z_resample": {"mode": "twice", "value": 2}}, "obj_z_resample.mode is 'twice'"),
        ({"obj_z_resample": {"mode": "target_Nlayer", "value": 0}}, "it should be above 0"),
        ({"obj_Nlayer": 1.5}, "should be a whole number"),
        ({"pos_scan_step_size": None}, "has no init_params.pos_scan_step_size"),
    ],
)
def test_unsound_params(init: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as error:
        converted(params(init))
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("group", "name", "options"),
    [
        ("constraint_params", "kr_thresh", {"thresh": 0}),
        ("constraint_params", "kr_thresh", {"thresh": float("nan")}),
        ("constraint_params", "obja_thresh", {"relax": 0, "thresh": [1.1, 0.9]}),
        ("constraint_params", "obja_thresh", {"relax": 0, "thresh": ["a", 0.9]}),
        ("loss_params", "loss_simlar", {"state": True, "weight": -1}),
        ("loss_params", "loss_simlar", {"state": True, "blur_std": -1}),
    ],
)
def test_values_that_no_option_takes_are_said(group: str, name: str, options: dict[str, Any]) -> None:
    """The recipe is sound without them."""
    on = {**OFF, "start_iter": 1} if group == "constraint_params" else {}
    _, report = converted(params({"obj_omode_max": 2}, **{group: {name: on | options}}))
    assert any(f"No counterpart: {group}.{name}" in line for line in report)


def test_the_command(tmp_path: Path) -> None:
    file, out = tmp_path / "params.yaml", tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(params({"pos_scan_rand_std": 0.15})))
    done = CliRunner().invoke(app, ["convert", str(file), str(out)])
    assert done.exit_code == 0 and "1 setting without a counterpart" in done.output
    assert "# No counterpart: init_params.pos_scan_rand_std: 0.15" in out.read_text()
    assert load_recipe(out).data.energy_eV == 80e3
    file.write_text("data: {path: scan.cxi}")
    with pytest.raises(BadInput, match="has neither PtyRAD's init_params and recon_params"):
        CliRunner().invoke(app, ["convert", str(file), str(out), "--force"], catch_exceptions=False)
