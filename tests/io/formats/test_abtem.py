"""abTEM's simulated scans, written to its layout: steps, angles, and what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ptymesh.errors import BadInput
from ptymesh.measurement import ConvergentBeam


@pytest.fixture
def counts() -> np.ndarray:
    return np.random.default_rng(3).uniform(0, 9, (3, 4, 16, 20)).astype(np.float32)


def write(path: Path, array: np.ndarray, sampling: list[float], units: list[str]) -> Path:
    with h5py.File(path, "w") as file:
        file["array"], file["sampling"] = array, sampling
        file["units"] = np.array([unit.encode() for unit in units])
        file["offset"] = np.zeros(len(sampling))
    return path


def test_what_the_file_says(tmp_path: Path, counts: Any, load: Any, upright: Any) -> None:
    path = write(tmp_path / "a.hdf5", counts, [0.5, 0.25, 1.5, 1.2], ["Å", "Å", "mrad", "mrad"])
    m = load(path, energy_eV=80e3)
    np.testing.assert_array_equal(upright(m), counts.reshape(-1, 16, 20))
    wavelength = m.geometry.wavelength_m
    assert m.geometry.object_pixel_m == pytest.approx((wavelength / (16 * 1.5e-3), wavelength / (20 * 1.2e-3)))
    step = (m.positions[5] - m.positions[0]) * m.geometry.object_pixel_m
    np.testing.assert_allclose(step, (0.5e-10, 0.25e-10), rtol=1e-9)


def test_angles_ask_for_the_energy(tmp_path: Path, counts: Any, load: Any) -> None:
    path = write(tmp_path / "a.hdf5", counts, [0.5, 0.25, 1.5, 1.5], ["Å", "Å", "mrad", "mrad"])
    with pytest.raises(BadInput, match=r"its object pixel is unknown; set data\.object_pixel_m, or the energy"):
        load(path)


def test_axes_that_say_no_length(tmp_path: Path, counts: Any, load: Any) -> None:
    path = write(tmp_path / "a.hdf5", counts, [0.5, 0.25, 0.1, 0.1], ["", "", "1/Å", "1/Å"])
    with pytest.raises(BadInput, match=r"without a step; set positions\.raster\.step_m"):
        load(path, energy_eV=80e3)
    assert load(path, {"raster": {"step_m": 1e-10}}, energy_eV=80e3).views == 12


def test_axes_and_numbers_that_differ(tmp_path: Path, counts: Any, load: Any) -> None:
    path = write(tmp_path / "a.hdf5", counts, [0.5, 0.25, 0.1], ["Å"] * 4)
    with pytest.raises(BadInput, match="the sampling of 3 axes and the units of 4, and its array has 4"):
        load(path, energy_eV=80e3)


AXES = [("ScanAxis", 0.5, "Å"), ("ScanAxis", 0.25, "Å")] + [("ReciprocalSpaceAxis", 0.1, "1/Å")] * 2


def canonical(energy: float | None = 80e3, fftshift: bool = True) -> dict[str, Any]:
    """Attributes as abTEM 1.0.10 and later write them."""
    named = {
        f"axis_{k}": {"type": kind, "sampling": step, "units": unit, "offset": 0.0}
        | ({"fftshift": fftshift} if k > 1 else {"endpoint": False})
        for k, (kind, step, unit) in enumerate(AXES)
    }
    said = {"axes": named, "type": "DiffractionPatterns", "label": "intensity"}
    return {"metadata0": said | ({} if energy is None else {"energy": energy})}


def legacy() -> dict[str, Any]:
    """Attributes as abTEM before 1.0.10 writes them."""
    scanned = [{"type": kind, "sampling": step, "units": unit} for kind, step, unit in AXES[:2]]
    kwargs = {
        "ensemble_axes_metadata": scanned,
        "sampling": {"_type": "tuple", "_value": [0.1, 0.1]},
        "fftshift": True,
        "metadata": {"energy": 80e3},
    }
    return {"type0": "DiffractionPatterns", "kwargs0": kwargs}


@pytest.mark.parametrize("kind", [(3, False, 1), (3, True, 2), (2, False, 1)], ids=str)
@pytest.mark.parametrize("attributes", [canonical(), legacy()], ids=["canonical", "legacy"])
def test_zarr(
    tmp_path: Path, write_store: Any, counts: Any, load: Any, upright: Any, kind: Any, attributes: dict[str, Any]
) -> None:
    m = load(write_store(tmp_path / "a.zarr", kind, {"array0": counts}, {"": attributes}))
    np.testing.assert_array_equal(upright(m), counts.reshape(-1, 16, 20))
    assert m.geometry.energy_eV == pytest.approx(80e3)
    assert m.geometry.object_pixel_m == pytest.approx((1e-10 / (16 * 0.1), 1e-10 / (20 * 0.1)))
    step = (m.positions[5] - m.positions[0]) * m.geometry.object_pixel_m
    np.testing.assert_allclose(step, (0.5e-10, 0.25e-10), rtol=1e-9)


@pytest.mark.parametrize("said", [(20.0, ConvergentBeam(0.02)), (0.0, None), (1e9, None), ("20", None)], ids=str)
def test_the_semi_angle_is_of_the_beam(
    tmp_path: Path, write_store: Any, counts: Any, load: Any, said: tuple[Any, ConvergentBeam | None]
) -> None:
    attributes = canonical()
    attributes["metadata0"]["semiangle_cutoff"] = said[0]
    assert load(write_store(tmp_path / "a.zarr", (3, False, 1), {"array0": counts}, {"": attributes})).beam == said[1]


def test_zero_frequency_at_the_corner(tmp_path: Path, write_store: Any, counts: Any, load: Any, upright: Any) -> None:
    stored = np.fft.ifftshift(counts, axes=(2, 3))
    path = write_store(tmp_path / "a.zarr", (3, False, 1), {"array0": stored}, {"": canonical(fftshift=False)})
    np.testing.assert_array_equal(upright(load(path)), counts.reshape(-1, 16, 20))


def test_energies_of_zarr(tmp_path: Path, write_store: Any, counts: Any, load: Any) -> None:
    path = write_store(tmp_path / "a.zarr", (3, False, 1), {"array0": counts}, {"": canonical(80.0)})
    with pytest.raises(BadInput, match=r"is 80 eV, which is no energy of such a beam .* set data\.energy_eV"):
        load(path)
    assert load(path, energy_eV=80e3).views == 12
    path = write_store(tmp_path / "b.zarr", (3, False, 1), {"array0": counts}, {"": canonical(None)})
    assert load(path).geometry.energy_eV is None
