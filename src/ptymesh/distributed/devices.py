"""Which device a rank computes on, and the collective backend that goes with it.

cuda also means AMD's (ROCm speaks through torch's CUDA interface); xpu are Intel's. Apple's (mps) have no float64.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from ptymesh.errors import BadInput
from ptymesh.limits import free_memory

#: Environment variables that stand for --device and --backend in somebody's own program.
DEVICE, BACKEND = "PTYMESH_DEVICE", "PTYMESH_BACKEND"
BACKENDS = ("auto", "gloo", "nccl", "xccl")
KINDS = ("cuda", "xpu")
#: Kinds whose work is queued, and which copy from and to page-locked memory of the host in turn with it.
QUEUED = ["cuda", "xpu"]


def device_for(name: str, local_rank: int, local_size: int = 1, backend: str = "auto") -> torch.device:
    """Device of a rank. `auto`: CUDA where there is one, then XPU, else the CPU; `cuda` spreads local ranks over GPUs.

    Where a rank sees one device alone, that is its own: srun --gpus-per-task=1 and wrappers hide the others (`claimed`
    tells whether two ranks see the same one). Raises BadInput for a device that is not there, for more local ranks than
    several devices (unless backend is gloo, with which they share them), and for MIG slices that would have to form one
    NCCL group.
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
    """Devices of this kind that may be used."""
    interface: ModuleType = getattr(torch, kind)
    return interface.device_count() if interface.is_available() else 0


def is_slice(device: torch.device) -> bool:
    """Whether a CUDA device is a slice of a GPU (NVIDIA's Multi-Instance GPU)."""
    if device.type != "cuda":
        return False
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return visible[0].startswith("MIG-") or " MIG " in torch.cuda.get_device_name(device)


def visible_slice(local_rank: int) -> str | None:
    """The MIG slice for a local rank where CUDA_VISIBLE_DEVICES lists several: a process can see no more than one."""
    slices = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.startswith("MIG-")]
    return slices[local_rank % len(slices)] if len(slices) > 1 else None


def backend_for(device: torch.device, wanted: str = "auto") -> str:
    """NCCL between GPUs (RCCL on AMD's has its name), XCCL between Intel's, gloo between CPUs and where those are not.

    Raises BadInput for a backend that is not there or does not fit the device.
    """
    if wanted not in BACKENDS:
        raise BadInput(f"Backend {wanted!r} is unknown; give {', '.join(BACKENDS)}.")
    own = {"cuda": "nccl", "xpu": "xccl"}.get(device.type, "gloo")
    if wanted == "auto":
        return own if own in available_backends() else "gloo"
    if wanted not in ("gloo", own):
        names = " or ".join(dict.fromkeys(("auto", own, "gloo")))
        raise BadInput(f"Backend {wanted} does not speak for {device.type}; use --backend {names}.")
    if wanted not in available_backends():
        raise BadInput(f"This torch has no backend {wanted}; use --backend {' or '.join(available_backends())}.")
    return wanted


def available_backends() -> list[str]:
    """Collective backends that this torch was built with."""
    return [name for name in BACKENDS[1:] if dist.is_available() and dist.is_backend_available(name)]


def identity(device: torch.device) -> str:
    """Name of a GPU that no other has, however processes number those that they see."""
    about = torch.get_device_module(device).get_device_properties(device)
    unique = getattr(about, "uuid", None)
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", os.environ.get("ROCR_VISIBLE_DEVICES", ""))
    return f"{platform.node()} {unique or f'{device} of {seen!r}'}"


def claimed(store: dist.Store, rank: int, device: torch.device) -> None:
    """This rank takes its GPU for itself. Raises BadInput where another one has it already."""
    gpu = identity(device)
    owner = store.compare_set(f"ptymesh/gpu/{gpu}", "", str(rank)).decode()
    if owner != str(rank):
        raise BadInput(
            f"Ranks {owner} and {rank} would use the same GPU ({gpu}), and NCCL needs one for each; use fewer --ranks, "
            "let each see its own (srun --gpus-per-task=1), or let them share it with --backend gloo."
        )


def check_sums(device: torch.device) -> torch.device:
    """The device, if it computes in the double precision in which losses are summed. Raises BadInput."""
    try:
        float((torch.ones(2, dtype=torch.float64, device=device) / 3).sum())
    except (TypeError, RuntimeError) as error:
        raise BadInput(f"Device {device} has no float64, in which losses are summed; use --device cpu.") from error
    return device


def shared_by(device: torch.device, local_size: int) -> str:
    """A sentence where several ranks of this machine share devices, else nothing."""
    count = 1 if device.type == "cpu" else _count(device.type)
    if device.type == "cpu" or local_size <= count:
        return ""
    return f"{local_size} ranks share {count} {device.type.upper()} device{'s' * (count > 1)} through gloo"


# --- cores ---


def parse_cpus(text: str) -> list[int]:
    """0-3,8 -> [0, 1, 2, 3, 8]."""
    found: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            found.extend(range(int(first), int(last or first) + 1))
    return found


def say_cpus(cpus: list[int]) -> str:
    """[0, 1, 2, 3, 8] -> 0-3,8."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and runs[-1][-1] == cpu - 1:
            runs[-1].append(cpu)
        else:
            runs.append([cpu])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def memory_nodes(root: Path = Path("/sys/devices/system/node")) -> list[list[int]]:
    """Cores of each NUMA node; empty where the system does not tell."""
    lists = sorted(root.glob("node[0-9]*/cpulist"), key=lambda path: int(path.parent.name[4:]))
    return [cpus for path in lists if (cpus := parse_cpus(path.read_text()))]


def bindings(ranks: int, allowed: list[int], nodes: list[list[int]]) -> list[list[int]]:
    """Cores for each of this machine's ranks: consecutive ranks on one NUMA node, all of its cores.

    Empty lists (no binding) where there is one node, or fewer ranks than two: the system does as well then.
    """
    own = [[cpu for cpu in node if cpu in set(allowed)] for node in nodes]
    own = [node for node in own if node]
    if len(own) < 2 or ranks < 2:
        return [[] for _ in range(ranks)]
    return [own[rank * len(own) // ranks] for rank in range(ranks)]


def free_bytes(device: torch.device) -> int:
    """Memory that nobody has taken yet, of a GPU, or of what this process may take of the machine's."""
    if device.type in KINDS:
        return int(torch.get_device_module(device).mem_get_info(device)[0])
    return free_memory()


def sent(values: Tensor | np.ndarray, device: torch.device) -> Tensor:
    """Values of the host on the device. Where work is queued nobody waits for the copy, which takes its turn."""
    host = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
    if host.device == device:
        return host
    return host.pin_memory().to(device, non_blocking=True) if device.type in QUEUED else host.to(device)


class Later:
    """Numbers of a device that are each read one call later, so that nobody waits for the work queued last.

    On a CPU, and on devices that do not queue, a number is read at once.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._kept: tuple[Tensor, Any] | None = None

    def read(self, value: Tensor) -> float:
        """The number (0-d) of the call before, 0 in the first call; this one's is on its way then."""
        if self.device.type not in QUEUED:
            return float(value)
        before = self.last()
        module = torch.get_device_module(self.device)
        there, event = torch.empty((), dtype=value.dtype, pin_memory=True), module.Event()
        there.copy_(value, non_blocking=True)
        event.record(module.current_stream(self.device))
        self._kept = there, event
        return before

    def last(self) -> float:
        """The number that has not been read yet, waited for; 0 where there is none."""
        if self._kept is None:
            return 0.0
        there, event = self._kept
        self._kept = None
        event.synchronize()
        return float(there)


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch shares large sums and decompositions between threads, and how many these are shows in the last bit."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
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
