"""ptymesh convert: any data set that ptymesh reads, as CXI."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    source: Annotated[Path, typer.Argument(metavar="IN", help="Data set, or a recipe that names one.")],
    target: Annotated[Path, typer.Argument(metavar="OUT.cxi", help="CXI file to write.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="data.KEY=VALUE or positions.KEY=VALUE.")
    ] = None,
    uncompressed: Annotated[bool, typer.Option("--uncompressed", help="One plain chunk per pattern: faster.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT.cxi if it exists.")] = False,
) -> None:
    """Write a data set, prepared as --set says, as CXI 1.6."""
    from ptymesh.cli.dataset import load_dataset
    from ptymesh.errors import BadInput
    from ptymesh.io.formats.cxi import write_measurement

    if target.exists() and not force:
        raise BadInput(f"{target} exists; choose another name, or replace it with --force.")
    if target.exists() and source.exists() and target.samefile(source):
        raise BadInput(f"{target} is the data set itself; choose another name.")
    measurement = load_dataset(source, set_ or ())
    write_measurement(measurement, target, compression=None if uncompressed else "gzip")
    h, w = measurement.window
    typer.echo(f"{target}: {measurement.views} views of {h} x {w} pixels ({measurement.patterns.dtype})")
    if measurement.geometry.object_pixel_m is None:
        typer.echo(
            "The positions are in pixels, which only ptymesh finds in this file; for other programs set "
            "data.object_pixel_m, or the energy, data.distance_m and data.detector_pixel_m."
        )
