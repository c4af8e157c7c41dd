"""Answers of the page that are computed when they are asked for: comparison, pattern, profile, caustic, ranks."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import h5py
import numpy as np
from matplotlib import colormaps
from scipy import ndimage

from ptymesh.errors import BadInput
from ptymesh.io.checkpoint import manifests
from ptymesh.run.checkpoint_counters import counters_of
from ptymesh.watch.comparing import SIDES, comparison_numbers, comparison_picture
from ptymesh.watch.growing import Row
from ptymesh.watch.pictures import png
from ptymesh.watch.runs import ObjectFile, OpenedArrays, RunFolder, own_dataset

if TYPE_CHECKING:
    from ptymesh.io.results import Result
    from ptymesh.measurement import Measurement
    from ptymesh.physics.beam.caustic import Caustic
    from ptymesh.physics.model import Model

#: Points of a profile, and pixels along the longer side of the region from which it is sampled.
PROFILE_POINTS, PROFILE_SIDE = 512, 2048
#: Largest object, in bytes, whose views are modelled here.
MODELLED_BYTES = 1 << 30

#: What is said of each rank, in results and in status.json, and its name on the page.
RANK_NAMES = {
    "rank_peak_bytes": "peak_bytes",
    "rank_computed_s": "computed_s",
    "rank_waited_s": "waited_s",
    "rank_sent_bytes_per_epoch": "sent_bytes",
    "rank_received_bytes_per_epoch": "received_bytes",
}

_scan_lock = threading.Lock()


@dataclass(frozen=True)
class PanelRequest:
    """Request for a panel.

    Attributes:
        run: that is shown.
        others: all runs by id, of which another may be compared.
        query: other values of the request.
        data: True if data that recipes name may be read.
    """

    run: RunFolder
    others: Mapping[str, RunFolder]
    query: Mapping[str, str]
    data: bool

    def file(self) -> ObjectFile:
        """Return the file of the run's object. Raises BadInput if there is none."""
        return _file_of(self.run)

    def result(self) -> ObjectFile:
        """Return the file of the run's result. Raises BadInput if there is none."""
        file = self.file()
        if not file.is_result:
            raise BadInput("This is shown once there is a result.")
        return file

    def pair(self) -> tuple[ObjectFile, ObjectFile]:
        """Return the files of the run and of the one that it is compared with. Raises BadInput if one is missing."""
        other = self.others.get(self.query.get("with", ""))
        if other is None:
            raise BadInput("The run to compare with is not there any more; choose another one.")
        return self.file(), _file_of(other)

    def numbers(self, name: str, count: int) -> list[float]:
        """Return finite numbers of the request.

        Args:
            name: of the value, which separates them by commas.
            count: how many there have to be.

        Raises:
            ValueError: it holds others.
        """
        numbers = [float(part) for part in self.query.get(name, "").split(",")]
        if len(numbers) != count or not np.isfinite(numbers).all():
            raise ValueError(f"{name} has to hold {count} numbers")
        return numbers


def _file_of(run: RunFolder) -> ObjectFile:
    file = run.object_file()
    if file is None:
        raise BadInput(f"The run {run.name} has no picture yet.")
    return file


def answer_comparison(request: PanelRequest) -> Row:
    """Return the numbers and curves of a comparison with another run."""
    return comparison_numbers(*request.pair())


def answer_comparison_picture(request: PanelRequest) -> bytes:
    """Return a picture of a comparison as PNG."""
    side = next((side for side in SIDES if side == request.query.get("side")), None)
    if side is None:
        raise ValueError(f"side has to be one of {', '.join(SIDES)}")
    return comparison_picture(*request.pair(), side, request.query.get("what", "phase"))


def answer_profile(request: PanelRequest) -> Row:
    """Return amplitude and phase along a line on the object, and its length.

    Values between pixels are interpolated linearly; of a long line on a large object, between blocks of pixels. The
    phase is unwrapped along the line and begins at 0.
    """
    points = np.array([request.numbers("from", 2), request.numbers("to", 2)])
    index = int(request.query.get("index", "0"))
    with OpenedArrays(request.file()) as arrays:
        sides = np.array(arrays.object_shape[1:])
        if not 0 <= index < arrays.object_shape[0] or (points < 0).any() or (points > sides).any():
            raise ValueError("the line lies beyond the object")
        first = np.maximum(np.floor(points.min(axis=0)).astype(int) - 1, 0)
        last = np.minimum(np.ceil(points.max(axis=0)).astype(int) + 1, sides)
        binning = 1
        while (last - first).max() > binning * PROFILE_SIDE:
            binning *= 2
        rows, columns = (slice(int(a), int(b)) for a, b in zip(first, last, strict=True))
        image = arrays.binned_region(index, rows, columns, binning)
        pixel = arrays.pixel_m
    # the centre of the first pixel of a block lies half a pixel in
    corner = first // binning * binning
    count = int(np.clip(np.ceil(np.hypot(*(points[1] - points[0])) / binning) + 1, 2, PROFILE_POINTS))
    share = np.linspace(0, 1, count)[:, None]
    places = (points[0] + share * (points[1] - points[0]) - corner) / binning - 0.5
    line = ndimage.map_coordinates(image.astype(np.complex128), places.T, order=1, mode="nearest")
    phase = np.unwrap(np.angle(line))
    step = points[1] - points[0]
    return {
        "length_px": float(np.hypot(*step)),
        "length_m": None if pixel is None else float(np.hypot(step[0] * pixel[0], step[1] * pixel[1])),
        "binning": binning,
        "amplitude": np.abs(line).tolist(),
        "phase": (phase - phase[0]).tolist(),
    }


def answer_pattern(request: PanelRequest) -> Row:
    """Return number, position and residual of the view that lies closest to a point on the object."""
    pixels = _pixels_of(request.file())
    with _scan_lock:
        file = _readable(request)
        loaded = _load_scan(file)
        middle = np.array(loaded.result.probe.shape[-2:]) / 2
        centres = pixels.from_result(loaded.result, loaded.result.positions_px + middle)
        if "view" in request.query:
            view = int(request.query["view"])
            if not 0 <= view < len(centres):
                raise ValueError(f"there are {len(centres)} views")
        else:
            view = int(((centres - request.numbers("at", 2)) ** 2).sum(axis=1).argmin())
        measured, modelled, good = loaded.pattern(view)
    difference = np.where(good, np.sqrt(modelled) - np.sqrt(measured), 0)
    return {
        "view": view,
        "views": len(centres),
        "centre": centres[view].tolist(),
        "counts": float(measured[good].sum()),
        "modelled_counts": float(modelled[good].sum()),
        "residual": float((difference**2).sum() / max(measured[good].sum(), 1e-30)),
        "version": str(file.modified),
        "file": file.kind,
    }


def answer_pattern_picture(request: PanelRequest) -> bytes:
    """Return a picture of a view as PNG.

    Measured and modelled counts are on one logarithmic scale; the residual is sqrt(model) - sqrt(measured), red where
    the model is brighter. Pixels that are not used are grey.
    """
    which = request.query.get("side", "measured")
    with _scan_lock:
        loaded = _load_scan(_readable(request))
        measured, modelled, good = loaded.pattern(int(request.query.get("view", "0")))
        if loaded.far_field:
            measured, modelled, good = (np.fft.fftshift(image) for image in (measured, modelled, good))
    if which == "residual":
        difference = np.sqrt(modelled) - np.sqrt(measured)
        most = max(float(np.percentile(np.abs(difference[good]), 99.8)), 1e-12)
        rgba = colormaps["RdBu_r"](0.5 + 0.5 * np.clip(difference / most, -1, 1))
    elif which in ("measured", "modelled"):
        logarithms = np.log1p(np.maximum(measured if which == "measured" else modelled, 0))
        rgba = colormaps["inferno"](np.clip(logarithms / max(float(np.log1p(measured[good].max())), 1e-12), 0, 1))
    else:
        raise ValueError("side has to be measured, modelled or residual")
    rgba[~good, :3] = 0.5
    return png(rgba)


@dataclass(frozen=True)
class ShownPixels:
    """Pixels of the picture that is shown, of which each may be several of the object.

    Attributes:
        binned: object pixels along the side of one.
        origin_px: object pixel at which the scan has its zero when the picture was drawn; None where it is the
            result's.
    """

    binned: int
    origin_px: np.ndarray | None

    def from_result(self, result: Result, places_px: np.ndarray) -> np.ndarray:
        """Return places on a result's object, (N, 2) y x, in pixels of the picture; the object may have grown since."""
        has_metres = self.origin_px is not None and result.positions_m is not None
        moved = self.origin_px - np.array(result.origin_px) if has_metres else 0.0
        return np.asarray((places_px + moved) / self.binned)


def _pixels_of(opened: ObjectFile) -> ShownPixels:
    """Return which pixels a picture of a file has."""
    if opened.kind != "preview":
        return ShownPixels(1, None)
    with h5py.File(opened.path, "r", locking=False) as file:
        return ShownPixels(int(file.attrs["binned"]), np.array(file.attrs["origin_px"], dtype=np.float64))


def _readable(request: PanelRequest) -> ObjectFile:
    """Return the result, or while there is none the last checkpoint. Raises BadInput if its data may not be read."""
    if not request.data:
        raise BadInput(
            "Patterns lie in the data that the recipe names, maybe outside of the folders that are shown; start "
            "`ptymesh watch --data` to read them."
        )
    file = request.run.estimate_file()
    if file is None:
        raise BadInput("Patterns are modelled once there is a checkpoint or a result; the run has written none yet.")
    if file.is_result:
        with OpenedArrays(file) as arrays:
            pixels = int(np.prod(arrays.object_shape))
    else:
        pixels = int(np.prod(counters_of(manifests.read_meta(file.path.parent.parent)).extent))
    if 8 * pixels > MODELLED_BYTES:
        raise BadInput("The object is too large to model a view of it in the page; `ptymesh view` draws patterns.")
    return file


@dataclass(frozen=True)
class LoadedScan:
    """A result with the data that it was made from.

    Attributes:
        result: object, probe and all other unknowns.
        scan: its data.
        model: by which the result explains patterns.
    """

    result: Result
    scan: Measurement
    model: Model

    @property
    def far_field(self) -> bool:
        """True if the zero frequency of patterns is in the corner."""
        return bool(self.scan.geometry.propagation == "far_field")

    def pattern(self, view: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return measured and modelled counts of a view, and True for pixels that are used, (h, w) each."""
        from ptymesh.run_folder.patterns import modelled

        if not 0 <= view < self.scan.views:
            raise ValueError(f"there are {self.scan.views} views")
        measured = self.scan.patterns.read(np.array([view]))[0].astype(np.float64)
        model = modelled(self.model, self.result, np.array([view]), self.scan)[0]
        good = np.asarray(self.scan.mask, dtype=bool) & (measured >= 0)
        return np.where(good, measured, 0), np.maximum(model, 0), good


@lru_cache(1)
def _load_scan(file: ObjectFile) -> LoadedScan:
    """Return a result, or what a checkpoint holds, with its data, which the recipe names."""
    from ptymesh.io.checkpoint import store
    from ptymesh.io.results import Result
    from ptymesh.recipe.scans import load_scan
    from ptymesh.recipe.schema import Recipe
    from ptymesh.run.state import read_estimate
    from ptymesh.run_folder.patterns import check_same, model_of

    if file.is_result:
        result = Result.load(file.path)
        if not result.recipe:
            raise BadInput("The result holds no recipe, which would say where its data are.")
        scan = load_scan(Recipe.from_yaml(result.recipe))
    else:
        saved = store.load(file.path.parent.parent)
        if not isinstance(saved.meta.get("recipe"), str):
            raise BadInput("The checkpoint holds no recipe, which would say where its data are.")
        recipe = Recipe.from_yaml(saved.meta["recipe"])
        scan = load_scan(recipe)
        result = read_estimate(saved, recipe, scan)
    check_same(result, scan)
    return LoadedScan(result, scan, model_of(result, scan.geometry, scan))


def answer_caustic(request: PanelRequest) -> Row:
    """Return in lines what the caustic of the probe says, and its curves of width, in metres."""
    from ptymesh.run_folder.caustic import caustic_lines

    caustic = _caustic(request.result())
    return {
        "lines": list(caustic_lines(caustic)),
        "z_m": caustic.z_m.tolist(),
        "curves": {"width_y": caustic.width_m[:, 0].tolist(), "width_x": caustic.width_m[:, 1].tolist()},
    }


def answer_caustic_picture(request: PanelRequest) -> bytes:
    """Return the beam from the side as PNG: along the axis to the right, across it in y or x downwards."""
    caustic = _caustic(request.result())
    profiles = caustic.profiles[0 if request.query.get("side") == "y" else 1]
    return png(colormaps["inferno"](np.clip(np.sqrt(profiles.T / max(float(profiles.max()), 1e-30)), 0, 1)))


@lru_cache(4)
def _caustic(result: ObjectFile) -> Caustic:
    """Return the caustic of a result's probe, without its object."""
    from ptymesh.run_folder.caustic import caustic_of_probe

    with h5py.File(result.path, "r", locking=False) as file:
        pixel = own_dataset(file, "object").attrs.get("pixel_size_m")
        size = None if pixel is None else (float(pixel[0]), float(pixel[1]))
        return caustic_of_probe(own_dataset(file, "probe")[()], size, dict(file.attrs))


def answer_ranks(request: PanelRequest) -> Row:
    """Return what each rank of a run has held, computed, waited and exchanged; empty if that is not known.

    While the run goes on this is as of its last checkpoint, and without the traffic per batch, which the result says.
    """
    status = request.run.status()
    attrs: Row = {}
    if "outcome" in status or not any(name in status for name in RANK_NAMES):
        with h5py.File(request.result().path, "r", locking=False) as file:
            attrs = dict(file.attrs)
    facts = attrs or status
    ranks = {
        short: np.atleast_1d(facts[name]).astype(float).tolist() for name, short in RANK_NAMES.items() if name in facts
    }
    traffic = {name: float(attrs[name]) for name in ("bytes_per_batch", "messages_per_batch") if name in attrs}
    return {"ranks": ranks, "traffic": traffic, "goes_on": not attrs}
