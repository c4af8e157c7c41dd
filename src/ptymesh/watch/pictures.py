"""Pictures of object and probe as PNG, of a region at the resolution that a screen can show."""

from __future__ import annotations

import io
import math
from typing import Literal

import numpy as np
from matplotlib import colormaps
from matplotlib.image import imsave

from ptymesh.plot.style import bounds, colour_of
from ptymesh.watch.runs import OpenedArrays

What = Literal["amplitude", "phase", "colour", "probe"]
#: Kinds of pictures.
KINDS: tuple[What, ...] = ("phase", "amplitude", "colour", "probe")
#: Largest side of a picture in pixels.
SIDE = 1024


def picture(arrays: OpenedArrays, what: What, index: int, region: tuple[int, int, int, int] | None) -> bytes:
    """Return a picture as PNG.

    Args:
        arrays: of a run.
        what: amplitude, phase or colour (phase as hue, amplitude as brightness) of the object, or a mode of the probe.
        index: of the slice or mode.
        region: top, left, bottom, right of the object in pixels; None: all of it.
    """
    if what == "probe":
        return png(colour_of(arrays.probe_mode(index)))
    height, width = arrays.object_shape[1:]
    top, left, bottom, right = region or (0, 0, height, width)
    binning = 1 << max(0, math.ceil(math.log2(max(bottom - top, right - left) / SIDE)))
    binned = arrays.binned_region(index, slice(top, bottom), slice(left, right), binning)
    if what == "colour":
        return png(colour_of(binned))
    values = np.abs(binned) if what == "amplitude" else np.angle(binned * np.conj(_mean_phase(binned)))
    low, high = bounds(values)
    scaled = (values - low) / max(high - low, 1e-12)
    return png(colormaps["gray" if what == "amplitude" else "viridis"](np.clip(scaled, 0, 1)))


def _mean_phase(image: np.ndarray) -> complex:
    """Return the phase factor of an image's mean, 1 where that is zero."""
    mean = complex(image.mean())
    return mean / abs(mean) if abs(mean) > 0 else 1.0


def png(image: np.ndarray) -> bytes:
    """Return an image (H, W, 3 or 4) of values from 0 to 1 as PNG."""
    buffer = io.BytesIO()
    imsave(buffer, np.clip(image, 0, 1), format="png", pil_kwargs={"compress_level": 1})
    return buffer.getvalue()
