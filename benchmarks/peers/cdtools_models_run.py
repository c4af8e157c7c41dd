"""CDTools' FancyPtycho on given arrays: intensities and gradients of one evaluation, for models.py.

    python cdtools_models_run.py IN.npz OUT.npz

Everything that is given is a constructor's argument or an array of the model; nothing is reconstructed. Translations
are in object pixels, as the object's basis has unit vectors.
"""

import sys

import numpy as np
import torch
from cdtools.models import FancyPtycho
from cdtools.tools.interactions import translations_to_pixel

given = dict(np.load(sys.argv[1], allow_pickle=False))
centred = {name: np.fft.fftshift(given[name], axes=(-2, -1)) for name in ("patterns", "background", "efficiency")}
basis = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]])
translations = torch.zeros(len(given["positions"]), 3)
translations[:, :2] = torch.from_numpy(given["positions"][:, ::-1].astype(np.float32))
if translations_to_pixel(basis, translations)[0, 0] < 0:
    basis = -basis
phase_only = bool(given["phase_only"])
model = FancyPtycho(
    1e-10,
    {"distance": 1.0, "basis": torch.tensor([[0.0, 1e-5], [1e-5, 0.0], [0.0, 0.0]]), "corner": None},
    basis,
    given["probe"].astype(np.complex64),
    (np.angle(given["object"]) if phase_only else given["object"]).astype(np.complex64),
    background=np.sqrt(centred["background"]).astype(np.float32),
    weights=given["mixing"] if given["mixing"].size else torch.ones(len(translations)),
    qe_mask=centred["efficiency"].astype(np.float32) if bool(given["efficient"]) else None,
    saturation=float(given["level"]) if float(given["level"]) else None,
    exponentiate_obj=phase_only,
    phase_only=phase_only,
)
index = torch.arange(len(translations))
intensities = model.forward(index, translations)
loss = model.loss(torch.from_numpy(centred["patterns"].astype(np.float32)), intensities)
loss.backward()
by_object = model.obj.grad.numpy()
np.savez(
    sys.argv[2],
    intensities=np.fft.ifftshift(intensities.detach().numpy(), axes=(-2, -1)),
    object=by_object.real if phase_only else by_object,
    probe=model.probe.grad.numpy() / float(model.probe_norm),
    mixing=model.weights.grad.numpy() if given["mixing"].size else np.zeros(0),
)
