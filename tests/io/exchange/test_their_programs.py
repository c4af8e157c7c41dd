"""Files opened by what other programs read by; each test is skipped where that is not installed.

`pip install -c constraints.txt rosettasciio silx emdfile` installs them: what hyperspy, viewers of NeXus and py4DSTEM
read files by.
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


def test_py4dstem(result: Result, tmp_path: Path) -> None:
    """emdfile, by which py4DSTEM reads, finds the tree, its arrays and what was said of the calibration."""
    emdfile: Any = pytest.importorskip("emdfile")
    root = emdfile.read(str(written(result, tmp_path / "r.emd", "py4dstem")))
    trees = {name: root.tree(name) for name in ("_object_emd", "_probe_emd")}
    np.testing.assert_array_equal(trees["_object_emd"].data.reshape(1, 40, 48), result.object)
    np.testing.assert_array_equal(np.fft.fftshift(trees["_probe_emd"].data, axes=(1, 2)), result.probe)
    np.testing.assert_allclose(root.metadata["preprocess_metadata"]["sampling"], (0.4, 0.5))
