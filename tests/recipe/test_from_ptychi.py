"""Pty-Chi's settings as recipes: values and units, what has no counterpart, and files that are none."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from copy import deepcopy
from inspect import get_annotations
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from ptymesh.cli.main import app
from ptymesh.engines import ENGINES, RPIE
from ptymesh.errors import BadInput
from ptymesh.recipe.foreign_settings import Conversion
from ptymesh.recipe.from_ptychi import NOT_NEEDED, convert_ptychi
from ptymesh.recipe.schema import Recipe, load_recipe


def plan(stride: int = 1) -> dict[str, Any]:
    """Return a plan as Pty-Chi writes it where nothing is set."""
    return {
        "start": 0,
        "stop": None,
        "stride": stride,
        "step_size_scheduler_class": None,
        "step_size_scheduler_options": {},
    }


def feature(enabled: bool = False, stride: int = 1, **own: Any) -> dict[str, Any]:
    return {"enabled": enabled, "optimization_plan": plan(stride), **own}


def unknown(optimizable: bool, step_size: float, **own: Any) -> dict[str, Any]:
    shared = {"optimization_plan": plan(), "optimizer": "sgd", "optimizer_params": {}}
    return {"optimizable": optimizable, "step_size": step_size, **shared, **own}


def settings() -> dict[str, Any]:
    """Return all settings that every engine of Pty-Chi has, with its defaults."""
    return {
        "data_options": {
            "free_space_propagation_distance_m": math.inf,
            "wavelength_m": 1e-9,
            "fft_shift": True,
            "save_data_on_device": False,
        },
        "reconstructor_options": {
            "num_epochs": 100,
            "batch_size": 100,
            "batching_mode": "random",
            "compact_mode_update_clustering": False,
            "compact_mode_update_clustering_stride": 1,
            "default_device": "gpu",
            "default_dtype": "float32",
            "use_double_precision_for_fft": False,
            "allow_nondeterministic_algorithms": True,
            "random_seed": None,
            "displayed_loss_function": "mse_sqrt",
            "exclude_measured_pixels_below": None,
            "forward_model_options": {
                "low_memory_mode": False,
                "pad_for_shift": 0,
                "diffraction_pattern_blur_sigma": None,
            },
        },
        "object_options": unknown(
            True,
            1,
            slice_spacings_m=None,
            slice_spacing_options=unknown(False, 1e-10),
            pixel_size_m=1.0,
            pixel_size_aspect_ratio=1.0,
            l1_norm_constraint=feature(weight=0),
            l2_norm_constraint=feature(weight=0),
            smoothness_constraint=feature(alpha=0),
            total_variation=feature(weight=0),
            hard_limits_magnitude_phase=feature(abs_lim=None, phase_lim=None),
            remove_grid_artifacts=feature(
                period_x_m=1e-7, period_y_m=1e-7, window_size=5, direction="xy", component="phase"
            ),
            multislice_regularization=feature(weight=0, unwrap_phase=True),
            patch_interpolation_method="fourier",
            remove_object_probe_ambiguity=feature(True, 10),
            build_preconditioner_with_all_modes=False,
            determine_position_origin_coords_by="support",
            position_origin_coords=None,
        ),
        "probe_options": unknown(
            True,
            1,
            power_constraint=feature(probe_power=0.0, scale_object=True),
            orthogonalize_incoherent_modes=feature(True, method="svd", sort_by_occupancy=False),
            orthogonalize_opr_modes=feature(True),
            support_constraint=feature(fixed_probe_support="none", fixed_probe_support_params=None, threshold=0.005),
            center_constraint=feature(use_total_intensity_for_com=False, center_modes_individually=False),
            eigenmode_update_relaxation=1.0,
        ),
        "probe_position_options": unknown(
            False,
            0.3,
            constrain_position_mean=False,
            correction_options={
                "correction_type": "gradient",
                "differentiation_method": "fourier_differentiation",
                "cross_correlation_scale": 20000,
                "cross_correlation_real_space_width": 0.01,
                "cross_correlation_probe_threshold": 0.1,
                "slice_for_correction": None,
                "clip_update_magnitude_by_mad": True,
                "update_magnitude_limit": 0.1,
            },
            affine_transform_constraint=feature(degrees_of_freedom=["rotation", "scale"], apply_constraint=True),
        ),
        "opr_mode_weight_options": unknown(
            False,
            1,
            optimize_eigenmode_weights=True,
            optimize_intensity_variation=False,
            primary_mode_weight_floor=None,
            smoothing=feature(method="median", polynomial_degree=4),
            update_relaxation=1.0,
        ),
    }


OWN: dict[str, dict[str, Any]] = {
    "lsqml": {
        "reconstructor_options.noise_model": "gaussian",
        "reconstructor_options.gaussian_noise_std": 0.5,
        "reconstructor_options.single_slice_solve_obj_prb_step_size_jointly": True,
        "reconstructor_options.multislice_solve_obj_prb_step_size_jointly": False,
        "reconstructor_options.solve_step_sizes_only_using_first_probe_mode": True,
        "reconstructor_options.momentum_acceleration_gain": 0.0,
        "reconstructor_options.momentum_acceleration_gradient_mixing_factor": 1,
        "reconstructor_options.rescale_probe_intensity_in_first_epoch": True,
        "reconstructor_options.preconditioning_damping_factor": 0.1,
        "object_options.optimal_step_size_scaler": 0.9,
        "object_options.multimodal_update": True,
        "probe_options.optimal_step_size_scaler": 0.9,
    },
    "rpie": {"object_options.alpha": 0.1, "probe_options.alpha": 0.2},
    "dm": {"reconstructor_options.exit_wave_update_relaxation": 0.8, "reconstructor_options.chunk_length": 1},
    "raar": {"reconstructor_options.beta": 0.8, "object_options.amplitude_clamp_limit": 1000},
    "bh": {"reconstructor_options.method": "CG", "probe_options.rho": 0.1, "probe_position_options.rho": 1},
    "sgd": {"reconstructor_options.loss_function": "mse_sqrt"},
}


def of_engine(name: str, changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the settings of an engine, with values changed at some paths."""
    made = settings()
    for path, value in ((OWN[name]) | (changes or {})).items():
        *groups, key = path.split(".")
        within = made
        for group in groups:
            within = within[group]
        within[key] = value
    return made


def converted(name: str, changes: dict[str, Any] | None = None) -> tuple[Recipe, Conversion]:
    made = convert_ptychi(of_engine(name, changes), "settings.json")
    recipe = deepcopy(made.recipe)
    recipe["data"] = {**recipe["data"], "path": "/data/scan_dp.hdf5"}  # type: ignore[dict-item]
    return Recipe.parse(recipe), made


@pytest.mark.parametrize("name", list(OWN))
def test_defaults_of_every_engine(name: str) -> None:
    recipe, made = converted(name)
    stage: Any = recipe.stages[0]
    assert stage.name == name and stage.epochs == 100 and not made.unmatched
    assert stage.object.scale.every == 10 and stage.positions is None
    if name not in ("dm", "raar"):
        assert stage.batch == 100


def test_options_of_engines() -> None:
    stage: Any = converted("rpie")[0].stages[0]
    assert (stage.alpha, stage.beta, stage.gamma_object) == (0.1, 0.2, 1.0)
    changes = {
        "reconstructor_options.noise_model": "poisson",
        "reconstructor_options.momentum_acceleration_gain": 0.4,
        "object_options.optimal_step_size_scaler": 0.7,
        "probe_options.optimal_step_size_scaler": 0.7,
    }
    stage = converted("lsqml", changes)[0].stages[0]
    assert (stage.fidelity, stage.step_factor, stage.momentum.gain) == ("poisson", 0.7, 0.4)
    assert (stage.delta, stage.step_modes, stage.coupled) == (0.1, "first", True)
    two: Any = converted("lsqml", {"object_options.slice_spacings_m": [1e-6]})[0]
    assert not two.stages[0].coupled and two.object.slices == 2 and two.object.slice_spacing_m == 1e-6
    assert converted("dm")[0].stages[0].beta == 0.8 and converted("raar")[0].stages[0].beta == 0.8  # type: ignore[attr-defined]
    stage = converted("bh")[0].stages[0]
    assert (stage.directions, stage.scale_probe, stage.scale_positions) == ("conjugate", 0.1, 1.0)
    stage = converted("sgd", {"reconstructor_options.loss_function": "poisson", "object_options.optimizer": "adam"})
    assert (stage[0].stages[0].name, stage[0].stages[0].fidelity) == ("adam", "poisson")


def test_beam_and_pixels() -> None:
    changes = {
        "data_options.wavelength_m": 1.4e-10,
        "data_options.fft_shift": False,
        "object_options.pixel_size_m": 2e-8,
        "object_options.pixel_size_aspect_ratio": 0.5,
    }
    data = converted("lsqml", changes)[0].data
    assert (data.radiation, data.wavelength_m, data.dc) == ("photon", 1.4e-10, "corner")
    assert data.object_pixel_m == (4e-8, 2e-8)  # height, width: the aspect is width over height
    assert converted("lsqml", {"data_options.wavelength_m": 2e-12})[0].data.radiation == "electron"
    near = converted("lsqml", {"data_options.free_space_propagation_distance_m": 0.5, "data_options.fft_shift": False})
    assert (near[0].data.propagation, near[0].data.distance_m, near[0].data.dc) == ("angular_spectrum", 0.5, None)


def test_schedules_count_from_one_and_end_with_the_last() -> None:
    changes = {
        "probe_options.optimization_plan": {"start": 5, "stop": 40, "stride": 2},
        "probe_position_options.optimizable": True,
        "probe_position_options.optimization_plan": {"start": 3, "stop": None, "stride": 1},
        "probe_position_options.constrain_position_mean": True,
        "probe_options.center_constraint": {"enabled": True, "optimization_plan": {"start": 2, "stop": 9, "stride": 3}},
    }
    stage: Any = converted("sgd", changes)[0].stages[0]
    assert (stage.unknowns.probe.start, stage.unknowns.probe.stop, stage.unknowns.probe.every) == (6, 40, 2)
    assert (stage.positions.start, stage.positions.limit_px, stage.positions.drift) == (4, 0.1, True)
    assert (stage.probe.centre.start, stage.probe.centre.stop, stage.probe.centre.every) == (3, 9, 3)
    recipe, made = converted("lsqml", changes)
    pie: Any = recipe.stages[0]
    assert pie.probe.frozen == 5
    assert "probe_options.optimization_plan: {'stop': 40, 'every': 2} (lsqml has probe.frozen alone)" in made.unmatched


def test_constraints() -> None:
    changes = {
        "object_options.pixel_size_m": 1e-8,
        "object_options.smoothness_constraint": feature(True, alpha=0.125),
        "object_options.hard_limits_magnitude_phase": feature(True, abs_lim=[0.5, 1.1], phase_lim=[None, 0.3]),
        "object_options.total_variation": feature(True, weight=0.01),
        "object_options.remove_grid_artifacts": feature(True, period_x_m=1e-7, period_y_m=5e-8, direction="y"),
        "object_options.remove_object_probe_ambiguity": feature(False),
        "object_options.l1_norm_constraint": feature(True, weight=0.2),
        "probe_options.power_constraint": feature(True, probe_power=1e4, scale_object=True),
        "probe_options.orthogonalize_incoherent_modes": feature(False),
        "probe_options.support_constraint": feature(True, fixed_probe_support="none", threshold=0.1),
        "opr_mode_weight_options.optimizable": True,
        "opr_mode_weight_options.optimize_intensity_variation": True,
    }
    recipe, made = converted("lsqml", changes)
    stage: Any = recipe.stages[0]
    assert stage.object.smooth.sigma_px == pytest.approx(math.sqrt(0.75)) and stage.object.smooth.weight == 1
    assert (stage.object.amplitude.low, stage.object.amplitude.high, stage.object.phase.high) == (0.5, 1.1, 0.3)
    assert stage.object.scale is None and stage.probe.orthogonalise is None and stage.probe.power.counts == 1e4
    grid = stage.constraints["grid_artefacts"]
    assert (grid.period_px, grid.direction_deg) == (5.0, 90.0)
    assert stage.constraints["shrink_wrap"].threshold == pytest.approx(0.01)  # of intensities
    assert "total_variation" in stage.constraints and stage.probe.intensity and stage.probe.opr
    assert [one for one in made.unmatched if "l1_norm_constraint.weight: 0.2" in one]


def _leaves(values: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


#: Settings that say how something is done which ptymesh does in one way only.
OF_ONE_WAY = (
    "differentiation_method",
    "clip_update_magnitude_by_mad",
    "slice_for_correction",
    "cross_correlation_",
    "orthogonalize_incoherent_modes.method",
    "sort_by_occupancy",
    "use_total_intensity_for_com",
    "unwrap_phase",
    "window_size",
    "remove_grid_artifacts.component",
    "polynomial_degree",
    "degrees_of_freedom",
    "period_x_m",  # of a grid along y
    "object_options.optimizer",
    "probe_options.optimizer",
    "probe_position_options.optimizer",
    "opr_mode_weight_options.optimizer",
    "opr_mode_weight_options.step_size",
    "slice_spacing_options",
    "momentum_acceleration_gradient_mixing_factor",
    "single_slice_solve",  # of several slices
    "step_size_scheduler_options",
)
ALL_ON: dict[str, Any] = {
    "object_options.pixel_size_m": 1e-8,
    "object_options.slice_spacings_m": [1e-6],
    "object_options.l1_norm_constraint.weight": 0.1,
    "object_options.l2_norm_constraint.weight": 0.1,
    "object_options.smoothness_constraint.alpha": 0.1,
    "object_options.total_variation.weight": 0.1,
    "object_options.hard_limits_magnitude_phase.abs_lim": [0.5, 1.1],
    "object_options.hard_limits_magnitude_phase.phase_lim": [-1.0, 1.0],
    "object_options.multislice_regularization.weight": 0.1,
    "object_options.remove_grid_artifacts.direction": "y",
    "probe_options.power_constraint.probe_power": 10.0,
    "probe_options.support_constraint.fixed_probe_support": "ellipse",
    "probe_options.support_constraint.fixed_probe_support_params": [32, 32, 20, 20],
    "probe_position_options.optimizable": True,
    "opr_mode_weight_options.optimizable": True,
    "opr_mode_weight_options.optimize_intensity_variation": True,
}
OTHER_VALUES: dict[str, Any] = {
    "free_space_propagation_distance_m": 0.5,
    "batching_mode": "uniform",
    "patch_interpolation_method": "bilinear",
    "slice_spacings_m": [1e-6, 1e-6],
    "direction": "x",
    "random_seed": 3,
    "abs_lim": [0.6, 1.1],
    "phase_lim": [0.6, 1.1],
    "optimizer_params": {"momentum": 0.3},
    "step_size_scheduler_options": {"gamma": 0.3},
    "fixed_probe_support_params": [31, 31, 20, 20],
    "degrees_of_freedom": ["scale"],
}


@pytest.mark.parametrize("name", ["lsqml", "rpie"])
def test_no_setting_is_lost_silently(name: str) -> None:
    """Where all is on, each setting that is changed alone changes the recipe or the report, but for named ones."""
    base = dict(ALL_ON) | {f"{path[:-8]}.enabled": True for path, _ in _leaves(settings()) if path.endswith(".enabled")}
    base = {path.replace("..", "."): value for path, value in base.items()}
    before = convert_ptychi(of_engine(name, base), "settings.json")
    silent = []
    for path, value in _leaves(of_engine(name, base)):
        other = OTHER_VALUES.get(path.rpartition(".")[2])
        if other is None and (isinstance(value, bool) or value is None):
            other = 3 if value is None else not value
        elif other is None:
            other = (
                f"{value}x" if isinstance(value, str) else value + 2 if isinstance(value, int) else value * 0.7 + 0.01
            )
        after = convert_ptychi(of_engine(name, base | {path: other}), "settings.json")
        if (after.recipe, after.report()) == (before.recipe, before.report()):
            silent.append(path)
    left = [path for path in silent if not path.startswith(NOT_NEEDED)]
    left = [path for path in left if not any(word in path for word in OF_ONE_WAY)]
    assert not left, "\n".join(left)
    assert len(silent) < len(list(_leaves(of_engine(name)))) / 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"reconstructor_options.num_epochs": 0}, "reconstructor_options.num_epochs in settings.json is 0"),
        ({"data_options.wavelength_m": -1.0}, "wavelength_m in settings.json is -1; it should be a length above 0"),
        ({"object_options.pixel_size_m": "wide"}, "object_options.pixel_size_m in settings.json is 'wide'"),
        ({"object_options.slice_spacings_m": [1e-6, -1e-6]}, "slice_spacings_m is [1e-06, -1e-06]"),
        ({"object_options.patch_interpolation_method": "cubic"}, "patch_interpolation_method is 'cubic'"),
    ],
)
def test_unsound_settings(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as error:
        converted("lsqml", changes)
    assert said in str(error.value)


def test_the_command(tmp_path: Path) -> None:
    file, out = tmp_path / "settings.json", tmp_path / "recipe.yaml"
    file.write_text(json.dumps(of_engine("lsqml", {"reconstructor_options.exclude_measured_pixels_below": 2.0})))
    with pytest.raises(BadInput, match=r"does not name the file of the patterns; add --set data\.path=FILE"):
        CliRunner().invoke(app, ["convert", str(file), str(out)], catch_exceptions=False)
    given = ["--set", f"data.path={tmp_path / 'scan_dp.hdf5'}", "--set", "probe.modes=3"]
    done = CliRunner().invoke(app, ["convert", str(file), str(out), *given])
    assert done.exit_code == 0 and "a recipe of Pty-Chi's settings, 1 setting without a counterpart" in done.output
    assert "# No counterpart: reconstructor_options.exclude_measured_pixels_below: 2.0 (data.mask)" in out.read_text()
    recipe = load_recipe(out)
    assert recipe.data.path == tmp_path / "scan_dp.hdf5" and recipe.probe.modes == 3


def test_an_engine_joins_by_the_names_that_it_declares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the engine's own declaration says which settings are its own."""

    class Newcomer(RPIE):
        name: ClassVar[str] = "newcomer"
        peer_names: ClassVar[dict[str, tuple[str, ...]]] = {"ptychi": ("daring",)}

    asked = of_engine("dm")
    del asked["reconstructor_options"]["exit_wave_update_relaxation"]
    asked["reconstructor_options"]["daring"] = 2.0
    assert convert_ptychi(asked, "settings.json").recipe["stages"][0]["engine"] == "sgd"  # type: ignore[index]
    monkeypatch.setitem(ENGINES._own, "newcomer", Newcomer)
    made = convert_ptychi(asked, "settings.json")
    assert made.recipe["stages"][0]["engine"] == "newcomer"  # type: ignore[index]
    assert any("daring" in one for one in made.unmatched)


@pytest.mark.parametrize("program", ["ptychi", "ptyrad"])
def test_no_two_engines_claim_a_name_of_another_program(program: str) -> None:
    own = [kind for kind in ENGINES.values() if "peer_names" in get_annotations(kind)]
    claimed = [name for kind in own for name in kind.peer_names.get(program, ())]
    assert claimed and len(set(claimed)) == len(claimed)
