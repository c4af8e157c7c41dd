"""CXI and NXcxi_ptycho: every clause of the format's description."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from scipy import constants

from ptymesh.errors import BadInput
from ptymesh.geometry import Geometry, far_field, near_field
from ptymesh.io import load_measurement
from ptymesh.io.formats.cxi import write_cxi, write_measurement
from ptymesh.io.options import DataOptions
from ptymesh.measurement import ArraySource, Measurement

DETECTOR = "/entry_1/instrument_1/detector_1"
SOURCE = "/entry_1/instrument_1/source_1"
GEOMETRY = far_field((16, 20), 1.2e-10, 2.0, (50e-6, 60e-6))


def load(path: Path, **options: Any) -> Measurement:
    return load_measurement(DataOptions(path=path, **options))


@pytest.fixture
def cxi(hdf5: Callable[..., Path], patterns: np.ndarray, positions: np.ndarray) -> Callable[..., Path]:
    """A plain CXI file of another program; keyword arguments replace datasets, None removes one."""
    translation = np.stack([positions[:, 1], positions[:, 0], 0 * positions[:, 0]], axis=1)
    plain = {
        f"{DETECTOR}/data": patterns,
        f"{DETECTOR}/distance": 2.0,
        f"{DETECTOR}/x_pixel_size": 60e-6,
        f"{DETECTOR}/y_pixel_size": 50e-6,
        f"{SOURCE}/energy": constants.h * constants.c / 1.2e-10,
        "/entry_1/sample_1/geometry_1/translation": translation,
    }

    def write(changes: dict[str, Any] | None = None) -> Path:
        return hdf5({k: v for k, v in (plain | (changes or {})).items() if v is not None}, "scan.cxi")

    return write


def test_plain_file(cxi: Callable, patterns: np.ndarray, positions: np.ndarray, everything: Callable) -> None:
    m = load(cxi())
    assert m.patterns.dtype == np.uint16
    np.testing.assert_array_equal(everything(m), patterns)
    np.testing.assert_array_equal(m.patterns.read(np.array([4])), np.fft.ifftshift(patterns[4:5], axes=(1, 2)))
    np.testing.assert_allclose(m.positions, positions / GEOMETRY.object_pixel_m, rtol=1e-12)
    assert m.geometry.wavelength_m == pytest.approx(1.2e-10)
    assert m.geometry.object_pixel_m == pytest.approx(GEOMETRY.object_pixel_m)
    assert m.geometry.radiation == "photon"
    assert m.mask.all()


@pytest.mark.parametrize("where", ["data_1", "instrument_1/detector_1"])
def test_translation_elsewhere_and_turned(cxi: Callable, positions: np.ndarray, where: str) -> None:
    usual = "/entry_1/sample_1/geometry_1/translation"
    stored = np.stack([positions[:, 1], positions[:, 0], 0 * positions[:, 0]])  # (3, N)
    m = load(cxi({usual: None, f"/entry_1/{where}/translation": stored}))
    np.testing.assert_allclose(m.positions, positions / GEOMETRY.object_pixel_m, rtol=1e-12)


def test_basis_vectors_decide_the_sign(cxi: Callable, positions: np.ndarray) -> None:
    pixels = positions / GEOMETRY.object_pixel_m
    negative = np.array([[0, -60e-6], [-50e-6, 0], [0, 0]])
    for basis, sign in ((negative, 1), (negative.T, 1), (-negative, -1)):
        m = load(cxi({f"{DETECTOR}/basis_vectors": basis}))
        np.testing.assert_allclose(m.positions, sign * pixels, rtol=1e-12)


def test_basis_vectors_of_a_turned_detector(cxi: Callable, positions: np.ndarray) -> None:
    """Rows along x: row = t_x, column = t_y, and the pixel sizes change places."""
    m = load(cxi({f"{DETECTOR}/basis_vectors": np.array([[-60e-6, 0], [0, -50e-6], [0, 0]])}))
    assert m.geometry.detector_pixel_m == (60e-6, 50e-6)
    np.testing.assert_allclose(m.positions, positions[:, ::-1] / m.geometry.object_pixel_m, rtol=1e-12)


def test_pixel_size_from_basis_vectors_and_distance_from_corner(cxi: Callable) -> None:
    basis = np.array([[0, -60e-6], [-50e-6, 0], [0, 0]])
    corner = np.array([60e-6 * 10.5, 50e-6 * 8.5, 2.0])  # the beam at (8, 10), the middle
    names = ("distance", "x_pixel_size", "y_pixel_size")
    changes = {f"{DETECTOR}/{name}": None for name in names}
    changes |= {f"{DETECTOR}/basis_vectors": basis, f"{DETECTOR}/corner_position": corner}
    m = load(cxi(changes))
    assert m.geometry.detector_pixel_m == pytest.approx((50e-6, 60e-6))
    assert m.geometry.distance_m == 2.0
    assert m.notes == ()
    corner[1] += 3 * 50e-6
    assert "(11.0, 10.0)" in load(cxi(changes | {f"{DETECTOR}/corner_position": corner})).notes[0]


def test_skewed_and_broken_basis_are_refused(cxi: Callable) -> None:
    for basis, word in (([[1e-5, -6e-5], [-5e-5, 0], [0, 0]], "perpendicular"), (np.zeros((3, 2)), "pixel vectors")):
        with pytest.raises(BadInput, match=word):
            load(cxi({f"{DETECTOR}/basis_vectors": np.array(basis)}))


def test_mask_bits(cxi: Callable, everything: Callable) -> None:
    bits = np.zeros((16, 20), np.uint32)
    bits[0, 0], bits[1, 1], bits[2, 2] = 0x1000, 0x1, 0x1004
    m = load(cxi({f"{DETECTOR}/mask": bits}))
    bad = np.argwhere(~np.fft.fftshift(m.mask))
    assert bad.tolist() == [[1, 1], [2, 2]]
    assert (everything(m)[:, 1, 1] == 0).all()


def test_mask_for_every_view(cxi: Callable, patterns: np.ndarray, everything: Callable) -> None:
    bits = np.zeros(patterns.shape, np.uint32)
    bits[3, 5, 7] = 1
    m = load(cxi({f"{DETECTOR}/mask": bits}))
    assert m.mask.all()
    expected = patterns.astype(np.int32)
    expected[3, 5, 7] = -1
    np.testing.assert_array_equal(everything(m), expected)


@pytest.mark.parametrize("name", ["data_dark", "dark"])
def test_dark_is_subtracted(cxi: Callable, patterns: np.ndarray, everything: Callable, name: str) -> None:
    dark = np.random.default_rng(0).uniform(0, 50, (3, 16, 20))
    m = load(cxi({f"{DETECTOR}/{name}": dark}))
    assert m.patterns.dtype == np.float32
    np.testing.assert_allclose(everything(m), np.maximum(patterns - dark.mean(axis=0), 0), atol=1e-4)
    assert "dark" in m.notes[0]


def test_energy_in_the_wrong_unit(cxi: Callable) -> None:
    path = cxi({f"{SOURCE}/energy": 8000.0})
    with pytest.raises(BadInput, match=r"8000 J .* set data.energy_eV"):
        load(path)
    assert load(path, energy_eV=8000).geometry.energy_eV == pytest.approx(8000)


def test_wavelength_and_units(cxi: Callable) -> None:
    path = cxi({f"{SOURCE}/energy": None, f"{SOURCE}/wavelength": 0.12, f"{DETECTOR}/distance": 2000.0})
    with h5py.File(path, "r+") as file:
        file[f"{SOURCE}/wavelength"].attrs["units"] = "nm"
        file[f"{DETECTOR}/distance"].attrs["units"] = b"mm"
    assert load(path).geometry.object_pixel_m == pytest.approx(GEOMETRY.object_pixel_m)
    with h5py.File(path, "r+") as file:
        file[f"{DETECTOR}/distance"].attrs["units"] = "furlong"
    with pytest.raises(BadInput, match="furlong"):
        load(path)


@pytest.mark.parametrize("group", ["/entry_1/instrument_1/beam_1", "/entry_1/beam_1"])
def test_nxcxi_uses_the_beam_not_the_machine(cxi: Callable, group: str) -> None:
    path = cxi({f"{SOURCE}/energy": 3.0e9 * constants.e, f"{group}/incident_beam_energy": 0.7})
    with h5py.File(path, "r+") as file:
        file[f"{group}/incident_beam_energy"].attrs["units"] = "keV"
        file["/entry_1/definition"] = "NXcxi_ptycho"
        file[f"{SOURCE}/probe"] = "x-ray"
    m = load(path)
    assert m.geometry.energy_eV == pytest.approx(700)
    assert m.probe is None


def test_nxcxi_raster(cxi: Callable, patterns: np.ndarray, positions: np.ndarray, everything: Callable) -> None:
    """4-D patterns and (rows, columns, 3) translations."""
    stored = np.stack([positions[:, 1], positions[:, 0], 0 * positions[:, 0]], axis=1).reshape(2, 3, 3)
    usual = "/entry_1/sample_1/geometry_1/translation"
    m = load(cxi({f"{DETECTOR}/data": patterns.reshape(2, 3, 16, 20), usual: stored}))
    np.testing.assert_array_equal(everything(m), patterns)
    np.testing.assert_array_equal(m.patterns.read(np.array([5, 0])), np.fft.ifftshift(patterns[[5, 0]], axes=(1, 2)))
    np.testing.assert_allclose(m.positions, positions / GEOMETRY.object_pixel_m, rtol=1e-12)


def test_illumination_is_the_probe(cxi: Callable) -> None:
    probe = np.random.default_rng(3).normal(size=(16, 20, 2)).view(complex)[..., 0]
    np.testing.assert_allclose(load(cxi({f"{SOURCE}/illumination": probe})).probe, probe[None], atol=1e-12)


def test_probe_of_another_size_is_left_out(cxi: Callable) -> None:
    m = load(cxi({f"{SOURCE}/illumination": np.ones((8, 8), complex)}))
    assert m.probe is None and "left out" in m.notes[0]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"/entry_1/sample_1/geometry_1/translation": None}, "no positions"),
        ({"/entry_1/sample_1/geometry_1/translation": np.zeros((5, 3))}, "6 patterns, but there are 5 positions"),
        ({"/entry_1/sample_1/geometry_1/translation": np.zeros((6, 2))}, r"\(N, 3\) or \(3, N\)"),
        ({"/entry_1/sample_1/geometry_1/translation": np.full((6, 3), np.nan)}, "Position 0"),
        ({f"{SOURCE}/energy": None}, "object pixel is unknown"),
        ({f"{DETECTOR}/distance": None}, "object pixel is unknown"),
        ({f"{DETECTOR}/distance": -1.0}, "-1 m"),
        ({f"{DETECTOR}/mask": np.zeros((4, 4), np.uint32)}, r"mask .* has shape \(4, 4\)"),
        ({f"{DETECTOR}/mask": np.ones((16, 20), np.uint32)}, "leaves no pixel"),
        ({f"{DETECTOR}/dark": np.ones((4, 4))}, r"dark .* \(4, 4\)"),
        ({f"{DETECTOR}/data": np.zeros((0, 16, 20))}, "nothing to reconstruct"),
        ({f"{DETECTOR}/data": np.zeros((16, 20))}, "three axes"),
        ({f"{DETECTOR}/data": np.zeros((6, 16, 20), complex)}, "counts"),
    ],
)
def test_unsound_files(cxi: Callable, change: dict[str, Any], word: str) -> None:
    with pytest.raises(BadInput, match=word) as error:
        load(cxi(change))
    assert "\n" not in str(error.value)


GEOMETRIES = {
    "far": GEOMETRY,
    "near": near_field((16, 20), 7e-11, 0.4, (6.5e-7, 6.5e-7), propagation="fresnel"),
    "diverging": near_field((16, 20), 7e-11, 0.4, (6.5e-7, 6e-7), focus_distance_m=0.1),
    "electron": far_field((16, 20), 1.97e-12, 1.3, (5e-5, 5e-5), radiation="electron"),
    "pixel known": Geometry((16, 20), radiation="electron", wavelength_m=1.97e-12, object_pixel_m=(4e-10, 5e-10)),
    "pixel units": Geometry((16, 20)),
}


@pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES.keys())
@pytest.mark.parametrize("compression", ["gzip", None])
def test_written_and_read_back_is_the_same(
    tmp_path: Path, patterns: np.ndarray, geometry: Geometry, compression: Any, everything: Callable
) -> None:
    rng = np.random.default_rng(4)
    mask = rng.random((16, 20)) > 0.1
    counts = np.where(mask, patterns, 0).astype(np.int32)
    counts[2, mask.nonzero()[0][0], mask.nonzero()[1][0]] = -1
    original = Measurement(
        patterns=ArraySource(counts),
        positions=rng.normal(size=(6, 2)) * 40,
        geometry=geometry,
        mask=mask,
        background=np.where(mask, rng.random((16, 20)), 0),
        intensity=(lambda i: i / i.mean())(rng.uniform(0.9, 1.1, 6)),
        probe=rng.normal(size=(2, 16, 20, 2)).view(complex)[..., 0],
        name="a scan",
        notes=("One note.", "Another."),
    )
    path = tmp_path / "copy.cxi"
    write_measurement(original, path, compression=compression)
    again = load(path)
    assert again.geometry == geometry
    assert (again.name, again.notes) == (original.name, original.notes)
    assert again.patterns.dtype == counts.dtype
    np.testing.assert_array_equal(again.patterns.read(np.arange(6)), counts)
    np.testing.assert_allclose(again.positions, original.positions, rtol=1e-14)
    np.testing.assert_array_equal(again.mask, original.mask)
    np.testing.assert_array_equal(again.background, original.background)
    np.testing.assert_allclose(again.intensity, original.intensity, rtol=1e-14)
    np.testing.assert_allclose(again.probe, original.probe, atol=1e-12)
    assert [p.name for p in tmp_path.iterdir()] == ["copy.cxi"]


def test_written_file_follows_the_standard(tmp_path: Path, patterns: np.ndarray, positions: np.ndarray) -> None:
    path = tmp_path / "scan.cxi"
    slabs = iter([patterns[:2], patterns[2:]])
    truth = {"object": np.ones((1, 40, 40), complex)}
    write_cxi(path, patterns=slabs, count=6, dtype="uint16", positions_m=positions, geometry=GEOMETRY, extra=truth)
    with h5py.File(path) as file:
        assert file["cxi_version"][()] == 160
        np.testing.assert_array_equal(file["/entry_1/data_1/data"][()], patterns)
        np.testing.assert_array_equal(file["/entry_1/data_1/translation"][:, :2], positions[:, ::-1])
        np.testing.assert_allclose(file[f"{SOURCE}/energy"][()], constants.h * constants.c / 1.2e-10)
        assert file[f"{DETECTOR}/data"].chunks == (1, 16, 20)
        np.testing.assert_array_equal(file["/entry_1/ptymesh_truth/object"][()], truth["object"])
        del file
    with h5py.File(path, "r+") as file:
        del file["/entry_1/ptymesh"]  # another program's view of it
    m = load(path)
    assert m.geometry.object_pixel_m == pytest.approx(GEOMETRY.object_pixel_m)
    np.testing.assert_allclose(m.positions, positions / GEOMETRY.object_pixel_m, rtol=1e-12)


def test_writer_refuses_what_does_not_fit(tmp_path: Path, patterns: np.ndarray, positions: np.ndarray) -> None:
    path = tmp_path / "scan.cxi"
    common = {"dtype": "uint16", "geometry": GEOMETRY}
    for arguments, word in (
        ({"patterns": [patterns], "count": 7, "positions_m": positions}, "7 patterns"),
        ({"patterns": [patterns[:4]], "count": 6, "positions_m": positions}, "4 of 6"),
        ({"patterns": [patterns, patterns], "count": 6, "positions_m": positions}, "slab"),
        ({"patterns": [patterns[:, :8]], "count": 6, "positions_m": positions}, "slab"),
        ({"patterns": [patterns], "count": 6}, "exactly one"),
    ):
        with pytest.raises(BadInput, match=word):
            write_cxi(path, **common, **arguments)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot be written"):
        write_cxi(tmp_path / "file" / "x.cxi", patterns=[patterns], count=6, positions_m=positions, **common)


def test_further_entries_are_named(cxi: Callable, patterns: np.ndarray) -> None:
    assert not any("further patterns" in note for note in load(cxi()).notes)
    notes = load(cxi({"/entry_2/data_1/data": patterns, "/entry_1/data_2/data": patterns})).notes
    assert any("further patterns (/entry_2/data_1/data, /entry_1/data_2/data), which are not read" in n for n in notes)
