"""CDTools on the star: adam on its standard model (FancyPtycho); positions, weights and background are fixed.

Through several slices on MultislicePtycho, which moves the wave by the fraction of a pixel in every slice anew, and so
wants whole pixels. --rate: Adam's.
"""

from importlib.metadata import version

import numpy as np
import torch
from cdtools.datasets import Ptycho2DDataset
from cdtools.models import FancyPtycho, MultislicePtycho
from cdtools.reconstructors import AdamReconstructor
from cdtools.tools.interactions import translations_to_pixel
from turns import Saved, arguments, load, serve, synchronise

#: Views that its forward model takes at a time; measured on two cores to be about the fastest.
WIDTH = 10
given = arguments()
if given.engine != "adam":
    raise SystemExit(f"CDTools has no engine {given.engine}; give adam.")
torch.set_num_threads(given.threads)
star = load(given.star).without(given.held_out)
h, w = star.probe.shape
wavelength_m, distance_m, pixel_m = 1.24e-10, 2.0, 75e-6
object_pixel_m = wavelength_m * distance_m / (np.array([h, w]) * pixel_m)
if given.distance:
    wavelength_m, distance_m, pixel_m = 1e-10 * given.wavelength, given.distance, 1e-10 * given.pixel
    object_pixel_m = np.full(2, pixel_m)
elif given.slices > 1:
    wavelength_m, object_pixel_m = 1e-10 * given.wavelength, np.full(2, 1e-10 * given.pixel)
    pixel_m = wavelength_m * distance_m / (h * object_pixel_m[0])
# its translations are of the beam over the sample, x y z with x along the columns, in metres
translations = np.zeros((len(star.positions), 3))
translations[:, 0] = star.positions[:, 1] * object_pixel_m[1]
translations[:, 1] = star.positions[:, 0] * object_pixel_m[0]
dataset = Ptycho2DDataset(
    translations.astype(np.float32),
    star.patterns if given.distance else np.fft.fftshift(star.patterns, axes=(1, 2)),
    wavelength=wavelength_m,
    detector_geometry={
        "distance": distance_m,
        "basis": np.array([[0, pixel_m], [pixel_m, 0], [0, 0]], dtype=np.float32),
        "corner": None,
    },
)
options = {"n_modes": given.modes, "obj_padding": 10}
if given.slices > 1:
    thick = {"dz": 1e-10 * given.spacing, "nz": given.slices}
    model = MultislicePtycho.from_dataset(dataset, **thick, **options)
else:
    model = FancyPtycho.from_dataset(dataset, near_field=bool(given.distance), **options)
with torch.no_grad():
    start = torch.as_tensor(star.modes(given.modes))
    model.probe_norm.fill_(float(start[0].abs().max()))
    model.probe.copy_(start / model.probe_norm)
    model.obj.fill_(1.0)
for fixed in (model.translation_offsets, model.weights, model.background):
    fixed.requires_grad = False
model.to(given.device)
dataset.get_as(given.device)
losses = AdamReconstructor(model, dataset).optimize(
    given.epochs, lr=given.rate or 0.02, batch_size=given.batch, thread=False, calculation_width=WIDTH
)


def epoch() -> float:
    """One epoch; its normalised amplitude error."""
    loss = float(next(losses))
    synchronise(given.device)
    return loss


def saved() -> Saved:
    """Positions are of the windows' first pixels, in the object."""
    corners = translations_to_pixel(model.obj_basis, dataset.translations, surface_normal=model.surface_normal)
    found = {"obj": model.obj, "probe": model.probe, "probe_norm": model.probe_norm}
    found["positions"] = corners - model.min_translation
    return {name: values.detach().cpu().numpy() for name, values in found.items()}


serve(epoch, given, f"cdtools {version('cdtools-py')}", saved)
