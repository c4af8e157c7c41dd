"""ptymesh scaling: timing of the same run on several numbers of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ptymesh.cli.launching import Backend, Device, LaunchOptions, Settings, folder


def command(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE.yaml", help="What to do with which data.")],
    ranks: Annotated[str, typer.Option("--ranks", "-n", metavar="N,N,...", help="Numbers of ranks, rising.")] = "1,2",
    trials: Annotated[int, typer.Option(metavar="N", help="Runs on each number of ranks.")] = 3,
    device: Device = "auto",
    backend: Backend = "auto",
    threads: Annotated[
        int | None, typer.Option(metavar="N", help="Threads per rank; default: cores over the largest number of ranks.")
    ] = None,
    also: Annotated[
        str,
        typer.Option(
            metavar="KIND,...",
            help="What is timed beside ranks: threads (one rank with those of all), weak (views in proportion), none.",
        ),
    ] = "threads,weak",
    set_: Settings = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", parser=folder, help="Folder for scaling.json and scaling.png.")
    ] = Path("scaling"),
) -> None:
    """Run a recipe several times on several numbers of ranks: seconds per epoch, what is lost, whether bits differ.

    Status 1 where the final results do not have the same bits.
    """
    from ptymesh.cli.running import check_folder, refuse_to_overwrite
    from ptymesh.errors import BadInput
    from ptymesh.io import load_measurement
    from ptymesh.run.recipe import load_recipe
    from ptymesh.run.scaling import THREADS, WEAK, save, scale, table

    try:
        counts = [int(part) for part in ranks.split(",")]
    except ValueError as error:
        raise BadInput(f"--ranks is {ranks!r}; give numbers of ranks such as 1,2,4.") from error
    beside = [] if also == "none" else also.split(",")
    if odd := [kind for kind in beside if kind not in (THREADS, WEAK)]:
        raise BadInput(f"--also is {also!r}, and there is no {odd[0]!r}; give threads, weak, both or none.")
    how = LaunchOptions(max(counts), device, backend)
    how.check()
    loaded = load_recipe(recipe, set_ or (), out)
    check_folder(out / "run")
    refuse_to_overwrite(out / "run", force=False)
    measurement = load_measurement(loaded.data, loaded.positions)
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
        also=beside,
        views=measurement.views,
        batches=[stage.batch for stage in loaded.stages],
    )
    for line in table(found):
        typer.echo(line)
    typer.echo(" ".join(str(path) for path in save(found, out)))
    if not found["same_bits"]:
        raise typer.Exit(1)
