"""What a rank that `launch` started does first. No torch here: it must be done before anything can print or hang."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

#: Set by the launcher: its process id, and the file that takes this rank's output.
LAUNCHER, OUTPUT = "PTYMESH_LAUNCHER_PID", "PTYMESH_RANK_OUTPUT"

_PR_SET_PDEATHSIG = 1


def settle() -> None:
    """Send output where the launcher wants it, and stop (after a checkpoint) should the launcher be killed.

    Does nothing in a process that no launcher started.
    """
    if path := os.environ.pop(OUTPUT, ""):
        sys.stdout.flush()
        sys.stderr.flush()
        output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
    launcher = os.environ.pop(LAUNCHER, "")
    if launcher and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != int(launcher):  # it died before we asked to be told
            sys.exit(1)
