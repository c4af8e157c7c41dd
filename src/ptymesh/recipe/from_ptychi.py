"""Pty-Chi's settings, as `options.get_dict()` hands them over, as recipes.

Six groups (`data_options`, `reconstructor_options`, `object_options`, `probe_options`, `probe_position_options`,
`opr_mode_weight_options`) hold settings and no arrays; neither the file of the patterns nor the number of probe modes
is among them. Epochs are counted from 0 and `stop` is the first one without. The engine is told by the names of its own
options. Source: Pty-Chi's documentation, and the descriptions of its options.
"""

from __future__ import annotations

import math

from ptymesh.engines import ENGINES, find_counterpart
from ptymesh.engines.gradients.elementwise import Elementwise
from ptymesh.errors import BadInput
from ptymesh.recipe.foreign_settings import Conversion, Settings, optimiser_named
from ptymesh.recipe.ptychi_constraints import convert_constraints, number_of, schedule_of, take_off
from ptymesh.sentences import quote

RECONSTRUCTOR = "reconstructor_options"
GROUPS = (RECONSTRUCTOR, "object_options", "probe_options", "probe_position_options")
#: Settings that change nothing of what is computed, or that ptymesh does by itself.
NOT_NEEDED = (
    "data_options.save_data_on_device",
    *(
        f"reconstructor_options.{name}"
        for name in (
            "default_device",
            "allow_nondeterministic_algorithms",
            "displayed_loss_function",
            "chunk_length",
            "gaussian_noise_std",
            "forward_model_class",
            "forward_model_options.low_memory_mode",
            "forward_model_options.pad_for_shift",
        )
    ),
    "object_options.build_preconditioner_with_all_modes",
    "object_options.determine_position_origin_coords_by",
    "object_options.position_origin_coords",
    "probe_options.orthogonalize_opr_modes",
)
#: What Pty-Chi takes where nothing is set, of settings without a counterpart: these values are not reported.
DEFAULTS: dict[str, object] = {
    "object_options.inertia": 0,
    "object_options.multimodal_update": True,
    "probe_options.inertia": 0,
    "probe_options.eigenmode_update_relaxation": 1.0,
    "opr_mode_weight_options.update_relaxation": 1.0,
    "reconstructor_options.compact_mode_update_clustering_stride": 1,
    "reconstructor_options.momentum_acceleration_gradient_mixing_factor": 1,
    "reconstructor_options.rescale_probe_intensity_in_first_epoch": True,
    "probe_position_options.momentum_acceleration_gain": 0.0,
}
#: Wavelength and object pixel of options that nobody has set.
WAVELENGTH_UNSET_M, PIXEL_UNSET_M = 1e-9, 1.0
#: Electrons of 10 keV have 12 pm, and photons of such a wavelength would have 100 keV.
LONGEST_ELECTRON_M = 1.25e-11
EPOCHS, BATCH = 100, 100
#: The options by which engines are told (`Engine.peer_names`): that of the three PIEs, and none of the optimisers.
PIE, OPTIMISER = "alpha", ""


def is_ptychi(values: dict[str, object]) -> bool:
    """Return True if the keys of a file are those of Pty-Chi's settings."""
    return all(isinstance(values.get(name), dict) for name in GROUPS)


def convert_ptychi(values: dict[str, object], file: str) -> Conversion:
    """Return the recipe that comes nearest to Pty-Chi's settings, without the file of the patterns (`data.path`).

    Args:
        values: what the file holds.
        file: its name, for messages.

    Raises:
        BadInput: a value cannot be.
    """
    settings = Settings(values, file)
    conversion = Conversion("Pty-Chi", {})
    engine, telling_option = _engine(settings, conversion)
    groups = {
        "data": _data(settings, conversion, file),
        "object": _object(settings, conversion),
        "positions": _positions(settings),
        "optics": _optics(settings),
    }
    stage = _stage(settings, conversion, engine, telling_option)
    conversion.recipe = {key: value for key, value in groups.items() if value or key == "data"}
    conversion.recipe |= _numerics(settings, conversion)
    conversion.recipe["stages"] = [stage]
    conversion.remarks.append(
        "Arrays are not among Pty-Chi's settings: the number of modes is that of the probe array (probe.modes, "
        "probe.opr_modes), and object and probe of a result start a run by object.initial and probe.start."
    )
    for path in NOT_NEEDED:
        settings.take(path)
    take_off(settings)
    for path, default in DEFAULTS.items():
        value = settings.take(path)
        if value is not None and value != default:
            conversion.unmatched.append(f"{path}: {value}")
    conversion.unmatched += [f"{path}: {value}" for path, value in settings.unused()]
    return conversion


def _engine(settings: Settings, conversion: Conversion) -> tuple[str, str]:
    """Return the engine whose options the settings have, and the option that tells it from others."""
    counterpart = find_counterpart("ptychi", {key for name in GROUPS for key in settings.keys(name)})
    if counterpart is None:
        name = settings.text("object_options.optimizer") or "sgd"
        return optimiser_named("ptychi", name, "object_options.optimizer", conversion), OPTIMISER
    if counterpart[1] == PIE:
        conversion.remarks.append(
            "The settings do not say which of Pty-Chi's PIE, ePIE and rPIE they are for: rPIE is taken. For ePIE, "
            "write engine: epie, and alpha as gamma_object, beta as gamma_probe."
        )
    return counterpart


def _data(settings: Settings, conversion: Conversion, file: str) -> dict[str, object]:
    """Return the group `data`: wavelength, distance, object pixel, and where the zero frequency is."""
    data: dict[str, object] = {}
    wavelength = settings.number("data_options.wavelength_m")
    distance = settings.take("data_options.free_space_propagation_distance_m", math.inf)
    is_far = number_of(distance) is None or math.isinf(float(str(distance)))
    if wavelength is None or wavelength == WAVELENGTH_UNSET_M:
        conversion.remarks.append(
            "No wavelength is set (Pty-Chi's default is 1e-09 m): the data file's energy is taken."
        )
    elif wavelength <= 0:
        raise BadInput(f"data_options.wavelength_m in {file} is {wavelength:g}; it should be a length above 0.")
    else:
        radiation = "electron" if wavelength < LONGEST_ELECTRON_M else "photon"
        data |= {"radiation": radiation, "wavelength_m": wavelength}
    if not is_far:
        data |= {"propagation": "angular_spectrum", "distance_m": float(str(distance))}
    elif settings.take("data_options.fft_shift", True) is False:
        data["dc"] = "corner"
    settings.take("data_options.fft_shift")
    width = settings.number("object_options.pixel_size_m")
    aspect = settings.number("object_options.pixel_size_aspect_ratio") or 1.0
    if width is None or width == PIXEL_UNSET_M:
        conversion.remarks.append("No object pixel is set (Pty-Chi's default is 1 m): the data file's is taken.")
    elif width <= 0 or aspect <= 0:
        raise BadInput(
            f"The object pixel in {file} is {width:g} m, {aspect:g} times its height; both should be above 0."
        )
    else:
        data["object_pixel_m"] = width if aspect == 1 else [float(f"{width / aspect:.8g}"), width]
    if settings.number("reconstructor_options.exclude_measured_pixels_below") is not None:
        low = settings.number("reconstructor_options.exclude_measured_pixels_below")
        conversion.unmatched.append(f"reconstructor_options.exclude_measured_pixels_below: {low} (data.mask)")
    return data


def _object(settings: Settings, conversion: Conversion) -> dict[str, object]:
    """Return the group `object`: slices and their spacing."""
    spacings = [number_of(one) for one in settings.items("object_options.slice_spacings_m")]
    known_spacings = [one for one in spacings if one is not None]
    if not known_spacings:
        return {}
    if len(known_spacings) != len(spacings) or min(known_spacings) <= 0:
        raise BadInput(f"object_options.slice_spacings_m is {quote(spacings)}; all should be lengths above 0.")
    if max(known_spacings) - min(known_spacings) > 1e-6 * max(known_spacings):
        conversion.unmatched.append(
            f"object_options.slice_spacings_m: {known_spacings}; slices are equally far apart here: the mean"
        )
    return {
        "slices": len(known_spacings) + 1,
        "slice_spacing_m": float(f"{sum(known_spacings) / len(known_spacings):.8g}"),
    }


def _positions(settings: Settings) -> dict[str, object]:
    """Return the group `positions`: how fractions of a pixel act."""
    method = settings.text("object_options.patch_interpolation_method") or "fourier"
    subpixel = {"fourier": "fourier", "bilinear": "bilinear", "nearest": "none"}.get(method)
    if subpixel is None:
        raise BadInput(
            f"object_options.patch_interpolation_method is {quote(method)}; it should be fourier, bilinear or nearest."
        )
    return {} if subpixel == "fourier" else {"subpixel": subpixel}


def _optics(settings: Settings) -> dict[str, object]:
    """Return the group `optics`: the blur of the detector."""
    blur = settings.number("reconstructor_options.forward_model_options.diffraction_pattern_blur_sigma")
    return {"detector_blur": {"start": {"blur_width": blur}}} if blur else {}


def _numerics(settings: Settings, conversion: Conversion) -> dict[str, object]:
    """Return seed and precision."""
    numerics: dict[str, object] = {}
    seed = settings.number("reconstructor_options.random_seed")
    if seed is not None and seed >= 0 and seed == int(seed):
        numerics["seed"] = int(seed)
    dtype = settings.text("reconstructor_options.default_dtype") or "float32"
    if dtype == "float64":
        numerics["precision"] = "double"
    elif dtype != "float32":
        conversion.unmatched.append(f"reconstructor_options.default_dtype: {dtype}; single precision is taken")
    return numerics


def _stage(settings: Settings, conversion: Conversion, engine: str, telling_option: str) -> dict[str, object]:
    """Return the one stage: the engine with its options, what it moves, and constraints."""
    stage: dict[str, object] = {
        "engine": engine,
        "epochs": settings.count("reconstructor_options.num_epochs", EPOCHS),
    }
    batch = settings.count("reconstructor_options.batch_size", BATCH)
    order = settings.text("reconstructor_options.batching_mode") or "random"
    if ENGINES[engine].in_batches:
        stage |= {"batch": batch, "order": order if order in ("random", "uniform", "compact") else "random"}
    if add_options := OWN_OPTIONS.get(telling_option):
        add_options(settings, conversion, stage)
    _add_unknowns(settings, conversion, stage, telling_option)
    _position_steps(settings, conversion, stage)
    convert_constraints(settings, conversion, stage)
    return stage


def _add_pie(settings: Settings, conversion: Conversion, stage: dict[str, object]) -> None:
    """Add the options of the regularised steps."""
    for ours, step, group in (("alpha", "gamma_object", "object"), ("beta", "gamma_probe", "probe")):
        alpha = settings.number(f"{group}_options.alpha")
        stage[ours] = min(1.0, max(0.1 if alpha is None else alpha, 1e-3))
        length = settings.number(f"{group}_options.step_size")
        stage[step] = min(2.0, length) if length else 1.0


def _add_least_squares(settings: Settings, conversion: Conversion, stage: dict[str, object]) -> None:
    """Add the options of the least-squares steps: how they are coupled, their modes, momentum and noise."""
    slices = len(settings.items("object_options.slice_spacings_m")) + 1
    single, several = (
        settings.take(f"{RECONSTRUCTOR}.{kind}_solve_obj_prb_step_size_jointly", kind == "single_slice")
        for kind in ("single_slice", "multislice")
    )
    stage["coupled"] = bool(single if slices == 1 else several)
    first = settings.take(f"{RECONSTRUCTOR}.solve_step_sizes_only_using_first_probe_mode", True)
    stage["step_modes"] = "first" if first else "all"
    stage["delta"] = min(1.0, settings.number(f"{RECONSTRUCTOR}.preconditioning_damping_factor") or 0.1)
    factors = [settings.number(f"{group}_options.optimal_step_size_scaler") or 0.9 for group in ("object", "probe")]
    stage["step_factor"] = min(1.0, factors[0])
    if factors[1] != factors[0]:
        conversion.unmatched.append(f"probe_options.optimal_step_size_scaler: {factors[1]} (one step_factor here)")
    if gain := settings.number(f"{RECONSTRUCTOR}.momentum_acceleration_gain"):
        stage["momentum"] = {"gain": min(1.0, gain)}
    noise = settings.text(f"{RECONSTRUCTOR}.noise_model")
    if noise == "poisson":
        stage["fidelity"] = "poisson"
    elif noise != "gaussian":
        conversion.unmatched.append(f"{RECONSTRUCTOR}.noise_model: {noise}; amplitudes are compared")


def _add_difference_map(settings: Settings, conversion: Conversion, stage: dict[str, object]) -> None:
    """Add the relaxation of the difference map."""
    stage["beta"] = settings.number(f"{RECONSTRUCTOR}.exit_wave_update_relaxation") or 1.0


def _add_reflections(settings: Settings, conversion: Conversion, stage: dict[str, object]) -> None:
    """Add the relaxation of the averaged reflections."""
    stage["beta"] = settings.number(f"{RECONSTRUCTOR}.beta") or 0.75


def _add_bilinear_hessian(settings: Settings, conversion: Conversion, stage: dict[str, object]) -> None:
    """Add the directions, and the scales of probe and positions."""
    method = settings.text(f"{RECONSTRUCTOR}.method") or "GD"
    stage["directions"] = "conjugate" if method == "CG" else "gradient"
    stage["scale_probe"] = settings.number("probe_options.rho") or 1.0
    stage["scale_positions"] = settings.number("probe_position_options.rho") or 0.1


def _add_loss(settings: Settings, conversion: Conversion, stage: dict[str, object]) -> None:
    """Add the loss that an optimiser descends."""
    loss = settings.text(f"{RECONSTRUCTOR}.loss_function") or "mse_sqrt"
    fidelity = {"mse_sqrt": "amplitude", "poisson": "poisson", "mse": "intensity"}.get(loss)
    if fidelity is None:
        conversion.unmatched.append(f"{RECONSTRUCTOR}.loss_function: {loss}; amplitudes are compared")
    elif fidelity != "amplitude":
        stage["fidelity"] = fidelity


#: Adds the options of one algorithm alone, by the option that tells it from others.
OWN_OPTIONS = {
    PIE: _add_pie,
    "noise_model": _add_least_squares,
    "exit_wave_update_relaxation": _add_difference_map,
    "beta": _add_reflections,
    "rho": _add_bilinear_hessian,
    OPTIMISER: _add_loss,
}


def _add_unknowns(settings: Settings, conversion: Conversion, stage: dict[str, object], telling_option: str) -> None:
    """Add what moves and when: object, probe, slice spacing."""
    engine = str(stage["engine"])
    has_rates = issubclass(ENGINES[engine], Elementwise)
    unknowns: dict[str, object] = {}
    for name in ("object", "probe"):
        group = f"{name}_options"
        moves = settings.take(f"{group}.optimizable", True) is not False
        when = schedule_of(settings.group(f"{group}.optimization_plan"), conversion, f"{group}.optimization_plan")
        settings.take(f"{group}.optimizer")
        step = settings.number(f"{group}.step_size")
        if step is not None and has_rates:
            conversion.remarks.append(
                f"The learning rate of the {name} is the engine's own (stages.0.lr); Pty-Chi's {step:g} goes with its "
                "scaling."
            )
        elif step not in (None, 1) and telling_option != PIE:
            conversion.unmatched.append(f"{group}.step_size: {step:g}")
        if has_rates:
            if not moves or when:
                unknowns[name] = when if moves else False
        elif name == "probe":
            last = {key: value for key, value in when.items() if key != "start"}
            frozen = stage["epochs"] if not moves else int(str(when.get("start", 1))) - 1
            if frozen:
                stage["probe"] = {"frozen": frozen}
            if moves and last:
                conversion.unmatched.append(f"{group}.optimization_plan: {last} ({engine} has probe.frozen alone)")
        elif not moves or when:
            unmatched = when if moves else "optimizable: false"
            conversion.unmatched.append(f"{group}: {unmatched} ({engine} always moves the object; adam need not)")
        params = settings.group(f"{group}.optimizer_params")
        if params:
            conversion.unmatched.append(f"{group}.optimizer_params: {params}")
    spacing = "object_options.slice_spacing_options"
    if settings.take(f"{spacing}.optimizable") is True and has_rates:
        plan = settings.group(f"{spacing}.optimization_plan")
        unknowns["slice_spacing"] = schedule_of(plan, conversion, f"{spacing}.optimization_plan") or True
    settings.take(spacing)
    if unknowns:
        stage["unknowns"] = unknowns


def _position_steps(settings: Settings, conversion: Conversion, stage: dict[str, object]) -> None:
    """Add the refinement of positions, where they are optimised."""
    group = "probe_position_options"
    if settings.take(f"{group}.optimizable") is not True:
        settings.take(group)
        return
    for name in ("optimizer", "correction_options.slice_for_correction", "correction_options.differentiation_method"):
        settings.take(f"{group}.{name}")
    kind = settings.text(f"{group}.correction_options.correction_type") or "gradient"
    if kind != "gradient":
        conversion.unmatched.append(
            f"{group}.correction_options.correction_type: {kind}; steps along the gradient are taken"
        )
    for name in ("scale", "real_space_width", "probe_threshold"):
        settings.take(f"{group}.correction_options.cross_correlation_{name}")
    settings.take(f"{group}.correction_options.clip_update_magnitude_by_mad")
    plan = settings.group(f"{group}.optimization_plan")
    refinement = schedule_of(plan, conversion, f"{group}.optimization_plan")
    limit = settings.take(f"{group}.correction_options.update_magnitude_limit", 0.1)
    refinement["limit_px"] = min(1.0, number_of(limit) or 1.0)
    refinement["drift"] = bool(settings.take(f"{group}.constrain_position_mean", False))
    affine = settings.group(f"{group}.affine_transform_constraint")
    if affine.get("enabled") and affine.get("apply_constraint", True):
        refinement["affine"] = True
        limits = affine.get("optimization_plan")
        path = f"{group}.affine_transform_constraint.optimization_plan"
        if when := schedule_of(limits if isinstance(limits, dict) else {}, conversion, path):
            conversion.unmatched.append(f"{path}: {when} (with every step of positions here)")
        conversion.remarks.append("positions.affine keeps the affine part alone; Pty-Chi pulls positions towards it.")
    step = settings.number(f"{group}.step_size")
    conversion.remarks.append(
        f"Steps of positions have a gain of their own (positions.gain), in place of {step or 0.3:g}."
    )
    for name in ("momentum_acceleration_gradient_mixing_factor", "momentum_acceleration_memory"):
        settings.take(f"{group}.{name}")
    stage["positions"] = refinement
