"""Standard output and error that may go away (`| head`, a full disk, `>&-`) without taking the work with them."""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from typing import Any, TextIO

from ptymesh.printable import printable

#: What the streams were before, which must not be closed.
_before: list[TextIO | None] = []


class Lasting(io.FileIO):
    """A file descriptor to write to. What cannot be written is lost; `failure` says why, unless the reader has left."""

    failure: OSError | None = None

    def write(self, data: Any) -> int:
        """All of it counts as written."""
        rest = memoryview(data).cast("B")
        try:
            while len(rest):
                done = super().write(rest)
                if done is None:  # it would have to wait, and was told not to
                    select.select([], [self], [], 1.0)
                rest = rest[done or 0 :]
        except OSError as error:
            if error.errno != errno.EPIPE:
                self.failure = error
        return memoryview(data).nbytes


class Escaping(io.TextIOWrapper):
    """Text for a terminal, without what it would obey.

    Attributes:
        styled: the same stream for who writes commands to the terminal on purpose (run/terminal.py).
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.styled = Styled(self)

    def write(self, text: str) -> int:
        """Write what may stand on a terminal."""
        super().write(printable(text))
        return len(text)


class Styled:
    """A stream of `Escaping` that passes on all that is written to it."""

    def __init__(self, stream: Escaping) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write it as it is."""
        return io.TextIOWrapper.write(self._stream, text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def open_closed_streams() -> None:
    """Open descriptors 0, 1 and 2 onto nothing where they are closed; before any other file is opened.

    Their numbers would be given to the next files that are opened (the pipe of signals, the result), and what libraries
    print, or read, would go there.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            while os.open(os.devnull, os.O_RDWR) < number:
                pass
            os.set_inheritable(number, True)


def keep() -> None:
    """From here on, nothing that is printed fails. Streams that are closed are opened, onto nothing."""
    open_closed_streams()
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is not getattr(sys, f"__{name}__") or isinstance(_raw(stream), Lasting):
            continue  # somebody's own, as in a notebook, or done
        if stream is not None and stream.fileno() != number:
            continue
        _before.append(stream)
        lasting = _lasting(number, stream)
        setattr(sys, name, lasting)
        setattr(sys, f"__{name}__", lasting)


def _lasting(number: int, stream: TextIO | None) -> TextIO:
    if stream is not None:
        stream.flush()
    raw = Lasting(number, "w", closefd=False)
    at_once = isinstance(getattr(stream, "buffer", None), io.RawIOBase)  # python -u
    return Escaping(
        raw if at_once else io.BufferedWriter(raw),
        encoding=getattr(stream, "encoding", "utf-8"),
        errors=getattr(stream, "errors", "backslashreplace"),
        line_buffering=getattr(stream, "line_buffering", True),
        write_through=getattr(stream, "write_through", False),
    )


def _raw(stream: TextIO | None) -> object:
    buffer = getattr(stream, "buffer", None)
    return getattr(buffer, "raw", buffer)


def failure() -> OSError | None:
    """Why something that was printed on standard output was lost; None where nothing was, or nobody reads it."""
    raw = _raw(sys.stdout)
    if not isinstance(raw, Lasting):
        return None
    sys.stdout.flush()
    return raw.failure
