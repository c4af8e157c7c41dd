"""One OpenMP runtime for torch and numba."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from ptymesh.parallel.openmp import RUNTIME

LOADED = """
{first}
import torch
from ptymesh.kernels.ready import make_ready
from ptymesh.parallel import openmp
torch.set_num_threads(2)
make_ready(torch.complex64)
torch.fft.fft2(torch.zeros(64, 128, 128, dtype=torch.complex64))
maps = open("/proc/self/maps").read().split()
print(len({{path for path in maps if "libgomp" in path}}), openmp.share_runtime())
"""


def there() -> bool:
    if sys.platform != "linux":
        return False
    try:
        ctypes.CDLL(RUNTIME)
    except OSError:
        return False
    return True


@pytest.mark.skipif(not there(), reason=f"there is no {RUNTIME} on this machine")
def test_one_runtime_where_ptymesh_comes_first() -> None:
    found = subprocess.run(
        [sys.executable, "-c", LOADED.format(first="import ptymesh")], capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == ["1", "False"], "torch is there: it is too late to choose"
