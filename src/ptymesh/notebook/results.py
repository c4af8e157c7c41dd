"""Display of a result in a notebook: the numbers, and thumbnails of object, probe and residual.

M       incoherent probe modes
L       object slices
H, W    object pixels
h, w    window pixels
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from ptymesh.compare import illumination
from ptymesh.io.results import Result
from ptymesh.notebook.fragment import HEIGHT, fragment, pixels
from ptymesh.plot import powers_percent, unwrapped_phase
from ptymesh.plot.objects import prepared
from ptymesh.plot.progress import curve_panel
from ptymesh.plot.style import (
    ColourScale,
    Pixel,
    blocks,
    bounds,
    colour_of,
    image_panel,
    length_name,
    new_figure,
    scaled,
)
from ptymesh.run_folder.figures import overview_of

#: Objects are averaged to this side in pixels for thumbnails: unwrapping the phase of larger ones takes seconds.
LARGEST_SIDE = 300


def html(result: Result) -> str:
    """Return the HTML of the result."""
    attrs = result.attrs
    slices, height, width = result.object.shape
    spacing = f", {length_name(result.slice_spacing_m)} apart" if slices > 1 and result.slice_spacing_m > 0 else ""
    facts = {
        "data": Path(str(attrs.get("data_path", ""))).name,
        "object": (f"{slices} slices of " if slices > 1 else "") + f"{height} x {width} pixels{spacing}",
        "object pixel": pixels(result.pixel_size_m),
        "probe": modes(result.probe),
        "views": str(len(result.positions_px)),
        "engine": str(attrs.get("engine", "")),
        "epochs": str(len(next(iter(result.history.values()), ())) or ""),
        "final residual": f"{attrs['final_residual']:.4g}" if attrs.get("final_residual") is not None else "",
        "verdict": _verdict(result),
        "ran on": ran_on(attrs),
    }
    light = illumination((height, width), result.probe, result.positions_px, result.weights)
    return fragment("Result", facts, strip(result.object, result.probe, result.history, result.pixel_size_m, light))


def figure(result: Result) -> Figure:
    """Return a figure of object, strongest probe modes, illumination and residual, as in overview.png of a run."""
    height, width = result.object.shape[-2:]
    light = illumination((height, width), result.probe, result.positions_px, result.weights)
    return overview_of(result, light)


def _verdict(result: Result) -> str:
    """Return the verdict with its reason; empty in results of older versions."""
    return f"{result.verdict}: {result.attrs['verdict_sentence']}" if result.verdict else ""


def modes(probe: np.ndarray) -> str:
    """Return number, size and powers of the probe modes (M, h, w), in words."""
    count, h, w = probe.shape
    if count == 1:
        return f"1 mode of {h} x {w} pixels"
    shares = [f"{share:.3g}" for share in powers_percent(probe)[:4]]
    return f"{count} modes of {h} x {w} pixels ({', '.join(shares)}{', ...' if count > 4 else ''} %)"


def ran_on(attrs: Mapping[str, object]) -> str:
    """Return ranks, device and precision, in words."""
    if "ranks" not in attrs:
        return ""
    return f"{attrs['ranks']} rank{'s' * (attrs['ranks'] != 1)}, {attrs.get('device')}, {attrs.get('precision')}"


def strip(
    object: np.ndarray,
    probe: np.ndarray,
    history: Mapping[str, np.ndarray],
    pixel_size_m: Pixel,
    light: np.ndarray | None,
) -> Figure:
    """Return a figure with amplitude, phase, strongest mode and, where recorded, residual of every epoch in a row.

    Args:
        object: (L, H, W) complex.
        probe: (M, h, w) complex.
        history: columns, one value per epoch.
        pixel_size_m: (y, x), or None.
        light: (H, W) counts on each pixel; None: all of the object is shown.
    """
    curve = len(history.get("residual", ())) > 1
    chart = new_figure((2.75 + 1.35 * curve) * HEIGHT, HEIGHT)
    ratios = [1.0, 1.0, 1.0, 1.4][: 3 + curve]
    panels = chart.subplots(1, len(ratios), gridspec_kw={"width_ratios": ratios})
    image, region, pixel = prepared(object, pixel_size_m, light)
    image, side = blocks(image, LARGEST_SIDE)
    region, pixel = blocks(region.astype(float), LARGEST_SIDE)[0] > 0.5, scaled(pixel, side)
    amplitude = np.where(region, np.abs(image), np.nan)
    image_panel(panels[0], amplitude, "amplitude", ColourScale("gray", bounds(amplitude)), pixel)
    phase = unwrapped_phase(image, region)
    image_panel(panels[1], phase, "phase", ColourScale("viridis", bounds(phase)), pixel)
    strongest = probe[int(np.argmax(powers_percent(probe)))]
    image_panel(panels[2], colour_of(strongest), "probe", None, pixel_size_m)
    if curve:
        curve_panel(panels[3], history, "residual")
        panels[3].set_title("residual of each epoch", fontsize=10)
        panels[3].set(xlabel="", ylabel="")
    return chart
