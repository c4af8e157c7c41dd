"""Identity of a data set, by which a resumed run knows its data: digests of what a reconstruction takes from it.

N       views

A file's own digest is not enough: HDF5 may keep patterns in other files, and arrays that options name have files of
their own. So digests are made of patterns, positions, masks and all else that is used, as it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
import xxhash

from ptymesh.distributed.world import World
from ptymesh.errors import BadInput
from ptymesh.io.hdf5.digests import of_array
from ptymesh.io.prepare.preprocess import PreparedSource
from ptymesh.io.source import slabs
from ptymesh.measurement import Measurement, evenly_spread

#: Patterns that are looked at: a few, or all.
Extent = Literal["sample", "all"]
#: Number of views of a sample, spread evenly over the scan.
SAMPLED = 8
#: Numbers computed from a file's are compared to this share of the largest, because machines round differently.
SHARE = 1e-7


def digests_of_scan(scan: Measurement, extent: Extent = "sample", world: World | None = None) -> dict[str, str]:
    """Return digests of a scan by what they are of; `path` and `extent` are entered as they are.

    Collective with "all": each rank reads its share of the patterns.

    Args:
        scan: the data.
        extent: patterns that are looked at.
        world: the ranks; None: this process alone.
    """
    world = world or World()
    scan_digests = {"path": scan.path, "extent": extent, "file": scan.fingerprint}
    if extent == "all":
        scan_digests["patterns"] = _digest_of_all(scan, world)
    else:
        views = evenly_spread(scan.views, SAMPLED)
        scan_digests["patterns"] = f"{_digest_of_views(scan, views):016x}"
    positions = scan.positions if scan.stored_positions is None else scan.stored_positions
    scan_digests |= {"positions": _digest_of_rounded(positions), "mask": of_array(scan.mask)}
    parts = {"background": scan.background, "intensity": scan.intensity, "efficiency": scan.efficiency}
    if isinstance(scan.patterns, PreparedSource):
        parts |= {"dark": scan.patterns.dark, "flat or gain": scan.patterns.scale}
    return scan_digests | {
        name: "none" if array is None else _digest_of_rounded(array) for name, array in parts.items()
    }


def check(saved: Any, scan: Measurement, world: World) -> dict[str, str]:
    """Return the scan's identity, if it agrees with an earlier one. Collective.

    Args:
        saved: the identity in a checkpoint.
        scan: the data.
        world: the ranks.

    Raises:
        BadInput: the data differ, or `saved` is no identity.
    """
    if not isinstance(saved, Mapping) or not all(isinstance(value, str) for value in saved.values()):
        raise BadInput("The checkpoint does not say which data it is of; go on with --other-data if they are the same.")
    now = digests_of_scan(scan, "all" if saved.get("extent") == "all" else "sample", world)
    comparable = {name for name in saved.keys() & now.keys() if saved[name] and now[name]} - {"path", "extent"}
    differ = [name for name in now if name in comparable and now[name] != saved[name]]
    if differ:
        were = saved.get("path") or "data without a path"
        raise BadInput(
            f"The data have changed since the checkpoint: it is of {were} ({_describe_digests(saved)}), and "
            f"{now['path'] or 'these'} ({_describe_digests(now)}) differ in {', '.join(differ)}; put the data "
            "back, or go on with "
            f"these by --other-data (other_data=True in Python)."
        )
    return now


def _describe_digests(scan_digests: Mapping[str, str]) -> str:
    return (
        f"fingerprint {scan_digests['file'][:12]}"
        if scan_digests.get("file")
        else f"patterns {scan_digests.get('patterns', '')[:12]}"
    )


def _digest_of_views(scan: Measurement, views: np.ndarray) -> int:
    """Return the sum of the digests of views (n,) as stored; each depends on the view's number."""
    source, total = scan.patterns, 0
    for part in slabs(len(views), _frame_bytes(scan)):
        chosen = views[part]
        if isinstance(source, PreparedSource):
            _, height, width = source.raw.shape
            window = slice(0, height), slice(0, width)
            stored = [source.raw.read(source.selected[chosen], *window)]
            if source.view_mask is not None:
                stored.append(source.view_mask.read(source.selected[chosen], *window))
        else:
            stored = [source.read(chosen)]
        for index, view in enumerate(chosen):
            digest = xxhash.xxh3_64(seed=int(view))
            for frames in stored:
                digest.update(np.ascontiguousarray(frames[index]).reshape(-1).view(np.uint8).data)
            total += digest.intdigest()
    return total % 2**64


def _frame_bytes(scan: Measurement) -> int:
    source = scan.patterns.raw if isinstance(scan.patterns, PreparedSource) else scan.patterns
    _, height, width = source.shape
    return height * width * source.dtype.itemsize


def _digest_of_all(scan: Measurement, world: World) -> str:
    """Return the digest of all views, of which each rank reads successive ones: these share chunks. Collective."""
    local_views = np.array_split(np.arange(scan.views), world.size)[world.rank]
    local = world.on_all_ranks(lambda: _digest_of_views(scan, local_views), "reading the data")
    halves = torch.tensor([local >> 32, local & 0xFFFFFFFF], dtype=torch.int64, device=world.device)
    high, low = world.sum(halves)[0].tolist()
    return f"{((high << 32) + low) % 2**64:016x}"


def _digest_of_rounded(array: np.ndarray) -> str:
    """Return the digest of real numbers, rounded to steps larger than differences between machines."""
    values = np.asarray(array, np.float64)
    step = SHARE * (float(np.abs(values).max(initial=0.0)) or 1.0)
    return of_array(np.floor(values / step + 0.381966).astype(np.int64))  # no round number lies on an edge
