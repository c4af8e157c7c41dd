"""Which device a rank computes on, and the collective backend that goes with it."""

from __future__ import annotations

import os

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
