"""Limits of this process, checked before they are reached: memory for declared arrays, and number of open files."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil

from ptymesh.errors import BadInput
from ptymesh.files import size

#: Folder where Linux publishes the limits of a job or container.
CGROUPS = Path("/sys/fs/cgroup")
#: File with the control groups of this process.
OWN = Path("/proc/self/cgroup")
#: Bytes that are allocated without a look at what is free.
NEGLIGIBLE = 1 << 16
#: Number of open files reserved for everything else.
SPARE_FILES = 32


def free_memory() -> int:
    """Return the bytes that this process can still allocate.

    They are limited by the machine's free memory, the job or container, and the process's own limit.
    """
    return max(0, min(int(psutil.virtual_memory().available), _read_process_limit(), _read_cgroup_limits()))


def check_room(needed: int, subject: str, remedy: str, share: float = 1.0) -> None:
    """Raise BadInput if an allocation exceeds a share of the free memory.

    Args:
        needed: bytes.
        subject: beginning of the sentence, "WHAT needs ... of memory, and ... are free: REMEDY."
        remedy: end of the sentence.
        share: of the free memory that may be allocated.
    """
    if needed <= NEGLIGIBLE:
        return
    free = free_memory()
    if needed > share * free:
        raise BadInput(f"{subject} needs {size(needed)} of memory, and {size(free)} are free: {remedy}.")


def check_files(count: int, subject: str) -> None:
    """Raise BadInput if `count` more files cannot be open; raise this process's soft limit first if it is too low."""
    if sys.platform == "win32":
        return
    import resource

    needed = count + psutil.Process().num_fds() + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise BadInput(
            f"{subject} has its values in {count} files, and {hard} may be open at once: raise that limit "
            f"(ulimit -n), or copy the values into one file."
        )
    if soft != resource.RLIM_INFINITY and 2 * needed > soft:  # twice, since other data sets may be open too
        most = 2 * needed if hard == resource.RLIM_INFINITY else min(2 * needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _read_process_limit() -> int:
    """Return the bytes left of this process's limit of address space."""
    if sys.platform == "win32":
        return sys.maxsize
    import resource

    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    return sys.maxsize if most == resource.RLIM_INFINITY else most - psutil.Process().memory_info().vms


def _read_cgroup_limits() -> int:
    """Return the bytes left to the control group (version 1 or 2) of this process, and to its parents."""
    try:
        lines = OWN.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return sys.maxsize
    available = sys.maxsize
    for line in lines:
        # a line is "number:controllers:path"; version 2 of control groups names no controllers
        _, kinds, group_path = line.split(":", 2) if line.count(":") >= 2 else ("", "-", "")
        if kinds == "":
            root, limit, usage = CGROUPS, "memory.max", "memory.current"
        elif "memory" in kinds.split(","):
            root, limit, usage = CGROUPS / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        group = Path(os.path.normpath(f"/{group_path.lstrip('/')}"))
        for above in (group, *group.parents):  # in a container the root is the container's own group
            folder = root / str(above).lstrip("/")
            try:
                most, used = (int((folder / name).read_text(encoding="ascii")) for name in (limit, usage))
                available = min(available, most - used + _reclaimable(folder))
            except (OSError, ValueError):  # "max", or no such file: this group has no limit
                pass
    return available


def _reclaimable(folder: Path) -> int:
    """Return the bytes of the page cache that count as used but are freed when memory is needed."""
    names = ("inactive_file", "active_file", "slab_reclaimable")
    try:
        stat = dict(line.split(maxsplit=1) for line in (folder / "memory.stat").read_text("ascii").splitlines())
        return sum(int(stat.get(f"total_{name}", stat.get(name, 0))) for name in names)  # total_ in version 1
    except (OSError, ValueError):
        return 0
