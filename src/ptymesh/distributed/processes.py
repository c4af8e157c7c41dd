"""Processes of this machine: starting Python, start times, and whether a process still runs.

`python -m` searches the working folder for modules first, where a user's data may lie beside a file named `numpy.py`.
A process started here imports what this process would import, and nothing from the working folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: Variable with the value that PYTHONPATH had before `python_environment` set it, for programs started in turn.
PYTHONPATH_BEFORE = "PTYMESH_PYTHONPATH_BEFORE"


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def python_command(*words: str) -> list[str]:
    """Return the command line of `python WORDS` ("-m", module, arguments) without the working folder in sys.path."""
    return [sys.executable, "-P", *words]


def python_environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment for a Python process that is to import what this one imports.

    Args:
        changes: additional variables.
    """
    before = {PYTHONPATH_BEFORE: os.environ.get("PYTHONPATH", "")}
    return {**os.environ, **before, **importing_alike(), **(changes or {})}


def start_python(*words: str, environment: Mapping[str, str] | None = None, **streams: Any) -> subprocess.Popen[Any]:
    """Start `python WORDS`, which imports nothing from the working folder.

    Args:
        words: options of Python, a module or program, and its arguments.
        environment: variables in addition to those of `python_environment`.
        streams: other arguments of subprocess.Popen.

    Raises:
        OSError: the process cannot be started.
    """
    return subprocess.Popen(python_command(*words), env=python_environment(environment), **streams)


def restore_python_path() -> None:
    """Set PYTHONPATH back to the value that it had for the parent process, for programs that this one starts."""
    before = os.environ.pop(PYTHONPATH_BEFORE, None)
    if before:
        os.environ["PYTHONPATH"] = before
    elif before is not None:
        os.environ.pop("PYTHONPATH", None)


def importing_alike() -> dict[str, str]:
    """Return the environment variables that make a process import what this one imports."""
    return {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def fate_of(pid: int) -> str:
    """Return the state of a process of this machine: `stopped`, `gone`, or empty where it lives or is unknown."""
    try:
        state = _stat(pid)[0]
    except (FileNotFoundError, ProcessLookupError):
        return "gone"
    except (OSError, IndexError):
        return ""
    return {"T": "stopped", "t": "stopped", "Z": "gone", "X": "gone"}.get(state, "")


def start_time(pid: int) -> str | None:
    """Return the start time of a process of this machine, as text that is only compared.

    None where it has ended; empty where it lives but its start time cannot be read.
    """
    try:
        state, *rest = _stat(pid)
        return None if state in "ZX" else rest[18]
    except (OSError, ValueError, IndexError):
        return _start_time_without_proc(pid) if pid > 0 else None


def _start_time_without_proc(pid: int) -> str | None:
    """Return the start time as `start_time` does, without /proc.

    Empty where the process lives but its start time is not known; None where it has ended.
    """
    if sys.platform == "linux":
        try:
            os.kill(pid, 0)
        except (ProcessLookupError, OverflowError):
            return None
        except PermissionError:  # it belongs to another user
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
    """Return the fields of /proc/PID/stat from the state on. Raises OSError where it cannot be read."""
    text = Path(f"/proc/{pid}/stat").read_bytes()
    return text.rpartition(b")")[2].decode("ascii", "replace").split()
