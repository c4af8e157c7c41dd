"""Single precision against double: where the model has no light yet, phases are rounding and must not count."""

import numpy as np
import pytest

from ptymesh.engines import ENGINES
from ptymesh.run.reconstruction import Reconstruction
from ptymesh.simulate import simulate


@pytest.mark.sample(2)
@pytest.mark.parametrize("engine", ["lsqml", "rpie", "adam", "raar"])
def test_first_epochs_agree(engine: str) -> None:
    """Of a zone plate's beam, through an object of ones, most of the detector is dark. Rounding has 1e-7."""
    scan = simulate(kind="xray", views=60, window=64, probe_guess="design", seed=1).measurement
    objects = []
    for precision in ("single", "double"):
        recon = Reconstruction(scan, device="cpu", seed=0, precision=precision)  # type: ignore[arg-type]
        for _ in recon.run(ENGINES[engine](epochs=3, **({} if engine == "raar" else {"batch": 20}))):
            pass
        objects.append(recon.object)
    single, double = objects
    assert np.linalg.norm(single - double) < 1e-4 * np.linalg.norm(double)
