"""Caustic of a result's probe: sentences, a figure, and numbers in a file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ptymesh import plot
from ptymesh.errors import BadInput
from ptymesh.files import replacing, writing
from ptymesh.geometry import electron_wavelength_m, photon_wavelength_m
from ptymesh.io.results import Result
from ptymesh.physics.beam.caustic import Caustic, caustic_of


def caustic_of_result(result: Result) -> Caustic:
    """Return the caustic of a result's probe, from its modes alone.

    Raises:
        BadInput: energy or pixel size are not known, or the scan was no far field, or the probe has no waist.
    """
    return caustic_of_probe(result.probe, result.pixel_size_m, result.attrs)


def caustic_of_probe(probe: np.ndarray, pixel_size_m: tuple[float, float] | None, attrs: Mapping[str, Any]) -> Caustic:
    """Return the caustic of a probe, from its modes alone.

    Args:
        probe: (M, h, w) complex.
        pixel_size_m: object pixel (y, x); None if it is not known.
        attrs: of the result's file, of which propagation, radiation and energy_eV count.

    Raises:
        BadInput: energy or pixel size are not known, or the scan was no far field, or the probe has no waist.
    """
    propagation = attrs.get("propagation")
    if propagation not in (None, "far_field"):
        raise BadInput(
            f"There is no caustic of a scan with propagation: {propagation}; its beam is that of an equal parallel "
            "one, whose focus is elsewhere."
        )
    wavelength = wavelength_of(attrs)
    if pixel_size_m is None or wavelength is None:
        raise BadInput(
            "The result does not say energy, radiation and pixel size, without which no beam can be propagated; run "
            "again with data.radiation, data.energy_eV and the distance or data.object_pixel_m."
        )
    return caustic_of(torch.as_tensor(probe), pixel_size_m, wavelength)


def wavelength_of(attrs: Mapping[str, Any]) -> float | None:
    """Return the wavelength in metres by a result's attributes, or None where they do not say radiation and energy."""
    energy, radiation = attrs.get("energy_eV"), attrs.get("radiation")
    if energy is None or radiation not in ("photon", "electron"):
        return None
    return electron_wavelength_m(energy) if radiation == "electron" else photon_wavelength_m(energy)


def caustic_lines(caustic: Caustic) -> Iterator[str]:
    """Yield what the caustic says, a line each."""
    for axis in (0, 1):
        z, depth = caustic.waist_m[axis], caustic.depth_m[axis]
        place = f"{_micrometres(abs(z))} {'down' if z > 0 else 'up'}stream of the sample"
        deep = "more than the window can hold" if math.isinf(depth) else _micrometres(depth)
        yield f"waist of {'yx'[axis]}    {caustic.size_m[axis] * 1e9:.4g} nm wide, {place}, depth of focus {deep}"
    way = "down" if caustic.astigmatism_m > 0 else "up"
    apart = _micrometres(abs(caustic.astigmatism_m))
    yield f"astigmatism   {apart}: the waist of x is so far {way}stream of that of y"


def write_caustic(caustic: Caustic, folder: Path, prefix: str, suffix: str) -> list[Path]:
    """Write the figure and the numbers, and return their paths.

    Args:
        caustic: of a probe.
        folder: where the files go; it is made if need be.
        prefix: put before the names of the files.
        suffix: png, pdf or svg.

    Raises:
        BadInput: the folder cannot be written to.
        PtymeshError: the disk refuses.
    """
    figure, numbers = folder / f"{prefix}caustic.{suffix}", folder / f"{prefix}caustic.json"
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        plot.save_figure(plot.caustic_figure(caustic), figure)
        with replacing(numbers) as path:
            path.write_text(json.dumps(_numbers(caustic), indent=1), encoding="utf-8")
    return [figure, numbers]


def _numbers(caustic: Caustic) -> dict[str, object]:
    """Return the numbers as plain Python objects, y before x; a depth that the window cannot hold is None."""
    return {
        "waist_m": list(caustic.waist_m),
        "size_m": list(caustic.size_m),
        "depth_m": [None if math.isinf(depth) else depth for depth in caustic.depth_m],
        "astigmatism_m": caustic.astigmatism_m,
        "z_m": caustic.z_m.tolist(),
        "width_m": caustic.width_m.tolist(),
    }


def _micrometres(length_m: float) -> str:
    return f"{length_m * 1e6:.4g} µm"
