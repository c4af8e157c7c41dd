"""Display of a reconstruction between two epochs in a notebook."""

from __future__ import annotations

import numpy as np

from ptymesh.compare import illumination
from ptymesh.notebook.fragment import fragment, pixels
from ptymesh.notebook.results import modes, strip
from ptymesh.run.reconstruction import Reconstruction


def html(recon: Reconstruction) -> str:
    """Return the HTML of the progress so far, object and probe; with tiles, of this rank's part."""
    history = {name: np.asarray(column) for name, column in recon.state.history.items()}
    obj, probe, pixel = recon.object, recon.probe, recon.scan.geometry.object_pixel_m
    slices, height, width = obj.shape
    layout = recon.problem.layout.name
    facts = {
        "scan": recon.scan.name,
        "object": (f"{slices} slices of " if slices > 1 else "") + f"{height} x {width} pixels",
        "object pixel": pixels(pixel),
        "probe": modes(probe),
        "views": str(recon.scan.views),
        "epochs": epochs(recon),
        "residual": f"{history['residual'][-1]:.4g}" if len(history["residual"]) else "",
        "runs on": f"{recon.world.size} rank{'s' * (recon.world.size > 1)}, {recon.world.device.type}, "
        f"{recon.precision}" + (f", {layout}" if recon.world.size > 1 else ""),
    }
    return fragment("Reconstruction", facts, strip(obj, probe, history, pixel, _light(recon)))


def _light(recon: Reconstruction) -> np.ndarray | None:
    """Return the counts on each object pixel (H, W); None where this rank holds only a part of the object."""
    estimate = recon.state.estimate
    if recon.object.shape[-2:] != tuple(estimate.extent):
        return None
    positions, weights = estimate.positions.cpu().numpy(), estimate.weights.cpu().numpy()
    return illumination(estimate.extent, recon.probe, positions, weights)


def epochs(recon: Reconstruction) -> str:
    """Return the number of epochs of each stage so far, in words."""
    stage_of_epoch = np.asarray(recon.state.history["stage"], dtype=int)
    counts = [f"{(stage_of_epoch == stage).sum()} of {engine.name}" for stage, engine in enumerate(recon.stages)]
    return ", ".join(counts) if counts else "none yet"
