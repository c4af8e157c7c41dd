"""Conversion of results between ptymesh's own file and those of other programs, found by content and by ending."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from ptymesh.errors import BadInput
from ptymesh.files import target_of, writing
from ptymesh.io.exchange.result_format import ResultFormat
from ptymesh.io.results import Result
from ptymesh.sentences import quote

#: Formats of results, ptymesh's own first.
FORMATS: dict[str, ResultFormat] = {
    module.FORMAT.name: module.FORMAT
    for module in (
        import_module(f"ptymesh.io.exchange.{name}")
        for name in (
            *("own", "ptypy", "ptychodus", "ptyrad", "ptychoshelves", "ptychoshelves_h5", "py4dstem", "cxi_result"),
            *("hyperspy", "hyperspy_zarr", "tiff"),
        )
    )
}


def format_of(path: Path) -> ResultFormat | None:
    """Return the format of a result's file, by its content; None if it is no result of a known format."""
    if not path.is_file():
        return None
    return next((one for one in FORMATS.values() if one.recognises is not None and one.recognises(path)), None)


def read_result(path: Path) -> tuple[Result, ResultFormat, list[str]]:
    """Return the result in a file of any known format, the format, and sentences about what was assumed or left out.

    Raises:
        BadInput: the file is missing, of no known format, or damaged.
    """
    file_format = format_of(path)
    if file_format is None or file_format.read is None:
        return Result.load(path), FORMATS["ptymesh"], []  # whose sentence says what is wrong with the file
    result, notes = file_format.read(path)
    return result, file_format, notes


def target_format(path: Path, source: ResultFormat, name: str | None = None) -> ResultFormat:
    """Return the format to write: the named one, or that of the path's ending.

    `.h5` stands for ptymesh's own where the source is another program's, and else for Ptychodus'.

    Args:
        path: to write.
        source: format of what is converted.
        name: of a format; None: the ending decides.

    Raises:
        BadInput: neither says it; the message lists what there is.
    """
    if name is not None:
        if name not in FORMATS:
            raise BadInput(f"--to {quote(name)} is no format of results; there are {', '.join(FORMATS)}.")
        return FORMATS[name]
    ending = path.suffix.lower()
    fitting = [one for one in FORMATS.values() if ending in one.endings and one is not source]
    if not fitting:
        raise BadInput(f"{path} has no ending that names a format; there are {endings()}, or name one with --to.")
    return fitting[0]


def endings() -> str:
    """Return the known endings and their formats, for messages."""
    return ", ".join(f"{ending} ({one.name})" for one in FORMATS.values() for ending in one.endings)


def write_result(result: Result, path: Path, target: ResultFormat) -> list[str]:
    """Write a result in a format and return one sentence for each of its parts that the format does not hold.

    Args:
        result: whole.
        path: of the file, replaced if it exists; its folder is made.
        target: the format.

    Raises:
        BadInput: the format cannot hold the result, or the path cannot be a file.
        PtymeshError: the disk refuses.
    """
    if target.needs_metres and result.pixel_size_m is None:
        free = ", ".join(one.name for one in FORMATS.values() if not one.needs_metres)
        raise BadInput(
            f"The result is in pixel units, and {target.name} has lengths: give data.object_pixel_m, or the energy, "
            f"data.distance_m and data.detector_pixel_m, and run again, or choose one of {free}."
        )
    target_of(path)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    target.write(result, path)
    return target.losses(result)
