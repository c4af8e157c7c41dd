"""Display of a scan in a notebook: its facts, the mean of a few patterns, and the positions.

N       views
h, w    window pixels
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from ptymesh.errors import PtymeshError
from ptymesh.measurement import Measurement, evenly_spread
from ptymesh.notebook.fragment import HEIGHT, fragment, pixels
from ptymesh.plot.style import BLUE, ColourScale, image_panel, length_name, new_figure, plain_axes, unit_for

#: Number of evenly spaced patterns read for the thumbnail: reading all would take long where they are on disk.
LOOKED_AT = 16


def html(scan: Measurement) -> str:
    """Return the HTML of the scan; where its patterns cannot be read, the reason replaces the thumbnail."""
    geometry = scan.geometry
    pixel = geometry.object_pixel_m
    extent = np.ptp(scan.positions, axis=0)
    bad = int(scan.mask.size - scan.mask.sum())
    facts = {
        "file": scan.path,
        "views": f"{scan.views} of {scan.window[0]} x {scan.window[1]} pixels, {scan.patterns.dtype}",
        "propagation": geometry.propagation.replace("_", " "),
        "radiation": energy(scan),
        "distance": "" if geometry.distance_m is None else f"{geometry.distance_m:.4g} m",
        "object pixel": pixels(pixel),
        "scanned": "{:.4g} x {:.4g} px".format(*extent)
        if pixel is None
        else " x ".join(length_name(float(one)) for one in extent * pixel),
        "masked": f"{bad} of {scan.mask.size} pixels" if bad else "",
        "brings": ", ".join(name for name in ("background", "intensity", "probe") if getattr(scan, name) is not None),
        "notes": " ".join(scan.notes),
    }
    try:
        picture: Figure | None = figure(scan)
    except PtymeshError as error:
        picture, facts["patterns"] = None, str(error)
    return fragment(f"Scan {scan.name}", facts, picture)


def energy(scan: Measurement) -> str:
    """Return radiation and energy in words, as far as they are known."""
    geometry = scan.geometry
    if geometry.energy_eV is not None:
        return f"{geometry.radiation}, {geometry.energy_eV / 1e3:.4g} keV"
    return "" if geometry.wavelength_m is None else f"wavelength {geometry.wavelength_m:.4g} m"


def figure(scan: Measurement) -> Figure:
    """Return a figure of the mean of a few patterns on a logarithmic scale, and of the positions.

    Raises:
        PtymeshError: the patterns cannot be read.
    """
    chart = new_figure(2.4 * HEIGHT, HEIGHT)
    left, right = chart.subplots(1, 2)
    views = evenly_spread(scan.views, LOOKED_AT)
    counts = scan.patterns.read(views).astype(np.float64)
    has_counts = counts >= 0
    mean = np.where(has_counts, counts, 0).sum(axis=0) / np.maximum(has_counts.sum(axis=0), 1)
    mean = np.where(scan.mask & has_counts.any(axis=0), mean, np.nan)
    if scan.geometry.propagation == "far_field":
        mean = np.fft.fftshift(mean)
    positive = mean[mean > 0]
    top = float(positive.max()) if positive.size else 1.0
    low = min(max(top / 1e4, float(positive.min()) if positive.size else 0.0), top / 10)
    colours = ColourScale("viridis", LogNorm(low, top))
    image_panel(left, np.maximum(mean, low), f"mean of {len(views)}", colours, bar=False)
    _positions(right, scan)
    return chart


def _positions(axes: Axes, scan: Measurement) -> None:
    pixel = scan.geometry.object_pixel_m
    place = scan.positions * (np.ones(2) if pixel is None else np.array(pixel))
    size, unit = (1.0, "px") if pixel is None else unit_for(float(np.ptp(place, axis=0).max()) / 2)
    y, x = (place - place.min(axis=0)).T / size
    axes.plot(x, y, ".", color=BLUE, markersize=float(np.clip(60 / np.sqrt(scan.views), 1, 4)))
    plain_axes(axes, f"x ({unit})", f"y ({unit})", "positions")
    axes.set_aspect("equal")
    axes.invert_yaxis()
