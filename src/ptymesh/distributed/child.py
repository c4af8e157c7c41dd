"""What a rank that `launch` started does first. No torch here: it must be done before anything can print or hang."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from ptymesh.distributed.processes import restore_python_path
from ptymesh.errors import BadInput
from ptymesh.stopping import SIGNALS

#: Set by the launcher: its process id, the file that takes this rank's output, and the rank's cores (numbers with
#: commas between them; empty for all).
LAUNCHER, OUTPUT, CORES = "PTYMESH_LAUNCHER_PID", "PTYMESH_RANK_OUTPUT", "PTYMESH_RANK_CORES"

_PR_SET_PDEATHSIG = 1
_launched = False


def launched() -> bool:
    """Whether our own launcher started this process; it tells what went wrong when the ranks have ended."""
    return _launched


def end_with(parent: int) -> None:
    """From here on this process is told to stop when `parent`, which started it, ends; it ends if that has happened.

    Where the system cannot do that, nothing is done.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before we asked to be told
            sys.exit(1)


def settle() -> None:
    """Send output where the launcher wants it, and stop (after a checkpoint) should the launcher be killed.

    Signals that came since the launcher started this process were held back, and are acted upon from here on.
    PYTHONPATH becomes what it was for the launcher.
    Does nothing in a process that no launcher started.
    """
    global _launched
    restore_python_path()
    if path := os.environ.pop(OUTPUT, ""):
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
        except OSError as error:
            why = f"{path} cannot be written to ({error.strerror})"
            print(f"ptymesh: {why}; choose another folder, or start again.", file=sys.stderr, flush=True)
            sys.exit(BadInput.exit_status)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
    if (cores := os.environ.pop(CORES, "")) and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, map(int, cores.split(",")))
    launcher = os.environ.pop(LAUNCHER, "")
    _launched = bool(launcher)
    if launcher and hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    if launcher:
        end_with(int(launcher))
