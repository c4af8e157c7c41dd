"""Probe from an image of the beam without a sample: nearer to the truth than the scan's own mean pattern."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from ptymesh.engines import ENGINES
from ptymesh.errors import BadInput
from ptymesh.geometry import Geometry
from ptymesh.io import load_measurement
from ptymesh.io.formats.cxi import write_cxi
from ptymesh.io.options import DataOptions
from ptymesh.measurement import ArraySource, Measurement
from ptymesh.physics.beam import probes
from ptymesh.physics.propagate import apply_kernel, fresnel_kernel
from ptymesh.recipe.starts import PROBE_STARTS
from ptymesh.run.reconstruction import Reconstruction
from ptymesh.simulate import Simulated, simulate

SIDE, PIXEL_M, WAVELENGTH_M = 32, 1e-8, 1e-10


def overlap(a: np.ndarray, b: np.ndarray) -> float:
    """Return |<a, b>| of waves of unit norm."""
    return float(abs(np.vdot(a, b)) / np.sqrt(np.vdot(a, a).real * np.vdot(b, b).real))


def intensity(probe: np.ndarray) -> np.ndarray:
    """Return what a detector with the direct beam in its middle counts of a probe."""
    return np.abs(np.fft.fftshift(np.fft.fft2(probe, norm="ortho"))) ** 2


def made(measurement: Measurement, **options: Any) -> np.ndarray:
    """Return the probe that a start makes."""
    kind = options.setdefault("kind", "empty_beam")
    start = PROBE_STARTS.find(kind)
    assert start is not None
    mean = measurement.patterns.read(np.arange(measurement.views)).mean(axis=0, dtype=np.float64)
    return np.asarray(start.parse(options, "probe.start").make(measurement, mean)).reshape(measurement.window)


@pytest.fixture(scope="module")
def strong() -> Simulated:
    """A scan of an object that scatters so much that its mean pattern is not the beam's."""
    return simulate(views=40, window=48, phase_rad=(-3.0, 0.5), photons_per_view=1e4, probe_guess="none")


@pytest.fixture(scope="module")
def image(strong: Simulated, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Counts of the true beam without the object."""
    path = tmp_path_factory.mktemp("beam") / "beam.npy"
    np.save(path, np.random.default_rng(1).poisson(intensity(strong.truth.probe[0])).astype(np.uint32))
    return str(path)


#: Of the zone plate by which the scan is simulated.
DEFOCUS_M = -1.2389e-4


def test_it_starts_nearer_to_the_beam_than_the_mean_pattern(strong: Simulated, image: str) -> None:
    truth, scan = strong.truth.probe[0], strong.measurement
    assert overlap(made(scan, path=image, defocus_m=DEFOCUS_M), truth) > 0.995
    assert overlap(made(scan, kind="data", defocus_m=DEFOCUS_M), truth) < 0.85
    assert overlap(made(scan, path=image), truth) < 0.5  # the defocus counts


def test_a_run_from_it_is_ahead(strong: Simulated, image: str) -> None:
    residuals = []
    for kind in ({"kind": "data"}, {"kind": "empty_beam", "path": image}):
        run = Reconstruction(
            strong.measurement, device="cpu", probe={"start": {**kind, "defocus_m": DEFOCUS_M}}, precision="single"
        )
        *_, last = run.run(ENGINES["rpie"](epochs=3, batch=20))
        residuals.append(last.residual)
    assert residuals[1] < 0.93 * residuals[0]


def lens_scan(**changes: Any) -> Measurement:
    geometry = Geometry((SIDE, SIDE), "far_field", "photon", WAVELENGTH_M, object_pixel_m=(PIXEL_M, PIXEL_M))
    pixels = np.ones((SIDE, SIDE), bool)
    scan = Measurement(ArraySource(np.ones((3, SIDE, SIDE), np.uint16)), np.zeros((3, 2)), geometry, pixels)
    return replace(scan, **changes)


ABERRATIONS = {"C10": -4e-6, "C12": [2e-6, 0.4], "C21": [1e-3, -1.0]}


def test_its_phase_is_that_of_the_lens(tmp_path: Path) -> None:
    """The image of a lens's pupil, with the lens's aberrations, is the lens's probe."""
    lens = probes.aberrated((SIDE, SIDE), (PIXEL_M, PIXEL_M), WAVELENGTH_M, 2e-3, ABERRATIONS).numpy()
    np.save(tmp_path / "beam.npy", intensity(lens))
    options = {"path": str(tmp_path / "beam.npy"), "aberrations_m": {**ABERRATIONS, "C10": 0.0}, "defocus_m": 4e-6}
    assert overlap(made(lens_scan(), **options), lens) == pytest.approx(1, abs=1e-9)
    start = PROBE_STARTS["empty_beam"].parse({"kind": "empty_beam", **options}, "probe.start")
    assert start.parameters()["aberrations"]["C10"] == pytest.approx(-4e-6)
    with pytest.raises(BadInput, match="m wide in y, and the window"):
        made(lens_scan(), **{**options, "defocus_m": 4e-3})


def test_in_a_near_field_it_is_taken_back_from_the_detector(tmp_path: Path) -> None:
    y = np.arange(SIDE) - SIDE // 2
    wave = torch.from_numpy(np.exp(-((y[:, None] ** 2 + y**2) / 50.0))).to(torch.complex128)
    pixel = (PIXEL_M, PIXEL_M)
    geometry = Geometry((SIDE, SIDE), "fresnel", "photon", WAVELENGTH_M, 1e-5, object_pixel_m=pixel)
    kernel = fresnel_kernel(geometry.shape, pixel, WAVELENGTH_M, geometry.effective_distance_m)
    counts = apply_kernel(wave, kernel).abs().square().numpy()
    np.save(tmp_path / "beam.npy", counts)
    found = made(lens_scan(geometry=geometry), path=str(tmp_path / "beam.npy"))
    assert np.allclose(np.abs(apply_kernel(torch.from_numpy(found), kernel).numpy()) ** 2, counts, atol=1e-9)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scan of a detector of 24 x 28 pixels with a lopsided beam in its mean pattern, and that beam as CXI."""
    folder = tmp_path_factory.mktemp("stored")
    beam = np.zeros((24, 28), np.uint16)
    beam[8:15, 11:20] = 40
    beam[8:10, 11:13] = 90
    np.save(folder / "stack.npy", np.stack((beam - beam // 10, beam + beam // 10)))
    geometry = Geometry((24, 28), "far_field", "photon", WAVELENGTH_M, object_pixel_m=(PIXEL_M, PIXEL_M))
    for name, counts in (("scan.cxi", beam * 3), ("beam.cxi", beam)):
        frames = np.repeat(counts[None], 5, axis=0)
        places = np.arange(10.0).reshape(5, 2)
        write_cxi(folder / name, patterns=[frames], count=5, dtype="u2", geometry=geometry, positions_px=places)
    with h5py.File(folder / "beam.h5", "w") as file:
        file["there/image"] = beam
    return folder


@pytest.mark.parametrize("name", ["stack.npy", "beam.h5:/there/image", "beam.cxi"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"centre": [12, 14], "crop": [16, 20], "bin": 2},
        {"flip_y": True, "transpose": True, "pad": [30, 30]},
        {"bad_pixels": [[9, 12]], "gain": 2.0},
    ],
    ids=["whole", "cut", "turned", "mended"],
)
def test_it_is_brought_to_the_window_as_patterns_are(stored: Path, name: str, options: dict[str, Any]) -> None:
    """Nothing tells the probe of an image from that of patterns that all look like it."""
    scan = load_measurement(DataOptions(path=stored / "scan.cxi", checks="off", **options))
    from_image, from_patterns = made(scan, path=str(stored / name)), made(scan, kind="data")
    assert np.allclose(from_image * np.sqrt(3), from_patterns, atol=1e-9)


def test_an_image_as_large_as_the_window_needs_no_cut(stored: Path, tmp_path: Path) -> None:
    whole, cut = (
        load_measurement(DataOptions(path=stored / "scan.cxi", checks="off", **options))
        for options in ({}, {"crop": [16, 16]})
    )
    beam = np.fft.fftshift(cut.patterns.read(np.arange(1))[0])
    np.save(tmp_path / "cut.npy", beam)
    assert np.allclose(made(cut, path=str(tmp_path / "cut.npy")), made(cut, kind="data"))
    with pytest.raises(BadInput, match=r"probe\.start\.path: .* shape \(16, 16\); the scan's detector is \(24, 28\)\."):
        made(whole, path=str(tmp_path / "cut.npy"))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((24, 28)), "is dark where the scan's detector holds data; give the image of a beam"),
        (np.ones(7), "give an image, or a stack of them"),
        (np.full((24, 28), np.nan), "is dark where the scan's detector holds data"),
    ],
)
def test_what_is_no_image_of_a_beam_is_refused(stored: Path, tmp_path: Path, array: np.ndarray, message: str) -> None:
    np.save(tmp_path / "wrong.npy", array)
    scan = load_measurement(DataOptions(path=stored / "scan.cxi"))
    with pytest.raises(BadInput, match=message):
        made(scan, path=str(tmp_path / "wrong.npy"))
    with pytest.raises(BadInput, match=r"There is no file .*none\.npy, which probe\.start\.path names"):
        made(scan, path=str(tmp_path / "none.npy"))


def test_negative_values_of_an_image_without_its_dark_are_no_light(stored: Path, tmp_path: Path) -> None:
    scan = load_measurement(DataOptions(path=stored / "scan.cxi"))
    beam = np.load(stored / "stack.npy").mean(axis=0)
    np.save(tmp_path / "dark.npy", np.where(beam > 0, beam, -0.5))
    assert np.allclose(made(scan, path=str(tmp_path / "dark.npy")), made(scan, path=str(stored / "stack.npy")))
