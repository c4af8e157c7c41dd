"""Inventory and test of this machine: devices, backends, collectives, copies between GPUs, disk.

Tests that may hang run in separate processes with a time limit. NCCL is tried again without direct copies between GPUs,
which distinguishes a broken path between two of them from a broken installation.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import torch

from ptymesh.distributed import shared_memory
from ptymesh.distributed.devices import available_backends, is_slice, memory_nodes, say_cpus
from ptymesh.distributed.processes import cores, start_python

#: Module that each rank of the hang test runs, and module for copies between GPUs; tests replace them.
PROBE, PEERS = ("-m", "ptymesh.launcher.probe"), ("-m", "ptymesh.distributed.peers")
#: Bytes written to and read from the disk.
DISK_BYTES = 64 << 20
NO_PEERS = {"NCCL_P2P_DISABLE": "1"}
_TELLING = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "OMP_NUM_THREADS", "SLURM_JOB_ID", "MASTER_ADDR")


def examine(folder: Path, timeout_s: float, ranks: int) -> dict[str, Any]:
    """Run all tests and return their results as JSON can hold them.

    Args:
        folder: folder whose disk is timed.
        timeout_s: seconds after which a test counts as hanging.
        ranks: number of ranks of the hang test on the CPU; on GPUs each device has one.
    """
    facts: dict[str, Any] = {
        "system": system(),
        "devices": devices(),
        "environment": environment(os.environ),
        "backends": [],
        "peers": [],
        "disk": disk(folder),
        "advice": [],
    }
    for device, backend, count in trials(facts["devices"], ranks):
        tried = hang_test(device, backend, count, timeout_s)
        if not tried["works"] and backend == "nccl":
            tried["without_peers"] = hang_test(device, backend, count, timeout_s, NO_PEERS)
        facts["backends"].append(tried)
    if sum(device["kind"] == "cuda" and not device["slice"] for device in facts["devices"]) > 1:
        facts["peers"] = peers(timeout_s)
    facts["advice"] = advice(facts)
    return facts


def trials(devices: Sequence[Mapping[str, object]], ranks: int) -> list[tuple[str, str, int]]:
    """Return the combinations (device, backend, ranks) to test: every backend with the devices that it is for.

    Args:
        devices: devices, as `devices` returns them.
        ranks: number of ranks on the CPU.
    """
    tried = [("cpu", "auto", ranks)] if shared_memory.possible() else []
    tried.append(("cpu", "gloo", ranks))
    for kind, backend in (("cuda", "nccl"), ("xpu", "xccl")):
        undivided = [device for device in devices if device["kind"] == kind and not device["slice"]]
        if len(undivided) > 1 and backend in available_backends():
            tried.append((kind, backend, len(undivided)))
        if len(undivided) > 1:
            tried.append((kind, "gloo", len(undivided)))
    return tried


def system() -> dict[str, object]:
    """Return versions, cores, memory and network interfaces of this machine."""
    import psutil

    memory = psutil.virtual_memory()
    return {
        "ptymesh": version("ptymesh"),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "triton": _version("triton"),
        "numba": _version("numba"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": platform.node(),
        "driver": driver(),
        "cores": cores(),
        "numa_nodes": [say_cpus(cpus) for cpus in memory_nodes()],
        "memory_bytes": memory.total,
        "memory_free_bytes": memory.available,
        "interfaces": [name for _, name in socket.if_nameindex()],
        "backends": available_backends(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def driver() -> str | None:
    """Return the version of NVIDIA's driver as nvidia-smi reports it; None without one."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    command = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.strip().partition("\n")[0]
    except (OSError, subprocess.TimeoutExpired):
        return None


def devices() -> list[dict[str, object]]:
    """Return the CUDA (or ROCm) devices and XPUs, with their memory."""
    rows: list[dict[str, object]] = []
    for kind, interface in (("cuda", torch.cuda), ("xpu", torch.xpu)):
        for index in range(interface.device_count() if interface.is_available() else 0):
            free, total = interface.mem_get_info(index)
            rows.append(
                {
                    "kind": kind,
                    "index": index,
                    "name": interface.get_device_name(index),
                    "memory_bytes": total,
                    "memory_free_bytes": free,
                    "slice": is_slice(torch.device(kind, index)),
                }
            )
    return rows


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that affect the other tests."""
    names = [name for name in environ if name in _TELLING or name.startswith(("NCCL_", "GLOO_", "TORCH_NCCL_"))]
    return {name: environ[name] for name in sorted(names)}


def hang_test(
    device: str, backend: str, ranks: int, timeout_s: float, extra: Mapping[str, str] | None = None
) -> dict[str, object]:
    """Test whether ranks can sum over a backend without hanging, and measure how fast.

    Args:
        device: kind of device of every rank.
        backend: collective backend.
        ranks: number of ranks.
        timeout_s: seconds after which the test counts as hanging.
        extra: additional environment variables.
    """
    tried: dict[str, object] = {"device": device, "backend": backend, "ranks": ranks, "environment": dict(extra or {})}
    words = ("-m", "ptymesh.launcher.launch_process", str(ranks), *PROBE, device, backend)
    began = time.monotonic()
    status, out, err = run_python(words, timeout_s, extra)
    seconds = timeout_s if status is None else time.monotonic() - began  # without the time that killing takes
    tried |= {"works": status == 0, "hangs": status is None, "seconds": seconds, "allreduce": []}
    if status == 0:
        answer = json.loads(out.splitlines()[-1])
        tried |= {"backend": answer["through"], "allreduce": answer["allreduce"]}
    else:
        tried["said"] = err.strip().splitlines()[-1:] or ["nothing"]
    return tried


def run_python(
    words: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None
) -> tuple[int | None, str, str]:
    """Run Python, and kill it with all its children if it hangs.

    Args:
        words: arguments of Python.
        timeout_s: seconds after which it counts as hanging.
        environment: additional environment variables.

    Returns:
        Exit status (None if it hung), standard output and standard error.
    """
    process = start_python(
        *words,
        environment=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=timeout_s)
        return process.returncode, out, err
    except subprocess.TimeoutExpired:
        below = psutil.Process(process.pid).children(recursive=True)  # each rank has its own session
        process.kill()
        for child in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        out, err = process.communicate()
        return None, out, err


def peers(timeout_s: float) -> list[dict[str, object]]:
    """Return bandwidth and latency of copies between every two GPUs; 0 GB/s for the pair at which they hang or fail."""
    status, out, err = run_python(PEERS, timeout_s)
    rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    if status != 0:
        messages = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
        if messages:
            rows.append({**messages[-1], "direct": None, "GB_per_s": 0.0, "latency_us": None, "hangs": status is None})
    return rows


def disk(folder: Path) -> dict[str, object]:
    """Return the speed of writing and reading 64 MiB in a folder, and its free space."""
    block = os.urandom(1 << 20)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".ptymesh-doctor-") as file:
        began = time.perf_counter()
        for _ in range(DISK_BYTES // len(block)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        written_s = time.perf_counter()
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # drop it from the page cache
        file.seek(0)
        while file.read(1 << 20):
            pass
        read_s = time.perf_counter()
    return {
        "folder": str(folder.absolute()),
        "free_bytes": shutil.disk_usage(folder).free,
        "write_MB_per_s": DISK_BYTES / (written_s - began) / 1e6,
        "read_MB_per_s": DISK_BYTES / (read_s - written_s) / 1e6,
    }


def advice(facts: Mapping[str, Any]) -> list[str]:
    """Return sentences on what to do about the results, with the evidence."""
    sentences = []
    for tried in facts["backends"]:
        name = f"{tried['backend']} between {tried['ranks']} {tried['device']} ranks"
        if tried["works"]:
            continue
        how = f"hangs (given up after {tried['seconds']:.0f} s)" if tried["hangs"] else f"fails: {tried['said'][0]}"
        sentences.append(f"{name} {how}.")
        other = tried.get("without_peers")
        if other and other["works"]:
            sentences.append(
                f"With NCCL_P2P_DISABLE=1 the same works in {other['seconds']:.0f} s: direct copies between GPUs are "
                "broken here. Set NCCL_P2P_DISABLE=1, or turn off ACS and the IOMMU in the machine's firmware."
            )
        elif other:
            sentences.append("NCCL_P2P_DISABLE=1 does not help; try --backend gloo, and look at the driver.")
    for row in facts["peers"]:
        if not row["GB_per_s"]:
            sentences.append(
                f"Copies from cuda:{row['from']} to cuda:{row['to']} {'hang' if row.get('hangs') else 'fail'}; "
                "set NCCL_P2P_DISABLE=1, or leave one of the two out with CUDA_VISIBLE_DEVICES."
            )
    slices = [f"{device['kind']}:{device['index']}" for device in facts["devices"] if device["slice"]]
    if slices:
        sentences.append(
            f"{', '.join(slices)}: MIG slice{'s' * (len(slices) > 1)}. Slices cannot form one NCCL group; run one task "
            "on each, or join them with --backend gloo."
        )
    if not facts["devices"]:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == ""
        sentences.append("No GPU: CUDA_VISIBLE_DEVICES is empty." if hidden else "No GPU was found; runs use the CPU.")
    return sentences
