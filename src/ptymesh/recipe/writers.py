"""Writers of further files of a result, beside result.h5 (recipe key `output.writers`).

A writer is a function of a result (`ptymesh.io.results.Result`, whole) and a folder that is there. It writes files into
the folder and returns their paths, or None. It runs once, on the first rank, when the result is on the disk: what it
fails at is told, and costs the run nothing. A package offers one by an entry point of the group `ptymesh.writers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

from ptymesh.errors import PtymeshError
from ptymesh.files import writing
from ptymesh.io.results import Result
from ptymesh.registry import Registry

Writer: TypeAlias = Callable[[Result, Path], Iterable[Path] | None]

WRITERS: Registry[Writer] = Registry(
    "writer", "ptymesh.writers", remedy="make it a function of a result and a folder that returns the paths it wrote"
)


def write(name: str, result: Result, folder: Path) -> list[Path]:
    """Write a result with a writer and return the paths of its files.

    Args:
        name: of the writer, as in WRITERS.
        result: whole.
        folder: that is there.

    Raises:
        PtymeshError: in one sentence, where the writer fails.
    """
    try:
        return [Path(path) for path in WRITERS[name](result, folder) or ()]
    except (Exception, SystemExit) as error:  # whatever somebody else's package raises
        reason = str(error) if isinstance(error, PtymeshError) else f"{type(error).__name__}: {error}"
        reason = " ".join(reason.split())[:500].rstrip(".")
        raise PtymeshError(f"The writer {name} failed: {reason}.") from error


@WRITERS.register("tiff")
def tiff(result: Result, folder: Path) -> list[Path]:
    """Write amplitude and phase of object and probe as TIFF, with pixel sizes; see `tiff_files`."""
    return tiff_files(result, folder)


def tiff_files(result: Result, folder: Path, prefix: str = "") -> list[Path]:
    """Write amplitude and phase of object and probe as TIFF and return the paths.

    Args:
        result: whole.
        folder: made if need be.
        prefix: goes before the names.

    Raises:
        BadInput: the folder cannot be written to, or a name is taken by what is no file.
        PtymeshError: the disk refuses.
    """
    from ptymesh import plot
    from ptymesh.compare import illuminated, illumination_of_result

    light = illumination_of_result(result)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        region = illuminated(light, 0.05)
        paths = plot.object_tiffs(folder, result.object, result.pixel_size_m, region, prefix)
        return paths + plot.probe_tiffs(folder, result.probe, result.pixel_size_m, prefix)
