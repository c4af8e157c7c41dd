"""What must be said before torch is imported: one OpenMP runtime for torch and numba together, and large pages.

torch's wheels bring a libgomp of their own, and numba's ask for the system's by its full name, which the loader does
not take for the same. Two runtimes have two sets of threads, and those of each keep spinning on the cores for a while
after they have worked. Where the system's is there first, torch takes it too.

By default they spin for milliseconds. As soon as anything else runs on one of the cores, kernels and transforms then
wait for each other: 2 ms a view instead of 0.17 (two cores, Siemens star). Ten thousand turns outlast what lies between
two kernels, and cost a busy machine a fraction of that.

Rows of a window lie on a page each where the object is wide, and to find a page takes longer than to read the row.
With pages of 2 MiB for large arrays, where Linux gives them, a batch takes 6 to 10 % less time (two cores, objects of
1,024 and 4,096 pixels).
"""

from __future__ import annotations

import ctypes
import os
import sys

#: As numba's wheels for Linux name it.
RUNTIME = "libgomp.so.1.0.0"
#: How often a thread of libgomp looks whether there is work before it sleeps, and the variables that say so.
TURNS, VARIABLES = "10000", ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")

#: Tells torch to ask Linux for large pages for arrays of 2 MiB and more.
LARGE_PAGES = "THP_MEM_ALLOC_ENABLE"


def prepare() -> bool:
    """All of it; before torch. Whether the runtime is shared."""
    if sys.platform == "linux" and "torch" not in sys.modules:
        os.environ.setdefault(LARGE_PAGES, "1")
    return share_runtime()


def share_runtime() -> bool:
    """Loads the system's libgomp, so that torch does not load another; before torch. Whether that could be done.

    Its threads do not spin for long, unless the environment says how long they should.
    """
    if sys.platform != "linux" or "torch" in sys.modules:
        return False
    if not any(name in os.environ for name in VARIABLES):
        os.environ[VARIABLES[0]] = TURNS
    try:
        ctypes.CDLL(RUNTIME, mode=ctypes.RTLD_GLOBAL)
    except OSError:  # there is none: numba uses threads of another kind
        return False
    return True
