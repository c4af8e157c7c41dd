"""Processes of this machine: what a new one is given, when one began, what has befallen it."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def importing_alike() -> dict[str, str]:
    """What the environment says to a process that is to import what this one imports."""
    return {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def fate_of(pid: int) -> str:
    """What has befallen a process of this machine: stopped, or gone; empty where it lives."""
    try:
        state = _stat(pid)[0]
    except (FileNotFoundError, ProcessLookupError):
        return "gone"
    except (OSError, IndexError):
        return ""
    return {"T": "stopped", "t": "stopped", "Z": "gone", "X": "gone"}.get(state, "")


def began(pid: int) -> str | None:
    """When a process of this machine began, None where it has ended; empty where that cannot be seen."""
    try:
        state, *rest = _stat(pid)
        return None if state in "ZX" else rest[18]
    except (OSError, ValueError, IndexError):
        return _began_elsewhere(pid) if pid > 0 else None


def _began_elsewhere(pid: int) -> str | None:
    """As `began`, where /proc does not tell: it is hidden, or no Linux."""
    if sys.platform == "linux":
        try:
            os.kill(pid, 0)
        except (ProcessLookupError, OverflowError):
            return None
        except PermissionError:  # of another user
            pass
        return ""
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else str(process.create_time())
    except psutil.AccessDenied:
        return ""
    except (psutil.NoSuchProcess, OverflowError):
        return None


def _stat(pid: int) -> list[str]:
    """Its fields in /proc from its state on. Raises OSError."""
    text = Path(f"/proc/{pid}/stat").read_bytes()
    return text.rpartition(b")")[2].decode("ascii", "replace").split()
