"""Supervision of running ranks by the launcher: wait for them, forward signals, kill those that do not end."""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

from torch.distributed import TCPStore
from torch.distributed.elastic.multiprocessing import PContext

from ptymesh import stopping
from ptymesh.distributed.watchdog import AGREED, post_verdict, read_heartbeat
from ptymesh.errors import Diverged, Interrupted

#: Seconds that ranks have to write a checkpoint after a signal, and to end by themselves after one of them failed.
STOP_S, PEERS_S = 600.0, 10.0
POLL_S = 0.05

FORWARDED = stopping.SIGNALS
Answer = TypeVar("Answer")


def ask_store(question: Callable[[], Answer], otherwise: Answer) -> Answer:
    """Return the store's answer to a question; `otherwise` if the store cannot be reached."""
    try:
        return question()
    except RuntimeError:
        return otherwise


class Signals:
    """Context that collects signals until they are taken."""

    def __init__(self) -> None:
        self._received: list[int] = []

    def __enter__(self) -> Signals:
        main = threading.current_thread() is threading.main_thread()  # Python allows handlers in the main thread only
        numbers = FORWARDED if main else ()
        self._previous = {n: signal.getsignal(n) for n in numbers if signal.getsignal(n) is not signal.SIG_IGN}
        for number in self._previous:
            signal.signal(number, self._collect_signal)
        stopping.held()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _collect_signal(self, number: int, frame: FrameType | None) -> None:
        """Collect a signal, as its handler."""
        self._received.append(number)

    def take(self) -> list[int]:
        """Return the signals since the last call."""
        signals, self._received = self._received, []
        return signals


class Watch:
    """Supervisor of the ranks: waits for them, forwards signals, and kills ranks that do not end by themselves.

    Args:
        context: the started processes.
        signals: signals to this process.
        store: rendezvous store of the ranks.

    Attributes:
        ended: exit status of each rank, in the order in which they ended; negative: killed by that signal.
        forced: ranks that had to be killed.
        stop_requested: True once a signal asked the run to stop.
    """

    def __init__(self, context: PContext, signals: Signals, store: TCPStore) -> None:
        self.context, self.signals, self.store = context, signals, store
        self.stop_requested = False
        self.ended: dict[int, int] = {}
        self.forced: set[int] = set()
        self.interrupts, self.warned = 0, False
        self.failed_at = self.kill_at = math.inf
        self.pids: dict[int, int] = {}

    def run(self) -> None:
        """Wait until all ranks have ended."""
        handlers = self.context.subprocess_handlers  # type: ignore[attr-defined] # PContext of a program has them
        self.running = {rank: handler.proc for rank, handler in handlers.items()}
        self.pids = {rank: process.pid for rank, process in self.running.items()}
        while self.running:
            self._pass_on()
            self._end_stragglers()
            time.sleep(POLL_S)
            self._collect()

    def _pass_on(self) -> None:
        """Forward signals to the ranks, and set the time after which they are killed."""
        for number in self.signals.take():
            self.stop_requested = True
            self.interrupts += number == signal.SIGINT
            if self.interrupts > 2:
                self._kill()
            else:
                self._send(signal.SIGTERM if number == getattr(signal, "SIGHUP", None) else number)
            patience = STOP_S if self.interrupts < 2 else PEERS_S
            self.kill_at = min(self.kill_at, time.monotonic() + patience)

    def _collect(self) -> None:
        """Record the ranks that have ended."""
        for rank, process in list(self.running.items()):
            if process.poll() is not None:
                del self.running[rank]
                self.ended[rank] = process.returncode
                if process.returncode < 0 and rank not in self.forced and not self.stop_requested:
                    self._report_killed(rank, signal.Signals(-process.returncode).name)
        if any(self.ended.values()):
            self.failed_at = min(self.failed_at, time.monotonic())

    def _end_stragglers(self) -> None:
        """End the other ranks some seconds after one has failed, unless they notice and end by themselves."""
        now = time.monotonic()
        if now > self.failed_at + PEERS_S / 2 and not self.stop_requested:
            self._report_never_joined()
        if now > self.kill_at:
            self._kill()
        elif now > self.failed_at + PEERS_S and not self.warned:
            self.warned = True
            self._send(signal.SIGTERM)
            self.forced |= set(self.running)
            self.kill_at = min(self.kill_at, now + PEERS_S)

    def _report_never_joined(self) -> None:
        """Post a verdict on a rank that failed before it had joined the others, and so could not post one itself."""
        expected = (0, Diverged.exit_status, Interrupted.exit_status)
        failed = [rank for rank, status in self.ended.items() if status > 0 and status not in expected]
        if not failed or not self.running:
            return
        rank, status = failed[0], self.ended[failed[0]]
        silent = ask_store(lambda: not self.store.check([AGREED]) and read_heartbeat(self.store, rank) is None, False)
        if silent:
            self._report_rank(rank, f"ended with status {status} before it had joined the others")

    def _report_killed(self, rank: int, name: str) -> None:
        """Post a verdict on a rank that was killed, and could not do so itself, so that no other rank waits for it."""
        post = ask_store(lambda: read_heartbeat(self.store, rank), None)
        memory = " (often for want of memory: use fewer ranks, or crop or bin the data)" if name == "SIGKILL" else ""
        place = f", last heard of in {post.place}" if post else " before it had joined the others"
        self._report_rank(rank, f"was ended by {name}{memory}{place}")

    def _report_rank(self, rank: int, event: str) -> None:
        """Post a verdict on a rank; print it if the store cannot be reached."""
        sentence = f"Rank {rank} (process {self.pids[rank]}) {event}."
        if ask_store(lambda: post_verdict(self.store, rank, sentence), None) is None:
            print(f"ptymesh: {sentence}", file=sys.stderr, flush=True)

    def _send(self, number: int) -> None:
        for process in self.running.values():
            process.send_signal(number)

    def _kill(self) -> None:
        self._send(signal.SIGKILL)
        self.forced |= set(self.running)
