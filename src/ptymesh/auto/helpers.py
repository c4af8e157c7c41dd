"""Processes beside this one that take over some of what is done side by side. No torch here until there are any.

A small batch is mostly calls, which one thread makes while the others wait: of four tasks, two processes of one thread
each do two in the time in which one process of two threads does one. What a task leads to has the same bits whoever
does it, as sums are exact; so helpers change how long something takes, and nothing else. A task that a helper fails
with is done here, which then says what is wrong.

A helper is `python -m ptymesh.auto.helper`. It is started before this process's own long imports, is sent tasks through
a pipe that nobody else holds, and ends with this process.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from ptymesh.distributed.processes import cores, importing_alike

#: Processes that work at the same time at most, this one included: each takes some 400 MiB, most of it libraries.
MOST = 4
#: Seconds until it is looked again whether a helper has finished its imports, or whether all is to be stopped.
LOOK_S = 0.02


@dataclass(eq=False)
class Task:
    """Something to be done.

    Fields:
        message: what a helper has to know, which can be pickled; None: only this process can do it.
        here: does it in this process.
        by: the helper that has to do it, as it has begun it; afterwards the one that has done it.
    """

    message: Any
    here: Callable[[], Any]
    by: Helper | None = None


class Helper:
    """One of them, which has so many threads. Raises OSError where no process can be started."""

    def __init__(self, threads: int) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        own = importing_alike() | {"OMP_NUM_THREADS": str(threads)}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "ptymesh.auto.helper", str(os.getpid()), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=os.environ | own,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # a terminal's Ctrl-C is for this process
            )
        self.tasks, self.lost = 0, False
        self._ready = False

    def ready(self, patience_s: float) -> bool:
        """Whether its imports are done; waits for them so long."""
        if not self._ready and not self.lost:
            try:
                if self._pipe.poll(patience_s):
                    self._pipe.recv_bytes()
                    self._ready = True
            except (EOFError, OSError):
                self.lost = True
        return self._ready and not self.lost

    def ask(self, message: Any) -> Any:
        """What it answers; None where it has failed, or ended."""
        try:
            self._pipe.send_bytes(pickle.dumps(message))
            answer = pickle.loads(self._pipe.recv_bytes())  # noqa: S301 - of our own process, by a pipe of our own
        except (EOFError, OSError):
            self.lost = True
            return None
        except Exception:  # no message: what somebody else has plugged in need not be one
            return None
        self.tasks += answer is not None
        return answer

    def close(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.wait()
        self._pipe.close()


class Helpers:
    """All of them, which end when this is closed; none where there is one thread, or where none can be started.

    threads: that this process and they share; by default those that OpenMP is told of, or one for each core.
    """

    def __init__(self, threads: int | None = None) -> None:
        threads = _threads() if threads is None else threads
        processes = min(threads, MOST) if os.name == "posix" else 1
        #: Of each process, while helpers work.
        self.threads = max(1, threads // processes)
        self._all: list[Helper] = []
        with suppress(OSError):
            self._all.extend(Helper(self.threads) for _ in range(processes - 1))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def processes(self) -> int:
        """That work at the same time, this one included."""
        return 1 + len(self._all)

    @property
    def tasks(self) -> int:
        """That helpers have done."""
        return sum(one.tasks for one in self._all)

    def close(self) -> None:
        """Ends all that are left."""
        for one in self._all:
            one.close()
        self._all.clear()

    def share(self, tasks: Sequence[Task], stop: Callable[[], bool]) -> list[Any]:
        """What comes of each task, in their order; helpers do some.

        stop: asked while this process has nothing to do any more but to wait: then what is left is done here, where a
        task asks itself. Raises what a task raises here; helpers have ended then.
        """
        mine = [one for one in self._all if not one.lost]
        if not mine or (len(tasks) == 1 and tasks[0].by is None):
            return [task.here() for task in tasks]
        try:
            return _Shift(tasks, mine).work(self.threads, stop)
        except BaseException:
            self.close()
            raise


class _Shift:
    """Tasks that are done now, by this process and some helpers."""

    def __init__(self, tasks: Sequence[Task], helpers: Sequence[Helper]) -> None:
        self.tasks, self.helpers = tasks, helpers
        self.answers: dict[Task, Any] = {}
        #: What whoever comes first takes, what a helper has begun, and the rest.
        self.waiting = deque(task for task in tasks if task.message is not None and task.by is None)
        self.begun = {one: deque(task for task in tasks if task.by is one) for one in helpers}
        self.own = [task for task in tasks if task.message is None]

    def work(self, threads: int, stop: Callable[[], bool]) -> list[Any]:
        import torch

        before = torch.get_num_threads()
        others = [threading.Thread(target=self._feed, args=(one,), daemon=True) for one in self.helpers]
        for other in others:
            other.start()
        torch.set_num_threads(min(threads, before))
        try:
            for task in self.own:
                self.answers[task] = task.here()
            while taken := self._next():
                self.answers[taken] = taken.here()
            for helper, other in zip(self.helpers, others, strict=True):
                while other.is_alive() and not stop():
                    other.join(LOOK_S)
                helper.lost |= other.is_alive()  # what it answers at last, nobody asks for any more
        finally:
            torch.set_num_threads(before)
        for task in self.tasks:
            if task not in self.answers:  # a helper has failed with it
                task.by, self.answers[task] = None, task.here()
        return [self.answers[task] for task in self.tasks]

    def _feed(self, helper: Helper) -> None:
        """On a thread of its own: hands the helper one task after the other."""
        own = self.begun[helper]
        while (own or self.waiting) and not helper.lost:
            if not helper.ready(LOOK_S):
                continue
            task = own.popleft() if own else self._next()
            answer = None if task is None else helper.ask(task.message)
            if task is not None and answer is not None:
                task.by, self.answers[task] = helper, answer

    def _next(self) -> Task | None:
        """The next one that is waiting, for whoever asks first."""
        try:
            return self.waiting.popleft()
        except IndexError:
            return None


def _threads() -> int:
    told = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if told.isdecimal() and int(told):
        return int(told)
    return cores()
