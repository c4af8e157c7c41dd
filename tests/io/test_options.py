"""Every option of `data` and `positions` matters, and does what it says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import tifffile
from pydantic import ValidationError

from ptymesh.errors import BadInput
from ptymesh.geometry import electron_wavelength_m, photon_wavelength_m
from ptymesh.io.options import DataOptions, PositionOptions

Load = Callable[..., Any]


def test_defaults_change_nothing(generic: Load, everything: Load, patterns: np.ndarray, positions: np.ndarray) -> None:
    m = generic()
    np.testing.assert_array_equal(everything(m), patterns)
    assert m.patterns.dtype == np.uint16
    np.testing.assert_allclose(m.positions, positions / 1e-8)
    assert (m.background, m.intensity, m.probe, m.notes, m.name) == (None, None, None, (), "scan")
    assert m.mask.all() and m.geometry.shape == (16, 20) and len(m.fingerprint) == 32


def test_unknown_and_contradicting_keys() -> None:
    for raw in (
        {"path": "x", "centr": "find"},
        {"path": "x", "energy_eV": 1, "wavelength_m": 1},
        {"path": "x", "bin": 0},
        {"path": "x", "distance_m": -1},
        {"path": "x", "keys": {"patterns": "a", "pattern_axes": "nyz"}},
        {"path": "x", "keys": {"patterns": "a", "positions_y": "y"}},
        {"path": "x", "keys": {"patterns": "a", "positions": "p", "positions_y": "y", "positions_x": "x"}},
    ):
        with pytest.raises(ValidationError):
            DataOptions.model_validate(raw)
    for raw in ({"raster": {"shape": 4}}, {"affine": [[1, 1], [1, 1]]}, {"subpixel": "cubic"}, {"rotation": 3}):
        with pytest.raises(ValidationError):
            PositionOptions.model_validate(raw)
    assert DataOptions(path="x", centre="none", crop=4).crop == (4, 4)  # type: ignore[arg-type]


def test_home_folder_in_paths() -> None:
    assert DataOptions(path=Path("~/scan.cxi")).path == Path.home() / "scan.cxi"


def test_geometry_overrides(generic: Load) -> None:
    far = {"object_pixel_m": None, "distance_m": 2.0, "detector_pixel_m": [5e-5, 6e-5]}
    g = generic(**far, wavelength_m=1.2e-10).geometry
    assert g.object_pixel_m == pytest.approx((1.2e-10 * 2 / (16 * 5e-5), 1.2e-10 * 2 / (20 * 6e-5)))
    assert g.radiation is None and g.energy_eV is None
    g = generic(**far, energy_eV=8000, radiation="photon").geometry
    assert g.wavelength_m == photon_wavelength_m(8000) and g.energy_eV == pytest.approx(8000)
    g = generic(**far, energy_eV=3e5, radiation="electron").geometry
    assert g.wavelength_m == electron_wavelength_m(3e5) and g.energy_eV == pytest.approx(3e5)
    with pytest.raises(BadInput, match=r"data\.radiation"):
        generic(energy_eV=8000)
    near = generic(**far, wavelength_m=1e-10, propagation="fresnel", focus_distance_m=0.5).geometry
    assert near.propagation == "fresnel" and near.magnification == pytest.approx(5)
    assert near.object_pixel_m == pytest.approx((1e-5, 1.2e-5))
    with pytest.raises(BadInput, match="wavelength"):
        generic(**far, propagation="angular_spectrum")


def test_geometry_from_the_key_map(hdf5: Load, generic: Load, patterns: np.ndarray, positions: np.ndarray) -> None:
    path = hdf5(
        {"f": patterns, "p": positions, "wavelength": [[1e-10]], "zo": 2.0, "dxd": [5e-5, 6e-5], "energy": 9000.0}
    )
    keys = {"patterns": "/f", "positions": "/p", "distance_m": "zo", "detector_pixel_m": "dxd"}
    g = generic(path=path, keys=keys | {"wavelength_m": "wavelength"}, object_pixel_m=None).geometry
    assert (g.wavelength_m, g.distance_m, g.detector_pixel_m) == (1e-10, 2.0, (5e-5, 6e-5))
    g = generic(path=path, keys=keys | {"energy_eV": "energy"}, object_pixel_m=None, radiation="photon").geometry
    assert g.energy_eV == pytest.approx(9000)
    with pytest.raises(BadInput, match="one number"):
        generic(path=path, keys=keys | {"wavelength_m": "p"})


def test_dc_override(generic: Load, patterns: np.ndarray) -> None:
    views = np.arange(6)
    np.testing.assert_array_equal(generic(dc="corner").patterns.read(views), patterns)
    np.testing.assert_array_equal(generic(dc="centre").patterns.read(views), np.fft.ifftshift(patterns, axes=(1, 2)))


def test_near_field_images_are_not_rolled(generic: Load, patterns: np.ndarray) -> None:
    m = generic(propagation="fresnel", wavelength_m=1e-10, distance_m=1, detector_pixel_m=1e-6)
    np.testing.assert_array_equal(m.patterns.read(np.arange(6)), patterns)


def test_views(generic: Load, everything: Load, patterns: np.ndarray, positions: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "i.npy", np.arange(1.0, 7.0))
    m = generic(views={"start": 1, "stop": 6, "step": 2}, intensity=str(tmp_path / "i.npy"))
    np.testing.assert_array_equal(everything(m), patterns[1:6:2])
    np.testing.assert_allclose(m.positions, positions[1:6:2] / 1e-8)
    np.testing.assert_allclose(m.intensity, np.array([2, 4, 6]) / 4)
    with pytest.raises(BadInput, match=r"data\.views leaves none of the 6"):
        generic(views={"start": 9})


def test_flips_and_transposition(generic: Load, patterns: np.ndarray) -> None:
    """About the zero frequency in the far field, plainly in the near field."""
    views, far = np.arange(6), np.fft.ifftshift(patterns, axes=(1, 2))
    about_dc = (-np.arange(16)) % 16
    np.testing.assert_array_equal(generic(flip_y=True).patterns.read(views), far[:, about_dc])
    np.testing.assert_array_equal(generic(flip_x=True).patterns.read(views), far[:, :, (-np.arange(20)) % 20])
    m = generic(transpose=True, flip_y=True, object_pixel_m=[1e-8, 2e-8])
    np.testing.assert_array_equal(m.patterns.read(views), far[:, about_dc].transpose(0, 2, 1))
    assert m.geometry.shape == (20, 16) and m.geometry.object_pixel_m == (2e-8, 1e-8)
    near = {"propagation": "fresnel", "wavelength_m": 1e-10, "distance_m": 1, "detector_pixel_m": 1e-6}
    np.testing.assert_array_equal(generic(flip_x=True, **near).patterns.read(views), patterns[:, :, ::-1])


def test_crop_bin_pad(generic: Load, everything: Load, patterns: np.ndarray, positions: np.ndarray) -> None:
    """The object pixel follows the window, so positions in pixels do too, whichever unit the file has."""
    cases: list[tuple[dict[str, Any], np.ndarray | None, tuple[float, float]]] = [
        ({"crop": [8, 10]}, patterns[:, 4:12, 5:15], (2, 2)),
        ({"bin": 2}, patterns.reshape(6, 8, 2, 10, 2).sum((2, 4)), (1, 1)),
        ({"pad": [20, 24]}, np.pad(patterns, ((0, 0), (2, 2), (2, 2))), (16 / 20, 20 / 24)),
        ({"pad": [16, 20]}, patterns, (1, 1)),
        ({"crop": [8, 12], "bin": 2, "pad": 8}, None, (16 / (8 * 2), 20 / (8 * 2))),
    ]
    for options, wanted, ratio in cases:
        m, px = generic(**options), generic({"unit": "px"}, **options)
        if wanted is not None:
            np.testing.assert_array_equal(everything(m), wanted)
        assert m.geometry.object_pixel_m == pytest.approx((1e-8 * ratio[0], 1e-8 * ratio[1]))
        np.testing.assert_allclose(m.positions, positions / m.geometry.object_pixel_m)
        np.testing.assert_allclose(px.positions, positions / ratio)
    assert np.fft.fftshift(generic(pad=[20, 24]).mask).sum() == 16 * 20


def test_binning_near_field(generic: Load, positions: np.ndarray) -> None:
    near = {"propagation": "fresnel", "wavelength_m": 1e-10, "distance_m": 1, "detector_pixel_m": 1e-6}
    m = generic({"unit": "px"}, bin=2, object_pixel_m=None, **near)
    assert m.geometry.object_pixel_m == (2e-6, 2e-6)
    np.testing.assert_allclose(m.positions, positions / 2)


@pytest.mark.parametrize(
    ("stored", "options", "wanted"),
    [
        ("u1", {}, "u1"),
        ("u1", {"bin": 4}, "u2"),
        ("u2", {"bin": 2}, "u4"),
        ("u4", {"bin": 2}, "f4"),
        ("u1", {"saturation": 200}, "i2"),
        ("u2", {"saturation": 200}, "i4"),
        ("i2", {"saturation": 200}, "i2"),
        ("u4", {"saturation": 200}, "f4"),
        ("i4", {}, "i4"),
        ("f4", {"bin": 2, "saturation": 200}, "f4"),
        ("f8", {}, "f8"),
        (">u2", {}, "u2"),
        ("?", {}, "u1"),
        ("u2", {"gain": 2.0}, "f4"),
        ("u2", {"dark": 1}, "f4"),
    ],
)
def test_native_dtype_is_kept(
    generic: Load, hdf5: Load, everything: Load, stored: str, options: Any, wanted: str
) -> None:
    full = np.full((6, 16, 20), 1 if stored == "?" else min(np.iinfo(stored).max if stored[-2] in "ui" else 255, 255))
    path = hdf5({"frames": full.astype(stored), "places": np.zeros((6, 2))}, "typed.h5")
    m = generic(path=path, **options)
    assert m.patterns.dtype == np.dtype(wanted)
    if "bin" in options and "saturation" not in options:
        assert (everything(m) == full[0, 0, 0] * options["bin"] ** 2).all()  # nothing overflows
    if "saturation" in options:
        assert (everything(m) == -1).all()


def test_centre(generic: Load, everything: Load, patterns: np.ndarray) -> None:
    m = generic(centre=[7, 11], crop=8)
    np.testing.assert_array_equal(everything(m), patterns[:, 3:11, 7:15])
    shifted = generic(centre=[9, 10])
    np.testing.assert_array_equal(everything(shifted)[:, :15], patterns[:, 1:])
    assert not np.fft.fftshift(shifted.mask)[15].any() and np.fft.fftshift(shifted.mask)[:15].all()
    with pytest.raises(BadInput, match=r"data\.centre"):
        generic(centre=[30, 3])


@pytest.mark.parametrize("dc", ["centre", "corner"])
def test_centre_is_found(generic: Load, hdf5: Load, everything: Load, dc: str) -> None:
    """In spite of a hot pixel and a flat background."""
    y, x = np.indices((32, 32))
    disc = 50.0 * (np.hypot(y - 14, x - 19) < 5.5) + 2
    disc[2, 3] = 1e6
    stored = disc if dc == "centre" else np.fft.ifftshift(disc)
    path = hdf5({"frames": np.stack([stored] * 6), "places": np.zeros((6, 2))}, "off.h5")
    np.testing.assert_array_equal(everything(generic(path=path, centre="find", crop=16, dc=dc))[0], disc[6:22, 11:27])
    np.testing.assert_array_equal(everything(generic(path=path, centre="none", crop=16, dc=dc))[0], disc[8:24, 8:24])
    dark = hdf5({"frames": np.zeros((6, 32, 32)), "places": np.zeros((6, 2))}, "dark.h5")
    with pytest.raises(BadInput, match="dark"):
        generic(path=dark, centre="find")


def arrays(folder: Path, array: np.ndarray) -> list[str]:
    """The same array in every form that an option takes."""
    np.save(folder / "a.npy", array)
    np.savez(folder / "a.npz", one=array, two=array)
    np.savez_compressed(folder / "single.npz", one=array)
    tifffile.imwrite(folder / "a.tif", array)
    with h5py.File(folder / "a.h5", "w") as file:
        file["/in/side"] = array
    return [str(folder / name) for name in ("a.npy", "a.tif", "a.npz:two", "single.npz", "a.h5:/in/side")]


def test_arrays_of_every_kind(tmp_path: Path, generic: Load, everything: Load, patterns: np.ndarray) -> None:
    dark = np.random.default_rng(0).uniform(0, 9, (16, 20)).astype(np.float32)
    for reference in arrays(tmp_path, dark):
        np.testing.assert_allclose(everything(generic(dark=reference)), np.maximum(patterns - dark, 0), atol=1e-4)
    np.testing.assert_array_equal(everything(generic(dark=20)), np.maximum(patterns.astype(float) - 20, 0))


def test_dark_flat_and_gain(tmp_path: Path, generic: Load, everything: Load, patterns: np.ndarray) -> None:
    flat = np.random.default_rng(0).uniform(0.5, 1.5, (16, 20))
    flat[2, 3] = 0
    np.save(tmp_path / "flat.npy", flat)
    m = generic(flat=str(tmp_path / "flat.npy"), dark=10, gain=4, bin=2)
    with np.errstate(divide="ignore"):
        counts = np.maximum(patterns - 10.0, 0) / flat * flat[flat > 0].mean() / 4
    counts[:, 2, 3] = 0
    wanted = counts.reshape(6, 8, 2, 10, 2).sum((2, 4))
    wanted[:, 1, 1] = 0
    np.testing.assert_allclose(everything(m), wanted, rtol=1e-5)
    assert np.argwhere(~np.fft.fftshift(m.mask)).tolist() == [[1, 1]]
    np.save(tmp_path / "gain.npy", np.full((16, 20), 2.0))
    np.testing.assert_allclose(everything(generic(gain=str(tmp_path / "gain.npy"))), patterns / 2)
    np.save(tmp_path / "gain.npy", np.zeros((16, 20)))
    with pytest.raises(BadInput, match=r"data\.gain holds 0"):
        generic(gain=str(tmp_path / "gain.npy"))


def test_flat_that_is_all_but_dark(tmp_path: Path, generic: Load) -> None:
    flat = np.ones((16, 20))
    flat[2, 3] = 1e-310
    np.save(tmp_path / "flat.npy", flat)
    with pytest.raises(BadInput, match="makes counts inf times larger"):
        generic(flat=str(tmp_path / "flat.npy"))


def test_mask(tmp_path: Path, hdf5: Load, generic: Load, everything: Load, patterns: np.ndarray) -> None:
    good = np.random.default_rng(0).random((16, 20)) > 0.2
    np.save(tmp_path / "mask.npy", good)
    m = generic(mask=str(tmp_path / "mask.npy"))
    np.testing.assert_array_equal(np.fft.fftshift(m.mask), good)
    np.testing.assert_array_equal(everything(m), patterns * good)
    inverted = generic(mask=str(tmp_path / "mask.npy"), mask_true="bad")
    np.testing.assert_array_equal(np.fft.fftshift(inverted.mask), ~good)
    path = hdf5({"frames": patterns, "places": np.zeros((6, 2)), "m": good.astype(np.uint8)}, "masked.h5")
    np.testing.assert_array_equal(np.fft.fftshift(generic(path=path, keys={"mask": "m"}).mask), good)
    np.testing.assert_array_equal(np.fft.fftshift(generic(path=path, keys={"mask": "m"}, mask_true="bad").mask), ~good)
    both = generic(mask=str(tmp_path / "mask.npy"), bin=2)
    np.testing.assert_array_equal(np.fft.fftshift(both.mask), good.reshape(8, 2, 10, 2).all((1, 3)))


def test_saturation(generic: Load, everything: Load, patterns: np.ndarray) -> None:
    counts = everything(generic(saturation=400))
    np.testing.assert_array_equal(counts, np.where(patterns >= 400, -1, patterns.astype(int)))
    binned = everything(generic(saturation=495, bin=2))
    blocks = patterns.reshape(6, 8, 2, 10, 2).astype(int)
    wanted = np.where((blocks >= 495).any((2, 4)), -1, blocks.sum((2, 4)))
    assert (wanted == -1).any()
    np.testing.assert_array_equal(binned, wanted)
    dark = everything(generic(saturation=400, dark=300))  # in detector units, before the dark is subtracted
    np.testing.assert_array_equal(dark, np.where(patterns >= 400, -1, np.maximum(patterns - 300.0, 0)))


def test_background_and_intensity(tmp_path: Path, hdf5: Load, generic: Load, patterns: np.ndarray) -> None:
    background = np.random.default_rng(0).uniform(0, 3, (16, 20))
    np.save(tmp_path / "b.npy", background)
    m = generic(background=str(tmp_path / "b.npy"), bin=2)
    np.testing.assert_allclose(np.fft.fftshift(m.background), background.reshape(8, 2, 10, 2).sum((1, 3)))
    path = hdf5({"frames": patterns, "places": np.zeros((6, 2)), "monitor": [[1.0, 2, 3], [4, 5, 6]]}, "i.h5")
    np.testing.assert_allclose(generic(path=path, keys={"intensity": "monitor"}).intensity, np.arange(1, 7) / 3.5)
    for wrong, word in ((np.ones(5), "5 incident intensities"), (np.zeros(6), "must be positive")):
        np.save(tmp_path / "i.npy", wrong)
        with pytest.raises(BadInput, match=word):
            generic(intensity=str(tmp_path / "i.npy"))
    np.save(tmp_path / "b.npy", -background)
    with pytest.raises(BadInput, match="cannot be negative"):
        generic(background=str(tmp_path / "b.npy"))


def test_invalid_counts(hdf5: Load, generic: Load, everything: Load) -> None:
    counts = np.ones((6, 16, 20), np.float32)
    counts[3, 4, 5], counts[4, 0, 0], counts[5, 1, 1] = -2, np.nan, np.inf
    path = hdf5({"frames": counts, "places": np.zeros((6, 2))}, "nan.h5")
    m = generic(path=path)
    assert (m.patterns.read(np.array([0, 1, 2])) == 1).all()  # checked as they are read
    for view, value in ((3, "-2.0"), (4, "nan"), (5, "inf")):
        with pytest.raises(BadInput, match=rf"View {view} of .* holds {value} counts at pixel \[\d+, \d+\]; mask"):
            m.patterns.read(np.array([0, view]))
    missing = everything(generic(path=path, invalid="missing"))
    assert (missing[3, 4, 5], missing[4, 0, 0], missing[5, 1, 1]) == (-1, -1, -1)
    zero = everything(generic(path=path, invalid="zero"))
    assert (zero[3, 4, 5], zero[4, 0, 0], zero[5, 1, 1]) == (0, -1, -1)
    signed = hdf5({"frames": counts[:4].astype(np.int16), "places": np.zeros((4, 2))}, "signed.h5")
    assert everything(generic(path=signed, invalid="zero"))[3, 4, 5] == 0
    with pytest.raises(BadInput, match="View 3"):
        everything(generic(path=signed))
    selected = generic(path=path, views={"start": 3})
    with pytest.raises(BadInput, match="View 3 "):  # counted as in the file
        selected.patterns.read(np.array([0]))


def test_masked_pixels_may_hold_anything(tmp_path: Path, hdf5: Load, generic: Load, everything: Load) -> None:
    counts = np.ones((6, 16, 20), np.float32)
    counts[:, 2, 2] = np.nan
    np.save(tmp_path / "bad.npy", np.isnan(counts[0]))
    path = hdf5({"frames": counts, "places": np.zeros((6, 2))}, "nan.h5")
    assert everything(generic(path=path, mask=str(tmp_path / "bad.npy"), mask_true="bad")).sum() == 6 * 319


def test_probe_is_resampled_with_the_detector(hdf5: Load, generic: Load, patterns: np.ndarray) -> None:
    probe = np.random.default_rng(0).normal(size=(16, 20, 2)).view(complex)[..., 0]
    path = hdf5({"frames": patterns, "places": np.zeros((6, 2)), "probe": probe}, "probe.h5")
    np.testing.assert_allclose(generic(path=path, keys={"probe": "probe"}).probe, probe[None], atol=1e-12)
    assert generic(path=path, keys={"probe": "probe"}, crop=8, transpose=True).probe.shape == (1, 8, 8)


def test_raster_positions(generic: Load) -> None:
    metres = generic({"raster": {"shape": [2, 3], "step_m": [1e-8, 2e-8]}}).positions
    np.testing.assert_allclose(metres, [(y, x) for y in (-0.5, 0.5) for x in (-2, 0, 2)], atol=1e-12)
    pixels = generic({"raster": {"shape": [2, 3], "step_px": 4}}, crop=8).positions
    np.testing.assert_allclose(pixels, [(y, x) for y in (-1, 1) for x in (-1.6, 0, 1.6)], atol=1e-12)
    with pytest.raises(BadInput, match=r"6 patterns, but the raster has 8 positions; give one for each\.$"):
        generic({"raster": {"shape": [2, 4], "step_px": 4}})
    with pytest.raises(BadInput, match=r"has 4 positions; give one for each; if some .* data\.frames\.shape instead"):
        generic({"raster": {"shape": [2, 2], "step_px": 4}})
    with pytest.raises(BadInput, match=r"positions\.raster\.shape, or, where some .* no view, data\.frames\.shape"):
        generic({"raster": {"step_px": 4}})


@pytest.mark.parametrize(
    ("options", "matrix"),
    [
        ({"transpose": True}, [[0, 1], [1, 0]]),
        ({"flip_y": True}, [[-1, 0], [0, 1]]),
        ({"flip_x": True}, [[1, 0], [0, -1]]),
        ({"transpose": True, "flip_y": True}, [[0, -1], [1, 0]]),
        ({"affine": [[1.1, 0.2], [0.3, 0.9]]}, [[1.1, 0.2], [0.3, 0.9]]),
        ({"rotation_deg": 90}, [[0, -1], [1, 0]]),
        ({"rotation_deg": 30, "flip_x": True}, [[3**0.5 / 2, 0.5], [0.5, -(3**0.5) / 2]]),
    ],
)
def test_positions_turned(generic: Load, positions: np.ndarray, options: dict[str, Any], matrix: Any) -> None:
    np.testing.assert_allclose(generic(options).positions, positions / 1e-8 @ np.array(matrix).T, atol=1e-9)


def test_positions_are_turned_in_metres(generic: Load, positions: np.ndarray) -> None:
    """Object pixels need not be square."""
    m = generic({"rotation_deg": 90}, object_pixel_m=[1e-8, 2e-8])
    np.testing.assert_allclose(m.positions, positions[:, ::-1] * [-1, 1] / [1e-8, 2e-8])


@pytest.mark.parametrize(("unit", "scale"), [("mm", 1e-3), ("um", 1e-6), ("nm", 1e-9), ("A", 1e-10)])
def test_units(generic: Load, positions: np.ndarray, unit: str, scale: float) -> None:
    np.testing.assert_allclose(generic({"unit": unit}).positions, positions * scale / 1e-8)


def test_subpixel_is_kept_for_the_model() -> None:
    assert PositionOptions().subpixel == "fourier"
    assert PositionOptions(subpixel="none").subpixel == "none"
