"""Handling of signals at every moment of a run: exit with one sentence and status 75, or stop after a checkpoint.

    at once      nothing would be lost (before the first batch, or once the result is written): the process exits
    held         a run is between its first batch and its result: it stops by itself, after a checkpoint (StopSignal)
    over         the process is about to end with a status of its own, which must not change any more

When a signal comes, the main thread may be in C code: importing a library, joining other ranks, reading. Python then
delays the handler, but writes the signal's number to a pipe at once; a thread reads the pipe and acts. For several
signals that come while the main thread is in C, Python calls the handler only once: a second Ctrl-C is seen only in the
pipe. Nothing here has an effect in a process that has not called `watch`, as the command line does. No heavy imports:
`watch` is called first.
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

from ptymesh.errors import Interrupted
from ptymesh.printable import printable

#: Ctrl-C, a scheduler's termination, its warning before that, and a closed terminal (where the system has them).
SIGNALS = tuple(getattr(signal, n) for n in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, n))

#: Longest time in seconds for the registered clean-up functions.
TIDY_S = 3.0
#: Seconds after a second Ctrl-C at which the main thread is interrupted, and at which the process exits regardless.
WAKE_S, PATIENCE_S = 0.5, 5.0

#: Variable set by the launcher: sentence with which its ranks exit before they set their own.
SAYING = "PTYMESH_STOPPED_SAYING"

BEFORE = "Stopped before the run had begun; start it again."
SINCE = "Stopped; `ptymesh resume` goes on from the last checkpoint, if there is one."

_lock = threading.RLock()
_watching = _requested = _at_once = _interruptible = False
_interrupts = 0
_sentence, _since, _status, _speaks = BEFORE, SINCE, Interrupted.exit_status, True
_tidying: list[Callable[[], object]] = []
#: Files that are being written, which are removed before the process leaves.
_unfinished: set[str] = set()


def watch(speaks: bool = True) -> None:
    """Install the handling of signals: from now on a signal ends this process. Call it from the main thread.

    Signals that are ignored (nohup) remain ignored.

    Args:
        speaks: True if this process prints the sentence of the exit.
    """
    global _watching, _at_once, _speaks, _sentence
    _sentence = os.environ.pop(SAYING, BEFORE)
    if _watching or not hasattr(signal, "set_wakeup_fd"):
        return
    _watching, _at_once, _speaks = True, True, speaks
    ours, theirs = os.pipe()
    if hasattr(os, "set_blocking"):  # missing and not needed on Windows
        os.set_blocking(theirs, False)
    threading.Thread(target=_listen, args=(ours,), name="ptymesh-signals", daemon=True).start()
    signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _ignore_signal)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_restore_default_signals)


def wanted(arguments: list[str]) -> bool:
    """Return True if a command line starts a run."""
    words = [word for word in arguments if not word.startswith("-")]
    return bool(words) and words[0] in ("run", "resume", "demo")


def requested() -> bool:
    """Return True if a signal has come since `watch`."""
    return _requested


def at_once(sentence: str, status: int = Interrupted.exit_status, since: str = SINCE) -> None:
    """Make signals, also one that has already come, end the process at once.

    Args:
        sentence: printed at exit.
        status: of the exit.
        since: sentence that replaces it once a batch is done (`held`).
    """
    global _since
    _since = since
    _change(True, sentence, status)


def held() -> None:
    """Leave signals from now on to the run, which stops after a checkpoint."""
    if _at_once:
        _change(False, _since)


def interruptible(now: bool) -> None:
    """Set whether a second Ctrl-C interrupts a held run by KeyboardInterrupt, which the run's handler raises.

    If the main thread is in C and does not react within seconds, the process exits.
    """
    global _interruptible
    with _lock:
        _interruptible = now


def asked_twice() -> bool:
    """Return True if Ctrl-C is known to have come twice since `watch`."""
    return _interrupts > 1


def over() -> None:
    """Ignore signals from now on, so that the process ends with its own status. Call it from the main thread."""
    _change(False, _sentence)
    if _watching:
        for number in SIGNALS:  # Python removes handlers as it ends: then any signal would kill the process
            signal.signal(number, signal.SIG_IGN)


def speaks() -> bool:
    """Return True if this process prints that it stops, as one of the ranks does."""
    return _speaks


def sentence() -> str:
    """Return the sentence with which this process exits on a signal, or because other ranks have."""
    return _sentence


def before_leaving(act: Callable[[], object]) -> None:
    """Register a clean-up function; it runs on another thread before the process exits on a signal."""
    _tidying.append(act)


def remove_clean_up(act: Callable[[], object]) -> None:
    """Remove a clean-up function; one that is not registered is ignored."""
    with contextlib.suppress(ValueError):
        _tidying.remove(act)


@contextlib.contextmanager
def tidying(act: Callable[[], object]) -> Iterator[None]:
    """Register a clean-up function within this context."""
    before_leaving(act)
    try:
        yield
    finally:
        remove_clean_up(act)


@contextlib.contextmanager
def removing(path: str) -> Iterator[None]:
    """Remove a file that is being written, if it is there, when a signal ends the process within this context."""
    _unfinished.add(path)
    try:
        yield
    finally:
        _unfinished.discard(path)


def undisturbed() -> contextlib.AbstractContextManager[object]:
    """Return a context within which no signal ends the process.

    Keep it short, as signals are handled only afterwards.
    """
    return _lock


def leave(sentence: str, status: int) -> None:
    """End this process, from any thread, after the clean-up functions, which have a bounded time.

    Args:
        sentence: printed if `watch` was called with `speaks`.
        status: of the exit.
    """
    with _lock:
        _act_in_time(_tidy)
        if _speaks:
            with contextlib.suppress(OSError):
                os.write(2, f"ptymesh: {printable(sentence)}\n".encode(errors="replace"))
        _act_in_time(_remove_unfinished)  # last: the main thread goes on meanwhile, and may make such a file
        os._exit(status)


def _act_in_time(act: Callable[[], object]) -> None:
    """Act on another thread, and wait for it no longer than TIDY_S."""
    acting = threading.Thread(target=act, daemon=True)
    acting.start()
    acting.join(TIDY_S)


def _remove_unfinished() -> None:
    """Remove the files that are being written."""
    for path in list(_unfinished):
        with contextlib.suppress(OSError):
            os.unlink(path)


def _tidy() -> None:
    """Run the clean-up functions, the last registered first, and flush the output."""
    for act in reversed(_tidying):
        with contextlib.suppress(Exception):
            act()
    with contextlib.suppress(Exception):
        sys.stdout.flush()


def _change(now: bool, sentence: str, status: int = Interrupted.exit_status) -> None:
    """Set whether signals end the process at once, and act on one that has come."""
    global _at_once, _sentence, _status
    with _lock:  # `leave` holds it until the process has ended
        _at_once, _sentence, _status = now and _watching, sentence, status
        if _at_once and _requested:
            leave(_sentence, _status)


def _listen(pipe: int) -> None:
    """Read signals from the pipe, and act on them."""
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
            threading.Thread(target=_interrupt_main_thread, name="ptymesh-insists", daemon=True).start()


def _interrupt_main_thread() -> None:
    """Interrupt the main thread after a second Ctrl-C, in case it missed one in C; at last, exit without it."""
    time.sleep(WAKE_S)
    if not _interruptible:
        return
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    time.sleep(PATIENCE_S - WAKE_S)
    with _lock:
        if _interruptible:
            leave(_sentence, _status)


def _ignore_signal(number: int, frame: FrameType | None) -> None:
    """Do nothing; the handler only makes Python write the signal to the pipe."""


def _restore_default_signals() -> None:
    """Restore default handling in a forked child, which shares the pipe."""
    global _watching, _at_once, _requested, _interruptible, _interrupts
    signal.set_wakeup_fd(-1)
    for number in SIGNALS:
        if signal.getsignal(number) is _ignore_signal:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    _watching = _at_once = _requested = _interruptible = False
    _interrupts = 0
    _tidying.clear()
    _unfinished.clear()
