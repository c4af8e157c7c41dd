"""`ptymesh.spawn`: a function on several ranks of this machine, from a notebook or a program.

Ranks are new processes, started as `ptymesh launch` starts them. The function is sent by value (cloudpickle), so that
it may be defined in a notebook's cell, through a connection on the loopback interface that is authenticated by a key.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

from ptymesh.distributed.rank_info import world
from ptymesh.errors import BadInput, PtymeshError
from ptymesh.launcher.rank_processes import MOST_RANKS, launch
from ptymesh.launcher.spawned_rank import ADDRESS, KEY, import_cloudpickle


def spawn(function: Callable[..., Any], ranks: int, *arguments: Any, threads_per_rank: int | None = None) -> list[Any]:
    """Run function(*arguments) on each of `ranks` ranks and return the results, in order of rank.

    Inside, `ptymesh.world().rank` and `.size` identify the rank, and every Reconstruction is distributed over the
    ranks. Output of rank 0 is printed here.

    Args:
        function: any callable that cloudpickle can send.
        ranks: number of processes.
        arguments: of the function, the same on every rank.
        threads_per_rank: default: as in `launch`.

    Raises:
        BadInput: a number of ranks or threads that cannot be, or a function or arguments that cannot be sent.
        PtymeshError: a rank failed, or this process is itself a rank.
    """
    if world().size > 1:
        raise PtymeshError("spawn was called on a rank; call it once, from a process that is alone.")
    if not callable(function):
        raise BadInput(f"The function is of type {type(function).__name__}; give one that can be called.")
    for name, number in (("ranks", ranks), ("threads_per_rank", 1 if threads_per_rank is None else threads_per_rank)):
        if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= MOST_RANKS:
            raise BadInput(f"{name} is {' '.join(str(number).split())[:60]}; give a whole number, 1 to {MOST_RANKS}.")
    cloudpickle = import_cloudpickle()
    try:
        call = cloudpickle.dumps((function, arguments, list(sys.path)))
    except Exception as error:  # objects that cannot be pickled raise errors of any kind
        raise BadInput(f"The function or its arguments cannot be sent to other processes: {error}.") from error
    key = os.urandom(32)
    answers: dict[int, bytes] = {}
    with tempfile.TemporaryDirectory(prefix="ptymesh-spawn-") as folder:
        logs = Path(folder)
        with Listener(("127.0.0.1", 0), authkey=key) as listener, _echo_to_stdout(logs / "rank0.txt"):
            host, port = listener.address
            server = threading.Thread(target=_serve, args=(listener, call, ranks, answers), daemon=True)
            server.start()
            status = launch(
                (),
                ranks,
                threads_per_rank=threads_per_rank,
                log_dir=logs,
                program=("-m", "ptymesh.launcher.spawned_rank"),
                environment={ADDRESS: f"{host}:{port}", KEY: key.hex()},
                terminal=False,
            )
            listener.close()
            server.join()
    if status or len(answers) < ranks:
        raise PtymeshError(f"The function failed on {ranks - len(answers)} of {ranks} ranks; what they said is above.")
    return [cloudpickle.loads(answers[rank]) for rank in range(ranks)]


def _serve(listener: Listener, call: bytes, ranks: int, answers: dict[int, bytes]) -> None:
    """Send the call to each rank and collect the answers, until all have answered or the listener is closed."""
    talks = []
    for _ in range(ranks):
        try:
            pipe = listener.accept()
        except (OSError, EOFError, AuthenticationError):
            break
        talks.append(threading.Thread(target=_converse, args=(pipe, call, answers), daemon=True))
        talks[-1].start()
    for talk in talks:
        talk.join()


def _converse(pipe: Connection, call: bytes, answers: dict[int, bytes]) -> None:
    try:
        rank = pipe.recv()
        pipe.send_bytes(call)
        answers[rank] = pipe.recv_bytes()
    except (OSError, EOFError):
        return  # the rank ended without an answer, and its status says that it failed


@contextmanager
def _echo_to_stdout(path: Path) -> Iterator[None]:
    """Copy what is written to a file to sys.stdout, which in a notebook is no file."""
    is_done = threading.Event()

    def copy() -> None:
        place = 0
        while True:
            last = is_done.is_set()
            if path.exists():
                with path.open(encoding="utf-8", errors="replace") as file:
                    file.seek(place)
                    sys.stdout.write(file.read())
                    place = file.tell()
            if last:
                return
            time.sleep(0.1)

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()
