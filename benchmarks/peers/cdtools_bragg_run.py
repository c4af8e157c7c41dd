"""CDTools' Bragg2DPtycho on given arrays: intensities and gradients of one evaluation, for models.py.

    python cdtools_bragg_run.py IN.npz OUT.npz

The sample's plane leans along x, with the beam along z: the columns of the object's basis are the steps of its pixels
in space. Positions come as pixels of the plane and as distances along the beam. Where the tilt on the detector is
corrected, weights of waves are the roots of the areas that pixels see: CDTools multiplies waves by its weights of
intensities, which is not compared.
"""

import sys

import numpy as np
import torch
from cdtools.models import Bragg2DPtycho

given = dict(np.load(sys.argv[1], allow_pickle=False))
centred = {name: np.fft.fftshift(given[name], axes=(-2, -1)) for name in ("patterns", "background", "mask")}
(y, x), sine = given["pixel_m"], float(given["sine"])
steps = np.array([[0.0, x * np.sqrt(1 - sine**2)], [y, 0.0], [0.0, x * sine]])
basis = torch.from_numpy(steps.astype(np.float32))
# Its distances count against z.
places = given["positions"] @ steps.T - given["along_beam"][:, None] * np.array([0.0, 0.0, 1.0])
translations = torch.from_numpy(places.astype(np.float32))
det_y, det_x = given["detector_pixel"].astype(np.float32)
detector = torch.tensor([[0.0, det_x], [det_y, 0.0], [0.0, 0.0]])
model = Bragg2DPtycho(
    float(given["wavelength"]),
    {"distance": float(given["distance"]), "basis": detector, "corner": None},
    basis,
    given["probe"].astype(np.complex64),
    given["object"].astype(np.complex64),
    probe_basis=basis,
    background=np.sqrt(centred["background"]).astype(np.float32),
    weights=torch.ones(len(translations)),
    correct_tilt=bool(given["tilted"]),
)
if given["tilted"]:
    model.intensity_map = torch.from_numpy(np.sqrt(given["areas"]).astype(np.float32))
index = torch.arange(len(translations))
intensities = model.forward(index, translations)
mask = torch.from_numpy(centred["mask"]).expand_as(intensities)
loss = model.loss(torch.from_numpy(centred["patterns"].astype(np.float32)), intensities, mask=mask)
loss.backward()
np.savez(
    sys.argv[2],
    intensities=np.fft.ifftshift(intensities.detach().numpy(), axes=(-2, -1)),
    object=model.obj.grad.numpy(),
    probe=model.probe.grad.numpy() / float(model.probe_norm),
)
