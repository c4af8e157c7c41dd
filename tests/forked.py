"""Programs of Python that tests start by subprocess, forked from a process that has imported the package already.

`warm.python` starts a program; here, what tests or the package itself start as `python ...` by subprocess.Popen is
forked, too, in tests marked `forked(n, ...)`, each program with n spares for what it starts in turn. A process of
multiprocessing's fork server, which has but one thread, forks twice; as the one between ends at once, the last one is
given to this process, which asks the system for that while it waits: so it is our child, with process id, status,
signals, streams and output as ever. Only the imports are done. Where a program's start, imports or environment are
what is tested, the test does without the mark.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import warm

#: Of prctl: orphans among the descendants become children of this process.
PR_SET_CHILD_SUBREAPER = 36


class Forks:
    """Makes processes, one at a time, until it is closed."""

    def __init__(self) -> None:
        self._ours, theirs = warm.context().Pipe()
        self._process = warm.context().Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self._pipe = socket.socket(fileno=os.dup(self._ours.fileno()))
        self._prctl = ctypes.CDLL(None, use_errno=True).prctl
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def started(self, *spares: int) -> Iterator[None]:
        """In here, programs of Python are forked, each with so many spares (`warm._Spares`)."""
        execute = subprocess.Popen._execute_child  # type: ignore[attr-defined]

        def start(word: dict[str, Any], files: Sequence[int]) -> int:
            return self._start({**word, "spares": spares}, files)

        subprocess.Popen._execute_child = warm._instead(start)  # type: ignore[attr-defined]
        try:
            yield
        finally:
            subprocess.Popen._execute_child = execute  # type: ignore[attr-defined]

    def _start(self, word: dict[str, Any], files: Sequence[int]) -> int:
        own = [number for number in range(3) if number not in word["streams"]]  # inherited, as they are now
        word = {**word, "streams": [*word["streams"], *own]}
        text = json.dumps(word).encode()
        with self._lock:
            self._prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(self._pipe, [len(text).to_bytes(8)], [*files, *own])
                self._pipe.sendall(text)
                return int.from_bytes(_read(self._pipe, 8))
            finally:
                self._prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)

    def close(self) -> None:
        """End the process that forks."""
        self._pipe.close()
        self._ours.close()
        self._process.join()


def _read(pipe: socket.socket, count: int) -> bytes:
    text = b""
    while len(text) < count:
        more = pipe.recv(count - len(text))
        if not more:
            raise EOFError
        text += more
    return text


def _serve(ours: Any) -> None:
    """Fork what is asked for until nobody asks any more."""
    pipe = socket.socket(fileno=os.dup(ours.fileno()))
    ours.close()
    while True:
        length, files, _, _ = socket.recv_fds(pipe, 8, 3)
        if not length:
            return
        word = json.loads(_read(pipe, int.from_bytes(length)))
        come, go = os.pipe()
        tell, told = os.pipe()
        between = os.fork()
        if between == 0:
            last = os.fork()
            if last:
                os.write(told, last.to_bytes(8))
                os._exit(0)
            for file in (go, tell, told):
                os.close(file)
            os.read(come, 1)  # until the one between has ended, and our parent is the right one
            os.close(come)
            pipe.close()
            _become(word, files)
        for file in (come, told, *files):
            os.close(file)
        os.waitpid(between, 0)
        os.close(go)
        pid = os.read(tell, 8)
        os.close(tell)
        pipe.sendall(pid)


def _become(word: dict[str, Any], files: Sequence[int]) -> None:
    code = 1
    try:
        code = warm._do(word, files)
    finally:
        os._exit(code)
