"""ptymesh on the star: any of its engines, on the same start as the others; positions are fixed if not asked for.

--engine default: the stages of a recipe that says nothing of stages, from the probe of the file, as a user has it.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ptymesh as pm  # before torch, so that both use the same threads

# isort: split
import numpy as np
import torch
from turns import Saved, arguments, load, serve, synchronise

from ptymesh.distributed.devices import device_for
from ptymesh.distributed.world import Solo
from ptymesh.engines import ENGINES
from ptymesh.recipe.schema import DEFAULT_STAGES
from ptymesh.run.reconstruction import stages_of
from ptymesh.run_folder.reports import EpochReport


def compared() -> tuple[pm.Reconstruction, Iterator[EpochReport]]:
    """An engine beside a peer's."""
    with tempfile.TemporaryDirectory() as folder:
        start = Path(folder) / "probe.npy"
        np.save(start, load(given.star, given.inner).modes(given.modes))
        crop = {"crop": given.inner} if given.inner else {}
        recon = pm.Reconstruction(
            pm.load(given.star, **crop, **lengths()),
            object=slices(),
            probe={"modes": given.modes, "start": {"kind": "array", "path": str(start)}},
            subpixel=given.subpixel,
            device=Solo(device_for(given.device, 0)),
        )
    return recon, recon.run(ENGINES[given.engine](epochs=given.epochs, batch=given.batch, positions=given.positions))


def lengths() -> dict[str, Any]:
    """What the file does not say, and a single slice in the far field does not need."""
    wavelength, pixel = {"wavelength_m": 1e-10 * given.wavelength}, 1e-10 * given.pixel
    if given.distance:
        return {
            **wavelength,
            "propagation": "angular_spectrum",
            "distance_m": given.distance,
            "detector_pixel_m": pixel,
        }
    return {**wavelength, "object_pixel_m": pixel} if given.slices > 1 else {}


def slices() -> dict[str, float]:
    """How many, and how far apart."""
    return {"slices": given.slices, "slice_spacing_m": 1e-10 * given.spacing} if given.slices > 1 else {}


def by_default() -> tuple[pm.Reconstruction, Iterator[EpochReport]]:
    """The default recipe, without the views that are held out."""
    recon = pm.Reconstruction(
        pm.load(given.star, **lengths()),
        object=slices(),
        probe_modes=given.modes,
        device=Solo(device_for(given.device, 0)),
    )
    recon.stages.extend(stages_of(DEFAULT_STAGES))
    held_out = [] if given.held_out is None else np.load(given.held_out)
    loop = recon.loop(hold_out=len(held_out) / recon.scan.views)
    if not np.array_equal(loop.held_out, held_out):
        raise SystemExit(f"{given.held_out} has other views than ptymesh holds out with seed 0.")
    return recon, loop.epochs()


given = arguments()
torch.set_num_threads(given.threads)
recon, reports = by_default() if given.engine == "default" else compared()


def epoch() -> float:
    """One epoch; its running residual."""
    report = next(reports)
    synchronise(given.device)
    return report.residual


def saved() -> Saved:
    """Positions are of the windows' first pixels, of all views."""
    positions = recon.state.estimate.positions.cpu().numpy()
    return {"object": recon.object, "probe": recon.probe, "positions": positions}


serve(epoch, given, f"ptymesh {pm.__version__}", saved)
