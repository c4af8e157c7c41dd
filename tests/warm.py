"""Python programs that need not import the package: `python(...)` is `python ...`, forked from a process that has.

Importing torch and the package takes a process three seconds, and a test of faults starts dozens. A server
(multiprocessing's) imports once what warmed.py names, and forks. Where the program starts processes of its own, they
can be forked too: `spares` children stand ready from the beginning, while there is but one thread, and what would be
executed as `python ...` happens in one of them. They are children of the program, with process ids, statuses, signals
and output as ever; only the imports are done. Elsewhere than on Linux, and for other programs, nothing is forked.
"""

from __future__ import annotations

import atexit
import contextlib
import inspect
import itertools
import json
import multiprocessing
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

#: How the warning begins.
DOUBTED = "ptymesh: do not believe this picture: "

FORKS = sys.platform == "linux"
_CONTEXT: Any = multiprocessing.get_context("forkserver" if FORKS else "spawn")


def context() -> Any:
    """Multiprocessing whose processes find imported what warmed.py names, where the system can fork."""
    if FORKS:
        _CONTEXT.set_forkserver_preload(["warmed"])
        before = dict(os.environ)
        os.environ |= {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "OMP_NUM_THREADS": "1"}
        try:
            forkserver.ensure_running()
        finally:
            os.environ.clear()
            os.environ.update(before)
    return _CONTEXT


#: Of subprocess.Popen: what starts a program, and the ends of its pipes, in the order in which it passes them around.
_EXECUTE: Any = subprocess.Popen._execute_child  # type: ignore[attr-defined]
PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_numbers = itertools.count()
#: A spare gets no signal before it is what it shall be, unless whoever starts it lets such signals through.
HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP) if FORKS else ()


class Started:
    """A program of `python`, as subprocess.Popen has it (text=True, stdout=PIPE, stderr=PIPE)."""

    def __init__(
        self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None, spares: int = 0
    ) -> None:
        scratch = folder.parent / f"said-{os.getpid()}-{next(_numbers)}"
        self._said = [scratch.with_suffix(ending) for ending in (".out", ".err")]
        given = {**(os.environ if environment is None else environment), "OMP_NUM_THREADS": "1"}
        what = (list(arguments), str(folder), given, [str(path) for path in self._said], spares)
        self._process = context().Process(target=_program, args=what, daemon=True)
        self._process.start()
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None, *, verdict: bool = False) -> tuple[str, str]:
        """Return standard output and standard error, when it has ended; raises subprocess.TimeoutExpired.

        Args:
            timeout: in seconds.
            verdict: keep the warning of a verdict on standard error.
        """
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(str(self._process), timeout or 0.0)
        out, err = (path.read_text(encoding="utf-8") if path.exists() else "" for path in self._said)
        return out, err if verdict else without_verdict(err)


def without_verdict(err: str) -> str:
    """Return standard error without the warning of a verdict: short runs end in poor pictures."""
    return "".join(line for line in err.splitlines(keepends=True) if not line.startswith(DOUBTED))


class _Program(subprocess.Popen[str]):
    """A program whose `communicate` leaves the verdict out, too."""

    def communicate(
        self, input: str | None = None, timeout: float | None = None, *, verdict: bool = False
    ) -> tuple[str, str]:
        out, err = super().communicate(input, timeout)
        return out, err if verdict else without_verdict(err)


def python(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None, spares: int = 0
) -> Any:
    """Starts `python ARGUMENTS` in a folder, on one thread; environment: instead of this process's."""
    if FORKS:
        return Started(arguments, folder, environment, spares)
    given = {**(os.environ if environment is None else environment), "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    return _Program(
        [sys.executable, *arguments],
        cwd=folder,
        env=given,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
    )


def _program(arguments: list[str], folder: str, environment: dict[str, str], said: list[str], spares: int) -> None:
    assert "warmed" in sys.modules, "it is the point of all this"
    _onto(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in enumerate(said, start=1):
        _onto(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600), number)
    _Spares(spares).offer()
    _become(arguments, folder, environment)


class _Spares:
    """Children that wait to be told what to be, in place of those that subprocess.Popen would start.

    Args:
        count: so many.
        further: so many of them each has in turn, and each of those, and so on.
    """

    def __init__(self, count: int = 0, *further: int) -> None:
        self._further = further
        self._waiting: list[tuple[int, socket.socket]] = []
        for _ in range(count):
            ours, theirs = socket.socketpair()
            pid = os.fork()
            if pid == 0:
                signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
                ours.close()
                for _, other in self._waiting:
                    other.close()
                _serve(theirs)
            theirs.close()
            self._waiting.append((pid, ours))

    def offer(self) -> None:
        """From here on, processes of this interpreter are made of spares while there are any."""
        if self._waiting:
            subprocess.Popen._execute_child = _instead(self._take)  # type: ignore[attr-defined]

    def _take(self, word: dict[str, Any], files: Sequence[int]) -> int | None:
        if not self._waiting:
            return None
        pid, pipe = self._waiting.pop(0)
        word = {**word, "spares": self._further}
        with pipe:
            socket.send_fds(pipe, [b"?"], files)
            pipe.sendall(json.dumps(word).encode())
        return pid


def _instead(start: Callable[[dict[str, Any], Sequence[int]], int | None]) -> Callable[..., None]:
    """Return what subprocess.Popen shall do instead of executing a program of Python.

    Args:
        start: makes a process of what is to be done and of the files for its streams; returns the process's id, or None
            where it is to be executed after all.
    """
    names = inspect.signature(_EXECUTE)

    def instead(process: Any, *given: Any, **named: Any) -> None:
        call = names.bind(process, *given, **named).arguments
        pid = None
        if _is_python(call["args"]) and not call["pass_fds"] and call["preexec_fn"] is None:
            streams = {0: call["p2cread"], 1: call["c2pwrite"], 2: call["errwrite"]}
            streams = {number: own for number, own in streams.items() if own != -1}
            word = {
                "arguments": [os.fspath(argument) for argument in call["args"][1:] if argument != "-u"],
                "folder": os.getcwd() if call["cwd"] is None else str(call["cwd"]),
                "environment": dict(os.environ if call["env"] is None else call["env"]),
                "session": bool(call["start_new_session"]),
                "streams": list(streams),
                "held": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
            }
            pid = start(word, list(streams.values()))
        if pid is None:
            _EXECUTE(process, *given, **named)
            return
        process.pid, process._child_created = pid, True
        process._close_pipe_fds(*(call[name] for name in PIPES))

    return instead


def _is_python(command: Any) -> bool:
    """Whether this is a command that `_run` knows; streams are never held back (-u) for longer than a line."""
    words = [str(word) for word in command if word != "-u"] if isinstance(command, (list, tuple)) else []
    return len(words) > 1 and words[0] == sys.executable and (words[1] in ("-P", "-m", "-c") or words[1][0] != "-")


def _serve(pipe: socket.socket) -> None:
    """A spare's life; it ends with the program that has it, or as what it was told to be."""
    code = 1
    try:
        first, files, _, _ = socket.recv_fds(pipe, 1, 3)
        if not first:
            os._exit(0)
        with pipe, pipe.makefile("rb") as told:
            word = json.loads(told.read())
        code = _do(word, files)
    finally:
        os._exit(code)


def _do(word: dict[str, Any], files: Sequence[int]) -> int:
    """This process does and ends as a word says, with files as its streams; never returns."""
    if word["session"]:
        os.setsid()
    signal.pthread_sigmask(signal.SIG_SETMASK, word["held"])
    for number, file in zip(word["streams"], files, strict=True):
        _onto(file, number)
    _Spares(*word["spares"]).offer()
    return _become(word["arguments"], word["folder"], word["environment"])


def _onto(file: int, number: int) -> None:
    if file != number:
        os.dup2(file, number)
        os.close(file)


def _become(arguments: list[str], folder: str, environment: dict[str, str]) -> int:
    """This process does and ends as `python ARGUMENTS` would; never returns."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = (open(n, "w", buffering=1, encoding="utf-8", closefd=False) for n in (1, 2))  # noqa: SIM115
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc]
    status: object = 0
    try:
        _run(arguments)
    except SystemExit as left:
        status = left.code
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        status = 1
    if status is not None and not isinstance(status, int):
        print(status, file=sys.stderr)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(ValueError, OSError):
            stream.flush()
    os._exit(0 if status is None else status & 255 if isinstance(status, int) else 1)


def _run(arguments: list[str]) -> None:
    """`python -m MODULE ...`, `python -c CODE ...` or `python SCRIPT ...`; with -P, no folder is put into sys.path."""
    if safe := arguments[0] == "-P":
        arguments = arguments[1:]
    folder = {"-m": os.getcwd(), "-c": ""}.get(arguments[0], str(Path(arguments[0]).resolve().parent))
    sys.path[:0] = [] if safe else [folder]
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = list(arguments)
        runpy.run_path(arguments[0], run_name="__main__")
