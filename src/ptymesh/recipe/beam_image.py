"""Image of the beam without a sample, brought to a scan's window as its patterns are.

K       images
H, W    detector pixels as stored
h, w    window pixels
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ptymesh.errors import BadInput
from ptymesh.io.arrays import holds_array, load_array
from ptymesh.io.joint_scans import JointSource
from ptymesh.io.load import open_scan
from ptymesh.io.options import DataOptions
from ptymesh.io.prepare.preprocess import PreparedSource
from ptymesh.io.source import SlabSource, slabs
from ptymesh.measurement import Measurement


@dataclass(frozen=True)
class ImageStack:
    """Images in memory, read as patterns on a disk are.

    Attributes:
        images: (K, H, W).
    """

    images: np.ndarray

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape (K, H, W)."""
        count, height, width = self.images.shape
        return count, height, width

    @property
    def dtype(self) -> np.dtype:
        """Type of the values."""
        return self.images.dtype

    def read(self, views: np.ndarray, rows: slice, columns: slice) -> np.ndarray:
        """Return images (len(views), rows, columns).

        Args:
            views: (n,) int64, in any order.
            rows: of the detector.
            columns: of the detector.
        """
        return self.images[views, rows, columns]


def mean_image(reference: str, option: str, scan: Measurement) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of images, (h, w) float64 laid out as the patterns, and where it holds data, (h, w) bool.

    Args:
        reference: of an array of images, or of a data set.
        option: key of the recipe, for messages.
        scan: whose window it is brought to, of several scans that of the first one.

    Raises:
        BadInput: there are no such images, or they fit neither the detector nor the window.
    """
    images = _images(reference, option)
    source = scan.patterns.sources[0] if isinstance(scan.patterns, JointSource) else scan.patterns
    window = scan.mask.shape
    detector = source.raw.shape[1:] if isinstance(source, PreparedSource) else window
    if isinstance(source, PreparedSource) and images.shape[1:] == detector:
        order = np.arange(images.shape[0])
        # an image without its dark may be negative where there is no light
        prepared = replace(source, raw=images, view_mask=None, selected=order, invalid="zero", name=reference)
        total, counted_frames = np.zeros(window), np.zeros(window)
        for part in slabs(len(order), prepared.window.shape[0] * prepared.window.shape[1] * 8):
            counts = prepared.read(part).astype(np.float64)
            total += np.where(counts < 0, 0, counts).sum(axis=0)
            counted_frames += (counts >= 0).sum(axis=0)
        good = scan.mask & (counted_frames > 0)
        return _refuse_darkness(np.where(good, total / np.maximum(counted_frames, 1), 0), good, reference, option), good
    if images.shape[1:] != window:
        sides = f"{detector}" if detector == window else f"{detector}, its window {window}"
        raise BadInput(f"{option}: {reference} has shape {images.shape[1:]}; the scan's detector is {sides}.")
    height, width = window
    mean = images.read(np.arange(images.shape[0]), slice(0, height), slice(0, width)).astype(np.float64).mean(axis=0)
    if scan.geometry.propagation == "far_field":
        mean = np.fft.ifftshift(mean)
    good = scan.mask & np.isfinite(mean) & (mean >= 0)
    return _refuse_darkness(np.where(good, mean, 0), good, reference, option), good


def _images(reference: str, option: str) -> SlabSource:
    """Return the images (K, H, W) that a reference names."""
    if not holds_array(reference):
        return open_scan(DataOptions(path=Path(reference))).patterns
    array = load_array(reference, option)
    if array.ndim not in (2, 3) or 0 in array.shape:
        raise BadInput(f"{option}: {reference} has shape {array.shape}; give an image, or a stack of them.")
    return ImageStack(array.reshape(-1, *array.shape[-2:]))


def _refuse_darkness(mean: np.ndarray, good: np.ndarray, reference: str, option: str) -> np.ndarray:
    """Return a mean image, if there is light on its good pixels. Raises BadInput where there is none."""
    if not (good.any() and mean[good].max() > 0):
        raise BadInput(f"{option}: {reference} is dark where the scan's detector holds data; give the image of a beam.")
    return mean
