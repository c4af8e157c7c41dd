"""How much memory there is for what a file declares, and how many files may be open: looked at before either is
used."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil

from ptymesh.errors import BadInput
from ptymesh.files import size

#: Where Linux tells the limits of a job or container.
CGROUPS = Path("/sys/fs/cgroup")
#: Open files that are left to everything else.
SPARE_FILES = 32


def free_memory() -> int:
    """Bytes that this process can still take: of the machine, of its job or container, and of its own limit."""
    return max(0, min(int(psutil.virtual_memory().available), _of_process(), _of_group()))


def check_room(needed: int, what: str, remedy: str, share: float = 1.0) -> None:
    """Raises BadInput, "WHAT needs ... of memory, and ... are free: REMEDY.", where that share does not hold it."""
    free = free_memory()
    if needed > share * free:
        raise BadInput(f"{what} needs {size(needed)} of memory, and {size(free)} are free: {remedy}.")


def check_files(count: int, what: str) -> None:
    """Raises BadInput where so many files cannot be open besides those that are; raises this process's limit first."""
    if sys.platform == "win32":
        return
    import resource

    needed = count + psutil.Process().num_fds() + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise BadInput(
            f"{what} has its values in {count} files, and {hard} may be open at once: raise that limit (ulimit -n), or "
            f"copy the values into one file."
        )
    if soft != resource.RLIM_INFINITY and 2 * needed > soft:  # twice: other data sets may be open beside this one
        most = 2 * needed if hard == resource.RLIM_INFINITY else min(2 * needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _of_process() -> int:
    if sys.platform == "win32":
        return sys.maxsize
    import resource

    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    return sys.maxsize if most == resource.RLIM_INFINITY else most - psutil.Process().memory_info().vms


def _of_group() -> int:
    """What is left to the control group (version 2), and to those that it is in."""
    try:
        own = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()[-1].rpartition("::")[2]
    except (OSError, ValueError, IndexError):
        return sys.maxsize
    left = sys.maxsize
    folder = CGROUPS / own.lstrip("/")
    while folder != CGROUPS and CGROUPS in folder.parents:
        try:
            most, used = (int((folder / f"memory.{name}").read_text()) for name in ("max", "current"))
            left = min(left, most - used)
        except (OSError, ValueError):  # "max": no limit here
            pass
        folder = Path(os.path.dirname(folder))
    return left
