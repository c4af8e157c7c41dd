"""tike's npz: `data` (1, N, H, W) or (N, H, W) with DC at the corner, `scan` (1, N, 2) pixels (y, x),
`probe` (1, 1, 1, M, H, W) complex. It tells no lengths: everything is in object pixels.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from ptymesh.errors import BadInput
from ptymesh.io.options import DataOptions
from ptymesh.io.scan import Optics, RawScan
from ptymesh.io.staging import npz_members, npz_source, read_member

NAME = "tike npz (data, scan, probe)"


def recognises(path: Path) -> bool:
    """An npz with `data` and `scan`."""
    return zipfile.is_zipfile(path) and {"data", "scan"} <= set(npz_members(path))


def read(path: Path, options: DataOptions) -> RawScan:
    """The scan of a tike npz; BadInput where its arrays have other shapes."""
    members = npz_members(path)
    scan = read_member(path, "scan")
    while scan.ndim > 2 and scan.shape[0] == 1:
        scan = scan[0]
    if scan.ndim != 2 or scan.shape[1] != 2 or scan.dtype.kind not in "iuf":
        raise BadInput(f"scan in {options.path} has shape {scan.shape} {scan.dtype}; it must be (N, 2) pixels, y x.")
    probe = None
    if "probe" in members:
        probe = read_member(path, "probe")
        if probe.ndim < 2 or probe.dtype.kind != "c":
            raise BadInput(f"probe in {options.path} is {probe.shape} {probe.dtype}; it must be complex (modes, y, x).")
        modes = probe.shape[-3] if probe.ndim > 2 else 1
        probe = probe.reshape(-1, modes, *probe.shape[-2:])[0]
    return RawScan(
        patterns=npz_source(path, "data", None),
        optics=Optics(),
        centred=False,
        positions=scan.astype(np.float64),
        unit="px",
        probe=probe,
        name=options.path.name.split(".")[0],
        notes=("tike files hold positions in object pixels.",),
    )
