"""ptymesh on the star: any of its engines, on the same start as the others; positions are fixed."""

import tempfile
from pathlib import Path

import ptymesh as pm  # before torch, so that both use the same threads

# isort: split
import numpy as np
import torch
from star import arguments, load, serve, synchronise

from ptymesh.distributed.devices import device_for
from ptymesh.distributed.world import Solo
from ptymesh.engines import ENGINES

given = arguments()
torch.set_num_threads(given.threads)
with tempfile.TemporaryDirectory() as folder:
    start = Path(folder) / "probe.npy"
    np.save(start, load(given.star).modes(given.modes))
    recon = pm.Reconstruction(
        pm.load(given.star),
        probe={"modes": given.modes, "start": {"kind": "array", "path": str(start)}},
        subpixel=given.subpixel,
        device=Solo(device_for(given.device, 0)),
    )
reports = recon.run(ENGINES[given.engine](epochs=given.epochs, batch=given.batch))


def epoch() -> float:
    """One epoch; its running residual."""
    report = next(reports)
    synchronise(given.device)
    return report.residual


serve(epoch, given.epochs, f"ptymesh {pm.__version__}")
