"""Requests to a run by a small file in its folder, out/control: one word, `stop` or `save`.

Who may write into the folder may ask; nothing listens on a network. The first rank looks at the file where it looks at
signals, at most twice a second, removes it, and the others hear of it as they hear of a signal.
"""

from __future__ import annotations

import os
import secrets
import stat
import time
from contextlib import suppress
from pathlib import Path

NAME = "control"
#: What can be asked: to stop after a checkpoint, and to write a checkpoint after the running epoch.
WORDS = ("stop", "save")
#: Seconds between two looks at the file.
EVERY_S = 0.5


class Control:
    """Requests to the run in a folder, as its first rank takes them; one that an earlier run has left is removed.

    Args:
        out: output folder.
    """

    def __init__(self, out: Path) -> None:
        self._path, self._next = out / NAME, 0.0
        self._stop = self._save = False
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def is_stop_requested(self) -> bool:
        """Return True once the run was asked to stop."""
        self._read_request()
        return self._stop

    def take_stop(self) -> bool:
        """Return True if the run was asked to stop since this was last called."""
        self._read_request()
        is_asked, self._stop = self._stop, False
        return is_asked

    def take_save(self) -> bool:
        """Return True if the run was asked for a checkpoint since this was last called."""
        self._read_request()
        is_asked, self._save = self._save, False
        return is_asked

    def _read_request(self) -> None:
        """Take the word that the file holds, if it is time to look."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + EVERY_S
        word = read_request(self._path.parent)
        if word is None:
            return
        self._stop |= word == "stop"
        self._save |= word == "save"
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def read_request(out: Path) -> str | None:
    """Return the request that waits in a run's folder, `stop` or `save`; None if there is none, or the file is another.

    Args:
        out: output folder of the run.
    """
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        file = os.open(out / NAME, flags)
    except OSError:
        return None
    try:
        request = os.read(file, 16) if stat.S_ISREG(os.fstat(file).st_mode) else b""
    except OSError:
        return None
    finally:
        os.close(file)
    return next((word for word in WORDS if request.strip() == word.encode()), None)


def write_request(out: Path, word: str) -> None:
    """Ask the run in a folder, which answers when it looks.

    Args:
        out: output folder of the run.
        word: one of WORDS.

    Raises:
        OSError: the folder cannot be written to.
    """
    beside = out / f".{NAME}.{secrets.token_hex(8)}.tmp"
    try:
        with beside.open("x", encoding="utf-8") as file:
            file.write(f"{word}\n")
        os.replace(beside, out / NAME)
    except OSError:
        with suppress(OSError):
            beside.unlink()
        raise
