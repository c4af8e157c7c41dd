"""Situations that users of other programs have reported: what each must come to here, with its right value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ptymesh.errors import BadInput
from ptymesh.geometry import electron_wavelength_m, photon_wavelength_m
from ptymesh.io import load_measurement
from ptymesh.io.options import DataOptions, PositionOptions

N, H, W = 20, 32, 32
KEYS = {"patterns": "/frames", "positions": "/places"}


@pytest.fixture
def frames() -> np.ndarray:
    return np.random.default_rng(3).poisson(90, (N, H, W)).astype(np.uint16)


@pytest.fixture
def places() -> np.ndarray:
    return np.random.default_rng(4).uniform(-1e-6, 1e-6, (N, 2))


def file_of(path: Path, frames: np.ndarray, places: np.ndarray, **numbers: Any) -> Path:
    """HDF5 of patterns, positions in metres, and further datasets, (value, unit) or a value alone."""
    with h5py.File(path, "w") as file:
        file["frames"], file["places"] = frames, places
        file["places"].attrs["units"] = "m"
        for name, value in numbers.items():
            number, unit = value if isinstance(value, tuple) else (value, None)
            file[name] = number
            if unit is not None:
                file[name].attrs["units"] = unit
    return path


def load(path: Path, keys: dict[str, str] | None = None, **options: Any) -> Any:
    data = {"path": path, "keys": KEYS | (keys or {})} | options
    return load_measurement(DataOptions.parse(data, "data"), PositionOptions())


def test_wavelengths_of_photons_and_electrons() -> None:
    """hc is 1.239842 eV um, not 1.240597; electrons are relativistic."""
    assert photon_wavelength_m(8e3) == pytest.approx(1.549802e-10, rel=1e-6)
    assert electron_wavelength_m(300e3) == pytest.approx(1.96875e-12, rel=1e-5)


@pytest.mark.parametrize("said", [(8.8, "keV"), (8800.0, "eV"), (8800.0 * 1.602176634e-19, "J")])
def test_an_energy_in_any_unit(tmp_path: Path, frames: Any, places: Any, said: tuple[float, str]) -> None:
    path = file_of(tmp_path / "a.h5", frames, places, energy=said)
    m = load(path, {"energy_eV": "/energy"}, radiation="photon", distance_m=2.0, detector_pixel_m=75e-6)
    assert m.geometry.wavelength_m == pytest.approx(photon_wavelength_m(8800.0), rel=1e-6)


@pytest.mark.parametrize(("bare", "radiation"), [(8.8, "photon"), (300.0, "electron")])
def test_a_bare_energy_is_asked_about(tmp_path: Path, frames: Any, places: Any, bare: float, radiation: str) -> None:
    path = file_of(tmp_path / "a.h5", frames, places, energy=bare)
    with pytest.raises(BadInput, match=rf"{bare:g} and says no unit.*data\.energy_eV"):
        load(path, {"energy_eV": "/energy"}, radiation=radiation, distance_m=2.0, detector_pixel_m=75e-6)


@pytest.mark.parametrize(
    ("name", "value", "key"), [("distance", 1920.0, "distance_m"), ("pixel", 75.0, "detector_pixel_m")]
)
def test_lengths_a_thousandfold_too_large_are_asked_about(
    tmp_path: Path, frames: Any, places: Any, name: str, value: float, key: str
) -> None:
    path = file_of(tmp_path / "a.h5", frames, places, **{name: value})
    others = {"energy_eV": 8.8e3, "radiation": "photon", "distance_m": 1.92, "detector_pixel_m": 75e-6}
    del others[key]
    with pytest.raises(BadInput, match=rf"says no unit.*data\.{key}"):
        load(path, {key: f"/{name}"}, **others)


@pytest.mark.parametrize("pixel", [[75e-6, 55e-6], [[75e-6, 55e-6]]])
def test_pixels_that_are_not_square(tmp_path: Path, frames: Any, places: Any, pixel: Any) -> None:
    """A pair, or a row of two as MATLAB writes it, is y and x: a circle in metres stays a circle."""
    path = file_of(tmp_path / "a.h5", frames, places, pixel=(pixel, "m"))
    m = load(path, {"detector_pixel_m": "/pixel"}, energy_eV=8.8e3, radiation="photon", distance_m=2.0)
    y, x = m.geometry.object_pixel_m
    assert y / x == pytest.approx(55 / 75) and y == pytest.approx(m.geometry.wavelength_m * 2.0 / (H * 75e-6))
    between = (m.positions[1:] - m.positions[0]) * (y, x)
    np.testing.assert_allclose(between, places[1:] - places[0], rtol=1e-9)


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_a_length_of_zero_is_no_length(tmp_path: Path, value: float) -> None:
    for key in ("distance_m", "detector_pixel_m", "object_pixel_m"):
        with pytest.raises(BadInput, match=rf"data\.{key}"):
            DataOptions.parse({"path": tmp_path / "a.h5", key: value}, "data")


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan])
@pytest.mark.parametrize("key", ["energy_eV", "distance_m", "detector_pixel_m"])
def test_a_number_of_zero_in_a_file_is_refused(
    tmp_path: Path, frames: Any, places: Any, key: str, value: float
) -> None:
    """No default takes its place: the dataset and the key that says it instead are named."""
    path = file_of(tmp_path / "a.h5", frames, places, number=(value, "eV" if key == "energy_eV" else "m"))
    others = {"energy_eV": 8.8e3, "radiation": "photon", "distance_m": 1.92, "detector_pixel_m": 75e-6}
    del others[key]
    with pytest.raises(BadInput, match=rf"/number is .*must be above zero: set data\.{key} instead"):
        load(path, {key: "/number"}, **others)


def test_everything_follows_the_views_that_are_left(tmp_path: Path, frames: Any, places: Any) -> None:
    """Positions and intensities of full length stay with their patterns."""
    light = np.random.default_rng(8).uniform(0.5, 2, N)
    path = file_of(tmp_path / "a.h5", frames, places, light=light)
    options = {"object_pixel_m": 1e-8, "views": {"step": 3, "without": [6]}}
    m = load(path, {"intensity": "/light"}, **options)
    left = [0, 3, 9, 12, 15, 18]
    np.testing.assert_array_equal(np.fft.fftshift(m.patterns.read(np.arange(6)), axes=(1, 2)), frames[left])
    np.testing.assert_allclose((m.positions - m.positions[0]) * 1e-8, places[left] - places[0], atol=1e-15)
    np.testing.assert_allclose(m.intensity / m.intensity[0], light[left] / light[0], rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_binned_pixels_do_not_wrap(tmp_path: Path, places: Any, dtype: type) -> None:
    most = int(np.iinfo(dtype).max)
    frames = np.random.default_rng(0).integers(most - 9, most - 1, (N, H, W)).astype(dtype)
    m = load(file_of(tmp_path / "a.h5", frames, places), object_pixel_m=1e-8, bin=2, checks="off")
    found = np.asarray(m.patterns.read(np.arange(N)), np.float64).sum()
    assert found == frames.astype(np.float64).sum()


@pytest.mark.parametrize("known", [True, False])
def test_the_beam_is_found_in_spite_of_a_hot_pixel(tmp_path: Path, places: Any, known: bool) -> None:
    y, x = np.mgrid[:64, :64]
    spot = 400 * np.exp(-((y - 20.0) ** 2 + (x - 45.0) ** 2) / 18)
    frames = np.random.default_rng(1).poisson(spot, (N, 64, 64)).astype(np.uint32)
    frames[:, 1, 62] = 10**6
    path = file_of(tmp_path / "a.h5", frames, places)
    bad: dict[str, Any] = {"bad_pixels": [[1, 62]]} if known else {}
    m = load(path, object_pixel_m=1e-8, centre="find", crop=32, **bad)
    mean = np.fft.fftshift(np.asarray(m.patterns.read(np.arange(N)), float).mean(axis=0))
    rows, columns = np.indices(mean.shape)
    middle = [(mean * index).sum() / mean.sum() for index in (rows, columns)]
    np.testing.assert_allclose(middle, (16, 16), atol=1)


def test_a_pad_of_the_same_size_changes_nothing(tmp_path: Path, frames: Any, places: Any) -> None:
    path = file_of(tmp_path / "a.h5", frames, places)
    plain, padded = (load(path, object_pixel_m=1e-8, **more) for more in ({}, {"pad": [H, W]}))
    np.testing.assert_array_equal(plain.patterns.read(np.arange(N)), padded.patterns.read(np.arange(N)))
    assert plain.mask.all() and padded.mask.all() and plain.geometry == padded.geometry


@pytest.mark.parametrize(
    "text", [b"keV", "keV", np.bytes_(b"keV"), np.array([b"keV"]), np.array(["keV"], dtype=object)]
)
def test_units_in_any_kind_of_string(tmp_path: Path, frames: Any, places: Any, text: Any) -> None:
    path = file_of(tmp_path / "a.h5", frames, places, energy=6.2)
    with h5py.File(path, "r+") as file:
        kind = h5py.string_dtype() if isinstance(text, np.ndarray) and text.dtype.kind == "O" else None
        file["energy"].attrs.create("units", text, dtype=kind)
        file["title"] = ""
    m = load(path, {"energy_eV": "/energy"}, radiation="photon", distance_m=2.0, detector_pixel_m=75e-6)
    assert m.geometry.wavelength_m == pytest.approx(photon_wavelength_m(6200.0))


def test_an_empty_unit_is_no_unit(tmp_path: Path, frames: Any, places: Any) -> None:
    path = file_of(tmp_path / "a.h5", frames, places, energy=(6.2, ""))
    with pytest.raises(BadInput, match=r"says no unit.*data\.energy_eV"):
        load(path, {"energy_eV": "/energy"}, radiation="photon", distance_m=2.0, detector_pixel_m=75e-6)


def test_dark_flat_and_corner_together(tmp_path: Path, frames: Any, places: Any) -> None:
    """Value minus dark, clipped at zero, over the flat field, equals data that were prepared so."""
    dark, flat = np.full((H, W), 5.0), np.where(np.arange(W) < W // 2, 1.2, 0.8) * np.ones((H, 1))
    corner = np.fft.ifftshift(frames, axes=(1, 2))
    path = file_of(tmp_path / "a.h5", corner, places, dark=np.fft.ifftshift(dark))
    np.save(tmp_path / "flat.npy", np.fft.ifftshift(flat))
    m = load(path, {"dark": "/dark"}, object_pixel_m=1e-8, dc="corner", flat=str(tmp_path / "flat.npy"))
    found = np.fft.fftshift(m.patterns.read(np.arange(N)), axes=(1, 2))
    np.testing.assert_allclose(found, np.clip(frames - 5.0, 0, None) / flat, rtol=1e-6)
