"""Which device a rank computes on, and the collective backend that goes with it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ptymesh.errors import BadInput


def device_for(name: str, local_rank: int) -> torch.device:
    """Device of a rank: `auto` takes CUDA where there is one, else the CPU; `cuda` spreads local ranks over the GPUs.

    Raises BadInput for a device that is not there, and for more local ranks than GPUs.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return torch.device("cpu")
    if name.split(":")[0] != "cuda":
        raise BadInput(f"Device {name!r} is unknown; give auto, cpu, cuda or cuda:N.")
    if not torch.cuda.is_available():
        raise BadInput("There is no CUDA device here; use --device cpu (or auto).")
    count = torch.cuda.device_count()
    if ":" in name:
        index = name.split(":")[1]
        if not index.isdigit() or int(index) >= count:
            raise BadInput(f"Device {name!r} is not there; this machine has cuda:0 to cuda:{count - 1}.")
        return torch.device(name)
    if local_rank >= count:
        raise BadInput(f"Local rank {local_rank} has no GPU of its own ({count} here); use --ranks {count} or fewer.")
    return torch.device("cuda", local_rank)


def backend_for(device: torch.device) -> str:
    """NCCL between GPUs, gloo between CPUs."""
    return "nccl" if device.type == "cuda" else "gloo"


def free_bytes(device: torch.device) -> int:
    """Memory of a CUDA device that nobody has taken yet."""
    return int(torch.cuda.mem_get_info(device)[0])


def share_cores(ranks_here: int) -> None:
    """Gives each of this machine's ranks its share of the cores, unless OMP_NUM_THREADS already does."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // max(1, ranks_here)))


@contextmanager
def one_thread(wanted: bool = True) -> Iterator[None]:
    """Where threads share an array, which pixels the vector unit computes depends on their number; one thread has all.

    Does nothing unless `wanted`.
    """
    threads = torch.get_num_threads()
    if wanted:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if wanted:
            torch.set_num_threads(threads)


def visible_gpus() -> list[str]:
    """CUDA devices of this process, as CUDA_VISIBLE_DEVICES names them: numbers, or UUIDs of GPUs and MIG slices.

    Where the variable lists MIG slices, each is one device, though a process can use but one of them at a time.
    """
    if not torch.cuda.is_available():
        return []
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return [name.strip() for name in listed.split(",") if name.strip()]
    return [str(number) for number in range(torch.cuda.device_count())]
