"""Somebody's own program as a rank: what it prints, what it saves, and how it ends.

A program is not written for ranks: each of them runs all of it. So the first one alone prints and writes files, and
what nobody caught on one rank is told to the others, which would wait for it in vain.
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
from typing import Any, NamedTuple, TextIO

from ptymesh import stopping
from ptymesh.distributed.child import launched
from ptymesh.distributed.rank_info import RankInfo, world
from ptymesh.distributed.watchdog import Watchdog
from ptymesh.errors import BadInput, Interrupted, PtymeshError


def reason(error: BaseException) -> str:
    """An error in one line."""
    said = " ".join(str(error).split())
    return said if isinstance(error, PtymeshError) else f"{type(error).__name__}: {said}"[:500]


#: How torch's backends speak of a rank that has gone, where they raise plain RuntimeErrors.
LOST = ("gloo", "Gloo", "NCCL", "Connection closed", "Connection reset", "Broken pipe")

#: Seconds between two looks at whether rank 0 has done what the others wait for.
LOOK_S = 0.05

#: Lines that a rank which fails shows of what it has printed.
TAIL_LINES = 20

_acts: Counter[str] = Counter()
_heard: TextIO | None = None  # where this rank prints, if not to the terminal
_watchdog: Watchdog | None = None
_failed = False
_previous_hook = sys.excepthook


class Lost(NamedTuple):
    """A sentence about which rank failed first, and why; and whether others were told, or this rank alone knows."""

    sentence: str
    told: bool


def enter(place: RankInfo, watchdog: Watchdog) -> None:
    """This process has joined the others, for the first time or again."""
    global _watchdog, _previous_hook
    if _watchdog is None:
        _hush(place)
        _previous_hook, sys.excepthook = sys.excepthook, _hook
        atexit.register(_leave)
        stopping.before_leaving(_forget_heard)
    _watchdog = watchdog


def account_for(error: BaseException) -> Lost | None:
    """This rank ends with an error: tells the others why, so that they need not wait for it.

    Where it has merely lost another rank, returns what is known about which one failed first. Not collective. Raises
    Interrupted where that one, or this one, was told to stop.
    """
    global _failed
    if _watchdog is None:
        return None
    _failed = not isinstance(error, Interrupted)
    if is_loss(error):
        found = _watchdog.explain()
        said = found.sentence if found else f"Rank {_watchdog.rank} lost contact with another rank, which failed first."
        if found and found.stopped:
            raise Interrupted(said) from error
        if stopping.requested():
            raise Interrupted(f"Asked to stop, and then: {said}") from error
        return Lost(said, found is not None and found.told)
    if _watchdog.heartbeat.agreed:
        _watchdog.agree()
    elif (status := getattr(error, "exit_status", 1)) in (1, BadInput.exit_status):  # others may not fail alike
        _watchdog.accuse_self(reason(error), status)
    _watchdog.leave(failed=True)
    return None


def is_loss(error: BaseException) -> bool:
    """Whether an error only says that another rank has gone, or the store through which ranks tell each other so."""
    dist = sys.modules.get("torch.distributed")  # nobody is lost where it was not imported
    if dist and isinstance(error, dist.DistError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in LOST)


def on_first_rank(act: Callable[[], Any], name: str) -> Any:
    """In somebody's own program: rank 0 acts (writes the file `name`), the others return when it has. No collective.

    So a program may call it on all ranks or on rank 0 alone. Returns what `act` does, on rank 0. Raises what it
    raises, on the others PtymeshError.
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
            done = act()
        except Exception as error:
            _watchdog.tell(key, reason(error))
            raise
        _watchdog.tell(key, "")
        return done


def _hush(place: RankInfo) -> None:
    """Ranks print to files, except the first; unless a launcher has seen to it already."""
    global _heard
    if place.rank == 0 or launched() or sys.stdout is not sys.__stdout__ or _has_own_log():
        return
    try:
        folder = Path(tempfile.mkdtemp(prefix="ptymesh-"))
        _heard = (folder / f"rank{place.rank}.txt").open("w", encoding="utf-8", buffering=1)
    except OSError:
        return  # then it is heard
    sys.stdout = _heard


def _has_own_log() -> bool:
    """Whether torchrun (--redirects) gave this rank a log of its own: beside the file for its errors."""
    try:
        errors, log = os.environ.get("TORCHELASTIC_ERROR_FILE", ""), Path("/proc/self/fd/1").resolve()
    except OSError:
        return False
    return bool(errors) and log.is_file() and log.parent == Path(errors).resolve().parent


def _tell_heard() -> None:
    """This rank fails: the end of what it has printed, on stderr."""
    if _heard:
        _heard.flush()
        lines = Path(_heard.name).read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:]
        if lines:
            print(f"--- rank {world().rank} (all of it in {_heard.name})", *lines, sep="\n", file=sys.stderr)


def _forget_heard() -> None:
    """All went well: nobody needs what this rank has printed."""
    global _heard
    if _heard:
        sys.stdout = sys.__stdout__
        _heard.close()
        with contextlib.suppress(OSError):
            Path(_heard.name).unlink()
            Path(_heard.name).parent.rmdir()
        _heard = None


def _hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """In somebody's own program: what nobody caught is told to the other ranks too."""
    lost = account_for(error) if isinstance(error, Exception) else None
    _tell_heard()
    _previous_hook(kind, error, trace)
    if lost and not (lost.told and launched()):
        print(f"ptymesh: {lost.sentence}", file=sys.stderr, flush=True)


def _leave() -> None:
    """At the end of the program."""
    if _watchdog and not _watchdog.done:
        _watchdog.leave()
    if not _failed:
        _forget_heard()
