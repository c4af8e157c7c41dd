"""The machine that numbers were measured on: what it is, how busy others keep it, how much memory was needed."""

from __future__ import annotations

import os
import platform
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
import torch

from ptymesh import __version__
from ptymesh.distributed.devices import KINDS
from ptymesh.errors import BadInput

#: Cores that other processes may keep busy before a measurement is worth nothing.
BUSY_CORES = 0.25
#: Seconds over which their load is measured.
WATCH_S = 1.0


def describe(device: torch.device, threads: int) -> dict[str, object]:
    """Return processor, cores that this process may use, threads, versions, and GPU (None on a CPU)."""
    return {
        "cpu": processor(),
        "cores": len(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else os.cpu_count(),
        "threads": threads,
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.platform(),
        "python": platform.python_version(),
        "ptymesh": __version__,
        **{name: _version(name) for name in ("torch", "numba", "triton")},
        "device": device.type,
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
    }


def processor() -> str:
    """Return the CPU's name."""
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def load_of_others(seconds: float | None = None) -> tuple[float, list[tuple[str, float]]]:
    """Return the cores that other processes keep busy, and the busiest of them: (name, cores).

    Args:
        seconds: over which it is measured; None: WATCH_S.
    """
    processes = [process for process in psutil.process_iter(["name"]) if process.pid != os.getpid()]
    for process in processes:
        _cores(process)  # the first call only starts the clock
    began, busy, own_s = time.perf_counter(), _busy_seconds(), _own_seconds()
    time.sleep(WATCH_S if seconds is None else seconds)
    elapsed = time.perf_counter() - began
    load = max(0.0, (_busy_seconds() - busy) - (_own_seconds() - own_s)) / elapsed
    loads = [(process.info["name"], _cores(process)) for process in processes]
    return load, sorted((pair for pair in loads if pair[1] > 0.05), key=lambda pair: -pair[1])[:3]


def refuse_if_busy(seconds: float | None = None) -> float:
    """Return the cores that others keep busy. Raises BadInput where that would spoil what is measured."""
    load, names = load_of_others(seconds)
    if load > BUSY_CORES:
        who = f" ({', '.join(f'{name} {cores:.1f}' for name, cores in names)})" if names else ""
        raise BadInput(
            f"Other processes keep {load:.1f} of {os.cpu_count()} cores busy{who}; stop them, or measure all the same "
            "with --busy-ok."
        )
    return load


def _cores(process: psutil.Process) -> float:
    try:
        return process.cpu_percent() / 100
    except psutil.Error:  # it has ended
        return 0.0


def _busy_seconds() -> float:
    """Return the CPU seconds that all processes have used since the machine started."""
    times = psutil.cpu_times()
    return float(sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal")))


def _own_seconds() -> float:
    times = psutil.Process().cpu_times()
    return float(times.user + times.system)


def forget_peak(device: torch.device) -> None:
    """Count the largest memory use from here on, where the system allows that."""
    if device.type in KINDS:
        torch.get_device_module(device).reset_peak_memory_stats(device)
    elif sys.platform == "linux" and os.access("/proc/self/clear_refs", os.W_OK):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_bytes(device: torch.device) -> int:
    """Return the largest memory use since `forget_peak`: torch's on a GPU, else that of the whole process."""
    if device.type in KINDS:
        return int(torch.get_device_module(device).max_memory_allocated(device))
    if sys.platform == "linux":
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
