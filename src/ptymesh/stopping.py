"""Leaving when a signal comes, at every moment of a run: with one sentence and status 75, or after a checkpoint.

    at once      nothing would be lost (before the first batch, or once the result is written): the process leaves
    held         a run is between its first batch and its result: it ends by itself, after a checkpoint (StopSignal)
    over         the process is about to end with a status of its own, which must not change any more

A signal finds the main thread anywhere, also in C: importing a library, joining other ranks, reading. Python then calls
no handler, but writes the signal's number to a pipe, at whose other end a thread waits, which acts. For signals that
come while the main thread is in C, it calls the handler once: that a second Ctrl-C came, only the pipe can tell.
Nothing here does anything in a process that has not called `watch`, which is the command line's. No heavy imports:
`watch` comes first.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from ptymesh.errors import Interrupted
from ptymesh.printable import printable

#: Ctrl-C, a scheduler's end, its warning that the end is near, and a terminal that goes (where the system has them).
SIGNALS = tuple(getattr(signal, n) for n in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, n))

#: Seconds that what is to be tidied up may take.
TIDY_S = 3.0
#: Seconds after a second Ctrl-C at which the main thread is woken, and at which nobody waits for it any more.
WAKE_S, PATIENCE_S = 0.5, 5.0

#: Set by the launcher: what its ranks say until they know better.
SAYING = "PTYMESH_STOPPED_SAYING"

BEFORE = "Stopped before the run had begun; start it again."
SINCE = "Stopped; `ptymesh resume` goes on from the last checkpoint, if there is one."

_lock = threading.RLock()
_watching = _requested = _at_once = _interruptible = False
_interrupts = 0
_sentence, _since, _status, _speaks = BEFORE, SINCE, Interrupted.exit_status, True
_tidying: list[Callable[[], Any]] = []


def watch(speaks: bool = True) -> None:
    """From here on a signal ends this process, with a sentence where it `speaks`; to be called by the main thread.

    Signals that are ignored (nohup) go on being ignored.
    """
    global _watching, _at_once, _speaks, _sentence
    _sentence = os.environ.pop(SAYING, BEFORE)
    if _watching or not hasattr(signal, "set_wakeup_fd"):
        return
    _watching, _at_once, _speaks = True, True, speaks
    ours, theirs = os.pipe()
    if hasattr(os, "set_blocking"):  # not on Windows, which does not ask for it
        os.set_blocking(theirs, False)
    threading.Thread(target=_listen, args=(ours,), name="ptymesh-signals", daemon=True).start()
    signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _noted)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forget)


def wanted(arguments: list[str]) -> bool:
    """Whether a command line starts a run."""
    words = [word for word in arguments if not word.startswith("-")]
    return bool(words) and words[0] in ("run", "resume", "demo")


def requested() -> bool:
    """Whether a signal has come since `watch`."""
    return _requested


def at_once(sentence: str, status: int = Interrupted.exit_status, since: str = SINCE) -> None:
    """A signal from here on, or one that came before, ends the process at once, with this sentence and status.

    since: the sentence that is true instead once a batch is done (`held`).
    """
    global _since
    _since = since
    _change(True, sentence, status)


def held() -> None:
    """A signal from here on is for the run to act on."""
    if _at_once:
        _change(False, _since)


def interruptible(now: bool) -> None:
    """Whether a second Ctrl-C, while a run is held, is to interrupt it: its handler raises KeyboardInterrupt then.

    Where that does not happen within seconds, as the main thread is in C and waits there, the process leaves.
    """
    global _interruptible
    with _lock:
        _interruptible = now


def asked_twice() -> bool:
    """Whether Ctrl-C has come twice since `watch`, as far as is known."""
    return _interrupts > 1


def over() -> None:
    """Ignore signals from here on, so that the process ends with its own status. Call it from the main thread."""
    _change(False, _sentence)
    if _watching:
        for number in SIGNALS:  # as it ends, Python takes handlers away: any signal would kill it
            signal.signal(number, signal.SIG_IGN)


def speaks() -> bool:
    """Whether this process says that it stops; one of the ranks does."""
    return _speaks


def sentence() -> str:
    """What a process says that leaves at once, or because others have left."""
    return _sentence


def before_leaving(act: Callable[[], Any]) -> None:
    """Run `act` before the process exits on a signal, on another thread, until `forget`."""
    _tidying.append(act)


def forget(act: Callable[[], Any]) -> None:
    """Do not run `act` any more; nothing happens where it was not to be run."""
    with contextlib.suppress(ValueError):
        _tidying.remove(act)


@contextlib.contextmanager
def tidying(act: Callable[[], Any]) -> Iterator[None]:
    """Within it: run `act` before the process exits on a signal, on another thread."""
    before_leaving(act)
    try:
        yield
    finally:
        forget(act)


def undisturbed() -> contextlib.AbstractContextManager[Any]:
    """Within it, no signal makes the process exit; keep it short, as the signal is answered only afterwards."""
    return _lock


def leave(sentence: str, status: int) -> None:
    """Ends this process, from any thread; what is to be tidied up before is not waited for without bound."""
    with _lock:
        tidy = threading.Thread(target=_tidy, daemon=True)
        tidy.start()
        tidy.join(TIDY_S)
        if _speaks:
            with contextlib.suppress(OSError):
                os.write(2, f"ptymesh: {printable(sentence)}\n".encode(errors="replace"))
        os._exit(status)


def _tidy() -> None:
    for act in reversed(_tidying):
        with contextlib.suppress(Exception):
            act()
    with contextlib.suppress(Exception):
        sys.stdout.flush()


def _change(now: bool, said: str, status: int = Interrupted.exit_status) -> None:
    global _at_once, _sentence, _status
    with _lock:  # who is leaving holds it to the end
        _at_once, _sentence, _status = now and _watching, said, status
        if _at_once and _requested:
            leave(_sentence, _status)


def _listen(pipe: int) -> None:
    global _requested, _interrupts
    while numbers := os.read(pipe, 64):
        if not any(number in SIGNALS for number in numbers):
            continue
        with _lock:
            before, _requested = _interrupts, True
            _interrupts += numbers.count(signal.SIGINT)
            if _at_once:
                leave(_sentence, _status)
        if before < 2 <= _interrupts:
            threading.Thread(target=_insist, name="ptymesh-insists", daemon=True).start()


def _insist() -> None:
    """After a second Ctrl-C: wakes the main thread, in case that it slept through one; in the end, leaves without."""
    time.sleep(WAKE_S)
    if not _interruptible:
        return
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    time.sleep(PATIENCE_S - WAKE_S)
    with _lock:
        if _interruptible:
            leave(_sentence, _status)


def _noted(number: int, frame: FrameType | None) -> None:
    """Does nothing: the signal wakes the thread that acts on it."""


def _forget() -> None:
    """In a fork, which shares the pipe: signals are as if nobody had asked for them."""
    global _watching, _at_once, _requested, _interruptible, _interrupts
    signal.set_wakeup_fd(-1)
    for number in SIGNALS:
        if signal.getsignal(number) is _noted:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    _watching = _at_once = _requested = _interruptible = False
    _interrupts = 0
    _tidying.clear()
