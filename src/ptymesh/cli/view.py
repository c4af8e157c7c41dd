"""ptymesh view: figures of a result."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ptymesh.cli.launching import folder, result_file


class Format(StrEnum):
    """Formats of figure files."""

    PNG = "png"
    PDF = "pdf"
    SVG = "svg"


def command(
    result: Annotated[
        Path, typer.Argument(metavar="RESULT.h5", parser=result_file, help="Result of a run, or the run's folder.")
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", parser=folder, help="Folder for the figures; beside the result.")
    ] = None,
    format_: Annotated[Format, typer.Option("--format", help="Kind of figure files.")] = Format.PNG,
    tiff: Annotated[
        bool, typer.Option("--tiff", help="Also write object and probe as TIFF, with pixel sizes.")
    ] = False,
    caustic: Annotated[
        bool, typer.Option("--caustic", help="Also follow the beam through its waists: figure, numbers, sentences.")
    ] = False,
    write: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Also have this writer write; see `ptymesh plugins`. May be repeated."),
    ] = None,
) -> None:
    """Draw object, sections, spectrum, probe, pupil, coverage, positions, loss, and patterns against their models.

    The patterns are read from the data set that the result names; without it the other figures are drawn.
    """
    from ptymesh.errors import BadInput, PtymeshError
    from ptymesh.io.results import Result
    from ptymesh.recipe.writers import WRITERS, tiff_files
    from ptymesh.recipe.writers import write as written_by
    from ptymesh.run_folder.caustic import caustic_lines, caustic_of_result, write_caustic
    from ptymesh.run_folder.figures import write_figures
    from ptymesh.run_folder.patterns import patterns_of

    try:
        for name in write or ():
            WRITERS[name]  # raises for an unknown name
    except BadInput:
        raise
    except ValueError as error:
        raise BadInput(f"--write: {error}.") from error
    loaded = Result.load(result)
    beam = caustic_of_result(loaded) if caustic else None
    try:
        patterns = patterns_of(loaded)
    except PtymeshError as error:
        patterns = None
        typer.echo(f"No patterns are shown: {error}", err=True)
    prefix = "" if result.stem == "result" else f"{result.stem}-"
    folder = result.parent if out is None else out
    for path in write_figures(loaded, folder, prefix=prefix, suffix=format_.value, patterns=patterns):
        typer.echo(str(path))
    if beam is not None:
        for path in write_caustic(beam, folder, prefix, format_.value):
            typer.echo(str(path))
        for line in caustic_lines(beam):
            typer.echo(line)
    for path in tiff_files(loaded, folder, prefix) if tiff else ():
        typer.echo(str(path))
    for name in write or ():
        for path in written_by(name, loaded, folder):
            typer.echo(str(path))
