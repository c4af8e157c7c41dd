"""A fidelity of one's own: every engine takes it, on any ranks, with pieces of the detector and a background."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
from torch import Tensor

from ptymesh import Reconstruction
from ptymesh.distributed.world import Solo, World
from ptymesh.engines import ENGINES, Adam
from ptymesh.physics.fidelity import FIDELITIES, Fidelity
from ptymesh.simulate import simulate


class Readout(Fidelity):
    """Gaussian noise, of counting and of five counts rms from the readout."""

    name: ClassVar[str] = "readout"
    bend: ClassVar[float] = 2.0

    def loss(self, I: Tensor, y: Tensor) -> Tensor:
        """Return (I - y)^2 / 2 (y + 25)."""
        return (I - y) ** 2 / (2 * (y + 25))

    def slope(self, I: Tensor, y: Tensor) -> Tensor:
        """Return (I - y) / (y + 25)."""
        return (I - y) / (y + 25)

    def curvature(self, I: Tensor, y: Tensor) -> Tensor:
        """Return 1 / (y + 25)."""
        return 1 / (y + 25)


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offer the fidelity by its name."""
    monkeypatch.setattr(FIDELITIES, "_own", FIDELITIES._own | {"readout": Readout})


@pytest.mark.sample(6)
@pytest.mark.parametrize("kind", ["readout", "anscombe"])
@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_every_engine_takes_it(engine: str, kind: str) -> None:
    scan = simulate(views=30, window=24, photons_per_view=2e4, seed=1).measurement
    recon = Reconstruction(scan, probe={"start": "file"}, device="cpu")
    stage = ENGINES[engine](epochs=8, fidelity=kind)
    if stage.batch is not None:
        stage = ENGINES[engine](epochs=8, fidelity=kind, batch=10)
    residuals = [report.residual for report in recon.run(stage)]
    # difference maps wander, so that their last estimate need not be the best
    assert np.isfinite(residuals).all() and min(residuals) < 0.7 * residuals[0], residuals


def on_ranks(world: World, layout: str, kind: str, optics: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the object and the background that two engines find with the fidelity."""
    FIDELITIES._own.setdefault("readout", Readout)
    scan = simulate(views=30, window=24, photons_per_view=2e4, seed=1).measurement
    recon = Reconstruction(scan, probe={"start": "file"}, device=world, layout=layout, optics=optics)
    for _ in recon.run({"engine": "lsqml", "epochs": 3, "batch": 10, "fidelity": kind}):
        pass
    for _ in recon.run(Adam(epochs=3, batch=10, fidelity=kind, unknowns={"background": True})):
        pass
    result = recon.result()
    return result.object, result.background


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", ["readout", "anscombe"])
@pytest.mark.parametrize("optics", [{}, {"detector_blur": {"start": {"blur_width": 0.5}}}], ids=["plain", "blurred"])
def test_ranks_agree(ranks, kind: str, optics: dict[str, Any]) -> None:  # type: ignore[no-untyped-def]
    one = on_ranks(Solo(), "replicated", kind, optics)
    assert one[1].any(), "the background moves"
    for size, layout in ((2, "replicated"), (3, "tiled")):
        for other in ranks(size, on_ranks, layout, kind, optics):
            assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True)), (size, layout)
