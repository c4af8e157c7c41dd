"""Results in other programs' files: what is written is what is read, and what is lost is said."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import tifffile
from scipy.io import loadmat, savemat

from ptymesh.errors import BadInput
from ptymesh.io.exchange import convert, py4dstem
from ptymesh.io.hdf5.reading import names_in, open_hdf5
from ptymesh.io.results import Result

#: Windows and objects with even and odd sides, and pixels that are not square.
SHAPES = [((40, 48), (16, 12)), ((41, 37), (15, 11)), ((40, 37), (16, 11))]


def example(
    shape: tuple[int, int] = (40, 48), window: tuple[int, int] = (16, 12), slices: int = 1, modes: int = 2, **more: Any
) -> Result:
    """Return a result of random numbers, so that any wrong order, sign or place is noticed."""
    rng = np.random.default_rng(3)

    def waves(*sides: int) -> np.ndarray:
        return (rng.normal(size=sides) + 1j * rng.normal(size=sides)).astype(np.complex64)

    positions = rng.uniform(0, np.array(shape) - window, (7, 2))
    pixel = np.array(more.get("pixel_size_m") or (1e-8, 2e-8))
    fields: dict[str, Any] = {
        "object": waves(slices, *shape),
        "probe": waves(modes, *window),
        "positions_px": positions,
        "positions_m": (positions - (3.3, -4.6)) * pixel,
        "pixel_size_m": (1e-8, 2e-8),
        "slice_spacing_m": 3e-7 if slices > 1 else 0.0,
        "attrs": {"energy_eV": 8000.0, "radiation": "photon", "distance_m": 1.5},
    }
    return Result(**fields | more)


def exchanged(result: Result, path: Path, name: str) -> Result:
    """Return the result as it is read from another program's file, which is found by its content."""
    convert.write_result(result, path, convert.FORMATS[name])
    moved = path.rename(path.with_suffix(".unnamed"))
    back, found, _ = convert.read_result(moved)
    assert found.name == name
    back.save(path.with_suffix(".back.h5"))
    return Result.load(path.with_suffix(".back.h5"))


def assert_same(back: Result, there: Result) -> None:
    """Check arrays to single precision, positions to 1e-6 pixels, and lengths."""
    for name in ("object", "probe"):
        np.testing.assert_allclose(getattr(back, name), getattr(there, name), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(back.positions_px, there.positions_px, rtol=0, atol=1e-6)
    assert back.pixel_size_m == pytest.approx(there.pixel_size_m, rel=1e-9)
    assert back.slice_spacing_m == pytest.approx(there.slice_spacing_m, rel=1e-6)


#: Formats that are read back: name, ending, numbers of slices that they hold.
BOTH_WAYS = [
    ("ptychodus", ".h5", (1, 3)),
    ("ptychodus", ".npz", (1, 3)),
    ("ptypy", ".ptyr", (1,)),
    ("ptyrad", ".hdf5", (1, 3)),
    ("ptychoshelves", ".mat", (1, 3)),
    ("ptychoshelves_h5", ".cxs", (1, 3)),
    ("py4dstem", ".emd", (1, 3)),
    ("cxi", ".cxi", (1, 3)),
    ("hyperspy", ".hspy", (1, 3)),
    ("hyperspy_zarr", ".zspy", (1, 3)),
]
#: Formats whose positions in metres keep the scan's own zero.
KEEP_ORIGIN = ("ptychodus", "ptypy", "cxi", "hyperspy", "hyperspy_zarr")


@pytest.mark.sample(31)
@pytest.mark.parametrize(("shape", "window"), SHAPES)
@pytest.mark.parametrize(
    ("name", "ending", "slices"), [(name, ending, count) for name, ending, counts in BOTH_WAYS for count in counts]
)
def test_a_round_trip(
    name: str, ending: str, slices: int, shape: tuple[int, int], window: tuple[int, int], tmp_path: Path
) -> None:
    pixel = (1e-8, 1e-8) if name == "ptyrad" else (1e-8, 2e-8)
    there = example(shape, window, slices, pixel_size_m=pixel)
    back = exchanged(there, tmp_path / f"result{ending}", name)
    assert_same(back, there)
    assert back.positions_m is not None and there.positions_m is not None
    difference = back.positions_m - there.positions_m
    shift = 0 if name in KEEP_ORIGIN else np.broadcast_to(difference[0], difference.shape)
    np.testing.assert_allclose(difference, shift, atol=1e-14)
    assert back.attrs["converted_from"] == convert.FORMATS[name].program


def test_a_recons_file_of_ptychoshelves(tmp_path: Path) -> None:
    """As its own writer leaves it: lists of objects and probes with fields r and i, and keV."""
    there = example(slices=1, modes=3)
    path = tmp_path / "scan_recons.h5"
    fields = np.dtype([("r", "f4"), ("i", "f4")])
    with h5py.File(path, "w") as file:
        for name, waves in (("objects/object_0", there.object), ("probes/probe_0", there.probe[:, None])):
            stored = np.empty(waves.shape, fields)
            stored["r"], stored["i"] = waves.real, waves.imag
            file[f"reconstruction/p/{name}"] = stored
        file["reconstruction/p/positions"] = there.positions_px
        file["reconstruction/p/dx_spec"] = np.array(there.pixel_size_m)[:, None]
        file["reconstruction/p/energy"], file["reconstruction/p/lambda"] = 6.2, 2e-10
    back, found, notes = convert.read_result(path)
    assert found.name == "ptychoshelves_h5" and back.attrs["energy_eV"] == pytest.approx(6200)
    assert_same(back, there)
    assert any("scale" in note for note in notes)
    with h5py.File(path, "r+") as file:
        del file["reconstruction/p/probes/probe_0"]
        file["reconstruction/p/probes/probe_0"] = np.ones((2, 3, 4, 4), fields["r"])
    with pytest.raises(BadInput, match="is float32"):
        convert.read_result(path)


def test_a_potential_of_py4dstem(tmp_path: Path) -> None:
    """A real object is a potential; py4DSTEM keeps its probe with the optical axis at the corner."""
    there = example(pixel_size_m=(4e-11, 5e-11), attrs={"energy_eV": 8e4, "radiation": "electron"})
    path = tmp_path / "r.emd"
    convert.write_result(there, path, convert.FORMATS["py4dstem"])
    with h5py.File(path, "r+") as file:
        group = file["ptychography_root/ptychography"]
        np.testing.assert_allclose(group["metadatabundle/preprocess_metadata/sampling"], (0.4, 0.5))
        np.testing.assert_array_equal(np.fft.fftshift(group["_probe_emd/data"][()], axes=(1, 2)), there.probe)
        corner = group["metadatabundle/preprocess_metadata/positions_px"][()] - (8, 6)
        np.testing.assert_allclose(corner, there.positions_px)
        phase = np.random.default_rng(1).uniform(0, 1, there.object.shape[1:])
        del group["_object_emd/data"]
        group["_object_emd/data"] = phase
    back, _, notes = convert.read_result(path)
    np.testing.assert_allclose(back.object[0], np.exp(1j * phase), rtol=1e-6)
    assert back.attrs["energy_eV"] == 8e4 and any("potential" in note for note in notes)


#: py4DSTEM's classes, and what emdfile calls the values that they are made of again.
ARGUMENTS = {
    "energy": "number",
    "semiangle_cutoff": "None",
    "rolloff": "number",
    "object_padding_px": "None",
    "object_type": "string",
    "name": "string",
    "vacuum_probe_intensity": "None",
    "positions": "array",
}
CALIBRATION = {
    "rotation_angle_rad": "number",
    "data_transpose": "bool",
    "positions_px": "array",
    "region_of_interest_shape": "array",
    "amplitudes_shape": "array",
    "num_diffraction_patterns": "number",
    "sampling": "tuple",
    "angular_sampling": "tuple",
    "positions_mask": "None",
}


@pytest.mark.parametrize(
    ("slices", "modes", "name", "more"),
    [
        (1, 1, "SingleslicePtychography", {}),
        (1, 2, "MixedstatePtychography", {"num_probes": "number"}),
        (
            3,
            2,
            "MixedstateMultislicePtychography",
            {"num_probes": "number", "num_slices": "number", "slice_thicknesses": "array"}
            | {"theta_x": "number", "theta_y": "number"},
        ),
    ],
)
def test_a_reconstruction_of_py4dstem(slices: int, modes: int, name: str, more: dict[str, str], tmp_path: Path) -> None:
    """All that its class is made of again, and the sampling that it works out; a tilt has the other sign."""
    there = example(
        slices=slices,
        modes=modes,
        pixel_size_m=(4e-11, 5e-11),
        tilt_rad=(1e-3, -2e-3) if slices > 1 else (0.0, 0.0),
        attrs={"energy_eV": 8e4, "radiation": "electron"},
        history={"residual": np.array([0.5, 0.25])},
    )
    path = tmp_path / "r.emd"
    assert convert.write_result(there, path, convert.FORMATS["py4dstem"]) == ["The history of the run is left out."]
    with h5py.File(path) as file:
        made = file["ptychography_root/ptychography"]
        assert (made.attrs["emd_group_type"], made.attrs["python_class"]) == ("custom", name)
        assert {made[key].attrs["emd_group_type"] for key in ("_object_emd", "_probe_emd")} == {"custom_array"}
        assert made["_object_emd/data"].ndim == (3 if slices > 1 else 2)
        about = made["metadatabundle"]
        for group, kinds in (("instantiation", ARGUMENTS | more), ("preprocess", CALIBRATION)):
            values = about[f"{group}_metadata"]
            assert values.attrs["emd_group_type"] == "metadata"
            assert {key: value.attrs["type"] for key, value in values.items()} == kinds
        before = {key: value[()] for key, value in about["preprocess_metadata"].items()}
        wavelength = 0.0417572  # angstrom, of electrons of 80 keV
        sampling = 1e3 * wavelength / before["angular_sampling"] / before["amplitudes_shape"]
        np.testing.assert_allclose(sampling, (0.4, 0.5), rtol=1e-5)
        middles = about["instantiation_metadata/positions"][()]
        np.testing.assert_allclose(middles, (there.positions_px + np.array((8, 6))) * (0.4, 0.5), rtol=1e-9)
        np.testing.assert_array_equal(about["reconstruction_metadata/reconstruction_error"], (0.5, 0.25))
        assert len(about["aberrations_metadata"]) == 0
        if slices > 1:
            assert about["instantiation_metadata/theta_x"][()] == pytest.approx(-1)
            assert about["instantiation_metadata/theta_y"][()] == pytest.approx(2)
    back, _, _ = convert.read_result(path)
    assert_same(back, there)
    assert back.tilt_rad == pytest.approx(there.tilt_rad) and back.attrs["energy_eV"] == 8e4


def test_what_py4dstem_does_not_know(tmp_path: Path) -> None:
    """No energy is None there, and so is a tilt of its own that was not set."""
    there = example(slices=3, attrs={})
    path = tmp_path / "r.emd"
    (said,) = convert.write_result(there, path, convert.FORMATS["py4dstem"])
    assert said == "The energy is not known: py4DSTEM opens the file, but finds no sampling."
    with h5py.File(path, "r+") as file:
        values = file["ptychography_root/ptychography/metadatabundle"]
        for name in ("instantiation_metadata/energy", "preprocess_metadata/angular_sampling"):
            assert (values[name][()], values[name].attrs["type"]) == (b"_None", "None")
        del values["instantiation_metadata/theta_x"]
        values["instantiation_metadata/theta_x"] = b"_None"
        values["instantiation_metadata/theta_x"].attrs["type"] = b"None"
    back, _, _ = convert.read_result(path)
    assert_same(back, there)
    assert back.tilt_rad == (0, 0) and "energy_eV" not in back.attrs
    (said,) = convert.write_result(example(), path, convert.FORMATS["py4dstem"])
    assert said.startswith("py4DSTEM knows electrons alone")


@pytest.mark.parametrize("ending", [".h5", ".npz"])
def test_a_product_of_ptychodus(ending: str, tmp_path: Path) -> None:
    """Its own geometry: a position, counted from pixels' edges, is the middle of the window on the object."""
    result = example(opr=example(modes=3).probe, weights=np.random.default_rng(0).uniform(0.5, 1, (7, 4)))
    path = tmp_path / f"product{ending}"
    lost = convert.write_result(result, path, convert.FORMATS["ptychodus"])
    assert lost == ["The beam's amplitude in each view acts on the first probe mode alone."]
    if ending == ".npz":
        with np.load(path, allow_pickle=False) as file:
            values = {name: file[name] for name in file}
    else:
        with h5py.File(path) as file:
            values = {name: file[name][()] for name in file} | dict(file.attrs)
            for name in ("object", "probe"):
                values |= {f"{name}_{key}": value for key, value in file[name].attrs.items()}
    assert float(values["photon_energy_eV"]) == float(values["probe_energy_eV"]) == 8000, "names of 1.7, and before"
    assert float(values["detector_object_distance_m"]) == 1.5 and float(values["mass_attenuation_m2_per_kg"]) == 0
    assert bool(values["far_field"])
    result.recipe = "data: {propagation: fresnel}"
    convert.write_result(result, tmp_path / "near.npz", convert.FORMATS["ptychodus"])
    assert not np.load(tmp_path / "near.npz")["far_field"]
    result.recipe = ""
    assert float(values["object_pixel_height_m"]) == 1e-8 and float(values["object_pixel_width_m"]) == 2e-8
    x = (values["probe_position_x_m"] - values["object_center_x_m"]) / values["object_pixel_width_m"] + 48 / 2
    y = (values["probe_position_y_m"] - values["object_center_y_m"]) / values["object_pixel_height_m"] + 40 / 2
    np.testing.assert_allclose(np.stack((y - 16 / 2, x - 12 / 2), 1), result.positions_px, atol=1e-9)
    assert values["probe"].shape == (4, 2, 16, 12) and values["object"].shape == (1, 40, 48)
    back, _, notes = convert.read_result(path)
    assert notes == []
    assert back.opr is not None and result.opr is not None and back.weights is not None
    np.testing.assert_array_equal(back.opr, result.opr)
    np.testing.assert_array_equal(back.weights, result.weights)
    assert back.attrs["energy_eV"] == 8000


@pytest.mark.parametrize(("shape", "window"), SHAPES)
def test_a_view_of_ptypy(shape: tuple[int, int], window: tuple[int, int], tmp_path: Path) -> None:
    """Its own rule of which pixels a view covers (core.classes): their first is the nearest to the position."""
    result = example(shape, window)
    result.positions_px = np.rint(result.positions_px)
    convert.write_result(result, tmp_path / "run.ptyr", convert.FORMATS["ptypy"])
    with h5py.File(tmp_path / "run.ptyr") as file:
        assert file["header/kind"].asstr()[()] == "minimal"
        (storage,) = file["content/obj"].values()
        (places,) = file["content/positions"].values()
        (probe,) = file["content/probe"].values()
        assert storage["data"].shape == (1, *shape) and probe["data"].shape == (2, *window)
        pixels = (places[()] - storage["_origin"][()]) / storage["_psize"][()]
        first = np.round(pixels + 0.00001).astype(int) - np.array(window) // 2
        np.testing.assert_array_equal(first, result.positions_px)
        np.testing.assert_allclose(storage["_center"], -storage["_origin"][()] / storage["_psize"][()])
        assert storage["_energy"][()] == pytest.approx(8.0)
        names: list[str] = []
        file["content"].visititems(lambda name, node: names.append(name) if "type" not in node.attrs else None)
        assert names == [], "h5rw says the type of every item"


def test_a_reconstruction_of_ptypy_in_which_views_are_repeated(tmp_path: Path) -> None:
    """ptypy has a view for each pair of modes, and several storages for several scans."""
    result = example(modes=2)
    convert.write_result(result, tmp_path / "run.ptyr", convert.FORMATS["ptypy"])
    with h5py.File(tmp_path / "run.ptyr", "r+") as file:
        (name,) = file["content/positions"]
        places = file["content/positions"][name][()]
        del file["content/positions"][name]
        file["content/positions"][name] = np.repeat(places, 2, axis=0)
        file.copy("content/obj/" + name, "content/obj/Tother")
    back, _, notes = convert.read_result(tmp_path / "run.ptyr")
    np.testing.assert_allclose(back.positions_px, result.positions_px, atol=1e-6)
    assert any("2 storages" in note for note in notes)
    with h5py.File(tmp_path / "run.ptyr", "r+") as file:
        del file["content/positions"]
    with pytest.raises(BadInput, match="no positions"):
        convert.read_result(tmp_path / "run.ptyr")


def test_slices_become_their_product_in_ptypy(tmp_path: Path) -> None:
    result = example(slices=3)
    lost = convert.write_result(result, tmp_path / "run.ptyr", convert.FORMATS["ptypy"])
    assert "The product of 3 slices is written." in lost
    back, _, _ = convert.read_result(tmp_path / "run.ptyr")
    np.testing.assert_allclose(back.object[0], np.prod(result.object, axis=0), rtol=1e-5)


@pytest.mark.parametrize("radiation", ["photon", "electron"])
def test_a_model_of_ptyrad(radiation: str, tmp_path: Path) -> None:
    """Corners are whole pixels and shifts the rest; lengths are in angstrom for electrons; tilts in mrad."""
    result = example(slices=2, pixel_size_m=(4e-11, 4e-11), slice_spacing_m=2e-9, tilt_rad=(1e-3, -2e-3))
    result.attrs["radiation"], result.history = radiation, {"loss": np.array([5.0, 4.0])}
    lost = convert.write_result(result, tmp_path / "model.hdf5", convert.FORMATS["ptyrad"])
    assert lost == ["The history of the run is left out."]
    unit = 1e-10 if radiation == "electron" else 1.0
    with h5py.File(tmp_path / "model.hdf5") as file:
        tensors, model = file["optimizable_tensors"], file["model_attributes"]
        wavelength = 0.136585 if radiation == "electron" else 1.54980  # angstrom, of 8 keV
        assert unit * model["lambd"][()] / 1e-10 == pytest.approx(wavelength, rel=1e-4)
        np.testing.assert_array_equal(file["loss_iters"], [(1, 5.0), (2, 4.0)])
        assert tensors["objp"].shape == (1, 2, 40, 48) and tensors["objp"].dtype == np.float32
        waves = tensors["obja"][0] * np.exp(1j * tensors["objp"][0])
        np.testing.assert_allclose(waves, result.object, rtol=1e-5, atol=1e-6)
        assert model["crop_pos"].dtype.kind == "i" and np.abs(tensors["probe_pos_shifts"]).max() <= 0.5
        corner = model["crop_pos"][()] + tensors["probe_pos_shifts"][()]
        np.testing.assert_allclose(corner, result.positions_px, atol=1e-6)
        assert model["dx"][()] * unit == pytest.approx(4e-11)
        assert model["dk"][()] == pytest.approx(1 / (12 * model["dx"][()]))
        np.testing.assert_allclose(tensors["obj_tilts"], [[1.0, -2.0]], rtol=1e-6)
    back, _, notes = convert.read_result(tmp_path / "model.hdf5")
    assert back.pixel_size_m == pytest.approx((4e-11, 4e-11)) and back.slice_spacing_m == pytest.approx(2e-9)
    assert back.tilt_rad == pytest.approx((1e-3, -2e-3))
    assert any("angstrom" in note for note in notes) == (radiation == "electron")
    with pytest.raises(BadInput, match="square"):
        convert.write_result(example(), tmp_path / "other.hdf5", convert.FORMATS["ptyrad"])


@pytest.mark.parametrize(("shape", "window"), SHAPES)
@pytest.mark.parametrize("radiation", ["photon", "electron"])
def test_windows_of_fold_slice(shape: tuple[int, int], window: tuple[int, int], radiation: str, tmp_path: Path) -> None:
    """Its own rule of where a window begins (find_reconstruction_ROI), counted from 1 there and from 0 here."""
    result = example(shape, window, slices=3, pixel_size_m=(4e-11, 5e-11), slice_spacing_m=2e-9)
    result.attrs |= {"radiation": radiation, "energy_eV": 300e3}
    result.history = {"residual": np.array([0.3, 0.2])}
    convert.write_result(result, tmp_path / "Niter10.mat", convert.FORMATS["ptychoshelves"])
    found = loadmat(tmp_path / "Niter10.mat", simplify_cells=True)
    assert found["object"].shape == (*shape, 3) and found["probe"].shape == (*window, 2)
    rows_first = found["outputs"]["probe_positions"][:, ::-1]
    np.testing.assert_array_equal(found["outputs"]["fourier_error_out"], [0.3, 0.2])
    begins = rows_first + np.ceil(np.array(shape) / 2 - np.array(window) / 2) - 1
    np.testing.assert_allclose(begins, result.positions_px, atol=1e-9)
    unit = 1e-10 if radiation == "electron" else 1.0
    np.testing.assert_allclose(found["p"]["dx_spec"] * unit, (4e-11, 5e-11))
    assert found["p"]["lambda"] * unit == pytest.approx(
        1.96875e-12 if radiation == "electron" else 4.1328e-12, rel=1e-4
    )
    np.testing.assert_allclose(found["p"]["multi_slice_param"]["z_distance"][:2] * unit, 2e-9)
    assert np.isinf(found["p"]["multi_slice_param"]["z_distance"][2])
    back, _, _ = convert.read_result(tmp_path / "Niter10.mat")
    assert_same(back, result)


def test_axes_of_length_one_stay_in_a_mat(tmp_path: Path) -> None:
    """One view, one mode with variable probes: no axis is taken for another one."""
    there = example(modes=1)
    there = Result(there.object, there.probe, there.positions_px[:1], pixel_size_m=there.pixel_size_m)
    convert.write_result(there, tmp_path / "one.mat", convert.FORMATS["ptychoshelves"])
    found = {name: array for name, array in loadmat(tmp_path / "one.mat").items() if not name.startswith("_")}
    found["probe"] = np.stack([found["probe"], 0.1 * found["probe"]], axis=3)
    savemat(tmp_path / "two.mat", found)
    for name in ("one.mat", "two.mat"):
        back, _, _ = convert.read_result(tmp_path / name)
        assert_same(back, there)


def test_a_mat_of_version_7_3(tmp_path: Path) -> None:
    """HDF5 behind a block of 512 bytes, axes reversed, complex numbers of parts real and imag: as MATLAB writes."""
    there = example(slices=2)
    convert.write_result(there, tmp_path / "old.mat", convert.FORMATS["ptychoshelves"])
    old = loadmat(tmp_path / "old.mat", simplify_cells=True)

    def parts(array: np.ndarray) -> np.ndarray:
        made = np.empty(array.shape[::-1], [("real", "f4"), ("imag", "f4")])
        made["real"], made["imag"] = array.T.real, array.T.imag
        return made

    path = tmp_path / "Niter10.mat"
    with h5py.File(path, "w", userblock_size=512) as file:
        file["object"], file["probe"] = parts(old["object"]), parts(np.stack([old["probe"], old["probe"]], axis=3))
        file["outputs/probe_positions"] = old["outputs"]["probe_positions"].T
        file["p/dx_spec"] = old["p"]["dx_spec"].reshape(2, 1)
        file["p/multi_slice_param/z_distance"] = old["p"]["multi_slice_param"]["z_distance"].reshape(-1, 1)
    with path.open("r+b") as stream:
        stream.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64")
    back, found, notes = convert.read_result(path)
    assert found.name == "ptychoshelves" and any("2 variable-probe" in note for note in notes)
    assert_same(back, there)


@pytest.mark.parametrize(("shape", "window"), SHAPES)
def test_translations_of_cxi(shape: tuple[int, int], window: tuple[int, int], tmp_path: Path) -> None:
    """The middle of the object is the origin of the sample, as CXI says where nothing else is said."""
    result = example(shape, window)
    convert.write_result(result, tmp_path / "r.cxi", convert.FORMATS["cxi"])
    with h5py.File(tmp_path / "r.cxi") as file:
        image = file["entry_1/image_1"]
        assert file["cxi_version"][()] == 160 and image["data_space"].asstr()[()] == "real"
        np.testing.assert_allclose(image["image_size"], [shape[1] * 2e-8, shape[0] * 1e-8, 0])
        moved = file["entry_1/data_1/translation"][()]
        row = moved[:, 1] / 1e-8 + (shape[0] - 1) / 2
        column = moved[:, 0] / 2e-8 + (shape[1] - 1) / 2
        axis = result.positions_px + np.array(window) // 2
        np.testing.assert_allclose(np.stack((row, column), 1), axis, atol=1e-9)
        assert file["entry_1/instrument_1/source_1/energy"][()] == pytest.approx(8000 * 1.602176634e-19)
        assert file["entry_1/instrument_1/source_1/wavelength"][()] == pytest.approx(1.5498e-10, rel=1e-4)
        del image
    with h5py.File(tmp_path / "r.cxi", "r+") as file:  # as other programs write it
        del file["entry_1/ptymesh"], file["entry_1/image_1/x_pixel_size"], file["entry_1/image_1/y_pixel_size"]
    back, _, _ = convert.read_result(tmp_path / "r.cxi")
    assert_same(back, result)


@pytest.mark.parametrize("metric", [True, False])
def test_signals_of_hyperspy(metric: bool, tmp_path: Path) -> None:
    """Two signals of images with calibrated axes; what is not a signal comes back, too."""
    more: dict[str, Any] = {} if metric else {"pixel_size_m": None, "positions_m": None}
    result = example(slices=3, opr=example(modes=2).probe, weights=np.full((7, 3), 0.5), **more)
    lost = convert.write_result(result, tmp_path / "r.hspy", convert.FORMATS["hyperspy"])
    assert lost == []
    with h5py.File(tmp_path / "r.hspy") as file:
        assert file.attrs["file_format"] == "HyperSpy"
        signal = file["Experiments/object"]
        axes = [dict(signal[f"axis-{i}"].attrs) for i in range(3)]
        assert [axis["name"] for axis in axes] == ["z", "y", "x"]
        assert [axis["size"] for axis in axes] == [3, 40, 48] and signal["data"].shape == (3, 40, 48)
        assert [bool(axis["navigate"]) for axis in axes] == [True, False, False]
        assert axes[1]["units"] == ("m" if metric else "px")
        assert axes[1]["scale"] == (1e-8 if metric else 1.0)
        assert axes[1]["offset"] == pytest.approx(-3.3e-8 if metric else 0.0)
        assert signal["metadata/General"].attrs["title"] == "object"
        assert dict(file["Experiments/probe/axis-2"].attrs)["offset"] == pytest.approx(-6 * (2e-8 if metric else 1.0))
    back, _, _ = convert.read_result(tmp_path / "r.hspy")
    for name in ("object", "probe", "positions_px", "opr", "weights"):
        np.testing.assert_array_equal(getattr(back, name), getattr(result, name))
    assert back.pixel_size_m == result.pixel_size_m and back.slice_spacing_m == result.slice_spacing_m


def test_zarr_stores_that_cannot_be_are_refused(tmp_path: Path) -> None:
    """A way of packing that may hold objects, and an array that fills a disk from nothing."""
    path = tmp_path / "r.zspy"
    convert.write_result(example(), path, convert.FORMATS["hyperspy_zarr"])
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    described = "Experiments/object/data/.zarray"
    said = json.loads(members[described])
    for change, sentence in (
        ({"filters": [{"id": "pickle", "protocol": 5}]}, "packed by 'pickle', which is not read"),
        ({"shape": [10**6, 10**6]}, "which this file cannot hold"),
        ({"dtype": "<U3"}, "cannot be read|cannot hold"),
    ):
        with zipfile.ZipFile(path, "w") as archive:
            for name, text in members.items():
                archive.writestr(name, json.dumps(said | change) if name == described else text)
        with pytest.raises(BadInput, match=sentence):
            convert.read_result(path)


@pytest.mark.parametrize("metric", [True, False])
@pytest.mark.parametrize("slices", [1, 3])
def test_a_hyperstack(slices: int, metric: bool, tmp_path: Path) -> None:
    result = example(slices=slices, **({} if metric else {"pixel_size_m": None, "positions_m": None}))
    lost = convert.write_result(result, tmp_path / "r.tif", convert.FORMATS["tiff"])
    assert lost == ["The probe is left out.", "The positions are left out."]
    with tifffile.TiffFile(tmp_path / "r.tif") as file:
        images = file.asarray().reshape(slices, 2, 40, 48)
        about = file.imagej_metadata
        page = file.pages[0]
        assert about is not None and images.dtype == np.float32
        np.testing.assert_allclose(images[:, 0], np.abs(result.object), rtol=1e-6)
        np.testing.assert_allclose(images[:, 1], np.angle(result.object), rtol=1e-5, atol=1e-6)
        assert about["unit"] == ("nm" if metric else "pixel") and about["Labels"][1] == "phase (rad), slice 0"
        if metric:
            for tag, per_nm in (("XResolution", 1 / 20), ("YResolution", 1 / 10)):
                over, under = page.tags[tag].value
                assert over / under == pytest.approx(per_nm, rel=1e-6)
            assert slices == 1 or about["spacing"] == pytest.approx(300)
        dm = {code: page.tags[code].value for code in range(65003, 65012) if code in page.tags}
        expected = {65003: "nm", 65009: pytest.approx(20), 65004: "nm", 65010: pytest.approx(10)}
        through = {65005: "nm", 65011: pytest.approx(300)} if slices > 1 else {}
        assert dm == (expected | through if metric else {}), "hyperspy takes nanometres from DigitalMicrograph's tags"
    assert convert.format_of(tmp_path / "r.tif") is None


def test_every_format_has_a_test_both_ways() -> None:
    assert {name for name, *_ in BOTH_WAYS} == {
        one.name for one in convert.FORMATS.values() if one.read is not None
    } - {"ptymesh"}


def test_what_is_lost_is_said(tmp_path: Path) -> None:
    result = example(
        background=np.ones((16, 12)), nominal_px=np.zeros((7, 2)), recipe="a: 1", parameters={"lens": {"C10": 1e-6}}
    )
    said = " ".join(convert.write_result(result, tmp_path / "p.npz", convert.FORMATS["ptychodus"]))
    for word in ("background", "before refinement", "lens/C10", "recipe"):
        assert word in said
    assert convert.write_result(result, tmp_path / "own.h5", convert.FORMATS["ptymesh"]) == []


def test_object_modes_come_and_go_with_ptyrad(tmp_path: Path) -> None:
    modes = example(slices=2).object * np.exp(1j * np.array([-0.1, 0.1]))[:, None, None, None]
    there = example(slices=2, pixel_size_m=(1e-8, 1e-8), object_modes=modes)
    assert convert.write_result(there, tmp_path / "model.hdf5", convert.FORMATS["ptyrad"]) == []
    back = convert.read_result(tmp_path / "model.hdf5")[0]
    assert back.object_modes is not None
    np.testing.assert_allclose(back.object_modes, modes, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(back.object, modes[0], rtol=1e-5, atol=1e-6)
    with h5py.File(tmp_path / "model.hdf5", "r+") as file:
        file["model_attributes/omode_occu"][...] = [0.8, 0.2]
    assert any("taken as equally likely" in note for note in convert.read_result(tmp_path / "model.hdf5")[2])
    said = convert.write_result(there, tmp_path / "p.npz", convert.FORMATS["ptychodus"])
    assert "The mean of 2 object modes is written." in said


def test_what_is_not_known_is_said(tmp_path: Path) -> None:
    """The recipe is asked where the result itself is silent."""
    bare = example(attrs={}, pixel_size_m=(1e-8, 1e-8))
    said = {
        name: convert.write_result(bare, tmp_path / f"{name}.x", convert.FORMATS[name])
        for name in ("ptychodus", "ptyrad", "ptychoshelves", "cxi", "ptypy")
    }
    assert said["ptychodus"] == [
        "The energy is not known: 0 is written.",
        "The distance to the detector is not known: 0 is written.",
    ]
    assert said["ptyrad"] == ["The radiation is not known: lengths are in angstrom."]
    assert said["ptychoshelves"] == ["The radiation is not known: lengths are in metres."]
    assert said["cxi"] == said["ptypy"] == []
    bare.recipe = "data: {energy_eV: 8e3, radiation: photon, distance_m: 1.5}"
    for name in ("ptychodus", "ptyrad", "ptychoshelves"):
        assert convert.write_result(bare, tmp_path / f"{name}.x", convert.FORMATS[name]) == ["The recipe is left out."]
    assert convert.read_result(tmp_path / "ptychodus.x")[0].attrs["energy_eV"] == 8000


def test_pixel_units_are_refused_where_there_are_lengths(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="pixel units"):
        bare = example(pixel_size_m=None, positions_m=None)
        convert.write_result(bare, tmp_path / "p.npz", convert.FORMATS["ptychodus"])
    assert not list(tmp_path.iterdir())


def test_endings_choose_the_format() -> None:
    own = convert.FORMATS["ptymesh"]
    assert convert.target_format(Path("a.h5"), own).name == "ptychodus"
    assert convert.target_format(Path("a.h5"), convert.FORMATS["ptychodus"]).name == "ptymesh"
    assert convert.target_format(Path("a.ptyr"), own).name == "ptypy"
    assert convert.target_format(Path("a.hdf5"), own).name == "ptyrad"
    assert convert.target_format(Path("a.NPZ"), own).name == "ptychodus"
    assert convert.target_format(Path("a.dat"), own, "ptychodus").name == "ptychodus"
    with pytest.raises(BadInput, match=r"\.npz \(ptychodus\)"):
        convert.target_format(Path("a.dat"), own)
    with pytest.raises(BadInput, match="there are ptymesh, ptypy, ptychodus"):
        convert.target_format(Path("a.dat"), own, "ptychodos")


def _spoil_positions(file: h5py.File) -> None:
    del file["probe_position_x_m"]
    file["probe_position_x_m"] = np.full(7, np.nan)


def _spoil_spacing(file: h5py.File) -> None:
    del file["object"], file["object_layer_spacing_m"]
    file["object"] = np.ones((3, 40, 48), complex)
    file["object"].attrs.update({"center_x_m": 0, "center_y_m": 0, "pixel_height_m": 1e-8, "pixel_width_m": 1e-8})
    file["object_layer_spacing_m"] = [1e-7, 2e-7]


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (lambda file: file["object"].attrs.pop("pixel_width_m"), "object_pixel_width_m"),
        (_spoil_positions, "no finite number"),
        (_spoil_spacing, "equally far apart"),
        (lambda file: file.create_dataset("opr_weights", data=np.ones((7, 3))), "opr_weights"),
    ],
)
def test_unsound_products(spoil: Callable[[h5py.File], Any], word: str, tmp_path: Path) -> None:
    path = tmp_path / "product.h5"
    convert.write_result(example(), path, convert.FORMATS["ptychodus"])
    with h5py.File(path, "r+") as file:
        spoil(file)
    with pytest.raises(BadInput, match=word) as raised:
        convert.read_result(path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "ending", "place", "value", "word"),
    [
        ("ptypy", ".ptyr", "content/obj/Sscan_00G00/_psize", [0.0, 0.0], "_psize"),
        ("ptypy", ".ptyr", "content/obj/Sscan_00G00/data", np.ones(3), "object"),
        ("ptypy", ".ptyr", "content/positions/Sscan_00G00", np.ones((7, 3)), "positions"),
        ("ptyrad", ".hdf5", "model_attributes/dx", -1e-11, "object pixel"),
        ("ptyrad", ".hdf5", "optimizable_tensors/obja", np.ones((1, 1, 3, 3)), "do not fit"),
        ("ptyrad", ".hdf5", "model_attributes/crop_pos", np.ones((6, 2)), "do not fit"),
        ("cxi", ".cxi", "entry_1/image_1/y_pixel_size", 0.0, "positive"),
        ("cxi", ".cxi", "entry_1/sample_1/geometry_1/translation", np.ones(7), "translations"),
        ("hyperspy", ".hspy", "Experiments/object/original_metadata/ptymesh/pixel_size_m", np.ones(3), "pixel_size_m"),
        ("hyperspy", ".hspy", "Experiments/probe/data", np.full((2, 16, 12), np.nan), "finite"),
    ],
)
def test_unsound_files(name: str, ending: str, place: str, value: Any, word: str, tmp_path: Path) -> None:
    path = tmp_path / f"r{ending}"
    convert.write_result(example(pixel_size_m=(1e-8, 1e-8)), path, convert.FORMATS[name])
    with h5py.File(path, "r+") as file:
        del file[place]
        file[place] = value
    with pytest.raises(BadInput, match=word) as raised:
        convert.read_result(path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("name", "ending"), [(name, ending) for name, ending, _ in BOTH_WAYS])
def test_half_a_file_is_refused(name: str, ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"r{ending}"
    convert.write_result(example(pixel_size_m=(1e-8, 1e-8)), path, convert.FORMATS[name])
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(BadInput) as raised:
        convert.read_result(path)
    assert "\n" not in str(raised.value)


def test_a_group_that_is_damaged_is_no_reconstruction(tmp_path: Path) -> None:
    """HDF5 opens such a file, and fails where names are listed, with an error that is none of the system's."""
    path = tmp_path / "made.emd"
    with h5py.File(path, "w", libver=("earliest", "v108")) as file:
        file["root/inner/values"] = np.zeros(3)
    whole = path.read_bytes()
    places = [match.start() for match in re.finditer(b"SNOD", whole)]
    assert len(places) == 3, "a node for each group"
    for place in places:
        path.write_bytes(whole[:place] + b"GONE" + whole[place + 4 :])
        assert not py4dstem.recognises(path)
    with open_hdf5(path) as file, pytest.raises(BadInput, match=r"made\.emd is truncated or damaged"):
        for name in ("/", "root", "root/inner"):
            names_in(file[name])
