"""A result as an xarray.Dataset or a hyperspy signal, whose axes carry names and coordinates.

N       views
M, K    incoherent probe modes; variable-probe (OPR) modes
L       object slices
H, W    object pixels
h, w    window pixels
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ptymesh.errors import BadInput
from ptymesh.io.results import Result

if TYPE_CHECKING:
    import xarray
    from hyperspy.signals import ComplexSignal2D

#: Columns of the history and what they are called here, where that differs: "epoch" is the axis.
_COLUMNS = {"epoch": "epoch_of_stage"}


def dataset(result: Result) -> xarray.Dataset:
    """Return the result with coordinates in metres, or in pixels if the pixel size is not known.

    Variables: object (z, y, x); probe (mode, probe_y, probe_x); opr (opr_mode, probe_y, probe_x); weights (view,
    share); background (detector_y, detector_x), of scans that have their own (scan, detector_y, detector_x); position
    (view, axis), the corner of each window, in the coordinates of y and x; nominal_position likewise; and the columns
    of the history over epoch. y and x have their zero where the scan's own coordinates have it, probe_y and probe_x on
    the optical axis.

    Raises:
        BadInput: xarray is not installed.
    """
    try:
        import xarray
    except ImportError as error:
        raise BadInput("xarray is not installed; run pip install 'ptymesh[xarray]'.") from error
    pixel, origin, unit = _frame(result)
    slices, height, width = result.object.shape
    h, w = result.probe.shape[-2:]
    # of slices without a known distance, the number
    depth, depth_unit = (result.slice_spacing_m, "m") if result.slice_spacing_m > 0 else (1.0, "")
    coords: dict[str, Any] = {
        "z": ("z", depth * np.arange(slices), {"units": depth_unit, "long_name": "slice"}),
        "y": _axis("y", np.arange(height) - origin[0], pixel[0], unit),
        "x": _axis("x", np.arange(width) - origin[1], pixel[1], unit),
        "probe_y": _axis("probe_y", np.arange(h) - h // 2, pixel[0], unit),
        "probe_x": _axis("probe_x", np.arange(w) - w // 2, pixel[1], unit),
        "axis": ("axis", ["y", "x"]),
    }
    corner = {"units": unit, "long_name": "top-left corner of the window"}
    variables: dict[str, Any] = {
        "object": (("z", "y", "x"), result.object),
        "probe": (("mode", "probe_y", "probe_x"), result.probe),
        "position": (("view", "axis"), (result.positions_px - origin) * pixel, corner),
    }
    if result.nominal_px is not None:
        variables["nominal_position"] = (("view", "axis"), (result.nominal_px - origin) * pixel, corner)
    for name, axes in (
        ("opr", ("opr_mode", "probe_y", "probe_x")),
        ("weights", ("view", "share")),
        ("background", ("scan", "detector_y", "detector_x")),
    ):
        if (array := getattr(result, name)) is not None:
            variables[name] = (axes[-array.ndim :], array)
    epochs = len(next(iter(result.history.values()), ()))
    if epochs:
        coords["epoch"] = ("epoch", np.arange(1, epochs + 1))
        for name, column in result.history.items():
            variables[_COLUMNS.get(name, name)] = ("epoch", np.asarray(column))
    return xarray.Dataset(variables, coords, _attributes(result))


def signal(result: Result, of: str = "object") -> ComplexSignal2D:
    """Return the object (L, H, W) or the probe (M, h, w) as a hyperspy signal of images with axes y and x.

    Axes are in metres, or in pixels if the pixel size is not known, with the zero of those of `dataset`. Slices and
    modes are the navigation axis; an object of one slice is a single image.

    Raises:
        BadInput: `of` is neither "object" nor "probe", or hyperspy is not installed.
    """
    if of not in ("object", "probe"):
        raise BadInput(f"A hyperspy signal is made of 'object' or 'probe', not of {of!r}.")
    try:
        from hyperspy.signals import ComplexSignal2D
    except ImportError as error:
        raise BadInput("hyperspy is not installed; run pip install 'ptymesh[hyperspy]'.") from error
    pixel, origin, unit = _frame(result)
    if of == "object":
        images, zero = result.object, origin
        spacing = result.slice_spacing_m
        stack_axis = {"name": "z", "scale": spacing, "units": "m"} if spacing > 0 else {"name": "slice"}
        images = images[0] if len(images) == 1 else images
    else:
        images, stack_axis = result.probe, {"name": "mode"}
        zero = np.array(images.shape[-2:]) // 2
    axes: list[dict[str, Any]] = [{**stack_axis, "size": len(images), "navigate": True}] if images.ndim == 3 else []
    for name, size, scale, corner in zip("yx", images.shape[-2:], pixel, zero, strict=True):
        place = {"scale": float(scale), "offset": float(-corner * scale), "units": unit}
        axes.append({"name": name, "size": size, **place, "navigate": False})
    title = {"General": {"title": of}, "Signal": {"quantity": "transmission" if of == "object" else "amplitude"}}
    return ComplexSignal2D(images, axes=axes, metadata=title, original_metadata={"ptymesh": _attributes(result)})


def _frame(result: Result) -> tuple[np.ndarray, np.ndarray, str]:
    """Return the pixel size, the object pixel at the zero of the coordinates, and their unit."""
    if result.pixel_size_m is None:
        return np.ones(2), np.zeros(2), "px"
    return np.array(result.pixel_size_m), np.array(result.origin_px), "m"


def _axis(name: str, index: np.ndarray, pixel: float, unit: str) -> tuple[str, np.ndarray, dict[str, str]]:
    return name, index * pixel, {"units": unit}


def _attributes(result: Result) -> dict[str, Any]:
    """Return the result's attributes as numbers and strings, which netCDF and Zarr can hold."""
    attributes = {key: value for key, value in result.attrs.items() if value is not None}
    attributes |= {f"{group}.{term}": n for group, terms in result.parameters.items() for term, n in terms.items()}
    attributes |= {
        "slice_spacing_m": result.slice_spacing_m,
        "tilt_rad": list(result.tilt_rad),
        "recipe": result.recipe,
    }
    if result.pixel_size_m is not None:
        attributes["pixel_size_m"] = list(result.pixel_size_m)
    return attributes
