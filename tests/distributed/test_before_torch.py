"""One OpenMP runtime for torch and numba, and large pages."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ptymesh.distributed.before_torch import LARGE_PAGES, RUNTIME

LOADED = """
{first}
import torch
from ptymesh.kernels.cpu.ready import make_ready
from ptymesh.distributed import before_torch
torch.set_num_threads(2)
make_ready(torch.complex64)
torch.fft.fft2(torch.zeros(64, 128, 128, dtype=torch.complex64))
maps = open("/proc/self/maps").read().split()
print(len({{path for path in maps if "libgomp" in path}}), before_torch.share_runtime())
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


def large_pages_are_given() -> bool:
    choice = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return choice.is_file() and "[never]" not in choice.read_text()


@pytest.mark.sample(1)
@pytest.mark.skipif(not large_pages_are_given(), reason="this system gives no large pages")
@pytest.mark.parametrize(("asked", "given"), [(None, True), ("0", False)])
def test_large_arrays_lie_on_large_pages(asked: str | None, given: bool) -> None:
    if not given and "[always]" in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text():
        pytest.skip("this system gives them unasked")
    code = (
        "import ptymesh, torch\n"
        "array = torch.ones(16 << 20)\n"
        "kept = [line.split()[1] for line in open('/proc/self/smaps') if line.startswith('AnonHugePages')]\n"
        "print(sum(map(int, kept)))\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != LARGE_PAGES}
    environment |= {} if asked is None else {LARGE_PAGES: asked}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert (int(found.stdout) > 0) == given
