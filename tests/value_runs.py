"""Runs of objects that follow from values, on any number of ranks, stopped or not, and what they end with."""

from __future__ import annotations

from typing import Any

import numpy as np

import ptymesh as pm
from ptymesh.distributed.world import World
from ptymesh.engines import ENGINES
from ptymesh.io.checkpoint import store as checkpoint
from ptymesh.simulate import simulate
from stopped_runs import run_to_end_or_stop


def outcome(world: World, layout: str, engine: str, how: dict[str, Any]) -> dict[str, np.ndarray]:
    """What one rank ends with; folder: where a run leaves a checkpoint after so many batches, or goes on from one."""
    scan, folder = simulated(), how.get("folder")
    saved = checkpoint.load(folder, world) if folder and "stop" not in how else None
    options = {"kind": "potential", "absorption": 0.05, **how.get("object", {})}
    recon = pm.Reconstruction(
        scan, device=world, layout=layout, seed=3, object=options, saved=saved, subpixel="fourier"
    )
    recon.stages = [ENGINES[engine](epochs=3, batch=17, **how.get("stage", {}))]
    if not run_to_end_or_stop(recon, how):
        return {}
    estimate, gather = recon.state.estimate, recon.problem.layout.gather_whole
    assert estimate.object_values is not None
    result = recon.result()
    if "result" in how:
        recon.save(how["result"])
    assert result.potential is not None
    return {
        "potential": gather(estimate.object_values, estimate).numpy(),
        "object": gather(estimate.object, estimate).numpy(),
        "probe": estimate.probe.numpy(),
        "result": result.potential,
        "residual": np.array(recon.problem.residual(estimate)),
        "absorption": np.array(estimate.absorption),
    }


def simulated() -> Any:
    """A scan of electrons."""
    return simulate(kind="electron", views=60, window=32, overlap=0.6, photons_per_view=1e5, seed=4).measurement


def same_bits(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    for name, array in one.items():
        assert np.array_equal(array, other[name]), name
