"""Saturated pixels: a lower bound of the intensity, by hand and in a reconstruction."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import ptymesh as pm
from ptymesh.compare import compare_results
from ptymesh.errors import BadInput
from ptymesh.physics import fidelity
from ptymesh.physics.fidelity import Data, Saturation
from ptymesh.simulate import simulate

LEVEL = 700.0


def data_of(y: list[float], everywhere: bool) -> Data:
    counts = torch.tensor(y, dtype=torch.float64)[None, None]
    background = torch.ones(1, len(y), dtype=torch.float64)
    mask = torch.ones(1, len(y), dtype=torch.bool)
    return Data.of(counts, mask, background, torch.float64, Saturation(10.0, everywhere))


@pytest.mark.parametrize("kind", ["amplitude", "poisson", "intensity"])
def test_a_saturated_pixel_is_a_lower_bound(kind: Any) -> None:
    """Counts 10 and 12 are saturated: intensities above have no slope, those below the usual one; 3 is not."""
    data = data_of([10, 10, 12, 12, 3], everywhere=False)
    S = torch.tensor([[[30.0, 5.0, 30.0, 10.0, 30.0]]], dtype=torch.float64)
    slopes = fidelity.slope(kind, S, data)[0, 0]
    usual = fidelity.slope(kind, S, Data(data.y, data.good, data.background))[0, 0]
    assert slopes[[0, 2]].tolist() == [0, 0] and torch.equal(slopes[[1, 3, 4]], usual[[1, 3, 4]])
    assert data.intensity(S)[0, 0].tolist() == [10, 6, 12, 11, 31]
    factors = fidelity.revision(kind, S, data)[0, 0]
    assert factors[[0, 2]].tolist() == [1, 1] and float(factors[1]) > 1 and float(factors[4]) < 1


def test_everywhere_limits_all_pixels() -> None:
    data = data_of([10, 3, 3], everywhere=True)
    S = torch.tensor([[[30.0, 30.0, 5.0]]], dtype=torch.float64)
    assert data.intensity(S)[0, 0].tolist() == [10, 10, 6]
    assert (fidelity.slope("amplitude", S, data)[0, 0] != 0).tolist() == [False, False, True]


def solved(optics: dict[str, Any] | None, data: dict[str, Any]) -> tuple[float, float]:
    """NRMSE of the object, and the residual, of a scan whose brightest pixels are saturated."""
    made = simulate(
        views=100, window=32, photons_per_view=1e5, seed=3, optics={"detector_saturation": {"level": LEVEL}}
    )
    patterns, scan = made.measurement.patterns.read(np.arange(100)), made.measurement
    share = float((patterns >= LEVEL).mean())
    assert patterns.max() == LEVEL and 0.02 < share < 0.2
    if data.get("without"):
        patterns = np.where(patterns >= LEVEL, -1, patterns.astype(np.int32))
    scan = pm.Measurement(**{**vars(scan), "patterns": patterns})
    recon = pm.Reconstruction(scan, optics=optics, seed=1)
    *_, last = recon.run(pm.Adam(epochs=60, batch=10))
    truth = made.truth
    return float(compare_results(recon.result(), truth).nrmse), float(last.residual)


@pytest.mark.long
def test_it_is_better_than_to_believe_saturated_pixels_and_no_worse_than_to_leave_them_out() -> None:
    piece = {"detector_saturation": {"level": LEVEL}}
    (found, residual), (believed, misfit) = solved(piece, {}), solved(None, {})
    left_out, _ = solved(None, {"without": True})
    assert found < 0.5 * believed and found < 1.02 * left_out, (found, believed, left_out)
    assert residual < 0.7 * misfit


def test_a_level_has_to_be_said() -> None:
    scan = simulate(views=4, window=16).measurement
    with pytest.raises(BadInput, match=r"optics.detector_saturation.level is missing"):
        pm.Reconstruction(scan, optics={"detector_saturation": True})
    with pytest.raises(BadInput, match=r"level"):
        pm.Reconstruction(scan, optics={"detector_saturation": {"level": 0}})
