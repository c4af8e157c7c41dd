"""Preparation of the kernels: they are compiled once for a machine, and their number of threads is set.

The kernels of a reconstruction are compiled before its first epoch, while its data are read. On a machine with several
ranks one of them compiles, and the others wait and read the kernels from disk. If all kernels are on disk, no rank
waits.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numba
import torch
from filelock import FileLock

from ptymesh.kernels.cpu import compiling

MESSAGE = "Compiling kernels for this processor; that takes a minute or two, and only the first time."

#: Parameters of glibc's mallopt, by their numbers in malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
#: Arrays of fewer bytes than the first number (the largest that glibc allows) come from the heap; the heap keeps so
#: many free bytes as the second says.
MAPPED_BYTES, FREE_BYTES = 32 << 20, 256 << 20

#: Seconds that a program waits at its end for a thread that reads kernels: the thread may crash while libraries are
#: unloaded.
ENDS_S = 2.0

config: Any = numba.config
_ready: set[torch.dtype] = set()
#: Threads that read or compile kernels, by their dtype.
_threads: dict[torch.dtype, threading.Thread] = {}
#: Number of threads that numba was last set to, for each thread of Python.
_numba_threads = threading.local()


def start_preparing(dtype: torch.dtype) -> None:
    """Start `make_ready` on a thread of its own, for a caller that goes on to read data.

    Data are unpacked, and kernels compiled by other processes, while Python is free. An error here comes again in
    `make_ready`, which reports it.
    """
    if dtype in _ready or dtype in _threads:
        return
    compiling.choose_threads()
    share_threads()

    def act() -> None:
        with suppress(Exception):
            _read_or_compile(str(dtype).removeprefix("torch."))

    thread = _threads[dtype] = threading.Thread(target=act, name="ptymesh-kernels", daemon=True)
    thread.start()
    atexit.register(thread.join, ENDS_S)


def make_ready(dtype: torch.dtype) -> bool:
    """Compile the kernels for waves of `dtype`, or read them from disk.

    Returns:
        True if any had to be compiled now.
    """
    if dtype in _ready:
        return False
    compiling.choose_threads()
    share_threads()  # starts numba's threads: no process may fork after it, and ranks are spawned
    keep_memory()
    if thread := _threads.pop(dtype, None):
        thread.join()
    compiled = _read_or_compile(str(dtype).removeprefix("torch."))
    _ready.add(dtype)
    return compiled


def keep_memory() -> None:
    """Ask the C library not to give freed memory back at once, if it is glibc.

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
    """Set numba's number of threads to torch's in this process, if it is not that already."""
    threads = torch.get_num_threads()
    if getattr(_numba_threads, "threads", 0) == threads:
        return
    _numba_threads.threads = threads
    numba.set_num_threads(min(threads, config.NUMBA_NUM_THREADS))
    if torch.get_num_threads() != threads:  # numba sets OpenMP's number for all when it starts threads
        torch.set_num_threads(threads)


def _read_or_compile(dtype: str) -> bool:
    """Read or compile all kernels; return True if any was compiled."""
    if compiling.is_up_to_date() and not compiling.read(dtype):
        return False
    with _one_at_a_time():
        compiling.forget_others()
        missing = compiling.read(dtype)  # another process may have compiled them while this one waited
        if not missing:
            return False
        print(MESSAGE, file=sys.stderr, flush=True)
        with suppress(OSError):  # no place for temporary files
            compiling.compile_apart(missing, dtype)
        for name in compiling.read(dtype):  # nowhere to keep them, or nobody else to compile
            compiling.compile_one(name, dtype)
        return True


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Hold a lock among the processes of this machine that keep kernels in one place, such as ranks that start
    together.

    It also keeps two processes from giving the same name to files of numba's cache.
    """
    with ExitStack() as stack:
        # without a place for the lock, or where the file system has none, each process compiles for itself
        with suppress(OSError, NotImplementedError):
            places_digest = hashlib.sha256("\n".join(sorted(map(str, compiling.places()))).encode()).hexdigest()[:12]
            user = os.getuid() if hasattr(os, "getuid") else "user"
            path = Path(tempfile.gettempdir()).resolve(strict=True) / f"ptymesh-kernels-{user}-{places_digest}.lock"
            stack.enter_context(FileLock(path, fallback_to_soft=False))
        yield  # the system releases the lock of a process that is killed
