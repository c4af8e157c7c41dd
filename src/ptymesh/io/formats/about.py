"""Description of each reader for the reference, of which docs/generate.py makes a table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class About:
    """One line of docs/reference/formats.md.

    Attributes:
        instrument: who writes such files.
        reads: what of them is read.
        takes: what is taken from the file besides the patterns.
        asks: what the file does not say, and the recipe must.
        library: that reads the bytes, and its licence.
    """

    instrument: str
    reads: str
    takes: str
    asks: str
    library: str = "numpy (BSD)"
