"""Result of a reconstruction, and its file: plain HDF5 that h5py alone can read.

N       views
M       incoherent probe modes
L       object slices
Q       incoherent object modes
H, W    object pixels
h, w    window pixels

    /object                 (L, H, W) complex    attrs pixel_size_m [y, x] (absent in pixel units), slice_spacing_m,
                                                 tilt_rad [y, x] of the axis along which slices are stacked
    /object_modes           (Q, L, H, W) complex when there are several, of which /object is the mean
    /probe                  (M, h, w) complex    optical axis at (h//2, w//2)
    /positions_px           (N, 2) float64 y x   window's top-left corner in object pixels
    /positions_m            (N, 2) float64 y x   when the pixel size is known
    /positions_nominal_px   (N, 2) float64 y x   where the positions started, when they were refined
    /held_out_views         (k,) integer         views that no update has seen, when some were held out
    /opr/weights            (N, 1 + K) float     amplitude of the incident beam per view, then its shares of /opr/modes
    /opr/modes              (K, h, w) complex    variable-probe modes; both when used
    /unknowns/*             real or complex      arrays of the model's operators (`optics`), in their units
    /parameters/*/*         numbers              that make up probe or positions, such as aberrations/C10 in metres
    /background             (h, w) float         counts added to every pattern, when there are any; (S, h, w) of S scans
                                                 that have their own
    /residuals              (N,) float64         final residual of each view
    /history/*              (epochs,)            epoch, stage, loss, residual, seconds, held_out, rate, and change_* of
                                                 each unknown that was moved, per epoch (run/unknown_changes.py)
    /recipe                 string               the YAML that reproduces the run
    /entry                                       NXdata groups for viewers: links to object and probe (hdf5/nxdata.py)
    attributes of the file                       final_residual, ptymesh_version, engine, ...
    attribute xxh3_128 of file and datasets      digests (digests.py), which are checked when the file is read; a file
                                                 that was changed on purpose is read once they are deleted
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import h5py
import numpy as np

from ptymesh.displayed import Displayed
from ptymesh.distributed.program import on_first_rank
from ptymesh.errors import BadInput
from ptymesh.files import replacing, target_of, writing
from ptymesh.io.hdf5 import digests, own_datasets
from ptymesh.io.hdf5.nxdata import VIEWED, write_default_plot
from ptymesh.io.hdf5.reading import reading
from ptymesh.io.hdf5.writing import new_hdf5
from ptymesh.paths import usable
from ptymesh.unknowns import LARGEST, OTHERS

_ARRAYS = {
    "positions_m": "positions_m",
    "nominal_px": "positions_nominal_px",
    "weights": "opr/weights",
    "opr": "opr/modes",
    "background": "background",
    "residuals": "residuals",
    "scan_index": "scans/index",
    "held_out_views": "held_out_views",
    "scan_probes": "scans/probes",
    "potential": "potential",
    "object_modes": "object_modes",
}
#: Arrays of the object's pixels, which may come tile by tile.
_FIELDS = ("object", "potential", "object_modes")
#: Arrays with a row per view that each scan's group repeats for its own views.
_BY_SCAN = ("positions_px", "positions_m", "residuals")
#: numpy's letters for what each dataset may hold; those that are not named hold real numbers.
_KINDS = {"object": "c", "probe": "c", "opr/modes": "c", "scans/probes": "c", "object_modes": "c", "recipe": "U"}
REAL = "fiu"


#: Name of a run's result in its folder.
RESULT_FILE = "result.h5"
#: Columns of the history that are numbers; others may be text.
NUMBERS = ("epoch", "loss", "residual", "seconds", "held_out", "rate")
#: Columns that begin so are how far an unknown has moved in an epoch.
CHANGE = "change_"


@dataclass(frozen=True)
class ObjectTiles:
    """An object that comes tile by tile.

    Attributes:
        extent: sides (H, W) of the whole object.
        tiles: corner (y, x) and values (..., h, w) of each tile.
    """

    extent: tuple[int, int]
    tiles: Iterator[tuple[tuple[int, int], np.ndarray]]


@dataclass
class Result(Displayed):
    """Result of a reconstruction, as numpy arrays.

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
        attrs: numbers and strings about the run: final_residual, verdict, engine, ranks, ... ; None is not stored.
        nominal_px: (N, 2) y x, positions from which the refinement started, or None.
        background: (h, w) counts in every pattern (DC where the patterns have it), of S scans that have their own
            (S, h, w), or None.
        weights: (N, 1 + K) amplitude of the incident beam per view, then its shares of the OPR modes, or None.
        opr: (K, h, w) complex, variable-probe modes, or None where there were none.
        residuals: (N,) final residual of each view, sum (sqrt I - sqrt y)^2 / sum y over its good pixels, or None.
        parameters: numbers that make up probe or positions (ptymesh.models), by parametrisation and name.
        unknowns: arrays of the unknowns of the model's operators (`optics` of a recipe), by name.
        scan_probes: (S, M, h, w) complex, the probe of each scan, or None where all have `probe`.
        scan_index: (N,) number of the scan that each view is of (`attrs["scan_names"]`), or None for a single scan.
        held_out_views: (k,) views that no update has seen, or None where none were held out.
        potential: (L, H, W) phase in rad without wraps, where the object was a potential, and `object` follows from it
            by `attrs["absorption"]`, or where it was an amplitude_phase. For electrons it is
            `attrs["interaction_rad_per_V_nm"]` times the projected potential.
        object_modes: (Q, L, H, W) complex, incoherent modes of the object, such as frozen phonons, all equally likely,
            or None for a single one. `object` (or `potential`) is their mean.

    Raises BadInput where types and shapes are not these, or do not fit together.
    """

    displayed_by: ClassVar[str] = "ptymesh.notebook.results"

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
    residuals: np.ndarray | None = None
    parameters: dict[str, dict[str, float]] = field(default_factory=dict)
    unknowns: dict[str, np.ndarray] = field(default_factory=dict)
    scan_index: np.ndarray | None = None
    scan_probes: np.ndarray | None = None
    potential: np.ndarray | None = None
    object_modes: np.ndarray | None = None
    held_out_views: np.ndarray | None = None

    def __post_init__(self) -> None:
        for name in ("object", "probe", "positions_px", *_ARRAYS):
            array = getattr(self, name)
            if not isinstance(array, np.ndarray) and (array is not None or name not in _ARRAYS):
                raise BadInput(f"{name} of the result is of type {type(array).__name__}; give a numpy array.")
        for name, kind in (
            ("recipe", str),
            ("history", dict),
            ("attrs", dict),
            ("parameters", dict),
            ("unknowns", dict),
        ):
            if not isinstance(value := getattr(self, name), kind):
                raise BadInput(f"{name} of the result is of type {type(value).__name__}; give a {kind.__name__}.")
        for name, count in (("pixel_size_m", 2), ("slice_spacing_m", 1), ("tilt_rad", 2)):
            if (number := getattr(self, name)) is not None or name != "pixel_size_m":
                _numbers(number, name, "the result", count, positive=name == "pixel_size_m")
        for name, array in (("object", self.object), ("probe", self.probe)):
            if array.ndim != 3 or not np.iscomplexobj(array) or array.size == 0:
                raise BadInput(f"The {name} is {array.dtype} {array.shape}; it must be complex with three axes.")
        for name in ("positions_px", *_ARRAYS):
            array = getattr(self, name)
            is_complex = name in ("opr", "scan_probes", "object_modes")
            if array is not None and array.dtype.kind not in ("c" if is_complex else REAL):
                wanted_kind = "complex" if is_complex else "real"
                raise BadInput(f"{name} is {str(array.dtype)[:60]} {array.shape}; it must hold {wanted_kind} numbers.")
        if self.positions_px.ndim != 2:
            raise BadInput(f"positions_px has shape {self.positions_px.shape}; it must have one (y, x) per view.")
        views = len(self.positions_px)
        for name in ("positions_px", "positions_m", "nominal_px"):
            positions = getattr(self, name)
            if positions is not None and positions.shape != (views, 2):
                raise BadInput(f"{name} has shape {positions.shape}; it must be {(views, 2)}, one (y, x) per view.")
        if self.scan_index is not None and self.scan_index.shape != (views,):
            raise BadInput(f"scan_index has shape {self.scan_index.shape}; it must be {(views,)}, one scan per view.")
        held_out = np.empty(0, dtype=np.int64) if self.held_out_views is None else self.held_out_views
        if held_out.ndim != 1 or held_out.dtype.kind not in "iu" or (held_out < 0).any() or (held_out >= views).any():
            raise BadInput(
                f"held_out_views is {held_out.dtype} {held_out.shape}; it must hold indices of the {views} views."
            )
        if self.potential is not None and self.potential.shape != self.object.shape:
            raise BadInput(f"potential has shape {self.potential.shape}; it must be {self.object.shape}, the object's.")
        if self.object_modes is not None and self.object_modes.shape[1:] != self.object.shape:
            raise BadInput(
                f"object_modes has shape {self.object_modes.shape}; it must be (modes, "
                f"{', '.join(map(str, self.object.shape))}), the object's."
            )
        if self.scan_probes is not None:
            self._check_scan_probes(self.scan_probes)

    def _check_scan_probes(self, probes: np.ndarray) -> None:
        """Raise BadInput unless there is a probe like `probe` for each of the scans that views are of."""
        index = self.scan_index
        if index is None or probes.shape[1:] != self.probe.shape or not len(probes) or index.max() >= len(probes):
            raise BadInput(
                f"scan_probes has shape {probes.shape}; it must be (scans, {', '.join(map(str, self.probe.shape))}), "
                "one for each scan in scan_index."
            )

    def __repr__(self) -> str:
        slices, height, width = self.object.shape
        modes = "" if self.object_modes is None else f", {len(self.object_modes)} object modes"
        engine, residual = self.attrs.get("engine"), self.attrs.get("final_residual")
        return (
            f"<Result: object {slices} x {height} x {width}{modes}, "
            f"{len(self.probe)} mode{'s' * (len(self.probe) != 1)}, "
            f"{len(self.positions_px)} views"
            + (f", {engine}" if engine else "")
            + (f", final residual {residual:.4g}" if isinstance(residual, int | float) else "")
            + (f", {self.verdict}" if self.verdict else "")
            + ">"
        )

    @property
    def verdict(self) -> str:
        """Verdict on the picture: good, poor, failed or unknown; empty in results of older versions.

        `attrs["verdict_sentence"]` says why.
        """
        return str(self.attrs.get("verdict", "")) if "verdict_sentence" in self.attrs else ""

    @property
    def convergence(self) -> str:
        """Words on the convergence of the iteration, which say nothing of the picture; empty without epochs."""
        older = "" if "verdict_sentence" in self.attrs else self.attrs.get("verdict", "")
        return str(self.attrs.get("convergence") or older or "")

    @property
    def amplitude(self) -> np.ndarray:
        """|object|, (L, H, W)."""
        return np.abs(self.object)

    @property
    def phase(self) -> np.ndarray:
        """Phase of the object (rad), (L, H, W): its potential where it has one, else between -pi and pi.

        `ptymesh.plot.unwrapped_phase` unwraps it.
        """
        return np.angle(self.object) if self.potential is None else self.potential

    @property
    def potential_V_nm(self) -> np.ndarray | None:
        """Projected potential of each slice in V nm, (L, H, W), of an electron's result with a potential; else None."""
        sigma = self.attrs.get("interaction_rad_per_V_nm")
        return None if self.potential is None or sigma is None else self.potential / float(sigma)

    @property
    def origin_px(self) -> tuple[float, float]:
        """Object pixel (y, x), fractional, under a window's corner whose `positions_m` are zero; (0, 0) without any."""
        if self.positions_m is None or self.pixel_size_m is None or not len(self.positions_m):
            return 0.0, 0.0
        y, x = np.median(self.positions_px - self.positions_m / np.asarray(self.pixel_size_m), axis=0)
        return float(y), float(x)

    def plot(self) -> Any:
        """Return a figure of object, strongest probe modes, illumination and residual, which a notebook shows."""
        return self._figure()

    def to_xarray(self) -> Any:
        """Return the result as an xarray.Dataset, with coordinates in metres (`ptymesh.io.labelled`).

        Raises:
            BadInput: xarray is not installed.
        """
        return import_module("ptymesh.io.labelled").dataset(self)

    def to_hyperspy(self, of: str = "object") -> Any:
        """Return the object (or, of="probe", the probe) as a hyperspy ComplexSignal2D, with calibrated axes.

        Raises:
            BadInput: `of` is another word, or hyperspy is not installed.
        """
        return import_module("ptymesh.io.labelled").signal(self, of)

    @property
    def planes(self) -> np.ndarray:
        """All object modes as one stack of planes, (Q L, H, W): the slices of one after the other's."""
        return self.object if self.object_modes is None else self.object_modes.reshape(-1, *self.object.shape[1:])

    def save(self, path: str | Path, tiles: Mapping[str, ObjectTiles] | None = None) -> None:
        """Write the file under a temporary name beside `path`, flush it to the disk, then rename it into place.

        On several ranks the first one writes, and the others return when it has. A file that was there before stays
        complete until it is replaced; if `path` is a link to a file, that file is replaced. Missing folders are made.

        Args:
            path: the file.
            tiles: arrays that are written tile by tile instead of from this result, by name: `object`, and where there
                are any, `potential`, `object_modes` and `unknown/NAME`. With them only the first rank may call this.

        Raises:
            BadInput: `path` cannot be a file.
            PtymeshError: the disk refuses.
        """
        path = usable(path, "The result")
        if tiles is None:
            on_first_rank(lambda: self._save(path, {}), str(path))
        else:
            self._save(path, tiles)

    def _save(self, path: Path, tiles: Mapping[str, ObjectTiles]) -> None:
        target_of(path)
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, self._bytes(tiles)) as temporary, new_hdf5(temporary) as file:
            self._write(file, tiles)
            digests.sign(file)

    def _bytes(self, tiles: Mapping[str, ObjectTiles]) -> int:
        """Return the bytes that the arrays take in the file."""
        arrays = [getattr(self, name) for name in ("object", "probe", "positions_px", *_ARRAYS)]
        total = sum(array.nbytes for array in arrays if array is not None)
        for name, one in tiles.items():
            part = self.unknowns[name.removeprefix(OTHERS)] if name.startswith(OTHERS) else getattr(self, name)
            total += math.prod((*part.shape[:-2], *one.extent)) * part.itemsize - part.nbytes
        return total

    def _write(self, file: h5py.File, tiles: Mapping[str, ObjectTiles]) -> None:
        for name in _FIELDS:
            if (values := getattr(self, name)) is not None:
                _write_field(file, name, values, tiles.get(name))
        dataset = file["object"]
        if self.potential is not None:
            file["potential"].attrs["unit"] = "rad"
        if self.object_modes is not None:
            file["object_modes"].attrs["axes"] = ["object mode", "slice", "y", "x"]
        if self.pixel_size_m is not None:
            dataset.attrs["pixel_size_m"] = np.asarray(self.pixel_size_m, dtype=np.float64)
        dataset.attrs["slice_spacing_m"] = float(self.slice_spacing_m)
        dataset.attrs["tilt_rad"] = np.asarray(self.tilt_rad, dtype=np.float64)
        file.create_dataset("probe", data=self.probe)
        write_default_plot(file, self.pixel_size_m, self.slice_spacing_m, self.origin_px)
        file.create_dataset("positions_px", data=np.asarray(self.positions_px, dtype=np.float64))
        for name, key in _ARRAYS.items():
            if name not in _FIELDS and (array := getattr(self, name)) is not None:
                file.create_dataset(key, data=array)
        self._write_scans(file)
        history = file.create_group("history")
        for key, column in self.history.items():
            column = np.asarray(column)
            text = column.dtype.kind in "UO"
            history.create_dataset(key, data=column.astype(h5py.string_dtype()) if text else column)
        for name, numbers in self.parameters.items():
            for term, number in numbers.items():
                file.create_dataset(f"parameters/{name}/{term}", data=float(number))
        for name, values in self.unknowns.items():
            _write_field(file, f"unknowns/{name}", np.asarray(values), tiles.get(OTHERS + name))
        file.create_dataset("recipe", data=self.recipe, dtype=h5py.string_dtype())
        attrs = {"ptymesh_version": version("ptymesh"), **self.attrs}
        file.attrs.update({key: value for key, value in attrs.items() if value is not None})

    @property
    def _own_backgrounds(self) -> np.ndarray | None:
        """Backgrounds (S, h, w) of scans that have their own, or None."""
        return self.background if self.background is not None and self.background.ndim == 3 else None

    def background_of(self, views: np.ndarray) -> np.ndarray | None:
        """Return the background of views, (h, w) for all or (B, h, w) for each; None without one.

        Args:
            views: (B,) integer, indices.
        """
        backgrounds = self._own_backgrounds
        return (
            self.background if backgrounds is None or self.scan_index is None else backgrounds[self.scan_index[views]]
        )

    def of_scan(self, number: int) -> Result:
        """Return what is of one of several scans: the object under its windows, its views, its probe.

        Args:
            number: of the scan, from 0.

        Raises:
            BadInput: there is no such scan.
        """
        count = 1 if self.scan_index is None else int(self.scan_index.max()) + 1
        if self.scan_index is None or not 0 <= number < count:
            raise BadInput(f"There is no scan {number}; the result is of {count}, numbered from 0.")
        top, left, bottom, right = self._scan_box(number)
        views = self.scan_index == number

        def of_views(array: np.ndarray | None) -> np.ndarray | None:
            return None if array is None else array[views]

        return Result(
            object=self.object[:, top:bottom, left:right],
            probe=self.probe if self.scan_probes is None else self.scan_probes[number],
            positions_px=self.positions_px[views] - np.array([top, left]),
            positions_m=of_views(self.positions_m),
            pixel_size_m=self.pixel_size_m,
            slice_spacing_m=self.slice_spacing_m,
            tilt_rad=self.tilt_rad,
            background=self.background if self._own_backgrounds is None else self._own_backgrounds[number],
            weights=of_views(self.weights),
            opr=self.opr,
            residuals=of_views(self.residuals),
        )

    def _scan_box(self, number: int) -> tuple[int, int, int, int]:
        """Return the part of the object under the windows of a scan: top, left, bottom, right in pixels."""
        positions = self.positions_px[self.scan_index == number]
        (top, left), window = np.floor(positions.min(axis=0)).astype(int).tolist(), np.array(self.probe.shape[-2:])
        bottom, right = (np.ceil(positions.max(axis=0)).astype(int) + window).tolist()
        return max(0, top), max(0, left), bottom, right

    def _write_scans(self, file: h5py.File) -> None:
        """Write a group for each of several scans, `scans/0` and so on, with what there is of its own views."""
        if self.scan_index is None:
            return
        for number in np.unique(self.scan_index).tolist():
            group, views = file.create_group(f"scans/{number}"), np.flatnonzero(self.scan_index == number)
            names = self.attrs.get("scan_names") or []
            group.attrs["name"] = str(names[number]) if number < len(names) else str(number)
            group.create_dataset("views", data=views)
            group.attrs["object_box_px"] = self._scan_box(number)
            for name in _BY_SCAN:
                if (array := getattr(self, name)) is not None:
                    group.create_dataset(name, data=array[views])
            if self.scan_probes is not None:
                group.create_dataset("probe", data=self.scan_probes[number])
            if self._own_backgrounds is not None:
                group.create_dataset("background", data=self._own_backgrounds[number])

    @classmethod
    def load(cls, path: str | Path) -> Result:
        """Read a result file.

        Raises BadInput where it is missing, not HDF5, truncated or damaged, or not a result of ptymesh.
        """
        path = usable(path, "The result")
        with _opened(path) as file:
            digests.check(file)
            obj = _array(file, "object")
            about = file["object"].attrs
            history = own_datasets.member(file, "history") or {}
            if isinstance(history, h5py.Dataset):
                raise BadInput(f"/history of {path} is a dataset, not a group; it is not a ptymesh result.")
            spacing = _numbers(about.get("slice_spacing_m", 0.0), "slice_spacing_m", path, 1, positive=False)[0]
            result = cls(
                object=obj,
                probe=_array(file, "probe"),
                positions_px=_array(file, "positions_px"),
                pixel_size_m=_pair(about["pixel_size_m"], "pixel_size_m", path) if "pixel_size_m" in about else None,
                slice_spacing_m=spacing,
                tilt_rad=_pair(about.get("tilt_rad", (0.0, 0.0)), "tilt_rad", path),
                history={key: _array(history, key, REAL if _is_number(key) else REAL + "U") for key in history},
                recipe=str(_array(file, "recipe")) if own_datasets.member(file, "recipe") else "",
                attrs=_attributes(file),
                parameters=_parameters(file, path),
                unknowns=_unknowns(file, path),
                **{name: _array(file, key) for name, key in _ARRAYS.items() if own_datasets.member(file, key)},
            )
        result._check(path)
        return result

    def _check(self, path: Path) -> None:
        """Raise BadInput if what was read from `path` does not fit together, or is not finite."""
        views, modes = len(self.positions_px), 0 if self.opr is None else len(np.atleast_1d(self.opr))
        window = self.probe.shape[-2:]
        shapes = {"weights": (views, 1 + modes), "opr": (modes, *window), "residuals": (views,)}
        if self.background is not None:  # the model's pixels may be finer than the detector's
            finer = max(1, window[0] // max(1, (1, 1, *self.background.shape)[-2]))
            shapes["background"] = tuple(n // finer for n in window)
            if self._own_backgrounds is not None and self.scan_index is not None and len(self.scan_index):
                shapes["background"] = (int(self.scan_index.max()) + 1, *shapes["background"])
        if modes and self.weights is None:
            raise BadInput(f"/opr/modes of {path} has {modes} modes, of which no /opr/weights say the shares.")
        for name, expected_shape in shapes.items():
            array = getattr(self, name)
            if array is not None and array.shape != expected_shape:
                raise BadInput(f"{name} of {path} has shape {array.shape}; it should be {expected_shape}.")
        for name in ("object", "probe", "positions_px", *_ARRAYS):
            array = getattr(self, name)
            if array is not None and not np.isfinite(array).all():
                raise BadInput(
                    f"The {name} of {path} holds values that are not finite; take another result, or run again."
                )
        beyond = max(self.object.shape[-2:]) + max(window)  # where windows may lie, with room to spare
        limits = dict.fromkeys(("object", "probe", "opr", "weights", "background"), LARGEST)
        limits |= {"object_modes": LARGEST, "positions_px": beyond, "nominal_px": beyond}
        for name, most in limits.items():
            array = getattr(self, name)
            # in double precision: half precision has no number for most limits
            if array is not None and (np.abs(array) > np.float64(most)).any():
                raise BadInput(f"The {name} of {path} holds values beyond {most:g}, which cannot be; run again.")


def _write_field(file: h5py.File, key: str, values: np.ndarray, tiles: ObjectTiles | None) -> h5py.Dataset:
    """Write a field of the object, whole or tile by tile, and return its dataset."""
    if tiles is None:
        return file.create_dataset(key, data=values)
    dataset = file.create_dataset(key, (*values.shape[:-2], *tiles.extent), values.dtype)
    for (top, left), tile in tiles.tiles:
        height, width = tile.shape[-2:]
        dataset[..., top : top + height, left : left + width] = tile
    return dataset


def read_attributes(path: str | Path) -> dict[str, Any]:
    """Return the attributes of a result's file, without its arrays. Raises BadInput where it is none."""
    with _opened(usable(path, "The result")) as file:
        return _attributes(file)


def add_attributes(path: Path, attrs: dict[str, Any]) -> None:
    """Add attributes to a result's file, which stays whole until a changed copy takes its place.

    Raises PtymeshError where the disk refuses.
    """
    with replacing(path, path.stat().st_size) as temporary:
        shutil.copyfile(path, temporary)
        with h5py.File(temporary, "r+") as file:
            file.attrs.update(attrs)
            digests.sign_attributes(file)


def file_in(path: Path) -> Path:
    """Return the result of a run's folder, or the path itself where there is none."""
    try:
        return path / RESULT_FILE if (path / RESULT_FILE).is_file() else path
    except OSError:
        return path  # reading it will report the error


def _explain_folder(path: Path) -> str:
    """Return a sentence about a folder in place of a result."""
    if (path / RESULT_FILE).is_file():
        return f"{path} is a folder; give the result in it, {path / RESULT_FILE}."
    if (path / "checkpoint").is_dir():
        return f"{path} is a folder without {RESULT_FILE}: its run has not ended; `ptymesh resume {path}` continues it."
    names = sorted(one.name for one in path.iterdir() if not one.name.startswith("."))
    content = f"it has {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}" if names else "it is empty"
    return f"{path} is a folder without {RESULT_FILE} ({content}); give the result of a run."


@contextmanager
def _opened(path: Path) -> Iterator[h5py.File]:
    """Open a file for reading; what HDF5 raises becomes one sentence."""
    try:
        if path.is_dir():
            raise BadInput(_explain_folder(path))
        if not path.exists():
            raise BadInput(f"There is no file {path}; check the path.")
        if not path.is_file():
            raise BadInput(f"{path} is not a regular file; give the result.h5 of a run.")
        with path.open("rb"):
            pass
    except (OSError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{path} cannot be read ({getattr(error, 'strerror', None) or error}); check it.") from error
    if not h5py.is_hdf5(path):
        raise BadInput(f"{path} is not an HDF5 file; give the result.h5 of a run.")
    with reading(str(path), "run again or take an older copy"), h5py.File(path, "r", locking="best-effort") as file:
        yield file


def _is_number(column: str) -> bool:
    return column in NUMBERS or column.startswith(CHANGE)


def _array(group: h5py.Group, key: str, kinds: str = "") -> np.ndarray:
    """Return a dataset as numpy array, text as numpy strings."""
    dataset = own_datasets.dataset(group, key, kinds or _KINDS.get(key, REAL))
    if dataset is None:
        raise BadInput(f"{group.file.filename} has no /{key}; it is not a ptymesh result: give the result.h5 of a run.")
    if h5py.check_string_dtype(dataset.dtype):
        return np.asarray(dataset.asstr()[()], dtype=np.str_)
    values = np.asarray(dataset[()])
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def _parameters(file: h5py.File, path: Path) -> dict[str, dict[str, float]]:
    """Return numbers by parametrisation and name; raise BadInput if there is something else."""
    parameters: dict[str, dict[str, float]] = {}
    groups = own_datasets.member(file, "parameters")
    if groups is None:
        return parameters
    for name in groups if isinstance(groups, h5py.Group) else ("",):
        group = own_datasets.member(file, f"parameters/{name}")
        if not isinstance(group, h5py.Group):
            raise BadInput(f"/parameters/{name} of {path} is no group of numbers; it is not a ptymesh result.")
        sources = {term: (_array(group, term), f"{group.name}/{term}") for term in group}
        parameters[name] = {term: _numbers(*one, path, 1, positive=False)[0] for term, one in sources.items()}
    return parameters


def _unknowns(file: h5py.File, path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of the model's operators by name; raise BadInput if there is something else."""
    group = own_datasets.member(file, "unknowns")
    if group is None:
        return {}
    if not isinstance(group, h5py.Group):
        raise BadInput(f"/unknowns of {path} is no group of arrays; it is not a ptymesh result.")
    arrays = {name: _array(group, name, REAL + "c") for name in group}
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise BadInput(f"The {name} of {path} holds values that are not finite; take another result, or run again.")
    return arrays


def _attributes(file: h5py.File) -> dict[str, Any]:
    """Return the file's attributes as Python's numbers, strings and lists, without its digest and those for viewers."""
    attributes = {key: value for key, value in file.attrs.items() if key not in (digests.NAME, *VIEWED)}
    return {key: value.tolist() if hasattr(value, "tolist") else value for key, value in attributes.items()}


def _pair(value: Any, name: str, path: Path) -> tuple[float, float]:
    y, x = _numbers(value, name, path, 2, positive=name == "pixel_size_m")
    return y, x


def _numbers(value: Any, name: str, path: Path | str, count: int, *, positive: bool) -> list[float]:
    """Return an attribute's value as a list of `count` finite numbers; raise BadInput if it is something else."""
    try:
        array = np.asarray(value)
    except ValueError:  # lists within lists
        array = np.zeros(0)
    usable = array.dtype.kind in REAL and array.size == count and bool(np.isfinite(array).all())
    if not usable or (positive and bool((array <= 0).any())):
        expected = f"{'a ' if count == 1 else f'{count} '}{'positive ' if positive else ''}number{'s' * (count > 1)}"
        raise BadInput(f"{name} of {path} is {str(value)[:80]}; it should be {expected}.")
    return [float(number) for number in array.reshape(-1)]
