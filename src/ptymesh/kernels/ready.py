"""Kernels made ready: compiled once for a machine, and told how many threads they may use.

All that a reconstruction will call is compiled before its first epoch. On a machine with several ranks one of them
compiles, and the others wait and read what it has left on disk.
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numba
import torch

from ptymesh.kernels import compiled, compiled_blocks, compiled_detector, compiled_fixed

MESSAGE = "Compiling kernels for this processor; that takes half a minute, and only the first time."

#: Parameters of glibc's mallopt, by their numbers in malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
#: Arrays of fewer bytes than these (the most that glibc allows) come from the heap, which keeps so many when free.
MAPPED_BYTES, FREE_BYTES = 32 << 20, 64 << 20

config: Any = numba.config
_ready: set[torch.dtype] = set()


def make_ready(dtype: torch.dtype) -> None:
    """Compiles, or reads from disk, the kernels for waves of `dtype`."""
    if dtype in _ready:
        return
    # numba's OpenMP shares torch's threads (parallel/openmp.py): a pool of its own would keep spinning on the cores
    # that the FFT needs. Where numba was built without OpenMP it takes what it has. Nobody may fork after this; ranks
    # are spawned.
    config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]
    share_threads()
    keep_memory()
    with _one_at_a_time():
        _compile(dtype)
    _ready.add(dtype)


def keep_memory() -> None:
    """Asks the C library not to give freed memory back at once, where that is glibc.

    Waves of a chunk are megabytes, which it would map anew for every pass: the kernel then clears all pages first,
    which takes as long as half a Fourier transform.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
        mallopt(M_TRIM_THRESHOLD, FREE_BYTES)


def share_threads() -> None:
    """As many threads for numba as torch has in this process."""
    threads = torch.get_num_threads()
    numba.set_num_threads(min(threads, config.NUMBA_NUM_THREADS))
    if torch.get_num_threads() != threads:  # when numba starts its threads, it sets OpenMP's number of them for all
        torch.set_num_threads(threads)


def _compile(dtype: torch.dtype) -> None:
    types = {
        "c": numba.complex64 if dtype == torch.complex64 else numba.complex128,
        "r": numba.float32 if dtype == torch.complex64 else numba.float64,
        "d": numba.float64,
        "u": numba.uint8,
        "i": numba.int64,
        "b": numba.boolean,
    }
    told = False
    rooms = (compiled, compiled_detector, compiled_blocks, compiled_fixed)
    kernels = {kernel: words for room in rooms for kernel, words in room.SIGNATURES.items()}
    for kernel, words in kernels.items():
        signature = tuple(_type(types[word[0]], word[1:]) for word in words.split())
        missed = sum(kernel.stats.cache_misses.values())
        kernel.compile(signature)
        if not told and sum(kernel.stats.cache_misses.values()) > missed:
            print(MESSAGE, file=sys.stderr, flush=True)
            told = True


def _type(scalar: Any, dimensions: str) -> Any:
    return numba.types.Array(scalar, int(dimensions), "C") if dimensions else scalar


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Among the processes of this machine: ranks that start together, or workers of a test run.

    It also keeps two processes from naming what they write into numba's cache alike.
    """
    try:
        import fcntl
    except ImportError:  # not on Windows, where each process compiles for itself
        yield
        return
    path = Path(tempfile.gettempdir()) / f"ptymesh-kernels-{_user()}.lock"
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield  # closing the file lets go of the lock, as does the end of a killed process


def _user() -> str:
    import os

    return str(os.getuid())
