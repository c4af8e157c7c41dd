"""Files of a scan that a batch is given: one file, a zarr store, or a folder of TIFF files."""

from __future__ import annotations

from pathlib import Path

from ptymesh.io.load import FIRST_READERS
from ptymesh.io.options import DataOptions
from ptymesh.io.series import numbered_key
from ptymesh.paths import is_zarr_folder

#: Endings of files of which a folder makes one scan.
IMAGES = (".tif", ".tiff")


def is_scan(path: Path) -> bool:
    """Return True for a file, and for a folder that is one data set."""
    return path.is_file() or (path.is_dir() and (_is_store(path) or bool(_images_of(path))))


def files_of_scan(path: Path) -> tuple[Path, Path | None]:
    """Return a scan's first file and a pattern of the others, both absolute; of one file or store no pattern."""
    path = path.absolute()
    images = _images_of(path) if path.is_dir() and not _is_store(path) else []
    if not images:
        return path, None
    return images[0], (path / f"*{images[0].suffix}" if len(images) > 1 else None)


def size_and_time(path: Path) -> tuple[int, int]:
    """Return the bytes of a scan, and when it was last changed (ns): of a folder, those of all its files."""
    if not path.is_dir():
        stat = path.stat()
        return stat.st_size, stat.st_mtime_ns
    stats = [one.stat() for one in path.rglob("*") if one.is_file()]
    return sum(one.st_size for one in stats), max((one.st_mtime_ns for one in stats), default=0)


def _is_store(folder: Path) -> bool:
    """Return True for a zarr store, and for a folder that the reader of a package knows."""
    data = DataOptions(path=folder)
    return is_zarr_folder(folder) or any(FIRST_READERS[name].recognises(folder, data) for name in FIRST_READERS.names())


def _images_of(folder: Path) -> list[Path]:
    """Return the TIFF files of a folder with the ending of which there are most, by the numbers in their names."""
    by_ending: dict[str, list[Path]] = {}
    for one in folder.iterdir():
        if one.suffix.lower() in IMAGES and one.is_file():
            by_ending.setdefault(one.suffix, []).append(one)
    most: list[Path] = max(by_ending.values(), key=lambda files: len(files), default=[])
    return sorted(most, key=lambda one: numbered_key(one.name))
