"""Randomized probe imaging: its model against CDTools' and against sums written out; objects from single patterns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import ptymesh as pm
from ptymesh.errors import BadInput
from ptymesh.geometry import far_field
from ptymesh.io.results import Result
from ptymesh.measurement import ArraySource, Measurement
from ptymesh.models import OPTICS
from ptymesh.models.exit_wave.rpi import finer_adjoint, illumination_of_pixels, refined_to_window
from ptymesh.physics.model import Model
from ptymesh.run_folder.figures import write_figures
from toy import relative, smooth

SHAPES = [((12, 14), (6, 7)), ((15, 16), (7, 5)), ((12, 13), (12, 13)), ((9, 8), (4, 6))]


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.complex128)


@pytest.mark.parametrize(("window", "sides"), SHAPES)
def test_it_interpolates(window: tuple[int, int], sides: tuple[int, int]) -> None:
    """A constant stays one, the mean square stays, pixels on the old grid stay where the grids meet."""
    o = noise(2, *sides)
    fine = refined_to_window(o, window)
    assert relative(refined_to_window(torch.full_like(o, 3 - 1j), window), np.full((2, *window), 3 - 1j)) < 1e-14
    assert fine.abs().square().mean() == pytest.approx(float(o.abs().square().mean()))
    if all(n == 2 * m for n, m in zip(window, sides, strict=True)):
        corner = [n // 2 % 2 if m % 2 == 0 else (n // 2 - 2 * (m // 2)) % 2 for n, m in zip(window, sides, strict=True)]
        assert relative(fine[:, corner[0] :: 2, corner[1] :: 2], o) < 1e-13


@pytest.mark.parametrize(("window", "sides"), SHAPES)
def test_its_adjoint_and_its_light(window: tuple[int, int], sides: tuple[int, int]) -> None:
    o, psi = noise(2, *sides), noise(2, *window, seed=1)
    there, back = torch.vdot(refined_to_window(o, window).flatten(), psi.flatten()), finer_adjoint(psi, sides)
    assert abs(there - torch.vdot(o.flatten(), back.flatten())) < 1e-12 * float(psi.abs().square().sum())
    light = psi.abs().square()
    units = torch.eye(sides[0] * sides[1], dtype=torch.complex128).view(-1, *sides)
    spread = refined_to_window(units, window).abs().square()  # of each pixel
    wanted = torch.einsum("kyx,byx->bk", spread, light).view(2, *sides)
    assert relative(illumination_of_pixels(light, sides), wanted) < 1e-12


def beam(window: tuple[int, int], counts: float, modes: int = 1, seed: int = 0) -> np.ndarray:
    """A diffuser's speckle (M, h, w) under a soft aperture, with half the band of the detector."""
    rng = np.random.default_rng(seed)
    y, x = (np.fft.fftfreq(n)[:, None] if axis == 0 else np.fft.fftfreq(n) for axis, n in enumerate(window))
    band = np.hypot(y, x) < 0.25
    speckle = np.fft.fft2(band * np.exp(2j * np.pi * rng.random((modes, *window))))
    v, u = (np.arange(n) - n // 2 for n in window)
    speckle *= np.exp(-((v[:, None] ** 2 + u**2) ** 2) / (0.36 * min(window)) ** 4)
    return speckle * np.sqrt(counts / (np.abs(speckle) ** 2).sum())


def exposures(views: int, seed: int = 0, counts: float = 1e6) -> tuple[Measurement, np.ndarray]:
    """Counts (N, 64, 64) of samples (N, 32, 32) under the same beam."""
    window, rng = (64, 64), np.random.default_rng(seed)
    probe = beam(window, counts, seed=seed)
    samples = (1 - 0.1 * np.abs(smooth((views, 32, 32), 1.5, rng))) * np.exp(0.7j * smooth((views, 32, 32), 1.5, rng))
    waves = probe * refined_to_window(torch.as_tensor(samples), window).numpy()
    patterns = rng.poisson(np.abs(np.fft.fft2(waves, norm="ortho")) ** 2).astype(np.uint32)
    geometry = far_field(window, 1.24e-10, 2.0, (75e-6, 75e-6))
    scan = Measurement(ArraySource(patterns), np.zeros((views, 2)), geometry, np.ones(window, dtype=bool), probe=probe)
    return scan, samples


def error(found: np.ndarray, true: np.ndarray, light: np.ndarray) -> float:
    """Of one sample where there is light, but for a factor, which the beam's power leaves open."""
    a, b = (light * x for x in (found, true))
    return float(np.linalg.norm(a * np.vdot(a, b) / np.vdot(a, a) - b) / np.linalg.norm(b))


@pytest.mark.sample(1)
@pytest.mark.parametrize(("engine", "most"), [("adam", 0.08), ("lbfgs", 0.2)])
def test_samples_are_found_from_one_pattern_each(engine: str, most: float, tmp_path: Path) -> None:
    """Counting leaves 0.06; L-BFGS is on its way."""
    scan, true = exposures(2)
    recon = pm.Reconstruction(scan, optics={"rpi": True}, device="cpu")
    before = recon.probe.copy()
    unknowns = {"unknowns": {"sample": True}, "lr": 0.1} if engine == "adam" else {}
    list(recon.run({"engine": engine, "epochs": 80, "batch": 2, **unknowns}))
    assert np.array_equal(recon.probe, before) and (recon.object == 1).all(), "known, and replaced"
    result = recon.result()
    light = np.sqrt(illumination_of_pixels(torch.as_tensor((np.abs(before) ** 2).sum(0)[None]), (32, 32))[0].numpy())
    for found, wanted in zip(result.unknowns["sample"], true, strict=True):
        assert error(found, wanted, light) < most
    result.save(tmp_path / "result.h5")
    read = Result.load(tmp_path / "result.h5")
    assert read.unknowns["sample"].dtype == np.complex64
    assert (tmp_path / "sample.png") in write_figures(read, tmp_path)


def test_one_exposure_on_two_ranks(ranks) -> None:  # type: ignore[no-untyped-def]
    """One of which has nothing to do."""
    wanted = ranks(1, of_one, "replicated")[0]
    assert len(wanted) == 1 and (wanted != 1).any()
    for layout in ("replicated", "tiled"):
        assert all(np.array_equal(found, wanted) for found in ranks(2, of_one, layout))


def of_one(world, layout: str) -> np.ndarray:  # type: ignore[no-untyped-def]
    scan, _ = exposures(1)
    recon = pm.Reconstruction(scan, optics={"rpi": {"pixels": 24}}, device=world, layout=layout)
    list(recon.run({"engine": "adam", "epochs": 4, "batch": 1, "unknowns": {"sample": True}}))
    return recon.state.estimate.others["sample"].numpy().copy()


def test_what_cannot_be_is_refused() -> None:
    scan, _ = exposures(1)
    with pytest.raises(BadInput, match=r"optics\.rpi\.pixels is 65 along y, more than the 64 of the window"):
        pm.Reconstruction(scan, optics={"rpi": {"pixels": 65}}, device="cpu")
    recon = pm.Reconstruction(scan, optics={"rpi": True}, device="cpu")
    with pytest.raises(BadInput, match=r"rpie would move nothing, as optics\.rpi takes the object's part; use adam"):
        list(recon.run({"engine": "rpie"}))
    with pytest.raises(BadInput, match=r"add unknowns: \{sample: true\} to the stage"):
        list(recon.run({"engine": "adam"}))
    with pytest.raises(BadInput, match="coarsen: 2 does not know how sample of the optics looks there"):
        list(recon.run({"engine": "adam", "coarsen": 2, "unknowns": {"sample": True}}))


@pytest.mark.parametrize("sides", [(32, 32), (20, 28), (31, 32)])
def test_intensities_are_those_of_cdtools(sides: tuple[int, int]) -> None:
    """`pip install cdtools-py`; it adds 1e-7 to every intensity."""
    cdtools = pytest.importorskip("cdtools.models")
    window, modes, rng = (64, 64), 2, np.random.default_rng(1)
    probe = beam(window, 1e6, modes)
    sample = rng.standard_normal(sides) + 1j * rng.standard_normal(sides)
    theirs = cdtools.RPI(
        1.24e-10,
        {"distance": 2.0, "basis": np.array([[0, 75e-6], [75e-6, 0], [0, 0]]), "corner": None},
        np.eye(3, 2) * 5e-8,
        torch.as_tensor(probe),
        torch.as_tensor(sample),
        background=np.zeros(window),
        dtype=torch.float64,
    )
    with torch.no_grad():
        wanted = np.fft.ifftshift(theirs.measurement(theirs.forward_propagator(theirs.interaction(0))).numpy())
    geometry = far_field(window, 1.24e-10, 2.0, (75e-6, 75e-6))
    optics = [OPTICS["rpi"](pixels=sides)]
    model = Model.for_geometry(geometry, subpixel="none", optics=optics, dtype=torch.complex128)
    zeros, values = torch.zeros(1, 2), {"sample": torch.as_tensor(sample)[None]}
    vacuum = torch.ones(1, 96, 96, dtype=torch.complex128)
    found = model.intensity(vacuum, torch.as_tensor(probe), zeros.long(), zeros, values=values)[0]
    assert float(np.abs(found.numpy() - wanted).max() / wanted.max()) < 1e-6
