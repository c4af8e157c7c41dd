"""Where a rank's patterns go: to the device, to the host's memory, or to a file on a local disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ptymesh.distributed.devices import free_bytes
from ptymesh.errors import BadInput
from ptymesh.files import size
from ptymesh.measurement import PatternSource
from ptymesh.storage.fetched import Hosted, Staged
from ptymesh.storage.patterns import Kind, Patterns, Resident, Slotted, slabs

#: Share of a device's free memory that patterns may take; the rest is for the object, waves and FFT plans.
DEVICE_SHARE = 0.7
#: What pieces may take that are kept where patterns come from elsewhere, and their share of a budget: a quarter, for
#: pieces that are in use but no longer kept, memory for the next ones and slabs on their way to the disk need room too.
KEPT_BYTES, KEPT_SHARE = 1 << 30, 4
#: A budget must hold so many patterns at least.
LEAST_VIEWS = 16


@dataclass(frozen=True)
class MemoryBudget:
    """What patterns may take.

    Fields:
        budget: bytes of memory for each rank's patterns, the device's or the host's; None: all that there is.
        scratch: folder for what does not fit; None: the system's folder for temporary files.
    """

    budget: int | None = None
    scratch: Path | None = None


def choose(needed: int, frame: int, device: torch.device, memory: MemoryBudget) -> Kind:
    """Where patterns of so many bytes go, `frame` each: the device, else the host, else, beyond the budget, the disk.

    A CPU is both device and host. Raises BadInput for a budget that does not hold a few patterns.
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


def stored(source: PatternSource, own: np.ndarray, most: int, device: torch.device, memory: MemoryBudget) -> Patterns:
    """The views `own` of a source, read slab by slab; `most` (views of the rank that has most) decides their kind.

    Raises BadInput for a budget or a scratch folder that does not do, and what the source raises.
    """
    frame = int(np.prod(source.shape[1:])) * source.dtype.itemsize
    kind = choose(most * frame, frame, device, memory)
    shape, dtype = (len(own), *source.shape[1:]), _torch_dtype(source.dtype)
    made: Slotted
    if kind == "disk":
        assert memory.budget is not None
        made = Staged(shape, dtype, device, min(memory.budget // KEPT_SHARE, KEPT_BYTES), memory.scratch)
    elif kind == "host" and device.type != "cpu":
        made = Hosted(shape, dtype, device, KEPT_BYTES)
    else:
        made = Resident(torch.empty(shape, dtype=dtype, device=device))
    try:
        made.fill(_slab(source.read(own[part])) for part in slabs(len(own), frame))
    except BaseException:
        made.close()
        raise
    return made


def _slab(read: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(read, dtype=read.dtype.newbyteorder("=")))


def _torch_dtype(dtype: np.dtype) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype=dtype.newbyteorder("="))).dtype
