"""Settings that must precede the import of torch: one OpenMP runtime for torch and numba, and large pages.

torch's wheels bring their own libgomp, while numba loads the system's by its full name, which the loader takes for
another library. Two runtimes have two sets of threads, and each set keeps spinning on the cores for a while after its
work. If the system's libgomp is loaded first, torch uses it too.

By default threads spin for milliseconds. As soon as anything else runs on one of the cores, kernels and transforms then
wait for each other: 2 ms a view instead of 0.17 (two cores, Siemens star). Ten thousand spins outlast the gaps between
two kernels, and cost a busy machine a fraction of that.

In a wide object each row of a window lies on its own page, and looking up a page takes longer than reading the row.
With pages of 2 MiB for large arrays, where Linux provides them, a batch takes 6 to 10 % less time (two cores, objects
of 1,024 and 4,096 pixels).
"""

from __future__ import annotations

import ctypes
import os
import sys

#: Name of libgomp in numba's wheels for Linux.
RUNTIME = "libgomp.so.1.0.0"
#: Number of spins after which a waiting thread of libgomp sleeps, and the variables that control it.
TURNS, VARIABLES = "10000", ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")

#: Variable that makes torch request large pages for arrays of 2 MiB and more.
LARGE_PAGES = "THP_MEM_ALLOC_ENABLE"


def prepare() -> bool:
    """Apply all settings; call it before torch is imported. Return True if torch and numba share one OpenMP runtime."""
    if sys.platform == "linux" and "torch" not in sys.modules:
        os.environ.setdefault(LARGE_PAGES, "1")
    return share_runtime()


def share_runtime() -> bool:
    """Load the system's libgomp, so that torch does not load its own; call it before torch is imported.

    Its threads spin briefly, unless the environment sets how long.

    Returns:
        True if the runtime was loaded.
    """
    if sys.platform != "linux" or "torch" in sys.modules:
        return False
    if not any(name in os.environ for name in VARIABLES):
        os.environ[VARIABLES[0]] = TURNS
    try:
        ctypes.CDLL(RUNTIME, mode=ctypes.RTLD_GLOBAL)
    except OSError:  # there is none: numba uses another threading layer
        return False
    return True
