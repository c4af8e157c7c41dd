"""Text that a terminal shows, and does not obey: names of files and datasets may hold anything."""

from __future__ import annotations

import re

#: Control characters but for line feed and tabulator, what turns the direction of writing, and bytes that are no UTF-8.
_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Return the text with everything that a terminal would obey, or cannot show, written out: `\\x1b` for ESC."""
    return _COMMANDS.sub(lambda found: found.group().encode("unicode_escape", "surrogatepass").decode(), text)
