"""Scans whose frames are a list: how many rows and columns, which frames belong to no view, and where the views lie.

A shape is taken from the file, from the recipe (`data.frames`), or, where the number of frames is a square, from that;
it is never guessed otherwise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ptymesh.errors import BadInput
from ptymesh.geometry import Pair
from ptymesh.io.options import DataOptions, FrameOptions
from ptymesh.io.scan import RawScan
from ptymesh.io.source import SlabSource

Shape = tuple[int, int]


@dataclass(frozen=True)
class ScanShape:
    """Rows and columns of a scan, None where nothing says them; and what to say about that."""

    shape: Shape | None
    notes: tuple[str, ...] = ()

    def positions(self, step: Pair | None) -> np.ndarray | None:
        """Return (N, 2) positions, y x, of a raster with this step, in its unit; None where either is not known."""
        return None if self.shape is None or step is None else raster_positions(self.shape, step)


def scan_shape(count: int, declared: Shape | None, data: DataOptions, origin: str) -> ScanShape:
    """Return the shape of a scan whose frames are a list.

    Args:
        count: frames that the file holds.
        declared: (rows, columns) that the file says, None where it says nothing.
        data: of the recipe, whose `frames` come before the file.
        origin: what declares the shape, for messages: "The header SCAN.hdr".

    Raises:
        BadInput: The file holds another number of frames than it says.
    """
    frames = data.frames
    if frames is not None and frames.shape is not None:
        return ScanShape(frames.shape)
    count -= 0 if frames is None else frames.skip
    if declared is None:
        side = math.isqrt(max(count, 0))
        if side < 2 or side * side != count:
            return ScanShape(None)
        note = (
            f"Nothing says how the {count} frames are scanned; they are taken as {side} x {side} (data.frames.shape)."
        )
        return ScanShape((side, side), (note,))
    if math.prod(declared) != count:
        raise BadInput(_contradiction(declared, count, data, origin))
    return ScanShape(declared)


def _contradiction(declared: Shape, count: int, data: DataOptions, origin: str) -> str:
    """Return both numbers, and what to do."""
    rows, columns = declared
    declared_count = rows * columns
    contradiction = f"{origin} says {rows} x {columns} = {declared_count} views, and {data.path} holds {count} frames"
    spare, line = count - declared_count, f"[{rows}, {columns}]"
    if spare > 0 and spare % rows == 0:
        return (
            f"{contradiction}: if each row ends with {spare // rows} that belong to no view (flyback), set "
            "data.frames to "
            f"{{shape: {line}, flyback: {spare // rows}}}; if the first {spare} do, to "
            f"{{shape: {line}, skip: {spare}}}."
        )
    if spare > 0:
        return (
            f"{contradiction}: if the first {spare} belong to no view, set data.frames to "
            f"{{shape: {line}, skip: {spare}}}."
        )
    full_rows = count // columns
    if full_rows:
        return (
            f"{contradiction}: if the scan was cut short, set data.frames.shape to [{full_rows}, {columns}], its whole "
            "rows."
        )
    return f"{contradiction}: set data.frames.shape to the rows and columns that there are."


def orientation_note(files: str) -> str:
    """Return what is said of files ("EMPAD") whose rows may run either way, as their readers disagree."""
    return (
        f"{files} files do not say how the detector lies to the scan; some programs turn its rows around: see ptymesh "
        "orient."
    )


def raster_positions(shape: Shape, step: Pair) -> np.ndarray:
    """Return (N, 2) positions, y x, of a raster around (0, 0): rows along y, columns along x (fast)."""
    index = np.stack(np.meshgrid(*(np.arange(n) for n in shape), indexing="ij"), axis=-1).reshape(-1, 2)
    return (index - (np.array(shape) - 1) / 2) * np.array(step)


@dataclass(frozen=True)
class SelectedFrames:
    """Some of the frames of a source, in an order of its own.

    Attributes:
        source: of all frames.
        index: (N,) the frame of each view.
    """

    source: SlabSource
    index: np.ndarray

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape (N, H, W)."""
        return (len(self.index), *self.source.shape[1:])

    @property
    def dtype(self) -> np.dtype:
        """Type of the source."""
        return self.source.dtype

    def read(self, views: np.ndarray, rows: slice, columns: slice) -> np.ndarray:
        """Return frames (len(views), rows, columns).

        Args:
            views: (n,) int64, in any order.
            rows: of the detector, with start and stop, and step 1.
            columns: of the detector, likewise.
        """
        return self.source.read(self.index[views], rows, columns)


def select_frames(raw: RawScan, frames: FrameOptions | None, path: str) -> RawScan:
    """Return the scan with the frames alone that are views, as `data.frames` says.

    Args:
        raw: as the file stores it; where it says positions, they may be those of the views alone.
        frames: of the recipe.
        path: of the file, for messages.

    Raises:
        BadInput: There are fewer frames, or they are a raster already.
    """
    if frames is None or (frames.shape is None and not frames.skip):
        return raw
    count = raw.patterns.shape[0]
    index, needed = _frames_of_views(frames, count)
    if needed > count or not len(index):
        raise BadInput(
            f"data.frames needs {needed} frames ({_words_for_frames(frames)}), and {path} holds {count}; give the "
            "numbers that "
            "there are."
        )
    if raw.raster is not None and math.prod(raw.raster) != len(index):
        raise BadInput(
            f"data.frames leaves {len(index)} views ({_words_for_frames(frames)}), and the patterns of {path} are "
            "a raster of "
            f"{raw.raster}; leave it out, or give all of its numbers."
        )
    notes = raw.notes
    if frames.shape is not None and count - needed > frames.flyback:
        notes += (f"The last {count - needed} of {count} frames are left out, which data.frames says nothing of.",)

    def of_views(values: np.ndarray | None) -> np.ndarray | None:
        return values[index] if values is not None and len(values) == count != len(index) else values

    return replace(
        raw,
        patterns=SelectedFrames(raw.patterns, index),
        view_mask=None if raw.view_mask is None else SelectedFrames(raw.view_mask, index),
        positions=of_views(raw.positions),
        intensity=of_views(raw.intensity),
        raster=frames.shape or raw.raster,
        notes=notes,
    )


def _frames_of_views(frames: FrameOptions, count: int) -> tuple[np.ndarray, int]:
    """Return the frame of each view, and how many frames there must be."""
    if frames.shape is None:
        return np.arange(frames.skip, count), frames.skip + 1
    rows, columns = frames.shape
    length = columns + frames.flyback
    needed = frames.skip + (rows - 1) * length + columns
    if needed > count:
        return np.empty(0, np.int64), needed
    index = frames.skip + np.arange(rows)[:, None] * length + np.arange(columns)
    return index.reshape(-1), needed


def _words_for_frames(frames: FrameOptions) -> str:
    shape = "" if frames.shape is None else f"shape {list(frames.shape)}, "
    return f"{shape}skip {frames.skip}, flyback {frames.flyback}"
