"""Two slices of an electron scan, each recovered and told from the other."""

import numpy as np
import pytest

from ptymesh.compare import object_error
from ptymesh.engines import LSQML, Adam, Engine
from ptymesh.run.reconstruction import Reconstruction
from ptymesh.simulate import simulate

#: Views of 64 x 64, slices 6 nm apart, 1e8 electrons a view: enough angle and dose to tell depth.
SCAN = dict(kind="electron", window=64, seed=3, photons_per_view=1e8, slice_spacing_m=6e-9)


@pytest.mark.parametrize(
    ("engine", "views"),
    [
        pytest.param(LSQML(epochs=40, batch=32), 150, id="lsqml"),
        pytest.param(LSQML(epochs=60, batch=32), 300, id="lsqml, further", marks=pytest.mark.long),
        pytest.param(Adam(epochs=60, batch=32, lr=0.01), 300, id="adam", marks=pytest.mark.long),
    ],
)
def test_two_slices_without_cross_talk(engine: Engine, views: int) -> None:
    """NRMSE of each slice at most 0.02; correlation of its phase with the other slice's truth below 0.1."""
    made = simulate(**SCAN, views=views)
    recon = Reconstruction(
        made.measurement,
        probe={"start": "file"},
        object={"slices": 2, "slice_spacing_m": made.truth.slice_spacing_m},
    )
    for _ in recon.run(engine):
        pass
    estimate = recon.state.estimate
    truth = np.ones(recon.object.shape, dtype=complex)
    y, x = (round(a - b) for a, b in zip(estimate.origin, made.truth.origin, strict=True))
    assert y >= 0 and x >= 0
    h, w = (min(n, m - o) for n, m, o in zip(made.truth.object.shape[1:], truth.shape[1:], (y, x), strict=True))
    truth[:, y : y + h, x : x + w] = made.truth.object[:, :h, :w]
    light = recon.problem.evaluator.illumination(estimate).numpy()
    lit = light > 0.5 * light.max()

    def correlation(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.corrcoef(np.angle(a)[lit], np.angle(b)[lit])[0, 1])

    for slice_, other in ((0, 1), (1, 0)):
        found = recon.object[slice_]
        assert object_error(found, truth[slice_], lit) < 0.02
        assert abs(correlation(found, truth[other])) < 0.1
        assert correlation(found, truth[slice_]) > 0.95
