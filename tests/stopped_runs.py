"""Runs that are stopped after some batches with a checkpoint, and others that go on from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
