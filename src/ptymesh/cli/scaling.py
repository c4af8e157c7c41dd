"""ptymesh scaling: `ptymesh bench --ranks` by its earlier name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ptymesh.cli.bench import FOLDER, Also, Trials, compare_ranks
from ptymesh.cli.launching import Backend, Device, LaunchOptions, Settings, folder


def command(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE.yaml", help="What to do with which data.")],
    ranks: Annotated[str, typer.Option("--ranks", "-n", metavar="N,N,...", help="Numbers of ranks, rising.")] = "1,2",
    trials: Trials = 3,
    device: Device = "auto",
    backend: Backend = "auto",
    threads: Annotated[
        int | None, typer.Option(metavar="N", help="Threads per rank; default: cores over the largest number of ranks.")
    ] = None,
    also: Also = "threads,weak",
    set_: Settings = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", parser=folder, help="Folder for scaling.json and scaling.png.")
    ] = FOLDER,
) -> None:
    """Do what `ptymesh bench RECIPE.yaml --ranks 1,2` does.

    Status 1 where the final results do not have the same bits.
    """
    compare_ranks(recipe, ranks, trials, LaunchOptions(None, device, backend), threads, also, set_ or [], out)
