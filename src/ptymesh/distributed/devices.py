"""Device that a rank computes on, the collective backend that goes with it, and the cores that it is bound to.

`cuda` also stands for AMD's GPUs (ROCm uses torch's CUDA interface), `xpu` for Intel's. Apple's (mps) have no float64.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from ptymesh.errors import BadInput
from ptymesh.limits import free_memory

#: Environment variables that replace --device and --backend in a user's own program.
DEVICE, BACKEND = "PTYMESH_DEVICE", "PTYMESH_BACKEND"
BACKENDS = ("auto", "gloo", "nccl", "xccl")
KINDS = ("cuda", "xpu")
#: Kinds whose kernels are queued on a stream, and whose copies from and to pinned host memory are queued with them.
QUEUED = ["cuda", "xpu"]


def device_for(name: str, local_rank: int, local_size: int = 1, backend: str = "auto") -> torch.device:
    """Return the device of a rank.

    Where a process sees a single device, all of its local ranks take that one: srun --gpus-per-task=1 and wrappers hide
    the others (`claimed` detects two ranks on the same GPU).

    Args:
        name: auto (CUDA where there is one, then XPU, else the CPU), cpu, cuda or xpu (local ranks are spread over the
            devices), cuda:N or xpu:N.
        local_rank: of this machine's ranks.
        local_size: number of ranks on this machine.
        backend: collective backend as the user gave it.

    Returns:
        The device.

    Raises:
        BadInput: the device does not exist; there are more local ranks than devices, or MIG slices would have to form
            one NCCL group (unless the backend is gloo).
    """
    if name == "auto":
        name = next((kind for kind in ("cuda", "xpu") if _count(kind)), "cpu")
    if name == "cpu":
        return torch.device("cpu")
    kind, _, index = name.partition(":")
    if kind == "mps":
        raise BadInput("Apple's GPUs (mps) have no float64, in which losses are summed; use --device cpu.")
    if kind not in KINDS:
        raise BadInput(f"Device {name!r} is unknown; give auto, cpu, cuda, cuda:N, xpu or xpu:N.")
    if index and local_size > 1 and backend != "gloo":
        raise BadInput(f"--device {name} names one GPU; leave the number out, and each rank takes its own.")
    count = _count(kind)
    if not count:
        hidden = ""
        if kind == "cuda" and os.environ.get("CUDA_VISIBLE_DEVICES") == "":
            hidden = " (CUDA_VISIBLE_DEVICES is empty, which hides them all)"
        raise BadInput(f"There is no {kind.upper()} device here{hidden}; use --device cpu (or auto).")
    if index:
        if not index.isdigit() or int(index) >= count:
            raise BadInput(f"Device {name!r} is not there; this machine has {kind}:0 to {kind}:{count - 1}.")
        chosen = torch.device(kind, int(index))
    else:
        if max(local_size, local_rank + 1) > count > 1 and backend != "gloo":
            raise BadInput(
                f"{max(local_size, local_rank + 1)} ranks on this machine have {count} {kind.upper()} "
                f"devices; use --ranks {count} or fewer, or let ranks share devices with "
                "--backend gloo."
            )
        chosen = torch.device(kind, local_rank % count)
    if local_size > 1 and backend != "gloo" and is_slice(chosen):
        raise BadInput(
            f"{chosen} is a MIG slice, and slices cannot form one NCCL group; run one task on each slice "
            "(CUDA_VISIBLE_DEVICES=MIG-... ptymesh run ...), or join the slices with --backend gloo."
        )
    return chosen


def _count(kind: str) -> int:
    """Return the number of usable devices of this kind."""
    interface: ModuleType = getattr(torch, kind)
    return interface.device_count() if interface.is_available() else 0


def is_slice(device: torch.device) -> bool:
    """Return True if a CUDA device is a slice of a GPU (NVIDIA's Multi-Instance GPU)."""
    if device.type != "cuda":
        return False
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return visible[0].startswith("MIG-") or " MIG " in torch.cuda.get_device_name(device)


def visible_slice(local_rank: int) -> str | None:
    """Return the MIG slice for a local rank where CUDA_VISIBLE_DEVICES lists several; else None.

    A process can use only one slice at a time.
    """
    slices = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.startswith("MIG-")]
    return slices[local_rank % len(slices)] if len(slices) > 1 else None


def backend_for(device: torch.device, wanted: str = "auto") -> str:
    """Return the collective backend for a device.

    NCCL for CUDA devices (also the name of AMD's RCCL), XCCL for Intel's, gloo for CPUs and where those are missing.

    Args:
        device: device of this rank.
        wanted: auto, or a backend by name.

    Returns:
        Name of the backend.

    Raises:
        BadInput: this torch has no such backend, or it does not fit the device.
    """
    if wanted not in BACKENDS:
        raise BadInput(f"Backend {wanted!r} is unknown; give {', '.join(BACKENDS)}.")
    native = {"cuda": "nccl", "xpu": "xccl"}.get(device.type, "gloo")
    if wanted == "auto":
        return native if native in available_backends() else "gloo"
    if wanted not in ("gloo", native):
        names = " or ".join(dict.fromkeys(("auto", native, "gloo")))
        raise BadInput(f"Backend {wanted} does not speak for {device.type}; use --backend {names}.")
    if wanted not in available_backends():
        raise BadInput(f"This torch has no backend {wanted}; use --backend {' or '.join(available_backends())}.")
    return wanted


def available_backends() -> list[str]:
    """Return the collective backends that this torch was built with."""
    return [name for name in BACKENDS[1:] if dist.is_available() and dist.is_backend_available(name)]


def identity_of_device(device: torch.device) -> str:
    """Return a name of a GPU that is unique across machines and processes, however each process numbers its devices."""
    about = torch.get_device_module(device).get_device_properties(device)
    unique = getattr(about, "uuid", None)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", os.environ.get("ROCR_VISIBLE_DEVICES", ""))
    return f"{platform.node()} {unique or f'{device} of {visible!r}'}"


def claimed(store: dist.Store, rank: int, device: torch.device) -> None:
    """Claim a GPU for this rank in the store.

    Args:
        store: rendezvous store of the ranks.
        rank: this rank.
        device: its GPU.

    Raises:
        BadInput: another rank has claimed the same GPU.
    """
    gpu = identity_of_device(device)
    owner = store.compare_set(f"ptymesh/gpu/{gpu}", "", str(rank)).decode()
    if owner != str(rank):
        raise BadInput(
            f"Ranks {owner} and {rank} would use the same GPU ({gpu}), and NCCL needs one for each; use fewer --ranks, "
            "let each see its own (srun --gpus-per-task=1), or let them share it with --backend gloo."
        )


def check_sums(device: torch.device) -> torch.device:
    """Return the device if it supports float64, in which losses are summed.

    Raises:
        BadInput: the device has no float64.
    """
    try:
        float((torch.ones(2, dtype=torch.float64, device=device) / 3).sum())
    except (TypeError, RuntimeError) as error:
        raise BadInput(f"Device {device} has no float64, in which losses are summed; use --device cpu.") from error
    return device


def shared_by(device: torch.device, local_size: int) -> str:
    """Return a sentence if several ranks of this machine share devices, else an empty string."""
    count = 1 if device.type == "cpu" else _count(device.type)
    if device.type == "cpu" or local_size <= count:
        return ""
    return f"{local_size} ranks share {count} {device.type.upper()} device{'s' * (count > 1)} through gloo"


# --- cores ---


def parse_cpus(text: str) -> list[int]:
    """Return core numbers from a list as Linux writes it: 0-3,8 -> [0, 1, 2, 3, 8]."""
    cpus: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            cpus.extend(range(int(first), int(last or first) + 1))
    return cpus


def say_cpus(cpus: list[int]) -> str:
    """Format core numbers as Linux does: [0, 1, 2, 3, 8] -> 0-3,8."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and runs[-1][-1] == cpu - 1:
            runs[-1].append(cpu)
        else:
            runs.append([cpu])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def memory_nodes(root: Path = Path("/sys/devices/system/node")) -> list[list[int]]:
    """Return the cores of each NUMA node; empty where the system does not list them."""
    lists = sorted(root.glob("node[0-9]*/cpulist"), key=lambda path: int(path.parent.name[4:]))
    return [cpus for path in lists if (cpus := parse_cpus(path.read_text()))]


def bindings(ranks: int, allowed: list[int], nodes: list[list[int]]) -> list[list[int]]:
    """Return the cores of each rank of this machine: consecutive ranks share one NUMA node, all of its cores.

    Args:
        ranks: number of ranks on this machine.
        allowed: cores that this process may use.
        nodes: cores of each NUMA node.

    Returns:
        Cores by rank; empty lists (no binding) where there is one node or one rank, as binding gains nothing then.
    """
    allowed_nodes = [[cpu for cpu in node if cpu in set(allowed)] for node in nodes]
    allowed_nodes = [node for node in allowed_nodes if node]
    if len(allowed_nodes) < 2 or ranks < 2:
        return [[] for _ in range(ranks)]
    return [allowed_nodes[rank * len(allowed_nodes) // ranks] for rank in range(ranks)]


def free_bytes(device: torch.device) -> int:
    """Return the free memory in bytes: of a GPU, or for a CPU what this process may still allocate."""
    if device.type in KINDS:
        return int(torch.get_device_module(device).mem_get_info(device)[0])
    return free_memory()


def sent(values: Tensor | np.ndarray, device: torch.device) -> Tensor:
    """Return values (any shape) of the host on the device; on devices with queues the copy is asynchronous."""
    host = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
    if host.device == device:
        return host
    return host.pin_memory().to(device, non_blocking=True) if device.type in QUEUED else host.to(device)


class Later:
    """Delayed read-out of device scalars: each is read one call later, so that the host need not wait for it.

    On a CPU, and on devices without queues, a number is read at once.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._kept: tuple[Tensor, torch.Event] | None = None

    def read(self, value: Tensor) -> float:
        """Start the copy of a 0-d tensor to the host and return the number of the call before, 0 in the first call."""
        if self.device.type not in QUEUED:
            return float(value)
        before = self.last()
        module = torch.get_device_module(self.device)
        pinned, event = torch.empty((), dtype=value.dtype, pin_memory=True), module.Event()
        pinned.copy_(value, non_blocking=True)
        event.record(module.current_stream(self.device))
        self._kept = pinned, event
        return before

    def last(self) -> float:
        """Wait for the number that has not been returned yet and return it; 0 where there is none."""
        if self._kept is None:
            return 0.0
        pinned, event = self._kept
        self._kept = None
        event.synchronize()
        return float(pinned)


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread within this context.

    Torch splits large sums and decompositions between threads, so that their last bits depend on the number of threads.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def visible_gpus() -> list[str]:
    """Return the CUDA devices of this process as CUDA_VISIBLE_DEVICES names them.

    They are numbers, or UUIDs of GPUs and MIG slices. Every MIG slice in the variable counts as a device, though a
    process can use only one of them at a time.
    """
    if not torch.cuda.is_available():
        return []
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return [name.strip() for name in listed.split(",") if name.strip()]
    return [str(number) for number in range(torch.cuda.device_count())]
