"""One OpenMP runtime in a process, for torch and numba together.

torch's wheels bring a libgomp of their own, and numba's ask for the system's by its full name, which the loader does
not take for the same. Two runtimes have two sets of threads, and those of each keep spinning on the cores for a while
after they have worked: as soon as anything else runs on the machine, kernels and transforms that take turns wait for
each other (measured: 2 ms a view instead of 0.17). Where the system's is there first, torch takes it too.
"""

from __future__ import annotations

import ctypes
import sys

#: As numba's wheels for Linux name it.
RUNTIME = "libgomp.so.1.0.0"


def share_runtime() -> bool:
    """Loads the system's libgomp, so that torch does not load another; before torch. Whether that could be done."""
    if sys.platform != "linux" or "torch" in sys.modules:
        return False
    try:
        ctypes.CDLL(RUNTIME, mode=ctypes.RTLD_GLOBAL)
    except OSError:  # there is none: numba uses threads of another kind
        return False
    return True
