"""Loading of data sets: the format is found by content, and the scan is read and prepared."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Protocol, cast

from ptymesh.errors import BadInput
from ptymesh.io.fingerprint import fingerprint
from ptymesh.io.formats import key_map, raw_frames
from ptymesh.io.hdf5.reading import attribute, has, is_hdf5, listing, open_hdf5
from ptymesh.io.options import DataOptions, FrameOptions, PositionOptions
from ptymesh.io.prepare.preprocess import measurement_of
from ptymesh.io.rasters import select_frames
from ptymesh.io.samples import located
from ptymesh.io.scan import RawScan
from ptymesh.io.series import files_of, join_raw_scans
from ptymesh.io.staging import is_npz, npz_members, unpacked
from ptymesh.measurement import Measurement
from ptymesh.paths import is_zarr_folder, refuse_folder
from ptymesh.registry import Registry


class Reader(Protocol):
    """A file format: a module or an object.

    Attributes:
        NAME: for messages.
    """

    NAME: str

    def recognises(self, path: Path, data: DataOptions) -> bool:
        """Return True if the file is of this format; called for every file, so it reads little and raises nothing."""
        ...

    def read(self, path: Path, data: DataOptions) -> RawScan:
        """Return the scan as stored; raise BadInput for unsound files."""
        ...


def _is_reader(thing: object) -> bool:
    return all(hasattr(thing, name) for name in ("NAME", "recognises", "read"))


#: Readers in the order in which they are asked whether a file is theirs, ptymesh's own first.
READERS: Registry[Reader] = Registry(
    "reader", "ptymesh.readers", _is_reader, "give it NAME, recognises(path, data) and read(path, data)"
)
#: Readers of installed packages that are asked before these, and of folders, too.
FIRST_READERS: Registry[Reader] = Registry(
    "reader", "ptymesh.first_readers", _is_reader, "give it NAME, recognises(path, data) and read(path, data)"
)
for _name in (
    *("cxi", "tike", "dectris", "emd", "ptypy", "pattern_pairs", "beamlines", "soleil", "id16a", "isn", "hyperspy"),
    *("abtem", "matlab", "nexus", "nion", "npy_stack", "tiff_stack", "merlin", "astar", "tia", "velox"),
    *("digital_micrograph", "tvips", "empad"),  # the last one: its raw files have no header
):
    READERS.register(_name)(cast("Reader", import_module(f"ptymesh.io.formats.{_name}")))
IN_KEYS = "in data.keys, such as {patterns: NAME, positions: NAME}"


def all_readers() -> Iterator[Reader]:
    """Yield all readers in the order in which they are asked; those of packages are imported when it is their turn.

    Raises:
        BadInput: that of a package cannot be used.
    """
    for registry in (FIRST_READERS, READERS):
        for name in registry.names():
            yield registry[name]


def load_measurement(data: DataOptions, positions: PositionOptions | None = None) -> Measurement:
    """Return the Measurement in a file, prepared as the options say; patterns are read when they are asked for.

    Raises:
        BadInput: in one sentence, if the file is missing, truncated, of unknown format or unsound.
    """
    data = data.model_copy(update={"path": located(data.path)})
    paths = files_of(data.path, data.further)
    scan = open_scan(data)  # which says what is wrong with a file, before its content is looked at
    digest = "".join(fingerprint(path) for path in paths)
    if data.further:
        digest = hashlib.sha256(digest.encode()).hexdigest()[: len(digest) // len(paths)]
    return measurement_of(scan, data, positions or PositionOptions(), digest)


def open_scan(data: DataOptions) -> RawScan:
    """Return the scan as stored in one file or in several."""
    paths = files_of(data.path, data.further)
    axes = FrameOptions(axes=data.frames.axes) if data.frames is not None and data.frames.axes else None
    every_frame = data.model_copy(update={"frames": axes}) if data.further else data
    reader: Reader | None = None
    scans: list[RawScan] = []
    for path in paths:
        one, reader = _open_file(every_frame.model_copy(update={"path": path}), reader)
        scans.append(one)
    scan = scans[0] if len(scans) == 1 else join_raw_scans(scans, paths)
    return select_frames(scan, data.frames, str(data.path))


def _open_file(data: DataOptions, last_reader: Reader | None = None) -> tuple[RawScan, Reader | None]:
    """Return the scan as one file stores it, and the reader that knew its format.

    Args:
        data: of the recipe, whose `path` is the file.
        last_reader: reader of the file before it, which is asked first.
    """
    _check_file(data)
    path = data.path if data.path.is_dir() else unpacked(data.path)
    if data.keys is not None and data.keys.patterns is not None:
        return key_map.read(path, data.keys, data), None
    reader = None
    if data.raw is not None:
        scan = raw_frames.read(path, data.raw, data)
    else:
        reader = _reader_of(path, data, last_reader)
        scan = reader.read(path, data)
    return scan if data.keys is None else key_map.add_arrays(scan, path, data.keys, data), reader


def _reader_of(path: Path, data: DataOptions, last_reader: Reader | None) -> Reader:
    """Return the reader that knows a file's format; the last one is asked first. Raises BadInput for none."""
    for reader in chain([] if last_reader is None else [last_reader], all_readers()):
        if reader.recognises(path, data):
            if data.frames is not None and data.frames.axes and not getattr(reader, "ASKS_AXES", False):
                raise BadInput(
                    f"data.frames.axes is for files that do not say which axes are the pattern's, and {path} "
                    f"({reader.NAME}) does; leave it out, or name the patterns in data.keys, with pattern_axes."
                )
            return reader
    raise BadInput(_explain_unknown(path, data.path))


def _check_file(data: DataOptions) -> None:
    """Raise BadInput if there is no regular file that can be read, nor a folder that a reader knows."""
    path = data.path
    if not path.exists():
        raise BadInput(f"There is no file {path}; check its path (data.path in a recipe).")
    if path.is_dir() and (is_zarr_folder(path) or _is_known_folder(path, data)):
        return
    refuse_folder(path, "")
    if not path.is_file():
        raise BadInput(f"{path} is not a file; data.path must name a file.")
    if path.stat().st_size == 0:
        raise BadInput(f"{path} is empty; copy it again.")
    try:
        path.open("rb").close()
    except OSError as error:
        raise BadInput(f"{path} cannot be opened ({error.strerror}); check its permissions.") from error


def _is_known_folder(path: Path, data: DataOptions) -> bool:
    """Return True if a package's reader that is asked first knows a folder."""
    return any(FIRST_READERS[name].recognises(path, data) for name in FIRST_READERS.names())


def _explain_unknown(path: Path, shown_path: Path) -> str:
    """Return a sentence about a file that no reader knows; `shown_path`: its path for messages."""
    if path.is_dir():
        return (
            f"{shown_path} is a zarr store, but of no layout that is known; save its patterns as one .npy, .h5 or .npz."
        )
    if is_hdf5(path):
        with open_hdf5(path) as file:
            if has(file, "object") and attribute(file, "ptymesh_version") is not None:
                return (
                    f"{shown_path} is a result, not a data set; give the data of its run (`ptymesh view` draws a "
                    "result)."
                )
            return (
                f"{shown_path} is HDF5, but of no layout that is known; name its datasets {IN_KEYS}: it has "
                f"{listing(file)}."
            )
    if is_npz(path):
        arrays = ", ".join(f"{name} {shape}" for name, (shape, _) in npz_members(path).items())
        unnamed = f"{shown_path} is a zip file, but of no layout that is known; name its arrays {IN_KEYS}"
        return f"{unnamed}: it has {arrays or 'none'}."
    with path.open("rb") as file:
        start = file.read(8)
    if start.startswith(b"PK"):
        return f"{shown_path} is a truncated or damaged npz; copy it again."
    if start.startswith(b"\x89HDF"):
        return f"{shown_path} is a truncated or damaged HDF5 file; copy it again."
    return (
        f"{shown_path} is of no known format (it starts with {start!r}); `ptymesh plugins` lists the readers. Of "
        "raw frames "
        "say what they are: data.raw, such as {pixels: [128, 128], dtype: uint16}."
    )
