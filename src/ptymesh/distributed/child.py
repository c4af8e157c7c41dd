"""Start-up of a rank that `launch` started. No torch here: it must run before anything can print or hang."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from ptymesh.distributed.processes import restore_python_path
from ptymesh.errors import BadInput
from ptymesh.stopping import SIGNALS

#: Variables set by the launcher: its process id, the file for this rank's output, and the rank's cores (numbers
#: separated by commas; empty for all).
LAUNCHER, OUTPUT, CORES = "PTYMESH_LAUNCHER_PID", "PTYMESH_RANK_OUTPUT", "PTYMESH_RANK_CORES"

#: Variable with the id of a process with which this one is to end, though that one is no launcher.
PARENT = "PTYMESH_PARENT_PID"

_PR_SET_PDEATHSIG = 1
_launched = False


def launched() -> bool:
    """Return True if our own launcher started this process, which then reports failures once the ranks have ended."""
    return _launched


def end_with(parent: int) -> None:
    """Ask the system to send SIGTERM to this process when its parent ends, and exit if it has ended already.

    Linux only; elsewhere nothing is done.

    Args:
        parent: process id of the parent.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before prctl was called
            sys.exit(1)


def prepare_process() -> None:
    """Redirect output to the launcher's file, bind cores, and stop (after a checkpoint) should the launcher be killed.

    Signals that the launcher blocked while it started this process are unblocked. PYTHONPATH gets the value that it had
    for the launcher. A process that no launcher started gets that, and ends with the one that PARENT names.
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
    if parent := launcher or os.environ.pop(PARENT, ""):
        end_with(int(parent))
