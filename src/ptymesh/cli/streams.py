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
_former: list[TextIO | None] = []


class ResilientStream(io.FileIO):
    """File descriptor to which writing never fails.

    Data that cannot be written are dropped; `failure` holds the error, unless the reader has closed a pipe.
    """

    failure: OSError | None = None

    def write(self, data: Any) -> int:
        """Write the data and return their full size, whether or not all could be written."""
        rest = memoryview(data).cast("B")
        try:
            while len(rest):
                written = super().write(rest)
                if written is None:  # a full pipe in non-blocking mode
                    select.select([], [self], [], 1.0)
                rest = rest[written or 0 :]
        except OSError as error:
            if error.errno != errno.EPIPE:
                self.failure = error
        return memoryview(data).nbytes


class Escaping(io.TextIOWrapper):
    """Text stream for a terminal, with control characters escaped.

    Attributes:
        styled: the same stream for callers that write terminal commands on purpose (run_folder/terminal.py).
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
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

    def __getattr__(self, name: str) -> object:
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


def install() -> None:
    """Replace standard output and error by streams on which printing never fails.

    Closed ones are opened on the null device.
    """
    open_closed_streams()
    if _is_to_be_replaced(1, sys.stdout, sys.__stdout__):
        _former.append(sys.stdout)
        sys.stdout = sys.__stdout__ = _resilient_stream(1, sys.stdout)  # type: ignore[misc]
    if _is_to_be_replaced(2, sys.stderr, sys.__stderr__):
        _former.append(sys.stderr)
        sys.stderr = sys.__stderr__ = _resilient_stream(2, sys.stderr)  # type: ignore[misc]


def _is_to_be_replaced(number: int, stream: TextIO | None, original: TextIO | None) -> bool:
    """Return True for Python's own stream on this descriptor, unless it has been replaced already.

    Args:
        number: of the descriptor.
        stream: in use; a program may have replaced it, as a notebook does.
        original: with which Python has started.
    """
    if stream is not original or isinstance(_raw_file(stream), ResilientStream):
        return False
    return stream is None or stream.fileno() == number


def _resilient_stream(number: int, stream: TextIO | None) -> Escaping:
    """Return a text stream with the settings of `stream` on a descriptor to which writing never fails."""
    if stream is not None:
        stream.flush()
    raw = ResilientStream(number, "w", closefd=False)
    at_once = isinstance(getattr(stream, "buffer", None), io.RawIOBase)  # python -u
    return Escaping(
        raw if at_once else io.BufferedWriter(raw),
        encoding=getattr(stream, "encoding", "utf-8"),
        errors=getattr(stream, "errors", "backslashreplace"),
        line_buffering=getattr(stream, "line_buffering", True),
        write_through=getattr(stream, "write_through", False),
    )


def _raw_file(stream: TextIO | None) -> object:
    """Return the raw file below a text stream."""
    buffer = getattr(stream, "buffer", None)
    return getattr(buffer, "raw", buffer)


def output_failure() -> OSError | None:
    """Return the error because of which standard output was lost; None if it was not, or if its reader has left."""
    raw = _raw_file(sys.stdout)
    if not isinstance(raw, ResilientStream):
        return None
    sys.stdout.flush()
    return raw.failure
