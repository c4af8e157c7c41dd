"""Pty-Chi on the star: rpie, lsqml, adam (autodiff) or bh, as its documentation sets them up; positions are fixed.

--rate: step size of rPIE, scaler of LSQML's solved steps, of Adam the step over the size of each unknown.
"""

from importlib.metadata import version

import numpy as np
import torch
from turns import Saved, arguments, load, mend_torchvision, serve, synchronise

mend_torchvision()

import ptychi.api as api  # noqa: E402
from ptychi.api.task import PtychographyTask  # noqa: E402
from ptychi.utils import get_suggested_object_size  # noqa: E402

OPTIONS = {
    "rpie": api.RPIEOptions,
    "lsqml": api.LSQMLOptions,
    "adam": api.AutodiffPtychographyOptions,
    "bh": api.BHOptions,
}
given = arguments()
torch.set_num_threads(given.threads)
star = load(given.star).without(given.held_out)
unit = 1.0 if given.distance else float(np.sqrt(star.probe.size))  # its far field is not normalised
probe = star.modes(given.modes) / np.float32(unit)
options = OPTIONS[given.engine]()
options.data_options.fft_shift = False  # DC is at the corner already
deep = given.slices > 1 or given.distance is not None
options.object_options.pixel_size_m = 1e-10 * given.pixel if deep else 1.0
if deep:
    options.data_options.wavelength_m = 1e-10 * given.wavelength
if given.distance:
    options.data_options.free_space_propagation_distance_m = given.distance
if given.slices > 1:
    options.object_options.slice_spacings_m = np.full(given.slices - 1, 1e-10 * given.spacing)
options.probe_position_options.optimizable = False
options.reconstructor_options.batch_size = given.batch
options.reconstructor_options.num_epochs = given.epochs
options.reconstructor_options.default_device = api.Devices.CPU if given.device == "cpu" else api.Devices.GPU
options.data_options.save_data_on_device = given.device != "cpu"
options.reconstructor_options.random_seed = 0
if given.engine == "rpie":  # at its default of 1 the error rises from the second epoch on with batches of 64
    options.object_options.step_size = options.probe_options.step_size = given.rate or 0.1
if given.engine == "lsqml":
    if given.rate:
        options.object_options.optimal_step_size_scaler = options.probe_options.optimal_step_size_scaler = given.rate
    options.reconstructor_options.momentum_acceleration_gain = given.momentum
if given.engine == "adam":
    options.object_options.optimizer = api.Optimizers.ADAM
    options.object_options.step_size = given.rate or 0.02
    options.probe_options.optimizer = api.Optimizers.ADAM
    options.probe_options.step_size = (given.rate or 0.02) * float(np.abs(probe[0]).max())
if given.engine == "bh":
    options.probe_options.rho = 0.1  # as its documentation says for the far field
size = get_suggested_object_size(torch.as_tensor(star.positions), probe.shape[-2:], extra=20)
centred = star.positions - (star.positions.max(0) + star.positions.min(0)) / 2
task = PtychographyTask(
    options,
    diffraction_data=star.patterns,
    object_data=np.ones((given.slices, *size), dtype=np.complex64),
    probe_data=probe[None],
    probe_position_y_px=centred[:, 0].astype(np.float32),
    probe_position_x_px=centred[:, 1].astype(np.float32),
)


def epoch() -> float:
    """One epoch; mean squared difference of amplitudes."""
    task.run(1)
    synchronise(given.device)
    return float(task.reconstructor.loss_tracker.table["loss"].iloc[-1])


def saved() -> Saved:
    """Positions are of the windows' middles, from the origin."""
    found = {name: task.get_data_to_cpu(name, as_numpy=True) for name in ("object", "probe", "probe_positions")}
    return found | {"origin": task.object.pos_origin_coords.cpu().numpy(), "unit": np.float64(unit)}


serve(epoch, given, f"ptychi {version('ptychi')}", saved)
