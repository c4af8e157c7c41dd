"""Runs that are stopped after some batches with a checkpoint, and others that go on from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import ptymesh as pm
from ptymesh.errors import Interrupted


def run_to_end_or_stop(recon: pm.Reconstruction, how: Mapping[str, Any]) -> bool:
    """Run the stages of a reconstruction; return False if it was stopped.

    Args:
        recon: with its stages.
        how: `folder`, for a checkpoint that is left there; `stop`, the number of batches after which it is stopped.
    """
    left = iter(range(how.get("stop", 1 << 30)))
    loop = recon.loop(stop=lambda: next(left, None) is None)
    if folder := how.get("folder"):
        loop.save = lambda: recon.state.save(folder, loop.problem, {"data": recon.identity()})  # type: ignore[method-assign]
    if "stop" in how:
        with pytest.raises(Interrupted):
            loop.run()
        return False
    loop.run()
    return True


def end_of_run(recon: pm.Reconstruction, how: Mapping[str, Any], *names: str) -> dict[str, np.ndarray]:
    """Return object, probe, residual and other unknowns at the end of a run; nothing if it was stopped.

    Args:
        recon: with its stages.
        how: as in `run_to_end_or_stop`.
        names: of the other unknowns.
    """
    if not run_to_end_or_stop(recon, how):
        return {}
    estimate = recon.state.estimate
    return {
        "object": recon.problem.layout.gather_whole(estimate.object, estimate).numpy(),
        "probe": estimate.probe.numpy(),
        "residual": np.array(recon.problem.residual(estimate)),
        **{name: estimate[name].numpy() for name in names},
    }
