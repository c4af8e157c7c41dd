"""Compiled kernels, read from disk by a process that starts no threads, so that those forked from it have them.

A program takes a quarter of a second to read the kernels of one precision, and many programs of tests do little else.
Numba starts its threads when it reads the first kernel, and no process may fork after that. So meanwhile what starts
them does nothing, and kernels are told where the functions of the threads are. A forked process starts its threads when
it sets their number, before its first kernel.
"""

from __future__ import annotations

from unittest import mock

from llvmlite import binding
from numba.np.ufunc import omppool, parallel

from ptymesh.kernels.cpu import compiling

#: Functions of the threads that compiled kernels call, by the names that kernels know.
CALLED = {
    "numba_parallel_for": omppool.parallel_for,
    "do_scheduling_signed": omppool.do_scheduling_signed,
    "do_scheduling_unsigned": omppool.do_scheduling_unsigned,
    "allocate_sched": omppool.allocate_sched,
    "deallocate_sched": omppool.deallocate_sched,
}


def read_kernels() -> None:
    """Read the kernels of both precisions, if they are on disk; where numba has no OpenMP, this cannot be imported."""
    if not compiling.is_up_to_date():
        return
    for name, address in CALLED.items():
        binding.add_symbol(name, address)
    parallel._load_threading_functions(omppool)
    with mock.patch.object(parallel, "_launch_threads", lambda: None):
        for dtype in ("complex64", "complex128"):
            compiling.read(dtype)
