"""Whether a data set is the one that a checkpoint was made with: digests of what a reconstruction takes from it.

N       views

A file's own digest does not tell all: HDF5 may keep patterns in other files, and arrays that options name have files of
their own. So patterns, positions, masks and whatever else is used are looked at as they are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
import xxhash

from ptymesh.distributed.world import World
from ptymesh.errors import BadInput
from ptymesh.io.digests import of_array
from ptymesh.io.preprocess import PreparedSource
from ptymesh.io.source import slabs
from ptymesh.measurement import Measurement

#: How many patterns are looked at: a few, or every one of them.
Extent = Literal["sample", "all"]
#: Views of a sample, spread evenly over the scan.
SAMPLED = 8
#: Numbers computed from those in a file are compared to this share of the largest: machines round differently.
SHARE = 1e-7


def identity(scan: Measurement, extent: Extent = "sample", world: World | None = None) -> dict[str, str]:
    """Digests of a scan by what they are of; `path` and `extent` are said as they are.

    With `all`, collective: each rank looks at its share of the patterns.
    """
    world = world or World()
    found = {"path": scan.path, "extent": extent, "file": scan.fingerprint}
    if extent == "all":
        found["patterns"] = _whole(scan, world)
    else:
        views = np.unique(np.linspace(0, scan.views - 1, min(scan.views, SAMPLED)).round().astype(np.int64))
        found["patterns"] = f"{_patterns(scan, views):016x}"
    where = scan.positions if scan.stored_positions is None else scan.stored_positions
    found |= {"positions": _rounded(where), "mask": of_array(scan.mask)}
    parts = {"background": scan.background, "intensity": scan.intensity}
    if isinstance(scan.patterns, PreparedSource):
        parts |= {"dark": scan.patterns.dark, "flat or gain": scan.patterns.scale}
    return found | {name: "none" if array is None else _rounded(array) for name, array in parts.items()}


def check(saved: Any, scan: Measurement, world: World) -> dict[str, str]:
    """The scan's identity. Raises BadInput where it is not what `saved`, an earlier one, was made of. Collective."""
    if not isinstance(saved, Mapping) or not all(isinstance(value, str) for value in saved.values()):
        raise BadInput("The checkpoint does not say which data it is of; go on with --other-data if they are the same.")
    now = identity(scan, "all" if saved.get("extent") == "all" else "sample", world)
    told = {name for name in saved.keys() & now.keys() if saved[name] and now[name]} - {"path", "extent"}
    differ = [name for name in now if name in told and now[name] != saved[name]]
    if differ:
        were = saved.get("path") or "data without a path"
        raise BadInput(
            f"The data have changed since the checkpoint: it is of {were} ({_short(saved)}), and "
            f"{now['path'] or 'these'} ({_short(now)}) differ in {', '.join(differ)}; put the data back, or go on with "
            f"these by --other-data (other_data=True in Python)."
        )
    return now


def _short(known: Mapping[str, str]) -> str:
    return f"fingerprint {known['file'][:12]}" if known.get("file") else f"patterns {known.get('patterns', '')[:12]}"


def _patterns(scan: Measurement, views: np.ndarray) -> int:
    """Sum of the digests of these views, as stored; each depends on its number."""
    source, total = scan.patterns, 0
    for part in slabs(len(views), _frame_bytes(scan)):
        chosen = views[part]
        if isinstance(source, PreparedSource):
            _, height, width = source.raw.shape
            whole = slice(0, height), slice(0, width)
            read = [source.raw.read(source.selected[chosen], *whole)]
            if source.view_mask is not None:
                read.append(source.view_mask.read(source.selected[chosen], *whole))
        else:
            read = [source.read(chosen)]
        for index, view in enumerate(chosen):
            digest = xxhash.xxh3_64(seed=int(view))
            for frames in read:
                digest.update(np.ascontiguousarray(frames[index]).reshape(-1).view(np.uint8).data)
            total += digest.intdigest()
    return total % 2**64


def _frame_bytes(scan: Measurement) -> int:
    source = scan.patterns.raw if isinstance(scan.patterns, PreparedSource) else scan.patterns
    _, height, width = source.shape
    return height * width * source.dtype.itemsize


def _whole(scan: Measurement, world: World) -> str:
    """Of all views, each looked at by one rank: views side by side, which lie in the same chunks of a file."""
    failure, mine = None, 0
    try:
        mine = _patterns(scan, np.array_split(np.arange(scan.views), world.size)[world.rank])
    except Exception as error:
        failure = error
    world.raise_if_any_failed(failure, "reading the data")
    halves = torch.tensor([mine >> 32, mine & 0xFFFFFFFF], dtype=torch.int64, device=world.device)
    high, low = world.sum(halves)[0].tolist()
    return f"{((high << 32) + low) % 2**64:016x}"


def _rounded(array: np.ndarray) -> str:
    """Digest of real numbers, in steps that are larger than what machines round differently."""
    values = np.asarray(array, np.float64)
    step = SHARE * (float(np.abs(values).max(initial=0.0)) or 1.0)
    return of_array(np.floor(values / step + 0.381966).astype(np.int64))  # no round number lies on an edge
