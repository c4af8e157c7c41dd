"""Kernels made ready: compiled once for a machine, and told how many threads they may use.

All that a reconstruction will call is compiled before its first epoch, while its data are read. On a machine with
several ranks one of them has it compiled, and the others wait and read what is left on disk. Where all is there, nobody
waits for anybody.
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

from ptymesh.kernels import compiling

MESSAGE = "Compiling kernels for this processor; that takes a minute or two, and only the first time."

#: Parameters of glibc's mallopt, by their numbers in malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
#: Arrays of fewer bytes than these (the most that glibc allows) come from the heap, which keeps so many when free.
MAPPED_BYTES, FREE_BYTES = 32 << 20, 256 << 20

#: A program that ends waits so long for a thread that reads kernels, which may crash while the libraries that it is in
#: are taken apart.
ENDS_S = 2.0

config: Any = numba.config
_ready: set[torch.dtype] = set()
#: Threads that read or compile kernels, by their dtype.
_begun: dict[torch.dtype, threading.Thread] = {}
#: What numba was told last, which it keeps for each thread of Python.
_told = threading.local()


def begin(dtype: torch.dtype) -> None:
    """Starts with `make_ready` on a thread of its own, for a caller that goes on to read data.

    Data are unpacked, and kernels compiled by other processes, while Python is free. What goes wrong here goes wrong
    again in `make_ready`, which tells.
    """
    if dtype in _ready or dtype in _begun:
        return
    compiling.choose_threads()
    share_threads()

    def act() -> None:
        with suppress(Exception):
            _read_or_compile(str(dtype).removeprefix("torch."))

    thread = _begun[dtype] = threading.Thread(target=act, name="ptymesh-kernels", daemon=True)
    thread.start()
    atexit.register(thread.join, ENDS_S)


def make_ready(dtype: torch.dtype) -> bool:
    """Compiles, or reads from disk, the kernels for waves of `dtype`. Whether any had to be compiled now."""
    if dtype in _ready:
        return False
    compiling.choose_threads()
    share_threads()  # this starts them: nobody may fork after it, and ranks are spawned
    keep_memory()
    if thread := _begun.pop(dtype, None):
        thread.join()
    compiled = _read_or_compile(str(dtype).removeprefix("torch."))
    _ready.add(dtype)
    return compiled


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
    """As many threads for numba as torch has in this process, if that is not what numba was told last."""
    threads = torch.get_num_threads()
    if getattr(_told, "threads", 0) == threads:
        return
    _told.threads = threads
    numba.set_num_threads(min(threads, config.NUMBA_NUM_THREADS))
    if torch.get_num_threads() != threads:  # when numba starts its threads, it sets OpenMP's number of them for all
        torch.set_num_threads(threads)


def _read_or_compile(dtype: str) -> bool:
    """Whether any was compiled."""
    if compiling.kept() and not compiling.read(dtype):
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
    """Among the processes of this machine that keep kernels in one place: ranks that start together, or workers of a
    test run.

    It also keeps two processes from naming what they write into numba's cache alike.
    """
    try:
        import fcntl
    except ImportError:  # not on Windows, where each process compiles for itself
        yield
        return
    with ExitStack() as stack:
        with suppress(OSError):  # without a place for the lock, each process compiles for itself
            where = hashlib.sha256("\n".join(sorted(map(str, compiling.places()))).encode()).hexdigest()[:12]
            path = Path(tempfile.gettempdir()) / f"ptymesh-kernels-{os.getuid()}-{where}.lock"
            lock = stack.enter_context(path.open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield  # closing the file lets go of the lock, as does the end of a killed process
