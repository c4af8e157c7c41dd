"""ptymesh view: the figures of a result."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ptymesh.cli.launching import folder

if TYPE_CHECKING:
    from ptymesh.io.results import Result
    from ptymesh.run.figures import Patterns


class Format(StrEnum):
    """Kinds of figure files."""

    PNG = "png"
    PDF = "pdf"
    SVG = "svg"


def command(
    result: Annotated[Path, typer.Argument(metavar="RESULT.h5", help="Result of a run.")],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", parser=folder, help="Folder for the figures; beside the result.")
    ] = None,
    format_: Annotated[Format, typer.Option("--format", help="Kind of figure files.")] = Format.PNG,
    tiff: Annotated[
        bool, typer.Option("--tiff", help="Also write object and probe as TIFF, with pixel sizes.")
    ] = False,
) -> None:
    """Draw object, probe, coverage, positions, loss, and a typical and the worst pattern against their models.

    The patterns are read from the data set that the result names; without it the other figures are drawn.
    """
    from ptymesh.errors import PtymeshError
    from ptymesh.io.results import Result
    from ptymesh.run.figures import write_figures

    loaded = Result.load(result)
    try:
        patterns = _patterns(loaded)
    except PtymeshError as error:
        patterns = None
        typer.echo(f"No patterns are shown: {error}", err=True)
    prefix = "" if result.stem == "result" else f"{result.stem}-"
    folder = result.parent if out is None else out
    for path in write_figures(loaded, folder, prefix=prefix, suffix=format_.value, tiff=tiff, patterns=patterns):
        typer.echo(str(path))


def _patterns(result: Result) -> Patterns:
    """Patterns of the data set in the result's recipe. Raises PtymeshError, in one sentence, where that cannot be."""
    from ptymesh.errors import BadInput
    from ptymesh.io import load_measurement
    from ptymesh.run.figures import compared_patterns
    from ptymesh.run.recipe import Recipe

    if not result.recipe:
        raise BadInput("The result holds no recipe, which would say where its data are; runs of a recipe have one.")
    recipe = Recipe.from_yaml(result.recipe)
    return compared_patterns(result, load_measurement(recipe.data, recipe.positions))
