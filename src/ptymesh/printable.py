"""Text that is safe to print on a terminal, and values that JSON can hold.

Names of files and data sets may contain control characters.
"""

from __future__ import annotations

import math
import re

#: Control characters except line feed and tab, marks of writing direction, and bytes that are not UTF-8.
_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Return the text with control and unprintable characters written as escapes: `\x1b` for ESC."""
    return _COMMANDS.sub(lambda found: found.group().encode("unicode_escape", "surrogatepass").decode(), text)


def finite(value: object) -> object:
    """Return a value as JSON can hold it: numbers that are not finite are None, also within lists and groups."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value
