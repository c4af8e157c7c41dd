"""Processes of this machine: the one way to start one of Python, when one began, what has befallen it.

`python -m` looks for modules in the working folder first, and somebody's data may lie there beside a `numpy.py`. What
is started here imports what this process would import, and nothing from the working folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: What PYTHONPATH was before `python_environment` set it, for programs that a process started in turn.
PYTHONPATH_BEFORE = "PTYMESH_PYTHONPATH_BEFORE"


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def python_command(*words: str) -> list[str]:
    """Return the command line of `python WORDS` ("-m", module, arguments) without the working folder in sys.path."""
    return [sys.executable, "-P", *words]


def python_environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment for a process of Python that is to import what this one imports.

    changes: variables that it gets besides.
    """
    before = {PYTHONPATH_BEFORE: os.environ.get("PYTHONPATH", "")}
    return {**os.environ, **before, **importing_alike(), **(changes or {})}


def start_python(*words: str, environment: Mapping[str, str] | None = None, **streams: Any) -> subprocess.Popen[Any]:
    """Start `python WORDS`, which imports nothing from the working folder.

    Args:
        words: options of Python, a module or program, and its arguments.
        environment: variables that it gets besides those of `python_environment`.
        streams: further arguments of subprocess.Popen.

    Raises OSError where no process can be started.
    """
    return subprocess.Popen(python_command(*words), env=python_environment(environment), **streams)


def restore_python_path() -> None:
    """Give PYTHONPATH back the value that it had where this process was started from, for programs that it starts."""
    before = os.environ.pop(PYTHONPATH_BEFORE, None)
    if before:
        os.environ["PYTHONPATH"] = before
    elif before is not None:
        os.environ.pop("PYTHONPATH", None)


def importing_alike() -> dict[str, str]:
    """Return what the environment says to a process that is to import what this one imports."""
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
