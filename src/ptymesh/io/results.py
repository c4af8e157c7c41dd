"""The result of a reconstruction, and its file: plain HDF5 that h5py alone can read.

N       views
M       incoherent probe modes
L       object slices
H, W    object pixels
h, w    window pixels

    /object                 (L, H, W) complex    attrs pixel_size_m [y, x] (absent in pixel units), slice_spacing_m,
                                                 tilt_rad [y, x] of the axis along which slices are stacked
    /probe                  (M, h, w) complex    optical axis at (h//2, w//2)
    /positions_px           (N, 2) float64 y x   window's top-left corner in object pixels
    /positions_m            (N, 2) float64 y x   when the pixel size is known
    /positions_nominal_px   (N, 2) float64 y x   where the positions started, when they were refined
    /opr/weights            (N, 1 + K) float     amplitude of the incident beam per view, then its shares of /opr/modes
    /opr/modes              (K, h, w) complex    variable-probe modes; both when used
    /background             (h, w) float         counts added to every pattern, when there are any
    /history/*              (epochs,)            epoch, stage, loss, residual, seconds, ...
    /recipe                 string               the YAML that reproduces the run
    attributes of the file                       final_residual, ptymesh_version, engine, ...
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ptymesh.errors import BadInput, PtymeshError
from ptymesh.parallel.program import on_first_rank

_ARRAYS = {
    "positions_m": "positions_m",
    "nominal_px": "positions_nominal_px",
    "weights": "opr/weights",
    "opr": "opr/modes",
    "background": "background",
}


@dataclass(frozen=True)
class ObjectTiles:
    """An object that comes tile by tile: sides (H, W) of the whole, and corner (y, x) and values (L, h, w) of each."""

    extent: tuple[int, int]
    tiles: Iterator[tuple[tuple[int, int], np.ndarray]]


@dataclass
class Result:
    """What a reconstruction found, as numpy arrays.

    Fields:
        object: (L, H, W) complex.
        probe: (M, h, w) complex, optical axis at (h//2, w//2).
        positions_px: (N, 2) y x, object pixel under the window's top-left corner.
        positions_m: (N, 2) y x in metres, None in pixel units.
        pixel_size_m: object pixel (y, x), None in pixel units.
        slice_spacing_m: distance between neighbouring slices (0 for a single slice).
        tilt_rad: (y, x) by which the axis along which they are stacked leans against the beam.
        history: one array per column, one entry per epoch: epoch, stage, loss, residual, seconds, and others.
        recipe: YAML that reproduces the run.
        attrs: numbers and strings about the run: final_residual, final_r, engine, ranks, ... ; None is not stored.
        nominal_px: (N, 2) y x, positions from which the refinement started, or None.
        background: (h, w) counts in every pattern (DC where the patterns have it), or None.
        weights: (N, 1 + K) amplitude of the incident beam per view, then its shares of the OPR modes, or None.
        opr: (K, h, w) complex, variable-probe modes, or None where there were none.

    Raises BadInput where the shapes do not fit together.
    """

    object: np.ndarray
    probe: np.ndarray
    positions_px: np.ndarray
    positions_m: np.ndarray | None = None
    pixel_size_m: tuple[float, float] | None = None
    slice_spacing_m: float = 0.0
    tilt_rad: tuple[float, float] = (0.0, 0.0)
    history: dict[str, np.ndarray] = field(default_factory=dict)
    recipe: str = ""
    attrs: dict[str, Any] = field(default_factory=dict)
    nominal_px: np.ndarray | None = None
    background: np.ndarray | None = None
    weights: np.ndarray | None = None
    opr: np.ndarray | None = None

    def __post_init__(self) -> None:
        for name, array in (("object", self.object), ("probe", self.probe)):
            if array.ndim != 3 or not np.iscomplexobj(array) or array.size == 0:
                raise BadInput(f"The {name} is {array.dtype} {array.shape}; it must be complex with three axes.")
        views = len(self.positions_px)
        for name in ("positions_px", "positions_m", "nominal_px"):
            positions = getattr(self, name)
            if positions is not None and positions.shape != (views, 2):
                raise BadInput(f"{name} has shape {positions.shape}; it must be {(views, 2)}, one (y, x) per view.")

    def save(self, path: str | Path, tiles: ObjectTiles | None = None) -> None:
        """Write the file under a temporary name beside `path`, flush it to the disk, then rename it into place.

        On several ranks the first one writes, and the others return when it has.

        A file that was there before stays whole until that moment. Missing folders are made. tiles: the object, tile by
        tile, instead of `object`. Raises BadInput where `path` is a folder, PtymeshError where the disk refuses.
        """
        path = Path(path)
        if path.is_dir():
            raise BadInput(f"{path} is a folder; give the name of a file, such as {path / 'result.h5'}.")
        on_first_rank(lambda: self._save(path, tiles), str(path))

    def _save(self, path: Path, tiles: ObjectTiles | None) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with _renamed_into(path) as temporary, h5py.File(temporary, "w") as file:
                self._write(file, tiles)
                file.flush()
        except OSError as error:
            raise PtymeshError(
                f"{path} could not be written ({error.strerror or error}); check the space and the permissions there."
            ) from error

    def _write(self, file: h5py.File, tiles: ObjectTiles | None) -> None:
        if tiles is None:
            dataset = file.create_dataset("object", data=self.object)
        else:
            dataset = file.create_dataset("object", (len(self.object), *tiles.extent), self.object.dtype)
            for (top, left), tile in tiles.tiles:
                height, width = tile.shape[-2:]
                dataset[:, top : top + height, left : left + width] = tile
        if self.pixel_size_m is not None:
            dataset.attrs["pixel_size_m"] = np.asarray(self.pixel_size_m, dtype=np.float64)
        dataset.attrs["slice_spacing_m"] = float(self.slice_spacing_m)
        dataset.attrs["tilt_rad"] = np.asarray(self.tilt_rad, dtype=np.float64)
        file.create_dataset("probe", data=self.probe)
        file.create_dataset("positions_px", data=np.asarray(self.positions_px, dtype=np.float64))
        for name, key in _ARRAYS.items():
            if (array := getattr(self, name)) is not None:
                file.create_dataset(key, data=array)
        history = file.create_group("history")
        for key, column in self.history.items():
            column = np.asarray(column)
            text = column.dtype.kind in "UO"
            history.create_dataset(key, data=column.astype(h5py.string_dtype()) if text else column)
        file.create_dataset("recipe", data=self.recipe, dtype=h5py.string_dtype())
        attrs = {"ptymesh_version": version("ptymesh"), **self.attrs}
        file.attrs.update({key: value for key, value in attrs.items() if value is not None})

    @classmethod
    def load(cls, path: str | Path) -> Result:
        """Read a result file.

        Raises BadInput where it is missing, not HDF5, truncated or damaged, or not a result of ptymesh.
        """
        path = Path(path)
        with _opened(path) as file:
            pixel = file["object"].attrs.get("pixel_size_m") if "object" in file else None
            tilt = file["object"].attrs.get("tilt_rad", (0.0, 0.0)) if "object" in file else (0.0, 0.0)
            history = file.get("history", {})
            if isinstance(history, h5py.Dataset):
                raise BadInput(f"/history of {path} is a dataset, not a group; it is not a ptymesh result.")
            return cls(
                object=_array(file, "object"),
                probe=_array(file, "probe"),
                positions_px=_array(file, "positions_px"),
                pixel_size_m=None if pixel is None else (float(pixel[0]), float(pixel[1])),
                slice_spacing_m=float(file["object"].attrs.get("slice_spacing_m", 0.0)),
                tilt_rad=(float(tilt[0]), float(tilt[1])),
                history={key: _array(history, key) for key in history},
                recipe=str(_array(file, "recipe")) if "recipe" in file else "",
                attrs={key: value.tolist() if hasattr(value, "tolist") else value for key, value in file.attrs.items()},
                **{name: _array(file, key) for name, key in _ARRAYS.items() if key in file},
            )


@contextmanager
def _opened(path: Path) -> Iterator[h5py.File]:
    """The file, open for reading; whatever HDF5 has to say against it becomes one sentence."""
    if path.is_dir():
        raise BadInput(f"{path} is a folder; give the result file in it, such as {path / 'result.h5'}.")
    if not path.exists():
        raise BadInput(f"There is no file {path}; check the path.")
    if not os.access(path, os.R_OK):
        raise BadInput(f"{path} may not be read; check its permissions.")
    if not h5py.is_hdf5(path):
        raise BadInput(f"{path} is not an HDF5 file; give the result.h5 of a run.")
    try:
        with h5py.File(path, "r") as file:
            yield file
    except BadInput:
        raise
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        reason = str(error).strip("'\"")
        raise BadInput(f"{path} is truncated or damaged ({reason}); run again or take an older copy.") from error


def _array(group: h5py.Group, key: str) -> np.ndarray:
    """A dataset as numpy array, text as numpy strings."""
    dataset = group.get(key)
    if not isinstance(dataset, h5py.Dataset):
        raise BadInput(f"{group.file.filename} has no /{key}; it is not a ptymesh result: give the result.h5 of a run.")
    if h5py.check_string_dtype(dataset.dtype):
        return np.asarray(dataset.asstr()[()], dtype=np.str_)
    return np.asarray(dataset[()])


@contextmanager
def _renamed_into(path: Path) -> Iterator[Path]:
    """A temporary name beside `path`: on the disk and renamed when all went well, removed when not."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        _to_disk(temporary)
        os.replace(temporary, path)
        _to_disk(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _to_disk(path: Path) -> None:
    """fsync a file or a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
