"""ptymesh's own result file as one of the formats (`io/results.py` says what is in it)."""

from __future__ import annotations

from pathlib import Path

from ptymesh.io.exchange.building import file_has
from ptymesh.io.exchange.result_format import PARTS, ResultFormat
from ptymesh.io.results import Result


def write(result: Result, path: Path) -> None:
    """Write the file of `Result.save`."""
    result.save(path)


def recognises(path: Path) -> bool:
    """Return True for HDF5 with ptymesh's object, probe and positions."""
    return file_has(path, "object", "probe", "positions_px")


def read(path: Path) -> tuple[Result, list[str]]:
    """Return the result in a file of ptymesh."""
    return Result.load(path), []


FORMAT = ResultFormat(
    name="ptymesh",
    endings=(".h5",),
    program="ptymesh",
    holds=frozenset(PARTS),
    write=write,
    recognises=recognises,
    read=read,
    needs_metres=False,
)
