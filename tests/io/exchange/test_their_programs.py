"""Files opened by what other programs read by; each test is skipped where that is not installed.

`pip install -c constraints.txt rosettasciio silx emdfile` installs them: what hyperspy, viewers of NeXus and py4DSTEM
read files by. py4DSTEM itself asks for an older numpy: `pip install py4DSTEM` in an environment of its own. The readers
of Ptychodus and PtyRAD need little: `pip install --no-deps ptychodus ptyrad`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptymesh.io.exchange import convert
from ptymesh.io.results import Result


@pytest.fixture
def result() -> Result:
    """Random numbers, so that any wrong order is noticed."""
    rng = np.random.default_rng(3)

    def waves(*sides: int) -> np.ndarray:
        return (rng.normal(size=sides) + 1j * rng.normal(size=sides)).astype(np.complex64)

    positions = rng.uniform(0, 24, (7, 2))
    return Result(
        waves(1, 40, 48),
        waves(2, 16, 12),
        positions,
        positions_m=positions * (4e-11, 5e-11),
        pixel_size_m=(4e-11, 5e-11),
        attrs={"energy_eV": 8e4, "radiation": "electron"},
    )


def written(result: Result, path: Path, name: str) -> Path:
    """Write a result in the format of this name; return the path."""
    convert.write_result(result, path, convert.FORMATS[name])
    return path


@pytest.mark.parametrize(("kind", "name"), [("hspy", "hyperspy"), ("zspy", "hyperspy_zarr")])
def test_hyperspy(kind: str, name: str, result: Result, tmp_path: Path) -> None:
    reader: Any = pytest.importorskip(f"rsciio.{kind}")
    signals = reader.file_reader(written(result, tmp_path / f"r.{kind}", name))
    assert [one["metadata"]["General"]["title"] for one in signals] == ["object", "probe"]
    for one in signals:
        expected = getattr(result, one["metadata"]["General"]["title"])
        np.testing.assert_array_equal(np.asarray(one["data"]).reshape(expected.shape), expected)
        y, x = one["axes"][-2:]
        assert (y["scale"], x["scale"], y["units"]) == (pytest.approx(4e-11), pytest.approx(5e-11), "m")


def test_viewers_of_nexus(result: Result, tmp_path: Path) -> None:
    """silx shows the object at once, with its axes in metres."""
    pytest.importorskip("silx")
    from silx.io import open as silx_open
    from silx.io.nxdata import get_default

    result.save(tmp_path / "r.h5")
    with silx_open(str(tmp_path / "r.h5")) as file:
        shown = get_default(file)
        assert shown is not None and shown.signal.shape[-2:] == (40, 48)
        assert [name.split()[-1] for name in shown.axes_names[-2:]] == ["(m)", "(m)"]
        for axis, pixel in zip(shown.axes[-2:], (4e-11, 5e-11), strict=True):
            np.testing.assert_allclose(np.diff(axis[()]), pixel, rtol=1e-6)


def test_tiff_in_hyperspy(result: Result, tmp_path: Path) -> None:
    reader: Any = pytest.importorskip("rsciio.tiff")
    (signal,) = reader.file_reader(written(result, tmp_path / "r.tif", "tiff"))
    y, x = signal["axes"][-2:]
    assert (y["scale"], x["scale"]) == (pytest.approx(0.04), pytest.approx(0.05))
    assert (y["units"], x["units"]) == ("nm", "nm")


def test_arrays_in_emdfile(result: Result, tmp_path: Path) -> None:
    """emdfile, by which py4DSTEM reads, finds the arrays."""
    emdfile: Any = pytest.importorskip("emdfile")
    path = str(written(result, tmp_path / "r.emd", "py4dstem"))
    here = "ptychography_root/ptychography"
    obj, probe = (emdfile.read(path, f"{here}/{name}") for name in ("_object_emd", "_probe_emd"))
    np.testing.assert_array_equal(obj.data.reshape(1, 40, 48), result.object)
    np.testing.assert_array_equal(np.fft.fftshift(probe.data, axes=(1, 2)), result.probe)


@pytest.mark.parametrize("slices", [1, 3])
@pytest.mark.parametrize("modes", [1, 2])
def test_reconstructions_in_py4dstem(slices: int, modes: int, result: Result, tmp_path: Path) -> None:
    """Its own class, made again of the file."""
    py4dstem: Any = pytest.importorskip("py4DSTEM")
    result.object = np.repeat(result.object, slices, axis=0)
    result.probe = result.probe[:modes]
    result.slice_spacing_m = 2e-9 if slices > 1 else 0.0
    made = py4dstem.read(str(written(result, tmp_path / "r.emd", "py4dstem")))
    np.testing.assert_array_equal(made.object.reshape(result.object.shape), result.object)
    np.testing.assert_array_equal(np.asarray(made.probe).reshape(result.probe.shape), result.probe)
    np.testing.assert_allclose(made.sampling, (0.4, 0.5), rtol=1e-6)
    np.testing.assert_allclose(made.positions, (result.positions_px + np.array((8, 6))) * (0.4, 0.5), rtol=1e-6)


@pytest.mark.parametrize("ending", [".h5", ".npz"])
def test_products_in_ptychodus(ending: str, result: Result, tmp_path: Path) -> None:
    """Its own readers, and its rule of which pixels a view covers."""
    api: Any = pytest.importorskip("ptychodus.api.io")
    plugin: Any = pytest.importorskip("ptychodus.plugins.npz_product_file")
    path = written(result, tmp_path / f"product{ending}", "ptychodus")
    product = api.load_product(path) if ending == ".h5" else plugin.NPZProductFileIO().read(path)
    np.testing.assert_array_equal(product.object_.get_array(), result.object)
    np.testing.assert_array_equal(product.probes.get_array()[0], result.probe)
    assert product.metadata.photon_energy_eV == 8e4
    geometry = product.object_.get_geometry()
    assert (geometry.pixel_height_m, geometry.pixel_width_m) == (4e-11, 5e-11)
    middles = [geometry.map_coordinates_probe_to_object(one) for one in product.probe_positions]
    corners = np.array([(one.y_px - 15 / 2, one.x_px - 11 / 2) for one in middles])
    np.testing.assert_allclose(corners, result.positions_px, atol=1e-9)


def test_models_in_ptyrad(result: Result, tmp_path: Path) -> None:
    """Its own reader and what it shows of a reconstruction."""
    analysis: Any = pytest.importorskip("ptyrad.analysis")
    result.pixel_size_m = (4e-11, 4e-11)
    result.positions_m = None
    model = analysis.Analyzer(str(written(result, tmp_path / "model.hdf5", "ptyrad")))
    np.testing.assert_allclose(model.get_object()[0], result.object, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(model.get_probe(), result.probe)
    np.testing.assert_allclose(model.get_probe_positions(), result.positions_px + np.array((8, 6)), atol=1e-5)
    assert (model.dx, model.lambd) == (pytest.approx(0.4), pytest.approx(0.0417572, rel=1e-5))
