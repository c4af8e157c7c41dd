"""A user's own program as a rank: where it prints, what it saves, and how it ends.

The program was not written for ranks: each of them runs all of it. So rank 0 alone prints and writes files, and an
uncaught error on one rank is reported to the others, which would wait for that rank in vain.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TextIO, TypeVar

from ptymesh import stopping
from ptymesh.distributed.child import launched
from ptymesh.distributed.rank_info import RankInfo, world
from ptymesh.distributed.watchdog import Watchdog
from ptymesh.errors import BadInput, Interrupted, PtymeshError

Made = TypeVar("Made")


def reason(error: BaseException) -> str:
    """Return an error in one line."""
    message = " ".join(str(error).split())
    return message if isinstance(error, PtymeshError) else f"{type(error).__name__}: {message}"[:500]


#: Words in the plain RuntimeErrors that torch's backends raise when another rank has ended.
LOST = ("gloo", "Gloo", "NCCL", "Connection closed", "Connection reset", "Broken pipe")

#: Seconds between two polls for an action of rank 0 that the others wait for.
LOOK_S = 0.05

#: Last lines of its output that a failing rank prints on stderr.
TAIL_LINES = 20

_acts: Counter[str] = Counter()
_heard: TextIO | None = None  # file that this rank prints to instead of the terminal
_watchdog: Watchdog | None = None
_failed = False
_previous_hook = sys.excepthook


class Lost(NamedTuple):
    """Loss of another rank.

    Attributes:
        sentence: which rank failed first, and why.
        is_posted: True if a verdict on it is in the store; False if this rank alone knows.
    """

    sentence: str
    is_posted: bool


def enter(place: RankInfo, watchdog: Watchdog) -> None:
    """Register this process as a rank, when it joins the others for the first time or again."""
    global _watchdog, _previous_hook
    if _watchdog is None:
        _redirect_output(place)
        _previous_hook, sys.excepthook = sys.excepthook, _hook
        atexit.register(_leave)
        stopping.before_leaving(_forget_heard)
    _watchdog = watchdog


def account_for(error: BaseException) -> Lost | None:
    """Post why this rank fails, so that the others need not wait for it. Not collective.

    Args:
        error: with which this rank ends.

    Returns:
        Where this rank has merely lost another one, what is known about the rank that failed first; else None.

    Raises:
        Interrupted: the lost rank, or this one, was stopped by a signal.
    """
    global _failed
    if _watchdog is None:
        return None
    _failed = not isinstance(error, Interrupted)
    if is_loss(error):
        explanation = _watchdog.explain()
        sentence = (
            explanation.sentence
            if explanation
            else f"Rank {_watchdog.rank} lost contact with another rank, which failed first."
        )
        if explanation and explanation.stopped:
            raise Interrupted(sentence) from error
        if stopping.requested():
            raise Interrupted(f"Asked to stop, and then: {sentence}") from error
        return Lost(sentence, explanation is not None and explanation.is_posted)
    if _watchdog.heartbeat.agreed:
        _watchdog.agree()
    elif (status := getattr(error, "exit_status", 1)) in (1, BadInput.exit_status):  # other ranks may not fail too
        _watchdog.post_own_failure(reason(error), status)
    _watchdog.leave(failed=True)
    return None


def is_loss(error: BaseException) -> bool:
    """Return True if an error only says that another rank, or the rendezvous store, has ended."""
    dist = sys.modules.get("torch.distributed")  # where it was not imported there are no other ranks
    if dist and isinstance(error, dist.DistError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in LOST)


def on_first_rank(act: Callable[[], Made], name: str) -> Made | None:
    """Run an action on rank 0 of a user's own program, while the other ranks wait for it. No collective.

    A program may call it on all ranks or on rank 0 alone.

    Args:
        act: writes a file.
        name: of the file; the key by which ranks match their calls.

    Returns:
        Result of `act` on rank 0; None on the others.

    Raises:
        PtymeshError: on the other ranks, if `act` failed on rank 0, which raises the error itself.
    """
    place = world()
    if place.size == 1 or _watchdog is None:
        return act() if place.rank == 0 else None
    _acts[name] += 1
    key = f"ptymesh/act/{_acts[name]}/{name}"
    with _watchdog.heartbeat.doing("save"):
        if place.rank:
            if failure := _watchdog.wait_for(key, LOOK_S):
                raise PtymeshError(f"Rank 0 failed: {failure}")
            return None
        try:
            result = act()
        except Exception as error:
            _watchdog.set_key(key, reason(error))
            raise
        _watchdog.set_key(key, "")
        return result


def _redirect_output(place: RankInfo) -> None:
    """Redirect the output of all ranks but the first to files, unless a launcher or the program has done so."""
    global _heard
    if place.rank == 0 or launched() or sys.stdout is not sys.__stdout__ or _has_own_log():
        return
    try:
        folder = Path(tempfile.mkdtemp(prefix="ptymesh-"))
        _heard = (folder / f"rank{place.rank}.txt").open("w", encoding="utf-8", buffering=1)
    except OSError:
        return  # no file: this rank prints to the terminal
    sys.stdout = _heard


def _has_own_log() -> bool:
    """Return True if torchrun (--redirects) gave this rank its own log: beside the file for its errors."""
    try:
        errors, log = os.environ.get("TORCHELASTIC_ERROR_FILE", ""), Path("/proc/self/fd/1").resolve()
    except OSError:
        return False
    return bool(errors) and log.is_file() and log.parent == Path(errors).resolve().parent


def _tell_heard() -> None:
    """Print the end of this rank's output on stderr, as it fails."""
    if _heard:
        _heard.flush()
        lines = Path(_heard.name).read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:]
        if lines:
            print(f"--- rank {world().rank} (all of it in {_heard.name})", *lines, sep="\n", file=sys.stderr)


def _forget_heard() -> None:
    """Delete this rank's output file and print to the terminal again."""
    global _heard
    if _heard:
        sys.stdout = sys.__stdout__
        _heard.close()
        with contextlib.suppress(OSError):
            Path(_heard.name).unlink()
            Path(_heard.name).parent.rmdir()
        _heard = None


def _hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """Report an uncaught error of the user's program to the other ranks, then call the former hook."""
    lost = account_for(error) if isinstance(error, Exception) else None
    _tell_heard()
    _previous_hook(kind, error, trace)
    if lost and not (lost.is_posted and launched()):
        print(f"ptymesh: {lost.sentence}", file=sys.stderr, flush=True)


def _leave() -> None:
    """Leave the other ranks at the end of the program."""
    if _watchdog and not _watchdog.done:
        _watchdog.leave()
    if not _failed:
        _forget_heard()
