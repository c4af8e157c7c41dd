"""`ptymesh.spawn`: a function on several ranks of this machine, from a notebook or a program.

Ranks are new processes, started as `ptymesh launch` starts them. The function travels by value (cloudpickle), so that
it may be defined in a notebook's cell; it goes through a connection on the loopback interface that asks for a key.
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
from ptymesh.launcher.launch import MOST_RANKS, launch
from ptymesh.launcher.spawned import ADDRESS, KEY, import_cloudpickle


def spawn(function: Callable[..., Any], ranks: int, *arguments: Any, threads_per_rank: int | None = None) -> list[Any]:
    """function(*arguments) on each of `ranks` ranks; what each returned, in order of rank.

    Inside, `ptymesh.world().rank` and `.size` tell one from another, and every Reconstruction spreads over the ranks.
    What rank 0 prints appears here. Raises PtymeshError where a rank failed, BadInput for ranks < 1.
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
    except Exception as error:  # whatever an object says that cannot travel
        raise BadInput(f"The function or its arguments cannot be sent to other processes: {error}.") from error
    key = os.urandom(32)
    answers: dict[int, bytes] = {}
    with tempfile.TemporaryDirectory(prefix="ptymesh-spawn-") as folder:
        logs = Path(folder)
        with Listener(("127.0.0.1", 0), authkey=key) as listener, _shown(logs / "rank0.txt"):
            host, port = listener.address
            server = threading.Thread(target=_serve, args=(listener, call, ranks, answers), daemon=True)
            server.start()
            status = launch(
                (),
                ranks,
                threads_per_rank=threads_per_rank,
                log_dir=logs,
                program=("-m", "ptymesh.launcher.spawned"),
                environment={ADDRESS: f"{host}:{port}", KEY: key.hex()},
                terminal=False,
            )
            listener.close()
            server.join()
    if status or len(answers) < ranks:
        raise PtymeshError(f"The function failed on {ranks - len(answers)} of {ranks} ranks; what they said is above.")
    return [cloudpickle.loads(answers[rank]) for rank in range(ranks)]


def _serve(listener: Listener, call: bytes, ranks: int, answers: dict[int, bytes]) -> None:
    """Gives the call to each rank and keeps what each answers; ends when they have, or the listener closes."""
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
        return  # the rank ended without an answer; its status tells


@contextmanager
def _shown(path: Path) -> Iterator[None]:
    """Copies what is written to the file to sys.stdout, which in a notebook is no file."""
    done = threading.Event()

    def copy() -> None:
        place = 0
        while True:
            last = done.is_set()
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
        done.set()
        thread.join()
