"""Arrays of other files on this scan's grid, as starts of the object and of the probe need them.

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


def resample_images(
    array: np.ndarray, ratio: np.ndarray, corner: np.ndarray, sides: tuple[int, int], outside: float
) -> np.ndarray:
    """Return an array on another grid: i_new = ratio * i_old + corner; cubic splines, or a plain copy of equal grids.

    A coarser grid is preceded by a Gaussian filter of half its pixel, so that it does not alias.

    Args:
        array: (K, h, w), complex or real.
        ratio: (2,) old pixel over new pixel, y and x.
        corner: (2,) where the old pixel (0, 0) lies on the new grid, in new pixels.
        sides: of the new grid, in pixels.
        outside: value of pixels that the old grid does not reach.

    Returns:
        (K, *sides) complex128.
    """
    shift = np.round(corner).astype(int)
    if (np.abs(ratio - 1) < SAME_PIXEL).all() and np.allclose(corner, shift, atol=1e-6):
        out = np.full((len(array), *sides), outside, np.complex128)
        target = tuple(slice(max(0, s), max(0, s, min(n, s + m))) for s, n, m in _shifts_and_sides(shift, sides, array))
        source = tuple(slice(h.start - s, h.stop - s) for h, s in zip(target, shift, strict=True))
        out[:, target[0], target[1]] = array[:, source[0], source[1]]
        return out
    from scipy import ndimage

    sigma = np.where(ratio < 1, 0.5 * np.sqrt(np.maximum(1 / ratio**2 - 1, 0)), 0)
    resampled = [
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
    return np.stack(resampled)


def _shifts_and_sides(shift: np.ndarray, sides: tuple[int, int], array: np.ndarray) -> list[tuple[int, int, int]]:
    return [(int(s), n, m) for s, n, m in zip(shift, sides, array.shape[1:], strict=True)]


def pixel_ratio(result: Result, geometry: Geometry, path: str) -> np.ndarray:
    """Return the result's pixel over this scan's, (2,), y and x.

    Args:
        result: the earlier result.
        geometry: of this scan.
        path: of the result, for messages.

    Raises:
        BadInput: a pixel size is unknown, and the windows differ.
    """
    if result.pixel_size_m is None or geometry.object_pixel_m is None:
        if result.probe.shape[-2:] == geometry.shape:
            return np.ones(2)
        raise BadInput(
            f"{path} was made with windows of {result.probe.shape[-2:]} and this scan has {geometry.shape}, in pixel "
            f"units; give the wavelength and the pixel sizes of both, or use equal windows."
        )
    ratio = np.array(result.pixel_size_m) / np.array(geometry.object_pixel_m)
    return np.where(np.abs(ratio - 1) < SAME_PIXEL, 1.0, ratio)


def load_complex_array(reference: str, option: str, window: tuple[int, int] | None = None) -> np.ndarray:
    """Load a complex array, of which a single image becomes an array of one.

    Args:
        reference: `file.npy`, `file.npz:name` or `file.h5:/path`.
        option: name of the option that names it, for messages.
        window: (h, w) that it must have; None: any.

    Returns:
        (K, h, w) complex128.

    Raises:
        BadInput: the file holds no such array, or values that cannot be.
    """
    array = load_array(reference, option, ANY, window=window)
    if array.ndim not in (2, 3) or 0 in array.shape:
        raise BadInput(f"{option}: {reference} has shape {array.shape}; give numbers with two or three axes.")
    with np.errstate(over="ignore", invalid="ignore"):
        largest = float(np.abs(array).max())
    if not largest <= LARGEST:  # True on NaN too
        raise BadInput(f"{option}: {reference} holds values of {largest:.3g}, which cannot be; start from another one.")
    return array.reshape(-1, *array.shape[-2:]).astype(np.complex128)
