"""Sources that cannot be sliced (bz2, compressed npz, HDF5 in huge chunks) are unpacked once into uncompressed files.

The files lie in $PTYMESH_CACHE, or in the machine's temporary folder, and are named after the content that they
come from. Of several ranks that need one, the first makes it under a temporary name and renames it; the others wait.
Files that nobody has used for a week are removed.
"""

from __future__ import annotations

import bz2
import contextlib
import os
import shutil
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ptymesh.errors import BadInput
from ptymesh.io.fingerprint import fingerprint
from ptymesh.io.source import Hdf5Source, MappedSource, SlabSource

WEEK_S = 7 * 24 * 3600


def unpacked(path: Path) -> Path:
    """The file itself, or what a bz2 file contains. BadInput where that is truncated."""
    with path.open("rb") as file:
        if file.read(3) != b"BZh":
            return path

    def unpack(out: BinaryIO) -> None:
        try:
            with bz2.open(path) as packed:
                shutil.copyfileobj(packed, out, 1 << 20)
        except (EOFError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the disk's fault, not the file's
            raise BadInput(
                f"{path} cannot be unpacked ({error}); it is truncated or damaged: copy it again."
            ) from error

    return _staged(path, "unpacked", unpack)


def npz_source(path: Path, member: str, axes: str | None) -> MappedSource:
    """Patterns in an npz: mapped where it is uncompressed, staged once where it is not.

    Without `axes`, axes of length one in front of (N, H, W) are dropped (tike writes (1, N, H, W)).
    """
    file, offset = path, 0
    with open_npz(path) as archive:
        info = archive.getinfo(f"{member}.npy")
        if info.compress_type == zipfile.ZIP_STORED:
            offset = _data_offset(path, info)
        else:
            file = _staged(path, member, lambda out: _extract(path, member, out))
    with file.open("rb") as stream:
        stream.seek(offset)
        shape, fortran, dtype = npy_header(stream, f"{member} in {path}")
        offset = stream.tell()
    if axes is None:
        while len(shape) > 3 and shape[0] == 1:
            shape = shape[1:]
        axes = {3: "nyx", 4: "rcyx"}.get(len(shape), "")
    if len(shape) != len(axes):
        raise BadInput(
            f"{member} in {path} has shape {shape}; patterns have three axes (views, y, x), or four for a raster."
        )
    if dtype.kind not in "buif":
        raise BadInput(f"{member} in {path} holds {dtype} values; patterns are counts.")
    if 0 in shape:
        raise BadInput(f"{member} in {path} has shape {shape}; there is nothing in it.")
    if file.stat().st_size < offset + int(np.prod(shape)) * dtype.itemsize:
        raise BadInput(f"{path} ends before its {shape} patterns do; it is truncated: copy it again.")
    return MappedSource(file, shape, dtype, axes, offset, fortran)


def sliceable(source: Hdf5Source, path: Path) -> SlabSource:
    """The source itself, or a staged copy where reading one view would mean unpacking a chunk of a great many."""
    if not source.huge_chunks:
        return source
    count, height, width = source.shape

    def copy(out: BinaryIO) -> None:
        header = {"shape": source.shape, "fortran_order": False, "descr": np.lib.format.dtype_to_descr(source.dtype)}
        np.lib.format.write_array_header_1_0(out, header)
        step = max(source.frames_per_chunk, 1)
        for start in range(0, count, step):
            views = np.arange(start, min(start + step, count))
            out.write(source.read(views, slice(0, height), slice(0, width)).data)

    staged = _staged(path, source.name.strip("/").replace("/", "-"), copy)
    with staged.open("rb") as stream:
        shape, fortran, dtype = npy_header(stream, str(staged))
        return MappedSource(staged, shape, dtype, "nyx", stream.tell(), fortran)


@contextlib.contextmanager
def open_npz(path: Path) -> Iterator[zipfile.ZipFile]:
    """An npz archive; BadInput where it is truncated or damaged."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise BadInput(f"{path} cannot be read as npz ({error}); it is truncated or damaged: copy it again.") from error


def npz_members(path: Path) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Shape and dtype of every array in an npz."""
    found = {}
    with open_npz(path) as archive:
        for info in archive.infolist():
            if info.filename.endswith(".npy"):
                with archive.open(info) as stream:
                    shape, _, dtype = npy_header(stream, f"{info.filename} in {path}")
                found[info.filename.removesuffix(".npy")] = shape, dtype
    return found


def read_member(path: Path, member: str) -> np.ndarray:
    """A small array out of an npz."""
    with open_npz(path) as archive:
        if f"{member}.npy" not in archive.namelist():
            raise BadInput(f"{path} has no array {member}; it has {', '.join(npz_members(path))}.")
        with archive.open(f"{member}.npy") as stream:
            return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))


def npy_header(stream: object, what: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    """(shape, fortran_order, dtype); the stream is left where the numbers start. BadInput where that fails."""
    try:
        version = np.lib.format.read_magic(stream)  # type: ignore[arg-type]
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(stream)  # type: ignore[arg-type]
    except ValueError as error:
        raise BadInput(f"{what} is not a readable array ({error}); it is truncated or damaged.") from error
    return shape, fortran, dtype


def _data_offset(path: Path, info: zipfile.ZipInfo) -> int:
    """Where a stored member's bytes start: after its local header, whose name and extra field vary in length."""
    with path.open("rb") as file:
        file.seek(info.header_offset)
        header = file.read(30)
        return (
            info.header_offset + 30 + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        )


def _extract(path: Path, member: str, out: BinaryIO) -> None:
    with open_npz(path) as archive, archive.open(f"{member}.npy") as stream:
        shutil.copyfileobj(stream, out, 1 << 20)


def cache_folder() -> Path:
    """Where staged files lie; a folder of this user alone."""
    given = os.environ.get("PTYMESH_CACHE")
    user = os.getuid() if hasattr(os, "getuid") else "user"
    folder = Path(given) if given else Path(tempfile.gettempdir()) / f"ptymesh-{user}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if hasattr(os, "getuid") and not given and folder.stat().st_uid != os.getuid():
        raise BadInput(f"{folder} belongs to another user; set PTYMESH_CACHE to a folder of your own.")
    return folder


def _staged(path: Path, label: str, make: Callable[[BinaryIO], None]) -> Path:
    """The staged file that `make` writes for this label of this file's content, made now if it is not there."""
    folder = cache_folder()
    target = folder / f"{fingerprint(path)}-{label}"
    with _only_one(folder / f"{target.name}.lock"):
        if not target.exists():
            _forget_old(folder)
            temporary = folder / f"{target.name}.{os.getpid()}.tmp"
            try:
                with temporary.open("wb") as out:
                    make(out)
                os.replace(temporary, target)
            except OSError as error:
                raise BadInput(
                    f"{path} cannot be unpacked into {folder} ({error}); set PTYMESH_CACHE to a folder with room."
                ) from error
            finally:
                temporary.unlink(missing_ok=True)
    os.utime(target)
    return target


@contextlib.contextmanager
def _only_one(lock: Path) -> Iterator[None]:
    """Processes of one machine take turns; where files cannot be locked they may do the work twice, and agree."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    with lock.open("a") as handle:
        with contextlib.suppress(OSError):  # some network file systems refuse; renaming keeps the result sound
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _forget_old(folder: Path) -> None:
    for file in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            if time.time() - file.stat().st_mtime > WEEK_S:
                file.unlink()
