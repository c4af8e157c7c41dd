"""Phase-retrieval transfer function of a result: how much of the measured amplitude its model has, ring by ring.

    T(q) = sum sqrt(I y) / sum y,  over all views and good pixels of the ring at q

I are the intensities of the model without its background, y the counts less the background. T is 1 where model and
counts agree. Where there is less than a count per pixel, it falls with what counting leaves of the amplitude: of
Poisson counts with a mean below 1, sqrt(I y) / y is about sqrt(I). Source: Chapman et al., J. Opt. Soc. Am. A 23, 1179
(2006), where the numerator is the mean over many reconstructions; here it is that over the views of one.

N, B    all views, views looked at
h, w    window pixels
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy import fft

from ptymesh.errors import BadInput
from ptymesh.io.results import Result
from ptymesh.measurement import Measurement, evenly_spread
from ptymesh.run_folder.patterns import CHUNK, LOOKED_AT, check_same, model_of, modelled

#: Value down to which a frequency counts as retrieved.
RETRIEVED = 1 / math.e


@dataclass(frozen=True)
class TransferFunction:
    """Phase-retrieval transfer function.

    Attributes:
        frequency: of each ring, cycles per metre, or per object pixel without a pixel size.
        value: one per ring; nan where nothing was counted.
        resolution: full period at which it falls below 1/e for good, in `unit`; None where it does from the start on.
        at_limit: True if it never does, so that the detector's edge limits the resolution.
        unit: "m" or "px".
    """

    frequency: np.ndarray
    value: np.ndarray
    resolution: float | None
    at_limit: bool
    unit: str


def transfer_function(result: Result, scan: Measurement) -> TransferFunction:
    """Return the transfer function of a result over up to 1024 evenly spaced views of its scan.

    Args:
        result: of a reconstruction.
        scan: that it was made from, in the far field.

    Raises:
        BadInput: the scan is another one, or no far field, of which a pixel is no spatial frequency.
    """
    check_same(result, scan)
    if scan.geometry.propagation != "far_field":
        raise BadInput(
            f"There is no transfer function of a scan with propagation: {scan.geometry.propagation}; its detector "
            "pixels are no spatial frequencies of the object, as they are in the far field."
        )
    views = evenly_spread(scan.views, LOOKED_AT)
    model, without = model_of(result, scan.geometry, scan), replace(result, background=None)
    common, counts = np.zeros(scan.window), np.zeros(scan.window)
    for first in range(0, len(views), CHUNK):
        chunk = views[first : first + CHUNK]
        measured = scan.patterns.read(chunk).astype(np.float64)
        background = result.background_of(chunk)
        light = measured if background is None else measured - background
        light = np.where(scan.mask & (measured >= 0), np.maximum(light, 0), 0)
        intensity = np.maximum(modelled(model, without, chunk, scan), 0)
        common += np.sqrt(intensity * light).sum(axis=0)
        counts += light.sum(axis=0)
    return _ring_values(common, counts, result.pixel_size_m)


def _ring_values(common: np.ndarray, counts: np.ndarray, pixel_size_m: tuple[float, float] | None) -> TransferFunction:
    """Return the ratio of two sums (h, w), DC at the corner, over rings one frequency pixel wide."""
    pixel = (1.0, 1.0) if pixel_size_m is None else pixel_size_m
    ky, kx = (fft.fftfreq(n, d) for n, d in zip(counts.shape, pixel, strict=True))
    width = 1 / min(n * d for n, d in zip(counts.shape, pixel, strict=True))
    finest = float(2 * max(pixel))
    count = int(np.floor(1 / finest / width + 1e-9)) + 1
    ring = np.minimum(np.rint(np.hypot(ky[:, None], kx) / width).astype(np.int64), count).ravel()
    above, below = (np.bincount(ring, array.ravel(), count + 1)[:count] for array in (common, counts))
    value = np.divide(above, below, out=np.full(count, np.nan), where=below > 0)
    frequency = np.arange(count) * width
    is_retrieved = np.nan_to_num(value, nan=0.0) >= RETRIEVED
    # The first ring of a fall for good: of two rings in a row, as noise may dip one.
    fallen = np.flatnonzero(~is_retrieved & ~np.append(is_retrieved[1:], is_retrieved[-1]))
    unit = "px" if pixel_size_m is None else "m"
    if fallen.size == 0:
        return TransferFunction(frequency, value, finest, True, unit)
    last = int(fallen[0]) - 1
    resolution = max(float(1 / frequency[last]), finest) if last > 0 else None
    return TransferFunction(frequency, value, resolution, False, unit)
