"""Files of lines that grow: of each only what was added since the last look is read."""

from __future__ import annotations

import json
import os
import threading
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

#: One object of JSON: a line of a file, or what the page is told.
Row = dict[str, Any]

#: Lines of a file that are kept, files that are kept, and bytes before the place of the last look that are compared.
MOST_ROWS, MOST_FILES, COMPARED = 20_000, 600, 256


@dataclass
class ReadLines:
    """Lines of a file, as far as it was read.

    Attributes:
        inode: of the file.
        place: bytes that were read, up to the end of the last whole line.
        end: the last of these bytes, by which a file that was cut back and has grown again is known.
        rows: the objects of its lines.
    """

    inode: int
    place: int = 0
    end: bytes = b""
    rows: deque[Row] = field(default_factory=lambda: deque(maxlen=MOST_ROWS))


class GrowingFiles:
    """JSON lines of files that grow, for several threads at once."""

    def __init__(self) -> None:
        self._files: OrderedDict[Path, ReadLines] = OrderedDict()
        self._lock = threading.Lock()
        #: Bytes that were read so far.
        self.bytes_read = 0

    def rows(self, path: Path) -> list[Row]:
        """Return the objects of the last whole lines; a line that is no object counts as an empty one, nonsense not.

        Raises:
            OSError: the file cannot be read.
        """
        with self._lock, path.open("rb") as file:
            about = os.fstat(file.fileno())
            lines_read = self._files.get(path)
            if (
                lines_read is None
                or lines_read.inode != about.st_ino
                or not self._grew(file, lines_read, about.st_size)
            ):
                lines_read = self._files[path] = ReadLines(about.st_ino)
            self._files.move_to_end(path)
            if len(self._files) > MOST_FILES:
                self._files.popitem(last=False)
            if about.st_size > lines_read.place:
                self._read_on(file, lines_read)
            return list(lines_read.rows)

    def _grew(self, file: BinaryIO, lines_read: ReadLines, size: int) -> bool:
        """Return True if the file still begins with what was read of it."""
        if size < lines_read.place:
            return False
        file.seek(lines_read.place - len(lines_read.end))
        return file.read(len(lines_read.end)) == lines_read.end

    def _read_on(self, file: BinaryIO, lines_read: ReadLines) -> None:
        """Add the whole lines behind what was read."""
        file.seek(lines_read.place)
        added = file.read()
        self.bytes_read += len(added)
        complete_lines = added[: added.rfind(b"\n") + 1]
        lines_read.place += len(complete_lines)
        lines_read.end = (lines_read.end + complete_lines)[-COMPARED:]
        for line in complete_lines.splitlines():
            try:
                row = json.loads(
                    line.decode("utf-8", errors="replace"), parse_constant=lambda _: None
                )  # NaN is no JSON
            except ValueError:
                continue
            lines_read.rows.append(row if isinstance(row, dict) else {})
