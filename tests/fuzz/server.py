"""A process that has imported the package, and forks programs of it: `python server.py SOCKET TEMPORARY`.

SOCKET is the number of an open socket, over which one JSON object a line is asked and answered:

start   arguments, folder, environment, said (files of standard output and standard error), spares, cold (whether it
        imports by itself, not forked from here) -> pid
wait    seconds, grace -> status (null where it has not ended by then; it is killed), left (what it has started and
        still runs so many seconds after its end; killed), seconds (until nothing ran)

One program runs at a time. Whatever it starts and leaves behind becomes a child of this process, wherever it went.
With the environment variable FAULT, a JSON object, the program or one of its ranks has a fault: `who` (a rank, or
"launcher"), `region` (file of the counts), `kind`, `at`, `error` and `mode` as shim.c has them.

TEMPORARY is the folder for temporary files, so that what is left there is ours.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1])]

import warm  # noqa: E402
import warmed  # noqa: E402, F401
from ptymesh.distributed import heartbeat, watchdog  # noqa: E402
from ptymesh.launcher import waiting  # noqa: E402

FAULT = "PTYMESH_TEST_FAULT"
#: Seconds that a rank may stand still in any phase but compiling.
PHASE_S = 10.0
_PR_SET_CHILD_SUBREAPER = 36
_become = warm._become


def arm(fault: dict[str, Any], own: str) -> None:
    """From here on this process is counted, if it is the one, and fails as it is told to."""
    if fault["who"] == own:
        region, kind, at = os.fsencode(fault["region"]), int(fault["kind"]), ctypes.c_long(fault["at"])
        if ctypes.CDLL(None).shim_arm(region, kind, at, int(fault["error"]), int(fault["mode"])):
            raise OSError(f"{fault['region']} cannot be shared")


def become(arguments: list[str], folder: str, environment: dict[str, str]) -> int:
    """`warm._become`, with the fault that the environment asks for."""
    faulthandler.register(signal.SIGUSR2, all_threads=True)  # where it hangs
    if FAULT in environment:  # ranks inherit it from who starts them
        arm(json.loads(environment[FAULT]), environment.get("RANK", "launcher" if "--ranks" in arguments else "0"))
    return _become(arguments, folder, environment)


def children() -> list[int]:
    """Of this process, those that have not been waited for included."""
    return [int(pid) for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()]


def descendants(pid: int) -> list[int]:
    """Of a process that may end meanwhile, itself included."""
    found = [pid]
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [below for child in path.read_text().split() for below in descendants(int(child))]
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def start(asked: dict[str, Any]) -> int:
    """Process id of the program."""
    pid = os.fork()
    if pid:
        return pid
    try:
        environment = {**os.environ, **asked["environment"]}
        if asked["cold"]:
            os.chdir(asked["folder"])
            for number, path in enumerate((os.devnull, *asked["said"])):
                os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), number)
            os.execve(sys.executable, [sys.executable, *asked["arguments"]], environment)
        warm._program(asked["arguments"], asked["folder"], environment, asked["said"], asked["spares"])
    finally:
        os._exit(70)


def wait(pid: int, seconds: float, grace: float, warmed_up: bool) -> dict[str, Any]:
    """How it ended and what it left running. warmed_up: it says where it hangs, if it does."""
    began, status = time.monotonic(), None
    end = began + seconds
    pause = 0.001
    while status is None and time.monotonic() < end:
        done, ended = os.waitpid(pid, os.WNOHANG)
        if done:
            status = os.waitstatus_to_exitcode(ended)
        else:
            time.sleep(pause)
            pause = min(0.02, pause * 1.5)
    if status is None and warmed_up:
        for other in descendants(pid):
            os.kill(other, signal.SIGUSR2)
            time.sleep(0.2)
    end = time.monotonic() + (grace if status is not None else 0.0)
    while (left := _running()) and time.monotonic() < end:
        time.sleep(0.005)
    names = [f"{Path(f'/proc/{other}/comm').read_text().strip()} {other}" for other in left if other != pid]
    ended = time.monotonic()
    while _running():
        for other in children():
            os.kill(other, signal.SIGKILL)
        time.sleep(0.005)
    return {"status": status, "left": names, "seconds": ended - began}


def _running() -> list[int]:
    """Children that have not ended; what has is waited for."""
    for other in children():
        try:
            os.waitpid(other, os.WNOHANG)
        except ChildProcessError:
            continue
    return children()


def serve(pipe: socket.socket) -> None:
    """Until the other end is closed."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    pid, cold = 0, False
    with pipe, pipe.makefile("rwb") as lines:
        lines.write(b"{}\n")
        lines.flush()
        for line in lines:
            asked = json.loads(line)
            if asked["do"] == "start":
                pid, cold = start(asked), asked["cold"]
                answer: dict[str, Any] = {"pid": pid}
            else:
                answer = wait(pid, asked["seconds"], asked["grace"], not cold)
            lines.write(json.dumps(answer).encode() + b"\n")
            lines.flush()


if __name__ == "__main__":
    number, temporary = sys.argv[1:]
    # patience is shorter than usual; how long it is, is not what is tried here
    waiting.PEERS_S, watchdog.TICK_S, watchdog.SILENT_S, watchdog.LOOK_S = 3.0, 0.2, 2.0, 2.0
    heartbeat.BUDGETS_S.update(dict.fromkeys(set(heartbeat.BUDGETS_S) - {"compile"}, PHASE_S))
    os.environ["TMPDIR"], tempfile.tempdir = temporary, None
    os.environ["OMP_NUM_THREADS"] = "1"
    warm._become = become
    serve(socket.socket(fileno=int(number)))
    shutil.rmtree(Path(temporary).parent, ignore_errors=True)  # also where who asked was killed
    os._exit(0)  # an interpreter that has torch takes seconds to end
