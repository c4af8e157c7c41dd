"""PtyRAD on the star: adam; positions are fixed if not asked for.

Its loop is for whole runs; one iteration of it is called here. --rate: Adam's.
--settings: what is said otherwise in sections of its own parameters, such as `constraint_params`.
"""

import json
import logging
from importlib.metadata import version

import numpy as np
import torch
from turns import Saved, arguments, load, mend_torchvision, serve, synchronise

mend_torchvision()

from ptyrad.core import PtychoModel  # noqa: E402
from ptyrad.params import PtyRADParams  # noqa: E402
from ptyrad.solver import PtyRADSolver  # noqa: E402
from ptyrad.solver import reconstruction as steps  # noqa: E402

given = arguments()
if given.engine != "adam":
    raise SystemExit(f"PtyRAD has no engine {given.engine}; give adam.")
logging.disable(logging.INFO)
torch.set_num_threads(given.threads)
every, whole = load(given.star, given.inner), load(given.star)
star = every.without(given.held_out)
rate = given.rate or 0.01
views, side = star.patterns.shape[:2]
pixel = given.pixel * whole.patterns.shape[1] / side
FIXED = {"start_iter": None, "lr": 0.0}
# lengths do not matter for a single slice
sections = {
    "init_params": {
        "probe_illum_type": "electron",
        "probe_kv": given.kilovolts,
        "probe_conv_angle": 10.0,
        "meas_Npix": side,
        "pos_N_scans": views,
        "pos_N_scan_slow": 1,
        "pos_N_scan_fast": views,
        "pos_scan_step_size": 1.0,
        "pos_scan_rand_std": 0.0,
        "meas_calibration": {"mode": "dx", "value": pixel},
        "probe_pmode_max": given.modes,
        "obj_Nlayer": given.slices,
        "obj_slice_thickness": given.spacing if given.slices > 1 else 1.0,
        "meas_source": "custom",
        "meas_params": np.fft.fftshift(star.patterns, axes=(1, 2)),
        "probe_source": "custom",
        "probe_params": star.modes(given.modes),
        "pos_source": "custom",
        "pos_params": star.positions - every.positions.min(0) + 4,
        "random_seed": 0,
    },
    "model_params": {
        "update_params": {
            "probe_pos_shifts": {"start_iter": 1, "lr": 0.001} if given.positions else FIXED,
            "probe": {"start_iter": 1, "lr": rate},
            "obja": {"start_iter": 1, "lr": rate},
            "objp": {"start_iter": 1, "lr": rate},
        }
    },
    "constraint_params": {name: {"start_iter": None} for name in ("obj_rblur", "obj_zblur") if given.unblurred},
    "recon_params": {
        "NITER": given.epochs,
        "SAVE_ITERS": None,
        "BATCH_SIZE": {"size": given.batch},
        "GROUP_MODE": "random",
        "output_dir": "",
    },
}
said = json.loads(given.settings.read_text(encoding="utf-8")) if given.settings else {}
params = PtyRADParams(**{name: {**sections.get(name, {}), **said.get(name, {})} for name in {**sections, **said}})
params = params.model_dump()
solver = PtyRADSolver(params, device=given.device)
model = PtychoModel(solver.init.init_variables, params["model_params"], device=given.device)
optimizer = steps.create_optimizer(model.optimizer_params, model.optimizable_params)
scheduler = steps.create_scheduler(params["model_params"]["scheduler_params"], optimizer)
_, batches, _ = steps.prepare_recon(model, solver.init, params)
batches = [torch.from_numpy(batch).to(given.device) for batch in batches]
done = 0


def epoch() -> float:
    """One iteration over all views; its normalised amplitude error."""
    global done
    if done == given.epochs:
        raise StopIteration
    done += 1
    steps.toggle_grad_requires(model, done)
    losses = steps.recon_step(
        batches,
        1,
        model,
        optimizer,
        None,
        solver.loss_fn,
        solver.constraint_fn,
        done,
        compute_loss_fn=steps.compute_loss,
    )
    if scheduler is not None:
        scheduler.step()
    synchronise(given.device)
    return sum(float(np.mean(values)) for values in losses.values())


def saved() -> Saved:
    """Positions are of the windows' first pixels; counts were divided by `scale`."""
    found = {"obja": model.opt_obja, "objp": model.opt_objp, "probe": model.get_complex_probe_view()}
    found["positions"] = model.crop_pos + model.opt_probe_pos_shifts
    arrays = {name: values.detach().cpu().numpy() for name, values in found.items()}
    return arrays | {"scale": star.patterns.mean(axis=0).max()}


serve(epoch, given, f"ptyrad {version('ptyrad')}", saved)
