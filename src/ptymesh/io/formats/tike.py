"""tike's npz.

`data` (1, N, H, W) or (N, H, W) with DC at the corner, `scan` (1, N, 2) pixels (y, x), `probe` (1, 1, 1, M, H, W)
complex. It tells no lengths: everything is in object pixels.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ptymesh.errors import BadInput
from ptymesh.io.options import DataOptions
from ptymesh.io.scan import Optics, RawScan
from ptymesh.io.staging import is_npz, npz_members, npz_source, read_member

NAME = "tike npz (data, scan, probe)"
#: Values of `scan` that are read however few the patterns are, so that the message can tell both numbers.
FEW = 1 << 20


def recognises(path: Path, _: DataOptions) -> bool:
    """Return True for an npz with `data` and `scan`."""
    return is_npz(path) and {"data", "scan"} <= set(npz_members(path))


def read(path: Path, options: DataOptions) -> RawScan:
    """Return the scan of a tike npz; raise BadInput if its arrays have other shapes."""
    members = npz_members(path)
    patterns = npz_source(path, "data", None)
    notes = ["tike files hold positions in object pixels."]
    probe = None
    if "probe" in members:
        probe = _probe(path, *members["probe"], options.path, patterns.shape[1:], notes)
    return RawScan(
        patterns=patterns,
        optics=Optics(),
        centred=False,
        positions=_scan(path, *members["scan"], options.path, patterns.shape[0]),
        unit="px",
        probe=probe,
        name=options.path.name.split(".")[0],
        notes=tuple(notes),
    )


def _scan(path: Path, shape: tuple[int, ...], dtype: np.dtype, shown_path: Path, count: int) -> np.ndarray:
    while len(shape) > 2 and shape[0] == 1:
        shape = shape[1:]
    if len(shape) != 2 or shape[1] != 2 or dtype.kind not in "iuf":
        raise BadInput(f"scan in {shown_path} has shape {shape} {str(dtype)[:80]}; it must be (N, 2) pixels, y x.")
    return read_member(path, "scan", max(2 * count, FEW)).reshape(shape).astype(np.float64)


def _probe(
    path: Path, shape: tuple[int, ...], dtype: np.dtype, shown_path: Path, window: tuple[int, ...], notes: list[str]
) -> np.ndarray | None:
    """Return the first probe (M, H, W); None, with a note, if it is not of the patterns' size."""
    if len(shape) < 2 or dtype.kind != "c" or 0 in shape:
        raise BadInput(f"probe in {shown_path} is {shape} {str(dtype)[:80]}; it must be complex (modes, y, x).")
    if shape[-2:] != window:
        notes.append(f"The file's probe is {shape[-2:]} pixels, its patterns {window}: it is left out.")
        return None
    modes = shape[-3] if len(shape) > 2 else 1
    return read_member(path, "probe").reshape(-1, modes, *window)[0]
