"""A digest that identifies a file, or a folder of files, by its content."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np


def fingerprint(path: Path) -> str:
    """Return a digest of a file's content: all of it up to 64 MiB, else its size and 64 blocks spread over it.

    Of a folder: the names and sizes of its files, and the first blocks of 64 of them, spread over all.
    """
    if path.is_dir():
        return _digest_folder(path)
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    block = 1 << 20
    with path.open("rb") as file:
        starts = range(0, size, block) if size <= 64 * block else np.linspace(0, size - block, 64).astype(int)
        for start in starts:
            file.seek(int(start))
            digest.update(file.read(block))
    return digest.hexdigest()[:32]


def _digest_folder(path: Path) -> str:
    files = sorted(one for one in path.rglob("*") if one.is_file())
    digest = hashlib.sha256(str(len(files)).encode())
    for file in files:
        digest.update(f"{file.relative_to(path)}\0{file.stat().st_size}\0".encode())
    for index in np.unique(np.linspace(0, len(files) - 1, 64).astype(int)) if files else ():
        with files[index].open("rb") as stream:
            digest.update(stream.read(1 << 20))
    return digest.hexdigest()[:32]
