"""The passes over a chunk, fused (physics/backend.py), chosen by device.

The environment variable PTYMESH_KERNELS=torch keeps the plain torch passes, to compare with; PTYMESH_KERNELS=launched
launches a GPU's kernels one by one, without CUDA graphs. Importing this package imports neither compiler nor torch,
which those that compile kernels do without, and compiles nothing; `kernel_backend` does, once for a machine.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ptymesh.errors import BadInput

if TYPE_CHECKING:
    import torch

    from ptymesh.physics.backend import Backend

#: Environment variable that chooses the passes, and its values.
VARIABLE, CHOICES = "PTYMESH_KERNELS", ("auto", "torch", "launched")
#: Devices that Triton compiles for (torch calls ROCm's cuda too), where it is installed.
TRITON = ("cuda", "xpu")


@cache
def _launches(device: torch.device) -> bool:
    """Return True if Triton's kernels run on this device; otherwise say so on standard error, once, and leave it to
    torch."""
    import torch

    try:
        from ptymesh.kernels.gpu.backend import tried

        tried(device)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # no compiler, no Python.h, no folder to write to, a GPU that is too old ...
        failure = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        print(
            f"ptymesh: Triton runs no kernel on {device} ({failure}); torch's are used, which are slower. It needs a C "
            "compiler, Python's headers and a folder that can be written to (TRITON_CACHE_DIR).",
            file=sys.stderr,
            flush=True,
        )
        return False
    return True


@cache
def can_compile() -> bool:
    """Return True if numba can be imported; where it cannot, standard error says so, once."""
    try:
        import numba  # noqa: F401
    except ImportError as error:  # not installed, or it refuses a numpy that is newer than itself
        reason = " ".join(str(error).split())[:200]
        print(
            f"ptymesh: the kernels of CPUs are off, as numba cannot be imported ({reason}); torch's operations are "
            "used on CPUs, which are slower. Install a numba that goes with this numpy.",
            file=sys.stderr,
            flush=True,
        )
        return False
    return True


def start_preparing(device: torch.device, dtype: torch.dtype) -> None:
    """Start to read, or to compile, what `kernel_backend` will need, and return at once."""
    if device.type == "cpu" and os.environ.get(VARIABLE, "auto") == "auto" and can_compile():
        from ptymesh.kernels.cpu import ready

        ready.start_preparing(dtype)


def kernel_backend(device: torch.device, dtype: torch.dtype) -> Backend:
    """Return the passes for arrays on this device and waves of `dtype` (complex64 or complex128).

    Raises:
        BadInput: PTYMESH_KERNELS has an unknown value.
    """
    from ptymesh.physics.backend import Backend

    choice = os.environ.get(VARIABLE, "auto")
    if choice not in CHOICES:
        raise BadInput(f"{VARIABLE} is {choice!r}; set it to {', '.join(CHOICES[:-1])} or {CHOICES[-1]}, or remove it.")
    if choice == "torch":
        return Backend()
    if device.type == "cpu":
        if not can_compile():
            return Backend()
        from ptymesh.kernels.cpu.backend import CpuBackend

        return CpuBackend(dtype)
    if device.type in TRITON and find_spec("triton") and _launches(device):
        from ptymesh.kernels.gpu.backend import GpuBackend

        return GpuBackend(capture=choice != "launched")
    return Backend()
