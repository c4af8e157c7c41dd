"""Runs in folders, as far as their files tell: what is going on, how far it is, what came out.

L, H, W  slices, object pixels;  M, h, w  modes, window pixels
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import h5py
import numpy as np

from ptymesh.distributed.processes import fate_of
from ptymesh.distributed.tiles import Rect
from ptymesh.files import machine
from ptymesh.io.checkpoint import manifests
from ptymesh.recipe.yaml_text import parsed
from ptymesh.run_folder import pyramid
from ptymesh.run_folder.control import WORDS, read_request, write_request
from ptymesh.watch.arriving import summarise_stream
from ptymesh.watch.growing import GrowingFiles, Row

#: File of a study of `ptymesh tune`, with a line for each trial.
TRIALS = "trials.jsonl"
#: Files one of which a folder holds that is a run.
SIGNS = ("status.json", "metrics.jsonl", "live.jsonl", "result.h5", TRIALS)
#: Levels below a given folder at which runs are looked for, and runs that are shown, the newest first.
LEVELS, MOST_RUNS = 3, 500
#: Trials of a study that are shown, the last ones.
MOST_TRIALS = 2000
#: Views whose positions are shown, at most about so many.
MOST_VIEWS = 4000
#: Bytes of the log's end that are shown.
LOG_BYTES = 20_000
#: Seconds without a sign of life after which a run without an outcome is called silent; where it says how often it
#: gives one, and its process cannot be looked at from here, so many times that, and at least so many seconds.
SILENT_S, BEATS, LEAST_SILENT_S = 120.0, 5.0, 15.0
#: Seconds without a change after which a study is called silent: a trial may take long.
STUDY_SILENT_S = 3600.0
#: Largest status that is read, in bytes, and texts and numbers that are taken of it.
STATUS_BYTES = 1 << 16
TEXTS = ("phase", "engine", "outcome", "sentence", "host", "machine", "command")
NUMBERS: tuple[str, ...] = (
    "stage",
    "stages",
    "epoch",
    "epochs",
    "batch",
    "batches",
    "done_epochs",
    "total_epochs",
    "residual",
)
NUMBERS += ("frames", "expected_frames", "seconds_left", "pid", "ranks", "started", "beat", "beat_every_s")
#: Lists of the status with a number for each rank.
RANKS: tuple[str, ...] = ("rank_peak_bytes", "rank_computed_s", "rank_waited_s")
RANKS += ("rank_sent_bytes_per_epoch", "rank_received_bytes_per_epoch")
#: Phases of a live run, whose lines are in live.jsonl, also where an earlier run in the folder has left others.
LIVE_PHASES = ("receiving", "finishing")
#: Pixels of the object that are read at a time where it is binned.
BAND_PIXELS = 1 << 24
#: Outcomes of a run that ends without a result.
WITHOUT_RESULT = ("failed", "interrupted", "diverged")


@dataclass(frozen=True)
class ObjectFile:
    """File from which object and probe of a run can be drawn.

    Attributes:
        path: of the result or preview, or of a checkpoint's manifest.
        kind: which of these.
        modified: time of the file in ns.
    """

    path: Path
    kind: Literal["result", "preview", "checkpoint"]
    modified: int

    @property
    def is_result(self) -> bool:
        """True for the result of a run, also of a live one."""
        return self.kind == "result"


class RunFolder:
    """The folder of a run.

    Args:
        folder: of the run.
        root: folder below which it was found; names are relative to it.
        lines: what was read of metrics before.
    """

    def __init__(self, folder: Path, root: Path, lines: GrowingFiles | None = None) -> None:
        self.folder, self._lines = folder, lines or GrowingFiles()
        relative = folder.relative_to(root)
        self.name = root.name if relative == Path() else str(relative)
        self.id = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]

    @property
    def modified(self) -> float:
        """Time of the latest change of a file that shows progress."""
        times = []
        for name in (*SIGNS, "log.txt"):
            with suppress(OSError):
                times.append((self.folder / name).stat().st_mtime)
        return max(times, default=0.0)

    def _path_of(self, *names: str) -> Path:
        """Return the path of a file of the run.

        Raises:
            OSError: it is a link, or lies behind one: what it leads to was not given to be shown.
        """
        path = self.folder.joinpath(*names)
        if os.path.realpath(path) != os.path.join(os.path.realpath(self.folder), *names):
            raise OSError(f"{path} is a link")
        return path

    def summary(self) -> Row:
        """Return what a list of runs shows."""
        rows = self.rows()
        epochs = [row for row in rows if "residual" in row]
        verdict: Row = next((row for row in reversed(rows) if "verdict" in row), {})
        last, status = epochs[-1] if epochs else {}, self.status()
        state, silent_s = self._state(verdict, status)
        return {
            "id": self.id,
            "name": self.name,
            "state": state,
            "silent_s": silent_s,
            "asked": read_request(self.folder) if state == "running" else None,
            "status": status,
            "verdict": verdict.get("verdict"),
            "sentence": verdict.get("verdict_sentence") or (None if state == "running" else status.get("sentence")),
            "epochs": len(epochs),
            "live": summarise_stream(epochs),
            "trials": len(self.trials()),
            "engine": last.get("engine"),
            "residual": verdict.get("final_residual", last.get("residual")),
            "modified": self.modified,
        }

    def status(self) -> Row:
        """Return what status.json says, or nothing: of its keys those whose values are of the right kind."""
        with suppress(OSError, ValueError), self._path_of("status.json").open("rb") as file:
            status = json.loads(file.read(STATUS_BYTES), parse_constant=lambda _: None)
            if isinstance(status, dict):
                texts = {name: status[name][:2000] for name in TEXTS if isinstance(status.get(name), str)}
                numbers = {name: status[name] for name in NUMBERS if type(status.get(name)) in (int, float)}
                ranks = {name: status[name] for name in RANKS if _are_numbers(status.get(name))}
                return texts | numbers | ranks
        return {}

    def _state(self, verdict: Row, status: Row) -> tuple[str, float | None]:
        """Return running, done, failed, diverged, interrupted or silent, and for how many seconds it has been silent.

        Args:
            verdict: last line of the metrics; empty before there is one.
            status: of the run.
        """
        outcome, phase = status.get("outcome"), status.get("phase")
        if outcome in WITHOUT_RESULT and phase != "done":
            return str(outcome), None
        is_result_alone = not self.rows() and (self.folder / "result.h5").exists()
        is_live_done = (self.folder / "live.json").exists()  # what polishes it afterwards has a status
        if phase == "done" or (not status and (verdict or is_result_alone or is_live_done)):
            return "done", None
        if not status and not verdict and (trials := self.trials()):
            going = any(one["state"] in ("running", "waiting") for one in trials)
            silent_s = round(max(time.time() - self.modified, 0.0), 1)
            return ("done", None) if not going else ("silent" if silent_s > STUDY_SILENT_S else "running", silent_s)
        silent_s = round(max(time.time() - max(self.modified, status.get("beat", 0.0)), 0.0), 1)
        process = _fate(status)
        beat_s = status.get("beat_every_s") if phase == "stage" and process is None else None
        longest = SILENT_S if beat_s is None else max(LEAST_SILENT_S, BEATS * beat_s)
        return ("silent" if process == "gone" or silent_s > longest else "running"), silent_s

    def ask(self, word: str) -> None:
        """Ask the run to stop, or for a checkpoint.

        Args:
            word: `stop` or `save`.

        Raises:
            ValueError: another word, or the run does not go on.
            OSError: its folder cannot be written to.
        """
        if word not in WORDS:
            raise ValueError(f"a run can be asked to {' or '.join(WORDS)}")
        state = self.summary()["state"]
        if state != "running" or not self.status():
            raise ValueError(f"the run {self.name} is {state}, and takes no requests")
        write_request(self.folder, word)

    def rows(self) -> list[Row]:
        """Return the lines of metrics.jsonl, or of live.jsonl where there are none, as far as they are whole.

        While frames arrive, metrics are of an earlier run in the folder.
        """
        names = ("live.jsonl",) if self.status().get("phase") in LIVE_PHASES else ("metrics.jsonl", "live.jsonl")
        for name in names:
            with suppress(OSError):
                if rows := self._lines.rows(self._path_of(name)):
                    return rows
        return []

    def details(self) -> Row:
        """Return what the page of a run shows besides its pictures."""
        rows = [row for row in self.rows() if "residual" in row]
        curves = {
            name: [row.get(name) for row in rows]
            for name in ("residual", "held_out", "noise_floor", "loss", "views_per_s")
            if any(isinstance(row.get(name), int | float) for row in rows)
        }
        details = self.summary() | {
            "curves": curves,
            "log": self._log(),
            "recipe": self._recipe(),
        }
        return details | {"arrays": self.shapes(), "trials": self.trials(), "resumable": self.can_resume()}

    def trials(self) -> list[Row]:
        """Return the trials of a study: number, state, value, settings and seconds of each; none of a run."""
        with suppress(OSError):
            names = ("number", "state", "value", "settings", "seconds", "why")
            rows = self._lines.rows(self._path_of(TRIALS))
            return [{name: row.get(name) for name in names} for row in rows[-MOST_TRIALS:] if "number" in row]
        return []

    def _log(self) -> str:
        """Return the end of the log."""
        with suppress(OSError), self._path_of("log.txt").open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - LOG_BYTES))
            return file.read().decode("utf-8", errors="replace")
        return ""

    def _recipe(self) -> str:
        """Return the recipe, from the result, the checkpoint, or the record of a start."""
        with suppress(Exception):
            newest = max((one for one in self._object_files() if one.kind != "preview"), key=_age, default=None)
            if newest is not None and newest.is_result:
                with h5py.File(newest.path, "r", locking=False) as file:
                    return str(own_dataset(file, "recipe").asstr()[()]) if "recipe" in file else ""
            if newest is not None:
                return str(_meta(newest.path)["recipe"])
            with self._path_of("started.yaml").open(encoding="utf-8") as file:
                file.readline()  # of another use
                return file.read(LOG_BYTES)
        return ""

    def can_resume(self) -> bool:
        """Return True if `ptymesh resume` can go on with the run.

        Of a live run that ended while frames arrived or were saved, a checkpoint is that of an earlier run.
        """
        status = self.status()
        is_live = status.get("phase") in LIVE_PHASES or ("command" in status and status.get("phase") == "saving")
        return not is_live and any(one.kind == "checkpoint" for one in self._object_files())

    def last_stage(self) -> int:
        """Return the number of the last stage of the recipe, from 0. Raises ValueError if there is none."""
        recipe = parsed(self._recipe(), "The recipe of the run")
        stages = recipe.get("stages") if isinstance(recipe, dict) else None
        if not isinstance(stages, list) or not stages:
            raise ValueError(f"the recipe of {self.name} names no stages")
        return len(stages) - 1

    def object_file(self) -> ObjectFile | None:
        """Return the file from which the object is drawn: result (that of a live run, too), preview, or checkpoint.

        A run that goes on removes its preview when it has a result; an older one is what it goes on from.
        """
        files = self._object_files()
        results = [one for one in files if one.is_result]
        # a result is written after the last checkpoint, and before the checkpoint that goes on from it
        newest = max(results or files, key=_age, default=None)
        previews = [one for one in files if one.kind == "preview"]
        if previews and newest is not None and "outcome" not in self.status():
            return max(*results, *previews, key=_age) if results else previews[0]
        return newest

    def estimate_file(self) -> ObjectFile | None:
        """Return the file with all that explains patterns: the last checkpoint of a run that goes on, else the result.

        A checkpoint stays beside the result that it has led to, which is newer.
        """
        files = [one for one in self._object_files() if one.kind != "preview"]
        return max(files, key=_age, default=None)

    def _object_files(self) -> list[ObjectFile]:
        files = []
        kinds: dict[str, Literal["result", "preview"]]
        kinds = {"result.h5": "result", "live.h5": "result", "preview.h5": "preview"}
        for name, kind in kinds.items():
            with suppress(OSError):
                path = self._path_of(name)
                files.append(ObjectFile(path, kind, path.stat().st_mtime_ns))
        with suppress(OSError, ValueError, KeyError):
            current = json.loads(self._path_of("checkpoint", manifests.MANIFEST).read_text(encoding="utf-8"))
            path = self._path_of("checkpoint", f"{int(current['generation']):06d}", manifests.MANIFEST)
            files.append(ObjectFile(path, "checkpoint", path.stat().st_mtime_ns))
        return files

    def shapes(self) -> Row:
        """Return the shapes of object and probe, the object pixel in metres, and of which file they are; else empty."""
        file = self.object_file()
        if file is None:
            return {}
        try:
            arrays = OpenedArrays(file)
        except (OSError, KeyError, ValueError):
            return {}
        with arrays:
            about = {"object": arrays.object_shape, "probe": arrays.probe_shape, "pixel_m": arrays.pixel_m}
        return about | {"version": str(file.modified), "file": file.kind}

    def positions(self) -> Row:
        """Return where views lie in the object that is shown, in its pixels, and where they started.

        Empty where the object is that of a checkpoint, or there is none.
        """
        object_file = self.object_file()
        if object_file is None or object_file.kind == "checkpoint":
            return {}
        with h5py.File(object_file.path, "r", locking=False) as file:
            side, half = float(file.attrs.get("binned", 1)), np.array(own_dataset(file, "probe").shape[-2:]) / 2
            columns = {}
            for name, stored in (("positions", "positions_px"), ("nominal", "positions_nominal_px")):
                if stored in file:
                    places = own_dataset(file, stored)
                    every = slice(None, None, max(1, len(places) // MOST_VIEWS))
                    columns[name] = ((places[every] + half) / side).round(2).tolist()
        return columns


def find_runs(roots: Sequence[Path], lines: GrowingFiles | None = None) -> dict[str, RunFolder]:
    """Return the runs below some folders by id, those that were changed last first.

    Args:
        roots: folders that are runs or hold some.
        lines: what was read of metrics before.
    """
    lines = lines or GrowingFiles()
    runs = [RunFolder(folder, root, lines) for root in roots for folder in _folders(root, LEVELS)]
    newest = sorted(runs, key=lambda run: run.modified, reverse=True)[:MOST_RUNS]
    return {run.id: run for run in newest}


def _folders(folder: Path, levels: int) -> Iterator[Path]:
    """Yield the folders of runs, which are not looked into any further."""
    if any((folder / name).is_file() for name in SIGNS):
        yield folder
        if not (folder / TRIALS).is_file():  # below a study lie the runs of its trials, and the best one
            return
    if not levels:
        return
    with suppress(OSError):
        for below in sorted(folder.iterdir()):
            if below.is_dir() and not below.is_symlink() and not below.name.startswith("."):
                yield from _folders(below, levels - 1)


def _are_numbers(values: object) -> bool:
    """Return True for a list of numbers."""
    return isinstance(values, list) and all(type(value) in (int, float) for value in values)


def _age(one: ObjectFile) -> int:
    return one.modified


def _fate(status: Row) -> str | None:
    """Return what has become of a run's process, as `fate_of`; None where it is of another machine, or not named."""
    pid = status.get("pid")
    is_local = isinstance(pid, int) and 0 < pid < 1 << 31 and status.get("machine") == machine()
    return fate_of(pid) if is_local and pid is not None else None


class OpenedArrays:
    """Object and probe of a result or of a checkpoint, read region by region.

    Args:
        object_file: the file.

    Raises:
        OSError: it cannot be read.
        KeyError: it has no object.
        ValueError: tiles of a checkpoint do not make up its object.
    """

    def __init__(self, object_file: ObjectFile) -> None:
        self._files: list[h5py.File] = []
        self._levels: dict[int, h5py.Dataset] = {}
        self._positions: h5py.Dataset | None = None
        try:
            if object_file.kind != "checkpoint":
                file = self._open(object_file.path)
                dataset, self._probe = own_dataset(file, "object"), own_dataset(file, "probe")
                self._tiles, self.object_shape = [(dataset, (0, 0))], list(dataset.shape)
                pixel = dataset.attrs.get("pixel_size_m")
                self.pixel_m = None if pixel is None else [float(side) for side in pixel]
                if object_file.is_result:
                    self._open_pyramid(object_file.path)
                    self._positions = own_dataset(file, "positions_px") if "positions_px" in file else None
            else:
                self._read_checkpoint(object_file.path)
            self.probe_shape = list(self._probe.shape)
        except BaseException:
            self.close()
            raise

    def _read_checkpoint(self, path: Path) -> None:
        """Take the arrays of a checkpoint, into which each rank has saved its tile of the object, or its rows."""
        meta = _meta(path)
        extent, manifest = meta["run"]["extent"], json.loads(path.read_text(encoding="utf-8"))
        files = [self._open(path.with_name(Path(one["name"]).name)) for one in manifest["files"]]
        tiles = [own_dataset(file, "tiles/object") for file in files if "tiles/object" in file]
        corners = [(int(top), int(left)) for top, left in (tile.attrs["corner"] for tile in tiles)]
        self._tiles = list(zip(tiles, corners, strict=True))
        self._probe, self.pixel_m = own_dataset(files[0], "shared/probe"), None
        self.object_shape = [tiles[0].shape[0], int(extent[0]), int(extent[1])]
        if sum(tile.shape[1] * tile.shape[2] for tile in tiles) != extent[0] * extent[1]:
            raise ValueError("the tiles do not make up the object")

    def _open_pyramid(self, result: Path) -> None:
        """Take the coarser levels of a result from the pyramid beside it, if it is of this result."""
        path, file = result.with_name(pyramid.NAME), self._files[0]
        if result.name != "result.h5" or not path.is_file():
            return
        with suppress(OSError, KeyError, ValueError):
            opened, shape = self._open(path), self._tiles[0][0].shape
            if opened.attrs["probe_crc32"] != pyramid.crc_of_probe(file) or tuple(opened.attrs["shape"]) != shape:
                return
            for name in opened["object"]:
                level, factor = own_dataset(opened, f"object/{name}"), int(name)
                if factor > 1 and level.shape == (shape[0], shape[1] // factor, shape[2] // factor):
                    self._levels[factor] = level

    def _open(self, path: Path) -> h5py.File:
        if path.is_symlink():
            raise OSError(f"{path} is a link")
        self._files.append(h5py.File(path, "r", locking=False))
        return self._files[-1]

    def object_region(self, index: int, rows: slice, columns: slice) -> np.ndarray:
        """Return a region of a slice of the object, complex.

        Args:
            index: of the slice.
            rows: with start and stop.
            columns: with start and stop.
        """
        region = Rect(rows.start, columns.start, rows.stop, columns.stop)
        values = np.zeros(region.shape, dtype=self._tiles[0][0].dtype)
        for tile, (top, left) in self._tiles:
            common = region & Rect(top, left, top + tile.shape[1], left + tile.shape[2])
            if not common.empty:
                values[common.inside(region.corner)] = tile[index, *common.inside((top, left))]
        return values

    def binned_region(self, index: int, rows: slice, columns: slice, binning: int) -> np.ndarray:
        """Return means over square blocks of a region of a slice, complex, from the pyramid if there is one.

        Blocks begin at multiples of their side, the first one at or before the region; a block that lies in part beyond
        the object is left out.

        Args:
            index: of the slice.
            rows: with start and stop, in pixels of the object.
            columns: with start and stop.
            binning: side of a block in pixels, a power of two; less where the object has no block of this side.
        """
        binning = min(binning, 1 << (min(self.object_shape[1:]).bit_length() - 1))
        level = max((factor for factor in self._levels if factor <= binning), default=1)
        spans = []
        for span, side in ((rows, self.object_shape[1]), (columns, self.object_shape[2])):
            first = min(span.start // binning, side // binning - 1)
            last = max(first + 1, min(-(-span.stop // binning), side // binning))
            spans.append((first * binning // level, last * binning // level))
        (top, bottom), (left, right) = spans
        side = binning // level
        pieces = []
        step = side * max(1, BAND_PIXELS // (side * (right - left)))
        for start in range(top, bottom, step):
            within = slice(start, min(start + step, bottom)), slice(left, right)
            band = self._levels[level][index, *within] if level > 1 else self.object_region(index, *within)
            down, across = band.shape[0] // side, band.shape[1] // side
            pieces.append(band.reshape(down, side, across, side).mean(axis=(1, 3)) if side > 1 else band)
        return np.concatenate(pieces)

    @property
    def views(self) -> int:
        """Number of views of a result."""
        return 0 if self._positions is None else len(self._positions)

    def positions(self) -> np.ndarray:
        """Return the positions of all views of a result, (N, 2) y x, pixels of the object.

        Raises:
            KeyError: the file holds none.
        """
        if self._positions is None:
            raise KeyError("positions_px is not in the file")
        return np.asarray(self._positions[()], dtype=np.float64)

    def probe_mode(self, index: int) -> np.ndarray:
        """Return a mode of the probe, (h, w) complex."""
        mode: np.ndarray = self._probe[index]
        return mode

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()

    def __enter__(self) -> OpenedArrays:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def own_dataset(file: h5py.File, name: str) -> h5py.Dataset:
    """Return a dataset that lies in a file itself.

    Raises:
        KeyError: there is none, or it is a link or virtual, so that its numbers lie in another file.
    """
    place: h5py.Group = file
    for part in name.split("/"):
        if not isinstance(place, h5py.Group) or not isinstance(place.get(part, getlink=True), h5py.HardLink):
            raise KeyError(f"{name} is not in the file itself")
        place = place[part]
    if not isinstance(place, h5py.Dataset) or place.is_virtual or place.external:
        raise KeyError(f"{name} is not in the file itself")
    return place


def _meta(path: Path) -> Row:
    """Return what a checkpoint's manifest says of its run."""
    meta = json.loads(path.read_text(encoding="utf-8"))["meta"]
    return meta if isinstance(meta, dict) else {}
