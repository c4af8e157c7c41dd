"""ptymesh diagnose: why is a result poor?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ptymesh.cli.launching import result_file

if TYPE_CHECKING:
    from ptymesh.io.results import Result
    from ptymesh.measurement import Measurement

#: Seconds after which no more remedies are tried.
TRIALS_S = 20.0


def command(
    result: Annotated[
        Path, typer.Argument(metavar="RESULT.h5", parser=result_file, help="Result of a run, or the run's folder.")
    ],
    data: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The data set, where it is no longer where the run read it.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Name the likely cause of a poor result, its evidence, and the line of a recipe that would help.

    Some 256 patterns are compared with their models, and what would help is tried on some views, for seconds. Without
    the data, only what the result itself shows is told.
    """
    from ptymesh.diagnosis.report import report
    from ptymesh.errors import PtymeshError
    from ptymesh.io.results import Result

    loaded, scan = Result.load(result), None
    try:
        scan = data_of(loaded, data)
    except PtymeshError as error:
        if data is not None:
            raise
        typer.echo(f"Only the result itself is looked at: {error}", err=True)
    diagnosis = report(loaded, scan, result, TRIALS_S)
    if json:
        from json import dumps

        typer.echo(dumps({"result": str(result), **diagnosis.as_dict()}, indent=1))
    else:
        for line in diagnosis.lines():
            typer.echo(line)


def data_of(result: Result, data: Path | None = None) -> Measurement:
    """Load the data set of a result, prepared as the result's recipe says.

    Args:
        result: of a run with a recipe.
        data: path of the data set, if it has been moved.

    Raises:
        PtymeshError: the result has no recipe, or the data cannot be read or are not those of the result.
    """
    from ptymesh.errors import BadInput
    from ptymesh.recipe.scans import load_scan
    from ptymesh.recipe.schema import Recipe
    from ptymesh.run_folder.patterns import check_same

    if not result.recipe:
        raise BadInput("The result holds no recipe, which would say how its data were read; runs of a recipe have one.")
    recipe = Recipe.from_yaml(result.recipe)
    if data is not None and recipe.scans:
        raise BadInput("The result is of several scans, which --data cannot name; put them back where its recipe says.")
    if data is not None:
        recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"path": data})})
    scan = load_scan(recipe)
    check_same(result, scan)
    return scan
