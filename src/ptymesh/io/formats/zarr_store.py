"""Zarr stores (format 2 and 3), folders and zip files: what they say of themselves, and patterns in their arrays.

Attributes are read as JSON, so that a store is recognised without zarr; zarr itself reads the arrays' values. Source:
the specifications of Zarr, versions 2 and 3.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ptymesh.errors import BadInput
from ptymesh.io.hdf5.reading import first_line, native
from ptymesh.io.source import StoredAxes
from ptymesh.io.staging import ARCHIVE_DAMAGE
from ptymesh.paths import ZARR_ARRAY_2 as ARRAY_2
from ptymesh.paths import ZARR_GROUP_2 as GROUP_2
from ptymesh.paths import ZARR_VERSION_3 as VERSION_3
from ptymesh.paths import is_zarr_folder

#: What describes a group or an array in version 2, besides what tells the kind.
ATTRIBUTES_2 = ".zattrs"
#: Bytes of the longest description that is read, members that are looked through, and bytes of the largest chunk.
MOST_BYTES, MOST_MEMBERS, MOST_CHUNK_BYTES = 16 << 20, 1_000_000, 4 << 30
#: Ways of packing that hold numbers alone; others, pickled objects among them, are refused.
CODECS = frozenset(
    {"bytes", "transpose", "sharding_indexed", "crc32c", "blosc", "zstd", "gzip", "zlib", "lz4", "bz2", "lzma"}
    | {"shuffle", "delta", "adler32", "crc32"}
)


class ZarrTree:
    """Groups, arrays and attributes of a store.

    Args:
        path: a folder, or a zip file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._names: list[str] | None = None
        if path.is_file():
            with zipfile.ZipFile(path) as archive:
                self._names = archive.namelist()[:MOST_MEMBERS]

    @classmethod
    def open(cls, path: Path) -> ZarrTree | None:
        """Return the tree of a store; None of anything else."""
        try:
            if path.is_dir():
                return cls(path) if is_zarr_folder(path) else None
            if not path.is_file() or not zipfile.is_zipfile(path):
                return None
            tree = cls(path)
            return tree if tree._json(VERSION_3) or tree._json(GROUP_2) else None
        except ARCHIVE_DAMAGE:
            return None

    def _json(self, name: str) -> dict[str, object]:
        """Return what a file of the store says; nothing where it is missing, too long or damaged."""
        try:
            if self._names is None:
                file = self.path / name
                text = file.read_bytes() if file.is_file() and file.stat().st_size <= MOST_BYTES else b"{}"
            elif name in self._names:
                with zipfile.ZipFile(self.path) as archive:
                    text = archive.read(name) if archive.getinfo(name).file_size <= MOST_BYTES else b"{}"
            else:
                return {}
            content = json.loads(text)
        except (ValueError, RecursionError, *ARCHIVE_DAMAGE):
            return {}
        return content if isinstance(content, dict) else {}

    def attributes(self, group: str = "") -> dict[str, object]:
        """Return the attributes of a group or an array."""
        prefix = f"{group}/" if group else ""
        attributes = self._json(f"{prefix}{VERSION_3}").get("attributes") or self._json(f"{prefix}{ATTRIBUTES_2}")
        return attributes if isinstance(attributes, dict) else {}

    def children(self, group: str) -> list[str]:
        """Return the names of what a group holds."""
        if self._names is None:
            folder = self.path / group
            return sorted(one.name for one in folder.iterdir() if one.is_dir()) if folder.is_dir() else []
        inside = (name.removeprefix(f"{group}/") for name in self._names if name.startswith(f"{group}/"))
        return sorted({name.partition("/")[0] for name in inside if "/" in name})

    def array_shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of an array; None where there is none."""
        shape = self._description(name).get("shape")
        if not isinstance(shape, list) or not all(isinstance(side, int) and side >= 0 for side in shape):
            return None
        return tuple(shape)

    def _description(self, name: str) -> dict[str, object]:
        description = self._json(f"{name}/{VERSION_3}") or self._json(f"{name}/{ARRAY_2}")
        return description if description.get("node_type", "array") == "array" else {}

    def check_codecs(self, name: str) -> None:
        """Raise BadInput if an array is packed in a way that may hold more than numbers."""
        description = self._description(name)
        parts = [
            description.get("compressor"),
            *_listed(description.get("filters")),
            *_listed(description.get("codecs")),
        ]
        for codec in _all_codecs([part for part in parts if part is not None]):
            if codec.removeprefix("numcodecs.") not in CODECS:
                raise BadInput(
                    f"{name} in {self.path} is packed by {codec[:60]!r}, which is not read; write it again, packed by "
                    f"one of {', '.join(sorted(CODECS))}."
                )


def _all_codecs(parts: list[object]) -> Iterator[str]:
    """Yield the names of codecs, those within shards too."""
    for part in parts:
        if not isinstance(part, dict):
            yield str(part)
            continue
        yield str(part.get("id") or part.get("name"))
        inner = part.get("configuration")
        if isinstance(inner, dict):
            yield from _all_codecs([*_listed(inner.get("codecs")), *_listed(inner.get("index_codecs"))])


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else []


class ZarrSource:
    """Patterns in an array of a zarr store.

    Args:
        path: of the store.
        array: its name.
        axes: letters of its axes, as in the key map; None: "nyx" for three, "rcyx" for four.

    Raises:
        BadInput: it holds no patterns, or zarr is not installed.
    """

    def __init__(self, path: Path, array: str, axes: str | None = None) -> None:
        self.home, self._name = path, array
        self._pid = -1
        self._array: Any = None
        tree = ZarrTree.open(path)
        if tree is None:
            raise BadInput(f"{path} is no zarr store; check data.path.")
        tree.check_codecs(array)
        stored = self._opened()
        shape, chunks = tuple(int(n) for n in stored.shape), tuple(int(n) for n in stored.chunks)
        axes = axes or {3: "nyx", 4: "rcyx"}.get(len(shape), "")
        if len(axes) != len(shape) or 0 in shape:
            raise BadInput(f"{array} in {path} has shape {shape}; patterns have three axes (views, y, x), or four.")
        if stored.dtype.kind not in "buif":
            raise BadInput(f"{array} in {path} holds {stored.dtype} values; patterns are counts.")
        if (size := int(np.prod(chunks, dtype=np.int64)) * stored.dtype.itemsize) > MOST_CHUNK_BYTES:
            raise BadInput(
                f"{array} in {path} has chunks of {size:g} bytes, more than {MOST_CHUNK_BYTES:g}; write it in smaller "
                "ones."
            )
        self._axes = axes
        sides, pieces = dict(zip(axes, shape, strict=True)), dict(zip(axes, chunks, strict=True))
        self.raster = (sides["r"], sides["c"]) if "r" in sides else None
        self._shape = (sides["r"] * sides["c"] if self.raster else sides["n"], sides["y"], sides["x"])
        self._dtype = native(np.empty(0, stored.dtype)).dtype
        #: Name of these patterns among others in the same store.
        self.label = f"{array} {axes}"
        #: Number of views that one chunk spans.
        self.frames_per_chunk = pieces["r"] * pieces["c"] if self.raster else pieces["n"]
        #: Whether reading one view would unpack others, for zarr keeps no chunk.
        self.huge_chunks = self.frames_per_chunk > 1

    def _opened(self) -> Any:
        if self._array is None or self._pid != os.getpid():
            try:
                import zarr
                from zarr.storage import LocalStore, ZipStore
            except ImportError as error:
                raise BadInput(f"{self.home} is read by zarr; run pip install 'ptymesh[zarr]'.") from error
            try:
                store: Any = LocalStore(self.home, read_only=True) if self.home.is_dir() else ZipStore(self.home)
                self._array, self._pid = zarr.open_array(store, path=self._name, mode="r"), os.getpid()
            except (*ARCHIVE_DAMAGE, TypeError) as error:
                raise _unreadable(self._name, self.home, error) from error
        return self._array

    @property
    def shape(self) -> tuple[int, int, int]:
        """(N, H, W)."""
        return self._shape

    @property
    def dtype(self) -> np.dtype:
        """The stored type in this machine's byte order; single for half precision."""
        return self._dtype

    def read(self, views: np.ndarray, rows: slice, columns: slice) -> np.ndarray:
        """Return patterns (len(views), rows, columns).

        Args:
            views: (n,) int64, in any order.
            rows: of the detector, with start and stop, and step 1.
            columns: of the detector, likewise.

        Raises:
            BadInput: a chunk is damaged.
        """
        array = self._opened()

        def fetch(part: tuple[int | slice, ...], _: slice) -> np.ndarray:
            try:
                return np.asarray(array[part])
            except (*ARCHIVE_DAMAGE, TypeError) as error:
                raise _unreadable(self._name, self.home, error) from error

        return StoredAxes(self._axes, self.raster).read(views, rows, columns, self._dtype, fetch)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_pid": -1, "_array": None}


def _unreadable(name: str, path: Path, error: BaseException) -> BadInput:
    return BadInput(
        f"{name} in {path} cannot be read ({first_line(error)}); it is incomplete or damaged: copy it again."
    )
