"""A result as xarray or hyperspy: every array under its axes, coordinates in metres."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from ptymesh.errors import BadInput
from ptymesh.io.results import Result

xarray = pytest.importorskip("xarray")


@pytest.fixture
def result() -> Result:
    rng = np.random.default_rng(0)
    pixel, origin = np.array([2e-8, 3e-8]), np.array([4.0, -2.5])
    positions = rng.uniform(2, 20, (7, 2))
    return Result(
        object=rng.normal(size=(2, 40, 48)) * (1 + 1j),
        probe=rng.normal(size=(3, 16, 12)) * (1 - 1j),
        positions_px=positions,
        positions_m=(positions - origin) * pixel,
        pixel_size_m=(2e-8, 3e-8),
        slice_spacing_m=1e-6,
        history={"epoch": np.array([1, 2, 1]), "stage": np.array([0, 0, 1]), "residual": np.array([0.3, 0.2, 0.1])},
        recipe="data: {path: scan.cxi}\n",
        attrs={"engine": "rpie+lsqml", "final_residual": 0.09, "nothing": None},
        nominal_px=positions + 0.5,
        background=np.ones((16, 12)),
        weights=np.ones((7, 2)),
        opr=np.ones((1, 16, 12), complex),
        parameters={"aberrations": {"C10": 1e-7}},
    )


def test_everything_is_there(result: Result) -> None:
    found = result.to_xarray()
    assert dict(found.sizes) == {
        "z": 2, "y": 40, "x": 48, "mode": 3, "probe_y": 16, "probe_x": 12, "view": 7, "axis": 2,
        "opr_mode": 1, "share": 2, "detector_y": 16, "detector_x": 12, "epoch": 3,
    }  # fmt: skip
    for name in ("object", "probe", "opr", "weights", "background"):
        assert np.array_equal(found[name], getattr(result, name)), name
    assert found.residual.sel(epoch=3) == 0.1 and found.epoch_of_stage.values.tolist() == [1, 2, 1]
    assert found.attrs["final_residual"] == 0.09 and found.attrs["aberrations.C10"] == 1e-7
    assert "nothing" not in found.attrs and found.attrs["recipe"] == result.recipe


def test_coordinates_are_metres_of_the_scan(result: Result) -> None:
    found = result.to_xarray()
    assert np.allclose(found.position, result.positions_m, atol=1e-20)
    assert np.allclose(found.nominal_position - found.position, [1e-8, 1.5e-8])
    y, x = found.position.isel(view=3).values / result.pixel_size_m
    first = result.positions_px[3]
    assert np.isclose(found.y[0] / 2e-8, y - first[0]) and np.isclose(found.x[0] / 3e-8, x - first[1])
    assert found.z.values.tolist() == [0, 1e-6] and found.y.attrs["units"] == "m"
    assert found.probe_y[8] == 0 and found.probe_x[6] == 0 and np.isclose(found.probe_x[7], 3e-8)
    near = found.object.sel(y=found.y[10].item() + 4e-9, x=found.x[20].item(), method="nearest")
    assert np.array_equal(near, result.object[:, 10, 20])


def test_without_a_pixel_size(result: Result) -> None:
    bare = Result(result.object[:1], result.probe, result.positions_px)
    found = bare.to_xarray()
    assert found.y.attrs["units"] == "px" and found.y.values.tolist() == list(range(40))
    assert np.array_equal(found.position, result.positions_px) and "epoch" not in found.sizes
    assert found.z.values.tolist() == [0] and found.z.attrs["units"] == ""
    unplaced = replace(result, positions_m=None).to_xarray()
    assert unplaced.y[0] == 0 and np.allclose(unplaced.position, result.positions_px * result.pixel_size_m)


def test_attributes_can_be_stored(result: Result) -> None:
    """netCDF takes numbers, strings and flat lists of them."""
    for name, value in result.to_xarray().attrs.items():
        assert isinstance(value, str | int | float) or all(isinstance(one, float) for one in value), name


def test_xarray_that_is_not_there(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(BadInput, match=r"xarray is not installed; run pip install 'ptymesh\[xarray\]'"):
        result.to_xarray()


def test_a_result_is_read_without_it(result: Result, tmp_path: Path) -> None:
    result.save(tmp_path / "result.h5")
    read = Result.load(tmp_path / "result.h5").to_xarray()
    assert read.equals(result.to_xarray())


@pytest.mark.parametrize("of", ["probes", "", None])
def test_a_signal_of_something_else(result: Result, of: str) -> None:
    with pytest.raises(BadInput, match="is made of 'object' or 'probe', not of"):
        result.to_hyperspy(of)


def test_hyperspy_that_is_not_there(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "hyperspy"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "hyperspy", None)
    with pytest.raises(BadInput, match=r"hyperspy is not installed; run pip install 'ptymesh\[hyperspy\]'"):
        result.to_hyperspy()


def test_what_hyperspy_is_given(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its axes, as hyperspy's own dicts; `make package` makes real signals of them."""

    class Signal:
        def __init__(self, data: np.ndarray, axes: list[dict], **about: dict) -> None:
            self.data, self.axes, self.about = data, axes, about

    module = ModuleType("hyperspy.signals")
    module.ComplexSignal2D = Signal  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "hyperspy.signals", module)
    monkeypatch.setitem(sys.modules, "hyperspy", ModuleType("hyperspy"))
    made = result.to_hyperspy()
    assert np.array_equal(made.data, result.object) and [axis["name"] for axis in made.axes] == ["z", "y", "x"]
    z, y, x = made.axes
    assert z["navigate"] and z["scale"] == 1e-6 and not y["navigate"] and y["units"] == "m"
    labelled = result.to_xarray()
    for axis in (y, x):
        places = axis["offset"] + axis["scale"] * np.arange(axis["size"])
        assert np.allclose(places, labelled[axis["name"]], rtol=1e-12, atol=1e-20)
    assert made.about["original_metadata"]["ptymesh"]["final_residual"] == 0.09
    beam = result.to_hyperspy("probe")
    mode, y, x = beam.axes
    assert mode["name"] == "mode" and mode["size"] == 3 and (y["offset"], x["offset"]) == (-8 * 2e-8, -6 * 3e-8)
    single = replace(result, object=result.object[:1]).to_hyperspy()
    assert single.data.shape == (40, 48) and [axis["name"] for axis in single.axes] == ["y", "x"]
