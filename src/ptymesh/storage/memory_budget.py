"""Choice of where a rank's patterns are kept: on the device, in the host's memory, or in a file on a local disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ptymesh.distributed.devices import free_bytes
from ptymesh.errors import BadInput
from ptymesh.files import size
from ptymesh.measurement import PatternSource
from ptymesh.storage.cached import CachedViews
from ptymesh.storage.fetched import Hosted, Staged
from ptymesh.storage.patterns import Kind, Patterns, Resident, Slotted, native_tensor, slabs

#: Share of a device's free memory that patterns may take; the rest is for the object, waves and FFT plans.
DEVICE_SHARE = 0.7
#: Bytes for pieces of fetched patterns that are kept, and their share of a budget: a quarter, as pieces in use but no
#: longer kept, buffers for the next ones and slabs on their way to the disk need memory, too.
KEPT_BYTES, KEPT_SHARE = 1 << 30, 4
#: Least number of patterns that a budget must hold.
LEAST_VIEWS = 16


@dataclass(frozen=True)
class MemoryBudget:
    """Limits of memory and disk for patterns.

    Attributes:
        budget: bytes of memory for each rank's patterns, the device's or the host's; None for all that there is.
        scratch: folder for patterns that do not fit; None for the system's folder for temporary files.
    """

    budget: int | None = None
    scratch: Path | None = None


def choose_storage(needed: int, frame: int, device: torch.device, memory: MemoryBudget) -> Kind:
    """Return where patterns are kept: on the device, else the host, else, beyond the budget, the disk.

    A CPU is both device and host.

    Args:
        needed: bytes of all patterns.
        frame: bytes of one pattern.
        device: the computing device.
        memory: the limits.

    Raises:
        BadInput: the budget does not hold a few patterns.
    """
    if memory.budget is not None and memory.budget < LEAST_VIEWS * frame:
        raise BadInput(
            f"memory_budget is {size(memory.budget)}, and one pattern takes {size(frame)}; give {LEAST_VIEWS} patterns "
            f"of room at least, {size(LEAST_VIEWS * frame)}."
        )
    if memory.budget is not None and needed > memory.budget:
        return "disk"
    if device.type == "cpu" or needed > DEVICE_SHARE * free_bytes(device):
        return "host"
    return "device"


def stored(
    source: PatternSource, local_views: np.ndarray, most: int, device: torch.device, memory: MemoryBudget
) -> Patterns:
    """Return the patterns of some views of a source, read slab by slab.

    Args:
        source: patterns of the scan.
        local_views: (n,) global indices of this rank's views.
        most: views of the rank that has most, which decides where all ranks keep theirs.
        device: the computing device.
        memory: the limits.

    Raises:
        BadInput: the budget is too small, or the scratch folder cannot be used. Errors of the source pass through.
    """
    frame = int(np.prod(source.shape[1:])) * source.dtype.itemsize
    kind = choose_storage(most * frame, frame, device, memory)
    if isinstance(source, CachedViews) and kind == "host" and device.type == "cpu":
        return source.lend_patterns(local_views)
    shape, dtype = (len(local_views), *source.shape[1:]), _torch_dtype(source.dtype)
    patterns: Slotted
    if kind == "disk":
        assert memory.budget is not None
        patterns = Staged(shape, dtype, device, min(memory.budget // KEPT_SHARE, KEPT_BYTES), memory.scratch)
    elif kind == "host" and device.type != "cpu":
        patterns = Hosted(shape, dtype, device, KEPT_BYTES)
    else:
        patterns = Resident(torch.empty(shape, dtype=dtype, device=device))
    try:
        patterns.fill(native_tensor(source.read(local_views[part])) for part in slabs(len(local_views), frame))
    except BaseException:
        patterns.close()
        raise
    return patterns


def _torch_dtype(dtype: np.dtype) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype=dtype.newbyteorder("="))).dtype
