"""ptymesh scaling: the same run on several numbers of ranks, timed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ptymesh.cli.launching import Backend, Device, Launching, Settings, folder


def command(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE.yaml", help="What to do with which data.")],
    ranks: Annotated[str, typer.Option("--ranks", "-n", metavar="N,N,...", help="Numbers of ranks, rising.")] = "1,2",
    trials: Annotated[int, typer.Option(metavar="N", help="Runs on each number of ranks.")] = 3,
    device: Device = "auto",
    backend: Backend = "auto",
    threads: Annotated[
        int | None, typer.Option(metavar="N", help="Threads per rank; default: cores over the largest number of ranks.")
    ] = None,
    set_: Settings = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", parser=folder, help="Folder for scaling.json and scaling.png.")
    ] = Path("scaling"),
) -> None:
    """Run a recipe several times on several numbers of ranks: seconds per epoch, speed-up, memory, agreement.

    Status 1 where the final results do not agree.
    """
    from ptymesh.cli.running import check_folder, refuse_to_overwrite
    from ptymesh.errors import BadInput
    from ptymesh.io import load_measurement
    from ptymesh.run.recipe import load_recipe
    from ptymesh.run.scaling import save, scale, table

    try:
        counts = [int(part) for part in ranks.split(",")]
    except ValueError as error:
        raise BadInput(f"--ranks is {ranks!r}; give numbers of ranks such as 1,2,4.") from error
    how = Launching(max(counts), device, backend)
    how.check()
    loaded = load_recipe(recipe, set_ or (), out)
    check_folder(out / "run")
    refuse_to_overwrite(out / "run", force=False)
    load_measurement(loaded.data, loaded.positions)
    found = scale(
        recipe,
        counts,
        trials,
        out,
        settings=set_ or (),
        device=device,
        threads=threads,
        environment=how.environment,
        tell=lambda line: typer.echo(line, err=True),
    )
    for line in table(found):
        typer.echo(line)
    typer.echo(" ".join(str(path) for path in save(found, out)))
    if not found["agree"]:
        raise typer.Exit(1)
