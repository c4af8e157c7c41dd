"""Constraints and schedules of Pty-Chi's settings, as those of a stage."""

from __future__ import annotations

import math

from ptymesh.recipe.foreign_settings import Conversion, Settings

#: Groups of the settings that have `enabled`, beneath object, probe and OPR weights.
FEATURES = (
    *(
        f"object_options.{name}"
        for name in (
            "l1_norm_constraint",
            "l2_norm_constraint",
            "smoothness_constraint",
            "total_variation",
            "hard_limits_magnitude_phase",
            "remove_grid_artifacts",
            "multislice_regularization",
            "remove_object_probe_ambiguity",
            "experimental.deep_image_prior_options",
        )
    ),
    *(
        f"probe_options.{name}"
        for name in (
            "power_constraint",
            "orthogonalize_incoherent_modes",
            "support_constraint",
            "center_constraint",
            "experimental.sdl_probe_options",
            "experimental.deep_image_prior_options",
        )
    ),
    "opr_mode_weight_options.smoothing",
)
#: Features that are on where the settings say nothing, with the epochs from one time to the next.
ON = {"remove_object_probe_ambiguity": 10, "orthogonalize_incoherent_modes": 1}
#: No object is limited by an amplitude of this or more.
NO_LIMIT = 1000.0


def number_of(value: object) -> float | None:
    """Return a finite number; None for anything else, for infinity and for no number."""
    try:
        number = float(str(value))
    except ValueError:
        return None
    return number if math.isfinite(number) and not isinstance(value, bool) else None


def schedule_of(plan: dict[str, object], conversion: Conversion, path: str) -> dict[str, object]:
    """Return our schedule of an optimisation plan, without what is the default.

    Args:
        plan: `start`, `stop` (the first epoch without) and `stride`, counted from 0.
        conversion: a scheduler of the step size is added to what is unmatched.
        path: of the plan, for the report.
    """
    if plan.get("step_size_scheduler_class"):
        options = plan.get("step_size_scheduler_options") or {}
        conversion.unmatched.append(f"{path}.step_size_scheduler_class: {plan['step_size_scheduler_class']} {options}")
    start, stop, stride = (number_of(plan.get(name)) for name in ("start", "stop", "stride"))
    schedule: dict[str, object] = {}
    if start:
        schedule["start"] = int(start) + 1
    if stop is not None:
        schedule["stop"] = max(1, int(stop))
    if stride is not None and stride > 1:
        schedule["every"] = int(stride)
    return schedule


def take_off(settings: Settings) -> None:
    """Count features that are off, and OPR weights that are not optimised, as used."""
    for path in FEATURES:
        if settings.value(f"{path}.enabled") is not True:
            settings.take(path)
    if settings.value("opr_mode_weight_options.optimizable") is not True:
        settings.take("opr_mode_weight_options")


def convert_constraints(settings: Settings, conversion: Conversion, stage: dict[str, object]) -> None:
    """Add the constraints that are on to a stage.

    Args:
        settings: of Pty-Chi; what is used of them is marked so.
        conversion: takes notes on what has no counterpart.
        stage: options of the recipe's stage, changed in place.
    """
    of_object, of_probe, constraints = (
        _object_constraints(settings, conversion),
        _probe_constraints(settings, conversion),
        _stage_constraints(settings, conversion),
    )
    _add_opr(settings, conversion, of_probe)
    for key, group in (("object", of_object), ("probe", of_probe), ("constraints", constraints)):
        earlier = stage.get(key)
        merged = {**(earlier if isinstance(earlier, dict) else {}), **group}
        if merged:
            stage[key] = merged


def _read_feature(settings: Settings, path: str) -> tuple[dict[str, object], bool]:
    """Return a feature's group, which counts as used, and True if it is on."""
    name = path.rpartition(".")[2]
    group = settings.group(path)
    return group, group.get("enabled", name in ON) is True


def _schedule_of_feature(conversion: Conversion, group: dict[str, object], path: str) -> dict[str, object]:
    plan = group.get("optimization_plan")
    name = path.rpartition(".")[2]
    effective_plan = {"stride": ON.get(name, 1)} if not isinstance(plan, dict) else plan
    return schedule_of(effective_plan, conversion, f"{path}.optimization_plan")


def _object_constraints(settings: Settings, conversion: Conversion) -> dict[str, object]:
    """Return the stage's group `object`."""
    constraints: dict[str, object] = {}
    path = "object_options.smoothness_constraint"
    group, is_on = _read_feature(settings, path)
    if is_on and (alpha := number_of(group.get("alpha"))):
        # the kernel of 3 x 3 has a variance of 6 alpha along each axis
        constraints["smooth"] = {
            **_schedule_of_feature(conversion, group, path),
            "sigma_px": float(f"{math.sqrt(6 * alpha):.6g}"),
            "weight": 1.0,
        }
        conversion.remarks.append("object.smooth is of the complex object; Pty-Chi smooths its magnitude alone.")
    path = "object_options.hard_limits_magnitude_phase"
    group, is_on = _read_feature(settings, path)
    for ours, theirs in (("amplitude", "abs_lim"), ("phase", "phase_lim")):
        limits = group.get(theirs)
        if is_on and isinstance(limits, list) and len(limits) == 2:
            bounds = {name: number_of(one) for name, one in zip(("low", "high"), limits, strict=True)}
            given_bounds = {name: one for name, one in bounds.items() if one is not None}
            constraints[ours] = {**_schedule_of_feature(conversion, group, path), **given_bounds}
    clamp = settings.number("object_options.amplitude_clamp_limit")
    if clamp is not None and clamp < NO_LIMIT and "amplitude" not in constraints:
        constraints["amplitude"] = {"high": clamp}
    path = "object_options.remove_object_probe_ambiguity"
    group, is_on = _read_feature(settings, path)
    if is_on:
        constraints["scale"] = _schedule_of_feature(conversion, group, path) or True
    return constraints


def _probe_constraints(settings: Settings, conversion: Conversion) -> dict[str, object]:
    """Return the stage's group `probe`."""
    constraints: dict[str, object] = {}
    path = "probe_options.power_constraint"
    group, is_on = _read_feature(settings, path)
    if is_on and (power := number_of(group.get("probe_power"))):
        constraints["power"] = {**_schedule_of_feature(conversion, group, path), "counts": power}
        if group.get("scale_object") is False:
            conversion.unmatched.append(f"{path}.scale_object: False (the object takes the inverse here)")
    path = "probe_options.orthogonalize_incoherent_modes"
    group, is_on = _read_feature(settings, path)
    if not is_on:
        constraints["orthogonalise"] = False
    elif when := _schedule_of_feature(conversion, group, path):
        constraints["orthogonalise"] = when
    path = "probe_options.center_constraint"
    group, is_on = _read_feature(settings, path)
    if is_on:
        constraints["centre"] = _schedule_of_feature(conversion, group, path) or True
        if group.get("center_modes_individually"):
            conversion.unmatched.append(f"{path}.center_modes_individually: True (all modes are shifted together here)")
    return constraints


def _stage_constraints(settings: Settings, conversion: Conversion) -> dict[str, object]:
    """Return the stage's group `constraints`."""
    constraints: dict[str, object] = {}
    path = "probe_options.support_constraint"
    group, is_on = _read_feature(settings, path)
    threshold = number_of(group.get("threshold", 0.005))
    if is_on and threshold and threshold < 1:
        # Pty-Chi's is of amplitudes, ours of intensities
        constraints["shrink_wrap"] = {
            **_schedule_of_feature(conversion, group, path),
            "threshold": float(f"{threshold**2:.6g}"),
        }
    if is_on and group.get("fixed_probe_support", "none") != "none":
        params = group.get("fixed_probe_support_params")
        conversion.unmatched.append(
            f"{path}.fixed_probe_support: {group['fixed_probe_support']} {params} (ellipse_support, as fractions of "
            "half the window)"
        )
    for theirs, ours in (("total_variation", "total_variation"), ("multislice_regularization", "depth_smoothness")):
        path = f"object_options.{theirs}"
        group, is_on = _read_feature(settings, path)
        if is_on and number_of(group.get("weight")):
            constraints[ours] = _schedule_of_feature(conversion, group, path) or True
            conversion.remarks.append(
                f"constraints.{ours} has its own default weight: Pty-Chi's {group['weight']} is of another sum."
            )
    _add_grid_removal(settings, conversion, constraints)
    for norm in ("l1", "l2"):
        path = f"object_options.{norm}_norm_constraint"
        group, is_on = _read_feature(settings, path)
        if is_on and number_of(group.get("weight")):
            when = _schedule_of_feature(conversion, group, path) or "always"
            conversion.unmatched.append(
                f"{path}.weight: {group['weight']}, {when} (stages.0.regularisers, kind {norm})"
            )
    return constraints


def _add_grid_removal(settings: Settings, conversion: Conversion, constraints: dict[str, object]) -> None:
    """Add the removal of a grid along one direction."""
    path = "object_options.remove_grid_artifacts"
    group, is_on = _read_feature(settings, path)
    if not is_on:
        return
    width = settings.number("object_options.pixel_size_m") or 1.0
    aspect = settings.number("object_options.pixel_size_aspect_ratio") or 1.0
    direction = str(group.get("direction", "xy"))
    along_y = direction == "y"
    pixel = width / aspect if along_y else width
    period = (number_of(group.get("period_y_m" if along_y else "period_x_m")) or 1e-7) / pixel
    if not 2 < period <= 64:
        conversion.unmatched.append(f"{path}: a period of {period:.3g} object pixels (grid_artefacts: 2 to 64)")
        return
    constraints["grid_artefacts"] = {
        **_schedule_of_feature(conversion, group, path),
        "period_px": float(f"{period:.6g}"),
        "direction_deg": 90.0 if along_y else 0.0,
    }
    conversion.remarks.append(
        "constraints.grid_artefacts acts on the complex object; its window is another than Pty-Chi's."
    )
    if direction == "xy":
        conversion.unmatched.append(f"{path}.direction: xy (one direction here: x)")


def _add_opr(settings: Settings, conversion: Conversion, probe: dict[str, object]) -> None:
    """Add variable intensity and shares of OPR modes to the stage's group `probe`."""
    group = "opr_mode_weight_options"
    if settings.take(f"{group}.optimizable") is not True:
        return
    when = schedule_of(settings.group(f"{group}.optimization_plan"), conversion, f"{group}.optimization_plan")
    for name in ("optimizer", "step_size", "optimizer_params", "primary_mode_weight_floor"):
        if name != "primary_mode_weight_floor" or settings.value(f"{group}.{name}") is None:
            settings.take(f"{group}.{name}")
    if settings.take(f"{group}.optimize_eigenmode_weights", True) is True:
        probe["opr"] = when or True
    else:
        probe["opr"] = False
    if settings.take(f"{group}.optimize_intensity_variation") is True:
        probe["intensity"] = when or True
