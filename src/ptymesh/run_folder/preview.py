"""The file out/preview.h5: object and probe while a run goes on, on few pixels, and positions, for those who look.

Rank 0 writes it beside and renames it, of the object that it holds anyway. Where each rank holds a tile of the object
alone, each writes sums over blocks of its tile into a file of its own, and rank 0 adds up those that lie there: tiles
may be some seconds apart, but no rank waits for another one. How often is bounded by what it takes.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
from torch import Tensor

from ptymesh.io.hdf5.writing import new_hdf5
from ptymesh.run_folder.reports import BatchReport, Callback, EpochReport
from ptymesh.run_folder.status import Throttle

NAME, TILE = "preview.h5", "preview-tile-{}.h5"
#: Largest side of the object in it, in pixels, and of its slices and modes at most so many.
SIDE, MOST_PLANES = 512, 16
#: Views whose positions are in it, at most.
MOST_VIEWS = 4000
#: Seconds between two previews, at least.
EVERY_S = 3.0


class Estimated(NamedTuple):
    """Object and probe that a preview shows.

    Attributes:
        object: (L, H, W) complex, all of it or a tile.
        probe: (M, h, w) complex.
        pixel_m: (y, x) of an object pixel in metres; None if unknown.
        origin_px: object pixel (y, x) at which the scan's own coordinates have their zero.
        corner: object pixel (y, x) at which the tile begins.
        extent: (H, W) of the whole object; None if this is all of it.
        positions_px: (N, 2) y x, object pixel under the corner of each view's window; None: not shown.
        nominal_px: (N, 2) y x, where they started; None if they have not moved.
    """

    object: Tensor
    probe: Tensor
    pixel_m: tuple[float, float] | None
    origin_px: tuple[float, float] = (0.0, 0.0)
    corner: tuple[int, int] = (0, 0)
    extent: tuple[int, int] | None = None
    positions_px: Tensor | None = None
    nominal_px: Tensor | None = None


class Preview(Callback):
    """Writer of out/preview.h5, which the result or the last checkpoint replaces.

    Args:
        out: output folder.
        current: returns the estimate as it is now, without a collective; None where this rank has nothing to show.
        rank: of this process.
    """

    def __init__(self, out: Path, current: Callable[[], Estimated | None], rank: int = 0) -> None:
        self.path, self._current, self._rank = out / NAME, current, rank
        self._throttle = Throttle(EVERY_S)
        if rank == 0:
            remove_preview(out)

    def batch(self, report: BatchReport) -> None:
        """Write it, if it is time."""
        self._write(report.stage, report.epoch - 1)

    def epoch(self, report: EpochReport) -> None:
        """Write it, if it is time."""
        self._write(report.stage, report.epoch)

    def _write(self, stage: int, epoch: int) -> None:
        estimated = self._current() if self._throttle.is_due() else None
        if estimated is None:
            return
        began = time.perf_counter()
        try:
            if estimated.extent is None:
                write_preview(self.path, estimated, stage, epoch)
            else:
                write_tile(self.path.with_name(TILE.format(self._rank)), estimated)
                joined = join_tiles(self.path.parent, estimated) if self._rank == 0 else None
                if joined is not None:
                    write_preview(self.path, estimated, stage, epoch, joined)
        except (OSError, RuntimeError, MemoryError) as error:  # a full disk, or no memory left on the device
            self._throttle.every_s = math.inf
            remove_preview(self.path.parent)
            print(f"ptymesh: {self.path} cannot be written ({error}); there are no previews.", file=sys.stderr)
        self._throttle.count(time.perf_counter() - began)

    def finish(self, outcome: str) -> None:
        """Remove it: there is a result or a checkpoint to look at."""
        remove_preview(self.path.parent)


def write_preview(
    path: Path, estimated: Estimated, stage: int, epoch: int, joined: tuple[np.ndarray, int] | None = None
) -> None:
    """Write a preview.

    Args:
        path: of the file, which is replaced.
        estimated: object and probe.
        stage: that is running, from 0.
        epoch: epochs of it that are done.
        joined: the whole object on few pixels, (L, H, W) complex, and the side of each, where `estimated` holds a tile.

    Raises:
        OSError: the disk refuses.
    """
    if joined is None:
        small, side = binned(estimated.object[:MOST_PLANES])
        joined = small.cpu().numpy(), side
    image, side = joined
    with _replaced(path) as file:
        dataset = file.create_dataset("object", data=image.astype(np.complex64))
        if estimated.pixel_m is not None:
            dataset.attrs["pixel_size_m"] = [side * length for length in estimated.pixel_m]
        file["probe"] = estimated.probe[:MOST_PLANES].cpu().numpy().astype(np.complex64)
        for name, places in (("positions_px", estimated.positions_px), ("positions_nominal_px", estimated.nominal_px)):
            if places is not None:
                every = max(1, math.ceil(len(places) / MOST_VIEWS))
                file[name] = places[::every].cpu().numpy().astype(np.float32)
        file.attrs.update({"binned": side, "origin_px": estimated.origin_px, "stage": stage, "epoch": epoch})


@contextmanager
def _replaced(path: Path) -> Iterator[h5py.File]:
    """Open a new HDF5 file beside a path, which replaces it once it is complete."""
    beside = path.with_name(f"{path.name}.new")
    beside.unlink(missing_ok=True)  # also if it is a link
    with new_hdf5(beside) as file:
        yield file
    os.replace(beside, path)


def write_tile(path: Path, estimated: Estimated) -> None:
    """Write sums over blocks of a tile, and how many of its pixels lie in each block.

    Args:
        path: of the file, which is replaced.
        estimated: the tile.

    Raises:
        OSError: the disk refuses.
    """
    tile = estimated.object[:MOST_PLANES]
    blocks, _ = _blocks_of(estimated)
    first = [at // block for at, block in zip(estimated.corner, blocks, strict=True)]
    before = [at - k * block for at, k, block in zip(estimated.corner, first, blocks, strict=True)]
    count = [-(-(gap + n) // block) for gap, n, block in zip(before, tile.shape[-2:], blocks, strict=True)]
    padded = tile.new_zeros((len(tile), *(n * block for n, block in zip(count, blocks, strict=True))))
    pixels = padded[0].real.clone()
    within = tuple(slice(gap, gap + n) for gap, n in zip(before, tile.shape[-2:], strict=True))
    padded[(slice(None), *within)], pixels[within] = tile, 1
    with _replaced(path) as file:
        for name, image in (("sums", padded), ("pixels", pixels)):
            cut = image.unflatten(-1, (count[1], blocks[1])).unflatten(-3, (count[0], blocks[0]))
            file[name] = cut.sum(dim=(-3, -1)).cpu().numpy()
        file.attrs.update({"first": first, "extent": estimated.extent})


def join_tiles(out: Path, estimated: Estimated) -> tuple[np.ndarray, int] | None:
    """Return the object of all tiles on few pixels, and the side of each; None while a tile is missing.

    Args:
        out: folder with the tiles.
        estimated: one of them; those of an object of other sides are of an earlier stage.
    """
    blocks, (rows, columns) = _blocks_of(estimated)
    planes = min(len(estimated.object), MOST_PLANES)
    sums, pixels = np.zeros((planes, rows, columns), np.complex128), np.zeros((rows, columns))
    for path in sorted(out.glob(TILE.format("*"))):
        with suppress(OSError, KeyError, ValueError), h5py.File(path, "r", locking=False) as file:
            if tuple(file.attrs["extent"]) != estimated.extent or len(file["sums"]) != planes:
                continue
            top, left = (int(at) for at in file.attrs["first"])
            local_sums, counts = (
                file["sums"][:, : rows - top, : columns - left],
                file["pixels"][: rows - top, : columns - left],
            )
            place = slice(top, top + counts.shape[0]), slice(left, left + counts.shape[1])
            sums[(slice(None), *place)] += local_sums
            pixels[place] += counts
    if (pixels != blocks[0] * blocks[1]).any():
        return None
    return sums / pixels, max(blocks)


def _blocks_of(estimated: Estimated) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the sides of a block of object pixels (y, x), and the number of whole blocks along each side."""
    assert estimated.extent is not None
    side = max(1, math.ceil(max(estimated.extent) / SIDE))
    down, across = (min(side, length) for length in estimated.extent)
    return (down, across), (estimated.extent[0] // down, estimated.extent[1] // across)


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
    tiles = out.glob(f"{TILE.format('*')}*")
    for path in (out / NAME, out / f"{NAME}.new", *tiles):
        with suppress(OSError):
            path.unlink(missing_ok=True)
