"""The file out/preview.h5: object and probe while a run goes on, on few pixels; for those who look at its folder.

Rank 0 writes it beside and renames it, of the object that it holds anyway, so that no other rank takes part: it is for
layouts in which every rank holds the whole object, not for tiles. How often is bounded by what it takes.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import Tensor

from ptymesh.io.hdf5.writing import new_hdf5
from ptymesh.run_folder.reports import BatchReport, Callback, EpochReport
from ptymesh.run_folder.status import Throttle

NAME = "preview.h5"
#: Largest side of the object in it, in pixels, and of its slices and modes at most so many.
SIDE, MOST_PLANES = 512, 16
#: Seconds between two previews, at least.
EVERY_S = 3.0


class Estimated(NamedTuple):
    """Object and probe that a preview shows.

    Attributes:
        object: (L, H, W) complex, all of it.
        probe: (M, h, w) complex.
        pixel_m: (y, x) of an object pixel in metres; None if unknown.
        origin_px: object pixel (y, x) at which the scan's own coordinates have their zero.
    """

    object: Tensor
    probe: Tensor
    pixel_m: tuple[float, float] | None
    origin_px: tuple[float, float] = (0.0, 0.0)


class Preview(Callback):
    """Writer of out/preview.h5, which the result or the last checkpoint replaces.

    Args:
        out: output folder.
        current: returns the estimate as it is now, without a collective; None where this rank does not have all of it.
    """

    def __init__(self, out: Path, current: Callable[[], Estimated | None]) -> None:
        self.path, self._current = out / NAME, current
        self._throttle = Throttle(EVERY_S)
        remove_preview(out)

    def batch(self, report: BatchReport) -> None:
        """Write it, if it is time."""
        self._write(report.stage, report.epoch - 1)

    def epoch(self, report: EpochReport) -> None:
        """Write it, if it is time."""
        self._write(report.stage, report.epoch)

    def _write(self, stage: int, epoch: int) -> None:
        shown = self._current() if self._throttle.is_due() else None
        if shown is None:
            return
        began = time.perf_counter()
        try:
            write_preview(self.path, shown, stage, epoch)
        except (OSError, RuntimeError, MemoryError) as error:  # a full disk, or no memory left on the device
            self._throttle.every_s = math.inf
            remove_preview(self.path.parent)
            print(f"ptymesh: {self.path} cannot be written ({error}); there are no previews.", file=sys.stderr)
        self._throttle.count(time.perf_counter() - began)

    def finish(self, outcome: str) -> None:
        """Remove it: there is a result or a checkpoint to look at."""
        remove_preview(self.path.parent)


def write_preview(path: Path, shown: Estimated, stage: int, epoch: int) -> None:
    """Write a preview.

    Args:
        path: of the file, which is replaced.
        shown: object and probe.
        stage: that is running, from 0.
        epoch: epochs of it that are done.

    Raises:
        OSError: the disk refuses.
    """
    small, side = binned(shown.object[:MOST_PLANES])
    beside = path.with_name(f"{path.name}.new")
    beside.unlink(missing_ok=True)  # also if it is a link
    with new_hdf5(beside) as file:
        made = file.create_dataset("object", data=small.cpu().numpy().astype(np.complex64))
        if shown.pixel_m is not None:
            made.attrs["pixel_size_m"] = [side * length for length in shown.pixel_m]
        file["probe"] = shown.probe[:MOST_PLANES].cpu().numpy().astype(np.complex64)
        file.attrs.update({"binned": side, "origin_px": shown.origin_px, "stage": stage, "epoch": epoch})
    os.replace(beside, path)


def binned(image: Tensor, largest: int = SIDE) -> tuple[Tensor, int]:
    """Return means over square blocks, computed where the image is, and the side of a block.

    Args:
        image: (..., H, W) complex.
        largest: side of what is returned, at most, in pixels.
    """
    side = max(1, math.ceil(max(image.shape[-2:]) / largest))
    if side == 1:
        return image, 1
    down, across = (min(side, length) for length in image.shape[-2:])
    rows, columns = image.shape[-2] // down, image.shape[-1] // across
    cut = image[..., : rows * down, : columns * across]
    return cut.unflatten(-1, (columns, across)).unflatten(-3, (rows, down)).mean(dim=(-3, -1)), side


def remove_preview(out: Path) -> None:
    """Remove the preview of a run, if there is one."""
    for name in (NAME, f"{NAME}.new"):
        with suppress(OSError):
            (out / name).unlink(missing_ok=True)
