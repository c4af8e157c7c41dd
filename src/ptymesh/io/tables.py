"""Columns of numbers in text: CSV with commas, semicolons or tabs, or columns set apart by any number of blanks."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from ptymesh.errors import BadInput

#: Bytes of the longest text that is read, and of the start that tells whether it is one.
MOST_BYTES, START_BYTES = 1 << 28, 4096
#: Lines of words before the first numbers; the last of them names the columns.
MOST_TITLES = 3
COMMENTS = ("#", "%", ";", "!")


def is_table(path: Path) -> bool:
    """Return True for text of which one of the first lines that are no comments begins with a number."""
    with path.open("rb") as file:
        start = file.read(START_BYTES)
    try:
        text = start.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(start) - 4:
            return False
        text = start[: error.start].decode("utf-8")
    if "\0" in text:
        return False
    return any(_numbers(_fields(line)[:1]) is not None for line in _lines(text)[: MOST_TITLES + 1])


def read_table(path: Path, columns: str, subject: str) -> np.ndarray:
    """Return columns of numbers of a CSV or text file.

    Args:
        path: of the text.
        columns: names of the first line, or numbers from 0 on, separated by commas; "" for all of them.
        subject: names the reference, for messages.

    Returns:
        (N, C) float64, or (N,) where one column is named.

    Raises:
        BadInput: A line has other columns than the first, or no numbers, or there is no such column.
    """
    if path.stat().st_size > MOST_BYTES:
        raise BadInput(f"{subject} is text of {path.stat().st_size} bytes; save so much as .npy.")
    try:
        lines = _lines(path.read_bytes().decode("utf-8"))
    except UnicodeDecodeError as error:
        raise BadInput(
            f"{subject} is no text (byte {error.start} is none in UTF-8); save it as CSV or .npy."
        ) from error
    names: list[str] = []
    for _ in range(MOST_TITLES):
        if not lines or _numbers(_fields(lines[0])) is not None:
            break
        names, lines = _fields(lines[0]), lines[1:]
    rows = [_numbers(_fields(line)) for line in lines]
    width = len(rows[0]) if rows and rows[0] else 0
    wrong = next((k for k, row in enumerate(rows) if row is None or len(row) != width), None)
    if wrong is not None or not width:
        line = "" if wrong is None else lines[wrong].strip()[:60]
        raise BadInput(f"{subject} has a line that is no row of {width or 'any'} numbers ({line!r}); mend it.")
    values = np.array(rows, np.float64)
    if not columns:
        return values
    chosen = [_column(one.strip(), names, width, subject) for one in columns.split(",")]
    return values[:, chosen[0]] if len(chosen) == 1 else values[:, chosen]


def _column(name: str, names: list[str], width: int, subject: str) -> int:
    """Return the number of a column."""
    if name in names and names.index(name) < width:
        return names.index(name)
    if re.fullmatch(r"\d{1,6}", name) and int(name) < width:
        return int(name)
    choices = ", ".join(names[:20]) or f"0 to {width - 1}"
    raise BadInput(f"{subject} has no column {name!r}; there are {choices}.")


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith(COMMENTS)]


def _fields(line: str) -> list[str]:
    """Return what stands between commas, semicolons or tabs; without any, between blanks."""
    text = line.strip()
    split = next((mark for mark in (",", ";", "\t") if mark in text), None)
    fields = text.split(split) if split else text.split()
    return [field.strip().strip('"') for field in (fields[:-1] if fields and not fields[-1].strip() else fields)]


def _numbers(fields: list[str]) -> list[float] | None:
    """Return the numbers of a line; None where something else is among them."""
    try:
        return [float(field) for field in fields] or None
    except ValueError:
        return None
