"""ptymesh on the star: any of its engines, on the same start as the others; positions are fixed if not asked for."""

import tempfile
from pathlib import Path

import ptymesh as pm  # before torch, so that both use the same threads

# isort: split
import numpy as np
import torch
from turns import arguments, load, serve, synchronise

from ptymesh.distributed.devices import device_for
from ptymesh.distributed.world import Solo
from ptymesh.engines import ENGINES

given = arguments()
torch.set_num_threads(given.threads)
with tempfile.TemporaryDirectory() as folder:
    start = Path(folder) / "probe.npy"
    np.save(start, load(given.star, given.inner).modes(given.modes))
    crop = {"crop": given.inner} if given.inner else {}
    lengths = {"wavelength_m": 4.176e-12, "object_pixel_m": 1e-10} if given.slices > 1 else {}
    obj = {"slices": given.slices, "slice_spacing_m": 1e-9} if given.slices > 1 else {}
    recon = pm.Reconstruction(
        pm.load(given.star, **crop, **lengths),
        object=obj,
        probe={"modes": given.modes, "start": {"kind": "array", "path": str(start)}},
        subpixel=given.subpixel,
        device=Solo(device_for(given.device, 0)),
    )
reports = recon.run(ENGINES[given.engine](epochs=given.epochs, batch=given.batch, positions=given.positions))


def epoch() -> float:
    """One epoch; its running residual."""
    report = next(reports)
    synchronise(given.device)
    return report.residual


serve(epoch, given.epochs, f"ptymesh {pm.__version__}")
