"""Pixels that integrate, and tables of the modulation transfer: against sums of finer pixels, and against data."""

from __future__ import annotations

import pytest
import torch

import ptymesh as pm
from ptymesh.errors import BadInput
from ptymesh.models.detector_transfer import DetectorTransfer
from ptymesh.simulate import simulate

#: Finer pixels along each side of a pixel.
FINE = 9


def far_field(wave: torch.Tensor, window: int) -> torch.Tensor:
    """Intensities of a wave (n, n) on a detector of `window` pixels a side, of the same extent for every number."""
    return torch.fft.fft2(wave, s=(window, window)).abs().square()


def test_it_is_the_sum_of_finer_pixels() -> None:
    """A wave that fills less than half of the window, on pixels FINE times as many to a side, FINE x FINE summed."""
    rng = torch.Generator().manual_seed(0)
    wave = torch.randn(14, 14, generator=rng, dtype=torch.complex128)
    coarse, fine = far_field(wave, 32)[None], far_field(wave, 32 * FINE)
    centred = fine.roll((FINE // 2, FINE // 2), (0, 1))  # blocks about the pixels' centres
    summed = centred.view(32, FINE, 32, FINE).mean((1, 3))[None]
    found = DetectorTransfer(pixel_side=1).forward(coarse, {}, ())
    assert (coarse - summed).norm() > 0.05 * summed.norm(), "it is no small change"
    assert (found - summed).norm() < 1.5e-3 * summed.norm()


def test_a_table() -> None:
    piece = DetectorTransfer(table=((0, 1), (0.25, 0.6), (0.5, 0.2)))
    y, x = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    for cycles, kept in ((4, 0.8), (8, 0.6), (12, 0.4), (16, 0.2)):
        for axis in (y, x):
            wave = torch.cos(2 * torch.pi * cycles * axis / 32).to(torch.float64)
            found = piece.forward(1 + wave[None], {}, ())[0]
            assert torch.allclose(found, 1 + kept * wave, atol=1e-5)


def test_whoever_knows_it_explains_the_patterns() -> None:
    options = {"detector_transfer": {"pixel_side": 1, "table": [[0, 1], [0.5, 0.5]]}}
    scan = simulate(views=49, window=32, photons_per_view=3e5, seed=1, optics=options).measurement
    residuals = []
    for optics in (None, options):
        recon = pm.Reconstruction(scan, optics=optics)
        residuals.append([report.residual for report in recon.run(pm.RPIE(epochs=20, batch=16))][-1])
    assert residuals[1] < 0.6 * residuals[0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (True, "detector_transfer does nothing; give pixel_side"),
        ({"table": [[0.1, 1]]}, r"table begins with \[0.1, 1.0\]; begin with \[0, 1\]"),
        ({"table": [[0, 1], [0.2, 0.5], [0.2, 0.4]]}, "frequencies of table do not rise"),
        ({"table": [[0, 1], [0.2, 1.5]]}, "table has values that are not between 0 and 1"),
        ({"pixel_side": -1}, "pixel_side"),
    ],
)
def test_what_means_nothing_is_refused(options: object, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        pm.Reconstruction(simulate(views=4, window=16).measurement, optics={"detector_transfer": options})
