"""Arrays of other files on this scan's grid: what starts of the object and of the probe share.

K, h, w  images, pixels
"""

from __future__ import annotations

import numpy as np

from ptymesh.errors import BadInput
from ptymesh.geometry import Geometry
from ptymesh.io.arrays import ANY, load_array
from ptymesh.io.results import Result
from ptymesh.unknowns import LARGEST

#: Relative difference of pixel sizes below which two grids are the same.
SAME_PIXEL = 1e-6


def resampled(
    array: np.ndarray, ratio: np.ndarray, corner: np.ndarray, sides: tuple[int, int], outside: float
) -> np.ndarray:
    """Array (K, h, w) on another grid, (K, *sides): i_new = ratio * i_old + corner; cubic splines, or a plain copy.

    A coarser grid is preceded by a Gaussian filter of half its pixel, so that it does not alias.
    """
    shift = np.round(corner).astype(int)
    if (np.abs(ratio - 1) < SAME_PIXEL).all() and np.allclose(corner, shift, atol=1e-6):
        out = np.full((len(array), *sides), outside, np.complex128)
        here = tuple(slice(max(0, s), max(0, s, min(n, s + m))) for s, n, m in _axes(shift, sides, array))
        there = tuple(slice(h.start - s, h.stop - s) for h, s in zip(here, shift, strict=True))
        out[:, here[0], here[1]] = array[:, there[0], there[1]]
        return out
    from scipy import ndimage

    sigma = np.where(ratio < 1, 0.5 * np.sqrt(np.maximum(1 / ratio**2 - 1, 0)), 0)
    made = [
        ndimage.affine_transform(
            ndimage.gaussian_filter(image.astype(np.complex128) - outside, sigma),
            1 / ratio,
            offset=-corner / ratio,
            output_shape=sides,
            order=3,
        )
        + outside
        for image in array
    ]
    return np.stack(made)


def _axes(shift: np.ndarray, sides: tuple[int, int], array: np.ndarray) -> list[tuple[int, int, int]]:
    return [(int(s), n, m) for s, n, m in zip(shift, sides, array.shape[1:], strict=True)]


def pixel_ratio(result: Result, geometry: Geometry, path: str) -> np.ndarray:
    """The result's pixel over this scan's, (y, x)."""
    if result.pixel_size_m is None or geometry.object_pixel_m is None:
        if result.probe.shape[-2:] == geometry.shape:
            return np.ones(2)
        raise BadInput(
            f"{path} was made with windows of {result.probe.shape[-2:]} and this scan has {geometry.shape}, in pixel "
            f"units; give the wavelength and the pixel sizes of both, or use equal windows."
        )
    ratio = np.array(result.pixel_size_m) / np.array(geometry.object_pixel_m)
    return np.where(np.abs(ratio - 1) < SAME_PIXEL, 1.0, ratio)


def complex_array(reference: str, option: str, window: tuple[int, int] | None = None) -> np.ndarray:
    """Array (K, h, w) complex128 at `file.npy`, `file.npz:name` or `file.h5:/path`; (h, w) as the window, if given."""
    found = load_array(reference, option, ANY, window=window)
    if found.ndim not in (2, 3) or 0 in found.shape:
        raise BadInput(f"{option}: {reference} has shape {found.shape}; give numbers with two or three axes.")
    with np.errstate(over="ignore", invalid="ignore"):
        largest = float(np.abs(found).max())
    if not largest <= LARGEST:  # True on NaN too
        raise BadInput(f"{option}: {reference} holds values of {largest:.3g}, which cannot be; start from another one.")
    return found.reshape(-1, *found.shape[-2:]).astype(np.complex128)
