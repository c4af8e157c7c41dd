"""PtyRAD's params files (version 0.1.0b13 and later) as recipes.

Lengths of PtyRAD are in angstrom, angles of optics in mrad, voltages in kV. Epochs are counted from 1 in both, and
`end_iter` is the first one without. What a file leaves out has PtyRAD's default. Source: PtyRAD's own templates, and
what it says of its params.
"""

from __future__ import annotations

import math
from pathlib import Path

from ptymesh.engines.gradients.regularisers import WIDEST_PX
from ptymesh.errors import BadInput
from ptymesh.geometry import electron_wavelength_m
from ptymesh.recipe.foreign_settings import Conversion, Settings, optimiser_named

ANGSTROM_M, MRAD = 1e-10, 1e-3
GROUPINGS = {"random": "random", "compact": "compact", "sparse": "uniform", "fps": "uniform", "hilbert": "uniform"}
#: Settings that change nothing of what is computed, or that ptymesh does by itself.
NOT_NEEDED = (
    "init_params.meas_Npix",
    "init_params.meas_normalization",
    "init_params.probe_normalization",
    "init_params.meas_export",
    "model_params.preload_data",
    *(
        f"recon_params.{name}"
        for name in ("output_dir", "recon_dir_affixes", "prefix_time", "prefix", "postfix", "save_result")
    ),
    *(f"recon_params.{name}" for name in ("result_modes", "selected_figs", "copy_params", "compiler_configs")),
    "recon_params.if_quiet",
    "recon_params.convergence_monitor",
)
#: Epoch from which on PtyRAD applies constraints of which a file says nothing, and its learning rates.
STARTS = {"ortho_pmode": 1, "fix_probe_int": 1, "obj_rblur": 1, "obj_zblur": 1, "pos_recenter": 1}
RATES = {"obja": 5e-4, "objp": 5e-4, "probe": 1e-4, "probe_pos_shifts": 5e-4}
MODES, BATCH, EPOCHS = 4, 32, 200


def is_ptyrad(values: dict[str, object]) -> bool:
    """Return True if the keys of a YAML file are those of PtyRAD's params."""
    return isinstance(values.get("init_params"), dict) and isinstance(values.get("recon_params"), dict)


def convert_ptyrad(values: dict[str, object], file: str) -> Conversion:
    """Return the recipe that comes nearest to a params file.

    Args:
        values: what the file holds.
        file: its name, for messages.

    Raises:
        BadInput: it is of an earlier version, of X-rays, or a value cannot be.
    """
    settings = Settings(values, file)
    conversion = Conversion("PtyRAD", {})
    _check_settings(settings, file)
    conversion.recipe["data"] = _data(settings, conversion, file)
    obj = conversion.recipe["object"] = _object(settings, conversion)
    conversion.recipe["probe"] = _probe(settings, conversion)
    conversion.recipe["positions"] = _positions(settings, conversion, file, obj)
    optics: dict[str, object] = {"view_tilt": True} if "slices" in obj and _tilts_views(settings) else {}
    if blur := settings.number("model_params.detector_blur_std"):
        optics["detector_blur"] = {"start": {"blur_width": blur}}
    if optics:
        conversion.recipe["optics"] = optics
    conversion.recipe["stages"] = [_stage(settings, conversion, "slices" in obj)]
    save_every = settings.number("recon_params.SAVE_ITERS")
    conversion.recipe["output"] = {"checkpoint_every": int(save_every)} if save_every and save_every >= 1 else {}
    if settings.group("hypertune_params").get("if_hypertune"):
        conversion.unmatched.append("hypertune_params (ptymesh tune has a file of its own)")
    conversion.recipe = {key: value for key, value in conversion.recipe.items() if value}
    for path in NOT_NEEDED:
        settings.take(path)
    conversion.unmatched += [f"{path}: {value}" for path, value in settings.unused()]
    return conversion


def _check_settings(settings: Settings, file: str) -> None:
    if settings.text("init_params.probe_illum_type") == "xray":
        raise BadInput(f"{file} is of X-rays, of which no params of PtyRAD are converted; write a recipe (docs/).")
    if settings.number("init_params.probe_kv") is None:
        raise BadInput(
            f"{file} has no init_params.probe_kv: it is of PtyRAD before 0.1.0b13; save it with a newer version first."
        )


def _data(settings: Settings, conversion: Conversion, file: str) -> dict[str, object]:
    """Return the group `data`: the file, its calibration and how patterns are prepared."""
    path = settings.text("init_params.meas_params.path")
    if not path:
        raise BadInput(f"{file} has no init_params.meas_params.path, the file of the patterns; write it there.")
    settings.take("init_params.meas_source")
    data: dict[str, object] = {"path": path}
    if not path.startswith(("/", "~")):
        conversion.remarks.append(
            f"data.path {path} is relative to the recipe here, and to the working folder in PtyRAD."
        )
    key = settings.text("init_params.meas_params.key")
    if key and path.lower().endswith((".h5", ".hdf5", ".hdf")):
        data["keys"] = {"patterns": key}
    elif key:
        conversion.remarks.append(f"The array {key} in {path} is found by ptymesh itself; see ptymesh inspect {path}.")
    if settings.number("init_params.meas_params.offset") == 0:
        settings.take("init_params.meas_params.offset")
    if settings.number("init_params.meas_params.gap") not in (None, 1024):
        conversion.remarks.append("A raw file without a gap between patterns is read with its XML beside it.")
    kv = settings.number("init_params.probe_kv")
    assert kv is not None
    data |= {"radiation": "electron", "energy_eV": kv * 1e3}
    pixel = _object_pixel_m(settings, conversion, kv * 1e3)
    data |= {} if pixel is None else {"object_pixel_m": pixel}
    flips = settings.items("init_params.meas_flipT") or [0, 0, 0]
    data |= {name: True for name, on in zip(("flip_y", "flip_x", "transpose"), flips, strict=False) if on}
    if any(flips[:2]):
        conversion.remarks.append(
            "Flips keep the zero frequency where it is; PtyRAD's move it by a pixel where the side is even."
        )
    data |= _crop(settings, conversion)
    pad = settings.group("init_params.meas_pad")
    if pad.get("mode"):
        data["pad"] = settings.count("init_params.meas_pad.target_Npix", 1)
        conversion.remarks.append(f"Padded pixels are masked here, and filled ({pad.get('padding_type')}) in PtyRAD.")
    if not settings.group("init_params.meas_resample").get("mode"):
        settings.take("init_params.meas_resample")
    else:
        conversion.unmatched.append("init_params.meas_resample")
    negative = settings.group("init_params.meas_remove_neg_values").get("mode", "clip_neg")
    if negative == "clip_neg":
        data["invalid"] = "zero"
    elif negative is not None:
        conversion.unmatched.append(f"init_params.meas_remove_neg_values: {negative} (data.dark, data.invalid)")
    return data


def _crop(settings: Settings, conversion: Conversion) -> dict[str, object]:
    """Return the crop of the patterns where it keeps their middle, and nothing else is cropped."""
    crop, side = settings.items("init_params.meas_crop"), settings.count("init_params.meas_Npix", 1)
    if not crop:
        return {}
    spans = [one for one in crop[2:] if isinstance(one, list) and len(one) == 2 and sum(one) == side]
    if crop[:2] == [None, None] and len(crop) == 4 and len(spans) == 2:
        return {"crop": [one[1] - one[0] for one in spans]}
    conversion.unmatched.append(f"init_params.meas_crop: {crop} (data.crop, data.centre, data.views)")
    return {}


def _object_pixel_m(settings: Settings, conversion: Conversion, energy_eV: float) -> float | None:
    """Return the object pixel that the calibration stands for; None, with a remark, where it is to be measured."""
    mode = settings.text("init_params.meas_calibration.mode")
    value = settings.number("init_params.meas_calibration.value")
    side = settings.count("init_params.meas_Npix", 1)
    angle = (settings.number("init_params.probe_conv_angle") or 0.0) * MRAD
    wavelength = electron_wavelength_m(energy_eV)
    if value is not None and value > 0 and side > 1:
        pixels = {
            "dx": value * ANGSTROM_M,
            "dk": ANGSTROM_M / (side * value),
            "kMax": ANGSTROM_M / (2 * value),
            "da": wavelength / (side * value * MRAD),
            "angleMax": wavelength / (2 * value * MRAD),
            "n_alpha": wavelength / (2 * value * angle) if angle else 0.0,
            "RBF": wavelength * value / (side * angle) if angle else 0.0,
        }
        if pixels.get(mode):
            return float(f"{pixels[mode]:.8g}")
    conversion.remarks.append(
        f"data.object_pixel_m is missing, for the calibration is {mode or 'fitRBF'}: set it, or let ptymesh "
        "calibrate measure it."
    )
    return None


def _object(settings: Settings, conversion: Conversion) -> dict[str, object]:
    """Return the group `object`: where it starts, slices, their distance and tilt."""
    options: dict[str, object] = {}
    if file := _result_file(settings, conversion, "obj", "object.initial"):
        options["initial"] = file
    options |= _slices(settings, conversion, bool(file))
    modes = settings.count("init_params.obj_omode_max", 1)
    shares = settings.group("init_params.obj_omode_init_occu")
    if modes > 1:
        options |= {"modes": modes}
        if shares.get("occu_type", "uniform") != "uniform":
            conversion.unmatched.append(
                f"init_params.obj_omode_init_occu: {shares.get('init_occu')} (object modes are equally likely here)"
            )
    tilts = settings.group("init_params.tilt_params")
    first = tilts.get("init_tilts")
    pair = first[0] if isinstance(first, list) and first else None
    if isinstance(pair, list) and len(pair) == 2 and any(pair):
        options["tilt_rad"] = [float(f"{float(one) * MRAD:.8g}") for one in pair]
        conversion.remarks.append("The sign of object.tilt_rad may be another one than PtyRAD's: try both.")
    if settings.text("init_params.tilt_source") not in ("", "simu"):
        conversion.unmatched.append(f"init_params.tilt_source: {settings.text('init_params.tilt_source')}")
    return options


def _slices(settings: Settings, conversion: Conversion, from_result: bool) -> dict[str, object]:
    """Return slices, spacing and depth of an object after cropping, padding and resampling, which is PtyRAD's order.

    Args:
        settings: of the file.
        conversion: whose remarks and unmatched settings are added to.
        from_result: whether the object starts from a result; ones know no depth.
    """
    stored_slices = settings.count("init_params.obj_Nlayer", 1)
    thickness = settings.number("init_params.obj_slice_thickness")
    first, after, _ = slice(*_pair(settings, "init_params.obj_z_crop", (0, stored_slices))).indices(stored_slices)
    if after <= first:
        raise BadInput(
            f"init_params.obj_z_crop keeps none of {stored_slices} slices; give the first, and the one after the last."
        )
    top, bottom = _pair(settings, "init_params.obj_z_pad.pad_layers", (0, 0))
    types = settings.items("init_params.obj_z_pad.pad_types")
    if top + bottom and any(one != "vacuum" for one in types):
        conversion.unmatched.append(f"init_params.obj_z_pad.pad_types: {types} (vacuum here)")
    before = top + after - first + bottom
    slices = _resampled(settings, before, thickness)
    if slices == 1:
        return {}
    options: dict[str, object] = {"slices": slices}
    if thickness is None:
        return options
    options["slice_spacing_m"] = float(f"{thickness * ANGSTROM_M * before / slices:.8g}")
    if (first, after, before) != (0, stored_slices, stored_slices) and from_result and stored_slices > 1:
        depth = (top - first) * thickness
        options["initial_depth_m"] = float(f"{depth * ANGSTROM_M:.8g}")
        of_object = settings.value("init_params.probe_params") == settings.value("init_params.obj_params")
        if of_object and settings.number("init_params.probe_z_shift") not in (None, -depth):
            conversion.remarks.append(
                "A probe of the same result is moved by object.initial_depth_m, not by probe_z_shift."
            )
    return options


def _resampled(settings: Settings, slices: int, thickness: float | None) -> int:
    """Return the number of slices into which PtyRAD resamples so many of a thickness (angstrom)."""
    value = settings.number("init_params.obj_z_resample.value")
    mode = settings.text("init_params.obj_z_resample.mode")
    if not mode or value is None:
        return slices
    if value <= 0:
        raise BadInput(f"init_params.obj_z_resample.value is {value:g}; it should be above 0.")
    factors = {
        "scale_Nlayer": value,
        "scale_slice_thickness": 1 / value,
        "target_Nlayer": value / slices,
        "target_slice_thickness": (thickness or value) / value,
    }
    if mode not in factors:
        raise BadInput(f"init_params.obj_z_resample.mode is {mode!r}; it should be one of {', '.join(factors)}.")
    return max(1, math.floor(slices * factors[mode] + 1e-9))  # as torch's interpolate rounds


def _pair(settings: Settings, path: str, default: tuple[int, int]) -> tuple[int, int]:
    """Return two whole numbers, of which those that are null are the default. BadInput for anything else."""
    numbers = settings.items(path) or [None, None]
    if len(numbers) != 2 or any(isinstance(one, bool) or not isinstance(one, int | None) for one in numbers):
        raise BadInput(f"{path} is {numbers}; it should be two whole numbers.")
    first, second = (one if isinstance(one, int) else other for one, other in zip(numbers, default, strict=True))
    return first, second


def _result_file(settings: Settings, conversion: Conversion, prefix: str, key: str) -> str | None:
    """Return the file of PtyRAD's result after its conversion; None for others, of which foreign ones are named."""
    source = settings.text(f"init_params.{prefix}_source")
    start = settings.take(f"init_params.{prefix}_params")
    if source == "PtyRAD" and isinstance(start, str):
        file = str(Path(start).with_suffix(".h5"))
        conversion.remarks.append(f"Make {key}, {file}, first: ptymesh convert {start} {file}")
        return file
    if source not in ("", "simu"):
        conversion.unmatched.append(
            f"init_params.{prefix}_source: {source} ({start}); convert that result, and name it in {key}"
        )
    return None


def _probe(settings: Settings, conversion: Conversion) -> dict[str, object]:
    """Return the group `probe`: modes, and a round lens with its aberrations."""
    modes = settings.count("init_params.probe_pmode_max", MODES)
    options: dict[str, object] = {"modes": modes} if modes > 1 else {}
    if file := _result_file(settings, conversion, "probe", "probe.start.path"):
        for name in ("conv_angle", "aberrations", "pmode_init_pows"):
            settings.take(f"init_params.probe_{name}")
        return options | {"start": {"kind": "result", "path": file}}
    powers = [one for one in settings.items("init_params.probe_pmode_init_pows") if isinstance(one, int | float)]
    if modes > 1 and len(powers) == 1 and 0 < powers[0] * (modes - 1) < 1 and powers[0] != 0.02:
        options["mode_powers"] = [float(f"{1 - powers[0] * (modes - 1):.8g}"), *([float(powers[0])] * (modes - 1))]
    elif modes > 1 and len(powers) == modes:
        options["mode_powers"] = [float(one) for one in powers]
    angle = settings.number("init_params.probe_conv_angle")
    if angle:
        start: dict[str, object] = {"kind": "electron", "semiangle_rad": float(f"{angle * MRAD:.8g}")}
        if aberrations := _aberrations(settings, conversion):
            start["aberrations_m"] = aberrations
        options["start"] = start
    return options


def _aberrations(settings: Settings, conversion: Conversion) -> dict[str, object]:
    """Return C_nm in metres, with angles in rad, of those in Krivanek's polar notation."""
    stated = settings.group("init_params.probe_aberrations")
    coefficients: dict[str, object] = {}
    for name, value in stated.items():
        if not isinstance(value, int | float) or isinstance(value, bool):
            conversion.unmatched.append(f"init_params.probe_aberrations.{name}: {value}")
        elif not value or name.startswith("phi"):
            continue
        elif name in ("defocus", "C10"):
            coefficients["C10"] = float(f"{(value if name == 'C10' else -value) * ANGSTROM_M:.8g}")
        elif name in ("Cs", "C3", "C30", "C5", "C50"):
            coefficients[{"C5": "C50", "C50": "C50"}.get(name, "C30")] = float(f"{value * ANGSTROM_M:.8g}")
        elif len(name) == 3 and name[0] == "C" and name[1:].isdigit() and name[2] != "0":
            angle = stated.get(f"phi{name[1:]}", 0.0)
            turned = math.radians(angle) if isinstance(angle, int | float) else 0.0
            coefficients[name] = [float(f"{value * ANGSTROM_M:.8g}"), float(f"{turned:.8g}")]
        else:
            conversion.unmatched.append(f"init_params.probe_aberrations.{name}: {value} (Krivanek's notation here)")
    if coefficients:
        conversion.remarks.append(
            "Aberrations are as in C10 = -defocus; look at the probe, for files differ in their sign."
        )
    return coefficients


def _positions(settings: Settings, conversion: Conversion, file: str, obj: dict[str, object]) -> dict[str, object]:
    """Return the group `positions`: a raster, or nothing where they come from elsewhere.

    Args:
        settings: of the file.
        conversion: whose remarks and unmatched settings are added to.
        file: its name, for messages.
        obj: the group `object`, which says that positions are those of its result.

    Raises:
        BadInput: numbers of positions contradict each other, or the step is missing.
    """
    slow, fast = (settings.count(f"init_params.pos_N_scan_{name}", 1) for name in ("slow", "fast"))
    count = settings.number("init_params.pos_N_scans")
    if count is not None and count != slow * fast:
        raise BadInput(
            f"{file} says {slow} x {fast} = {slow * fast} positions, and pos_N_scans {count:g}; give the numbers that "
            "there are."
        )
    step = settings.number("init_params.pos_scan_step_size")
    affine = settings.items("init_params.pos_scan_affine") or [1, 0, 0, 0]
    if [*affine] != [1, 0, 0, 0]:
        conversion.unmatched.append(
            f"init_params.pos_scan_affine: {affine} (positions.affine, positions.rotation_deg, with signs of their own)"
        )
    flips = settings.items("init_params.pos_scan_flipT")
    if any(flips):
        conversion.unmatched.append(f"init_params.pos_scan_flipT: {flips} (positions.flip_y, flip_x, transpose)")
    source = settings.text("init_params.pos_source")
    params = settings.take("init_params.pos_params")
    if source == "PtyRAD" and "initial" in obj and params == settings.value("init_params.obj_params"):
        obj["result_positions"] = True
        source = ""
    if source not in ("", "simu"):
        conversion.unmatched.append(
            f"init_params.pos_source: {source} ({params}); positions are those of the data file"
        )
        return {}
    if step is None:
        raise BadInput(f"{file} has no init_params.pos_scan_step_size, in angstrom; write it there.")
    return {"raster": {"shape": [slow, fast], "step_m": float(f"{step * ANGSTROM_M:.8g}")}}


def _stage(settings: Settings, conversion: Conversion, several: bool) -> dict[str, object]:
    """Return the one stage: the optimiser, what it moves, its loss and its constraints."""
    name = settings.text("model_params.optimizer_params.name").lower()
    name = optimiser_named("ptyrad", name, "model_params.optimizer_params.name", conversion)
    size = settings.count("recon_params.BATCH_SIZE.size", BATCH)
    batch = size * settings.count("recon_params.BATCH_SIZE.grad_accumulation", 1)
    order = settings.text("recon_params.GROUP_MODE") or "random"
    stage: dict[str, object] = {"engine": name, "epochs": settings.count("recon_params.NITER", EPOCHS)}
    stage |= {"batch": batch, "order": GROUPINGS.get(order, "random")}
    if order not in ("random", "compact", "sparse"):
        conversion.remarks.append(f"Batches are {stage['order']} here, and {order} in PtyRAD.")
    indices = settings.group("recon_params.INDICES_MODE").get("mode")
    if indices not in (None, "full"):
        conversion.unmatched.append(f"recon_params.INDICES_MODE: {indices} (data.views)")
    unknowns = _unknowns(settings, conversion, stage, several)
    _losses(settings, conversion, stage)
    if (similar := settings.group("loss_params.loss_simlar")).get("state"):
        _compare_modes(similar, settings, conversion, stage)
    probe: dict[str, object] = {}
    obj: dict[str, object] = {}
    constraints: dict[str, object] = {}
    _constraints(settings, conversion, several, probe, obj, constraints)
    _mirror_amplitude(settings, conversion, stage, constraints)
    for key, group in (("unknowns", unknowns), ("probe", probe), ("object", obj), ("constraints", constraints)):
        if group:
            stage[key] = group
    return stage


def _schedule(group: dict[str, object]) -> dict[str, object]:
    """Return our schedule of PtyRAD's, without what is the default."""
    schedule: dict[str, object] = {}
    for ours, theirs in (("start", "start_iter"), ("stop", "end_iter"), ("every", "step")):
        value = group.get(theirs)
        if isinstance(value, int) and not isinstance(value, bool) and not (value == 1 and ours != "stop"):
            schedule[ours] = max(1, value - 1) if ours == "stop" else value
    return schedule


def _unknowns(settings: Settings, conversion: Conversion, stage: dict[str, object], several: bool) -> dict[str, object]:
    """Return what moves and when; learning rates are the engine's own, and said."""
    names = ("obja", "objp", "obj_tilts", "slice_thickness", "probe", "probe_pos_shifts")
    groups = {
        name: settings.group(f"model_params.update_params.{name}")
        or ({"start_iter": 1, "lr": RATES[name]} if name in RATES else {})
        for name in names
    }
    moving = {name: group for name, group in groups.items() if group.get("lr") and group.get("start_iter") is not None}
    rates = ", ".join(f"{name} {group['lr']}" for name, group in moving.items())
    conversion.remarks.append(
        f"Learning rates are the engine's own (stages.0.lr), for PtyRAD's ({rates or 'none'}) go with its scaling."
    )
    if settings.group("model_params.optimizer_params.configs"):
        conversion.unmatched.append(
            f"model_params.optimizer_params.configs: {settings.take('model_params.optimizer_params.configs')}"
        )
    unknowns: dict[str, object] = {}
    if "objp" not in moving and "obja" not in moving:
        unknowns["object"] = False
    elif "obja" not in moving:
        stage["parametrisation"] = "phase"
    if when := _schedule(moving.get("objp") or moving.get("obja") or {}):
        unknowns["object"] = when
    if "probe" not in moving:
        unknowns["probe"] = False
    elif when := _schedule(moving["probe"]):
        unknowns["probe"] = when
    if "probe_pos_shifts" in moving:
        recentred = _constraint(settings, "pos_recenter").get("start_iter") is not None
        stage["positions"] = {**_schedule(moving["probe_pos_shifts"]), "drift": recentred}
    else:
        settings.take("constraint_params.pos_recenter")
    tilt = "view_tilt" if _tilts_views(settings) else "tilt"
    for theirs, ours in (("obj_tilts", tilt), ("slice_thickness", "slice_spacing")):
        if theirs in moving and several:
            unknowns[ours] = _schedule(moving[theirs]) or True
        elif theirs in moving:
            conversion.unmatched.append(f"model_params.update_params.{theirs}, which a single slice does not have here")
    return unknowns


def _losses(settings: Settings, conversion: Conversion, stage: dict[str, object]) -> None:
    """Add the loss to a stage: the first that is on, the misfit of the mean pattern, and sparsity."""
    single, poisson, mean, sparse = (
        settings.group(f"loss_params.loss_{name}") for name in ("single", "poissn", "pacbed", "sparse")
    )
    weight = 1.0
    if single.get("state", True):
        stage |= {"loss": "nrmse", "power": single.get("dp_pow", 0.5)}
        weight = _float(single.get("weight"), 1.0)
        if poisson.get("state"):
            conversion.unmatched.append("loss_params.loss_poissn beside loss_single: one loss at a time here")
    elif poisson.get("state"):
        stage["fidelity"] = "poisson"
        weight = _float(poisson.get("weight"), 1.0)
    if mean.get("state"):
        stage["averaged"] = _float(mean.get("weight"), 0.5) / (weight or 1.0)
        conversion.remarks.append(
            "stages.0.averaged takes the power of the loss, and PtyRAD's loss_pacbed one of its own."
        )
    if sparse.get("state"):
        stage["regularisers"] = [{"kind": "sparsity", "weight": _float(sparse.get("weight"), 0.1) / (weight or 1.0)}]
        conversion.remarks.append("The weight of sparsity goes with the scale of the loss: compare two of them.")


def _compare_modes(
    similar: dict[str, object], settings: Settings, conversion: Conversion, stage: dict[str, object]
) -> None:
    """Add the regulariser of object modes to a stage.

    Args:
        similar: the group `loss_simlar`, which is on.
        settings: of the file.
        conversion: whose remarks and unmatched settings are added to.
        stage: gets the regulariser.
    """
    if settings.value("init_params.obj_omode_max") in (None, 1):
        conversion.unmatched.append(f"loss_params.loss_simlar: {similar}, of a single object mode")
        return
    loss = "loss_single" if "loss" in stage else "loss_poissn"
    weight = _float(settings.value(f"loss_params.{loss}.weight"), 1.0) or 1.0
    share, blur = _float(similar.get("weight"), 0.1) / weight, _float(similar.get("blur_std"), 1.0)
    if share == 0:
        return
    if not (0 < share < math.inf and 0 <= blur < math.inf):
        conversion.unmatched.append(f"loss_params.loss_simlar: {similar}")
        return
    regulariser: dict[str, object] = {"kind": "similar_modes", "weight": share}
    if blur != 1:
        regulariser["blur_px"] = min(WIDEST_PX, blur)
    if blur > WIDEST_PX:
        conversion.unmatched.append(f"loss_params.loss_simlar.blur_std: {blur:g}, above {WIDEST_PX:g}")
    regularisers = stage.setdefault("regularisers", [])
    assert isinstance(regularisers, list)
    regularisers.append(regulariser)
    conversion.remarks.append("similar_modes is of complex modes without their occupancy: compare two of its weights.")
    scale = similar.get("scale_factor")
    if isinstance(scale, list) and set(scale) != {1}:
        conversion.unmatched.append(f"loss_params.loss_simlar.scale_factor: {scale} (planes of full size here)")
    if similar.get("obj_type", "both") != "both":
        conversion.unmatched.append(f"loss_params.loss_simlar.obj_type: {similar['obj_type']} (object as a whole here)")


def _float(value: object, default: float) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else default


def _constraints(
    settings: Settings,
    conversion: Conversion,
    several: bool,
    probe: dict[str, object],
    obj: dict[str, object],
    constraints: dict[str, object],
) -> None:
    """Add PtyRAD's constraints that are on to the groups of a stage.

    Args:
        settings: of the file.
        conversion: whose remarks and unmatched settings are added to.
        several: whether the object has more than one slice.
        probe: the stage's group of this name.
        obj: the stage's group `object`.
        constraints: the stage's group `constraints`.
    """
    groups = {name: _constraint(settings, name) for name in _CONSTRAINTS if several or name not in _OF_SLICES}
    smooth = _constraint(settings, "tilt_smooth")
    if several and _is_on(smooth) and _tilts_views(settings):  # PtyRAD leaves one tilt of all views as it is, too
        sigma = {"view_tilt": _float(smooth.get("std"), 2.0)}
        constraints["unknown_smoothness"] = {**_schedule(smooth), "sigma": sigma, "over": "scan"}
    for name in _OF_SLICES:
        settings.take(f"constraint_params.{name}")
    on = {name: group for name, group in groups.items() if _is_on(group)}
    if "ortho_pmode" not in on:
        probe["orthogonalise"] = False
    elif when := _schedule(on["ortho_pmode"]):
        probe["orthogonalise"] = when
    if (group := on.get("fix_probe_int")) is not None:
        probe["power"] = _schedule(group) or True
    if (group := on.get("probe_mask_k")) is not None:
        radius = min(1.5, 2 * _float(group.get("radius"), 0.22))
        probe["fourier_support"] = {**_schedule(group), "radius": radius, "edge": _float(group.get("width"), 0.05)}
        conversion.remarks.append(
            "probe.fourier_support acts on all modes; PtyRAD spares the weakest ones (power_thresh)."
        )
    if (group := on.get("probe_mask_r")) is not None and "radius" in group:
        radius = min(1.5, 2 * _float(group["radius"], 0.5))
        probe["support"] = {**_schedule(group), "radius": radius, "edge": _float(group.get("width"), 0.05)}
        conversion.remarks.append("probe.support acts on all modes; PtyRAD spares the weakest ones (power_thresh).")
    elif group is not None:
        conversion.unmatched.append(f"constraint_params.probe_mask_r: {group}, which has no radius")
    if (group := on.get("obj_rblur")) is not None:
        obj["smooth"] = {**_schedule(group), "sigma_px": _float(group.get("std"), 0.4), "weight": 1.0}
    if (group := on.get("obja_thresh")) is not None:
        limits = group.get("thresh")
        bounds = limits if isinstance(limits, list) and len(limits) == 2 else (0.96, 1.04)
        low, high = (_float(limit, math.nan) for limit in bounds)
        if low <= high:
            obj["amplitude"] = {**_schedule(group), "low": low, "high": high, **_strength(group)}
        else:
            conversion.unmatched.append(f"constraint_params.obja_thresh: {group}")
    if (group := on.get("kr_filter")) is not None:
        constraints["kr_filter"] = {**_schedule(group), "cutoff": min(1.0, 2 * _float(group.get("radius"), 0.15))}
    keep = _float(on.get("kr_thresh", {}).get("thresh"), 0.05)
    if (group := on.get("kr_thresh")) is not None and not keep > 0:
        conversion.unmatched.append(f"constraint_params.kr_thresh: {group}")
    elif group is not None and keep < 1:
        constraints["kr_threshold"] = {**_schedule(group), "keep": keep}
        conversion.remarks.append(
            "constraints.kr_threshold ranks frequencies slice by slice, kr_thresh those of all slices."
        )
    if (group := on.get("objp_postiv")) is not None:
        constraints["positivity"] = {**_schedule(group), "baseline": 0.0, **_strength(group)}
    for theirs, ours in _PLAIN.items():
        if (group := on.get(theirs)) is not None:
            share = _float(group.get("alpha1"), 1.0)  # of complex_ratio alone
            partial: dict[str, object] = {"strength": share} if 0 < share < 1 else {}
            constraints[ours] = {**_schedule(group), **partial} or True
            conversion.remarks.append(
                f"constraints.{ours} does another sum than {theirs} (docs/reference/constraints.md)."
            )
    for name, group in on.items():
        if name == "complex_ratio" and group.get("alpha2"):
            conversion.unmatched.append(
                f"constraint_params.complex_ratio.alpha2: {group['alpha2']} (the phase stays here)"
            )
        if group.get("obj_type", "both") != "both":
            conversion.unmatched.append(
                f"constraint_params.{name}.obj_type: {group['obj_type']} (object as a whole here)"
            )


def _mirror_amplitude(
    settings: Settings, conversion: Conversion, stage: dict[str, object], constraints: dict[str, object]
) -> None:
    """Add the constraint that makes the amplitude of the phase to a stage's.

    Args:
        settings: of the file.
        conversion: whose remarks and unmatched settings are added to.
        stage: says how the object is parametrised.
        constraints: the stage's group `constraints`.
    """
    group = {"relax": 0.1, **_constraint(settings, "mirrored_amp")}
    if not _is_on(group):
        return
    scale, power = _float(group.get("scale"), 0.03), _float(group.get("power"), 4.0)
    if stage.get("parametrisation") == "phase":
        conversion.unmatched.append(
            f"constraint_params.mirrored_amp: {group}, while obja stays (amplitudes are 1 here)"
        )
    elif not (0 < scale <= 10 and 0 < power <= 8):
        conversion.unmatched.append(f"constraint_params.mirrored_amp: {group}")
    else:
        constraints["mirrored_amplitude"] = {**_schedule(group), "scale": scale, "power": power, **_strength(group)}
        conversion.remarks.append("constraints.mirrored_amplitude takes exp(-x), of which mirrored_amp takes 1 - x.")


def _tilts_views(settings: Settings) -> bool:
    """Return True if each view has a tilt of its own."""
    return settings.value("init_params.tilt_params.tilt_type") == "each"


def _is_on(group: dict[str, object]) -> bool:
    """Return True if a constraint is applied in some epoch, and not relaxed so far that it does nothing."""
    return group.get("start_iter") is not None and _float(group.get("relax"), 0.0) < 1


def _constraint(settings: Settings, name: str) -> dict[str, object]:
    """Return a constraint's group, with the epoch from which on PtyRAD applies it where it says nothing of that."""
    return {"start_iter": STARTS.get(name), **settings.group(f"constraint_params.{name}")}


def _strength(group: dict[str, object]) -> dict[str, object]:
    relax = _float(group.get("relax"), 0.0)
    return {"strength": 1 - relax} if 0 < relax < 1 else {}


#: Constraints that are keys of `constraints` here, with the defaults there.
_PLAIN = {
    "obj_zblur": "depth_smoothness",
    "kz_filter": "kz_filter",
    "complex_ratio": "complex_ratio",
    "obj_z_recenter": "depth_recentring",
}
_OF_SLICES = ("obj_zblur", "kz_filter", "obj_z_recenter")
_CONSTRAINTS = (
    "ortho_pmode",
    "probe_mask_k",
    "probe_mask_r",
    "fix_probe_int",
    "obj_rblur",
    "obja_thresh",
    "kr_filter",
    "kr_thresh",
    "objp_postiv",
    *_PLAIN,
)
