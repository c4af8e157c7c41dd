"""An offset of the detector: it is found, and views that are left out are explained better with it than without."""

from __future__ import annotations

from typing import Any

import pytest

import ptymesh as pm
from ptymesh.engines import ENGINES
from ptymesh.run.loop import Loop
from ptymesh.simulate import simulate

#: Counts of which the amplitude is next to unbiased (by 1 in 40).
OFFSET = 10.0


@pytest.mark.parametrize(
    ("engine", "epochs"),
    [("lsqml", 20), pytest.param("rpie", 50, marks=pytest.mark.long), pytest.param("adam", 40, marks=pytest.mark.long)],
)
def test_the_offset_is_found(engine: str, epochs: int) -> None:
    piece = {"detector_offset": {"start": {"offset": OFFSET}}}
    scan = simulate(views=64, window=32, photons_per_view=3e5, optics=piece, seed=1).measurement
    base: dict[str, Any] = {"object": True, "probe": True} if engine == "adam" else {}
    moves: dict[str, Any] = {"offset": {"lr": 0.3} if engine == "adam" else True}
    found = {}
    for name, optics, more in (("without", None, {}), ("with", {"detector_offset": True}, moves)):
        recon = pm.Reconstruction(scan, optics=optics)
        stage = ENGINES[engine].parse({"epochs": epochs, "batch": 16, "unknowns": base | more}, "stages.0")
        reports = list(Loop(recon.problem, recon.state, [stage], seed=0, hold_out=0.15).epochs())
        found[name] = reports[-1].held_out or 0.0
    assert float(recon.state.estimate.others["offset"]) == pytest.approx(OFFSET, rel=0.1)
    assert 0 < found["with"] < 0.5 * found["without"]
