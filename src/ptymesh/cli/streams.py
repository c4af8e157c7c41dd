"""Robust standard output and error: the work goes on if they are closed or full (`| head`, a full disk, `>&-`)."""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from typing import Any, TextIO

from ptymesh.printable import printable

#: The former streams, which are referenced here because closing them would close the descriptors.
_before: list[TextIO | None] = []


class Lasting(io.FileIO):
    """File descriptor to which writing never fails.

    Data that cannot be written are dropped; `failure` holds the error, unless the reader has closed a pipe.
    """

    failure: OSError | None = None

    def write(self, data: Any) -> int:
        """Write the data and return their full size, whether or not all could be written."""
        rest = memoryview(data).cast("B")
        try:
            while len(rest):
                done = super().write(rest)
                if done is None:  # a full pipe in non-blocking mode
                    select.select([], [self], [], 1.0)
                rest = rest[done or 0 :]
        except OSError as error:
            if error.errno != errno.EPIPE:
                self.failure = error
        return memoryview(data).nbytes


class Escaping(io.TextIOWrapper):
    """Text stream for a terminal, with control characters escaped.

    Attributes:
        styled: the same stream for callers that write terminal commands on purpose (run/terminal.py).
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.styled = Styled(self)

    def write(self, text: str) -> int:
        """Write the text with control characters escaped."""
        super().write(printable(text))
        return len(text)


class Styled:
    """Stream of `Escaping` that does not escape."""

    def __init__(self, stream: Escaping) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text as it is."""
        return io.TextIOWrapper.write(self._stream, text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def open_closed_streams() -> None:
    """Open descriptors 0, 1 and 2 on the null device if they are closed; call it before any other file is opened.

    Otherwise the next files to be opened (the pipe of signals, the result) would get these numbers, and output of
    libraries would go into them.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            while os.open(os.devnull, os.O_RDWR) < number:
                pass
            os.set_inheritable(number, True)


def keep() -> None:
    """Replace standard output and error by streams on which printing never fails.

    Closed ones are opened on the null device.
    """
    open_closed_streams()
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is not getattr(sys, f"__{name}__") or isinstance(_raw(stream), Lasting):
            continue  # replaced by the program, as in a notebook, or already done
        if stream is not None and stream.fileno() != number:
            continue
        _before.append(stream)
        lasting = _lasting(number, stream)
        setattr(sys, name, lasting)
        setattr(sys, f"__{name}__", lasting)


def _lasting(number: int, stream: TextIO | None) -> TextIO:
    """Return a text stream with the settings of `stream` on a descriptor to which writing never fails."""
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
    """Return the raw file below a text stream."""
    buffer = getattr(stream, "buffer", None)
    return getattr(buffer, "raw", buffer)


def failure() -> OSError | None:
    """Return the error because of which standard output was lost; None if it was not, or if its reader has left."""
    raw = _raw(sys.stdout)
    if not isinstance(raw, Lasting):
        return None
    sys.stdout.flush()
    return raw.failure
