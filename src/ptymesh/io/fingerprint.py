"""A digest that identifies a file by its content."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np


def fingerprint(path: Path) -> str:
    """Return a digest of a file's content: all of it up to 64 MiB, else its size and 64 blocks spread over it."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    block = 1 << 20
    with path.open("rb") as file:
        starts = range(0, size, block) if size <= 64 * block else np.linspace(0, size - block, 64).astype(int)
        for start in starts:
            file.seek(int(start))
            digest.update(file.read(block))
    return digest.hexdigest()[:32]
