"""Fused twins of the passes over a chunk (physics/passes.py), chosen by device.

The environment variable PTYMESH_KERNELS=torch keeps the plain torch passes, to compare with. Importing this package
imports no compiler and compiles nothing; `passes_for` does, once for a machine.
"""

from __future__ import annotations

import os

import torch

from ptymesh.errors import BadInput
from ptymesh.physics.passes import Passes

#: Environment variable that chooses, and what it may say.
VARIABLE, CHOICES = "PTYMESH_KERNELS", ("auto", "torch")


def passes_for(device: torch.device, dtype: torch.dtype) -> Passes:
    """The passes for arrays on this device and waves of `dtype` (complex64 or complex128).

    Raises BadInput where PTYMESH_KERNELS says something unknown.
    """
    choice = os.environ.get(VARIABLE, "auto")
    if choice not in CHOICES:
        raise BadInput(f"{VARIABLE} is {choice!r}; set it to {' or '.join(CHOICES)}, or remove it.")
    if choice == "torch" or device.type != "cpu":
        return Passes()
    from ptymesh.kernels.cpu import CpuPasses

    return CpuPasses(dtype)
